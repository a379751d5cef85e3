//! Which system calls a confined process may make: those named here, and no other.
//!
//! The list is what memory, threads, clocks and the descriptors that are open already need. Nothing on it takes a path, a
//! process number of another process or an address, so there is no opening, looking, starting, signaling or connecting.
//! Where a call is needed in one form only, its arguments are compared: threads but no processes, memory that is never
//! executable, limits that are read and not set.
//!
//! What is not on the list answers "operation not permitted". A number of the x32 interface is on no list; a process that
//! switches to the 32-bit interface is killed.
//!
//! Limits: a filter sees numbers, not what pointers lead to.

use libc as c;
use seccompiler::{
    BpfProgram,
    SeccompAction::{self, Allow, Errno},
    SeccompCmpArgLen::{Dword, Qword},
    SeccompCmpOp::{Eq, MaskedEq},
    SeccompCondition, SeccompFilter, SeccompRule,
};

use super::Purpose;

/// From `linux/prctl.h`: names for memory, which some allocators give.
const PR_SET_VMA: u64 = 0x5356_4d41;
/// From `asm/prctl.h`: whether wide registers may be used, and the wish to use them.
#[cfg(target_arch = "x86_64")]
const ARCH_XCOMP: [u64; 3] = [0x1021, 0x1022, 0x1023];
/// A thread of this process, as opposed to a process.
const THREAD: u64 = (c::CLONE_VM | c::CLONE_SIGHAND | c::CLONE_THREAD) as u64;
/// Flags of `clone` that make namespaces: no thread is made with them.
const NAMESPACES: u64 = (c::CLONE_NEWNS
    | c::CLONE_NEWCGROUP
    | c::CLONE_NEWUTS
    | c::CLONE_NEWIPC
    | c::CLONE_NEWUSER
    | c::CLONE_NEWPID
    | c::CLONE_NEWNET) as u64;

/// Calls that are allowed whatever their arguments.
const FREE: &[c::c_long] = &[
    // Open descriptors.
    c::SYS_read,
    c::SYS_readv,
    c::SYS_pread64,
    c::SYS_pwrite64,
    c::SYS_write,
    c::SYS_writev,
    c::SYS_recvfrom,
    c::SYS_sendto,
    c::SYS_shutdown,
    c::SYS_close,
    c::SYS_lseek,
    c::SYS_fstat,
    c::SYS_ppoll,
    // Memory.
    c::SYS_brk,
    c::SYS_munmap,
    c::SYS_mremap,
    c::SYS_madvise,
    c::SYS_set_mempolicy,
    // Threads and what they wait for.
    c::SYS_futex,
    c::SYS_set_robust_list,
    c::SYS_rseq,
    c::SYS_sched_yield,
    c::SYS_sched_getaffinity,
    c::SYS_getpid,
    c::SYS_gettid,
    c::SYS_rt_sigaction,
    c::SYS_rt_sigprocmask,
    c::SYS_rt_sigreturn,
    c::SYS_sigaltstack,
    c::SYS_restart_syscall,
    c::SYS_exit,
    c::SYS_exit_group,
    // Time and chance.
    c::SYS_clock_gettime,
    c::SYS_clock_getres,
    c::SYS_clock_nanosleep,
    c::SYS_nanosleep,
    c::SYS_gettimeofday,
    c::SYS_getrusage,
    c::SYS_getrandom,
];

/// More of them for a process that has a runtime of asynchronous tasks, made before.
const ASYNC: &[c::c_long] = &[c::SYS_epoll_ctl, c::SYS_epoll_pwait];

/// More of them for a command at a terminal: a pipe of its own wakes the thread that waits for Ctrl-C, and lines are edited.
const TERMINAL: &[c::c_long] = &[c::SYS_pipe2, c::SYS_pselect6];

type Rules = Vec<(i64, Vec<SeccompRule>)>;

/// Conditions on arguments that must all hold.
fn rule(
    conditions: &[(u8, seccompiler::SeccompCmpArgLen, seccompiler::SeccompCmpOp, u64)],
) -> Result<SeccompRule, String> {
    let conditions = conditions
        .iter()
        .map(|(argument, length, compare, value)| {
            SeccompCondition::new(*argument, length.clone(), compare.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>();
    conditions.and_then(SeccompRule::new).map_err(|error| error.to_string())
}

/// One of `values` in an argument.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, String> {
    values.iter().map(|value| rule(&[(argument, Dword, Eq, *value)])).collect()
}

/// What may be done, for the process `pid`.
fn allowed(purpose: Purpose, pid: u32) -> Result<Rules, String> {
    let mut free = FREE.to_vec();
    #[cfg(target_arch = "x86_64")]
    free.push(c::SYS_poll);
    if purpose == Purpose::Engine {
        free.extend_from_slice(ASYNC);
        #[cfg(target_arch = "x86_64")]
        free.push(c::SYS_epoll_wait);
    }
    if purpose == Purpose::Command {
        free.extend_from_slice(TERMINAL);
        #[cfg(target_arch = "x86_64")]
        free.push(c::SYS_select);
    }
    let mut rules: Rules = free.into_iter().map(|call| (call, Vec::new())).collect();
    let plain_memory = || rule(&[(2, Dword, MaskedEq(c::PROT_EXEC as u64), 0)]);
    rules.extend([
        (c::SYS_mmap, vec![plain_memory()?]),
        (c::SYS_mprotect, vec![plain_memory()?]),
        (c::SYS_clone, vec![rule(&[(0, Qword, MaskedEq(THREAD | NAMESPACES), THREAD)])?]),
        // It never gets here: the filter below says that the call does not exist.
        (c::SYS_clone3, Vec::new()),
        // How a process of ours aborts.
        (c::SYS_tgkill, vec![rule(&[(0, Dword, Eq, u64::from(pid))])?]),
        // The calling thread's own processors.
        (c::SYS_sched_setaffinity, vec![rule(&[(0, Dword, Eq, 0)])?]),
        // Limits are read and not set.
        (c::SYS_prlimit64, vec![rule(&[(0, Dword, Eq, 0), (2, Qword, Eq, 0)])?]),
        (c::SYS_prctl, one_of(0, &[c::PR_SET_NAME as u64, c::PR_GET_NAME as u64, PR_SET_VMA])?),
        (
            c::SYS_fcntl,
            one_of(
                1,
                &[c::F_GETFD, c::F_SETFD, c::F_GETFL, c::F_SETFL, c::F_DUPFD_CLOEXEC].map(|flag| flag as u64),
            )?,
        ),
    ]);
    #[cfg(target_arch = "x86_64")]
    rules.push((c::SYS_arch_prctl, one_of(0, &ARCH_XCOMP)?));
    if purpose == Purpose::Command {
        // How wide the terminal is, and how its keys are read; not what is typed into it.
        let asks = [c::TCGETS, c::TCSETS, c::TCSETSW, c::TCSETSF, c::TIOCGWINSZ, c::FIONBIO].map(u64::from);
        rules.push((c::SYS_ioctl, one_of(1, &asks)?));
        // What wakes the reader of keys when the window changes: two ends in this process.
        rules.push((c::SYS_socketpair, one_of(0, &[c::AF_UNIX as u64])?));
        // Ctrl-Z, which the terminal would send to the same processes.
        rules.push((c::SYS_kill, vec![rule(&[(0, Dword, Eq, 0), (1, Dword, Eq, c::SIGTSTP as u64)])?]));
    }
    Ok(rules)
}

fn compile(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, String> {
    let machine = std::env::consts::ARCH.try_into().map_err(|error| format!("{error}"))?;
    SeccompFilter::new(rules.into_iter().collect(), otherwise, matched, machine)
        .and_then(TryInto::try_into)
        .map_err(|error| error.to_string())
}

/// The programs to install, in this order.
pub(super) fn programs(purpose: Purpose, pid: u32) -> Result<[BpfProgram; 2], String> {
    Ok([
        // The C library falls back to `clone`, whose flags a filter can see, only if `clone3` does not exist.
        compile(vec![(c::SYS_clone3, Vec::new())], Allow, Errno(c::ENOSYS as u32))?,
        compile(allowed(purpose, pid)?, Errno(c::EPERM as u32), Allow)?,
    ])
}

/// Puts the filter in force for all threads of this process.
pub(super) fn install(purpose: Purpose) -> Result<(), String> {
    for program in programs(purpose, std::process::id())? {
        seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 4242;
    /// What `seccomp` returns for an allowed call, and for a refused one together with its error.
    const ALLOWED: u32 = 0x7fff_0000;
    const REFUSED: u32 = 0x0005_0000;

    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xc000_00b7;

    /// What the kernel does with a program: the instructions that filters of this kind consist of.
    fn verdict(program: &BpfProgram, call: u32, arguments: [u64; 6], arch: u32) -> u32 {
        let mut data = [call.to_le_bytes(), arch.to_le_bytes(), [0; 4], [0; 4]].concat();
        arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
        let (mut at, mut value) = (0_usize, 0_u32);
        loop {
            let step = &program[at];
            let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            at += 1;
            match step.code {
                // Load a word; compare, jump; mask; give a verdict.
                0x20 => {
                    let from = step.k as usize;
                    value = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                }
                0x05 => at += step.k as usize,
                0x15 => at += jump(value == step.k),
                0x25 => at += jump(value > step.k),
                0x35 => at += jump(value >= step.k),
                0x54 => value &= step.k,
                0x06 => return step.k,
                code => panic!("an instruction of an unknown kind: {code:#x}"),
            }
        }
    }

    fn allows(purpose: Purpose, call: i64, arguments: [u64; 6]) -> bool {
        let [_, program] = programs(purpose, PID).unwrap();
        let verdict = verdict(&program, call as u32, arguments, ARCH);
        assert!(verdict == ALLOWED || verdict == REFUSED | c::EPERM as u32, "{verdict:#x}");
        verdict == ALLOWED
    }

    /// Every number there is, with arguments that ask for what must not be had.
    #[test]
    fn nothing_passes_but_what_is_named() {
        let most: Vec<i64> = [FREE, ASYNC, TERMINAL].concat();
        // Executable memory, another process, all flags of a clone but that of threads, a new limit, any request.
        let asked = [1, c::TIOCSTI, 7, u64::MAX, u64::MAX, u64::MAX];
        for purpose in [Purpose::Compute, Purpose::Engine, Purpose::Command] {
            let [_, program] = programs(purpose, PID).unwrap();
            let mut passed = 0;
            for call in 0..700 {
                let says = verdict(&program, call as u32, asked, ARCH) == ALLOWED;
                passed += usize::from(says);
                let pair = purpose == Purpose::Command && call == c::SYS_socketpair;
                let named = most.contains(&call) || call == c::SYS_clone3 || pair;
                #[cfg(target_arch = "x86_64")]
                let named = named || [c::SYS_poll, c::SYS_epoll_wait, c::SYS_select].contains(&call);
                assert!(named || !says, "{purpose:?} lets call {call} pass");
                // The same by its x32 number.
                let x32 = 0x4000_0000 | call as u32;
                assert_ne!(verdict(&program, x32, asked, ARCH), ALLOWED, "x32 {call}");
            }
            assert!((35..=48).contains(&passed), "{purpose:?}: {passed} calls pass without a condition");
            // The 32-bit interface has other numbers: nothing of it is answered.
            assert_ne!(verdict(&program, c::SYS_read as u32, [0; 6], 0x4000_0003), ALLOWED);
        }
    }

    #[test]
    fn calls_with_two_faces_pass_with_the_harmless_one_only() {
        let compute = |call, arguments| allows(Purpose::Compute, call, arguments);
        let [me, other] = [u64::from(PID), u64::from(PID) + 1];
        let thread = 0x3d_0f00;
        for (call, harmless, harmful) in [
            (c::SYS_mmap, [0, 4096, 3, 0x22, 0, 0], [0, 4096, 7, 0x22, 0, 0]),
            (c::SYS_mprotect, [0, 4096, 3, 0, 0, 0], [0, 4096, 5, 0, 0, 0]),
            (c::SYS_clone, [thread, 0, 0, 0, 0, 0], [c::SIGCHLD as u64, 0, 0, 0, 0, 0]),
            (c::SYS_clone, [thread, 0, 0, 0, 0, 0], [thread | c::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]),
            (c::SYS_tgkill, [me, me, 6, 0, 0, 0], [other, other, 9, 0, 0, 0]),
            (c::SYS_sched_setaffinity, [0, 128, 1, 0, 0, 0], [other, 128, 1, 0, 0, 0]),
            (c::SYS_prlimit64, [0, 7, 0, 1, 0, 0], [0, 7, 1 << 40, 0, 0, 0]),
            (c::SYS_prlimit64, [0, 7, 0, 1, 0, 0], [other, 7, 0, 1, 0, 0]),
            (c::SYS_prctl, [c::PR_SET_NAME as u64, 1, 0, 0, 0, 0], [c::PR_SET_SECCOMP as u64, 0, 0, 0, 0, 0]),
            (c::SYS_fcntl, [0, c::F_GETFL as u64, 0, 0, 0, 0], [0, c::F_SETOWN as u64, 1, 0, 0, 0]),
        ] {
            assert!(compute(call, harmless), "{call}");
            assert!(!compute(call, harmful), "{call}");
        }
        assert!(allows(Purpose::Command, c::SYS_ioctl, [0, c::TCGETS, 0, 0, 0, 0]));
        assert!(!allows(Purpose::Command, c::SYS_ioctl, [0, c::TIOCSTI, 0, 0, 0, 0]));
        assert!(allows(Purpose::Command, c::SYS_kill, [0, c::SIGTSTP as u64, 0, 0, 0, 0]));
        assert!(!allows(Purpose::Command, c::SYS_kill, [0, c::SIGKILL as u64, 0, 0, 0, 0]));
        assert!(!allows(Purpose::Command, c::SYS_kill, [other, c::SIGTSTP as u64, 0, 0, 0, 0]));
        assert!(!compute(c::SYS_ioctl, [0, c::TCGETS, 0, 0, 0, 0]));
    }

    #[test]
    fn calls_that_reach_out_are_refused_by_name() {
        for call in [
            c::SYS_openat,
            c::SYS_openat2,
            c::SYS_newfstatat,
            c::SYS_statx,
            c::SYS_execve,
            c::SYS_socket,
            c::SYS_connect,
            c::SYS_socketpair,
            c::SYS_kill,
            c::SYS_tkill,
            c::SYS_rt_sigqueueinfo,
            c::SYS_rt_tgsigqueueinfo,
            c::SYS_setpriority,
            c::SYS_ptrace,
            c::SYS_process_vm_readv,
            c::SYS_pidfd_open,
            c::SYS_fchmodat2,
            c::SYS_setxattr,
            c::SYS_utimensat,
            c::SYS_shmget,
            c::SYS_mq_open,
            c::SYS_memfd_create,
            c::SYS_fsopen,
            c::SYS_mount,
            c::SYS_unshare,
            c::SYS_bpf,
            c::SYS_io_uring_setup,
            c::SYS_userfaultfd,
            c::SYS_keyctl,
            c::SYS_seccomp,
            c::SYS_sendmsg,
            c::SYS_recvmsg,
            c::SYS_ftruncate,
            c::SYS_fchmod,
            c::SYS_inotify_init1,
            c::SYS_personality,
        ] {
            for purpose in [Purpose::Compute, Purpose::Engine, Purpose::Command] {
                assert!(!allows(purpose, call, [0; 6]), "{purpose:?}: {call}");
            }
        }
        let [clone3, _] = programs(Purpose::Compute, PID).unwrap();
        assert_eq!(verdict(&clone3, c::SYS_clone3 as u32, [0; 6], ARCH), REFUSED | c::ENOSYS as u32);
    }
}
