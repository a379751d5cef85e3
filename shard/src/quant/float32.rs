//! F32: weights as they are, 4 little-endian bytes each.
//!
//! d1: `acc = fma(w[k], x[k], acc)`, k ascending, f32 activations.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut};
use crate::fma::Fma;

const BYTES: usize = size_of::<f32>();
const _: () = assert!(BYTES == 4);

/// 32-bit IEEE 754 weights.
pub static F32: Format = Format {
    name: "f32",
    ggml_type: 0,
    block_len: 1,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: false,
};

fn weight(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&F32, blocks, out) {
        out[0] = weight(block);
    }
}

fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&F32, weights, blocks) {
        block.copy_from_slice(&weights[0].to_le_bytes());
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    row.chunks_exact(BYTES).zip(x.x).fold(0.0, |acc, (block, &x)| weight(block).fma(x, acc))
}
