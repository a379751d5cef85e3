//! Keys and values made shorter, for a disk or for another node.
//!
//! ```text
//! packed = groups of [`GROUP`] bytes, each: length u32 | zstd of its even bytes, then its odd ones
//! ```
//!
//! Halves of values compress, values do not: the upper bytes of neighboring keys are alike.
//!
//! Bounds: what is unpacked is as long as the caller says or nothing, and one group is decompressed at a time.

use std::time::Instant;

use zstd::bulk::{Compressor, Decompressor};

use crate::Result;

/// Bytes that are packed together.
pub const GROUP: usize = 1 << 20;
/// Keys and values gain a sixth at this level, and hardly more at higher ones.
const LEVEL: i32 = 1;

/// The bytes of even places, then those of odd ones.
fn split(bytes: &[u8]) -> Vec<u8> {
    let (even, odd) = (bytes.iter().step_by(2), bytes.iter().skip(1).step_by(2));
    even.chain(odd).copied().collect()
}

fn join(halves: &[u8], out: &mut Vec<u8>) {
    let (even, odd) = halves.split_at(halves.len().div_ceil(2));
    let start = out.len();
    out.resize(start + halves.len(), 0);
    let mut pairs = out[start..].chunks_exact_mut(2);
    for (pair, (even, odd)) in pairs.by_ref().zip(even.iter().zip(odd)) {
        (pair[0], pair[1]) = (*even, *odd);
    }
    if let ([last], Some(even)) = (pairs.into_remainder(), even.last()) {
        *last = *even;
    }
}

/// Packs bytes.
///
/// # Errors
/// When the compressor has no memory.
pub fn pack(payload: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = Compressor::new(LEVEL)?;
    let mut packed = Vec::with_capacity(payload.len());
    for group in payload.chunks(GROUP) {
        let shorter = encoder.compress(&split(group))?;
        packed.extend((shorter.len() as u32).to_le_bytes());
        packed.extend(shorter);
    }
    Ok(packed)
}

/// The `raw_bytes` bytes that were packed; what follows them is not looked at. `None` when they were not.
pub fn unpack(packed: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    let mut decoder = Decompressor::new().ok()?;
    let mut payload = Vec::new();
    let mut rest = packed;
    while payload.len() < raw_bytes {
        let (length, after) = rest.split_at_checked(4)?;
        let (group, after) = after.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)?;
        rest = after;
        let halves = decoder.decompress(group, GROUP.min(raw_bytes - payload.len())).ok()?;
        if halves.is_empty() {
            return None;
        }
        join(&halves, &mut payload);
    }
    Some(payload)
}

/// What packing takes here.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of a MiB, ms.
    pub pack_ms_per_mib: f64,
    /// Of what was a MiB, ms.
    pub unpack_ms_per_mib: f64,
}

impl Rates {
    /// Packs and unpacks a MiB of halves whose upper bytes are alike. Where that fails packing is for ever too slow.
    pub fn measured() -> Self {
        let mut noise = 1u32;
        let mut payload = Vec::with_capacity(GROUP);
        while payload.len() < GROUP {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, low, drawn] = noise.to_le_bytes();
            // A sign, and one of a few exponents.
            payload.extend([low, (drawn & 0x80) | (0x2c + (drawn & 0x0f))]);
        }
        // The quickest of three: what else the machine does now is not what it does then.
        let timed = |work: &mut dyn FnMut()| {
            let times = (0..3).map(|_| {
                let began = Instant::now();
                work();
                began.elapsed().as_secs_f64() * 1e3
            });
            times.fold(f64::INFINITY, f64::min)
        };
        let mut packed = Vec::new();
        let pack_ms_per_mib = timed(&mut || packed = pack(&payload).unwrap_or_default());
        let mut same = false;
        let unpack_ms_per_mib = timed(&mut || same = unpack(&packed, GROUP).as_ref() == Some(&payload));
        if same {
            Self { pack_ms_per_mib, unpack_ms_per_mib }
        } else {
            Self { pack_ms_per_mib: f64::INFINITY, unpack_ms_per_mib }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_to_its_length_or_not_at_all() {
        for bytes in [0, 1, 2, 3, 1_000, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP + 7] {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * at / 7) as u8).collect();
            let packed = pack(&payload).unwrap();
            assert_eq!(unpack(&packed, bytes), Some(payload), "{bytes}");
            assert_eq!(unpack(&packed, bytes + 1), None, "{bytes} and no more");
            assert!(bytes == 0 || unpack(&packed[..packed.len() - 1], bytes).is_none());
        }
        let rates = Rates::measured();
        assert!(rates.pack_ms_per_mib > 0.0 && rates.unpack_ms_per_mib > 0.0);
        assert!((rates.pack_ms_per_mib + rates.unpack_ms_per_mib).is_finite(), "{rates:?}");
        let bomb = pack(&vec![0; GROUP]).unwrap();
        assert!(bomb.len() < 2_000 && unpack(&bomb, 1_000).is_none(), "a group of more than is wanted");
    }
}
