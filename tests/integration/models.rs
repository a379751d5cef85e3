//! A node that holds several models, each in a worker of its own, on real processes: the embedded model and a tiny one
//! with random weights beside it.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, data, http,
    nemesis::signal,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
const RAW: &str = "a b c";

/// The model that `status` lists at a place.
fn model(node: &Node, place: usize) -> Value {
    node.ask(&["status"])["models"][place].clone()
}

/// Waits until `wanted` accepts the model at a place.
fn wait_until(node: &Node, place: usize, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let said = model(node, place);
        if wanted(&said) {
            return said;
        }
        assert!(started.elapsed() < PATIENCE, "{said}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The models of `peer` as `node` lists them, once there are two.
fn both_are_announced(node: &Node, peer: &Node) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let peers = node.ask(&["peers"]);
        let mut known = peers["peers"].as_array().unwrap().iter();
        let models = known
            .find(|known| known["node"] == peer.name.as_str())
            .and_then(|known| known["models"].as_array());
        if let Some(models) = models.filter(|models| models.len() == 2) {
            return models.clone();
        }
        assert!(started.elapsed() < PATIENCE, "{peers}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_serves_two_models_and_a_prompt_may_ask_for_either() {
    let folder = TempDir::new().unwrap();
    let file = data("families/qwen2.gguf");
    let file = file.to_str().unwrap();
    let also = format!("{file}=1..2");
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--also", &also]);
    assert_eq!(serves.wait_for("serving")["arrived"], "qwen2");
    let (first, beside) = (model(&serves, 0), model(&serves, 1));
    assert_eq!((&first["serving"], &beside["serving"]), (&json!(["1..7"]), &json!(["1..2"])));
    assert_ne!(first["worker_pid"], beside["worker_pid"], "a process each");

    let asks = ["--ask-only", "--also", file, "--peer", serves.tcp(), "--api", "127.0.0.1:0"];
    let asks = Node::start(&folder.path().join("b"), &asks);
    asks.wait_for("serving");
    let models = both_are_announced(&asks, &serves);
    let told: Vec<_> = models.iter().map(|model| (&model["id"], &model["layers"])).collect();
    assert_eq!(told, [(&first["id"], &json!(["1..7"])), (&beside["id"], &json!(["1..2"]))]);

    // Through the other machine's layers of either, the answers are those of one machine.
    let of_first = ["-n", "16", PROMPT];
    let of_beside = ["-n", "16", "--model", file, "--raw", RAW];
    let run = |node: &Node, args: &[&str]| node.ask(&[&["run", "--via", "swarm"], args].concat());
    let alone = |args: &[&str]| Shoal::new().json([&["run", "--json"], args].concat(), "");
    let (whole_first, whole_beside) = (alone(&of_first), alone(&of_beside));
    for (args, whole) in [(&of_first[..], &whole_first), (&of_beside[..], &whole_beside)] {
        let split = run(&asks, args);
        assert_eq!((&split["ids"], &split["text"]), (&whole["ids"], &whole["text"]), "{split}");
        assert_eq!(split["stages"][1]["node"], serves.name.as_str(), "{split}");
        assert_eq!(asks.ask(&["why"])["model"], split["model"]);
    }
    let plan = asks.ask(&["plan", "--model", "qwen2", RAW]);
    assert_eq!((&plan["stages"][1]["start"], &plan["stages"][1]["end"]), (&json!(1), &json!(2)), "{plan}");

    // Over HTTP both are listed, and the name in the request decides.
    let asked = Instant::now();
    loop {
        let listed = http::ask(&asks, "GET", "/v1/models", &json!({})).body;
        let names: Vec<&str> =
            listed["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
        // The API asks its node again and again what it holds: it hears of the second a moment later.
        if names == ["minnow", "qwen2"] {
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "{listed}");
        thread::sleep(Duration::from_millis(50));
    }
    let ask = json!({ "model": "qwen2", "prompt": RAW, "max_tokens": 16, "temperature": 0 });
    let said = http::ask(&asks, "POST", "/v1/completions", &ask);
    assert_eq!((said.status, &said.body["model"]), (200, &json!("qwen2")), "{said:?}");
    assert_eq!(said.body["choices"][0]["text"], whole_beside["text"], "{said:?}");

    // The worker of one dies: the other one's goes on, and it comes back by itself.
    signal("-KILL", beside["worker_pid"].as_u64().unwrap());
    assert_eq!(run(&asks, &of_first)["ids"], whole_first["ids"]);
    let born = wait_until(&serves, 1, |model| model["worker_pid"] != beside["worker_pid"]);
    assert_eq!(model(&serves, 0)["worker_pid"], first["worker_pid"]);
    assert_eq!(run(&asks, &of_beside)["ids"], whole_beside["ids"]);

    // Who holds neither layer nor end of it can have it answered by who does, by its name there.
    let stranger = Node::start(&folder.path().join("c"), &["--ask-only", "--peer", serves.tcp()]);
    let name = both_are_announced(&stranger, &serves)[1]["name"].as_str().unwrap().to_owned();
    let answer = run(&stranger, &["--mode", "open", "--model", &name, "-n", "16", "--raw", RAW]);
    assert_eq!(
        (&answer["ids"], &answer["conductor"]),
        (&whole_beside["ids"], &json!(serves.name)),
        "{answer}"
    );

    // Leaving ends both workers.
    assert_eq!(serves.ask(&["leave"])["left"], true);
    serves.wait_for("stopped");
    for pid in [&first["worker_pid"], &born["worker_pid"]] {
        let started = Instant::now();
        while fs::metadata(format!("/proc/{pid}")).is_ok() {
            assert!(started.elapsed() < PATIENCE, "worker {pid} is still there");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn what_all_models_take_is_bounded_together() {
    let folder = TempDir::new().unwrap();
    let file = data("families/qwen2.gguf");
    // The first model alone takes more than 4 MiB: it was asked for, so it runs; nothing is left for another.
    let args = ["--layers", "1..7", "--weights", "4MiB", "--also", file.to_str().unwrap()];
    let node = Node::start(&folder.path().join("a"), &args);
    let refused = node.wait_for("waiting");
    assert_eq!(refused["model"], "qwen2");
    assert!(refused["why"].as_str().unwrap().contains("raise --weights"), "{refused}");
    let models = node.ask(&["status"])["models"].clone();
    assert_eq!((&models[0]["serving"], &models[1]["loaded"]), (&json!(["1..7"]), &json!([])), "{models}");
}
