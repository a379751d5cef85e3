//! What the formats share whose 256 weights are entries of a small table: codes, a scale per 16 or 32, one f16 scale.
//!
//! ```text
//! weight = d * scale[i / 16] * UNIT * TABLE[code[i]]
//! ```
//!
//! Table entries and scales are small integers and `UNIT` is a power of two, so a weight is exact in f32 and sums inside
//! a block are exact integers.
//!
//! d1, per 32-block b ascending, with `idot` the exact sum of `TABLE[code[i]] * x.q[i]`:
//! one scale for 32 weights: `acc = fma(idot as f32, d * scale * UNIT * x.d[b], acc)`;
//! a scale for each half: `acc = fma(isum as f32, d * UNIT * x.d[b], acc)` with `isum = scale[0] * idot[0] + scale[1] * idot[1]`.

use super::{Format, QuantizedRow, half};
use crate::fma::Fma;

/// Weights of a block.
pub(crate) const LEN: usize = 256;

/// A format of this kind: where its blocks keep what.
pub(crate) trait Codebook: 'static {
    /// The row of the table of formats.
    const FORMAT: &'static Format;
    /// What the codes stand for.
    const TABLE: [i8; 16];
    /// Factor of all scales, a power of two.
    const UNIT: f32;
    /// Whether every 16 weights have their own scale, not every 32.
    const HALVES: bool;
    /// The f16 scale of a block.
    fn d(block: &[u8]) -> [u8; 2];
    /// The codes of weights `32 i..32 i + 32`.
    fn codes(block: &[u8], i: usize) -> [u8; 32];
    /// The scales of their halves; equal without `HALVES`.
    fn scales(block: &[u8], i: usize) -> [i8; 2];
}

fn values<C: Codebook>(block: &[u8], i: usize) -> [i32; 32] {
    C::codes(block, i).map(|code| C::TABLE[usize::from(code)].into())
}

pub(super) fn dequantize<C: Codebook>(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in super::each_block(C::FORMAT, blocks, out) {
        let d = half(&C::d(block));
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            let scales = C::scales(block, i).map(|scale| d * f32::from(scale) * C::UNIT);
            for (at, (out, value)) in out.iter_mut().zip(values::<C>(block, i)).enumerate() {
                *out = scales[at / 16] * value as f32;
            }
        }
    }
}

pub(super) fn dot<C: Codebook>(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(C::FORMAT.block_bytes).enumerate() {
        let d = half(&C::d(block));
        for i in 0..LEN / 32 {
            let at = s * LEN + 32 * i;
            let (values, scales) = (values::<C>(block, i), C::scales(block, i));
            acc = if C::HALVES {
                let part = |h: usize| -> i32 {
                    let q = &x.q[at + 16 * h..][..16];
                    let idot: i32 =
                        values[16 * h..][..16].iter().zip(q).map(|(v, &q)| v * i32::from(q)).sum();
                    i32::from(scales[h]) * idot
                };
                ((part(0) + part(1)) as f32).fma(d * C::UNIT * x.d[at / 32], acc)
            } else {
                let scale = d * f32::from(scales[0]) * C::UNIT;
                (x.idot(at, &values) as f32).fma(scale * x.d[at / 32], acc)
            };
        }
    }
    acc
}

/// The signs of eight weights from the seven stored ones: their number is even.
pub(super) fn even_signs(seven: u8) -> u8 {
    let seven = seven & 0x7f;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The table of a grid of `levels` with the sign as the bit above the level.
pub(super) const fn signed(levels: &[i8]) -> [i8; 16] {
    let sign = levels.len().next_power_of_two();
    let mut table = [0; 16];
    let mut i = 0;
    while i < levels.len() {
        table[i] = levels[i];
        table[sign + i] = -levels[i];
        i += 1;
    }
    table
}

/// The 32 codes of eight grid entries of four weights: a level per nibble, a sign bit per weight.
pub(super) fn fours(grid: impl Fn(usize) -> u16, signs: [u8; 4]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let level = grid(i / 4) >> (4 * (i % 4)) & 7;
        level as u8 | (signs[i / 8] >> (i % 8) & 1) << 3
    })
}

/// The 32 codes of four grid entries of eight weights: a level per two bits, a sign bit per weight.
pub(super) fn eights(grid: impl Fn(usize) -> u16, signs: [u8; 4]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let level = grid(i / 8) >> (2 * (i % 8)) & 3;
        level as u8 | (signs[i / 8] >> (i % 8) & 1) << 2
    })
}

/// Two little-endian bytes from `at`.
pub(super) fn pair(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Nibble `i` from `at`, low ones first.
pub(super) fn nibble(block: &[u8], at: usize, i: usize) -> u8 {
    block[at + i / 2] >> (i % 2 * 4) & 15
}

/// The row of the table of formats of a codebook.
macro_rules! codebook {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $text:literal, $number:literal, $bytes:expr) => {
        codebook!($(#[$doc])* $name, $kind, $text, $number, $bytes, None);
    };
    ($(#[$doc:meta])* $name:ident, $kind:ident, $text:literal, $number:literal, $bytes:expr, $quantizer:expr) => {
        $(#[$doc])*
        pub static $name: crate::quant::Format = crate::quant::Format {
            name: $text,
            ggml_type: $number,
            block_len: crate::quant::codebook::LEN,
            block_bytes: $bytes,
            dequantize: crate::quant::codebook::dequantize::<$kind>,
            quantizer: $quantizer,
            dot: crate::quant::codebook::dot::<$kind>,
            integer: true,
        };

        /// The layout of its blocks.
        pub(crate) struct $kind;
    };
}
pub(super) use codebook;
