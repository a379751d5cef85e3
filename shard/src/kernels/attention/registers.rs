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

/// How many bytes behind what is read lies what is asked for meanwhile: spread over the products, since requests in one go fill the
/// buffers of the first-level cache, and then nothing else is computed. `Some(0)` asks for what is there.
pub(super) type Ahead = Option<isize>;

/// Asks for the line `ahead` of `at`.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
pub(super) unsafe fn ask<S: Simd, T>(at: *const T, ahead: Ahead) {
    if let Some(distance) = ahead {
        // SAFETY: promised by the caller; a prefetch may name any address.
        unsafe { S::prefetch(at.cast::<u8>().wrapping_offset(distance)) };
    }
}

/// G groups of 16 keys against R queries.
type Scores<F, const R: usize, const G: usize> = [[F; R]; G];

/// Adds the products of dimensions `d` and `d + 8` to their sums.
///
/// # Safety
/// As [`scores`]; both are dimensions.
#[inline(always)]
unsafe fn pair_of<S: Simd, K: Source, const R: usize, const G: usize>(
    keys: &[*const K::Value; G],
    q: &[*const f32; R],
    d: usize,
    ahead: Ahead,
    low: &mut Scores<S::F, R, G>,
    high: &mut Scores<S::F, R, G>,
) {
    // SAFETY: promised by the caller.
    unsafe {
        for g in 0..G {
            // A line has two dimensions.
            if d.is_multiple_of(2) {
                ask::<S, _>(keys[g].add(d * LANES), ahead);
                ask::<S, _>(keys[g].add((d + 8) * LANES), ahead);
            }
            let (k_low, k_high) =
                (K::load::<S>(keys[g].add(d * LANES)), K::load::<S>(keys[g].add((d + 8) * LANES)));
            for r in 0..R {
                low[g][r] = S::fma(k_low, S::splat(*q[r].add(d)), low[g][r]);
                high[g][r] = S::fma(k_high, S::splat(*q[r].add(d + 8)), high[g][r]);
            }
        }
    }
}

/// Partial sums `residue` and `residue + 8` of q.k for G groups of 16 positions and R queries, added.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn residues<S: Simd, K: Source, const R: usize, const G: usize>(
    keys: &[*const K::Value; G],
    dim: usize,
    q: &[*const f32; R],
    residue: usize,
    ahead: Ahead,
) -> Scores<S::F, R, G> {
    // SAFETY: d stays below dim.
    unsafe {
        let mut low = [[S::splat(0.0); R]; G];
        let mut high = [[S::splat(0.0); R]; G];
        let mut d = residue;
        // Four steps at a time: a head of 64 takes no more.
        while d + 8 + 3 * LANES < dim {
            for step in 0..4 {
                pair_of::<S, K, R, G>(keys, q, d + step * LANES, ahead, &mut low, &mut high);
            }
            d += 4 * LANES;
        }
        while d + 8 < dim {
            pair_of::<S, K, R, G>(keys, q, d, ahead, &mut low, &mut high);
            d += LANES;
        }
        if d < dim {
            for g in 0..G {
                let k = K::load::<S>(keys[g].add(d * LANES));
                for r in 0..R {
                    low[g][r] = S::fma(k, S::splat(*q[r].add(d)), low[g][r]);
                }
            }
        }
        sum::<S, R, G>(low, high)
    }
}

/// Lane by lane sums.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn sum<S: Simd, const R: usize, const G: usize>(
    mut a: Scores<S::F, R, G>,
    b: Scores<S::F, R, G>,
) -> Scores<S::F, R, G> {
    for g in 0..G {
        for r in 0..R {
            // SAFETY: promised by the caller.
            a[g][r] = unsafe { S::add(a[g][r], b[g][r]) };
        }
    }
    a
}

/// q.k of R queries with G groups of 16 keys. Partial sums wait in memory for the tree 8-4-2-1 over them: few registers are taken by
/// those that are done.
///
/// # Safety
/// The instruction set of `S` is available; each of `keys` is `[dim][16]`, each query has `dim` values.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, K: Source, const R: usize, const G: usize>(
    keys: &[*const K::Value; G],
    dim: usize,
    q: &[*const f32; R],
    ahead: Ahead,
) -> Scores<S::F, R, G> {
    let mut parts = [[[const { std::mem::MaybeUninit::<S::F>::uninit() }; R]; G]; 8];
    // SAFETY: promised by the caller.
    unsafe {
        for (residue, parts) in parts.iter_mut().enumerate() {
            let sums = residues::<S, K, R, G>(keys, dim, q, residue, ahead);
            for g in 0..G {
                for r in 0..R {
                    parts[g][r].write(sums[g][r]);
                }
            }
        }
        let mut scores = [[S::splat(0.0); R]; G];
        for g in 0..G {
            for r in 0..R {
                let of = |residue: usize| parts[residue][g][r].assume_init();
                let even = S::add(S::add(of(0), of(4)), S::add(of(2), of(6)));
                let odd = S::add(S::add(of(1), of(5)), S::add(of(3), of(7)));
                scores[g][r] = S::add(even, odd);
            }
        }
        scores
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
    ahead: Ahead,
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
                // A line has two vectors, if they are stored as f16.
                if d.is_multiple_of(2) {
                    ask::<S, _>(values.add(j * stride + d * LANES), ahead);
                }
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
