//! F16: IEEE 754 half precision, 2 little-endian bytes each.
//!
//! d1: `acc = fma(w[k], x[k], acc)`, k ascending, w widened to f32 (exact), f32 activations.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, to_half};
use crate::fma::Fma;

const BYTES: usize = size_of::<u16>();
const _: () = assert!(BYTES == 2);

/// 16-bit IEEE 754 weights.
pub static F16: Format = Format {
    name: "f16",
    ggml_type: 1,
    block_len: 1,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: false,
};

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&F16, blocks, out) {
        out[0] = half(block);
    }
}

/// Nearest, ties to even; magnitudes from 65520 on become infinite.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&F16, weights, blocks) {
        block.copy_from_slice(&to_half(weights[0]));
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    row.chunks_exact(BYTES).zip(x.x).fold(0.0, |acc, (block, &x)| half(block).fma(x, acc))
}
