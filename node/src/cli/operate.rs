//! Flags of every command, and the commands of who runs a node for months.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand};

use super::swarm::HomeArgs;

/// Flags that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct GlobalArgs {
    /// Settings to read; "none" reads none [default: config.toml, see `shoal config path`]
    #[arg(long, global = true, value_name = "FILE", env = "SHOAL_CONFIG")]
    pub config: Option<OsString>,
    /// Report what happens on standard error: error, warn, info, debug or trace, or as p2p=debug,node=info
    #[arg(long, global = true, value_name = "LEVEL", env = "SHOAL_LOG")]
    pub log: Option<String>,
    /// Report into this file instead, at the level info where --log says no other; at 16 MiB it becomes FILE.1, which replaces the
    /// one before
    #[arg(long, global = true, value_name = "FILE", env = "SHOAL_LOG_FILE")]
    pub log_file: Option<OsString>,
    /// How it is reported: text for people, json for programs
    #[arg(long, global = true, value_name = "FORMAT", env = "SHOAL_LOG_FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub log_format: String,
    /// Send traces (times and sizes, never text) to an OpenTelemetry collector, e.g. http://127.0.0.1:4318/v1/traces; needs a
    /// build with the feature `otlp`, as the packages are
    #[arg(long, global = true, value_name = "URL", env = "SHOAL_OTLP")]
    pub otlp: Option<String>,
}

/// `shoal status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// Follow it: a screen on a terminal (q leaves), plain lines elsewhere
    #[arg(short, long)]
    pub watch: bool,
    /// How it went on other days, whether the node runs or not
    #[arg(long, conflicts_with = "watch")]
    pub history: bool,
    /// Days of the history
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=30), requires = "history")]
    pub days: u32,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval, requires = "watch")]
    pub every: f64,
    /// One JSON object (with --watch one per look)
    #[arg(long)]
    pub json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds from 0.1 to 3600".into())
}

/// `shoal doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// Write what was found into this file, without addresses, names, paths or prompts: for a bug report
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Every setting, its value and where it came from
    #[command(after_help = "Examples:
  shoal config show
  shoal config show --json
  shoal config show -- join --memory 1024      what that command would use")]
    Show {
        /// A command line whose flags count, too
        #[arg(last = true, value_name = "COMMAND")]
        line: Vec<OsString>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Where the settings are read from
    #[command(after_help = "Example:
  shoal config path")]
    Path {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print a file with every setting, commented out
    #[command(after_help = "Example:
  shoal config template > ~/.config/shoal/config.toml")]
    Template,
}

/// `shoal completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `shoal man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder; it is made where it does not exist
    pub folder: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
