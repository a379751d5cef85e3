//! Many prompts, greedy and drawn, over three kinds of wire, through other cuts, with drafts and deaths on the way: the ids
//! are those that one machine gives for the same wire and cuts.
//!
//! By hand: `SHOAL_PROMPTS` sets the number of prompts and `SHOAL_SEED` the first; the number of a prompt says everything that
//! is drawn for it. `SHOAL_MODEL` and `SHOAL_LAYERS` name another model than minnow by its file, and how many layers it has.
//! The kill matrix asks a sample through its own swarms.

use std::{env, ops::Range, panic::resume_unwind, thread};

use harness::{Shoal, number};
use scheduler::rng::Rng;
use serde_json::Value;

use crate::mortal_swarm::{DRAFTS, KINDS, LAYERS, Swarm, run};

/// Raw, the codec of the first version, and the one that is recommended.
const WIRES: [&str; 3] = ["raw", "q8", "c8"];
/// One answer in so many loses a node.
const KILLED: usize = 4;
/// Tokens of an answer.
const TOKENS: usize = 32;

const FORMS: [&str; 8] = [
    "Tell me a story about {} and {}.",
    "Write a short poem in which {} meets {}.",
    "List five things that {} could learn from {}.",
    "Explain to a child how {} differs from {}.",
    "Write a Python function that compares {} with {}.",
    "Write a JSON object with the fields name, age and friends for {}, a friend of {}.",
    "Repeat this three times: {} and {} walked home.",
    "Write a letter from {} to {} about the weather.",
];
const WHO: [&str; 25] = [
    "a fox",
    "an owl",
    "a bear",
    "the moon",
    "a lantern",
    "an old clock",
    "a baker",
    "a lighthouse",
    "the sea",
    "a teacher",
    "a robot",
    "a river",
    "a train",
    "two sisters",
    "a gardener",
    "the first snow",
    "a violin",
    "a kite",
    "a beetle",
    "a king",
    "a stone bridge",
    "a doctor",
    "a paper boat",
    "a wolf",
    "the night sky",
];

/// Prompt `number`: no two of the first thousands are equal.
fn prompt(number: u64) -> String {
    let number = number as usize;
    let (form, rest) = (FORMS[number % FORMS.len()], number / FORMS.len());
    let (one, other) = (rest % WHO.len(), (1 + rest / WHO.len() + rest) % WHO.len());
    form.replacen("{}", WHO[one], 1).replacen("{}", WHO[other], 1)
}

#[test]
fn every_way_gives_the_ids_of_one_machine() {
    if env::var_os("SHOAL_PROMPTS").is_none() {
        println!("skipped: SHOAL_PROMPTS=200 asks so many; the kill matrix asks two");
        return;
    }
    let (prompts, first) = (number("SHOAL_PROMPTS", 0), number("SHOAL_SEED", 1));
    let model = env::var("SHOAL_MODEL").ok();
    let layouts: [Vec<String>; 2] = match &model {
        None => LAYERS.map(|layout| layout.iter().map(|&held| held.to_owned()).collect()),
        Some(_) => {
            let last = number("SHOAL_LAYERS", 30) - 1;
            let [a, b, c] = [1 + (last - 1) / 3, 1 + (last - 1) / 2, 1 + 2 * (last - 1) / 3];
            let halves = [format!("1..{b}"), format!("{b}..{last}")];
            let thirds =
                [format!("1..{a},{a}..{c}"), format!("{a}..{c},{c}..{last}"), format!("{c}..{last},1..{a}")];
            [[halves.clone(), halves].concat(), thirds.to_vec()]
        }
    };
    let half = first + prompts.div_ceil(2);
    let asked = thread::scope(|scope| {
        let parts = [(first..half, &layouts[0]), (half..first + prompts, &layouts[1])];
        let parts = parts.map(|(seeds, layout)| {
            let named: Vec<&str> = model.iter().flat_map(|model| ["--model", model.as_str()]).collect();
            scope.spawn(move || ask_all(&mut Swarm::start(layout, &named), &named, seeds))
        });
        parts.map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let [answers, killed, drafted] = [0, 1, 2].map(|at| asked.iter().map(|counts| counts[at]).sum::<u64>());
    println!(
        "{answers} answers of {prompts} prompts, {killed} of which lost a node, {drafted} tokens drafted: all ids equal"
    );
    assert!(killed > 0 && drafted > 0, "{killed} nodes were lost, {drafted} tokens drafted");
}

/// Asks every prompt in every way through one swarm of the model that the arguments `named` name; answers, nodes lost on the way
/// and tokens drafted.
pub(crate) fn ask_all(swarm: &mut Swarm, named: &[&str], seeds: Range<u64>) -> [u64; 3] {
    let mut counts = [0; 3];
    for seed in seeds {
        let mut chance = Rng::new(seed);
        let text = prompt(seed);
        for sampled in [false, true] {
            for wire in WIRES {
                let tokens = TOKENS.to_string();
                let drawn = seed.to_string();
                let mut ask = vec!["-n", tokens.as_str(), "--wire", wire];
                if sampled {
                    ask.extend(["--temperature", "0.8", "--top-p", "0.95", "--seed", drawn.as_str()]);
                }
                let draft = DRAFTS[chance.below(DRAFTS.len())];
                let draft = if named.is_empty() { draft } else { draft.trim_end_matches(",minnow") };
                // The first answer loses one, so that a sample has such an answer.
                let dies = (counts[0] == 0 || chance.below(KILLED) == 0)
                    .then(|| (KINDS[chance.below(KINDS.len())], chance.below(TOKENS / 4), chance.below(3)));
                let mut victim = None;
                let words: Vec<String> =
                    ask.iter().chain([&text.as_str()]).map(|&word| word.into()).collect();
                let line = run(swarm, &words, "all", draft, &mut |route, tokens| {
                    if let (None, Some((kind, at, stage))) = (victim, dies)
                        && tokens >= at
                        && !route.is_null()
                    {
                        victim = Some(swarm.strike_stage(route, stage, kind));
                    }
                });
                let alone = alone(&ask, named, &line, &text);
                assert_eq!(
                    line["ids"], alone["ids"],
                    "prompt {seed}, {ask:?}, draft {draft}, {dies:?}: {line}"
                );
                counts[0] += 1;
                counts[1] += u64::from(victim.is_some());
                counts[2] += line["drafts"]["proposed"].as_u64().unwrap_or(0);
                if let Some(victim) = victim {
                    swarm.restore(victim);
                }
            }
        }
        println!("prompt {seed}: {} answers, {} without a node", counts[0], counts[1]);
    }
    counts
}

/// The answer of one machine that rounds where the swarm's answer was rounded.
fn alone(ask: &[&str], model: &[&str], line: &Value, text: &str) -> Value {
    let cuts: Vec<String> =
        line["cuts"].as_array().map_or(&[][..], Vec::as_slice).iter().map(Value::to_string).collect();
    let cuts = cuts.join(",");
    let at: &[&str] = if cuts.is_empty() { &[] } else { &["--cuts", &cuts] };
    Shoal::new().json([&["run", "--json", "--draft", "off"], model, ask, at, &[text]].concat(), "")
}
