//! f32, little-endian. Nothing is lost, not even the sign of a zero.

use super::{Malformed, NonFinite};

/// Bits of an infinity; every finite value has smaller ones, sign aside.
const INFINITE: u32 = 0x7f80_0000;

/// Writes `data` to `out`, four bytes each. Both have been measured by the caller.
pub(super) fn encode(data: &[f32], out: &mut [u8]) -> Result<(), NonFinite> {
    let mut largest = 0;
    for (slot, value) in out.chunks_exact_mut(4).zip(data) {
        largest = largest.max((value.to_bits() & !(1 << 31)).cast_signed());
        slot.copy_from_slice(&value.to_le_bytes());
    }
    if largest.cast_unsigned() < INFINITE { Ok(()) } else { Err(NonFinite) }
}

/// Whether all values of `bytes`, whole ones, are finite.
pub(super) fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let size = |value: &[u8; 4]| (u32::from_le_bytes(*value) & !(1 << 31)).cast_signed();
    let largest = bytes.as_chunks().0.iter().fold(0, |most: i32, value| most.max(size(value)));
    if largest.cast_unsigned() < INFINITE { Ok(()) } else { Err(Malformed("activations: not finite")) }
}

/// Reads `bytes` into `out`. Both have been measured by the caller.
pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), Malformed> {
    let mut largest = 0;
    for (value, slot) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*slot);
        largest = largest.max((value.to_bits() & !(1 << 31)).cast_signed());
    }
    if largest.cast_unsigned() < INFINITE { Ok(()) } else { Err(Malformed("activations: not finite")) }
}
