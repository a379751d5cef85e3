//! Every command shows how it is typed.

use clap::{Command, CommandFactory};

use super::{Cli, parses};

/// Commands that are typed, with their names in full.
fn leaves(command: &Command, name: &str, out: &mut Vec<(String, String)>) {
    let below =
        || command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    if below().next().is_none() || !command.is_subcommand_required_set() && !name.is_empty() {
        let help = command.get_after_help().or(command.get_after_long_help());
        out.push((name.to_owned(), help.map(ToString::to_string).unwrap_or_default()));
    }
    for next in below() {
        leaves(next, format!("{name} {}", next.get_name()).trim_start(), out);
    }
}

#[test]
fn every_command_shows_an_example_that_can_be_typed() {
    let (mut all, mut tried) = (Vec::new(), 0);
    leaves(&Cli::command(), "", &mut all);
    assert!(all.len() > 40, "{}", all.len());
    for (name, help) in all {
        assert!(help.contains("xample"), "shoal {name} --help has no example");
        for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
            let typed = line.split("   ").next().unwrap_or_default();
            // What a shell has to read first is left to people.
            if !typed.starts_with("shoal ") || typed.contains(['"', '\'', '\\', '$', '|', '>', '&']) {
                continue;
            }
            tried += 1;
            assert!(parses(typed.split_whitespace().skip(1)), "{name}: {typed}");
        }
    }
    assert!(tried > 40, "{tried}");
}
