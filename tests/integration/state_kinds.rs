//! Each kind of state that layers keep, on four real processes: sessions are followed, checked, interrupted and begun where an
//! earlier one ended, nodes die, and the tokens are those of one process.
//!
//! The models are the fixtures of their families: gated delta nets beside attention and experts (`qwen3next`), delta nets that
//! decay by channel beside latent attention (`kimi_linear`), short convolutions (`lfm2`), Mamba2 and attention side by side in
//! every layer (`falcon_h1`).

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
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKENS: usize = 60;

/// More than one checkpoint of a recurrent state: 256 positions.
fn ask() -> Vec<String> {
    let mut ask: Vec<String> =
        ["-n", "60", "--raw", "--temperature", "0.9", "--seed", "4"].map(str::to_owned).to_vec();
    ask.push("Once upon a time a little owl counted the stars. ".repeat(16));
    ask
}

fn words(ask: &[String]) -> Vec<&str> {
    ask.iter().map(String::as_str).collect()
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// A model on four processes: one asks, three have its middle, the last of them all of it.
struct Swarm {
    _folder: TempDir,
    model: String,
    expected: Value,
    asks: Node,
    serves: Vec<Node>,
    killed: Vec<u64>,
}

impl Swarm {
    fn start(family: &str, layers: [&str; 3]) -> Self {
        let folder = TempDir::new().unwrap();
        let model = data(&format!("families/{family}.gguf")).to_str().unwrap().to_owned();
        let run = ["run", "--json", "--model", &model].map(str::to_owned);
        let line = Shoal::new().json(run.into_iter().chain(ask()), "");
        assert!(line["prompt_tokens"].as_u64() > Some(300), "{family}: {line}");
        let expected = line["ids"].clone();
        assert_eq!(expected.as_array().unwrap().len(), TOKENS, "{family}: {line}");
        let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", &model]);
        let serve = |(index, layers): (usize, &str)| {
            let home = folder.path().join(index.to_string());
            Node::start(&home, &["--model", &model, "--layers", layers, "--peer", asks.tcp()])
        };
        let serves: Vec<Node> = layers.into_iter().enumerate().map(serve).collect();
        asks.meets(serves.len());
        Self { _folder: folder, model, expected, asks, serves, killed: Vec::new() }
    }

    fn run(&self, more: &[&str]) -> Value {
        let line = self.asks.ask(&[&["run", "--via", "swarm"][..], more, &words(&ask())].concat());
        self.check(&line);
        line
    }

    fn check(&self, line: &Value) {
        assert_eq!(line["ids"], self.expected, "{}: {line}", self.model);
        assert_eq!(line["differing_answers"], 0, "{}: {line}", self.model);
        assert_eq!(line["convicted"], json!([]), "{}: {line}", self.model);
    }

    /// The processes in which the serving nodes compute, once they know of ones that were not killed.
    fn workers(&self) -> Vec<u64> {
        let worker = |node: &Node| {
            let started = Instant::now();
            loop {
                let status = node.ask(&["status"]);
                match status["worker_pid"].as_u64() {
                    Some(pid) if !self.killed.contains(&pid) => return pid,
                    _ => assert!(started.elapsed() < PATIENCE, "{} starts no worker: {status}", node.name),
                }
                thread::sleep(Duration::from_millis(100));
            }
        };
        self.serves.iter().map(worker).collect()
    }

    /// The first stage dies in the middle of an answer: its worker, or all of its node. Gives how many faults were noticed.
    fn dies(&mut self, shadow: &str, whole_node: bool) -> usize {
        let workers = self.workers();
        let args = [&["--shadow".to_owned(), shadow.to_owned()][..], &ask()].concat();
        let mut prompt = Prompt::run(&self.asks.home, args);
        assert!(prompt.reaches(3), "shadow {shadow}: {:?}", prompt.last);
        let names = prompt.strangers(&self.asks.name);
        let victim = self.serves.iter().position(|node| node.name == names[0]).unwrap();
        let pid = if whole_node { u64::from(self.serves[victim].child.id()) } else { workers[victim] };
        kill(pid);
        self.killed.push(pid);
        let line = prompt.ends();
        self.check(&line);
        if whole_node {
            self.serves.remove(victim);
        }
        line["faults"].as_array().unwrap().len()
    }

    /// The command that asks dies in the middle of an answer, which goes on where it was. An answer that is whole before is asked
    /// for again.
    fn resumes(&self) {
        let interrupted = || {
            let mut prompt = Prompt::run(&self.asks.home, ask());
            assert!(prompt.reaches(3), "{:?}", prompt.last);
            kill(u64::from(prompt.child.id()));
            while prompt.step() {}
            prompt.last.is_none()
        };
        assert!((0..10).any(|_| interrupted()), "no command died in the middle of its answer");
        let started = Instant::now();
        while self.asks.ask(&["resume", "--list"])["answers"].as_array().unwrap().is_empty() {
            assert!(started.elapsed() < PATIENCE, "nothing was kept");
            thread::sleep(Duration::from_millis(20));
        }
        let mut prompt = Prompt::resume(&self.asks.home);
        let line = prompt.ends();
        assert_eq!(line["ids"], self.expected, "{}: {line}", self.model);
        assert_eq!(Value::Array(prompt.ids()), self.expected, "none twice, none missing");
    }
}

/// Followed and checked, begun where the last one ended, interrupted, and with deaths of workers and nodes.
#[test]
fn hybrids_and_latent_attention_give_the_tokens_of_one_process() {
    let mut faults = 0;
    for family in ["qwen3next", "kimi_linear"] {
        let mut swarm = Swarm::start(family, ["1..3", "3..4", "1..4"]);
        let strict = swarm.run(&["--verify", "strict"]);
        assert_eq!(strict["verified"], 1.0, "{family}: {strict}");
        // A route of other nodes finds nothing that was kept.
        let kept = (0..6).map(|_| swarm.run(&["--shadow", "none"])["cached_tokens"].as_u64());
        assert!(kept.into_iter().any(|kept| kept >= Some(256)), "{family}: nothing was used again");
        swarm.resumes();
        faults += swarm.dies("all", false) + swarm.dies("lazy", false) + swarm.dies("none", true);
    }
    assert!(faults >= 2, "{faults} of 6 deaths were noticed");
}

#[test]
fn short_convolutions_and_mamba2_beside_attention_survive_deaths() {
    let mut faults = 0;
    for (family, layers) in [("lfm2", ["1..3", "3..4", "1..4"]), ("falcon_h1", ["1..2"; 3])] {
        let mut swarm = Swarm::start(family, layers);
        swarm.run(&["--verify", "strict"]);
        faults += swarm.dies("all", false) + swarm.dies("none", true);
    }
    assert!(faults >= 1, "{faults} of 4 deaths were noticed");
}
