//! Which letters, digits, marks and spaces there are.
//!
//! Pre-tokenizers speak of `\p{L}`, `\p{N}`, `\s` and a handful of ASCII characters. Every code point is given one
//! small *kind* such that each class any of them uses is a union of kinds; a class is then one 32-bit mask and
//! membership one table look-up and a shift. The ranges come from the `regex-syntax` crate (Unicode Character
//! Database, the version that crate ships), so no table is kept here; the look-up is built on first use in about a
//! millisecond and takes some 70 KiB.

use std::{collections::HashMap, sync::LazyLock};

use regex_syntax::hir::{Class, HirKind};

/// A set of kinds, one bit per kind.
pub type Mask = u32;

macro_rules! kinds {
    ($($name:ident = $bit:expr, $what:expr;)*) => {
        $(#[doc = $what] pub const $name: Mask = 1 << $bit;)*
    };
}

kinds! {
    OTHER = 0, "Everything that is in no other kind: controls, unassigned, format characters.";
    UPPER_OTHER = 1, "`\\p{Lu}` beyond ASCII.";
    LOWER_OTHER = 2, "`\\p{Ll}` beyond ASCII.";
    TITLE = 3, "`\\p{Lt}`.";
    MODIFIER = 4, "`\\p{Lm}`.";
    LETTER_OTHER = 5, "`\\p{Lo}`.";
    MARK = 6, "`\\p{M}`.";
    NUMBER_OTHER = 7, "`\\p{N}` of no other kind.";
    PUNCTUATION_OTHER = 8, "`\\p{P}` beyond ASCII, of no other kind.";
    SYMBOL_OTHER = 9, "`\\p{S}` beyond ASCII, of no other kind.";
    SPACE_OTHER = 10, "`\\s` that is neither of the three below.";
    RETURN = 11, "Carriage return.";
    NEWLINE = 12, "Line feed.";
    BLANK = 13, "U+0020.";
    UPPER_ASCII = 14, "`[A-Z]`.";
    LOWER_ASCII = 15, "`[a-z]`.";
    DIGIT_ASCII = 16, "`[0-9]`.";
    PUNCTUATION_ASCII = 17, "`\\p{P}` within ASCII but for the slash.";
    SYMBOL_ASCII = 18, "`[$+<=>^~|]`.";
    BACKTICK = 19, "U+0060, a symbol.";
    SLASH = 20, "U+002F, punctuation.";
    DIGIT_OTHER = 21, "`\\p{Nd}` beyond ASCII.";
    NUMBER_WORD = 22, "`[\\p{Nl}¹²³¼½¾]`, which Oniguruma counts among `\\w`.";
    SYMBOL_WORD = 23, "`[\\p{S}&&\\w]`.";
    CONNECTOR_OTHER = 24, "`\\p{Pc}` beyond ASCII.";
}

/// `\p{Lu}`.
pub const UPPER: Mask = UPPER_OTHER | UPPER_ASCII;
/// `\p{Ll}`.
pub const LOWER: Mask = LOWER_OTHER | LOWER_ASCII;
/// `\p{L}`.
pub const LETTER: Mask = UPPER | LOWER | TITLE | MODIFIER | LETTER_OTHER;
/// `\p{N}`.
pub const NUMBER: Mask = NUMBER_OTHER | NUMBER_WORD | DECIMAL;
/// `\p{Nd}`.
pub const DECIMAL: Mask = DIGIT_OTHER | DIGIT_ASCII;
/// `\p{P}`.
pub const PUNCTUATION: Mask = PUNCTUATION_OTHER | CONNECTOR_OTHER | PUNCTUATION_ASCII | SLASH;
/// `\p{S}`.
pub const SYMBOL: Mask = SYMBOL_OTHER | SYMBOL_WORD | SYMBOL_ASCII | BACKTICK;
/// `[\r\n]`.
pub const LINE: Mask = RETURN | NEWLINE;
/// `\s`, that is White_Space.
pub const SPACE: Mask = SPACE_OTHER | LINE | BLANK;

const PAGE: usize = 256;
const CODE_POINTS: usize = 0x11_0000;

struct Table {
    page_of: Vec<u16>,
    pages: Vec<[u8; PAGE]>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::build);

/// The kind of `c`, a number below 32.
#[inline]
pub fn kind(c: char) -> u8 {
    let code = c as usize;
    TABLE.pages[usize::from(TABLE.page_of[code / PAGE])][code % PAGE]
}

/// Whether `c` is of one of the kinds in `mask`.
#[inline]
pub fn is(c: char, mask: Mask) -> bool {
    mask >> kind(c) & 1 == 1
}

impl Table {
    fn build() -> Self {
        let mut kinds = vec![0u8; CODE_POINTS];
        let mut fill = |pattern: &str, mask: Mask| {
            for (start, end) in ranges(pattern) {
                kinds[start as usize..=end as usize].fill(mask.trailing_zeros() as u8);
            }
        };
        fill(r"\p{Lu}", UPPER_OTHER);
        fill(r"\p{Ll}", LOWER_OTHER);
        fill(r"\p{Lt}", TITLE);
        fill(r"\p{Lm}", MODIFIER);
        fill(r"\p{Lo}", LETTER_OTHER);
        fill(r"\p{M}", MARK);
        fill(r"\p{N}", NUMBER_OTHER);
        fill(r"[\p{Nl}¹²³¼½¾]", NUMBER_WORD);
        fill(r"\p{Nd}", DIGIT_OTHER);
        fill(r"\p{P}", PUNCTUATION_OTHER);
        fill(r"\p{Pc}", CONNECTOR_OTHER);
        fill(r"\p{S}", SYMBOL_OTHER);
        fill(r"[\p{S}&&\w]", SYMBOL_WORD);
        fill(r"\s", SPACE_OTHER);
        fill(r"[A-Z]", UPPER_ASCII);
        fill(r"[a-z]", LOWER_ASCII);
        fill(r"[0-9]", DIGIT_ASCII);
        fill(r"[\p{P}&&[\x00-\x7f]]", PUNCTUATION_ASCII);
        fill(r"[$+<=>^~|]", SYMBOL_ASCII);
        fill(r"[`]", BACKTICK);
        fill(r"[/]", SLASH);
        fill(r"[\r]", RETURN);
        fill(r"[\n]", NEWLINE);
        fill(r"[ ]", BLANK);

        let mut pages: Vec<[u8; PAGE]> = Vec::new();
        let mut known: HashMap<&[u8], u16> = HashMap::new();
        let page_of = kinds
            .chunks_exact(PAGE)
            .map(|chunk| {
                *known.entry(chunk).or_insert_with(|| {
                    pages.push(std::array::from_fn(|i| chunk[i]));
                    (pages.len() - 1) as u16
                })
            })
            .collect();
        Self { page_of, pages }
    }
}

/// The code points a one-character pattern matches; the patterns are the constants above, all valid.
pub(super) fn ranges(pattern: &str) -> Vec<(u32, u32)> {
    let hir = regex_syntax::parse(pattern).expect("a constant pattern");
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|r| (r.start() as u32, r.end() as u32)).collect()
        }
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0)
            .expect("a constant pattern")
            .chars()
            .map(|c| (c as u32, c as u32))
            .collect(),
        other => unreachable!("{pattern} is one character, not {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_agree_with_the_database_everywhere() {
        for (pattern, mask) in [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\p{Nd}", DECIMAL),
            (r"\p{P}", PUNCTUATION),
            (r"\p{S}", SYMBOL),
            (r"\p{M}", MARK),
            (r"\p{Lu}", UPPER),
            (r"\p{Ll}", LOWER),
            (r"\s", SPACE),
        ] {
            let mut expected = vec![false; CODE_POINTS];
            for (start, end) in ranges(pattern) {
                expected[start as usize..=end as usize].fill(true);
            }
            for c in '\0'..=char::MAX {
                assert_eq!(is(c, mask), expected[c as usize], "{pattern} U+{:04X}", c as u32);
            }
        }
    }

    #[test]
    fn every_ascii_symbol_has_its_own_kind() {
        assert!("$+<=>^~|".chars().all(|c| is(c, SYMBOL_ASCII)));
        assert!("!\"#%&'()*,-.:;?@[\\]_{}".chars().all(|c| is(c, PUNCTUATION_ASCII)));
        assert!(is('/', SLASH) && is('`', BACKTICK) && is('\u{a0}', SPACE_OTHER) && is('\u{200b}', OTHER));
    }
}
