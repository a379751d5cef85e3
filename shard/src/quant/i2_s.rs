//! I2_S: 128 ternary weights in two bits each, and one scale for the whole matrix behind its codes, 2 bits per weight.
//!
//! ```text
//! byte 0..32    bits 6 - 2l, 7 - 2l of byte j: code 32 l + j
//! weight = (code - 1) times the scale of the matrix, whose f32 is followed by 28 bytes that say nothing
//! ```
//!
//! d1: as [`super::tq2_0`] with a scale of 1; a product is multiplied by the matrix's once its sum is there, as by other factors of
//! a matrix ([`crate::models::Factors`]).
//!
//! Layout as `ggml-bitnet-mad.cpp` of Microsoft's BitNet writes it on x86 and as the published BitNet-b1.58-2B-4T has it. Its later
//! builds write blocks of 64 on ARM under the same type number, which a file does not tell: such a file gives nonsense.

use super::{Format, QuantizedRow, each_block};
use crate::fma::Fma;

const LEN: usize = 128;
const BYTES: usize = LEN / 4;
/// Bytes behind the codes of a matrix.
pub(super) const TAIL: usize = 32;

/// Ternary weights in blocks of 128, two bits each, under one scale.
pub static I2_S: Format = Format {
    name: "i2_s",
    ggml_type: 36,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: None,
    dot,
    integer: true,
};

/// Codes `32 i..32 i + 32`.
pub(crate) fn codes(block: &[u8], i: usize) -> [u8; 32] {
    std::array::from_fn(|j| block[j] >> (6 - 2 * i) & 3)
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&I2_S, blocks, out) {
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, code) in out.iter_mut().zip(codes(block, i)) {
                *out = f32::from(code) - 1.0;
            }
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (s, block) in row.chunks_exact(BYTES).enumerate() {
        for i in 0..LEN / 32 {
            let values = codes(block, i).map(|code| i32::from(code) - 1);
            let at = s * LEN + 32 * i;
            acc = (x.idot(at, &values) as f32).fma(x.d[at / 32], acc);
        }
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the first group of 32 is in the top bits.
    #[test]
    fn the_first_weights_are_in_the_top_bits() {
        let mut block = [0b01_01_01_01; BYTES];
        block[0] = 0b10_01_00_01;
        block[31] = 0b00_01_01_10;
        let mut weights = [9.0; LEN];
        dequantize(&block, &mut weights);
        let other: Vec<(usize, f32)> =
            weights.iter().copied().enumerate().filter(|(_, weight)| *weight != 0.0).collect();
        assert_eq!(other, [(0, 1.0), (31, -1.0), (64, -1.0), (127, 1.0)]);
    }
}
