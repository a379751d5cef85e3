//! SentencePiece's byte pair encoding (`tokenizer.ggml.model = llama`): llama 2, mistral, gemma, phi 3.
//!
//! Spaces are spelled U+2581, every character begins as a symbol, and of all neighbors whose joined text is a token
//! those with the best score are joined, the leftmost first. Characters without a token become the tokens of their
//! bytes, or the unknown token where the file has none for bytes. Scores are turned into ranks at load, so the
//! comparison in the heap is of integers and a NaN in the file cannot upset it.

use super::{
    merge::{Merger, Rules, Symbol},
    vocabulary::{Index, Kind, Vocabulary},
};

/// How SentencePiece spells a space.
pub const SPACE: char = '\u{2581}';

/// Everything that encoding needs beside the vocabulary.
pub struct Spm {
    index: Index,
    /// By id: the smaller the better.
    ranks: Vec<u32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    options: Options,
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
        let start = left.start as usize;
        let text = &self.text[start..start + (left.len + right.len) as usize];
        let id = self.spm.index.find(self.vocabulary, text)?;
        Some((self.spm.ranks[id as usize], id))
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
        Self { index, ranks, bytes, unknown, options }
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
        merger.clear();
        let mut buffer = [0; 4];
        for c in spelled.chars() {
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            merger.push(self.index.find(vocabulary, bytes).unwrap_or(NO_TOKEN), bytes.len() as u32);
        }
        merger.run(&Joins { spm: self, vocabulary, text: spelled.as_bytes() });
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            let bytes = &spelled.as_bytes()[start..start + symbol.len as usize];
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
