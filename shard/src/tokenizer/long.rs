//! Texts longer than what is tokenized at once, such as a corpus.
//!
//! A text is tokenized in parts that overlap. Where a part was cut its tokens are others than those of the whole, but not far from there:
//! two parts are joined where both have the same tokens in a row at the same bytes, far from both cuts.
//!
//! Limits: vocabularies whose tokens print the text as it is; those that fold white space, case or accents are told apart by the bytes
//! that they print, and refused.

use std::borrow::Cow;

use super::{Encode, Model, Tokenizer};
use crate::{Error, Result};

/// Tokens in a row that two parts must have in common to be joined in front of them.
const AGREE: usize = 16;
/// Parts overlap by this share of a part.
const OVERLAP: usize = 8;

/// A token and the byte of the text that it begins at.
type Placed = (usize, u32);

impl Tokenizer {
    /// As [`Tokenizer::encode`] for a text of any length, of which `part` bytes are tokenized at once.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`] for a text of `part` bytes; [`Error::Invalid`] for a longer one whose tokens do not print it as it
    /// is, or whose parts cannot be joined.
    pub fn encode_long(&self, text: &str, how: Encode, part: usize) -> Result<Vec<u32>> {
        if text.len() <= part {
            return self.encode(text, how);
        }
        // Special tokens are found in a text as it stands, and what is between them is composed.
        let composed = match &self.model {
            Model::Bpe(bpe) if !how.special => bpe.composed(text),
            _ => Cow::Borrowed(text),
        };
        let text = &*composed;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        ids.extend(self.bos.filter(|_| how.bos && self.add_bos));
        let (mut tail, mut from): (Vec<Placed>, usize) = (Vec::new(), 0);
        loop {
            let end = boundary(text, from + part);
            let made = self.placed(&text[from..end], from, how.special)?;
            let joint = match from {
                0 => (0, 0),
                _ => joint(&tail, &made).ok_or_else(|| unjoined(text.len(), part))?,
            };
            ids.extend(tail[..joint.0].iter().map(|(_, id)| *id));
            tail = made[joint.1..].to_vec();
            if end == text.len() {
                break;
            }
            from = boundary(text, end - part / OVERLAP);
            let settled = tail.partition_point(|(at, _)| *at < from);
            ids.extend(tail.drain(..settled).map(|(_, id)| id));
        }
        ids.extend(tail.into_iter().map(|(_, id)| id));
        ids.extend(self.closing().filter(|_| how.bos));
        Ok(ids)
    }

    /// The tokens of `text`, which begins at byte `from`.
    fn placed(&self, text: &str, from: usize, special: bool) -> Result<Vec<Placed>> {
        let ids = self.encode(text, Encode { bos: false, special })?;
        let printed = |id: u32| {
            let mut bytes = 0;
            self.print(self.printed_bytes(id, true), |part| bytes += part.len());
            bytes
        };
        // The space that some vocabularies put in front of a text is none of it.
        let total: usize = ids.iter().map(|id| printed(*id)).sum();
        let added = usize::from(self.strips_first_space() && total == text.len() + 1);
        if total != text.len() + added {
            return Err(Error::invalid(format!(
                "the tokens of this vocabulary do not print a text as it is, so at most {} bytes can be tokenized",
                super::MAX_TEXT_BYTES
            )));
        }
        let mut at = from;
        let place = |(index, id): (usize, u32)| {
            let here = at;
            at += printed(id) - if index == 0 { added } else { 0 };
            (here, id)
        };
        Ok(ids.into_iter().enumerate().map(place).collect())
    }
}

/// The last boundary of characters at or before byte `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The first places in two lists from which on both have [`AGREE`] tokens in common.
fn joint(one: &[Placed], other: &[Placed]) -> Option<(usize, usize)> {
    let (mut i, mut j) = (0, 0);
    while i + AGREE <= one.len() && j + AGREE <= other.len() {
        match one[i].0.cmp(&other[j].0) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal if one[i..i + AGREE] == other[j..j + AGREE] => return Some((i, j)),
            std::cmp::Ordering::Equal => (i, j) = (i + 1, j + 1),
        }
    }
    None
}

fn unjoined(bytes: usize, part: usize) -> Error {
    let overlap = part / OVERLAP;
    Error::invalid(format!(
        "a text of {bytes} bytes, whose tokens agree nowhere in {overlap} bytes that were tokenized twice"
    ))
}
