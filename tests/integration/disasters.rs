//! What no shadow alone survives: two stages at once, the whole chain, a wire that carries one way, a relay, a stage that
//! crawls, the one who asks. Real processes; the answer is always the one that nothing would have disturbed.

use std::{
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal,
    nemesis::{Slowed, Wire, signal},
    node::Node,
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

const PLAIN: [&str; 3] = ["-n", "100", "Tell me a story about a fox and a lantern"];
const SEEDED: [&str; 9] = [
    "-n",
    "100",
    "--temperature",
    "0.9",
    "--seed",
    "11",
    "--repetition-penalty",
    "1.1",
    "Tell me a story about a bear",
];
/// Enough tokens that a stage has a past when something happens to it, and enough left afterwards.
const LONG: [&str; 5] = ["-n", "160", "--raw", "--seed=3", "Once upon a time there was a"];

/// A crawling stage stands still for this long at a time.
const STOOD: Duration = Duration::from_millis(300);

/// A way that carries one direction only is left for another within a second; pings that go unanswered close it after ten to
/// twenty-five. A busy machine that runs a dev build is given time in between.
const ANOTHER_WAY_MS: f64 = 8_000.0;

/// What this machine answers alone.
fn alone(ask: &[&str]) -> Value {
    Shoal::new().json(["run", "--json"].iter().chain(ask), "")["ids"].clone()
}

fn serves(folder: &Path, index: usize, layers: &str, peer: &str) -> Node {
    Node::start(&folder.join(index.to_string()), &["--layers", layers, "--peer", peer])
}

struct Swarm {
    layers: Vec<&'static str>,
    folder: TempDir,
    asks: Node,
    serves: Vec<Node>,
}

impl Swarm {
    fn start(layers: &[&'static str]) -> Self {
        let folder = TempDir::new().unwrap();
        let asks = Node::start(&folder.path().join("home"), &["--ask-only"]);
        let mut swarm = Self { layers: layers.to_vec(), folder, asks, serves: Vec::new() };
        swarm.serves = swarm.all();
        swarm.asks.meets(layers.len());
        swarm
    }

    /// All who serve, started at once: most of a start is waiting.
    fn all(&self) -> Vec<Node> {
        let (folder, peer) = (self.folder.path(), self.asks.tcp());
        thread::scope(|scope| {
            let start = |(index, layers)| scope.spawn(move || serves(folder, index, layers, peer));
            let starting: Vec<_> = self.layers.iter().copied().enumerate().map(start).collect();
            starting.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    fn node(&self, index: usize) -> Node {
        serves(self.folder.path(), index, self.layers[index], self.asks.tcp())
    }

    /// Indices of the nodes that run a prompt.
    fn running(&self, prompt: &Prompt) -> Vec<usize> {
        let place = |name: &String| self.serves.iter().position(|node| node.name == *name).unwrap();
        prompt.strangers(&self.asks.name).iter().map(place).collect()
    }

    fn kill(&mut self, index: usize) {
        let node = &mut self.serves[index];
        let _ = node.child.kill();
        let _ = node.child.wait();
    }
}

/// Failures survived and late stages whose shadow answered first.
fn faults(line: &Value) -> usize {
    ["faults", "hedged"].iter().filter_map(|list| line[*list].as_array()).map(Vec::len).sum()
}

#[test]
fn two_stages_at_once() {
    let mut swarm = Swarm::start(&["1..4", "4..7", "1..4", "4..7"]);
    for (ask, frozen) in [(&SEEDED[..], false), (&PLAIN[..], true)] {
        let expected = alone(ask);
        let mut prompt = Prompt::run(&swarm.asks.home, ask);
        assert!(prompt.reaches(12));
        let victims = swarm.running(&prompt);
        assert_eq!(victims.len(), 2, "{}", prompt.route);
        let struck = Instant::now();
        for victim in &victims {
            signal(if frozen { "-STOP" } else { "-KILL" }, u64::from(swarm.serves[*victim].child.id()));
        }
        let last = prompt.ends();
        println!("two at once, frozen {frozen}: stall {:.0} ms", prompt.stall_ms(struck));
        assert_eq!(last["ids"], expected, "{last}");
        assert_eq!(Value::Array(prompt.ids()), expected);
        assert!(faults(&last) > 0, "{last}");
        if !frozen {
            for victim in victims {
                swarm.kill(victim);
                swarm.serves[victim] = swarm.node(victim);
            }
            swarm.asks.meets(4);
        }
    }
}

/// One runs all the strangers' layers and dies; the other has followed it, kept its inputs, or never heard of it.
#[test]
fn a_shadow_does_as_it_is_asked() {
    let mut swarm = Swarm::start(&["1..7", "1..7"]);
    let long = ["-n", "300", "--raw", "--seed=3", "--logit-bias", "2=-100", "Once upon a time there was a"];
    let expected = alone(&long);
    let figures = |node: &Node| {
        let status = node.ask(&["status"]);
        ["served_positions", "bytes_in"].map(|name| status[name].as_u64().unwrap())
    };
    let mut received = Vec::new();
    for mode in ["none", "lazy", "all"] {
        let at_first: Vec<[u64; 2]> = swarm.serves.iter().map(figures).collect();
        let ask = ["--shadow", mode, "--verify", "off"].into_iter().chain(long);
        let mut prompt = Prompt::run(&swarm.asks.home, ask);
        assert!(prompt.reaches(60));
        let runs = swarm.running(&prompt)[0];
        let shadows = prompt.route["shadows"].as_array().unwrap();
        let named = shadows.iter().any(|shadow| *shadow == swarm.serves[1 - runs].name.as_str());
        assert_eq!(named, mode != "none", "{}", prompt.route);
        let fed = |swarm: &Swarm| {
            let ([rows, bytes], [then, so_many]) = (figures(&swarm.serves[1 - runs]), at_first[1 - runs]);
            [rows - then, bytes - so_many]
        };
        let started = Instant::now();
        let before = loop {
            let before = fed(&swarm);
            // What was sent to it may still be on its way.
            if mode == "none" || before[1] > 0 && (mode == "lazy" || before[0] > 0) {
                break before;
            }
            assert!(started.elapsed() < harness::prompt::BOUND, "{mode}: it has heard nothing");
        };
        swarm.kill(runs);
        let last = prompt.ends();
        assert_eq!(last["ids"], expected, "{mode}: {last}");
        assert_eq!(Value::Array(prompt.ids()), expected, "{mode}");
        assert!(faults(&last) > 0, "{mode}: {last}");
        let [computed, bytes] = fed(&swarm);
        println!("shadow {mode}: {before:?} positions and bytes before, {computed} and {bytes} after");
        let computed_before = if mode == "all" { 1..=u64::MAX } else { 0..=0 };
        assert!(computed_before.contains(&before[0]), "{mode}: {before:?}");
        assert_eq!(before[1] == 0, mode == "none", "{mode}: {before:?}");
        received.push(bytes);
        swarm.serves[runs] = swarm.node(runs);
        swarm.asks.meets(2);
    }
    // What a lazy shadow kept crosses the network once.
    assert!(received[1] < received[0] * 5 / 4, "{received:?}");
}

/// All strangers die. A prompt waits for them to come back; when they take too long it is given up with a word about what
/// to do, and what was said is kept: with the strangers back, it is continued.
#[test]
fn the_whole_chain_at_once() {
    let mut swarm = Swarm::start(&["1..4", "4..7"]);
    let expected = alone(&SEEDED);
    let mut prompt = Prompt::run(&swarm.asks.home, SEEDED);
    assert!(prompt.reaches(12));
    (0..2).for_each(|index| swarm.kill(index));
    swarm.serves = swarm.all();
    // On a machine so slow that a start takes longer than a prompt waits, it may have given up by now.
    while prompt.step() {}
    let came_back = prompt.last.as_ref().is_some_and(|last| last["finish_reason"] != "failed");
    if !came_back {
        swarm.asks.meets(2);
        prompt = Prompt::resume(&swarm.asks.home);
    }
    assert_eq!(prompt.ends()["ids"], expected);
    assert_eq!(Value::Array(prompt.ids()), expected);

    swarm.asks.meets(2);
    let mut prompt = Prompt::run(&swarm.asks.home, SEEDED);
    assert!(prompt.reaches(12));
    (0..2).for_each(|index| swarm.kill(index));
    let said = prompt.fails();
    assert!(said.contains("shoal resume"), "{said}");
    let before = Value::Array(prompt.ids());
    let before = before.as_array().unwrap();
    assert!(before.len() >= 12 && expected.as_array().unwrap().starts_with(before), "{before:?}");
    swarm.serves = swarm.all();
    swarm.asks.meets(2);
    let mut rest = Prompt::resume(&swarm.asks.home);
    assert_eq!(rest.ends()["ids"], expected);
    assert_eq!(Value::Array(rest.ids()), expected);
    assert_eq!(rest.resumed["ids"].as_array().unwrap(), before, "what was shown is what was kept");
}

/// All nodes reach the requester through a wire; one direction of the wire to a stage that runs is cut.
#[test]
fn a_wire_that_carries_one_way() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("home"), &["--ask-only"]);
    let (before, after) = asks.tcp().split_once("/tcp/").unwrap();
    let (port, peer) = after.split_once('/').unwrap();
    let mut serves = Vec::new();
    for index in 0..2 {
        let wire = Wire::to(port.parse().unwrap());
        let through = format!("{before}/tcp/{}/{peer}", wire.port);
        let home = folder.path().join(index.to_string());
        // The asker has no other way: it knows no address that a node listens on, until the wire is given up.
        serves.push((Node::start(&home, &["--layers", "1..7", "--peer", &through]), wire));
    }
    asks.meets(2);
    let expected = alone(&LONG);
    // The second cut comes while the connection that the first one spoiled is still open.
    for to_asker in [true, false, false, true] {
        let mut prompt = Prompt::run(&asks.home, LONG);
        assert!(prompt.reaches(20));
        let name = prompt.strangers(&asks.name)[0].clone();
        let (_, wire) = serves.iter().find(|(node, _)| node.name == name).unwrap();
        let struck = Instant::now();
        wire.cut(to_asker);
        let last = prompt.ends();
        let stall = prompt.stall_ms(struck);
        println!("one way, towards the asker {to_asker}: stall {stall:.0} ms, {} faults", faults(&last));
        assert_eq!(last["ids"], expected, "{last}");
        assert_eq!(Value::Array(prompt.ids()), expected);
        assert!(stall < ANOTHER_WAY_MS, "{stall} ms: {last}");
        wire.mend();
        // What was cut is of no use any more, and the next prompt does not wait until that is noticed.
        let began = Instant::now();
        let mut prompt = Prompt::run(&asks.home, LONG);
        assert!(
            prompt.reaches(1) && began.elapsed().as_secs_f64() * 1e3 < ANOTHER_WAY_MS,
            "{:?}",
            began.elapsed()
        );
        assert_eq!(prompt.ends()["ids"], expected);
        asks.meets(2);
    }
}

#[test]
fn a_relay_dies() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let mut relay = Node::start(&home("relay"), &["--ask-only", "--carry"]);
    let at = relay.tcp().to_owned();
    let serves = Node::start(&home("b"), &["--layers", "1..7", "--relay", &at, "--no-punch"]);
    let peer = serves.tcp().rsplit('/').next().unwrap().to_owned();
    let circuit = format!("{at}/p2p-circuit/p2p/{peer}");
    let asks = Node::start(&home("a"), &["--ask-only", "--peer", &circuit, "--no-punch"]);
    asks.meets(1);
    assert_eq!(
        asks.ask(&["peers"])["peers"]
            .as_array()
            .unwrap()
            .iter()
            .find(|p| p["node"] == serves.name.as_str())
            .unwrap()["path"],
        "relayed"
    );
    let expected = alone(&LONG);
    let mut prompt = Prompt::run(&asks.home, LONG);
    assert!(prompt.reaches(20));
    let struck = Instant::now();
    relay.child.kill().unwrap();
    let last = prompt.ends();
    println!("a relay dies: stall {:.0} ms", prompt.stall_ms(struck));
    assert_eq!(last["ids"], expected, "{last}");
    assert_eq!(Value::Array(prompt.ids()), expected);
    assert!(faults(&last) > 0, "{last}");
}

/// A stage that suddenly takes ten times as long, but answers and says that it computes, is left for its shadow between two
/// tokens.
#[test]
fn a_stage_that_crawls_is_left() {
    let swarm = Swarm::start(&["1..7", "1..7"]);
    let expected = alone(&LONG);
    let mut prompt = Prompt::run(&swarm.asks.home, LONG);
    assert!(prompt.reaches(48));
    let victim = swarm.running(&prompt)[0];
    let worker = swarm.serves[victim].ask(&["status"])["worker_pid"].as_u64().unwrap();
    let struck = Instant::now();
    let slowed = Slowed::new(worker, Duration::ZERO, STOOD);
    let last = prompt.ends();
    let (at, gaps) = (struck, prompt.tokens.windows(2).map(|pair| (pair[1].0, pair[1].0 - pair[0].0)));
    let (before, after): (Vec<_>, Vec<_>) = gaps.partition(|gap| gap.0 < at);
    let p95 = |gaps: &[(Instant, Duration)]| {
        let mut gaps: Vec<Duration> = gaps.iter().map(|gap| gap.1).collect();
        gaps.sort();
        gaps.get(gaps.len().saturating_sub(1) * 95 / 100).copied().unwrap_or_default()
    };
    println!(
        "crawling: p95 gap before {:?}, from 16 tokens after on {:?}, stall {:.0} ms",
        p95(&before),
        p95(after.get(16..).unwrap_or_default()),
        prompt.stall_ms(struck)
    );
    drop(slowed);
    assert_eq!(last["ids"], expected, "{last}");
    assert_eq!(Value::Array(prompt.ids()), expected);
    // Where others keep the machine busy, a stage that stands still for this long does not stand out.
    if p95(&before) > STOOD / 5 {
        println!("too busy to tell a slow stage from the others");
        return;
    }
    let left = last["stages"]
        .as_array()
        .unwrap()
        .iter()
        .all(|stage| stage["node"] != swarm.serves[victim].name.as_str());
    // A few slow steps may be anything; the answer may also have ended with them.
    let stood = after.iter().filter(|gap| gap.1 > STOOD / 2).count();
    assert!(left || stood < 12, "it was kept through {stood} slow steps: {last}");
}

/// `kill -9` of the command, then of the node it asked; `shoal resume` gives the whole answer, raw and q8.
#[test]
fn the_one_who_asks_dies() {
    let mut swarm = Swarm::start(&["1..4", "4..7"]);
    let q8 =
        ["-n", "100", "--temperature", "0.8", "--seed", "4", "--wire", "q8", "Tell me a story about a cat"];
    let undisturbed = |ask: &[&str]| Prompt::run(&swarm.asks.home, ask).ends()["ids"].clone();
    let expected: Vec<Value> = [&SEEDED[..], &q8[..]].into_iter().map(undisturbed).collect();
    assert_eq!(expected[0], alone(&SEEDED));
    for (ask, expected) in [&SEEDED[..], &q8[..]].into_iter().zip(expected) {
        let mut prompt = Prompt::run(&swarm.asks.home, ask);
        assert!(prompt.reaches(9));
        signal("-KILL", u64::from(prompt.child.id()));
        while prompt.step() {}
        let shown = prompt.ids();

        let mut prompt = resumed(&swarm.asks);
        assert!(prompt.reaches(9));
        let kept = prompt.resumed["ids"].as_array().unwrap().clone();
        assert!(kept.starts_with(&shown), "{shown:?} was shown, {kept:?} was kept");
        // In the middle of the continuation, the node too.
        signal("-KILL", u64::from(swarm.asks.child.id()));
        let said = prompt.fails();
        assert!(said.contains("shoal resume"), "{said}");
        let _ = swarm.asks.child.wait();
        let home = swarm.asks.home.clone();
        let peers: Vec<&str> = swarm.serves.iter().flat_map(|node| ["--peer", node.tcp()]).collect();
        let args: Vec<&str> = ["--ask-only"].into_iter().chain(peers).collect();
        let restarted = Instant::now();
        swarm.asks = Node::start(&home, &args);
        swarm.asks.meets(2);

        let mut prompt = resumed(&swarm.asks);
        let last = prompt.ends();
        println!(
            "resumed {:.1} s after the restart of a killed node",
            (Instant::now() - restarted).as_secs_f64()
        );
        assert_eq!(last["ids"], expected, "{last}");
        assert_eq!(Value::Array(prompt.ids()), expected, "none twice, none missing");
        assert_eq!(swarm.asks.ask(&["resume", "--list"])["answers"].as_array().unwrap().len(), 0);
    }

    // What its owner stops is not kept.
    let mut prompt = Prompt::run(&swarm.asks.home, LONG);
    assert!(prompt.reaches(5));
    signal("-INT", u64::from(prompt.child.id()));
    prompt.fails();
    assert_eq!(swarm.asks.ask(&["resume", "--list"])["answers"].as_array().unwrap().len(), 0);
}

/// Continues the one interrupted answer, once the node has noticed that its client is gone.
fn resumed(asks: &Node) -> Prompt {
    let started = Instant::now();
    loop {
        let answers = asks.ask(&["resume", "--list"])["answers"].as_array().unwrap().clone();
        let names: BTreeSet<&str> = answers.iter().filter_map(|answer| answer["session"].as_str()).collect();
        assert!(names.len() <= 1, "{names:?}");
        if names.len() == 1 {
            return Prompt::resume(&asks.home);
        }
        assert!(started.elapsed() < Duration::from_secs(30), "nothing was kept");
        thread::sleep(Duration::from_millis(20));
    }
}
