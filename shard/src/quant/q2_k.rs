//! Q2_K: 256 two-bit codes, a 4-bit scale and a 4-bit minimum per 16, 2.625 bits per weight.
//!
//! ```text
//! byte 0..16    scales[16]   group j of 16: low nibble sc[j], high nibble mn[j]
//! byte 16..80   qs[64]       code 128 h + 32 k + i: bits 2k, 2k + 1 of byte 32 h + i   (h < 2, k < 4, i < 32)
//! byte 80..82   d            f16, unit of the scales
//! byte 82..84   dmin         f16, unit of the minima
//! weight = (d * sc) * code - (dmin * mn)
//! ```
//!
//! d1, per 32 weights b ascending, halves 0 and 1 of 16: with exact integers
//! `isum = sc0 * idot0 + sc1 * idot1` and `msum = mn0 * xsum0 + mn1 * xsum1`:
//! `acc = fma(isum as f32, d * x.d[b], acc)`, then `acc = fma(msum as f32, -(dmin * x.d[b]), acc)`.

use super::{
    Format, QuantizedRow, Quantizer,
    affine::{self, Largest},
    each_block, half,
};
use crate::fma::Fma;

const LEN: usize = 256;
const SCALES: usize = 0;
const QS: usize = SCALES + LEN / 16;
const D: usize = QS + LEN / 4;
const DMIN: usize = D + 2;
const BYTES: usize = DMIN + 2;
const _: () = assert!(BYTES == 84);

/// 2-bit weights with 4-bit scales and minima in blocks of 256.
pub static Q2_K: Format = Format {
    name: "q2_k",
    ggml_type: 10,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Search(fill)),
    dot,
    integer: true,
};

/// The codes of group `j` of 16.
fn codes(block: &[u8], j: usize) -> [i32; 16] {
    let (h, k, first) = (j / 8, j / 2 % 4, j % 2 * 16);
    std::array::from_fn(|i| i32::from(block[QS + 32 * h + first + i] >> (2 * k) & 3))
}

/// Scale and minimum of group `j` of 16.
fn scale_min(block: &[u8], j: usize) -> (i32, i32) {
    let byte = block[SCALES + j];
    (i32::from(byte & 0x0f), i32::from(byte >> 4))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q2_K, blocks, out) {
        let (d, dmin) = (half(&block[D..]), half(&block[DMIN..]));
        for (j, out) in out.chunks_exact_mut(16).enumerate() {
            let (sc, mn) = scale_min(block, j);
            let (scale, min) = (d * sc as f32, dmin * mn as f32);
            for (out, q) in out.iter_mut().zip(codes(block, j)) {
                *out = scale * q as f32 - min;
            }
        }
    }
}

/// Searches scales and minima as [`affine::fit`] says.
fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let fit = affine::fit::<16>(weights, importance, Largest { code: 3, scale: 15 });
    block[D..DMIN].copy_from_slice(&fit.d);
    block[DMIN..].copy_from_slice(&fit.dmin);
    block[SCALES..QS].iter_mut().zip(&fit.scales).for_each(|(byte, (sc, mn))| *byte = sc | mn << 4);
    for (i, byte) in block[QS..D].iter_mut().enumerate() {
        let first = 128 * (i / 32) + i % 32;
        *byte = (0..4).map(|k| fit.codes[first + 32 * k] << (2 * k)).sum();
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(BYTES).enumerate() {
        let (d, dmin) = (half(&block[D..]), half(&block[DMIN..]));
        for g in 0..LEN / 32 {
            let (mut isum, mut msum) = (0, 0);
            for j in [2 * g, 2 * g + 1] {
                let (sc, mn) = scale_min(block, j);
                isum += sc * x.idot(s * LEN + j * 16, &codes(block, j));
                msum += mn * x.sum(s * LEN + j * 16, 16);
            }
            let dx = x.d[s * LEN / 32 + g];
            acc = (isum as f32).fma(d * dx, acc);
            acc = (msum as f32).fma(-(dmin * dx), acc);
        }
    }
    acc
}
