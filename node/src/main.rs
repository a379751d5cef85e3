//! The `shoal` binary: parse, run, print the error, exit.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// What the node does, on standard error, for those who ask: `SHOAL_LOG=debug` or `SHOAL_LOG=node=info,p2p=debug`.
fn log() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SHOAL_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}

fn main() -> ExitCode {
    let cli = node::cli::Cli::parse();
    log();
    match node::commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("  hint: {hint}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}
