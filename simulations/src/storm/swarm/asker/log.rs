//! What the stages' outputs are kept for: replays, and the shadows that follow.

use scheduler::session::Event;
use scheduler::{LayerRange, NodeId, SessionId};

use super::Live;
use crate::storm::swarm::{Body, Swarm, index};

/// A shadow is fed when its log has grown by this many positions, or may be behind.
const FEED: u32 = 4;

pub(super) struct Shadow {
    pub layers: LayerRange,
    pub have: u32,
    pub sent: u32,
}

impl Swarm {
    /// A stage's outputs arrived for the log.
    pub fn logged(
        &mut self,
        at: usize,
        id: SessionId,
        epoch: u32,
        (stage, node): (usize, NodeId),
        part: (u32, u32, Vec<u64>),
    ) {
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        let (layer, from, outputs) = part;
        let log = live.log.entry(layer).or_default();
        let to = from as usize + outputs.len();
        if log.len() < to {
            log.resize(to, None);
        }
        let mut same = true;
        for (slot, output) in log[from as usize..to].iter_mut().zip(&outputs) {
            same &= slot.is_none_or(|old| old == *output);
            *slot = Some(*output);
        }
        let whole = log.iter().take_while(|slot| slot.is_some()).count() as u32;
        self.checks.that(same, || format!("{id:?}: two honest answers at layer {layer} differ"));
        self.tell_session(at, id, Event::Boundary { stage, node, epoch, to: whole.min(to as u32) });
    }

    /// A shadow said how far it is.
    pub fn fed(&mut self, at: usize, id: SessionId, node: NodeId, have: u32) {
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        if let Some(shadow) = live.shadows.get_mut(&node) {
            // One that has no more than before does not follow (any more): it is fed again when there is more to feed.
            let stuck = have <= shadow.have && have < shadow.sent;
            shadow.have = have;
            shadow.sent = if stuck { shadow.sent } else { have };
        }
        self.feed(at, id);
    }

    /// Sends shadows what they lack of the log, in chunks.
    pub(super) fn feed(&mut self, at: usize, id: SessionId) {
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        let mut sends = Vec::new();
        let mut shadows = std::mem::take(&mut live.shadows);
        for (node, shadow) in &mut shadows {
            let layer = shadow.layers.start();
            let logged = live.logged(layer);
            let due = logged >= shadow.sent + FEED;
            if due && let Some(inputs) = live.inputs(layer, shadow.have.min(shadow.sent), logged) {
                let from = shadow.have.min(shadow.sent);
                shadow.sent = logged;
                sends.push((*node, Body::Feed { session: id, layer, from, inputs, home: at }));
            }
        }
        live.shadows = shadows;
        sends.into_iter().for_each(|(node, body)| self.send(at, index(node), body));
    }
}

impl Live {
    /// Inputs known for the stage that begins with `layer`.
    fn logged(&self, layer: u32) -> u32 {
        match layer {
            0 => self.tokens.len() as u32,
            _ => self.log.get(&layer).map_or(0, |log| log.iter().take_while(|s| s.is_some()).count() as u32),
        }
    }

    /// Inputs `[from, to)` of the stage that begins with `layer`.
    pub(super) fn inputs(&self, layer: u32, from: u32, to: u32) -> Option<Vec<u64>> {
        let range = from as usize..to as usize;
        match layer {
            0 => self.tokens.get(range).map(|tokens| tokens.iter().map(|token| u64::from(*token)).collect()),
            _ => self.log.get(&layer)?.get(range)?.iter().copied().collect(),
        }
    }
}
