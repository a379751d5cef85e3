//! `--panel-cache`: a model that was loaded before is mapped, and answers as before whatever became of the file.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal,
    node::{Node, PATIENCE},
};
use serde_json::Value;
use shard::{gguf::Gguf, kernels::panel_file::MAGIC, quant, synthetic};
use tempfile::TempDir;

/// A model just large enough for a file of panels, which speaks.
fn model(folder: &Path) -> String {
    let path = folder.join("model.gguf");
    let minnow = Gguf::from_bytes(node::library::embedded_bytes()).unwrap();
    let tiny = synthetic::shape("tiny").unwrap().clone();
    let shape = synthetic::Shape { hidden: 512, feed_forward: 2048, layers: 10, vocab: 4096, ..tiny };
    shape.write_speaking(&path, &quant::Q8_0, 1, minnow.metadata()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The only file of panels in the data folder.
fn file(home: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(home.join("panels")).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].path()
}

/// How many processes have mapped `file`.
fn mapped(file: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let maps = processes.filter_map(|process| fs::read_to_string(process.path().join("maps")).ok());
    maps.filter(|maps| maps.contains(file.to_str().unwrap())).count()
}

fn wait(what: &str, until: impl Fn() -> bool) {
    let started = Instant::now();
    while !until() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_second_start_maps_what_the_first_packed_and_damage_changes_no_token() {
    let shoal = Shoal::new();
    let model = model(shoal.home());
    let run = |more: &[&str]| -> Value {
        let args =
            ["run", "--via", "local", "--model", &model, "--raw", "-n", "8", "--json", "--threads", "1"];
        let lines = shoal.ok(args.iter().chain(more).chain(&["The owl"]), "");
        serde_json::from_str(lines.lines().last().unwrap()).unwrap()
    };
    let first = run(&[]);
    assert_eq!(first["panels"], "packed", "{first}");
    let same = |panels: &str, now: Value| {
        assert_eq!((&now["panels"], &now["ids"]), (&Value::from(panels), &first["ids"]), "{now}");
    };
    let path = file(shoal.home());
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole[..8], MAGIC);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    same("mapped", run(&[]));
    same("packed", run(&["--panel-cache", "off"]));
    let mut damaged = whole.clone();
    let middle = whole.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&path, &damaged).unwrap();
    same("packed", run(&[]));
    // The next start writes it again, and the one behind it reads it.
    same("packed", run(&[]));
    assert_eq!(fs::read(file(shoal.home())).unwrap(), whole);
    same("mapped", run(&[]));
    // A model whose file was touched is another.
    let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    fs::File::options().write(true).open(&model).unwrap().set_times(times).unwrap();
    same("packed", run(&["--panel-cache", "60MB"]));
    assert_ne!(file(shoal.home()), path, "the old one made room");
}

#[test]
fn a_node_that_was_killed_starts_with_what_it_had_packed() {
    let folder = TempDir::new().unwrap();
    let model = model(folder.path());
    let home = folder.path().join("home");
    let start = || Node::start(&home, &["--model", &model]);
    let ask =
        |node: &Node| node.ask(&["run", "--mode", "trusted", "--raw", "-n", "8", "The owl"])["ids"].clone();
    let node = start();
    let first = ask(&node);
    assert!(first.as_array().is_some_and(|ids| !ids.is_empty()), "{first}");
    let path = file(&home);
    wait("it is not written", || fs::read(&path).is_ok_and(|bytes| bytes.starts_with(&MAGIC)));
    assert_eq!(mapped(&path), 0);
    drop(node);
    let node = start();
    wait("it is not mapped", || mapped(&path) == 1);
    assert_eq!(ask(&node), first);
}
