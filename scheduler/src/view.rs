//! What this node believes of everyone.
//!
//! Announcements are merged by sequence (the newest of a node wins, in whatever order they arrive, so all nodes that
//! heard the same announcements believe the same) and forgotten when they grow old. Age is counted from *arrival on
//! our own clock*: a stranger's clock, fast, slow or lying, changes nothing. Own measurements are kept beside the
//! claims and bound them. [`SwarmView::snapshot`] freezes one model for the router.
//!
//! Announcements can be wrong: late, or a lie. What a lease taught ([`SwarmView::correct`], [`SwarmView::unreachable`])
//! outweighs them for [`CORRECTED_MS`] and [`UNREACHABLE_MS`]. What was measured or experienced of a node outlives its absence, so that nobody
//! sheds a bad name by being silent for a while.
//!
//! Limits: [`MAX_NODES`] nodes and [`MAX_LINKS`] measured links per node; beyond, newcomers are refused and the
//! slowest link is dropped, so a flood of identities costs memory once and never evicts who is known.

use std::collections::{BTreeMap, BTreeSet};

use crate::capability::Holding;
use crate::latency::{Ema, RoundTrip, SPEED_TAU_MS, bounded_claim};
use crate::snapshot::{BadSnapshot, Host, Links, Snapshot};
use crate::{Capability, LayerRange, LayerSet, Millis, ModelId, NodeId};

/// Two missed 5 s announcements plus one slow gossip round; lower and a busy peer flaps in and out of pipelines.
pub const EXPIRY_MS: u64 = 15_000;
/// Nodes remembered; at some 1 KiB each this bounds the view at about 50 MiB.
pub const MAX_NODES: usize = 50_000;
/// Measured links kept per node.
pub const MAX_LINKS: usize = 32;
/// How long a correction outweighs announcements, ms. Shorter and a liar is asked again by every request; longer and a
/// node that loaded the layers after all, without saying so, stays unused.
pub const CORRECTED_MS: u64 = 60_000;
/// How long a pair that could not talk is avoided, ms: about what a relay needs to come back, and a fourth of what a request
/// without a route waits. Longer and a small swarm stays split when it no longer is: the stream that failed may have been one
/// to a process that is long gone, while its successor waits next door.
pub const UNREACHABLE_MS: u64 = 8_000;
/// Corrections of each kind kept; beyond, further ones are not, which costs a refused lease each time.
pub const MAX_CORRECTIONS: usize = 4_096;
/// What an unknown machine is assumed to need per layer and token, ms: pessimistic, so that claims alone win nothing.
pub const PRIOR_LAYER_MS: f64 = 1.0;
/// A stranger's claim counts down to this share of what this machine measured itself on the same model, below
/// [`PRIOR_LAYER_MS`] too: where a layer takes microseconds, a millisecond is no prior but a mistake. Lower and a liar
/// draws more traffic until it has been measured; higher and a much faster machine is believed later.
pub const CLAIM_OF_OWN: f64 = 0.5;

/// What came of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merged {
    /// New or newer: the view changed.
    Fresh,
    /// Known already, or older than what is known.
    Stale,
    /// Two different announcements under one sequence: the node is lying to somebody. The first is kept.
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

/// What this node knows of another by itself.
#[derive(Clone, Debug)]
struct Experience {
    /// Measured speed, ms per layer.
    speed: Ema,
    /// Measured visits: what they took beyond the claim, ms.
    excess: Ema,
    /// And which share of the claim they took, at most 1.
    share: Ema,
    trust: f64,
}

impl Experience {
    /// Claimed milliseconds per visit and per layer as measured visits correct them.
    fn corrected(&self, visit_ms: f64, layer_ms: f64) -> (f64, f64) {
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

/// What a node truly holds, learned when it refused a lease.
#[derive(Clone, Debug)]
struct Correction {
    /// What it had announced; another announcement ends the correction.
    announced: LayerSet,
    held: LayerSet,
    at: Millis,
}

/// Region-to-region round trips assumed where nothing was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Geography {
    regions: usize,
    base_ms: Vec<f64>,
    /// Hops priced around the viewer; see [`Geography::around`].
    unmeasured_ms: Option<f64>,
}

impl Geography {
    /// `base_ms[from * regions + to]`; `None` unless it is square and all finite and non-negative.
    pub fn new(regions: usize, base_ms: Vec<f64>) -> Option<Self> {
        let fits = base_ms.len() == regions * regions && regions > 0;
        (fits && base_ms.iter().all(|ms| ms.is_finite() && *ms >= 0.0)).then_some(Self {
            regions,
            base_ms,
            unmeasured_ms: None,
        })
    }

    /// One region, `ms` apart.
    pub fn flat(ms: f64) -> Self {
        let ms = if ms.is_finite() { ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![ms], unmeasured_ms: None }
    }

    /// No map: every node lies half of its measured round trip away from the viewer, `unmeasured_ms` when there is none,
    /// and two others as far from each other as the way past the viewer. That bounds what nobody has measured from
    /// above (the triangle) and is exact to the viewer; nobody's claim about its own position counts.
    pub fn around(unmeasured_ms: f64) -> Self {
        let ms = if unmeasured_ms.is_finite() { unmeasured_ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![0.0], unmeasured_ms: Some(ms) }
    }
}

/// The merged belief about the swarm.
#[derive(Clone, Debug)]
pub struct SwarmView {
    known: BTreeMap<NodeId, Known>,
    experience: BTreeMap<NodeId, Experience>,
    corrections: BTreeMap<(NodeId, ModelId), Correction>,
    unreachable: BTreeMap<(NodeId, NodeId), Millis>,
    links: BTreeMap<NodeId, Vec<(NodeId, RoundTrip)>>,
    geography: Geography,
    epoch: u64,
}

impl SwarmView {
    /// Knows nobody yet.
    pub fn new(geography: Geography) -> Self {
        Self {
            known: BTreeMap::new(),
            experience: BTreeMap::new(),
            corrections: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            links: BTreeMap::new(),
            geography,
            epoch: 0,
        }
    }

    /// Counts up whenever a snapshot would come out differently.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of nodes believed alive.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether nobody is known.
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
        let full = self.known.len() >= MAX_NODES;
        match self.known.get_mut(&capability.node()) {
            None if full => return Merged::Full,
            None => {
                let node = capability.node();
                self.known.insert(node, Known { capability, heard: now, lasts_ms });
                // It was gone: who could not reach it then may now, and it may hold what it did not.
                self.unreachable.retain(|pair, _| pair.0 != node && pair.1 != node);
                self.corrections.retain(|of, _| of.0 != node);
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
        self.epoch += 1;
        Merged::Fresh
    }

    /// Forgets everybody whose last announcement counts no more; returns them. Old corrections go too.
    pub fn expire(&mut self, now: Millis) -> Vec<NodeId> {
        let before = self.corrections.len() + self.unreachable.len();
        self.corrections.retain(|_, correction| now.since(correction.at) < CORRECTED_MS);
        self.unreachable.retain(|_, at| now.since(*at) < UNREACHABLE_MS);
        self.epoch += u64::from(self.corrections.len() + self.unreachable.len() < before);
        let old = |known: &Known| now.since(known.heard) > known.lasts_ms;
        let gone: Vec<NodeId> = self.known.iter().filter(|(_, k)| old(k)).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| self.forget(*id));
        gone
    }

    /// Forgets a node at once: its transport closed, or it said good-bye.
    pub fn forget(&mut self, node: NodeId) {
        if self.known.remove(&node).is_some() {
            self.links.remove(&node);
            self.epoch += 1;
        }
    }

    /// Notes a measured speed of a node, ms per layer and token.
    pub fn observe_speed(&mut self, node: NodeId, now: Millis, layer_ms: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.speed.add(now, layer_ms);
            self.epoch += 1;
        }
    }

    /// Notes what a visit of `layers` layers of `model` took for one token, ms, neither hops nor waiting included. Until
    /// it is forgotten it corrects what the node claims: what a visit took longer counts per visit, what it took less
    /// makes all of the claim less, so the same visit is predicted as it was.
    pub fn observe_visit(&mut self, node: NodeId, model: ModelId, now: Millis, layers: u32, ms: f64) {
        let Some((visit_ms, layer_ms)) = self.claimed(node, model) else { return };
        let claimed = visit_ms + layer_ms * f64::from(layers);
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

    /// What a node says of itself, per visit and per layer, ms.
    fn claimed(&self, node: NodeId, model: ModelId) -> Option<(f64, f64)> {
        let holding = self.known.get(&node)?.capability.holding(model)?;
        Some((holding.visit_ms, holding.decode_ms))
    }

    /// Forgets a measured link's past: from now on it is `round_trip_ms`. For who smooths its measurements itself.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if let Some(links) = self.links.get_mut(&from) {
            links.retain(|link| link.0 != to);
        }
        self.observe_link(from, to, round_trip_ms);
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let seen = |from, to| {
            let link = self.links.get(&from)?.iter().find(|link| link.0 == to)?;
            link.1.mean_ms()
        };
        seen(one, other).or_else(|| seen(other, one))
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

    /// Notes a measured (or gossiped) round trip between two known nodes; one way counts as half of it.
    pub fn observe_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if from == to || !self.known.contains_key(&from) || !self.known.contains_key(&to) {
            return;
        }
        let links = self.links.entry(from).or_default();
        let at = links.iter().position(|link| link.0 == to).unwrap_or_else(|| {
            links.push((to, RoundTrip::default()));
            links.len() - 1
        });
        links[at].1.add(round_trip_ms);
        if links.len() > MAX_LINKS {
            let slowest = |a: &(NodeId, RoundTrip), b: &(NodeId, RoundTrip)| {
                a.1.mean_ms().unwrap_or(f64::MAX).total_cmp(&b.1.mean_ms().unwrap_or(f64::MAX))
            };
            if let Some(worst) = (0..links.len()).max_by(|&a, &b| slowest(&links[a], &links[b])) {
                links.swap_remove(worst);
            }
        }
        self.epoch += 1;
    }

    /// Sets how far a node is trusted, in `(0, 1]`; see [`crate::trust`].
    pub fn set_trust(&mut self, node: NodeId, trust: f64) {
        if let Some(experience) = self.experience_of(node) {
            experience.trust = if trust.is_nan() { 1e-3 } else { trust.clamp(1e-3, 1.0) };
            self.epoch += 1;
        }
    }

    /// Freezes what is believed of `model`, which has `num_layers`. Draining nodes are left out, and so are those that
    /// `myself` cannot reach: whoever serves must be leased from and must send its log. `myself` is listed even when it holds nothing, so that its hops can be priced.
    ///
    /// # Errors
    /// [`BadSnapshot::Layers`] for a model of no layers; checked capabilities cannot cause the others.
    pub fn snapshot(&self, model: ModelId, num_layers: u32, myself: NodeId) -> Result<Snapshot, BadSnapshot> {
        let mut index = BTreeMap::new();
        let mut hosts = Vec::new();
        let own = self.known.get(&myself).and_then(|known| known.capability.holding(model));
        let prior_ms = own.map_or(PRIOR_LAYER_MS, |own| PRIOR_LAYER_MS.min(own.decode_ms * CLAIM_OF_OWN));
        for (id, known) in &self.known {
            let claim = known.capability.claim();
            let holding = known.capability.holding(model).filter(|_| !claim.draining);
            let apart = self.unreachable.contains_key(&(myself.min(*id), myself.max(*id)));
            if (holding.is_none() || apart) && *id != myself {
                continue;
            }
            let within = |set: LayerSet| -> LayerSet {
                let model = LayerRange::new(0, num_layers);
                set.ranges()
                    .iter()
                    .filter_map(|range| model.and_then(|model| range.intersect(model)))
                    .collect()
            };
            let mut host = Host::new(*id, LayerSet::default(), PRIOR_LAYER_MS);
            host.operator = claim.operator;
            host.region = if (claim.region as usize) < self.geography.regions { claim.region } else { 0 };
            host.access_ms = match self.geography.unmeasured_ms {
                None => claim.access_ms,
                Some(_) if *id == myself => 0.0,
                Some(unmeasured) => self.round_trip_ms(myself, *id).map_or(unmeasured, |ms| ms / 2.0),
            };
            host.up_bytes_per_ms = claim.up_bytes_per_ms;
            host.down_bytes_per_ms = claim.down_bytes_per_ms;
            let fresh = Experience::default();
            let experience = self.experience.get(id).unwrap_or(&fresh);
            host.trust = experience.trust;
            if let Some(holding) = holding {
                let loaded = holding.loaded_set();
                let correction =
                    self.corrections.get(&(*id, model)).filter(|known| known.announced == loaded);
                host.loaded = within(correction.map_or(loaded, |known| known.held.clone()));
                host.on_disk = within(holding.on_disk_set());
                let prior = if *id == myself { 0.0 } else { prior_ms };
                // Once visits were measured they bound the claim; before, the prior does.
                let prior = if experience.share.value().is_some() { 0.0 } else { prior };
                let claimed = bounded_claim(holding.decode_ms, &experience.speed, prior);
                (host.visit_ms, host.decode_ms) = experience.corrected(holding.visit_ms, claimed);
                host.prefill_ms = holding.prefill_ms;
                host.queue_ms = holding.queue_ms;
                host.load_ms = holding.load_ms;
                host.active = holding.active;
                host.batch_knee = holding.batch_knee;
                host.kv_layer_positions = Some(holding.kv_layer_positions);
            }
            index.insert(*id, hosts.len() as u32);
            hosts.push(host);
        }
        let links = Links::Regions {
            base_ms: self.geography.base_ms.clone(),
            regions: self.geography.regions,
            measured: self.measured(&index),
        };
        Snapshot::new(model, num_layers, None, hosts, &links)
    }

    /// Measured one-way times between indexed nodes; a pair measured one way only counts both ways.
    fn measured(&self, index: &BTreeMap<NodeId, u32>) -> Vec<(u32, u32, f64)> {
        let mut pairs = Vec::new();
        let mut direct = BTreeSet::new();
        for (from, links) in &self.links {
            for (to, round_trip) in links {
                if let (Some(&i), Some(&j), Some(ms)) = (index.get(from), index.get(to), round_trip.mean_ms())
                {
                    direct.insert((i, j));
                    pairs.push((i, j, ms / 2.0));
                }
            }
        }
        let back: Vec<_> = pairs
            .iter()
            .filter(|(i, j, _)| !direct.contains(&(*j, *i)))
            .map(|&(i, j, ms)| (j, i, ms))
            .collect();
        pairs.extend(back);
        // The last entry of a pair counts.
        for (one, other) in self.unreachable.keys() {
            if let (Some(&i), Some(&j)) = (index.get(one), index.get(other)) {
                pairs.extend([(i, j, f64::INFINITY), (j, i, f64::INFINITY)]);
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::{CORRECTED_MS, EXPIRY_MS, Geography, Merged, PRIOR_LAYER_MS, SwarmView};
    use crate::capability::tests::claim;
    use crate::{Capability, LayerRange, LayerSet, Millis, ModelId, NodeId, Request, Shape};

    fn said(node: u64, sequence: u64) -> Capability {
        Capability::try_from(claim(node, sequence)).unwrap()
    }

    #[test]
    fn without_a_map_hops_lie_around_the_viewer() {
        let (me, near, far) = (NodeId::numbered(1), NodeId::numbered(2), NodeId::numbered(3));
        let mut view = SwarmView::new(Geography::around(50.0));
        (1..=3).for_each(|node| {
            let _ = view.merge(said(node, 1), Millis(0));
        });
        view.set_link(me, near, 80.0);
        view.set_link(me, near, 4.0);
        let hop = |view: &SwarmView, from, to| {
            let snapshot = view.snapshot(ModelId::default(), 8, me).unwrap();
            snapshot.link_ms(snapshot.index_of(from).unwrap(), snapshot.index_of(to).unwrap())
        };
        assert_eq!((hop(&view, me, near), hop(&view, near, me)), (2.0, 2.0));
        assert_eq!((hop(&view, me, far), hop(&view, near, far)), (50.0, 52.0));
        view.set_link(far, near, 3.0);
        assert_eq!(hop(&view, near, far), 1.5, "what was measured counts, whoever says so");
    }

    #[test]
    fn claims_count_down_to_half_of_the_own_speed_until_visits_are_measured() {
        let (me, other) = (NodeId::numbered(1), NodeId::numbered(2));
        let mut view = SwarmView::new(Geography::around(50.0));
        let mut own = claim(1, 1);
        own.holdings[0].decode_ms = 0.5;
        let mut boasts = claim(2, 1);
        (boasts.holdings[0].decode_ms, boasts.holdings[0].visit_ms) = (0.01, 0.1);
        view.merge(Capability::try_from(own).unwrap(), Millis(0));
        view.merge(Capability::try_from(boasts).unwrap(), Millis(0));
        let speed = |view: &SwarmView| {
            let host = view.snapshot(ModelId::default(), 8, me).unwrap().host(other).unwrap().clone();
            (host.visit_ms, host.decode_ms)
        };
        assert_eq!(speed(&view), (0.1, 0.25));
        // Four layers took 6 ms: the next four are predicted to take as long.
        view.observe_visit(other, ModelId::default(), Millis(0), 4, 6.0);
        let (visit, layer) = speed(&view);
        assert!((visit + 4.0 * layer - 6.0).abs() < 1e-9, "{visit} {layer}");
        // Far less than claimed, again and again: so are others.
        let mut view = view.clone();
        (0..5).for_each(|_| view.observe_visit(me, ModelId::default(), Millis(0), 2, 1.5));
        let host = view.snapshot(ModelId::default(), 8, me).unwrap().host(me).unwrap().clone();
        assert!((host.visit_ms + 2.0 * host.decode_ms - 1.5).abs() < 1e-9, "{host:?}");
        view.observe_visit(me, ModelId::default(), Millis(0), 2, f64::NAN);
    }

    #[test]
    fn an_announcement_counts_for_as_long_as_it_says() {
        let mut view = SwarmView::new(Geography::around(50.0));
        view.merge_for(said(1, 1), Millis(0), 90_000);
        view.merge(said(2, 1), Millis(0));
        assert_eq!(view.expire(Millis(EXPIRY_MS + 1)), [NodeId::numbered(2)]);
        assert_eq!(view.expire(Millis(90_001)), [NodeId::numbered(1)]);
    }

    #[test]
    fn the_newest_wins_in_any_order() {
        let orders = [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2]];
        for order in orders {
            let mut view = SwarmView::new(Geography::flat(10.0));
            for sequence in order {
                view.merge(said(7, sequence), Millis(sequence));
                view.merge(said(7, sequence), Millis(100 + sequence));
            }
            assert_eq!(view.get(NodeId::numbered(7)), Some(&said(7, 3)));
        }
        let mut view = SwarmView::new(Geography::flat(10.0));
        assert_eq!(view.merge(said(7, 1), Millis(0)), Merged::Fresh);
        assert_eq!(view.merge(said(7, 1), Millis(1)), Merged::Stale);
        let mut other = claim(7, 1);
        other.access_ms = 1.0;
        assert_eq!(view.merge(Capability::try_from(other).unwrap(), Millis(1)), Merged::Equivocation);
        assert_eq!(view.epoch(), 1);
    }

    #[test]
    fn silence_expires_whatever_the_sequence_says() {
        let mut view = SwarmView::new(Geography::flat(10.0));
        view.merge(said(1, u64::MAX), Millis(0));
        view.merge(said(2, 1), Millis(10_000));
        assert_eq!(view.expire(Millis(EXPIRY_MS)), []);
        assert_eq!(view.expire(Millis(EXPIRY_MS + 1)), [NodeId::numbered(1)]);
        assert_eq!(view.len(), 1);
    }

    #[test]
    fn a_snapshot_bounds_claims_and_keeps_myself() {
        let mut view = SwarmView::new(Geography::flat(10.0));
        let mut boaster = claim(1, 1);
        boaster.holdings[0].decode_ms = 1e-9;
        view.merge(Capability::try_from(boaster).unwrap(), Millis(0));
        let mut nothing = claim(2, 1);
        nothing.holdings.clear();
        view.merge(Capability::try_from(nothing.clone()).unwrap(), Millis(0));
        nothing.node = NodeId::numbered(3);
        view.merge(Capability::try_from(nothing).unwrap(), Millis(0));
        let mut leaving = claim(4, 1);
        leaving.draining = true;
        view.merge(Capability::try_from(leaving).unwrap(), Millis(0));

        let me = NodeId::numbered(2);
        let snapshot = view.snapshot(ModelId::default(), 6, me).unwrap();
        assert_eq!(snapshot.hosts().len(), 2);
        let one = snapshot.host(NodeId::numbered(1)).unwrap();
        assert_eq!((one.decode_ms, one.loaded.end()), (PRIOR_LAYER_MS, 6));
        assert!(snapshot.host(me).unwrap().loaded.is_empty());

        (0..5).for_each(|t| view.observe_speed(NodeId::numbered(1), Millis(t), 40.0));
        view.observe_link(me, NodeId::numbered(1), 50.0);
        let snapshot = view.snapshot(ModelId::default(), 6, me).unwrap();
        assert_eq!(snapshot.host(NodeId::numbered(1)).unwrap().decode_ms, 20.0);
        let (i, j) = (snapshot.index_of(me).unwrap(), snapshot.index_of(NodeId::numbered(1)).unwrap());
        assert_eq!((snapshot.link_ms(i, j), snapshot.link_ms(j, i)), (25.0, 25.0));
    }

    #[test]
    fn a_refused_lease_corrects_what_was_announced_until_it_changes() {
        let mut view = SwarmView::new(Geography::flat(10.0));
        let (node, model) = (NodeId::numbered(1), ModelId::default());
        view.merge(said(1, 1), Millis(0));
        let all: LayerSet = LayerRange::new(0, 8).unwrap().into();
        let some: LayerSet = LayerRange::new(0, 3).unwrap().into();
        assert!(!view.correct(node, model, all.clone(), Millis(0)), "it repeats its claim");
        assert!(view.correct(node, model, some.clone(), Millis(0)));
        let shown =
            |view: &SwarmView| view.snapshot(model, 8, node).unwrap().host(node).unwrap().loaded.clone();
        view.merge(said(1, 2), Millis(1));
        assert_eq!(shown(&view), some, "saying it again does not make it true");
        let mut other = claim(1, 3);
        other.holdings[0].loaded = vec![LayerRange::new(2, 8).unwrap()];
        view.merge(Capability::try_from(other).unwrap(), Millis(2));
        assert_eq!(shown(&view), LayerRange::new(2, 8).unwrap().into());
        view.merge(said(1, 4), Millis(CORRECTED_MS));
        view.expire(Millis(CORRECTED_MS));
        assert_eq!(shown(&view), all);
    }

    #[test]
    fn routes_avoid_a_pair_that_cannot_talk() {
        let mut view = SwarmView::new(Geography::flat(10.0));
        let holds = |node, start, end| {
            let mut claim = claim(node, 1);
            claim.holdings[0].loaded = vec![LayerRange::new(start, end).unwrap()];
            Capability::try_from(claim).unwrap()
        };
        let nodes = [holds(1, 0, 1), holds(2, 0, 5), holds(3, 5, 8), holds(4, 5, 8)];
        nodes.into_iter().for_each(|node| assert_eq!(view.merge(node, Millis(0)), Merged::Fresh));
        let via = |view: &SwarmView| {
            let me = NodeId::numbered(1);
            let snapshot = view.snapshot(ModelId::default(), 8, me).unwrap();
            let mut request = Request::new(me, Shape::ONE_TOKEN);
            request.policy.near_equal = 0.0;
            crate::route::route(&snapshot, &request).map(|found| found.pipeline.segments()[1].node).ok()
        };
        assert_eq!(via(&view), Some(NodeId::numbered(3)));
        view.unreachable(NodeId::numbered(3), NodeId::numbered(2), Millis(0));
        assert_eq!(via(&view), Some(NodeId::numbered(4)));
        view.unreachable(NodeId::numbered(2), NodeId::numbered(4), Millis(0));
        assert_eq!(via(&view), None);
        view.reachable(NodeId::numbered(4), NodeId::numbered(2));
        assert_eq!(via(&view), Some(NodeId::numbered(4)), "they have met");
        view.unreachable(NodeId::numbered(2), NodeId::numbered(4), Millis(0));
        view.forget(NodeId::numbered(4));
        assert_eq!(view.merge(holds(4, 5, 8), Millis(1)), Merged::Fresh);
        assert_eq!(via(&view), Some(NodeId::numbered(4)), "it came back");
        view.unreachable.clear();
        view.unreachable(NodeId::numbered(1), NodeId::numbered(3), Millis(0));
        assert_eq!(via(&view), Some(NodeId::numbered(4)), "every stage must be leased from");
    }

    #[test]
    fn experience_outlives_absence() {
        let mut view = SwarmView::new(Geography::flat(10.0));
        let node = NodeId::numbered(1);
        view.merge(said(1, 1), Millis(0));
        view.set_trust(node, 0.25);
        view.expire(Millis(EXPIRY_MS + 1));
        assert!(view.is_empty());
        view.merge(said(1, 2), Millis(EXPIRY_MS + 2));
        let snapshot = view.snapshot(ModelId::default(), 8, node).unwrap();
        assert_eq!(snapshot.host(node).unwrap().trust, 0.25);
    }
}
