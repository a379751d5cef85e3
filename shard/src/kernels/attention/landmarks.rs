//! Landmarks: the mean key and the mean value of whole blocks of positions.
//!
//! A session with sparse attention has `[block number][kv_heads][key, value][head_dim]` f16 values beside its pages. The
//! order of the sums is in the module above; it depends on positions alone.

use std::ops::Range;

use half::f16;

use super::{F16_MAX, KvQuarter, KvShape, PAGE, PARALLEL, QUARTER, quarter_len};
use crate::kernels::{
    Cpu, Kernel,
    simd::{LANES, Simd},
    vector::Shared,
};

/// f16 values of one landmark of a layer.
pub fn landmark_len(shape: KvShape) -> usize {
    2 * shape.kv_heads * shape.head_dim
}

/// Writes the landmarks of the blocks of `block` positions that end inside `stored`, positions whose keys and values have
/// just been stored; those before it are as they were stored.
///
/// Panics when `pages` or `landmarks` do not reach that far, and for a block that does not divide a page into groups of 16.
pub fn store(
    cpu: &Cpu,
    pages: &[KvQuarter],
    shape: KvShape,
    block: usize,
    stored: Range<usize>,
    landmarks: &mut [u16],
) {
    assert!(shape.latent.is_none(), "landmarks of values that are a part of keys");
    assert!(block.is_multiple_of(LANES) && PAGE.is_multiple_of(block), "blocks of {block}");
    let len = landmark_len(shape);
    let numbers = stored.start / block..stored.end / block;
    if numbers.is_empty() {
        return;
    }
    assert!(numbers.end * len <= landmarks.len(), "landmarks of {block} positions end too early");
    let of = |number: usize| number * block / QUARTER..((number + 1) * block).div_ceil(QUARTER);
    let touched = &pages[of(numbers.start).start..of(numbers.end - 1).end];
    assert!(touched.iter().all(|it| it.len() == quarter_len(shape)), "a page has another shape");
    let shared = Shared(landmarks.as_mut_ptr());
    let mean = |number: usize| {
        // SAFETY: each block is taken by one thread, its landmark is inside the slice (checked), which outlives the run.
        let to = unsafe { shared.part(number * len..(number + 1) * len) };
        cpu.run(Means { quarters: &pages[of(number)], shape, at: number * block % QUARTER, block, to });
    };
    if numbers.len() * block * len < PARALLEL {
        return numbers.for_each(mean);
    }
    cpu.pool().run(&|worker, workers| (numbers.start + worker..numbers.end).step_by(workers).for_each(mean));
}

/// The means of one block, which begins at local position `at` of the first quarter.
struct Means<'a> {
    quarters: &'a [KvQuarter],
    shape: KvShape,
    at: usize,
    block: usize,
    to: &'a mut [u16],
}

impl Kernel for Means<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { quarters, shape: KvShape { head_dim, .. }, at, block, to } = self;
        let factor = 1.0 / block as f32;
        let half = |sum: f32| f16::from_f32((sum * factor).clamp(-F16_MAX, F16_MAX)).to_bits();
        for (head, to) in to.chunks_exact_mut(2 * head_dim).enumerate() {
            let keys =
                |j: usize| &quarters[j / QUARTER][head * 2 * QUARTER * head_dim..][..QUARTER * head_dim];
            let values = |j: usize| &quarters[j / QUARTER][(head * 2 + 1) * QUARTER * head_dim..];
            let (key, value) = to.split_at_mut(head_dim);
            let groups = at / LANES..(at + block) / LANES;
            for (d, key) in key.iter_mut().enumerate() {
                // SAFETY: the slices are bounds-checked to 16 values; the caller promises the instruction set.
                *key = half(unsafe {
                    let mut sums = S::splat(0.0);
                    for group in groups.clone() {
                        let at = group * LANES % QUARTER;
                        let lanes = &keys(group * LANES)[at * head_dim + d * LANES..][..LANES];
                        sums = S::add(sums, S::load_f16(lanes.as_ptr()));
                    }
                    S::sum_tree(sums)
                });
            }
            for d in (0..head_dim).step_by(LANES) {
                let wide = LANES.min(head_dim - d);
                let mut sums = [[0.0f32; LANES]; LANES];
                for j in at..at + block {
                    let row = &values(j)[j % QUARTER * head_dim + d..][..wide];
                    let sums = &mut sums[j % LANES];
                    if wide == LANES {
                        // SAFETY: both slices hold 16 values; the caller promises the instruction set.
                        unsafe {
                            let sum = S::add(S::load(sums.as_ptr()), S::load_f16(row.as_ptr()));
                            S::store(sums.as_mut_ptr(), sum);
                        }
                    } else {
                        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += f16::from_bits(*v).to_f32());
                    }
                }
                for step in [8, 4, 2, 1] {
                    let (low, high) = sums.split_at_mut(step);
                    for (low, high) in low.iter_mut().zip(high) {
                        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
                    }
                }
                value[d..d + wide].iter_mut().zip(sums[0]).for_each(|(value, sum)| *value = half(sum));
            }
        }
    }
}
