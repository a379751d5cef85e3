//! What stays on disk of what was computed.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::model::size;
use crate::{Error, Result, control::Lenders, state_store::LEAST_BYTES};

/// What stays on disk of what was computed.
#[derive(Debug, Clone, Args)]
pub struct KeepArgs {
    /// Keep what was computed of own prompts on disk too, encrypted, for seven days and up to this size, e.g. 4GiB: a prompt that
    /// begins like an earlier one is not computed again after a restart. A node also keeps there what it computed for nodes that let it, in
    /// half of the size at most [default: nothing]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub keep_state: Option<u64>,
}

/// What becomes of what was computed.
#[derive(Debug, Clone, Args)]
pub struct StateArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub keep: KeepArgs,
    /// Let the nodes that compute own prompts keep what they computed on their disks, if they run with --keep-state: encrypted with their
    /// keys, for seven days, for prompts of this node alone
    #[arg(long)]
    pub let_keep: bool,
    /// Of whom a stage may get what own prompts left behind, where that is quicker than computing it again; other than off, this
    /// node as a stage gets it too where requesters name a holder
    #[arg(long, value_enum, default_value = "off", value_name = "WHOM")]
    pub fetch_state: FetchState,
    /// Share of the states that this node got as a stage which it computes all the same, to find who gives wrong ones: 0 to 1
    #[arg(long, default_value_t = 0.2, value_name = "SHARE", value_parser = share)]
    pub check_fetched: f64,
}

/// A time such as 90s, 10m or 2h.
pub(super) fn time(text: &str) -> std::result::Result<Duration, String> {
    let unit = |unit: char| text.strip_suffix(unit).and_then(|number| number.trim().parse::<u32>().ok());
    let seconds = unit('s')
        .or(unit('m').and_then(|m| m.checked_mul(60)))
        .or(unit('h').and_then(|h| h.checked_mul(3600)));
    let seconds = seconds.filter(|seconds| *seconds > 0);
    seconds
        .map(|seconds| Duration::from_secs(seconds.into()))
        .ok_or_else(|| "a time is like 90s, 10m or 2h".into())
}

fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".into())
}

/// Of whom a stage gets a state that it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FetchState {
    /// Of no node: it is computed
    Off,
    /// Of nodes whose work was checked often enough that it is not any more each time
    Known,
    /// Of any node that has computed it
    Any,
}

impl From<FetchState> for Lenders {
    fn from(fetch: FetchState) -> Self {
        match fetch {
            FetchState::Off => Self::Off,
            FetchState::Known => Self::Known,
            FetchState::Any => Self::Any,
        }
    }
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
