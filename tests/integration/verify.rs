//! Strangers are checked: honest swarms, liars, receipts and proofs, on real processes.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about a fox and a lantern";
const TOKENS: &str = "40";

struct Swarm {
    _folder: TempDir,
    asks: Node,
    serves: Vec<Node>,
}

impl Swarm {
    /// A node that asks and others that serve, each with layers and, if it lies, how.
    fn start(serves: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let asks = Node::start(&folder.path().join("home"), &["--ask-only"]);
        let serve = |(index, (layers, cheat)): (usize, &(&str, &str))| {
            let home = folder.path().join(index.to_string());
            let args = ["--layers", layers, "--peer", asks.tcp()];
            Node::start_with(&home, &args, &[("SHOAL_CHEAT", cheat)])
        };
        let serves: Vec<Node> = serves.iter().enumerate().map(serve).collect();
        asks.meets(serves.len());
        Self { _folder: folder, asks, serves }
    }

    fn run(&self, verify: &str) -> Value {
        self.asks.ask(&["run", "--via", "swarm", "--verify", verify, "-n", TOKENS, PROMPT])
    }

    fn trust(&self, node: &Node) -> Value {
        let peers = self.asks.ask(&["peers"]);
        let known = peers["peers"].as_array().unwrap();
        known.iter().find(|peer| peer["node"] == node.name.as_str()).unwrap()["trust"].clone()
    }
}

fn alone() -> Value {
    Shoal::new().json(["run", "--json", "-n", TOKENS, PROMPT].map(str::to_owned).to_vec(), "")["ids"].clone()
}

fn strangers(line: &Value, me: &str) -> Vec<Value> {
    let stages = line["stages"].as_array().unwrap();
    stages.iter().filter(|stage| stage["node"] != me).cloned().collect()
}

/// What `shoal verify` says of a proof, and whether it convicts.
fn judged(proof: &Path) -> (bool, String) {
    let output = Command::new(binary()).arg("verify").arg(proof).args(["--threads", "1"]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn honest_nodes_agree_and_their_receipts_match() {
    let swarm = Swarm::start(&[("1..7", ""), ("1..7", "")]);
    let expected = alone();
    for (round, verify) in ["sample", "strict", "off"].into_iter().enumerate() {
        let line = swarm.run(verify);
        assert_eq!(line["ids"], expected, "{verify}: {line}");
        assert_eq!(line["convicted"].as_array().unwrap().len(), 0, "{line}");
        assert!(line["integrity"].is_null(), "{line}");
        for stage in strangers(&line, &swarm.asks.name) {
            let by = stage["checked_by"].as_array().unwrap();
            assert_eq!(by.is_empty(), verify == "off", "{line}");
            assert!(!by.contains(&stage["node"]), "no node is its own witness: {line}");
        }
        assert_eq!(line["verified"], if verify == "off" { 0.0 } else { 1.0 }, "{line}");
        for node in &swarm.serves {
            let trust = swarm.trust(node);
            assert_eq!((&trust["strikes"], &trust["barred"]), (&0.into(), &false.into()), "{trust}");
            // Who only follows is not met when nothing is checked.
            assert!(trust["requests"].as_u64().unwrap() > round.min(1) as u64, "{trust}");
        }
    }
    // Both sides keep the same receipts.
    let mine = swarm.asks.ask(&["receipts"]);
    let mine = mine["receipts"].as_array().unwrap();
    assert!(!mine.is_empty());
    for node in &swarm.serves {
        let of_it: Vec<&Value> =
            mine.iter().filter(|receipt| receipt["stage"] == node.name.as_str()).collect();
        let asked = Instant::now();
        loop {
            let theirs = node.ask(&["receipts"]);
            let theirs: Vec<&Value> = theirs["receipts"].as_array().unwrap().iter().collect();
            // The last one may be on its way.
            if theirs == of_it {
                break;
            }
            assert!(asked.elapsed() < PATIENCE, "{theirs:?} here, {of_it:?} there");
            thread::sleep(Duration::from_millis(100));
        }
    }
    let worked = mine.iter().filter(|receipt| receipt["decode_tokens"].as_u64() > Some(20));
    assert!(worked.count() >= 2, "{mine:?}");
}

#[test]
fn a_liar_is_caught_and_the_answer_is_right_all_the_same() {
    // Whether it runs the segment or follows, its word is compared and computed again.
    let swarm = Swarm::start(&[("1..7", "ulp:30"), ("1..7", "")]);
    let expected = alone();
    let (liar, mut proofs) = (&swarm.serves[0], Vec::new());
    for _ in 0..6 {
        let line = swarm.run("strict");
        assert_eq!(line["ids"], expected, "a lie was shown: {line}");
        assert!(line["integrity"].is_null(), "{line}");
        assert_eq!(line["verified"], 1.0, "{line}");
        if swarm.trust(liar)["strikes"].as_u64() > Some(0) {
            break;
        }
    }
    let trust = swarm.trust(liar);
    assert_eq!((&trust["strikes"], &trust["barred"]), (&1.into(), &true.into()), "{trust}");
    for honest in &swarm.serves[1..] {
        assert_eq!(swarm.trust(honest)["strikes"], 0, "an honest node was convicted");
    }
    let line = swarm.run("sample");
    assert!(
        strangers(&line, &swarm.asks.name).iter().all(|stage| stage["node"] != liar.name.as_str()),
        "{line}"
    );
    assert_eq!(line["ids"], expected);
    if let Ok(folder) = fs::read_dir(swarm.asks.home.join("proofs")) {
        proofs.extend(folder.map(|entry| entry.unwrap().path()));
    }
    for proof in &proofs {
        let (proven, said) = judged(proof);
        assert!(proven && said.contains(&liar.name), "{said}");
        // Slander: the same proof against another node, and with one bit of the evidence changed.
        let bytes = fs::read(proof).unwrap();
        for at in [4, bytes.len() - 1] {
            let mut made_up = bytes.clone();
            made_up[at] ^= 1;
            let path = proof.with_extension("made-up");
            fs::write(&path, made_up).unwrap();
            let (proven, said) = judged(&path);
            assert!(!proven, "{said}");
        }
    }
}

#[test]
fn a_node_that_sends_what_no_encoder_writes_is_left_at_once_and_no_other_is_blamed() {
    // Its output goes to an honest stage and to the requester. No other node has its layers, until one joins.
    let swarm = Swarm::start(&[("1..4", "garble:30"), ("4..7", "")]);
    let mut asks = Command::new(binary());
    asks.args(["run", "--via", "swarm", "--verify", "off", "-n", TOKENS, PROMPT, "--json", "--home"]);
    asks.arg(&swarm.asks.home);
    let answer = thread::spawn(move || harness::output(&mut asks).unwrap());
    thread::sleep(Duration::from_millis(500));
    let home = swarm.asks.home.with_file_name("spare");
    let spare = Node::start(&home, &["--layers", "1..4", "--peer", swarm.asks.tcp()]);
    let answer = answer.join().unwrap();
    let said = String::from_utf8(answer.stdout).unwrap();
    let line: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(line["ids"], alone(), "{line}");
    assert_eq!(line["convicted"], json!([swarm.serves[0].name]), "{line}");
    for (node, strikes) in [(&swarm.serves[0], 1), (&swarm.serves[1], 0), (&spare, 0)] {
        let trust = swarm.trust(node);
        assert_eq!(
            (&trust["strikes"], &trust["barred"]),
            (&strikes.into(), &(strikes == 1).into()),
            "{trust}"
        );
    }
}

#[test]
fn a_third_holder_settles_what_two_disagree_about() {
    let expected = alone();
    // Not strict, so that the requester does not compute again itself while there is a third holder to ask. Two of
    // three take part in an answer, and the same two in the next: the one that measured itself slowest is left out.
    let liar_takes_part = |_| {
        let swarm = Swarm::start(&[("1..7", "ulp:30"), ("1..7", ""), ("1..7", "")]);
        let line = swarm.run("sample");
        let took_part = swarm.trust(&swarm.serves[0])["requests"].as_u64() > Some(0);
        took_part.then_some((swarm, line))
    };
    let Some((swarm, line)) = (0..12).find_map(liar_takes_part) else {
        panic!("the liar was never asked for anything")
    };
    assert!(line["ids"] == expected || line["integrity"].is_u64(), "a lie went unnoticed: {line}");
    assert!(line["settled_by_thirds"].as_u64() > Some(0), "no third holder was asked: {line}");
    let trust = swarm.trust(&swarm.serves[0]);
    assert_eq!((&trust["strikes"], &trust["barred"]), (&1.into(), &true.into()), "{trust}");
    for honest in &swarm.serves[1..] {
        assert_eq!(swarm.trust(honest)["strikes"], 0, "an honest node was convicted");
    }
}

/// Strikes of a node and whether anything is asked of it, once `settled` says that this will do.
fn becomes(swarm: &Swarm, node: &Node, settled: impl Fn(&Value) -> bool) -> Value {
    let asked = Instant::now();
    loop {
        let trust = swarm.trust(node);
        if settled(&trust) || asked.elapsed() > PATIENCE {
            return trust;
        }
        thread::sleep(Duration::from_millis(250));
    }
}

#[test]
fn after_its_quarantine_a_node_proves_itself_or_is_banned() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let serve = |(index, (layers, cheat)): (usize, (&str, &str))| {
        let home = folder.path().join(index.to_string());
        Node::start_with(&home, &["--layers", layers], &[("SHOAL_CHEAT", cheat)])
    };
    // Each has a layer that only it and the witness have.
    let serves = [("1..4", ""), ("4..7", "ulp:24"), ("1..7", "")];
    let serves: Vec<Node> = serves.into_iter().enumerate().map(serve).collect();
    let model = serves[0].ask(&["status"])["model"]["id"].as_str().unwrap().to_owned();
    let records: Vec<Value> = serves[..2]
        .iter()
        .map(|node| {
            json!({ "node": node.name, "model": model, "requests": 1, "tokens_ok": 0, "requests_ok": 0,
                "failures": 1, "strikes": 1, "barred_until_unix_ms": 1, "must_prove": true })
        })
        .collect();
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("trust.json"), json!(records).to_string()).unwrap();
    let peers: Vec<&str> = serves.iter().flat_map(|node| ["--peer", node.tcp()]).collect();
    let asks = Node::start(&home, &[&["--ask-only"], peers.as_slice()].concat());
    let swarm = Swarm { _folder: folder, asks, serves };

    let proven = becomes(&swarm, &swarm.serves[0], |trust| trust["barred"] == false);
    assert_eq!(
        (&proven["barred"], &proven["standing"], &proven["strikes"]),
        (&false.into(), &"good".into(), &1.into())
    );
    let liar = becomes(&swarm, &swarm.serves[1], |trust| trust["strikes"] == 2);
    assert_eq!((&liar["standing"], &liar["strikes"]), (&"banned".into(), &2.into()), "{liar}");
    // These answers were not asked for by a client, so no client hears of them.
    let why = Command::new(binary()).args(["why", "--home"]).arg(&swarm.asks.home).output().unwrap();
    assert!(!why.status.success(), "{}", String::from_utf8_lossy(&why.stdout));
}

#[test]
fn without_anybody_to_compare_with_the_requester_computes_again() {
    let swarm = Swarm::start(&[("1..7", "ulp:30")]);
    let first = swarm.run("sample");
    // The only holder has no follower: the answer was read before it was checked, and says so.
    assert_eq!(first["convicted"].as_array().unwrap().len(), 1, "{first}");
    assert!(first["integrity"].is_u64(), "{first}");
    let proof = fs::read_dir(swarm.asks.home.join("proofs")).unwrap().next().unwrap().unwrap().path();
    let (proven, said) = judged(&proof);
    assert!(proven && said.contains(&swarm.serves[0].name), "{said}");
    let why = swarm.asks.ask(&["why"]);
    assert_eq!(why["convicted"], first["convicted"]);
}

/// A stage on a device of another class announces it, answers, and is held to the tolerance by the node that asked.
#[test]
fn a_stage_on_another_device_is_of_class_approx() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("home"), &["--ask-only"]);
    let args = ["--layers", "1..7", "--peer", asks.tcp(), "--device", "candle-cpu"];
    let serves = Node::start(&folder.path().join("0"), &args);
    asks.meets(1);
    let args = ["run", "--via", "swarm", "--wire", "raw", "-n", TOKENS];
    let line = asks.ask(&[&args[..], &["--verify", "sample", PROMPT]].concat());
    let stages = strangers(&line, &asks.name);
    assert_eq!((stages.len(), &stages[0]["node"]), (1, &json!(serves.name)), "{line}");
    assert!(line["ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{line}");
    let near = &stages[0]["near"];
    assert!(near["positions"].as_u64() > Some(40), "{line}");
    assert!(near["distance"].as_f64().is_some_and(|far| far > 0.0 && far < 0.03), "{line}");
    assert_eq!(line["convicted"].as_array().unwrap().len(), 0, "{line}");
    let mut strict = Command::new(binary());
    strict.args(args).args(["--verify", "strict", "--home"]).arg(&asks.home).arg(PROMPT);
    let refused = strict.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no route"), "{said}");
}

/// A machine that computes other bits is held to a tolerance, and serves no strict prompt.
#[test]
fn other_bits_are_held_to_a_tolerance() {
    let swarm = Swarm::start(&[("1..7", "approx")]);
    let args = ["run", "--via", "swarm", "--wire", "raw", "-n", TOKENS];
    let line = swarm.asks.ask(&[&args[..], &["--verify", "sample", PROMPT]].concat());
    let stages = strangers(&line, &swarm.asks.name);
    assert_eq!(stages.len(), 1, "{line}");
    // The first answers of an unknown node are all checked.
    let near = &stages[0]["near"];
    assert!(near["positions"].as_u64() > Some(40), "{line}");
    assert!(near["distance"].as_f64().is_some_and(|far| far > 0.0 && far < 0.03), "{line}");
    assert_eq!(line["verified"], 0.0, "near is not equal: {line}");
    assert_eq!(line["convicted"].as_array().unwrap().len(), 0, "{line}");
    let trust = swarm.trust(&swarm.serves[0]);
    assert_eq!((&trust["strikes"], &trust["verified"]), (&0.into(), &1.into()), "{trust}");
    // It is paid like any other node.
    assert!(!swarm.asks.ask(&["receipts"])["receipts"].as_array().unwrap().is_empty());
    let mut strict = Command::new(binary());
    strict.args(args).args(["--verify", "strict", "--home"]).arg(&swarm.asks.home).arg(PROMPT);
    let refused = strict.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no route"), "{said}");

    let swarm = Swarm::start(&[("1..7", "approx-zero:30")]);
    let line = swarm.asks.ask(&[&args[..], &["--verify", "sample", PROMPT]].concat());
    assert_eq!(line["convicted"], json!([swarm.serves[0].name]), "{line}");
    assert!(line["integrity"].is_u64(), "what was read after the lie is named: {line}");
    assert_eq!(swarm.trust(&swarm.serves[0])["barred"], true);
}
