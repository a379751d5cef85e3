//! What this machine measured of other nodes, and how they behaved.
//!
//! It corrects what they claim, and it outlives their absence.
//!
//! Identities cost nothing, so what a node says before anything was seen of it is worth nothing: such a node is a
//! *stranger*. It is *met* when it is connected or a round trip to it was measured ([`SwarmView::meet`]), and when it has
//! served, for good. One that does not answer is a stranger again for a while, twice as long each time
//! ([`SwarmView::snub`]). Routes prefer those that were met ([`crate::route::acquainted`]).

use std::collections::BTreeSet;

use super::journal::Change;
use super::{MAX_NODES, SwarmView};
use crate::latency::{Ema, SPEED_TAU_MS};
use crate::rng::mix;
use crate::{Millis, ModelId, NodeId};

/// What an unknown machine is assumed to need per layer and token, ms: pessimistic, so that claims alone win nothing.
pub const PRIOR_LAYER_MS: f64 = 1.0;
/// A stranger's claim counts down to this share of what this machine measured itself on the same model, below
/// [`PRIOR_LAYER_MS`] too: where a layer takes microseconds, a millisecond is no prior but a mistake. Lower and a liar
/// draws more traffic until it has been measured; higher and a much faster machine is believed later.
pub const CLAIM_OF_OWN: f64 = 0.5;

/// A node that did not answer is left alone for this long, ms, twice as long after each further time.
pub const SNUBBED_MS: u64 = 60_000;
/// Nodes met, beyond which no stranger is looked up: as many as a swarm's routes ever need.
pub const MOST_MET: usize = 64;
/// Nodes of each region that are looked up to tell where this one is: one of them may say wrongly that it is there.
const LEAST_SEEN: usize = 2;
/// Doublings of [`SNUBBED_MS`] at most: about an hour.
const MAX_SNUBS: u32 = 6;

/// What this node knows of another by itself.
#[derive(Clone, Debug)]
pub(super) struct Experience {
    /// Measured speed, ms per layer.
    pub(super) speed: Ema,
    /// Measured visits: what they took beyond the claim, ms.
    excess: Ema,
    /// And which share of the claim they took, at most 1.
    pub(super) share: Ema,
    pub(super) trust: f64,
    met: bool,
    /// How often it did not answer since it last served, and until when it is left alone.
    snubbed: (u32, Option<Millis>),
}

impl Experience {
    /// Whether it has served, or is met and not snubbed.
    pub(super) fn is_met(&self) -> bool {
        self.has_served() || self.met && self.snubbed.1.is_none()
    }

    /// Whether its speed was measured.
    fn has_served(&self) -> bool {
        self.share.value().is_some() || self.speed.value().is_some()
    }

    /// Claimed milliseconds per visit and per layer as measured visits correct them.
    pub(super) fn corrected(&self, visit_ms: f64, layer_ms: f64) -> (f64, f64) {
        let share = self.share.value().unwrap_or(1.0);
        let excess = self.excess.value().unwrap_or(0.0);
        (visit_ms * share + excess, layer_ms * share)
    }
}

/// Where `node` stands in the order of a draw: an identity cannot be made for a draw that is not known yet.
pub(super) fn drawn(node: NodeId, draw: u64) -> u64 {
    let words =
        node.as_bytes().chunks_exact(8).map(|word| word.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)));
    words.fold(mix(draw), |sum, word| mix(sum ^ word))
}

impl Default for Experience {
    fn default() -> Self {
        let ema = || Ema::new(SPEED_TAU_MS);
        Self { speed: ema(), excess: ema(), share: ema(), trust: 1.0, met: false, snubbed: (0, None) }
    }
}

impl SwarmView {
    /// A node is connected, or a round trip to it was measured. It need not have announced itself yet.
    pub fn meet(&mut self, node: NodeId) {
        if !self.experience.contains_key(&node) {
            self.make_room();
            if self.experience.len() >= MAX_NODES {
                return;
            }
        }
        let experience = self.experience.entry(node).or_default();
        if !std::mem::replace(&mut experience.met, true) {
            self.changed(Change::Node(node));
        }
    }

    /// A node did not answer a dial or a lease.
    pub fn snub(&mut self, now: Millis, node: NodeId) {
        if let Some(experience) = self.experience_of(node) {
            let (times, _) = experience.snubbed;
            experience.snubbed = (times.saturating_add(1), Some(now + (SNUBBED_MS << times.min(MAX_SNUBS))));
            self.changed(Change::Node(node));
        }
    }

    /// Whether a node is more than its own word.
    pub fn is_met(&self, node: NodeId) -> bool {
        self.experience.get(&node).is_some_and(Experience::is_met)
    }

    /// A node worth meeting, by a draw that strangers cannot bend: one of a region of which this machine has measured few, else a
    /// stranger that holds something and is not snubbed, unless [`MOST_MET`] are met already. Of the former only those count, of the
    /// latter those come first, to which a node that was met says how far it is: only nodes that are there can be measured.
    pub fn introduce(&self, me: NodeId, draw: u64) -> Option<NodeId> {
        let vouched = self.links.reached(|node| self.is_met(node));
        if let Some(scout) = self.scout(me, draw, &vouched) {
            return Some(scout);
        }
        let met = self.known.keys().filter(|node| self.is_met(**node)).count();
        let stranger = |node: &NodeId| *node != me && !self.is_met(*node) && !self.is_left_alone(*node);
        let holds = |known: &super::Known| !known.capability.claim().holdings.is_empty();
        if met >= MOST_MET {
            return None;
        }
        let strangers = self.known.iter().filter(|(node, known)| stranger(node) && holds(known));
        let strangers = strangers.map(|(node, _)| *node);
        strangers.min_by_key(|node| (!vouched.contains(node), drawn(*node, draw)))
    }

    /// Whether a node that did not answer is not to be asked yet.
    fn is_left_alone(&self, node: NodeId) -> bool {
        self.experience.get(&node).is_some_and(|known| known.snubbed.1.is_some())
    }

    /// A node of a region in which this machine has measured fewer than [`LEAST_SEEN`]. Far neighbors alone do not tell where a machine
    /// is: from its mirror image they are as far. Only those that were `vouched` for, else made-up identities are all that is looked up.
    fn scout(&self, me: NodeId, draw: u64, vouched: &BTreeSet<NodeId>) -> Option<NodeId> {
        let region = |node: &NodeId| Some(self.atlas.get(*node).filter(|placed| placed.believed)?.region);
        let measured = self.links.measured_by(me);
        let mut seen = vec![0; self.atlas.regions()];
        for at in measured.iter().filter_map(region) {
            if let Some(seen) = seen.get_mut(usize::from(at)) {
                *seen += 1;
            }
        }
        let is_unseen = |node: &&NodeId| {
            let seen = region(node).and_then(|at| seen.get(usize::from(at)));
            let is_wanted = seen.is_some_and(|seen| *seen < LEAST_SEEN);
            **node != me && is_wanted && !measured.contains(node) && !self.is_left_alone(**node)
        };
        vouched.iter().filter(is_unseen).copied().min_by_key(|node| drawn(*node, draw))
    }

    /// Ends what was left alone for long enough.
    pub(super) fn forgive(&mut self, now: Millis) {
        for experience in self.experience.values_mut() {
            if experience.snubbed.1.is_some_and(|until| now >= until) {
                experience.snubbed.1 = None;
                self.epoch += 1;
            }
        }
    }

    /// At [`MAX_NODES`] entries those of absent nodes make room, those that have served last.
    fn make_room(&mut self) {
        if self.experience.len() >= MAX_NODES {
            let known = &self.known;
            self.experience.retain(|id, of| known.contains_key(id) || of.has_served());
        }
        if self.experience.len() >= MAX_NODES {
            let known = &self.known;
            self.experience.retain(|id, _| known.contains_key(id));
        }
    }

    /// Notes a measured speed of a node, ms per layer and token.
    pub fn observe_speed(&mut self, node: NodeId, now: Millis, layer_ms: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.speed.add(now, layer_ms);
            experience.snubbed = (0, None);
            self.changed(Change::Node(node));
        }
    }

    /// Notes what a visit of layers of `model` that weigh `weight` together took for one token, ms, neither hops nor waiting included. Until
    /// it is forgotten it corrects what the node claims: what a visit took longer counts per visit, what it took less
    /// makes all of the claim less, so the same visit is predicted as it was.
    pub fn observe_visit(&mut self, node: NodeId, model: ModelId, now: Millis, weight: f64, ms: f64) {
        let Some((visit_ms, layer_ms)) = self.claimed(node, model) else { return };
        let claimed = visit_ms + layer_ms * weight;
        if let Some(experience) = self.experience_of(node)
            && claimed > 0.0
            && ms.is_finite()
            && ms >= 0.0
        {
            experience.excess.add(now, if ms > claimed { ms - claimed } else { 0.0 });
            experience.share.add(now, (ms / claimed).min(1.0));
            experience.snubbed = (0, None);
            self.changed(Change::Node(node));
        }
    }

    /// Sets how far a node is trusted, in `(0, 1]`; see [`crate::trust`].
    pub fn set_trust(&mut self, node: NodeId, trust: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.trust = if trust.is_nan() { 1e-3 } else { trust.clamp(1e-3, 1.0) };
            self.changed(Change::Node(node));
        }
    }

    /// What a node says of itself, per visit and per layer, ms.
    fn claimed(&self, node: NodeId, model: ModelId) -> Option<(f64, f64)> {
        let holding = self.known.get(&node)?.capability.holding(model)?;
        Some((holding.visit_ms, holding.decode_ms))
    }

    /// The entry of a node that is known, or was.
    fn experience_of(&mut self, node: NodeId) -> Option<&mut Experience> {
        if !self.experience.contains_key(&node) {
            if !self.known.contains_key(&node) {
                return None;
            }
            self.make_room();
        }
        Some(self.experience.entry(node).or_default())
    }
}
