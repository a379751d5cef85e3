//! What the network costs a token: one traversal of the ring, and nothing else.
//!
//! Three processes on loopback whose every connection is a wire of [`harness::wires`]. The test counts how often all
//! wires must be let go for one token; it asserts no time. `SHOAL_FIGURES=1` also prints what a token takes when each
//! wire delays by 50 ms one way.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use harness::{
    Shoal, binary,
    node::Node,
    wires::{Mood, Turn, Wires},
};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about a fox who finds a lantern in the snow.";
/// Minnow's rows on the raw wire: 256 numbers of 4 bytes.
const ROW: usize = 1_024;
const TOKENS: &str = "40";

/// A requester with the ends of the model and two nodes with a half of its middle each; all meet over wires only.
struct Ring {
    wires: Wires,
    asks: Node,
    _serve: [Node; 2],
    _folder: TempDir,
}

impl Ring {
    fn new(mood: Mood) -> Self {
        let (wires, folder) = (Wires::new(), TempDir::new().unwrap());
        wires.set(mood);
        let start = |name: &str, args: &[&str]| {
            let listen = ["--listen", "/ip4/127.0.0.1/tcp/0"];
            Node::start(&folder.path().join(name), &[&listen, args].concat())
        };
        let asks = start("a", &["--ask-only"]);
        let to_asks = wire(&wires, "b", "a", &asks);
        let first = start("b", &["--layers", "1..4", "--peer", &to_asks]);
        let (to_asks, to_first) = (wire(&wires, "c", "a", &asks), wire(&wires, "c", "b", &first));
        let second = start("c", &["--layers", "4..7", "--peer", &to_asks, "--peer", &to_first]);
        asks.meets(2);
        first.meets(1);
        Self { wires, asks, _serve: [first, second], _folder: folder }
    }

    /// Streams an answer; `first` is called when its first token is there. The last line.
    fn run(&self, first: impl FnOnce()) -> Value {
        let mut child = Command::new(binary())
            .args(["run", "--via", "swarm", "--json", "-n", TOKENS, "--home"])
            .arg(&self.asks.home)
            .arg(PROMPT)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = Some(first);
        let mut last = Value::Null;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            last = serde_json::from_str(&line.unwrap()).unwrap();
            if last["event"] == "token"
                && let Some(first) = first.take()
            {
                first();
            }
        }
        assert!(child.wait().unwrap().success(), "{last}");
        last
    }
}

/// The address under which `to` is dialed over a new wire.
pub fn wire(wires: &Wires, from: &'static str, to: &'static str, node: &Node) -> String {
    let mut parts = node.tcp().split('/');
    let port: u16 = parts.by_ref().nth(4).unwrap().parse().unwrap();
    let name = parts.next_back().unwrap();
    let wire = wires.lay(from, to, SocketAddr::from(([127, 0, 0, 1], port)));
    format!("/ip4/127.0.0.1/tcp/{}/p2p/{name}", wire.port())
}

/// Whether a row moved from one node to another.
fn moved(turn: &Turn, from: &str, to: &str) -> bool {
    turn.iter().any(|(f, t, bytes)| *f == from && *t == to && *bytes >= ROW)
}

#[test]
fn a_token_crosses_the_ring_once() {
    let ring = Ring::new(Mood::Open);
    let wires = ring.wires.clone();
    // On a fast machine the answer would be over before its first token is read here.
    wires.set(Mood::Late(Duration::from_millis(20)));
    let last = ring.run(|| wires.set(Mood::Turns { row: ROW }));
    ring.wires.set(Mood::Open);
    let alone = Shoal::new().json(["run", "--json", "-n", TOKENS, PROMPT], "");
    assert_eq!(last["ids"], alone["ids"], "{last}");
    assert!(last["faults"].as_array().unwrap().is_empty(), "{last}");

    let turns = ring.wires.turns();
    let home: Vec<usize> = (0..turns.len()).filter(|&i| moved(&turns[i], "c", "a")).collect();
    assert!(home.len() >= 16, "{} rows came home: {turns:?}", home.len());
    let mut gaps: Vec<usize> = home.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!("turns a token: {gaps:?}");
    gaps.sort_unstable();
    // a -> b, b -> c, c -> a. A machine so busy that a node computes for a second shows as a turn without a row.
    assert!(gaps[0] >= 3, "a row came home without having gone round: {turns:?}");
    assert_eq!(
        gaps[gaps.len() * 3 / 4],
        3,
        "more than one traversal of the ring a token: {gaps:?} {turns:?}"
    );
}

#[test]
fn figures_at_fifty_milliseconds_one_way() {
    if std::env::var_os("SHOAL_FIGURES").is_none() {
        println!("skipped: SHOAL_FIGURES=1 measures, and prints what it measured");
        return;
    }
    let by = Duration::from_millis(50);
    let token_ms = |mood| {
        let ring = Ring::new(mood);
        let last = ring.run(|| {});
        assert!(last["faults"].as_array().unwrap().is_empty(), "{last}");
        1e3 / last["decode_tok_s"].as_f64().unwrap()
    };
    let (open, late) = (token_ms(Mood::Open), token_ms(Mood::Late(by)));
    let ring_ms = 3.0 * by.as_secs_f64() * 1e3;
    println!(
        "ms a token: {open:.1} without delay, {late:.1} with 50 ms one way; {:.3} of compute + one ring ({ring_ms} ms)",
        late / (open + ring_ms)
    );
}
