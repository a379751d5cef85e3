//! How plans come true: what is said of the first token and of each further one before an answer, beside what they took,
//! over lines of several delays, between idle nodes and busy ones, for short prompts and for long ones.
//!
//! By hand, since it measures: `SHOAL_FIGURES=1 SHOAL_MODEL=FILE.gguf SHOAL_LAYERS=30`. `SHOAL_DELAYS=0,5,20,50` are milliseconds
//! of one way; 0 means no wires at all. `SHOAL_PROMPTS=8` prompts of each kind count, behind two that do not.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use harness::{
    binary, http,
    node::Node,
    number,
    wires::{Mood, Wires},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::delay::{settle, wire};

/// Prompts before those that count.
const BEFORE: usize = 2;
/// Answers at once of another node while the nodes are busy.
const BUSY: usize = 2;

/// One of the two quantities of an answer: what was said, from where to where, and what it took, ms.
#[derive(Clone, Copy)]
struct Came {
    said: f64,
    range: (f64, f64),
    took: f64,
}

impl Came {
    fn of(route: &Value, what: &str, took: f64) -> Self {
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{what} of {route}"));
        let range = &route["range"][what];
        Self { said: number(&route["predicted"][what]), range: (number(&range[0]), number(&range[1])), took }
    }

    fn error(&self) -> f64 {
        (self.said / self.took - 1.0).abs()
    }
}

/// The median of the relative errors and the share within the range, in per cent.
fn scored(all: &[Came]) -> (f64, f64) {
    let mut errors: Vec<f64> = all.iter().map(Came::error).collect();
    errors.sort_by(f64::total_cmp);
    let within = all.iter().filter(|came| (came.range.0..=came.range.1).contains(&came.took)).count();
    (100.0 * errors[errors.len() / 2], 100.0 * within as f64 / all.len() as f64)
}

/// Asks for an answer of `tokens` tokens; the first token and each further one, or `None` where a fault came between.
fn answer(asks: &Node, prompt: &str, tokens: usize) -> Option<[Came; 2]> {
    let tokens = tokens.to_string();
    let mut child = Command::new(binary())
        .args([
            "run",
            "--via",
            "swarm",
            "--json",
            "--draft",
            "off",
            "--temperature",
            "0.8",
            "-n",
            &tokens,
            "--home",
        ])
        .arg(&asks.home)
        .arg(prompt)
        // The node's model, not the one that the variable would have `run` ask for.
        .env_remove("SHOAL_MODEL")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut route, mut last) = (Value::Null, Value::Null);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        if last["predicted"].is_object() && last["range"].is_object() {
            route = last.clone();
        }
    }
    assert!(child.wait().unwrap().success(), "{last}");
    if last["faults"].as_array().is_none_or(|faults| !faults.is_empty()) {
        return None;
    }
    let took = |what: &str| last[what].as_f64().unwrap_or_else(|| panic!("no {what}: {last}"));
    let further = 1e3 / took("decode_tok_s");
    Some([Came::of(&route, "ttft_ms", took("ttft_ms")), Came::of(&route, "step_ms", further)])
}

/// A prompt that no earlier one begins like; a long one has about a thousand tokens.
fn prompt(seed: usize, long: bool) -> String {
    let things = ["lantern", "river", "clock", "violin", "orchard", "glacier", "harbor", "meadow"];
    let sentence = |at: usize| {
        let thing = things[(seed * 5 + at * 3) % things.len()];
        format!(
            "In house {} of street {seed} an old {thing} was kept beside the {} window. ",
            at * 7 + seed,
            at % 9
        )
    };
    let story: String = (0..if long { 42 } else { 0 }).map(sentence).collect();
    format!("Number {seed}. {story}Tell me a story about the {}.", things[seed % things.len()])
}

/// Keeps the nodes busy through the API of another one until `stop`.
fn keep_busy((url, token): (&str, &str), seed: usize, stop: &AtomicBool) {
    for round in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let about = format!("Write a long list of rivers, beginning with number {round} of {seed}.");
        let body = json!({"messages": [{"role": "user", "content": about}], "mode": "boomerang", "max_tokens": 200,
            "seed": round, "verify": "none", "shadow": "none"});
        let said = http::request(url, token, "POST", "/v1/chat/completions", &body);
        assert!(said.status == 200 || said.status == 503, "{said:?}");
    }
}

#[test]
fn figures_of_predictions() {
    if std::env::var_os("SHOAL_FIGURES").is_none() {
        println!("skipped: SHOAL_FIGURES=1 measures, and prints what it measured");
        return;
    }
    let model = std::env::var("SHOAL_MODEL").unwrap_or_else(|_| "minnow".into());
    let (layers, prompts) = (number("SHOAL_LAYERS", 8) as usize, number("SHOAL_PROMPTS", 8) as usize);
    let delays = std::env::var("SHOAL_DELAYS").unwrap_or_else(|_| "0,5,20,50".into());
    println!(
        "| one way | nodes | prompt | first token: said, took | error, within | further: said, took | error, within |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut all = [Vec::new(), Vec::new()];
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
        let load = start("z", &["--ask-only", "--api", "127.0.0.1:0"]);
        let half = layers / 2;
        let held = [format!("1..{half}"), format!("{half}..{}", layers - 1)];
        let first =
            start("b", &["--layers", &held[0], "--peer", &dial("b", "a", &asks), "--peer", load.tcp()]);
        let to_first = dial("c", "b", &first);
        let second = start(
            "c",
            &[
                "--layers",
                &held[1],
                "--peer",
                &dial("c", "a", &asks),
                "--peer",
                &to_first,
                "--peer",
                load.tcp(),
            ],
        );
        for node in [&asks, &load] {
            node.meets(2);
            let consent = json!({"mode": "boomerang", "agreed": true});
            assert_eq!(http::ask(node, "POST", "/swarm/consent", &consent).status, 200);
        }
        wires.set(if ms == 0 { Mood::Open } else { Mood::Late(Duration::from_millis(ms)) });
        settle(&asks, "boomerang");
        let url = load.api["url"].as_str().expect("it has an API").to_owned();
        let token = fs::read_to_string(load.api["token_file"].as_str().expect("it wants a token")).unwrap();
        let stop = AtomicBool::new(false);
        for busy in [false, true] {
            thread::scope(|scope| {
                stop.store(false, Relaxed);
                if busy {
                    for seed in 0..BUSY {
                        let (url, token, stop) = (&url, &token, &stop);
                        scope.spawn(move || keep_busy((url, token), seed, stop));
                    }
                    thread::sleep(Duration::from_secs(3));
                }
                for long in [false, true] {
                    let seed =
                        |at: usize| 100 * ms as usize + 50 * usize::from(busy) + 20 * usize::from(long) + at;
                    let came: Vec<[Came; 2]> = (0..BEFORE + prompts)
                        .map(|at| answer(&asks, &prompt(seed(at), long), 32))
                        .skip(BEFORE)
                        .flatten()
                        .collect();
                    let of = |which: usize| came.iter().map(|both| both[which]).collect::<Vec<_>>();
                    let told = [0, 1].map(|which| {
                        let came = of(which);
                        let mean =
                            |of: fn(&Came) -> f64| came.iter().map(of).sum::<f64>() / came.len() as f64;
                        let (error, within) = scored(&came);
                        all[which].extend(came.iter().copied());
                        format!(
                            "{:.0}, {:.0} ms | {error:.0} %, {within:.0} %",
                            mean(|c| c.said),
                            mean(|c| c.took)
                        )
                    });
                    let (state, kind) =
                        (if busy { "busy" } else { "idle" }, if long { "1,000 tokens" } else { "short" });
                    println!("| {ms} ms | {state} | {kind} | {} | {} |", told[0], told[1]);
                }
                stop.store(true, Relaxed);
            });
        }
        drop((first, second));
    }
    for (what, came) in ["first tokens", "further tokens"].iter().zip(&all) {
        let (error, within) = scored(came);
        println!("{what}: median error {error:.1} %, {within:.0} % within the range, of {}", came.len());
    }
}
