//! `shoal worker`: not for people; see [`crate::worker`] and [`crate::confine`].

use crate::{Result, cli::WorkerArgs};

#[cfg(unix)]
pub(super) fn run(args: &WorkerArgs) -> Result<()> {
    if args.form { crate::constrain::trial::run() } else { crate::worker::process::run() }
}

#[cfg(not(unix))]
pub(super) fn run(_: &WorkerArgs) -> Result<()> {
    Err(crate::Error::usage("workers need a Unix system"))
}
