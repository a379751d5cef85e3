//! A job as the threads share it, and its division into units and, where these are few, parts of units.
//!
//! A part is some of the pages that a unit sees. What they give waits in a [`Shelf`] until the thread that ends the unit's last part
//! joins all pages in their order, so the bits are those of a unit that was not divided.

use std::{
    cell::RefCell,
    marker::PhantomData,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{AttentionJob, Far, KvQuarter, KvShape, PAGE};
use crate::kernels::simd::LANES;

/// Most pairs of one unit: the scores of a page (64 KiB) and the results stay in the second-level cache, and
/// a group of keys widened to f32 serves 16 register tiles.
pub(super) const ROWS: usize = 64;

/// 64 bytes of working memory, aligned to a cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Line(#[expect(dead_code, reason = "used through pointers")] [f32; LANES]);

/// Parts for each thread, if there are so many pages: with fewer some threads would wait long for the last one.
const PARTS_PER_THREAD: usize = 4;

/// Bytes reserved for results that wait: those of 9 query heads of 64 with 3 heads of keys over 17,000 positions.
const SHELF: usize = 256 << 10;

/// Most bytes of results that wait; units that need more are not divided. 128k positions of 32 heads of 64 with 8 heads of keys
/// take 6 MiB.
const MOST_SHELF: usize = 8 << 20;

/// An [`AttentionJob`] as the threads share it: its result is written in disjoint parts.
pub(super) struct Task<'a> {
    pub(super) q: *const f32,
    pub(super) out: *mut f32,
    pub(super) pages: &'a [KvQuarter],
    pub(super) far: Option<Far<'a>>,
    pub(super) shape: KvShape,
    /// Query heads per key/value head.
    pub(super) group: usize,
    pub(super) start: usize,
    /// (query row, query head) pairs per key/value head.
    pub(super) pairs: usize,
    pub(super) curve: Curve,
    sight: Sight,
    pub(super) sinks: Option<&'a [f32]>,
    /// Pairs per unit.
    pub(super) rows: usize,
    /// Parts of all units.
    pub(super) units: usize,
    pub(super) shelf: Option<Shelf>,
    job: PhantomData<&'a mut [f32]>,
}

/// How many positions a row sees: itself and before it, and behind it.
struct Sight {
    window: usize,
    ahead: usize,
}

/// What q.k becomes.
pub(super) struct Curve {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
}

// SAFETY: q and pages are only read; units write disjoint parts of out (a unit owns its pairs, a pair owns its
// value_dim values) and parts write disjoint pages of the shelf.
unsafe impl Sync for Task<'_> {}

impl<'a> Task<'a> {
    /// The job, which was checked, in units of at most `rows` pairs, each in `parts`.
    pub(super) fn new(job: &'a mut AttentionJob<'_>, rows: usize) -> Self {
        let group = job.heads / job.shape.kv_heads;
        Self {
            q: job.q.as_ptr(),
            units: job.units(rows),
            out: job.out.as_mut_ptr(),
            pages: job.pages,
            far: job.far,
            shape: job.shape,
            group,
            start: job.start,
            pairs: job.n * group,
            curve: Curve { scale: job.scale, softcap: job.softcap },
            sight: Sight { window: job.window().unwrap_or(usize::MAX), ahead: job.ahead },
            sinks: job.sinks,
            rows,
            shelf: None,
            job: PhantomData,
        }
    }

    /// Positions that pair number `pair` sees.
    #[inline(always)]
    pub(super) fn visible(&self, pair: usize) -> Range<usize> {
        let (next, last) = (self.position(pair) + 1, self.start + self.pairs / self.group);
        next.saturating_sub(self.sight.window)..next.saturating_add(self.sight.ahead).min(last)
    }

    /// The position of a pair's query row.
    #[inline(always)]
    pub(super) fn position(&self, pair: usize) -> usize {
        self.start + pair / self.group
    }

    /// The query head of a pair.
    #[inline(always)]
    pub(super) fn head(&self, kv_head: usize, pair: usize) -> usize {
        kv_head * self.group + pair % self.group
    }

    /// Which query of all, and which result, is a pair's.
    #[inline(always)]
    pub(super) fn place(&self, kv_head: usize, pair: usize) -> usize {
        pair / self.group * self.shape.kv_heads * self.group + self.head(kv_head, pair)
    }

    /// Most pages that a unit sees.
    fn page_count(&self) -> usize {
        pages_seen(self.start, self.pairs / self.group, self.sight.window)
    }
}

/// Pages that `n` rows from `start` on see together.
pub(super) fn pages_seen(start: usize, n: usize, window: usize) -> usize {
    (start + n).div_ceil(PAGE) - (start + 1).saturating_sub(window) / PAGE
}

// ---- units in parts ------------------------------------------------------------------------------------------------------

/// The results of single pages of the units of a task, until they are joined.
pub(super) struct Shelf {
    /// Parts of each unit.
    pub(super) parts: usize,
    /// Per unit and page: maximum and sum of each pair, then its result.
    results: *mut f32,
    /// f32 of one page of a unit.
    page_len: usize,
    page_count: usize,
    /// Parts of each unit that are not done.
    left: *const AtomicUsize,
}

impl Shelf {
    /// The pages of a unit, which sees `pages`, that belong to `part`.
    #[inline(always)]
    pub(super) fn pages(&self, pages: &Range<usize>, part: usize) -> Range<usize> {
        let at = |part: usize| pages.start + pages.len() * part / self.parts;
        at(part)..at(part + 1)
    }

    /// Where maximum and sum of each pair of page number `page` of those that `unit` sees wait, and where its results do.
    ///
    /// # Safety
    /// The unit sees so many pages. The place belongs to the page's part until the unit's parts are done.
    #[inline(always)]
    pub(super) unsafe fn page(&self, unit: usize, page: usize) -> (*mut [[f32; ROWS]; 2], *mut f32) {
        // SAFETY: there is room for all pages of all units.
        unsafe {
            let start = self.results.add((unit * self.page_count + page) * self.page_len);
            (start.cast(), start.add(2 * ROWS))
        }
    }

    /// Counts a part of `unit` as done; true for the last one, which then sees what the others wrote.
    #[inline(always)]
    pub(super) fn is_last(&self, unit: usize) -> bool {
        // SAFETY: there is a counter for each unit.
        unsafe { (*self.left.add(unit)).fetch_sub(1, Ordering::AcqRel) == 1 }
    }
}

thread_local! {
    /// Memory of the shelves of a run that this thread started; it grows to the longest session, at most [`MOST_SHELF`], and is
    /// then reused.
    static SHELVES: RefCell<(Vec<Line>, Vec<AtomicUsize>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Makes room for results of so many lines and units.
fn grow(lines: &mut Vec<Line>, left: &mut Vec<AtomicUsize>, line: usize, unit: usize) {
    if lines.len() < line {
        lines.resize(line.next_power_of_two(), Line::default());
    }
    if left.len() < unit {
        left.resize_with(unit.next_power_of_two(), AtomicUsize::default);
    }
}

/// Allocates what most sessions divided among `threads` need, on the calling thread.
pub(super) fn reserve(threads: usize) {
    SHELVES.with_borrow_mut(|(lines, left)| {
        grow(lines, left, SHELF / size_of::<Line>(), PARTS_PER_THREAD * threads);
    });
}

/// Divides the units of `tasks` where they are too few to keep all `threads` busy to the end, and runs `work`; [`Task::units`] are
/// parts then.
pub(super) fn with_parts(
    tasks: &mut [Option<Task<'_>>],
    threads: usize,
    work: impl FnOnce(&[Option<Task<'_>>]),
) {
    let units = tasks.iter().flatten().map(|task| task.units).sum::<usize>();
    let wanted = PARTS_PER_THREAD * threads;
    if units == 0 || units >= wanted || units.is_multiple_of(threads) {
        return work(tasks);
    }
    let parts = wanted.div_ceil(units).next_multiple_of(threads);
    // What a sparse task sees is short.
    let parts_of = |task: &Task<'_>| {
        let several = task.page_count() > 1 && task.far.is_none();
        several.then(|| parts.min(task.page_count()))
    };
    let page_lines = |task: &Task<'_>| {
        (2 * ROWS + task.rows.min(task.pairs) * task.shape.value_dim().next_multiple_of(LANES)) / LANES
    };
    let (mut line, mut unit) = (0, 0);
    for task in tasks.iter().flatten().filter(|task| parts_of(task).is_some()) {
        line += task.units * task.page_count() * page_lines(task);
        unit += task.units;
    }
    if line * size_of::<Line>() > MOST_SHELF {
        return work(tasks);
    }
    SHELVES.with_borrow_mut(|(lines, left)| {
        grow(lines, left, line, unit);
        let (results, counters) = (lines.as_mut_ptr(), left.as_ptr());
        (line, unit) = (0, 0);
        for task in tasks.iter_mut().flatten() {
            let Some(parts) = parts_of(task) else { continue };
            let (page_len, page_count) = (page_lines(task) * LANES, task.page_count());
            left[unit..unit + task.units].iter().for_each(|left| left.store(parts, Ordering::Relaxed));
            // SAFETY: the places were counted above; both vectors outlive the work, and only shelves use them meanwhile.
            let (results, left) = unsafe { (results.add(line).cast(), counters.add(unit)) };
            line += task.units * page_count * page_lines(task);
            unit += task.units;
            task.units *= parts;
            task.shelf = Some(Shelf { parts, results, page_len, page_count, left });
        }
        work(tasks);
    });
}
