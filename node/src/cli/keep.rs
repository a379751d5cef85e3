//! What stays on disk of what was computed.

use clap::Args;

use super::model::size;
use crate::{Error, Result, state_store::LEAST_BYTES};

/// What stays on disk of what was computed.
#[derive(Debug, Clone, Args)]
pub struct KeepArgs {
    /// Keep what was computed of own prompts on disk too, encrypted, for seven days and up to this size, e.g. 4GiB: a prompt that
    /// begins like an earlier one is not computed again after a restart [default: nothing]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub keep_state: Option<u64>,
}

impl KeepArgs {
    /// The size of the file, bytes.
    ///
    /// # Errors
    /// One that holds no state.
    pub fn bytes(&self) -> Result<Option<u64>> {
        match self.keep_state {
            Some(bytes) if bytes < LEAST_BYTES => Err(Error::usage(format!(
                "--keep-state needs {}MiB at least: a thousand tokens of a small model take about that much",
                LEAST_BYTES >> 20
            ))),
            bytes => Ok(bytes),
        }
    }
}
