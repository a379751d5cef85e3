//! TQ2_0: 256 ternary weights in two bits each and one scale, 2.06 bits per weight.
//!
//! ```text
//! byte 0..64    qs[2][32]   bits 2l, 2l + 1 of byte j of half h: code 128 h + 32 l + j
//! byte 64..66   d           f16 scale
//! weight = d * (code - 1)
//! ```
//!
//! d1, per 32-block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `(code[i] - 1) * x.q[i]`.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, to_half};
use crate::fma::Fma;

pub(super) const LEN: usize = 256;
const D: usize = LEN / 4;
const BYTES: usize = D + 2;

/// Ternary weights in blocks of 256, two bits each.
pub static TQ2_0: Format = Format {
    name: "tq2_0",
    ggml_type: 35,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize: |blocks, out| dequantize(&TQ2_0, D, codes, blocks, out),
    quantizer: Some(Quantizer::Plain(quantize)),
    dot: |row, x| dot(&TQ2_0, D, codes, row, x),
    integer: true,
};

/// Codes `32 i..32 i + 32`.
pub(crate) fn codes(block: &[u8], i: usize) -> [u8; 32] {
    std::array::from_fn(|j| block[i / 4 * 32 + j] >> (i % 4 * 2) & 3)
}

/// What the formats of codes of at most two bits and one scale do.
pub(super) fn dequantize(
    format: &Format,
    d: usize,
    codes: fn(&[u8], usize) -> [u8; 32],
    blocks: &[u8],
    out: &mut [f32],
) {
    for (block, out) in each_block(format, blocks, out) {
        let d = half(&block[d..]);
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, code) in out.iter_mut().zip(codes(block, i)) {
                *out = d * (f32::from(code) - 1.0);
            }
        }
    }
}

pub(super) fn dot(
    format: &Format,
    d: usize,
    codes: fn(&[u8], usize) -> [u8; 32],
    row: &[u8],
    x: &QuantizedRow<'_>,
) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(format.block_bytes).enumerate() {
        let d = half(&block[d..]);
        for i in 0..format.block_len / 32 {
            let values = codes(block, i).map(|code| i32::from(code) - 1);
            let at = s * format.block_len + 32 * i;
            acc = (x.idot(at, &values) as f32).fma(d * x.d[at / 32], acc);
        }
    }
    acc
}

/// Codes of 256 weights and their scale, the largest magnitude: each weight's share rounded half away from zero.
pub(super) fn trits(weights: &[f32]) -> ([u8; LEN], [u8; 2]) {
    let largest = weights.iter().fold(0.0f32, |max, w| max.max(w.abs()));
    let inverse = if largest == 0.0 { 0.0 } else { 1.0 / largest };
    let code = |w: f32| match w * inverse {
        share if share >= 0.5 => 2,
        share if share <= -0.5 => 0,
        _ => 1,
    };
    (std::array::from_fn(|i| code(weights[i])), to_half(largest))
}

fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&TQ2_0, weights, blocks) {
        let (codes, d) = trits(weights);
        block.fill(0);
        for (i, code) in codes.into_iter().enumerate() {
            block[i / 128 * 32 + i % 32] |= code << (i / 32 % 4 * 2);
        }
        block[D..].copy_from_slice(&d);
    }
}
