//! WordPiece (`tokenizer.ggml.model = bert`): BERT and the encoders of its kind.
//!
//! Text is cleaned as the published tokenizers do it: controls vanish, every white space is a space, Chinese characters
//! stand alone, and where the vocabulary has no capitals, letters lose theirs and their accents. What lies between spaces is cut at
//! punctuation, and each word becomes the longest token that begins it, then the longest that goes on, and so on to its end. A word
//! that no tokens make up, or one of more than [`MAX_WORD`] characters, is one unknown token.
//!
//! A GGUF spells a token that begins a word with U+2581 in front, and one that goes on without the `##` of the original.
//! It does not say whether capitals were kept: a token with an ASCII capital that is no mark says so.

use std::{ops::RangeInclusive, sync::LazyLock};

use icu_normalizer::DecomposingNormalizerBorrowed;

use super::{
    spm::SPACE,
    unicode::{self, PUNCTUATION},
    vocabulary::{Index, Kind, Vocabulary},
};

/// Characters of the longest word that is looked up.
const MAX_WORD: usize = 100;

/// Where the published tokenizers look for Chinese characters; one block begins 256 characters late, as theirs does.
const CHINESE: [RangeInclusive<char>; 8] = [
    '\u{4e00}'..='\u{9fff}',
    '\u{3400}'..='\u{4dbf}',
    '\u{20000}'..='\u{2a6df}',
    '\u{2a700}'..='\u{2b73f}',
    '\u{2b740}'..='\u{2b81f}',
    '\u{2b920}'..='\u{2ceaf}',
    '\u{f900}'..='\u{faff}',
    '\u{2f800}'..='\u{2fa1f}',
];

/// Characters that vanish, and marks that letters lose, each sorted.
static INVISIBLE: LazyLock<Vec<(u32, u32)>> = LazyLock::new(|| unicode::ranges(r"[\p{Cc}\p{Cf}\p{Co}]"));
static ACCENTS: LazyLock<Vec<(u32, u32)>> = LazyLock::new(|| unicode::ranges(r"\p{Mn}"));

fn in_ranges(ranges: &[(u32, u32)], c: char) -> bool {
    let c = u32::from(c);
    let at = ranges.partition_point(|(_, end)| *end < c);
    ranges.get(at).is_some_and(|(start, _)| *start <= c)
}

/// Everything that encoding needs beside the vocabulary.
pub struct WordPiece {
    index: Index,
    unknown: Option<u32>,
    /// Whether capitals and accents are kept.
    cased: bool,
}

/// Space for encoding, reused from text to text.
#[derive(Default)]
pub struct Scratch {
    clean: String,
    /// [`SPACE`] and a word.
    word: String,
}

impl WordPiece {
    /// Builds the tables.
    pub fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Self {
        let text = |kind| matches!(kind, Kind::Normal | Kind::UserDefined);
        let cased = vocabulary.ids(text).any(|id| {
            let text = vocabulary.text(id);
            !text.starts_with(b"[") && text.iter().any(u8::is_ascii_uppercase)
        });
        Self { index: Index::new(vocabulary, text), unknown, cased }
    }

    /// Appends the tokens of `text`.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { clean, word } = scratch;
        self.clean(text, clean);
        for spaced in clean.split(char::is_whitespace) {
            for piece in spaced.split_inclusive(is_punctuation) {
                // A mark of punctuation is the last character of its piece, and a word of its own.
                let (body, mark) = match piece.char_indices().next_back() {
                    Some((at, c)) if is_punctuation(c) => piece.split_at(at),
                    _ => (piece, ""),
                };
                for part in [body, mark].into_iter().filter(|part| !part.is_empty()) {
                    word.clear();
                    word.push(SPACE);
                    word.push_str(part);
                    self.word(vocabulary, word, ids);
                }
            }
        }
    }

    /// `text` as the vocabulary has it.
    fn clean(&self, text: &str, clean: &mut String) {
        clean.clear();
        let kept = text.chars().filter_map(|c| match c {
            '\t' | '\n' | '\r' => Some(' '),
            '\0' | '\u{fffd}' => None,
            c if in_ranges(&INVISIBLE, c) => None,
            c if c.is_whitespace() => Some(' '),
            c => Some(c),
        });
        let spaced = kept.flat_map(|c| {
            let alone = CHINESE.iter().any(|range| range.contains(&c)).then_some(' ');
            alone.into_iter().chain([c]).chain(alone)
        });
        if self.cased {
            clean.extend(spaced);
            return;
        }
        let decomposed = DecomposingNormalizerBorrowed::new_nfd().normalize_iter(spaced);
        let bare = decomposed.filter(|c| c.is_ascii() || !in_ranges(&ACCENTS, *c));
        clean.extend(bare.flat_map(char::to_lowercase));
    }

    /// Appends the tokens of `word`, which has [`SPACE`] in front.
    fn word(&self, vocabulary: &Vocabulary, word: &str, ids: &mut Vec<u32>) {
        let before = ids.len();
        let mut start = 0;
        let fits = word.chars().nth(MAX_WORD + 1).is_none();
        while fits && start < word.len() {
            let ends = word[start..].char_indices().rev().map(|(at, c)| start + at + c.len_utf8());
            // The mark in front of a word alone is no part of it.
            let ends = ends.filter(|end| *end > SPACE.len_utf8());
            let found = ends
                .filter_map(|end| Some((end, self.index.find(vocabulary, &word.as_bytes()[start..end])?)));
            let Some((end, id)) = { found }.next() else { break };
            ids.push(id);
            start = end;
        }
        if start < word.len() {
            ids.truncate(before);
            ids.extend(self.unknown);
        }
    }
}

/// Punctuation, and the symbols of ASCII.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || unicode::is(c, PUNCTUATION)
}
