//! The requester's side of epochs and attempts: which frames count, and how far.

use std::collections::VecDeque;

/// Attempts of which it is remembered how far their rows count; rows of older ones have been under way for as many steps.
const ATTEMPTS_KEPT: usize = 32;

/// The epoch that runs, and its attempts.
#[derive(Clone, Debug, Default)]
pub(super) struct Epoch {
    pub(super) number: u32,
    /// The attempt of this epoch, and the drafted rows of its step.
    pub(super) attempt: u16,
    pub(super) drafted: u32,
    /// The latest abandoned attempts of this epoch, and below which position their rows count.
    abandoned: VecDeque<(u16, u32)>,
}

impl Epoch {
    /// A new epoch, at its first attempt and without a draft.
    pub(super) fn next(&mut self) {
        *self = Self { number: self.number + 1, ..Self::default() };
    }

    /// A new attempt: rows of the one before count below position `below` only, and its draft is gone.
    pub(super) fn abandon(&mut self, below: u32) {
        if self.abandoned.len() == ATTEMPTS_KEPT {
            self.abandoned.pop_front();
        }
        self.abandoned.push_back((self.attempt, below));
        self.attempt += 1;
        self.drafted = 0;
    }

    /// The position at which the attempt began; 0 for the first one.
    pub(super) fn attempt_start(&self) -> u32 {
        self.abandoned.back().map_or(0, |(_, below)| *below)
    }

    /// Rows of frames of `attempt` count at positions below this, where the step that runs reaches to `reach`.
    pub(super) fn valid_below(&self, attempt: u16, reach: u32) -> u32 {
        match self.abandoned.iter().find(|(abandoned, _)| *abandoned == attempt) {
            Some((_, below)) => *below,
            None if attempt == self.attempt => reach,
            None => 0,
        }
    }
}
