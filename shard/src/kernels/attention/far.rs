//! What a unit's pairs see beyond their window: sinks, strides and landmarks, as one part of few places.

use std::{array, ops::Range};

use scheduler::attention::Sparse;

use super::{
    Far, QUARTER,
    landmarks::landmark_len,
    registers::{Widened, diagonal},
    task::Task,
    tile::{WEIGHTS, Work},
};
use crate::kernels::simd::{LANES, Simd};

/// Most strides: no session has 2^32 positions.
const STRIDES: usize = 32;

/// The first k whose `2^k` is beyond the window.
#[inline(always)]
fn first_stride(rule: Sparse) -> u32 {
    u32::BITS - rule.window.leading_zeros()
}

/// How many numbers `2^k` with k from `from` on are at most `most`.
#[inline(always)]
fn powers(from: u32, most: usize) -> usize {
    most.checked_ilog2().map_or(0, |k| (k + 1).saturating_sub(from) as usize)
}

/// Places that a row sees, from the beginning of each of the three kinds.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    sinks: usize,
    strides: usize,
    landmarks: usize,
}

impl Seen {
    /// By a row at `position`.
    #[inline(always)]
    fn of(rule: Sparse, position: usize) -> Self {
        let outside = position.saturating_sub(rule.window as usize);
        let sinks = rule.sinks as usize;
        let strides = match rule.stride {
            true => position.checked_sub(sinks).map_or(0, |most| powers(first_stride(rule), most)),
            false => 0,
        };
        let blocks = (position + 1).checked_div(rule.block as usize).unwrap_or(0);
        let landmarks = match blocks {
            0 => 0,
            blocks => 1 + powers(0, blocks - 1),
        };
        Self { sinks: sinks.min(outside), strides, landmarks }
    }

    fn is_empty(self) -> bool {
        self.sinks + self.strides + self.landmarks == 0
    }

    /// Where each kind begins when these are the most of every row, and where the last one ends.
    #[inline(always)]
    fn begins(self) -> [usize; 4] {
        let strides = self.sinks.next_multiple_of(LANES);
        let landmarks = strides + self.strides.next_multiple_of(LANES);
        [0, strides, landmarks, landmarks + self.landmarks.next_multiple_of(LANES)]
    }
}

/// Places of the last row of `positions`, which no earlier row exceeds.
pub(super) fn places(rule: Sparse, positions: usize) -> usize {
    Seen::of(rule, positions.saturating_sub(1)).begins()[3]
}

/// The block of landmark number `place` behind block `p`.
#[inline(always)]
fn block_of(p: usize, place: usize) -> usize {
    place.checked_sub(1).map_or(p, |k| p - (1 << k))
}

impl Work<'_> {
    /// Adds what the pairs see beyond their window.
    #[inline(always)]
    pub(super) unsafe fn far<S: Simd>(&mut self, far: Far<'_>) {
        let rule = far.rule;
        let seen = |work: &Self, row: usize| Seen::of(rule, work.task.position(work.first + row));
        let most = seen(self, self.count - 1);
        if most.is_empty() {
            return;
        }
        let [_, strides, landmarks, end] = most.begins();
        // SAFETY: the places of the last row are at most a page's (checked) and no other row has more; what is read is
        // before the row's position, whose pages and landmarks were checked; the caller promises the instruction set.
        unsafe {
            for at in (0..most.sinks).step_by(LANES) {
                let places = at..most.sinks.min(at + LANES);
                self.gather_keys::<S>(places.clone().map(|sink| self.key(sink)), LANES);
                self.score_shared::<S>(at, 0..self.count);
            }
            if most.strides > 0 {
                self.score_strides::<S>(rule, strides);
            }
            let mut row = 0;
            while row < self.count && most.landmarks > 0 {
                let rows = self.alike(rule, row);
                let own = seen(self, row).landmarks;
                let p = self.last_block(rule, row);
                for at in (0..own).step_by(LANES) {
                    let of = |place: usize| self.landmark(far, block_of(p, place));
                    self.gather_keys::<S>((at..own.min(at + LANES)).map(of), 1);
                    self.score_shared::<S>(landmarks + at, rows.clone());
                }
                row = rows.end;
            }
            for row in 0..self.count {
                let own = seen(self, row);
                self.beyond.seen[row] = !own.is_empty();
                let kinds = [
                    (0..strides, own.sinks),
                    (strides..landmarks, own.strides),
                    (landmarks..end, own.landmarks),
                ];
                self.weigh_far::<S>(row, kinds, end);
                self.clear::<S>(row);
            }
            for at in (0..most.sinks).step_by(LANES) {
                let places = at..most.sinks.min(at + LANES);
                for sink in places.clone() {
                    self.widen_value::<S>(self.value(sink), sink - at);
                }
                self.mix_shared::<S>(places, 0..self.count);
            }
            for row in 0..self.count {
                self.mix_strides::<S>(rule, row, strides, seen(self, row).strides);
            }
            let mut row = 0;
            while row < self.count && most.landmarks > 0 {
                let rows = self.alike(rule, row);
                let own = seen(self, row).landmarks;
                let p = self.last_block(rule, row);
                for at in (0..own).step_by(LANES) {
                    let places = at..own.min(at + LANES);
                    for place in places.clone() {
                        let value = self.landmark(far, block_of(p, place)).add(self.task.shape.head_dim);
                        self.widen_value::<S>(value, place - at);
                    }
                    self.mix_shared::<S>(landmarks + places.start..landmarks + places.end, rows.clone());
                }
                row = rows.end;
            }
            for row in 0..self.count {
                if self.beyond.seen[row] {
                    self.combine::<S>(row, true);
                }
            }
        }
    }

    /// The last whole block of a pair that sees landmarks.
    #[inline(always)]
    fn last_block(&self, rule: Sparse, row: usize) -> usize {
        let position = self.task.position(self.first + row);
        ((position + 1).checked_div(rule.block as usize).unwrap_or(0)).saturating_sub(1)
    }

    /// The pairs from `row` on that see the same landmarks.
    #[inline(always)]
    fn alike(&self, rule: Sparse, row: usize) -> Range<usize> {
        let block = |row: usize| (self.task.position(self.first + row) + 1) / rule.block as usize;
        let mut end = row + 1;
        while end < self.count && block(end) == block(row) {
            end += 1;
        }
        row..end
    }

    /// The key of `position`: its values are 16 apart.
    #[inline(always)]
    unsafe fn key(&self, position: usize) -> *const u16 {
        // SAFETY: as in `far`.
        unsafe {
            let (head, at) = self.task.quarter(self.kv_head, position);
            head.add(at / LANES * LANES * self.task.shape.head_dim + at % LANES)
        }
    }

    /// The value of `position`.
    #[inline(always)]
    unsafe fn value(&self, position: usize) -> *const u16 {
        // SAFETY: as in `far`.
        unsafe {
            let (head, at) = self.task.quarter(self.kv_head, position);
            head.add((QUARTER + at) * self.task.shape.head_dim)
        }
    }

    /// The key and then the value of a landmark.
    #[inline(always)]
    unsafe fn landmark(&self, far: Far<'_>, block: usize) -> *const u16 {
        let at = block * landmark_len(self.task.shape) + self.kv_head * 2 * self.task.shape.head_dim;
        // SAFETY: there are landmarks of all whole blocks (checked).
        unsafe { far.landmarks.as_ptr().add(at) }
    }

    /// Up to sixteen keys, whose values are `apart`, side by side and widened.
    #[inline(always)]
    unsafe fn gather_keys<S: Simd>(&self, keys: impl Iterator<Item = *const u16>, apart: usize) {
        // SAFETY: as in `far`.
        unsafe {
            for (lane, key) in keys.enumerate() {
                for d in 0..self.task.shape.head_dim {
                    *self.beyond.gathered.add(d * LANES + lane) = *key.add(d * apart);
                }
            }
            for d in 0..self.task.shape.head_dim {
                S::store(self.keys.add(d * LANES), S::load_f16(self.beyond.gathered.add(d * LANES)));
            }
        }
    }

    /// q.k of the pairs `rows` with the gathered keys, to place `at`.
    #[inline(always)]
    unsafe fn score_shared<S: Simd>(&self, at: usize, rows: Range<usize>) {
        let (keys, mut row) = (&[self.keys.cast_const()], rows.start);
        // SAFETY: as in `far`.
        unsafe {
            if S::TILE >= 8 {
                while row + 4 <= rows.end {
                    self.score_rows::<S, Widened, 4, 1>(keys, at, row, None);
                    row += 4;
                }
            }
            while row + 2 <= rows.end {
                self.score_rows::<S, Widened, 2, 1>(keys, at, row, None);
                row += 2;
            }
            if row < rows.end {
                self.score_rows::<S, Widened, 1, 1>(keys, at, row, None);
            }
        }
    }

    /// q.k of all pairs with the keys at their strides, from place `at` on.
    #[inline(always)]
    unsafe fn score_strides<S: Simd>(&self, rule: Sparse, at: usize) {
        let (task, group) = (self.task, self.task.group);
        let (first, last) = (self.first, self.first + self.count - 1);
        let (low, high) = (task.position(first), task.position(last));
        for head in 0..group {
            for base in (low / LANES * LANES..=high).step_by(LANES) {
                // The pair of a position, if the unit has it.
                let row = |lane: usize| {
                    let pair = (base + lane).checked_sub(task.start)? * group + head;
                    (first..=last).contains(&pair).then(|| pair - first)
                };
                let rows: [Option<usize>; LANES] = array::from_fn(row);
                let Some(deepest) = rows.iter().rposition(Option::is_some) else { continue };
                let count = Seen::of(rule, base + deepest).strides;
                if count == 0 {
                    continue;
                }
                // SAFETY: as in `far`. Sixteen positions before a base by a stride of 16 or more are a group of a page;
                // the group exists, since a stride that some row sees is at most its position.
                unsafe {
                    for (lane, row) in rows.iter().enumerate() {
                        for d in 0..task.shape.head_dim {
                            let q = row.map_or(0.0, |row| *self.queries.add(row * self.padded + d));
                            *self.beyond.turned.add(d * LANES + lane) = q;
                        }
                    }
                    for k in 0..count {
                        let keys = self.key(base - (1 << (first_stride(rule) as usize + k)));
                        let mut scores = [0.0; LANES];
                        S::store(
                            scores.as_mut_ptr(),
                            diagonal::<S>(keys, self.beyond.turned, task.shape.head_dim),
                        );
                        for (row, score) in rows.iter().zip(scores) {
                            if let Some(row) = row {
                                *self.weights.add(row * WEIGHTS + at + k) = score;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Turns the scores of a pair into weights; each kind has its places and how many of them the pair sees.
    #[inline(always)]
    unsafe fn weigh_far<S: Simd>(&mut self, row: usize, kinds: [(Range<usize>, usize); 3], end: usize) {
        // SAFETY: as in `far`.
        unsafe {
            let weights = self.weights.add(row * WEIGHTS);
            let hidden = S::splat(f32::NEG_INFINITY);
            let mut maximum = hidden;
            let mut sees = false;
            for (places, count) in kinds {
                sees |= count > 0;
                for at in places.clone().step_by(LANES) {
                    let s = self.scaled::<S>(weights.add(at));
                    let s = S::select_below((places.start + count).saturating_sub(at), s, hidden);
                    maximum = S::max(maximum, s);
                    S::store(weights.add(at), s);
                }
            }
            if sees {
                return self.exponentials::<S, 1>(row, 0..end / LANES, [S::max_lane(maximum)]);
            }
            for at in (0..end).step_by(LANES) {
                S::store(weights.add(at), S::splat(0.0));
            }
        }
    }

    /// Adds the widened values with the weights at `places` to the results of the pairs `rows`.
    #[inline(always)]
    unsafe fn mix_shared<S: Simd>(&self, places: Range<usize>, rows: Range<usize>) {
        let (values, mut row) = ((self.values.cast_const(), self.padded_value()), rows.start);
        // SAFETY: as in `far`.
        unsafe {
            if S::TILE >= 8 {
                while row + 4 <= rows.end {
                    self.mix_rows::<S, Widened, 4>(values, places.clone(), row, None);
                    row += 4;
                }
            }
            while row + 2 <= rows.end {
                self.mix_rows::<S, Widened, 2>(values, places.clone(), row, None);
                row += 2;
            }
            if row < rows.end {
                self.mix_rows::<S, Widened, 1>(values, places.clone(), row, None);
            }
        }
    }

    /// Adds the values at the strides of a pair to its result.
    #[inline(always)]
    unsafe fn mix_strides<S: Simd>(&self, rule: Sparse, row: usize, at: usize, count: usize) {
        let position = self.task.position(self.first + row);
        let far = |k: usize| position - (1 << (first_stride(rule) as usize + k));
        // SAFETY: as in `far`; whole vectors are read where the row has them.
        unsafe {
            if !self.task.shape.head_dim.is_multiple_of(LANES) {
                for k in 0..count {
                    self.widen_value::<S>(self.value(far(k)), 0);
                    let values = (self.values.cast_const(), self.padded_value());
                    self.mix_rows::<S, Widened, 1>(values, at + k..at + k + 1, row, None);
                }
                return;
            }
            let mut values = [std::ptr::null(); STRIDES];
            values.iter_mut().take(count).enumerate().for_each(|(k, value)| *value = self.value(far(k)));
            let weights = self.weights.add(row * WEIGHTS + at);
            for d in (0..self.task.shape.head_dim).step_by(LANES) {
                let out = self.page_out.add(row * self.padded_value() + d);
                let mut o = S::load(out);
                for (k, value) in values[..count].iter().enumerate() {
                    o = S::fma(S::splat(*weights.add(k)), S::load_f16(value.add(d)), o);
                }
                S::store(out, o);
            }
        }
    }
}

impl Task<'_> {
    /// What is stored of a head in the quarter that has `position`, and which of its positions that is.
    ///
    /// # Safety
    /// The job was checked, and has the head.
    #[inline(always)]
    pub(super) unsafe fn quarter(&self, kv_head: usize, position: usize) -> (*const u16, usize) {
        let quarter = &self.pages[position / QUARTER];
        let kept = self.shape.in_quarter(position / QUARTER);
        // SAFETY: the quarter has the task's shape, so the head is inside it.
        let head = unsafe { quarter.as_ptr().add(kv_head * QUARTER * kept.head_len()) };
        (head, position % QUARTER)
    }
}
