//! Weight formats on the device: how a kernel decodes each, and in which bytes.
//!
//! Most formats lie in the device's memory as the file stores them. Those whose codes need large grids or divisions are
//! repacked at load, as for the processor: entries of a table of sixteen in four bits ([`BOOK_BYTES`] for 256 weights), ternary
//! digits in two bits ([`TQ2_0`]), those under the scale of a matrix as [`quant::Q2_0`] with scales of 1.

use crate::quant::{
    self, Format, IQ4_NL_VALUES, MXFP4_VALUES, TQ2_0,
    codebook::{Codebook, LEN},
    i2_s,
    iq1_m::Iq1M,
    iq1_s::Iq1S,
    iq2_s::Iq2S,
    iq2_xs::Iq2Xs,
    iq2_xxs::Iq2Xxs,
    iq3_s::Iq3S,
    iq3_xxs::Iq3Xxs,
    iq4_xs::Iq4Xs,
    tq1_0,
};

/// Bytes of 256 weights of a codebook: scale f16, two bytes, scales of 16 as int8, codes of four bits.
const BOOK_BYTES: usize = 4 + 16 + LEN / 2;

/// Appends a row of the file's bytes as a kernel reads them.
type Repack = fn(row: &[u8], out: &mut Vec<u8>);

/// A weight format as a kernel reads it.
pub(super) struct DeviceFormat {
    /// WGSL: `fetch` and `chain` of 32 weights that read rounded activations, or `weight` of one that reads them as f32.
    pub source: String,
    /// Appends a row of the file's bytes as the kernel reads them; `None` for as they are.
    pub repack: Option<Repack>,
}

impl DeviceFormat {
    /// The format of this GGUF number; `None` for one that no kernel decodes.
    pub fn of(ggml_type: u32) -> Option<Self> {
        let plain = match ggml_type {
            0 => include_str!("wgsl/formats/f32.wgsl"),
            1 => include_str!("wgsl/formats/f16.wgsl"),
            2 => include_str!("wgsl/formats/q4_0.wgsl"),
            3 => include_str!("wgsl/formats/q4_1.wgsl"),
            6 => include_str!("wgsl/formats/q5_0.wgsl"),
            7 => include_str!("wgsl/formats/q5_1.wgsl"),
            8 => include_str!("wgsl/formats/q8_0.wgsl"),
            10 => include_str!("wgsl/formats/q2_k.wgsl"),
            11 => include_str!("wgsl/formats/q3_k.wgsl"),
            12 => include_str!("wgsl/formats/q4_k.wgsl"),
            13 => include_str!("wgsl/formats/q5_k.wgsl"),
            14 => include_str!("wgsl/formats/q6_k.wgsl"),
            30 => include_str!("wgsl/formats/bf16.wgsl"),
            35 => include_str!("wgsl/formats/tq2_0.wgsl"),
            41 => include_str!("wgsl/formats/q1_0.wgsl"),
            42 => include_str!("wgsl/formats/q2_0.wgsl"),
            16 => return Some(book::<Iq2Xxs>()),
            17 => return Some(book::<Iq2Xs>()),
            18 => return Some(book::<Iq3Xxs>()),
            19 => return Some(book::<Iq1S>()),
            20 => return Some(Self::with_table(include_str!("wgsl/formats/iq4_nl.wgsl"), &IQ4_NL_VALUES)),
            21 => return Some(book::<Iq3S>()),
            22 => return Some(book::<Iq2S>()),
            23 => return Some(book::<Iq4Xs>()),
            29 => return Some(book::<Iq1M>()),
            34 => {
                let source = include_str!("wgsl/formats/tq2_0.wgsl").into();
                return Some(Self { source, repack: Some(two_bits) });
            }
            36 => {
                let source = include_str!("wgsl/formats/q2_0.wgsl").into();
                return Some(Self { source, repack: Some(halved) });
            }
            39 => return Some(Self::with_table(include_str!("wgsl/formats/mxfp4.wgsl"), &MXFP4_VALUES)),
            40 => return Some(Self::with_table(include_str!("wgsl/formats/nvfp4.wgsl"), &MXFP4_VALUES)),
            _ => return None,
        };
        Some(Self { source: plain.into(), repack: None })
    }

    /// A format whose codes are entries of `table`.
    fn with_table(source: &str, table: &[i8; 16]) -> Self {
        let mut all = String::from(include_str!("wgsl/formats/table.wgsl"));
        for (place, four) in table.as_chunks::<4>().0.iter().enumerate() {
            let word = u32::from_le_bytes(four.map(i8::cast_unsigned));
            all = all.replace(&format!("TABLE{place}"), &format!("{word:#x}u"));
        }
        Self { source: all + source, repack: None }
    }
}

/// Bytes of a row of the matrix `bytes_in_file` long on the device.
pub(super) fn row_bytes(format: &Format, bytes_in_file: usize) -> usize {
    let blocks = bytes_in_file / format.block_bytes;
    match DeviceFormat::of(format.ggml_type).and_then(|format| format.repack) {
        None => bytes_in_file,
        Some(_) if format.ggml_type == quant::TQ1_0.ggml_type => blocks * TQ2_0.block_bytes,
        Some(_) if format.ggml_type == quant::I2_S.ggml_type => 2 * blocks * quant::Q2_0.block_bytes,
        Some(_) => blocks * BOOK_BYTES,
    }
}

fn book<C: Codebook>() -> DeviceFormat {
    let source = include_str!("wgsl/formats/book.wgsl")
        .replace("HALVES", if C::HALVES { "true" } else { "false" })
        .replace("UNIT", &format!("{:e}f", C::UNIT));
    DeviceFormat { repack: Some(repack_book::<C>), ..DeviceFormat::with_table(&source, &C::TABLE) }
}

fn repack_book<C: Codebook>(row: &[u8], out: &mut Vec<u8>) {
    for block in row.chunks_exact(C::FORMAT.block_bytes) {
        out.extend(C::d(block));
        out.extend([0, 0]);
        (0..LEN / 32).for_each(|i| out.extend(C::scales(block, i).map(i8::cast_unsigned)));
        for i in 0..LEN / 32 {
            let codes = C::codes(block, i);
            out.extend((0..16).map(|j| codes[j] | codes[16 + j] << 4));
        }
    }
}

/// Ternary digits as TQ2_0 stores them.
fn two_bits(row: &[u8], out: &mut Vec<u8>) {
    for block in row.chunks_exact(quant::TQ1_0.block_bytes) {
        let mut bytes = [0; LEN / 4];
        for i in 0..LEN / 32 {
            for (j, code) in tq1_0::codes(block, i).into_iter().enumerate() {
                bytes[i / 4 * 32 + j] |= code << (i % 4 * 2);
            }
        }
        out.extend(bytes);
        out.extend(&block[block.len() - 2..]);
    }
}

/// Codes under the scale of a matrix as Q2_0 stores them, with scales of 1.
fn halved(row: &[u8], out: &mut Vec<u8>) {
    for block in row.chunks_exact(quant::I2_S.block_bytes) {
        for side in 0..2 {
            out.extend(half::f16::ONE.to_le_bytes());
            let codes = [2 * side, 2 * side + 1].map(|i| i2_s::codes(block, i));
            let four = |four: &[u8]| four.iter().rev().fold(0, |byte, code| byte << 2 | code);
            out.extend(codes.iter().flat_map(|codes| codes.chunks_exact(4)).map(four));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Random;

    #[test]
    fn codes_under_the_scale_of_a_matrix_stay_what_they_are() {
        let mut random = Random(8);
        let row: Vec<u8> = (0..3 * quant::I2_S.block_bytes).map(|_| random.next() as u8).collect();
        let mut repacked = Vec::new();
        halved(&row, &mut repacked);
        assert_eq!(repacked.len(), row_bytes(&quant::I2_S, row.len()));
        let [mut wanted, mut found] = [vec![9.0; 384], vec![8.0; 384]];
        (quant::I2_S.dequantize)(&row, &mut wanted);
        (quant::Q2_0.dequantize)(&repacked, &mut found);
        assert_eq!(found, wanted);
    }
}
