//! AMX int8 tiles: detection and, on Linux, the kernel's permission to use them.

/// Whether this process may use int8 tiles; asks the operating system for permission on the first call.
pub(super) fn available() -> bool {
    static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *AVAILABLE.get_or_init(detect)
}

#[cfg(target_os = "linux")]
fn detect() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    if __cpuid_count(0, 0).eax < 7 || __cpuid_count(7, 0).edx & (AMX_TILE | AMX_INT8) != AMX_TILE | AMX_INT8 {
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
