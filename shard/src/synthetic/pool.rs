//! Random blocks of a weight format.

use half::f16;

use super::Random;
use crate::quant::{Format, nvfp4};

/// Bytes of the pool that matrices are copied from.
const POOL: usize = 1 << 20;

/// Random blocks of one format whose weights have a chosen standard deviation.
pub(super) struct Pool {
    pub format: &'static Format,
    pub bytes: Vec<u8>,
    /// Standard deviation of the weights of `bytes` if every scale were one.
    unit: f32,
}

/// Where a block has its f16 scale, and where its f16 minimum with the ratio that makes weights average to zero.
fn scales(format: &Format) -> Option<(usize, Option<(usize, f32)>)> {
    Some(match format.name {
        "q8_0" | "q4_0" | "q5_0" | "iq4_nl" | "iq4_xs" | "iq3_s" | "iq3_xxs" | "iq2_xxs" | "iq2_xs"
        | "iq2_s" | "iq1_s" => (0, None),
        "iq1_m" => (48, None),
        "mxfp4" | "nvfp4" | "q1_0" | "q2_0" => (0, None),
        "q4_1" => (0, Some((2, -7.5))),
        "q5_1" => (0, Some((2, -15.5))),
        "q2_k" => (80, Some((82, 1.5))),
        "q3_k" => (108, None),
        "q4_k" => (0, Some((2, 7.5))),
        "q5_k" => (0, Some((2, 15.5))),
        "q6_k" => (208, None),
        _ => return None,
    })
}

impl Pool {
    pub fn new(format: &'static Format, random: &mut Random) -> Self {
        let blocks = POOL / format.block_bytes;
        let mut bytes = vec![0; blocks * format.block_bytes];
        let mut pool = match scales(format) {
            Some(_) => {
                bytes
                    .chunks_mut(8)
                    .for_each(|to| to.copy_from_slice(&random.next().to_le_bytes()[..to.len()]));
                if format.name == "q2_0" {
                    // Codes of 1 for those of 3, the only weights that are twice the others.
                    bytes.iter_mut().for_each(|codes| *codes &= !(*codes << 1 & 0xaa));
                }
                Self { format, bytes, unit: 1.0 }
            }
            None => {
                let mut weights = vec![0.0f32; blocks * format.block_len];
                weights.iter_mut().for_each(|weight| *weight = random.normal());
                // Blocks of a format that has no quantizer are zeros.
                let _ = format.quantize(&weights, None, &mut bytes);
                Self { format, bytes, unit: 1.0 }
            }
        };
        pool.set_size(1.0);
        let sample = (1024 * 32 / format.block_len).min(blocks);
        let mut weights = vec![0.0; sample * format.block_len];
        (format.dequantize)(&pool.bytes[..sample * format.block_bytes], &mut weights);
        let square: f64 = weights.iter().map(|w| f64::from(*w) * f64::from(*w)).sum();
        pool.unit = (square / weights.len() as f64).sqrt() as f32;
        pool
    }

    /// Gives the weights the standard deviation `size`.
    pub fn set_size(&mut self, size: f32) {
        let scale = size / self.unit;
        let Some((d, minimum)) = scales(self.format) else {
            return self.rescale(scale, size);
        };
        for (index, block) in self.bytes.chunks_exact_mut(self.format.block_bytes).enumerate() {
            if self.format.name == "mxfp4" {
                block[0] = exponent(scale, index);
                continue;
            }
            if self.format.name == "nvfp4" {
                block[..4].fill(small_float(scale));
                continue;
            }
            if self.format.name == "iq1_m" {
                scatter(f16::from_f32(scale).to_bits(), &mut block[d..]);
                continue;
            }
            block[d..d + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            if let Some((at, ratio)) = minimum {
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale * ratio).to_le_bytes());
            }
        }
    }

    /// The same for formats without scales, through f32.
    fn rescale(&mut self, factor: f32, size: f32) {
        let mut weights = vec![0.0; self.bytes.len() / self.format.block_bytes * self.format.block_len];
        (self.format.dequantize)(&self.bytes, &mut weights);
        weights.iter_mut().for_each(|weight| *weight *= factor);
        // Blocks of a format that has no quantizer stay.
        let _ = self.format.quantize(&weights, None, &mut self.bytes);
        self.unit = size;
    }
}

/// The biased exponent of block `index` when the scales are to be `scale` in the mean of squares: powers of two below
/// and above it in the right proportion, spread by the golden ratio.
fn exponent(scale: f32, index: usize) -> u8 {
    let below = f32::from_bits(scale.to_bits() & 0x7f80_0000);
    let over = scale / below;
    let share = (over * over - 1.0) / 3.0;
    let place = (index as u32).wrapping_mul(0x9e37_79b9) as f32 / 4_294_967_296.0;
    (below.to_bits() >> 23) as u8 + 1 + u8::from(place < share)
}

/// The eight-bit float nearest to `scale`.
fn small_float(scale: f32) -> u8 {
    let off = |byte: &u8| (2.0 * nvfp4::halved(*byte) - scale).abs();
    (1..0x7f).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(1)
}

/// Puts the nibbles of a scale into the top bits of four words, as IQ1_M keeps it.
fn scatter(bits: u16, words: &mut [u8]) {
    for j in 0..4 {
        words[2 * j + 1] = words[2 * j + 1] & 15 | (bits >> (4 * j) << 4) as u8;
    }
}
