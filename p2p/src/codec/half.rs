//! Two bytes per value, each value by itself.
//!
//! bf16 keeps the range of f32 and 8 bits of precision. f16 keeps 11 bits; residual streams of some models leave its range, so
//! it carries a sixteenth of each value, and what is still too large (above 1,048,064) becomes the largest. Both round to the
//! nearest, ties to even; what was rounded once stays as it is.

use half::{bf16, f16};

use super::{Malformed, NonFinite};

/// What f16 carries of a value.
const SHARE: f32 = 1.0 / 16.0;

/// A two-byte form of f32.
pub(super) trait Half {
    /// The nearest, of finite values never an infinity.
    fn narrow(value: f32) -> u16;
    /// The value of a form, an infinity or NaN where encoding writes no such form.
    fn widen(bits: u16) -> f32;
}

pub(super) struct Brain;
pub(super) struct Sixteenth;

impl Half for Brain {
    fn narrow(value: f32) -> u16 {
        let most = bf16::MAX.to_f32();
        bf16::from_f32(value.clamp(-most, most)).to_bits()
    }

    fn widen(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }
}

impl Half for Sixteenth {
    fn narrow(value: f32) -> u16 {
        let most = f16::MAX.to_f32();
        f16::from_f32((value * SHARE).clamp(-most, most)).to_bits()
    }

    fn widen(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32() / SHARE
    }
}

/// Writes `data` to `out`, two bytes each. Both have been measured by the caller.
pub(super) fn encode<H: Half>(data: &[f32], out: &mut [u8]) -> Result<(), NonFinite> {
    for (slot, value) in out.as_chunks_mut().0.iter_mut().zip(data) {
        if !value.is_finite() {
            return Err(NonFinite);
        }
        *slot = H::narrow(*value).to_le_bytes();
    }
    Ok(())
}

/// Reads `bytes` into `out`. Both have been measured by the caller.
pub(super) fn decode<H: Half>(bytes: &[u8], out: &mut [f32]) -> Result<(), Malformed> {
    for (value, slot) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = H::widen(u16::from_le_bytes(*slot));
    }
    check::<H>(bytes)
}

/// Whether all values of `bytes`, whole ones, are finite.
pub(super) fn check<H: Half>(bytes: &[u8]) -> Result<(), Malformed> {
    let finite = |slot: &[u8; 2]| H::widen(u16::from_le_bytes(*slot)).is_finite();
    if bytes.as_chunks().0.iter().all(finite) { Ok(()) } else { Err(Malformed("activations: not finite")) }
}
