//! IQ1_M: as IQ1_S with a 3-bit scale per 16 and a direction per 8, 1.75 bits per weight.
//!
//! ```text
//! byte 0..32    qs[32]      low bits of grid index k, which gives weights 8k..8k + 8
//! byte 32..48   qh[16]      nibble k: three high bits of index k, then whether its weights are moved down
//! byte 48..56   scales[4]   u16 j: bits 3s..3s + 3 are the scale of weights 64 j + 16 s.., the top four bits are bits
//!                           4j..4j + 4 of the f16 scale d
//! weight = d * (2 scale + 1) * (trit +- 1/8)
//! ```
//!
//! d1: see [`super::codebook`], a scale for each half; table entries are `8 trit +- 1` with a unit of 1/8.

use super::Format;
use super::codebook::{Codebook, codebook, nibble, pair};
use super::iq1_s::{MOVED, moved};

const QS: usize = 0;
const QH: usize = QS + 32;
const SCALES: usize = QH + 16;
const BYTES: usize = SCALES + 8;

codebook!(
    /// Ternary weights of a grid of eights in blocks of 256 with a scale per 16.
    IQ1_M,
    Iq1M,
    "iq1_m",
    29,
    BYTES
);

impl Codebook for Iq1M {
    const FORMAT: &'static Format = &IQ1_M;
    const TABLE: [i8; 16] = MOVED;
    const UNIT: f32 = 0.125;
    const HALVES: bool = true;
    fn d(block: &[u8]) -> [u8; 2] {
        let part = |j: usize| pair(block, SCALES + 2 * j) >> 12 << (4 * j);
        (part(0) | part(1) | part(2) | part(3)).to_le_bytes()
    }
    fn codes(block: &[u8], i: usize) -> [u8; 32] {
        let high = |k: usize| nibble(block, QH, 4 * i + k);
        moved(|k| usize::from(block[QS + 4 * i + k]) | usize::from(high(k) & 7) << 8, |k| high(k) & 8 != 0)
    }
    fn scales(block: &[u8], i: usize) -> [i8; 2] {
        let word = pair(block, SCALES + i / 2 * 2);
        [0, 1].map(|h| 1 + 2 * (word >> (6 * (i % 2) + 3 * h) & 7) as i8)
    }
}
