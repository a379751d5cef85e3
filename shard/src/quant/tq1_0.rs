//! TQ1_0: 256 ternary weights, five to a byte, and one scale, 1.69 bits per weight.
//!
//! A byte holds digits of base three as a fraction of 256: multiplied by 3^n (keeping eight bits), its next digit is
//! the whole part of three times the fraction.
//!
//! ```text
//! byte 0..32    digit n of byte j: code 32 n + j, n < 5
//! byte 32..48   digit n of byte j: code 160 + 16 n + j, n < 5
//! byte 48..52   digit n of byte j: code 240 + 4 n + j, n < 4
//! byte 52..54   d   f16 scale
//! weight = d * (code - 1)
//! ```
//!
//! d1: as [`super::tq2_0`]. In memory the codes take two bits each.

use super::tq2_0::{LEN, dequantize, dot, trits};
use super::{Format, Quantizer, each_block_mut};

const D: usize = 52;
const BYTES: usize = D + 2;

/// Ternary weights in blocks of 256, five to a byte.
pub static TQ1_0: Format = Format {
    name: "tq1_0",
    ggml_type: 34,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize: |blocks, out| dequantize(&TQ1_0, D, codes, blocks, out),
    quantizer: Some(Quantizer::Plain(quantize)),
    dot: |row, x| dot(&TQ1_0, D, codes, row, x),
    integer: true,
};

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// The byte and the digit of code `i`.
fn place(i: usize) -> (usize, usize) {
    match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    }
}

/// Codes `32 i..32 i + 32`.
pub(crate) fn codes(block: &[u8], i: usize) -> [u8; 32] {
    std::array::from_fn(|j| {
        let (byte, digit) = place(32 * i + j);
        let fraction = block[byte].wrapping_mul(POWERS[digit]);
        ((u16::from(fraction) * 3) >> 8) as u8
    })
}

fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&TQ1_0, weights, blocks) {
        let (codes, d) = trits(weights);
        let mut numbers = [0u16; D];
        for (i, code) in codes.into_iter().enumerate() {
            let (byte, digit) = place(i);
            numbers[byte] += u16::from(code) * u16::from(POWERS[4 - digit]);
        }
        for (byte, number) in block.iter_mut().zip(numbers) {
            *byte = (number * 256).div_ceil(243) as u8;
        }
        block[D..].copy_from_slice(&d);
    }
}
