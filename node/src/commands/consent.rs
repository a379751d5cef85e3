//! The question before strangers compute for the first time, and `shoal consent`, which answers it beforehand.
//!
//! What is kept, and what happens without it, is told in [`crate::consent`].

use std::{
    io::{self, IsTerminal},
    path::Path,
};

use serde_json::json;

use crate::{
    Error, Result,
    cli::swarm::ConsentArgs,
    consent::{MODES, given, sentence, set},
    control::Mode,
    output::{self, say},
    private_folder,
};

/// What else joining means.
const SERVING: &str =
    "what you serve to others uses your CPU and memory, never your files, except models you share or fetched";
/// And what it means for the line.
const RELAYING: &str = "Where others can reach this node it also relays for members of this swarm that others cannot reach, \
    within a budget of reservations, circuits and bytes; what it passes on is encrypted";

/// The sentences of `shoal join`; with `--yes`, `all` is agreed to and recorded. A node that only asks `serves` nothing.
pub(super) fn joining(all: bool, serves: bool) -> String {
    let modes: Vec<&str> = match all {
        true => MODES.into_iter().filter_map(sentence).collect(),
        false => sentence(Mode::Boomerang).into_iter().collect(),
    };
    let recorded = match all {
        true => {
            " With --yes your agreement to both modes is recorded; `shoal consent --revoke MODE` takes one back."
        }
        false => "",
    };
    let serving = if serves { format!("; {SERVING}") } else { String::new() };
    format!("{}{serving}. {RELAYING}.{recorded}", modes.join(". "))
}

/// Keeps the user's agreement. Where it cannot be written the question comes again.
pub(super) fn remember(home: &Path, mode: Mode) {
    if let Err(error) = private_folder::prepare(home).and_then(|()| set(home, mode, true)) {
        tracing::warn!(%error, "the answer is not kept");
    }
}

/// Asks before the first prompt that strangers compute in this mode, where a person can answer.
///
/// # Errors
/// [`Error::Usage`] when the user does not agree, or cannot be asked.
pub(super) fn before_strangers(home: &Path, mode: Mode, json: bool) -> Result<()> {
    let Some(told) = sentence(mode).filter(|_| !given(home, mode)) else { return Ok(()) };
    if !can_ask(json) {
        return Err(Error::usage(format!(
            "nothing was sent, since you have not agreed to it yet. {told}. Agree once with `shoal consent {}`; --mode local \
             keeps everything on this machine",
            mode.name()
        )));
    }
    eprintln!(
        "{told}; --mode local keeps everything on this machine. (If you agree, you are asked only once.)"
    );
    if !agreed()? {
        return Err(Error::usage("nothing was sent; --mode local computes it here"));
    }
    remember(home, mode);
    Ok(())
}

/// Whether a person reads the question and can answer it.
pub(super) fn can_ask(json: bool) -> bool {
    !json && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on the terminal.
pub(super) fn agreed() -> Result<bool> {
    eprint!("Go on? [Y/n] ");
    let answer = line()?;
    Ok(answer.is_some_and(|answer| matches!(answer.as_str(), "" | "y" | "yes")))
}

/// As [`agreed`], of what another person proposes: an empty line is a no.
pub(super) fn wanted(question: &str) -> Result<bool> {
    eprint!("{question} [y/N] ");
    Ok(line()?.is_some_and(|answer| matches!(answer.as_str(), "y" | "yes")))
}

/// What is typed; the end of the input is no answer.
fn line() -> Result<Option<String>> {
    let mut answer = String::new();
    let said = io::stdin().read_line(&mut answer)? > 0;
    Ok(said.then(|| answer.trim().to_lowercase()))
}

/// `shoal consent`
pub(super) fn consent(args: ConsentArgs) -> Result<()> {
    let home = args.home.path()?;
    if let Some(mode) = args.mode {
        let Some(told) = sentence(mode) else {
            return Err(Error::usage(format!(
                "mode {} needs no consent: no stranger computes in it",
                mode.name()
            )));
        };
        private_folder::prepare(&home)?;
        set(&home, mode, !args.revoke)?;
        if !args.json {
            match args.revoke {
                true => say!("Taken back: nothing goes out in {} mode until you agree again.", mode.name()),
                false => {
                    say!(
                        "{told}. Noted that you agree; `shoal consent --revoke {}` takes it back.",
                        mode.name()
                    );
                }
            }
            return Ok(());
        }
    }
    if args.json {
        let of = |mode: &Mode| (mode.name().to_owned(), json!(given(&home, *mode)));
        return output::json_line(&MODES.iter().map(of).collect::<serde_json::Map<_, _>>());
    }
    for mode in MODES {
        let told = sentence(mode).unwrap_or_default();
        let state = if given(&home, mode) { "agreed" } else { "not agreed" };
        say!("{:<10} {state}. {told}.", mode.name());
    }
    Ok(())
}
