//! SentencePiece's byte pair encoding (`tokenizer.ggml.model = llama`): llama 2, mistral, gemma, phi 3.
//!
//! Spaces are spelled U+2581, every character begins as a symbol, and of all neighbors whose joined text is a token
//! those with the best score are joined, the leftmost first. Characters without a token become the tokens of their
//! bytes, or the unknown token where the file has none for bytes. Scores are turned into ranks at load, so the
//! comparison in the heap is of integers and a NaN in the file cannot upset it.
//!
//! Files of gemma 4 (`tokenizer.ggml.model = gemma4`) spell text in the same way and have a list of merges instead of scores:
//! neighbors are joined in the order of the list, and never across the end of a run of line breaks.

use std::collections::HashMap;

use super::{
    merge::{Merger, Rules, Symbol},
    vocabulary::{Index, Kind, Vocabulary},
};
use crate::{Error, Result};

/// `tokenizer.ggml.pre` of a vocabulary like gemma's whose file calls its model `gpt2`.
pub const RENAMED: &str = "granite-embed-multi-311m";
/// How SentencePiece spells a space.
pub const SPACE: char = '\u{2581}';

/// Everything that encoding needs beside the vocabulary.
pub struct Spm {
    index: Index,
    order: Order,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Whether no token reaches over the end of a word, so that words can be merged one by one: the same tokens from
    /// a heap that stays in the cache.
    words: bool,
    options: Options,
}

/// Which neighbors are joined first.
enum Order {
    /// Those whose joined text is the best token; by id, the smaller the better.
    Ranks(Vec<u32>),
    /// Those of the list, by the tokens of both sides: place in the list and joined token.
    Merges(HashMap<(u32, u32), (u32, u32)>),
}

/// How text is prepared.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether a fragment that begins the text or follows a special token gets a space in front.
    pub add_space_prefix: bool,
    /// Whether runs of spaces become one and those at both ends of a fragment vanish.
    pub remove_extra_whitespaces: bool,
}

/// Space for encoding, reused from text to text.
#[derive(Default)]
pub struct Scratch {
    text: String,
    /// The merges'.
    pub merger: Merger,
}

struct Joins<'a> {
    spm: &'a Spm,
    vocabulary: &'a Vocabulary,
    text: &'a [u8],
}

impl Rules for Joins<'_> {
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        match &self.spm.order {
            Order::Ranks(ranks) => {
                let start = left.start as usize;
                let text = &self.text[start..start + (left.len + right.len) as usize];
                let id = self.spm.index.find(self.vocabulary, text)?;
                Some((ranks[id as usize], id))
            }
            Order::Merges(merges) => merges.get(&(left.id, right.id)).copied(),
        }
    }
}

/// The symbol of a character without a token.
const NO_TOKEN: u32 = u32::MAX;

impl Spm {
    /// Builds the tables. `scores` has one entry per token, the higher the better; missing ones are 0.
    pub fn new(vocabulary: &Vocabulary, scores: &[f32], unknown: Option<u32>, options: Options) -> Self {
        let index =
            Index::new(vocabulary, |kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused));
        let ranks =
            (0..vocabulary.len()).map(|id| !ascending(scores.get(id).copied().unwrap_or(0.0))).collect();
        let mut bytes = [None; 256];
        for id in vocabulary.ids(|kind| kind == Kind::Byte) {
            if let Some(byte) = byte_of(vocabulary.text(id)) {
                bytes[usize::from(byte)].get_or_insert(id);
            }
        }
        let words = vocabulary
            .ids(|kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused))
            .filter_map(|id| std::str::from_utf8(vocabulary.text(id)).ok())
            .all(|text| text.is_empty() || word_end(text) == text.len());
        Self { index, order: Order::Ranks(ranks), bytes, unknown, words, options }
    }

    /// The same that joins by a list instead of scores: lines of two texts with a space between them, best first.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a line that is something else, or whose texts or result are no tokens.
    pub fn with_merges(self, vocabulary: &Vocabulary, merges: &[impl AsRef<str>]) -> Result<Self> {
        let mut table = HashMap::with_capacity(merges.len());
        for (rank, line) in merges.iter().enumerate() {
            let line = line.as_ref();
            let token = |text: &str| self.index.find(vocabulary, text.as_bytes());
            let sides = line.split_once(' ').and_then(|(left, right)| {
                Some((token(left)?, token(right)?, token(&format!("{left}{right}"))?))
            });
            let Some((left, right, joined)) = sides else {
                let field = format!("tokenizer.ggml.merges[{rank}]");
                return Err(Error::malformed(field, format!("{line:?} is not two tokens that make a third")));
            };
            table.entry((left, right)).or_insert((rank as u32, joined));
        }
        Ok(Self { order: Order::Merges(table), ..self })
    }

    /// Appends the tokens of `text`, which has no special tokens in it. `first` says that it begins the text or
    /// follows a special token.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        first: bool,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        let Scratch { text: spelled, merger } = scratch;
        self.spell(text, first, spelled);
        let mut rest = spelled.as_str();
        while !rest.is_empty() {
            let end = if self.words { word_end(rest) } else { rest.len() };
            let end = match self.order {
                Order::Ranks(_) => end,
                Order::Merges(_) => end.min(line_end(rest)),
            };
            let (word, after) = rest.split_at(end);
            self.encode_word(vocabulary, word, merger, ids);
            rest = after;
        }
    }

    /// Appends the tokens of a text whose neighbors cannot matter to it.
    fn encode_word(&self, vocabulary: &Vocabulary, word: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let mut buffer = [0; 4];
        for c in word.chars() {
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            merger.push(self.index.find(vocabulary, bytes).unwrap_or(NO_TOKEN), bytes.len() as u32);
        }
        merger.run(&Joins { spm: self, vocabulary, text: word.as_bytes() });
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            let bytes = &word.as_bytes()[start..start + symbol.len as usize];
            if bytes.iter().all(|&byte| self.bytes[usize::from(byte)].is_some()) {
                ids.extend(bytes.iter().filter_map(|&byte| self.bytes[usize::from(byte)]));
            } else {
                ids.extend(self.unknown);
            }
        }
    }

    fn spell(&self, text: &str, first: bool, spelled: &mut String) {
        spelled.clear();
        spelled.reserve(text.len() * 3 / 2 + 3);
        let text = if self.options.remove_extra_whitespaces { text.trim_matches(' ') } else { text };
        if first && self.options.add_space_prefix && !text.is_empty() {
            spelled.push(SPACE);
        }
        let mut after_space = false;
        for c in text.chars() {
            let space = c == ' ';
            if !(space && after_space && self.options.remove_extra_whitespaces) {
                spelled.push(if space { SPACE } else { c });
            }
            after_space = space;
        }
    }
}

/// Where the first word of `text` ends: in front of the first space that follows something else.
fn word_end(text: &str) -> usize {
    let begin = text.len() - text.trim_start_matches(SPACE).len();
    text[begin..].find(SPACE).map_or(text.len(), |at| begin + at)
}

/// Where the first run of line breaks, or of anything else, ends in `text`.
fn line_end(text: &str) -> usize {
    let breaks = text.starts_with('\n');
    text.find(|c: char| (c == '\n') != breaks).unwrap_or(text.len())
}

/// A number that grows as `score` does; every NaN has its place.
fn ascending(score: f32) -> u32 {
    // -0.0 and 0.0 are equal scores.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The byte that `<0x41>` stands for.
pub fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: Options, text: &str, expected: &[&str]) {
        let mut vocabulary = Vocabulary::with_capacity(300);
        let mut scores = Vec::new();
        let pieces = [
            ("<unk>", 0.0),
            ("▁", -9.0),
            ("a", -8.0),
            ("b", -7.0),
            ("ab", -1.0),
            ("ba", -2.0),
            ("▁a", -3.0),
            ("▁ab", -1.5),
            ("▁▁", -4.0),
        ];
        for (text, score) in pieces {
            let kind = if text == "<unk>" { Kind::Unknown } else { Kind::Normal };
            vocabulary.push(text.as_bytes(), kind).unwrap();
            scores.push(score);
        }
        for byte in 0x80..=0xff {
            vocabulary.push(format!("<0x{byte:02X}>").as_bytes(), Kind::Byte).unwrap();
        }
        let spm = Spm::new(&vocabulary, &scores, Some(0), options);
        let mut ids = Vec::new();
        spm.encode(&vocabulary, text, true, &mut Scratch::default(), &mut ids);
        let got: Vec<_> = ids.iter().map(|&id| String::from_utf8_lossy(vocabulary.text(id))).collect();
        assert_eq!(got, expected, "{text:?}");
    }

    const LLAMA: Options = Options { add_space_prefix: true, remove_extra_whitespaces: false };
    const GEMMA: Options = Options { add_space_prefix: false, ..LLAMA };

    #[test]
    fn the_best_score_is_joined_first() {
        check(LLAMA, "ab", &["▁ab"]);
        check(LLAMA, "  ab", &["▁▁", "▁ab"]);
        check(GEMMA, "bab", &["b", "ab"]);
        check(GEMMA, "é", &["<0xC3>", "<0xA9>"]);
        check(GEMMA, "a!", &["a", "<unk>"]);
        check(LLAMA, "ab  ab a", &["▁ab", "▁", "▁ab", "▁a"]);
        check(LLAMA, "", &[]);
        check(Options { remove_extra_whitespaces: true, ..LLAMA }, "  a   b ", &["▁a", "▁", "b"]);
    }

    #[test]
    fn ranks_order_scores() {
        let scores = [f32::NEG_INFINITY, -2.5, -1.0, 0.0, 1e-9, 3.0, f32::INFINITY];
        assert!(scores.windows(2).all(|pair| ascending(pair[0]) < ascending(pair[1])));
        assert_eq!(ascending(-0.0), ascending(0.0));
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0x+A>"), None);
    }
}
