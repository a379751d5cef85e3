//! How the code stands: no import circles, no type that knows everything, no file that tells everything.
//!
//! What is allowed beyond a rule is named here with its reason, and a reason that is no longer needed fails too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use harness::{imports::Imports, root};

const CRATES: [&str; 6] = ["scheduler", "shard", "p2p", "api", "node", "simulations"];
/// Crates of a few files, too small for rooms and circles.
const SMALL: [&str; 2] = ["node/embed", "node/embed/python"];
/// A struct with more fields has parts that want names of their own.
const MAX_FIELDS: usize = 15;
/// Methods of one type in more files have owners that want types of their own.
const MAX_IMPL_FILES: usize = 3;
/// A longer file tells more than one thing.
const MAX_LINES: usize = 600;

/// What is allowed beyond a rule, and why.
type Exceptions = &'static [(&'static str, &'static str)];

const RECORDS: Exceptions = &[];
const SPREAD: Exceptions = &[];
const LONG: Exceptions = &[];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&path).expect("a source file")));
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    CRATES.iter().chain(&SMALL).for_each(|name| sources(&root().join(name).join("src"), &mut found));
    assert!(found.len() > 300, "only {} files were read", found.len());
    found
}

/// What breaks a rule and is not allowed to, and what is allowed and keeps the rule.
fn hold(rule: &str, broken: &BTreeMap<String, String>, allowed: Exceptions) {
    let allowed: BTreeSet<&str> = allowed.iter().map(|(name, _)| *name).collect();
    let new: Vec<String> = broken
        .iter()
        .filter(|(name, _)| !allowed.contains(name.as_str()))
        .map(|(name, what)| format!("{name}: {what}"))
        .collect();
    assert!(new.is_empty(), "{rule}:\n{}", new.join("\n"));
    let stale: Vec<_> = allowed.iter().filter(|name| !broken.contains_key(**name)).collect();
    assert!(stale.is_empty(), "{rule}: no exception is needed any more for {stale:?}");
}

#[test]
fn modules_import_without_circles() {
    for name in CRATES {
        let imports = Imports::read(&root().join(name).join("src"));
        assert!(imports.len() > 15, "{name}: only {} modules were read", imports.len());
        let circles: Vec<String> = imports.circles().into_iter().map(|circle| circle.join(", ")).collect();
        assert!(circles.is_empty(), "{name}: modules import each other in a loop:\n{}", circles.join("\n"));
    }
}

/// An arrow from one room to another.
type Arrow = (&'static str, &'static str);
/// Folders whose rooms stand above each other, and arrows that climb all the same, with their reason.
const ROOMS: [(&str, &str, &[Arrow]); 11] = [
    ("scheduler", "", &[]),
    ("shard", "", &[]),
    ("shard", "kernels", &[]),
    ("shard", "executor", &[]),
    ("shard", "models", &[]),
    ("p2p", "", &[]),
    ("api", "", &[]),
    ("node", "", &[]),
    ("node", "daemon", &[]),
    ("node", "request", &[]),
    ("node", "commands", &[]),
];

#[test]
fn rooms_stand_above_each_other() {
    for (name, folder, climbing) in ROOMS {
        let imports = Imports::read(&root().join(name).join("src"));
        let circles = imports.room_circles(folder, climbing);
        assert!(circles.is_empty(), "{name} {folder}: rooms import each other in a loop: {circles:?}");
        for arrow in climbing {
            let others: Vec<_> = climbing.iter().copied().filter(|other| other != arrow).collect();
            let needed = !imports.room_circles(folder, &others).is_empty();
            assert!(needed, "{name} {folder}: no exception is needed any more for {arrow:?}");
        }
    }
}

/// `name` after `keyword` at the beginning of a line, generics cut off.
fn named<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = if line.starts_with("pub(") { line.split_once(") ")?.1 } else { line };
    let rest = line.strip_prefix(keyword)?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.strip_prefix(' ')? };
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn structs_have_few_fields() {
    let mut broken = BTreeMap::new();
    let mut seen = 0;
    for (file, text) in all_sources() {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(name) = named(line, "struct").filter(|_| line.ends_with('{')) else { continue };
            let is_field = |line: &&str| {
                let line = line.strip_prefix("    ").unwrap_or_default();
                line.starts_with(|c: char| c.is_lowercase() || c == '_') && line.contains(':')
            };
            let fields = lines.by_ref().take_while(|line| *line != "}").filter(is_field).count();
            seen += 1;
            if fields > MAX_FIELDS {
                broken.insert(format!("{file} {name}"), format!("{fields} fields"));
            }
        }
    }
    assert!(seen > 300, "only {seen} structs were read");
    hold("a struct has at most 15 fields", &broken, RECORDS);
}

#[test]
fn methods_of_a_type_stand_together() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in all_sources() {
        for line in text.lines().filter(|line| !line.contains(" for ") && line.ends_with('{')) {
            if let Some(name) = named(line, "impl") {
                let home = file.split("/src/").next().unwrap_or_default();
                places.entry(format!("{home} {name}")).or_default().insert(file.clone());
            }
        }
    }
    assert!(places.len() > 200, "only {} types were read", places.len());
    let broken = places.into_iter().filter(|(_, files)| files.len() > MAX_IMPL_FILES);
    let broken =
        broken.map(|(name, files)| (name, files.into_iter().collect::<Vec<_>>().join(", "))).collect();
    hold("methods of one type stand in at most 3 files", &broken, SPREAD);
}

#[test]
fn files_are_short() {
    let long = all_sources().into_iter().map(|(file, text)| (file, text.lines().count()));
    let broken =
        long.filter(|(_, lines)| *lines > MAX_LINES).map(|(file, lines)| (file, format!("{lines} lines")));
    hold("a file has at most 600 lines", &broken.collect(), LONG);
}
