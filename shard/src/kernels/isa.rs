//! The instruction sets, and how a kernel is compiled for each.
//!
//! A kernel implements [`Kernel`] and is compiled once per instruction set inside a `#[target_feature]` function.
//! The set is chosen at run time, never by a build flag.

use super::simd::{Simd, scalar::Scalar};

/// An instruction set the kernels are instantiated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: the specification.
    Scalar,
    /// x86-64 with AVX2, FMA3 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512 as above, and int8 tiles (AMX) for many rows of activations.
    Amx,
    /// AArch64 with the dot-product extension.
    Neon,
}

/// A computation written once over [`Simd`].
///
/// `run` and everything hot below it must be `#[inline(always)]` and free of closures around the primitives:
/// only code inlined into the `#[target_feature]` wrapper is compiled with the instruction set.
pub trait Kernel {
    /// What the computation returns.
    type Output;
    /// Computes with the primitives of `S`.
    ///
    /// # Safety
    /// The processor has the instruction set of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
mod wrappers {
    use super::super::simd::{avx2::Avx2, avx512::Avx512};
    use super::Kernel;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller promises the features of this function, which are those of the implementation.
        unsafe { kernel.run::<Avx2>() }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn avx512<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller promises the features of this function, which are those of the implementation.
        unsafe { kernel.run::<Avx512>() }
    }
}

#[cfg(target_arch = "aarch64")]
mod wrappers {
    use super::super::simd::neon::Neon;
    use super::Kernel;

    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn neon<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller promises the features of this function, which are those of the implementation.
        unsafe { kernel.run::<Neon>() }
    }
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    #[cfg(target_os = "linux")]
    use std::arch::x86_64::__cpuid_count;

    /// Whether this process may use int8 tiles; asks the operating system for permission on the first call.
    pub(super) fn available() -> bool {
        static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *AVAILABLE.get_or_init(detect)
    }

    #[cfg(target_os = "linux")]
    fn detect() -> bool {
        const AMX_TILE: u32 = 1 << 24;
        const AMX_INT8: u32 = 1 << 25;
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        if __cpuid_count(0, 0).eax < 7
            || __cpuid_count(7, 0).edx & (AMX_TILE | AMX_INT8) != AMX_TILE | AMX_INT8
        {
            return false;
        }
        // The call fails on kernels that do not know the tile state, so its success implies support by the system.
        // SAFETY: the request takes two integers and touches no memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn detect() -> bool {
        false
    }
}

impl Isa {
    /// Every instruction set this processor can run, slowest first; the last one is the fastest.
    #[allow(clippy::vec_init_then_push)]
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                all.push(Self::Avx2);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    all.push(Self::Avx512);
                    if tiles::available() {
                        all.push(Self::Amx);
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.push(Self::Neon);
        }
        all
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
            Self::Amx => "amx",
            Self::Neon => "neon",
        }
    }

    /// The instruction set called `name`, whether or not this processor has it.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx, Self::Neon]
            .into_iter()
            .find(|isa| isa.name() == name)
    }

    /// How many bytes before their use weights are asked for that come from memory, where a core reads so many in 300 to 500 ns. Processors
    /// with int8 tiles (Xeon, two cores) read Q4_K and TQ2_0 a tenth faster with half of what others need: an EPYC loses a tenth with it,
    /// and twice as much changes nothing there.
    pub(crate) fn lead_bytes(self) -> usize {
        if self == Self::Amx { 4096 } else { 8192 }
    }

    /// Runs `kernel` compiled for this instruction set.
    ///
    /// # Safety
    /// The instruction set is one of [`Isa::available`].
    #[inline]
    pub unsafe fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller promises that the processor has the instruction set.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => wrappers::avx2(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 | Self::Amx => wrappers::avx512(kernel),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => wrappers::neon(kernel),
                _ => kernel.run::<Scalar>(),
            }
        }
    }
}
