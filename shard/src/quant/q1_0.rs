//! Q1_0: 128 signs in a bit each and one scale, 1.125 bits per weight.
//!
//! ```text
//! byte 0..2     d        f16 scale
//! byte 2..18    qs[16]   bit j of byte i: whether weight 8 i + j is positive
//! weight = d or -d
//! ```
//!
//! d1: as [`super::tq2_0`], with 0 for the code of a negative weight and 2 for that of a positive one.

use super::{
    Format,
    tq2_0::{dequantize, dot},
};

const QS: usize = 2;
const BYTES: usize = QS + 16;

/// Signs in blocks of 128.
pub static Q1_0: Format = Format {
    name: "q1_0",
    ggml_type: 41,
    block_len: 128,
    block_bytes: BYTES,
    dequantize: |blocks, out| dequantize(&Q1_0, 0, codes, blocks, out),
    quantizer: None,
    dot: |row, x| dot(&Q1_0, 0, codes, row, x),
    integer: true,
};

/// Codes `32 i..32 i + 32`.
pub(crate) fn codes(block: &[u8], i: usize) -> [u8; 32] {
    std::array::from_fn(|j| block[QS + 4 * i + j / 8] >> (j % 8) << 1 & 2)
}
