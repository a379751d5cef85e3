//! A node's identity as its owner backs it up and moves it to another machine, which is another folder here.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use harness::{binary, node::Node};
use serde_json::Value;
use tempfile::TempDir;

/// Runs a command on the node of a folder, without a terminal.
fn shoal(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(args).arg("--home").arg(home).env_remove("SHOAL_PASSPHRASE");
    harness::output(&mut command).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command says that is refused as a wrong command line, or fails.
fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every file below a folder that is no socket and no lock.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path if path.is_file() => found.push((path.clone(), fs::read(path).unwrap())),
            _ => {}
        }
    }
    found.sort();
    found
}

#[test]
fn an_identity_moves_with_what_belongs_to_it_and_runs_once() {
    let folder = TempDir::new().unwrap();
    let [old, copy, new] = ["old", "copy", "new"].map(|name| folder.path().join(name));
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let secret = text(folder.path().join("passphrase"));
    fs::write(&secret, "lantern owl river\n").unwrap();
    let (backup, moved) = (text(folder.path().join("node.backup")), text(folder.path().join("moved.backup")));
    let export = |to: &str, more: &[&str]| {
        shoal(&old, &[&["identity", "export", to, "--passphrase-file", &secret, "--json"], more].concat())
    };
    let import = |home: &Path, from: &str, more: &[&str]| {
        shoal(home, &[&["identity", "import", from, "--passphrase-file", &secret, "--json"], more].concat())
    };
    assert!(refused(&export(&backup, &[]), 2).contains("no identity yet"));
    assert!(!old.join("identity.key").exists(), "none is made in passing");

    // A running node is backed up, and neither moved nor replaced.
    let mut node = Node::start(&old, &["--ask-only", "--private"]);
    fs::write(old.join("node-names.json"), "[]").unwrap();
    fs::create_dir_all(old.join("journal")).unwrap();
    fs::write(old.join("journal/ab12"), "what was said").unwrap();
    let made = json(&export(&backup, &[]));
    assert_eq!((&made["node"], &made["retired"]), (&Value::from(node.name.as_str()), &Value::from(false)));
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(refused(&export(&backup, &[]), 2).contains("exists"));
    assert!(refused(&export(&moved, &["--retire"]), 2).contains("shoal leave"));
    assert!(refused(&import(&old, &backup, &["--force"]), 2).contains("shoal leave"));

    // A copy of it is told why it does not start while this one runs.
    json(&import(&copy, &backup, &[]));
    let joins = |home: &Path| {
        shoal(home, &["join", "--json", "--yes", "--loopback", "--ask-only", "--until-stdin-closes"])
    };
    assert!(refused(&joins(&copy), 2).contains("runs on this machine already"));
    json(&shoal(&old, &["leave", "--json"]));
    node.child.wait().unwrap();

    // Moved: the old folder stays as it is and starts nothing.
    let made = json(&export(&moved, &["--retire", "--conversations"]));
    assert_eq!(made["retired"], true);
    assert!(refused(&joins(&old), 2).contains("shoal identity reactivate"));
    let placed = json(&import(&new, &moved, &[]));
    assert_eq!((&placed["node"], &placed["replaced"]), (&made["node"], &Value::Null));
    assert_eq!(fs::read(new.join("journal/ab12")).unwrap(), b"what was said");
    assert!(!copy.join("journal").exists(), "what was said goes along on request only");
    for name in ["identity.key", "swarm-shoal.key", "node-names.json"] {
        assert_eq!(fs::read(new.join(name)).unwrap(), fs::read(old.join(name)).unwrap(), "{name}");
    }
    let node = Node::start(&new, &["--ask-only"]);
    assert_eq!(node.name, made["node"].as_str().unwrap());
    drop(node);
    assert_eq!(json(&shoal(&old, &["identity", "reactivate", "--json"]))["was_retired"], true);
    assert_eq!(json(&shoal(&old, &["identity", "show", "--json"]))["retired_s"], Value::Null);
}

#[test]
fn a_backup_that_cannot_be_read_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let [home, other] = ["home", "other"].map(|name| folder.path().join(name));
    for home in [&home, &other] {
        fs::create_dir(home).unwrap();
        p2p::Identity::load_or_create(&home.join("identity.key")).unwrap();
    }
    let file = folder.path().join("node.backup");
    let with = |home: &Path, passphrase: &str, args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(args).arg(&file).arg("--home").arg(home).env("SHOAL_PASSPHRASE", passphrase);
        harness::output(&mut command).unwrap()
    };
    assert!(refused(&with(&home, "short", &["identity", "export"]), 2).contains("fewer than 8"));
    assert!(refused(&with(&home, "", &["identity", "export"]), 2).contains("no terminal"));
    assert!(!file.exists());
    assert!(with(&home, "lantern owl river", &["identity", "export"]).status.success());
    let before = files(&other);
    let import =
        |passphrase: &str, args: &[&str]| with(&other, passphrase, &[&["identity", "import"], args].concat());
    assert!(refused(&import("lantern owl rivet", &["--force"]), 1).contains("passphrase is not"));
    assert!(refused(&import("lantern owl river", &[]), 2).contains("--force"));
    let sound = fs::read(&file).unwrap();
    let mut damaged = sound.clone();
    damaged[60] ^= 4;
    for (bytes, why) in
        [(&damaged[..], "damaged"), (&sound[..sound.len() / 2], "damaged"), (b"PK\x03\x04", "another kind")]
    {
        fs::write(&file, bytes).unwrap();
        assert!(refused(&import("lantern owl river", &["--force"]), 1).contains(why), "{why}");
    }
    assert_eq!(files(&other), before);

    // What is replaced is kept.
    fs::write(&file, &sound).unwrap();
    assert!(import("lantern owl river", &["--force"]).status.success());
    assert_eq!(fs::read(other.join("identity.key")).unwrap(), fs::read(home.join("identity.key")).unwrap());
    let kept = files(&other);
    assert!(
        kept.iter().any(|(path, bytes)| path.ends_with("identity.key") && *bytes == before[0].1),
        "{kept:?}"
    );
}
