//! The state space of Mamba2: a recurrence whose state fades and takes up a product of two short vectors at every row (Dao and
//! Gu, "Transformers are SSMs", arXiv 2405.21060, section 7).
//!
//! # What is computed, in this order (profile d1)
//! Of a row, `x | b | c` as projected first go through a causal convolution, channel by channel over the row and the ones
//! before it: `s = fma(x_j, w_j, s)` from the bias, or from 0 without one, oldest row first, then `silu(s)`.
//!
//! Head `h` has a state `S`, one row of `head_dim` values for each of the `state` values of `b` and `c`; heads of one group read
//! the same `b` and `c`. With the step `t = softplus(dt + bias)` of the row and `g = exp(a * t)`, in ascending order of `i`:
//! 1. `u = x * t`;
//! 2. `S_i = fma(u, b_i, S_i * g)`, and `y = fma(S_i, c_i, y)` from 0;
//! 3. `y = fma(x, d, y)`.
//!
//! The result is `y * silu(z)`, and where there is a norm `((y * silu(z)) * (1 / sqrt(ss / n + eps))) * weight`, `ss` the sum of
//! squares of the `n` values of a group in 16 virtual lanes.
//!
//! Lanes are channels and values of heads, so nothing crosses them but `ss`. Rows are computed one after the other, always:
//! products of chunks would be other sums. So the bits do not depend on passes, threads or vector width.
//!
//! # How it is fast
//! The unit of work is one head; a block of 64 of its columns stays in the first cache for all rows of a pass.
//!
//! Limits: heads are whole groups of 16 values; one head is one thread's.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{
    ConvJob, Cpu, Kernel, math,
    simd::{LANES, Simd},
    vector::{Shared, load_part, store_part, sum_row},
};

/// Vectors of columns that are computed together.
const COLUMNS: usize = 4;
/// Fewest multiply-adds for which waking the threads pays.
const PARALLEL: usize = 200_000;

/// The sizes of a Mamba2 layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2Shape {
    /// Heads; each has a state.
    pub heads: usize,
    /// Values of a head, a multiple of [`Mamba2Shape::LANES`].
    pub head_dim: usize,
    /// Rows of a head's state.
    pub state: usize,
    /// How many `b` and `c` a row has; divides the heads, consecutive ones share.
    pub groups: usize,
    /// Rows that the convolution sees, the current one included.
    pub kernel: usize,
}

impl Mamba2Shape {
    /// Values of a vector.
    pub const LANES: usize = LANES;

    /// Values of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of x, b and c of a row.
    pub fn channels(&self) -> usize {
        self.width() + 2 * self.groups * self.state
    }

    /// Values of gate, x, b, c and steps of a row.
    pub fn projected(&self) -> usize {
        self.width() + self.channels() + self.heads
    }

    /// Values of the states of all heads.
    pub fn matrices_len(&self) -> usize {
        self.state * self.width()
    }

    /// Values that a session remembers: the states of all heads, and the rows that the convolution still sees.
    pub fn state_len(&self) -> usize {
        self.matrices_len() + self.columns_len()
    }

    fn columns_len(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Writes to `columns` the last rows that the convolution sees after the first `rows` of `projected`, oldest first;
    /// `before` are those it saw before them.
    pub fn keep_columns(&self, before: &[f32], projected: &[f32], rows: usize, columns: &mut [f32]) {
        let channels = self.channels();
        for (index, to) in columns.chunks_exact_mut(channels).enumerate() {
            to.copy_from_slice(ConvJob::input(channels, (before, projected), rows + index));
        }
    }
}

/// The rows of one session in front of the recurrence.
pub struct Mamba2Inputs<'a> {
    /// The sizes.
    pub shape: Mamba2Shape,
    /// x, b and c of every row as projected, `[n][channels]`.
    pub projected: &'a [f32],
    /// The `kernel - 1` rows before them, oldest first.
    pub before: &'a [f32],
    /// The convolution, `[kernel][channels]`, oldest first.
    pub taps: &'a [f32],
    /// What its sums begin with, `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// x, b and c as the recurrence reads them, `[n][channels]`.
    pub out: &'a mut [f32],
}

/// Consecutive rows of one session.
pub struct Mamba2Job<'a> {
    /// The sizes.
    pub shape: Mamba2Shape,
    /// What [`Mamba2Inputs::compute`] gave, `[n][channels]`.
    pub inputs: &'a [f32],
    /// The factor on the state, `[n][heads]`; see [`steps`].
    pub decay: &'a [f32],
    /// The factor on what is taken up, `[n][heads]`.
    pub steps: &'a [f32],
    /// The factor on what goes past the state, `[heads]`.
    pub skip: &'a [f32],
    /// The state before the first row if `state` does not hold it, [`Mamba2Shape::matrices_len`] values.
    pub before: Option<&'a [f32]>,
    /// The state after the last row, `[heads][state][head_dim]`.
    pub state: &'a mut [f32],
    /// Results, `[n][width]`.
    pub out: &'a mut [f32],
}

/// What becomes of the results of some rows.
pub struct Mamba2Gate<'a> {
    /// The sizes.
    pub shape: Mamba2Shape,
    /// Gates, `[n][width]`.
    pub z: &'a [f32],
    /// Weights of the norm of each group, `[width]`, and its eps.
    pub norm: Option<(&'a [f32], f32)>,
    /// Results, in place, `[n][width]`.
    pub out: &'a mut [f32],
}

/// The convolution of some rows.
struct Inputs<'a> {
    job: &'a Mamba2Inputs<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Inputs<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { job, rows, out } = self;
        let channels = job.shape.channels();
        for (row, out) in rows.zip(out.chunks_exact_mut(channels)) {
            let mut at = 0;
            while at < channels {
                // SAFETY: `at` is inside rows of `channels` values, as many as the lengths that the caller checked say.
                unsafe {
                    let mut sum = match job.bias {
                        Some(bias) => load_part::<S>(bias, at, 0.0),
                        None => S::splat(0.0),
                    };
                    for (tap, weights) in job.taps.chunks_exact(channels).enumerate() {
                        let x = ConvJob::input(channels, (job.before, job.projected), row + tap);
                        let x = load_part::<S>(x, at, 0.0);
                        sum = S::fma(x, load_part::<S>(weights, at, 0.0), sum);
                    }
                    store_part::<S>(out, at, math::silu_lanes::<S>(sum));
                }
                at += LANES;
            }
        }
    }
}

/// Steps and decays of one row.
struct Steps<'a> {
    steps: &'a mut [f32],
    decay: &'a mut [f32],
    bias: &'a [f32],
    a: &'a [f32],
}

impl Kernel for Steps<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut at = 0;
        while at < self.a.len() {
            // SAFETY: the four have the same length (checked by the caller).
            unsafe {
                let step = S::add(load_part::<S>(self.steps, at, 0.0), load_part::<S>(self.bias, at, 0.0));
                let step = math::softplus_lanes::<S>(step);
                store_part::<S>(self.steps, at, step);
                let decay = math::exp_lanes::<S>(S::mul(load_part::<S>(self.a, at, 0.0), step));
                store_part::<S>(self.decay, at, decay);
            }
            at += LANES;
        }
    }
}

/// One head over all rows of a job.
struct Head<'a> {
    shape: Mamba2Shape,
    inputs: &'a [f32],
    decay: &'a [f32],
    steps: &'a [f32],
    skip: f32,
    /// Of this head.
    before: Option<&'a [f32]>,
    /// Of this head.
    state: &'a mut [f32],
    index: usize,
    out: &'a Shared<f32>,
}

impl Head<'_> {
    /// `N` vectors of columns from `column` on, all rows.
    ///
    /// # Safety
    /// The instruction set of `S` is available; the columns are the head's; no other code touches its results.
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(&mut self, column: usize) {
        let shape = self.shape;
        let stride = shape.head_dim;
        let value_at = self.index * stride + column;
        let group = self.index / (shape.heads / shape.groups);
        let b_at = shape.width() + group * shape.state;
        let c_at = b_at + shape.groups * shape.state;
        // SAFETY: `column + 16 N` values of each of `shape.state` rows are inside states (their lengths were checked); inputs
        // and results likewise.
        unsafe {
            let state = self.state.as_mut_ptr().add(column);
            for row in 0..self.decay.len() / shape.heads {
                let from = match self.before {
                    Some(before) if row == 0 => before.as_ptr().add(column),
                    _ => state.cast_const(),
                };
                let input = &self.inputs[row * shape.channels()..][..shape.channels()];
                let b = &input[b_at..][..shape.state];
                let c = &input[c_at..][..shape.state];
                let decay = S::splat(self.decay[row * shape.heads + self.index]);
                let step = S::splat(self.steps[row * shape.heads + self.index]);
                let mut taken = [S::splat(0.0); N];
                for (j, taken) in taken.iter_mut().enumerate() {
                    *taken = S::mul(S::load(input[value_at + LANES * j..][..LANES].as_ptr()), step);
                }
                let mut sums = [S::splat(0.0); N];
                for (i, (&b, &c)) in b.iter().zip(c).enumerate() {
                    let (b, c) = (S::splat(b), S::splat(c));
                    let (from, to) = (from.add(i * stride), state.add(i * stride));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let kept = S::mul(S::load(from.add(LANES * j)), decay);
                        let next = S::fma(taken[j], b, kept);
                        S::store(to.add(LANES * j), next);
                        *sum = S::fma(next, c, *sum);
                    }
                }
                let at = row * shape.width() + value_at;
                let out = self.out.part(at..at + LANES * N);
                for (j, sum) in sums.into_iter().enumerate() {
                    let x = S::load(input[value_at + LANES * j..][..LANES].as_ptr());
                    let past = S::fma(x, S::splat(self.skip), sum);
                    S::store(out[LANES * j..][..LANES].as_mut_ptr(), past);
                }
            }
        }
    }
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let dim = self.shape.head_dim;
        let mut column = 0;
        // SAFETY: whole vectors of columns of the head; its results are this unit's alone.
        unsafe {
            while column + COLUMNS * LANES <= dim {
                self.columns::<S, COLUMNS>(column);
                column += COLUMNS * LANES;
            }
            while column < dim {
                self.columns::<S, 1>(column);
                column += LANES;
            }
        }
    }
}

/// Gates and norms of some rows.
struct Gates<'a> {
    z: &'a [f32],
    norm: Option<(&'a [f32], f32)>,
    width: usize,
    group: usize,
    out: &'a mut [f32],
}

impl Kernel for Gates<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { z, norm, width, group, out } = self;
        let places = (0..width / group).map(|index| index * group).cycle();
        for ((out, z), first) in out.chunks_exact_mut(group).zip(z.chunks_exact(group)).zip(places) {
            // SAFETY: `at` is inside the group, whose weights begin at `first` of `width`.
            unsafe {
                let mut at = 0;
                while at < group {
                    let gate = math::silu_lanes::<S>(load_part::<S>(z, at, 0.0));
                    store_part::<S>(out, at, S::mul(load_part::<S>(out, at, 0.0), gate));
                    at += LANES;
                }
                let Some((weights, eps)) = norm else { continue };
                let weights = &weights[first..first + group];
                let inverse = S::splat(1.0 / (sum_row::<S>(out, 0.0, true) / group as f32 + eps).sqrt());
                let mut at = 0;
                while at < group {
                    let x = S::mul(load_part::<S>(out, at, 0.0), inverse);
                    store_part::<S>(out, at, S::mul(x, load_part::<S>(weights, at, 0.0)));
                    at += LANES;
                }
            }
        }
    }
}

impl Mamba2Inputs<'_> {
    /// The convolution of the rows of one session, and silu; see the module.
    pub fn compute(mut self, cpu: &Cpu) {
        let (channels, out) = (self.shape.channels(), std::mem::take(&mut self.out));
        assert!(
            self.projected.len() == out.len() && out.len().is_multiple_of(channels),
            "rows of other lengths"
        );
        assert_eq!(
            self.before.len(),
            self.shape.columns_len(),
            "other rows before than the convolution sees"
        );
        assert_eq!(self.taps.len(), self.shape.kernel * channels, "another convolution");
        assert!(self.bias.is_none_or(|bias| bias.len() == channels), "another convolution");
        cpu.divide(out, channels, |rows, out| cpu.run(Inputs { job: &self, rows, out }));
    }
}

/// Steps and decays of rows of `a.len()` heads: `steps = softplus(steps + bias)`, `decay = exp(a * steps)`.
pub fn steps(cpu: &Cpu, steps: &mut [f32], decay: &mut [f32], bias: &[f32], a: &[f32]) {
    let heads = a.len();
    assert!(bias.len() == heads && steps.len() == decay.len(), "operands of different lengths");
    assert!(heads > 0 && steps.len().is_multiple_of(heads), "{} are not rows of {heads}", steps.len());
    for (steps, decay) in steps.chunks_exact_mut(heads).zip(decay.chunks_exact_mut(heads)) {
        cpu.run(Steps { steps, decay, bias, a });
    }
}

impl Mamba2Job<'_> {
    /// The recurrence over the rows of one session; see the module.
    pub fn compute(self, cpu: &Cpu) {
        let Self { shape, inputs, decay, steps, skip, before, state, out } = self;
        let rows = decay.len() / shape.heads;
        assert!(decay.len() == rows * shape.heads && steps.len() == decay.len(), "steps of other rows");
        assert!(skip.len() == shape.heads && shape.heads.is_multiple_of(shape.groups), "other heads");
        assert_eq!(inputs.len(), rows * shape.channels(), "inputs of other rows");
        assert_eq!(out.len(), rows * shape.width(), "results of other rows");
        assert!(shape.head_dim.is_multiple_of(LANES), "another width of heads");
        assert_eq!(state.len(), shape.matrices_len(), "another state");
        assert!(before.is_none_or(|before| before.len() == state.len()), "another state");
        let len = shape.state * shape.head_dim;
        let (states, out) = (Shared(state.as_mut_ptr()), Shared(out.as_mut_ptr()));
        let head = |index: usize| {
            let at = index * len..(index + 1) * len;
            let before = before.map(|before| &before[at.clone()]);
            // SAFETY: each head is computed once, and its state is inside all of them, which outlive the run.
            let state = unsafe { states.part(at) };
            let skip = skip[index];
            cpu.run(Head { shape, inputs, decay, steps, skip, before, state, index, out: &out });
        };
        if rows * shape.matrices_len() < PARALLEL {
            return (0..shape.heads).for_each(head);
        }
        let next = AtomicUsize::new(0);
        cpu.pool().run(&|_, _| {
            loop {
                let index = next.fetch_add(1, Relaxed);
                if index >= shape.heads {
                    return;
                }
                head(index);
            }
        });
    }
}

impl Mamba2Gate<'_> {
    /// Gate and norm of every row; see the module.
    pub fn compute(self, cpu: &Cpu) {
        let Self { shape, z, norm, out } = self;
        let (width, group) = (shape.width(), shape.width() / shape.groups);
        assert!(z.len() == out.len() && out.len().is_multiple_of(width), "gates of other rows");
        assert!(norm.is_none_or(|(weights, _)| weights.len() == width), "a norm of another width");
        cpu.divide(out, width, |rows, out| {
            let z = &z[rows.start * width..rows.end * width];
            cpu.run(Gates { z, norm, width, group, out });
        });
    }
}

#[cfg(test)]
mod tests;
