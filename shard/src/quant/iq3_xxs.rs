//! IQ3_XXS: entries of a grid of 256 fours with signs, a 4-bit scale per 32, 3.06 bits per weight.
//!
//! ```text
//! byte 0..2     d         f16 scale
//! byte 2..66    qs[64]    grid index k, which gives weights 4k..4k + 4
//! byte 66..98   more[8]   u32 i: four times seven signs of eight weights (the eighth makes their number even), then
//!                         in the top four bits the scale of weights 32 i..32 i + 32
//! weight = d * (0.5 + scale) / 2 * +-LEVELS[level]
//! ```
//!
//! d1: see [`super::codebook`], one scale for 32 weights: `2 scale + 1` with a unit of 1/4.

use super::Format;
use super::codebook::{Codebook, codebook, even_signs, fours, pair, signed};
use super::grids::IQ3_XXS_GRID;

const QS: usize = 2;
const MORE: usize = QS + 64;
const BYTES: usize = MORE + 32;

codebook!(
    /// 3-bit weights of a small grid of fours in blocks of 256 with a scale per 32.
    IQ3_XXS,
    Iq3Xxs,
    "iq3_xxs",
    18,
    BYTES
);

/// Word `i` of the signs and scales.
fn more(block: &[u8], i: usize) -> u32 {
    let at = MORE + 4 * i;
    u32::from(pair(block, at)) | u32::from(pair(block, at + 2)) << 16
}

impl Codebook for Iq3Xxs {
    const FORMAT: &'static Format = &IQ3_XXS;
    const TABLE: [i8; 16] = signed(&[4, 12, 20, 28, 36, 44, 52, 62]);
    const UNIT: f32 = 0.25;
    const HALVES: bool = false;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let signs = more(block, i);
        fours(
            |k| IQ3_XXS_GRID[usize::from(block[QS + 8 * i + k])],
            std::array::from_fn(|k| even_signs((signs >> (7 * k)) as u8)),
        )
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [1 + 2 * (more(block, i) >> 28) as i8; 2]
    }
}
