//! Which nodes failed a request, and how long it waits before it asks them again.

use std::collections::{BTreeMap, BTreeSet};

use crate::rng::{Rng, mix};
use crate::{NodeId, SessionId};

/// When only nodes that failed are left, they are asked again after this, doubling each time: 0.5 to 4 s, about what a
/// restart takes, a quarter more or less ([`Blame::wait_ms`]).
const FORGIVE_MS: u64 = 500;
/// Times a node is forgiven, of which each token earns some back: about 32 s of waiting without one, after which the
/// request is given up.
const MOST_FORGIVEN: u32 = 10;
/// Times that a token earns back: three tokens make up for a restart. A whole new patience for every token let a request
/// whose every route broke at once crawl on for minutes, a token at a time out of its own log.
const FORGIVEN_PER_TOKEN: u32 = 2;

/// Who failed, and what waiting for them has cost.
#[derive(Clone, Debug, Default)]
pub(super) struct Blame {
    failed: BTreeSet<NodeId>,
    /// How often each failed, forgiven or not.
    times: BTreeMap<NodeId, u32>,
    /// No route is left without those who failed; the least to blame are forgiven when the wait is over.
    pub(super) forgiving: bool,
    /// Times a node was, less what tokens have earned since.
    forgiven: u32,
    /// Times a node was since the last token: a session that begins to wait asks sooner than one that has waited long.
    waits: u32,
    /// The last promise that did not come was owed by a node that answers or refused: it has no room, or others wait as we
    /// do.
    pub(super) crowded: bool,
}

impl Blame {
    /// A node failed.
    pub(super) fn bar(&mut self, node: NodeId) {
        self.failed.insert(node);
        *self.times.entry(node).or_insert(0) += 1;
    }

    /// Those that a route must do without.
    pub(super) fn denied(&self) -> Vec<NodeId> {
        self.failed.iter().copied().collect()
    }

    /// A token came.
    pub(super) fn earn(&mut self) {
        self.forgiven = self.forgiven.saturating_sub(FORGIVEN_PER_TOKEN);
        self.waits = 0;
    }

    /// Whether those who failed may still be waited for.
    pub(super) fn may_wait(&self) -> bool {
        self.forgiven < MOST_FORGIVEN
    }

    /// How long to wait this time: the time due, a quarter more or less, by the session's name, so that sessions that
    /// failed together do not return together.
    pub(super) fn wait_ms(&self, session: SessionId) -> u64 {
        let due = FORGIVE_MS << self.waits.min(3);
        let name = session.as_bytes().iter().fold(0, |mixed, byte| mix(mixed ^ u64::from(*byte)));
        due * 3 / 4 + Rng::new(name ^ u64::from(self.forgiven)).next_u64() % (due / 2)
    }

    /// The wait is over: those least to blame may be asked again.
    pub(super) fn forgive(&mut self) {
        self.forgiving = false;
        self.forgiven += 1;
        self.waits += 1;
        // One that was suspected once may be innocent; one that failed again after it was forgiven waits longest.
        let least = self.failed.iter().map(|node| self.times.get(node).copied()).min().flatten();
        self.failed.retain(|node| self.times.get(node).copied() > least);
    }
}
