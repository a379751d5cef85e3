//! Matrix products with their biases, the feed-forward network made of them, for dense layers and for each expert, and norms.

use super::{
    load::Linear,
    weights::{Network, NormWeights},
};
use crate::{
    kernels::{Activations, Cpu, Products, Target},
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
        linear.add_bias(cpu, out);
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

/// A feed-forward network over the rows of `x`, into `out`.
pub(super) fn run_network(
    cpu: &Cpu,
    network: &Network,
    activation: Activation,
    x: &[f32],
    buffers: Hidden<'_>,
    out: &mut [f32],
) {
    run_networks(cpu, std::iter::once((network, x)), activation, buffers, out);
}

/// Networks, each over rows of its own, into `out`: their outputs in the order of the networks.
///
/// All first layers are one dispatch and all last layers another.
pub(super) fn run_networks<'a>(
    cpu: &Cpu,
    visits: impl Iterator<Item = (&'a Network, &'a [f32])> + Clone,
    activation: Activation,
    buffers: Hidden<'_>,
    out: &mut [f32],
) {
    let Hidden { gate, up, scratch, eps } = buffers;
    let visits = visits.map(|(network, x)| (network, x, x.len() / network.up.matrix.cols().max(1)));
    let width = |network: &Network| network.up.matrix.rows();
    let size = visits.clone().map(|(network, _, rows)| rows * width(network)).sum::<usize>();
    let (gate, up) = (&mut gate[..size], &mut up[..size]);
    let mut products = Products::new(scratch);
    let (mut gates, mut ups) = (&mut *gate, &mut *up);
    for (network, x, rows) in visits.clone() {
        let size = rows * width(network);
        let (gate, up) = (first(&mut gates, size), first(&mut ups, size));
        if let Some(linear) = &network.gate {
            products.add(x, rows, &linear.matrix, gate);
        }
        products.add(x, rows, &network.up.matrix, up);
    }
    products.compute(cpu);
    let mut at = 0;
    for (network, _, rows) in visits.clone() {
        let part = at..at + rows * width(network);
        at = part.end;
        let (gate, up) = (&mut gate[part.clone()], &mut up[part]);
        if let Some(linear) = &network.gate {
            linear.add_bias(cpu, gate);
        }
        network.up.add_bias(cpu, up);
        if let Activation::SparseGelu(deviations) = activation {
            cpu.keep_above(gate, width(network), deviations);
        }
    }
    let gated = visits.clone().next().is_some_and(|(network, ..)| network.gate.is_some());
    let inner = if gated {
        match activation {
            Activation::GatedGelu | Activation::SparseGelu(_) => cpu.gelu_mul(gate, up),
            Activation::ClampedSwiglu => cpu.clamped_swiglu(gate, up),
            Activation::GatedReluSquared => cpu.relu_squared_mul(gate, up),
            Activation::GatedSilu | Activation::Gelu | Activation::ReluSquared => cpu.silu_mul(gate, up),
        }
        gate
    } else {
        match activation {
            Activation::ReluSquared => cpu.relu_squared(up),
            _ => cpu.gelu(up),
        }
        up
    };
    let mut rest = &mut *inner;
    for (network, _, rows) in visits.clone() {
        let inner = first(&mut rest, rows * width(network));
        if let Some(weight) = &network.inner_norm {
            cpu.rms_norm_in_place(inner, weight.len(), Some(weight), eps);
        }
    }
    let mut products = Products::new(scratch);
    let (mut inner, mut outs) = (&*inner, &mut *out);
    for (network, _, rows) in visits.clone() {
        let (x, rest) = inner.split_at(rows * width(network));
        inner = rest;
        products.add(x, rows, &network.down.matrix, first(&mut outs, rows * network.down.matrix.rows()));
    }
    products.compute(cpu);
    let mut outs = out;
    for (network, _, rows) in visits {
        network.down.add_bias(cpu, first(&mut outs, rows * network.down.matrix.rows()));
    }
}

/// Takes the first `size` values off `rest`.
pub(super) fn first<'a>(rest: &mut &'a mut [f32], size: usize) -> &'a mut [f32] {
    rest.split_off_mut(..size).expect("buffers have room for all networks")
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
