//! The routes of the swarm.

use serde_json::json;

use super::schema::{
    Named, any_object, array, at_most, count, flag, integer, object, or_null, reference, text, whole, words,
};
use crate::swarm_records::{Color, MAX_NAME};

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
    [settings(), snapshot(), records()].concat()
}

/// What an owner says of a node and of others.
fn settings() -> Vec<Named> {
    let contribution = [
        ("paused", flag()),
        ("memory_bytes", integer(0, 1 << 50)),
        ("threads", integer(1, 4096)),
        ("upload_bytes_per_s", integer(0, 1 << 50)),
    ];
    let colors: Vec<&str> = Color::ALL.iter().map(|color| color.name()).collect();
    let name = [
        ("node", json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})),
        ("name", at_most(MAX_NAME)),
        ("color", words(&colors)),
    ];
    let consent = [("mode", words(&["boomerang", "open"])), ("agreed", flag())];
    vec![
        ("Contribution", object(0, &contribution)),
        ("ContributionAnswer", object(1, &[("paused", flag()), ("threads", integer(0, 1 << 32))])),
        ("Consent", object(2, &consent)),
        ("ConsentAnswer", whole(&consent)),
        ("NodeName", object(1, &name)),
    ]
}

fn snapshot() -> Vec<Named> {
    let snapshot = [
        ("version", text()),
        ("me", text()),
        ("state", words(&["starting", "ready", "unable"])),
        ("nodes", array(any_object())),
        ("models", array(any_object())),
        ("pipelines", array(any_object())),
        ("verdicts", array(reference("Verdict"))),
        ("names", array(reference("NodeName"))),
    ];
    let verdict = [
        ("session", text()),
        ("request", text()),
        ("checking", flag()),
        ("checked_by", array(text())),
        ("checked_tokens", count()),
        ("convicted", array(text())),
        ("wrong_from", or_null("integer")),
    ];
    vec![("Swarm", whole(&snapshot)), ("Verdict", whole(&verdict))]
}

fn records() -> Vec<Named> {
    let number = |may_lack: bool| if may_lack { or_null("number") } else { json!({"type": "number"}) };
    let sample = whole(&[
        ("at_s", count()),
        ("seconds", count()),
        ("answers", count()),
        ("tokens", count()),
        ("tok_s", number(true)),
        ("faults", count()),
        ("peers", count()),
        ("rtt_ms", number(true)),
        ("given", count()),
        ("balance", json!({"type": "integer"})),
    ]);
    let step = object(3, &[("at_ms", number(false)), ("token", count()), ("step", text())]);
    let timeline = whole(&[("began_ms", count()), ("steps", array(step)), ("left_out", count())]);
    let answer = whole(&[
        ("session", text()),
        ("model", text()),
        ("mode", text()),
        ("finish", words(&["stop", "length", "cancelled", "failed"])),
        ("tokens", count()),
        ("tok_s", number(false)),
        ("faults", count()),
        ("timeline", timeline),
    ]);
    let history = [("now_s", count()), ("days", count()), ("span_s", count()), ("samples", array(sample))];
    vec![
        ("SwarmHistory", whole(&history)),
        ("SwarmAnswers", whole(&[("answers", array(answer))])),
        ("SwarmInvite", whole(&[("code", text()), ("swarm", or_null("string")), ("qr", array(text()))])),
    ]
}
