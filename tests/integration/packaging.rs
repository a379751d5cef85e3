//! What puts a node on a machine: the install script, the services, the Debian package's list, the image.
//!
//! Tools that a machine lacks are named and their part is skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use harness::root;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn packaging(name: &str) -> PathBuf {
    root().join("node/packaging").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(packaging(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The output of a tool, `None` (and a word about it) where it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("skipped: {name} is not installed");
            None
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_scripts_are_plain_shell() {
    for script in ["install.sh", "release.sh", "sbom.sh"] {
        let path = packaging(script);
        let path = path.to_str().unwrap();
        assert_ne!(fs::metadata(path).unwrap().permissions().mode() & 0o111, 0, "{script} is not executable");
        for (shell, args) in
            [("sh", &["-n", path][..]), ("dash", &["-n", path]), ("shellcheck", &["-s", "sh", path])]
        {
            if let Some(output) = tool(shell, args) {
                assert!(output.status.success(), "{shell} {script}: {}", said(&output));
            }
        }
    }
}

/// A release of a program that is a shell script, so that no build is needed.
fn release(out: &Path, version: &str) {
    release_with(out, version, "otlp");
}

/// As [`release`], of a program that is said to have these features.
fn release_with(out: &Path, version: &str, features: &str) {
    release_under(out, version, &[("SHOAL_FEATURES", features)]);
}

/// As [`release`], with more variables of the environment.
fn release_under(out: &Path, version: &str, variables: &[(&str, &str)]) {
    let work = TempDir::new().unwrap();
    let program = work.path().join("shoal");
    let script = format!(
        "#!/bin/sh\ncase $1 in\n--version) echo shoal {version} ;;\n\
         man) mkdir -p \"$2\" && echo page >\"$2/shoal.1\" ;;\ncompletions) echo \"completes $2\" ;;\nesac\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let made = Command::new(packaging("release.sh"))
        .args([out, &program])
        .env("CARGO_TARGET_DIR", work.path().join("target"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
}

fn install(release: &Path, home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.arg(release.join("install.sh")).args(args).env("HOME", home);
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME").output().unwrap()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { files(&path) } else { vec![path] }
        })
        .collect();
    found.sort();
    found
}

#[test]
fn installing_checks_repeats_replaces_and_removes() {
    let (out, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (out, home) = (out.path(), home.path());
    release(out, "1.0.0");
    let local = home.join(".local");
    let first = install(out, home, &[]);
    assert!(first.status.success(), "{}", said(&first));
    let installed = files(&local);
    for part in [
        "bin/shoal",
        "share/man/man1/shoal.1",
        "share/bash-completion/completions/shoal",
        "share/systemd/user/shoal.service",
    ] {
        assert!(installed.contains(&local.join(part)), "{part} is missing in {installed:?}");
    }
    let runs = Command::new(local.join("bin/shoal")).arg("--version").output().unwrap();
    assert_eq!(said(&runs).trim(), "shoal 1.0.0");

    // Again: nothing changes.
    let again = install(out, home, &[]);
    assert!(said(&again).contains("installed already"), "{}", said(&again));
    assert_eq!(files(&local), installed);

    // A newer one takes its place; the user's own files stay.
    let newer = TempDir::new().unwrap();
    release(newer.path(), "1.1.0");
    fs::write(local.join("bin/other"), "mine").unwrap();
    let from = newer.path().to_str().unwrap().to_owned();
    assert!(install(out, home, &["--from", &from]).status.success());
    let runs = Command::new(local.join("bin/shoal")).arg("--version").output().unwrap();
    assert_eq!(said(&runs).trim(), "shoal 1.1.0");

    // One byte is wrong: nothing is installed, what is there stays.
    let archive =
        files(newer.path()).into_iter().find(|path| path.extension().is_some_and(|e| e == "gz")).unwrap();
    let mut bytes = fs::read(&archive).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&archive, bytes).unwrap();
    let other = TempDir::new().unwrap();
    let refused = install(newer.path(), other.path(), &[]);
    assert!(!refused.status.success() && said(&refused).contains("damaged"), "{}", said(&refused));
    assert!(files(other.path()).is_empty());

    let gone = install(out, home, &["--uninstall"]);
    assert!(gone.status.success(), "{}", said(&gone));
    assert_eq!(files(&local), [local.join("bin/other")]);
    assert!(!install(out, home, &["--uninstall"]).status.success());
}

/// The list of a release's crates, as text and as JSON.
fn bill(release: &Path) -> (String, Value) {
    let path = files(release).into_iter().find(|path| path.to_string_lossy().ends_with(".cdx.json")).unwrap();
    let text = fs::read_to_string(path).unwrap();
    let parsed = serde_json::from_str(&text).unwrap();
    (text, parsed)
}

/// The hashes of Cargo.lock, by the name of the crate in the list.
fn locked() -> BTreeMap<String, String> {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages = lock.split("[[package]]").skip(1).filter_map(|package| {
        let field =
            |key: &str| package.lines().find_map(|line| line.strip_prefix(key)).map(|v| v.trim_matches('"'));
        let (name, version) = (field("name = ")?, field("version = ")?.replace('+', "%2B"));
        Some((format!("pkg:cargo/{name}@{version}"), field("checksum = ")?.to_owned()))
    });
    packages.collect()
}

#[test]
fn a_release_says_what_it_is_made_of() {
    let (out, again, other) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    release(out.path(), "1.0.0");
    release(again.path(), "1.0.0");
    release_with(other.path(), "1.0.0", "");
    let (text, bill) = bill(out.path());
    assert_eq!(text, self::bill(again.path()).0, "two builds of the same have two lists");
    assert!(!text.contains(root().to_str().unwrap()), "a path of this machine is in it");

    // What lies beside the archive is in it, and its hash is with the archive's.
    let archive =
        files(out.path()).into_iter().find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap().to_owned();
    let member = |file: &str| {
        let mut tar = Command::new("tar");
        tar.arg("-xzOf").arg(&archive).arg(format!("{name}/{file}")).output().unwrap().stdout
    };
    assert_eq!(member("shoal.cdx.json"), text.as_bytes());
    let hex =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sums = fs::read_to_string(out.path().join("SHA256SUMS")).unwrap();
    assert!(sums.contains(&format!("{}  {name}.cdx.json\n", hex(text.as_bytes()))), "{sums}");

    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let serial = bill["serialNumber"].as_str().unwrap().strip_prefix("urn:uuid:").unwrap();
    assert_eq!(serial.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    let program = &bill["metadata"]["component"];
    assert_eq!((&program["name"], &program["type"]), (&"shoal".into(), &"application".into()));
    assert_eq!(
        program["hashes"][0]["content"],
        hex(&member("shoal")).as_str(),
        "the list is another program's"
    );

    let locked = locked();
    let mut scopes: BTreeMap<&str, &str> = BTreeMap::new();
    for component in bill["components"].as_array().unwrap() {
        let [purl, crate_name, version, scope] =
            ["purl", "name", "version", "scope"].map(|field| component[field].as_str().unwrap());
        assert_eq!(purl, format!("pkg:cargo/{crate_name}@{}", version.replace('+', "%2B")));
        assert_eq!(component["bom-ref"], purl);
        assert_eq!(
            component["hashes"][0]["content"].as_str(),
            locked.get(purl).map(String::as_str),
            "{purl}"
        );
        assert!(locked.contains_key(purl) || crate_name.starts_with("shoal-"), "{purl} is in no lock file");
        let license = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(!license.is_empty() && !license.contains('/'), "{purl}: {license} is no SPDX expression");
        assert!(scopes.insert(purl, scope).is_none(), "{purl} is there twice");
    }
    let scope = |name: &str| {
        let start = format!("pkg:cargo/{name}@");
        scopes.iter().find(|(purl, _)| purl.starts_with(&start)).map(|(_, scope)| *scope)
    };
    assert_eq!([scope("libp2p"), scope("shoal-shard")], [Some("required"); 2]);
    assert_eq!([scope("cc"), scope("serde_derive")], [Some("excluded"); 2], "they run in the compiler only");
    // What tests alone need, or ask of the same crates, is in no program.
    assert_eq!([scope("proptest"), scope("candle-core"), scope("simulations")], [None; 3]);
    assert_eq!(scope("opentelemetry"), Some("required"), "a feature of this build");
    assert!(!self::bill(other.path()).0.contains("opentelemetry@"), "no feature of that one");

    // Each crate is needed by something that the program needs.
    let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in bill["dependencies"].as_array().unwrap() {
        let on = node["dependsOn"].as_array().unwrap().iter().map(|on| on.as_str().unwrap()).collect();
        assert!(needs.insert(node["ref"].as_str().unwrap(), on).is_none());
    }
    let mut reached = BTreeSet::new();
    let mut open = vec![program["bom-ref"].as_str().unwrap()];
    while let Some(purl) = open.pop() {
        if reached.insert(purl) {
            open.extend(&needs[purl]);
        }
    }
    assert_eq!(reached.len(), scopes.len() + 1);
    assert!(scopes.keys().all(|purl| reached.contains(purl)) && scopes.len() > 200, "{}", scopes.len());
}

#[test]
fn the_install_script_says_what_is_wrong() {
    let (empty, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let script = packaging("install.sh");
    fs::copy(&script, empty.path().join("install.sh")).unwrap();
    for (args, part) in [
        (&[][..], "no SHA256SUMS"),
        (&["--from", "http://example.invalid/x"], "only https"),
        (&["--from", "ftp://example.invalid"], "only https"),
        (&["--wrong"], "unknown argument"),
        (&["--prefix"], "needs a folder"),
    ] {
        let output = install(empty.path(), home.path(), args);
        assert!(!output.status.success() && said(&output).contains(part), "{args:?}: {}", said(&output));
    }
    fs::write(empty.path().join("SHA256SUMS"), format!("{}  shoal-1-plan9-vax.tar.gz\n", "0".repeat(64)))
        .unwrap();
    let output = install(empty.path(), home.path(), &[]);
    assert!(said(&output).contains("nothing for"), "{}", said(&output));
    assert!(files(home.path()).is_empty());
}

#[test]
fn what_other_programs_embed_is_packed_beside_the_program() {
    let (out, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (out, home) = (out.path(), home.path());
    let library = out.join("libshoal.so");
    fs::write(&library, "a library").unwrap();
    fs::write(out.join("shoal-1.0.0-cp310-abi3-any.whl"), "a wheel").unwrap();
    release_under(out, "1.0.0", &[("SHOAL_LIBRARY", library.to_str().unwrap())]);
    let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    let named = |start: &str, end: &str| {
        let mut names = sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name);
        names.find(|name| name.starts_with(start) && name.ends_with(end)).map(str::to_owned)
    };
    assert!(named("shoal-", ".whl").is_some() && named("shoal-", ".tar.gz").is_some(), "{sums}");
    let wheel: Value =
        serde_json::from_slice(&fs::read(out.join("shoal-1.0.0-cp310-abi3-any.cdx.json")).unwrap()).unwrap();
    assert_eq!(wheel["metadata"]["component"]["name"], "shoal-python");
    assert!(named("shoal-1.0.0-cp310-abi3-any", ".cdx.json").is_some(), "{sums}");
    let archive = out.join(named("libshoal-1.0.0-", ".tar.gz").unwrap());
    let listed = said(&Command::new("tar").arg("-tzf").arg(&archive).output().unwrap());
    for part in ["/lib/libshoal.so", "/include/shoal.h", "/story.c", "/LICENSE-MIT", "/libshoal.cdx.json"] {
        assert!(listed.lines().any(|line| line.ends_with(part)), "{part} is missing in {listed}");
    }
    // It is not taken for the program.
    assert!(install(out, home, &[]).status.success() && home.join(".local/bin/shoal").is_file());
}

/// A program of the desktop that notes how it was called, in `home/.config/mimeapps.list` as the real one does.
fn desktop(folder: &Path) -> String {
    for (name, does) in [
        ("xdg-mime", "printf '%s=%s\\n' \"$3\" \"$2\" >>\"$HOME/.config/mimeapps.list\""),
        ("update-desktop-database", "touch \"$2/mimeinfo.cache\""),
    ] {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn links_are_opened_by_what_was_installed_and_never_without_asking() {
    let (out, home, tools) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    release(out.path(), "1.0.0");
    let (home, path) = (home.path(), desktop(tools.path()));
    let chosen = home.join(".config/mimeapps.list");
    fs::create_dir(home.join(".config")).unwrap();
    fs::write(&chosen, "[Default Applications]\ntext/html=browser.desktop\n").unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(out.path().join("install.sh")).args(args).env("HOME", home).env("PATH", &path);
        let output = command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME").output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    };
    run(&[]);
    let entry = home.join(".local/share/applications/shoal.desktop");
    let text = fs::read_to_string(&entry).unwrap();
    assert!(text.lines().any(|line| line == "MimeType=x-scheme-handler/shoal;"), "{text}");
    let command = text.lines().find_map(|line| line.strip_prefix("Exec=")).unwrap();
    let (program, args) = command.split_once(' ').unwrap();
    assert_eq!(
        Path::new(program),
        home.join(".local/bin/shoal"),
        "sessions of a desktop have their own PATH"
    );
    // What the page shows as a link takes the place of the field, as one word.
    assert!(args.ends_with(" %u") && text.lines().any(|line| line == "Terminal=true"), "{text}");
    let args: Vec<String> = args.split(' ').map(|word| word.replace("%u", "shoal:shoal1code")).collect();
    assert!(node::cli::parses(args.iter().map(String::as_str)), "{args:?}");
    assert!(args.contains(&"--ask".to_owned()), "a page's link is a stranger's word");
    if let Some(output) = tool("desktop-file-validate", &[entry.to_str().unwrap()]) {
        assert!(output.status.success(), "{}", said(&output));
    }
    let list = || fs::read_to_string(&chosen).unwrap();
    assert!(list().ends_with("x-scheme-handler/shoal=shoal.desktop\n"), "{}", list());
    run(&["--uninstall"]);
    assert_eq!(list(), "[Default Applications]\ntext/html=browser.desktop\n", "the user's own choices stay");
    assert!(files(&home.join(".local")).is_empty(), "{:?}", files(&home.join(".local")));

    // Below another prefix no desktop looks for it.
    let other = home.join("opt");
    run(&["--prefix", other.to_str().unwrap()]);
    assert!(!files(&other).iter().any(|file| file.ends_with("shoal.desktop")));
}

#[test]
fn the_services_are_hardened_and_start_a_command_that_exists() {
    let system = text("shoal.service");
    for line in [
        "DynamicUser=yes",
        "StateDirectory=shoal",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "MemoryDenyWriteExecute=yes",
        "NoNewPrivileges=yes",
        "LimitCORE=0",
        "CapabilityBoundingSet=",
    ] {
        assert!(system.lines().any(|found| found == line), "{line} is missing");
    }
    assert!(system.contains("SystemCallFilter=@system-service"));
    for unit in ["shoal.service", "shoal-user.service"] {
        let all = text(unit);
        let start = all.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let args = start.split(' ').skip(1);
        assert!(node::cli::parses(args), "{start}");
        // Else the workers would be gone before the daemon has let the sessions in them end.
        assert!(all.lines().any(|line| line == "KillMode=mixed"), "{unit}");
        // The program and its pages are not installed where tests run: nothing else may be wrong.
        let path = packaging(unit);
        let Some(output) = tool("systemd-analyze", &["verify", "--man=no", path.to_str().unwrap()]) else {
            continue;
        };
        let complaints = said(&output);
        let wrong: Vec<&str> = complaints
            .lines()
            .filter(|line| line.contains(unit) && !line.contains("is not executable"))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test]
fn the_debian_package_and_the_image_take_files_that_exist() {
    let manifest = fs::read_to_string(root().join("node/Cargo.toml")).unwrap();
    let assets = manifest.split("assets = [").nth(1).expect("assets").split("\n]").next().unwrap();
    let mut checked = 0;
    for source in assets.lines().filter_map(|line| line.split('"').nth(1)) {
        if !source.contains("target/") {
            assert!(root().join("node").join(source).is_file(), "{source} does not exist");
            checked += 1;
        }
    }
    assert!(checked >= 3 && manifest.contains("conf-files = [\"/etc/shoal/config.toml\"]"));
    // The unit goes by its name in this folder; the scripts are where what restarts it is filled in.
    assert!(manifest.contains("unit-scripts = \"packaging/\"") && packaging("shoal.service").is_file());
    for script in ["debian/postinst", "debian/prerm", "debian/postrm"] {
        assert!(text(script).starts_with("#!/bin/sh\nset -e\n") && text(script).contains("#DEBHELPER#"));
    }
    assert!(text("debian/postrm").contains("= purge"), "the key goes when the package is purged, not before");
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.toml");
    fs::copy(packaging("config.toml"), &config).unwrap();
    assert!(node::config::load(&node::config::Place::Named(config)).unwrap().is_empty());

    let image = text("Dockerfile");
    let last = image.rsplit("FROM ").next().unwrap();
    assert!(last.contains("\nUSER shoal\n") && last.contains("HEALTHCHECK") && last.contains("VOLUME /data"));
    let json = last.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let args: Vec<String> = serde_json::from_str(json).unwrap();
    assert!(node::cli::parses(args.iter().map(String::as_str)), "{args:?}");
    assert!(image.contains("--locked"));
}

/// A command line of the compose file as compose makes it: `${NAME:-word}` is `set(NAME)` or the word.
fn interpolated(line: &str, set: impl Fn(&str) -> Option<&'static str>) -> Vec<String> {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, variable)) = rest.split_once("${") {
        let (inside, after) = variable.split_once('}').expect("a variable ends");
        out += before;
        // `:-` has a word for a variable that is not set, `:+` one for a variable that is.
        match inside.split_once(":+") {
            Some((name, word)) => {
                let value = set(name).map(|value| word.replace(&format!("${name}"), value));
                out += &value.unwrap_or_default();
            }
            None => {
                let (name, word) = inside.split_once(":-").expect("a variable has a default");
                out += set(name).unwrap_or(word);
            }
        }
        rest = after;
    }
    out += rest;
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_compose_file_starts_commands_that_exist() {
    let compose = text("compose.yaml");
    let value = |key: &str| {
        let line = compose.lines().find_map(|line| line.trim_start().strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in compose.yaml")).trim()
    };
    let first = interpolated(value("command:"), |_| None);
    assert!(node::cli::parses(first.iter().map(String::as_str)), "{first:?}");
    assert_eq!(first[1], "--private", "without a code nothing stands in its place");
    let other = interpolated(value("command:"), |name| (name == "SHOAL_INVITE").then_some("shoal1code"));
    assert!(node::cli::parses(other.iter().map(String::as_str)), "{other:?}");
    assert_eq!(other[1], "shoal1code");
    let listed = interpolated(value("command:"), |name| (name == "SHOAL_MEMBERS").then_some("members"));
    assert!(node::cli::parses(listed.iter().map(String::as_str)), "{listed:?}");
    assert!(listed.iter().any(|arg| arg == "--members") && !first.iter().any(|arg| arg == "--members"));
    assert!(first.iter().any(|arg| arg == "--no-discovery"));
    let of = |variable: &'static str, word: &'static str| {
        let line = interpolated(value("command:"), |name| (name == variable).then_some(word));
        assert!(node::cli::parses(line.iter().map(String::as_str)), "{line:?}");
        line.join(" ")
    };
    assert!(!first.iter().any(|arg| arg == "--model"), "the code's is taken: {first:?}");
    assert!(of("SHOAL_MODEL", "smollm2").contains(" --model smollm2 "));
    let announced = of("SHOAL_ANNOUNCE", "/ip4/192.0.2.7/tcp/4001,/dns4/node.example/tcp/4001");
    assert!(
        announced.contains(" --announce /ip4/192.0.2.7/tcp/4001,/dns4/node.example/tcp/4001 "),
        "{announced}"
    );
    let folder = packaging("compose.yaml").parent().unwrap().join(value("context:"));
    assert!(folder.join(value("dockerfile:")).is_file());
}
