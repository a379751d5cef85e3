//! Per-layer embeddings: what each layer adds of the token itself (gemma3n, gemma4 E2B and E4B).
//!
//! A token has a second row, as wide as `width` values for every layer. A pass begins by adding it to a projection of the
//! embedded token, which is normed layer by layer; a layer ends by multiplying its part by a gate made of the residual row.

use super::{
    buffers::{CpuBuffers, PerLayer},
    network::product,
    weights::{LayerInputWeights, TokenWeights},
};
use crate::{
    Result,
    gguf::Gguf,
    kernels::{Activations, Cpu},
};

/// The embedding of tokens for all layers.
const TABLE: &str = "per_layer_token_embd.weight";
/// Rows of the table read between giving its pages in the file back.
const MANY_ROWS: usize = 16;

/// What the layers read of `tokens`, whose embedded rows are `x`, into `made`, `[tokens][layers * width]`.
pub(super) fn enter(
    (cpu, gguf): (&Cpu, &Gguf),
    (weights, eps): (&TokenWeights, f32),
    (tokens, x): (&[u32], &[f32]),
    scratch: &mut Activations,
    PerLayer { rows, row, .. }: &mut PerLayer,
    first: usize,
) -> Result<()> {
    let (all, width) = (row.len(), weights.norm.len());
    let made = &mut rows[first * all..(first + tokens.len()) * all];
    product(cpu, scratch, x, tokens.len(), [(&weights.projection, &mut *made)]);
    cpu.scale(made, 1.0 / (weights.projection.matrix.cols() as f32).sqrt());
    cpu.rms_norm_in_place(made, width, Some(&weights.norm), eps);
    let table = gguf.require(TABLE)?;
    for (at, (&id, made)) in tokens.iter().zip(made.chunks_exact_mut(all)).enumerate() {
        (table.format.dequantize)(table.row(id as usize), row);
        cpu.scale(row, (width as f32).sqrt());
        cpu.add(made, row);
        if at % MANY_ROWS == MANY_ROWS - 1 {
            gguf.forget(TABLE);
        }
    }
    cpu.scale(made, std::f32::consts::FRAC_1_SQRT_2);
    Ok(())
}

/// `y = norm(out * (gelu(gate * h) * part))` with the part of layer `layer` of what the pass began with.
pub(super) fn make(
    cpu: &Cpu,
    (weights, eps): (&LayerInputWeights, f32),
    ws: &mut CpuBuffers,
    layer: usize,
    rows: usize,
) {
    let (all, width) = (ws.per_layer.row.len(), weights.gate.matrix.rows());
    let size = rows * ws.sizes.hidden;
    let (gate, part) = (&mut ws.inner.gate[..rows * width], &mut ws.inner.up[..rows * width]);
    for (from, to) in ws.per_layer.rows.chunks_exact(all).zip(part.chunks_exact_mut(width)) {
        to.copy_from_slice(&from[layer * width..][..width]);
    }
    product(cpu, &mut ws.scratch, &ws.h[..size], rows, [(&weights.gate, &mut *gate)]);
    cpu.gelu_mul(gate, part);
    let y = &mut ws.y[..size];
    product(cpu, &mut ws.scratch, gate, rows, [(&weights.out, &mut *y)]);
    cpu.rms_norm_in_place(y, ws.sizes.hidden, Some(&weights.norm), eps);
}
