//! What leases taught: who holds less than announced, and who cannot reach whom. It outweighs announcements for a while.

use super::SwarmView;
use crate::capability::Holding;
use crate::{LayerSet, Millis, ModelId, NodeId};

/// How long a correction outweighs announcements, ms. Shorter and a liar is asked again by every request; longer and a
/// node that loaded the layers after all, without saying so, stays unused.
pub const CORRECTED_MS: u64 = 60_000;
/// How long a pair that could not talk is avoided, ms: about what a relay needs to come back, and a fourth of what a request
/// without a route waits. Longer and a small swarm stays split when it no longer is: the stream that failed may have been one
/// to a process that is long gone, while its successor waits next door.
pub const UNREACHABLE_MS: u64 = 8_000;
/// Corrections of each kind kept; beyond, further ones are not, which costs a refused lease each time.
pub const MAX_CORRECTIONS: usize = 4_096;

/// What a node truly holds, learned when it refused a lease.
#[derive(Clone, Debug)]
pub(super) struct Correction {
    /// What it had announced; another announcement ends the correction.
    pub(super) announced: LayerSet,
    pub(super) held: LayerSet,
    pub(super) at: Millis,
}

impl SwarmView {
    /// A node refused a lease on layers it had announced, and says what it holds of `model` (when it does not say, pass
    /// the announced layers [without](LayerSet::without) the refused ones). Until it announces something else the
    /// snapshots show only that. Whether this changes anything: when it does not, the refusal is the node's fault.
    pub fn correct(&mut self, node: NodeId, model: ModelId, held: LayerSet, now: Millis) -> bool {
        let Some(known) = self.known.get(&node) else { return false };
        let announced = known.capability.holding(model).map(Holding::loaded_set).unwrap_or_default();
        let held = announced.intersection(&held);
        let full =
            self.corrections.len() >= MAX_CORRECTIONS && !self.corrections.contains_key(&(node, model));
        if held == announced || full {
            return false;
        }
        self.corrections.insert((node, model), Correction { announced, held, at: now });
        self.epoch += 1;
        true
    }

    /// Two nodes turned out not to reach each other, in either direction: no route crosses that pair for a while.
    pub fn unreachable(&mut self, one: NodeId, other: NodeId, now: Millis) {
        let pair = (one.min(other), one.max(other));
        if one != other && (self.unreachable.len() < MAX_CORRECTIONS || self.unreachable.contains_key(&pair))
        {
            self.unreachable.insert(pair, now);
            self.epoch += 1;
        }
    }

    /// Takes [`SwarmView::unreachable`] back: these two are connected.
    pub fn reachable(&mut self, one: NodeId, other: NodeId) {
        let found = self.unreachable.remove(&(one.min(other), one.max(other)));
        self.epoch += u64::from(found.is_some());
    }
}
