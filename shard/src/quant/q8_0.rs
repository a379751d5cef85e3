//! Q8_0: 32 signed bytes and one scale, 8.5 bits per weight.
//!
//! ```text
//! byte 0..2    d       f16 scale
//! byte 2..34   q[32]   i8, weight i in byte 2 + i
//! weight = q * d
//! ```
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of `q[i] * x.q[i]`.

use super::{
    Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, inverse, signed_max, to_half,
};
use crate::fma::Fma;

const LEN: usize = 32;
const D: usize = 0;
const Q: usize = D + 2;
const BYTES: usize = Q + LEN;
const _: () = assert!(BYTES == 34);

/// 8-bit weights in blocks of 32.
pub static Q8_0: Format = Format {
    name: "q8_0",
    ggml_type: 8,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: true,
};

fn codes(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(block[Q + i] as i8))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q8_0, blocks, out) {
        let d = half(&block[D..]);
        for (out, q) in out.iter_mut().zip(codes(block)) {
            *out = q as f32 * d;
        }
    }
}

/// The largest magnitude becomes 127; halves round away from zero.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&Q8_0, weights, blocks) {
        let d = signed_max(weights).abs() / 127.0;
        let id = inverse(d);
        block[D..Q].copy_from_slice(&to_half(d));
        for (q, w) in block[Q..].iter_mut().zip(weights) {
            *q = (w * id).round() as i8 as u8;
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.chunks_exact(BYTES).enumerate() {
        let idot = x.idot(b * LEN, &codes(block));
        acc = (idot as f32).fma(half(&block[D..]) * x.d[b], acc);
    }
    acc
}
