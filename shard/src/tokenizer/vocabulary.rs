//! The tokens of a model: their bytes, kinds and scores, and the way back from text to token.

use std::{collections::hash_map::RandomState, hash::BuildHasher, ops::Range};

use crate::{Error, Result};

/// What a token is for, numbered as GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A piece of text.
    Normal,
    /// What text without a token becomes.
    Unknown,
    /// A mark that text cannot spell: begin, end, roles.
    Control,
    /// A piece of text that is always matched whole.
    UserDefined,
    /// A row of the embedding that stands for nothing.
    Unused,
    /// One byte.
    Byte,
}

impl Kind {
    /// The kind numbered `number`; 0 and numbers yet unknown are text.
    pub fn from_number(number: i64) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// All tokens, by id. Texts lie end to end in one allocation.
pub struct Vocabulary {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

impl Vocabulary {
    /// An empty vocabulary with room for `tokens`.
    pub fn with_capacity(tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(tokens * 8),
            ends: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
        }
    }

    /// Appends a token; its id is the number of tokens before it.
    pub fn push(&mut self, bytes: &[u8], kind: Kind) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| Error::malformed("tokenizer.ggml.tokens", "more than 4 GiB of text"))?;
        self.ends.push(end);
        self.kinds.push(kind);
        Ok(())
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    fn range(&self, id: u32) -> Option<Range<usize>> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] as usize };
        Some(start..end)
    }

    /// The text of a token as bytes; empty for an id that does not exist.
    pub fn text(&self, id: u32) -> &[u8] {
        self.range(id).map_or(&[], |range| &self.bytes[range])
    }

    /// What the token is for; [`Kind::Unused`] for an id that does not exist.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// All ids of one kind or another.
    pub fn ids(&self, mut wanted: impl FnMut(Kind) -> bool) -> impl Iterator<Item = u32> {
        (0..self.len() as u32).filter(move |&id| wanted(self.kinds[id as usize]))
    }
}

/// Finds a token by its text: a hash table of ids whose keys are the vocabulary's own bytes. The hash is keyed at
/// random, so that no file can choose colliding texts.
pub struct Index {
    slots: Vec<u32>,
    hasher: RandomState,
    longest: usize,
}

const EMPTY: u32 = u32::MAX;

impl Index {
    /// Indexes the tokens of `vocabulary` that `wanted` accepts; of equal texts the first wins.
    pub fn new(vocabulary: &Vocabulary, wanted: impl FnMut(Kind) -> bool) -> Self {
        let slots = (vocabulary.len() * 2).next_power_of_two().max(16);
        let mut index = Self { slots: vec![EMPTY; slots], hasher: RandomState::new(), longest: 0 };
        for id in vocabulary.ids(wanted) {
            let text = vocabulary.text(id);
            if text.is_empty() {
                continue;
            }
            let slot = index.slot(vocabulary, text);
            if index.slots[slot] == EMPTY {
                index.slots[slot] = id;
                index.longest = index.longest.max(text.len());
            }
        }
        index
    }

    /// The token with exactly this text.
    pub fn find(&self, vocabulary: &Vocabulary, text: &[u8]) -> Option<u32> {
        if text.is_empty() || text.len() > self.longest {
            return None;
        }
        Some(self.slots[self.slot(vocabulary, text)]).filter(|&id| id != EMPTY)
    }

    /// The slot that holds `text`, or the empty one where it would go.
    fn slot(&self, vocabulary: &Vocabulary, text: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(text) as usize & mask;
        while self.slots[slot] != EMPTY && vocabulary.text(self.slots[slot]) != text {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leads_back_to_the_first_token_that_has_it() {
        let mut vocabulary = Vocabulary::with_capacity(4);
        for (text, kind) in
            [("a", Kind::Normal), ("bc", Kind::Normal), ("a", Kind::Normal), ("s", Kind::Control)]
        {
            vocabulary.push(text.as_bytes(), kind).unwrap();
        }
        let index = Index::new(&vocabulary, |kind| kind != Kind::Control);
        assert_eq!(index.find(&vocabulary, b"a"), Some(0));
        assert_eq!(index.find(&vocabulary, b"bc"), Some(1));
        assert_eq!(index.find(&vocabulary, b"s"), None);
        assert_eq!(index.find(&vocabulary, b""), None);
        assert_eq!(index.find(&vocabulary, b"abcabc"), None);
        assert_eq!(vocabulary.text(9), b"");
    }
}
