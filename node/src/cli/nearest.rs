//! The nearest command to a mistyped one.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What other programs call it.
const ELSEWHERE: [(&str, &str); 9] = [
    ("ls", "model list"),
    ("models", "model list"),
    ("show", "model inspect"),
    ("download", "model pull"),
    ("ps", "status"),
    ("start", "join"),
    ("stop", "leave"),
    ("ask", "run"),
    ("generate", "run"),
];

/// Names the command that was meant in `error` where a word of `argv` is none: one by that name below another command, what
/// other programs call so, else the nearest one. clap compares letters at their places and takes `rnu` for far from `run`, so
/// where it has no guess a letter too many, too few, another or two swapped make one mistake; half of a word's letters may be
/// mistaken, at most two.
pub(crate) fn suggest(mut error: clap::Error, command: &clap::Command, argv: &[OsString]) -> clap::Error {
    let guessed = error.get(ContextKind::SuggestedSubcommand).is_some();
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand => word.clone(),
        _ => return error,
    };
    let mut parent = command;
    for part in argv.iter().skip(1).take_while(|part| **part != *word) {
        parent = parent.find_subcommand(part).unwrap_or(parent);
    }
    if let Some(meant) = meant(&word, command).filter(|_| parent.get_name() == command.get_name()) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
        return error;
    }
    if guessed {
        return error;
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

/// What the first word of a command line may stand for, as one types it.
fn meant(word: &str, command: &clap::Command) -> Option<Vec<String>> {
    let below = |parent: &clap::Command| {
        let known = parent.find_subcommand(word).filter(|known| !known.is_hide_set())?;
        Some(format!("{} {}", parent.get_name(), known.get_name()))
    };
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == word).map(|(_, name)| (*name).to_owned());
    let mut names: Vec<String> = command.get_subcommands().filter_map(below).collect();
    // Models are what other programs have such words for.
    names.sort_by_key(|name| !name.starts_with("model "));
    let names: Vec<String> = elsewhere.into_iter().chain(names).collect();
    Some(names).filter(|names| !names.is_empty())
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
        for (word, name) in
            [("list", "'model list'"), ("pull", "'model pull'"), ("rm", "'model rm'"), ("ps", "'status'")]
        {
            let said = said(&[word]);
            assert!(said.contains("similar") && said.contains(name), "{word}: {said}");
        }
        for (_, name) in ELSEWHERE {
            let mut command = crate::cli::Cli::command();
            for part in name.split(' ') {
                command = command.find_subcommand(part).expect(name).clone();
            }
        }
        let far = said(&["lighthouse"]);
        assert!(!far.contains("similar"), "{far}");
    }
}
