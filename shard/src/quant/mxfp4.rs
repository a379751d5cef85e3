//! MXFP4: 32 four-bit floats (E2M1) and a power of two as scale (E8M0), 4.25 bits per weight.
//!
//! ```text
//! byte 0       e        the scale is 2^(e - 127)
//! byte 1..17   qs[16]   low nibble of byte i: code i, high nibble: code 16 + i
//! weight = 2^(e - 128) * VALUES[code]
//! ```
//!
//! `VALUES` are the floats times two, so that they are integers (OCP Microscaling Formats 1.0, sections 5.3 and 5.4).
//!
//! d1, per block b ascending: `acc = fma(idot as f32, d * x.d[b], acc)` with `idot` the exact sum of
//! `VALUES[code[i]] * x.q[i]` and `d = 2^(e - 128)`, where `e = 0` counts as `d = 0`: such weights are below 4e-38.

use super::{Format, QuantizedRow, Quantizer, each_block, each_block_mut};
use crate::fma::Fma;

const LEN: usize = 32;
const QS: usize = 1;
const BYTES: usize = QS + LEN / 2;
const _: () = assert!(BYTES == 17);

/// Twice what the codes stand for.
pub const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 4-bit floats with a power of two per 32.
pub static MXFP4: Format = Format {
    name: "mxfp4",
    ggml_type: 39,
    block_len: LEN,
    block_bytes: BYTES,
    dequantize,
    quantizer: Some(Quantizer::Plain(quantize)),
    dot,
    integer: true,
};

/// `2^(e - 128)`; the two smallest are subnormal.
pub(crate) fn power(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

fn values(block: &[u8]) -> [i32; LEN] {
    std::array::from_fn(|i| i32::from(VALUES[usize::from(block[QS + i % 16] >> (i / 16 * 4) & 0x0f)]))
}

fn dequantize(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in each_block(&MXFP4, blocks, out) {
        let d = power(block[0]);
        for (out, value) in out.iter_mut().zip(values(block)) {
            *out = d * value as f32;
        }
    }
}

/// The largest weight gets the largest exponent of the codes; each weight the nearest value, the first of equals.
fn quantize(weights: &[f32], blocks: &mut [u8]) {
    for (weights, block) in each_block_mut(&MXFP4, weights, blocks) {
        let largest = weights.iter().fold(0.0f32, |max, w| max.max(w.abs()));
        // The biased exponent of a normal number is floor(log2) + 127.
        block.fill(0);
        block[0] = ((largest.to_bits() >> 23) as u8).saturating_sub(2);
        let d = power(block[0]);
        for (i, w) in weights.iter().enumerate() {
            let error = |code: &usize| (d * f32::from(VALUES[*code]) - w).abs();
            let nearest = (0..16).reduce(|best, code| if error(&code) < error(&best) { code } else { best });
            block[QS + i % 16] |= (nearest.unwrap_or(0) as u8) << (i / 16 * 4);
        }
    }
}

fn dot(row: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.chunks_exact(BYTES).enumerate() {
        let d = if block[0] == 0 { 0.0 } else { power(block[0]) };
        acc = (x.idot(b * LEN, &values(block)) as f32).fma(d * x.d[b], acc);
    }
    acc
}
