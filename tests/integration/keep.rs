//! `--keep-state`: what was computed outlasts the process that computed it, for its owner alone.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::{Duration, Instant},
};

use harness::{
    Shoal, http,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::clients::serve;

fn prompt(question: &str) -> String {
    let told =
        |day: u32| format!("On day {day} the owl counted {} stones by the river and swam home. ", day * 7);
    format!("{}{question} The owl", (1..=12).map(told).collect::<String>())
}

/// Waits until `files` files hold something and nothing more is written.
fn filed(home: &Path, files: usize) {
    let started = Instant::now();
    let mut before = Vec::new();
    loop {
        let found = fs::read_dir(home.join("state")).into_iter().flatten().flatten();
        let taken: Vec<u64> = found.map(|file| file.metadata().map_or(0, |about| about.blocks())).collect();
        if taken == before && taken.iter().filter(|blocks| **blocks > 0).count() == files {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "it is not written: {taken:?}");
        before = taken;
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// Nothing in the folder shows what was asked.
fn is_sealed(home: &Path) {
    for file in fs::read_dir(home.join("state")).unwrap().flatten() {
        let bytes = fs::read(file.path()).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"the owl"), "{:?}", file.path());
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(fs::metadata(home.join("state")).unwrap().permissions().mode() & 0o777, 0o700);
}

/// What `/metrics` says that lies on disk, bytes.
fn told(url: &str, token: &str) -> u64 {
    let (_, _, answer) = http::text(url, token, "GET", "/metrics", &Value::Null);
    let figure = answer.lines().find_map(|line| line.strip_prefix("shoal_kv_disk_bytes "));
    figure.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

#[test]
fn a_server_goes_on_from_what_it_had_computed_before_it_was_killed() {
    let home = TempDir::new().unwrap();
    let token = home.path().join("token");
    let ask = |url: &str, question: &str| -> Value {
        let body = json!({"model": "minnow", "prompt": prompt(question), "max_tokens": 8, "temperature": 0});
        let token = fs::read_to_string(&token).unwrap();
        let answer = http::request(url, &token, "POST", "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    };
    let cached = |answer: &Value| {
        let usage = &answer["usage"];
        (
            usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            usage["prompt_tokens"].as_u64().unwrap(),
        )
    };
    let keeps = ["--keep-state", "32MiB", "--threads", "1", "--no-pin"];
    let (serving, url) = serve(home.path(), &token, &keeps);
    let first = ask(&url, "How many?");
    assert_eq!(cached(&first).0, 0);
    let (other, why) = Shoal::new().fails(["serve", "--keep-state", "1MiB"], "");
    assert!(other == 2 && why.contains("16MiB"), "{why}");
    filed(home.path(), 1);
    is_sealed(home.path());
    assert!(told(&url, &fs::read_to_string(&token).unwrap()) >= 2 << 16, "what lies on disk is told");
    drop(serving);
    let (_serving, url) = serve(home.path(), &token, &keeps);
    for (question, expected) in [("How many?", Some(&first)), ("And then?", None)] {
        let again = ask(&url, question);
        let (kept, all) = cached(&again);
        assert!(all > 150 && kept + 64 + 16 >= all, "{kept} of {all}: {again}");
        let text = |answer: &Value| answer["choices"][0]["text"].clone();
        assert!(expected.is_none_or(|first| text(first) == text(&again)), "{first} {again}");
    }
    let without = TempDir::new().unwrap();
    let (_other, url) = serve(without.path(), &token, &["--threads", "1", "--no-pin"]);
    assert_eq!(ask(&url, "How many?")["choices"][0]["text"], first["choices"][0]["text"]);
    assert!(!without.path().join("state").exists(), "kept without being asked");
}

/// A stage that may keep what it computed goes on from it after it was killed, and gives the same tokens. One that may not has nothing of it on
/// disk: neither where the node says so nor where the request does.
#[test]
fn a_stage_goes_on_from_what_its_requester_let_it_keep() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("a");
    let asks =
        Node::start(&folder.path().join("asks"), &["--ask-only", "--let-keep", "--api", "127.0.0.1:0"]);
    let peer = asks.tcp().to_owned();
    let start = || Node::start(&home, &["--layers", "1..7", "--keep-state", "32MiB", "--peer", &peer]);
    let run = |question: &str| {
        asks.ask(&["run", "--via", "swarm", "--raw", "-n", "12", "--shadow", "none", &prompt(question)])
    };
    let cached = |answer: &Value| {
        (answer["cached_tokens"].as_u64().unwrap_or(0), answer["prompt_tokens"].as_u64().unwrap())
    };
    let blocks = || -> u64 {
        let files = fs::read_dir(home.join("state")).unwrap().flatten();
        files.map(|file| file.metadata().unwrap().blocks()).sum()
    };
    let stage = start();
    asks.meets(1);
    let refused = json!({"prompt": prompt("And then?"), "max_tokens": 12, "temperature": 0, "mode": "boomerang",
        "shadow": "none", "let_keep": false});
    let started = Instant::now();
    loop {
        let answer = http::ask(&asks, "POST", "/v1/completions", &refused);
        if answer.status == 200 {
            break;
        }
        // The stage is connected, and its layers are heard of a moment later.
        assert!(answer.status == 503 && started.elapsed() < PATIENCE, "{answer:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let rows = stage.ask(&["status"])["served_positions"].as_u64().unwrap();
    assert!(rows > 150, "the stage computed {rows} positions of it");
    // More than a state that is to be written waits.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(blocks(), 0, "what was not to be kept is on disk");
    let first = run("How many?");
    filed(&home, 2);
    is_sealed(&home);
    drop(stage);
    let _stage = start();
    asks.meets(1);
    let again = run("How many?");
    assert_eq!(again["ids"], first["ids"], "{again}");
    let (kept, all) = cached(&again);
    assert!(all > 150 && all - kept <= 16, "{kept} of {all}: {again}");
    assert_eq!((&again["convicted"], &again["verified"]), (&json!([]), &json!(1.0)), "{again}");
}

/// A node's own prompts through two strangers: after it was killed, its first and last layers and the log come from disk, and
/// the stages have what they had. A stranger's prompts leave nothing on anybody's disk.
#[test]
fn a_node_goes_on_from_what_it_had_computed_before_it_was_killed() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("asks");
    let stage = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--keep-state", "32MiB"]);
    let peer = stage.tcp().to_owned();
    let start = || Node::start(&home, &["--ask-only", "--keep-state", "32MiB", "--peer", &peer]);
    let run = |asks: &Node| {
        asks.ask(&["run", "--via", "swarm", "--raw", "-n", "12", "--shadow", "none", &prompt("And then?")])
    };
    let asks = start();
    asks.meets(1);
    let first = run(&asks);
    assert_eq!(first["cached_tokens"].as_u64().unwrap_or(0), 0, "{first}");
    assert!(first["ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{first}");
    filed(&home, 2);
    is_sealed(&home);
    // Both files together, as the disk has them.
    let taken = || -> u64 {
        let files = fs::read_dir(home.join("state")).unwrap().flatten();
        files.map(|file| file.metadata().unwrap().blocks() * 512).sum()
    };
    let before = taken();
    let kept = asks.ask(&["status"])["kept_state"].clone();
    let bounds = before.min(taken())..=before.max(taken());
    assert!(before > 64 << 10 && bounds.contains(&kept["bytes"].as_u64().unwrap()), "{kept}, {before}");
    assert_eq!(kept["most_bytes"], json!(32 << 20));
    drop(asks);
    let asks = start();
    asks.meets(1);
    let again = run(&asks);
    assert_eq!(again["ids"], first["ids"]);
    let (cached, all) =
        (again["cached_tokens"].as_u64().unwrap_or(0), first["prompt_tokens"].as_u64().unwrap());
    assert!(all > 150 && all - cached <= 16, "{cached} of {all}: {again}");
    assert_eq!((&again["convicted"], &again["verified"]), (&json!([]), &json!(1.0)));
    let strangers = fs::read_dir(folder.path().join("a/state")).unwrap().flatten();
    let taken: u64 = strangers.map(|file| file.metadata().unwrap().blocks()).sum();
    assert_eq!(taken, 0, "what a stranger asked is on disk");
}
