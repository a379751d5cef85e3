//! Cutting text into the pieces that byte pair merging never joins.
//!
//! What: the pre-tokenizer a GGUF names in `tokenizer.ggml.pre` is a list of regular expressions applied one after
//! the other; each splits the pieces so far into its matches and the gaps between them.
//!
//! Why not a regex engine: the text is a stranger's and the expressions need look-ahead, so an engine for them
//! backtracks. All expressions in use are of one simple shape, an ordered choice of sequences of greedy repeats of a
//! character class; they are written here as tables and matched by a scanner of a few lines.
//!
//! How: [`Step::Repeat`] takes as many characters of a class as it may and gives back one at a time if the rest of
//! the sequence does not match, exactly as a backtracking engine does. In every table at most two repeats of a
//! sequence overlap and a failed sequence is followed by one that consumes what was looked at, so the number of
//! characters examined is linear in the text; [`Scan::work`] counts them and a test holds the bound.
//!
//! Limits: an unknown name is an error, never a guess. What a name means is llama.cpp's table, whose names GGUF files
//! use, with the expressions of the models' own `tokenizer.json` where that table approximates them. (Falcon's
//! tokenizer also cuts at bytes that look like numerals once spelled as Latin-1; like llama.cpp, this one does not.)
//! Classes are of the Unicode version of [`unicode`].

use std::ops::Range;

use super::unicode::{self, Mask};
use crate::{Error, Result};

mod tables;

pub use tables::ALL;

/// One row of the table: what the names in `tokenizer.ggml.pre` mean.
pub struct PreTokenizer {
    /// The names a GGUF may use.
    pub names: &'static [&'static str],
    /// The expressions, applied in order.
    pub stages: &'static [Stage],
    /// Whether a piece that is a token as it stands is that token, whatever the merges would give.
    pub ignore_merges: bool,
    /// Whether BOS is added when the file does not say.
    pub add_bos: bool,
    /// Whether text is composed (Unicode NFC) first, as the models of these names were trained and transformers does it.
    pub composes: bool,
}

/// An ordered choice: the first sequence that matches at a position wins.
pub type Stage = &'static [Sequence];

/// Steps that must match one after the other, and what must hold behind them.
pub struct Sequence {
    steps: &'static [Step],
    then: Then,
}

/// What must hold at the end of a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Nothing.
    Any,
    /// `(?!\S)`: white space or the end.
    Space,
    /// `$`: the end of the piece.
    End,
    /// `(?=(\d{3})+(?!\d))`: as many digits as make groups of three, and one at least.
    Groups,
    /// `(?=(?:\d{3})*\b)` behind a digit: groups of three or none, and then no character of a word.
    GroupsOfWord,
}

/// One element of a sequence.
enum Step {
    /// Between `min` and `max` characters of a class, as many as possible.
    Repeat { class: Class, min: u32, max: u32 },
    /// An English contraction: an apostrophe and `s t re ve m ll d`.
    Contraction { any_case: bool, optional: bool },
}

/// A set of characters.
#[derive(Clone, Copy)]
struct Class {
    mask: Mask,
    /// More members, as inclusive ranges in ascending order.
    ranges: &'static [(char, char)],
    negated: bool,
}

impl Class {
    #[inline]
    fn contains(&self, c: char, kind: u8) -> bool {
        let mut member = self.mask >> kind & 1 == 1;
        if !member && !self.ranges.is_empty() {
            let next = self.ranges.partition_point(|&(start, _)| start <= c);
            member = next > 0 && c <= self.ranges[next - 1].1;
        }
        member != self.negated
    }
}

/// `\w` as Oniguruma has it.
const WORD: Class = Class {
    mask: unicode::LETTER
        | unicode::MARK
        | unicode::DECIMAL
        | unicode::NUMBER_WORD
        | unicode::SYMBOL_WORD
        | unicode::CONNECTOR_OTHER,
    ranges: &[('_', '_')],
    negated: false,
};

/// The pre-tokenizer called `name`, or [`Error::Unsupported`] naming it.
pub fn by_name(name: &str) -> Result<&'static PreTokenizer> {
    ALL.iter()
        .find(|row| row.names.contains(&name))
        .ok_or_else(|| Error::unsupported(format!("pre-tokenizer {name} (tokenizer.ggml.pre)")))
}

/// Scratch space for splitting, reused from text to text.
#[derive(Default)]
pub struct Scan {
    chars: Vec<char>,
    kinds: Vec<u8>,
    cuts: Vec<u32>,
    next: Vec<u32>,
    /// Characters examined since the scan was made: the measure of effort that tests bound.
    pub work: u64,
}

impl Scan {
    /// Splits `text` and calls `piece` with the byte range of each piece, in order; together they cover the text.
    pub fn split(&mut self, rule: &PreTokenizer, text: &str, mut piece: impl FnMut(Range<usize>)) {
        self.chars.clear();
        self.chars.extend(text.chars());
        self.kinds.clear();
        self.kinds.extend(self.chars.iter().map(|&c| unicode::kind(c)));
        self.cuts.clear();
        self.cuts.push(self.chars.len() as u32);
        for stage in rule.stages {
            let mut start = 0;
            self.next.clear();
            for i in 0..self.cuts.len() {
                let end = self.cuts[i] as usize;
                self.split_piece(stage, start, end);
                start = end;
            }
            std::mem::swap(&mut self.cuts, &mut self.next);
        }
        let (mut at, mut byte) = (0, 0);
        for &cut in &self.cuts {
            let from = byte;
            while at < cut as usize {
                byte += self.chars[at].len_utf8();
                at += 1;
            }
            if byte > from {
                piece(from..byte);
            }
        }
    }

    /// Appends to `next` the ends of the pieces that `stage` makes of `start..end`.
    fn split_piece(&mut self, stage: Stage, start: usize, end: usize) {
        let mut matcher = Matcher {
            chars: &self.chars[..end],
            kinds: &self.kinds[..end],
            digits: 0..0,
            work: &mut self.work,
        };
        let mut at = start;
        let mut gap = false;
        while at < end {
            let found = stage.iter().find_map(|s| matcher.sequence(s.steps, s.then, at));
            match found {
                Some(to) if to > at => {
                    if gap {
                        self.next.push(at as u32);
                    }
                    self.next.push(to as u32);
                    gap = false;
                    at = to;
                }
                found => {
                    // What matches no character cuts in front of the next.
                    if found.is_some() && gap {
                        self.next.push(at as u32);
                    }
                    gap = true;
                    at += 1;
                }
            }
        }
        if gap {
            self.next.push(end as u32);
        }
    }
}

/// One piece being matched: the characters up to its end.
struct Matcher<'a> {
    chars: &'a [char],
    kinds: &'a [u8],
    /// The digits looked at last, to their end: each position of them asks for it.
    digits: Range<usize>,
    work: &'a mut u64,
}

impl Matcher<'_> {
    /// Where the sequence ends if it matches at `at`.
    fn sequence(&mut self, steps: &[Step], then: Then, at: usize) -> Option<usize> {
        let Some((step, rest)) = steps.split_first() else {
            return self.holds(then, at).then_some(at);
        };
        match *step {
            Step::Repeat { ref class, min, max } => {
                let most = (self.chars.len() - at).min(max as usize);
                let mut count = 0;
                while count < most && class.contains(self.chars[at + count], self.kinds[at + count]) {
                    count += 1;
                }
                *self.work += count as u64 + 1;
                loop {
                    if count < min as usize {
                        return None;
                    }
                    *self.work += 1;
                    if let Some(end) = self.sequence(rest, then, at + count) {
                        return Some(end);
                    }
                    count = count.checked_sub(1)?;
                }
            }
            Step::Contraction { any_case, optional } => {
                *self.work += 1;
                match self.contraction(at, any_case) {
                    Some(end) => self.sequence(rest, then, end),
                    None if optional => self.sequence(rest, then, at),
                    None => None,
                }
            }
        }
    }

    /// Where the digits that begin at `at` end.
    fn digits_end(&mut self, at: usize) -> usize {
        if !(self.digits.start..=self.digits.end).contains(&at) || self.digits.is_empty() {
            let digits = self.kinds[at..].iter().take_while(|kind| unicode::DECIMAL >> **kind & 1 == 1);
            self.digits = at..at + digits.count();
            *self.work += self.digits.len() as u64 + 1;
        }
        self.digits.end
    }

    fn holds(&mut self, then: Then, at: usize) -> bool {
        match then {
            Then::Any => true,
            Then::Space => at == self.chars.len() || unicode::SPACE >> self.kinds[at] & 1 == 1,
            Then::End => at == self.chars.len(),
            Then::Groups => {
                let count = self.digits_end(at) - at;
                count > 0 && count.is_multiple_of(3)
            }
            Then::GroupsOfWord => {
                let end = self.digits_end(at);
                (end - at).is_multiple_of(3)
                    && (end == self.chars.len() || !WORD.contains(self.chars[end], self.kinds[end]))
            }
        }
    }

    /// Where a contraction that begins at `at` ends. Ignoring case is Unicode's: U+017F folds to s.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let letter = |offset: usize| {
            let c = *self.chars.get(at + offset)?;
            Some(match c {
                '\u{17f}' if any_case => 's',
                _ if any_case => c.to_ascii_lowercase(),
                _ => c,
            })
        };
        if letter(0)? != '\'' {
            return None;
        }
        match (letter(1)?, letter(2)) {
            ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(at + 3),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pre: &str, text: &str, expected: &[&str]) {
        let mut pieces = Vec::new();
        Scan::default().split(by_name(pre).unwrap(), text, |range| pieces.push(&text[range]));
        assert_eq!(pieces, expected, "{pre}: {text:?}");
    }

    #[test]
    fn families_cut_where_their_expression_does() {
        check(
            "gpt-2",
            "Hello  world's 123!\n\n x",
            &["Hello", " ", " world", "'s", " 123", "!", "\n\n", " x"],
        );
        check("gpt-2", "I'LL", &["I", "'", "LL"]);
        check("llama-bpe", "I'LL 12345\r\n\n  a", &["I", "'LL", " ", "123", "45", "\r\n\n", " ", " a"]);
        check("llama-bpe", "\tfoo(bar)\n", &["\tfoo", "(bar", ")\n"]);
        check("qwen2", "a1234 b", &["a", "1", "2", "3", "4", " b"]);
        check("qwen35", "e\u{301}a", &["e\u{301}a"]);
        check("qwen2", "e\u{301}a", &["e", "\u{301}a"]);
        check("gpt-4o", "HelloWorld'S x/\n/", &["Hello", "World'S", " x", "/\n/"]);
        check("kimi-k2", "getUserName 12345/!\n", &["get", "User", "Name", " ", "123", "45", "/!\n"]);
        check("kimi-k2", "漢字abc 漢々〇x", &["漢字", "abc", " ", "漢々〇", "x"]);
        check("kimi-k2", "I'LL go,你好World'S", &["I'LL", " go", ",", "你好", "World'S"]);
        check("tekken", "HTTPServer 12", &["HTTPServer", " ", "1", "2"]);
        check("starcoder", "ab 12", &["ab", " ", "1", "2"]);
        check("deepseek-v3", "漢字abc 1234!x", &["漢字", "abc", " ", "123", "4", "!x"]);
        check("falcon", "a--b 1234567 c", &["a", "--", "b", " ", "123", "456", "7", " c"]);
        check("bloom", "Hi, there. x", &["Hi", ",", " there", ".", " x"]);
    }

    /// Pieces of Hugging Face's tokenizers.
    #[test]
    fn digits_are_grouped_from_their_end() {
        let words = "tiny_aya";
        check(words, "1234567 a", &["1", "234", "567", " a"]);
        check(words, "12345abc 1234_5", &["123", "45", "abc", " ", "123", "4", "_", "5"]);
        check(words, "1234567é ½12345", &["123", "456", "7", "é", " ", "½", "12", "345"]);
        check(words, "123½ 1234½567", &["123", "½", " ", "123", "4½", "567"]);
        check(words, "١٢٣٤٥,12", &["١٢", "٣٤٥", ",", "12"]);
        check(words, "5‿6 1234‿", &["5", "‿", "6", " ", "123", "4", "‿"]);
        check(words, "12345\u{301} 1", &["123", "45", "\u{301}", " ", "1"]);
        check(words, "a1234b12345678", &["a", "123", "4", "b", "12", "345", "678"]);
        check("superbpe", "1234567 a", &["1", "234", "567", " a"]);
        check("superbpe", "12345abc 1234_5", &["12", "345", "abc ", "1", "234", "_", "5"]);
        check("superbpe", "1234567é ½12345", &["1", "234", "567", "é ", "½12", "345"]);
        check("superbpe", "123½ 1234½567", &["123½", " ", "1", "234½", "567"]);
        check("superbpe", "x12 3456!", &["x", "12", " ", "3", "456", "!"]);
        check("superbpe", "it is 12345 now", &["it is ", "12", "345", " now"]);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let error = by_name("unknown-name").err().unwrap().to_string();
        assert!(error.contains("unknown-name"), "{error}");
    }

    #[test]
    fn pieces_cover_the_text_and_effort_is_linear() {
        let texts: Vec<String> = [
            "a",
            "A",
            " ",
            "\n",
            " \n",
            "'",
            "'s",
            "1",
            "1a",
            "1234567 ",
            "12345678_",
            "aA",
            "é\u{301}",
            "漢",
            "!",
            "! ",
            "\t a",
            "'S1 \r\n",
        ]
        .iter()
        .map(|unit| unit.repeat(4096 / unit.len()))
        .collect();
        for row in ALL {
            for text in &texts {
                let mut scan = Scan::default();
                let mut end = 0;
                scan.split(row, text, |range| {
                    assert_eq!(range.start, end);
                    end = range.end;
                });
                assert_eq!(end, text.len());
                let bound = 40 * (row.stages.len() * text.len()) as u64;
                assert!(scan.work < bound, "{}: {:?}: {}", row.names[0], &text[..8], scan.work);
            }
        }
    }
}
