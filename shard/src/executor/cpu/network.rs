//! Matrix products with their biases, the feed-forward network made of them, for dense layers and for each expert, and norms.

use super::{
    load::Linear,
    weights::{Network, NormWeights},
};
use crate::{
    kernels::{Activations, Cpu, Target},
    models::{Activation, Norm, NormKind},
};

/// `out = x * matrix + bias` for several matrices over the same rows.
pub(super) fn product<const N: usize>(
    cpu: &Cpu,
    scratch: &mut Activations,
    x: &[f32],
    rows: usize,
    mut outputs: [(&Linear, &mut [f32]); N],
) {
    let mut targets = outputs.each_mut().map(|(linear, out)| Target { matrix: &linear.matrix, out });
    cpu.matmul(x, rows, scratch, &mut targets);
    for (linear, out) in outputs {
        if let Some(bias) = &linear.bias {
            cpu.add_bias(out, bias);
        }
    }
}

/// The buffers between the two layers of a network.
pub(super) struct Hidden<'a> {
    pub gate: &'a mut [f32],
    pub up: &'a mut [f32],
    pub scratch: &'a mut Activations,
    /// Of the norm over the inner rows.
    pub eps: f32,
}

/// A feed-forward network over `rows` rows of `x`, into `out`.
pub(super) fn run_network(
    cpu: &Cpu,
    network: &Network,
    activation: Activation,
    (x, rows): (&[f32], usize),
    buffers: Hidden<'_>,
    out: &mut [f32],
) {
    let Hidden { gate, up, scratch, eps } = buffers;
    let size = rows * network.up.matrix.rows();
    let (gate, up) = (&mut gate[..size], &mut up[..size]);
    let inner = match &network.gate {
        Some(linear) => {
            product(cpu, scratch, x, rows, [(linear, &mut *gate), (&network.up, &mut *up)]);
            match activation {
                Activation::GatedGelu => cpu.gelu_mul(gate, up),
                Activation::SparseGelu(deviations) => {
                    cpu.keep_above(gate, network.up.matrix.rows(), deviations);
                    cpu.gelu_mul(gate, up);
                }
                Activation::ClampedSwiglu => cpu.clamped_swiglu(gate, up),
                Activation::GatedReluSquared => cpu.relu_squared_mul(gate, up),
                Activation::GatedSilu | Activation::Gelu | Activation::ReluSquared => cpu.silu_mul(gate, up),
            }
            gate
        }
        None => {
            product(cpu, scratch, x, rows, [(&network.up, &mut *up)]);
            match activation {
                Activation::ReluSquared => cpu.relu_squared(up),
                _ => cpu.gelu(up),
            }
            up
        }
    };
    if let Some(weight) = &network.inner_norm {
        cpu.rms_norm_in_place(inner, weight.len(), Some(weight), eps);
    }
    product(cpu, scratch, inner, rows, [(&network.down, out)]);
}

/// The rows of `x` normed into `out`.
pub(super) fn norm(cpu: &Cpu, norm: Norm, weights: &NormWeights, x: &[f32], out: &mut [f32]) {
    let cols = weights.weight.len();
    match norm.kind {
        NormKind::Rms => cpu.rms_norm(x, cols, Some(&weights.weight), norm.eps, out),
        NormKind::Layer => {
            cpu.layer_norm(x, cols, Some(&weights.weight), weights.bias.as_deref(), norm.eps, out)
        }
    }
}
