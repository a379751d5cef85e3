//! Q3_K: 256 three-bit codes and a 6-bit scale per 16, 3.4375 bits per weight.
//!
//! ```text
//! byte 0..32     hmask[32]    bit g of byte i: the third bit of code 32 g + i   (g < 8, i < 32)
//! byte 32..96    qs[64]       low bits of code 128 h + 32 k + i: bits 2k, 2k + 1 of byte 32 h + i
//! byte 96..108   scales[12]   sc[j] + 32, low 4 bits: nibble j / 8 of byte j % 8,
//!                             high 2 bits: bits 2 (j / 4) and up of byte 8 + j % 4
//! byte 108..110  d            f16, unit of the scales
//! weight = (d * sc) * (code - 4)
//! ```
//!
//! d1, per 32 weights b ascending, halves 0 and 1 of 16: with the exact integer
//! `isum = sc0 * idot0 + sc1 * idot1`, `idot` over `code - 4`: `acc = fma(isum as f32, d * x.d[b], acc)`.

use super::symmetric::{self, level};
use super::{Format, QuantizedRow, Quantizer, each_block, half, inverse};
use crate::fma::Fma;

const LEN: usize = 256;
const HMASK: usize = 0;
const QS: usize = HMASK + LEN / 8;
const SCALES: usize = QS + LEN / 4;
const D: usize = SCALES + 12;
const BYTES: usize = D + 2;
const _: () = assert!(BYTES == 110);

/// 3-bit symmetric weights with 6-bit scales in blocks of 256.
pub static Q3_K: Format = Format {
    name: "q3_k",
    ggml_type: 11,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Search(fill)),
    dot,
    integer: true,
};

/// The codes of group `j` of 16, less 4.
fn codes(block: &[u8], j: usize) -> [i32; 16] {
    let (g, first) = (j / 2, j % 2 * 16);
    std::array::from_fn(|i| {
        let low = block[QS + 32 * (g / 4) + first + i] >> (2 * (g % 4)) & 3;
        let high = block[HMASK + first + i] >> g & 1;
        i32::from(low | high << 2) - 4
    })
}

/// The scale of group `j` of 16.
fn scale(block: &[u8], j: usize) -> i32 {
    let low = block[SCALES + j % 8] >> (j / 8 * 4) & 0x0f;
    let high = block[SCALES + 8 + j % 4] >> (j / 4 * 2) & 3;
    i32::from(low | high << 4) - 32
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q3_K, blocks, out) {
        let d = half(&block[D..]);
        for (j, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * scale(block, j) as f32;
            for (out, q) in out.iter_mut().zip(codes(block, j)) {
                *out = scale * q as f32;
            }
        }
    }
}

/// Finds each group's best scale, rounds the scales to 6 bits as [`symmetric::fit`] says, then the weights to 3.
fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    block.fill(0);
    let fit = symmetric::levels(weights, importance, 4.0, -32.0);
    block[D..].copy_from_slice(&fit.d);
    let unit = half(&block[D..]);
    for (j, (weights, sc)) in weights.chunks_exact(16).zip(fit.scales).enumerate() {
        let bits = (sc + 32) as u8;
        block[SCALES + j % 8] |= (bits & 0x0f) << (j / 8 * 4);
        block[SCALES + 8 + j % 4] |= (bits >> 4) << (j / 4 * 2);
        let (per_scale, g, first) = (inverse(unit * f32::from(sc)), j / 2, j % 2 * 16);
        for (i, w) in weights.iter().enumerate() {
            let code = (level(w * per_scale, 4.0) as i8 + 4) as u8;
            block[QS + 32 * (g / 4) + first + i] |= (code & 3) << (2 * (g % 4));
            block[HMASK + first + i] |= (code >> 2) << g;
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(BYTES).enumerate() {
        let d = half(&block[D..]);
        for g in 0..LEN / 32 {
            let isum: i32 = [2 * g, 2 * g + 1]
                .into_iter()
                .map(|j| scale(block, j) * x.idot(s * LEN + j * 16, &codes(block, j)))
                .sum();
            acc = (isum as f32).fma(d * x.d[s * LEN / 32 + g], acc);
        }
    }
    acc
}
