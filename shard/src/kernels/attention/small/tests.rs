//! A plain twin of what is kept in fewer bits, number by number.

use half::f16;
use scheduler::session_kind::{CACHE_BLOCK, CacheType};

use super::{super::KvShape, *};
use crate::fma::Fma;
use crate::{
    kernels::vector::tests::{noise, on_every_cpu, tree},
    quant::quantize_row,
};

/// A block of 32 numbers: codes and their scale.
type Block = ([i32; CACHE_BLOCK], f32);

/// Keys and values as they are kept.
pub(in super::super) struct Kept {
    shape: KvShape,
    blocks: usize,
    /// Those of positions that are kept as f16, `[position][head][head_dim]`.
    whole: [Vec<f32>; 2],
    /// The others, `[position][head][block]`.
    keys: Vec<Block>,
    values: Vec<Block>,
    /// What keys are relative to, `[quarter][head][head_dim]`, those before the first of fewer bits zeros.
    references: Vec<f32>,
}

/// The transform by its definition: the sign of (i, j) is the parity of the bits that both have.
fn transformed(x: [f32; CACHE_BLOCK]) -> [f32; CACHE_BLOCK] {
    let mut x = x;
    for apart in [16, 8, 4, 2, 1] {
        let before = x;
        for i in 0..CACHE_BLOCK {
            x[i] = if i & apart == 0 { before[i] + before[i + apart] } else { before[i - apart] - before[i] };
        }
    }
    x
}

fn under(x: &[f32], scale: f32, least: f32, most: f32) -> (Block, f32) {
    let scale = f16::from_f32(scale.clamp(-65_504.0, 65_504.0)).to_f32();
    let inverse = 1.0 / scale;
    let none = scale == 0.0 || inverse.is_infinite();
    let mut lanes = [0.0f32; LANES];
    let mut codes = [0; CACHE_BLOCK];
    for (i, &x) in x.iter().enumerate() {
        let code = if none { 0.0 } else { (x * inverse).clamp(least, most).round_ties_even() };
        let error = if none { x } else { x - code * scale };
        lanes[i % LANES] = if i < LANES { error * error } else { error.fma(error, lanes[i % LANES]) };
        codes[i] = code as i32;
    }
    ((codes, if none { 0.0 } else { scale }), tree(lanes))
}

fn round_plainly(x: &[f32; CACHE_BLOCK], cache: CacheType) -> Block {
    if x.iter().any(|x| !x.is_finite()) {
        return ([0; CACHE_BLOCK], f32::NAN);
    }
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    if cache == CacheType::Q8 {
        return under(x, most / 127.0, -127.0, 127.0).0;
    }
    let extreme = x.iter().copied().find(|x| x.abs() == most).unwrap();
    let mut tried = DIVISORS.map(|divisor| under(x, extreme / divisor, -8.0, 7.0));
    // Stable: of equal ones the first.
    tried.sort_by(|a, b| a.1.total_cmp(&b.1));
    tried[0].0
}

fn rounded(x: f32) -> f32 {
    f16::from_f32(x.clamp(-65_504.0, 65_504.0)).to_f32()
}

fn blocks_of(head: &[f32]) -> Vec<[f32; CACHE_BLOCK]> {
    let filled = |part: &[f32]| std::array::from_fn(|i| part.get(i).copied().unwrap_or(0.0));
    head.chunks(CACHE_BLOCK).map(filled).collect()
}

impl Kept {
    pub(in super::super) fn of(shape: KvShape, k: &[f32], v: &[f32]) -> Self {
        let (width, dim) = (shape.kv_heads * shape.head_dim, shape.head_dim);
        let exact = (shape.cache.exact_positions() * width).min(k.len());
        let whole = [k, v].map(|x| x[..exact].iter().copied().map(rounded).collect());
        let blocks = dim.div_ceil(CACHE_BLOCK);
        let mut kept =
            Self { shape, blocks, whole, keys: Vec::new(), values: Vec::new(), references: Vec::new() };
        for position in 0..k.len() / width {
            if position % QUARTER == 0 {
                let next: Vec<f32> = (0..width).map(|i| kept.reference(position, i / dim, i % dim)).collect();
                kept.references.extend(next);
            }
            let references = &kept.references[position / QUARTER * width..][..width];
            let row = position * width..(position + 1) * width;
            if row.end <= exact {
                continue;
            }
            let relative: Vec<_> = k[row.clone()].iter().zip(references).map(|(k, r)| k - r).collect();
            for head in relative.chunks_exact(dim) {
                kept.keys
                    .extend(blocks_of(head).iter().map(|x| round_plainly(&transformed(*x), shape.cache)));
            }
            for head in v[row].chunks_exact(dim) {
                kept.values.extend(blocks_of(head).iter().map(|x| round_plainly(x, shape.cache)));
            }
        }
        kept
    }

    /// Number `d` of what the keys of a head are relative to from `position` on, the first of a quarter.
    fn reference(&self, position: usize, head: usize, d: usize) -> f32 {
        if self.shape.cache != CacheType::Q4 || position == 0 {
            return 0.0;
        }
        let before = position - QUARTER..position;
        let mut lanes = [0.0; LANES];
        if before.start == 0 {
            for position in before {
                lanes[position % LANES] += self.whole[0][self.number(position, head, d)];
            }
            return rounded(tree(lanes) * (1.0 / 64.0));
        }
        let sums = std::array::from_fn(|i| {
            let mut lanes = [0.0; LANES];
            for position in before.clone() {
                let (codes, scale) = &self.keys[self.first(position, head) + d / CACHE_BLOCK];
                lanes[position % LANES] += codes[i] as f32 * scale;
            }
            tree(lanes)
        });
        let last = self.references[self.number(before.start / QUARTER, head, d)];
        rounded(last + transformed(sums)[d % CACHE_BLOCK] * (1.0 / 2048.0))
    }

    fn number(&self, row: usize, head: usize, d: usize) -> usize {
        (row * self.shape.kv_heads + head) * self.shape.head_dim + d
    }

    fn first(&self, position: usize, head: usize) -> usize {
        ((position - self.shape.cache.exact_positions()) * self.shape.kv_heads + head) * self.blocks
    }

    /// q.k with the key of a position.
    pub(in super::super) fn score(&self, q: &[f32], position: usize, head: usize) -> f32 {
        let exact = position < self.shape.cache.exact_positions();
        let (keys, row) = match exact {
            true => (&self.whole[0], position),
            false => (&self.references, position / QUARTER),
        };
        let mut lanes = [0.0f32; LANES];
        for (d, q) in q.iter().enumerate() {
            lanes[d % LANES] = q.fma(keys[self.number(row, head, d)], lanes[d % LANES]);
        }
        let mut s = tree(lanes);
        if exact {
            return s;
        }
        for (block, part) in blocks_of(q).iter().enumerate() {
            let mut codes = [0i8; CACHE_BLOCK];
            let mut d = [0.0f32];
            quantize_row(&transformed(*part), &mut codes, &mut d, &mut [0; 2]);
            let (key, scale) = &self.keys[self.first(position, head) + block];
            let sum: i32 = codes.iter().zip(key).map(|(&q, k)| i32::from(q) * k).sum();
            s = (sum as f32).fma(d[0] * (1.0 / 32.0) * scale, s);
        }
        s
    }

    /// A number of the value of a position.
    pub(in super::super) fn value(&self, position: usize, head: usize, d: usize) -> f32 {
        if position < self.shape.cache.exact_positions() {
            return self.whole[1][self.number(position, head, d)];
        }
        let (codes, scale) = &self.values[self.first(position, head) + d / CACHE_BLOCK];
        codes[d % CACHE_BLOCK] as f32 * scale
    }
}

struct Round<'a>(&'a [f32; CACHE_BLOCK], bool);

impl Kernel for Round<'_> {
    type Output = Rounded;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Rounded {
        // SAFETY: the caller has the instruction set.
        unsafe { round_block::<S>(self.0, self.1) }
    }
}

/// Zeros, numbers too small and too large for a scale, ties, and what is no number.
#[test]
fn blocks_are_rounded_as_it_is_written() {
    let mut blocks: Vec<[f32; CACHE_BLOCK]> =
        vec![[0.0; CACHE_BLOCK], [-0.0; CACHE_BLOCK], [3.5; CACHE_BLOCK]];
    for (seed, size) in [(1, 1.0), (2, 1e-9), (3, 3e-6), (4, 1e-4), (5, 7e3), (6, 3e7), (7, 1e30)] {
        blocks.push(std::array::from_fn(|i| noise(seed, CACHE_BLOCK, size)[i]));
    }
    blocks.push(std::array::from_fn(|i| (i as f32 - 16.0) / 2.0));
    blocks.push(std::array::from_fn(|i| if i == 17 { f32::INFINITY } else { 1.0 }));
    blocks.push(std::array::from_fn(|i| if i == 3 { f32::NAN } else { 1.0 }));
    on_every_cpu(|cpu, name| {
        for cache in [CacheType::Q8, CacheType::Q4] {
            for block in &blocks {
                let (codes, scale) = cpu.run(Round(block, cache == CacheType::Q4));
                let (expected, expected_scale) = round_plainly(block, cache);
                assert_eq!(codes.map(i32::from), expected, "{cache}: {block:?} on {name}");
                let scale = f16::from_bits(scale).to_f32();
                assert_eq!(scale.to_bits(), expected_scale.to_bits(), "{cache}: {block:?} on {name}");
            }
        }
    });
}

/// Keys of a head lie around a point; what 4 bits lose does not grow with how far off it is.
#[test]
fn what_keys_have_in_common_costs_no_bits() {
    let shape = KvShape { cache: CacheType::Q4, ..KvShape::new(1, 64) };
    let (near, point, q) = (noise(1, 300 * 64, 1.0), noise(2, 64, 12.0), noise(3, 64, 1.0));
    let far: Vec<f32> = near.iter().enumerate().map(|(i, k)| k + point[i % 64]).collect();
    let error = |k: &[f32]| {
        let kept = Kept::of(shape, k, k);
        let off = (64..300).map(|j| {
            let truth: f32 = q.iter().zip(&k[j * 64..]).map(|(q, k)| q * k).sum();
            (kept.score(&q, j, 0) - truth).abs()
        });
        off.sum::<f32>() / 236.0
    };
    let (near, far) = (error(&near), error(&far));
    assert!(far < 1.3 * near, "{far} where keys are around zero {near}");
}
