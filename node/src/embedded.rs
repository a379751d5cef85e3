//! A node inside another program.
//!
//! ```no_run
//! use node::embedded::{self, EmbeddedNode};
//!
//! fn main() -> node::Result<()> {
//!     if embedded::is_worker() {
//!         return embedded::work();
//!     }
//!     let node = EmbeddedNode::join("shoal-of-mine".as_ref(), ["--ask-only"])?;
//!     println!("this program is the node {}", node.status()?.network.node);
//!     node.leave()
//! }
//! ```
//!
//! The command line is the interface: what `shoal join` takes goes here too, and nothing but errors is printed. A node computes
//! in processes of its own, which are this program started again with the word `worker`: `main` begins with that. The data folder
//! is the program's: a user's own node, if one runs, is another. Ctrl-C ends the first node of a process, unless the program has a
//! handler of its own.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::runtime::{self, Runtime};

use crate::{
    Error, Result, commands, config,
    control::{self, Question},
    reports::{StatusReport, SwitchReport},
};

/// How often a node that starts is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A node of this process.
pub struct EmbeddedNode {
    home: PathBuf,
    runtime: Runtime,
    thread: JoinHandle<Result<()>>,
}

fn run(words: Vec<OsString>) -> Result<()> {
    commands::run(config::command_line(&words)?)
}

/// Whether a node started this process to compute.
pub fn is_worker() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == "worker")
}

/// Computes for the node that started this process, until it ends.
///
/// # Errors
/// When a node did not start it.
pub fn work() -> Result<()> {
    run(std::env::args_os().collect())
}

impl EmbeddedNode {
    /// Joins a swarm with the data folder `home` and what else `shoal join` takes; returns when the node can be asked. Settings of
    /// the user do not count.
    ///
    /// # Errors
    /// Those of `shoal join`.
    pub fn join(home: &Path, more: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self> {
        if control::is_running(home) {
            return Err(Error::usage(format!("a node runs in {} already", home.display())));
        }
        let mut words =
            ["shoal", "--config", "none", "join", "--quiet", "--home"].map(OsString::from).to_vec();
        words.push(home.into());
        words.extend(more.into_iter().map(Into::into));
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("shoal".into()).spawn(|| run(words))?;
        let node = Self { home: home.to_owned(), runtime, thread };
        while !control::is_running(home) {
            if node.thread.is_finished() {
                node.ended()?;
                return Err(Error::Failed("the node ended before it could be asked".into()));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(node)
    }

    /// What `shoal status` says.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn status(&self) -> Result<StatusReport> {
        self.runtime.block_on(control::one(&self.home, &Question::Status))
    }

    /// Leaves the swarm and waits for the node to end.
    ///
    /// # Errors
    /// That with which it ended.
    pub fn leave(self) -> Result<()> {
        let asked = self.runtime.block_on(control::one::<SwitchReport>(&self.home, &Question::Leave));
        // A node that has ended says why itself.
        self.ended().and(asked.map(drop))
    }

    fn ended(self) -> Result<()> {
        self.thread.join().map_err(|_| Error::Failed("the node failed".into()))?
    }
}
