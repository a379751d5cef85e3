//! Keys and values where they are read as they are stored, and what is asked for meanwhile; values as f32, dimensions side by side,
//! whatever way they are stored; pages whose keys and values have fewer bits; and results of pages, joined.

use std::ops::Range;

use half::f16;
use scheduler::{CacheType, session_kind::CACHE_BLOCK};

use super::{
    PAGE, QUARTER,
    registers::{Ahead, Stored, ask},
    small::{Layout, block_of, reference, rotate},
    tile::{WEIGHTS, Work, inside},
};
use crate::kernels::{
    activations::quantize_block,
    math,
    simd::{LANES, Simd},
    vector::{load_part, store_part},
};

/// Most pairs of a unit that waits for memory. With more of them the time between two groups of keys is long enough for what the
/// hardware fetches ahead.
const FEW: usize = 16;

impl Work<'_> {
    /// How many bytes behind `from`, position `at` of the page at `base`, lies what comes [`QUARTER`] positions later in the order of
    /// [`Work::page`], first the keys of a page and then its values; 0 for nothing that needs to be asked for.
    #[inline(always)]
    pub(super) unsafe fn ahead(&self, base: usize, at: usize, keys: bool, from: *const u8) -> isize {
        let next = at + QUARTER;
        let (position, keys) = match (next < PAGE, keys) {
            (true, _) => (base + next, keys),
            (false, true) => (base + next - PAGE, false),
            (false, false) => (base + next, true),
        };
        let shape = self.task.shape.in_quarter(position / QUARTER);
        let all = self.union(0, self.count);
        // Of what no pair sees the quarter may be gone.
        let seen = position < all.end && position / QUARTER >= all.start / QUARTER;
        if self.count > FEW || !seen || !keys && shape.latent.is_some() {
            return 0;
        }
        // SAFETY: the quarter exists.
        let (head, at) = unsafe { self.task.quarter(self.kv_head, position) };
        let bytes = match (shape.cache, keys) {
            (CacheType::F16, true) => at * shape.head_dim * size_of::<u16>(),
            (CacheType::F16, false) => (QUARTER + at) * shape.head_dim * size_of::<u16>(),
            (_, true) => Layout::of(shape).key(at / LANES, 0),
            (_, false) => Layout::of(shape).value(at, 0),
        };
        (head.cast::<u8>().wrapping_add(bytes) as isize).wrapping_sub(from as isize)
    }

    /// Asks for what lies `ahead` of `len` keys or values that begin at `from`.
    #[inline(always)]
    pub(super) unsafe fn ask_all<S: Simd>(&self, from: *const u16, len: usize, ahead: isize) {
        if ahead != 0 {
            let from = from.cast::<u8>().wrapping_offset(ahead);
            for line in (0..len * self.task.shape.head_dim * size_of::<u16>()).step_by(64) {
                // SAFETY: a prefetch may name any address, and the caller promises the instruction set.
                unsafe { S::prefetch(from.wrapping_add(line)) };
            }
        }
    }

    /// Scores of 16 keys as they are stored, from place `at` on, for the pairs of a unit that is one tile.
    #[inline(always)]
    pub(super) unsafe fn score_stored<S: Simd>(&self, keys: *const u16, at: usize, ahead: Ahead) {
        // SAFETY: as in `page`.
        unsafe {
            match self.count {
                4 => self.score_rows::<S, Stored, 4, 1>(&[keys], at, 0, ahead),
                3 => self.score_rows::<S, Stored, 3, 1>(&[keys], at, 0, ahead),
                2 => self.score_rows::<S, Stored, 2, 1>(&[keys], at, 0, ahead),
                _ => self.score_rows::<S, Stored, 1, 1>(&[keys], at, 0, ahead),
            }
        }
    }

    /// Adds values as they are stored, those of positions `run`, to the page's results of the pairs of a unit that is one tile.
    #[inline(always)]
    pub(super) unsafe fn mix_stored<S: Simd>(&self, values: *const u16, run: Range<usize>, ahead: Ahead) {
        let values = (values, self.task.shape.head_dim);
        // SAFETY: as in `page`.
        unsafe {
            match self.count {
                4 => self.mix_rows::<S, Stored, 4>(values, run, 0, ahead),
                3 => self.mix_rows::<S, Stored, 3>(values, run, 0, ahead),
                2 => self.mix_rows::<S, Stored, 2>(values, run, 0, ahead),
                _ => self.mix_rows::<S, Stored, 1>(values, run, 0, ahead),
            }
        }
    }

    /// Widens one row of values to place `at`; its padding becomes 0.
    #[inline(always)]
    pub(super) unsafe fn widen_value<S: Simd>(&self, from: *const u16, at: usize) {
        let dim = self.task.shape.head_dim;
        let whole = dim / LANES * LANES;
        // SAFETY: as in `page`; vectors are read only where 16 values of the row follow.
        unsafe {
            let to = self.values.add(at * self.padded_value());
            for d in (0..whole).step_by(LANES) {
                S::store(to.add(d), S::load_f16(from.add(d)));
            }
            for d in whole..self.padded_value() {
                *to.add(d) = if d < dim { f16::from_bits(*from.add(d)).to_f32() } else { 0.0 };
            }
        }
    }

    /// Widens the ends of the keys of positions `run` of a quarter, sixteen of which lie side by side; the padding of a row becomes 0.
    #[inline(always)]
    pub(super) unsafe fn turn_values<S: Simd>(&self, keys: *const u16, run: Range<usize>) {
        let (dim, values) = (self.task.shape.head_dim, self.task.shape.value_dim());
        // SAFETY: as in `page`; a group of keys is there whole, whether its positions are written or not.
        unsafe {
            for group in run.start / LANES..run.end.div_ceil(LANES) {
                let lanes = run.start.max(group * LANES)..run.end.min((group + 1) * LANES);
                let to = |position: usize, d: usize| {
                    self.values.add((position - run.start) * self.padded_value() + d)
                };
                for d in 0..values {
                    let mut column = [0.0f32; LANES];
                    let from = keys.add((group * dim + dim - values + d) * LANES);
                    S::store(column.as_mut_ptr(), S::load_f16(from));
                    for position in lanes.clone() {
                        *to(position, d) = column[position % LANES];
                    }
                }
                for position in lanes {
                    for d in values..self.padded_value() {
                        *to(position, d) = 0.0;
                    }
                }
            }
        }
    }

    /// Joins the results of the page that begins at `base` with those before it, or keeps them for later.
    #[inline(always)]
    pub(super) unsafe fn combine_page<S: Simd>(&mut self, base: usize) {
        if let Some(kept) = self.part.kept {
            // SAFETY: the place is this part's.
            unsafe { *kept = [self.part.maximum, self.part.sum] };
            return;
        }
        for row in 0..self.count {
            let visible = self.task.visible(self.first + row);
            if !inside(&visible, base).is_empty() {
                // SAFETY: as in `page`.
                unsafe { self.combine::<S>(row, visible.start >= base && !self.beyond.seen[row]) };
            }
        }
    }

    /// Joins the page's result of a pair with those before it, if it is not the first.
    #[inline(always)]
    pub(super) unsafe fn combine<S: Simd>(&mut self, row: usize, is_first: bool) {
        let (m, l) = (self.part.maximum[row], self.part.sum[row]);
        let (mut a, mut b) = (0.0, 1.0);
        if is_first {
            (self.so_far.maximum[row], self.so_far.sum[row]) = (m, l);
        } else {
            let before = self.so_far.maximum[row];
            let joint = if before > m { before } else { m };
            (a, b) = (math::exp_f32(before - joint), math::exp_f32(m - joint));
            self.so_far.maximum[row] = joint;
            self.so_far.sum[row] = self.so_far.sum[row] * a + l * b;
        }
        // SAFETY: as in `page`.
        unsafe {
            for d in (0..self.padded_value()).step_by(LANES) {
                let at = row * self.padded_value() + d;
                let mut o = S::load(self.page_out.add(at));
                if !is_first {
                    let before = S::load(self.all_out.add(at));
                    o = S::add(S::mul(before, S::splat(a)), S::mul(o, S::splat(b)));
                }
                S::store(self.all_out.add(at), o);
            }
        }
    }

    /// Writes the results.
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(&self) {
        for row in 0..self.count {
            let (mut sum, mut factor) = (self.so_far.sum[row], None);
            if let Some(sinks) = self.task.sinks {
                let sink = sinks[self.task.head(self.kv_head, self.first + row)];
                let before = self.so_far.maximum[row];
                let joint = if before > sink { before } else { sink };
                let a = math::exp_f32(before - joint);
                (sum, factor) = (sum * a + math::exp_f32(sink - joint), Some(a));
            }
            // SAFETY: as in `page`; a pair's place in the result belongs to this unit alone.
            unsafe {
                let to = self.task.place(self.kv_head, self.first + row) * self.task.shape.value_dim();
                let to = std::slice::from_raw_parts_mut(self.task.out.add(to), self.task.shape.value_dim());
                for d in (0..self.task.shape.value_dim()).step_by(LANES) {
                    let mut o = S::load(self.all_out.add(row * self.padded_value() + d));
                    if let Some(factor) = factor {
                        o = S::mul(o, S::splat(factor));
                    }
                    let o = S::div(o, S::splat(sum));
                    store_part::<S>(to, d, S::add(o, S::splat(0.0)));
                }
            }
        }
    }

    /// Rotates and rounds the queries of the unit.
    #[inline(always)]
    pub(super) unsafe fn round_queries<S: Simd>(&self) {
        let layout = Layout::of(self.task.shape);
        // SAFETY: rows and blocks are inside the working memory; the caller promises the instruction set.
        unsafe {
            for row in 0..self.count {
                let q = self.queries.add(row * self.padded).cast_const();
                let q = std::slice::from_raw_parts(q, self.task.shape.head_dim);
                for block in 0..layout.blocks {
                    let mut x = block_of(q, block);
                    rotate(&mut x);
                    let at = row * layout.blocks + block;
                    let codes = self.small.codes.add(at * CACHE_BLOCK);
                    let (scale, halves) = quantize_block::<S>(x.as_ptr(), codes);
                    *self.small.scales.add(at) = scale * (1.0 / CACHE_BLOCK as f32);
                    // What the codes of keys are too large by.
                    let excess = if layout.four { 8 } else { S::BIAS };
                    *self.small.starts.add(at) = -excess * (halves[0] + halves[1]);
                }
            }
        }
    }

    /// Multiplies the queries of the unit with the reference of a quarter, if it has one.
    #[inline(always)]
    pub(super) unsafe fn refer<S: Simd>(&mut self, quarter: usize) {
        let shape = self.task.shape;
        let Some(references) = self.task.pages[quarter].get(reference::begins(shape)..) else { return };
        let Some(reference) = references.chunks_exact(shape.head_dim).nth(self.kv_head) else { return };
        let mut row = 0;
        // SAFETY: as in `page`.
        unsafe {
            while row + 4 <= self.count {
                self.refer_rows::<S, 4>(reference, row);
                row += 4;
            }
            while row < self.count {
                self.refer_rows::<S, 1>(reference, row);
                row += 1;
            }
        }
    }

    /// The same for R pairs from `row` on.
    #[inline(always)]
    unsafe fn refer_rows<S: Simd, const R: usize>(&mut self, reference: &[u16], row: usize) {
        let dim = reference.len();
        // SAFETY: rows are inside the working memory, and hold a key's numbers; the caller promises the instruction set.
        unsafe {
            let q: [&[f32]; R] = std::array::from_fn(|r| {
                std::slice::from_raw_parts(self.queries.add((row + r) * self.padded).cast_const(), dim)
            });
            let mut sums = [S::splat(0.0); R];
            for d in (0..dim).step_by(LANES) {
                let (mut halves, part) = ([0; LANES], &reference[d..dim.min(d + LANES)]);
                halves[..part.len()].copy_from_slice(part);
                let key = S::load_f16(halves.as_ptr());
                for (sum, q) in sums.iter_mut().zip(q) {
                    *sum = S::fma(load_part::<S>(q, d, 0.0), key, *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                self.small.referred[row + r] = S::sum_tree(sum);
            }
        }
    }

    /// Scores of 16 positions of fewer bits, whose keys begin at `keys`, for all pairs that see any of them.
    #[inline(always)]
    pub(super) unsafe fn small_group<S: Simd>(&self, keys: *const u8, group: usize, base: usize) {
        let mut row = 0;
        // SAFETY: as in `page`.
        unsafe {
            if self.count <= 4 {
                let ahead = Some(self.ahead(base, group * LANES, true, keys));
                return match self.count {
                    4 => self.small_scores::<S, 4>(keys, group, base, 0, ahead),
                    3 => self.small_scores::<S, 3>(keys, group, base, 0, ahead),
                    2 => self.small_scores::<S, 2>(keys, group, base, 0, ahead),
                    _ => self.small_scores::<S, 1>(keys, group, base, 0, ahead),
                };
            }
            if S::TILE >= 8 {
                while row + 8 <= self.count {
                    self.small_scores::<S, 8>(keys, group, base, row, None);
                    row += 8;
                }
            }
            while row + 4 <= self.count {
                self.small_scores::<S, 4>(keys, group, base, row, None);
                row += 4;
            }
            while row + 2 <= self.count {
                self.small_scores::<S, 2>(keys, group, base, row, None);
                row += 2;
            }
            if row < self.count {
                self.small_scores::<S, 1>(keys, group, base, row, None);
            }
        }
    }

    /// Scores of 16 positions, whose keys begin at `keys`, for R pairs from `row` on, if one of them sees any.
    #[inline(always)]
    unsafe fn small_scores<S: Simd, const R: usize>(
        &self,
        keys: *const u8,
        group: usize,
        base: usize,
        row: usize,
        ahead: Ahead,
    ) {
        let seen = inside(&self.union(row, R), base);
        if group * LANES >= seen.end || (group + 1) * LANES <= seen.start {
            return;
        }
        let layout = Layout::of(self.task.shape);
        // SAFETY: as in `page`; a block of keys is there whole, whether its positions are written or not.
        unsafe {
            let mut scores = [S::splat(0.0); R];
            for (r, score) in scores.iter_mut().enumerate() {
                *score = S::splat(self.small.referred[row + r]);
            }
            for block in 0..layout.blocks {
                let keys = keys.add(layout.key(0, block));
                let at = |r: usize| (row + r) * layout.blocks + block;
                let mut q = [self.small.codes.cast_const(); R];
                let mut sums = [S::splat_i32(0); R];
                for r in 0..R {
                    q[r] = q[r].add(at(r) * CACHE_BLOCK);
                    sums[r] = S::splat_i32(*self.small.starts.add(at(r)));
                }
                if layout.four {
                    for v in 0..CACHE_BLOCK / 8 {
                        ask::<S, _>(keys.add(v * 4 * LANES), ahead);
                        let both = S::load_bytes(keys.add(v * 4 * LANES));
                        let (low, high) = (S::and(both, S::splat_byte(15)), S::shr::<4>(both));
                        for r in 0..R {
                            sums[r] = S::dot_u7(sums[r], low, q[r].add(4 * v));
                            sums[r] = S::dot_u7(sums[r], high, q[r].add(LANES + 4 * v));
                        }
                    }
                } else {
                    for v in 0..CACHE_BLOCK / 4 {
                        ask::<S, _>(keys.add(v * 4 * LANES), ahead);
                        let codes = S::bias(S::load_bytes(keys.add(v * 4 * LANES)));
                        for r in 0..R {
                            sums[r] = S::dot_biased(sums[r], codes, q[r].add(4 * v));
                        }
                    }
                }
                let scale = S::load_f16(keys.add(LANES * layout.codes).cast());
                for r in 0..R {
                    let factor = S::mul(S::splat(*self.small.scales.add(at(r))), scale);
                    scores[r] = S::fma(S::to_f32(sums[r]), factor, scores[r]);
                }
            }
            for (r, scores) in scores.into_iter().enumerate() {
                S::store(self.weights.add((row + r) * WEIGHTS + group * LANES), scores);
            }
        }
    }

    /// Widens the values of positions `run` of a quarter, and asks for what lies `ahead`.
    #[inline(always)]
    pub(super) unsafe fn widen_small<S: Simd>(&self, head: *const u8, run: Range<usize>, ahead: isize) {
        let (layout, padded) = (Layout::of(self.task.shape), self.padded_value());
        // SAFETY: as in `page`; scales are read sixteen at a time, and there are 64.
        unsafe {
            for block in 0..layout.blocks {
                let mut scales = [0.0f32; QUARTER];
                for at in (run.start / LANES * LANES..run.end).step_by(LANES) {
                    let from = head.add(layout.value_scale(at, block)).cast::<u16>();
                    S::store(scales.as_mut_ptr().add(at), S::load_f16(from));
                }
                let (first, second) = (block * CACHE_BLOCK, block * CACHE_BLOCK + LANES);
                for at in run.clone() {
                    let to = self.values.add((at - run.start) * padded);
                    let scale = S::splat(scales[at]);
                    let from = head.add(layout.value(at, block));
                    if block.is_multiple_of(2) {
                        ask::<S, _>(from, Some(ahead));
                    }
                    let halves = if layout.four {
                        S::load_halves_i32(from)
                    } else {
                        [S::load_i8_i32(from.cast()), S::load_i8_i32(from.add(LANES).cast())]
                    };
                    S::store(to.add(first), S::mul(S::to_f32(halves[0]), scale));
                    if second < padded {
                        S::store(to.add(second), S::mul(S::to_f32(halves[1]), scale));
                    }
                }
            }
        }
    }
}
