//! Attention of one head, nonlinearities, sums: the oracle's arithmetic.

use crate::models::{Activation, Softmax};

/// One query head at `position` over the positions that it sees; `at` is where its key head starts in a position's row.
pub(super) fn attend(
    q: &[f32],
    (keys, values): (&[Vec<f32>], &[Vec<f32>]),
    (at, position): (usize, usize),
    spec: Softmax,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let first = first.max(spec.chunk.map_or(0, |chunk| position / chunk * chunk));
    let seen = first..(position + 1).saturating_add(spec.ahead).min(keys.len());
    let score = |key: &Vec<f32>| {
        let dot: f32 = q.iter().zip(&key[at..]).map(|(q, k)| q * k).sum();
        match spec.softcap {
            Some(cap) => cap * (dot * spec.scale / cap).tanh(),
            None => dot * spec.scale,
        }
    };
    let scores: Vec<f32> = keys[seen.clone()].iter().map(score).collect();
    let largest = scores.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let exps: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total: f32 = exps.iter().sum::<f32>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    for (exp, value) in exps.iter().zip(&values[seen]) {
        add(out, &value[at..at + q.len()], exp / total);
    }
}

pub(super) fn add(x: &mut [f32], y: &[f32], factor: f32) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y * factor);
}

/// The inner rows of a gated network.
pub(super) fn gated(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    if let Activation::SparseGelu(deviations) = activation {
        let mean = gate.iter().sum::<f32>() / gate.len() as f32;
        let square = gate.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / gate.len() as f32;
        let above = |gate: &f32| (gate - (mean + square.sqrt() * deviations)).max(0.0);
        return gated(Activation::GatedGelu, &gate.iter().map(above).collect::<Vec<_>>(), up);
    }
    let one = |(&gate, &up): (&f32, &f32)| match activation {
        Activation::GatedGelu => gelu(gate) * up,
        Activation::GatedReluSquared => relu_squared(gate) * up,
        Activation::ClampedSwiglu => {
            let gate = gate.min(7.0);
            (up.clamp(-7.0, 7.0) + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
        }
        _ => silu(gate) * up,
    };
    gate.iter().zip(up).map(one).collect()
}

/// The inner rows of a network, whose gate is empty where it has none.
pub(super) fn network(activation: Activation, gate: &[f32], up: Vec<f32>) -> Vec<f32> {
    match activation {
        Activation::Gelu => up.into_iter().map(gelu).collect(),
        Activation::ReluSquared => up.into_iter().map(relu_squared).collect(),
        _ => gated(activation, gate, &up),
    }
}

fn relu_squared(x: f32) -> f32 {
    x.max(0.0) * x.max(0.0)
}

pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
}
