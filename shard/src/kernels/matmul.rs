//! Matrix products: activations times the panels of one or several matrices.
//!
//! One call rounds the activations once and hands out the panels of all its targets to the threads in one dispatch.
//! With few rows each panel is decoded in registers on the way (memory bandwidth decides); with many it is
//! unpacked once into the second-level cache and all groups of activations pass over it, arranged so that a slice
//! of the panel stays in the first-level cache while activations stream by from the second.
//!
//! The bits depend on neither the threads nor the number of rows nor the slices: an output is one chain of float
//! steps over the columns, wherever it is interrupted (see the tile kernels).

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::activations::{Activations, Quantize, Starts};
use super::groups::View;
use super::job::{Job, Span};
use super::layouts::{FloatKind, Panels};
use super::matrix::Kind;
use super::panel::{BLOCK, ROWS};
use super::tile::{FloatTile, Tile};
use super::{Cpu, Isa, Matrix, amx};

/// One product of a call.
pub struct Target<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// `[n][matrix.rows()]`, overwritten.
    pub out: &'a mut [f32],
}

/// Products that are computed in one dispatch, each of rows of its own.
///
/// A token's experts are many small matrices: one dispatch for all of them keeps the threads reading.
pub struct Products<'a> {
    scratch: &'a mut Activations,
    /// Taken from the scratch memory and given back, so that a call allocates nothing.
    jobs: Vec<Job>,
    spans: Vec<Span>,
}

/// Activations up to which waking the other threads would take longer than rounding them here.
const SERIAL: usize = 8192;
/// Bytes of weights times rows up to which the products are computed here for the same reason.
const SERIAL_BYTES: usize = 64 << 10;
/// Bytes of weights that a worker takes at least: half a microsecond. Less, and the workers wait for each other's counting.
const TAKEN_BYTES: usize = 16 << 10;

/// What all workers of a call share.
struct Call<'a> {
    isa: Isa,
    jobs: &'a [Job],
    spans: &'a [Span],
}

/// Scratch pointers of the workers.
struct Work<'a>(&'a mut [super::activations::Buffer]);

/// Bytes of unpacked panels that a unit keeps in the second-level cache.
const UNIT_BYTES: usize = 512 << 10;
/// Bytes of activations that stay there beside them.
const ROWS_BYTES: usize = 640 << 10;
/// 32-blocks of a panel that stay in the first-level cache.
const SLICE: usize = 32;

impl Cpu {
    /// `out[i][j] = matrix row j . x row i` for every target, in the order of profile `d1`.
    ///
    /// `x` is `[n][cols]`; all matrices have `cols` columns.
    ///
    /// # Panics
    /// When the lengths do not fit together.
    pub fn matmul(&self, x: &[f32], n: usize, scratch: &mut Activations, targets: &mut [Target<'_>]) {
        let Some(cols) = targets.first().map(|target| target.matrix.cols()) else { return };
        assert_eq!(Some(x.len()), n.checked_mul(cols), "activations are [n][cols]");
        let mut products = Products::new(scratch);
        for target in targets {
            products.add(x, n, target.matrix, target.out);
        }
        products.compute(self);
    }
}

impl<'a> Products<'a> {
    /// None yet.
    pub fn new(scratch: &'a mut Activations) -> Self {
        let (jobs, spans) = (std::mem::take(&mut scratch.jobs), std::mem::take(&mut scratch.spans));
        Self { scratch, jobs, spans }
    }

    /// `out[i][j] = matrix row j . x row i`; `x` is `[n][matrix.cols()]` and `out` is `[n][matrix.rows()]`.
    ///
    /// Products of the same rows, one after the other, share what the rows are rounded to.
    ///
    /// # Panics
    /// When the lengths do not fit together.
    pub fn add(&mut self, x: &'a [f32], n: usize, matrix: &'a Matrix, out: &'a mut [f32]) {
        assert_eq!(Some(x.len()), n.checked_mul(matrix.cols()), "activations are [n][cols]");
        assert_eq!(Some(out.len()), n.checked_mul(matrix.rows()), "outputs are [n][rows]");
        if x.is_empty() {
            return out.fill(0.0);
        }
        if !self.spans.last().is_some_and(|span| span.n == n && std::ptr::eq(span.values(), x)) {
            self.spans.push(Span::new(x, n));
        }
        let span = self.spans.len() - 1;
        let out = out.as_mut_ptr();
        self.jobs.push(Job { matrix, out, span, first_unit: 0, unit: 1, starts: std::ptr::null() });
    }

    /// Computes them.
    pub fn compute(self, cpu: &Cpu) {
        let Self { scratch, mut jobs, mut spans } = self;
        if let Some(inputs) = cpu.inputs() {
            let marks = jobs.iter().filter_map(|job| Some((job.matrix().mark()?, spans[job.span].values())));
            marks.for_each(|(mark, x)| inputs.add(mark, x));
        }
        let (isa, threads) = (cpu.isa(), cpu.pool().threads());
        for job in &jobs {
            spans[job.span].read_by(job.matrix().kind(), isa);
        }
        scratch.factors(jobs.iter().filter_map(|job| job.factor(isa, &spans[job.span])));
        scratch.prepare(&mut spans);
        arrange(cpu, &spans, scratch.all_starts());

        let bytes = divide(&mut jobs, &spans, scratch, isa, threads);
        scratch.workers(threads, bytes);
        let units = jobs.last().map_or(0, |job| job.first_unit + units(job));
        let panel = jobs.iter().map(|job| job.matrix().panel_bytes()).max().unwrap_or(1);
        let least =
            if spans.iter().any(|span| span.many(isa)) { 1 } else { (TAKEN_BYTES / panel.max(1)).max(1) };
        let read = |job: &Job| {
            let matrix = job.matrix();
            spans[job.span].n * matrix.panels() * matrix.panel_bytes()
        };
        let serial = jobs.iter().map(read).sum::<usize>() <= SERIAL_BYTES;
        let call = Call { isa, jobs: &jobs, spans: &spans };
        let work = Work(&mut scratch.work);
        let work_start = SendPointer(work.0.as_mut_ptr());
        let next = AtomicUsize::new(0);
        let run = |worker: usize, workers: usize| {
            let base = &work_start;
            loop {
                let units = take(&next, units, least, workers);
                if units.is_empty() {
                    break;
                }
                // SAFETY: each worker has a buffer of its own, and the units it takes are taken by no other worker.
                unsafe { call.work(units, (*base.0.add(worker)).reserve(0)) };
            }
        };
        match serial {
            true => run(0, 1),
            false => cpu.pool().run(&run),
        }
        jobs.clear();
        spans.clear();
        (scratch.jobs, scratch.spans) = (jobs, spans);
    }
}

/// Rounds the activations into groups, and copies them for the float formats.
fn arrange(cpu: &Cpu, spans: &[Span], starts: Starts) {
    let isa = cpu.isa();
    let arrange = |worker: usize, workers: usize| {
        for span in spans {
            let Span { n, view, floats, .. } = *span;
            let x = span.values();
            for (group, blocks) in share(view.groups.count(), view.cols / BLOCK, worker, workers) {
                // SAFETY: the instruction set is available (`Cpu::new`), the rows lie in `x`, and these blocks are this worker's.
                unsafe { isa.dispatch(Quantize { view, starts, x: x.as_ptr(), group, blocks }) };
            }
            let Some((groups, out)) = floats else { continue };
            let cols = span.cols();
            for (group, columns) in share(groups.count(), cols, worker, workers) {
                let (first, places) = (group * groups.size, groups.places(group));
                for k in columns {
                    for place in 0..places {
                        let row = first + place;
                        let value = if row < n { x[row * cols + k] } else { 0.0 };
                        // SAFETY: `out` has room for every place of every group; these columns are this worker's.
                        unsafe { *out.add(first * cols + k * places + place) = value };
                    }
                }
            }
        }
    };
    if spans.iter().map(|span| span.values().len()).sum::<usize>() <= SERIAL {
        arrange(0, 1);
    } else {
        cpu.pool().run(&arrange);
    }
}

/// What a worker does of `groups` that are `len` long each: whole groups, or, where they are few, its part of each. Parts are
/// runs, so that two workers hardly ever write to the same cache line.
fn share(
    groups: usize,
    len: usize,
    worker: usize,
    workers: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let parts = if groups < 4 * workers { workers } else { 1 };
    (worker..groups * parts).step_by(workers).map(move |piece| {
        let (group, part) = (piece / parts, piece % parts);
        (group, len * part / parts..len * (part + 1) / parts)
    })
}

/// Takes the next units, `least` if there are so many: a share of those that are left, so that most of a worker's panels follow
/// each other in memory and all workers end together. Empty when none are left.
fn take(next: &AtomicUsize, units: usize, least: usize, workers: usize) -> Range<usize> {
    let mut first = next.load(Ordering::Relaxed);
    loop {
        let left = units.saturating_sub(first);
        let count = (left / (2 * workers)).max(least).min(left);
        match next.compare_exchange_weak(first, first + count, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return first..first + count,
            Err(now) => first = now,
        }
    }
}

struct SendPointer(*mut super::activations::Buffer);
// SAFETY: each worker dereferences its own element only.
unsafe impl Sync for SendPointer {}

/// Units of work of a job.
fn units(job: &Job) -> usize {
    job.matrix().panels().div_ceil(job.unit)
}

/// Divides the jobs of a call into units; returns the scratch memory a worker needs.
fn divide(jobs: &mut [Job], spans: &[Span], scratch: &mut Activations, isa: Isa, workers: usize) -> usize {
    let (mut first_unit, mut most) = (0, 0);
    for job in jobs {
        let span = &spans[job.span];
        let matrix = job.matrix();
        let fair = (matrix.panels() / (8 * workers)).clamp(1, 8);
        let (unit, bytes) = match matrix.kind() {
            Kind::Integer(panels) if span.many(isa) => {
                let panel = matrix.cols() / BLOCK * panels.stride;
                let unit = fair.min((UNIT_BYTES / panel).max(1));
                (unit, unit * panel + row_block(matrix.cols(), span.n) * ROWS * 4)
            }
            Kind::Integer(_) => (1, 0),
            Kind::Float(_) => (fair.next_multiple_of(2), 8 * ROWS * 4 * 8),
        };
        most = most.max(bytes + 64);
        (job.first_unit, job.unit) = (first_unit, unit);
        job.starts =
            job.factor(isa, span).map_or(std::ptr::null(), |factor| scratch.starts(factor).cast_const());
        first_unit += units(job);
    }
    most
}

/// Rows of activations that pass over a unit together: a multiple of every group size.
fn row_block(cols: usize, n: usize) -> usize {
    let bytes_per_row = cols + cols / BLOCK * 16;
    (ROWS_BYTES / bytes_per_row / 16 * 16).max(16).min(n.next_multiple_of(16))
}

impl Call<'_> {
    /// Computes units.
    ///
    /// # Safety
    /// `scratch` is this worker's own, as large as [`fill_jobs`] asked for; the pointers of the call are valid.
    unsafe fn work(&self, units: Range<usize>, scratch: *mut u8) {
        for unit in units {
            let index = self.jobs.partition_point(|job| job.first_unit <= unit) - 1;
            let job = &self.jobs[index];
            let matrix = job.matrix();
            let first = (unit - job.first_unit) * job.unit;
            let last = (first + job.unit).min(matrix.panels());
            // SAFETY: the contract is the caller's; panels first..last are this worker's.
            unsafe {
                match matrix.kind() {
                    Kind::Integer(panels) if self.spans[job.span].many(self.isa) => {
                        self.many_rows(job, matrix, panels, first, last, scratch);
                    }
                    Kind::Integer(panels) => self.few_rows(job, matrix, panels, first, last),
                    Kind::Float(float) => self.floats(job, matrix, float, first, last, scratch),
                }
            }
        }
    }

    /// The tile of group `g` from 32-block `from` on.
    unsafe fn tile(&self, job: &Job, g: usize, from: usize, acc: *mut f32) -> Tile {
        let View { groups, first, cols, q, d, sums } = self.spans[job.span].view;
        let (blocks, m) = (cols / BLOCK, groups.places(g));
        let place = first + g * groups.size * blocks + from * m;
        // SAFETY: the activations have room for every place and block of every group.
        unsafe {
            Tile {
                codes: std::ptr::null(),
                scales: std::ptr::null(),
                blocks: blocks - from,
                q: q.add(place * BLOCK),
                d: d.add(place),
                sums: sums.add(place * 3),
                starts: job.starts.add(place * 3),
                acc,
                first: from == 0,
                lead: self.isa.lead_bytes(),
            }
        }
    }

    /// One group of activations: panels are decoded on the way.
    unsafe fn few_rows(&self, job: &Job, matrix: &Matrix, panels: &Panels, first: usize, last: usize) {
        let mut acc = [0.0_f32; 8 * ROWS];
        let groups = self.spans[job.span].view.groups;
        for panel in first..last {
            // SAFETY: a tile of all blocks of the panel and the only group.
            unsafe {
                let mut tile = self.tile(job, 0, 0, acc.as_mut_ptr());
                (tile.codes, tile.scales) = matrix.panel(panel);
                (panels.packed)(self.isa, &tile, groups.places(0));
                store(&acc, job.out, matrix, panel, (0, groups.n));
            }
        }
    }

    /// Several groups: panels are unpacked once.
    unsafe fn many_rows(
        &self,
        job: &Job,
        matrix: &Matrix,
        panels: &Panels,
        first: usize,
        last: usize,
        scratch: *mut u8,
    ) {
        let span = &self.spans[job.span];
        let (View { groups, cols, .. }, plain) = (span.view, span.plain(self.isa));
        let blocks = cols / BLOCK;
        let panel_bytes = blocks * panels.stride;
        let per_block = row_block(cols, groups.n) / groups.size;
        // SAFETY: plain bytes are only chosen when tiles are available.
        let _tiles = plain.then(|| unsafe { amx::Tiles::configure(panels.halves) });
        // SAFETY: the scratch memory holds a unit of panels and the accumulators of a block of rows; tiles stay inside
        // the blocks of the panel and of the activations.
        unsafe {
            let acc = scratch.add(job.unit * panel_bytes).cast::<f32>();
            for panel in first..last {
                let (codes, scales) = matrix.panel(panel);
                let out = scratch.add((panel - first) * panel_bytes);
                (panels.unpack)(self.isa, codes, scales, blocks, out, plain);
            }
            for start in (0..groups.count()).step_by(per_block) {
                let end = (start + per_block).min(groups.count());
                for panel in first..last {
                    let unpacked = scratch.add((panel - first) * panel_bytes).cast_const();
                    let group_acc = |g: usize| acc.add((g - start) * groups.size * ROWS);
                    for from in (0..blocks).step_by(SLICE) {
                        for g in start..end {
                            let mut tile = self.tile(job, g, from, group_acc(g));
                            tile.blocks = SLICE.min(blocks - from);
                            tile.codes = unpacked.add(from * panels.stride);
                            tile.scales = tile.codes.add(512);
                            self.run_unpacked(panels, &tile, (groups.places(g), plain));
                        }
                    }
                    for g in start..end {
                        let rows = groups.rows(g);
                        let acc = std::slice::from_raw_parts(group_acc(g), rows * ROWS);
                        store(acc, job.out, matrix, panel, (g * groups.size, rows));
                    }
                }
            }
        }
    }

    /// Runs the kernel of an unpacked panel for a group of `m` places.
    unsafe fn run_unpacked(&self, panels: &Panels, tile: &Tile, (m, plain): (usize, bool)) {
        // SAFETY: the contract is the caller's.
        unsafe {
            if m == amx::ROWS {
                (panels.amx)(tile);
            } else if plain {
                (panels.plain)(self.isa, tile, m);
            } else {
                (panels.unpacked)(self.isa, tile, m);
            }
        }
    }

    /// The float formats, two panels at a time over all groups.
    unsafe fn floats(
        &self,
        job: &Job,
        matrix: &Matrix,
        float: &FloatKind,
        first: usize,
        last: usize,
        scratch: *mut u8,
    ) {
        let Some((groups, x)) = self.spans[job.span].floats else { return };
        let cols = matrix.cols();
        let acc = scratch.cast::<f32>();
        let step = if groups.count() > 1 { 2 } else { 8 };
        for panel in (first..last).step_by(step) {
            let count = step.min(last - panel);
            for g in 0..groups.count() {
                let m = groups.places(g);
                // SAFETY: the panels are inside the matrix, the group inside the activations, 8 panels of 8 rows inside the scratch memory.
                unsafe {
                    let tile = FloatTile {
                        weights: matrix.panel(panel).0,
                        panel_bytes: matrix.panel_bytes(),
                        panels: count,
                        cols,
                        x: x.add(g * groups.size * cols),
                        acc,
                    };
                    (float.tile)(self.isa, &tile, m);
                    for p in 0..count {
                        let acc = std::slice::from_raw_parts(acc.add(p * m * ROWS), m * ROWS);
                        store(acc, job.out, matrix, panel + p, (g * groups.size, groups.rows(g)));
                    }
                }
            }
        }
    }
}

/// Puts `count` rows of 16 sums to their places, columns `16 panel..` of rows `first..`, times the factor of the matrix.
///
/// # Safety
/// `out` is `[first + count ..][matrix.rows()]`, and no other thread touches these columns.
unsafe fn store(acc: &[f32], out: *mut f32, matrix: &Matrix, panel: usize, (first, count): (usize, usize)) {
    let (rows, factor) = (matrix.rows(), matrix.factor());
    let width = ROWS.min(rows - panel * ROWS);
    for (r, acc) in acc.as_chunks::<ROWS>().0.iter().take(count).enumerate() {
        let acc = acc.map(|sum| sum * factor);
        // SAFETY: the contract is the caller's.
        unsafe {
            let to = out.add((first + r) * rows + panel * ROWS);
            if width == ROWS {
                to.cast::<[f32; ROWS]>().write_unaligned(acc);
            } else {
                std::ptr::copy_nonoverlapping(acc.as_ptr(), to, width);
            }
        }
    }
}
