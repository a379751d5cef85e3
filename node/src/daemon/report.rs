//! What a caller is told of a prompt: the plan and the end of an answer as JSON lines. `show.rs` tells of the node.

use std::collections::BTreeSet;

use scheduler::{
    NodeId, Segment,
    cost::Cost,
    recover::Failure,
    route::{NoRoute, Route},
    session::End,
};
use serde_json::{Value, json};

use super::{estimate, route::Routed};
use crate::request::Report;

/// A failure in one word.
pub(super) fn noticed(why: Option<Failure>) -> &'static str {
    match why {
        Some(Failure::Closed | Failure::Crashed) => "closed",
        Some(Failure::Refused) => "refused",
        Some(Failure::Corrupt) => "wrong",
        _ => "timeout",
    }
}

/// The prediction, part by part.
pub(super) fn plan_json(routed: &Routed, prompt_tokens: u32) -> Value {
    let way = |found: &Result<Route, NoRoute>, step_ms: Option<f64>| match found {
        Ok(route) => {
            json!({ "total_ms": whole_ms(routed, &route.cost), "tok_s": step_ms.map(|ms| 1e3 / ms.max(1e-6)) })
        }
        Err(why) => json!({ "impossible": why.to_string() }),
    };
    let expected = &routed.expected;
    let legs = routed.route.legs.iter().enumerate().map(|(at, leg)| {
        let terms: serde_json::Map<String, Value> = leg
            .cost
            .terms()
            .into_iter()
            .filter(|term| term.1 > 0.0)
            .map(|(name, ms)| (name.into(), json!(ms)))
            .collect();
        let step_ms = expected.parts.get(at).map(|part| part.ms);
        json!({ "node": format!("{:?}", leg.segment.node), "start": leg.segment.layers.start(),
            "end": leg.segment.layers.end(), "ms": leg.cost.total_ms(), "step_ms": step_ms, "terms": terms })
    });
    let shadows: Vec<Option<String>> =
        routed.standbys.shadows.iter().map(|shadow| shadow.map(|node| format!("{node:?}"))).collect();
    let comparison = &routed.comparison;
    json!({
        "prompt_tokens": prompt_tokens,
        "expected_tokens": routed.shape.output_tokens,
        "stages": legs.collect::<Vec<_>>(),
        "home_ms": expected.home_ms,
        "shadows": shadows,
        "predicted": { "total_ms": whole_ms(routed, &routed.route.cost), "ttft_ms": expected.ttft_ms(),
            "opened_ms": expected.lease_ms + expected.opening_ms, "prefill_ms": expected.prompt_ms(),
            "step_ms": expected.step_ms(), "tok_s": expected.tok_s() },
        "as_asked": way(&comparison.asked, routed.steps_ms[0]),
        "ends_abroad": way(&comparison.plain, routed.steps_ms[1]),
        "local": way(&comparison.local, routed.steps_ms[2]),
        "local_wins": comparison.local_wins(),
    })
}

/// All of an answer, with what every token takes at home besides layers, ms.
fn whole_ms(routed: &Routed, cost: &Cost) -> f64 {
    cost.total_ms() + routed.expected.home_ms * f64::from(routed.shape.output_tokens)
}

/// Who runs which layers.
pub(super) fn stages(segments: &[Segment]) -> Vec<Value> {
    let stage = |segment: &Segment| {
        json!({ "node": format!("{:?}", segment.node),
            "start": segment.layers.start(), "end": segment.layers.end() })
    };
    segments.iter().map(stage).collect()
}

/// The stages, and of those that others ran who checked them up to where.
fn checked_stages(report: &Report, plan: &Value) -> Vec<Value> {
    let mut stages = estimate::stages(report, plan);
    for (layers, by, upto) in &report.checks {
        if let Some(stage) = stages.iter_mut().find(|stage| stage["start"] == layers.start()) {
            stage["checked_by"] = by.iter().map(|node| json!(format!("{node:?}"))).collect();
            stage["checked_positions"] = json!(upto);
        }
    }
    for (layers, rows, median) in &report.near {
        if let Some(stage) = stages.iter_mut().find(|stage| stage["start"] == layers.start()) {
            stage["near"] = json!({ "positions": rows, "distance": median });
        }
    }
    stages
}

/// The last line of an answer, which `why` remembers.
pub(super) fn done_json(report: &Report, plan: &Value, text: &str, prompt_tokens: u32) -> Value {
    let mean = report.gaps_ms.iter().sum::<f64>() / report.gaps_ms.len().max(1) as f64;
    let stalls = |of: &[(NodeId, f64)]| -> Vec<Value> {
        of.iter().map(|(node, ms)| json!({ "node": format!("{node:?}"), "stall_ms": ms })).collect()
    };
    let checkers: BTreeSet<String> =
        report.checks.iter().flat_map(|check| &check.1).map(|node| format!("{node:?}")).collect();
    let (finish, error) = match report.end {
        End::Stop => ("stop", None),
        End::Length => ("length", None),
        End::Cancelled => ("cancelled", None),
        End::GaveUp(why) => ("failed", Some(format!("{why:?}").to_lowercase())),
    };
    json!({
        "event": "done",
        "session": plan["session"],
        "model": plan["model"],
        "me": plan["me"],
        "mode": plan["mode"],
        "wire": plan["wire"],
        "finish_reason": finish,
        "gave_up": error,
        "text": text,
        "rest": report.rest,
        "stop": report.met,
        "ended_turn": report.ended_turn,
        "ids": report.ids,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": report.ids.len(),
        "ttft_ms": report.ttft_ms,
        "opened_ms": report.opened_ms,
        "decode_tok_s": if report.gaps_ms.is_empty() { 0.0 } else { 1e3 / mean.max(1e-9) },
        "predicted": plan["predicted"],
        "stages": checked_stages(report, plan),
        "verified": report.verified,
        "settled_by_thirds": report.thirds,
        "checked_by": checkers,
        "convicted": report.convicted.iter().map(|node| format!("{node:?}")).collect::<Vec<_>>(),
        "integrity": report.integrity.map(|position| position.saturating_sub(prompt_tokens)),
        "receipts": report.receipts.len(),
        "faults": stalls(&report.faults),
        "hedged": stalls(&report.hedged),
        "differing_answers": report.evidence,
        "bytes_out": report.wire_bytes.0,
        "bytes_in": report.wire_bytes.1,
        "end": true,
    })
}
