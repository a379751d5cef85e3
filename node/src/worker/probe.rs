//! What a layer costs on this machine, measured at load.
//!
//! A visit of layers that weigh `w` together takes `visit + w * decode` for one row; a weight of one is the model's mean
//! layer, so that nodes with unlike layers say comparable figures. Two points give both: one layer, and a few. Prefill is
//! measured the same way with more rows. The medians of a few runs are taken, within a bounded time per point, so a
//! model of any size is measured in well under a second.
//!
//! Limits: experts that another node computes cost nothing here; what else the machine does meanwhile is measured too; caches are short, so long contexts cost more than this.

use std::time::{Duration, Instant};

use scheduler::LayerRange;
use shard::{
    executor::{Capacity, Executor, Input, Item, Output, Pass, Workspace},
    round::Rounding,
};

use super::{
    experts::{Lacking, Silence},
    load::Loaded,
    ready::Times,
};
use crate::Result;

/// Layers of the longer visit.
const FEW: u32 = 4;
/// Rows of a prefill chunk.
const CHUNK: usize = 64;
/// Runs of one point.
const MOST_RUNS: usize = 9;
/// No further run of a point starts after this.
const BUDGET: Duration = Duration::from_millis(60);
/// No layer takes less: a time of zero is no claim that others accept.
const LEAST_MS: f64 = 1e-6;

/// Runs some layers of `model` with made-up rows.
pub(super) fn measure(model: &Loaded) -> Result<Times> {
    // The head would add to the longer visit only, so its layer is left out.
    let body = |stage: &dyn Executor| stage.range().len() - u32::from(stage.ends().head);
    let stages = model.stages.iter().map(|stage| &**stage);
    let Some(stage) = stages.max_by_key(|stage| body(*stage)).filter(|stage| body(*stage) > 0) else {
        return last_layer(model);
    };
    let chunk = CHUNK.min(model.context);
    if model.costs.is_whole() {
        return whole(model, stage, chunk);
    }
    let mut bench = Bench::new(model, stage, chunk)?;
    let (first, few) = (stage.range().start(), body(stage).min(FEW));
    let weight = |start, end| LayerRange::new(start, end).map_or(0.0, |range| model.costs.weight(range, 0));
    let weigh = |n| weight(first, first + n);
    let (visit_ms, decode_ms) = fit(few, weigh, |n| bench.median(first, n, 1, Output::All))?;
    let (_, chunk_ms) = fit(few, weigh, |n| bench.median(first, n, chunk, Output::All))?;
    let prefill_ms = (chunk_ms / chunk as f64).max(LEAST_MS);
    let head_ms = match model.stages.last().filter(|last| last.ends().head) {
        Some(last) => {
            let with = Bench::new(model, &**last, 1)?.median(last.range().end() - 1, 1, 1, Output::Last)?;
            let end = last.range().end();
            (with - visit_ms - decode_ms * weight(end - 1, end)).max(0.0)
        }
        None => 0.0,
    };
    Ok(Times { decode_ms, prefill_ms, visit_ms, head_ms })
}

/// Of a model that is not cut: passes of tokens through all layers and the head, whose time is taken for that of layers.
fn whole(model: &Loaded, stage: &dyn Executor, chunk: usize) -> Result<Times> {
    let (mut bench, weight) = (Bench::new(model, stage, chunk)?, model.costs.weight(stage.range(), 0));
    let count = stage.range().len();
    let mut layer_ms = |rows| Ok::<_, crate::Error>(bench.median(0, count, rows, Output::Last)? / weight);
    let decode_ms = layer_ms(1)?.max(LEAST_MS);
    let prefill_ms = (layer_ms(chunk)? / chunk as f64).max(LEAST_MS);
    Ok(Times { decode_ms, prefill_ms, visit_ms: 0.0, head_ms: 0.0 })
}

/// Of a model that has nothing but the last layer here: layer and head are measured together, and a prompt's token is
/// taken to cost what a decoded one does.
fn last_layer(model: &Loaded) -> Result<Times> {
    let stage = &*model.stages[0];
    let both = Bench::new(model, stage, 1)?.median(stage.range().start(), 1, 1, Output::Last)?.max(LEAST_MS);
    Ok(Times { decode_ms: both, prefill_ms: both, visit_ms: 0.0, head_ms: 0.0 })
}

/// Fixed part and slope of a line through the times of one and of `few` layers, which weigh `weight(1)` and `weight(few)`.
fn fit(
    few: u32,
    weight: impl Fn(u32) -> f64,
    mut time: impl FnMut(u32) -> Result<f64>,
) -> Result<(f64, f64)> {
    let (one, lone) = (time(1)?, weight(1));
    let alone = (0.0, (one / lone).max(LEAST_MS));
    if few == 1 {
        return Ok(alone);
    }
    let slope = (time(few)? - one) / (weight(few) - lone);
    // Noise may make the longer visit the shorter one, or the fixed part negative: then all of it is the layer's.
    if slope <= LEAST_MS { Ok(alone) } else { Ok(((one - slope * lone).max(0.0), slope)) }
}

struct Bench<'m> {
    stage: &'m dyn Executor,
    workspace: Workspace,
    rows: Vec<f32>,
}

impl<'m> Bench<'m> {
    fn new(model: &Loaded, stage: &'m dyn Executor, rows: usize) -> Result<Self> {
        let hidden = stage.blueprint().hidden;
        // Any values will do; equal ones would make some norms trivial.
        let rows: Vec<f32> = (0..rows * hidden).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let capacity = Capacity::one_session(rows.len() / hidden);
        let mut workspace = Workspace::new(stage, capacity)?;
        if !matches!(model.experts, Lacking::Nothing) {
            workspace.ask_of(Box::new(Silence::default()));
        }
        Ok(Self { stage, workspace, rows })
    }

    /// Milliseconds of one pass over `count` layers from `first`.
    fn median(&mut self, first: u32, count: u32, rows: usize, output: Output) -> Result<f64> {
        let Some(layers) = LayerRange::new(first, first + count) else { return Ok(0.0) };
        let mut state = self.stage.new_state_of(layers)?;
        let (values, tokens) = (&self.rows[..rows * self.stage.blueprint().hidden], vec![0; rows]);
        // Layers that read the token itself take nothing else.
        let blueprint = self.stage.blueprint();
        let input = match blueprint.per_layer.is_some() || blueprint.encodes() {
            true => Input::Tokens(&tokens),
            false => Input::Activations(values),
        };
        let pass = Pass { layers, rounding: &Rounding::NONE, states: blueprint.encodes(), top: 0 };
        let mut times = Vec::with_capacity(MOST_RUNS);
        let started = Instant::now();
        // The first run faults pages in and sizes scratch memory.
        for run in 0..=MOST_RUNS {
            state.rewind(0);
            let before = Instant::now();
            let item = Item { state: &mut state, input, output };
            self.stage.pass(&mut self.workspace, pass, &mut [item])?;
            if run > 0 {
                times.push(before.elapsed().as_secs_f64() * 1e3);
            }
            if run > 0 && started.elapsed() > BUDGET {
                break;
            }
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_noise_gives_no_negative_times() {
        assert_eq!(fit(4, f64::from, |n| Ok(2.0 + 0.5 * f64::from(n))).unwrap(), (2.0, 0.5));
        assert_eq!(fit(1, f64::from, |_| Ok(3.0)).unwrap(), (0.0, 3.0));
        assert_eq!(fit(4, f64::from, |n| Ok(1.0 / f64::from(n))).unwrap(), (0.0, 1.0));
        assert_eq!(fit(4, f64::from, |n| Ok(f64::from(n) * 2.0 - 1.0)).unwrap(), (0.0, 2.0));
        // The first of them weighs four times what the others weigh.
        let weight = |n| f64::from(n) + 3.0;
        assert_eq!(fit(4, weight, |n| Ok(2.0 + 0.5 * weight(n))).unwrap(), (2.0, 0.5));
        assert_eq!(fit(1, weight, |_| Ok(2.0)).unwrap(), (0.0, 0.5));
    }
}
