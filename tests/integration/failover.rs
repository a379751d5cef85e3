//! The kill matrix: real processes, every kind of death, at any moment of a prompt; the answer must be the one that
//! an undisturbed run gives.
//!
//! Most prompts draft, the seed says by what: the asking node remembers the answers that it gave before and proposes their
//! tokens, some of them wrong (`SHOAL_DRAFT`), or looks up what followed before in the text. The tokens must be the same.
//!
//! `SHOAL_FAULTS` sets the number of faults, `SHOAL_SEED` the first seed; each fault prints the seed that repeats it.

use std::{collections::BTreeMap, ops::Range, panic::resume_unwind, thread};

use harness::Shoal;
use scheduler::rng::Rng;
use serde_json::Value;

use crate::{
    equal_ids,
    mortal_swarm::{DRAFTS, KINDS, Kind, LAYERS, Swarm, run},
};

/// A stall that is printed with its history.
const SLOW_MS: f64 = 1_500.0;
/// Modes of the shadow, as often as they are drawn. Where no node can follow, it makes no difference.
const SHADOWS: [&str; 4] = ["all", "all", "lazy", "none"];
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Prefill,
    First,
    Middle,
    Last,
    Between,
}

const PHASES: [Phase; 5] = [Phase::Prefill, Phase::First, Phase::Middle, Phase::Last, Phase::Between];

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
    let mut swarm = Swarm::start(layers, &[]);
    let mut drafts = (0, 0);
    // What was answered once can be drafted.
    for (ask, expected) in asks("dense").iter().zip(&expected["dense"]) {
        let line = run(&swarm, ask, "none", "auto", &mut |_, _| {});
        assert_eq!(line["ids"], *expected, "{line}");
    }
    let mut stalls: BTreeMap<(&str, Kind), Vec<f64>> = BTreeMap::new();
    let [answers, killed, _] = equal_ids::ask_all(&mut swarm, &[], seeds.start..seeds.start + 1);
    assert!(answers > 0 && killed > 0, "{answers} answers, {killed} nodes lost");
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
            let index = chance.below(swarm.serves.len());
            swarm.strike(index, kind);
            victim = Some(index);
        }
        let draft = DRAFTS[Rng::new(!seed).below(DRAFTS.len())];
        let line = run(&swarm, &asks(session)[which], shadow, draft, &mut |route, tokens| {
            if victim.is_none() && tokens >= at && !route.is_null() {
                let index = swarm.strike_stage(route, stage, kind);
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
