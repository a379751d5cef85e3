//! IQ4_NL: 32 four-bit codes into a table of unevenly spaced values, and one scale, 4.5 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..18   qs[16]   low nibble of byte i: code i, high nibble: code 16 + i
//! weight = d * VALUES[code]
//! ```
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `VALUES[code[i]] * x.q[i]`.

use super::symmetric::most_explained;
use super::{Format, QuantizedRow, Quantizer, each_block, half, importances, inverse, to_half};
use crate::fma::Fma;

const LEN: usize = 32;
const D: usize = 0;
const QS: usize = D + 2;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 18);

/// What the codes stand for: denser around zero, where most weights are.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 4-bit weights of a fixed non-linear table in blocks of 32.
pub static IQ4_NL: Format = Format {
    name: "iq4_nl",
    ggml_type: 20,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Search(fill)),
    dot,
    integer: true,
};

fn values(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(VALUES[usize::from(block[QS + i % 16] >> (i / 16 * 4) & 0x0f)]))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&IQ4_NL, blocks, out) {
        let d = half(&block[D..]);
        for (out, value) in out.iter_mut().zip(values(block)) {
            *out = d * value as f32;
        }
    }
}

/// The code whose value is closest, the lower one of two.
pub(super) fn code(value: f32) -> u8 {
    let below = VALUES.partition_point(|v| f32::from(*v) < value).clamp(1, 15);
    let [low, high] = [below - 1, below].map(|code| f32::from(VALUES[code]));
    if value - low <= high - value { below as u8 - 1 } else { below as u8 }
}

/// The value that is closest.
pub(super) fn value(value: f32) -> f32 {
    VALUES[usize::from(code(value))].into()
}

/// The scale with which values fit some weights best: see [`most_explained`], with the largest magnitude around the ends of the table.
pub(super) fn best_scale(weights: &[f32], importance: &[f32]) -> f32 {
    let ends = [VALUES[0], VALUES[15]].map(f32::from);
    let ends = ends.into_iter().flat_map(|end| (-7..=7).map(move |step| end + step as f32));
    most_explained(weights, importance, ends, value)
}

fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let best = best_scale(weights, &importances(weights, importance));
    block[D..QS].copy_from_slice(&to_half(best));
    let per_scale = inverse(half(&block[D..]));
    for (i, byte) in block[QS..].iter_mut().enumerate() {
        *byte = code(weights[i] * per_scale) | code(weights[16 + i] * per_scale) << 4;
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.chunks_exact(BYTES).enumerate() {
        let idot = x.idot(b * LEN, &values(block));
        acc = (idot as f32).fma(half(&block[D..]) * x.d[b], acc);
    }
    acc
}
