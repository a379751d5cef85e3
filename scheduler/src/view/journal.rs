//! Whose figures changed lately, so that a snapshot of many hosts need not be built again for one announcement.
//!
//! Each change counts the view's epoch up by one and is noted with it. What cannot be said of one node counts the epoch up without
//! a note: from then on the journal does not reach back, and a snapshot is built from the view.

use std::collections::VecDeque;

use crate::NodeId;

/// Changes remembered: as many as some thousand nodes announce within a second.
const MAX_CHANGES: usize = 1_024;

/// What changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// What is said or known of a node.
    Node(NodeId),
    /// What a node says of distances to others.
    Link(NodeId),
}

/// The latest changes, each with the epoch that it began.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal(VecDeque<(u64, Change)>);

impl Journal {
    /// Notes what began `epoch`.
    pub fn note(&mut self, epoch: u64, change: Change) {
        if self.0.len() == MAX_CHANGES {
            self.0.pop_front();
        }
        self.0.push_back((epoch, change));
    }

    /// All that changed after the epoch `since` up to `now`; `None` where that is not known.
    pub fn since(&self, since: u64, now: u64) -> Option<Vec<Change>> {
        let later = self.0.iter().rev().take_while(|(at, _)| *at > since);
        let changes: Vec<Change> = later.map(|(_, change)| *change).collect();
        (changes.len() as u64 == now.checked_sub(since)?).then_some(changes)
    }
}
