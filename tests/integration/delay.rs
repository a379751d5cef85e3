//! What the network costs a token: one traversal of the ring, and nothing else.
//!
//! Three processes on loopback whose every connection is a wire of [`harness::wires`]. The test counts how often all
//! wires must be let go for one token; it asserts no time. `SHOAL_FIGURES=1` also prints what a token takes when each
//! wire delays by 50 ms one way, and how many tokens a second many answers at once get.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary, http,
    node::Node,
    number,
    wires::{Mood, Turn, Wires},
};
use serde_json::{Value, json};
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
pub(super) fn wire(wires: &Wires, from: &'static str, to: &'static str, node: &Node) -> String {
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
    // What comes behind the last row's round is no row: receipts and announcements together are as large.
    let last_row = (0..turns.len()).rev().find(|&i| moved(&turns[i], "a", "b")).expect("rows left");
    let home: Vec<usize> =
        (0..turns.len().min(last_row + 3)).filter(|&i| moved(&turns[i], "c", "a")).collect();
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

/// Waits until the nodes of a swarm have loaded and answer.
pub(super) fn settle(asks: &Node, mode: &str) {
    // They load their models, and what others hold is heard of a little later than they are. Asked at once, a node that is busy
    // loading seems dead and is dialed once more, beside the wire.
    thread::sleep(Duration::from_secs(5));
    let hello = json!({"messages": [{"role": "user", "content": "Hi"}], "mode": mode, "max_tokens": 2});
    while http::ask(asks, "POST", "/v1/chat/completions", &hello).status != 200 {
        thread::sleep(Duration::from_millis(500));
    }
}

/// Tokens a second of `streams` answers at once through the API of `asks`, and the longest of them, s.
fn answers(asks: &Node, mode: &str, streams: usize, tokens: usize) -> (f64, f64) {
    let began = Instant::now();
    let url = asks.api["url"].as_str().expect("it has an API");
    let token = fs::read_to_string(asks.api["token_file"].as_str().expect("it wants a token")).unwrap();
    let token = token.as_str();
    let ends: Vec<(u64, f64)> = thread::scope(|scope| {
        let one = move |seed: usize| {
            let about = format!("Tell me a long story about the number {seed} and its friends.");
            let body = json!({"messages": [{"role": "user", "content": about}], "mode": mode, "max_tokens": tokens,
                "temperature": 0.8, "seed": seed, "draft": "off", "verify": "none", "shadow": "none"});
            let said = http::request(url, token, "POST", "/v1/chat/completions", &body).body;
            let tokens = said["usage"]["completion_tokens"].as_u64().unwrap_or_else(|| panic!("{said}"));
            (tokens, began.elapsed().as_secs_f64())
        };
        let running: Vec<_> = (0..streams).map(|seed| scope.spawn(move || one(seed))).collect();
        running.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    let last = ends.iter().map(|(_, s)| *s).fold(0.0, f64::max);
    (ends.iter().map(|(tokens, _)| *tokens as f64).sum::<f64>() / last, last)
}

/// By hand: SHOAL_MODEL is a .gguf file with SHOAL_LAYERS layers; SHOAL_STREAMS and SHOAL_TOKENS may be given, and SHOAL_DELAYS=0,100
/// are milliseconds of one way, of which 0 means no wires at all.
#[test]
fn figures_of_streams() {
    if std::env::var_os("SHOAL_FIGURES").is_none() {
        println!("skipped: SHOAL_FIGURES=1 measures, and prints what it measured");
        return;
    }
    let model = std::env::var("SHOAL_MODEL").unwrap_or_else(|_| "minnow".into());
    let (layers, streams) = (number("SHOAL_LAYERS", 8) as usize, number("SHOAL_STREAMS", 16) as usize);
    let tokens = number("SHOAL_TOKENS", 64) as usize;
    let delays = std::env::var("SHOAL_DELAYS").unwrap_or_else(|_| "0,100".into());
    println!("| where | one answer, tok/s | {streams} answers, tok/s |\n|---|---|---|");
    let row = |place: &str, asks: &Node, mode: &str| {
        settle(asks, mode);
        let (one, _) = answers(asks, mode, 1, tokens);
        let (all, s) = answers(asks, mode, streams, tokens);
        println!("| {place} | {one:.2} | {all:.2} ({:.1}x, {s:.1} s) |", all / one);
    };
    let folder = TempDir::new().unwrap();
    let alone = ["--model", &model, "--api", "127.0.0.1:0", "--no-discovery"];
    row("one process", &Node::start(folder.path(), &alone), "local");
    for ms in delays.split(',').map(|ms| ms.parse().expect("SHOAL_DELAYS has milliseconds")) {
        let (wires, folder) = (Wires::new(), TempDir::new().unwrap());
        let start = |name: &str, args: &[&str]| {
            let common = ["--model", &model, "--listen", "/ip4/127.0.0.1/tcp/0", "--no-discovery"];
            Node::start(&folder.path().join(name), &[&common, args].concat())
        };
        let dial = |from: &'static str, to: &'static str, node: &Node| {
            if ms == 0 { node.tcp().to_owned() } else { wire(&wires, from, to, node) }
        };
        let asks = start("a", &["--ask-only", "--api", "127.0.0.1:0"]);
        let mut serve: Vec<Node> = Vec::new();
        for (at, name) in ["b", "c", "d"].into_iter().enumerate() {
            let cut = |at: usize| 1 + at * (layers - 2) / 3;
            let mut peers = vec![dial(name, "a", &asks)];
            peers.extend(serve.iter().zip(["b", "c"]).map(|(node, to)| dial(name, to, node)));
            let held = format!("{}..{}", cut(at), cut(at + 1));
            let peers = peers.iter().flat_map(|peer| ["--peer", peer.as_str()]);
            serve
                .push(start(name, &["--layers", held.as_str()].into_iter().chain(peers).collect::<Vec<_>>()));
        }
        asks.meets(3);
        let agreed =
            http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "boomerang", "agreed": true}));
        assert_eq!(agreed.status, 200, "{agreed:?}");
        wires.set(if ms == 0 { Mood::Open } else { Mood::Late(Duration::from_millis(ms)) });
        row(&format!("three nodes, {ms} ms one way"), &asks, "boomerang");
    }
}
