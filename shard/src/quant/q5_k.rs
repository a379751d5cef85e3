//! Q5_K: 256 five-bit codes, a 6-bit scale and a 6-bit minimum per 32, 5.5 bits per weight.
//!
//! ```text
//! byte 0..2      d            f16, unit of the scales
//! byte 2..4      dmin         f16, unit of the minima
//! byte 4..16     scales[12]   sc[8] and mn[8], see `affine`
//! byte 16..48    qh[32]       bit g of byte i: the fifth bit of code 32 g + i                (g < 8, i < 32)
//! byte 48..176   qs[128]      low bits of code 64 p + i: low nibble of byte 32 p + i, of code 64 p + 32 + i:
//!                             its high nibble                                                        (p < 4)
//! weight = (d * sc) * code - (dmin * mn)
//! ```
//!
//! d1, per 32 weights b ascending, with `scale = d * sc` and `min = dmin * mn` (both exact in f32), `idot` the
//! exact sum of `code[i] * x.q[i]` and `xsum` that of `x.q[i]`:
//! `acc = fma(idot as f32, scale * x.d[b], acc)`, then `acc = fma(xsum as f32, -(min * x.d[b]), acc)`.

use super::{
    Format, QuantizedRow, Quantizer,
    affine::{self, Largest},
    each_block, half,
};
use crate::fma::Fma;

const LEN: usize = 256;
const D: usize = 0;
const DMIN: usize = D + 2;
const SCALES: usize = DMIN + 2;
const QH: usize = SCALES + 12;
const QS: usize = QH + LEN / 8;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 176);

/// 5-bit weights with 6-bit scales and minima in blocks of 256.
pub static Q5_K: Format = Format {
    name: "q5_k",
    ggml_type: 13,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Search(fill)),
    dot,
    integer: true,
};

/// The codes of group `g` of 32.
fn codes(block: &[u8], g: usize) -> [i32; 32] {
    std::array::from_fn(|i| {
        let low = block[QS + 32 * (g / 2) + i] >> (g % 2 * 4) & 0x0f;
        let high = block[QH + i] >> g & 1;
        i32::from(low | high << 4)
    })
}

/// Scale and minimum of group `g` of 32.
fn scale_min(block: &[u8], g: usize) -> (f32, f32) {
    let (sc, mn) = affine::scale_min(&block[SCALES..QH], g);
    (half(&block[D..]) * f32::from(sc), half(&block[DMIN..]) * f32::from(mn))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&Q5_K, blocks, out) {
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_min(block, g);
            for (out, q) in out.iter_mut().zip(codes(block, g)) {
                *out = scale * q as f32 - min;
            }
        }
    }
}

/// Searches scales and minima as [`affine::fit`] says.
fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let fit = affine::fit::<32>(weights, importance, Largest { code: 31, scale: 63 });
    block[D..DMIN].copy_from_slice(&fit.d);
    block[DMIN..SCALES].copy_from_slice(&fit.dmin);
    block[SCALES..QH].copy_from_slice(&affine::pack(&fit.scales));
    block[QH..].fill(0);
    for (at, code) in fit.codes.into_iter().enumerate() {
        let (g, i) = (at / 32, at % 32);
        block[QS + 32 * (g / 2) + i] |= (code & 0x0f) << (g % 2 * 4);
        block[QH + i] |= (code >> 4) << g;
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(BYTES).enumerate() {
        for g in 0..LEN / 32 {
            let at = s * LEN + g * 32;
            let (scale, min) = scale_min(block, g);
            let dx = x.d[at / 32];
            acc = (x.idot(at, &codes(block, g)) as f32).fma(scale * dx, acc);
            acc = (x.sum(at, 32) as f32).fma(-(min * dx), acc);
        }
    }
    acc
}
