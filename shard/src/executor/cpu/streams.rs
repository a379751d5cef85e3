//! Residual rows in several streams, of which a layer computes one (AltUp, arXiv 2301.13310), and the low-rank network beside
//! attention (LAuReL, arXiv 2411.07501); gemma3n has both.
//!
//! Between layers the buffers hold all streams and `ws.x` the first. A layer predicts every stream as itself and a sum of all,
//! computes the first of them in `ws.x`, and adds to each prediction a share of what the first turned out to differ by. Sums over
//! streams are one `fma` each, streams ascending.

use super::{
    buffers::{CpuBuffers, Streams},
    load::Linear,
    network::product,
    weights::StreamWeights,
};
use crate::kernels::Cpu;

/// Least mean square that a new stream is divided by.
const LEAST: f64 = 1e-5;

/// The streams of `rows` rows of `ws.x`: the first is the row itself, the others are projections as long as it.
pub(super) fn enter(cpu: &Cpu, projections: &[Linear], ws: &mut CpuBuffers, rows: usize) {
    if projections.is_empty() {
        return;
    }
    let (hidden, all, size) = (ws.sizes.hidden, ws.per_layer.streams.row.len(), rows * ws.sizes.hidden);
    for (x, row) in ws.x[..size].chunks_exact(hidden).zip(ws.per_layer.streams.rows.chunks_exact_mut(all)) {
        row[..hidden].copy_from_slice(x);
    }
    for (stream, projection) in projections.iter().enumerate() {
        let y = &mut ws.y[..size];
        product(cpu, &mut ws.scratch, &ws.x[..size], rows, [(projection, &mut *y)]);
        for (row, y) in ws.per_layer.streams.rows.chunks_exact_mut(all).zip(y.chunks_exact_mut(hidden)) {
            cpu.scale(y, as_long_as(&row[..hidden], y));
            row[(stream + 1) * hidden..][..hidden].copy_from_slice(y);
        }
    }
}

/// The mean of all streams into `ws.x`, those behind the first projected and made as long as it.
pub(super) fn merge(cpu: &Cpu, projections: &[Linear], ws: &mut CpuBuffers, rows: usize) {
    if projections.is_empty() {
        return;
    }
    let (hidden, all, size) = (ws.sizes.hidden, ws.per_layer.streams.row.len(), rows * ws.sizes.hidden);
    for (stream, projection) in projections.iter().enumerate() {
        for (row, h) in ws.per_layer.streams.rows.chunks_exact(all).zip(ws.h[..size].chunks_exact_mut(hidden))
        {
            h.copy_from_slice(&row[(stream + 1) * hidden..][..hidden]);
        }
        let y = &mut ws.y[..size];
        product(cpu, &mut ws.scratch, &ws.h[..size], rows, [(projection, &mut *y)]);
        let streams = ws.per_layer.streams.rows.chunks_exact(all).zip(ws.x[..size].chunks_exact_mut(hidden));
        for ((row, x), y) in streams.zip(y.chunks_exact(hidden)) {
            cpu.add_scaled(x, y, as_long_as(&row[..hidden], y));
        }
    }
    cpu.scale(&mut ws.x[..size], 1.0 / ws.per_layer.streams.count as f32);
}

/// The factor that makes `y` as long as `x`.
fn as_long_as(x: &[f32], y: &[f32]) -> f32 {
    let square = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    (square(x) / square(y).max(LEAST)).sqrt() as f32
}

/// `x = (x + learned) / sqrt(2)`.
pub(super) fn add_learned(cpu: &Cpu, ws: &mut CpuBuffers, rows: usize) {
    let size = rows * ws.sizes.hidden;
    cpu.add(&mut ws.x[..size], &ws.per_layer.streams.learned[..size]);
    cpu.scale(&mut ws.x[..size], std::f32::consts::FRAC_1_SQRT_2);
}

/// Adds `ws.y` to all streams but the first.
pub(super) fn add_token(cpu: &Cpu, ws: &mut CpuBuffers, rows: usize) {
    let (hidden, all) = (ws.sizes.hidden, ws.per_layer.streams.row.len());
    let rows =
        ws.per_layer.streams.rows.chunks_exact_mut(all).zip(ws.y[..rows * hidden].chunks_exact(hidden));
    for (row, y) in rows {
        row[hidden..].chunks_exact_mut(hidden).for_each(|stream| cpu.add(stream, y));
    }
}

/// The shares that `matrix` makes of `ws.x`: `matrix * tanh(router * norm(x) / width)`.
fn share(
    cpu: &Cpu,
    (weights, eps): (&StreamWeights, f32),
    matrix: &Linear,
    ws: &mut CpuBuffers,
    rows: usize,
) {
    let (hidden, size) = (ws.sizes.hidden, rows * ws.sizes.hidden);
    let h = &mut ws.h[..size];
    cpu.rms_norm(&ws.x[..size], hidden, Some(&weights.router_norm), eps, h);
    cpu.scale(h, 1.0 / hidden as f32);
    let routed = &mut ws.per_layer.streams.routed[..rows * ws.per_layer.streams.count];
    product(cpu, &mut ws.scratch, h, rows, [(&weights.router, &mut *routed)]);
    cpu.softcap(routed, 1.0);
    let shares = &mut ws.per_layer.streams.shares[..rows * matrix.matrix.rows()];
    product(cpu, &mut ws.scratch, routed, rows, [(matrix, shares)]);
}

/// Predicts all streams from all streams; `ws.x` is the first before and after.
pub(super) fn predict(cpu: &Cpu, (weights, eps): (&StreamWeights, f32), ws: &mut CpuBuffers, rows: usize) {
    share(cpu, (weights, eps), &weights.predict, ws, rows);
    let hidden = ws.sizes.hidden;
    let Streams { count, rows: streams, row: before, shares, .. } = &mut ws.per_layer.streams;
    let all = streams.chunks_exact_mut(before.len()).zip(shares.chunks_exact(*count * *count));
    for ((row, shares), x) in all.zip(ws.x[..rows * hidden].chunks_exact_mut(hidden)) {
        before.copy_from_slice(row);
        for (stream, shares) in row.chunks_exact_mut(hidden).zip(shares.chunks_exact(*count)) {
            let parts = before.chunks_exact(hidden).zip(shares);
            parts.for_each(|(part, share)| cpu.add_scaled(stream, part, *share));
        }
        x.copy_from_slice(&row[..hidden]);
    }
}

/// What the network beside attention makes of the normed rows `h`: `h + norm(right * (left * h))`.
pub(super) fn learn(cpu: &Cpu, (weights, eps): (&StreamWeights, f32), ws: &mut CpuBuffers, rows: usize) {
    let [left, right] = &weights.laurel;
    let (hidden, h) = (ws.sizes.hidden, &ws.h[..rows * ws.sizes.hidden]);
    let inner = &mut ws.per_layer.streams.inner[..rows * left.matrix.rows()];
    let learned = &mut ws.per_layer.streams.learned[..rows * hidden];
    product(cpu, &mut ws.scratch, h, rows, [(left, &mut *inner)]);
    product(cpu, &mut ws.scratch, inner, rows, [(right, &mut *learned)]);
    cpu.rms_norm_in_place(learned, hidden, Some(&weights.laurel_norm), eps);
    cpu.add(learned, h);
}

/// Adds to each stream its share of what `ws.x` differs by from the first stream as predicted. Leaves the first stream in `ws.x`
/// and, scaled for the token's row, in `ws.h`.
pub(super) fn correct(cpu: &Cpu, (weights, eps): (&StreamWeights, f32), ws: &mut CpuBuffers, rows: usize) {
    share(cpu, (weights, eps), &weights.correct, ws, rows);
    let (hidden, size) = (ws.sizes.hidden, rows * ws.sizes.hidden);
    let Streams { count, rows: streams, row: buffer, shares, .. } = &mut ws.per_layer.streams;
    let differs = &mut buffer[..hidden];
    let all = streams.chunks_exact_mut(*count * hidden).zip(shares.chunks_exact(*count));
    let ends = ws.x[..size].chunks_exact_mut(hidden).zip(ws.h[..size].chunks_exact_mut(hidden));
    for ((row, shares), (x, h)) in all.zip(ends) {
        differs.copy_from_slice(x);
        cpu.add_scaled(differs, &row[..hidden], -1.0);
        for (stream, share) in row.chunks_exact_mut(hidden).zip(shares) {
            cpu.add_scaled(stream, differs, share + 1.0);
        }
        x.copy_from_slice(&row[..hidden]);
        h.iter_mut().zip(&*x).zip(&weights.scale).for_each(|((h, x), scale)| *h = x * scale);
    }
}
