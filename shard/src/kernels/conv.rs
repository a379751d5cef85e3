//! The gated short convolution (LFM 2): channel by channel over a row and the ones before it.
//!
//! # What is computed, in this order (profile d1)
//! `c = fma(x_j, w_j, c)` from 0, oldest row first, then `c * gate`. Lanes are channels, so nothing crosses them, and neither
//! passes nor threads nor the width of vectors change a bit.

use std::ops::Range;

use super::{
    Cpu, Kernel,
    simd::{LANES, Simd},
    vector::{load_part, store_part},
};

/// The taps of a convolution, stored channel by channel, as `[kernel][channels]`.
pub(crate) fn by_tap(stored: &[f32], kernel: usize) -> Vec<f32> {
    let tap = |tap: usize| stored.chunks_exact(kernel).map(move |channel| channel[tap]);
    (0..kernel).flat_map(tap).collect()
}

/// Consecutive rows of one session.
pub struct ConvJob<'a> {
    /// Channels.
    pub width: usize,
    /// Inputs of the rows, `[n][width]`.
    pub inputs: &'a [f32],
    /// The inputs before them, as many as there are taps but one, oldest first.
    pub before: &'a [f32],
    /// The convolution, `[taps][width]`, oldest first.
    pub taps: &'a [f32],
    /// Rows of `stride` values that hold the gate of each row from value `gate_at` on.
    pub gates: &'a [f32],
    /// Values from one row of `gates` to the next.
    pub stride: usize,
    /// Where the gate begins in its row.
    pub gate_at: usize,
    /// Results, `[n][width]`.
    pub out: &'a mut [f32],
}

impl<'a> ConvJob<'a> {
    /// Input `at - (taps - 1)`, counted from the first of `inputs`; those in front of it are in `before`.
    pub fn input(width: usize, (before, inputs): (&'a [f32], &'a [f32]), at: usize) -> &'a [f32] {
        match (at * width).checked_sub(before.len()) {
            Some(from) => &inputs[from..][..width],
            None => &before[at * width..][..width],
        }
    }

    /// The convolution of the rows of one session; see the module.
    pub fn compute(mut self, cpu: &Cpu) {
        let (width, out) = (self.width, std::mem::take(&mut self.out));
        assert!(width > 0 && out.len().is_multiple_of(width) && self.inputs.len() == out.len(), "other rows");
        assert_eq!(self.taps.len(), self.before.len() + width, "another convolution");
        let end = (out.len() / width).saturating_sub(1) * self.stride + self.gate_at + width;
        assert!(out.is_empty() || self.gates.len() >= end, "gates of other rows");
        cpu.divide(out, width, |rows, out| cpu.run(Rows { job: &self, rows, out }));
    }
}

/// Some rows of a job.
struct Rows<'a> {
    job: &'a ConvJob<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { job, rows, out } = self;
        let width = job.width;
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            let gate = &job.gates[row * job.stride + job.gate_at..][..width];
            let mut at = 0;
            while at < width {
                // SAFETY: `at` is inside rows of `width` values.
                unsafe {
                    let mut sum = S::splat(0.0);
                    for (tap, weights) in job.taps.chunks_exact(width).enumerate() {
                        let x = ConvJob::input(width, (job.before, job.inputs), row + tap);
                        let x = load_part::<S>(x, at, 0.0);
                        sum = S::fma(x, load_part::<S>(weights, at, 0.0), sum);
                    }
                    store_part::<S>(out, at, S::mul(sum, load_part::<S>(gate, at, 0.0)));
                }
                at += LANES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fma::Fma,
        kernels::{Isa, threads::Pool},
        synthetic::Random,
    };

    /// One channel of one row after another, as the module says it.
    fn twin(job: &ConvJob<'_>, rows: usize) -> Vec<f32> {
        let width = job.width;
        let all: Vec<f32> = job.before.iter().chain(job.inputs).copied().collect();
        let value = |at: usize| {
            let (row, channel) = (at / width, at % width);
            let taps = job.taps.chunks_exact(width).enumerate();
            let sum = taps.fold(0.0f32, |sum, (tap, weights)| {
                all[(row + tap) * width + channel].fma(weights[channel], sum)
            });
            sum * job.gates[row * job.stride + job.gate_at + channel]
        };
        (0..rows * width).map(value).collect()
    }

    fn job<'a>(width: usize, parts: &'a [Vec<f32>; 4], out: &'a mut [f32]) -> ConvJob<'a> {
        let [inputs, before, taps, gates] = parts;
        ConvJob { width, inputs, before, taps, gates, stride: 3 * width, gate_at: width, out }
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_twin() {
        let mut random = Random(7);
        for (width, taps, rows) in [(1, 1, 1), (16, 3, 5), (37, 4, 9), (512, 3, 40)] {
            let mut values = |n: usize| -> Vec<f32> {
                // Zeros of both signs are among them.
                let one = |bits: usize| if bits == 0 { -0.0 } else { bits as f32 / 50.0 - 1.0 };
                (0..n).map(|_| one(random.below(101))).collect()
            };
            let parts = [rows * width, (taps - 1) * width, taps * width, rows * 3 * width].map(&mut values);
            let expected = twin(&job(width, &parts, &mut []), rows);
            let expected: Vec<u32> = expected.iter().map(|v| v.to_bits()).collect();
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let mut out = vec![f32::NAN; rows * width];
                    job(width, &parts, &mut out).compute(&Cpu::new(isa, Pool::new(threads, false)));
                    let bits: Vec<u32> = out.iter().map(|v| v.to_bits()).collect();
                    assert!(bits == expected, "{isa:?}, {threads} threads, {rows} rows of {width}");
                }
            }
        }
    }
}
