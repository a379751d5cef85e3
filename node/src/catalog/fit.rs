//! What this machine does with a model before it has it: whether its memory holds it, and about how fast it answers.
//!
//! A decoded token reads every weight once, so that the speed is bounded by how fast memory is read; `shard::probe` measures
//! that. Limits: a mixture of experts reads only some of its weights a token and is faster than said here.

use shard::{
    kernels::{Cpu, Isa, threads::Pool},
    probe,
};

use crate::{Result, memory, output::human_bytes};

/// Memory beyond the weights: a session's cache, buffers and the program, as a share of the weights and in bytes.
const OVERHEAD: (f64, u64) = (0.1, 256 << 20);
/// What decoding makes of the bandwidth of plain reads: the rest are scales, attention, the head and waiting.
const EFFICIENCY: f64 = 0.6;

/// What this machine can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Memory that can be had; `None` where the system does not say it.
    pub memory_bytes: Option<u64>,
    /// Bytes that all threads read together per second.
    pub read_bytes_per_s: f64,
}

/// What becomes of a model here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// It runs here alone, about so many tokens a second.
    Alone {
        /// Tokens per second.
        tok_s: f64,
    },
    /// It needs more memory than there is: with others only.
    Swarm {
        /// Bytes it needs.
        needed_bytes: u64,
        /// Bytes there are.
        memory_bytes: u64,
    },
}

impl Machine {
    /// Measures this machine, in about a second.
    ///
    /// # Errors
    /// Those of [`probe::read_bandwidth`].
    pub fn measure() -> Result<Self> {
        let cpu = Cpu::new(Isa::detect(), Pool::new(Pool::physical_cores(), false));
        Ok(Self { memory_bytes: memory::available_bytes(), read_bytes_per_s: probe::read_bandwidth(&cpu)? })
    }

    /// What becomes of a model whose file has so many bytes.
    pub fn fit(&self, file_bytes: u64) -> Fit {
        let needed_bytes =
            file_bytes.saturating_add((file_bytes as f64 * OVERHEAD.0) as u64).saturating_add(OVERHEAD.1);
        match self.memory_bytes {
            Some(memory_bytes) if memory_bytes < needed_bytes => Fit::Swarm { needed_bytes, memory_bytes },
            _ => Fit::Alone { tok_s: self.read_bytes_per_s * EFFICIENCY / (file_bytes.max(1) as f64) },
        }
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone { tok_s } if *tok_s >= 10.0 => write!(f, "runs here alone at about {tok_s:.0} tok/s"),
            Self::Alone { tok_s } => write!(f, "runs here alone at about {tok_s:.1} tok/s"),
            Self::Swarm { needed_bytes, memory_bytes } => write!(
                f,
                "needs about {} of memory and {} are free here: with a swarm",
                human_bytes(*needed_bytes),
                human_bytes(*memory_bytes)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_decides_first_and_then_bandwidth() {
        let machine = Machine { memory_bytes: Some(2 << 30), read_bytes_per_s: 10e9 };
        assert_eq!(machine.fit(1_000_000_000), Fit::Alone { tok_s: 6.0 });
        assert!(matches!(machine.fit(2 << 30), Fit::Swarm { memory_bytes, .. } if memory_bytes == 2 << 30));
        assert!(matches!(machine.fit(u64::MAX), Fit::Swarm { .. }));
        let unknown = Machine { memory_bytes: None, ..machine };
        assert_eq!(unknown.fit(10_000_000_000).to_string(), "runs here alone at about 0.6 tok/s");
    }
}
