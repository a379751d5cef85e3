//! Who runs what, on real processes: prompts spread over those who hold the same layers, and a layer without
//! a holder is taken over by a node that can spare its own.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, binary, node::Node};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// Bursts after which an idle copy must be excused.
const BURSTS: usize = 4;
/// Bursts after which prompts that never spread never will.
const MOST_BURSTS: usize = 12;
/// What a node that notices, confirms, withdraws and loads takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn start_prompt(home: &Path, seed: usize) -> Child {
    Command::new(binary())
        .args(["run", "--via", "swarm", "--json", "-n", "24", "--seed", &seed.to_string(), "--home"])
        .arg(home)
        .arg(PROMPT)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn last_line(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn run(home: &Path) -> Value {
    last_line(start_prompt(home, 0))
}

fn alone() -> Value {
    Shoal::new().json(["run", "--json", "-n", "24", PROMPT], "")
}

/// What a step takes there by the plan, when only these compute, ms.
fn step_ms(asks: &Node, through: [&Node; 2]) -> f64 {
    let [low, high] = through.map(|node| node.name.as_str());
    let plan = asks.ask(&["plan", "--mode", "trusted", "--trust", low, "--trust", high, PROMPT]);
    plan["predicted"]["step_ms"].as_f64().unwrap_or_else(|| panic!("{plan}"))
}

/// Whether every idle copy is dearer than its twin for every requester: then no prompt should have gone there. Copies
/// are measured apart, and on a busy machine the measurements differ by more than what counts as near-equal.
fn idle_for_a_reason(asks: [&Node; 2], pairs: &[[Node; 2]; 2], served: &BTreeSet<String>) -> bool {
    let pick = |pair: usize, copy: usize| &pairs[pair][copy];
    if pairs.iter().any(|pair| pair.iter().all(|node| !served.contains(&node.name))) {
        return false;
    }
    (0..2).all(|pair| {
        let Some(idle) = (0..2).find(|&copy| !served.contains(&pick(pair, copy).name)) else { return true };
        let through = |copy| {
            let mut through = [pick(0, 0), pick(1, 0)];
            let other = (0..2).find(|&copy| served.contains(&pick(1 - pair, copy).name)).unwrap_or(0);
            (through[pair], through[1 - pair]) = (pick(pair, copy), pick(1 - pair, other));
            through
        };
        asks.iter().all(|node| step_ms(node, through(idle)) > step_ms(node, through(1 - idle)))
    })
}

#[test]
fn eight_prompts_at_once_spread_over_both_holders_of_every_stage() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let first = Node::start(&home("a"), &["--ask-only"]);
    let second = Node::start(&home("b"), &["--ask-only", "--peer", first.tcp()]);
    let serve =
        |name: &str, layers: &str| Node::start(&home(name), &["--layers", layers, "--peer", first.tcp()]);
    let pairs = [[serve("c", "1..4"), serve("d", "1..4")], [serve("e", "4..7"), serve("f", "4..7")]];
    [&first, &second].iter().for_each(|node| node.meets(4));
    let expected = alone()["ids"].clone();
    let mut served = BTreeSet::new();
    let mut spread = false;
    for burst in 1..=MOST_BURSTS {
        let prompts: Vec<Child> =
            (0..8).map(|n| start_prompt(if n % 2 == 0 { &first.home } else { &second.home }, n)).collect();
        for line in prompts.into_iter().map(last_line) {
            assert_eq!(line["ids"], expected, "{line}");
            for stage in line["stages"].as_array().unwrap() {
                served.insert(stage["node"].as_str().unwrap().to_owned());
            }
        }
        spread = pairs.iter().flatten().all(|node| served.contains(&node.name))
            || burst >= BURSTS && idle_for_a_reason([&first, &second], &pairs, &served);
        if spread {
            break;
        }
    }
    let names = pairs.iter().flatten().map(|node| &node.name).collect::<Vec<_>>();
    assert!(spread, "of {names:?} only {served:?} served, and the others are not dearer");
    // All leases were given back: no room stays reserved.
    let started = Instant::now();
    while pairs.iter().flatten().any(|node| node.ask(&["status"])["load"]["active"] != 0) {
        assert!(started.elapsed() < PATIENCE, "a session stays open");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_plan_names_its_parts_and_why_holds_them_against_what_happened() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("a"), &["--ask-only"]);
    let _serves = Node::start(&folder.path().join("b"), &["--layers", "1..7", "--peer", asks.tcp()]);
    asks.meets(1);
    let plan = asks.ask(&["plan", "--mode", "boomerang", PROMPT]);
    let parts = plan["stages"].as_array().unwrap().iter().map(|stage| stage["step_ms"].as_f64().unwrap());
    let sum = parts.sum::<f64>() + plan["home_ms"].as_f64().unwrap();
    let step_ms = plan["predicted"]["step_ms"].as_f64().unwrap();
    assert!((sum - step_ms).abs() < 1e-6 * step_ms, "{plan}");
    assert!((plan["predicted"]["tok_s"].as_f64().unwrap() - 1e3 / step_ms).abs() < 1e-6 * 1e3 / step_ms);
    // Measured prompts correct the plan: part by part it becomes what was seen.
    for _ in 0..6 {
        run(&asks.home);
    }
    let why = asks.ask(&["why"]);
    for stage in why["stages"].as_array().unwrap() {
        assert!(
            stage["predicted_ms"].as_f64().unwrap() > 0.0 && stage["ms"].as_f64().unwrap() > 0.0,
            "{why}"
        );
    }
}

#[test]
fn a_spare_takes_over_layers_that_no_node_holds_any_more() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let asks = Node::start(&home("a"), &["--ask-only"]);
    let low = Node::start(&home("b"), &["--layers", "1..4", "--peer", asks.tcp()]);
    let high = Node::start(&home("c"), &["--layers", "4..7", "--peer", asks.tcp()]);
    asks.meets(2);
    let spare = Node::start(&home("d"), &["--max-layers", "3", "--peer", low.tcp()]);
    asks.meets(3);
    drop(high);
    asks.wait_for("left");
    let started = Instant::now();
    loop {
        let peers = asks.ask(&["peers"]);
        let holds = |peer: &Value| {
            peer["node"] == spare.name.as_str() && peer["models"][0]["layers"][0].as_str() == Some("4..7")
        };
        if peers["peers"].as_array().unwrap().iter().any(holds) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no node took over: {peers}");
        thread::sleep(Duration::from_millis(200));
    }
    let answer = run(&asks.home);
    assert_eq!(answer["ids"], alone()["ids"], "{answer}");
    let stages = answer["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["node"] == spare.name.as_str()), "{answer}");
}

#[test]
fn prompts_wait_for_their_turn_where_everybody_is_full() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("asks"), &["--ask-only"]);
    let serves = Node::start(
        &folder.path().join("serves"),
        &["--layers", "1..7", "--sessions", "1", "--peer", asks.tcp()],
    );
    asks.meets(1);
    let expected = alone()["ids"].clone();
    let prompts: Vec<Child> = (0..6).map(|n| start_prompt(&asks.home, n)).collect();
    for line in prompts.into_iter().map(last_line) {
        assert_eq!(line["ids"], expected, "{line}");
        assert_eq!(line["stages"][1]["node"], serves.name.as_str(), "{line}");
    }
    // Being full is not a fault.
    let peers = asks.ask(&["peers"]);
    assert_eq!(peers["peers"][0]["trust"]["failures"], 0, "{peers}");
}
