//! The `shoal` binary: parse, run, print the error, exit.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = node::cli::Cli::parse();
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
