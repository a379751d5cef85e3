//! IQ4_NL: 32 four-bit codes into a table of unevenly spaced values, and one scale, 4.5 bits per weight.
//!
//! ```text
//! byte 0..2    d        f16 scale
//! byte 2..18   qs[16]   low nibble of byte i: code i, high nibble: code 16 + i
//! weight = d * VALUES[code]
//! ```
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `VALUES[code[i]] * x.q[i]`. There is no quantizer.

use super::{Format, QuantizedRow, each_block, half};

const LEN: usize = 32;
const D: usize = 0;
const QS: usize = D + 2;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 18);

/// What the codes stand for: denser around zero, where most weights are.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 4-bit weights of a fixed non-linear table in blocks of 32.
pub static IQ4_NL: Format = Format {
    name: "iq4_nl",
    ggml_type: 20,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantize: None,
    dot,
    integer: true,
};

fn values(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(VALUES[usize::from(block[QS + i % 16] >> (i / 16 * 4) & 0x0f)]))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&IQ4_NL, blocks, out) {
        let d = half(&block[D..]);
        for (out, value) in out.iter_mut().zip(values(block)) {
            *out = d * value as f32;
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.chunks_exact(BYTES).enumerate() {
        let idot = x.idot(b * LEN, &values(block));
        acc = (idot as f32).mul_add(half(&block[D..]) * x.d[b], acc);
    }
    acc
}
