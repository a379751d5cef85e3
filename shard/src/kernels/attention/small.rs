//! Pages whose keys and values have 8 or 4 bits.
//!
//! # Pages
//! A head is stored in blocks of 32 dimensions ([`CACHE_BLOCK`]), the last one filled up with zeros. A block of one position is 32 codes
//! and one f16 scale; the number that is stored is `code * scale`. For each key/value head a quarter has
//!
//! ```text
//! keys     [64 / 16][blocks] x { codes of 16 positions, [16] scales }
//! values   [64][blocks] codes, then [blocks][64] scales
//! ```
//!
//! and for `q4`, behind all heads, the [`reference`] key of each. The first quarter of a session of `q4` is one of f16: what is said first is
//! looked at most.
//!
//! Codes of keys lie as the integer products take them: `[8][16][4]` bytes for `q8`, number `4 v + j` of position `l` at `[v][l][j]`; for
//! `q4` `[4][16][4]` bytes, number `4 v + j` in the low half of `[v][l][j]` and number `16 + 4 v + j` in the high half. Codes of a value lie
//! in order; for `q4` number `i` is the low half of byte `i` and number `16 + i` the high half. Codes of `q4` are stored plus 8.
//!
//! # What is computed, in this order (profile d1)
//! *Storing.* From a key of `q4` the reference of its quarter is subtracted. A key is rotated then: each block becomes its Walsh-Hadamard transform,
//! sums and differences 16, 8, 4, 2, 1 apart, the sum in front. Then, of a block, `m` is the largest magnitude, and
//! - `q8`: `scale = f16(min(m / 127, 65504))`, `code = round(x * (1 / scale))` within -127 to 127, ties to even;
//! - `q4`: for each divisor of [`DIVISORS`] in turn `scale = f16(x_m / divisor)` with the first value `x_m` of magnitude `m`,
//!   `code = round(x * (1 / scale))` within -8 to 7, and the error `sum (x - code * scale)^2`, 16 partial sums by number mod 16, each of them
//!   the first half and then the second, fused, added 8, 4, 2, 1 apart. The divisor with the least error counts, of equal ones the
//!   first.
//!
//! A scale of which `1 / scale` is no finite number makes all codes 0 and the scale 0; a block with a value that is not finite has a
//! scale of NaN.
//!
//! *Scores.* A query is rotated as the keys are and rounded block by block as activations are ([`crate::quant::quantize_row`]): codes and an f32 scale `d`. Then
//! `s = fma(sum of products of codes, (d / 32) * scale, s)`, blocks ascending, from 0, and for `q4` from the product of the query itself with the
//! reference, summed as that with a key of f16 is. The sums of codes are integers, and exact.
//!
//! *Values.* `v = code * scale`, which is exact in f32. All else is as for f16.
//!
//! Limits: values that are a part of the keys, and sparse attention, have pages of f16.

pub(crate) mod reference;
#[cfg(test)]
pub(super) mod tests;

use half::f16;
use scheduler::session_kind::{CACHE_BLOCK, CacheType};

use super::{F16_MAX, KvShape, QUARTER, Store, task::ROWS};
use crate::kernels::{
    Cpu, Kernel,
    simd::{LANES, Simd},
    vector::Shared,
};

/// Fewest numbers of keys for which waking the threads pays: storing one takes some four times a multiplication's time.
const PARALLEL: usize = 4_096;

/// What the value of largest magnitude of a block of `q4` may become, in the order in which they are tried.
const DIVISORS: [f32; 4] = [-8.0, -7.0, 7.0, 8.5];

/// How the heads of one layer are stored.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Blocks of one key, and of one value.
    pub(super) blocks: usize,
    /// Bytes of the codes of one block.
    pub(super) codes: usize,
    /// Whether they have 4 bits.
    pub(super) four: bool,
}

impl Layout {
    #[inline(always)]
    pub(crate) fn of(shape: KvShape) -> Self {
        let blocks = shape.head_dim.div_ceil(CACHE_BLOCK);
        Self { blocks, codes: shape.cache.block_bytes() - 2, four: shape.cache == CacheType::Q4 }
    }

    /// Where block `block` of the keys of positions `16 * group` and after it begins, from the beginning of a head.
    #[inline(always)]
    pub(super) fn key(self, group: usize, block: usize) -> usize {
        (group * self.blocks + block) * LANES * (self.codes + 2)
    }

    /// Where the codes of block `block` of the value at `at` begin.
    #[inline(always)]
    pub(super) fn value(self, at: usize, block: usize) -> usize {
        QUARTER * self.blocks * (self.codes + 2) + (at * self.blocks + block) * self.codes
    }

    /// Where its scale is.
    #[inline(always)]
    pub(super) fn value_scale(self, at: usize, block: usize) -> usize {
        self.value(QUARTER, 0) + (block * QUARTER + at) * 2
    }

    /// How a block of the key at `at` lies.
    #[inline(always)]
    fn key_block(self, at: usize, block: usize) -> Spread {
        let begin = self.key(at / LANES, block);
        let scale = begin + LANES * self.codes + at % LANES * 2;
        Spread { begin: begin + at % LANES * 4, apart: 4 * LANES, scale }
    }

    /// How a block of the value at `at` lies.
    #[inline(always)]
    fn value_block(self, at: usize, block: usize) -> Spread {
        Spread { begin: self.value(at, block), apart: 4, scale: self.value_scale(at, block) }
    }

    /// Where a block of the key at `at` is, in units of two bytes from the beginning of a head: codes and then the scale, which
    /// is an f16 number.
    pub(crate) fn key_units(self, at: usize, block: usize) -> impl Iterator<Item = (usize, bool)> {
        self.units(self.key_block(at, block))
    }

    /// The same of the value at `at`.
    pub(crate) fn value_units(self, at: usize, block: usize) -> impl Iterator<Item = (usize, bool)> {
        self.units(self.value_block(at, block))
    }

    fn units(self, Spread { begin, apart, scale }: Spread) -> impl Iterator<Item = (usize, bool)> {
        let codes = (0..self.codes / 2).map(move |two| begin + two / 2 * apart + two % 2 * 2);
        codes.map(|at| (at / 2, false)).chain([(scale / 2, true)])
    }
}

/// Where a block of one position is: its codes, four bytes at a time, and its scale.
#[derive(Clone, Copy)]
struct Spread {
    begin: usize,
    apart: usize,
    scale: usize,
}

/// The Walsh-Hadamard transform of a block.
#[inline(always)]
pub(super) fn rotate(x: &mut [f32; CACHE_BLOCK]) {
    for apart in [16, 8, 4, 2, 1] {
        for pair in x.chunks_exact_mut(2 * apart) {
            let (low, high) = pair.split_at_mut(apart);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
    }
}

/// Block `block` of a row, filled up with zeros.
#[inline(always)]
pub(super) fn block_of(row: &[f32], block: usize) -> [f32; CACHE_BLOCK] {
    let mut x = [0.0; CACHE_BLOCK];
    let from = &row[block * CACHE_BLOCK..row.len().min((block + 1) * CACHE_BLOCK)];
    x[..from.len()].copy_from_slice(from);
    x
}

// ---- storing -----------------------------------------------------------------------------------------------------------

/// Codes of a block, and its scale.
type Rounded = ([i8; CACHE_BLOCK], u16);

/// The codes of `x` under `scale`, and their error.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn codes_of<S: Simd>(x: [S::F; 2], scale: f16, (least, most): (f32, f32)) -> (Rounded, f32) {
    let wide = scale.to_f32();
    let inverse = 1.0 / wide;
    let mut codes = [0; CACHE_BLOCK];
    // SAFETY: each half of the codes holds a vector; the caller promises the instruction set.
    unsafe {
        if wide == 0.0 || inverse.is_infinite() {
            let sums = S::fma(x[1], x[1], S::mul(x[0], x[0]));
            return ((codes, 0), S::sum_tree(sums));
        }
        let mut errors = S::splat(0.0);
        for (half, x) in x.into_iter().enumerate() {
            let code = S::min(S::splat(most), S::max(S::splat(least), S::mul(x, S::splat(inverse))));
            let code = S::round_i32(code);
            S::store_i8(codes.as_mut_ptr().add(half * LANES), code);
            let error = S::sub(x, S::mul(S::to_f32(code), S::splat(wide)));
            errors = if half == 0 { S::mul(error, error) } else { S::fma(error, error, errors) };
        }
        ((codes, scale.to_bits()), S::sum_tree(errors))
    }
}

/// Rounds a block.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn round_block<S: Simd>(x: &[f32; CACHE_BLOCK], four: bool) -> Rounded {
    // SAFETY: each half of the block holds a vector; the caller promises the instruction set.
    unsafe {
        let halves = [S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES))];
        // v - v is zero for every finite v and NaN for the others.
        let none = S::add(S::sub(halves[0], halves[0]), S::sub(halves[1], halves[1]));
        if S::sum_tree(none) != 0.0 {
            return ([0; CACHE_BLOCK], f16::NAN.to_bits());
        }
        let most = S::max_lane(S::max(S::abs(halves[0]), S::abs(halves[1])));
        let scale = |x: f32| f16::from_f32(x.clamp(-F16_MAX, F16_MAX));
        if !four {
            return codes_of::<S>(halves, scale(most / 127.0), (-127.0, 127.0)).0;
        }
        let extreme = x.iter().copied().find(|x| x.abs() == most).unwrap_or(0.0);
        let mut best = codes_of::<S>(halves, scale(extreme / DIVISORS[0]), (-8.0, 7.0));
        for divisor in &DIVISORS[1..] {
            let other = codes_of::<S>(halves, scale(extreme / divisor), (-8.0, 7.0));
            if other.1 < best.1 {
                best = other;
            }
        }
        best.0
    }
}

/// Two codes of 4 bits in each byte: number i and number 16 + i.
#[inline(always)]
fn packed(codes: &[i8; CACHE_BLOCK]) -> [u8; LANES] {
    std::array::from_fn(|i| (codes[i] + 8) as u8 | ((codes[LANES + i] + 8) as u8) << 4)
}

/// Rounds a block and writes it into a head.
///
/// # Safety
/// The instruction set of `S` is available, and what `to` says is inside the head at `bytes`.
#[inline(always)]
unsafe fn put<S: Simd>(x: &[f32; CACHE_BLOCK], four: bool, bytes: *mut u8, to: Spread) {
    // SAFETY: promised by the caller; a scale has two bytes.
    unsafe {
        let (codes, scale) = round_block::<S>(x, four);
        let (small, wide) = (packed(&codes), codes.map(|code| code as u8));
        let from: &[u8] = if four { &small } else { &wide };
        for (i, four) in from.chunks_exact(4).enumerate() {
            bytes.add(to.begin + i * to.apart).copy_from_nonoverlapping(four.as_ptr(), 4);
        }
        bytes.add(to.scale).cast::<[u8; 2]>().write(scale.to_le_bytes());
    }
}

/// Stores rows of keys and values of all heads into one quarter from local position `at`; `shape` is as the quarter holds it, and its
/// reference is there.
pub(super) fn store_heads(cpu: &Cpu, page: &mut [u16], shape: KvShape, (k, v): (&[f32], &[f32]), at: usize) {
    if shape.cache == CacheType::F16 {
        return cpu.run(Store { page, shape, k, v, at });
    }
    let (page, references) = page.split_at_mut(reference::begins(shape));
    let one = QUARTER * shape.head_len();
    let shared = Shared(page.as_mut_ptr());
    let store = |head: usize| {
        // SAFETY: each head is taken by one thread, and the page outlives the run.
        let page = unsafe { shared.part(head * one..(head + 1) * one) };
        let reference = &references[head * shape.head_dim..][..shape.head_dim];
        cpu.run(StoreSmall { page, shape, first: head, reference, k, v, at });
    };
    if k.len() < PARALLEL {
        return (0..shape.kv_heads).for_each(store);
    }
    cpu.pool().run(&|worker, workers| (worker..shape.kv_heads).step_by(workers).for_each(store));
}

/// Stores rows of keys and values of some heads into one quarter from local position `at`.
pub(super) struct StoreSmall<'a> {
    /// The heads, one behind the other.
    pub page: &'a mut [u16],
    pub shape: KvShape,
    /// The first of them.
    pub first: usize,
    /// What their keys are relative to; nothing for `q8`.
    pub reference: &'a [u16],
    /// Rows of all heads.
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub at: usize,
}

/// Block `block` of a row of f16, widened and filled up with zeros.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn widened<S: Simd>(row: &[u16], block: usize) -> [f32; CACHE_BLOCK] {
    let (mut halves, mut x) = ([0; CACHE_BLOCK], [0.0; CACHE_BLOCK]);
    let from = row.chunks(CACHE_BLOCK).nth(block).unwrap_or_default();
    halves[..from.len()].copy_from_slice(from);
    for at in [0, LANES] {
        // SAFETY: both hold a vector from there; the caller promises the instruction set.
        unsafe { S::store(x.as_mut_ptr().add(at), S::load_f16(halves.as_ptr().add(at))) };
    }
    x
}

impl Kernel for StoreSmall<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let (layout, width) = (Layout::of(self.shape), kv_heads * head_dim);
        let four = layout.four;
        for (head, page) in self.page.chunks_exact_mut(QUARTER * self.shape.head_len()).enumerate() {
            let bytes = page.as_mut_ptr().cast::<u8>();
            let own = (self.first + head) * head_dim..(self.first + head + 1) * head_dim;
            let reference = self.reference.chunks_exact(head_dim).nth(head).unwrap_or_default();
            for block in 0..layout.blocks {
                // SAFETY: the caller promises the instruction set.
                let reference = unsafe { widened::<S>(reference, block) };
                for (i, (k, v)) in self.k.chunks_exact(width).zip(self.v.chunks_exact(width)).enumerate() {
                    let mut x = block_of(&k[own.clone()], block);
                    x.iter_mut().zip(reference).for_each(|(x, reference)| *x -= reference);
                    rotate(&mut x);
                    let value = block_of(&v[own.clone()], block);
                    // SAFETY: blocks are inside the head, as the layout says; the caller promises the instruction set.
                    unsafe {
                        put::<S>(&x, four, bytes, layout.key_block(self.at + i, block));
                        put::<S>(&value, four, bytes, layout.value_block(self.at + i, block));
                    }
                }
            }
        }
    }
}

// ---- a unit ------------------------------------------------------------------------------------------------------------

/// The queries of a unit as integers.
pub(super) struct Queries {
    /// `[rows][blocks * 32]` codes.
    pub codes: *mut i8,
    /// `[rows][blocks]` scales over 32.
    pub scales: *mut f32,
    /// `[rows][blocks]` what the sums of products begin with.
    pub starts: *mut i32,
    /// q.k with the reference of a quarter, which scores begin with.
    pub referred: [f32; ROWS],
}

/// Bytes of working memory of [`Queries`].
pub(super) const fn query_bytes(rows: usize, dim: usize) -> usize {
    rows * dim.div_ceil(CACHE_BLOCK) * (CACHE_BLOCK + 8)
}

impl Queries {
    /// In [`query_bytes`] of memory at `memory`, which is aligned to 4 bytes.
    ///
    /// # Safety
    /// The memory is there.
    #[inline(always)]
    pub(super) unsafe fn at(memory: *mut u8, rows: usize, dim: usize) -> Self {
        let count = rows * dim.div_ceil(CACHE_BLOCK);
        // SAFETY: promised by the caller.
        unsafe {
            let scales = memory.add(count * CACHE_BLOCK).cast::<f32>();
            Self { codes: memory.cast(), scales, starts: scales.add(count).cast(), referred: [0.0; ROWS] }
        }
    }
}

const _: () = assert!(CACHE_BLOCK == 2 * LANES);
