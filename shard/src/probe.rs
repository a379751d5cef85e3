//! Measures what this machine can do at best, to hold the engine's speed against.

use crate::{Result, kernels::Cpu};

/// Large enough to leave most caches; server caches of hundreds of MB keep part of it, which makes the figure higher
/// and the engine's share of it lower.
const PROBE_BYTES: usize = 512 << 20;
const PASSES: usize = 5;

/// Bytes per second all threads of `cpu` read together from memory, laid out as weights are: the best of a few passes.
///
/// # Errors
/// [`crate::Error::Invalid`] when half a gigabyte of memory is not to be had.
pub fn read_bandwidth(cpu: &Cpu) -> Result<f64> {
    let times = cpu.time_reads(PROBE_BYTES, PASSES)?;
    let best = times.iter().min().copied().unwrap_or_default();
    Ok(PROBE_BYTES as f64 / best.as_secs_f64().max(1e-9))
}
