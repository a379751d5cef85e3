//! Forms of answers that would take a process down: what a client may send, and what of it arrives at a worker.

use api::inference::Format;
use node::{
    constrain::trial::{self, Untried},
    worker::Fault,
};
use p2p::Governor;
use scheduler::governor::{Holder, Limits, Resource};
use serde_json::{Map, Value, json};

use super::*;

/// `n` definitions, each referring to the next.
fn chain(n: usize) -> Value {
    let mut definitions: Map<String, Value> =
        (0..n).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
    definitions.insert(format!("d{n}"), json!({"type": "integer"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

/// `n` choices, one in the other through references.
fn choices(n: usize) -> Value {
    let mut definitions: Map<String, Value> = (0..n)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), json!({"anyOf": [{"type": "null"}, {"properties": {"x": next}}]}))
        })
        .collect();
    definitions.insert(format!("d{n}"), json!({"type": "integer"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

fn rules(n: usize) -> String {
    let rules: String = (0..n).map(|i| format!("r{i}: \"x\" r{}\n", i + 1)).collect();
    format!("start: r0\n{rules}r{n}: \"y\"\n")
}

fn mutual() -> Value {
    json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})
}

#[tokio::test]
async fn no_form_takes_a_worker_down() {
    let child = Child::start(&[]).await;
    let worker = &child.worker;
    let governor = Governor::default();
    for (format, what) in [
        (Format::JsonSchema(chain(1000)), "64 deep"),
        (Format::JsonSchema(choices(500)), "64 deep"),
        (Format::Grammar(rules(3000)), "192 deep"),
        (Format::Regex("(".repeat(3000) + "a" + &")".repeat(3000)), "64 deep"),
        (Format::JsonSchema(mutual()), ""),
        (Format::JsonSchema(json!({"$ref": "#"})), ""),
        (Format::JsonSchema(json!({"type": "wish"})), "cannot be used"),
        (Format::Grammar("start: nothing".into()), "cannot be used"),
    ] {
        let refused = worker.check(&format, (&governor, Holder::default())).await;
        let Err(Fault::Refused(why)) = &refused else { panic!("{format:?}: {refused:?}") };
        assert!(why.contains(what), "{why}");
    }
    // As deep as may be, and what people write.
    let tree = json!({
        "$defs": {"tree": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
            "required": ["word", "next"], "additionalProperties": false
        }},
        "$ref": "#/$defs/tree"
    });
    for format in [
        Format::Text,
        Format::JsonObject,
        Format::JsonSchema(chain(60)),
        Format::JsonSchema(choices(20)),
        Format::JsonSchema(tree),
        Format::Grammar(rules(180)),
        Format::Regex("[a-z]+".into()),
    ] {
        assert_eq!(worker.check(&format, (&governor, Holder::default())).await, Ok(()), "{format:?}");
    }
    assert!(worker.is_alive());
}

/// What the process that tries forms answers when it dies, and when there is none.
#[tokio::test]
async fn a_trial_that_dies_is_a_refusal_of_the_form() {
    let form = Format::Regex("[a-f]{3}".into());
    let full = Governor::new(Limits::default().set(Resource::Forms, [1, 1, 1]));
    let held = full.take(Holder::default(), Resource::Forms, 1).unwrap();
    let busy = trial::attempt("/bin/true".as_ref(), &form, (&full, Holder::default())).await;
    assert_eq!(busy, Err(Untried::Busy));
    drop(held);
    let doors = (&full, Holder::default());
    let died = trial::attempt("/bin/true".as_ref(), &form, doors).await;
    assert!(matches!(&died, Err(Untried::Form(why)) if why.contains("simplify")), "{died:?}");
    let none = trial::attempt("/no/such/program".as_ref(), &form, doors).await;
    assert!(matches!(none, Err(Untried::Failed(_))), "{none:?}");
    assert_eq!(trial::attempt(env!("CARGO_BIN_EXE_shoal").as_ref(), &form, doors).await, Ok(()));
    // It is remembered: no process is needed any more.
    assert_eq!(trial::attempt("/no/such/program".as_ref(), &form, doors).await, Ok(()));
}
