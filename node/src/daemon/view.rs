//! What this node knows of the swarm: who holds what, where each node is, and what leases and streams taught since.
//!
//! Announcements come in by [`Viewing::heard`], connections by [`Viewing::connected`] and [`Viewing::disconnected`];
//! routes, placement and the status read it. Own measurements are never replaced by what another node says.

use std::collections::{BTreeMap, BTreeSet};

use p2p::{
    path::named,
    wire::{
        announce::{Announcement, Class, Offer, PlaceRoom},
        control::Contact,
    },
};
use scheduler::{
    LayerRange, LayerSet, Millis, ModelId, NodeId,
    decide::Engine,
    view::{Geography, Merged, SwarmView},
};
use tokio::sync::broadcast;

use crate::feedback::{Feedback, FeedbackQueue};

/// What a node says of itself counts for this long, ms.
pub(super) const TTL_MS: u32 = 108_000;
/// What a hop to a node is taken to cost that no round trip was measured to, ms one way: another continent, so that what
/// is known to be near goes first.
const UNMEASURED_MS: f64 = 50.0;
/// Nodes whose loss is told to running prompts; a prompt that lags behind hears of the rest from its streams.
const LOSSES: usize = 256;

/// What is known of a node besides what the scheduler needs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub addresses: Vec<String>,
    pub offers: Vec<Offer>,
    /// What it may hold of those of which it chooses the layers itself.
    pub rooms: Vec<PlaceRoom>,
    pub agent: String,
    pub class: Class,
}

impl Facts {
    /// The device that computes, where it is no processor: what follows program and version.
    pub fn device(&self) -> &str {
        self.agent.split_once(' ').map_or("", |(_, device)| device)
    }
}

/// What became of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// It is the first one of its node.
    Joined,
    /// It is news of a node that is known.
    News,
    /// It is old, contradicts another one, or does not fit.
    Nothing,
}

/// The swarm as this node sees it.
pub(super) struct Viewing {
    pub(super) me: NodeId,
    pub(super) swarm: SwarmView,
    pub(super) facts: BTreeMap<NodeId, Facts>,
    /// What leases and streams teach, until it is taken into the view.
    pub(super) feedback: FeedbackQueue,
    /// What routes are decided with, kept from one prompt to the next.
    pub(super) engine: Engine,
    /// Tells running prompts of nodes that are gone.
    pub(super) lost: broadcast::Sender<NodeId>,
}

impl Viewing {
    /// Nothing but `me`.
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            swarm: SwarmView::new(Geography::around(UNMEASURED_MS)),
            facts: BTreeMap::new(),
            feedback: FeedbackQueue::default(),
            engine: Engine::default(),
            lost: broadcast::Sender::new(LOSSES),
        }
    }

    /// A connection to a node is there.
    pub(super) fn connected(&mut self, node: NodeId, now: Millis) {
        // Feedback about failures to reach it is older than the connection.
        self.take_feedback(now);
        self.swarm.reachable(self.me, node);
        self.swarm.meet(node);
        if !self.facts.contains_key(&node) {
            // A new process: what was learned is about one that is gone.
            self.feedback.forget(node);
        }
    }

    /// The last connection to a node is gone; returns whether it was known.
    pub(super) fn disconnected(&mut self, node: NodeId, now: Millis) -> bool {
        self.take_feedback(now);
        self.swarm.forget(node);
        let known = self.facts.remove(&node).is_some();
        let _ = self.lost.send(node);
        known
    }

    /// Forgets the nodes that were not heard of for too long and returns those that were known.
    pub(super) fn expire(&mut self, now: Millis) -> Vec<NodeId> {
        let me = self.me;
        self.swarm.alive(me, now);
        let expired = self.swarm.expire(now);
        expired.into_iter().filter(|node| *node != me && self.facts.remove(node).is_some()).collect()
    }

    /// The distance to a node was measured: it is there.
    pub(super) fn measured(&mut self, node: NodeId, ms: f64, now: Millis) {
        self.swarm.alive(node, now);
        self.swarm.meet(node);
        self.swarm.measure(self.me, node, ms);
    }

    /// Takes in what another node says; `rtt_ms` is the measured distance to it.
    pub(super) fn heard(&mut self, announcement: Announcement, now: Millis, rtt_ms: Option<f64>) -> Heard {
        let node = announcement.node();
        if node == self.me {
            return Heard::Nothing;
        }
        let Announcement { capability, class, offers, links, coordinate, rooms, addresses, agent, ttl_ms } =
            announcement;
        match self.swarm.merge_for(capability, now, u64::from(ttl_ms)) {
            Merged::Fresh => {}
            Merged::Equivocation => {
                tracing::warn!(%node, "two different announcements under one number");
                return Heard::Nothing;
            }
            Merged::Stale | Merged::Full => return Heard::Nothing,
        }
        for link in links {
            // Own measurements are never replaced by another node's word.
            if link.to != self.me {
                self.swarm.set_link(node, link.to, link.rtt_ms);
            }
        }
        coordinate.into_iter().for_each(|place| self.swarm.place(node, place));
        let addresses = addresses.iter().map(|address| named(address, node)).collect();
        let facts = Facts { addresses, offers, rooms, agent, class };
        if self.facts.insert(node, facts).is_some() {
            return Heard::News;
        }
        // Its round trip was often measured before it was heard of.
        if let Some(ms) = rtt_ms {
            self.swarm.measure(self.me, node, ms);
        }
        Heard::Joined
    }

    /// Corrects the view by what leases taught.
    pub(super) fn take_feedback(&mut self, now: Millis) {
        for feedback in self.feedback.take() {
            match feedback {
                Feedback::Holds(node, model, held) => {
                    self.swarm.correct(node, model, held, now);
                }
                Feedback::Apart(one, other) => self.swarm.unreachable(one, other, now),
                Feedback::Silent(node) => self.swarm.snub(now, node),
                Feedback::Away(node, rtt_ms) => self.swarm.measure(self.me, node, rtt_ms),
            }
        }
    }

    /// Nodes whose results cannot be compared by their bits.
    pub(super) fn approx(&self) -> BTreeSet<NodeId> {
        self.facts.iter().filter(|(_, facts)| facts.class != Class::D1).map(|(node, _)| *node).collect()
    }

    /// Sessions that `node` announced to serve, if it holds `model`.
    pub(super) fn announced_sessions(&self, node: NodeId, model: ModelId) -> u32 {
        let holding = self.swarm.get(node).and_then(|capability| capability.holding(model));
        holding.map_or(0, |holding| holding.active)
    }

    /// Where a node is.
    pub(super) fn contact(&self, node: NodeId) -> Contact {
        let addresses = self.facts.get(&node).map_or_else(Vec::new, |facts| facts.addresses.clone());
        Contact { node, addresses }
    }

    /// The view as it would be if `node` alone had one of its layers of `model`, so that a pipeline must pass it; `None`
    /// when this node computes all of them itself, or `node` is not there.
    pub(super) fn indispensable(
        &self,
        node: NodeId,
        model: ModelId,
        num_layers: u32,
        now: Millis,
    ) -> Option<SwarmView> {
        let layer = self.challenge_layer(node, model, num_layers)?;
        let mut view = self.swarm.clone();
        for other in self.facts.keys().filter(|other| **other != node) {
            if let Some(loaded) = self.loaded(*other, model).filter(|loaded| loaded.covers(layer)) {
                view.correct(*other, model, loaded.without(layer), now);
            }
        }
        Some(view)
    }

    /// A layer of `model` that `node` has in memory and this node has not.
    pub(super) fn challenge_layer(
        &self,
        node: NodeId,
        model: ModelId,
        num_layers: u32,
    ) -> Option<LayerRange> {
        let (its, mine) = (self.loaded(node, model)?, self.loaded(self.me, model).unwrap_or_default());
        let layers = (0..num_layers).filter_map(|layer| LayerRange::new(layer, layer + 1));
        layers.into_iter().find(|layer| its.covers(*layer) && !mine.covers(*layer))
    }

    fn loaded(&self, node: NodeId, model: ModelId) -> Option<LayerSet> {
        let holding = self.swarm.get(node)?.holding(model)?;
        Some(holding.loaded_set())
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{Capability, Claim, Holding};

    use super::*;

    fn node(n: u64) -> NodeId {
        NodeId::numbered(n)
    }

    /// Node 1, and what nodes from 1 on hold of model 7 with four layers.
    fn view(holdings: &[(u32, u32)]) -> Viewing {
        let mut view = Viewing::new(node(1));
        for ((start, end), n) in holdings.iter().zip(1..) {
            let holding = Holding {
                model: ModelId::numbered(7),
                loaded: LayerRange::new(*start, *end).into_iter().collect(),
                on_disk: Vec::new(),
                decode_ms: 1.0,
                prefill_ms: 0.2,
                visit_ms: 0.1,
                queue_ms: 0.0,
                load_ms: 0.0,
                active: n as u32,
                batch_knee: 4,
                kv_bytes: 1 << 30,
            };
            let claim = Claim {
                node: node(n),
                operator: p2p::wire::announce::own_operator(node(n)),
                sequence: 1,
                region: 0,
                access_ms: 0.0,
                up_bytes_per_ms: 1e6,
                down_bytes_per_ms: 1e6,
                draining: false,
                holdings: vec![holding],
            };
            let capability = Capability::try_from(claim).unwrap();
            view.swarm.merge_for(capability, Millis(0), u64::from(TTL_MS));
            if n > 1 {
                let class = if n == 2 { Class::D1 } else { Class::Approx };
                let (addresses, offers) = (vec![format!("/memory/{n}")], Vec::new());
                view.facts.insert(
                    node(n),
                    Facts { addresses, offers, rooms: Vec::new(), agent: String::new(), class },
                );
            }
        }
        view
    }

    #[test]
    fn a_node_that_is_gone_is_forgotten_and_running_prompts_are_told() {
        let mut view = view(&[(0, 1), (1, 4)]);
        let mut lost = view.lost.subscribe();
        assert_eq!(view.announced_sessions(node(2), ModelId::numbered(7)), 2);
        assert_eq!(view.contact(node(2)).addresses, ["/memory/2"]);
        assert!(view.disconnected(node(2), Millis(1)), "it was known");
        assert!(!view.disconnected(node(2), Millis(2)));
        assert_eq!((lost.try_recv(), lost.try_recv()), (Ok(node(2)), Ok(node(2))));
        assert_eq!(view.announced_sessions(node(2), ModelId::numbered(7)), 0);
        assert!(view.contact(node(2)).addresses.is_empty());
    }

    #[test]
    fn what_is_not_heard_of_for_too_long_expires() {
        let mut view = view(&[(0, 1), (1, 4), (1, 4)]);
        assert_eq!(view.expire(Millis(1)), []);
        assert_eq!(view.expire(Millis(2 * u64::from(TTL_MS))), [node(2), node(3)], "never this node itself");
        assert!(view.facts.is_empty());
    }

    #[test]
    fn results_of_another_class_cannot_be_compared() {
        assert_eq!(view(&[(0, 1), (1, 4), (1, 4)]).approx(), BTreeSet::from([node(3)]));
    }

    #[test]
    fn a_challenge_leaves_its_node_alone_with_a_layer() {
        let (model, now) = (ModelId::numbered(7), Millis(1));
        let view = view(&[(0, 2), (0, 4), (1, 4)]);
        assert_eq!(view.challenge_layer(node(2), model, 4), LayerRange::new(2, 3), "this node has 0 and 1");
        assert_eq!(view.challenge_layer(node(9), model, 4), None, "it is not there");
        let narrowed = view.indispensable(node(2), model, 4, now).unwrap();
        let holders = |view: &SwarmView, layer: u32| -> Vec<NodeId> {
            let snapshot = view.snapshot(model, 4, node(1)).unwrap();
            let hosts = snapshot.hosts().iter().filter(|host| host.loaded.contains(layer));
            hosts.map(|host| host.id).collect()
        };
        assert_eq!(holders(&view.swarm, 2), [node(2), node(3)]);
        assert_eq!(holders(&narrowed, 2), [node(2)]);
        assert_eq!(holders(&narrowed, 3), [node(2), node(3)], "of the other layers it is one of many");
    }
}
