//! Whose figures changed lately, so that a snapshot of many hosts need not be built again for one announcement.
//!
//! Each change counts the view's epoch up by one and is noted with it. What cannot be said of one node counts the epoch up without
//! a note: from then on the journal does not reach back, and a snapshot is built from the view.

use std::collections::VecDeque;

use super::SwarmView;
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

impl SwarmView {
    /// Counts the epoch up for `change`.
    pub(super) fn changed(&mut self, change: Change) {
        self.epoch += 1;
        if self.journal.0.len() == MAX_CHANGES {
            self.journal.0.pop_front();
        }
        self.journal.0.push_back((self.epoch, change));
    }

    /// All that changed after `epoch`; `None` where that is not known.
    pub(super) fn changes_since(&self, epoch: u64) -> Option<Vec<Change>> {
        let later = self.journal.0.iter().rev().take_while(|(at, _)| *at > epoch);
        let changes: Vec<Change> = later.map(|(_, change)| *change).collect();
        (changes.len() as u64 == self.epoch.checked_sub(epoch)?).then_some(changes)
    }
}
