//! IQ2_S: entries of a grid of 1024 eights with signs, a 4-bit scale per 16, 2.56 bits per weight.
//!
//! ```text
//! byte 0..2     d           f16 scale
//! byte 2..34    qs[32]      low bits of grid index k, which gives weights 8k..8k + 8
//! byte 34..66   signs[32]   bit j of byte k: the sign of weight 8k + j
//! byte 66..74   qh[8]       bits 2j, 2j + 1 of byte i: the high bits of index 4 i + j
//! byte 74..82   scales[8]   nibble j: scale of weights 16 j..16 j + 16
//! weight = d * (0.5 + scale) / 4 * +-LEVELS[level]
//! ```
//!
//! d1: see [`super::codebook`], a scale for each half: `2 scale + 1` with a unit of 1/8.

use super::Format;
use super::codebook::{Codebook, codebook, eights, nibble, signed};
use super::grids::IQ2_S_GRID;
use super::iq2_xxs::LEVELS;

const QS: usize = 2;
const SIGNS: usize = QS + 32;
const QH: usize = SIGNS + 32;
const SCALES: usize = QH + 8;
const BYTES: usize = SCALES + 8;

codebook!(
    /// 2-bit weights of a large grid of eights in blocks of 256 with a scale per 16.
    IQ2_S,
    Iq2S,
    "iq2_s",
    22,
    BYTES
);

impl Codebook for Iq2S {
    const FORMAT: &'static Format = &IQ2_S;
    const TABLE: [i8; 16] = signed(&LEVELS);
    const UNIT: f32 = 0.125;
    const HALVES: bool = true;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let high = usize::from(block[QH + i]);
        let index = |k: usize| usize::from(block[QS + 4 * i + k]) | (high >> (2 * k) & 3) << 8;
        eights(|k| IQ2_S_GRID[index(k)], std::array::from_fn(|k| block[SIGNS + 4 * i + k]))
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [0, 1].map(|h| 1 + 2 * nibble(block, SCALES, 2 * i + h) as i8)
    }
}
