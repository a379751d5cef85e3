//! The examples of the crates run to their end and print what they promise.
//!
//! `cargo test --workspace` builds them before it runs a test; where only this package is built, they are named and
//! skipped.

use std::{path::PathBuf, process::Command};

/// An example beside this test, when it was built.
pub(crate) fn example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join("examples").join(name);
    let there = path.is_file();
    if !there {
        eprintln!("skipped: the example {name} is not built; `cargo test --workspace` builds it");
    }
    there.then_some(path)
}

/// What an example prints, when it was built.
///
/// # Panics
/// When it fails.
fn printed(name: &str, args: &[&str]) -> Option<String> {
    let output = harness::output(Command::new(example(name)?).args(args)).expect("it starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

#[test]
fn a_prompt_is_routed_over_a_made_up_swarm() {
    let Some(text) = printed("route", &["40", "1"]) else { return };
    let (first, second) = text.split_once("without ").expect("a node fails");
    let gone = second.split(':').next().expect("its name");
    assert!(first.contains(gone) && !second[gone.len()..].contains(gone), "{text}");
    assert!(second.contains("together"), "there is another way: {text}");
    assert_eq!(Some(text), printed("route", &["40", "1"]), "the same seed gives the same swarm");
}

#[test]
fn a_model_cut_in_two_gives_the_tokens_of_the_whole() {
    let Some(text) = printed("run_shard", &[]) else { return };
    let answers: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(": ")?.1)).collect();
    assert!(answers.len() == 2 && answers[0] == answers[1] && answers[0].len() > 20, "{text}");
}

#[test]
fn a_node_is_embedded_and_answers() {
    let prompt = "Tell me a story about a fox and a lantern";
    let Some(text) = printed("embed", &[prompt]) else { return };
    let same = harness::Shoal::new().json(["run", "--json", "-n", "64", prompt], "");
    assert_eq!(text.trim_end(), same["text"].as_str().expect("a text").trim_end());
}

#[test]
fn a_program_joins_a_swarm_and_asks_its_node() {
    let Some(text) = printed("join", &["--loopback"]) else { return };
    // The node itself says nothing: standard output is the program's.
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], [line] if line.starts_with("this program is the node ")), "{text}");
    assert!(lines[0].ends_with("reached as loopback"), "{text}");
}

#[test]
fn an_inference_of_ones_own_is_served() {
    let Some(text) = printed("own_inference", &["--once"]) else { return };
    let answer: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], "one two three");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn two_nodes_meet_and_talk() {
    let Some(text) = printed("two_nodes", &[]) else { return };
    assert!(text.contains("hello, neighbor"), "{text}");
}
