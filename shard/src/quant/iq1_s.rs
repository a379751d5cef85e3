//! IQ1_S: entries of a grid of 2048 ternary eights, moved by an eighth, a 3-bit scale per 32, 1.56 bits per weight.
//!
//! ```text
//! byte 0..2     d        f16 scale
//! byte 2..34    qs[32]   low bits of grid index k, which gives weights 8k..8k + 8
//! byte 34..50   qh[8]    u16 i: bits 3j..3j + 3 are the high bits of index 4 i + j, bits 12..15 the scale of weights
//!                        32 i..32 i + 32, bit 15 whether they are moved down
//! weight = d * (2 scale + 1) * (trit +- 1/8)
//! ```
//!
//! d1: see [`super::codebook`], one scale for 32 weights; table entries are `8 trit +- 1` with a unit of 1/8.

use super::Format;
use super::codebook::{Codebook, codebook, pair};
use super::grids::IQ1_GRID;

const QS: usize = 2;
const QH: usize = QS + 32;
const BYTES: usize = QH + 16;

codebook!(
    /// Ternary weights of a grid of eights in blocks of 256 with a scale per 32.
    IQ1_S,
    Iq1S,
    "iq1_s",
    19,
    BYTES
);

/// Eight times what trits -1, 0, 1 stand for, moved up and moved down.
pub(super) const MOVED: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The 32 codes of four grid entries, each moved up or down.
pub(super) fn moved(index: impl Fn(usize) -> usize, down: impl Fn(usize) -> bool) -> [u8; 32] {
    std::array::from_fn(|i| {
        let k = i / 8;
        (IQ1_GRID[index(k)] >> (2 * (i % 8)) & 3) as u8 | u8::from(down(k)) << 2
    })
}

impl Codebook for Iq1S {
    const FORMAT: &'static Format = &IQ1_S;
    const TABLE: [i8; 16] = MOVED;
    const UNIT: f32 = 0.125;
    const HALVES: bool = false;
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let high = usize::from(pair(block, QH + 2 * i));
        moved(|k| usize::from(block[QS + 4 * i + k]) | (high >> (3 * k) & 7) << 8, |_| high >> 15 != 0)
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        [1 + 2 * (pair(block, QH + 2 * i) >> 12 & 7) as i8; 2]
    }
}
