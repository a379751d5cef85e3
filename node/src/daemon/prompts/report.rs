//! What a caller is told of a prompt: the plan and the end of an answer. `status` tells of the node.

use std::collections::BTreeSet;

use api::choice::Wire;
use p2p::codec;
use scheduler::{
    NodeId,
    cost::Cost,
    forecast::{Forecast, Score},
    route::{NoRoute, Route},
    session::End,
};
use tokio::sync::mpsc;

use super::{estimate, route::Routed};
use crate::{
    control::Mode,
    drafting::Tally,
    events::{
        CheckReport, Conducted, CostTerms, DraftReport, Ending, FinishReason, Logprobs, Near, OwnRoute,
        PlannedStage, Predicted, PredictedRange, PredictedScore, Prediction, PromptEvent, PromptReport,
        PromptToken, StageReport, Stall, Timing, Way,
    },
    request::{Report, Said},
    rounding,
    worker::{self, Top},
};

/// Tokens of a prompt told at once.
const PROMPT_TOKENS: usize = 64;

/// Log-probabilities of a token and of the likeliest in its place, where there are any.
pub(super) fn logprobs(logprob: Option<f32>, bytes: Vec<u8>, top: Vec<Top>) -> Option<Logprobs> {
    let top = top.into_iter().map(|top| (top.id, top.logprob, top.bytes));
    logprob.map(|logprob| Logprobs { logprob, bytes, top_logprobs: top.collect() })
}

/// Tells the tokens of a prompt, a few at a time; false when the client has gone.
pub(super) async fn tell_prompt(prompt: Vec<worker::PromptToken>, lines: &mpsc::Sender<PromptEvent>) -> bool {
    let token = |token: &worker::PromptToken| {
        let logprobs = logprobs(token.logprob, token.bytes.clone(), token.top.clone());
        PromptToken { id: token.id, bytes: token.bytes.clone(), logprobs }
    };
    for tokens in prompt.chunks(PROMPT_TOKENS) {
        let event = PromptEvent::Prompt { tokens: tokens.iter().map(token).collect() };
        if lines.send(event).await.is_err() {
            return false;
        }
    }
    true
}

/// What is to be told before the end of a prompt whose model said nothing.
pub(super) async fn tell_rest(said: &mut Said, lines: &mpsc::Sender<PromptEvent>) {
    tell_prompt(std::mem::take(&mut said.prompt), lines).await;
    let values = std::mem::take(&mut said.pooled);
    if !values.is_empty() {
        // A reader that is gone is noticed with the end.
        let _ = lines.send(PromptEvent::Pooled { values }).await;
    }
}

/// The prediction, part by part.
pub(super) fn prediction(routed: &Routed, prompt_tokens: u32, wire: codec::Wire) -> Prediction {
    let way = |found: &Result<Route, NoRoute>, step_ms: Option<f64>| match found {
        Ok(route) => Way::Possible {
            total_ms: whole_ms(routed, &route.cost),
            tok_s: step_ms.map(|ms| 1e3 / ms.max(1e-6)),
        },
        Err(why) => Way::Impossible { impossible: why.to_string() },
    };
    let expected = &routed.expected;
    let legs = routed.route.legs.iter().enumerate().map(|(at, leg)| PlannedStage {
        node: format!("{:?}", leg.segment.node),
        start: leg.segment.layers.start(),
        end: leg.segment.layers.end(),
        ms: leg.cost.own_ms(),
        step_ms: expected.parts.get(at).map(|part| part.ms),
        terms: CostTerms::from(&leg.cost),
    });
    let shadows = routed.standbys.shadows.iter();
    let comparison = &routed.comparison;
    Prediction {
        prompt_tokens,
        expected_tokens: routed.shape.output_tokens,
        stages: legs.collect(),
        home_ms: expected.home_ms,
        shadows: shadows.map(|shadow| shadow.map(|node| format!("{node:?}"))).collect(),
        predicted: Predicted {
            total_ms: whole_ms(routed, &routed.route.cost),
            ttft_ms: expected.ttft_ms(),
            opened_ms: expected.opened_ms(),
            prefill_ms: expected.prompt.ms,
            step_ms: expected.step_ms(),
            tok_s: expected.tok_s(),
        },
        as_asked: way(&comparison.asked, routed.steps_ms[0]),
        ends_abroad: way(&comparison.plain, routed.steps_ms[1]),
        local: way(&comparison.local, routed.steps_ms[2]),
        local_wins: comparison.local_wins(),
        range: Some(range(routed)),
        rounding_saves_ms: (wire == codec::Wire::Raw)
            .then(|| rounding_saves_ms(routed))
            .filter(|ms| *ms > 0.0),
    }
}

/// From where to where the prediction may come true.
fn range(routed: &Routed) -> PredictedRange {
    let [first, further] = &routed.came_true;
    let load_ms = routed.expected.load_ms;
    // What loading takes is not what was predicted before.
    let (least, most) = first.range(routed.expected.ttft_ms() - load_ms);
    let score = |forecast: &Forecast| {
        let Score { count, median_error, within } = forecast.score()?;
        Some(PredictedScore { answers: count, median_error, within })
    };
    PredictedRange {
        ttft_ms: (least + load_ms, most + load_ms),
        step_ms: further.range(routed.expected.step_ms()),
        ttft_score: score(first),
        step_score: score(further),
    }
}

/// What the form that `auto` takes where it may round saves on the lines of this route, ms.
fn rounding_saves_ms(routed: &Routed) -> f64 {
    let transfer_ms: f64 = routed.route.legs.iter().map(|leg| leg.cost.transfer_ms).sum();
    let (form, exact) = (rounding::codec_form(Wire::ROUNDED), codec::Wire::Raw);
    let kept = form.group_bytes() as f64 / (form.group() * exact.group_bytes()) as f64;
    transfer_ms * (1.0 - kept)
}

/// All of an answer, with what every token takes at home besides layers, ms.
fn whole_ms(routed: &Routed, cost: &Cost) -> f64 {
    cost.own_ms() + routed.expected.home_ms * f64::from(routed.shape.output_tokens)
}

/// The stages, and of those that others ran who checked them up to where.
fn checked_stages(report: &Report, plan: &Prediction) -> Vec<StageReport> {
    let mut stages = estimate::stages(report, plan);
    for (layers, by, upto) in &report.findings.checks {
        if let Some(stage) = stages.iter_mut().find(|stage| stage.range.start == layers.start()) {
            stage.checked_by = Some(by.iter().map(|node| format!("{node:?}")).collect());
            stage.checked_positions = Some(*upto);
        }
    }
    for (layers, rows, median) in &report.findings.near {
        if let Some(stage) = stages.iter_mut().find(|stage| stage.range.start == layers.start()) {
            stage.near = Some(Near { positions: *rows, distance: *median });
        }
    }
    stages
}

/// What is said of drafts, where any were made.
fn drafts(tally: &Tally) -> Option<DraftReport> {
    let (proposed, right) = tally.all();
    let by = tally.kinds().map(|(kind, proposed, right)| (kind.name().to_owned(), proposed, right));
    let Tally { passes, tokens, .. } = *tally;
    (proposed > 0).then(|| DraftReport { proposed, right, passes, tokens, by: by.collect() })
}

/// What is said of an answer that is over; `why` remembers it.
pub(super) fn done(report: &Report, mode: Mode, route: &OwnRoute, text: &str) -> PromptReport {
    let prompt_tokens = route.plan.prompt_tokens;
    let mean = report.times.gaps_ms.iter().sum::<f64>() / report.times.gaps_ms.len().max(1) as f64;
    let stalls = |of: &[(NodeId, f64)]| -> Vec<Stall> {
        of.iter().map(|(node, ms)| Stall { node: format!("{node:?}"), stall_ms: *ms }).collect()
    };
    let checkers: BTreeSet<String> =
        report.findings.checks.iter().flat_map(|check| &check.1).map(|node| format!("{node:?}")).collect();
    let (finish_reason, gave_up) = match report.end {
        End::Stop => (FinishReason::Stop, None),
        End::Length => (FinishReason::Length, None),
        End::Cancelled => (FinishReason::Cancelled, None),
        End::GaveUp(why) => (FinishReason::Failed, Some(format!("{why:?}").to_lowercase())),
    };
    let timing = Timing {
        prompt_tokens,
        cached_tokens: report.cached.min(prompt_tokens),
        ttft_ms: report.times.ttft_ms,
        decode_tok_s: if report.times.gaps_ms.is_empty() { 0.0 } else { 1e3 / mean.max(1e-9) },
        stages: checked_stages(report, &route.plan),
        faults: stalls(&report.disturbances.faults),
    };
    let conducted = Conducted {
        model: route.model.clone(),
        me: route.me.clone(),
        wire: route.wire,
        kind: route.kind,
        cuts: route.cuts.clone(),
        ending: Ending { gave_up, stop: report.said.met.clone(), ended_turn: report.said.ended_turn },
        opened_ms: report.times.opened_ms,
        predicted: route.plan.predicted.clone(),
        checks: CheckReport {
            verified: report.findings.verified,
            settled_by_thirds: report.findings.thirds,
            checked_by: checkers.into_iter().collect(),
            convicted: report.findings.convicted.iter().map(|node| format!("{node:?}")).collect(),
            integrity: report.findings.integrity.map(|position| position.saturating_sub(prompt_tokens)),
            differing_answers: report.findings.evidence,
        },
        receipts: report.findings.receipts.len(),
        hedged: stalls(&report.disturbances.hedged),
        drafts: drafts(&report.drafts),
        bytes_out: report.wire_bytes.0,
        bytes_in: report.wire_bytes.1,
        timeline: report.timeline.clone(),
    };
    PromptReport {
        session: Some(route.session.clone()),
        mode: Some(mode),
        finish_reason,
        text: text.to_owned(),
        rest: report.said.rest.clone(),
        ids: report.said.ids.clone(),
        completion_tokens: report.said.ids.len(),
        timing: Some(timing),
        conducted: Some(Box::new(conducted)),
        end: true,
        ..PromptReport::default()
    }
}
