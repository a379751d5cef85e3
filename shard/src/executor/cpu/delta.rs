//! Gated delta nets: projections, the recurrence of every session, and what each remembers.

use super::{
    super::Item,
    Shard,
    buffers::CpuBuffers,
    forward::{OWN, keep_rows, keep_wanted},
    network::product,
    weights::DeltaWeights,
};
use crate::{
    kernels::{DeltaInputs, DeltaJob, DeltaShape},
    state::Recurrent,
};

impl Shard {
    /// A gated delta net over the normed rows, positions ascending, into `ws.attended`; returns how many rows go on.
    pub(super) fn delta_net(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (weights, shape, cached): (&DeltaWeights, DeltaShape, usize),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, eps) = (&*self.cpu, self.blueprint.norm.eps);
        let (channels, width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
        let h = &ws.h[..rows * self.blueprint.hidden];
        let buffers = &mut ws.hybrid;
        let projected = &mut buffers.projected[..rows * channels];
        let z = &mut buffers.gate[..rows * width];
        let alpha = &mut buffers.alpha[..rows * heads];
        let beta = &mut buffers.beta[..rows * heads];
        let targets = [
            (&weights.qkv, &mut *projected),
            (&weights.z, &mut *z),
            (&weights.beta, &mut *beta),
            (&weights.alpha, &mut *alpha),
        ];
        product(cpu, &mut ws.scratch, h, rows, targets);
        cpu.delta_gates(alpha, beta, &weights.dt, &weights.a);
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let Some(state) = item.state.layer_mut::<Recurrent>(cached) else { unreachable!("{OWN}") };
            let first = span.first;
            let projected = &projected[first * channels..(first + span.rows) * channels];
            let inputs = &mut buffers.inputs[first * channels..(first + span.rows) * channels];
            let out = &mut ws.attended[first * width..(first + span.rows) * width];
            state.pass(span.start, span.rows, |before, state, rows| {
                let (before, columns_before) = before.split_at(shape.matrices_len());
                let (matrices, columns) = state.split_at_mut(shape.matrices_len());
                if rows.start == 0 {
                    let taps = &weights.taps;
                    let job = DeltaInputs { shape, projected, before: columns_before, taps, out: inputs };
                    cpu.delta_inputs(job);
                }
                shape.keep_columns(columns_before, projected, rows.end, columns);
                let here = |width: usize| (first + rows.start) * width..(first + rows.end) * width;
                cpu.delta_net(DeltaJob {
                    shape,
                    inputs: &inputs[rows.start * channels..rows.end * channels],
                    z: &z[here(width)],
                    decay: &alpha[here(heads)],
                    strength: &beta[here(heads)],
                    before: (rows.start == 0).then_some(before),
                    state: matrices,
                    norm: &weights.norm,
                    eps,
                    out: &mut out[rows.start * width..rows.end * width],
                });
            });
        }
        if !last {
            return rows;
        }
        keep_rows(&ws.spans, &mut ws.attended, width);
        keep_wanted(ws)
    }
}
