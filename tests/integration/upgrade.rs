//! A signed release in the place of the program: archives of the repository's own script, signed with keys of these tests.
//!
//! The program in them is a shell script that says its version, so that no build is needed; what is replaced is a second name of
//! the real one.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use blake2::{Blake2b512, Digest};
use data_encoding::BASE64;
use ed25519_dalek::{Signer, SigningKey};
use harness::{binary, node::Node, registry::Registry, root};
use serde_json::Value;
use tempfile::TempDir;

/// A key as `minisign -G` writes it: the secret one, and the text of the public one.
fn key(seed: u8) -> (SigningKey, String) {
    let key = SigningKey::from_bytes(&[seed; 32]);
    let text = [&b"Ed"[..], &[seed; 8], key.verifying_key().as_bytes()].concat();
    (key, BASE64.encode(&text))
}

/// Writes the signature that `minisign -S` makes beside a file.
fn sign(file: &Path, seed: u8) {
    let key = key(seed).0;
    let signature = key.sign(&Blake2b512::digest(fs::read(file).unwrap())).to_bytes();
    let both = key.sign(&[&signature[..], b"file"].concat()).to_bytes();
    let first = BASE64.encode(&[&b"ED"[..], &[seed; 8], &signature].concat());
    let text = format!("untrusted comment: x\n{first}\ntrusted comment: file\n{}\n", BASE64.encode(&both));
    fs::write(format!("{}.minisig", file.display()), text).unwrap();
}

fn executable(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An archive of `release.sh`, signed; `machine` is what `uname -m` says where it is made.
fn release(out: &Path, version: &str, machine: Option<&str>) -> PathBuf {
    let work = TempDir::new().unwrap();
    let program = work.path().join("shoal");
    executable(
        &program,
        &format!(
            "case $1 in\n--version) echo shoal {version} ;;\nman) mkdir -p \"$2\" && echo page >\"$2/shoal.1\" ;;\n\
             completions) echo \"completes $2\" ;;\nselftest) ;;\n*) exit 3 ;;\nesac"
        ),
    );
    let mut path = std::env::var("PATH").unwrap();
    if let Some(machine) = machine {
        let name = std::env::consts::OS;
        executable(
            &work.path().join("bin/uname"),
            &format!("[ \"$1\" = -s ] && echo {name} || echo {machine}"),
        );
        path = format!("{}:{path}", work.path().join("bin").display());
    }
    let out = out.join(version);
    let mut script = Command::new(root().join("node/packaging/release.sh"));
    script.args([&out, &program]).env("PATH", path).env("CARGO_TARGET_DIR", work.path().join("target"));
    let made = harness::output(&mut script).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut archives = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.path());
    let archive = archives.find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
    sign(&archive, 1);
    archive
}

/// The program under a name of its own, beside the one that was built: one file system.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Self {
        let beside = binary().parent().unwrap();
        let folder = tempfile::Builder::new().prefix("installed-").tempdir_in(beside).unwrap();
        fs::hard_link(binary(), folder.path().join("shoal")).unwrap();
        Self { folder }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("shoal")
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.program());
        command.args(args).env("SHOAL_HOME", self.home()).env_remove("SHOAL_UPGRADE_KEY");
        harness::output(&mut command).unwrap()
    }

    /// Why an upgrade is refused; nothing has changed then.
    fn refused(&self, code: i32, archive: &str, more: &[&str]) -> String {
        let output = self.run(&[&["upgrade", archive], more].concat());
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), 1, "something is left behind");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn version(&self) -> String {
        let output = harness::output(Command::new(self.program()).arg("--version")).unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_is_not_signed_newer_and_for_this_machine_is_refused() {
    let (installed, out) = (Installed::new(), TempDir::new().unwrap());
    let archive = release(out.path(), "9.0.0", None);
    let name = archive.to_str().unwrap();
    let (mine, other) = (key(1).1, key(2).1);
    assert!(installed.refused(2, name, &["--yes"]).contains("which key"));
    assert!(installed.refused(2, name, &["--yes", "--key", "RWQ"]).contains("neither a public key"));
    assert!(
        installed
            .refused(1, name, &["--yes", "--key", &other])
            .contains("made with the key 0101010101010101")
    );
    assert!(
        installed.refused(2, name, &["--key", &mine]).contains("--yes"),
        "there is no terminal to ask at"
    );
    assert!(installed.refused(2, "http://192.0.2.1/a.tar.gz", &["--key", &mine]).contains("only https"));

    // Checked, and nothing else; the key may be in a file.
    let file = out.path().join("release.pub");
    fs::write(&file, format!("untrusted comment: minisign public key 1\n{mine}\n")).unwrap();
    let check = ["upgrade", name, "--check", "--json", "--key", file.to_str().unwrap()];
    let checked = json(&installed.run(&check));
    assert_eq!((&checked["done"], &checked["to"]), (&"checked".into(), &"9.0.0".into()));
    assert_eq!(checked["previous"], Value::Null);

    // One byte is another: the checksum says so, and without it the signature.
    let sound = fs::read(&archive).unwrap();
    let mut bytes = sound.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&archive, &bytes).unwrap();
    assert!(installed.refused(1, name, &["--yes", "--key", &mine]).contains("is damaged"));
    fs::remove_file(archive.with_file_name("SHA256SUMS")).unwrap();
    assert!(installed.refused(1, name, &["--yes", "--key", &mine]).contains("not the one that was signed"));
    fs::write(&archive, &sound).unwrap();
    fs::remove_file(format!("{name}.minisig")).unwrap();
    assert!(installed.refused(1, name, &["--yes", "--key", &mine]).contains("no signature"));

    let older = release(out.path(), "0.0.9", None);
    let older = older.to_str().unwrap();
    assert!(installed.refused(1, older, &["--yes", "--key", &mine]).contains("--allow-downgrade"));
    assert!(
        installed.run(&["upgrade", older, "--check", "--allow-downgrade", "--key", &mine]).status.success()
    );
    let foreign = release(out.path(), "9.1.0", Some("vax"));
    let why = installed.refused(1, foreign.to_str().unwrap(), &["--yes", "--key", &mine]);
    assert!(why.contains("-vax and this machine is"), "{why}");
    assert!(installed.version().starts_with("shoal 0."));
}

#[test]
fn a_release_takes_the_place_once_the_node_has_left_and_goes_back() {
    let (installed, out) = (Installed::new(), TempDir::new().unwrap());
    let archive = release(out.path(), "9.0.0", None);
    // From a server of this machine.
    let server = Registry::start(Vec::new(), String::new(), 0, 0);
    for end in ["", ".minisig"] {
        let file = format!("{}{end}", archive.display());
        let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
        server.publish(&format!("/{name}"), fs::read(&file).unwrap());
    }
    let url = format!("{}/{}", server.url(), archive.file_name().unwrap().to_str().unwrap());
    let before = installed.version();
    let mut node =
        Node::launch(Command::new(installed.program()), &installed.home(), &["--loopback", "--ask-only"]);
    let done = json(&installed.run(&["upgrade", &url, "--yes", "--json", "--key", &key(1).1]));
    assert_eq!(
        (&done["done"], &done["node_left"], &done["to"]),
        (&"installed".into(), &true.into(), &"9.0.0".into())
    );
    node.wait_for("stopped");
    assert!(node.child.wait().unwrap().success());
    assert_eq!(installed.version(), "shoal 9.0.0");

    // The one before puts itself back, whatever the other one can do.
    let previous = installed.folder.path().join("shoal.previous");
    let mut back = Command::new(&previous);
    let back = back.args(["upgrade", "--rollback", "--yes", "--json"]).env("SHOAL_HOME", installed.home());
    assert_eq!(json(&harness::output(back).unwrap())["done"], "rolled_back");
    assert_eq!(installed.version(), before);
    let other = harness::output(Command::new(&previous).arg("--version")).unwrap();
    assert_eq!(String::from_utf8_lossy(&other.stdout).trim(), "shoal 9.0.0");
}
