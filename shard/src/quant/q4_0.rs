//! Q4_0: 32 four-bit codes and one scale, 4.5 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..18   qs[16]   low nibble of byte i: code i, high nibble: code 16 + i
//! weight = d * (code - 8)
//! ```
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `(code[i] - 8) * x.q[i]`.

use super::{
    Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, inverse, signed_max, to_half,
};
use crate::fma::Fma;

const LEN: usize = 32;
const D: usize = 0;
const QS: usize = D + 2;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 18);

/// 4-bit symmetric weights in blocks of 32.
pub static Q4_0: Format = Format {
    name: "q4_0",
    ggml_type: 2,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: true,
};

fn codes(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(block[QS + i % 16] >> (i / 16 * 4) & 0x0f) - 8)
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q4_0, blocks, out) {
        let d = half(&block[D..]);
        for (out, q) in out.iter_mut().zip(codes(block)) {
            *out = d * q as f32;
        }
    }
}

/// The value of largest magnitude becomes code 0 (-8), whatever its sign: the side with nine steps serves it.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&Q4_0, weights, blocks) {
        let d = signed_max(weights) / -8.0;
        let id = inverse(d);
        let code = |w: f32| ((w * id + 8.5) as u8).min(15);
        block[D..QS].copy_from_slice(&to_half(d));
        for (i, byte) in block[QS..].iter_mut().enumerate() {
            *byte = code(weights[i]) | code(weights[16 + i]) << 4;
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
