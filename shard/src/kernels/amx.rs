//! AMX: int8 matrix tiles for 16 rows of activations.
//!
//! A tile instruction multiplies 16 rows of 32 activation bytes with an unpacked block of a panel, which already has
//! the order it wants. Every 32-block has its own scales, so the integer sums of each block are stored and the
//! float steps are those of the vector kernel, lane by lane: the bits are the same.
//!
//! Stable Rust has no intrinsics for tiles yet; they are a few lines of inline assembly. Linux grants the tile
//! state on request, once per process ([`super::Isa::available`]). A thread configures its tiles before use ([`Tiles`]).

#![allow(clippy::needless_range_loop, reason = "a row indexes registers and pointers alike")]

use super::tile::Tile;

/// Rows of activations that a tile holds.
pub(crate) const ROWS: usize = 16;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Tiles, run};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::Tile;

    /// Nothing to configure.
    pub(crate) struct Tiles;

    impl Tiles {
        /// Never called: the instruction set is not available here.
        pub(crate) unsafe fn configure(_halves: bool) -> Self {
            unreachable!("tiles are for x86-64")
        }
    }

    /// Never called: the instruction set is not available here.
    pub(crate) unsafe fn run<const HALVES: bool, const MIN: bool>(_tile: &Tile) {
        unreachable!("tiles are for x86-64")
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use elsewhere::{Tiles, run};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{
        arch::{asm, x86_64::*},
        marker::PhantomData,
    };

    use super::{ROWS, Tile};
    use crate::kernels::panel::{BLOCK, unpacked};

    /// The shapes of the tile registers, as `ldtilecfg` reads them.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// The calling thread's tiles while it computes; given back when dropped.
    pub(crate) struct Tiles(PhantomData<*const ()>);

    impl Tiles {
        /// Configures the calling thread for whole or half blocks: tiles 0 to 3 are sums, 4 and 6 activations, 5 and 7 weights.
        ///
        /// # Safety
        /// [`super::super::Isa::Amx`] is available.
        pub(crate) unsafe fn configure(halves: bool) -> Self {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            let (bytes, groups) = if halves { (16, 4) } else { (32, 8) };
            row_bytes[..8].copy_from_slice(&[64, 64, 64, 64, bytes, 64, bytes, 64]);
            rows[..8].copy_from_slice(&[16, 16, 16, 16, 16, groups, 16, groups]);
            let shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
            // SAFETY: the processor has tiles, and the operand is a valid 64-byte configuration.
            unsafe { asm!("ldtilecfg [{0}]", in(reg) &shapes, options(nostack, readonly, preserves_flags)) };
            Self(PhantomData)
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: tiles were configured by this thread (the type is not Send: it never leaves `configure`'s scope).
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }

    /// Integer sums of one block: 16 rows of 16, once or once per half.
    #[repr(C, align(64))]
    struct Sums([i32; 2 * ROWS * 16]);

    /// One tile product: zeroes `$c`, loads activations and weights, multiplies.
    macro_rules! product {
        ($c:tt, $a:tt, $b:tt, $q:expr, $codes:expr) => {
            asm!(
                concat!("tilezero ", $c),
                concat!("tileloadd ", $a, ", [{q} + {short}*1]"),
                concat!("tileloadd ", $b, ", [{w} + {long}*1]"),
                concat!("tdpbssd ", $c, ", ", $a, ", ", $b),
                q = in(reg) $q, w = in(reg) $codes, short = in(reg) BLOCK, long = in(reg) 64_usize,
                out($c) _, out($a) _, out($b) _,
                options(nostack, preserves_flags, readonly)
            )
        };
    }

    /// Stores a tile of sums.
    macro_rules! store {
        ($c:tt, $to:expr) => {
            asm!(
                concat!("tilestored [{to} + {long}*1], ", $c),
                to = in(reg) $to, long = in(reg) 64_usize,
                options(nostack, preserves_flags)
            )
        };
    }

    /// Starts the products of a block in the tiles of even or odd blocks.
    #[inline(always)]
    unsafe fn multiply<const HALVES: bool, const ODD: bool>(codes: *const u8, q: *const i8) {
        // SAFETY: the tiles are configured; 512 bytes of codes and of activations are read.
        unsafe {
            match (HALVES, ODD) {
                (false, false) => product!("tmm0", "tmm4", "tmm5", q, codes),
                (false, true) => product!("tmm1", "tmm6", "tmm7", q, codes),
                (true, false) => {
                    product!("tmm0", "tmm4", "tmm5", q, codes);
                    product!("tmm2", "tmm6", "tmm7", q.add(16), codes.add(256));
                }
                (true, true) => {
                    product!("tmm1", "tmm4", "tmm5", q, codes);
                    product!("tmm3", "tmm6", "tmm7", q.add(16), codes.add(256));
                }
            }
        }
    }

    /// Stores the sums of a block.
    #[inline(always)]
    unsafe fn keep<const HALVES: bool, const ODD: bool>(sums: *mut i32) {
        // SAFETY: the tiles are configured; 1 KiB is written per half.
        unsafe {
            if ODD {
                store!("tmm1", sums);
            } else {
                store!("tmm0", sums);
            }
            if HALVES && ODD {
                store!("tmm3", sums.add(256));
            } else if HALVES {
                store!("tmm2", sums.add(256));
            }
        }
    }

    /// The float steps of one block for 16 rows.
    #[inline(always)]
    unsafe fn accumulate<const HALVES: bool, const MIN: bool>(
        acc: &mut [__m512; ROWS],
        sums: *const i32,
        scales: *const f32,
        dx: *const f32,
        x_sums: *const f32,
    ) {
        // SAFETY: the caller has AVX-512 and the pointers of one block.
        unsafe {
            let zero = _mm512_setzero_ps();
            let d = _mm512_load_ps(scales);
            let m = if MIN { _mm512_load_ps(scales.add(16)) } else { zero };
            let rest = scales.add(16 * (1 + MIN as usize));
            let half = if HALVES { [_mm512_load_ps(rest), _mm512_load_ps(rest.add(16))] } else { [zero; 2] };
            let half_min = if HALVES && MIN {
                [_mm512_load_ps(rest.add(32)), _mm512_load_ps(rest.add(48))]
            } else {
                [zero; 2]
            };
            for r in 0..ROWS {
                let dx = _mm512_set1_ps(*dx.add(r));
                let mut isum = _mm512_cvtepi32_ps(_mm512_load_si512(sums.add(16 * r).cast()));
                if HALVES {
                    let second = _mm512_cvtepi32_ps(_mm512_load_si512(sums.add(16 * (ROWS + r)).cast()));
                    isum = _mm512_fmadd_ps(half[1], second, _mm512_fmadd_ps(half[0], isum, zero));
                }
                acc[r] = _mm512_fmadd_ps(isum, _mm512_mul_ps(d, dx), acc[r]);
                if MIN {
                    let msum = if HALVES {
                        let first = _mm512_fmadd_ps(half_min[0], _mm512_set1_ps(*x_sums.add(ROWS + r)), zero);
                        _mm512_fmadd_ps(half_min[1], _mm512_set1_ps(*x_sums.add(2 * ROWS + r)), first)
                    } else {
                        _mm512_set1_ps(*x_sums.add(r))
                    };
                    acc[r] = _mm512_fmadd_ps(msum, _mm512_mul_ps(m, dx), acc[r]);
                }
            }
        }
    }

    /// Step `s` of a pipeline of three: the tile unit multiplies block `s`, lanes do the float steps of block `s - 2`,
    /// and the sums of block `s - 1`, finished meanwhile, are stored. Stores wait for products and loads for stores, so each gets a step of time.
    #[inline(always)]
    unsafe fn step<const HALVES: bool, const MIN: bool, const ODD: bool>(
        t: &Tile,
        s: usize,
        acc: &mut [__m512; ROWS],
        sums: [*mut i32; 2],
    ) {
        let stride = const { unpacked::stride(HALVES, MIN) };
        // SAFETY: blocks below `t.blocks` are covered; the caller has AVX-512 and configured tiles.
        unsafe {
            if s < t.blocks {
                multiply::<HALVES, ODD>(t.codes.add(s * stride), t.q.add(s * ROWS * BLOCK));
                let next = t.q.wrapping_add((s + 4) * ROWS * BLOCK);
                for line in 0..ROWS * BLOCK / 64 {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line));
                }
            }
            if s >= 2 {
                let b = s - 2;
                let scales = t.codes.add(b * stride + 512).cast();
                accumulate::<HALVES, MIN>(
                    acc,
                    sums[ODD as usize],
                    scales,
                    t.d.add(b * ROWS),
                    t.sums.add(b * 3 * ROWS),
                );
            }
            if s >= 1 && s <= t.blocks {
                if ODD {
                    keep::<HALVES, false>(sums[0]);
                } else {
                    keep::<HALVES, true>(sums[1]);
                }
            }
        }
    }

    /// Products of a plain unpacked panel with 16 rows.
    ///
    /// # Safety
    /// The calling thread holds [`Tiles`] for `HALVES`; every pointer of the tile covers what its field says for 16 rows, `codes` is
    /// aligned to 64 bytes.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(crate) unsafe fn run<const HALVES: bool, const MIN: bool>(t: &Tile) {
        let mut sums = std::mem::MaybeUninit::<[Sums; 2]>::uninit();
        // SAFETY: steps below 2 read no sums, later ones those that an earlier step stored; the rest is the caller's contract.
        unsafe {
            let sums = sums.as_mut_ptr().cast::<i32>();
            let sums = [sums, sums.add(2 * ROWS * 16)];
            let mut acc = [_mm512_setzero_ps(); ROWS];
            if !t.first {
                for r in 0..ROWS {
                    acc[r] = _mm512_loadu_ps(t.acc.add(16 * r));
                }
            }
            let mut s = 0;
            while s < t.blocks + 2 {
                step::<HALVES, MIN, false>(t, s, &mut acc, sums);
                if s + 1 < t.blocks + 2 {
                    step::<HALVES, MIN, true>(t, s + 1, &mut acc, sums);
                }
                s += 2;
            }
            for r in 0..ROWS {
                _mm512_storeu_ps(t.acc.add(16 * r), acc[r]);
            }
        }
    }
}
