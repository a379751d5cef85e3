//! The repository keeps its own rules: the dependency picture, the floors of the lock file, the README's commands.

use std::{collections::BTreeMap, fs, process::Command};

use harness::root;
use serde_json::Value;

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

#[test]
fn dependencies_run_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("shoal-scheduler", &[][..]),
        ("shoal-shard", &["shoal-scheduler"]),
        ("shoal-p2p", &["shoal-scheduler"]),
        ("shoal-api", &[]),
        ("shoal-simulations", &["shoal-scheduler"]),
        ("shoal-node", &["shoal-api", "shoal-shard", "shoal-p2p", "shoal-scheduler"]),
        ("shoal-embed", &["shoal-node", "shoal-shard"]),
        ("shoal-python", &["shoal-embed"]),
        (
            "shoal-tests",
            &[
                "shoal-api",
                "shoal-shard",
                "shoal-p2p",
                "shoal-scheduler",
                "shoal-node",
                "shoal-simulations",
                "shoal-embed",
                "shoal-python",
            ],
        ),
    ]);
    for package in metadata()["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let may = allowed.get(name).unwrap_or_else(|| panic!("{name} is not in the picture"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let other = dependency["name"].as_str().expect("a name");
            assert!(
                !other.starts_with("shoal-") || may.contains(&other),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn heavy_libraries_stay_in_their_crates() {
    let homes = [
        ("candle-core", "shoal-shard"),
        ("libp2p", "shoal-p2p"),
        ("axum", "shoal-api"),
        ("petgraph", "shoal-scheduler"),
        ("minijinja", "shoal-shard"),
        ("wgpu", "shoal-shard"),
        ("pyo3", "shoal-python"),
    ];
    for package in metadata()["packages"].as_array().expect("packages") {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            for (library, home) in homes {
                let at_home = package["name"] == home || package["name"] == "shoal-tests";
                assert!(dependency["name"] != library || at_home, "{library} belongs to {home} alone");
            }
        }
    }
}

/// Versions with known advisories, or that do not compile, must not come back.
const FLOORS: &[(&str, [u64; 3])] = &[
    ("libp2p", [0, 57, 1]),
    ("libp2p-gossipsub", [0, 50, 1]),
    ("yamux", [0, 14, 1]),
    ("libp2p-rendezvous", [0, 17, 1]),
    ("ed25519-dalek", [3, 0, 0]),
    ("memmap2", [0, 9, 0]),
    ("minijinja", [3, 0, 5]),
    ("half", [2, 7, 0]),
];
/// Crates that must not appear, or only below a version.
const CEILINGS: &[(&str, [u64; 3])] =
    &[("bincode", [3, 0, 0]), ("openssl", [0, 0, 0]), ("openssl-sys", [0, 0, 0])];

#[test]
fn the_lock_file_keeps_its_floors() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    let mut seen = 0;
    for package in lock.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = package.lines().find(|line| line.starts_with(key))?;
            line.split('"').nth(1)
        };
        let (Some(name), Some(version)) = (field("name"), field("version")) else { continue };
        let source = field("source").unwrap_or_default();
        assert!(source.is_empty() || source.starts_with("registry+"), "{name} comes from {source}");
        let numbers: Vec<u64> =
            version.split(['.', '-', '+']).take(3).map(|n| n.parse().unwrap_or(0)).collect();
        for (_, floor) in FLOORS.iter().filter(|(floor, _)| *floor == name) {
            assert!(numbers.as_slice() >= floor.as_slice(), "{name} {version} is below {floor:?}");
        }
        for (_, ceiling) in CEILINGS.iter().filter(|(ceiling, _)| *ceiling == name) {
            assert!(numbers.as_slice() < ceiling.as_slice(), "{name} {version} is not allowed");
        }
        seen += 1;
    }
    assert!(seen > 20, "only {seen} packages were read");
}

#[test]
fn the_readme_has_one_command_for_each_thing() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let commands = |prefix: &str| readme.lines().filter(|line| line.starts_with(prefix)).count();
    assert_eq!((commands("cargo run"), commands("cargo test")), (1, 1));
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    // Drivers take back the kernels that they compiled by a call that trusts their bytes.
    let cache = "shard/src/executor/gpu/pipeline_cache.rs";
    let rooms = ["shard/src/kernels/", "shard/src/gguf/", "p2p/src/link/", "node/embed/src/c.rs", cache];
    let mut folders = vec![root().to_path_buf()];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let inside =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
            if path.is_dir() && !inside.starts_with('.') && !inside.split('/').any(|part| part == "target") {
                folders.push(path);
            } else if inside.ends_with(".rs")
                && inside.contains("/src/")
                && !rooms.iter().any(|r| inside.starts_with(r))
            {
                read += 1;
                let text = fs::read_to_string(&path).expect("a source file");
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let found = code.filter(|line| {
                    ["unsafe {", "unsafe fn", "unsafe impl", "#[unsafe("]
                        .iter()
                        .any(|word| line.contains(word))
                });
                assert_eq!(found.count(), 0, "{inside} has unsafe code");
            }
        }
    }
    assert!(read > 10);
}

#[test]
fn the_page_of_families_names_those_that_are_computed() {
    let page = fs::read_to_string(root().join("node/docs/models.md")).unwrap();
    let table: Vec<&str> =
        page.split("\n## ").next().unwrap().lines().filter(|l| l.starts_with("| `")).collect();
    let computed = shard::models::ALL.iter().filter(|family| family.name != shard::models::FIXTURE);
    for family in computed.clone() {
        let row = format!("| `{}` | {} | ", family.name, family.covers);
        assert_eq!(
            table.iter().filter(|line| line.starts_with(&row)).count(),
            1,
            "node/docs/models.md lacks {row}"
        );
    }
    assert_eq!(table.len(), computed.count(), "node/docs/models.md has a family that is not computed");
    let fixtures = fs::read_dir(root().join("tests/data/families")).unwrap().flatten();
    for file in fixtures.filter_map(|file| file.file_name().into_string().ok()) {
        let Some(name) = file.strip_suffix(".golden.json") else { continue };
        let measured = format!(" {name} ");
        assert!(
            table.iter().any(|line| line.contains(&measured)),
            "node/docs/models.md has no figure of {name}"
        );
    }
}

#[test]
fn the_readme_is_read_in_five_minutes() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let words = readme.split_whitespace().count();
    assert!((600..=900).contains(&words), "README.md has {words} words; the rest belongs into the guides");
}

#[test]
fn the_node_names_no_engine() {
    // The shard's `executor::device` chooses one; tests compare with one that they know, and faults are injected into one.
    let mut folders = vec![root().join("node/src")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            if path.is_dir() && !matches!(name.as_str(), "tests" | "byzantine") {
                folders.push(path);
            } else if name.ends_with(".rs") && !matches!(name.as_str(), "tests.rs" | "fault.rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let text = text.split("#[cfg(test)]\nmod tests {").next().expect("a beginning");
                for engine in ["cpu", "candle", "gpu", "reference"] {
                    let names = [format!("executor::{engine}::"), format!("{engine}::Shard")];
                    assert!(
                        !names.iter().any(|named| text.contains(named)),
                        "{} names {engine}",
                        path.display()
                    );
                }
                read += 1;
            }
        }
    }
    assert!(read > 100, "only {read} files were read");
}
