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
use serde_json::Value;
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
            assert!(!by.contains(&stage["node"]), "nobody is his own witness: {line}");
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
    let swarm = Swarm::start(&[("1..7", "ulp:30"), ("1..7", ""), ("1..7", "")]);
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
        // Slander: the same proof against somebody else, and with one bit of the evidence changed.
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
fn a_third_holder_settles_what_two_disagree_about() {
    // Not strict, so that the requester does not compute again itself while there is somebody to ask.
    let swarm = Swarm::start(&[("1..7", "ulp:30"), ("1..7", ""), ("1..7", "")]);
    let (expected, liar) = (alone(), &swarm.serves[0]);
    let mut settled = 0;
    for _ in 0..6 {
        let line = swarm.run("sample");
        assert!(line["ids"] == expected || line["integrity"].is_u64(), "a lie went unnoticed: {line}");
        settled += line["settled_by_thirds"].as_u64().unwrap();
        if swarm.trust(liar)["strikes"].as_u64() > Some(0) {
            break;
        }
    }
    assert!(settled > 0, "nobody was asked");
    let trust = swarm.trust(liar);
    assert_eq!((&trust["strikes"], &trust["barred"]), (&1.into(), &true.into()), "{trust}");
    for honest in &swarm.serves[1..] {
        assert_eq!(swarm.trust(honest)["strikes"], 0, "an honest node was convicted");
    }
}

#[test]
fn without_anybody_to_compare_with_the_requester_computes_again() {
    let swarm = Swarm::start(&[("1..7", "ulp:30")]);
    let first = swarm.run("sample");
    // Nobody follows the only holder: the answer was read before it was checked, and says so.
    assert_eq!(first["convicted"].as_array().unwrap().len(), 1, "{first}");
    assert!(first["integrity"].is_u64(), "{first}");
    let proof = fs::read_dir(swarm.asks.home.join("proofs")).unwrap().next().unwrap().unwrap().path();
    let (proven, said) = judged(&proof);
    assert!(proven && said.contains(&swarm.serves[0].name), "{said}");
    let why = swarm.asks.ask(&["why"]);
    assert_eq!(why["convicted"], first["convicted"]);
}
