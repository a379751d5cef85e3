//! Byte-level byte pair encoding: the tokenizer of GPT-2 and most that came after (`tokenizer.ggml.model = gpt2`).
//!
//! Text is cut into pieces ([`super::pretokenize`]), each piece starts as single bytes, and the file's merges join neighbors
//! in the order of the list. Files spell bytes as printable characters (GPT-2's table); that spelling is undone once, at load, so everything here works on
//! the bytes themselves.
//!
//! A merge list may go through texts that are no tokens; such a text gets a number beyond the vocabulary and, if it
//! is left over at the end, becomes the tokens of its bytes. Bytes without a token are dropped, as everywhere else.

use std::{borrow::Cow, collections::HashMap};

use icu_normalizer::ComposingNormalizerBorrowed;

use super::{
    merge::{Merger, Rules, Symbol},
    pretokenize::{PreTokenizer, Scan},
    vocabulary::{Index, Kind, Vocabulary},
};
use crate::{Error, Result};

/// Merges by the numbers of the two sides: rank in the list and number of the result.
struct Merges(HashMap<(u32, u32), (u32, u32)>);

impl Rules for Merges {
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.0.get(&(left.id, right.id)).copied()
    }
}

/// Everything that encoding needs beside the vocabulary.
pub struct Bpe {
    rule: &'static PreTokenizer,
    index: Index,
    merges: Merges,
    /// The number of each byte as a symbol.
    bytes: [u32; 256],
    /// Each byte's token, if it has one.
    byte_tokens: [Option<u32>; 256],
}

/// Space for encoding, reused from text to text.
#[derive(Default)]
pub struct Scratch {
    /// The pre-tokenizer's.
    pub scan: Scan,
    /// The merges'.
    pub merger: Merger,
}

impl Bpe {
    /// Builds the tables. `merges` are lines of two spelled texts with a space between them, best first.
    pub fn new(
        rule: &'static PreTokenizer,
        vocabulary: &Vocabulary,
        merges: &[impl AsRef<str>],
    ) -> Result<Self> {
        // Text must never become a control token by way of merges.
        let index = Index::new(vocabulary, |kind| !matches!(kind, Kind::Control | Kind::Unknown));
        let mut numbers = Numbers { vocabulary, index: &index, more: HashMap::new() };
        let byte_tokens = std::array::from_fn(|byte| index.find(vocabulary, &[byte as u8]));
        let mut bytes = [0; 256];
        for (byte, number) in bytes.iter_mut().enumerate() {
            *number = numbers.of(&[byte as u8])?;
        }
        let mut table = HashMap::with_capacity(merges.len());
        let mut text = Vec::new();
        for (rank, line) in merges.iter().enumerate() {
            let line = line.as_ref();
            let field = || format!("tokenizer.ggml.merges[{rank}]");
            let space = line.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
            let Some((left, right)) = space.map(|at| (&line[..at], &line[at + 1..])) else {
                return Err(Error::malformed(
                    field(),
                    format!("{line:?} is not two texts with a space between"),
                ));
            };
            text.clear();
            unspell(left, &mut text);
            let middle = text.len();
            unspell(right, &mut text);
            let sides = (numbers.of(&text[..middle])?, numbers.of(&text[middle..])?);
            let joined = numbers.of(&text)?;
            table.entry(sides).or_insert((rank as u32, joined));
        }
        Ok(Self { rule, bytes, byte_tokens, merges: Merges(table), index })
    }

    /// Whether [`Bpe::composed`] leaves `text` as it is.
    pub fn is_composed(&self, text: &str) -> bool {
        !self.rule.composes || text.is_ascii() || ComposingNormalizerBorrowed::new_nfc().is_normalized(text)
    }

    /// `text` as it is tokenized: in Unicode's composed form (NFC) where the vocabulary is one of such text.
    pub fn composed<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.rule.composes && !text.is_ascii() {
            true => ComposingNormalizerBorrowed::new_nfc().normalize(text),
            false => Cow::Borrowed(text),
        }
    }

    /// Appends the tokens of `text`, which has no special tokens in it.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { scan, merger } = scratch;
        let text = &*self.composed(text);
        scan.split(self.rule, text, |range| {
            let piece = &text.as_bytes()[range];
            if self.rule.ignore_merges
                && let Some(id) = self.index.find(vocabulary, piece)
            {
                ids.push(id);
                return;
            }
            merger.clear();
            for &byte in piece {
                merger.push(self.bytes[usize::from(byte)], 1);
            }
            merger.run(&self.merges);
            for symbol in merger.symbols() {
                if (symbol.id as usize) < vocabulary.len() {
                    ids.push(symbol.id);
                } else {
                    let start = symbol.start as usize;
                    let bytes = &piece[start..start + symbol.len as usize];
                    ids.extend(bytes.iter().filter_map(|&byte| self.byte_tokens[usize::from(byte)]));
                }
            }
        });
    }
}

/// Numbers for texts: the token's id, or a new one beyond the vocabulary.
struct Numbers<'v> {
    vocabulary: &'v Vocabulary,
    index: &'v Index,
    more: HashMap<Vec<u8>, u32>,
}

impl Numbers<'_> {
    fn of(&mut self, text: &[u8]) -> Result<u32> {
        if let Some(id) = self.index.find(self.vocabulary, text) {
            return Ok(id);
        }
        if let Some(&number) = self.more.get(text) {
            return Ok(number);
        }
        let number = u32::try_from(self.vocabulary.len() + self.more.len())
            .map_err(|_| Error::malformed("tokenizer.ggml.merges", "too many texts that are no tokens"))?;
        self.more.insert(text.to_vec(), number);
        Ok(number)
    }
}

/// Appends the bytes that `text` spells in GPT-2's alphabet. Text outside of that alphabet stands for itself.
pub fn unspell(text: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// The byte a character of GPT-2's alphabet stands for: printable Latin-1 is itself, the other 68 bytes follow one
/// another from U+0100.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::pretokenize;

    #[test]
    fn the_alphabet_spells_every_byte_once() {
        let mut seen = [false; 256];
        for byte in (0..0x180).filter_map(char::from_u32).filter_map(byte_of) {
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "{byte:#x} twice");
        }
        assert!(seen.iter().all(|&seen| seen));
        let mut bytes = Vec::new();
        unspell("Ġa", &mut bytes);
        unspell("▁a", &mut bytes);
        assert_eq!(bytes, " a▁a".as_bytes());
    }

    /// The pair that comes first in the list wins, the leftmost of equals first, and texts that are no tokens fall
    /// apart into bytes.
    #[test]
    fn merges_follow_the_list() {
        let mut vocabulary = Vocabulary::with_capacity(8);
        for text in ["a", "b", "c", "ab", "bc", "aa"] {
            vocabulary.push(text.as_bytes(), Kind::Normal).unwrap();
        }
        let rule = pretokenize::by_name("gpt-2").unwrap();
        let bpe = Bpe::new(rule, &vocabulary, &["b c", "a b", "a a", "c a"]).unwrap();
        let encode = |text: &str| {
            let mut ids = Vec::new();
            bpe.encode(&vocabulary, text, &mut Scratch::default(), &mut ids);
            ids
        };
        assert_eq!(encode("abc"), [0, 4]);
        assert_eq!(encode("abab"), [3, 3]);
        assert_eq!(encode("aaa"), [5, 0]);
        assert_eq!(encode("cac"), [2, 0, 2]);
        assert_eq!(encode("axb"), [0, 1]);
    }

    #[test]
    fn effort_grows_no_faster_than_the_text() {
        let mut vocabulary = Vocabulary::with_capacity(16);
        let mut merges = Vec::new();
        for power in 0..12 {
            let text = "a".repeat(1 << power);
            vocabulary.push(text.as_bytes(), Kind::Normal).unwrap();
            merges.push(format!("{text} {text}"));
        }
        let rule = pretokenize::by_name("llama-bpe").unwrap();
        let bpe = Bpe::new(rule, &vocabulary, &merges).unwrap();
        for n in [1000, 100_000] {
            let mut scratch = Scratch::default();
            bpe.encode(&vocabulary, &"a".repeat(n), &mut scratch, &mut Vec::new());
            assert!(scratch.merger.work <= 3 * n as u64, "{n}: {}", scratch.merger.work);
        }
    }
}
