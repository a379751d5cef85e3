//! SentencePiece's unigram model (`tokenizer.ggml.model = t5`): XLM-RoBERTa and the encoders made of it.
//!
//! Text is rewritten by the longest rules of the file's table that begin at each place ([`Rules`]), spaces are spelled U+2581, and
//! of all ways to cut it into tokens the one with the greatest sum of scores is taken (Kudo 2018, arXiv 1804.10959, section 3.2).
//! A character that no token begins is unknown; unknown ones that follow each other are one token.
//!
//! Limits: tokens of more than [`MAX_PIECE`] bytes are never found, so that a text costs at most that many look-ups for each of its
//! characters; no rule reads or writes more than [`MAX_RULE`] bytes, and a text that the rules make longer than [`MAX_SPELLED`] is
//! refused.

use super::{
    MAX_TEXT_BYTES,
    spm::SPACE,
    vocabulary::{Index, Kind, Vocabulary},
};
use crate::{Error, Result};

/// Bytes of the longest token that is looked for; those of published vocabularies have at most 50.
const MAX_PIECE: usize = 128;
/// Most bytes that a rule replaces, and most that it puts there: of the published tables the longest replacement, that of U+FDFA, has
/// 33. A trie may lead in circles, so what walks it must stop somewhere.
const MAX_RULE: usize = 128;
/// Bytes of a text as the vocabulary spells it: a space takes three, a rule may write more than it reads. Finding the way through
/// them takes 12 times as many.
const MAX_SPELLED: usize = 2 * MAX_TEXT_BYTES;
/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The key of the table in a file, for errors.
const TABLE: &str = "tokenizer.ggml.precompiled_charsmap";

/// What becomes of texts before they are cut: a trie of what is replaced, and the replacements.
///
/// ```text
/// u32 bytes of the trie | the trie, u32 units | replacements, each with a zero byte behind it
/// unit: bits 0..8 label, bit 8 whether a leaf follows, bit 9 scale of the offset, bits 10..31 offset; of a leaf bits 0..31 place
/// ```
#[derive(Debug, Default)]
struct Rules {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Rules {
    fn new(table: &[u8]) -> Result<Self> {
        if table.is_empty() {
            return Ok(Self::default());
        }
        let wrong = |why: &str| Error::malformed(TABLE, why);
        let (length, rest) = table.split_first_chunk::<4>().ok_or_else(|| wrong("is too short"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (trie, replacements) =
            rest.split_at_checked(length).ok_or_else(|| wrong("its trie is longer than it"))?;
        let (units, odd) = trie.as_chunks::<4>();
        if !odd.is_empty()
            || std::str::from_utf8(replacements).is_err()
            || replacements.last().is_some_and(|last| *last != 0)
        {
            return Err(wrong("is no trie with texts behind it"));
        }
        if replacements.split(|byte| *byte == 0).any(|text| text.len() > MAX_RULE) {
            return Err(wrong(&format!("puts more than {MAX_RULE} bytes in one place")));
        }
        Ok(Self {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// The longest rule at the beginning of `text`: how many bytes it replaces, and by what.
    fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let mut at = offset(*self.units.first()?) as usize;
        let mut found = None;
        for (index, byte) in text.iter().take(MAX_RULE).enumerate() {
            at ^= usize::from(*byte);
            let Some(&unit) = self.units.get(at) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            at ^= offset(unit) as usize;
            if unit >> 8 & 1 == 1 {
                let place = self.units.get(at).map(|leaf| (leaf & 0x7fff_ffff) as usize);
                found = place.map(|place| (index + 1, place)).or(found);
            }
        }
        let (length, place) = found?;
        let text = self.replacements.get(place..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some((length, std::str::from_utf8(&text[..end]).ok()?))
    }
}

/// Everything that encoding needs beside the vocabulary.
pub struct Unigram {
    index: Index,
    scores: Vec<f32>,
    unknown: Option<u32>,
    unknown_score: f32,
    longest: usize,
    rules: Rules,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
}

/// The best way to a place in a text.
#[derive(Clone, Copy)]
struct Way {
    score: f32,
    /// Where its last token begins; [`NONE`] while no way leads here.
    from: u32,
    /// Its last token; [`NONE`] for an unknown character.
    id: u32,
}

const NONE: u32 = u32::MAX;
const NO_WAY: Way = Way { score: 0.0, from: NONE, id: NONE };

/// Space for encoding, reused from text to text.
#[derive(Default)]
pub struct Scratch {
    text: String,
    ways: Vec<Way>,
    /// Bytes of all texts so far, as the vocabulary spells them.
    spelled: usize,
}

impl Unigram {
    /// Builds the tables. `scores` has one entry per token; `table` is `precompiled_charsmap`, empty for none.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a table that is not sound.
    pub fn new(
        vocabulary: &Vocabulary,
        scores: &[f32],
        unknown: Option<u32>,
        table: &[u8],
        (add_space_prefix, remove_extra_whitespaces): (bool, bool),
    ) -> Result<Self> {
        let text = |kind| matches!(kind, Kind::Normal | Kind::UserDefined);
        let scores: Vec<f32> = (0..vocabulary.len())
            .map(|id| scores.get(id).copied().filter(|score| score.is_finite()).unwrap_or(0.0))
            .collect();
        let least = vocabulary.ids(text).map(|id| scores[id as usize]).fold(f32::INFINITY, f32::min);
        let longest = vocabulary.ids(text).map(|id| vocabulary.text(id).len()).max().unwrap_or(0);
        Ok(Self {
            index: Index::new(vocabulary, text),
            unknown_score: if least.is_finite() { least } else { 0.0 } - UNKNOWN_PENALTY,
            scores,
            unknown,
            longest: longest.min(MAX_PIECE),
            rules: Rules::new(table)?,
            add_space_prefix,
            remove_extra_whitespaces,
        })
    }

    /// Appends the tokens of `text`; `first` says that nothing but special tokens is in front of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for texts that the rules make too long, all those of `scratch` together.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        first: bool,
        Scratch { text: clean, ways, spelled }: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        self.clean(text, first, MAX_SPELLED.saturating_sub(*spelled), clean)?;
        *spelled += clean.len();
        ways.clear();
        ways.resize(clean.len() + 1, NO_WAY);
        ways[0].from = 0;
        for (start, c) in clean.char_indices() {
            let here = ways[start].score;
            let mut better = |end: usize, score: f32, id: u32| {
                let way = &mut ways[end];
                if way.from == NONE || here + score > way.score {
                    *way = Way { score: here + score, from: start as u32, id };
                }
            };
            let next = start + c.len_utf8();
            let mut alone = false;
            let most = (start + self.longest).min(clean.len());
            for end in (next..=most).filter(|end| clean.is_char_boundary(*end)) {
                if let Some(id) = self.index.find(vocabulary, &clean.as_bytes()[start..end]) {
                    better(end, self.scores[id as usize], id);
                    alone |= end == next;
                }
            }
            if !alone {
                better(next, self.unknown_score, NONE);
            }
        }
        // From the end to the beginning, then turned round.
        let before = ids.len();
        let (mut end, mut known) = (clean.len(), true);
        while end > 0 {
            let Way { from, id, .. } = ways[end];
            match id {
                NONE if known => ids.extend(self.unknown),
                NONE => {}
                id => ids.push(id),
            }
            known = id != NONE;
            end = from as usize;
        }
        ids[before..].reverse();
        Ok(())
    }

    /// `text` as the vocabulary spells it, in at most `room` bytes.
    fn clean(&self, text: &str, first: bool, room: usize, clean: &mut String) -> Result<()> {
        clean.clear();
        if first && self.add_space_prefix {
            clean.push(SPACE);
        }
        let before = clean.len();
        let mut spaced = self.remove_extra_whitespaces;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (length, piece) = match self.rules.longest(rest.as_bytes()) {
                // A rule that ends inside a character is no rule.
                Some((length, piece)) if rest.is_char_boundary(length) => (length, piece),
                _ => (c.len_utf8(), &rest[..c.len_utf8()]),
            };
            for c in piece.chars() {
                match c {
                    ' ' if spaced => {}
                    ' ' => clean.push(SPACE),
                    c => clean.push(c),
                }
                spaced = self.remove_extra_whitespaces && c == ' ';
            }
            if clean.len() > room {
                return Err(Error::invalid(format!(
                    "the text has more than {MAX_SPELLED} bytes as the vocabulary spells it: send less at once"
                )));
            }
            rest = &rest[length..];
        }
        if self.remove_extra_whitespaces {
            clean.truncate(clean.trim_end_matches(SPACE).len());
        }
        if clean.len() <= before && text.trim().is_empty() {
            clean.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Definition, Encode, Tokenizer};
    use super::*;

    /// A table of one rule: `a`, and any run of it when `circles`, becomes `by`.
    fn table(circles: bool, by: &str) -> Vec<u8> {
        let at = b'a' as usize;
        let mut units = vec![0u32; at + 1];
        units[at] = u32::from(b'a') | 1 << 8 | u32::from(b'a') << 10;
        if !circles {
            // The leaf is elsewhere, and nothing goes on from there.
            units.resize(512, 0);
            units[at] = u32::from(b'a') | 1 << 8 | (256 ^ at as u32) << 10;
        }
        let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(trie.len() as u32).to_le_bytes()[..], &trie, by.as_bytes(), &[0]].concat()
    }

    fn made(rules: Vec<u8>) -> Result<Tokenizer> {
        Tokenizer::new(Definition {
            model: "t5",
            tokens: vec!["b", "</s>", "<unk>"],
            kinds: vec![Kind::Normal, Kind::Control, Kind::Unknown],
            scores: vec![-1.0, 0.0, 0.0],
            add_space_prefix: Some(false),
            rules,
            ..Definition::default()
        })
    }

    #[test]
    fn a_trie_that_leads_in_circles_is_left_after_a_constant() {
        let circles = made(table(true, "b")).unwrap();
        let ids = circles.encode(&"a".repeat(3 * MAX_RULE + 1), Encode::PLAIN).unwrap();
        assert_eq!(ids, [0; 4], "each rule takes as much as a rule may");
        let plain = made(table(false, "b")).unwrap();
        assert_eq!(plain.encode("aaab", Encode::PLAIN).unwrap(), [0; 4]);
    }

    #[test]
    fn a_text_that_rules_make_too_long_is_refused() {
        assert!(made(table(false, &"b".repeat(MAX_RULE + 1))).is_err(), "a rule that writes too much");
        let tokenizer = made(table(false, &"b".repeat(MAX_RULE))).unwrap();
        let most = MAX_SPELLED / MAX_RULE;
        let why = tokenizer.encode(&"a".repeat(most + 1), Encode::PLAIN).unwrap_err().to_string();
        assert!(why.contains("send less at once"), "{why}");
        assert_eq!(tokenizer.encode("aa", Encode::PLAIN).unwrap().len(), 2 * MAX_RULE);
    }
}
