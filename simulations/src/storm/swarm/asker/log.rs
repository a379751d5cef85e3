//! What the stages' outputs are kept for: replays, and the shadows that follow.

use scheduler::rng::mix;
use scheduler::session::Event;
use scheduler::{LayerRange, NodeId, SessionId};

use super::{Live, Requester};
use crate::storm::swarm::{Body, index};

/// A shadow is fed when its log has grown by this many positions, or may be behind.
const FEED: u32 = 4;

pub(super) struct Shadow {
    pub layers: LayerRange,
    pub have: u32,
    pub sent: u32,
}

impl Requester<'_> {
    /// A stage's outputs arrived for the log.
    pub fn logged(
        &mut self,
        id: SessionId,
        (epoch, attempt): (u32, u16),
        (stage, node): (usize, NodeId),
        part: (u32, u32, Vec<u64>),
    ) {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let (layer, from, mut outputs) = part;
        // Rows of an abandoned attempt, or of another epoch that may have had drafts, are not for the log.
        if epoch == live.session.epoch() {
            outputs.truncate(live.session.valid_below(attempt).saturating_sub(from) as usize);
        } else if self.swarm.options.drafts > 0 {
            outputs.clear();
        }
        if outputs.is_empty() {
            return;
        }
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
        self.swarm.checks.that(same, || format!("{id:?}: two honest answers at layer {layer} differ"));
        self.tell_session(id, Event::Boundary { stage, node, epoch, attempt, to: whole.min(to as u32) });
    }

    /// A shadow said how far it is.
    pub fn fed(&mut self, id: SessionId, node: NodeId, have: u32) {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        if let Some(shadow) = live.shadows.get_mut(&node) {
            // One that has no more than before does not follow (any more): it is fed again when there is more to feed.
            let stuck = have <= shadow.have && have < shadow.sent;
            shadow.have = have;
            shadow.sent = if stuck { shadow.sent } else { have };
        }
        self.feed(id);
    }

    /// Sends shadows what they lack of the log, in chunks.
    pub(super) fn feed(&mut self, id: SessionId) {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let mut sends = Vec::new();
        let mut shadows = std::mem::take(&mut live.shadows);
        for (node, shadow) in &mut shadows {
            let layer = shadow.layers.start();
            // Only what is confirmed is for those who follow.
            let logged = live.logged(layer).min(live.tokens.len() as u32);
            let due = logged >= shadow.sent + FEED;
            if due && let Some(inputs) = live.inputs(layer, shadow.have.min(shadow.sent), logged) {
                let from = shadow.have.min(shadow.sent);
                shadow.sent = logged;
                sends.push((*node, Body::Feed { session: id, layer, from, inputs, home: at }));
            }
        }
        live.shadows = shadows;
        sends.into_iter().for_each(|(node, body)| self.swarm.send(at, index(node), body));
    }
}

impl Requester<'_> {
    /// The last stage drew a token after every row of a frame: those that agree with the draft count, and one more.
    pub fn drawn(&mut self, id: SessionId, (epoch, attempt): (u32, u16), from: u32, tokens: &[u32]) {
        let at = self.here;
        let (drafts, seed) = (u64::from(self.swarm.options.drafts), self.swarm.options.seed);
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let known = live.tokens.len() as u32;
        let current = (epoch, attempt) == (live.session.epoch(), live.session.attempt()) && from < known;
        let rows = tokens.get((known - 1).saturating_sub(from) as usize..);
        let Some(rows) = rows.filter(|rows| current && !rows.is_empty()) else {
            // Whatever an abandoned attempt drew must have no effect; of another step the last token is told.
            let position = from + tokens.len() as u32;
            let tokens = tokens.last().copied().into_iter().collect();
            let said = Event::Tokens { epoch, attempt, position, tokens, stop: false, draft: 0 };
            return self.tell_session(id, said);
        };
        let draft = &live.draft[..live.session.drafted() as usize];
        let right = rows.iter().zip(draft).take_while(|(drawn, drafted)| drawn == drafted).count();
        let tokens = rows[..rows.len().min(right + 1)].to_vec();
        self.swarm.report.drafts.0 += right as u64;
        self.swarm.report.drafts.1 += (draft.len() - right) as u64;
        let next = live.tokens.len() + tokens.len();
        live.log.values_mut().for_each(|log| log.truncate(next - 1));
        let chance = mix(seed ^ mix(next as u64 ^ (u64::from(epoch) << 40)));
        let rest = live.expected.get(next - live.prompt..).unwrap_or(&[]);
        live.draft = rest.iter().take((chance % (drafts + 1)) as usize).copied().collect();
        if let Some(wrong) = live.draft.get_mut((chance >> 32) as usize % 8) {
            *wrong ^= 1;
        }
        let draft = live.draft.len() as u32;
        let said = Event::Tokens { epoch, attempt, position: known, tokens, stop: false, draft };
        self.tell_session(id, said);
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
            0 => {
                let all = self.tokens.iter().chain(&self.draft);
                let some: Vec<u64> =
                    all.map(|token| u64::from(*token)).skip(range.start).take(range.len()).collect();
                (some.len() == range.len()).then_some(some)
            }
            _ => self.log.get(&layer)?.get(range)?.iter().copied().collect(),
        }
    }
}
