//! A panel unpacked for many rows of activations: one byte per weight, f32 scales, block after block.
//!
//! Per 32-block: 8 groups of 64 bytes, then the vectors of its scales (16 f32 each): `d`; with minima `m`; with
//! halves two integer scales; with both two integer minima as well.

use super::{
    Dot, Layout, Packed, Source,
    scales::{ScaleKind, Scales},
};
use crate::kernels::simd::Simd;

/// Bytes of the codes of a block.
const CODES: usize = 512;
/// Bytes of a vector of scales.
const VECTOR: usize = 64;

/// An unpacked panel as a source; `PLAIN` codes are signed bytes for the tile unit, others are as [`Source::DOT`] says.
pub struct Unpacked<const HALVES: bool, const MIN: bool, const SIGNED: bool, const PLAIN: bool>;

/// Bytes of one block.
pub const fn stride(halves: bool, min: bool) -> usize {
    CODES + VECTOR * (1 + min as usize) * (1 + 2 * halves as usize)
}

impl<const HALVES: bool, const MIN: bool, const SIGNED: bool, const PLAIN: bool> Source
    for Unpacked<HALVES, MIN, SIGNED, PLAIN>
{
    const DOT: Dot = match (PLAIN, SIGNED) {
        (true, _) => Dot::Signed,
        (false, true) => Dot::Biased,
        (false, false) => Dot::Unsigned,
    };
    const PER: usize = 1;
    const HALVES: bool = HALVES;
    const MIN: bool = MIN;
    const STREAMED: bool = false;
    const CODE_STRIDE: usize = stride(HALVES, MIN);
    const SCALE_STRIDE: usize = stride(HALVES, MIN);

    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(codes: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe { (S::load_bytes(codes.add(64 * C)), S::load_bytes(codes.add(64 * (C + 4)))) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(scales: *const u8, _i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's; fields the kind lacks are not read from memory.
        unsafe {
            let at = scales.cast::<f32>();
            let zero = S::splat(0.0);
            let m = if MIN { S::load(at.add(16)) } else { zero };
            let rest = at.add(16 * (1 + MIN as usize));
            let half = if HALVES { [S::load(rest), S::load(rest.add(16))] } else { [zero; 2] };
            let half_min =
                if HALVES && MIN { [S::load(rest.add(32)), S::load(rest.add(48))] } else { [zero; 2] };
            Scales { d: S::load(at), m, half, half_min }
        }
    }
}

#[inline(always)]
unsafe fn copy_pair<S: Simd, L: Layout, const C: usize>(codes: *const u8, out: *mut u8, plain: bool) {
    // SAFETY: the contract is the caller's.
    unsafe {
        let (mut low, mut high) = Packed::<L>::pair::<S, C>(codes);
        if plain && !L::SIGNED {
            let fold = S::splat_byte(L::FOLD as u8);
            (low, high) = (S::sub_bytes(low, fold), S::sub_bytes(high, fold));
        }
        if !plain && L::SIGNED {
            (low, high) = (S::bias(low), S::bias(high));
        }
        S::store_bytes(out.add(64 * C), low);
        S::store_bytes(out.add(64 * (C + 4)), high);
    }
}

/// Unpacks `blocks` blocks of a packed panel into `out`; `plain` as in [`Unpacked`].
///
/// # Safety
/// The processor has the instruction set of `S`; the panel holds the blocks and `out` has [`stride`] bytes for each.
#[inline(always)]
pub unsafe fn unpack<S: Simd, L: Layout>(
    codes: *const u8,
    scales: *const u8,
    blocks: usize,
    out: *mut u8,
    plain: bool,
) {
    let stride = stride(L::Scales::HALVES, L::Scales::MIN);
    // SAFETY: all accesses stay inside the blocks that the caller vouches for.
    unsafe {
        for b in 0..blocks {
            let (from, to) = (codes.add(b * Packed::<L>::CODE_STRIDE), out.add(b * stride));
            copy_pair::<S, L, 0>(from, to, plain);
            copy_pair::<S, L, 1>(from, to, plain);
            copy_pair::<S, L, 2>(from, to, plain);
            copy_pair::<S, L, 3>(from, to, plain);
            let record = scales.add(b / L::Scales::PER * L::Scales::BYTES);
            let scales = L::Scales::load::<S>(record, b % L::Scales::PER);
            let mut at = to.add(CODES).cast::<f32>();
            S::store(at, scales.d);
            at = at.add(16);
            if L::Scales::MIN {
                S::store(at, scales.m);
                at = at.add(16);
            }
            if L::Scales::HALVES {
                S::store(at, scales.half[0]);
                S::store(at.add(16), scales.half[1]);
                if L::Scales::MIN {
                    S::store(at.add(32), scales.half_min[0]);
                    S::store(at.add(48), scales.half_min[1]);
                }
            }
        }
    }
}
