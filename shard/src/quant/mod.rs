//! Weight formats: one file and one row of [`ALL`] each.
//!
//! A format stores a row of weights as equal blocks. What a block means is written here three times, in the
//! slowest and plainest way: to f32 ([`Format::dequantize`]), from f32 ([`Format::quantizer`]) and as the dot
//! product with one token's activations ([`Format::dot`]). The dot is the specification of profile `d1`: it
//! fixes which products are exact integers, which are f32, and the order in which they are added, so every
//! kernel of every instruction set has to return the very same bits.
//!
//! How a dot goes: activations are rounded to int8 per 32 values ([`quantize_row`]); inside a block the products
//! are integers and therefore independent of order; between blocks there is one chain of fused multiply-adds,
//! blocks ascending, starting from `0.0`. Each format's module says which terms enter the chain. The float
//! formats take the f32 activations and one fused multiply-add per weight.
//!
//! Limits: little-endian blocks only; a row is a whole number of blocks; `dot` does not treat NaN or infinite
//! scales specially, they poison that output as IEEE 754 says.
//!
//! Layouts are those of ggml, as the `gguf` package on PyPI decodes them; `tests/data/quant/make.py` and `tables.py` hold the proof.

mod affine;
mod bfloat16;
pub(crate) mod codebook;
mod float16;
mod float32;
mod grids;
pub(crate) mod i2_s;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod q1_0;
pub(crate) mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod symmetric;
#[cfg(test)]
mod tests;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;

use std::fmt;

use crate::{Error, Result};

pub use bfloat16::BF16;
pub use float16::F16;
pub use float32::F32;
pub use i2_s::I2_S;
pub use iq1_m::IQ1_M;
pub use iq1_s::IQ1_S;
pub use iq2_s::IQ2_S;
pub use iq2_xs::IQ2_XS;
pub use iq2_xxs::IQ2_XXS;
pub use iq3_s::IQ3_S;
pub use iq3_xxs::IQ3_XXS;
pub use iq4_nl::{IQ4_NL, VALUES as IQ4_NL_VALUES};
pub use iq4_xs::IQ4_XS;
pub use mxfp4::{MXFP4, VALUES as MXFP4_VALUES};
pub use nvfp4::NVFP4;
pub use q1_0::Q1_0;
pub use q2_0::Q2_0;
pub use q2_k::Q2_K;
pub use q3_k::Q3_K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::Q4_K;
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5_K;
pub use q6_k::Q6_K;
pub use q8_0::Q8_0;
pub use tq1_0::TQ1_0;
pub use tq2_0::TQ2_0;

/// Every format that matrices may be made in. A new one goes to the end: golden hashes are seeded with the place.
pub static ALL: &[&Format] = &[
    &F32, &F16, &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &IQ4_NL, &BF16, &MXFP4,
    &IQ4_XS, &TQ1_0, &TQ2_0, &IQ3_S, &IQ3_XXS, &IQ2_XXS, &IQ2_XS, &IQ2_S, &IQ1_S, &IQ1_M, &NVFP4, &Q1_0,
    &Q2_0,
];

/// Formats of files that other programs write: they are computed with, and neither written nor part of the golden hashes.
pub static FOREIGN: &[&Format] = &[&I2_S];

/// Activations share a scale per this many values, and every integer format's block is a multiple of it.
pub const ACTIVATION_BLOCK: usize = 32;

/// [`QuantizedRow::sums`] holds one sum per this many values: the finest group that has an own scale or minimum.
pub const SUM_BLOCK: usize = 16;

/// How f32 weights become blocks of a format. Finite weights are assumed: others give some block, never a panic.
#[derive(Clone, Copy)]
pub enum Quantizer {
    /// Makes the blocks of any number of weights.
    Plain(fn(weights: &[f32], blocks: &mut [u8])),
    /// Searches for what fits the weights of one block, where an error at each counts as `importance` says, above 0, if that is known.
    Search(fn(weights: &[f32], importance: Option<&[f32]>, block: &mut [u8])),
}

/// One weight format: its layout and its scalar specification.
pub struct Format {
    /// The name users and reports see, e.g. `q4_k`.
    pub name: &'static str,
    /// The type number in GGUF files.
    pub ggml_type: u32,
    /// Weights per block.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Blocks to f32: `blocks.len() / block_bytes * block_len == out.len()`.
    pub dequantize: fn(blocks: &[u8], out: &mut [f32]),
    /// f32 to blocks, where there is a way.
    pub quantizer: Option<Quantizer>,
    /// One output of a matrix product, in the exact order of profile `d1`.
    pub dot: fn(row: &[u8], x: &QuantizedRow<'_>) -> f32,
    /// Whether `dot` reads the int8 activations (`true`) or the f32 ones.
    pub integer: bool,
}

impl Format {
    /// Bytes of a row of `cols` weights; `None` if they are not whole blocks or too many to count.
    pub fn row_bytes(&self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.block_len).then_some(cols / self.block_len)?.checked_mul(self.block_bytes)
    }

    /// Bytes behind the rows of a matrix, where its blocks share a scale: an f32 first ([`I2_S`]).
    pub fn tail_bytes(&self) -> usize {
        if self.ggml_type == I2_S.ggml_type { i2_s::TAIL } else { 0 }
    }

    /// f32 to blocks, lengths as in `dequantize`. An error at each weight counts as `importance` says, one number above 0 for each,
    /// where [`Format::weighs`] says so.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that has no quantizer.
    ///
    /// # Panics
    /// Lengths that do not belong together.
    pub fn quantize(&self, weights: &[f32], importance: Option<&[f32]>, blocks: &mut [u8]) -> Result<()> {
        let (len, unsupported) = (self.block_len, || Error::unsupported(format!("writing {}", self.name)));
        match self.quantizer.ok_or_else(unsupported)? {
            Quantizer::Plain(quantize) => quantize(weights, blocks),
            Quantizer::Search(fill) => {
                for (at, (weights, block)) in each_block_mut(self, weights, blocks).enumerate() {
                    fill(weights, importance.map(|importance| &importance[at * len..][..len]), block);
                }
            }
        }
        Ok(())
    }

    /// Whether [`Format::quantize`] counts errors by importance.
    pub fn weighs(&self) -> bool {
        matches!(self.quantizer, Some(Quantizer::Search(_)))
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.ggml_type == other.ggml_type
    }
}

impl Eq for Format {}

/// The format of a GGUF type number.
pub fn by_type(ggml_type: u32) -> Option<&'static Format> {
    ALL.iter().chain(FOREIGN).copied().find(|format| format.ggml_type == ggml_type)
}

/// The format of a name such as `q4_k`, in any case.
pub fn by_name(name: &str) -> Option<&'static Format> {
    ALL.iter().copied().find(|format| format.name.eq_ignore_ascii_case(name))
}

/// One token's activations as the dot products read them.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRow<'a> {
    /// The activations themselves, `cols` values.
    pub x: &'a [f32],
    /// Rounded to int8 per 32-block, `cols` values in -127..=127.
    pub q: &'a [i8],
    /// The scale of each 32-block.
    pub d: &'a [f32],
    /// The sum of `q` over each 16 values.
    pub sums: &'a [i16],
}

impl QuantizedRow<'_> {
    /// The exact sum of `codes[i] * q[at + i]`.
    fn idot<const N: usize>(&self, at: usize, codes: &[i32; N]) -> i32 {
        codes.iter().zip(&self.q[at..at + N]).map(|(&code, &q)| code * i32::from(q)).sum()
    }

    /// The exact sum of `q[at..at + len]`; both are multiples of 16.
    fn sum(&self, at: usize, len: usize) -> i32 {
        self.sums[at / SUM_BLOCK..][..len / SUM_BLOCK].iter().map(|&sum| i32::from(sum)).sum()
    }
}

/// Rounds activations to int8, 32 to a scale: the scalar specification of the kernels' quantizer.
///
/// `x` and `q` hold the same number of values, a multiple of 32; `d` one scale per 32, `sums` one sum per 16.
/// Per block, with `amax` its largest magnitude: `d = amax / 127`, `q = round_ties_even(x * (127 / amax))`.
/// Blocks of which `127 / amax` overflows (zeros, or all magnitudes below about 4e-37) become `d = 0, q = 0`.
/// A block with a NaN or an infinity becomes `d = NaN, q = 0`, so that the fault shows in every output it reaches.
pub fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], sums: &mut [i16]) {
    assert!(x.len().is_multiple_of(ACTIVATION_BLOCK), "activations come in blocks of 32");
    assert_eq!(q.len(), x.len());
    assert_eq!(d.len(), x.len() / ACTIVATION_BLOCK);
    assert_eq!(sums.len(), x.len() / SUM_BLOCK);
    let blocks = x.chunks_exact(ACTIVATION_BLOCK).zip(q.chunks_exact_mut(ACTIVATION_BLOCK));
    for ((x, q), d) in blocks.zip(d) {
        *d = quantize_activations(x, q);
    }
    for (q, sum) in q.chunks_exact(SUM_BLOCK).zip(sums) {
        *sum = q.iter().map(|&q| i16::from(q)).sum();
    }
}

/// One block of [`quantize_row`]: fills `q` and returns the scale.
fn quantize_activations(x: &[f32], q: &mut [i8]) -> f32 {
    q.fill(0);
    if x.iter().any(|x| !x.is_finite()) {
        return f32::NAN;
    }
    let amax = x.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
    let inverse = 127.0 / amax;
    if inverse.is_infinite() {
        return 0.0;
    }
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even() as i8;
    }
    amax / 127.0
}

/// The f16 at the start of `bytes`, as f32 (exact).
fn half(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// `value` rounded to the nearest f16, ties to even.
fn to_half(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

/// Pairs each block of `blocks` with its place in `out`.
fn each_block<'a>(
    format: &Format,
    blocks: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8], &'a mut [f32])> {
    assert_eq!(Some(blocks.len()), format.row_bytes(out.len()), "{}: bytes and weights differ", format.name);
    blocks.chunks_exact(format.block_bytes).zip(out.chunks_exact_mut(format.block_len))
}

/// Pairs each block of weights with its place in `blocks`.
fn each_block_mut<'a>(
    format: &Format,
    weights: &'a [f32],
    blocks: &'a mut [u8],
) -> impl Iterator<Item = (&'a [f32], &'a mut [u8])> {
    assert_eq!(
        Some(blocks.len()),
        format.row_bytes(weights.len()),
        "{}: bytes and weights differ",
        format.name
    );
    weights.chunks_exact(format.block_len).zip(blocks.chunks_exact_mut(format.block_bytes))
}

/// The value of largest magnitude with its sign, the first of equals; 0 for an empty slice.
fn signed_max(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0f32, |max, &w| if w.abs() > max.abs() { w } else { max })
}

/// How much an error at each of some weights counts where its input matters as `importance` says, or all alike: large weights matter
/// more, too, as in llama.cpp's searches.
fn importances(weights: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mean = weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32;
    let of = |at: usize| importance.map_or(1.0, |importance| importance[at]);
    weights.iter().enumerate().map(|(at, w)| of(at) * (2.0 * mean + w * w).sqrt()).collect()
}

/// The smallest and the largest weight.
fn range(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &w| (min.min(w), max.max(w)))
}

/// `1 / d`, or 0 where a block has no scale.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// `value` rounded to the nearest whole number, ties to even, exact up to 2^22: adding 1.5 * 2^23 leaves no room for
/// a fraction. Unlike `round_ties_even` this is not a library call on processors of the baseline.
fn nearest(value: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    value + NO_FRACTION - NO_FRACTION
}
