//! Q2_0: 64 weights in two bits each and one scale, 2.25 bits per weight.
//!
//! ```text
//! byte 0..2     d        f16 scale
//! byte 2..18    qs[16]   bits 2j, 2j + 1 of byte i: code 4 i + j
//! weight = d * (code - 1)
//! ```
//!
//! d1: as [`super::tq2_0`].

use super::{
    Format,
    tq2_0::{dequantize, dot},
};

const QS: usize = 2;
const BYTES: usize = QS + 16;

/// 2-bit weights in blocks of 64.
pub static Q2_0: Format = Format {
    name: "q2_0",
    ggml_type: 42,
    block_len: 64,
    block_bytes: BYTES,
    dequantize: |blocks, out| dequantize(&Q2_0, 0, codes, blocks, out),
    quantizer: None,
    dot: |row, x| dot(&Q2_0, 0, codes, row, x),
    integer: true,
};

/// Codes `32 i..32 i + 32`.
pub(crate) fn codes(block: &[u8], i: usize) -> [u8; 32] {
    std::array::from_fn(|j| block[QS + 8 * i + j / 4] >> (j % 4 * 2) & 3)
}
