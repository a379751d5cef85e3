//! A stage that lacks the beginning of a prompt gets its state from a node that computed it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use harness::{node::Node, prompt::Prompt};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Some hundred tokens, the same beginning for every question.
fn prompt(question: &str) -> String {
    let told =
        |day: u32| format!("On day {day} the owl counted {} stones by the river and swam home. ", day * 7);
    format!("{}{question} The owl", (1..=24).map(told).collect::<String>())
}

fn run(asks: &Node, extra: &[&str]) -> Value {
    let text = prompt("How many?");
    let mut args = vec!["run", "--via", "swarm", "--raw", "-n", "12"];
    args.extend(extra);
    args.push(&text);
    asks.ask(&args)
}

fn start(folder: &Path, name: &str, args: &[&str], peers: &[&Node], cheat: &str) -> Node {
    let peers = peers.iter().flat_map(|peer| ["--peer", peer.tcp()]);
    let args: Vec<&str> = args.iter().copied().chain(peers).collect();
    Node::start_with(&folder.join(name), &args, &[("SHOAL_CHEAT", cheat)])
}

/// Who got the state of how many positions, and from whom.
fn fetched(answer: &Value) -> Vec<(Value, Value, u64)> {
    let steps = answer["timeline"]["steps"].as_array().unwrap().iter();
    let steps = steps.filter(|step| step["step"] == "fetched");
    steps.map(|step| (step["node"].clone(), step["from"].clone(), step["end"].as_u64().unwrap())).collect()
}

fn cached(answer: &Value) -> (u64, u64) {
    (answer["cached_tokens"].as_u64().unwrap_or(0), answer["prompt_tokens"].as_u64().unwrap())
}

fn rows(node: &Node) -> u64 {
    node.ask(&["status"])["served_positions"].as_u64().unwrap()
}

/// The model never ends an answer whose logits for this token are so low.
const NO_END: &str = "2=-100";

/// A requester, a node that computed a prompt of it and has no place for another, and one that is new.
struct Busy {
    asks: Node,
    holder: Node,
    new: Node,
    first: Value,
    talks: Prompt,
    _folder: TempDir,
}

fn busy(cheat: &str, check: &str) -> Busy {
    busy_beside(cheat, check, |_| String::new())
}

/// The same where the new one lies as `lies` says, given the first answer.
fn busy_beside(cheat: &str, check: &str, lies: impl Fn(&Value) -> String) -> Busy {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let asks = start(path, "asks", &["--ask-only", "--fetch-state", "any"], &[], "eager");
    let holder = start(path, "a", &["--layers", "1..7", "--sessions", "1"], &[&asks], cheat);
    asks.meets(1);
    let first = run(&asks, &["--shadow", "none"]);
    assert_eq!((fetched(&first), cached(&first).0), (vec![], 0), "{first}");
    let fetches = ["--layers", "1..7", "--fetch-state", "any", "--check-fetched", check];
    let new = start(path, "b", &fetches, &[&asks, &holder], &lies(&first));
    asks.meets(2);
    let long = ["--mode", "trusted", "--trust", &holder.name, "--shadow", "none", "--raw", "-n", "1800"];
    let talk = ["--logit-bias", NO_END, "--temperature", "1.5", "One two three"];
    let mut talks = Prompt::run(&asks.home, [&long[..], &talk].concat());
    assert!(talks.reaches(2));
    // What it announced of its places is at most so old.
    std::thread::sleep(Duration::from_millis(2_200));
    Busy { asks, holder, new, first, talks, _folder: folder }
}

#[test]
fn a_new_stage_gets_what_another_node_computed_and_nothing_where_it_may_not() {
    let busy = busy("", "0");
    let before = rows(&busy.new);
    let again = run(&busy.asks, &["--shadow", "none"]);
    assert!(busy.talks.last.is_none());
    let (kept, all) = cached(&again);
    assert_eq!(again["ids"], busy.first["ids"], "{again}");
    assert_eq!(fetched(&again), [(json!(busy.new.name), json!(busy.holder.name), kept)], "{again}");
    assert!(all > 300 && kept + 48 >= all, "{kept} of {all}: {again}");
    assert!(rows(&busy.new) - before < 96, "it computed the rest of the prompt and the answer");
    assert_eq!((&again["convicted"], &again["verified"]), (&json!([]), &json!(1.0)), "{again}");
    // What it computed on that is its own as long as the requester names who gave it.
    let third = run(&busy.asks, &["--shadow", "none"]);
    assert_eq!((&third["ids"], fetched(&third)), (&busy.first["ids"], vec![]), "{third}");
    assert!(cached(&third).0 > 300, "{third}");
    let strict = run(&busy.asks, &["--shadow", "none", "--verify", "strict"]);
    assert_eq!((fetched(&strict), cached(&strict).0), (vec![], 0), "strict rests on nothing: {strict}");
    assert!(busy.talks.last.is_none());
}

/// What a reader gives is wrong, and what it was given may have been: once it is not convicted for that, and gets no state again.
#[test]
fn a_reader_that_may_have_been_misled_is_not_convicted_and_borrows_no_more() {
    let busy = busy_beside("", "0", |first| format!("ulp:{}", first["prompt_tokens"].as_u64().unwrap() + 3));
    let again = run(&busy.asks, &["--shadow", "none"]);
    let new = json!(busy.new.name);
    assert!(fetched(&again).iter().any(|(node, ..)| *node == new), "{again}");
    assert_eq!((&again["ids"], &again["convicted"]), (&busy.first["ids"], &json!([])), "{again}");
    assert!(again["integrity"].is_u64(), "it was found: {again}");
    let struck = |peer: &Value| peer["node"] == new && peer["trust"]["strikes"] == 1;
    let peers = busy.asks.ask(&["peers"]);
    assert!(!peers["peers"].as_array().unwrap().iter().any(struck), "{peers}");
    let third = run(&busy.asks, &["--shadow", "none"]);
    assert_eq!((fetched(&third), &third["ids"]), (vec![], &busy.first["ids"]), "{third}");
    assert_eq!(third["convicted"], json!([busy.new.name]), "{third}");
    busy.asks.sees(1, struck);
}

/// One bit of the state is another: the stage finds it before it has passed anything on, computes from the beginning and remembers who gave it.
#[test]
fn a_holder_that_gives_another_state_is_found() {
    let busy = busy("pages:40009", "0");
    let again = run(&busy.asks, &["--shadow", "none"]);
    assert!(busy.talks.last.is_none());
    assert_eq!(again["ids"], busy.first["ids"], "{again}");
    assert_eq!((fetched(&again).len(), cached(&again).0), (1, 0), "it was thrown away: {again}");
    assert_eq!((&again["convicted"], &again["faults"]), (&json!([]), &json!([])), "{again}");
    let struck = |peer: &Value| peer["node"] == busy.holder.name.as_str() && peer["trust"]["strikes"] == 1;
    busy.new.sees(1, struck);
}

/// A lender that gives each fetch another state is found in the fetches that are checked, here in all: the reader has used nothing of
/// what it got.
#[test]
fn a_bit_that_the_next_rows_do_not_see_is_found_by_the_check() {
    // With this bit changed the last 16 rows come out the same.
    let busy = busy("pages:4000000", "1");
    let again = run(&busy.asks, &["--shadow", "none"]);
    assert_eq!(again["ids"], busy.first["ids"], "{again}");
    assert_eq!((fetched(&again), cached(&again).0), (vec![], 0), "all of it was computed: {again}");
    assert_eq!((&again["convicted"], &again["faults"]), (&json!([]), &json!([])), "{again}");
    let struck = |peer: &Value| peer["node"] == busy.holder.name.as_str() && peer["trust"]["strikes"] == 1;
    busy.new.sees(1, struck);
}

#[test]
fn an_honest_holder_passes_the_check() {
    let busy = busy("", "1");
    let again = run(&busy.asks, &["--shadow", "none"]);
    assert_eq!((&again["ids"], fetched(&again)), (&busy.first["ids"], vec![]), "{again}");
    // It computed all of it, so the next prompt finds it there.
    let third = run(&busy.asks, &["--shadow", "none"]);
    assert_eq!(third["ids"], busy.first["ids"], "{third}");
    assert!(cached(&third).0 > 300 && fetched(&third).is_empty(), "{third}");
    let peers = busy.new.ask(&["peers"]);
    let holder = |peer: &&Value| peer["node"] == busy.holder.name.as_str();
    let holder = peers["peers"].as_array().unwrap().iter().find(holder).unwrap();
    assert!(holder["trust"]["strikes"].as_u64().unwrap_or(0) == 0, "{holder}");
}

/// The holder dies with half of the state on its way: the reader computes, within the time that the state was worth.
#[test]
fn a_holder_that_is_killed_while_it_gives_a_state_costs_no_token() {
    let mut busy = busy("drip", "0");
    let before = rows(&busy.new);
    let asked = Instant::now();
    let text = prompt("How many?");
    let args = ["--shadow", "none", "--raw", "-n", "12", &text];
    let mut again = Prompt::run(&busy.asks.home, args);
    let gives = || {
        let status = busy.new.ask(&["status"]);
        let limits = status["limits"].as_array().unwrap().clone();
        limits.iter().any(|limit| limit["resource"] == "pages_bytes" && limit["used"].as_u64() > Some(0))
    };
    while !gives() {
        assert!(asked.elapsed() < Duration::from_secs(20), "it never asked");
    }
    busy.holder.child.kill().unwrap();
    let again = again.ends();
    assert_eq!((&again["ids"], fetched(&again)), (&busy.first["ids"], vec![]), "{again}");
    assert!(rows(&busy.new) - before > 300, "it computed all of it: {again}");
    assert_eq!(again["convicted"], json!([]), "{again}");
}

#[test]
fn a_holder_that_never_answers_costs_one_deadline() {
    let busy = busy("mute", "0");
    let before = rows(&busy.new);
    let again = run(&busy.asks, &["--shadow", "none"]);
    assert!(busy.talks.last.is_none());
    assert_eq!((&again["ids"], fetched(&again)), (&busy.first["ids"], vec![]), "{again}");
    assert_eq!(again["faults"], json!([]), "it is computed here: {again}");
    assert!(rows(&busy.new) - before > 300, "{again}");
}
