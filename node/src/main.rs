//! The `shoal` binary: parse, run, print the error, exit.
#![forbid(unsafe_code)]

use std::{ffi::OsString, process::ExitCode};

use node::{Result, commands, config, telemetry};

fn run() -> Result<()> {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let cli = config::command_line(&argv)?;
    let _reporting = telemetry::start(&cli.global)?;
    commands::run(cli)
}

fn main() -> ExitCode {
    match run() {
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
