//! Eight bits per value: blocks of 32 values share a scale.
//!
//! A block is 34 bytes: the scale `d` as bf16, little-endian, then 32 signed bytes `q`. The rule, which the shard
//! crate applies to activations at the rounding boundaries of a session and must match bit for bit:
//!
//! ```text
//! amax = max |x|
//! d    = bf16(amax / 127)          nearest, ties to even; below the smallest normal f32: d = 0 and all q = 0
//! q    = round(x * (1 / d))        ties to even, in -127..=127
//! x'   = d * q
//! ```
//!
//! Why bf16 and not f16: it has the range of f32, so no activation is too large or too small for it. And `d * q` is
//! exact (8 and 7 significant bits), `|q|` reaches 127 in every block that is not zero (rounding moves `d` by at most
//! one part in 256, so the largest value lands between 126.5 and 127.5), hence `amax' / 127` is `d` again: what was
//! rounded once stays as it is. Decoding accepts only blocks that encoding can write, so every accepted byte string
//! is the one encoding of its values.
//!
//! Fast in plain Rust: 32 values of fixed count per iteration, the largest found on the bits as integers (a NaN or an
//! infinity is larger than every number), and rounding by adding 1.5 * 2^23, all of which the compiler vectorizes.

use super::{Malformed, NonFinite};

/// Values that share a scale.
pub const BLOCK: usize = 32;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 34;

/// Bits of an infinity; every finite value has smaller ones, sign aside.
const INFINITE: u32 = 0x7f80_0000;
/// Bits of the smallest normal f32.
const SMALLEST: u32 = 0x0080_0000;
/// Adding this to a value below 2^22 leaves its nearest integer, ties to even, in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// Writes `data` to `out`. Both are whole blocks, as many; the caller has measured them.
pub(super) fn encode(data: &[f32], out: &mut [u8]) -> Result<(), NonFinite> {
    let (blocks, _) = data.as_chunks::<BLOCK>();
    let (slots, _) = out.as_chunks_mut::<BLOCK_BYTES>();
    for (block, slot) in blocks.iter().zip(slots) {
        *slot = encode_block(block).ok_or(NonFinite)?;
    }
    Ok(())
}

/// Whether every block of `bytes`, whole ones, is one that encoding writes.
pub(super) fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let sound = bytes.as_chunks().0.iter().all(|slot| sound_scale(slot).is_some());
    if sound { Ok(()) } else { Err(Malformed("activations: block")) }
}

/// Reads `bytes` into `out`. Both are whole blocks, as many; the caller has measured them.
pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), Malformed> {
    let (slots, _) = bytes.as_chunks::<BLOCK_BYTES>();
    let (blocks, _) = out.as_chunks_mut::<BLOCK>();
    for (slot, block) in slots.iter().zip(blocks) {
        *block = decode_block(slot).ok_or(Malformed("activations: block"))?;
    }
    Ok(())
}

/// One block, or `None` when a value is not finite.
fn encode_block(block: &[f32; BLOCK]) -> Option<[u8; BLOCK_BYTES]> {
    let bits = block.iter().fold(0, |most: i32, x| most.max((x.to_bits() & !(1 << 31)).cast_signed()));
    if bits.cast_unsigned() >= INFINITE {
        return None;
    }
    let mut out = [0; BLOCK_BYTES];
    let scale = scale_of(f32::from_bits(bits.cast_unsigned()));
    if scale == 0.0 {
        return Some(out);
    }
    out[..2].copy_from_slice(&scale.to_le_bytes()[2..]);
    let inverse = 1.0 / scale;
    for (q, x) in out[2..].iter_mut().zip(block) {
        // At most 127.5 in size, so the clamp of the rule is what rounding gives anyway.
        *q = (x * inverse + ROUNDER).to_bits() as u8;
    }
    Some(out)
}

/// The scale of a block, or `None` when [`encode_block`] writes no such block.
fn sound_scale(slot: &[u8; BLOCK_BYTES]) -> Option<f32> {
    let scale = f32::from_le_bytes([0, 0, slot[0], slot[1]]);
    let largest = slot[2..].iter().fold(0, |most: u8, &q| most.max(q.cast_signed().unsigned_abs()));
    // Negative scales, NaN and those whose largest value would overflow fail the first comparison of their arm.
    let sound = match scale.to_bits() {
        0 => largest == 0,
        bits => (SMALLEST..INFINITE).contains(&bits) && largest == 127 && (scale * 127.0).is_finite(),
    };
    sound.then_some(scale)
}

/// The values of a block, or `None` when [`encode_block`] writes no such block.
fn decode_block(slot: &[u8; BLOCK_BYTES]) -> Option<[f32; BLOCK]> {
    let scale = sound_scale(slot)?;
    let mut block = [0.0; BLOCK];
    for (x, &q) in block.iter_mut().zip(&slot[2..]) {
        *x = scale * f32::from(q.cast_signed());
    }
    Some(block)
}

/// The scale of a block whose largest value has the finite size `amax`: a bf16 value, zero or normal.
///
/// The largest f32 gives a scale whose 127-fold is finite, so neither this nor decoding overflows.
fn scale_of(amax: f32) -> f32 {
    let bits = (amax / 127.0).to_bits();
    let rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    if rounded < SMALLEST { 0.0 } else { f32::from_bits(rounded) }
}
