//! A confined child process: started, signaled, reaped.
//!
//! Linux kills a child with the *thread* that started it (that is what the child asks for), so a thread of its own
//! starts each child and stays until the child has ended.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::sync::oneshot;

/// The child process, which may be signaled until it is reaped.
pub struct Child {
    /// Its number.
    pub pid: Pid,
    reaped: Arc<Mutex<bool>>,
}

impl Child {
    /// Starts `program` with `arguments` and `stdin`, from a thread that stays until the child has ended.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(program: PathBuf, arguments: &[&'static str], stdin: OwnedFd) -> io::Result<Self> {
        let (sender, receiver) = oneshot::channel();
        let arguments = arguments.to_vec();
        thread::Builder::new().name("worker-wait".into()).spawn(move || {
            let mut command = Command::new(program);
            command.args(arguments).stdin(stdin).stdout(Stdio::null()).stderr(Stdio::inherit()).env_clear();
            // Ctrl-C at a terminal is for the daemon, which lets running sessions end first.
            command.process_group(0);
            for name in KEPT {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
            let spawned = command.spawn();
            // Its copy of the child's end of the pair would hide the child's death.
            drop(command);
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let pid = Pid::from_child(&child);
            let reaped = Arc::new(Mutex::new(false));
            let unclaimed = sender.send(Ok(Self { pid, reaped: reaped.clone() })).is_err();
            if unclaimed {
                let _ = child.kill();
            }
            // Waiting without reaping keeps the process number taken until no code can signal it any more.
            while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                if error != rustix::io::Errno::INTR {
                    break;
                }
            }
            *lock(&reaped) = true;
            let _ = child.wait();
        })?;
        receiver.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts workers ended")))
    }

    /// Ends it now, whatever it does.
    pub fn kill(&self) {
        let reaped = lock(&self.reaped);
        if !*reaped {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// Variables of the environment that a child has too: what it prints, and where drivers of GPUs are.
const KEPT: &[&str] = &[
    "RUST_LOG",
    "RUST_BACKTRACE",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    #[cfg(debug_assertions)]
    "SHOAL_GPU_FAULT",
];

/// A panic elsewhere leaves these maps as consistent as they were.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
