//! The nearest command to a mistyped one.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names the nearest command in `error` where a word of `argv` is none and clap has no guess: clap compares letters at their
/// places and takes `rnu` for far from `run`. A letter too many, too few, another or two swapped make one mistake; half of a
/// word's letters may be mistaken, at most two.
pub(crate) fn suggest(mut error: clap::Error, command: &clap::Command, argv: &[OsString]) -> clap::Error {
    let guessed = error.get(ContextKind::SuggestedSubcommand).is_some();
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand && !guessed => {
            word.clone()
        }
        _ => return error,
    };
    let mut parent = command;
    for part in argv.iter().skip(1).take_while(|part| **part != *word) {
        parent = parent.find_subcommand(part).unwrap_or(parent);
    }
    let most = (word.chars().count() / 2).clamp(1, 2);
    let names = parent.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    let near =
        names.map(|name| (strsim::osa_distance(&word, name), name)).filter(|(mistakes, _)| *mistakes <= most);
    if let Some((_, name)) = near.min() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name.to_owned()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn said(words: &[&str]) -> String {
        let argv: Vec<OsString> = [&["shoal"], words].concat().into_iter().map(OsString::from).collect();
        let error = crate::cli::Cli::command().try_get_matches_from(&argv).expect_err("no such command");
        suggest(error, &crate::cli::Cli::command(), &argv).to_string()
    }

    #[test]
    fn a_mistyped_command_gets_the_nearest_one() {
        for (words, name) in [
            (&["rnu"][..], "'run'"),
            (&["rn"], "'run'"),
            (&["jion"], "'join'"),
            (&["statsu"], "'status'"),
            (&["model", "lsit"], "'list'"),
            (&["--log", "info", "model", "ad"], "'add'"),
        ] {
            let said = said(words);
            assert!(said.contains("similar") && said.contains(name), "{words:?}: {said}");
        }
        let far = said(&["lighthouse"]);
        assert!(!far.contains("similar"), "{far}");
    }
}
