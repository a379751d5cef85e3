//! Attention over a paged f16 key/value cache, and the layout of its pages.
//!
//! # Pages
//! A page is 256 absolute positions ([`PAGE`]) of one layer; it lies in memory in four quarters. A [`KvQuarter`] holds 64 positions
//! ([`QUARTER`]). For each key/value head it has the keys as `[64 / 16][head_dim][16]` (sixteen positions side by side: they are the
//! lanes of q.k) and then the values as `[64][head_dim]` (dimensions side by side: they are the lanes of p.v), all f16. Position `t`
//! is number `t % 64` of quarter `t / 64`, so appending, truncating and chunking never move anything. Pages are what is summed
//! together, quarters what sessions share and copy: the size of a quarter changes no result. Where values are a part of the keys ([`KvShape::latent`]) only
//! the keys are stored, in the same way.
//!
//! # What is computed, in this order (profile d1)
//! Query row `i` has position `t = start + i` and sees positions `max(0, t + 1 - window) ..= min(t + ahead, start + n - 1)`. For
//! each page with a visible position, in page order:
//! 1. `s_j`: 16 partial sums of `q_d * k_jd` by `d mod 16`, fused multiply-add, dimensions ascending, added 8, 4, 2, 1 apart;
//!    then `s_j = s_j * scale`; then, with a softcap c, `s_j = tanh(s_j / c) * c`.
//! 2. `m = max s_j`, `p_j = exp(s_j - m)` over the visible positions of the page.
//! 3. `l`: sum of `p_j`, lane `j mod 16`, positions ascending, lanes added 8, 4, 2, 1 apart.
//! 4. `o_d`: `fma(p_j, v_jd, o_d)` from 0, visible positions ascending.
//! 5. The first page sets `M = m, L = l, O = o`. A later one sets `M' = max(M, m)`, `a = exp(M - M')`, `b = exp(m - M')`,
//!    `L' = L * a + l * b`, `O' = O * a + o * b`, each operation rounded by itself.
//!
//! With a sink `s` of the query head (a logit without a value), at last `M' = max(M, s)`, `a = exp(M - M')`,
//! `L' = L * a + exp(s - M')`, `O' = O * a`, each operation rounded by itself.
//!
//! A job with a [`Far`] part sees a window and, before its pages, one more part of a few places in this order: the sinks
//! before the window; the positions `t - 2^k` beyond the window and not among the sinks, k ascending; and the landmarks of
//! blocks `p`, `p - 1`, `p - 2`, `p - 4` and so on with `p = (t + 1) / block - 1`. Each of the three begins at a multiple of 16 places.
//! Steps 1 to 4 are those of a page, with places for positions (lanes are place mod 16), and step 5 begins with this part if it
//! sees anything. A landmark ([`landmarks`]) is the mean of the stored keys, and that of the stored values, of a block:
//! 16 partial sums by position mod 16, positions ascending, added 8, 4, 2, 1 apart, times `1 / block`, rounded to f16. It
//! is computed when its block is complete, so no chunk or replay changes it.
//!
//! The result is `O / L + 0` (the addition turns -0 into 0, so that skipping a position and adding `0 * v` are the same).
//! Nothing here depends on how many rows are computed together, on threads, or on vector width.
//!
//! # How it is fast
//! The unit of work is up to 64 pairs (query row, query head) of one key/value head; units are handed out by an atomic
//! counter, head by head, so that keys and values stay near, and the long ones of a head first; where there are few of them, parts of
//! their pages are ([`task`]). Inside, groups of 16 keys or a run of values are widened to f32 once and used by all pairs, in register
//! tiles of 4 pairs (2 with few registers, and 2 pairs against two groups of keys with many). A single tile (decoding) reads what is
//! stored, and asks for what comes 64 positions later line by line beside the products. Sinks and landmarks are the same for many rows
//! and are gathered once for all of them; strides of 16 and more keep the lane of a position, so
//! sixteen rows and the sixteen keys before them by one stride are multiplied lane by lane.
//!
//! The module [`usage`] counts what rows look at, for sessions that forget the rest; the places of such a session stand for the
//! positions above.
//!
//! The module `small` says what is different where keys and values are kept in 8 or 4 bits.
//!
//! Limits: keys and values have the same head_dim, unless values are a part of the keys, which then have no landmarks; these are widened for every unit, which many
//! query heads share; a page of a unit is one thread's.

mod far;
pub mod landmarks;
mod quarter;
mod registers;
pub(crate) mod small;
mod task;
mod tile;
pub mod usage;
mod values;

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use scheduler::{
    attention::Sparse,
    session_kind::{CACHE_BLOCK, CacheType},
};

use super::{
    Cpu, Kernel,
    simd::{LANES, Simd},
    vector::{Shared, load_part},
};
pub use quarter::Quarter;
use small::{StoreSmall, reference};

/// Positions of one page. Part of the numerics (pages are combined in page order): changing it changes every result.
pub const PAGE: usize = 256;

/// Positions of one quarter of a page. What a session that shares a beginning copies at most before it writes: two users of a system
/// prompt of 1,000 tokens take 6 % more than one. Smaller, and a long session has more pieces to count.
pub const QUARTER: usize = PAGE / 4;

/// Largest finite f16; keys and values beyond are stored as this.
const F16_MAX: f32 = 65_504.0;

/// Jobs whose description is kept on the stack for one run of the threads; more jobs take several runs.
const BATCH: usize = 32;

/// Fewest multiply-adds for which waking the threads pays (about 5 microseconds of one core).
const PARALLEL: usize = 200_000;

/// The heads of a key/value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads of the layer.
    pub kv_heads: usize,
    /// Width of one key; of one value too, unless it is a part of the key.
    pub head_dim: usize,
    /// The value of a position is this many last elements of its key, and is not stored beside it.
    pub latent: Option<usize>,
    /// In which form keys and values are stored; where values are a part of the keys, f16.
    pub cache: CacheType,
}

impl KvShape {
    /// Keys and values of `head_dim` elements, stored as f16.
    pub const fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, head_dim, latent: None, cache: CacheType::F16 }
    }

    /// Width of one value.
    pub fn value_dim(self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// What one position stores for one head, in units of two bytes.
    pub fn head_len(self) -> usize {
        match self.cache {
            CacheType::F16 => self.head_dim * if self.latent.is_some() { 1 } else { 2 },
            // Blocks of the key and of the value, two bytes at a time.
            cache => self.head_dim.div_ceil(CACHE_BLOCK) * cache.block_bytes(),
        }
    }

    /// What one position stores, in units of two bytes.
    pub fn position_len(self) -> usize {
        self.kv_heads * self.head_len()
    }

    /// The heads as quarter number `quarter` of a session holds them: the first of `q4` is kept as f16.
    pub fn in_quarter(self, quarter: usize) -> Self {
        let exact = quarter * QUARTER < self.cache.exact_positions();
        Self { cache: if exact { CacheType::F16 } else { self.cache }, ..self }
    }

    /// What a quarter stores besides its positions, in units of two bytes: for `q4` the key that its keys are relative to.
    pub(crate) fn reference_len(self) -> usize {
        if self.cache == CacheType::Q4 { self.kv_heads * self.head_dim } else { 0 }
    }
}

/// [`QUARTER`] positions of one layer, [`quarter_len`] f16 bit patterns, laid out as the module says. New ones are zeros. Sessions that
/// begin alike share them; one that is written to is copied first, if others have it.
pub type KvQuarter = Arc<Quarter>;

/// Quarter number `quarter` of a session of `shape`, filled with `bits`.
pub fn new_quarter(shape: KvShape, quarter: usize, bits: u16) -> KvQuarter {
    Arc::new(Quarter::new(quarter_len(shape.in_quarter(quarter)), bits))
}

/// What stands in the place of a quarter that no row looks at any more.
pub fn gone_quarter() -> KvQuarter {
    static GONE: LazyLock<KvQuarter> = LazyLock::new(|| Arc::new(Quarter::gone()));
    GONE.clone()
}

/// Units of two bytes in one quarter of a page of `shape`, as [`KvShape::in_quarter`] says it.
pub fn quarter_len(shape: KvShape) -> usize {
    QUARTER * shape.position_len() + shape.reference_len()
}

/// Whether `pages`, the first of which is quarter number `first`, are those of a session of `shape`.
fn have_shape(pages: &[KvQuarter], first: usize, shape: KvShape) -> bool {
    let lens = (first..).map(|quarter| quarter_len(shape.in_quarter(quarter)));
    pages.iter().zip(lens).all(|(page, len)| page.len() == len)
}

/// The attention of some consecutive query rows of one session and layer.
pub struct AttentionJob<'a> {
    /// Queries, `[n][heads * head_dim]`.
    pub q: &'a [f32],
    /// The quarters of pages holding at least positions `0..start + n` as far as the window reaches back; those before it may be
    /// [`gone_quarter`]s.
    pub pages: &'a [KvQuarter],
    /// Heads of the cache.
    pub shape: KvShape,
    /// Position of the first query row.
    pub start: usize,
    /// Query rows.
    pub n: usize,
    /// Query heads, a multiple of `shape.kv_heads`; consecutive ones share a key/value head.
    pub heads: usize,
    /// Factor of q.k.
    pub scale: f32,
    /// Scores become `tanh(s / c) * c`.
    pub softcap: Option<f32>,
    /// A row sees itself and `window - 1` positions before it; at least 1. `None` with a far part, which has a window.
    pub window: Option<usize>,
    /// A row sees this many positions after itself, no further than the job's last row; 0 with a far part.
    pub ahead: usize,
    /// What rows see besides the window of its rule; `None` for nothing.
    pub far: Option<Far<'a>>,
    /// For each query head a logit that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
    /// Result, `[n][heads * value_dim]`.
    pub out: &'a mut [f32],
}

/// What the rows of a sparse job see, and the landmarks of its session.
#[derive(Clone, Copy)]
pub struct Far<'a> {
    /// Window, sinks, strides and blocks.
    pub rule: Sparse,
    /// Landmarks of all blocks that are whole behind the job's last row, [`landmarks::landmark_len`] values each.
    pub landmarks: &'a [u16],
}

thread_local! {
    /// Working memory of [`tile::Unit`]; grows to the largest head_dim seen by the thread and is then reused.
    static SCRATCH: RefCell<Vec<task::Line>> = const { RefCell::new(Vec::new()) };
}

/// Makes room for units of `head_dim`.
fn grow(scratch: &mut Vec<task::Line>, head_dim: usize) {
    let needed = tile::scratch_lines(head_dim);
    if scratch.len() < needed {
        scratch.resize(needed, task::Line::default());
    }
}

/// Allocates the working memory of attention on the calling thread and all others, so that [`attend`] with
/// heads up to `head_dim` allocates nothing when called from this thread; a session too long for what is reserved to divide it
/// among the threads makes room once.
pub fn reserve(cpu: &Cpu, head_dim: usize) {
    cpu.pool().run(&|_, _| SCRATCH.with_borrow_mut(|scratch| grow(scratch, head_dim)));
    task::reserve(cpu.pool().threads());
}

/// Writes keys and values, `[n][kv_heads * head_dim]` each, to positions `start..start + n`; no values where they are a part
/// of the keys. f32 is rounded to the nearest f16 (ties to even), magnitudes beyond 65504 become 65504; or block by block,
/// as the module `small` says.
///
/// Panics when the pages do not reach that far.
pub fn store_kv(cpu: &Cpu, pages: &mut [KvQuarter], shape: KvShape, k: &[f32], v: &[f32], start: usize) {
    let width = shape.kv_heads * shape.head_dim;
    let latent = shape.latent.is_some();
    assert_eq!(if latent { 0 } else { k.len() }, v.len(), "as many keys as values");
    assert!(!latent || shape.cache == CacheType::F16, "values that are a part of keys are f16");
    assert!(width > 0 && k.len().is_multiple_of(width), "{} keys are not rows of {width}", k.len());
    let end = start + k.len() / width;
    assert!(end <= pages.len() * QUARTER, "{} quarters do not hold {end} positions", pages.len());
    if k.is_empty() {
        return;
    }
    let first = start / QUARTER;
    let touched = first..end.div_ceil(QUARTER);
    assert!(have_shape(&pages[touched.clone()], first, shape), "a page has another shape");
    // Which rows go into a quarter, and to which of its positions.
    let rows_of = |quarter: usize| {
        let base = quarter * QUARTER;
        let (from, to) = (start.max(base), end.min(base + QUARTER));
        ((from - start) * width..(to - start) * width, from - base)
    };
    if shape.cache == CacheType::Q4 {
        // A quarter begins with what the one before it holds.
        for quarter in touched {
            let (rows, at) = rows_of(quarter);
            reference::begin(pages, shape, quarter, at);
            let page = Arc::make_mut(&mut pages[quarter]);
            small::store_heads(cpu, page, shape.in_quarter(quarter), (&k[rows.clone()], &v[rows]), at);
        }
        return;
    }
    let count = touched.len();
    let shared = Shared(pages[touched].as_mut_ptr());
    let store = |index: usize| {
        let (rows, at) = rows_of(first + index);
        // SAFETY: each index is taken by one thread, and the pages outlive the run.
        let page = Arc::make_mut(unsafe { &mut shared.part(index..index + 1)[0] });
        let v = if latent { v } else { &v[rows.clone()] };
        match shape.cache {
            CacheType::F16 => cpu.run(Store { page, shape, k: &k[rows], v, at }),
            _ => cpu.run(StoreSmall { page, shape, first: 0, reference: &[], k: &k[rows], v, at }),
        }
    };
    if count == 1 {
        return store(0);
    }
    cpu.pool().run(&|worker, workers| (worker..count).step_by(workers).for_each(store));
}

/// Computes the attention of all jobs, as the module says. Keys and values of the jobs' own rows must be stored before.
///
/// Panics when the slices or pages do not fit the shapes. Allocates only when a thread meets a larger head_dim (see
/// [`reserve`]) or divides a longer session than before.
pub fn attend(cpu: &Cpu, jobs: &mut [AttentionJob<'_>]) {
    for batch in jobs.chunks_mut(BATCH) {
        attend_batch(cpu, batch);
    }
}

fn attend_batch(cpu: &Cpu, jobs: &mut [AttentionJob<'_>]) {
    let threads = cpu.pool().threads();
    // Units can be divided by pages, see [`task`].
    let parts = |job: &AttentionJob<'_>| if job.far.is_some() { 1 } else { job.pages_seen() };
    let fewer = |rows: usize| jobs.iter().map(|job| job.units(rows) * parts(job)).sum::<usize>() < threads;
    // Smaller units share less, so they shrink only when some thread would have none.
    let mut rows = task::ROWS;
    while rows > 1 && fewer(rows) {
        rows /= 2;
    }
    let mut tasks: [Option<task::Task<'_>>; BATCH] = [const { None }; BATCH];
    let (mut work, mut dim) = (0, 0);
    for (task, job) in tasks.iter_mut().zip(jobs) {
        job.check();
        dim = dim.max(job.shape.head_dim);
        work += job.n
            * job.heads
            * job.shape.head_dim
            * (job.start + job.n).min(job.window().unwrap_or(usize::MAX));
        *task = Some(task::Task::new(job, rows));
    }
    let serial = threads == 1 || work < PARALLEL;
    task::with_parts(&mut tasks, if serial { 1 } else { threads }, |tasks| {
        let total = tasks.iter().flatten().map(|task| task.units).sum::<usize>();
        let next = AtomicUsize::new(0);
        let take_units = || {
            SCRATCH.with_borrow_mut(|scratch| {
                grow(scratch, dim);
                loop {
                    let mut unit = next.fetch_add(1, Relaxed);
                    if unit >= total {
                        return;
                    }
                    let task = tasks.iter().flatten().find(|task| {
                        let here = unit < task.units;
                        unit = if here { unit } else { unit - task.units };
                        here
                    });
                    let task = task.expect("units are counted");
                    cpu.run(tile::Unit { task, unit, scratch });
                }
            });
        };
        if serial || total == 1 {
            take_units();
        } else {
            cpu.pool().run(&|_, _| take_units());
        }
    });
}

impl AttentionJob<'_> {
    /// Units of `rows` (query row, query head) pairs.
    fn units(&self, rows: usize) -> usize {
        self.shape.kv_heads * (self.n * (self.heads / self.shape.kv_heads)).div_ceil(rows)
    }

    /// Most pages that some rows see together.
    fn pages_seen(&self) -> usize {
        task::pages_seen(self.start, self.n, self.window().unwrap_or(usize::MAX))
    }

    /// The row itself and how many before it are seen without gaps, if not all.
    fn window(&self) -> Option<usize> {
        self.far.map_or(self.window, |far| Some(far.rule.window as usize + 1))
    }

    fn check(&self) {
        let Self { shape: KvShape { kv_heads, head_dim, .. }, heads, n, .. } = *self;
        assert!(kv_heads > 0 && head_dim > 0 && heads > 0, "attention without heads");
        assert!(
            heads.is_multiple_of(kv_heads),
            "{heads} query heads do not share {kv_heads} key/value heads"
        );
        assert_eq!(self.q.len(), n * heads * head_dim, "queries have another shape");
        let value_dim = self.shape.value_dim();
        assert!((1..=head_dim).contains(&value_dim), "values of {value_dim} in keys of {head_dim}");
        assert_eq!(self.out.len(), n * heads * value_dim, "the result has another shape");
        let small = self.shape.cache != CacheType::F16;
        assert!(!small || self.shape.latent.is_none() && self.far.is_none(), "a form of f16 only");
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == heads), "{heads} heads have other sinks");
        assert!(self.window != Some(0), "a window of 0 positions sees nothing");
        if let Some(Far { rule, landmarks }) = self.far {
            assert!(self.window.is_none() && self.ahead == 0, "sparse attention brings its own window");
            assert!(self.shape.latent.is_none(), "sparse attention of values that are a part of keys");
            let blocks = (self.start + n).checked_div(rule.block as usize).unwrap_or(0);
            assert!(
                landmarks.len() >= blocks * landmarks::landmark_len(self.shape),
                "landmarks end before the queries"
            );
            assert!(far::places(rule, self.start + n) <= PAGE, "more places than a page has");
        }
        assert!(self.start + n <= self.pages.len() * QUARTER, "the pages end before the queries");
        // What lies before the first row's window is not read, and may be gone. Other rows see no further back.
        let window = self.window().filter(|_| self.far.is_none()).unwrap_or(usize::MAX);
        let first = (self.start + 1).saturating_sub(window) / QUARTER;
        assert!(have_shape(&self.pages[first..], first, self.shape), "a page has another shape");
    }
}

/// Stores rows of keys and values into one quarter from local position `at`.
struct Store<'a> {
    page: &'a mut [u16],
    shape: KvShape,
    k: &'a [f32],
    v: &'a [f32],
    at: usize,
}

/// Sixteen f32 as f16.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn halves<S: Simd>(x: S::F) -> [u16; LANES] {
    let mut out = [0; LANES];
    // SAFETY: the array holds a full vector; constants first, so that a NaN stays one.
    unsafe {
        let x = S::min(S::splat(F16_MAX), S::max(S::splat(-F16_MAX), x));
        S::store_f16(out.as_mut_ptr(), x);
    }
    out
}

impl Kernel for Store<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let KvShape { kv_heads, head_dim, latent, .. } = self.shape;
        let width = kv_heads * head_dim;
        let n = self.k.len() / width;
        for (head, page) in self.page.chunks_exact_mut(QUARTER * self.shape.head_len()).enumerate() {
            let (keys, values) = page.split_at_mut(QUARTER * head_dim);
            let mut i = 0;
            while i < n {
                let j = self.at + i;
                let group = &mut keys[j / LANES * LANES * head_dim..][..LANES * head_dim];
                if j.is_multiple_of(LANES) && i + LANES <= n {
                    for (d, lanes) in group.chunks_exact_mut(LANES).enumerate() {
                        let mut column = [0.0; LANES];
                        for (lane, value) in column.iter_mut().enumerate() {
                            *value = self.k[(i + lane) * width + head * head_dim + d];
                        }
                        // SAFETY: the array is a full vector; the caller promises the instruction set.
                        lanes.copy_from_slice(&unsafe { halves::<S>(S::load(column.as_ptr())) });
                    }
                    i += LANES;
                } else {
                    let row = &self.k[i * width + head * head_dim..][..head_dim];
                    for d in (0..head_dim).step_by(LANES) {
                        // SAFETY: d is inside the row; the caller promises the instruction set.
                        let half = unsafe { halves::<S>(load_part::<S>(row, d, 0.0)) };
                        for (offset, half) in half.iter().enumerate().take(head_dim - d) {
                            group[(d + offset) * LANES + j % LANES] = *half;
                        }
                    }
                    i += 1;
                }
            }
            if latent.is_some() {
                continue;
            }
            for i in 0..n {
                let row = &self.v[i * width + head * head_dim..][..head_dim];
                let to = &mut values[(self.at + i) * head_dim..][..head_dim];
                for d in (0..head_dim).step_by(LANES) {
                    // SAFETY: d is inside the row; the caller promises the instruction set.
                    let half = unsafe { halves::<S>(load_part::<S>(row, d, 0.0)) };
                    let len = LANES.min(head_dim - d);
                    to[d..d + len].copy_from_slice(&half[..len]);
                }
            }
        }
    }
}
