//! From tokens back to text, one token at a time.
//!
//! A token is bytes, not characters: a character may be spread over several tokens. Bytes are held back until the
//! character they begin is complete, so what is printed never has to be taken back. Bytes that cannot become a
//! character any more turn into U+FFFD as in [`String::from_utf8_lossy`]; an unfinished character does so in
//! [`Detokenizer::finish`]. All pushes and the finish together give exactly the lossy text of all bytes.

use super::Tokenizer;

/// Turns ids into text as they come.
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: bool,
    /// Whether nothing was printed yet, so that the space SentencePiece put in front must go.
    strip: bool,
    /// Bytes of an unfinished character, at most three.
    held: Vec<u8>,
    text: String,
}

impl<'t> Detokenizer<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            special: false,
            strip: tokenizer.strips_first_space(),
            held: Vec::with_capacity(64),
            text: String::with_capacity(64),
        }
    }

    /// Whether control tokens print their names; without this they print nothing.
    pub fn show_special(mut self, show: bool) -> Self {
        self.special = show;
        self
    }

    /// For text that continues other text: keeps the space in front of the first word.
    pub fn continuing(mut self) -> Self {
        self.strip = false;
        self
    }

    /// Takes the next token and gives the text that became complete with it, often all of it, sometimes none.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        let bytes = self.tokenizer.printed_bytes(id, self.special);
        self.tokenizer.print(bytes, |bytes| self.held.extend_from_slice(bytes));
        if self.strip && !bytes.is_empty() {
            self.strip = false;
            if self.held.first() == Some(&b' ') {
                self.held.remove(0);
            }
        }
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let last = done + invalid.len() == self.held.len();
            if last && may_continue(invalid) {
                break;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.held.drain(..done);
        &self.text
    }

    /// Ends the text: what was held back is no character.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.held.is_empty() {
            self.held.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Whether the bytes are the beginning of a character rather than no character at all.
fn may_continue(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
}
