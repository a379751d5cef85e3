//! Which instruction set and which threads compute.

use std::sync::{Arc, OnceLock};

use super::threads::Pool;
use super::{Inputs, Isa, Kernel};

/// The processor as the engine sees it: an instruction set and its threads.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
    inputs: OnceLock<Arc<Inputs>>,
}

impl Cpu {
    /// Computes with `isa`, which must be available here, on `pool`.
    pub fn new(isa: Isa, pool: Pool) -> Self {
        assert!(Isa::available().contains(&isa), "{} is not available on this processor", isa.name());
        Self { isa, pool, inputs: OnceLock::new() }
    }

    /// Notes in `inputs` what matrices are multiplied with that are loaded from now on; once.
    pub fn watch(&self, inputs: Arc<Inputs>) {
        let _ = self.inputs.set(inputs);
    }

    /// Where it is noted what matrices are multiplied with.
    pub fn inputs(&self) -> Option<&Inputs> {
        self.inputs.get().map(|inputs| &**inputs)
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
