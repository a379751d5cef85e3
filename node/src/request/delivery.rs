//! What the caller is to hear: drawn by the worker, then emitted by the session machine, then (strict) checked, then told.

use std::collections::VecDeque;

use super::plan::Progress;

/// What is on its way to the caller of one request.
#[derive(Default)]
pub(super) struct Delivery {
    /// What the worker said about the tokens that the machine is about to emit, and which of them ends the turn.
    sampled: VecDeque<(Progress, bool)>,
    /// Tokens of a strict answer that are not checked yet.
    unchecked: VecDeque<Progress>,
    /// What the caller is to hear next.
    news: Vec<Progress>,
}

impl Delivery {
    /// The worker drew these; they replace what it drew before and was not emitted.
    pub(super) fn drawn(&mut self, sampled: impl Iterator<Item = (Progress, bool)>) {
        self.sampled = sampled.collect();
    }

    /// What is to be said of the token that is emitted now.
    pub(super) fn emitted(&mut self) -> Option<(Progress, bool)> {
        self.sampled.pop_front()
    }

    /// The caller is to hear it next.
    pub(super) fn say(&mut self, said: Progress) {
        self.news.push(said);
    }

    /// The caller is to hear of a token once what it follows from is checked.
    pub(super) fn say_checked(&mut self, token: Progress) {
        self.unchecked.push_back(token);
    }

    /// Positions below `checked` are checked.
    pub(super) fn release(&mut self, checked: u32) {
        let is_checked =
            |said: &Progress| matches!(said, Progress::Token { position, .. } if *position <= checked);
        while self.unchecked.front().is_some_and(is_checked) {
            self.news.extend(self.unchecked.pop_front());
        }
    }

    /// What could not be checked in time is said all the same.
    pub(super) fn release_all(&mut self) {
        self.news.extend(self.unchecked.drain(..));
    }

    /// Tokens at position `from` and beyond are generated again.
    pub(super) fn forget(&mut self, from: u32) {
        self.unchecked.retain(|said| matches!(said, Progress::Token { position, .. } if *position < from));
        self.sampled.clear();
    }

    /// What there is to say.
    pub(super) fn take(&mut self) -> Vec<Progress> {
        std::mem::take(&mut self.news)
    }
}
