//! Commands of the swarm: start a node, ask one that runs.

mod ask;
mod demo;
mod doctor;
mod history;
mod join;
mod link;
pub mod local;
mod look;
mod name;
mod network;
mod news;
mod plan_alone;
pub mod remote;
mod resume;
mod screen;
mod up;
mod verify;
mod watch;
mod which;

use tokio::runtime::{Builder, Runtime};

pub(super) use self::{
    ask::{invite, leave, pause, peers, plan, receipts, status, why},
    demo::demo,
    doctor::doctor,
    join::join,
    name::name,
    resume::resume,
    up::up,
    verify::verify,
};
use crate::{Result, cli::swarm::HomeArgs, library};

/// Threads for sockets and timers; the layers run elsewhere.
const IO_THREADS: usize = 2;

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(IO_THREADS).enable_all().build()?)
}

impl HomeArgs {
    /// The data folder.
    pub fn path(&self) -> Result<std::path::PathBuf> {
        self.home.clone().map_or_else(library::home, Ok)
    }
}
