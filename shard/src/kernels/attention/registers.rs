//! The innermost loops of attention: tiles that live in registers, R queries against 16 positions or D vectors of values.

use crate::kernels::simd::{LANES, Simd};

/// How keys and values are read: widened before, or as they are stored. The bits are the same.
pub(super) trait Source {
    type Value: Copy;
    /// # Safety
    /// The instruction set is available and 16 values are readable.
    unsafe fn load<S: Simd>(from: *const Self::Value) -> S::F;
}

/// f32, widened before.
pub(super) struct Widened;
/// f16, as pages store it.
pub(super) struct Stored;

impl Source for Widened {
    type Value = f32;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S::F {
        // SAFETY: promised by the caller.
        unsafe { S::load(from) }
    }
}

impl Source for Stored {
    type Value = u16;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S::F {
        // SAFETY: promised by the caller.
        unsafe { S::load_f16(from) }
    }
}

/// Partial sums `residue` and `residue + 8` of q.k for 16 positions and R queries, added.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn residues<S: Simd, K: Source, const R: usize>(
    keys: *const K::Value,
    dim: usize,
    q: &[*const f32; R],
    residue: usize,
) -> [S::F; R] {
    // SAFETY: d stays below dim.
    unsafe {
        let mut low = [S::splat(0.0); R];
        let mut high = [S::splat(0.0); R];
        let mut d = residue;
        while d + 8 < dim {
            let (k_low, k_high) =
                (K::load::<S>(keys.add(d * LANES)), K::load::<S>(keys.add((d + 8) * LANES)));
            for r in 0..R {
                low[r] = S::fma(k_low, S::splat(*q[r].add(d)), low[r]);
                high[r] = S::fma(k_high, S::splat(*q[r].add(d + 8)), high[r]);
            }
            d += 16;
        }
        if d < dim {
            let k = K::load::<S>(keys.add(d * LANES));
            for r in 0..R {
                low[r] = S::fma(k, S::splat(*q[r].add(d)), low[r]);
            }
        }
        sum::<S, R>(low, high)
    }
}

/// Lane by lane sums.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn sum<S: Simd, const R: usize>(mut a: [S::F; R], b: [S::F; R]) -> [S::F; R] {
    for r in 0..R {
        // SAFETY: promised by the caller.
        a[r] = unsafe { S::add(a[r], b[r]) };
    }
    a
}

/// q.k of R queries with 16 keys. The tree 8-4-2-1 over the sixteen partial sums is walked depth first, so that few of them are
/// alive at a time.
///
/// # Safety
/// The instruction set of `S` is available; `keys` is `[dim][16]`, each query has `dim` values.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, K: Source, const R: usize>(
    keys: *const K::Value,
    dim: usize,
    q: &[*const f32; R],
) -> [S::F; R] {
    // SAFETY: promised by the caller.
    unsafe {
        let even = sum::<S, R>(
            sum::<S, R>(residues::<S, K, R>(keys, dim, q, 0), residues::<S, K, R>(keys, dim, q, 4)),
            sum::<S, R>(residues::<S, K, R>(keys, dim, q, 2), residues::<S, K, R>(keys, dim, q, 6)),
        );
        let odd = sum::<S, R>(
            sum::<S, R>(residues::<S, K, R>(keys, dim, q, 1), residues::<S, K, R>(keys, dim, q, 5)),
            sum::<S, R>(residues::<S, K, R>(keys, dim, q, 3), residues::<S, K, R>(keys, dim, q, 7)),
        );
        sum::<S, R>(even, odd)
    }
}

/// q.k of sixteen queries with sixteen keys, lane by lane, in the order of [`scores`].
///
/// # Safety
/// The instruction set of `S` is available; both are `[dim][16]`.
#[inline(always)]
pub(super) unsafe fn diagonal<S: Simd>(keys: *const u16, q: *const f32, dim: usize) -> S::F {
    // SAFETY: d stays below dim.
    unsafe {
        let mut sums = [S::splat(0.0); LANES];
        for first in (0..dim).step_by(LANES) {
            for (residue, sum) in sums.iter_mut().enumerate().take(dim - first) {
                let at = (first + residue) * LANES;
                *sum = S::fma(S::load_f16(keys.add(at)), S::load(q.add(at)), *sum);
            }
        }
        for step in [8, 4, 2, 1] {
            for j in 0..step {
                sums[j] = S::add(sums[j], sums[j + step]);
            }
        }
        sums[0]
    }
}

/// Adds `count` positions of values to D vectors of R results.
///
/// # Safety
/// The instruction set of `S` is available; values are `stride` apart and hold D vectors; each `p` has `count` values.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "counted loops over registers, unrolled")]
pub(super) unsafe fn mix<S: Simd, V: Source, const R: usize, const D: usize>(
    values: *const V::Value,
    stride: usize,
    count: usize,
    p: &[*const f32; R],
    o: &[*mut f32; R],
) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut sums = [[S::splat(0.0); D]; R];
        for r in 0..R {
            for d in 0..D {
                sums[r][d] = S::load(o[r].add(d * LANES));
            }
        }
        for j in 0..count {
            let mut v = [S::splat(0.0); D];
            for d in 0..D {
                v[d] = V::load::<S>(values.add(j * stride + d * LANES));
            }
            for r in 0..R {
                let weight = S::splat(*p[r].add(j));
                for d in 0..D {
                    sums[r][d] = S::fma(weight, v[d], sums[r][d]);
                }
            }
        }
        for r in 0..R {
            for d in 0..D {
                S::store(o[r].add(d * LANES), sums[r][d]);
            }
        }
    }
}
