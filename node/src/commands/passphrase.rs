//! A passphrase from a file, the environment or a person, who types it unseen.

use std::{
    env,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::Path,
};

use ratatui::crossterm::{
    event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    terminal,
};

use crate::{Error, Result, cli::identity::PassphraseArgs};

/// The variable that holds one.
const VARIABLE: &str = "SHOAL_PASSPHRASE";
/// Longest passphrase, bytes.
const MOST: u64 = 4 << 10;

/// The passphrase that opens something.
///
/// # Errors
/// [`Error::Usage`] where there is none and no person can be asked.
pub(super) fn known(args: &PassphraseArgs) -> Result<String> {
    match given(args)? {
        Some(passphrase) => Ok(passphrase),
        None => typed("Passphrase: "),
    }
}

/// A passphrase that something is to be closed with: who types it types it twice.
///
/// # Errors
/// As [`known`], and where both differ.
pub(super) fn chosen(args: &PassphraseArgs) -> Result<String> {
    if let Some(passphrase) = given(args)? {
        return Ok(passphrase);
    }
    let first = typed("A passphrase (without it the file is worth nothing): ")?;
    match typed("Once more: ")? == first {
        true => Ok(first),
        false => Err(Error::usage("the two passphrases differ; nothing was written")),
    }
}

fn given(args: &PassphraseArgs) -> Result<Option<String>> {
    match &args.passphrase_file {
        Some(file) if file == Path::new("-") => line(io::stdin().lock()).map(Some),
        Some(file) => {
            let opened = File::open(file).map_err(|error| shard::Error::io(file, error))?;
            line(opened).map(Some)
        }
        None => Ok(env::var(VARIABLE).ok().filter(|passphrase| !passphrase.is_empty())),
    }
}

/// The first line of a text, without its end.
fn line(text: impl Read) -> Result<String> {
    let mut line = String::new();
    BufReader::new(text.take(MOST)).read_line(&mut line)?;
    let line = line.trim_end_matches(['\n', '\r']);
    if line.is_empty() {
        return Err(Error::usage("there is no passphrase in the first line"));
    }
    Ok(line.to_owned())
}

/// Gives the terminal back as it was.
struct Unseen;

impl Drop for Unseen {
    fn drop(&mut self) {
        let _ = terminal::disable_raw_mode();
        eprintln!();
    }
}

/// What a person types at the terminal, of which nothing is shown.
fn typed(question: &str) -> Result<String> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Error::usage(format!(
            "there is no terminal to ask for the passphrase: --passphrase-file FILE, or the variable {VARIABLE}"
        )));
    }
    eprint!("{question}");
    terminal::enable_raw_mode()?;
    let _unseen = Unseen;
    let mut typed = String::new();
    loop {
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Ok(typed),
            KeyCode::Char('c' | 'd') if control => return Err(Error::Interrupted),
            KeyCode::Char('u') if control => typed.clear(),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(letter) if !control && (typed.len() as u64) < MOST => typed.push(letter),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_file_is_the_passphrase() {
        assert_eq!(line(&b"a b \r\nmore"[..]).unwrap(), "a b ");
        assert_eq!(line(&b"without an end"[..]).unwrap(), "without an end");
        assert!(line(&b"\nlater"[..]).is_err() && line(&b""[..]).is_err());
    }
}
