//! A model whose layers remember a state instead of positions, on real processes: its sessions fail over, are followed, are
//! checked, and go back behind rejected drafts, and the tokens are those of one process.
//!
//! A state can only go back to where its last pass began or to a checkpoint (every 256 positions): behind a rejected draft each
//! stage computes again what lies between, from the inputs of that pass.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use harness::{Shoal, node::Node, prompt::Prompt};
use serde_json::Value;
use shard::{
    gguf::Gguf,
    kernels::Mamba2Shape,
    quant,
    synthetic::{Family, Shape},
};
use tempfile::TempDir;

use crate::gpu::has_gpu;

/// Two checkpoints back and some: what was decoded lies between checkpoints.
const WORDS: usize = 60;
const TOKENS: usize = 40;

/// Recurrences in layers 0, 1, 3, 4, 6 and 7, softmax attention in 2 and 5, minnow's vocabulary.
fn model(folder: &Path) -> PathBuf {
    written(folder, shape(Family::Recurrent { interval: 3 }))
}

/// The same with Mamba2 in these layers.
fn mamba2(folder: &Path) -> PathBuf {
    let mamba = Mamba2Shape { heads: 8, head_dim: 16, state: 32, groups: 2, kernel: 4 };
    written(folder, shape(Family::GraniteHybrid { interval: 3, mamba }))
}

/// Eight narrow layers of a family, with minnow's vocabulary.
pub fn shape(family: Family) -> Shape {
    Shape {
        family,
        layers: 8,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        feed_forward: 96,
        vocab: 2048,
        context: 2048,
        tied: true,
        experts: None,
    }
}

/// A model of that shape below `folder` that speaks minnow's tokens.
pub fn written(folder: &Path, shape: Shape) -> PathBuf {
    let path = folder.join("model.gguf");
    let minnow = concat!(env!("CARGO_MANIFEST_DIR"), "/../shard/minnow/minnow.gguf");
    let vocabulary = Gguf::open(minnow).unwrap();
    shape.write_speaking(&path, &quant::Q8_0, 5, vocabulary.metadata()).unwrap();
    path
}

fn ask() -> Vec<String> {
    let mut ask: Vec<String> =
        ["-n", "40", "--raw", "--temperature", "0.9", "--seed", "3"].map(str::to_owned).to_vec();
    ask.push("Once upon a time a little owl counted the stars. ".repeat(WORDS));
    ask
}

fn alone(model: &str) -> Value {
    let run = ["run", "--json", "--model", model].map(str::to_owned);
    let line = Shoal::new().json(run.into_iter().chain(ask()), "");
    assert!(line["prompt_tokens"].as_u64() > Some(512), "{line}");
    assert_eq!(line["ids"].as_array().unwrap().len(), TOKENS, "{line}");
    line["ids"].clone()
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// What is drafted on one machine is right or goes back, and no token is another one. With `SHOAL_DRAFT` every draft is sent.
#[test]
fn drafts_on_one_machine_change_no_token() {
    let folder = TempDir::new().unwrap();
    for write in [model, mamba2] {
        let path = write(folder.path());
        let expected = alone(path.to_str().unwrap());
        let run =
            ["run", "--json", "--draft", "lookup", "--model", path.to_str().unwrap()].map(str::to_owned);
        let line = Shoal::new().json_in(run.into_iter().chain(ask()), "", &[("SHOAL_DRAFT", "5:1")]);
        assert_eq!(line["ids"], expected, "{line}");
        let count = |what: &str| line["drafts"][what].as_u64().unwrap_or(0);
        assert!(count("proposed") > count("right") && count("right") > 0, "{line}");
    }
}

#[test]
fn a_recurrent_state_survives_deaths_and_rejected_drafts() {
    let folder = TempDir::new().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    let expected = alone(path);
    let asks = Node::start_with(
        &folder.path().join("home"),
        &["--ask-only", "--model", path],
        &[("SHOAL_DRAFT", "4:1")],
    );
    let serve = |(index, layers): (usize, &&str)| {
        let home = folder.path().join(index.to_string());
        Node::start(&home, &["--model", path, "--layers", layers, "--peer", asks.tcp()])
    };
    let serves: Vec<Node> = ["1..4", "4..7", "1..4", "4..7"].iter().enumerate().map(serve).collect();
    asks.meets(serves.len());
    let victim = |prompt: &Prompt, stage: usize| {
        let names = prompt.strangers(&asks.name);
        serves.iter().find(|node| node.name == names[stage % names.len()]).unwrap()
    };
    // The first answer can be drafted from later.
    let first = asks.ask(&[&["run", "--via", "swarm"][..], &words(&ask())].concat());
    assert_eq!(first["ids"], expected, "{first}");
    let (mut right, mut proposed, mut faults) = (0, 0, 0);
    for (round, shadow) in ["none", "lazy", "all", "all", "none"].into_iter().enumerate() {
        let args = [&["--shadow".to_owned(), shadow.to_owned()][..], &ask()].concat();
        let mut prompt = Prompt::run(&asks.home, args);
        assert!(prompt.reaches(TOKENS / 2), "round {round}: {:?}", prompt.last);
        match round {
            // The state is lost, the node lives: another one, or the same one later, computes it again.
            0..=3 => kill(victim(&prompt, round).ask(&["status"])["worker_pid"].as_u64().unwrap()),
            _ => kill(u64::from(victim(&prompt, round).child.id())),
        }
        let line = prompt.ends();
        assert_eq!(line["ids"], expected, "round {round}, shadow {shadow}: {line}");
        assert_eq!(line["differing_answers"], 0, "round {round}: {line}");
        let count = |what: &str| line["drafts"][what].as_u64().unwrap_or(0);
        (right, proposed) = (right + count("right"), proposed + count("proposed"));
        faults += line["faults"].as_array().unwrap().len();
    }
    // Every other session drafts, by its number.
    for _ in 0..20 {
        if 0 < right && right < proposed {
            break;
        }
        let line = asks.ask(&[&["run", "--via", "swarm"][..], &words(&ask())].concat());
        assert_eq!(line["ids"], expected, "{line}");
        let count = |what: &str| line["drafts"][what].as_u64().unwrap_or(0);
        (right, proposed) = (right + count("right"), proposed + count("proposed"));
    }
    assert!(0 < right && right < proposed, "{right} of {proposed} drafted tokens were right");
    assert!(faults >= 2, "{faults} of 5 deaths were noticed");
}

/// A worker is killed beside a shadow, then a node without one.
#[test]
fn a_mamba2_state_survives_deaths() {
    let folder = TempDir::new().unwrap();
    let path = mamba2(folder.path());
    let path = path.to_str().unwrap();
    let expected = alone(path);
    let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", path]);
    let serve = |index: usize| {
        let home = folder.path().join(index.to_string());
        Node::start(&home, &["--model", path, "--layers", "1..7", "--peer", asks.tcp()])
    };
    let serves: Vec<Node> = (0..3).map(serve).collect();
    asks.meets(serves.len());
    for (round, shadow) in ["all", "none"].into_iter().enumerate() {
        let args = [&["--shadow".to_owned(), shadow.to_owned()][..], &ask()].concat();
        let mut prompt = Prompt::run(&asks.home, args);
        assert!(prompt.reaches(TOKENS / 2), "round {round}: {:?}", prompt.last);
        let names = prompt.strangers(&asks.name);
        let victim = serves.iter().find(|node| node.name == names[0]).unwrap();
        match round {
            0 => kill(victim.ask(&["status"])["worker_pid"].as_u64().unwrap()),
            _ => kill(u64::from(victim.child.id())),
        }
        let line = prompt.ends();
        assert_eq!(line["ids"], expected, "round {round}, shadow {shadow}: {line}");
        assert_eq!(line["differing_answers"], 0, "round {round}: {line}");
        assert!(!line["faults"].as_array().unwrap().is_empty(), "round {round}: {line}");
    }
}

/// One of them computes and the other follows, so that every row is compared; where the first dies the other goes on.
#[test]
fn a_state_is_the_same_on_a_gpu_and_on_a_processor() {
    if !has_gpu() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = mamba2(folder.path());
    let path = path.to_str().unwrap();
    let expected = alone(path);
    let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", path]);
    let serve = |device: &str| {
        let home = folder.path().join(device);
        let how = ["--model", path, "--layers", "1..7", "--peer", asks.tcp(), "--device", device];
        Node::start(&home, &how)
    };
    let serves = ["gpu:0", "cpu"].map(serve);
    asks.meets(serves.len());
    for round in 0..2 {
        // Asked for now: the answer may be whole before another process has said it.
        let workers = serves.each_ref().map(|node| node.ask(&["status"])["worker_pid"].as_u64().unwrap());
        let args = [&["--shadow".to_owned(), "all".to_owned()][..], &ask()].concat();
        let mut prompt = Prompt::run(&asks.home, args);
        assert!(prompt.reaches(TOKENS / 2), "round {round}: {:?}", prompt.last);
        let names = prompt.strangers(&asks.name);
        kill(workers[serves.iter().position(|node| node.name == names[0]).unwrap()]);
        let line = prompt.ends();
        assert_eq!(line["ids"], expected, "round {round}: {line}");
        assert_eq!(line["differing_answers"], 0, "round {round}: {line}");
        assert!(!line["faults"].as_array().unwrap().is_empty(), "round {round}: {line}");
    }
}

#[test]
fn a_lie_about_a_recurrent_state_is_caught() {
    let folder = TempDir::new().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    let expected = alone(path);
    let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", path]);
    let serve = |(index, cheat): (usize, &str)| {
        let home = folder.path().join(index.to_string());
        let args = ["--model", path, "--layers", "1..7", "--peer", asks.tcp()];
        Node::start_with(&home, &args, &[("SHOAL_CHEAT", cheat)])
    };
    let serves: Vec<Node> = ["ulp:30", ""].into_iter().enumerate().map(serve).collect();
    asks.meets(serves.len());
    let strikes = |node: &Node| {
        let peers = asks.ask(&["peers"]);
        let known = peers["peers"].as_array().unwrap();
        known.iter().find(|peer| peer["node"] == node.name.as_str()).unwrap()["trust"]["strikes"].clone()
    };
    for _ in 0..6 {
        let line = asks.ask(&[&["run", "--via", "swarm", "--verify", "strict"][..], &words(&ask())].concat());
        assert_eq!(line["ids"], expected, "a lie was shown: {line}");
        if strikes(&serves[0]) == 1 {
            break;
        }
    }
    assert_eq!((strikes(&serves[0]), strikes(&serves[1])), (1.into(), 0.into()), "liar, honest node");
}

fn words(ask: &[String]) -> Vec<&str> {
    ask.iter().map(String::as_str).collect()
}
