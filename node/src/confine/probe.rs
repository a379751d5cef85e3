//! Tries from inside everything that a confined process must not be able to do: `shoal worker --probe`, in debug builds.
//!
//! It says on the socket what worked, one name a line, and last what worked of the things that computing needs. The filter's
//! own test goes over every number; this one asks the kernel.

use std::{
    fs,
    io::{self, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Command,
    thread,
};

use rustix::{
    fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, Timestamps},
    mount::FsOpenFlags,
    process::{Pid, PidfdFlags, Resource, Rlimit, Signal},
    thread::CpuSet,
};

use super::{Purpose, begin_child, enter};
use crate::{Error, Result};

/// The child.
///
/// # Errors
/// When standard input is no socket.
pub fn run() -> Result<()> {
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if stream.peer_addr().is_err() {
        return Err(Error::usage(
            "`shoal worker` is started by the daemon: standard input must be its socket",
        ));
    }
    let folder = std::env::temp_dir();
    let file = folder.join(format!("shoal-probe-{}", std::process::id()));
    fs::write(&file, "x")?;
    let parent = rustix::process::getppid();
    begin_child();
    let confinement = enter(Purpose::Compute);
    let mut said = format!("filtered {}\n", confinement.filtered);
    for (name, done) in attempts(&file, &folder, parent) {
        if done {
            said += &format!("permitted {name}\n");
        }
    }
    for (name, done) in needs() {
        if !done {
            said += &format!("missing {name}\n");
        }
    }
    said += "end\n";
    Ok(stream.write_all(said.as_bytes())?)
}

/// Whether each of what must be refused was not.
fn attempts(file: &Path, folder: &Path, parent: Option<Pid>) -> Vec<(&'static str, bool)> {
    let missing = Path::new("/no/such/file");
    let new = folder.join("shoal-probe-new");
    let times = || Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 },
    };
    // Whether the parent may be signaled; signal 0 asks without sending.
    let other = |does: fn(Pid) -> bool| parent.is_some_and(does);
    let no_limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    vec![
        ("open for reading", fs::File::open(file).is_ok()),
        ("open for writing", fs::OpenOptions::new().write(true).open(file).is_ok()),
        ("create", fs::write(&new, "x").is_ok()),
        ("open a folder", fs::read_dir("/").is_ok()),
        ("read /proc", fs::read("/proc/self/maps").is_ok()),
        // Whether a file exists is known to a process that gets "no such file".
        (
            "look for a file",
            fs::symlink_metadata(missing).is_err_and(|e| e.kind() == io::ErrorKind::NotFound),
        ),
        ("look at a file", fs::metadata(file).is_ok()),
        ("look at a file by its folder", rustix::fs::statat(CWD, file, AtFlags::empty()).is_ok()),
        ("read a link", fs::read_link("/proc/self/exe").is_ok()),
        ("remove", fs::remove_file(file).is_ok()),
        ("rename", fs::rename(file, &new).is_ok()),
        ("link", fs::hard_link(file, &new).is_ok()),
        ("symbolic link", std::os::unix::fs::symlink(file, &new).is_ok()),
        ("make a folder", fs::create_dir(&new).is_ok()),
        ("change a mode", rustix::fs::chmodat(CWD, file, Mode::RWXU, AtFlags::empty()).is_ok()),
        ("change an owner", std::os::unix::fs::chown(file, Some(0), Some(0)).is_ok()),
        ("change times", rustix::fs::utimensat(CWD, file, &times(), AtFlags::empty()).is_ok()),
        (
            "set an attribute",
            rustix::fs::setxattr(file, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_ok(),
        ),
        ("change the working folder", std::env::set_current_dir("/").is_ok()),
        ("a file in memory", rustix::fs::memfd_create("x", MemfdFlags::empty()).is_ok()),
        (
            "shared memory",
            rustix::shm::open(
                "/shoal-probe",
                rustix::shm::OFlags::CREATE | rustix::shm::OFlags::RDWR,
                Mode::RWXU,
            )
            .is_ok(),
        ),
        ("a file system", rustix::mount::fsopen("tmpfs", FsOpenFlags::empty()).is_ok()),
        ("another root", rustix::process::chroot("/").is_ok()),
        ("listen", TcpListener::bind("127.0.0.1:0").is_ok()),
        ("send datagrams", UdpSocket::bind("127.0.0.1:0").is_ok()),
        (
            "connect",
            TcpStream::connect("127.0.0.1:1").is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused),
        ),
        ("a pair of sockets", UnixStream::pair().is_ok()),
        ("a socket with a name", UnixListener::bind(folder.join("shoal-probe.sock")).is_ok()),
        ("a pipe", io::pipe().is_ok()),
        ("start a program", Command::new("/bin/true").spawn().is_ok()),
        ("ask for a process", other(|pid| rustix::process::test_kill_process(pid).is_ok())),
        ("signal a process", other(|pid| rustix::process::kill_process(pid, Signal::CONT).is_ok())),
        ("a handle on a process", other(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).is_ok())),
        (
            "limits of a process",
            other(|pid| {
                let limit = Rlimit { current: None, maximum: None };
                rustix::process::prlimit(Some(pid), Resource::Core, limit).is_ok()
            }),
        ),
        ("own limits", rustix::process::setrlimit(Resource::Nofile, no_limit).is_ok()),
        ("priority of a process", other(|pid| rustix::process::setpriority_process(Some(pid), 1).is_ok())),
        ("own priority", rustix::process::nice(1).is_ok()),
        (
            "processors of a process",
            other(|pid| {
                let mut set = CpuSet::new();
                set.set(0);
                rustix::thread::sched_setaffinity(Some(pid), &set).is_ok()
            }),
        ),
        ("a process group", rustix::process::setsid().is_ok()),
        ("duplicates of descriptors by number", rustix::io::dup(io::stdin().as_fd()).is_ok()),
        ("privileges", rustix::thread::capabilities(None).is_ok_and(|sets| !sets.effective.is_empty())),
        ("a directory handle", rustix::fs::open("/", OFlags::PATH, Mode::empty()).is_ok()),
    ]
}

/// What computing needs.
fn needs() -> Vec<(&'static str, bool)> {
    vec![
        ("threads", thread::spawn(|| 7).join().is_ok_and(|seven| seven == 7)),
        ("memory", std::hint::black_box(vec![1_u8; 64 << 20]).iter().all(|byte| *byte == 1)),
        ("time", std::time::Instant::now().elapsed() < std::time::Duration::from_secs(3600)),
        ("chance", getrandom::u64().is_ok()),
        ("a thread's name", thread::Builder::new().name("probe".into()).spawn(|| ()).is_ok()),
    ]
}
