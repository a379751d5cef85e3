//! What a worker gives up before it looks at a stranger's file.
//!
//! On Linux a system call filter answers "operation not permitted" to the network, to starting programs and processes, to
//! looking into other processes, and to opening files for writing or changing the file system; no privilege can be
//! gained; and the kernel kills the process when the daemon's thread that started it ends. Everywhere, resource limits forbid core dumps
//! (they would hold prompts) and bound memory and open files.
//!
//! Once the model is loaded, [`seal`] denies opening files at all: what can be read then is what is mapped.
//!
//! Limits: the filter is a list of what is denied, so the worker can read files until it has loaded; outside Linux only
//! the resource limits hold. A system without filters is reported, not refused: see [`crate::worker::Ready::sandboxed`].

pub mod child;

use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};

/// Open files of a worker: standard streams, the socket twice, the model, what thread creation looks at.
const MAX_FILES: u64 = 64;
/// Address space beyond what was counted: stacks, the allocator's arenas (64 MiB each), scratch memory of passes.
const SLACK_BYTES: u64 = 6 << 30;
/// How much a worker gives way to other programs, of 19.
const NICENESS: i32 = 10;

/// Gives up what can be given up; call it first, with one thread. Returns whether the filter is in force.
pub fn enter() -> bool {
    lower(Resource::Core, 0, true);
    lower(Resource::Nofile, MAX_FILES, true);
    match confine() {
        Ok(confined) => confined,
        Err(why) => {
            eprintln!("warning: worker: no sandbox: {why}");
            false
        }
    }
}

/// Denies opening files from now on, in all threads. Call it when everything is loaded.
pub fn seal() {
    if let Err(why) = close_files() {
        eprintln!("warning: worker: files can still be opened: {why}");
    }
}

/// Lets `bytes` more than is used now be taken, and some slack; `for_good` if nothing may raise that again.
pub fn limit_memory(bytes: u64, for_good: bool) {
    if let Some(used) = address_space() {
        lower(Resource::As, used.saturating_add(bytes).saturating_add(SLACK_BYTES), for_good);
    }
}

/// Lets this process use `seconds` of processor time and no more.
pub fn limit_time(seconds: u64) {
    lower(Resource::Cpu, seconds, true);
}

/// Lets `bytes` more than is used now be taken, and no slack; nothing may raise that again.
pub fn limit_memory_closely(bytes: u64) {
    if let Some(used) = address_space() {
        lower(Resource::As, used.saturating_add(bytes), true);
    }
}

/// Lets other programs go first.
pub fn give_way() {
    if let Err(error) = nice(NICENESS) {
        eprintln!("warning: worker: {error} when giving way to others");
    }
}

/// Sets the soft limit, never above the hard one; `for_good` sets that too.
fn lower(resource: Resource, to: u64, for_good: bool) {
    let most = getrlimit(resource).maximum;
    let current = Some(most.map_or(to, |most| most.min(to)));
    let maximum = if for_good { current } else { most };
    if let Err(error) = setrlimit(resource, Rlimit { current, maximum }) {
        eprintln!("warning: worker: {error} when limiting {resource:?}");
    }
}

/// Bytes of address space in use.
#[cfg(target_os = "linux")]
fn address_space() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(not(target_os = "linux"))]
fn address_space() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn confine() -> Result<bool, String> {
    Ok(false)
}

#[cfg(not(target_os = "linux"))]
fn close_files() -> Result<(), String> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn close_files() -> Result<(), String> {
    let mut calls = vec![(libc::SYS_openat, Vec::new())];
    #[cfg(target_arch = "x86_64")]
    calls.push((libc::SYS_open, Vec::new()));
    let program = compile(seccompiler::SeccompAction::Errno(libc::EPERM as u32), calls)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

#[cfg(target_os = "linux")]
fn confine() -> Result<bool, String> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    use seccompiler::SeccompAction::Errno;

    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    // The C library falls back to `clone`, whose flags a filter can see, only if `clone3` does not exist.
    install(Errno(libc::ENOSYS as u32), [(libc::SYS_clone3, Vec::new())])?;
    install(Errno(libc::EPERM as u32), denied()?)?;
    Ok(true)
}

#[cfg(target_os = "linux")]
fn install(
    answer: seccompiler::SeccompAction,
    rules: impl IntoIterator<Item = (i64, Vec<seccompiler::SeccompRule>)>,
) -> Result<(), String> {
    seccompiler::apply_filter(&compile(answer, rules)?).map_err(|error| error.to_string())
}

/// A filter that gives `answer` where a rule matches and allows the rest.
#[cfg(target_os = "linux")]
fn compile(
    answer: seccompiler::SeccompAction,
    rules: impl IntoIterator<Item = (i64, Vec<seccompiler::SeccompRule>)>,
) -> Result<seccompiler::BpfProgram, String> {
    let machine = std::env::consts::ARCH.try_into().map_err(|error| format!("{error}"))?;
    let allow = seccompiler::SeccompAction::Allow;
    seccompiler::SeccompFilter::new(rules.into_iter().collect(), allow, answer, machine)
        .and_then(TryInto::try_into)
        .map_err(|error| error.to_string())
}

/// What a worker never needs.
#[cfg(target_os = "linux")]
fn denied() -> Result<Vec<(i64, Vec<seccompiler::SeccompRule>)>, String> {
    use libc as c;
    use seccompiler::{SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq, SeccompCondition, SeccompRule};

    let mut rules: Vec<_> = [
        c::SYS_socket,
        c::SYS_socketpair,
        c::SYS_connect,
        c::SYS_bind,
        c::SYS_listen,
        c::SYS_accept,
        c::SYS_accept4,
        c::SYS_execve,
        c::SYS_execveat,
        c::SYS_ptrace,
        c::SYS_process_vm_readv,
        c::SYS_process_vm_writev,
        c::SYS_kill,
        c::SYS_tkill,
        c::SYS_pidfd_open,
        c::SYS_pidfd_getfd,
        c::SYS_pidfd_send_signal,
        c::SYS_unshare,
        c::SYS_setns,
        c::SYS_mount,
        c::SYS_umount2,
        c::SYS_pivot_root,
        c::SYS_chroot,
        c::SYS_bpf,
        c::SYS_perf_event_open,
        c::SYS_userfaultfd,
        c::SYS_io_uring_setup,
        c::SYS_keyctl,
        c::SYS_add_key,
        c::SYS_request_key,
        c::SYS_init_module,
        c::SYS_finit_module,
        c::SYS_kexec_load,
        c::SYS_open_by_handle_at,
        c::SYS_openat2,
        c::SYS_unlinkat,
        c::SYS_renameat,
        c::SYS_renameat2,
        c::SYS_linkat,
        c::SYS_symlinkat,
        c::SYS_mkdirat,
        c::SYS_mknodat,
        c::SYS_fchmod,
        c::SYS_fchmodat,
        c::SYS_fchown,
        c::SYS_fchownat,
        c::SYS_truncate,
        c::SYS_setuid,
        c::SYS_setgid,
    ]
    .into_iter()
    .map(|call| (call, Vec::new()))
    .collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(
        [
            c::SYS_fork,
            c::SYS_vfork,
            c::SYS_creat,
            c::SYS_unlink,
            c::SYS_rename,
            c::SYS_link,
            c::SYS_symlink,
            c::SYS_mkdir,
            c::SYS_rmdir,
            c::SYS_mknod,
            c::SYS_chmod,
            c::SYS_chown,
            c::SYS_lchown,
        ]
        .map(|call| (call, Vec::new())),
    );
    let bits = |argument: u8, mask: i32, value: i32| {
        let condition = SeccompCondition::new(argument, Dword, MaskedEq(mask as u64), value as u64);
        condition.and_then(|condition| SeccompRule::new(vec![condition])).map_err(|error| error.to_string())
    };
    let writing = |argument: u8| -> Result<Vec<SeccompRule>, String> {
        Ok(vec![
            bits(argument, c::O_ACCMODE, c::O_WRONLY)?,
            bits(argument, c::O_ACCMODE, c::O_RDWR)?,
            bits(argument, c::O_CREAT, c::O_CREAT)?,
            bits(argument, c::O_TRUNC, c::O_TRUNC)?,
        ])
    };
    rules.push((c::SYS_openat, writing(2)?));
    #[cfg(target_arch = "x86_64")]
    rules.push((c::SYS_open, writing(1)?));
    // A new process, as opposed to a thread of this one.
    rules.push((c::SYS_clone, vec![bits(0, c::CLONE_THREAD, 0)?]));
    Ok(rules)
}
