//! The question before strangers compute for the first time.
//!
//! Whoever sends a prompt through nodes of others should have been told, once, what those can learn. `shoal join` says it
//! before anything starts; where that was said to nobody (a node started with `--json`, another user's node), the first
//! prompt in a mode in which strangers compute asks. What was answered is kept as an empty file per mode in the node's folder.
//!
//! Limits: without a terminal nobody is asked, since it would hang: the sentence is said each time until somebody was.
//! Programs (`--json`) are told nothing; whoever wrote them chose the mode.

use std::{
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use crate::{Error, Result, control::Mode};

/// What strangers learn, in one honest sentence.
const BOOMERANG: &str = "Your prompts in boomerang mode: strangers compute the middle layers and can reconstruct much of the \
text from what they see";
/// The same of the mode that hides nothing.
const OPEN: &str =
    "Your prompts in open mode: the node that answers reads all of the text, yours and the reply";
/// What else joining means.
const SERVING: &str =
    "what you serve to others uses your CPU and memory, never your files, except models you share or fetched";
/// The sentence of `shoal join`.
pub(super) fn sentence() -> String {
    format!("{BOOMERANG}; {SERVING}.")
}

/// The file that says that the sentence of a mode was read.
fn file(home: &Path, mode: Mode) -> PathBuf {
    home.join(format!("told-{}", mode.name()))
}

/// Remembers that the sentence of a mode was read. Where it cannot be written it is said again.
pub(super) fn remember(home: &Path, mode: Mode) {
    if let Err(error) = fs::write(file(home, mode), "") {
        tracing::debug!(%error, "the answer is not kept");
    }
}

/// Tells before the first prompt that strangers compute in this mode, and asks where a person can answer.
///
/// # Errors
/// [`Error::Usage`] when the person does not want it.
pub(in crate::commands) fn before_strangers(home: &Path, mode: Mode) -> Result<()> {
    let told = match mode {
        Mode::Local | Mode::Trusted => return Ok(()),
        Mode::Boomerang => BOOMERANG,
        Mode::Open => OPEN,
    };
    if file(home, mode).exists() {
        return Ok(());
    }
    eprintln!("{told}; --mode local keeps everything on this machine. (Whoever agrees is asked once.)");
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    if !agreed()? {
        return Err(Error::usage("nothing was sent; --mode local computes it here"));
    }
    remember(home, mode);
    Ok(())
}

/// Asks on the terminal.
pub(super) fn agreed() -> Result<bool> {
    eprint!("Go on? [Y/n] ");
    let mut answer = String::new();
    // The end of the input is no answer.
    let said = io::stdin().read_line(&mut answer)? > 0;
    Ok(said && matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_for_each_mode_in_which_strangers_compute() {
        let home = tempfile::tempdir().unwrap();
        let told = |mode| file(home.path(), mode).exists();
        for mode in [Mode::Local, Mode::Trusted] {
            before_strangers(home.path(), mode).unwrap();
            assert!(!told(mode), "there is nothing to say");
        }
        remember(home.path(), Mode::Boomerang);
        assert!(
            told(Mode::Boomerang) && !told(Mode::Open),
            "who agreed to the one was not asked about the other"
        );
        assert!(sentence().contains("reconstruct") && OPEN.contains("reads"));
    }
}
