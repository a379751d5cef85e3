//! Limits that a process sets for itself, which only root may raise.

use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};

/// How much a worker gives way to other programs, of 19.
const NICENESS: i32 = 10;

/// Lets other programs go first.
pub fn give_way() {
    if let Err(error) = nice(NICENESS) {
        eprintln!("warning: worker: {error} when giving way to others");
    }
}

/// How many files this process may have open; `None` without a limit.
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Leaves no core.
pub(super) fn lower_core() {
    lower(Resource::Core, 0);
}

/// At most `files` are open.
pub(super) fn lower_files(files: u64) {
    lower(Resource::Nofile, files);
}

/// At most `bytes` of address space.
pub(super) fn lower_memory(bytes: u64) {
    lower(Resource::As, bytes);
}

/// At most `seconds` of processor time.
pub(super) fn lower_time(seconds: u64) {
    lower(Resource::Cpu, seconds);
}

/// Sets both limits, never above the hard one.
fn lower(resource: Resource, to: u64) {
    let most = getrlimit(resource).maximum;
    let limit = Some(most.map_or(to, |most| most.min(to)));
    if let Err(error) = setrlimit(resource, Rlimit { current: limit, maximum: limit }) {
        eprintln!("warning: worker: {error} when limiting {resource:?}");
    }
}
