//! IQ2_XS: entries of a grid of 512 eights with signs, a 4-bit scale per 16, 2.31 bits per weight.
//!
//! ```text
//! byte 0..2     d           f16 scale
//! byte 2..66    qs[32]      u16 k: nine bits of grid index, then seven signs (the eighth makes their number even), of
//!                           weights 8k..8k + 8
//! byte 66..74   scales[8]   nibble j: scale of weights 16 j..16 j + 16
//! weight = d * (0.5 + scale) / 4 * +-LEVELS[level]
//! ```
//!
//! d1: see [`super::codebook`], a scale for each half: `2 scale + 1` with a unit of 1/8.

use super::Format;
use super::codebook::{Codebook, codebook, eights, even_signs, nibble, pair, signed};
use super::grids::IQ2_XS_GRID;
use super::iq2_xxs::LEVELS;

const QS: usize = 2;
const SCALES: usize = QS + 64;
const BYTES: usize = SCALES + 8;

codebook!(
    /// 2-bit weights of a grid of eights in blocks of 256 with a scale per 16.
    IQ2_XS,
    Iq2Xs,
    "iq2_xs",
    17,
    BYTES
);

impl Codebook for Iq2Xs {
    const FORMAT: &'static Format = &IQ2_XS;
    const TABLE: [i8; 16] = signed(&LEVELS);
    const UNIT: f32 = 0.125;
    const HALVES: bool = true;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let word = |k: usize| pair(block, QS + 8 * i + 2 * k);
        eights(
            |k| IQ2_XS_GRID[usize::from(word(k) & 511)],
            std::array::from_fn(|k| even_signs((word(k) >> 9) as u8)),
        )
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [0, 1].map(|h| 1 + 2 * nibble(block, SCALES, 2 * i + h) as i8)
    }
}
