//! What this node believes of everyone.
//!
//! Announcements are merged by sequence (the newest of a node wins, in whatever order they arrive, so all nodes that
//! heard the same announcements believe the same) and forgotten when they grow old. Age is counted from *arrival on
//! our own clock*: a stranger's clock, fast, slow or lying, changes nothing. Own measurements are kept beside the
//! claims and bound them. [`SwarmView::snapshot`] freezes one model for the router.
//!
//! Announcements can be wrong: late, or a lie. What a lease taught ([`SwarmView::correct`], [`SwarmView::unreachable`])
//! outweighs them for [`CORRECTED_MS`] and [`UNREACHABLE_MS`]. What was measured or experienced of a node outlives
//! its absence, so that no node sheds a bad name by being silent for a while.
//!
//! Limits: [`MAX_NODES`] nodes and [`MAX_LINKS`] measured links per node; beyond, strangers are refused, a node that was
//! met takes the place of a stranger, and the slowest link is dropped, so a flood of identities costs memory once and never
//! evicts a node that was met. Of strangers [`MAX_STRANGERS`] are shown to a route.
//!
//! In this folder: `experience` is what was measured and lived through with a node, `links` what was measured between nodes,
//! `geography` what is assumed where nothing was, `atlas` what coordinates say of it; `journal` is whose figures changed lately,
//! `feedback` is what leases taught, `freeze` makes of it all a snapshot.

mod atlas;
mod experience;
mod feedback;
mod freeze;
mod geography;
mod journal;
mod links;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use experience::{CLAIM_OF_OWN, MOST_MET, PRIOR_LAYER_MS, SNUBBED_MS};
pub use feedback::{CORRECTED_MS, MAX_CORRECTIONS, UNREACHABLE_MS};
pub(crate) use freeze::Basis;
pub use freeze::{MAX_PREFILL_GAIN, MAX_STRANGERS, OWN_GAIN};
pub use geography::Geography;
pub use links::{MAX_LINKS, MAX_OWN_LINKS};

use crate::capability::Holding;
use crate::coordinate::Coordinate;
use crate::{Capability, LayerSet, Millis, ModelId, NodeId};
use atlas::Atlas;
use experience::Experience;
use feedback::Corrections;
use journal::{Change, Journal};
use links::MeasuredLinks;

/// Two missed 5 s announcements plus one slow gossip round; lower and a busy peer flaps in and out of pipelines.
pub const EXPIRY_MS: u64 = 15_000;
/// Nodes remembered; at some 1 KiB each this bounds the view at about 50 MiB.
pub const MAX_NODES: usize = 50_000;

/// What came of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merged {
    /// New or newer: the view changed.
    Fresh,
    /// Known already, or older than what is known.
    Stale,
    /// Two different announcements under one sequence: the node lies to some node. The first is kept.
    Equivocation,
    /// No room for another identity.
    Full,
}

#[derive(Clone, Debug)]
struct Known {
    capability: Capability,
    heard: Millis,
    lasts_ms: u64,
}

/// The merged belief about the swarm.
#[derive(Clone, Debug)]
pub struct SwarmView {
    known: BTreeMap<NodeId, Known>,
    experience: BTreeMap<NodeId, Experience>,
    corrections: Corrections,
    links: MeasuredLinks,
    geography: Geography,
    atlas: Atlas,
    journal: Journal,
    epoch: u64,
}

impl SwarmView {
    /// An empty view.
    pub fn new(geography: Geography) -> Self {
        Self {
            known: BTreeMap::new(),
            experience: BTreeMap::new(),
            corrections: Corrections::default(),
            links: MeasuredLinks::default(),
            geography,
            atlas: Atlas::default(),
            journal: Journal::default(),
            epoch: 0,
        }
    }

    /// Counts up whenever a snapshot would come out differently.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counts the epoch up for `change`.
    fn changed(&mut self, change: Change) {
        self.epoch += 1;
        self.journal.note(self.epoch, change);
    }

    fn links_changed(&mut self, from: NodeId) {
        self.changed(Change::Link(from));
        self.ways_lost();
    }

    /// A way that is gone is one of the viewer's that changed: afterwards nothing says whose it was.
    fn ways_lost(&mut self) {
        self.links.take_lost().into_iter().for_each(|viewer| self.changed(Change::Link(viewer)));
    }

    /// Number of nodes believed alive.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no node is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What is believed of `node`.
    pub fn get(&self, node: NodeId) -> Option<&Capability> {
        self.known.get(&node).map(|known| &known.capability)
    }

    /// Takes in an announcement that arrived at `now` and counts for [`EXPIRY_MS`].
    pub fn merge(&mut self, capability: Capability, now: Millis) -> Merged {
        self.merge_for(capability, now, EXPIRY_MS)
    }

    /// Takes in an announcement that arrived at `now` and counts for `lasts_ms`.
    pub fn merge_for(&mut self, capability: Capability, now: Millis, lasts_ms: u64) -> Merged {
        let node = capability.node();
        let mut full = self.known.len() >= MAX_NODES;
        if full && !self.known.contains_key(&capability.node()) && self.is_met(capability.node()) {
            let stranger = self.known.keys().copied().find(|node| !self.is_met(*node));
            stranger.into_iter().for_each(|stranger| self.forget(stranger));
            full = stranger.is_none();
        }
        match self.known.get_mut(&capability.node()) {
            None if full => return Merged::Full,
            None => {
                self.known.insert(node, Known { capability, heard: now, lasts_ms });
                // It was gone: a node that could not reach it then may now, and it may hold what it did not.
                self.corrections.forget_node(node);
            }
            Some(known) => {
                let (old, new) = (known.capability.claim().sequence, capability.claim().sequence);
                if new < old || known.capability == capability {
                    return Merged::Stale;
                }
                if new == old {
                    return Merged::Equivocation;
                }
                known.capability = capability;
                known.heard = known.heard.max(now);
                known.lasts_ms = lasts_ms;
            }
        }
        self.changed(Change::Node(node));
        Merged::Fresh
    }

    /// A node is there at `now`: what it announced counts from then on as if it had just said it.
    pub fn alive(&mut self, node: NodeId, now: Millis) {
        if let Some(known) = self.known.get_mut(&node) {
            known.heard = known.heard.max(now);
        }
    }

    /// Forgets nodes whose last announcement has expired; returns them. Old corrections go too.
    pub fn expire(&mut self, now: Millis) -> Vec<NodeId> {
        self.forgive(now);
        self.epoch += u64::from(self.corrections.expire(now));
        let old = |known: &Known| now.since(known.heard) > known.lasts_ms;
        let gone: Vec<NodeId> = self.known.iter().filter(|(_, k)| old(k)).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| self.forget(*id));
        gone
    }

    /// Forgets a node at once: its transport closed, or it said good-bye.
    pub fn forget(&mut self, node: NodeId) {
        if self.known.remove(&node).is_some() {
            self.links.forget_node(node);
            self.atlas.forget(node);
            self.changed(Change::Node(node));
            self.ways_lost();
        }
    }

    /// A node that is known says where it is, or this one knows where it is itself: pairs that were never measured are priced by
    /// it, under [`Geography::around`].
    pub fn place(&mut self, node: NodeId, coordinate: Coordinate) {
        if !coordinate.is_placed() || !self.known.contains_key(&node) || !self.atlas.set(node, coordinate) {
            return;
        }
        self.changed(Change::Node(node));
        if self.atlas.is_stale() {
            // All hosts may stand elsewhere.
            self.epoch += 1;
            let met = |by: &NodeId| self.experience.get(by).is_some_and(Experience::is_met);
            self.atlas.judge(self.links.all().filter(|(by, ..)| met(by)));
        }
    }

    /// Where a node says that it is.
    pub fn coordinate(&self, node: NodeId) -> Option<Coordinate> {
        self.atlas.get(node).map(|placed| placed.coordinate)
    }

    /// Notes a measured (or gossiped) round trip between two known nodes; one way counts as half of it. Of each node the
    /// [`MAX_LINKS`] shortest are kept.
    pub fn observe_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if self.may_link(from, to) {
            self.links.observe(from, to, round_trip_ms, MAX_LINKS);
            self.links_changed(from);
        }
    }

    /// Forgets a measured link's past: from now on it is `round_trip_ms`. For a caller that smooths its measurements itself. A
    /// change of a twentieth, or of a quarter of a millisecond, is none.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if self.may_link(from, to) && self.links.replace(from, to, round_trip_ms, MAX_LINKS) {
            self.links_changed(from);
        }
    }

    /// As [`SwarmView::set_link`] for what the viewer measured itself: [`MAX_OWN_LINKS`] are kept.
    pub fn measure(&mut self, me: NodeId, to: NodeId, round_trip_ms: f64) {
        self.links.watch(me);
        if self.may_link(me, to) && self.links.replace(me, to, round_trip_ms, MAX_OWN_LINKS) {
            self.links_changed(me);
        }
    }

    fn may_link(&self, from: NodeId, to: NodeId) -> bool {
        from != to && self.known.contains_key(&from) && self.known.contains_key(&to)
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        self.links.round_trip_ms(one, other)
    }

    /// A node refused a lease on layers it had announced, and says what it holds of `model` (when it does not say, pass
    /// the announced layers [without](LayerSet::without) the refused ones). Until it announces something else the
    /// snapshots show only that. Whether this changes anything: when it does not, the refusal is the node's fault.
    pub fn correct(&mut self, node: NodeId, model: ModelId, held: LayerSet, now: Millis) -> bool {
        let Some(known) = self.known.get(&node) else { return false };
        let announced = known.capability.holding(model).map(Holding::loaded_set).unwrap_or_default();
        let news = self.corrections.hold((node, model), announced, &held, now);
        self.epoch += u64::from(news);
        news
    }

    /// Two nodes turned out not to reach each other, in either direction: no route crosses that pair for a while.
    pub fn unreachable(&mut self, one: NodeId, other: NodeId, now: Millis) {
        self.epoch += u64::from(self.corrections.part(one, other, now));
    }

    /// Takes [`SwarmView::unreachable`] back: these two are connected.
    pub fn reachable(&mut self, one: NodeId, other: NodeId) {
        self.epoch += u64::from(self.corrections.join(one, other));
    }
}
