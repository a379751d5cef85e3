//! What some blocks need that a test cannot have everywhere, and what is held of them where they do not run.

use std::{fs, path::Path, process::Command};

use harness::{binary, root};
use serde_json::Value;

/// A word of `sh,needs=WORD`.
pub(super) struct Need {
    pub(super) word: &'static str,
    /// Whether it is here; `None` for what is not looked for, because it takes long or changes the machine.
    here: Option<fn() -> bool>,
}

/// Every word. `SHOAL_GUIDES=docker,systemd` says that these are here, and runs their blocks.
pub(super) const NEEDS: &[Need] = &[
    // A GPU, and for the shorter ones a software device that plays one.
    Need { word: "gpu", here: Some(has_gpu) },
    Need { word: "vulkan", here: Some(has_vulkan) },
    // Minutes: compiles the workspace, or boots a virtual machine. `.ci/run` has the time.
    Need { word: "minutes", here: None },
    // A service that is installed, and systemd as the first process.
    Need { word: "systemd", here: None },
    // The program that signs releases, which asks for a passphrase.
    Need { word: "minisign", here: None },
    // Docker's daemon, and minutes to build the image.
    Need { word: "docker", here: None },
    // Root on a machine whose kernel may be changed.
    Need { word: "kernel", here: None },
    // Builds the Python package, for which pip fetches maturin; `.ci/run` does.
    Need { word: "maturin", here: None },
    // Other people's programs, which fetch hundreds of megabytes: lm-eval and llama-cpp-python.
    Need { word: "evaluator", here: None },
    Need { word: "llama.cpp", here: None },
];

fn has_gpu() -> bool {
    ["/dev/dri", "/dev/nvidia0"].iter().any(|device| Path::new(device).exists()) && has_vulkan()
}

fn has_vulkan() -> bool {
    let mut tried = Command::new(binary());
    tried.args(["run", "--device", "gpu:0", "-n", "1", "--raw", "A fox"]);
    harness::output(&mut tried).is_ok_and(|output| output.status.success())
}

impl Need {
    /// The need that is called `word`.
    ///
    /// # Panics
    /// When no need is.
    pub(super) fn of(word: &str) -> &'static Self {
        let found = NEEDS.iter().find(|need| need.word == word);
        found.unwrap_or_else(|| panic!("`needs={word}` is no need: see tests/integration/guides/needs.rs"))
    }

    /// Whether its blocks run here.
    pub(super) fn is_here(&self) -> bool {
        let named = std::env::var("SHOAL_GUIDES").unwrap_or_default();
        named.split(',').any(|word| word == self.word) || self.here.is_some_and(|here| here())
    }
}

/// Holds what can be held of a command without running it: what it names exists.
///
/// # Panics
/// When something does not.
pub(super) fn holds(command: &[String], place: &str) {
    let words =
        command.iter().skip_while(|word| *word == "sudo" || word.contains('=') && !word.starts_with('-'));
    let words: Vec<&str> = words.map(String::as_str).collect();
    // What another program asks of the API is its own affair.
    if words.contains(&"lm_eval") {
        return;
    }
    let Some((program, args)) = words.split_first() else { return };
    let flags = || {
        args.iter().filter(|word| word.starts_with("--")).map(|flag| flag.split('=').next().unwrap_or(flag))
    };
    let knows_flags = |file: &str| {
        let text = source(file, place);
        flags().for_each(|flag| assert!(text.contains(flag), "{place}: {file} knows no {flag}"));
    };
    match *program {
        "shoal" => assert!(node::cli::parses(args.iter().copied()), "{place}: {command:?} does not parse"),
        "cargo" => cargo(args, place),
        "python" if args.first() == Some(&"-c") => {}
        "python" => knows_flags(args.first().unwrap_or(&"")),
        "pip" => {
            let package = args.last().unwrap_or(&"");
            assert_eq!(args[0], "install", "{place}: {command:?}");
            assert!(source(&format!("{package}/pyproject.toml"), place).contains("maturin"), "{place}");
        }
        "docker" => docker(args, place),
        "systemctl" => {
            let unit = args.last().unwrap_or(&"");
            source(&format!("node/packaging/{unit}.service"), place);
        }
        "modprobe" => {
            let module = args.last().unwrap_or(&"");
            assert!(
                source("p2p/kmod/Kbuild", place).contains(&format!("{module}.o")),
                "{place}: no {module}"
            );
        }
        "tee" => {
            let parameter = args.last().and_then(|path| path.rsplit('/').next()).unwrap_or("");
            let device = source("p2p/kmod/shoal_lan_device.c", place);
            let declared = device.contains(&format!("module_param_cb({parameter},"))
                || device.contains(&format!("module_param({parameter},"));
            assert!(declared, "{place}: the module has no parameter {parameter}");
        }
        "apt" => {
            let package = args.last().and_then(|path| path.rsplit('/').next()).unwrap_or("");
            let name = package.split('_').next().unwrap_or("");
            assert!(
                source("p2p/kmod/deb", place).contains(&format!("Package: {name}\n")),
                "{place}: {package}"
            );
        }
        "minisign" => {
            let script = source("node/packaging/release.sh", place);
            assert!(
                script.contains("minisign -S") && script.contains(args[0]),
                "{place}: the script signs otherwise"
            );
        }
        "echo" | "ls" => {}
        script if script.contains('/') => knows_flags(script),
        other => panic!("{place}: `{other}` is neither run nor looked at"),
    }
}

/// A file of the repository that a command names.
fn source(file: &str, place: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{place}: {file}: {error}"))
}

/// The packages of the workspace: name and folder.
fn packages() -> Vec<(String, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = harness::output(&mut metadata).expect("cargo runs");
    let said: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().and_then(Path::to_str).unwrap_or_default().to_owned();
        (text(&package["name"]), folder)
    };
    said["packages"].as_array().into_iter().flatten().map(package).collect()
}

/// `cargo test`, `clippy` and `fmt`: packages, suites and filters are those of this workspace.
fn cargo(args: &[&str], place: &str) {
    let after = |flag: &str| args.iter().position(|word| *word == flag).map(|at| args[at + 1]);
    let filter = args.last().filter(|word| word.ends_with("::"));
    assert!(["test", "clippy", "fmt"].contains(&args[0]), "{place}: cargo {}", args[0]);
    let Some(name) = after("-p") else {
        // Of everything: what `.ci/run` does, and what this test is a part of.
        let ci = source(".ci/run", place);
        let plain = format!("cargo {}", args[..2].join(" "));
        let own = fs::read_to_string(root().join("README.md")).is_ok_and(|readme| readme.contains(&plain));
        assert!(
            ci.contains(&plain) || own && ci.contains("s/^cargo test"),
            "{place}: .ci/run has no `{plain}`"
        );
        return;
    };
    let packages = packages();
    let package = packages.iter().find(|(known, _)| known == name);
    let (_, folder) = package.unwrap_or_else(|| panic!("{place}: there is no package {name}"));
    match (after("--test"), filter) {
        // This very program.
        (Some("integration"), Some(filter)) => {
            let mut list = Command::new(std::env::current_exe().expect("a program"));
            let said = harness::output(list.args(["--list", filter])).expect("it runs");
            let tests =
                String::from_utf8_lossy(&said.stdout).lines().filter(|line| line.ends_with(": test")).count();
            assert!(tests > 0, "{place}: no test of {filter}");
        }
        (Some(suite), _) => panic!("{place}: the suite {suite}"),
        (None, Some(module)) => {
            let path = Path::new(folder).join("src").join(module.trim_end_matches("::").replace("::", "/"));
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{place}: no module {module}");
        }
        (None, None) => {}
    }
}

/// `docker`: files that exist, and commands of `shoal` within the container.
fn docker(args: &[&str], place: &str) {
    if let Some(at) = args.iter().position(|word| *word == "-f") {
        source(args[at + 1], place);
    }
    if args[0] == "build" {
        let context = args.last().copied().unwrap_or_default();
        assert!(
            root().join(context).join("Cargo.lock").is_file(),
            "{place}: {context} is not what the image is built of"
        );
    }
    if args[0] == "run" {
        let image = source("node/packaging/Dockerfile", place);
        for port in args.iter().filter_map(|word| word.split_once(':')?.1.strip_suffix("/tcp")) {
            assert!(image.contains(&format!("{port}/tcp")), "{place}: the image has no port {port}");
        }
        for volume in args.iter().filter_map(|word| word.split_once(":/").map(|(_, folder)| folder)) {
            assert!(image.contains(&format!("VOLUME /{volume}\n")), "{place}: the image has no /{volume}");
        }
    }
    // What follows the name of the container or of the service.
    if let Some(at) = args.iter().position(|word| *word == "exec") {
        let within = &args[at + 2..];
        assert_eq!(within.first(), Some(&"shoal"), "{place}: {args:?}");
        assert!(node::cli::parses(within[1..].iter().copied()), "{place}: {within:?} does not parse");
    }
}
