//! What was computed once is not computed again: kept state through swarms of real processes.

use std::path::Path;

use harness::node::Node;
use serde_json::Value;
use tempfile::TempDir;

/// Several hundred tokens, the same beginning for every question.
fn prompt(question: &str) -> String {
    let told =
        |day: u32| format!("On day {day} the owl counted {} stones by the river and swam home. ", day * 7);
    format!("{}{question} The owl", (1..=12).map(told).collect::<String>())
}

fn run(asks: &Node, question: &str, extra: &[&str]) -> Value {
    let text = prompt(question);
    let mut args = vec!["run", "--via", "swarm", "--raw", "-n", "12"];
    args.extend(extra);
    args.push(&text);
    asks.ask(&args)
}

fn alone(question: &str) -> Value {
    harness::Shoal::new().json(["run", "--json", "--raw", "-n", "12", &prompt(question)], "")
}

fn kept(answer: &Value) -> (u64, u64) {
    (answer["cached_tokens"].as_u64().unwrap_or(0), answer["prompt_tokens"].as_u64().unwrap())
}

fn serve(folder: &Path, name: &str, layers: &str, peer: &Node, cheat: &str) -> Node {
    let args = ["--layers", layers, "--peer", peer.tcp()];
    Node::start_with(&folder.join(name), &args, &[("SHOAL_CHEAT", cheat)])
}

#[test]
fn a_prompt_that_was_computed_before_is_not_computed_again() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("asks"), &["--ask-only"]);
    let _first = serve(folder.path(), "a", "1..4", &asks, "");
    let second = serve(folder.path(), "b", "4..7", &asks, "");
    asks.meets(2);
    let wholes = ["How many?", "And then?"].map(alone);
    assert!(
        wholes.iter().all(|whole| whole["ids"].as_array().is_some_and(|ids| ids.len() > 9)),
        "{wholes:?}"
    );
    let first = run(&asks, "How many?", &["--shadow", "none"]);
    assert_eq!((&first["ids"], kept(&first).0), (&wholes[0]["ids"], 0), "{first}");
    let again = run(&asks, "How many?", &["--shadow", "none"]);
    let (cached, all) = kept(&again);
    assert_eq!(again["ids"], wholes[0]["ids"], "{again}");
    // All but the last token and what lies beyond the last name.
    assert!(all > 150 && all - cached <= 16, "{cached} of {all}");
    assert!(again["bytes_out"].as_u64() < first["bytes_out"].as_u64().map(|bytes| bytes / 4), "{again}");

    // Another question with the same beginning is checked like any other.
    let other = run(&asks, "And then?", &["--shadow", "none"]);
    assert_eq!(other["ids"], wholes[1]["ids"], "{other}");
    assert!(kept(&other).0 + 32 >= kept(&other).1, "{other}");
    assert_eq!((&other["convicted"], &other["verified"]), (&serde_json::json!([]), &serde_json::json!(1.0)));

    // A strict answer rests on nothing that was computed before, and another node finds nothing of this one's.
    let strict = run(&asks, "How many?", &["--verify", "strict"]);
    assert_eq!((&strict["ids"], kept(&strict).0), (&wholes[0]["ids"], 0), "{strict}");
    let stranger = Node::start(&folder.path().join("d"), &["--ask-only", "--peer", asks.tcp()]);
    stranger.meets(2);
    let its = run(&stranger, "How many?", &["--shadow", "none"]);
    assert_eq!((&its["ids"], kept(&its).0), (&wholes[0]["ids"], 0), "{its}");

    // A stage is killed, and another one has its layers: its rows come from the log, and nothing else is computed again.
    let _third = serve(folder.path(), "c", "4..7", &asks, "");
    asks.meets(3);
    drop(second);
    let after = run(&asks, "How many?", &["--shadow", "none"]);
    assert_eq!(after["ids"], wholes[0]["ids"], "{after}");
    assert!(
        after["bytes_in"].as_u64() < first["bytes_in"].as_u64().map(|bytes| bytes * 3 / 4),
        "{first} {after}"
    );
}

#[test]
fn a_stage_that_claims_state_it_has_not_is_caught() {
    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("asks"), &["--ask-only"]);
    let liar = serve(folder.path(), "a", "1..7", &asks, "claim");
    asks.meets(1);
    let first = run(&asks, "How many?", &[]);
    assert_eq!((&first["ids"], &first["convicted"]), (&alone("How many?")["ids"], &serde_json::json!([])));
    let again = run(&asks, "How many?", &[]);
    assert!(kept(&again).0 > 0, "it says to have it: {again}");
    assert_eq!(again["convicted"], serde_json::json!([liar.name]), "{again}");
}
