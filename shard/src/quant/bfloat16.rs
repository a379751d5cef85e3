//! BF16: the upper half of an f32, 2 little-endian bytes each.
//!
//! d1: `acc = fma(w[k], x[k], acc)`, k ascending, w widened to f32 (exact), f32 activations.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut};
use crate::fma::Fma;

const BYTES: usize = size_of::<u16>();
const _: () = assert!(BYTES == 2);

/// 16-bit weights with the exponent of f32.
pub static BF16: Format = Format {
    name: "bf16",
    ggml_type: 30,
    block_len: 1,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: false,
};

fn weight(block: &[u8]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16)
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&BF16, blocks, out) {
        out[0] = weight(block);
    }
}

/// Nearest, ties to even; NaN stays NaN (made quiet).
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&BF16, weights, blocks) {
        block.copy_from_slice(&half::bf16::from_f32(weights[0]).to_le_bytes());
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    row.chunks_exact(BYTES).zip(x.x).fold(0.0, |acc, (block, &x)| weight(block).fma(x, acc))
}
