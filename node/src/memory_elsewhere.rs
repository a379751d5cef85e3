//! Systems without Linux's `/proc`.

use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// See [`super::total_bytes`].
pub fn total_bytes() -> Option<u64> {
    Some(memory().total_memory()).filter(|bytes| *bytes > 0)
}

/// See [`super::available_bytes`].
pub fn available_bytes() -> Option<u64> {
    Some(memory().available_memory()).filter(|bytes| *bytes > 0)
}

fn memory() -> System {
    let ram = MemoryRefreshKind::nothing().with_ram();
    System::new_with_specifics(RefreshKind::nothing().with_memory(ram))
}

/// See [`super::resident_bytes`].
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let (mut system, pid) = (System::new(), Pid::from_u32(pid));
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, memory);
    system.process(pid).map(sysinfo::Process::memory)
}
