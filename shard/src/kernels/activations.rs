//! Activations as the tile kernels read them: rounded to int8 and arranged in groups of rows.
//!
//! Rows are gathered in groups of `M` (what one tile call takes); inside a group everything lies block after block, so a
//! pass reads it in order: per 32-block `M` x 32 bytes of `q`, `M` scales, and `M` sums of 32 and of each half. The
//! last group may be smaller, a power of two, padded with zero rows. [`Activations`] is scratch memory: it grows to the largest use
//! and is reused, so that computing a token allocates nothing.

use std::ops::Range;

use super::Kernel;
use super::groups::{Groups, View};
use super::job::{Job, Span};
use super::panel::BLOCK;
use super::simd::Simd;

/// A cache line, so that buffers start on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that only grows, aligned to cache lines and always initialized.
#[derive(Default)]
pub(crate) struct Buffer(Vec<Line>);

impl Buffer {
    /// At least `bytes` bytes; the content is whatever was there, at first zeros.
    pub fn reserve(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }

    fn bytes(&self) -> usize {
        self.0.len() * 64
    }
}

/// Scratch memory of [`super::Cpu::matmul`].
#[derive(Default)]
pub struct Activations {
    q: Buffer,
    d: Buffer,
    sums: Buffer,
    /// Sums times a factor, for the factors in use.
    starts: Vec<Buffer>,
    factors: Vec<i32>,
    x: Buffer,
    /// One per worker.
    pub(crate) work: Vec<Buffer>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) spans: Vec<Span>,
    /// Blocks that there is room for at least, for rows that come in parts.
    blocks: usize,
}

/// Factors, and where the sums of all places times each are.
#[derive(Clone, Copy)]
pub(crate) struct Starts([(i32, *mut i32); 8]);

// SAFETY: each worker writes the places of its own blocks only.
unsafe impl Sync for Starts {}

impl Activations {
    /// Empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let buffers = [&self.q, &self.d, &self.sums, &self.x];
        buffers.into_iter().chain(&self.starts).chain(&self.work).map(Buffer::bytes).sum()
    }

    /// Makes room for the products of `networks` networks with `rows` rows of `cols` columns in all, in whichever parts: what a
    /// pass visits is not known before, and it is to allocate no more than the pass before it.
    pub fn expect(&mut self, networks: usize, rows: usize, cols: usize) {
        // Two matrices read the same rows; filling groups up at most doubles the rows.
        self.jobs.reserve(2 * networks);
        self.spans.reserve(networks);
        self.blocks = self.blocks.max(2 * rows * cols.div_ceil(BLOCK));
    }

    /// The factors that the sums of the next call are multiplied with.
    pub(crate) fn factors(&mut self, factors: impl Iterator<Item = i32>) {
        self.factors.clear();
        for factor in factors {
            if !self.factors.contains(&factor) {
                self.factors.push(factor);
            }
        }
        while self.starts.len() < self.factors.len() {
            self.starts.push(Buffer::default());
        }
    }

    /// Makes room for spans.
    pub(crate) fn prepare(&mut self, spans: &mut [Span]) {
        let blocks = spans.iter().map(|span| span.view.blocks()).sum::<usize>();
        let blocks = if blocks > 0 { blocks.max(self.blocks) } else { 0 };
        for starts in &mut self.starts[..self.factors.len()] {
            starts.reserve(blocks * 12);
        }
        let q = self.q.reserve(blocks * BLOCK).cast();
        let d = self.d.reserve(blocks * 4).cast();
        let sums = self.sums.reserve(blocks * 12).cast();
        let floats = |span: &Span| span.floats.map_or(0, |(groups, _)| groups.total() * span.cols());
        let values = spans.iter().map(floats).sum::<usize>();
        let values = if values > 0 { values.max(self.blocks * BLOCK) } else { 0 };
        let mut x: *mut f32 = self.x.reserve(values * 4).cast();
        let mut first = 0;
        for span in spans {
            let len = floats(span);
            span.view = View { first, q, d, sums, ..span.view };
            span.floats = span.floats.map(|(groups, _)| (groups, x));
            first += span.view.blocks();
            // Behind the last span this is the end of the room.
            x = x.wrapping_add(len);
        }
    }

    /// The sums times `factor`, one of those that were prepared.
    pub(crate) fn starts(&mut self, factor: i32) -> *mut i32 {
        let index = self.factors.iter().position(|&f| f == factor).expect("the factor was prepared");
        self.starts[index].0.as_mut_ptr().cast()
    }

    /// The factors in use and their sums.
    pub(crate) fn all_starts(&mut self) -> Starts {
        let mut all = [(0, std::ptr::null_mut()); 8];
        for ((all, &factor), starts) in all.iter_mut().zip(&self.factors).zip(&mut self.starts) {
            *all = (factor, starts.0.as_mut_ptr().cast());
        }
        Starts(all)
    }

    /// `bytes` of scratch memory for each worker.
    pub(crate) fn workers(&mut self, workers: usize, bytes: usize) {
        if self.work.len() < workers {
            self.work.resize_with(workers, Buffer::default);
        }
        for buffer in &mut self.work {
            buffer.reserve(bytes);
        }
    }
}

/// Rounds some 32-blocks of all rows of a group into their places.
pub(crate) struct Quantize {
    pub view: View,
    pub starts: Starts,
    /// `[n][cols]`.
    pub x: *const f32,
    pub group: usize,
    pub blocks: Range<usize>,
}

impl Kernel for Quantize {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let View { groups: Groups { size, .. }, first, cols, .. } = self.view;
        let (group, m) = (self.group, self.view.groups.places(self.group));
        let rows = self.view.groups.rows(group);
        let all_blocks = first + group * size * (cols / BLOCK);
        // SAFETY: the view has room for every place of every group; the caller has the instruction set and the rows at `x`.
        unsafe {
            let x = self.x.add(group * size * cols);
            for b in self.blocks {
                for place in 0..m {
                    let q = self.view.q.add((all_blocks + b * m + place) * BLOCK);
                    let (scale, halves) = if place >= rows {
                        std::ptr::write_bytes(q, 0, BLOCK);
                        (0.0, [0, 0])
                    } else {
                        quantize_block::<S>(x.add(place * cols + b * BLOCK), q)
                    };
                    *self.view.d.add(all_blocks + b * m + place) = scale;
                    let at = (all_blocks + b * m) * 3 + place;
                    let all = [halves[0] + halves[1], halves[0], halves[1]];
                    for (i, &sum) in all.iter().enumerate() {
                        *self.view.sums.add(at + i * m) = sum as f32;
                    }
                    for &(factor, starts) in &self.starts.0 {
                        if starts.is_null() {
                            break;
                        }
                        for (i, &sum) in all.iter().enumerate() {
                            *starts.add(at + i * m) = factor * sum;
                        }
                    }
                }
            }
        }
    }
}

/// [`crate::quant::quantize_row`] of one block: its scale and the sums of its halves.
#[inline(always)]
pub(super) unsafe fn quantize_block<S: Simd>(x: *const f32, q: *mut i8) -> (f32, [i32; 2]) {
    // SAFETY: the caller has 32 readable values, 32 writable bytes and the instruction set.
    unsafe {
        let (a, b) = (S::load(x), S::load(x.add(16)));
        let amax = S::max_lane(S::max(S::abs(a), S::abs(b)));
        // v - v is zero for every finite v and NaN for the others.
        let finite = S::sum_tree(S::add(S::sub(a, a), S::sub(b, b))) == 0.0;
        let inverse = 127.0 / amax;
        if !finite || inverse.is_infinite() {
            std::ptr::write_bytes(q, 0, BLOCK);
            return (if finite { 0.0 } else { f32::NAN }, [0, 0]);
        }
        let inverse = S::splat(inverse);
        let (a, b) = (S::round_i32(S::mul(a, inverse)), S::round_i32(S::mul(b, inverse)));
        S::store_i8(q, a);
        S::store_i8(q.add(16), b);
        (amax / 127.0, [S::sum_i32(a), S::sum_i32(b)])
    }
}
