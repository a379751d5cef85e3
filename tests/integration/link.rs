//! Frames between processes over datagrams: the tokens of one machine, with one datagram in twenty lost.

use harness::{Shoal, node::Node};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";

fn joined(home: &TempDir, extra: &[&str]) -> Node {
    let mut args = vec!["--loopback", "--link", "datagram", "--link-loss", "50"];
    args.extend(extra);
    Node::start(home.path(), &args)
}

#[test]
fn datagrams_carry_the_tokens_of_one_machine() {
    let whole: Value = Shoal::new().json(["run", "--json", "-n", "48", PROMPT], "");
    let homes: [TempDir; 3] = std::array::from_fn(|_| TempDir::new().unwrap());
    let first = joined(&homes[0], &["--layers", "1..4"]);
    let second = joined(&homes[1], &["--layers", "4..7", "--peer", first.tcp()]);
    let asker = joined(&homes[2], &["--ask-only", "--peer", first.tcp(), "--peer", second.tcp()]);
    asker.meets(2);
    for _ in 0..2 {
        let split = asker.ask(&["run", "--via", "swarm", "-n", "48", PROMPT]);
        assert_eq!(split["ids"], whole["ids"]);
        assert!(split["faults"].as_array().unwrap().is_empty(), "{split}");
    }
    let peers = asker.ask(&["peers"]);
    let links = peers["peers"].as_array().unwrap().iter().filter_map(|peer| peer["link"].as_str());
    assert!(links.filter(|link| link.starts_with("datagram")).count() >= 1, "{peers}");
}
