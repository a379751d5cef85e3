//! Residual rows in several streams (AltUp), the low-rank network beside attention (LAuReL), and what layers make of the token.

use super::{
    Model,
    math::{add, gated},
};
use crate::models::{ATTENTION_NORM, Activation, layer_name};

/// The streams behind the first, `x`; none in most models.
pub(super) fn behind(model: &Model, x: &[f32]) -> Vec<Vec<f32>> {
    let count = model.blueprint.per_layer.map_or(1, |read| read.streams);
    (1..count).map(|stream| as_long_as(x, through(model, "altup_proj.weight", stream, x))).collect()
}

/// The mean of `x` and of `streams` behind their projections.
pub(super) fn merged(model: &Model, x: Vec<f32>, streams: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = x.clone();
    for (at, stream) in streams.iter().enumerate() {
        let y = as_long_as(&x, through(model, "altup_unembd_proj.weight", at + 1, stream));
        add(&mut sum, &y, 1.0);
    }
    sum.iter_mut().for_each(|sum| *sum /= (streams.len() + 1) as f32);
    sum
}

fn through(model: &Model, stack: &str, stream: usize, x: &[f32]) -> Vec<f32> {
    model.product(model.slice(stack, (stream - 1) * x.len(), x.len()), x)
}

fn as_long_as(x: &[f32], mut y: Vec<f32>) -> Vec<f32> {
    let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let factor = square(x).sqrt() / square(&y).max(1e-5).sqrt();
    y.iter_mut().for_each(|y| *y *= factor);
    y
}

/// What the matrix `name` makes of the router's word on `x`.
fn shares(model: &Model, index: usize, name: &str, x: &[f32]) -> Vec<f32> {
    let mut seen = model.norm(&layer_name(index, "altup_router_norm"), x);
    seen.iter_mut().for_each(|seen| *seen /= x.len() as f32);
    let mut routed = model.linear(&layer_name(index, "altup_router"), &seen);
    routed.iter_mut().for_each(|routed| *routed = routed.tanh());
    model.linear(&layer_name(index, name), &routed)
}

/// Predicts `x` and the streams behind it from all of them.
pub(super) fn predict(model: &Model, index: usize, x: &mut Vec<f32>, streams: &mut [Vec<f32>]) {
    if streams.is_empty() {
        return;
    }
    let before: Vec<Vec<f32>> = std::iter::once(x.clone()).chain(streams.iter().cloned()).collect();
    let shares = shares(model, index, "altup_predict_coef", x);
    let all = std::iter::once(x).chain(streams);
    for (stream, shares) in all.zip(shares.chunks_exact(before.len())) {
        before.iter().zip(shares).for_each(|(part, share)| add(stream, part, *share));
    }
}

/// What the layer learns beside attention of `before`, its row, into `x`.
pub(super) fn learn(model: &Model, index: usize, before: &[f32], x: &mut [f32]) {
    if !model.tensors.contains_key(&layer_name(index, "laurel_l.weight")) {
        return;
    }
    let h = model.norm(&layer_name(index, ATTENTION_NORM), before);
    let inner = model.linear(&layer_name(index, "laurel_l"), &h);
    let mut learned = model.linear(&layer_name(index, "laurel_r"), &inner);
    model.norm_after(&layer_name(index, "laurel_post_norm.weight"), &mut learned);
    add(&mut learned, &h, 1.0);
    add(x, &learned, 1.0);
    x.iter_mut().for_each(|x| *x /= 2.0f32.sqrt());
}

/// Corrects `predicted` and the streams behind it by `x`, what became of it, and leaves the first in `x`; what the token's row
/// meets.
fn corrected(
    model: &Model,
    index: usize,
    predicted: Vec<f32>,
    x: &mut Vec<f32>,
    streams: &mut [Vec<f32>],
) -> Vec<f32> {
    if streams.is_empty() {
        return x.clone();
    }
    let shares = shares(model, index, "altup_correct_coef", x);
    let mut differs = x.clone();
    add(&mut differs, &predicted, -1.0);
    *x = predicted;
    for (stream, share) in std::iter::once(&mut *x).chain(streams).zip(shares) {
        add(stream, &differs, share + 1.0);
    }
    let scale = model.rows(&layer_name(index, "altup_correct_scale.weight"), 0, 1);
    x.iter().zip(scale).map(|(x, scale)| x * scale).collect()
}

/// What the layer makes of `token`, its part of the token's row: added to `x` or, where the row comes in streams, to all but the
/// first; `before` is the row that entered.
pub(super) fn add_token(
    model: &Model,
    index: usize,
    (before, token): (Vec<f32>, &[f32]),
    x: &mut Vec<f32>,
    streams: &mut [Vec<f32>],
) {
    let seen = corrected(model, index, before, x, streams);
    let gate = model.linear(&layer_name(index, "inp_gate"), &seen);
    let part = gated(Activation::GatedGelu, &gate, token);
    let mut y = model.linear(&layer_name(index, "proj"), &part);
    model.norm_after(&layer_name(index, "post_norm.weight"), &mut y);
    match streams {
        [] => add(x, &y, 1.0),
        streams => streams.iter_mut().for_each(|stream| add(stream, &y, 1.0)),
    }
}
