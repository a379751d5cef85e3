//! Prompts for a long time, one after another and several at once, while nothing goes wrong: no node is taken for
//! dead, and nothing grows.
//!
//! `SHOAL_SOAK_S=600` sets the seconds; 20 by default. `SHOAL_MODEL=FILE.gguf` lets 64 prompts of a real model crowd three nodes.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal,
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

/// Prompts at once in every other round.
const AT_ONCE: usize = 3;
/// A prompt of a crowd that says nothing for this long hangs: each waits for all others between two of its tokens.
const CROWDED: Duration = Duration::from_secs(600);
/// Prompts at once that two processors cannot carry.
const CROWD: usize = 16;
/// The same of a model of `SHOAL_MODEL`.
const LARGE_CROWD: usize = 64;
const PROMPTS: [&str; 4] = ["a fox", "a bear who bakes", "an owl at sea", "two cats"];

/// What a process holds.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    rss_kib: u64,
    descriptors: u64,
    threads: u64,
}

impl Held {
    /// `None` when the process is gone, or this system does not tell.
    fn of(pid: u64) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Self { rss_kib: number("VmRSS:")?, descriptors, threads: number("Threads:")? })
    }

    fn most(self, other: Self) -> Self {
        Self {
            rss_kib: self.rss_kib.max(other.rss_kib),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

#[derive(Default)]
struct Counted {
    tokens: AtomicU64,
    prompts: AtomicU64,
    failovers: AtomicU64,
}

fn ask(home: &Path, n: u64, counted: &Counted) {
    let seed = n.to_string();
    let about = format!("Tell me a story about {}", PROMPTS[n as usize % PROMPTS.len()]);
    let args = ["-n", "64", "--temperature", "0.8", "--seed", &seed, &about];
    let last = Prompt::run(home, args).ends();
    counted.tokens.fetch_add(last["completion_tokens"].as_u64().unwrap(), Relaxed);
    counted.prompts.fetch_add(1, Relaxed);
    let faults = last["faults"].as_array().unwrap();
    if !faults.is_empty() {
        println!("seed {n}: {faults:?}");
    }
    counted.failovers.fetch_add(faults.len() as u64, Relaxed);
    assert_eq!(last["differing_answers"], 0, "{last}");
}

#[test]
fn soak_no_node_is_taken_for_dead_and_nothing_grows() {
    let seconds = std::env::var("SHOAL_SOAK_S").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("home"), &["--ask-only"]);
    let serves: Vec<Node> = ["1..4", "4..7", "1..4", "4..7"]
        .iter()
        .enumerate()
        .map(|(index, layers)| {
            let home = folder.path().join(index.to_string());
            Node::start(&home, &["--layers", layers, "--peer", asks.tcp()])
        })
        .collect();
    asks.meets(4);
    let all = || serves.iter().chain([&asks]);
    let pids: Vec<u64> = all()
        .flat_map(|node| [u64::from(node.child.id()), node.ask(&["status"])["worker_pid"].as_u64().unwrap()])
        .collect();
    let counted = Arc::new(Counted::default());
    let (began, bound) = (Instant::now(), Duration::from_secs(seconds));
    // By process, the most of what it held: in the first half, and after.
    let mut held = vec![[Held::default(); 2]; pids.len()];
    let mut round = 0;
    while began.elapsed() < bound || round < 4 {
        let n = round * AT_ONCE as u64;
        if round % 2 == 0 {
            ask(&asks.home, n, &counted);
        } else {
            let threads: Vec<_> = (0..AT_ONCE as u64)
                .map(|k| {
                    let (home, counted) = (asks.home.clone(), Arc::clone(&counted));
                    thread::spawn(move || ask(&home, n + k, &counted))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        round += 1;
        // However slow the machine: the first half has both kinds of round.
        let half = usize::from(round > 2 && began.elapsed() > bound / 2);
        for (pid, held) in pids.iter().zip(&mut held) {
            held[half] = held[half].most(Held::of(*pid).unwrap_or_default());
        }
    }
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let (tokens, failovers) = (count(&counted.tokens), count(&counted.failovers));
    println!(
        "{} prompts, {tokens} tokens, {failovers} false failovers in {:.0} s",
        count(&counted.prompts),
        began.elapsed().as_secs_f64()
    );
    for (pid, [first, second]) in pids.iter().zip(&held) {
        println!("process {pid}: first half {first:?}, second half {second:?}");
        // Queues, streams of prompts that end as others begin, and what an allocator keeps come and go.
        assert!(second.descriptors <= first.descriptors + 24, "descriptors of {pid}: {first:?}, {second:?}");
        assert!(second.threads <= first.threads + 8, "threads of {pid}: {first:?}, {second:?}");
        assert!(
            second.rss_kib <= first.rss_kib + first.rss_kib / 4 + (16 << 10),
            "memory of {pid}: {first:?}, {second:?}"
        );
    }
    // One in ten thousand, and those that a short run on a machine busy with other tests may have.
    assert!(failovers <= 3 + tokens / 10_000, "{failovers} in {tokens} tokens");
    let listed = asks.ask(&["resume", "--list"]);
    assert_eq!(listed["answers"].as_array().unwrap().len(), 0, "{listed}");
}

/// The words of a prompt of the crowd.
fn about(n: usize) -> Vec<String> {
    let words = ["-n", "24", "--temperature", "0.8", "--seed"].map(str::to_owned);
    words.into_iter().chain([n.to_string(), format!("Tell me a story about the number {n}")]).collect()
}

/// Keeps a processor busy until it is dropped.
struct Hog(Arc<AtomicBool>);

impl Hog {
    fn new() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        thread::spawn(move || {
            while !told.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(over)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// More prompts than the machine can carry, beside programs that are not ours. Slow is not dead: each has the answer that one
/// machine alone gives, and what the crowd took is not what a prompt is expected to take afterwards.
/// `tests/compare/crowd.py` tells how long they take.
#[test]
fn a_crowd_on_a_busy_machine_loses_none() {
    let folder = TempDir::new().unwrap();
    let (model, crowd) = match std::env::var("SHOAL_MODEL") {
        Ok(model) => (model, LARGE_CROWD),
        Err(_) => ("minnow".to_owned(), CROWD),
    };
    let asks = Node::start(&folder.path().join("home"), &["--model", &model, "--ask-only"]);
    let last = asks.ask(&["status"])["model"]["num_layers"].as_u64().unwrap() - 1;
    let third = |n: u64| 1 + n * (last - 1) / 3;
    let serves: Vec<Node> = (0..3)
        .map(|n| {
            let layers = format!("{}..{}", third(n), third(n + 1));
            let args = ["--model", &model, "--layers", &layers, "--peer", asks.tcp()];
            Node::start(&folder.path().join(&layers), &args)
        })
        .collect();
    asks.meets(serves.len());
    // What is done at home and what is waited for at the others, for a token.
    let expected_ms = || {
        let plan = asks.ask(&["plan", "--mode", "boomerang", "Tell me a story"]);
        let queues = plan["stages"].as_array().unwrap().iter().map(|stage| &stage["terms"]["queue"]);
        [plan["home_ms"].as_f64().unwrap(), queues.filter_map(Value::as_f64).sum()]
    };
    let [before, _] = expected_ms();
    let hogs = [Hog::new(), Hog::new()];
    let began = Instant::now();
    let answers: Vec<_> = (0..crowd)
        .map(|n| {
            let home = asks.home.clone();
            thread::spawn(move || {
                let mut prompt = Prompt::run(&home, about(n));
                prompt.bound = CROWDED;
                (prompt.ends(), prompt.ids())
            })
        })
        .collect();
    let answers: Vec<_> =
        answers.into_iter().map(|answer| answer.join().expect("every prompt has its answer")).collect();
    drop(hogs);
    println!("{crowd} prompts in {:?}", began.elapsed());
    let [after, _] = expected_ms();
    println!("the head is thought to take {before:.2} ms before, {after:.2} after");
    assert!(after < 8.0 * before + 10.0, "{before} ms before, {after} after");
    // Who serves none has no queue, and says so.
    let quiet = Instant::now();
    while expected_ms()[1] > 0.0 {
        assert!(quiet.elapsed() < PATIENCE, "a queue is expected where none is: {:?}", expected_ms());
        thread::sleep(Duration::from_millis(200));
    }
    let alone = Shoal::new();
    for ((last, ids), n) in answers.into_iter().zip(0..) {
        assert_eq!(last["differing_answers"], 0, "{last}");
        let mut words = vec!["run".to_owned(), "--via".into(), "local".into(), "--json".into()];
        words.extend(["--model".into(), model.clone()]);
        words.extend(about(n));
        assert_eq!(Value::from(ids), alone.json(words, "")["ids"], "prompt {n}: {last}");
    }
}
