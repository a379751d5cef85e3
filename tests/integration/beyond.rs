//! `--context-shift` through a swarm: an answer goes on beyond its context, over several sessions and a death, with the tokens and
//! the text of one machine, and is one answer.

use std::process::Command;

use harness::{Shoal, node::Node, prompt::Prompt};
use serde_json::{Value, json};
use shard::gguf::Gguf;
use tempfile::TempDir;

const TOKENS: usize = 190;

/// A prompt, and how it is answered, that the model does not end by itself; the stop string never comes, and is looked for over
/// every border.
fn ask() -> Vec<String> {
    let minnow = concat!(env!("CARGO_MANIFEST_DIR"), "/../shard/minnow/minnow.gguf");
    let gguf = Gguf::open(minnow).unwrap();
    let ends = ["eos", "eot"].map(|kind| format!("tokenizer.ggml.{kind}_token_id"));
    let ends = ends.iter().filter_map(|key| gguf.metadata().u64(key));
    let mut ask: Vec<String> =
        ["--raw", "--context-shift", "--temperature", "0.9", "--seed", "5", "-n", "190"]
            .map(str::to_owned)
            .to_vec();
    ask.extend(ends.flat_map(|id| ["--logit-bias".to_owned(), format!("{id}=-100")]));
    ask.extend(["--stop".to_owned(), "the owl never said this".to_owned()]);
    ask.push("Once upon a time a little owl counted the stars by the river and told".to_owned());
    ask
}

#[test]
fn an_answer_of_a_swarm_goes_on_beyond_the_context() {
    let folder = TempDir::new().unwrap();
    let context = ["--ctx", "96"];
    let run = ["run", "--json"].into_iter().chain(context).map(str::to_owned);
    let alone = Shoal::new().json(run.chain(ask()), "");
    assert_eq!(alone["ids"].as_array().unwrap().len(), TOKENS, "{alone}");
    assert!(alone["context_shifts"].as_u64() > Some(2), "{alone}");

    let start =
        |name: &str, args: &[&str]| Node::start(&folder.path().join(name), &[&context[..], args].concat());
    let asks = start("asks", &["--ask-only"]);
    let peer = asks.tcp().to_owned();
    let mut serves = ["one", "two"].map(|name| Some(start(name, &["--layers", "1..7", "--peer", &peer])));
    asks.meets(2);
    let check = |line: &Value, faults: bool| {
        for field in ["ids", "text", "context_shifts", "finish_reason", "prompt_tokens"] {
            assert_eq!(line[field], alone[field], "{field}: {line}");
        }
        assert_eq!(line["completion_tokens"], TOKENS, "{line}");
        assert_eq!(line["faults"] != json!([]), faults, "{line}");
        assert_eq!(line["differing_answers"], 0, "{line}");
    };
    let mut whole = Prompt::run(&asks.home, ask());
    let line = whole.ends();
    check(&line, false);
    assert_eq!(whole.tokens.len(), TOKENS, "each is told once");
    let why = asks.ask(&["why", line["session"].as_str().unwrap()]);
    assert_eq!((&why["ids"], &why["context_shifts"]), (&line["ids"], &line["context_shifts"]));

    // The node dies in the third stretch, and the answer goes on elsewhere.
    let mut prompt =
        Prompt::run(&asks.home, [&["--shadow".to_owned(), "none".to_owned()][..], &ask()].concat());
    assert!(prompt.reaches(TOKENS / 2), "{:?}", prompt.last);
    let on = |node: &Option<Node>, stages: &Value| {
        let name = node.as_ref().map(|node| node.ask(&["status"])["node"].clone());
        stages.as_array().unwrap().iter().any(|stage| Some(&stage["node"]) == name.as_ref())
    };
    let victim = serves.iter().position(|node| on(node, &prompt.route["stages"])).unwrap();
    drop(serves[victim].take());
    let line = prompt.ends();
    assert_eq!(line["ids"], alone["ids"], "{line}");
    assert_eq!(line["text"], alone["text"], "{line}");

    // The requester is killed, and the next one continues what it had said.
    let mut prompt = Prompt::run(&asks.home, ask());
    assert!(prompt.reaches(TOKENS / 2), "{:?}", prompt.last);
    let pid = asks.child.id().to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let home = asks.home.clone();
    drop((prompt, asks));
    let peer = serves.iter().flatten().next().unwrap().tcp().to_owned();
    let again = Node::start(&home, &[&context[..], &["--ask-only", "--peer", &peer]].concat());
    again.meets(1);
    let line = Prompt::resume(&home).ends();
    assert_eq!((&line["ids"], &line["text"]), (&alone["ids"], &alone["text"]), "{line}");
}
