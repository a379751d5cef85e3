//! Measures what this machine can do at best, to hold the engine's speed against.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use crate::kernels::Cpu;

/// Large enough to leave most caches; server caches of hundreds of MB keep part of it, which makes the figure higher
/// and the engine's share of it lower.
const PROBE_BYTES: usize = 512 << 20;
const PASSES: usize = 3;

/// Bytes per second all threads of `cpu` read together from memory: the best of a few passes.
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    let words: Vec<u64> = (0..PROBE_BYTES as u64 / 8).collect();
    let total = AtomicU64::new(0);
    let mut best = 0.0f64;
    for _ in 0..PASSES {
        let started = Instant::now();
        cpu.pool().run(&|worker, workers| {
            let share = words.len().div_ceil(workers);
            let mine = words.chunks(share).nth(worker).unwrap_or(&[]);
            total.fetch_add(sum(mine), Ordering::Relaxed);
        });
        best = best.max(PROBE_BYTES as f64 / started.elapsed().as_secs_f64());
    }
    black_box(total.into_inner());
    best
}

/// Many independent accumulators, so that the loads and not the additions are what takes time.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let (blocks, rest) = words.as_chunks::<32>();
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_word_is_counted() {
        let words: Vec<u64> = (0..1001).collect();
        assert_eq!(super::sum(&words), 500_500);
    }
}
