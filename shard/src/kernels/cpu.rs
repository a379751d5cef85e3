//! Which instruction set and which threads compute.

use super::threads::Pool;
use super::{Isa, Kernel};

/// The processor as the engine sees it: an instruction set and its threads.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// Computes with `isa`, which must be available here, on `pool`.
    pub fn new(isa: Isa, pool: Pool) -> Self {
        assert!(Isa::available().contains(&isa), "{} is not available on this processor", isa.name());
        Self { isa, pool }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads in use.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `kernel` on the calling thread, compiled for the instruction set in use.
    #[inline]
    pub fn run<K: Kernel>(&self, kernel: K) -> K::Output {
        // SAFETY: `new` checked that the instruction set is available.
        unsafe { self.isa.dispatch(kernel) }
    }
}
