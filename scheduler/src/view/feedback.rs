//! What leases taught: who holds less than announced, and who cannot reach whom. It outweighs announcements for a while.

use std::collections::BTreeMap;

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
    announced: LayerSet,
    held: LayerSet,
    at: Millis,
}

/// All that leases taught and that still counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrections {
    held: BTreeMap<(NodeId, ModelId), Correction>,
    apart: BTreeMap<(NodeId, NodeId), Millis>,
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

impl Corrections {
    /// A node that announced some layers of `model` turned out to hold `held` of them; whether that is news.
    pub fn hold(
        &mut self,
        (node, model): (NodeId, ModelId),
        announced: LayerSet,
        held: &LayerSet,
        now: Millis,
    ) -> bool {
        let held = announced.intersection(held);
        let full = self.held.len() >= MAX_CORRECTIONS && !self.held.contains_key(&(node, model));
        if held == announced || full {
            return false;
        }
        self.held.insert((node, model), Correction { announced, held, at: now });
        true
    }

    /// What `node` holds of `model`, of which it announces `announced`.
    pub fn held(&self, node: NodeId, model: ModelId, announced: LayerSet) -> LayerSet {
        let correction = self.held.get(&(node, model)).filter(|known| known.announced == announced);
        correction.map_or(announced, |known| known.held.clone())
    }

    /// Two nodes turned out not to reach each other; whether that is kept.
    pub fn part(&mut self, one: NodeId, other: NodeId, now: Millis) -> bool {
        let pair = pair(one, other);
        let kept = one != other && (self.apart.len() < MAX_CORRECTIONS || self.apart.contains_key(&pair));
        if kept {
            self.apart.insert(pair, now);
        }
        kept
    }

    /// Two nodes reach each other again; whether that is news.
    pub fn join(&mut self, one: NodeId, other: NodeId) -> bool {
        self.apart.remove(&pair(one, other)).is_some()
    }

    /// Whether two nodes do not reach each other.
    pub fn are_apart(&self, one: NodeId, other: NodeId) -> bool {
        self.apart.contains_key(&pair(one, other))
    }

    /// Such pairs among nodes that have an index, both ways.
    pub fn pairs_apart(&self, index: impl Fn(NodeId) -> Option<u32>) -> impl Iterator<Item = (u32, u32)> {
        let indexed = move |pair: &(NodeId, NodeId)| Some((index(pair.0)?, index(pair.1)?));
        self.apart.keys().filter_map(indexed).flat_map(|(i, j)| [(i, j), (j, i)])
    }

    /// A node that was gone is back: what was known of it may no longer be so.
    pub fn forget_node(&mut self, node: NodeId) {
        self.apart.retain(|pair, _| pair.0 != node && pair.1 != node);
        self.held.retain(|of, _| of.0 != node);
    }

    /// Forgets what is old; whether anything was.
    pub fn expire(&mut self, now: Millis) -> bool {
        let before = self.held.len() + self.apart.len();
        self.held.retain(|_, correction| now.since(correction.at) < CORRECTED_MS);
        self.apart.retain(|_, at| now.since(*at) < UNREACHABLE_MS);
        self.held.len() + self.apart.len() < before
    }
}
