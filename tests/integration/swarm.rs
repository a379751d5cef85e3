//! Swarms of real processes over real sockets on this machine.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary, http,
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use serde_json::{Value, json};
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
fn a_q8_session_equals_the_local_run_with_the_same_cuts() {
    let split = through_a_swarm("4", &["--wire", "q8"]);
    let stages = split["stages"].as_array().unwrap();
    let cuts: Vec<String> = stages[1..].iter().map(|stage| stage["start"].to_string()).collect();
    let whole = alone(&["--wire", "q8", "--cuts", &cuts.join(",")]);
    assert_eq!(split["ids"], whole["ids"], "cuts {cuts:?}");
    // The answer names both, and over another route they give it again.
    assert_eq!(split["wire"], "q8");
    let named: Vec<String> = split["cuts"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(named, cuts);
    let again = through_a_swarm("2", &["--wire", "q8", "--cuts", &cuts.join(",")]);
    assert_eq!((&again["ids"], &again["cuts"]), (&split["ids"], &split["cuts"]));
    assert_ne!(again["stages"].as_array().unwrap().len(), stages.len(), "it should be another route");
    let allowed = through_a_swarm("2", &["--allow-rounding"]);
    assert_eq!(allowed["wire"], "c8");
    // Shadows are fed too, and each run finds its own number of them.
    let raw = through_a_swarm("4", &["--shadow", "none"]);
    let q8 = through_a_swarm("4", &["--wire", "q8", "--shadow", "none"]);
    let per_token =
        |line: &Value| line["bytes_out"].as_f64().unwrap() / line["completion_tokens"].as_f64().unwrap();
    let ratio = per_token(&raw) / per_token(&q8);
    // 3.76 to 1; a frame that is sent again counts twice.
    assert!((2.0..5.0).contains(&ratio), "q8 carries {ratio} times fewer bytes");
}

/// The rules of wires are written down twice, once where they travel and once where they are computed with.
#[test]
fn both_writings_of_a_rule_give_the_same_bits() {
    let mut chance = scheduler::rng::Rng::new(3);
    for case in 0..2_000 {
        let scale = 10f64.powi(case % 70 - 35);
        let row = |chance: &mut scheduler::rng::Rng| match chance.below(20) {
            0 => 0.0,
            1 => f32::from_bits(chance.below(1 << 23) as u32),
            _ => (chance.between(-1.0, 1.0) * scale) as f32,
        };
        let values: Vec<f32> = (0..64).map(|_| row(&mut chance)).collect();
        for rule in shard::round::Rule::ALL {
            let wire: p2p::codec::Wire = rule.name().parse().unwrap();
            assert_eq!(wire.group(), rule.group());
            let mut rounded = values.clone();
            rule.apply(&mut rounded);
            let (mut bytes, mut carried) = (Vec::new(), Vec::new());
            p2p::codec::encode(wire, 64, &values, &mut bytes).unwrap();
            p2p::codec::decode(wire, 64, 1, &bytes, &mut carried).unwrap();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&carried), bits(&rounded), "{wire}, case {case}: {values:?}");
        }
    }
}

#[test]
fn a_node_without_the_model_has_a_peer_answer_in_open_mode() {
    let folder = TempDir::new().unwrap();
    let fixture = harness::data("families/qwen2.gguf");
    let fixture = fixture.to_str().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--model", fixture]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let name = asks.ask(&["peers"])["peers"][0]["models"][0]["name"].as_str().unwrap().to_owned();
    let refused = Command::new(binary())
        .args(["run", "--via", "swarm", "--model", &name, "--home"])
        .arg(&asks.home)
        .arg(PROMPT)
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--mode"),
        "text leaves only when the user says so"
    );
    let ask = ["run", "--via", "swarm", "--mode", "open", "--model", &name, "-n", "12", "--raw", "a b c"];
    let answer = asks.ask(&ask);
    let local = Shoal::new().json(["run", "--json", "--model", fixture, "-n", "12", "--raw", "a b c"], "");
    assert_eq!(answer["ids"], local["ids"], "{answer}");
    assert_eq!(answer["conductor"], serves.name.as_str());

    // Both sides have signed for all of it.
    let mine = asks.ask(&["receipts"]);
    let receipt = &mine["receipts"][0];
    assert_eq!(receipt["stage"], serves.name.as_str(), "{mine}");
    assert_eq!((&receipt["start"], &receipt["end"]), (&json!(0), &json!(3)), "{mine}");
    assert_eq!(receipt["decode_tokens"], answer["completion_tokens"], "{mine} {answer}");
    assert_eq!(receipt["prefill_tokens"], 3, "{mine} {answer}");
    let started = Instant::now();
    while serves.ask(&["receipts"])["receipts"][0] != *receipt {
        assert!(started.elapsed() < PATIENCE, "{mine}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_demonstration_survives_a_death_in_the_middle_of_a_sentence() {
    let last = Shoal::new().json(["demo", "--json", "-n", "80"], "");
    assert_eq!(last["equal"], true, "{last}");
    assert!(last["killed"].is_string(), "{last}");
    assert!(last["tokens"].as_u64().unwrap() > 20, "{last}");
}

/// Whatever ends it, and whether a command or clients of the API asked.
#[test]
fn a_node_that_leaves_finishes_its_own_answers() {
    const TEXT: &str = "A fox found a lantern in the snow";
    let folder = TempDir::new().unwrap();
    let ask = ["-n", "120", "--temperature", "0", "--raw", "--draft", "off", TEXT];
    let whole = Shoal::new().json([&["run", "--json"], &ask[..]].concat(), "");
    for (name, by_signal) in [("leave", false), ("signal", true)] {
        let mut node = Node::start(&folder.path().join(name), &["--api", "127.0.0.1:0"]);
        let is_ready = || {
            let one = json!({"prompt": TEXT, "max_tokens": 1});
            http::ask(&node, "POST", "/v1/completions", &one).status == 200
        };
        while !is_ready() {
            thread::sleep(Duration::from_millis(50));
        }
        let (url, token) = http::api(&node);
        let request = || {
            let (url, token) = (url.to_owned(), token.clone());
            let body = json!({"prompt": TEXT, "max_tokens": 120, "temperature": 0});
            thread::spawn(move || http::request(&url, &token, "POST", "/v1/completions", &body))
        };
        // Several at once, so that each takes a while.
        let requests: Vec<_> = (0..4).map(|_| request()).collect();
        let mut prompt = Prompt::run(&node.home, ask);
        assert!(prompt.reaches(4), "the answer ended early");
        if by_signal {
            let pid = node.child.id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        } else {
            node.ask(&["leave"]);
        }
        let last = prompt.ends();
        assert_eq!((&last["event"], &json!(prompt.ids())), (&"done".into(), &whole["ids"]), "{name}: {last}");
        for answer in requests.into_iter().map(|asked| asked.join().unwrap()) {
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            assert_eq!(answer.body["choices"][0]["finish_reason"], "stop", "{name}: {answer:?}");
        }
        node.child.wait().unwrap();
    }
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
        first.ask(&["status"])["model"]["called"].as_str().unwrap()
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

    // No other node holds the middle: the answer is a refusal that says what to do.
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
