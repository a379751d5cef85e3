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
//!   h2o:budget=B,sinks=G,window=W
//!                      the positions that are still kept, and i: all of the first B; before rows B, B + S, B + 2 S
//!                      and so on (S is B / 16 in whole 64s, at least 64) those S go that were looked at least,
//!                      never one of 0 .. G or of the last W
//! ```
//!
//! Worked example, `sparse:window=16,sinks=1,stride=on,block=16` at i = 50: the window is 34 to 50, the sink is 0, the
//! stride beyond the window is 50 - 32, and p = 2: the landmarks are those of blocks 2 (positions 32 to 47), 1 and 0.
//! A position is seen once, and so is a landmark; a block inside the window is seen as a landmark too.
//!
//! Worked example, `h2o:budget=256,sinks=4,window=64`: S = 64. Rows 0 to 255 see everything. Before row 256 the 64 positions
//! among 4 to 191 go that were looked at least; row 256 sees 192 positions and itself, row 319 sees 255 and itself, and before row
//! 320 the next 64 go. How many are kept follows from the position alone; which ones each head of keys says for itself.
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
    /// Those that were looked at most: the others are forgotten.
    H2o(H2o),
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

/// The numbers of a session that forgets what is looked at least (heavy hitters, H2O).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct H2o {
    /// Most positions in memory, a multiple of [`H2O_UNIT`].
    pub budget: u32,
    /// The first positions of the session, which stay, at most [`MAX_SINKS`].
    pub sinks: u32,
    /// The last positions before a row, which stay, at least [`MIN_SPARSE_WINDOW`].
    pub window: u32,
}

/// What a budget is counted in, and the fewest positions that go at once: what memory is given out in.
pub const H2O_UNIT: u32 = 64;

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

impl H2o {
    /// A budget of 2,048 with 4 sinks and the last 512.
    pub const DEFAULT: Self = Self { budget: 2048, sinks: 4, window: 512 };

    /// Positions that go at once: a sixteenth of the budget in whole units, at least one.
    pub fn step(&self) -> u32 {
        (self.budget / 16 / H2O_UNIT * H2O_UNIT).max(H2O_UNIT)
    }

    /// Whether positions go before the row at `position`.
    pub fn evicts_before(&self, position: u64) -> bool {
        position.checked_sub(self.budget.into()).is_some_and(|over| over.is_multiple_of(self.step().into()))
    }

    /// Positions in memory after the first `len` of a session.
    pub fn held(&self, len: u64) -> u64 {
        let (budget, step) = (u64::from(self.budget), u64::from(self.step()));
        if len <= budget { len } else { budget - step + (len - budget - 1) % step + 1 }
    }

    /// Rows from `position` on that may be computed before the next ones go, if any.
    pub fn room(&self, position: u64) -> u64 {
        let (budget, step) = (u64::from(self.budget), u64::from(self.step()));
        if position < budget { budget - position } else { step - (position - budget) % step }
    }

    fn check(self) -> Result<Self, BadAttention> {
        let Self { budget, sinks, window } = self;
        match () {
            () if !(2 * H2O_UNIT..=MAX_WINDOW).contains(&budget) || !budget.is_multiple_of(H2O_UNIT) => {
                Err(BadAttention(format!(
                    "a budget of {budget}: it is a multiple of {H2O_UNIT} from {} to {MAX_WINDOW} positions",
                    2 * H2O_UNIT
                )))
            }
            () if sinks > MAX_SINKS => {
                Err(BadAttention(format!("{sinks} sinks: there are at most {MAX_SINKS}")))
            }
            () if window < MIN_SPARSE_WINDOW => Err(BadAttention(format!(
                "an h2o window of {window}: it holds at least {MIN_SPARSE_WINDOW} positions"
            ))),
            () if u64::from(sinks) + u64::from(window) > u64::from(budget - self.step()) => {
                Err(BadAttention(format!(
                    "{sinks} sinks and a window of {window} in a budget of {budget}: {} stay when some go",
                    budget - self.step()
                )))
            }
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
            Self::H2o(h2o) => h2o.check().map(Self::H2o),
        }
    }

    /// Positions and landmarks that a row at position `i` sees in a layer that has no window of its own.
    pub fn seen(self, i: u64) -> u64 {
        match self {
            Self::Dense => i + 1,
            Self::Window(window) => i.min(u64::from(window)) + 1,
            Self::Sparse(sparse) => sparse.seen(i),
            Self::H2o(h2o) if h2o.evicts_before(i) => u64::from(h2o.budget - h2o.step()) + 1,
            Self::H2o(h2o) => h2o.held(i) + 1,
        }
    }

    /// Most positions that a session of this kind keeps in memory in a layer that has no window of its own, if not all.
    pub fn budget(self) -> Option<u64> {
        match self {
            Self::H2o(h2o) => Some(h2o.budget.into()),
            Self::Dense | Self::Window(_) | Self::Sparse(_) => None,
        }
    }

    /// Whether a session goes back to any position that its layers go back to; where it does not, what it counted since is
    /// computed again.
    pub fn goes_back(self) -> bool {
        self.budget().is_none()
    }

    /// Most rows from `position` on of which the last ones can be taken back without computing the session again.
    pub fn rows_taken_back(self, position: u64) -> u64 {
        match self {
            Self::H2o(h2o) if h2o.evicts_before(position) => 1,
            Self::H2o(h2o) => h2o.room(position),
            Self::Dense | Self::Window(_) | Self::Sparse(_) => u64::MAX,
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
            Self::H2o(H2o { budget, sinks, window }) => {
                write!(f, "h2o:budget={budget},sinks={sinks},window={window}")
            }
        }
    }
}

/// What can be written, for messages.
const FORMS: &str = "dense, window:POSITIONS, sparse, sparse:window=128,sinks=1,stride=on,block=64, h2o, or \
                     h2o:budget=2048,sinks=4,window=512";
/// Bytes of a kind in words that are read at most.
const MAX_TEXT: usize = 96;

impl FromStr for AttentionKind {
    type Err = BadAttention;

    /// `dense`, `window:POSITIONS`, `sparse`, `h2o`, or one of the last two with a colon and any of its settings; those not
    /// named are as in [`Sparse::DEFAULT`] and [`H2o::DEFAULT`].
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
            ("h2o", None) => Ok(Self::H2o(H2o::DEFAULT)),
            ("h2o", Some(settings)) => {
                let mut h2o = H2o::DEFAULT;
                for setting in settings.split(',') {
                    let (name, value) = setting.split_once('=').ok_or_else(unknown)?;
                    let number = value.parse().map_err(|_| unknown())?;
                    match name {
                        "budget" => h2o.budget = number,
                        "sinks" => h2o.sinks = number,
                        "window" => h2o.window = number,
                        _ => return Err(unknown()),
                    }
                }
                Self::H2o(h2o).checked()
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

    /// What is kept follows a count from row to row, and never exceeds the budget.
    #[test]
    fn what_is_kept_follows_from_the_position() {
        for (budget, step) in [(128, 64), (1024, 64), (1088, 64), (2048, 128), (4096, 256)] {
            let h2o = H2o { budget, sinks: 4, window: 32 };
            assert_eq!(h2o.step(), step);
            let (mut held, mut gone) = (0, 0);
            for i in 0..u64::from(budget) * 3 {
                assert_eq!((h2o.held(i), i - gone), (held, held), "{h2o:?} at {i}");
                assert_eq!(h2o.evicts_before(i), held == u64::from(budget), "{h2o:?} at {i}");
                if h2o.evicts_before(i) {
                    held -= u64::from(step);
                    gone += u64::from(step);
                    assert_eq!(h2o.room(i), u64::from(step));
                }
                assert_eq!(AttentionKind::H2o(h2o).seen(i), held + 1, "{h2o:?} at {i}");
                assert_eq!(h2o.room(i), u64::from(budget) - held);
                held += 1;
            }
        }
        let kind = AttentionKind::H2o(H2o::DEFAULT);
        assert_eq!(
            (kind.budget(), kind.goes_back(), AttentionKind::Dense.goes_back()),
            (Some(2048), false, true)
        );
        assert_eq!([2040, 2047, 2048, 2049].map(|at| kind.rows_taken_back(at)), [8, 1, 1, 127]);
        assert_eq!(
            (AttentionKind::Dense.budget(), AttentionKind::Dense.rows_taken_back(7)),
            (None, u64::MAX)
        );
    }

    #[test]
    fn kinds_are_written_as_they_are_read() {
        let sparse = Sparse { window: 512, sinks: 4, stride: false, block: 0 };
        let h2o = AttentionKind::H2o(H2o { budget: 192, sinks: 0, window: 128 });
        assert_eq!("h2o:budget=192,sinks=0,window=128".parse(), Ok(h2o));
        assert_eq!("h2o".parse(), Ok(AttentionKind::H2o(H2o::DEFAULT)));
        for kind in [AttentionKind::Dense, AttentionKind::Window(9), AttentionKind::Sparse(sparse), h2o] {
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
            ("h2o:", "write dense"),
            ("h2o:keep=1", "write dense"),
            ("h2o:budget=64", "from 128 to 16777216"),
            ("h2o:budget=1000", "multiple of 64"),
            ("h2o:sinks=129", "at most 128"),
            ("h2o:window=15", "at least 16"),
            ("h2o:budget=512", "448 stay"),
        ] {
            let error = text.parse::<AttentionKind>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!("sparse:window=1".repeat(9).parse::<AttentionKind>().is_err());
    }
}
