//! What memory the machine has and processes take, as the system says it: Linux below `/proc`, others by calls that the crate
//! `sysinfo` makes.

#[cfg(not(target_os = "linux"))]
#[path = "memory_elsewhere.rs"]
mod system;

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    pub fn total_bytes() -> Option<u64> {
        field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
    }

    pub fn available_bytes() -> Option<u64> {
        field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
    }

    pub fn resident_bytes(pid: u32) -> Option<u64> {
        field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
    }

    /// A line such as `VmRSS:     4321 kB`, in bytes.
    pub(super) fn field(said: &str, name: &str) -> Option<u64> {
        let line = said.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    }
}

/// Memory of the machine; `None` where it is not said.
pub fn total_bytes() -> Option<u64> {
    system::total_bytes()
}

/// Memory that programs can have now; `None` where it is not said.
pub fn available_bytes() -> Option<u64> {
    system::available_bytes()
}

/// Bytes that a process has in memory; `None` where it is not said, and of a process that is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    system::resident_bytes(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_status_says_what_is_resident() {
        let status = "Name:\tshoal\nVmPeak:\t   99 kB\nVmRSS:\t    4321 kB\nThreads:\t3\n";
        assert_eq!(system::field(status, "VmRSS:"), Some(4321 << 10));
        assert_eq!(system::field(status, "VmSwap:"), None);
        assert_eq!(system::field("VmRSS: many kB", "VmRSS:"), None);
    }

    #[test]
    fn this_machine_and_process_have_some() {
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(resident_bytes(u32::MAX), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0) && available_bytes() < total_bytes());
    }
}
