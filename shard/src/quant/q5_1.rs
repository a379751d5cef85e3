//! Q5_1: 32 five-bit codes, a scale and an offset, 6 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..4    m        f16 offset
//! byte 4..8    qh       u32, bit i: the fifth bit of code i
//! byte 8..24   qs[16]   low nibble of byte i: the low bits of code i, high nibble: of code 16 + i
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
const QH: usize = M + 2;
const QS: usize = QH + LEN / 8;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 24);

/// 5-bit weights with an offset in blocks of 32.
pub static Q5_1: Format = Format {
    name: "q5_1",
    ggml_type: 7,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: true,
};

fn codes(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| {
        let low = block[QS + i % 16] >> (i / 16 * 4) & 0x0f;
        let high = block[QH + i / 8] >> (i % 8) & 1;
        i32::from(low | high << 4)
    })
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q5_1, blocks, out) {
        let (d, m) = (half(&block[D..]), half(&block[M..]));
        for (out, q) in out.iter_mut().zip(codes(block)) {
            *out = d * q as f32 + m;
        }
    }
}

/// The smallest weight becomes code 0, the largest 31.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&Q5_1, weights, blocks) {
        let (min, max) = range(weights);
        let d = (max - min) / 31.0;
        let id = inverse(d);
        block.fill(0);
        block[D..M].copy_from_slice(&to_half(d));
        block[M..QH].copy_from_slice(&to_half(min));
        for (i, w) in weights.iter().enumerate() {
            let code = (((w - min) * id + 0.5) as u8).min(31);
            block[QS + i % 16] |= (code & 0x0f) << (i / 16 * 4);
            block[QH + i / 8] |= (code >> 4) << (i % 8);
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
