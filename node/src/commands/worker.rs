//! `shoal worker`: not for people; see [`crate::worker`] and [`crate::confine`].

use crate::{Result, cli::WorkerArgs};

pub(super) fn run(args: &WorkerArgs) -> Result<()> {
    #[cfg(all(debug_assertions, target_os = "linux"))]
    if args.probe {
        return crate::confine::probe::run();
    }
    match args {
        WorkerArgs { form: true, .. } => crate::constrain::trial::run(),
        WorkerArgs { header: true, .. } => crate::header::run(),
        WorkerArgs { convert: true, .. } => super::convert::run_confined(),
        WorkerArgs { engine: true, .. } => crate::inference::local::engine::run(),
        _ => crate::worker::process::run(),
    }
}
