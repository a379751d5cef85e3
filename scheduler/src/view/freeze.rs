//! One model as it is believed to be right now, for the router.

use std::collections::btree_map::Iter;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use super::atlas::Placed;
use super::experience::drawn;
use super::geography::Ground;
use super::journal::Change;
use super::links::SAID_UP_TO;
use super::{CLAIM_OF_OWN, Experience, Known, PRIOR_LAYER_MS, SwarmView};
use crate::capability::Holding;
use crate::latency::bounded_claim;
use crate::layer_cost::LayerCosts;
use crate::snapshot::{Access, BadSnapshot, Host, Links, Patch, Snapshot};
use crate::{LayerRange, LayerSet, ModelId, NodeId};

/// Strangers that a snapshot for a route shows, drawn for each: a search stays as cheap as without them.
pub const MAX_STRANGERS: usize = 64;
/// Prompt positions that a machine computes in the time of one decoded one, at most: a claim beyond counts as this.
pub const MAX_PREFILL_GAIN: f64 = 256.0;
/// What a node of which nothing was measured enters, reads and answers faster than this one does, at most.
pub const OWN_GAIN: f64 = 0.5;

impl SwarmView {
    /// As [`SwarmView::snapshot_of`] for a model whose layers are all alike.
    ///
    /// # Errors
    /// As [`SwarmView::snapshot_of`].
    pub fn snapshot(&self, model: ModelId, num_layers: u32, myself: NodeId) -> Result<Snapshot, BadSnapshot> {
        self.freeze(model, num_layers, None, myself, None)
    }

    /// As [`SwarmView::snapshot`] and, with `costs`, [`SwarmView::snapshot_of`], for one route: of the strangers it shows
    /// [`MAX_STRANGERS`], by `draw`.
    ///
    /// # Errors
    /// As [`SwarmView::snapshot_of`].
    pub fn snapshot_to_route(
        &self,
        model: ModelId,
        num_layers: u32,
        costs: Option<(&LayerCosts, u32)>,
        myself: NodeId,
        draw: u64,
    ) -> Result<Snapshot, BadSnapshot> {
        match costs {
            None => self.freeze(model, num_layers, None, myself, Some(draw)),
            Some((costs, context)) => {
                let weights = Some(costs.weights(context));
                self.freeze(model, costs.num_layers(), weights, myself, Some(draw))?.with_costs(costs.clone())
            }
        }
    }

    /// Freezes what is believed of `model`, whose layers cost what `costs` says for rows behind `context` positions.
    /// Draining nodes are left out, and so are those that `myself` cannot reach: a serving node must be leased from and
    /// must send its log. `myself` is listed even when it holds nothing, so that its hops can be priced.
    ///
    /// # Errors
    /// [`BadSnapshot::Layers`] for a model of no layers; checked capabilities cannot cause the others.
    pub fn snapshot_of(
        &self,
        model: ModelId,
        costs: &LayerCosts,
        context: u32,
        myself: NodeId,
    ) -> Result<Snapshot, BadSnapshot> {
        let weights = costs.weights(context);
        self.freeze(model, costs.num_layers(), Some(weights), myself, None)?.with_costs(costs.clone())
    }

    fn freeze(
        &self,
        model: ModelId,
        num_layers: u32,
        weights: Option<Vec<f64>>,
        myself: NodeId,
        draw: Option<u64>,
    ) -> Result<Snapshot, BadSnapshot> {
        let shown = draw.map(|draw| self.shown(model, myself, draw));
        let freezing = Freezing::new(self, model, num_layers, myself);
        let mut hosts: Vec<Host> = Vec::with_capacity(self.known.len());
        // All in the order of names, side by side: ten thousand look-ups take longer.
        let (mut lived, mut placed) = (Walk::over(&self.experience), Walk::over(self.atlas.all()));
        let mut ways = Walk::over(freezing.ground.ways());
        for (id, known) in &self.known {
            let beside =
                Beside { experience: lived.at(*id), placed: placed.at(*id), way: ways.at(*id).copied() };
            let met = *id == myself || beside.experience.is_some_and(Experience::is_met);
            if met || shown.as_ref().is_none_or(|shown| shown.contains(id)) {
                hosts.extend(freezing.host(*id, known, &beside));
            }
        }
        let ground = &freezing.ground;
        let (regions, base_ms) = ground.regions();
        let measured = self.links.one_way(&hosts, myself, ground, &self.corrections);
        let links = Links::Regions { base_ms, regions, measured };
        Snapshot::new(model, num_layers, weights, hosts, &links)
    }

    /// What figures of all hosts depend on, besides what is said and known of each: a snapshot outlasts changes only as long as it
    /// stays.
    pub(crate) fn basis(&self, model: ModelId, myself: NodeId) -> Basis {
        let own = self.known.get(&myself).and_then(|known| known.capability.holding(model));
        let draining = self.known.get(&myself).map(|known| known.capability.claim().draining);
        let here = self.atlas.get(myself).copied();
        Basis { own: own.map(|own| (own.decode_ms, own.visit_ms)), here, draining }
    }

    /// What changed in `snapshot` since it was frozen for `myself` at the epoch `since`, as it would be frozen now for the same
    /// strangers. `None` where more changed than figures of its hosts and ways of its own; what figures depend on
    /// ([`Self::basis`]) is to be the same.
    pub(crate) fn thaw(&self, snapshot: &Snapshot, since: u64, myself: NodeId) -> Option<Patch> {
        let changes = self.journal.since(since, self.epoch)?;
        if changes.is_empty() {
            return Some(Patch::default());
        }
        let freezing = Freezing::new(self, snapshot.model(), snapshot.num_layers(), myself);
        let unsaid = freezing.ground.is_mapped() && snapshot.hosts().len() > SAID_UP_TO;
        let (mut nodes, mut patch, mut moved) = (BTreeSet::new(), Patch::default(), false);
        for change in changes {
            match change {
                Change::Node(node) => {
                    nodes.insert(node);
                }
                Change::Link(from) if from == myself => moved = true,
                Change::Link(from) if unsaid => moved |= self.links.says_way(from, myself),
                Change::Link(_) => return None,
            }
        }
        if moved {
            patch.ways = snapshot.other_ways(myself, freezing.ground.ways())?;
            nodes.extend(patch.ways.iter().map(|(node, _)| *node));
        }
        let crowded = snapshot.hosts().iter().filter(|host| !host.met).count() >= MAX_STRANGERS;
        for node in nodes {
            let way = freezing.ground.ways().get(&node).copied();
            let beside = Beside { experience: self.experience.get(&node), placed: self.atlas.get(node), way };
            let now = self.known.get(&node).and_then(|known| freezing.host(node, known, &beside));
            match (snapshot.host(node), now) {
                (None, None) => {}
                // As many strangers as fit are shown: this one may be when they are drawn again.
                (None, Some(now)) if !now.met && crowded => {}
                (Some(before), Some(now)) if *before == now => {}
                (Some(before), Some(now)) if now.stands_as(before) => patch.hosts.push(now),
                _ => return None,
            }
        }
        Some(patch)
    }

    /// The strangers that a route is shown.
    fn shown(&self, model: ModelId, myself: NodeId, draw: u64) -> BTreeSet<NodeId> {
        let mut lived = Walk::over(&self.experience);
        let holds = |(id, known): &(&NodeId, &Known)| {
            let met = lived.at(**id).is_some_and(Experience::is_met);
            !met && **id != myself && known.capability.holding(model).is_some()
        };
        let mut strangers: Vec<(u64, NodeId)> =
            self.known.iter().filter(holds).map(|(id, _)| (drawn(*id, draw), *id)).collect();
        if strangers.len() > MAX_STRANGERS {
            strangers.select_nth_unstable(MAX_STRANGERS);
            strangers.truncate(MAX_STRANGERS);
        }
        strangers.into_iter().map(|(_, id)| id).collect()
    }
}

/// See [`SwarmView::basis`].
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Basis {
    own: Option<(f64, f64)>,
    here: Option<Placed>,
    draining: Option<bool>,
}

/// A map, asked in the order of its names.
struct Walk<'a, V>(Peekable<Iter<'a, NodeId, V>>);

impl<'a, V> Walk<'a, V> {
    fn over(map: &'a BTreeMap<NodeId, V>) -> Self {
        Self(map.iter().peekable())
    }

    /// What is there of `id`; later only greater names may be asked.
    fn at(&mut self, id: NodeId) -> Option<&'a V> {
        while self.0.next_if(|(at, _)| **at < id).is_some() {}
        self.0.next_if(|(at, _)| **at == id).map(|(_, of)| of)
    }
}

/// What is known of a node besides what it says.
struct Beside<'a> {
    experience: Option<&'a Experience>,
    placed: Option<&'a Placed>,
    /// As measured, one way in ms.
    way: Option<f64>,
}

/// What all hosts of a snapshot are built with.
struct Freezing<'a> {
    view: &'a SwarmView,
    model: ModelId,
    num_layers: u32,
    myself: NodeId,
    ground: Ground<'a>,
    own: Option<&'a Holding>,
    prior_ms: f64,
    fresh: Experience,
}

impl<'a> Freezing<'a> {
    fn new(view: &'a SwarmView, model: ModelId, num_layers: u32, myself: NodeId) -> Self {
        let own = view.known.get(&myself).and_then(|known| known.capability.holding(model));
        let prior_ms = own.map_or(PRIOR_LAYER_MS, |own| PRIOR_LAYER_MS.min(own.decode_ms * CLAIM_OF_OWN));
        let (ground, fresh) = (Ground::new(view, myself), Experience::default());
        Self { view, model, num_layers, myself, ground, own, prior_ms, fresh }
    }

    /// A node as a host; `None` where it holds nothing, drains or cannot be reached.
    fn host(&self, id: NodeId, known: &Known, beside: &Beside<'_>) -> Option<Host> {
        let Self { view, model, myself, own, .. } = *self;
        let claim = known.capability.claim();
        let holding = known.capability.holding(model).filter(|_| !claim.draining);
        let apart = view.corrections.are_apart(myself, id);
        if (holding.is_none() || apart) && id != myself {
            return None;
        }
        let within = |set: LayerSet| -> LayerSet {
            if set.end() <= self.num_layers {
                return set;
            }
            let model = LayerRange::new(0, self.num_layers);
            let ranges = set.ranges().iter();
            ranges.filter_map(|range| model.and_then(|model| range.intersect(model))).collect()
        };
        let mut host = Host::new(id, LayerSet::default(), PRIOR_LAYER_MS);
        host.operator = claim.operator;
        let spot = self.ground.spot(claim, beside.placed, beside.way);
        host.access = Access {
            region: spot.region,
            ms: spot.access_ms,
            up_bytes_per_ms: claim.up_bytes_per_ms,
            down_bytes_per_ms: claim.down_bytes_per_ms,
        };
        let experience = beside.experience.unwrap_or(&self.fresh);
        host.trust = experience.trust;
        host.met = id == myself || experience.is_met();
        let Some(holding) = holding else { return Some(host) };
        host.loaded = within(view.corrections.held(id, model, holding.loaded_set()));
        host.on_disk = within(holding.on_disk_set());
        let prior = if id == myself { 0.0 } else { self.prior_ms };
        // Once visits were measured they bound the claim; before, the prior does.
        let prior = if experience.share.value().is_some() { 0.0 } else { prior };
        let claimed = bounded_claim(holding.decode_ms, &experience.speed, prior);
        let unproven = id != myself && experience.share.value().is_none();
        let floor = own.filter(|_| unproven).map_or(0.0, |own| own.visit_ms * OWN_GAIN);
        (host.visit_ms, host.decode_ms) = experience.corrected(holding.visit_ms.max(floor), claimed);
        host.prefill_ms = holding.prefill_ms.max(host.decode_ms / MAX_PREFILL_GAIN);
        host.queue_ms = holding.queue_ms;
        host.load_ms = holding.load_ms;
        host.active = holding.active;
        host.batch_knee = holding.batch_knee;
        host.kv_bytes = Some(holding.kv_bytes);
        Some(host)
    }
}
