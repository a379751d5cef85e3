//! Which instruction set and which threads compute.

use super::threads::Pool;

/// An instruction set the kernels are instantiated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: the specification.
    Scalar,
    /// x86-64 with AVX2, FMA3 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and VNNI.
    Avx512,
    /// AArch64 with the dot-product extension.
    Neon,
}

impl Isa {
    /// Every instruction set this processor can run, slowest first; the last one is the fastest.
    pub fn available() -> Vec<Self> {
        vec![Self::Scalar]
    }

    /// The fastest instruction set of this processor.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// The name used in reports and by `--isa`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

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
}
