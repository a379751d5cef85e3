//! The key that the keys of a quarter of `q4` are relative to: the mean of those of the quarter before it.
//!
//! Keys of one head lie around a point that is far from zero and moves slowly, since rotation by position turns some dimensions slowly. What
//! is left without it takes a smaller scale. A quarter keeps its own behind its positions, `[kv_heads][head_dim]` f16, so nothing else has to
//! be there to read it; it follows from the keys before it as they are kept, so a snapshot lacks it and what restores one computes it again, but
//! for that of the first quarter of one that begins behind a window.
//!
//! # What is computed, in this order (profile d1)
//! 16 partial sums by position mod 16, positions ascending, added 8, 4, 2, 1 apart, each operation rounded by itself:
//! - behind a quarter of f16: of each number of its keys; number `d` is the sum times `1 / 64`;
//! - behind one of `q4`: of `code * scale` for each number of a block, as it is kept; the 32 sums are rotated as keys are, and number `d` is
//!   `r_d + sum * (1 / 2048)`, with `r` the reference of that quarter.
//!
//! It is stored as f16, magnitudes beyond 65504 as this.

use std::sync::Arc;

use half::f16;
use scheduler::session_kind::CACHE_BLOCK;

use super::{
    super::{F16_MAX, KvQuarter, KvShape, QUARTER},
    Layout, rotate,
};
use crate::kernels::simd::LANES;

/// Groups of positions side by side in a quarter.
const GROUPS: usize = QUARTER / LANES;

/// Where a quarter of `shape` has the reference of its first head.
pub(crate) fn begins(shape: KvShape) -> usize {
    QUARTER * shape.position_len()
}

/// Writes the reference of quarter number `quarter`, if it has one, before its first position is stored; those before it are whole.
pub(crate) fn begin(pages: &mut [KvQuarter], shape: KvShape, quarter: usize, at: usize) {
    if at > 0 || shape.in_quarter(quarter).reference_len() == 0 {
        return;
    }
    let (before, from) = pages.split_at_mut(quarter);
    let (before, kept) = (&before[quarter - 1], shape.in_quarter(quarter - 1));
    let to = &mut Arc::make_mut(&mut from[0])[begins(shape)..];
    for (head, to) in to.chunks_exact_mut(shape.head_dim).enumerate() {
        let keys = &before[head * QUARTER * kept.head_len()..][..QUARTER * kept.head_len()];
        if kept.reference_len() == 0 {
            mean_of_whole(keys, shape.head_dim, to);
        } else {
            let reference = &before[begins(shape) + head * shape.head_dim..][..shape.head_dim];
            mean_of_small(Layout::of(shape), keys, reference, to);
        }
    }
}

fn half(x: f32) -> u16 {
    f16::from_f32(x.clamp(-F16_MAX, F16_MAX)).to_bits()
}

/// Lanes added 8, 4, 2, 1 apart.
fn tree(mut lanes: [f32; LANES]) -> f32 {
    for apart in [8, 4, 2, 1] {
        for i in 0..apart {
            lanes[i] += lanes[i + apart];
        }
    }
    lanes[0]
}

/// Of keys `[64 / 16][dim][16]`.
fn mean_of_whole(keys: &[u16], dim: usize, to: &mut [u16]) {
    for (d, to) in to.iter_mut().enumerate() {
        let mut lanes = [0.0; LANES];
        for group in 0..GROUPS {
            let keys = &keys[(group * dim + d) * LANES..][..LANES];
            lanes.iter_mut().zip(keys).for_each(|(sum, key)| *sum += f16::from_bits(*key).to_f32());
        }
        *to = half(tree(lanes) * (1.0 / QUARTER as f32));
    }
}

/// Of blocks of 4 bits, as the module above lays them out.
fn mean_of_small(layout: Layout, keys: &[u16], reference: &[u16], to: &mut [u16]) {
    let byte = |at: usize| keys[at / 2].to_le_bytes()[at % 2];
    let numbers = reference.chunks(CACHE_BLOCK).zip(to.chunks_mut(CACHE_BLOCK));
    for (block, (reference, to)) in numbers.enumerate() {
        let mut sums = [[0.0; LANES]; CACHE_BLOCK];
        for group in 0..GROUPS {
            let begin = layout.key(group, block);
            for lane in 0..LANES {
                let scale = f16::from_bits(keys[(begin + LANES * layout.codes) / 2 + lane]).to_f32();
                for i in 0..LANES {
                    let both = byte(begin + (i / 4 * LANES + lane) * 4 + i % 4);
                    sums[i][lane] += f32::from(i16::from(both & 15) - 8) * scale;
                    sums[LANES + i][lane] += f32::from(i16::from(both >> 4) - 8) * scale;
                }
            }
        }
        let mut x = sums.map(tree);
        rotate(&mut x);
        for ((to, reference), x) in to.iter_mut().zip(reference).zip(x) {
            *to = half(f16::from_bits(*reference).to_f32() + x * (1.0 / (QUARTER * CACHE_BLOCK) as f32));
        }
    }
}
