//! Q6_K: 256 six-bit codes and an 8-bit scale per 16, 6.5625 bits per weight.
//!
//! ```text
//! byte 0..128     ql[128]      low 4 bits of code 128 h + 32 k + i: nibble k / 2 of byte 64 h + 32 (k % 2) + i
//! byte 128..192   qh[64]       high 2 bits of it: bits 2k, 2k + 1 of byte 32 h + i    (h < 2, k < 4, i < 32)
//! byte 192..208   scales[16]   i8, sc[j] of group j of 16
//! byte 208..210   d            f16, unit of the scales
//! weight = (d * sc) * (code - 32)
//! ```
//!
//! d1, per 32 weights b ascending, halves 0 and 1 of 16: with the exact integer
//! `isum = sc0 * idot0 + sc1 * idot1` (below 2^24, so exact in f32 too), `idot` over `code - 32`:
//! `acc = fma(isum as f32, d * x.d[b], acc)`.

use super::symmetric::{self, level};
use super::{Format, QuantizedRow, Quantizer, each_block, half, inverse};
use crate::fma::Fma;

const LEN: usize = 256;
const QL: usize = 0;
const QH: usize = QL + LEN / 2;
const SCALES: usize = QH + LEN / 4;
const D: usize = SCALES + LEN / 16;
const BYTES: usize = D + 2;
const _: () = assert!(BYTES == 210);

/// 6-bit symmetric weights with 8-bit scales in blocks of 256.
pub static Q6_K: Format = Format {
    name: "q6_k",
    ggml_type: 14,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Search(fill)),
    dot,
    integer: true,
};

/// Where code `at` of a block is: byte and shift of its low bits, byte and shift of its high bits.
fn place(at: usize) -> (usize, usize, usize, usize) {
    let (h, k, i) = (at / 128, at / 32 % 4, at % 32);
    (QL + 64 * h + 32 * (k % 2) + i, k / 2 * 4, QH + 32 * h + i, k * 2)
}

/// The codes of group `j` of 16, less 32.
fn codes(block: &[u8], j: usize) -> [i32; 16] {
    std::array::from_fn(|i| {
        let (low, low_shift, high, high_shift) = place(16 * j + i);
        i32::from(block[low] >> low_shift & 0x0f | (block[high] >> high_shift & 3) << 4) - 32
    })
}

/// The scale of group `j` of 16.
fn scale(block: &[u8], j: usize) -> i32 {
    i32::from(block[SCALES + j] as i8)
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q6_K, blocks, out) {
        let d = half(&block[D..]);
        for (j, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * scale(block, j) as f32;
            for (out, q) in out.iter_mut().zip(codes(block, j)) {
                *out = scale * q as f32;
            }
        }
    }
}

/// Finds each group's best scale, rounds the scales to 8 bits as [`symmetric::fit`] says, then the weights to 6.
fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    block.fill(0);
    let fit = symmetric::levels(weights, importance, 32.0, -128.0);
    block[D..].copy_from_slice(&fit.d);
    let unit = half(&block[D..]);
    for (j, (weights, sc)) in weights.chunks_exact(16).zip(fit.scales).enumerate() {
        block[SCALES + j] = sc as u8;
        let per_scale = inverse(unit * f32::from(sc));
        for (i, w) in weights.iter().enumerate() {
            let code = (level(w * per_scale, 32.0) as i8 + 32) as u8;
            let (low, low_shift, high, high_shift) = place(16 * j + i);
            block[low] |= (code & 0x0f) << low_shift;
            block[high] |= (code >> 4) << high_shift;
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
