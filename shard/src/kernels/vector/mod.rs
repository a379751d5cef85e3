//! The small kernels between matrix products: norms, activations, residuals, rope, softmax.
//!
//! They are methods of [`Cpu`] on row-major f32 slices. Each is written once over [`Simd`] and gives the same bits on every
//! instruction set and thread count:
//! - element-wise operations have one formula per element, given with the method;
//! - reductions have 16 virtual lanes: element `i` of the row is added to lane `i mod 16`, ascending, with fused
//!   multiply-add where there is a product; a missing element leaves its lane as it is; the lanes are added 8, 4, 2, 1 apart.
//!   A reduction never crosses a thread.
//!
//! Rows (or ranges of elements) are divided among the threads only when there is enough to do: see `PARALLEL`.
//!
//! Limits: inputs are finite (they are checked where they enter the engine). Shapes that do not fit are a bug of the caller
//! and panic.

use std::ops::Range;

use super::{
    Cpu, Isa, Kernel, math,
    simd::{LANES, Simd},
};
use crate::fma::Fma;

#[cfg(test)]
pub(super) mod tests;

/// Fewest elements for which waking the other threads pays: about 16 KiB of f32 take a core as long as starting a
/// run takes (1 to 2 microseconds), so smaller calls would become slower.
const PARALLEL: usize = 16_384;

/// Which elements of a head are rotated together by [`Cpu::rope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// (2i, 2i + 1), "norm" or interleaved.
    Adjacent,
    /// (i, i + rot_dims/2), "neox" or split half.
    Halves,
}

/// A pointer that threads may share because they touch disjoint parts of what it points to.
pub(super) struct Shared<T>(pub(super) *mut T);

// SAFETY: a pointer by itself does nothing; every use states why its part is not touched by another thread.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The elements of `range` for writing.
    ///
    /// # Safety
    /// The range lies inside the slice the pointer came from, which outlives the result, and no other code touches it.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the contract")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

// ---- parts of vectors ----------------------------------------------------------------------------------------------

/// Loads `from[at..]`, at most 16 values, the missing ones being `fill`.
///
/// # Safety
/// The instruction set is available; `at < from.len()`.
#[inline(always)]
pub(super) unsafe fn load_part<S: Simd>(from: &[f32], at: usize, fill: f32) -> S::F {
    // SAFETY: a full vector is loaded only where 16 values follow; otherwise from the local array.
    unsafe {
        if at + LANES <= from.len() {
            return S::load(from.as_ptr().add(at));
        }
        let mut part = [fill; LANES];
        part[..from.len() - at].copy_from_slice(&from[at..]);
        S::load(part.as_ptr())
    }
}

/// Stores to `to[at..]` as many of the 16 values as fit.
///
/// # Safety
/// The instruction set is available; `at < to.len()`.
#[inline(always)]
pub(super) unsafe fn store_part<S: Simd>(to: &mut [f32], at: usize, value: S::F) {
    // SAFETY: a full vector is stored only where 16 values follow; otherwise to the local array.
    unsafe {
        if at + LANES <= to.len() {
            return S::store(to.as_mut_ptr().add(at), value);
        }
        let mut part = [0.0; LANES];
        S::store(part.as_mut_ptr(), value);
        let len = to.len() - at;
        to[at..].copy_from_slice(&part[..len]);
    }
}

// ---- element-wise kernels --------------------------------------------------------------------------------------------

/// One formula per element: `x = f(x, y)`.
trait Formula: Copy + Sync {
    /// # Safety
    /// The instruction set of `S` is available.
    unsafe fn lanes<S: Simd>(self, x: S::F, y: S::F) -> S::F;
}

/// Declares formulas: `Name(fields) |x, y| expression in terms of S`.
macro_rules! formulas {
    ($($name:ident $(($field:ident))? = |$x:ident, $y:ident| $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name { $($field: f32)? }
        impl Formula for $name {
            #[inline(always)]
            #[allow(unused_variables)]
            unsafe fn lanes<S: Simd>(self, $x: S::F, $y: S::F) -> S::F {
                $(let $field = self.$field;)?
                // SAFETY: the caller promises the instruction set.
                unsafe { $body }
            }
        }
    )*};
}

formulas! {
    Add = |x, y| S::add(x, y);
    Scale(factor) = |x, y| S::mul(x, S::splat(factor));
    AddScaled(factor) = |x, y| S::fma(y, S::splat(factor), x);
    SiluMul = |x, y| S::mul(math::silu_lanes::<S>(x), y);
    GeluMul = |x, y| S::mul(math::gelu_lanes::<S>(x), y);
    Gelu = |x, y| math::gelu_lanes::<S>(x);
    ClampedSwiglu = |x, y| math::clamped_swiglu_lanes::<S>(x, y);
    ReluSquaredMul = |x, y| S::mul(math::relu_squared_lanes::<S>(x), y);
    ReluSquared = |x, y| math::relu_squared_lanes::<S>(x);
    Silu = |x, y| math::silu_lanes::<S>(x);
    Sigmoid = |x, y| math::sigmoid_lanes::<S>(x);
    SigmoidMul = |x, y| S::mul(x, math::sigmoid_lanes::<S>(y));
    Softcap(cap) = |x, y| S::mul(math::tanh_lanes::<S>(S::div(x, S::splat(cap))), S::splat(cap));
}

/// Applies a formula to a slice; without `y` the second argument is 0.
struct Map<'a, M> {
    formula: M,
    x: &'a mut [f32],
    y: Option<&'a [f32]>,
}

impl<M: Formula> Kernel for Map<'_, M> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: positions are inside x, and y is as long as x (checked by the callers).
        unsafe {
            let mut at = 0;
            while at < self.x.len() {
                let x = load_part::<S>(self.x, at, 0.0);
                let y = match self.y {
                    Some(y) => load_part::<S>(y, at, 0.0),
                    None => S::splat(0.0),
                };
                store_part::<S>(self.x, at, self.formula.lanes::<S>(x, y));
                at += LANES;
            }
        }
    }
}

// ---- row kernels -----------------------------------------------------------------------------------------------------

/// Sum over the row of x (or of (x - mean)^2 when `square`), 16 virtual lanes.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
pub(super) unsafe fn sum_row<S: Simd>(row: &[f32], mean: f32, square: bool) -> f32 {
    // SAFETY: positions are inside the row. A missing element is the mean (or 0): it adds +0, and a lane that started
    // at +0 keeps its bits.
    unsafe {
        let mut sums = S::splat(0.0);
        let mut at = 0;
        while at < row.len() {
            let x = load_part::<S>(row, at, mean);
            if square {
                let d = S::sub(x, S::splat(mean));
                sums = S::fma(d, d, sums);
            } else {
                sums = S::add(sums, x);
            }
            at += LANES;
        }
        S::sum_tree(sums)
    }
}

/// Root-mean-square or layer norm of rows of `out.len() / rows` columns.
struct Norm<'a> {
    /// None: in place.
    x: Option<&'a [f32]>,
    out: &'a mut [f32],
    cols: usize,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    /// Subtract the mean first.
    center: bool,
}

impl Kernel for Norm<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (index, out) in self.out.chunks_exact_mut(self.cols).enumerate() {
            if let Some(x) = self.x {
                out.copy_from_slice(&x[index * self.cols..][..self.cols]);
            }
            let cols = self.cols as f32;
            // SAFETY: positions are inside the row; weight and bias have a row's length (checked by the callers).
            unsafe {
                let mean = if self.center { sum_row::<S>(out, 0.0, false) / cols } else { 0.0 };
                let variance = sum_row::<S>(out, mean, true) / cols;
                let inverse = S::splat(1.0 / (variance + self.eps).sqrt());
                let mut at = 0;
                while at < self.cols {
                    let x = load_part::<S>(out, at, 0.0);
                    let x = if self.center { S::sub(x, S::splat(mean)) } else { x };
                    let mut y = S::mul(x, inverse);
                    match (self.weight, self.bias) {
                        (Some(w), Some(b)) => {
                            y = S::fma(y, load_part::<S>(w, at, 0.0), load_part::<S>(b, at, 0.0));
                        }
                        (Some(w), None) => y = S::mul(y, load_part::<S>(w, at, 0.0)),
                        (None, Some(b)) => y = S::add(y, load_part::<S>(b, at, 0.0)),
                        (None, None) => {}
                    }
                    store_part::<S>(out, at, y);
                    at += LANES;
                }
            }
        }
    }
}

/// What rows of `cols` have above a cutoff; see [`Cpu::keep_above`].
struct KeepAbove<'a> {
    x: &'a mut [f32],
    cols: usize,
    deviations: f32,
}

impl Kernel for KeepAbove<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let cols = self.cols as f32;
        for row in self.x.chunks_exact_mut(self.cols) {
            // SAFETY: positions are inside the row.
            unsafe {
                let mean = sum_row::<S>(row, 0.0, false) / cols;
                let deviation = (sum_row::<S>(row, mean, true) / cols).sqrt();
                let cutoff = S::splat(mean + deviation * self.deviations);
                let mut at = 0;
                while at < row.len() {
                    let x = S::sub(load_part::<S>(row, at, 0.0), cutoff);
                    store_part::<S>(row, at, S::max(x, S::splat(0.0)));
                    at += LANES;
                }
            }
        }
    }
}

/// Softmax of one row.
struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let x = self.0;
        // SAFETY: positions are inside x. Missing elements are -infinity: they never are the maximum and their exp is +0.
        unsafe {
            let mut largest = S::splat(f32::NEG_INFINITY);
            let mut at = 0;
            while at < x.len() {
                largest = S::max(largest, load_part::<S>(x, at, f32::NEG_INFINITY));
                at += LANES;
            }
            let largest = S::splat(S::max_lane(largest));
            let mut sums = S::splat(0.0);
            at = 0;
            while at < x.len() {
                let p = math::exp_lanes::<S>(S::sub(load_part::<S>(x, at, f32::NEG_INFINITY), largest));
                sums = S::add(sums, p);
                store_part::<S>(x, at, p);
                at += LANES;
            }
            let sum = S::splat(S::sum_tree(sums));
            at = 0;
            while at < x.len() {
                let p = load_part::<S>(x, at, 0.0);
                store_part::<S>(x, at, S::div(p, sum));
                at += LANES;
            }
        }
    }
}

/// Weights of logits; see [`weigh`].
struct Weigh<'a> {
    x: &'a mut [f32],
    largest: f32,
    temperature: f32,
}

impl Kernel for Weigh<'_> {
    type Output = f64;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let mut sums = [0.0; LANES];
        // SAFETY: positions are inside x, and the lanes are as many as a vector has. Missing elements are -infinity: their exp is +0.
        unsafe {
            let (largest, temperature) = (S::splat(self.largest), S::splat(self.temperature));
            let (mut lanes, mut at) = ([0.0; LANES], 0);
            while at < self.x.len() {
                let x = S::sub(load_part::<S>(self.x, at, f32::NEG_INFINITY), largest);
                let weights = math::exp_lanes::<S>(S::div(x, temperature));
                store_part::<S>(self.x, at, weights);
                store_part::<S>(&mut lanes, 0, weights);
                sums.iter_mut().zip(lanes).for_each(|(sum, weight)| *sum += f64::from(weight));
                at += LANES;
            }
        }
        sums.iter().sum()
    }
}

/// Weights of logits in place, `e^((x - largest) / temperature)`, and their sum: weight `i` is added in f64 to lane `i mod 16`,
/// ascending, then the lanes one after the other. The bits are the same on every instruction set.
pub fn weigh(x: &mut [f32], largest: f32, temperature: f32) -> f64 {
    // SAFETY: the instruction set was detected.
    unsafe { Isa::detect().dispatch(Weigh { x, largest, temperature }) }
}

/// Rotates pairs; plain loops, which the compiler turns into the instruction set's vectors. Element-wise, so the bits do
/// not depend on how it does.
struct Rope<'a> {
    x: &'a mut [f32],
    row_stride: usize,
    heads: usize,
    head_dim: usize,
    rot_dims: usize,
    pairing: Pairing,
    table: &'a [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if self.rot_dims == 0 {
            return;
        }
        for (row, angles) in self.x.chunks_mut(self.row_stride).zip(self.table.chunks_exact(self.rot_dims)) {
            for head in row[..self.heads * self.head_dim].chunks_exact_mut(self.head_dim) {
                let head = &mut head[..self.rot_dims];
                match self.pairing {
                    Pairing::Adjacent => {
                        for (pair, angle) in head.chunks_exact_mut(2).zip(angles.chunks_exact(2)) {
                            let (a, b, cos, sin) = (pair[0], pair[1], angle[0], angle[1]);
                            pair[0] = a.fma(cos, -(b * sin));
                            pair[1] = a.fma(sin, b * cos);
                        }
                    }
                    Pairing::Halves => {
                        let (low, high) = head.split_at_mut(self.rot_dims / 2);
                        for ((low, high), angle) in low.iter_mut().zip(high).zip(angles.chunks_exact(2)) {
                            let (a, b, cos, sin) = (*low, *high, angle[0], angle[1]);
                            *low = a.fma(cos, -(b * sin));
                            *high = a.fma(sin, b * cos);
                        }
                    }
                }
            }
        }
    }
}

// ---- the methods -----------------------------------------------------------------------------------------------------

impl Cpu {
    /// Divides `x`, made of rows of `cols`, among the threads: `work(rows, their elements)`.
    pub(super) fn divide(&self, x: &mut [f32], cols: usize, work: impl Fn(Range<usize>, &mut [f32]) + Sync) {
        let rows = x.len() / cols;
        if x.len() < PARALLEL || rows < 2 || self.pool().threads() == 1 {
            return work(0..rows, x);
        }
        let shared = Shared(x.as_mut_ptr());
        self.pool().run(&|worker, workers| {
            let range = rows * worker / workers..rows * (worker + 1) / workers;
            // SAFETY: the ranges of the workers are disjoint and inside x, which outlives the run.
            let part = unsafe { shared.part(range.start * cols..range.end * cols) };
            work(range, part);
        });
    }

    /// Element-wise formula over `x` and an equally long `y`.
    fn map(&self, formula: impl Formula, x: &mut [f32], y: Option<&[f32]>) {
        if let Some(y) = y {
            assert_eq!(x.len(), y.len(), "operands of different lengths");
        }
        // Whole vectors per thread; the rest, less than one vector, is done by this one.
        let whole = x.len() / LANES * LANES;
        let (main, rest) = x.split_at_mut(whole);
        if !main.is_empty() {
            self.divide(main, LANES, |range, x| {
                let y = y.map(|y| &y[range.start * LANES..range.end * LANES]);
                self.run(Map { formula, x, y });
            });
        }
        if !rest.is_empty() {
            self.run(Map { formula, x: rest, y: y.map(|y| &y[whole..]) });
        }
    }

    fn norm(&self, norm: Norm<'_>) {
        let Norm { x, out, cols, weight, bias, eps, center } = norm;
        assert!(cols > 0 && out.len().is_multiple_of(cols), "{} elements are not rows of {cols}", out.len());
        assert!(x.is_none_or(|x| x.len() == out.len()), "operands of different lengths");
        for part in [weight, bias].into_iter().flatten() {
            assert_eq!(part.len(), cols, "a norm's weight or bias has another length than the row");
        }
        self.divide(out, cols, |rows, out| {
            let x = x.map(|x| &x[rows.start * cols..rows.end * cols]);
            self.run(Norm { x, out, cols, weight, bias, eps, center });
        });
    }

    /// Root-mean-square norm of each row of `cols`: `out = (x * inv) * weight` with `inv = 1 / sqrt(ss / cols + eps)`
    /// and `ss` the sum of `x * x` in 16 virtual lanes.
    pub fn rms_norm(&self, x: &[f32], cols: usize, weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        self.norm(Norm { x: Some(x), out, cols, weight, bias: None, eps, center: false });
    }

    /// [`Cpu::rms_norm`] with the result in `x`.
    pub fn rms_norm_in_place(&self, x: &mut [f32], cols: usize, weight: Option<&[f32]>, eps: f32) {
        self.norm(Norm { x: None, out: x, cols, weight, bias: None, eps, center: false });
    }

    /// Layer norm of each row of `cols`: `mean = sum(x) / cols`, `d = x - mean`, `inv = 1 / sqrt(sum(d * d) / cols + eps)`,
    /// `out = fma(d * inv, weight, bias)`, or `(d * inv) * weight` without bias. Sums in 16 virtual lanes.
    pub fn layer_norm(
        &self,
        x: &[f32],
        cols: usize,
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
        eps: f32,
        out: &mut [f32],
    ) {
        self.norm(Norm { x: Some(x), out, cols, weight, bias, eps, center: true });
    }

    /// `x = max(x - cutoff, 0)` for each row of `cols`, with `cutoff = mean + sqrt(sum((x - mean)^2) / cols) * deviations`. Sums in 16
    /// virtual lanes.
    pub fn keep_above(&self, x: &mut [f32], cols: usize, deviations: f32) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} elements are not rows of {cols}", x.len());
        self.divide(x, cols, |_, x| self.run(KeepAbove { x, cols, deviations }));
    }

    /// `x = x + y` (residual).
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        self.map(Add {}, x, Some(y));
    }

    /// `x = x + bias` for each row of `bias.len()`.
    pub fn add_bias(&self, x: &mut [f32], bias: &[f32]) {
        let cols = bias.len();
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} elements are not rows of {cols}", x.len());
        self.divide(x, cols, |_, x| {
            for x in x.chunks_exact_mut(cols) {
                self.run(Map { formula: Add {}, x, y: Some(bias) });
            }
        });
    }

    /// `x = x * factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        self.map(Scale { factor }, x, None);
    }

    /// `x = fma(y, factor, x)` (an expert's share).
    pub fn add_scaled(&self, x: &mut [f32], y: &[f32], factor: f32) {
        self.map(AddScaled { factor }, x, Some(y));
    }

    /// `gate = silu(gate) * up`; see [`math::silu_f32`].
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.map(SiluMul {}, gate, Some(up));
    }

    /// `gate = gelu(gate) * up`; see [`math::gelu_f32`].
    pub fn gelu_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.map(GeluMul {}, gate, Some(up));
    }

    /// `x = gelu(x)`, tanh form; see [`math::gelu_f32`].
    pub fn gelu(&self, x: &mut [f32]) {
        self.map(Gelu {}, x, None);
    }

    /// The clamped SwiGLU of gpt-oss into `gate`; see [`math::clamped_swiglu_lanes`].
    pub fn clamped_swiglu(&self, gate: &mut [f32], up: &[f32]) {
        self.map(ClampedSwiglu {}, gate, Some(up));
    }

    /// `gate = max(gate, 0)^2 * up`.
    pub fn relu_squared_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.map(ReluSquaredMul {}, gate, Some(up));
    }

    /// `x = max(x, 0)^2`.
    pub fn relu_squared(&self, x: &mut [f32]) {
        self.map(ReluSquared {}, x, None);
    }

    /// `x = silu(x)`; see [`math::silu_f32`].
    pub fn silu(&self, x: &mut [f32]) {
        self.map(Silu {}, x, None);
    }

    /// `x = 1 / (1 + e^-x)`; see [`math::sigmoid_f32`].
    pub fn sigmoid(&self, x: &mut [f32]) {
        self.map(Sigmoid {}, x, None);
    }

    /// `x = x * sigmoid(gate)`; see [`math::sigmoid_f32`].
    pub fn mul_sigmoid(&self, x: &mut [f32], gate: &[f32]) {
        self.map(SigmoidMul {}, x, Some(gate));
    }

    /// `x = tanh(x / cap) * cap`; see [`math::tanh_f32`].
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        self.map(Softcap { cap }, x, None);
    }

    /// Softmax of one row: `m = max(x)`, `p = exp(x - m)`, `x = p / sum(p)`, the sum in 16 virtual lanes.
    pub fn softmax(&self, x: &mut [f32]) {
        if !x.is_empty() {
            self.run(Softmax(x));
        }
    }

    /// Rotary position embedding in place on the first `rot_dims` of each head.
    ///
    /// Rows are `row_stride` apart and start with `heads * head_dim` values; `table` has a row of `rot_dims / 2` pairs (cos,
    /// sin) per row of `x`. A pair (a, b) becomes `(fma(a, cos, -(b * sin)), fma(a, sin, b * cos))`.
    #[expect(clippy::too_many_arguments, reason = "all of them are the shape of one operation")]
    pub fn rope(
        &self,
        x: &mut [f32],
        row_stride: usize,
        heads: usize,
        head_dim: usize,
        rot_dims: usize,
        pairing: Pairing,
        table: &[f32],
    ) {
        assert!(heads * head_dim <= row_stride && head_dim > 0, "heads do not fit into a row");
        assert!(rot_dims <= head_dim && rot_dims.is_multiple_of(2), "cannot rotate {rot_dims} of {head_dim}");
        assert!(x.len().is_multiple_of(row_stride), "{} elements are not rows of {row_stride}", x.len());
        assert_eq!(table.len(), x.len() / row_stride * rot_dims, "the rope table has another number of rows");
        self.divide(x, row_stride, |rows, x| {
            let table = &table[rows.start * rot_dims..rows.end * rot_dims];
            self.run(Rope { x, row_stride, heads, head_dim, rot_dims, pairing, table });
        });
    }
}
