//! What mixes positions beside plain attention: gated delta nets, Mamba2, short convolutions, and latent attention.
//!
//! Latent attention absorbs queries into the latent, keeps one row per position for all heads, and turns results into values
//! head by head. The matrices of a head are small: a pass multiplies twice as many of them as there are heads.

use std::mem;

use super::{
    super::Item,
    Shard,
    buffers::CpuBuffers,
    forward::{Look, OWN, Place, keep_rows, keep_wanted},
    load::Linear,
    network::product,
    recurrent::{DeltaWeights, Mamba2Weights, Projections},
    weights::{BesideWeights, LatentWeights},
};
use crate::{
    kernels::{
        Activations, ConvJob, Cpu, DeltaInputs, DeltaJob, DeltaShape, Mamba2Gate, Mamba2Inputs, Mamba2Job,
        Mamba2Shape, attention, delta, mamba2,
    },
    models::{Latent, ShortConv, Softmax},
    state::{Paged, Recurrent},
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
        let decays = shape.decays();
        let alpha = &mut buffers.alpha[..rows * decays];
        let beta = &mut buffers.beta[..rows * heads];
        match (&weights.qkv, &weights.z.narrow, &weights.alpha.narrow) {
            (Projections::One(all), None, None) => {
                let targets = [
                    (all, &mut *projected),
                    (&weights.z.matrix, &mut *z),
                    (&weights.beta, &mut *beta),
                    (&weights.alpha.matrix, &mut *alpha),
                ];
                product(cpu, &mut ws.scratch, h, rows, targets);
            }
            (Projections::Apart(parts), Some(gates), Some(fades)) => {
                // The rows of q, of k and of v, and then row by row of all three.
                let (q, rest) = buffers.inputs[..rows * channels].split_at_mut(rows * shape.key_width());
                let (k, v) = rest.split_at_mut(rows * shape.key_width());
                let [to_q, to_k, to_v] = &**parts;
                let targets =
                    [(to_q, &mut *q), (to_k, &mut *k), (to_v, &mut *v), (&weights.beta, &mut *beta)];
                product(cpu, &mut ws.scratch, h, rows, targets);
                for (row, all) in projected.chunks_exact_mut(channels).enumerate() {
                    let mut at = 0;
                    for (part, wide) in [(&*q, shape.key_width()), (&*k, shape.key_width()), (&*v, width)] {
                        all[at..at + wide].copy_from_slice(&part[row * wide..][..wide]);
                        at += wide;
                    }
                }
                for (narrow, matrix, out) in
                    [(gates, &weights.z.matrix, &mut *z), (fades, &weights.alpha.matrix, &mut *alpha)]
                {
                    let inner = &mut buffers.narrow[..rows * narrow.matrix.rows()];
                    product(cpu, &mut ws.scratch, h, rows, [(narrow, &mut *inner)]);
                    product(cpu, &mut ws.scratch, inner, rows, [(matrix, out)]);
                }
            }
            _ => unreachable!("weights are loaded as the shape says"),
        }
        delta::decays(cpu, alpha, &weights.dt, &weights.a);
        cpu.sigmoid(beta);
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
                    job.compute(cpu);
                }
                shape.keep_columns(columns_before, projected, rows.end, columns);
                let here = |width: usize| (first + rows.start) * width..(first + rows.end) * width;
                DeltaJob {
                    shape,
                    inputs: &inputs[rows.start * channels..rows.end * channels],
                    z: &z[here(width)],
                    decay: &alpha[here(decays)],
                    strength: &beta[here(heads)],
                    before: (rows.start == 0).then_some(before),
                    state: matrices,
                    norm: &weights.norm,
                    eps,
                    out: &mut out[rows.start * width..rows.end * width],
                }
                .compute(cpu);
            });
        }
        if !last {
            return rows;
        }
        keep_rows(&ws.spans, &mut ws.attended, width);
        keep_wanted(ws)
    }

    /// The state space of Mamba2 over the normed rows, positions ascending, into `ws.attended`; returns how many rows go on.
    pub(super) fn mamba2(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (weights, shape, cached): (&Mamba2Weights, Mamba2Shape, usize),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, eps) = (&*self.cpu, self.blueprint.norm.eps);
        let (channels, width, heads) = (shape.channels(), shape.width(), shape.heads);
        let h = &ws.h[..rows * self.blueprint.hidden];
        let buffers = &mut ws.hybrid;
        let projected = &mut buffers.projected[..rows * channels];
        let z = &mut buffers.gate[..rows * width];
        let decay = &mut buffers.alpha[..rows * heads];
        let steps = &mut buffers.beta[..rows * heads];
        let targets =
            [(&weights.z, &mut *z), (&weights.inputs, &mut *projected), (&weights.steps, &mut *steps)];
        product(cpu, &mut ws.scratch, h, rows, targets);
        mamba2::steps(cpu, steps, decay, &weights.dt, &weights.a);
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
                    let (before, taps, bias) = (columns_before, &weights.taps, weights.bias.as_deref());
                    Mamba2Inputs { shape, projected, before, taps, bias, out: inputs }.compute(cpu);
                }
                shape.keep_columns(columns_before, projected, rows.end, columns);
                let here = |width: usize| (first + rows.start) * width..(first + rows.end) * width;
                Mamba2Job {
                    shape,
                    inputs: &inputs[rows.start * channels..rows.end * channels],
                    decay: &decay[here(heads)],
                    steps: &steps[here(heads)],
                    skip: &weights.skip,
                    before: (rows.start == 0).then_some(before),
                    state: matrices,
                    out: &mut out[rows.start * width..rows.end * width],
                }
                .compute(cpu);
            });
        }
        let norm = weights.norm.as_deref().map(|norm| (norm, eps));
        Mamba2Gate { shape, z, norm, out: &mut ws.attended[..rows * width] }.compute(cpu);
        if !last {
            return rows;
        }
        keep_rows(&ws.spans, &mut ws.attended, width);
        keep_wanted(ws)
    }

    /// Mamba2 and softmax attention over the same normed rows: what the former gives is in `ws.y`, what the latter sees in
    /// `ws.attended`; returns how many rows go on.
    pub(super) fn beside(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (weights, (softmax, mamba), place): (&BesideWeights, (Softmax, Mamba2Shape), Place),
        rows: usize,
        last: bool,
    ) -> usize {
        self.mamba2(ws, items, (&weights.mamba, mamba, place.cached), rows, false);
        let kept = if last { keep_rows(&ws.spans, &mut ws.attended, mamba.width()) } else { rows };
        if kept > 0 {
            let (mixed, y) = (&ws.attended[..kept * mamba.width()], &mut ws.y[..kept * ws.sizes.hidden]);
            product(&self.cpu, &mut ws.scratch, mixed, kept, [(&weights.out, y)]);
        }
        self.look_back(ws, items, (&weights.softmax, softmax, place), rows, last)
    }

    /// A gated short convolution over the normed rows, into `ws.attended`; returns how many rows go on.
    pub(super) fn short_conv(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (input, taps, spec, cached): (&Linear, &[f32], ShortConv, usize),
        rows: usize,
        last: bool,
    ) -> usize {
        let width = spec.width;
        let h = &ws.h[..rows * self.blueprint.hidden];
        let buffers = &mut ws.hybrid;
        let projected = &mut buffers.projected[..rows * 3 * width];
        product(&self.cpu, &mut ws.scratch, h, rows, [(input, &mut *projected)]);
        let inputs = &mut buffers.inputs[..rows * width];
        for (row, input) in projected.chunks_exact(3 * width).zip(inputs.chunks_exact_mut(width)) {
            let (b, x) = (&row[..width], &row[2 * width..]);
            input.iter_mut().zip(b).zip(x).for_each(|((input, b), x)| *input = b * x);
        }
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let Some(state) = item.state.layer_mut::<Recurrent>(cached) else { unreachable!("{OWN}") };
            let inputs = &inputs[span.first * width..(span.first + span.rows) * width];
            let here = span.first * width..(span.first + span.rows) * width;
            let (gates, out) = (&projected[3 * here.start..3 * here.end], &mut ws.attended[here]);
            state.pass(span.start, span.rows, |before, state, rows| {
                if rows.start == 0 {
                    let out = &mut *out;
                    let (stride, gate_at) = (3 * width, width);
                    ConvJob { width, inputs, before, taps, gates, stride, gate_at, out }.compute(&self.cpu);
                }
                for (place, to) in state.chunks_exact_mut(width).enumerate() {
                    to.copy_from_slice(ConvJob::input(width, (before, inputs), rows.end + place));
                }
            });
        }
        if !last {
            return rows;
        }
        keep_rows(&ws.spans, &mut ws.attended, width);
        keep_wanted(ws)
    }

    /// Latent attention of the normed rows, into `ws.attended`; returns how many rows go on.
    pub(super) fn latent(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (weights, spec, place): (&LatentWeights, Latent, Place),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let (heads, eps, shape) = (blueprint.heads, spec.eps, spec.shape());
        let mut buffers = mem::take(&mut ws.hybrid.latent);
        let scratch = &mut ws.scratch;
        let h = &ws.h[..rows * blueprint.hidden];
        let made = &mut buffers.made[..rows * shape.head_dim];
        let queries = &mut buffers.queries[..rows * heads * spec.query()];
        match &weights.narrow {
            None => product(cpu, scratch, h, rows, [(&weights.q, &mut *queries), (&weights.row, &mut *made)]),
            Some((narrow, norm)) => {
                let x = &mut buffers.narrow[..rows * norm.len()];
                product(cpu, scratch, h, rows, [(narrow, &mut *x), (&weights.row, &mut *made)]);
                cpu.rms_norm_in_place(x, norm.len(), Some(norm), eps);
                product(cpu, scratch, x, rows, [(&weights.q, &mut *queries)]);
            }
        }
        // The rotated part goes first, where the rotation expects it.
        let k = &mut ws.heads.k[..rows * shape.head_dim];
        for (made, key) in made.chunks_exact(shape.head_dim).zip(k.chunks_exact_mut(shape.head_dim)) {
            let (latent, rotated) = made.split_at(spec.rank);
            key[..spec.rotated].copy_from_slice(rotated);
            cpu.rms_norm(latent, spec.rank, Some(&weights.row_norm), eps, &mut key[spec.rotated..]);
        }
        let q = &mut ws.heads.q[..rows * heads * shape.head_dim];
        for (query, q) in queries.chunks_exact(spec.query()).zip(q.chunks_exact_mut(shape.head_dim)) {
            q[..spec.rotated].copy_from_slice(&query[spec.plain..]);
        }
        if let Some(index) = spec.rope {
            let rope = &blueprint.ropes[index];
            let table = &ws.heads.tables[index][..rows * rope.dims];
            for (x, heads) in [(&mut *q, heads), (&mut *k, 1)] {
                cpu.rope(x, heads * shape.head_dim, heads, shape.head_dim, rope.dims, rope.pairing, table);
            }
        }
        let mut turn = Turn { cpu, scratch, from: &mut buffers.from, to: &mut buffers.to, rows };
        for (head, matrix) in weights.keys.iter().enumerate() {
            let from = Columns { width: heads * spec.query(), first: head * spec.query() };
            let to = Columns { width: heads * shape.head_dim, first: head * shape.head_dim + spec.rotated };
            turn.head(matrix, (queries, from), (&mut *q, to));
        }
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let at = span.first * shape.head_dim..(span.first + span.rows) * shape.head_dim;
            let Some(paged) = item.state.layer_mut::<Paged>(place.cached) else { unreachable!("{OWN}") };
            attention::store_kv(cpu, paged.pages_mut(), shape, &ws.heads.k[at], &[], span.start);
        }
        let rows = if last { keep_wanted(ws) } else { rows };
        if rows > 0 {
            let look =
                Look { place, shape, scale: spec.scale, softcap: None, sinks: None, chunk: None, ahead: 0 };
            self.attend(ws, items, look, &mut buffers.seen, last);
            let scratch = &mut ws.scratch;
            let mut turn = Turn { cpu, scratch, from: &mut buffers.from, to: &mut buffers.to, rows };
            for (head, matrix) in weights.values.iter().enumerate() {
                let from = Columns { width: heads * spec.rank, first: head * spec.rank };
                let to = Columns { width: heads * spec.value, first: head * spec.value };
                turn.head(matrix, (&buffers.seen, from), (&mut ws.attended, to));
            }
        }
        ws.hybrid.latent = buffers;
        rows
    }
}

/// Where the columns of one head are in rows of all heads.
struct Columns {
    width: usize,
    first: usize,
}

/// Multiplies the rows of one head.
struct Turn<'a> {
    cpu: &'a Cpu,
    scratch: &'a mut Activations,
    from: &'a mut [f32],
    to: &'a mut [f32],
    rows: usize,
}

impl Turn<'_> {
    fn head(&mut self, matrix: &Linear, (x, at): (&[f32], Columns), (out, to): (&mut [f32], Columns)) {
        let (cols, made) = (matrix.matrix.cols(), matrix.matrix.rows());
        let from = &mut self.from[..self.rows * cols];
        for (row, from) in x.chunks_exact(at.width).zip(from.chunks_exact_mut(cols)) {
            from.copy_from_slice(&row[at.first..at.first + cols]);
        }
        let result = &mut self.to[..self.rows * made];
        product(self.cpu, self.scratch, from, self.rows, [(matrix, &mut *result)]);
        for (row, result) in out.chunks_exact_mut(to.width).zip(result.chunks_exact(made)) {
            row[to.first..to.first + made].copy_from_slice(result);
        }
    }
}
