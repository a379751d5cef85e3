//! Who agreed that strangers compute, and what they computed: consent and verdicts over HTTP, on real processes.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    http::{self, Answer},
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKENS: u64 = 8;

/// Asks for an answer of [`TOKENS`] tokens; `more` is added to the request.
fn chat(node: &Node, more: &[(&str, &str)]) -> Answer {
    let messages = json!([{ "role": "user", "content": "Tell me a story about a fox and a lantern" }]);
    let mut body = json!({ "messages": messages, "max_tokens": TOKENS, "seed": 3 });
    for (name, value) in more {
        body[*name] = json!(value);
    }
    http::ask(node, "POST", "/v1/chat/completions", &body)
}

fn agree(node: &Node, mode: &str, agreed: bool) {
    let answer = http::ask(node, "POST", "/swarm/consent", &json!({ "mode": mode, "agreed": agreed }));
    assert_eq!((answer.status, &answer.body), (200, &json!({ "mode": mode, "agreed": agreed })));
}

/// The last word on the answer `id`.
fn verdict(node: &Node, id: &Value) -> Value {
    let asked = Instant::now();
    loop {
        let swarm = http::ask(node, "GET", "/swarm", &Value::Null).body;
        let verdicts = swarm["verdicts"].as_array().unwrap();
        let known =
            verdicts.iter().find(|verdict| verdict["request"] == *id).expect("it is kept from its end on");
        if known["checking"] == false {
            return known.clone();
        }
        assert!(asked.elapsed() < PATIENCE, "{known}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_strangers_computed_is_checked_and_nothing_goes_to_them_unless_agreed() {
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..4"]);
    let api = ["--api", "127.0.0.1:0", "--peer", serves.tcp()];
    let whole = Node::start(&folder.path().join("b"), &[&["--layers", "0..8"], &api[..]].concat());
    let asks =
        Node::start(&folder.path().join("c"), &[&["--ask-only", "--peer", whole.tcp()], &api[..]].concat());
    asks.meets(2);
    whole.meets(1);
    asks.wait_for("answering");
    whole.wait_for("answering");

    // These nodes have no history yet, so all they do is computed again: behind the answer, or before it when it is
    // strict.
    let first = chat(&asks, &[]);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.body["shoal"]["mode"], "boomerang", "{first:?}");
    if first.body["shoal"]["checking"] == true {
        let verdict = verdict(&asks, &first.body["id"]);
        assert_eq!(verdict["checked_by"], json!(["me"]), "{verdict}");
        assert_eq!(verdict["checked_tokens"], TOKENS, "{verdict}");
        assert_eq!((&verdict["convicted"], &verdict["wrong_from"]), (&json!([]), &Value::Null), "{verdict}");
    }
    let strict = chat(&asks, &[("verify", "strict")]);
    let report = &strict.body["shoal"];
    assert_eq!((&report["verify"], &report["checked_tokens"]), (&json!("all"), &json!(TOKENS)), "{strict:?}");
    assert!(!report["checked_by"].as_array().unwrap().is_empty(), "{strict:?}");
    assert_eq!(strict.body["choices"], first.body["choices"]);

    // Taken back: what cannot stay here is refused, by every way in.
    agree(&asks, "boomerang", false);
    for mode in [&[][..], &[("mode", "boomerang")]] {
        let refused = chat(&asks, mode);
        let error = &refused.body["error"];
        assert_eq!((refused.status, &error["code"]), (403, &json!("consent_required")), "{refused:?}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains("reconstruct") && said.contains("shoal consent boomerang"), "{said}");
    }
    let run = || {
        let mut run = Command::new(binary());
        run.args(["run", "--via", "swarm", "--json", "-n", "2", "Hello", "--home"]).arg(&asks.home);
        harness::output(&mut run).unwrap()
    };
    let refused = run();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("shoal consent boomerang") && refused.stdout.is_empty(), "{said}");
    assert_eq!(asks.ask(&["consent", "boomerang"]), json!({ "boomerang": true, "open": true }));
    assert!(run().status.success());
    assert_eq!(chat(&asks, &[]).status, 200);

    // A node that has it all keeps at home what names no mode, and says so.
    let default = || http::ask(&whole, "GET", "/swarm", &Value::Null).body["default_mode"].clone();
    let asked = Instant::now();
    // It hears of the other a moment after its node has met it.
    while default() != "boomerang" {
        assert!(asked.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(50));
    }
    agree(&whole, "boomerang", false);
    assert_eq!(default(), "local");
    let stayed = chat(&whole, &[]);
    assert_eq!((stayed.status, &stayed.body["shoal"]["route"]), (200, &json!(["me:0-8"])), "{stayed:?}");
    assert_eq!(chat(&whole, &[("mode", "open")]).status, 200, "that was not taken back");
}
