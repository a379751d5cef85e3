//! The kernel module's pure part as an ordinary program, and the test vectors that both implementations read.
//!
//! What needs a kernel is in `.ci/kmod`.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use harness::root;
use tempfile::TempDir;

fn folder() -> PathBuf {
    root().join("p2p/kmod")
}

fn vectors() -> BTreeMap<String, Vec<u8>> {
    let text = fs::read_to_string(folder().join("vectors.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let bytes = |hex: &str| {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    lines.map(|line| line.split_once(" = ").unwrap()).map(|(name, hex)| (name.into(), bytes(hex))).collect()
}

/// The standard library's own SipHash-2-4.
fn tag(key: &[u8], input: &[u8]) -> [u8; 8] {
    #[allow(deprecated)]
    use std::hash::{Hasher, SipHasher};
    let word = |at: usize| u64::from_le_bytes(key[at..at + 8].try_into().unwrap());
    #[allow(deprecated)]
    let mut hasher = SipHasher::new_with_keys(word(0), word(8));
    hasher.write(input);
    hasher.finish().to_le_bytes()
}

#[test]
fn the_vectors_have_the_tags_of_another_siphash() {
    let vectors = vectors();
    let input: Vec<u8> = (0..64).collect();
    for len in 0..input.len() {
        assert_eq!(
            vectors[&format!("siphash.{len}")],
            tag(&vectors["siphash.key"], &input[..len]),
            "{len} bytes"
        );
    }
    let mut read = 0;
    for (name, datagram) in &vectors {
        if !(name.starts_with("header.") || name.starts_with("refused.")) || name == "header.key" {
            continue;
        }
        let tagged = [&datagram[..32], &datagram[40..]].concat();
        assert_eq!(datagram[32..40], tag(&vectors["header.key"], &tagged), "{name}");
        assert_eq!(&datagram[..5], b"SLAN\x01", "{name}");
        assert_eq!(datagram[8..16], 0xfedc_ba98_7654_32c5_u64.to_le_bytes(), "{name}");
        read += 1;
    }
    assert_eq!(read, 21);
    let first = &vectors["header.data.first"];
    let (total, chunks) = (&first[20..24], &first[24..26]);
    assert_eq!((total, chunks), (&4000_u32.to_le_bytes()[..], &4000_u16.div_ceil(1408).to_le_bytes()[..]));
}

/// The service hides devices; what the module's package adds to it shows this one, under a user whose name is not the device's group.
#[test]
fn the_service_may_open_the_device_once_the_package_is_there() {
    let text = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (service, added, rule) = (
        text("node/packaging/shoal.service"),
        text("p2p/kmod/shoal-lan.conf"),
        text("p2p/kmod/60-shoal-lan.rules"),
    );
    assert!(service.contains("\nPrivateDevices=yes\n") && service.contains("\nDynamicUser=yes\n"));
    let says = |line: &str| added.lines().any(|known| known == line);
    assert!(says("[Service]") && says("PrivateDevices=no") && says("DevicePolicy=closed"));
    assert!(says("DeviceAllow=/dev/shoal_lan rw") && says("SupplementaryGroups=shoal"));
    assert!(rule.contains("KERNEL==\"shoal_lan\"") && rule.contains("GROUP=\"shoal\""));
    // A user that is made for the service cannot have the name of a group that exists.
    let user = added.lines().find_map(|line| line.strip_prefix("User=")).unwrap();
    assert_ne!(user, "shoal");
    let package = TempDir::new().unwrap();
    match Command::new(folder().join("deb")).arg(package.path()).output() {
        Ok(made) if made.status.success() => {
            let made = fs::read_dir(package.path()).unwrap().next().unwrap().unwrap().path();
            let listed = Command::new("dpkg-deb").arg("--contents").arg(made).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            assert!(listed.contains("/usr/lib/systemd/system/shoal.service.d/shoal-lan.conf"), "{listed}");
        }
        made => {
            assert!(std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none(), "{made:?}");
            eprintln!("skipped: no package is made here ({made:?})");
        }
    }
}

#[test]
fn the_modules_pure_part_passes_under_sanitizers() {
    let temp = TempDir::new().unwrap();
    let program = temp.path().join("core_test");
    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut compile = Command::new(&compiler);
    compile.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]);
    compile
        .arg("-fsanitize=address,undefined")
        .arg("-o")
        .arg(&program)
        .arg(folder().join("tests/core_test.c"));
    match compile.output() {
        Err(error) if std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none() => {
            eprintln!("skipped: no C compiler ({compiler}: {error})");
            return;
        }
        output => {
            let output = output.expect("a C compiler");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let run = |args: &[&str]| {
        let output = Command::new(&program).args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&[]).contains(" checks, 0 failed"));
    assert_eq!(run(&["--vectors"]), fs::read_to_string(folder().join("vectors.txt")).unwrap());
}

#[test]
fn the_package_has_what_a_build_needs() {
    let temp = TempDir::new().unwrap();
    let script = folder().join("deb");
    for shell in [&["sh", "-n"][..], &["shellcheck", "-s", "sh"]] {
        match Command::new(shell[0]).args(&shell[1..]).arg(&script).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(_) => eprintln!("skipped: {} is not installed", shell[0]),
        }
    }
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("skipped: dpkg-deb is not installed");
        return;
    }
    let made = Command::new(&script).arg(temp.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let package = fs::read_dir(temp.path()).unwrap().next().unwrap().unwrap().path();
    let listed = Command::new("dpkg-deb").arg("-c").arg(&package).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let sources =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let sources = sources.filter(|name| name.ends_with(".c") || name.ends_with(".h"));
    let mut expected: Vec<String> =
        sources.chain(["Kbuild", "Makefile", "dkms.conf", "LICENSE"].map(Into::into)).collect();
    expected.iter_mut().for_each(|name| *name = format!("./usr/src/shoal-lan-1/{name}"));
    expected.push("./usr/lib/udev/rules.d/60-shoal-lan.rules".into());
    assert!(expected.len() >= 10, "{expected:?}");
    for name in expected {
        assert!(listed.lines().any(|line| line.ends_with(&name)), "{name} is missing:\n{listed}");
    }
}
