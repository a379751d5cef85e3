//! The inputs of passes, and those of a range's last one for states that go back no further than to where that pass began.
//!
//! Behind a wrong draft the next job starts in the middle of the last pass. A state of pages goes back to there; one that recurs goes back
//! to where the pass began ([`shard::state::recurrent`]), and what the pass computed up to the job's start is computed again with
//! the job, from the inputs that were kept here. So they need not come again.
//!
//! Bounds: passes of [`FEW_ROWS`] rows and as many that came again, one of them per range.

use std::ops::Range;

use crate::drafting::FEW_ROWS;

/// Rows of a pass whose inputs are kept.
const MOST: usize = 2 * FEW_ROWS;

/// Where the inputs of a job lie among those of its pass.
pub(super) enum Staged {
    /// Token ids.
    Tokens(Range<usize>),
    /// Values of rows.
    Rows(Range<usize>),
}

/// The inputs of a pass of few rows.
#[derive(Default)]
pub(super) struct Recent {
    /// The position of the first.
    from: u32,
    tokens: Vec<u32>,
    /// `[n][width]`.
    rows: Vec<f32>,
    width: usize,
}

impl Recent {
    /// Keeps the inputs of a pass over `input`, which ended before position `end`; its rows have `width` values.
    pub(super) fn keep(&mut self, end: u32, input: &Staged, (tokens, rows): (&[u32], &[f32]), width: usize) {
        self.tokens.clear();
        self.rows.clear();
        match input {
            Staged::Tokens(at) if at.len() <= MOST => self.tokens.extend_from_slice(&tokens[at.clone()]),
            Staged::Rows(at) if at.len() <= MOST * width => self.rows.extend_from_slice(&rows[at.clone()]),
            Staged::Tokens(_) | Staged::Rows(_) => {}
        }
        self.width = width;
        self.from = end - self.held();
    }

    fn held(&self) -> u32 {
        self.tokens.len().max(self.rows.len().checked_div(self.width).unwrap_or(0)) as u32
    }

    /// Whether those of the positions from `from` up to `to` are here.
    pub(super) fn has(&self, from: u32, to: u32) -> bool {
        self.from == from && to - from <= self.held()
    }

    /// The first `count` tokens, or rows.
    pub(super) fn tokens(&self, count: usize) -> &[u32] {
        &self.tokens[..count]
    }

    /// See [`Self::tokens`].
    pub(super) fn rows(&self, count: usize) -> &[f32] {
        &self.rows[..count * self.width]
    }
}
