//! IQ2_XXS: entries of a grid of 256 eights with signs, a 4-bit scale per 32, 2.06 bits per weight.
//!
//! ```text
//! byte 0..2     d        f16 scale
//! byte 2..66    qs[8]    eight bytes for weights 32 i..32 i + 32: four grid indices, then a u32 of four times seven
//!                        signs (the eighth makes their number even) and in the top four bits the scale
//! weight = d * (0.5 + scale) / 4 * +-LEVELS[level]
//! ```
//!
//! d1: see [`super::codebook`], one scale for 32 weights: `2 scale + 1` with a unit of 1/8.

use super::Format;
use super::codebook::{Codebook, codebook, eights, even_signs, pair, signed};
use super::grids::IQ2_XXS_GRID;

const QS: usize = 2;
const BYTES: usize = QS + 64;

codebook!(
    /// 2-bit weights of a grid of eights in blocks of 256 with a scale per 32.
    IQ2_XXS,
    Iq2Xxs,
    "iq2_xxs",
    16,
    BYTES
);

/// The levels of the grids of two bits.
pub(super) const LEVELS: [i8; 3] = [8, 25, 43];

/// The word of signs and scale of group `i`.
fn more(block: &[u8], i: usize) -> u32 {
    let at = QS + 8 * i + 4;
    u32::from(pair(block, at)) | u32::from(pair(block, at + 2)) << 16
}

impl Codebook for Iq2Xxs {
    const FORMAT: &'static Format = &IQ2_XXS;
    const TABLE: [i8; 16] = signed(&LEVELS);
    const UNIT: f32 = 0.125;
    const HALVES: bool = false;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let signs = more(block, i);
        eights(
            |k| IQ2_XXS_GRID[usize::from(block[QS + 8 * i + k])],
            std::array::from_fn(|k| even_signs((signs >> (7 * k)) as u8)),
        )
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [1 + 2 * (more(block, i) >> 28) as i8; 2]
    }
}
