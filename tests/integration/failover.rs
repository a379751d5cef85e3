//! The kill matrix: real processes, every kind of death, at any moment of a prompt; the answer must be the one that
//! an undisturbed run gives.
//!
//! Most prompts draft, the seed says by what: the asking node remembers the answers that it gave before and proposes their
//! tokens, some of them wrong (`SHOAL_DRAFT`), or looks up what followed before in the text. The tokens must be the same.
//!
//! `SHOAL_FAULTS` sets the number of faults, `SHOAL_SEED` the first seed; each fault prints the seed that repeats it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    ops::Range,
    panic::resume_unwind,
    process::{Child, Command, Stdio},
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, binary, node::Node};
use scheduler::rng::Rng;
use serde_json::Value;
use tempfile::TempDir;

/// A prompt that has not ended by then hangs.
const BOUND: Duration = Duration::from_secs(150);
/// A stall that is printed with its history.
const SLOW_MS: f64 = 1_500.0;
/// Modes of the shadow, as often as they are drawn. Where no node can follow, it makes no difference.
const SHADOWS: [&str; 4] = ["all", "all", "lazy", "none"];
/// What drafts, as often as it is drawn; `auto` is here what `SHOAL_DRAFT` says.
const DRAFTS: [&str; 5] = ["auto", "auto", "lookup", "off", "lookup,minnow"];
/// What rows see and how keys and values are kept, as often as it is drawn.
const SESSIONS: [&str; 7] = [
    "dense",
    "dense",
    "window:24",
    "sparse:window=16,sinks=2,stride=on,block=16",
    "dense/q8",
    "window:24/q4",
    "h2o:budget=128,sinks=2,window=32",
];
/// Two ways to hold the middle layers twice: with a follower for each segment, and so that the node that takes over cuts
/// differently.
const LAYERS: [&[&str]; 2] = [&["1..4", "4..7", "1..4", "4..7"], &["1..3,3..5", "3..5,5..7", "5..7,1..3"]];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// `kill -9` of the node: its worker dies with it.
    Killed,
    /// The node's process is frozen: its connections stay open and nothing comes.
    Frozen,
    /// `kill -9` of the worker: the node lives and says so.
    Worker,
    /// It leaves as a user would let it.
    Leaves,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Prefill,
    First,
    Middle,
    Last,
    Between,
}

const KINDS: [Kind; 4] = [Kind::Killed, Kind::Frozen, Kind::Worker, Kind::Leaves];
const PHASES: [Phase; 5] = [Phase::Prefill, Phase::First, Phase::Middle, Phase::Last, Phase::Between];

struct Swarm {
    layers: &'static [&'static str],
    folder: TempDir,
    asks: Node,
    serves: Vec<Node>,
    /// Commands that send nodes away and have not ended yet.
    leaves: RefCell<Vec<Child>>,
}

impl Swarm {
    fn start(layers: &'static [&'static str]) -> Self {
        let folder = TempDir::new().unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let asks =
            Node::start_as(&folder.path().join("home"), &["--ask-only", "--draft", "minnow"], |command| {
                command.env("SHOAL_LOG", "info,node::request=debug").env("SHOAL_DRAFT", "5:1").stderr(log);
            });
        let mut swarm = Self { layers, folder, asks, serves: Vec::new(), leaves: RefCell::default() };
        swarm.serves = (0..layers.len()).map(|index| swarm.node(index)).collect();
        swarm.asks.meets(layers.len());
        swarm
    }

    /// What the node that asks has said lately.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn node(&self, index: usize) -> Node {
        let home = self.folder.path().join(index.to_string());
        Node::start(&home, &["--layers", self.layers[index], "--peer", self.asks.tcp()])
    }

    fn strike(&self, index: usize, kind: Kind) {
        let node = &self.serves[index];
        let send = |signal: &str, pid: u64| {
            assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
        };
        match kind {
            Kind::Killed => send("-KILL", u64::from(node.child.id())),
            Kind::Frozen => send("-STOP", u64::from(node.child.id())),
            Kind::Worker => send("-KILL", node.ask(&["status"])["worker_pid"].as_u64().unwrap()),
            Kind::Leaves => {
                let mut leave = Command::new(binary());
                leave.arg("leave").arg("--home").arg(&node.home).stdout(Stdio::null());
                self.leaves.borrow_mut().push(leave.spawn().unwrap());
            }
        }
    }

    /// Ends whatever is left of a node and starts it again.
    fn restore(&mut self, index: usize) {
        // Who leaves says good-bye; a command that comes late would send the successor away.
        for mut leave in self.leaves.take() {
            let _ = leave.wait();
        }
        let _ = self.serves[index].child.kill();
        let _ = self.serves[index].child.wait();
        self.serves[index] = self.node(index);
        self.asks.meets(self.layers.len());
        // What its predecessor said may still be believed: that it is about to leave, for one.
        let (node, started) = (&self.serves[index], Instant::now());
        loop {
            let peers = self.asks.ask(&["peers"]);
            let mut of_it =
                peers["peers"].as_array().unwrap().iter().filter(|p| p["node"] == node.name.as_str());
            if of_it.any(|p| p["addresses"].as_array().unwrap().iter().any(|a| a == node.tcp())) {
                return;
            }
            assert!(started.elapsed() < BOUND, "its predecessor is believed: {peers}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What to ask: plain, seeded with everything that depends on the past, and a long prompt.
fn asks(kind: &str) -> [Vec<String>; 3] {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut plain = words("-n 40");
    plain.push("Tell me a story about a fox and a lantern".into());
    let mut seeded = words("-n 40 --temperature 0.9 --top-p 0.95 --repetition-penalty 1.1 --seed 11");
    seeded.push("Tell me a story about a bear who bakes bread".into());
    let mut long = words("-n 40 --raw");
    long.push("Once upon a time a little owl counted the stars. ".repeat(40));
    let (attention, cache) = kind.split_once('/').unwrap_or((kind, "f16"));
    let kind = ["--attention", attention, "--kv-cache-type", cache].map(str::to_owned);
    [plain, seeded, long].map(|words| [words, kind.to_vec()].concat())
}

/// Runs a prompt and strikes when the time has come; gives the last line.
fn run(
    swarm: &Swarm,
    ask: &[String],
    shadow: &str,
    draft: &str,
    strike: &mut dyn FnMut(&Value, usize),
) -> Value {
    let mut child = Command::new(binary())
        .args(["run", "--via", "swarm", "--json", "--shadow", shadow, "--draft", draft, "--home"])
        .arg(&swarm.asks.home)
        .args(ask)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (send, lines) = sync_channel::<Value>(1_024);
    let stdout = child.stdout.take().unwrap();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str(&line).unwrap());
        }
    });
    let started = Instant::now();
    let (mut tokens, mut route) = (0, Value::Null);
    loop {
        let left = BOUND.saturating_sub(started.elapsed());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("no end within {BOUND:?}, {tokens} tokens came; route {route}")
        });
        match line["event"].as_str() {
            Some("route") => route = line.clone(),
            Some("token") => tokens += 1,
            _ => {}
        }
        if line["end"] == true {
            assert!(child.wait().unwrap().success(), "{line}\n{}", swarm.log());
            return line;
        }
        strike(&route, tokens);
    }
}

#[test]
fn the_answer_survives_every_kind_of_death() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (faults, first) = (number("SHOAL_FAULTS", 20), number("SHOAL_SEED", 1));
    let alone = |ask: &Vec<String>| {
        let args: Vec<String> = ["run", "--json"].map(str::to_owned).into_iter().chain(ask.clone()).collect();
        Shoal::new().json(args, "")["ids"].clone()
    };
    let expected: Expected =
        SESSIONS.iter().map(|kind| (*kind, asks(kind).iter().map(alone).collect())).collect();
    // One swarm for each layout, side by side: most of a fault is waiting.
    let stalls = thread::scope(|scope| {
        let half = |index: usize| {
            let seeds = [first..first + faults / 2, first + faults / 2..first + faults][index].clone();
            let expected = &expected;
            scope.spawn(move || strike_all(LAYERS[index], seeds, expected))
        };
        let halves = [half(0), half(1)];
        halves.map(|half| half.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let (proposed, right) = stalls.iter().fold((0, 0), |sum, (_, it)| (sum.0 + it.0, sum.1 + it.1));
    println!("{proposed} tokens drafted, {right} of them right");
    assert!(
        faults < 20 || (0 < right && right < proposed),
        "{right} of {proposed} drafted tokens were right"
    );
    println!("{faults} faults: 0 tokens lost, 0 doubled, 0 different, 0 hangs");
    for (standby, (stalls, _)) in ["followed", "other cuts"].into_iter().zip(stalls) {
        for ((shadow, kind), mut stalls) in stalls {
            stalls.sort_by(f64::total_cmp);
            let at = |share: f64| stalls[((stalls.len() - 1) as f64 * share).round() as usize];
            println!(
                "{standby}, shadow {shadow}, {kind:?}: stall p50 {:.0} ms, p99 {:.0} ms, n {}",
                at(0.5),
                at(0.99),
                stalls.len()
            );
        }
    }
}

/// The answers to all prompts, by what rows see.
type Expected = BTreeMap<&'static str, Vec<Value>>;

/// The stalls by kind of death, ms, and tokens drafted and those of them that were right.
type Struck = (BTreeMap<(&'static str, Kind), Vec<f64>>, (u64, u64));

/// The steps of an answer are in the order of time, begin with promises and go on as often as the answer stood still.
fn told_in_order(line: &Value, seed: u64) {
    let steps = line["timeline"]["steps"].as_array().unwrap();
    let count = |wanted: &str| steps.iter().filter(|step| step["step"] == wanted).count();
    let faults = line["faults"].as_array().unwrap().len();
    assert_eq!(count("went_on"), faults, "seed {seed}: {line}");
    assert_eq!((count("first_token"), count("ended")), (1, 1), "seed {seed}: {line}");
    assert!(faults == 0 || count("lost") > 0, "seed {seed}: {line}");
    assert!(count("took_over") == 0 || count("lost") > 0, "seed {seed}: {line}");
    let times: Vec<f64> = steps.iter().map(|step| step["at_ms"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "seed {seed}: {line}");
}

/// Strikes a swarm of this layout once for each seed.
fn strike_all(layers: &'static [&'static str], seeds: Range<u64>, expected: &Expected) -> Struck {
    let mut swarm = Swarm::start(layers);
    let mut drafts = (0, 0);
    // What was answered once can be drafted.
    for (ask, expected) in asks("dense").iter().zip(&expected["dense"]) {
        let line = run(&swarm, ask, "none", "auto", &mut |_, _| {});
        assert_eq!(line["ids"], *expected, "{line}");
    }
    let mut stalls: BTreeMap<(&str, Kind), Vec<f64>> = BTreeMap::new();
    for seed in seeds {
        let mut chance = Rng::new(seed);
        // Every pair of kind and phase comes round; who and what is drawn.
        let kind = KINDS[seed as usize % KINDS.len()];
        let phase = PHASES[seed as usize / KINDS.len() % PHASES.len()];
        let which = chance.below(3);
        let stage = chance.below(2);
        let shadow = SHADOWS[chance.below(SHADOWS.len())];
        let session = SESSIONS[Rng::new(seed ^ 0xa77).below(SESSIONS.len())];
        let expected = &expected[session];
        println!(
            "seed {seed}: {kind:?} in {phase:?}, prompt {which}, {session}, stage {stage}, shadow {shadow}"
        );
        let (length, mut victim) = (expected[which].as_array().unwrap().len(), None);
        let at = match phase {
            Phase::Prefill => 0,
            Phase::First => 1,
            Phase::Middle => length / 2,
            Phase::Last => length - 1,
            Phase::Between => usize::MAX,
        };
        if phase == Phase::Between {
            let index = chance.below(swarm.layers.len());
            swarm.strike(index, kind);
            victim = Some(index);
        }
        let draft = DRAFTS[Rng::new(!seed).below(DRAFTS.len())];
        let line = run(&swarm, &asks(session)[which], shadow, draft, &mut |route, tokens| {
            if victim.is_none() && tokens >= at && !route.is_null() {
                let strangers = route["stages"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|s| s["node"] != swarm.asks.name.as_str());
                let names: Vec<&str> = strangers.map(|stage| stage["node"].as_str().unwrap()).collect();
                let name = names[stage % names.len()];
                let index = swarm.serves.iter().position(|node| node.name == name).unwrap();
                swarm.strike(index, kind);
                victim = Some(index);
            }
        });
        assert_eq!(line["ids"], expected[which], "seed {seed}: tokens lost, doubled or changed; {line}");
        assert_eq!(line["differing_answers"], 0, "seed {seed}: {line}");
        told_in_order(&line, seed);
        let drafted = |what: &str| line["drafts"][what].as_u64().unwrap_or(0);
        drafts = (drafts.0 + drafted("proposed"), drafts.1 + drafted("right"));
        let stalls_of = |list: &str| line[list].as_array().unwrap().clone();
        let told: Vec<Value> = stalls_of("faults").into_iter().chain(stalls_of("hedged")).collect();
        let worst = told.iter().filter_map(|stall| stall["stall_ms"].as_f64()).fold(0.0, f64::max);
        if worst > SLOW_MS {
            println!("  stalled for {worst:.0} ms: {told:?}\n{}", swarm.log());
        }
        if worst > 0.0 {
            stalls.entry((shadow, kind)).or_default().push(worst);
        }
        swarm.restore(victim.expect("every phase of a prompt comes"));
    }
    (stalls, drafts)
}
