//! `shoal plan` where no node runs: what the prompt would take on this machine alone.
//!
//! There is no swarm to ask, so the figures are measured: the beginning of the prompt is computed and a few tokens behind
//! it, and the rest follows from them. Limits: a longer prompt is taken to cost as much a token as its beginning, though
//! attention grows with every position.

use std::{ops::ControlFlow, time::Duration};

use api::choice::Draft;
use serde_json::json;
use shard::sample::SamplingParams;

use crate::{
    Error, Result,
    cli::{EngineArgs, swarm::PlanArgs},
    control::Mode,
    encode,
    events::{CostTerms, PlanReport, PlannedStage, Predicted, Prediction, Way},
    inference::local::prompt::{self, Request, Session},
    model::{CHUNK_ROWS, Model},
};

/// Tokens decoded to see how long one takes.
const DECODED: usize = 5;
/// How this machine is called where no node has a name.
const ME: &str = "me";

/// What `args` ask about, on this machine.
///
/// # Errors
/// [`Error::Usage`] when others are asked for, and those of loading a model.
pub(super) fn plan(args: &PlanArgs) -> Result<PlanReport> {
    if let Some(mode) = args.route.mode.filter(|mode| *mode != Mode::Local) {
        return Err(Error::usage(format!(
            "no node runs here, so nothing is known of others for --mode {}; start one with `shoal join`, or leave --mode \
             away to plan for this machine alone",
            mode.name()
        )));
    }
    let named = EngineArgs { model: args.model.clone(), ..EngineArgs::default_model() };
    let model = Model::load_confined(&named)?;
    let ids = encode::encode_chat(&model, &json!([{ "role": "user", "content": args.prompt }]))?;
    let layers = model.executor.range().end();
    let measured = measure(&model, &ids)?;
    Ok(report(ids.len(), args.max_tokens as usize, layers, measured))
}

/// What was seen.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// A token of the prompt.
    prefill: Duration,
    /// A token of the answer.
    step: Duration,
}

fn measure(model: &Model, ids: &[u32]) -> Result<Measured> {
    let beginning = &ids[..ids.len().min(CHUNK_ROWS).min(model.ctx.saturating_sub(DECODED))];
    // The answer must not end before it was timed.
    let stops = model.tokenizer.stop_ids().iter().map(|id| (*id, -100.0));
    let sampling = SamplingParams { logit_bias: stops.collect(), ..SamplingParams::default() };
    let request = Request {
        prompt: beginning.to_vec(),
        sampling,
        seed: 0,
        max_tokens: DECODED,
        stop: Vec::new(),
        draft: Draft::Off,
        context_shift: false,
    };
    let mut session = Session::new(model)?;
    let summary = prompt::generate(model, &mut session, &request, &mut |_| ControlFlow::Continue(()))?;
    let mut steps = summary.steps;
    steps.sort_unstable();
    Ok(Measured {
        prefill: summary.prefill / beginning.len().max(1) as u32,
        step: steps.get(steps.len() / 2).copied().unwrap_or_default(),
    })
}

fn report(prompt_tokens: usize, expected_tokens: usize, layers: u32, measured: Measured) -> PlanReport {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let prefill_ms = ms(measured.prefill) * prompt_tokens as f64;
    let step_ms = ms(measured.step);
    let total_ms = prefill_ms + step_ms * expected_tokens.saturating_sub(1) as f64;
    let tok_s = if step_ms > 0.0 { 1e3 / step_ms } else { 0.0 };
    let abroad = || Way::Impossible { impossible: "no node runs here; `shoal join` starts one".into() };
    let terms = CostTerms { prefill: prefill_ms, decode: total_ms - prefill_ms, ..CostTerms::default() };
    PlanReport {
        plan: Prediction {
            prompt_tokens: prompt_tokens as u32,
            expected_tokens: expected_tokens as u32,
            stages: vec![PlannedStage {
                node: ME.into(),
                start: 0,
                end: layers,
                ms: total_ms,
                step_ms: Some(step_ms),
                terms,
            }],
            // Head and sampling are part of what was measured.
            home_ms: 0.0,
            shadows: vec![None],
            predicted: Predicted {
                total_ms,
                ttft_ms: prefill_ms,
                opened_ms: 0.0,
                prefill_ms,
                step_ms,
                tok_s,
            },
            as_asked: abroad(),
            ends_abroad: abroad(),
            local: Way::Possible { total_ms, tok_s: Some(tok_s) },
            local_wins: true,
            range: None,
            rounding_saves_ms: None,
        },
        me: ME.into(),
        end: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_takes_what_its_tokens_take() {
        let measured = Measured { prefill: Duration::from_millis(2), step: Duration::from_millis(10) };
        let PlanReport { plan, me, .. } = report(50, 11, 8, measured);
        assert_eq!(
            (plan.predicted.ttft_ms, plan.predicted.total_ms, plan.predicted.tok_s),
            (100.0, 200.0, 100.0)
        );
        assert_eq!(
            (plan.stages[0].node.as_str(), plan.stages[0].end, plan.stages[0].ms),
            (me.as_str(), 8, 200.0)
        );
        assert!(plan.local_wins && matches!(plan.as_asked, Way::Impossible { .. }));
        // One token is the one behind the prompt.
        assert_eq!(report(50, 1, 8, measured).plan.predicted.total_ms, 100.0);
    }
}
