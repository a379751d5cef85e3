//! `shoal completions`: what makes a shell complete commands and flags.

use clap::CommandFactory;

use crate::{
    Result,
    cli::{Cli, CompletionsArgs},
    output,
};

pub(super) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "shoal", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
