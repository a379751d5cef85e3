//! `--unload-after`: the worker of a model that nothing needs is gone, others are told so, and it comes back when it is needed.

use std::time::{Duration, Instant};

use harness::node::{Node, PATIENCE};
use serde_json::Value;
use tempfile::TempDir;

const ANSWER: [&str; 8] = ["run", "--via", "swarm", "--raw", "-n", "12", "--shadow", "none"];

fn answer(node: &Node) -> Value {
    node.ask(&[&ANSWER[..], &["The owl counted the stones by the"]].concat())
}

/// What `status` says of the model of `node`.
fn model_of(node: &Node) -> Value {
    node.ask(&["status"])["model"].clone()
}

/// Waits until the model of `node`, of which `status` said `before`, is unloaded; returns what it said last before that.
fn is_unloaded(node: &Node, mut before: Value) -> Value {
    let started = Instant::now();
    loop {
        let model = model_of(node);
        if model["unloaded"] == true {
            assert_eq!((&model["worker_pid"], &model["resident_bytes"]), (&0.into(), &0.into()));
            assert_eq!((&model["serving"], &model["offered"]), (&before["serving"], &before["offered"]));
            return before;
        }
        assert!(started.elapsed() < PATIENCE, "its worker stays: {model}");
        before = model;
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn an_idle_model_is_unloaded_and_comes_back_for_others_and_for_its_own_node() {
    let folder = TempDir::new().unwrap();
    let serves = Node::start(
        &folder.path().join("serves"),
        &["--layers", "1..7", "--unload-after", "4s", "--no-share"],
    );
    // A busy machine may need longer for the next `status` than the model stays.
    let loaded = model_of(&serves);
    assert_eq!(loaded["unloaded"], false, "{loaded}");
    let peer = serves.tcp().to_owned();
    let asks = Node::start(&folder.path().join("asks"), &["--ask-only", "--peer", &peer]);
    asks.meets(1);
    let first = answer(&asks);
    assert_eq!(first["faults"], serde_json::json!([]));
    let before = is_unloaded(&serves, loaded);
    let pid = before["worker_pid"].as_u64().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "worker {pid} still runs");

    // What loading takes is part of the plan, once and not for every token.
    let started = Instant::now();
    let load_ms = loop {
        let plan = asks.ask(&["plan", "The owl counted the stones by the"]);
        let of = |name: &str| -> Vec<f64> {
            let stages = plan["stages"].as_array().unwrap().iter();
            stages.filter_map(|stage| stage["terms"][name].as_f64()).collect()
        };
        if let [load_ms] = of("load")[..] {
            let figure = |name: &str| plan["predicted"][name].as_f64().unwrap();
            assert!(figure("opened_ms") >= load_ms && figure("ttft_ms") >= load_ms, "{plan}");
            assert!(figure("step_ms") < load_ms, "{plan}");
            break load_ms;
        }
        assert!(started.elapsed() < PATIENCE, "it is not heard that the layers are on the disk: {plan}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(load_ms > 0.0);

    let again = answer(&asks);
    assert_eq!((&again["ids"], &again["faults"]), (&first["ids"], &first["faults"]));
    assert_eq!(again["stages"][1]["node"], first["stages"][1]["node"]);
    let model = model_of(&serves);
    assert!(model["unloaded"] == false && model["worker_pid"] != before["worker_pid"], "{model}");
    assert_eq!(model["resident_bytes"], before["resident_bytes"]);

    is_unloaded(&serves, model);
    let own = answer(&serves);
    assert_eq!(own["ids"], first["ids"], "a prompt of its own");
}
