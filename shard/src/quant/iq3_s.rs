//! IQ3_S: entries of a grid of 512 fours, nine bits and four signs each, a 4-bit scale per 32, 3.44 bits per weight.
//!
//! ```text
//! byte 0..2      d           f16 scale
//! byte 2..66     qs[64]      low bits of grid index k, which gives weights 4k..4k + 4
//! byte 66..74    qh[8]       bit j of byte i: the ninth bit of index 8 i + j
//! byte 74..106   signs[32]   bit j of byte k: the sign of weight 8k + j
//! byte 106..110  scales[4]   nibble i: scale of weights 32 i..32 i + 32
//! weight = d * (1 + 2 scale) * +-(2 level + 1)
//! ```
//!
//! d1: see [`super::codebook`], one scale for 32 weights.

use super::Format;
use super::codebook::{Codebook, codebook, fours, nibble, signed};
use super::grids::IQ3_S_GRID;

const QS: usize = 2;
const QH: usize = QS + 64;
const SIGNS: usize = QH + 8;
const SCALES: usize = SIGNS + 32;
const BYTES: usize = SCALES + 4;

codebook!(
    /// 3-bit weights of a grid of fours in blocks of 256 with a scale per 32.
    IQ3_S,
    Iq3S,
    "iq3_s",
    21,
    BYTES
);

impl Codebook for Iq3S {
    const FORMAT: &'static Format = &IQ3_S;
    const TABLE: [i8; 16] = signed(&[1, 3, 5, 7, 9, 11, 13, 15]);
    const UNIT: f32 = 1.0;
    const HALVES: bool = false;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let high = usize::from(block[QH + i]);
        let index = |k: usize| usize::from(block[QS + 8 * i + k]) | (high >> k & 1) << 8;
        fours(|k| IQ3_S_GRID[index(k)], std::array::from_fn(|k| block[SIGNS + 4 * i + k]))
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [1 + 2 * nibble(block, SCALES, i) as i8; 2]
    }
}
