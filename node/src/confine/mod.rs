//! What a process gives up before it looks at a stranger's bytes.
//!
//! Model files, templates, vocabularies and forms of answers are written by strangers. A process that parses them holds no
//! token and no identity, and before the first byte is looked at, with one thread, it gives up everything that parsing and
//! computing do not need:
//!
//! | what | how |
//! |---|---|
//! | system calls but some forty | `filter`: no path is opened or looked at, nothing is started, signaled or connected |
//! | files, sockets, signals to others | Landlock without a single path, where the kernel has it |
//! | privileges | empty sets of capabilities, and none can be gained |
//! | memory for others to read | no core dumps, no debugger, no `/proc/PID/mem` |
//! | memory and files without end | resource limits |
//!
//! What such a process works with is open already: the process that starts it opens the files and hands them over
//! ([`crate::platform::handed_files`]), or, for a command that confines itself, the command opened them. Limits are set once, as
//! high as the work may need, since the filter forbids setting them.
//!
//! Limits: outside Linux only resource limits hold, and none of memory; on Windows none, and a process opens the files that it is
//! named. `shoal doctor` says so ([`WITHOUT_FILTER`]). What the kernel lacks is said in [`Confinement`], and is no error.
//! Computing on a graphics card needs its driver's files, calls and mappings: there is no filter and no limit of address space
//! then ([`enter_worker`]), which `shoal doctor` says.

pub mod child;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(unix)]
mod limits;
#[cfg(not(unix))]
#[path = "limits_absent.rs"]
mod limits;
#[cfg(all(debug_assertions, target_os = "linux"))]
pub mod probe;
#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;
pub mod watch;

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

use shard::executor::DeviceName;

pub use limits::{give_way, open_files};
pub use system::WITHOUT_FILTER;

/// Open files of a confined child: standard streams, the socket twice, the model's parts, what a runtime waits with.
const MAX_FILES: u64 = 64 + shard::gguf::split::MAX_PARTS as u64;
/// Open files of a worker whose device has a driver: device nodes, libraries, caches, pieces of shared memory.
const DRIVER_FILES: u64 = 1024 + MAX_FILES;
/// Address space beyond what was counted: stacks, the allocator's arenas (64 MiB each), scratch memory of passes.
pub const SLACK_BYTES: u64 = 6 << 30;

/// What a process is confined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It computes for the process at the other end of its socket.
    Compute,
    /// It answers requests of the process at the other end of its socket, with tasks that wait.
    Engine,
    /// It is a command, and shows what it finds at a terminal.
    Command,
}

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Confinement {
    /// Whether system calls are filtered.
    pub filtered: bool,
    /// Whether the kernel has Landlock, which the filter does not depend on.
    pub landlocked: bool,
}

/// What a child does first: it dies with the thread that started it, leaves no core, opens few files.
pub fn begin_child() {
    begin_child_with(MAX_FILES);
}

/// As [`begin_child`], for one that works with at most `files` open files.
pub fn begin_child_with(files: u64) {
    system::die_with_parent();
    limits::lower_core();
    limits::lower_files(files);
}

/// Whether traces leave this process, which needs its network.
static SENDS: AtomicBool = AtomicBool::new(false);

/// From now on [`command`] leaves this process its network: traces go to a collector.
pub fn keep_network() {
    SENDS.store(true, Ordering::Relaxed);
}

/// What a worker does first, before it knows what it will compute on: as [`begin_child`], with files enough for a driver.
pub fn begin_worker() {
    begin_child_with(DRIVER_FILES);
}

/// Confines a worker that computes on `device` with `memory` bytes of address space. A driver opens files, maps the device's
/// memory and makes calls that are its own: such a worker keeps what its user may do, but for the number of open files.
pub fn enter_worker(purpose: Purpose, device: &str, memory: u64) -> Confinement {
    if !computes_on_processors(device) {
        return Confinement::default();
    }
    limits::lower_files(MAX_FILES);
    limit_memory(memory);
    enter(purpose)
}

/// Confines this process, a command that has opened what it was told to and will compute on `device`, unless its traces go
/// to a collector. Later calls change nothing.
pub fn command(device: &str) {
    static ONCE: Once = Once::new();
    if computes_on_processors(device) && !SENDS.load(Ordering::Relaxed) {
        ONCE.call_once(|| {
            enter(Purpose::Command);
        });
    }
}

/// Gives up what can be given up, for good. Call it with one thread; what cannot be given up is told on standard error.
pub fn enter(purpose: Purpose) -> Confinement {
    limits::lower_core();
    system::confine(purpose)
}

/// Whether what computes needs no driver, whose files and calls no filter here knows.
pub fn computes_on_processors(device: &str) -> bool {
    let chosen_later = cfg!(any(feature = "cuda", feature = "metal"));
    let known = device.parse::<DeviceName>().ok();
    known.is_some_and(|name| !(name.has_driver() || chosen_later && name == DeviceName::Auto))
}

/// Address space for a model of `file_bytes` and caches of `kv_bytes`: mapped, packed, and as much again; an eighth of the slabs that
/// caches lie in may be unused. A header that asks for more is hostile.
pub fn for_model(file_bytes: u64, kv_bytes: u64) -> u64 {
    let caches = kv_bytes.saturating_add(kv_bytes / 7);
    file_bytes.saturating_mul(3).saturating_add(caches).saturating_add(SLACK_BYTES)
}

/// Lets `bytes` more of address space than is used now be taken; nothing may raise that again.
pub fn limit_memory(bytes: u64) {
    if let Some(used) = system::address_space() {
        limits::lower_memory(used.saturating_add(bytes));
    }
}

/// Lets this process use `seconds` of processor time and no more.
pub fn limit_time(seconds: u64) {
    limits::lower_time(seconds);
}
