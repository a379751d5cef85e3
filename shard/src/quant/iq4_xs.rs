//! IQ4_XS: 256 four-bit codes into the table of IQ4_NL, a 6-bit scale per 32, 4.25 bits per weight.
//!
//! ```text
//! byte 0..2     d             f16 scale
//! byte 2..4     scales_h      u16, bits 2i, 2i + 1: the high bits of scale i
//! byte 4..8     scales_l[4]   nibble i: the low bits of scale i
//! byte 8..136   qs[8][16]     low nibble of byte j of group i: code 32 i + j, high nibble: code 32 i + 16 + j
//! weight = d * (scale - 32) * VALUES[code]
//! ```
//!
//! d1: see [`super::codebook`], one scale for 32 weights.

use super::codebook::{Codebook, codebook, nibble, pair};
use super::iq4_nl::{best_scale, code, value};
use super::{Format, IQ4_NL_VALUES, Quantizer, half, importances, inverse, symmetric};

const QS: usize = 8;
const BYTES: usize = QS + 128;

codebook!(
    /// 4-bit weights of a fixed non-linear table in blocks of 256 with a scale per 32.
    IQ4_XS,
    Iq4Xs,
    "iq4_xs",
    23,
    BYTES,
    Some(Quantizer::Search(fill))
);

impl Codebook for Iq4Xs {
    const FORMAT: &'static Format = &IQ4_XS;
    const TABLE: [i8; 16] = IQ4_NL_VALUES;
    const UNIT: f32 = 1.0;
    const HALVES: bool = false;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        std::array::from_fn(|j| block[QS + 16 * i + j % 16] >> (j / 16 * 4) & 15)
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        let high = (pair(block, 2) >> (2 * i) & 3) as i8;
        [(nibble(block, 4, i) as i8 | high << 4) - 32; 2]
    }
}

/// Finds each group's best scale and rounds the scales to 6 bits as [`symmetric::fit`] says.
fn fill(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    block.fill(0);
    let importance = importances(weights, importance);
    let groups = weights.chunks_exact(32).zip(importance.chunks_exact(32));
    let wanted: Vec<f32> = groups.map(|(weights, importance)| best_scale(weights, importance)).collect();
    let fit = symmetric::fit(weights, &importance, &wanted, -32.0, value);
    block[..2].copy_from_slice(&fit.d);
    let (unit, mut high) = (half(block), 0_u16);
    for (i, (weights, scale)) in weights.chunks_exact(32).zip(fit.scales).enumerate() {
        let bits = (scale + 32) as u8;
        high |= u16::from(bits >> 4) << (2 * i);
        block[4 + i / 2] |= (bits & 15) << (i % 2 * 4);
        let per_scale = inverse(unit * f32::from(scale));
        for (j, w) in weights.iter().enumerate() {
            block[QS + 16 * i + j % 16] |= code(w * per_scale) << (j / 16 * 4);
        }
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}
