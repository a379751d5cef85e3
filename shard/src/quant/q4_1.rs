//! Q4_1: 32 four-bit codes, a scale and an offset, 5 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..4    m        f16 offset
//! byte 4..20   qs[16]   low nibble of byte i: code i, high nibble: code 16 + i
//! weight = d * code + m
//! ```
//!
//! d1, per block b ascending, with `idot` the exact sum of `code[i] * x.q[i]` and `xsum` that of `x.q[i]`:
//! `acc = fma(idot as f32, d * x.d[b], acc)`, then `acc = fma(xsum as f32, m * x.d[b], acc)`.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, inverse, range, to_half};
use crate::fma::Fma;

const LEN: usize = 32;
const D: usize = 0;
const M: usize = D + 2;
const QS: usize = M + 2;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 20);

/// 4-bit weights with an offset in blocks of 32.
pub static Q4_1: Format = Format {
    name: "q4_1",
    ggml_type: 3,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: true,
};

fn codes(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(block[QS + i % 16] >> (i / 16 * 4) & 0x0f))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q4_1, blocks, out) {
        let (d, m) = (half(&block[D..]), half(&block[M..]));
        for (out, q) in out.iter_mut().zip(codes(block)) {
            *out = d * q as f32 + m;
        }
    }
}

/// The smallest weight becomes code 0, the largest 15.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&Q4_1, weights, blocks) {
        let (min, max) = range(weights);
        let d = (max - min) / 15.0;
        let id = inverse(d);
        let code = |w: f32| (((w - min) * id + 0.5) as u8).min(15);
        block[D..M].copy_from_slice(&to_half(d));
        block[M..QS].copy_from_slice(&to_half(min));
        for (i, byte) in block[QS..].iter_mut().enumerate() {
            *byte = code(weights[i]) | code(weights[16 + i]) << 4;
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.chunks_exact(BYTES).enumerate() {
        let idot = x.idot(b * LEN, &codes(block));
        let xsum = x.sum(b * LEN, LEN);
        acc = (idot as f32).fma(half(&block[D..]) * x.d[b], acc);
        acc = (xsum as f32).fma(half(&block[M..]) * x.d[b], acc);
    }
    acc
}
