//! Whether the owner of a node agreed that other people's machines compute the owner's prompts.
//!
//! Before a prompt goes through nodes of others, its owner must have seen once what those can learn, and agreed.
//! The agreement is kept as an empty file per mode in the node's folder. It is given at the terminal (by `shoal join`,
//! or before the first prompt), with `shoal join --yes` (for all modes), with `shoal consent MODE`, or by the button of the page, and
//! taken back with
//! `shoal consent --revoke MODE`. The modes in which no stranger computes (`local`, `trusted`) need none.
//!
//! What happens without it: on a terminal the first prompt asks; without one a prompt that would go to strangers is refused
//! with the sentence and the ways to agree, over HTTP too; and what names no mode stays on this machine where it can.
//!
//! Limits: anyone who may write into the folder or has the API's token can agree, for all prompts of this node.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Error, Result, control::Mode};

/// The modes in which people who were not named compute.
pub const MODES: [Mode; 2] = [Mode::Boomerang, Mode::Open];

/// What strangers learn, in one honest sentence.
const BOOMERANG: &str = "Your prompts in boomerang mode: strangers compute the middle layers and can reconstruct much of the \
text from what they see";
/// The same of the mode that hides nothing.
const OPEN: &str =
    "Your prompts in open mode: the node that answers reads all of the text, yours and the reply";

/// What agreeing to a mode means, without the full stop; `None` for one that needs no agreement.
pub fn sentence(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Local | Mode::Trusted => None,
        Mode::Boomerang => Some(BOOMERANG),
        Mode::Open => Some(OPEN),
    }
}

fn file(home: &Path, mode: Mode) -> PathBuf {
    home.join(format!("agreed-{}", mode.name()))
}

/// Whether prompts in this mode may go out from the node with the data folder `home`.
pub fn given(home: &Path, mode: Mode) -> bool {
    sentence(mode).is_none() || file(home, mode).exists()
}

/// Keeps or revokes the agreement to a mode.
///
/// # Errors
/// When it cannot be written down.
pub fn set(home: &Path, mode: Mode, agreed: bool) -> Result<()> {
    if sentence(mode).is_none() {
        return Ok(());
    }
    let path = file(home, mode);
    let written = match agreed {
        true => fs::create_dir_all(home).and_then(|()| fs::write(&path, "")),
        false => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    };
    written.map_err(|error| {
        Error::Failed(format!(
            "{} cannot be changed: {error}; name a folder you may write with --home",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_about_one_mode_until_it_is_taken_back() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().join("not made yet");
        for mode in [Mode::Local, Mode::Trusted] {
            assert!(given(&home, mode) && sentence(mode).is_none());
            set(&home, mode, false).unwrap();
            assert!(given(&home, mode), "there is nothing to agree to");
        }
        set(&home, Mode::Boomerang, true).unwrap();
        assert!(given(&home, Mode::Boomerang) && !given(&home, Mode::Open));
        set(&home, Mode::Boomerang, false).unwrap();
        set(&home, Mode::Boomerang, false).unwrap();
        assert!(!given(&home, Mode::Boomerang));
        let told = MODES.map(|mode| sentence(mode).unwrap());
        assert!(told[0].contains("reconstruct") && told[1].contains("reads"));
    }
}
