//! Which earlier positions the rows of a session see: a term of its leases and a part of the name of its state.
//!
//! A session chooses one kind for all of its layers. Layers whose model gives them a window of their own keep it, and
//! layers without softmax attention have nothing to choose from. Everything is chosen by positions alone, so that a
//! replay in other chunks, on another machine, sees the same.
//!
//! ```text
//!   dense              0 ..= i
//!   window:W           the W positions before i, and i
//!   sparse:window=W,sinks=G,stride=on,block=B
//!                      the W positions before i, and i        window
//!                      0 .. G                                 sinks
//!                      i - 2^k for every k                    stride
//!                      means of the keys and values of whole  landmarks
//!                      blocks of B positions: p, p - 1 and p - 2^k with p = (i + 1) / B - 1
//! ```
//!
//! Worked example, `sparse:window=16,sinks=1,stride=on,block=16` at i = 50: the window is 34 to 50, the sink is 0, the
//! stride beyond the window is 50 - 32, and p = 2: the landmarks are those of blocks 2 (positions 32 to 47), 1 and 0.
//! A position is seen once, and so is a landmark; a block inside the window is seen as a landmark too.
//!
//! Limits: attention is causal.

use std::{fmt, str::FromStr};

/// Which earlier positions a row sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttentionKind {
    /// All of them.
    #[default]
    Dense,
    /// This many before it.
    Window(u32),
    /// Few of them, and means of the others.
    Sparse(Sparse),
}

/// The numbers of sparse attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sparse {
    /// Positions before a row that it sees, [`MIN_SPARSE_WINDOW`] to [`MAX_WINDOW`].
    pub window: u32,
    /// The first positions of the session, which every row sees, at most [`MAX_SINKS`].
    pub sinks: u32,
    /// Whether a row sees the positions 1, 2, 4, 8 and so on before it.
    pub stride: bool,
    /// Positions of a block whose means are a landmark: 16, 32, 64, 128 or 256; 0 for no landmarks.
    pub block: u32,
}

/// Most positions of a window.
pub const MAX_WINDOW: u32 = 1 << 24;
/// Fewest positions of the window of sparse attention: what lies beyond is then a whole group of 16 positions away.
pub const MIN_SPARSE_WINDOW: u32 = 16;
/// Most sinks: they are read with every row.
pub const MAX_SINKS: u32 = 128;
/// Positions of a block, smallest and largest: whole groups of a page, and no more than a page.
const BLOCKS: std::ops::RangeInclusive<u32> = 16..=256;

impl Sparse {
    /// A window of 128, one sink, strides, and landmarks of 64.
    pub const DEFAULT: Self = Self { window: 128, sinks: 1, stride: true, block: 64 };

    /// Sees `positions` before a row at position `i`, landmarks among them: what a row costs to compute.
    pub fn seen(&self, i: u64) -> u64 {
        let window = u64::from(self.window);
        let outside = i.saturating_sub(window);
        let sinks = u64::from(self.sinks).min(outside);
        let strides = match self.stride {
            true => powers()
                .filter(|far| *far > window && i.checked_sub(*far).is_some_and(|j| j >= sinks))
                .count(),
            false => 0,
        };
        let blocks = self.blocks(i);
        let landmarks = blocks.min(1) + powers().filter(|far| *far < blocks).count() as u64;
        window.min(i) + 1 + sinks + strides as u64 + landmarks
    }

    /// Whole blocks before and with position `i`.
    fn blocks(&self, i: u64) -> u64 {
        if self.block == 0 { 0 } else { (i + 1) / u64::from(self.block) }
    }

    fn check(self) -> Result<Self, BadAttention> {
        let (smallest, largest) = (BLOCKS.start(), BLOCKS.end());
        let block = self.block == 0 || BLOCKS.contains(&self.block) && self.block.is_power_of_two();
        match () {
            () if !(MIN_SPARSE_WINDOW..=MAX_WINDOW).contains(&self.window) => Err(BadAttention(format!(
                "a sparse window of {}: it holds {MIN_SPARSE_WINDOW} to {MAX_WINDOW} positions",
                self.window
            ))),
            () if self.sinks > MAX_SINKS => {
                Err(BadAttention(format!("{} sinks: there are at most {MAX_SINKS}", self.sinks)))
            }
            () if !block => Err(BadAttention(format!(
                "blocks of {}: a block is 0 (no landmarks) or a power of two from {smallest} to {largest}",
                self.block
            ))),
            () => Ok(self),
        }
    }
}

/// 1, 2, 4 and so on.
fn powers() -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|k| 1 << k)
}

impl AttentionKind {
    /// Whether rows see all positions.
    pub fn is_dense(self) -> bool {
        self == Self::Dense
    }

    /// The kind, if its numbers are within their bounds.
    ///
    /// # Errors
    /// [`BadAttention`] says which number is not.
    pub fn checked(self) -> Result<Self, BadAttention> {
        match self {
            Self::Dense => Ok(self),
            Self::Window(window) if (1..=MAX_WINDOW).contains(&window) => Ok(self),
            Self::Window(window) => {
                Err(BadAttention(format!("a window of {window}: it holds 1 to {MAX_WINDOW} positions")))
            }
            Self::Sparse(sparse) => sparse.check().map(Self::Sparse),
        }
    }

    /// Positions and landmarks that a row at position `i` sees in a layer that has no window of its own.
    pub fn seen(self, i: u64) -> u64 {
        match self {
            Self::Dense => i + 1,
            Self::Window(window) => i.min(u64::from(window)) + 1,
            Self::Sparse(sparse) => sparse.seen(i),
        }
    }

    /// [`AttentionKind::seen`] of the first `positions` rows together.
    pub fn pairs(self, positions: u64) -> u64 {
        (0..positions).map(|i| self.seen(i)).sum()
    }
}

/// Attention that does not exist: the sentence says what does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAttention(String);

impl BadAttention {
    pub(crate) fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl fmt::Display for BadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadAttention {}

impl fmt::Display for AttentionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Window(window) => write!(f, "window:{window}"),
            Self::Sparse(Sparse { window, sinks, stride, block }) => {
                let stride = if *stride { "on" } else { "off" };
                write!(f, "sparse:window={window},sinks={sinks},stride={stride},block={block}")
            }
        }
    }
}

/// What can be written, for messages.
const FORMS: &str = "dense, window:POSITIONS, sparse, or sparse:window=128,sinks=1,stride=on,block=64";
/// Bytes of a kind in words that are read at most.
const MAX_TEXT: usize = 96;

impl FromStr for AttentionKind {
    type Err = BadAttention;

    /// `dense`, `window:POSITIONS`, `sparse`, or `sparse:` and any of its settings; those not named are as in
    /// [`Sparse::DEFAULT`].
    fn from_str(text: &str) -> Result<Self, BadAttention> {
        let unknown = || BadAttention(format!("there is no such attention: write {FORMS}"));
        if text.len() > MAX_TEXT {
            return Err(unknown());
        }
        let (kind, settings) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, settings) {
            ("dense", None) => Ok(Self::Dense),
            ("window", Some(window)) => Self::Window(window.parse().map_err(|_| unknown())?).checked(),
            ("sparse", None) => Ok(Self::Sparse(Sparse::DEFAULT)),
            ("sparse", Some(settings)) => {
                let mut sparse = Sparse::DEFAULT;
                for setting in settings.split(',') {
                    let (name, value) = setting.split_once('=').ok_or_else(unknown)?;
                    let number = || value.parse().map_err(|_| unknown());
                    match (name, value) {
                        ("window", _) => sparse.window = number()?,
                        ("sinks", _) => sparse.sinks = number()?,
                        ("block", _) => sparse.block = number()?,
                        ("stride", "on") => sparse.stride = true,
                        ("stride", "off") => sparse.stride = false,
                        _ => return Err(unknown()),
                    }
                }
                Self::Sparse(sparse).checked()
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rule as it is written down, position by position.
    fn written(sparse: Sparse, i: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let mut tokens: BTreeSet<u64> = (i.saturating_sub(u64::from(sparse.window))..=i).collect();
        tokens.extend((0..u64::from(sparse.sinks)).filter(|sink| *sink <= i));
        let mut blocks = BTreeSet::new();
        if sparse.stride {
            tokens.extend(powers().filter_map(|far| i.checked_sub(far)));
        }
        if let Some(p) = sparse.blocks(i).checked_sub(1) {
            blocks.insert(p);
            blocks.extend(powers().filter_map(|far| p.checked_sub(far)));
        }
        (tokens, blocks)
    }

    #[test]
    fn the_number_of_pairs_is_the_published_one() {
        let kind: AttentionKind = "sparse".parse().unwrap();
        let pairs = [512, 1_024, 8_192, 32_768].map(|positions| kind.pairs(positions));
        assert_eq!(pairs, [59_778, 129_858, 1_146_498, 4_742_658]);
        assert_eq!(AttentionKind::Dense.pairs(8_192), 33_558_528);
        assert_eq!(AttentionKind::Window(128).pairs(200), (1..=128).sum::<u64>() + 72 * 129);
    }

    #[test]
    fn what_is_counted_is_the_rule() {
        for (window, sinks, stride, block) in
            [(128, 1, true, 64), (4, 1, true, 16), (1, 20, true, 0), (300, 128, false, 256), (7, 0, true, 32)]
        {
            let sparse = Sparse { window, sinks, stride, block };
            for i in (0..1_500).chain([4_095, 4_096, 40_000]) {
                let (tokens, blocks) = written(sparse, i);
                assert_eq!(sparse.seen(i), (tokens.len() + blocks.len()) as u64, "{sparse:?} at {i}");
            }
        }
    }

    #[test]
    fn kinds_are_written_as_they_are_read() {
        let sparse = Sparse { window: 512, sinks: 4, stride: false, block: 0 };
        for kind in [AttentionKind::Dense, AttentionKind::Window(9), AttentionKind::Sparse(sparse)] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("sparse".parse(), Ok(AttentionKind::Sparse(Sparse::DEFAULT)));
        let wide = Sparse { window: 256, ..Sparse::DEFAULT };
        assert_eq!("sparse:window=256".parse(), Ok(AttentionKind::Sparse(wide)));
        for (text, why) in [
            ("", "write dense"),
            ("thin", "write dense"),
            ("dense:1", "write dense"),
            ("window", "write dense"),
            ("window:-1", "write dense"),
            ("window:0", "1 to 16777216"),
            ("sparse:window=15", "16 to 16777216"),
            ("sparse:sinks=129", "at most 128"),
            ("sparse:block=48", "power of two"),
            ("sparse:block=512", "power of two"),
            ("sparse:stride=yes", "write dense"),
            ("sparse:", "write dense"),
        ] {
            let error = text.parse::<AttentionKind>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!("sparse:window=1".repeat(9).parse::<AttentionKind>().is_err());
    }
}
