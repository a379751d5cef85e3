//! A model with latent attention on real processes: its pages, which hold one row per position for all heads, fail over from
//! worker to worker and from node to node, and the tokens are those of one process.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, data,
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use tempfile::TempDir;

const TOKENS: usize = 40;

fn ask() -> Vec<String> {
    let mut ask: Vec<String> =
        ["-n", "40", "--raw", "--temperature", "0.9", "--seed", "3"].map(str::to_owned).to_vec();
    ask.push("Once upon a time a little owl counted the stars. ".repeat(6));
    ask
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// The process in which `node` computes, once the node knows of one that was not killed.
fn worker_of(node: &Node, killed: &[u64]) -> u64 {
    let started = Instant::now();
    loop {
        let status = node.ask(&["status"]);
        match status["worker_pid"].as_u64() {
            Some(pid) if !killed.contains(&pid) => return pid,
            _ => assert!(started.elapsed() < PATIENCE, "{} starts no other worker: {status}", node.name),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn latent_attention_survives_deaths() {
    let folder = TempDir::new().unwrap();
    let path = data("families/deepseek_v3.gguf");
    let path = path.to_str().unwrap();
    let run = ["run", "--json", "--model", path].map(str::to_owned);
    let expected = Shoal::new().json(run.into_iter().chain(ask()), "")["ids"].clone();
    assert_eq!(expected.as_array().unwrap().len(), TOKENS, "{expected}");
    let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", path]);
    let serve = |index: usize| {
        let home = folder.path().join(index.to_string());
        Node::start(&home, &["--model", path, "--layers", "1..2", "--peer", asks.tcp()])
    };
    let serves: Vec<Node> = (0..3).map(serve).collect();
    asks.meets(serves.len());
    let (mut faults, mut killed) = (0, Vec::new());
    for (shadow, whole_node) in [("none", false), ("lazy", false), ("all", true)] {
        // Asked for before: the answer is over soon.
        let workers: Vec<u64> = serves.iter().map(|node| worker_of(node, &killed)).collect();
        let args = [&["--shadow".to_owned(), shadow.to_owned()][..], &ask()].concat();
        let mut prompt = Prompt::run(&asks.home, args);
        assert!(prompt.reaches(TOKENS / 4), "shadow {shadow}: {:?}", prompt.last);
        let names = prompt.strangers(&asks.name);
        let victim = serves.iter().position(|node| node.name == names[0]).unwrap();
        killed.push(if whole_node { u64::from(serves[victim].child.id()) } else { workers[victim] });
        kill(killed[killed.len() - 1]);
        let line = prompt.ends();
        assert_eq!(line["ids"], expected, "shadow {shadow}: {line}");
        assert_eq!(line["differing_answers"], 0, "shadow {shadow}: {line}");
        faults += line["faults"].as_array().unwrap().len();
    }
    assert!(faults >= 1, "no death was noticed");
}
