//! The page in a real browser: runs the scripts of `tests/browser`, which drive Debian's Chromium, against a fake node and
//! against a swarm of three processes.
//!
//! It needs `node`, `chromium` and the two packages of `tests/browser/package.json` (`npm ci`). Where one is missing it says
//! so and skips, unless `SHOAL_BROWSER=required` is set.

use std::{io::Write, process::Command};

use harness::node::Node;
use serde_json::json;
use tempfile::TempDir;

/// The middle layers of the model inside the binary.
const MIDDLE: &str = "1..7";

#[test]
fn the_page_works_in_a_real_browser() {
    run("run.mjs", &[]);
}

#[test]
fn the_page_keeps_conversations() {
    run("conversations.mjs", &[]);
}

#[test]
fn the_page_shows_records_of_the_swarm() {
    run("records.mjs", &[]);
}

#[test]
fn the_page_speaks_languages() {
    run("languages.mjs", &[]);
}

#[test]
fn the_page_shows_a_swarm_that_loses_a_node() {
    let folder = TempDir::new().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", MIDDLE]);
    let second = Node::start(&folder.path().join("b"), &["--layers", MIDDLE, "--peer", first.tcp()]);
    let asks = Node::start(
        &folder.path().join("c"),
        &["--ask-only", "--api", "127.0.0.1:0", "--peer", first.tcp(), "--peer", second.tcp()],
    );
    asks.meets(2);
    let token = std::fs::read_to_string(asks.api["token_file"].as_str().unwrap()).unwrap();
    let url = format!("{}/#token={}", asks.api["url"].as_str().unwrap(), token.trim());
    let pids = [&first, &second].map(|node| (node.name.clone(), json!(node.child.id())));
    let pids = serde_json::Value::Object(pids.into_iter().collect()).to_string();
    run("swarm.mjs", &[("SHOAL_URL", url.as_str()), ("SHOAL_PIDS", pids.as_str())]);
}

fn run(script: &str, environment: &[(&str, &str)]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/browser");
    let required = std::env::var("SHOAL_BROWSER").is_ok_and(|value| value == "required");
    let mut node = Command::new("node");
    node.arg(script).current_dir(folder).envs(environment.iter().copied());
    let Ok(output) = harness::output(&mut node) else {
        assert!(!required, "node is not installed");
        return say("skipped: the page is not tested in a browser, missing: node");
    };
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for line in said.lines().filter(|line| line.starts_with("skipped:")) {
        say(line);
    }
}

/// Past the test runner, which keeps to itself what passing tests print.
fn say(line: &str) {
    // A closed output is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
