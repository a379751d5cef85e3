//! NVFP4: 64 four-bit floats (E2M1), and an eight-bit float (E4M3, without its sign) as scale per 16, 4.5 bits per weight.
//!
//! ```text
//! byte 0..4     d[4]        scale of weights 16 s..16 s + 16
//! byte 4..36    qs[4][8]    low nibble of byte j of group s: code 16 s + j, high nibble: code 16 s + 8 + j
//! weight = d[s] / 2 * VALUES[code]
//! ```
//!
//! `VALUES` are those of [`super::mxfp4`], the floats times two. A scale of `0x7f`, which is no number, counts as 0.
//!
//! d1, per 32-block b ascending, with `h[0]` and `h[1]` the halved scales of its halves and `idot` the exact sums of
//! `VALUES[code[i]] * x.q[i]` over these: `acc = fma(fma(h[1], idot[1] as f32, h[0] * idot[0] as f32), x.d[b], acc)`. A scale has four
//! bits and such a sum fifteen, so both products are exact.

use super::{Format, MXFP4_VALUES as VALUES, QuantizedRow, each_block};
use crate::fma::Fma;

const LEN: usize = 64;
const QS: usize = 4;
const BYTES: usize = QS + LEN / 2;

/// 4-bit floats with an 8-bit float per 16.
pub static NVFP4: Format = Format {
    name: "nvfp4",
    ggml_type: 40,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: None,
    dot,
    integer: true,
};

/// A scale as a number below 16 in its low nibble and an exponent in its high one: half of it is `low * 2^(high - 10)`.
pub(crate) fn nibbles(scale: u8) -> u8 {
    let (exponent, mantissa) = (scale >> 3 & 15, scale & 7);
    match exponent {
        _ if scale == 0x7f => 0,
        0 => mantissa,
        exponent => (exponent - 1) << 4 | 8 | mantissa,
    }
}

/// Half of a scale.
pub(crate) fn halved(scale: u8) -> f32 {
    let nibbles = nibbles(scale);
    f32::from(nibbles & 15) * f32::from_bits((u32::from(nibbles >> 4) + 127 - 10) << 23)
}

/// What the codes of group `s` stand for, doubled.
fn values(block: &[u8], s: usize) -> [i32; 16] {
    std::array::from_fn(|j| i32::from(VALUES[usize::from(block[QS + 8 * s + j % 8] >> (j / 8 * 4) & 15)]))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&NVFP4, blocks, out) {
        for (s, out) in out.chunks_exact_mut(16).enumerate() {
            let d = halved(block[s]);
            for (out, value) in out.iter_mut().zip(values(block, s)) {
                *out = d * value as f32;
            }
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (at, block) in (0..).step_by(LEN).zip(row.chunks_exact(BYTES)) {
        for i in 0..2 {
            let [first, second] =
                [2 * i, 2 * i + 1].map(|s| (halved(block[s]), x.idot(at + 16 * s, &values(block, s)) as f32));
            let sum = second.0.fma(second.1, first.0 * first.1);
            acc = sum.fma(x.d[at / 32 + i], acc);
        }
    }
    acc
}
