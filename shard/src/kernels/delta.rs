//! The gated delta net: a recurrence whose state maps keys to values (Yang, Kautz and Hatamizadeh, "Gated Delta Networks",
//! arXiv 2412.06464, section 3).
//!
//! # What is computed, in this order (profile d1)
//! Of a row, the projections `q | k | v` first go through a causal convolution, channel by channel over the row and the ones
//! before it: `c = x_0 w_0`, then `c = fma(x_j, w_j, c)`, oldest row first, then `silu(c)`. Each head of q and k becomes
//! `x * (1 / sqrt(ss + 1e-6))`, `ss` the sum of squares in 16 virtual lanes; q is then multiplied by `1 / sqrt(key_dim)`.
//!
//! Value head `h` has a state `S`, one row of `value_dim` values per key dimension, a decay `g = exp(a * softplus(alpha + dt))` and
//! a strength `b = sigmoid(beta)` for each row. With the q and k of its key head, key dimensions ascending in every sum:
//! 1. `m = fma(S_i, k_i, m)` from 0: what the state answers to the key;
//! 2. `d = (v - m * g) * b`: what is missing, times the strength;
//! 3. `S_i = fma(d, k_i, S_i * g)`, and `o = fma(S_i, q_i, o)` from 0.
//!
//! The result is `((o * (1 / sqrt(ss / value_dim + eps))) * weight) * silu(z)`.
//!
//! Where every channel `i` of a key has a decay `g_i` of its own (Kimi Linear, arXiv 2510.26692, section 3), the state fades first:
//! 1. `m = fma(S_i * g_i, k_i, m)` from 0;
//! 2. `d = (v - m) * b`;
//! 3. `S_i = fma(d, k_i, S_i * g_i)`, and `o = fma(S_i, q_i, o)` from 0;
//!
//! and the result has `sigmoid(z)` in place of `silu(z)`.
//!
//! Lanes are channels and value dimensions, so nothing crosses them but `ss`. Rows are computed one after the other, always:
//! solving for many rows at once would be other sums. So the bits do not depend on passes, threads or vector width.
//!
//! # How it is fast
//! The unit of work is one value head; a block of 64 of its columns stays in the first cache for all rows of a pass.
//!
//! Limits: value heads are whole groups of 16 values; one head is one thread's.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{
    Cpu, Kernel, math,
    simd::{LANES, Simd},
    vector::{Shared, load_part, store_part, sum_row},
};

/// Added to the sum of squares of a key or query before the root.
const EPS: f32 = 1e-6;
/// Vectors of columns that are computed together.
const COLUMNS: usize = 4;
/// Fewest multiply-adds for which waking the threads pays.
const PARALLEL: usize = 200_000;

/// The sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`; each has a state.
    pub value_heads: usize,
    /// Values of a query or key.
    pub key_dim: usize,
    /// Values of a head's result, a multiple of [`DeltaShape::LANES`].
    pub value_dim: usize,
    /// Rows that the convolution sees, the current one included.
    pub kernel: usize,
    /// Value head `h` has key head `h mod key_heads`; otherwise consecutive value heads share one.
    pub tiled: bool,
    /// Every channel of a key has a decay of its own; otherwise every head has one.
    pub by_channel: bool,
}

impl DeltaShape {
    /// Values of a vector.
    pub const LANES: usize = LANES;

    /// Values of q, k and v of a row.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Values of all heads of keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of all heads of results.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Decays of a row.
    pub fn decays(&self) -> usize {
        self.value_heads * if self.by_channel { self.key_dim } else { 1 }
    }

    /// Values of the states of all heads.
    pub fn matrices_len(&self) -> usize {
        self.key_dim * self.value_width()
    }

    /// Values that a session remembers: the states of all heads, and the rows that the convolution still sees.
    pub fn state_len(&self) -> usize {
        self.matrices_len() + self.columns_len()
    }

    fn columns_len(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    fn key_head(&self, value_head: usize) -> usize {
        match self.tiled {
            true => value_head % self.key_heads,
            false => value_head / (self.value_heads / self.key_heads),
        }
    }

    /// Writes to `columns` the last rows that the convolution sees after the first `rows` of `projected`, oldest first;
    /// `before` are those it saw before them.
    pub fn keep_columns(&self, before: &[f32], projected: &[f32], rows: usize, columns: &mut [f32]) {
        let channels = self.channels();
        for (index, to) in columns.chunks_exact_mut(channels).enumerate() {
            let at = rows + index;
            to.copy_from_slice(self.seen(before, projected, at));
        }
    }

    /// Row `at - (kernel - 1)` of a pass, counted from its first; those before it are in `before`.
    fn seen<'a>(&self, before: &'a [f32], projected: &'a [f32], at: usize) -> &'a [f32] {
        let channels = self.channels();
        match at.checked_sub(self.kernel - 1) {
            Some(row) => &projected[row * channels..][..channels],
            None => &before[at * channels..][..channels],
        }
    }
}

/// The rows of one session in front of the recurrence.
pub struct DeltaInputs<'a> {
    /// The sizes.
    pub shape: DeltaShape,
    /// q, k and v of every row as projected, `[n][channels]`.
    pub projected: &'a [f32],
    /// The `kernel - 1` rows before them, oldest first.
    pub before: &'a [f32],
    /// The convolution, `[kernel][channels]`, oldest first.
    pub taps: &'a [f32],
    /// q, k and v as the recurrence reads them, `[n][channels]`.
    pub out: &'a mut [f32],
}

/// Consecutive rows of one session.
pub struct DeltaJob<'a> {
    /// The sizes.
    pub shape: DeltaShape,
    /// What [`DeltaInputs::compute`] gave, `[n][channels]`.
    pub inputs: &'a [f32],
    /// Gates of the result, `[n][value width]`.
    pub z: &'a [f32],
    /// The factor on the state, `[n][decays]`; see [`decays`].
    pub decay: &'a [f32],
    /// The strength of the correction, `[n][value heads]`.
    pub strength: &'a [f32],
    /// The state before the first row if `state` does not hold it, [`DeltaShape::matrices_len`] values.
    pub before: Option<&'a [f32]>,
    /// The state after the last row, `[value heads][key_dim][value_dim]`.
    pub state: &'a mut [f32],
    /// Weights of the norm of each head's result.
    pub norm: &'a [f32],
    /// Its eps.
    pub eps: f32,
    /// Results, `[n][value width]`.
    pub out: &'a mut [f32],
}

/// Convolution and norms of some rows.
struct Inputs<'a> {
    shape: DeltaShape,
    projected: &'a [f32],
    before: &'a [f32],
    taps: &'a [f32],
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Inputs<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let shape = self.shape;
        let channels = shape.channels();
        for (row, out) in self.rows.zip(self.out.chunks_exact_mut(channels)) {
            // SAFETY: positions are inside rows of `channels` values, as many as the lengths that the caller checked say.
            unsafe {
                let mut at = 0;
                while at < channels {
                    let mut sum = S::splat(0.0);
                    for tap in 0..shape.kernel {
                        let x = load_part::<S>(shape.seen(self.before, self.projected, row + tap), at, 0.0);
                        let w = load_part::<S>(&self.taps[tap * channels..(tap + 1) * channels], at, 0.0);
                        sum = if tap == 0 { S::mul(x, w) } else { S::fma(x, w, sum) };
                    }
                    store_part::<S>(out, at, math::silu_lanes::<S>(sum));
                    at += LANES;
                }
                let width = shape.key_width();
                unit_heads::<S>(&mut out[..width], shape.key_dim, 1.0 / (shape.key_dim as f32).sqrt());
                unit_heads::<S>(&mut out[width..2 * width], shape.key_dim, 1.0);
            }
        }
    }
}

/// Gives every head of `dim` values the length `factor`.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn unit_heads<S: Simd>(x: &mut [f32], dim: usize, factor: f32) {
    for head in x.chunks_exact_mut(dim) {
        // SAFETY: positions are inside the head.
        unsafe {
            let inverse = S::splat(1.0 / (sum_row::<S>(head, 0.0, true) + EPS).sqrt());
            let mut at = 0;
            while at < dim {
                let x = S::mul(load_part::<S>(head, at, 0.0), inverse);
                store_part::<S>(head, at, S::mul(x, S::splat(factor)));
                at += LANES;
            }
        }
    }
}

/// Decays of one row.
struct Decays<'a> {
    alpha: &'a mut [f32],
    dt: &'a [f32],
    a: &'a [f32],
}

impl Kernel for Decays<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut at = 0;
        while at < self.a.len() {
            // SAFETY: the three have the same length (checked by the caller).
            unsafe {
                let alpha = S::add(load_part::<S>(self.alpha, at, 0.0), load_part::<S>(self.dt, at, 0.0));
                let steps = math::softplus_lanes::<S>(alpha);
                let decay = math::exp_lanes::<S>(S::mul(load_part::<S>(self.a, at, 0.0), steps));
                store_part::<S>(self.alpha, at, decay);
            }
            at += LANES;
        }
    }
}

/// One value head over all rows of a job.
struct Head<'a> {
    shape: DeltaShape,
    inputs: &'a [f32],
    z: &'a [f32],
    decay: &'a [f32],
    strength: &'a [f32],
    /// Of this head.
    before: Option<&'a [f32]>,
    /// Of this head.
    state: &'a mut [f32],
    norm: &'a [f32],
    eps: f32,
    index: usize,
    out: &'a Shared<f32>,
}

impl Head<'_> {
    fn rows(&self) -> usize {
        self.strength.len() / self.shape.value_heads
    }

    /// Where the result of `row` is.
    fn place(&self, row: usize) -> Range<usize> {
        let at = row * self.shape.value_width() + self.index * self.shape.value_dim;
        at..at + self.shape.value_dim
    }

    /// `N` vectors of columns from `column` on, all rows.
    ///
    /// # Safety
    /// The instruction set of `S` is available; the columns are the head's; no other code touches its results.
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize, const BY_CHANNEL: bool>(&mut self, column: usize) {
        let shape = self.shape;
        let (key_dim, stride) = (shape.key_dim, shape.value_dim);
        let key_at = shape.key_head(self.index) * key_dim;
        let value_at = 2 * shape.key_width() + self.index * stride + column;
        // SAFETY: `column + 16 N` values of each of `key_dim` rows are inside states (their lengths were checked); inputs and
        // results likewise.
        unsafe {
            let state = self.state.as_mut_ptr().add(column);
            for row in 0..self.rows() {
                let from = match self.before {
                    Some(before) if row == 0 => before.as_ptr().add(column),
                    _ => state.cast_const(),
                };
                let input = &self.inputs[row * shape.channels()..][..shape.channels()];
                let q = &input[key_at..][..key_dim];
                let k = &input[shape.key_width() + key_at..][..key_dim];
                let own = if BY_CHANNEL { key_dim } else { 1 };
                let decays = &self.decay[row * shape.decays() + self.index * own..][..own];
                let decay = S::splat(decays[0]);
                let strength = S::splat(self.strength[row * shape.value_heads + self.index]);
                let mut delta = [S::splat(0.0); N];
                for (i, &k) in k.iter().enumerate() {
                    let (k, at) = (S::splat(k), from.add(i * stride));
                    for (j, sum) in delta.iter_mut().enumerate() {
                        let mut state = S::load(at.add(LANES * j));
                        if BY_CHANNEL {
                            state = S::mul(state, S::splat(decays[i]));
                        }
                        *sum = S::fma(state, k, *sum);
                    }
                }
                for (j, delta) in delta.iter_mut().enumerate() {
                    let value = S::load(input[value_at + LANES * j..][..LANES].as_ptr());
                    let known = if BY_CHANNEL { *delta } else { S::mul(*delta, decay) };
                    *delta = S::mul(S::sub(value, known), strength);
                }
                let mut sums = [S::splat(0.0); N];
                for (i, (&k, &q)) in k.iter().zip(q).enumerate() {
                    let (k, q) = (S::splat(k), S::splat(q));
                    let decay = if BY_CHANNEL { S::splat(decays[i]) } else { decay };
                    let (from, to) = (from.add(i * stride), state.add(i * stride));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let kept = S::mul(S::load(from.add(LANES * j)), decay);
                        let next = S::fma(delta[j], k, kept);
                        S::store(to.add(LANES * j), next);
                        *sum = S::fma(next, q, *sum);
                    }
                }
                let out = self.out.part(self.place(row));
                for (j, sum) in sums.into_iter().enumerate() {
                    S::store(out[column + LANES * j..][..LANES].as_mut_ptr(), sum);
                }
            }
        }
    }
}

impl Head<'_> {
    /// All columns, all rows.
    ///
    /// # Safety
    /// As for [`Head::columns`].
    #[inline(always)]
    unsafe fn recur<S: Simd, const BY_CHANNEL: bool>(&mut self) {
        let (dim, mut column) = (self.shape.value_dim, 0);
        // SAFETY: whole vectors of columns of the head.
        unsafe {
            while column + COLUMNS * LANES <= dim {
                self.columns::<S, COLUMNS, BY_CHANNEL>(column);
                column += COLUMNS * LANES;
            }
            while column < dim {
                self.columns::<S, 1, BY_CHANNEL>(column);
                column += LANES;
            }
        }
    }
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (dim, by_channel) = (self.shape.value_dim, self.shape.by_channel);
        // SAFETY: the head's results are this unit's alone.
        unsafe {
            match by_channel {
                true => self.recur::<S, true>(),
                false => self.recur::<S, false>(),
            }
            for row in 0..self.rows() {
                let place = self.place(row);
                let (z, out) = (&self.z[place.clone()], self.out.part(place));
                let inverse = 1.0 / (sum_row::<S>(out, 0.0, true) / dim as f32 + self.eps).sqrt();
                let mut at = 0;
                while at < dim {
                    let x = S::mul(load_part::<S>(out, at, 0.0), S::splat(inverse));
                    let x = S::mul(x, load_part::<S>(self.norm, at, 0.0));
                    let z = load_part::<S>(z, at, 0.0);
                    let gate =
                        if by_channel { math::sigmoid_lanes::<S>(z) } else { math::silu_lanes::<S>(z) };
                    store_part::<S>(out, at, S::mul(x, gate));
                    at += LANES;
                }
            }
        }
    }
}

impl DeltaInputs<'_> {
    /// Convolution, silu and norms of the rows of one session; see the module.
    pub fn compute(self, cpu: &Cpu) {
        let Self { shape, projected, before, taps, out } = self;
        let channels = shape.channels();
        assert!(projected.len() == out.len() && out.len().is_multiple_of(channels), "rows of other lengths");
        assert_eq!(before.len(), shape.columns_len(), "other rows before than the convolution sees");
        assert_eq!(taps.len(), shape.kernel * channels, "another convolution");
        cpu.divide(out, channels, |rows, out| {
            cpu.run(Inputs { shape, projected, before, taps, rows, out });
        });
    }
}

/// The decays of rows of `a.len()`, in place: `alpha = exp(a * softplus(alpha + dt))`.
pub fn decays(cpu: &Cpu, alpha: &mut [f32], dt: &[f32], a: &[f32]) {
    let len = a.len();
    assert_eq!(dt.len(), len, "operands of different lengths");
    assert!(len > 0 && alpha.len().is_multiple_of(len), "{} are not rows of {len}", alpha.len());
    cpu.divide(alpha, len, |_, alpha| {
        alpha.chunks_exact_mut(len).for_each(|alpha| cpu.run(Decays { alpha, dt, a }));
    });
}

impl DeltaJob<'_> {
    /// The recurrence over the rows of one session, its norm and gate; see the module.
    pub fn compute(self, cpu: &Cpu) {
        let Self { shape, inputs, z, decay, strength, before, state, norm, eps, out } = self;
        let rows = strength.len() / shape.value_heads;
        assert!(
            strength.len() == rows * shape.value_heads && decay.len() == rows * shape.decays(),
            "gates of other rows"
        );
        assert_eq!(inputs.len(), rows * shape.channels(), "inputs of other rows");
        assert!(out.len() == rows * shape.value_width() && z.len() == out.len(), "results of other rows");
        assert!(norm.len() == shape.value_dim && norm.len().is_multiple_of(LANES), "another width of heads");
        assert_eq!(state.len(), shape.matrices_len(), "another state");
        assert!(before.is_none_or(|before| before.len() == state.len()), "another state");
        let len = shape.key_dim * shape.value_dim;
        let (states, out) = (Shared(state.as_mut_ptr()), Shared(out.as_mut_ptr()));
        let head = |index: usize| {
            let at = index * len..(index + 1) * len;
            let before = before.map(|before| &before[at.clone()]);
            // SAFETY: each head is computed once, and its state is inside all of them, which outlive the run.
            let state = unsafe { states.part(at) };
            cpu.run(Head { shape, inputs, z, decay, strength, before, state, norm, eps, index, out: &out });
        };
        if 2 * rows * shape.matrices_len() < PARALLEL {
            return (0..shape.value_heads).for_each(head);
        }
        let next = AtomicUsize::new(0);
        cpu.pool().run(&|_, _| {
            loop {
                let index = next.fetch_add(1, Relaxed);
                if index >= shape.value_heads {
                    return;
                }
                head(index);
            }
        });
    }
}

#[cfg(test)]
mod tests;
