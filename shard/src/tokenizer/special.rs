//! Finding the tokens that are matched whole before anything else.
//!
//! User-defined tokens always are, control tokens only where the caller trusts the text. At each position the longest
//! token wins, and the leftmost position first, as in Hugging Face tokenizers and SentencePiece. (llama.cpp looks for the
//! longest token of all first; the two differ only where different tokens overlap in the text.)
//!
//! The candidates are a sorted list that narrows byte by byte, so a position costs at most the length of the
//! longest of them, and that is capped.

use super::vocabulary::{Kind, Vocabulary};
use crate::{Error, Result};

/// Longer special tokens are refused: looking for one costs its length at every position of a text. The longest in
/// published models are runs of white space of some 80 bytes.
pub const LONGEST: usize = 512;

/// What a stretch of text is.
#[derive(Debug, PartialEq, Eq)]
pub enum Fragment<'t> {
    /// Text to encode.
    Text(&'t str),
    /// A token found whole.
    Token(u32),
}

/// The tokens to look for.
pub struct Specials {
    /// Sorted by text.
    ids: Vec<u32>,
    /// Whether some token begins with this byte.
    begins: [bool; 256],
}

impl Specials {
    /// Collects the special tokens of `vocabulary`.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let mut ids: Vec<u32> = vocabulary
            .ids(|kind| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown))
            .filter(|&id| !vocabulary.text(id).is_empty())
            .collect();
        ids.sort_by(|&a, &b| vocabulary.text(a).cmp(vocabulary.text(b)).then(a.cmp(&b)));
        ids.dedup_by(|b, a| vocabulary.text(*a) == vocabulary.text(*b));
        let mut begins = [false; 256];
        for &id in &ids {
            let text = vocabulary.text(id);
            if text.len() > LONGEST {
                return Err(Error::malformed(
                    format!("tokenizer.ggml.tokens: token {id}"),
                    format!("a special token of {} bytes, at most {LONGEST} are allowed", text.len()),
                ));
            }
            begins[usize::from(text[0])] = true;
        }
        Ok(Self { ids, begins })
    }

    /// Cuts `text` at its special tokens. Without `control` only user-defined tokens count. `strip` says after which
    /// tokens white space is dropped.
    pub fn split<'t>(
        &self,
        vocabulary: &Vocabulary,
        text: &'t str,
        control: bool,
        strip: impl Fn(u32) -> bool,
        mut fragment: impl FnMut(Fragment<'t>),
    ) {
        let bytes = text.as_bytes();
        let (mut start, mut at) = (0, 0);
        while at < bytes.len() {
            let found = if self.begins[usize::from(bytes[at])] {
                self.longest(vocabulary, &bytes[at..], control)
            } else {
                None
            };
            let Some(id) = found else {
                at += 1;
                continue;
            };
            if at > start {
                fragment(Fragment::Text(&text[start..at]));
            }
            fragment(Fragment::Token(id));
            at += vocabulary.text(id).len();
            if strip(id) {
                at = bytes.len() - text[at..].trim_start().len();
            }
            start = at;
        }
        if start < bytes.len() {
            fragment(Fragment::Text(&text[start..]));
        }
    }

    /// The longest token that `bytes` begins with.
    fn longest(&self, vocabulary: &Vocabulary, bytes: &[u8], control: bool) -> Option<u32> {
        let mut candidates = &self.ids[..];
        let mut best = None;
        for (depth, &byte) in bytes.iter().enumerate() {
            let at = |id: &u32| vocabulary.text(*id).get(depth).copied();
            let low = candidates.partition_point(|id| at(id) < Some(byte));
            let high = low + candidates[low..].partition_point(|id| at(id) == Some(byte));
            candidates = &candidates[low..high];
            let Some(&first) = candidates.first() else { break };
            let whole = vocabulary.text(first).len() == depth + 1;
            if whole && (control || vocabulary.kind(first) == Kind::UserDefined) {
                best = Some(first);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, control: bool, expected: &[Fragment]) {
        let mut vocabulary = Vocabulary::with_capacity(8);
        for (text, kind) in [
            ("<s>", Kind::Control),
            ("  ", Kind::UserDefined),
            ("   ", Kind::UserDefined),
            ("<", Kind::Normal),
            ("<sp>", Kind::UserDefined),
            ("é", Kind::UserDefined),
        ] {
            vocabulary.push(text.as_bytes(), kind).unwrap();
        }
        let specials = Specials::new(&vocabulary).unwrap();
        let mut got = Vec::new();
        specials.split(&vocabulary, text, control, |id| id == 0, |fragment| got.push(fragment));
        assert_eq!(got, expected, "{text:?}");
    }

    #[test]
    fn the_longest_token_wins_and_control_needs_trust() {
        use Fragment::{Text, Token};
        check("a<s> b", true, &[Text("a"), Token(0), Text("b")]);
        check("a<s> b", false, &[Text("a<s> b")]);
        check("x     y", false, &[Text("x"), Token(2), Token(1), Text("y")]);
        check("<sp><s", true, &[Token(4), Text("<s")]);
        check("aéb", false, &[Text("a"), Token(5), Text("b")]);
        check("", true, &[]);
    }
}
