//! Experts of a layer on several nodes, on real processes: the tokens of one machine, whichever of them computes what and dies.

use std::path::{Path, PathBuf};

use harness::{Shoal, node::Node, prompt::Prompt};
use serde_json::Value;
use shard::synthetic::{Family, Shape};
use tempfile::TempDir;

use crate::recurrent::{shape, written};

const TOKENS: usize = 24;

/// Twelve experts in layers 1 to 5, of which a token visits three; minnow's vocabulary.
fn model(folder: &Path) -> PathBuf {
    let family = Family::Qwen3Moe { dense: 1, width: 96 };
    written(folder, Shape { layers: 6, experts: Some((12, 3)), ..shape(family) })
}

fn ask() -> Vec<String> {
    let mut ask: Vec<String> =
        ["-n", "24", "--raw", "--temperature", "0.9", "--seed", "3"].map(str::to_owned).to_vec();
    ask.push("Once upon a time a little owl counted the stars. ".repeat(30));
    ask
}

fn alone(model: &str) -> Value {
    let run = ["run", "--json", "--model", model].map(str::to_owned);
    let line = Shoal::new().json(run.into_iter().chain(ask()), "");
    assert_eq!(line["ids"].as_array().unwrap().len(), TOKENS, "{line}");
    line["ids"].clone()
}

fn experts_of(node: &Node) -> Value {
    node.ask(&["status"])["model"]["experts"].clone()
}

#[test]
fn experts_on_several_nodes_give_the_tokens_of_one() {
    let folder = TempDir::new().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    let expected = alone(path);
    let asks = Node::start(&folder.path().join("home"), &["--ask-only", "--model", path]);
    let start = |name: &str, args: &[&str]| {
        let all = [&["--model", path, "--layers", "0..6", "--peer", asks.tcp()], args].concat();
        Node::start(&folder.path().join(name), &all)
    };
    let mut first = start("first", &["--experts", "4..8"]);
    let mut last = start("last", &["--experts", "8..12"]);
    let mut spare = start("spare", &["--experts", "4..12"]);
    let from = |node: &Node| ["--experts-from".to_owned(), node.name.clone()];
    let named = [from(&first), from(&last), from(&spare)].concat();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let leads = start("leads", &[&["--experts", "0..4"], &named[..]].concat());
    // One whose bits are others computes for no node, and those that are not named are not asked.
    let args = ["--model", path, "--layers", "0..6", "--peer", asks.tcp(), "--experts", "4..8"];
    let odd = Node::start_with(&folder.path().join("odd"), &args, &[("SHOAL_CHEAT", "approx")]);
    let other =
        start("other", &["--experts", "0..4", "--experts-from", &last.name, "--experts-from", &odd.name]);
    // It announces its layers when all their experts are found; the others announce none.
    asks.meets(1);
    let holders = |asks: &Node| {
        let peers = asks.ask(&["peers"]);
        let holds = |peer: &&Value| peer["models"].as_array().is_some_and(|models| !models.is_empty());
        peers["peers"].as_array().unwrap().iter().filter(holds).count()
    };
    assert_eq!(holders(&asks), 1);
    let (led, held) = (experts_of(&leads), experts_of(&first));
    assert_eq!((&led["here"], led["from"].as_array().unwrap().len()), (&"0..4".into(), 3), "{led}");
    assert!(led["decode_ms_per_layer"].as_f64().unwrap() > 0.0, "{led}");
    assert_eq!((&held["here"], &held["decode_ms_per_layer"]), (&"4..8".into(), &Value::Null), "{held}");
    let answer = |asks: &Node| {
        let words = ask();
        let words: Vec<&str> =
            ["run", "--via", "swarm"].into_iter().chain(words.iter().map(String::as_str)).collect();
        asks.ask(&words)
    };
    let line = answer(&asks);
    assert_eq!(line["ids"], expected, "{line}");
    // Its own prompts begin and end with it.
    let line = answer(&leads);
    assert_eq!(line["ids"], expected, "{line}");
    // A holder dies in mid-answer: another one that holds the same goes on.
    let mut prompt = Prompt::run(&asks.home, ask());
    assert!(prompt.reaches(TOKENS / 3), "{:?}", prompt.last);
    first.child.kill().unwrap();
    assert!(prompt.reaches(2 * TOKENS / 3), "{:?}", prompt.last);
    last.child.kill().unwrap();
    let line = prompt.ends();
    assert_eq!((&line["ids"], line["differing_answers"].as_u64()), (&expected, Some(0)), "{line}");
    // The last one dies: the stage fails, and a node with all experts goes on.
    let whole = start("whole", &[]);
    asks.meets(2);
    for _ in 0..8 {
        let mut prompt = Prompt::run(&asks.home, ask());
        assert!(prompt.reaches(TOKENS / 2), "{:?}", prompt.last);
        let is_led = prompt.strangers(&asks.name).contains(&leads.name);
        if is_led {
            spare.child.kill().unwrap();
        }
        let line = prompt.ends();
        assert_eq!((&line["ids"], line["differing_answers"].as_u64()), (&expected, Some(0)), "{line}");
        if is_led {
            assert_eq!(line["faults"].as_array().unwrap().len(), 1, "{line}");
            break;
        }
    }
    spare.child.kill().unwrap();
    let line = answer(&asks);
    assert_eq!(line["ids"], expected, "{line}");
    asks.sees(1, |peer| {
        peer["node"] == whole.name.as_str() && peer["models"].as_array().is_some_and(|m| !m.is_empty())
    });
    leads.wait_for("serving");
    assert_eq!(experts_of(&leads)["decode_ms_per_layer"], Value::Null, "not all experts are found any more");
    assert_eq!(
        experts_of(&other)["decode_ms_per_layer"],
        Value::Null,
        "of those it named one computes only for machines of its class"
    );
}

#[test]
fn parts_that_cannot_be_used_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = model(folder.path());
    let path = path.to_str().unwrap();
    let home = folder.path().join("home");
    let home = home.to_str().unwrap();
    let join = |args: &[&str]| {
        let model: &[&str] = if args.contains(&"--model") { &[] } else { &["--model", path] };
        let all = [&["join", "--yes", "--loopback", "--home", home], model, args].concat();
        Shoal::new().fails(all, "").1
    };
    for (args, said) in [
        (&["--experts", "0..4"][..], "--layers"),
        (&["--layers", "1..5", "--experts", "4..4"], "not like 0..32"),
        (&["--layers", "1..5", "--experts", "0..13"], "experts 0..13 of layers with 12"),
        (&["--layers", "1..5", "--experts-from", &"ab".repeat(32)], "--experts"),
        (&["--layers", "1..5", "--experts", "0..4", "--experts-from", "owl"], "no node's full name"),
        (&["--layers", "1..5", "--experts", "0..4", "--device", "gpu:0"], "is for the processor"),
        (&["--model", "minnow", "--layers", "1..5", "--experts", "0..4"], "which has none"),
    ] {
        let error = join(args);
        assert!(error.contains(said), "{args:?}: {error}");
    }
}
