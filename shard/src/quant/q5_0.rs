//! Q5_0: 32 five-bit codes and one scale, 5.5 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..6    qh       u32, bit i: the fifth bit of code i
//! byte 6..22   qs[16]   low nibble of byte i: the low bits of code i, high nibble: of code 16 + i
//! weight = d * (code - 16)
//! ```
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `(code[i] - 16) * x.q[i]`.

use super::{
    Format, QuantizedRow, Quantizer, each_block, each_block_mut, half, inverse, signed_max, to_half,
};
use crate::fma::Fma;

const LEN: usize = 32;
const D: usize = 0;
const QH: usize = D + 2;
const QS: usize = QH + LEN / 8;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 22);

/// 5-bit symmetric weights in blocks of 32.
pub static Q5_0: Format = Format {
    name: "q5_0",
    ggml_type: 6,
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
        i32::from(low | high << 4) - 16
    })
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q5_0, blocks, out) {
        let d = half(&block[D..]);
        for (out, q) in out.iter_mut().zip(codes(block)) {
            *out = d * q as f32;
        }
    }
}

/// The value of largest magnitude becomes code 0 (-16), whatever its sign.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&Q5_0, weights, blocks) {
        let d = signed_max(weights) / -16.0;
        let id = inverse(d);
        block.fill(0);
        block[D..QH].copy_from_slice(&to_half(d));
        for (i, w) in weights.iter().enumerate() {
            let code = ((w * id + 16.5) as u8).min(31);
            block[QS + i % 16] |= (code & 0x0f) << (i / 16 * 4);
            block[QH + i / 8] |= (code >> 4) << (i % 8);
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
