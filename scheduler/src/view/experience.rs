//! What this machine measured of other nodes, and how they behaved.
//!
//! It corrects what they claim, and it outlives their absence.

use super::{MAX_NODES, SwarmView};
use crate::latency::{Ema, SPEED_TAU_MS};
use crate::{Millis, ModelId, NodeId};

/// What an unknown machine is assumed to need per layer and token, ms: pessimistic, so that claims alone win nothing.
pub const PRIOR_LAYER_MS: f64 = 1.0;
/// A stranger's claim counts down to this share of what this machine measured itself on the same model, below
/// [`PRIOR_LAYER_MS`] too: where a layer takes microseconds, a millisecond is no prior but a mistake. Lower and a liar
/// draws more traffic until it has been measured; higher and a much faster machine is believed later.
pub const CLAIM_OF_OWN: f64 = 0.5;

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
}

impl Experience {
    /// Claimed milliseconds per visit and per layer as measured visits correct them.
    pub(super) fn corrected(&self, visit_ms: f64, layer_ms: f64) -> (f64, f64) {
        let share = self.share.value().unwrap_or(1.0);
        let excess = self.excess.value().unwrap_or(0.0);
        (visit_ms * share + excess, layer_ms * share)
    }
}

impl Default for Experience {
    fn default() -> Self {
        let ema = || Ema::new(SPEED_TAU_MS);
        Self { speed: ema(), excess: ema(), share: ema(), trust: 1.0 }
    }
}

impl SwarmView {
    /// Notes a measured speed of a node, ms per layer and token.
    pub fn observe_speed(&mut self, node: NodeId, now: Millis, layer_ms: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.speed.add(now, layer_ms);
            self.epoch += 1;
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
            self.epoch += 1;
        }
    }

    /// Sets how far a node is trusted, in `(0, 1]`; see [`crate::trust`].
    pub fn set_trust(&mut self, node: NodeId, trust: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.trust = if trust.is_nan() { 1e-3 } else { trust.clamp(1e-3, 1.0) };
            self.epoch += 1;
        }
    }

    /// What a node says of itself, per visit and per layer, ms.
    fn claimed(&self, node: NodeId, model: ModelId) -> Option<(f64, f64)> {
        let holding = self.known.get(&node)?.capability.holding(model)?;
        Some((holding.visit_ms, holding.decode_ms))
    }

    /// The entry of a node that is known, or was. At [`MAX_NODES`] entries those of absent nodes make room.
    fn experience_of(&mut self, node: NodeId) -> Option<&mut Experience> {
        if !self.experience.contains_key(&node) {
            if !self.known.contains_key(&node) {
                return None;
            }
            if self.experience.len() >= MAX_NODES {
                let known = &self.known;
                self.experience.retain(|id, _| known.contains_key(id));
            }
        }
        Some(self.experience.entry(node).or_default())
    }
}
