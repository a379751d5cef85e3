//! A confined child process: started, ended, reaped.
//!
//! Linux kills a child with the *thread* that started it (that is what the child asks for), so a thread of its own
//! starts each child and stays until the child has ended.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use shared_child::SharedChild;
use tokio::sync::oneshot;

use crate::{
    Error, Result,
    platform::streams::{self, BlockingStream},
};

/// The child process.
pub struct Child(Arc<SharedChild>);

impl Child {
    /// Starts `program` with `arguments`, from a thread that stays until the child has ended, and the stream to it. It may have
    /// to give way to other programs.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(
        program: PathBuf,
        arguments: &[&'static str],
        gives_way: bool,
    ) -> io::Result<(Self, BlockingStream)> {
        let (sender, receiver) = oneshot::channel();
        let arguments = arguments.to_vec();
        thread::Builder::new().name("worker-wait".into()).spawn(move || {
            let mut command = command(&program, &arguments);
            for name in KEPT {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
            let started = streams::spawn(command, gives_way)
                .and_then(|(child, stream)| Ok((Arc::new(SharedChild::new(child)?), stream)));
            let (child, stream) = match started {
                Ok(started) => started,
                Err(error) => return drop(sender.send(Err(error))),
            };
            if sender.send(Ok((Self(child.clone()), stream))).is_err() {
                let _ = child.kill();
            }
            let _ = child.wait();
        })?;
        receiver.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts workers ended")))
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it now, whatever it does.
    pub fn kill(&self) {
        let _ = self.0.kill();
    }
}

/// In the child: the stream to what started it.
///
/// # Errors
/// [`Error::Usage`] when a person did.
pub fn to_parent() -> Result<BlockingStream> {
    streams::to_parent()?.ok_or_else(|| {
        Error::usage("`shoal worker` is started by the daemon: standard input must be its socket")
    })
}

/// What starts `program` as a child that says nothing but over its stream, and knows nothing of the environment.
pub fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::inherit()).env_clear();
    command
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
