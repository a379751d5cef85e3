//! How far back the rows of a layer look, and which positions its state keeps for them.
//!
//! A layer with a sliding window, or with attention in blocks, looks at its last positions only. Its state keeps whole pages
//! ([`PAGE`] positions), from the one with the first position that the next row sees, and [`REACH`] positions more, so that a
//! session may go back that far: rejected speculation, a turn that is asked again, the end of an answer that a template writes
//! otherwise. With a window of 512 and 5,000 positions held:
//!
//! ```text
//!  0                                      3328   3465            4489            5000
//!  | freed ------------------------------ | kept for going back | seen by the next row |
//! ```
//!
//! (`5000 - REACH + 1 - 512 = 3465`, whose page begins at 3328.) A snapshot holds what [`Back::kept`] says, which follows from
//! the number of positions alone: equal sessions are equal bytes, whatever they have freed. A restored session goes back within
//! its first page only.

#[cfg(test)]
mod tests;

use std::fmt;

use crate::kernels::PAGE;

/// Positions that a state keeps beyond what its next row sees. Less, and a chat whose last answer is asked again computes its
/// prompt again; more, and memory grows by as many positions in each layer with a window.
pub const REACH: usize = 1024;

// Routes and admission count what states take.
const _: () = assert!(REACH + PAGE == scheduler::layer_cost::BEHIND_WINDOW as usize);

/// What the rows of a layer see behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// A row sees itself and the positions before it, so many in all.
    window: usize,
    /// A row sees no further back than its block of so many positions.
    block: usize,
}

impl Back {
    /// Rows see all positions before them.
    pub const ALL: Self = Self { window: usize::MAX, block: usize::MAX };

    /// Rows see a window, themselves included, and their block, where there are such.
    pub fn new(window: Option<usize>, block: Option<usize>) -> Self {
        let some = |positions: Option<usize>| positions.unwrap_or(usize::MAX).max(1);
        Self { window: some(window), block: some(block) }
    }

    /// Whether rows see all positions before them.
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    /// What is enough for the rows of both.
    pub fn and(self, other: Self) -> Self {
        let block = if self.block == other.block { self.block } else { usize::MAX };
        Self { window: self.window.max(other.window), block }
    }

    /// The first position that a row at `position` sees.
    pub fn first(self, position: usize) -> usize {
        let window = (position + 1).saturating_sub(self.window);
        window.max(position - position % self.block)
    }

    /// The first position of a state of `len` positions: a page begins there, and all that its last row saw lies behind it, and
    /// with that what the next row sees. One position may be taken back, therefore, and the quarter of the last one says what those
    /// behind it are relative to in a cache of `q4`.
    pub fn kept(self, len: usize) -> usize {
        self.first(len.saturating_sub(1)) / PAGE * PAGE
    }

    /// The first position that stays when a state of `before` positions comes to hold `len`: [`REACH`] of them may be taken back,
    /// and those of the last pass.
    pub fn stays(self, before: usize, len: usize) -> usize {
        self.kept(len.saturating_sub(REACH).min(before))
    }

    /// Most positions that a state of `positions` holds, after passes of at most [`REACH`] rows.
    pub fn most(self, positions: usize) -> usize {
        positions.min(self.window.min(self.block).saturating_add(REACH + PAGE))
    }
}

impl fmt::Display for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.window, self.block) {
            (usize::MAX, usize::MAX) => write!(f, "all behind"),
            (window, usize::MAX) => write!(f, "{window} behind"),
            (usize::MAX, block) => write!(f, "blocks of {block}"),
            (window, block) => write!(f, "{window} behind in blocks of {block}"),
        }
    }
}
