//! Swarms of real processes over real sockets on this machine.

use std::process::{Command, Stdio};

use harness::{Shoal, binary, node::Node};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";

/// What this machine answers alone.
fn alone(extra: &[&str]) -> Value {
    let mut args = vec!["run", "--json", "-n", "48"];
    args.extend(extra);
    args.push(PROMPT);
    Shoal::new().json(args, "")
}

fn through_a_swarm(nodes: &str, extra: &[&str]) -> Value {
    let mut args = vec!["up", "--json", "-n", "48", "--local", nodes];
    args.extend(extra);
    args.extend(["--run", PROMPT]);
    Shoal::new().json(args, "")
}

#[test]
fn split_equals_whole() {
    let whole = alone(&[]);
    for nodes in ["2", "3", "5"] {
        let split = through_a_swarm(nodes, &[]);
        assert_eq!(split["ids"], whole["ids"], "{nodes} nodes");
        assert_eq!(split["text"], whole["text"], "{nodes} nodes");
        assert!(split["stages"].as_array().unwrap().len() >= 3, "{split}");
        assert!(split["faults"].as_array().unwrap().is_empty(), "{split}");
    }
    let seeded = ["--temperature", "0.9", "--seed", "5", "--logprobs", "2", "--repetition-penalty", "1.1"];
    assert_eq!(through_a_swarm("4", &seeded)["ids"], alone(&seeded)["ids"]);
}

#[test]
fn the_demonstration_survives_a_death_in_the_middle_of_a_sentence() {
    let last = Shoal::new().json(["demo", "--json", "-n", "80"], "");
    assert_eq!(last["equal"], true, "{last}");
    assert!(last["killed"].is_string(), "{last}");
    assert!(last["tokens"].as_u64().unwrap() > 20, "{last}");
}

#[test]
fn nodes_meet_answer_explain_and_leave() {
    let folder = TempDir::new().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let address = first.tcp().to_owned();
    let second = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", &address]);
    second.meets(1);

    let peers = second.ask(&["peers"]);
    let peer = &peers["peers"][0];
    assert_eq!(peer["node"], first.name.as_str());
    assert_eq!(peer["path"], "loopback");
    assert_eq!(
        peer["models"][0]["name"].as_str().unwrap(),
        second.ask(&["status"])["model"]["name"].as_str().unwrap()
    );

    let plan = second.ask(&["plan", "--mode", "boomerang", PROMPT]);
    assert!(plan["as_asked"]["tok_s"].as_f64().unwrap() > 0.0, "{plan}");
    assert_eq!(plan["stages"].as_array().unwrap().len(), 3);

    let run = second.ask(&["run", "--via", "swarm", "-n", "16", PROMPT]);
    assert_eq!(run["ids"].as_array().unwrap(), &alone(&[])["ids"].as_array().unwrap()[..16]);
    let why = second.ask(&["why"]);
    assert_eq!(why["session"], run["session"]);
    assert_eq!(why["stages"][1]["node"], first.name.as_str());
    assert!(first.ask(&["status"])["served_positions"].as_u64().unwrap() >= 16);

    // Nobody else holds the middle: the answer is a refusal that says what to do.
    assert_eq!(first.ask(&["leave"])["left"], true);
    second.wait_for("left");
    let output = Command::new(binary())
        .args(["run", "--via", "swarm", "--home"])
        .arg(&second.home)
        .arg(PROMPT)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("shoal peers"), "{error}");
}

#[test]
fn one_folder_holds_one_node_and_a_closed_input_ends_it() {
    let folder = TempDir::new().unwrap();
    let mut node = Node::start(folder.path(), &["--ask-only"]);
    let mut second = Command::new(binary());
    let second = second
        .args(["join", "--yes", "--loopback", "--home"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("shoal leave"));
    node.stdin = None;
    node.wait_for("stopped");
    assert!(node.child.wait().unwrap().success());
}
