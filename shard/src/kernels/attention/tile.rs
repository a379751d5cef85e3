//! One unit of attention: some (query row, query head) pairs that share a key/value head.

use std::{array, ops::Range};

use scheduler::CacheType;

use super::{
    PAGE, QUARTER,
    registers::{Ahead, Source, Widened, mix, scores},
    small::{Layout, Queries, query_bytes},
    task::{Line, ROWS, Task},
};
use crate::kernels::{
    Kernel, math,
    simd::{LANES, Simd},
    vector::load_part,
};

/// Positions of values widened to f32 at once: 16 KiB for a head_dim of 128, half of a first-level cache.
pub(super) const RUN: usize = 32;

/// Distance between the weights of two pairs. Not a power of two: the same position of many pairs is used
/// together and would compete for the same sets of the first-level cache.
pub(super) const WEIGHTS: usize = PAGE + LANES;

/// Lines of working memory of a unit: scores, query and two results per pair, two groups of keys, a run of values, and for
/// sparse attention a group of queries and one of keys as they are stored, or queries as integers.
pub(super) fn scratch_lines(dim: usize) -> usize {
    let vectors = dim.div_ceil(LANES);
    let beyond = (dim + dim.div_ceil(2)).max(query_bytes(ROWS, dim).div_ceil(size_of::<Line>()));
    ROWS * WEIGHTS / LANES + 3 * ROWS * vectors + 2 * dim + RUN * vectors + beyond
}

/// `range` as positions inside the page that begins at `base`; may be empty.
#[inline(always)]
pub(super) fn inside(range: &Range<usize>, base: usize) -> Range<usize> {
    range.start.clamp(base, base + PAGE) - base..range.end.clamp(base, base + PAGE) - base
}

// ---- a unit ------------------------------------------------------------------------------------------------------------

/// Unit number `unit` of a task; `scratch` has at least [`scratch_lines`].
pub(super) struct Unit<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) unit: usize,
    pub(super) scratch: &'a mut [Line],
}

/// The working memory and place of a unit.
pub(super) struct Work<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) kv_head: usize,
    /// First pair.
    pub(super) first: usize,
    /// Pairs.
    pub(super) count: usize,
    /// `[ROWS][WEIGHTS]` scores, then weights.
    pub(super) weights: *mut f32,
    /// `[ROWS][padded]` queries, side by side for the same reason as [`WEIGHTS`].
    pub(super) queries: *mut f32,
    /// `[ROWS][padded_value]` results of the page and of all pages so far.
    pub(super) page_out: *mut f32,
    pub(super) all_out: *mut f32,
    /// Two times `[dim][16]` keys, widened.
    pub(super) keys: *mut f32,
    /// `[RUN][padded_value]` values, widened.
    pub(super) values: *mut f32,
    pub(super) beyond: Beyond,
    /// For pages of fewer bits.
    pub(super) small: Queries,
    /// Width of a key, rounded up to whole vectors.
    pub(super) padded: usize,
    /// Of all parts so far, and of the current one.
    pub(super) so_far: Sums,
    pub(super) part: Sums,
}

/// Maximum and sum of each pair.
pub(super) struct Sums {
    pub(super) maximum: [f32; ROWS],
    pub(super) sum: [f32; ROWS],
    /// Where they go if pages are joined later.
    pub(super) kept: Option<*mut [[f32; ROWS]; 2]>,
}

impl Sums {
    const NONE: Self = Self { maximum: [0.0; ROWS], sum: [0.0; ROWS], kept: None };
}

/// What sparse attention needs besides.
pub(super) struct Beyond {
    /// `[dim][16]` queries of one head at sixteen positions.
    pub(super) turned: *mut f32,
    /// `[dim][16]` keys from sixteen places, as they are stored.
    pub(super) gathered: *mut u16,
    /// Whether a pair sees anything beyond its window.
    pub(super) seen: [bool; ROWS],
}

impl Kernel for Unit<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Unit { task, unit, scratch } = self;
        assert!(scratch.len() >= scratch_lines(task.shape.head_dim), "too little working memory");
        let parts = task.shelf.as_ref().map_or(1, |shelf| shelf.parts);
        let (unit, part) = (unit / parts, unit % parts);
        let blocks = task.units / parts / task.shape.kv_heads;
        // One head after the other, whose keys and values stay near; the last rows see most positions: they go first.
        let (kv_head, block) = (unit / blocks, blocks - 1 - unit % blocks);
        let first = block * task.rows;
        let padded = task.shape.head_dim.next_multiple_of(LANES);
        let weights = scratch.as_mut_ptr().cast::<f32>();
        // SAFETY: the parts follow each other inside the scratch, whose length was checked; the caller promises the
        // instruction set.
        unsafe {
            let queries = weights.add(ROWS * WEIGHTS);
            let page_out = queries.add(ROWS * padded);
            let all_out = page_out.add(ROWS * padded);
            let keys = all_out.add(ROWS * padded);
            let values = keys.add(2 * task.shape.head_dim * LANES);
            let turned = values.add(RUN * padded);
            let mut work = Work {
                task,
                kv_head,
                first,
                count: task.rows.min(task.pairs - first),
                weights,
                queries,
                page_out,
                all_out,
                keys,
                values,
                beyond: Beyond {
                    turned,
                    gathered: turned.add(task.shape.head_dim * LANES).cast(),
                    seen: [false; ROWS],
                },
                // No unit uses both.
                small: Queries::at(turned.cast(), ROWS, task.shape.head_dim),
                padded,
                so_far: Sums::NONE,
                part: Sums::NONE,
            };
            for row in 0..work.count {
                let q = task.q.add(task.place(work.kv_head, first + row) * task.shape.head_dim);
                let q = std::slice::from_raw_parts(q, task.shape.head_dim);
                for d in (0..padded).step_by(LANES) {
                    S::store(queries.add(row * padded + d), load_part::<S>(q, d, 0.0));
                }
            }
            if let Some(far) = task.far {
                work.far::<S>(far);
            }
            if task.shape.cache != CacheType::F16 {
                work.round_queries::<S>();
            }
            let seen = work.union(0, work.count);
            let pages = seen.start / PAGE..seen.end.div_ceil(PAGE);
            let Some(shelf) = &task.shelf else {
                for page in pages {
                    work.page::<S>(page);
                }
                return work.finish::<S>();
            };
            for page in shelf.pages(&pages, part) {
                let (sums, out) = shelf.page(unit, page - pages.start);
                (work.part.kept, work.page_out) = (Some(sums), out);
                work.page::<S>(page);
            }
            if shelf.is_last(unit) {
                work.part.kept = None;
                for page in pages.clone() {
                    let (sums, out) = shelf.page(unit, page - pages.start);
                    [work.part.maximum, work.part.sum] = *sums;
                    work.page_out = out;
                    work.combine_page::<S>(page * PAGE);
                }
                work.finish::<S>();
            }
        }
    }
}

impl Work<'_> {
    /// Pairs per register tile.
    pub(super) const fn tile<S: Simd>() -> usize {
        if S::TILE >= 8 { 4 } else { 2 }
    }

    /// Width of a value, rounded up to whole vectors.
    #[inline(always)]
    pub(super) fn padded_value(&self) -> usize {
        self.task.shape.value_dim().next_multiple_of(LANES)
    }

    /// Positions seen by any of `count` pairs from `row` on.
    #[inline(always)]
    pub(super) fn union(&self, row: usize, count: usize) -> Range<usize> {
        let (first, last) = (self.first + row, self.first + row + count - 1);
        self.task.visible(first).start..self.task.visible(last).end
    }

    /// Adds page number `page`.
    #[inline(always)]
    unsafe fn page<S: Simd>(&mut self, page: usize) {
        let base = page * PAGE;
        let dim = self.task.shape.head_dim;
        let seen = inside(&self.union(0, self.count), base);
        // A single tile reads everything once, so widening would only cost; but a partial vector of the last row
        // must not be read past the page.
        let stored = self.count <= Self::tile::<S>() && dim.is_multiple_of(LANES);
        // SAFETY: the quarters have the task's shape (checked), so the head's keys and values are inside them; a group of
        // positions is inside one quarter; rows and positions are inside the working memory; the caller promises the
        // instruction set.
        unsafe {
            let mut referred = None;
            let mut group = seen.start / LANES;
            while group < seen.end.div_ceil(LANES) {
                let (keys, at) = self.task.quarter(self.kv_head, base + group * LANES);
                let quarter = (base + group * LANES) / QUARTER;
                if self.task.shape.in_quarter(quarter).cache != CacheType::F16 {
                    if referred.replace(quarter) != Some(quarter) {
                        self.refer::<S>(quarter);
                    }
                    let keys = keys.cast::<u8>().add(Layout::of(self.task.shape).key(at / LANES, 0));
                    self.small_group::<S>(keys, group, base);
                    group += 1;
                    continue;
                }
                let keys = keys.add(at * dim);
                if stored {
                    let ahead = Some(self.ahead(base, group * LANES, true, keys.cast()));
                    self.score_stored::<S>(keys, group * LANES, ahead);
                    group += 1;
                    continue;
                }
                // Two groups of a quarter follow each other: they are scored together where the registers do for them.
                let both = S::TILE >= 8 && group.is_multiple_of(2) && (group + 1) * LANES < seen.end;
                let groups = if both { 2 } else { 1 };
                self.ask_all::<S>(keys, groups * LANES, self.ahead(base, group * LANES, true, keys.cast()));
                for d in 0..groups * dim {
                    S::store(self.keys.add(d * LANES), S::load_f16(keys.add(d * LANES)));
                }
                if S::TILE >= 8 && both {
                    self.score_group::<S, 2>(group, base);
                } else {
                    self.score_group::<S, 1>(group, base);
                }
                group += groups;
            }
            for first in (0..self.count).step_by(Self::tile::<S>()) {
                // A tile reads the weights of what any of its rows sees.
                let rows = Self::tile::<S>().min(self.count - first);
                let seen = inside(&self.union(first, rows), base);
                if S::TILE >= 8 && rows == 4 {
                    self.weigh::<S, 4>(first, base, seen);
                    continue;
                }
                for row in first..first + rows {
                    self.weigh::<S, 1>(row, base, seen.clone());
                }
            }
            for row in 0..self.count {
                self.clear::<S>(row);
            }
            let mut at = seen.start;
            while at < seen.end {
                let run = at..seen.end.min(at + RUN).min((at / QUARTER + 1) * QUARTER);
                at = run.end;
                let (keys, first) = self.task.quarter(self.kv_head, base + run.start);
                let widened = first..first + run.len();
                if self.task.shape.in_quarter((base + run.start) / QUARTER).cache != CacheType::F16 {
                    let from = keys.cast::<u8>().add(Layout::of(self.task.shape).value(first, 0));
                    let ahead = self.ahead(base, run.start, false, from);
                    self.widen_small::<S>(keys.cast(), widened, ahead);
                } else if self.task.shape.latent.is_some() {
                    self.turn_values::<S>(keys, widened);
                } else {
                    let values = keys.add((QUARTER + first) * dim);
                    let ahead = self.ahead(base, run.start, false, values.cast());
                    if stored {
                        self.mix_stored::<S>(values, run, Some(ahead));
                        continue;
                    }
                    self.ask_all::<S>(values, run.len(), ahead);
                    for j in 0..run.len() {
                        self.widen_value::<S>(values.add(j * dim), j);
                    }
                }
                self.mix_run::<S>(run, base);
            }
            self.combine_page::<S>(base);
        }
    }

    /// Begins the result of a part for a pair.
    #[inline(always)]
    pub(super) unsafe fn clear<S: Simd>(&self, row: usize) {
        for d in (0..self.padded_value()).step_by(LANES) {
            // SAFETY: as in `page`.
            unsafe { S::store(self.page_out.add(row * self.padded_value() + d), S::splat(0.0)) };
        }
    }

    /// Scores of the widened keys, G times 16 positions, for all pairs that see any of them.
    #[inline(always)]
    unsafe fn score_group<S: Simd, const G: usize>(&self, group: usize, base: usize) {
        let mut row = 0;
        // SAFETY: as in `page`.
        unsafe {
            if S::TILE >= 8 {
                while row + 4 <= self.count {
                    self.score_tile::<S, 4, G>(group, base, row);
                    row += 4;
                }
            }
            while row + 2 <= self.count {
                self.score_tile::<S, 2, G>(group, base, row);
                row += 2;
            }
            if row < self.count {
                self.score_tile::<S, 1, G>(group, base, row);
            }
        }
    }

    #[inline(always)]
    unsafe fn score_tile<S: Simd, const R: usize, const G: usize>(
        &self,
        group: usize,
        base: usize,
        row: usize,
    ) {
        let seen = inside(&self.union(row, R), base);
        let sees = |group: usize| group * LANES < seen.end && (group + 1) * LANES > seen.start;
        // SAFETY: as in `page`.
        unsafe {
            let mut keys = [self.keys.cast_const(); G];
            for (number, keys) in keys.iter_mut().enumerate() {
                *keys = keys.add(number * self.task.shape.head_dim * LANES);
            }
            if G == 2 && sees(group) && sees(group + 1) {
                // Each load serves as many products as there are loads: half of the rows at a time.
                let at = group * LANES;
                if R == 4 {
                    self.score_rows::<S, Widened, 2, G>(&keys, at, row, None);
                    return self.score_rows::<S, Widened, 2, G>(&keys, at, row + 2, None);
                }
                return self.score_rows::<S, Widened, R, G>(&keys, at, row, None);
            }
            for (group, keys) in (group..).zip(keys).filter(|(group, _)| sees(*group)) {
                self.score_rows::<S, Widened, R, 1>(&[keys], group * LANES, row, None);
            }
        }
    }

    /// q.k of R pairs from `row` on with G groups of keys, to place `at` of their scores and what follows.
    #[inline(always)]
    pub(super) unsafe fn score_rows<S: Simd, K: Source, const R: usize, const G: usize>(
        &self,
        keys: &[*const K::Value; G],
        at: usize,
        row: usize,
        ahead: Ahead,
    ) {
        // SAFETY: as in `page`.
        unsafe {
            let mut q = [self.queries.cast_const(); R];
            for (r, q) in q.iter_mut().enumerate() {
                *q = q.add((row + r) * self.padded);
            }
            let scores = scores::<S, K, R, G>(keys, self.task.shape.head_dim, &q, ahead);
            for (g, scores) in scores.into_iter().enumerate() {
                for (r, scores) in scores.into_iter().enumerate() {
                    S::store(self.weights.add((row + r) * WEIGHTS + at + g * LANES), scores);
                }
            }
        }
    }

    /// Turns the scores of R pairs, of which `seen` is read, into weights; those of positions that a pair does not see become 0.
    /// Sets maxima and sums. Several pairs at a time, since each waits for its own results.
    #[inline(always)]
    unsafe fn weigh<S: Simd, const R: usize>(&mut self, row: usize, base: usize, seen: Range<usize>) {
        let groups = seen.start / LANES..seen.end.div_ceil(LANES);
        let own: [Range<usize>; R] =
            array::from_fn(|r| inside(&self.task.visible(self.first + row + r), base));
        // SAFETY: as in `page`.
        unsafe {
            let hidden = S::splat(f32::NEG_INFINITY);
            let mut maxima = [hidden; R];
            for at in groups.clone().map(|group| group * LANES) {
                for r in 0..R {
                    let weights = self.weights.add((row + r) * WEIGHTS + at);
                    let mut s = self.scaled::<S>(weights);
                    if at < own[r].start || at + LANES > own[r].end {
                        s = S::select_below(own[r].end.saturating_sub(at), s, hidden);
                        s = S::select_below(own[r].start.saturating_sub(at), hidden, s);
                    }
                    maxima[r] = S::max(maxima[r], s);
                    S::store(weights, s);
                }
            }
            let mut maximum = [0.0; R];
            for r in 0..R {
                // Where a pair sees nothing all weights become 0, whatever this is.
                maximum[r] = if own[r].is_empty() { 0.0 } else { S::max_lane(maxima[r]) };
            }
            self.exponentials::<S, R>(row, groups, maximum);
        }
    }

    /// Sixteen scores, scaled and capped.
    #[inline(always)]
    pub(super) unsafe fn scaled<S: Simd>(&self, scores: *const f32) -> S::F {
        // SAFETY: as in `page`.
        unsafe {
            let s = S::mul(S::load(scores), S::splat(self.task.curve.scale));
            match self.task.curve.softcap {
                Some(cap) => S::mul(math::tanh_lanes::<S>(S::div(s, S::splat(cap))), S::splat(cap)),
                None => s,
            }
        }
    }

    /// Turns scaled scores of R pairs into weights; sets maxima and sums.
    #[inline(always)]
    pub(super) unsafe fn exponentials<S: Simd, const R: usize>(
        &mut self,
        row: usize,
        groups: Range<usize>,
        maximum: [f32; R],
    ) {
        // SAFETY: as in `page`.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            for group in groups {
                for r in 0..R {
                    let weights = self.weights.add((row + r) * WEIGHTS + group * LANES);
                    let p = math::exp_lanes::<S>(S::sub(S::load(weights), S::splat(maximum[r])));
                    sums[r] = S::add(sums[r], p);
                    S::store(weights, p);
                }
            }
            for r in 0..R {
                self.part.maximum[row + r] = maximum[r];
                self.part.sum[row + r] = S::sum_tree(sums[r]);
            }
        }
    }

    /// Adds the widened values, those of positions `run`, to the page's results of all pairs that see any of them.
    #[inline(always)]
    unsafe fn mix_run<S: Simd>(&self, run: Range<usize>, base: usize) {
        let mut row = 0;
        // SAFETY: as in `page`.
        unsafe {
            if S::TILE >= 8 {
                while row + 4 <= self.count {
                    self.mix_tile::<S, 4>(&run, base, row);
                    row += 4;
                }
            }
            while row + 2 <= self.count {
                self.mix_tile::<S, 2>(&run, base, row);
                row += 2;
            }
            if row < self.count {
                self.mix_tile::<S, 1>(&run, base, row);
            }
        }
    }

    #[inline(always)]
    unsafe fn mix_tile<S: Simd, const R: usize>(&self, run: &Range<usize>, base: usize, row: usize) {
        let seen = inside(&self.union(row, R), base);
        let (from, to) = (run.start.max(seen.start), run.end.min(seen.end));
        if from >= to {
            return;
        }
        let stride = self.padded_value();
        // SAFETY: as in `page`.
        unsafe {
            let values = self.values.cast_const().add((from - run.start) * stride);
            self.mix_rows::<S, Widened, R>((values, stride), from..to, row, None);
        }
    }

    /// Adds values, which are a distance apart, with the weights at `places` to the results of R pairs from `row` on.
    #[inline(always)]
    pub(super) unsafe fn mix_rows<S: Simd, V: Source, const R: usize>(
        &self,
        (values, stride): (*const V::Value, usize),
        places: Range<usize>,
        row: usize,
        ahead: Ahead,
    ) {
        let count = places.len();
        // SAFETY: as in `page`.
        unsafe {
            let mut p = [self.weights.cast_const(); R];
            let mut o = [self.page_out; R];
            for r in 0..R {
                p[r] = p[r].add((row + r) * WEIGHTS + places.start);
                o[r] = o[r].add((row + r) * self.padded_value());
            }
            let mut d = 0;
            if S::TILE >= 8 {
                while d + 4 * LANES <= self.padded_value() {
                    mix::<S, V, R, 4>(values.add(d), stride, count, &p, &shifted(&o, d), ahead);
                    d += 4 * LANES;
                }
            }
            while d + 2 * LANES <= self.padded_value() {
                mix::<S, V, R, 2>(values.add(d), stride, count, &p, &shifted(&o, d), ahead);
                d += 2 * LANES;
            }
            if d < self.padded_value() {
                mix::<S, V, R, 1>(values.add(d), stride, count, &p, &shifted(&o, d), ahead);
            }
        }
    }
}

/// The pointers, `by` further.
///
/// # Safety
/// The results stay inside what the pointers point to.
#[inline(always)]
unsafe fn shifted<const R: usize>(pointers: &[*mut f32; R], by: usize) -> [*mut f32; R] {
    let mut moved = *pointers;
    for pointer in &mut moved {
        // SAFETY: promised by the caller.
        *pointer = unsafe { pointer.add(by) };
    }
    moved
}
