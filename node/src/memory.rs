//! What memory processes have, as the system says it.

use std::fs;

/// Bytes that a process has in memory, where the system has Linux's `/proc`; `None` elsewhere, and of a process that is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// A line such as `VmRSS:     4321 kB`, in bytes.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_is_resident() {
        let status = "Name:\tshoal\nVmPeak:\t   99 kB\nVmRSS:\t    4321 kB\nThreads:\t3\n";
        assert_eq!(field(status, "VmRSS:"), Some(4321 << 10));
        assert_eq!(field(status, "VmSwap:"), None);
        assert_eq!(field("VmRSS: many kB", "VmRSS:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_some() {
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(resident_bytes(0), None);
    }
}
