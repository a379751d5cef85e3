//! One model as one node believes it to be right now: immutable, indexed for the search.
//!
//! Rebuilt when the view changed (not per request) and shared by all requests until the next one. Building it costs
//! O(layers held) and sorts the hosts by (region, first layer, id): every answer is independent of the order in which
//! announcements arrived, and the hosts of one layer lie close together in memory.
//!
//! The round trips between ten thousand strangers are not known, so [`Links`] has two forms: a full matrix for small
//! swarms, and `base[region][region] + access + access` with single measured pairs on top for large ones.

use std::collections::BTreeMap;
use std::fmt;

use crate::layer_cost::LayerCosts;
use crate::{LayerRange, LayerSet, ModelId, NodeId, OperatorId};

/// Marks "no such state" in index arrays.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a host is, and what crosses its own line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Access {
    /// Index into the regions of [`Links::Regions`]; ignored with a matrix.
    pub region: u16,
    /// Its own share of every hop, ms; ignored with a matrix.
    pub ms: f64,
    /// What it sends per ms; infinite when unknown to be a limit.
    pub up_bytes_per_ms: f64,
    /// What it receives per ms.
    pub down_bytes_per_ms: f64,
}

impl Access {
    /// Without limits, in the first region.
    pub const FREE: Self =
        Self { region: 0, ms: 0.0, up_bytes_per_ms: f64::INFINITY, down_bytes_per_ms: f64::INFINITY };
}

/// One node that holds layers of the model.
#[derive(Clone, PartialEq, Debug)]
pub struct Host {
    /// Who.
    pub id: NodeId,
    /// Who answers for it.
    pub operator: OperatorId,
    /// How it is connected.
    pub access: Access,
    /// Layers in memory, ready to run.
    pub loaded: LayerSet,
    /// Layers on its disk that it would load for a request.
    pub on_disk: LayerSet,
    /// Decoding one token through one layer of weight 1, ms.
    pub decode_ms: f64,
    /// One prompt token through one layer of weight 1, ms.
    pub prefill_ms: f64,
    /// Entering the node once: dispatch, wake-up, framing, ms.
    pub visit_ms: f64,
    /// Time a step waits there behind others, ms.
    pub queue_ms: f64,
    /// Requests it said are running there.
    pub active: u32,
    /// Rows that take as long as one step, at least 1: `decode_ms / prefill_ms`, as far as a worker computes so many together, see [`crate::cost`].
    pub batch_knee: u32,
    /// Memory free for caches, bytes (layers x positions in a snapshot without [`LayerCosts`]); `None` when not a limit.
    pub kv_bytes: Option<u64>,
    /// Loading one layer from its disk, ms.
    pub load_ms: f64,
    /// Lower confidence bound that it answers rightly and in time, in `(0, 1]`.
    pub trust: f64,
    /// Whether it is more than its own word: connected, measured, or has served.
    pub met: bool,
}

impl Host {
    /// A host that holds `loaded`, decodes at `decode_ms` per layer, and is otherwise unlimited, idle and trusted.
    pub fn new(id: NodeId, loaded: LayerSet, decode_ms: f64) -> Self {
        Self {
            id,
            operator: OperatorId::new(*id.as_bytes()),
            access: Access::FREE,
            loaded,
            on_disk: LayerSet::default(),
            decode_ms,
            prefill_ms: 0.0,
            visit_ms: 0.0,
            queue_ms: 0.0,
            active: 0,
            batch_knee: 1,
            kv_bytes: None,
            load_ms: 0.0,
            trust: 1.0,
            met: true,
        }
    }

    /// Layers that it computes when it is asked: those in memory, and those that it would load.
    pub fn held(&self) -> LayerSet {
        self.loaded.union(&self.on_disk)
    }

    /// Whether it holds the same layers at the same place: then nothing else of a snapshot depends on it.
    pub(crate) fn stands_as(&self, before: &Self) -> bool {
        (&self.loaded, &self.on_disk, self.access.region)
            == (&before.loaded, &before.on_disk, before.access.region)
    }

    fn check(&self, num_layers: u32) -> Result<(), BadSnapshot> {
        let times =
            [self.access.ms, self.decode_ms, self.prefill_ms, self.visit_ms, self.queue_ms, self.load_ms];
        let rates = [self.access.up_bytes_per_ms, self.access.down_bytes_per_ms];
        let fits = self.loaded.end() <= num_layers && self.on_disk.end() <= num_layers;
        let sane = times.iter().all(|ms| ms.is_finite() && *ms >= 0.0)
            && rates.iter().all(|rate| *rate > 0.0)
            && self.trust > 0.0
            && self.trust <= 1.0;
        if fits && sane { Ok(()) } else { Err(BadSnapshot::Host(self.id)) }
    }
}

/// What a hop costs before bytes are counted.
#[derive(Clone, PartialEq, Debug)]
pub enum Links {
    /// `ms[i * n + j]` for a hop from the i-th to the j-th host *in the order given to [`Snapshot::new`]*;
    /// `f64::INFINITY` when the pair cannot talk. The diagonal is ignored.
    Matrix(Vec<f64>),
    /// Hops priced by region, with measured exceptions.
    Regions {
        /// `base_ms[from * regions + to]`.
        base_ms: Vec<f64>,
        /// Number of regions.
        regions: usize,
        /// Measured pairs `(from, to, ms)` as indices into the hosts given; they replace base and access.
        measured: Vec<(u32, u32, f64)>,
    },
}

/// What changed of a snapshot, other figures only.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Patch {
    /// Hosts of it, which hold what they held where they were.
    pub hosts: Vec<Host>,
    /// How far one of its hosts measured others of which it had measured that before, one way in ms.
    pub ways: Vec<(NodeId, f64)>,
}

impl Patch {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.ways.is_empty()
    }
}

/// Why no snapshot could be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadSnapshot {
    /// A host's numbers are negative, not finite, or name layers the model does not have.
    Host(NodeId),
    /// Two hosts share a name.
    Twice(NodeId),
    /// The links do not fit the hosts, or are negative or NaN.
    Links,
    /// No layer, or layer weights that do not fit.
    Layers,
}

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(id) => write!(f, "host {id} has numbers that cannot be"),
            Self::Twice(id) => write!(f, "host {id} is listed twice"),
            Self::Links => f.write_str("links do not fit the hosts"),
            Self::Layers => f.write_str("layer weights do not fit the model"),
        }
    }
}

impl std::error::Error for BadSnapshot {}

/// Hop costs in internal order.
#[derive(Clone, Debug)]
pub(crate) enum Hops {
    /// `ms_to[to * n + from]`.
    Matrix { ms_to: Vec<f64> },
    Regions {
        base: Vec<f64>,
        regions: usize,
        pair_off: Vec<u32>,
        pair_to: Vec<u32>,
        pair_ms: Vec<f64>,
        /// `pair_ms` less both accesses, so that it adds to the same prices as a regional base.
        pair_net: Vec<f64>,
        /// The least `pair_net` of each node.
        least_net: Vec<f64>,
    },
}

/// One model, its hosts and the links between them. See the module's page.
#[derive(Clone, Debug)]
pub struct Snapshot {
    model: ModelId,
    pub(crate) layers: usize,
    pub(crate) weight: Vec<f64>,
    costs: Option<LayerCosts>,
    /// Sorted by (region, first layer, id).
    pub(crate) hosts: Vec<Host>,
    pub(crate) by_id: Vec<(NodeId, u32)>,
    pub(crate) hops: Hops,
    /// States of layer l are `off[l]..off[l + 1]`: one per host of that layer, ascending.
    pub(crate) off: Vec<u32>,
    pub(crate) host_of: Vec<u32>,
    /// The state of the same host at the next layer, or [`NONE`].
    pub(crate) next: Vec<u32>,
    /// Whether the layer must first be loaded from disk; empty when no host has anything cold.
    pub(crate) cold: Vec<bool>,
    /// One past the last layer of the held run around a state.
    pub(crate) run_end: Vec<u32>,
    /// With [`Links::Regions`]: the states of layer l in region r start at `region_off[l * regions + r]`.
    pub(crate) region_off: Vec<u32>,
}

impl Snapshot {
    /// Indexes `hosts` for the search. `layer_weight[l]` scales the compute of layer l; `None` means 1 everywhere.
    ///
    /// # Errors
    /// [`BadSnapshot`] names the first host or table that cannot be; nothing is repaired silently.
    pub fn new(
        model: ModelId,
        num_layers: u32,
        layer_weight: Option<Vec<f64>>,
        hosts: Vec<Host>,
        links: &Links,
    ) -> Result<Self, BadSnapshot> {
        let layers = num_layers as usize;
        let weight = layer_weight.unwrap_or_else(|| vec![1.0; layers]);
        if layers == 0 || weight.len() != layers || !weight.iter().all(|w| w.is_finite() && *w >= 0.0) {
            return Err(BadSnapshot::Layers);
        }
        hosts.iter().try_for_each(|host| host.check(num_layers))?;
        let regional = matches!(links, Links::Regions { .. });
        // By name first, which they mostly are already: then short keys are all that is sorted.
        let mut order: Vec<usize> = (0..hosts.len()).collect();
        order.sort_unstable_by_key(|&i| hosts[i].id);
        if let Some(pair) = order.windows(2).find(|pair| hosts[pair[0]].id == hosts[pair[1]].id) {
            return Err(BadSnapshot::Twice(hosts[pair[0]].id));
        }
        let mut by_id: Vec<(NodeId, u32)> = order.iter().map(|&i| (hosts[i].id, i as u32)).collect();
        let first = |host: &Host| host.loaded.start().min(host.on_disk.start());
        order.sort_by_cached_key(|&i| {
            let region = if regional { hosts[i].access.region } else { 0 };
            (region, first(&hosts[i]))
        });
        let mut place = vec![0u32; hosts.len()];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new as u32);
        by_id.iter_mut().for_each(|(_, at)| *at = place[*at as usize]);
        let hops = index_links(links, &hosts, &order, &place)?;
        let mut slots: Vec<Option<Host>> = hosts.into_iter().map(Some).collect();
        let hosts: Vec<Host> = order.iter().filter_map(|&old| slots[old].take()).collect();
        let mut snapshot = Self {
            model,
            layers,
            weight,
            costs: None,
            hosts,
            by_id,
            hops,
            off: Vec::new(),
            host_of: Vec::new(),
            next: Vec::new(),
            cold: Vec::new(),
            run_end: Vec::new(),
            region_off: Vec::new(),
        };
        snapshot.index_layers();
        Ok(snapshot)
    }

    /// The same with the memory of every layer's state as `costs` says; without, a layer takes one byte a position.
    ///
    /// # Errors
    /// [`BadSnapshot::Layers`] when `costs` describes another number of layers.
    pub fn with_costs(self, costs: LayerCosts) -> Result<Self, BadSnapshot> {
        if costs.num_layers() as usize != self.layers {
            return Err(BadSnapshot::Layers);
        }
        Ok(Self { costs: Some(costs), ..self })
    }

    /// Bytes of state that `positions` positions take in one layer.
    pub(crate) fn state_bytes(&self, layer: usize, positions: u64) -> u64 {
        let layer = self.costs.as_ref().and_then(|costs| costs.layers().get(layer));
        layer.map_or(positions, |layer| layer.state_bytes(positions))
    }

    /// Fills the per-layer lists of hosts.
    fn index_layers(&mut self) {
        let mut held: Vec<(u32, LayerRange)> = Vec::with_capacity(self.hosts.len());
        for (host, i) in self.hosts.iter().zip(0u32..) {
            let cold = (!host.on_disk.is_empty()).then(|| host.held());
            let ranges = cold.as_ref().unwrap_or(&host.loaded).ranges();
            held.extend(ranges.iter().map(|range| (i, *range)));
        }
        let mut count = vec![0u32; self.layers + 1];
        for (_, range) in &held {
            (range.start()..range.end()).for_each(|layer| count[layer as usize] += 1);
        }
        let mut total = 0;
        self.off = count
            .iter()
            .map(|held| {
                total += held;
                total - held
            })
            .collect();
        let mut fill = self.off.clone();
        self.host_of = vec![0; total as usize];
        self.next = vec![NONE; total as usize];
        self.run_end = vec![0; total as usize];
        if self.hosts.iter().any(|host| !host.on_disk.is_empty()) {
            self.cold = vec![false; total as usize];
        }
        held.into_iter().for_each(|(host, range)| self.fill_run(host, range, &mut fill));
        if let Hops::Regions { regions, .. } = &self.hops {
            for layer in 0..self.layers {
                let states = self.states(layer);
                let region = |state: &u32| self.hosts[*state as usize].access.region as usize;
                self.region_off.extend((0..*regions).map(|r| {
                    (states.start + self.host_of[states.clone()].partition_point(|host| region(host) < r))
                        as u32
                }));
            }
            self.region_off.push(self.host_of.len() as u32);
        }
    }

    fn fill_run(&mut self, host: u32, range: LayerRange, fill: &mut [u32]) {
        for layer in range.start()..range.end() {
            let state = fill[layer as usize] as usize;
            fill[layer as usize] += 1;
            self.host_of[state] = host;
            self.run_end[state] = range.end();
            if layer + 1 < range.end() {
                self.next[state] = fill[layer as usize + 1];
            }
            if let Some(cold) = self.cold.get_mut(state) {
                *cold = !self.hosts[host as usize].loaded.contains(layer);
            }
        }
    }

    /// Which model.
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// Its number of layers.
    pub fn num_layers(&self) -> u32 {
        self.layers as u32
    }

    /// All hosts, in the snapshot's own order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host with this name.
    pub fn host(&self, id: NodeId) -> Option<&Host> {
        self.index_of(id).map(|i| &self.hosts[i as usize])
    }

    /// Takes other figures in.
    pub(crate) fn update(&mut self, patch: Patch, myself: NodeId) {
        for host in patch.hosts {
            let Some(at) = self.index_of(host.id) else { continue };
            let before = &mut self.hosts[at as usize];
            let moved = before.access.ms != host.access.ms;
            *before = host;
            if moved {
                self.price_pairs_of(at);
            }
        }
        let Some(me) = self.index_of(myself) else { return };
        for (node, ms) in patch.ways {
            let Some(at) = self.index_of(node) else { continue };
            self.set_pair(me, at, ms);
            self.set_pair(at, me, ms);
            self.price_pairs_of(at);
        }
    }

    /// The ways of `myself` to others that are not as measured there, one way in ms: `ways` is what is measured now. `None` where
    /// others are measured than were.
    pub(crate) fn other_ways(
        &self,
        myself: NodeId,
        ways: &BTreeMap<NodeId, f64>,
    ) -> Option<Vec<(NodeId, f64)>> {
        let me = self.index_of(myself)?;
        let Hops::Regions { pair_off, .. } = &self.hops else { return None };
        let pairs = (pair_off[me as usize + 1] - pair_off[me as usize]) as usize;
        let (mut changed, mut known) = (Vec::new(), 0);
        for (node, ms) in ways {
            let Some(at) = self.index_of(*node).filter(|at| *at != me) else { continue };
            known += 1;
            if self.measured_ms(me, at)? != *ms {
                changed.push((*node, *ms));
            }
        }
        (known == pairs).then_some(changed)
    }

    fn set_pair(&mut self, from: u32, to: u32, ms: f64) {
        if let Hops::Regions { pair_off, pair_to, pair_ms, .. } = &mut self.hops {
            let span = pair_off[from as usize] as usize..pair_off[from as usize + 1] as usize;
            if let Ok(at) = pair_to[span.clone()].binary_search(&to) {
                pair_ms[span.start + at] = ms;
            }
        }
    }

    /// Takes the access of a host into the measured pairs that it is part of, which are measured both ways.
    fn price_pairs_of(&mut self, host: u32) {
        let Hops::Regions { pair_off, pair_to, pair_ms, pair_net, least_net, .. } = &mut self.hops else {
            return;
        };
        let span = |host: u32| pair_off[host as usize] as usize..pair_off[host as usize + 1] as usize;
        let others: Vec<u32> = pair_to[span(host)].to_vec();
        let access = |host: u32| self.hosts[host as usize].access.ms;
        for from in others.into_iter().chain([host]) {
            for at in span(from) {
                pair_net[at] = pair_ms[at] - access(from) - access(pair_to[at]);
            }
            least_net[from as usize] = pair_net[span(from)].iter().copied().fold(f64::INFINITY, f64::min);
        }
    }

    /// From now on the hosts that `chosen` names have room for any request, whatever they announced: a session has its
    /// caches there already, or what they announced may have changed since.
    pub fn assume_room(&mut self, chosen: impl Fn(&Host) -> bool) {
        self.hosts.iter_mut().filter(|host| chosen(host)).for_each(|host| host.kv_bytes = None);
    }

    pub(crate) fn index_of(&self, id: NodeId) -> Option<u32> {
        self.by_id.binary_search_by_key(&id, |entry| entry.0).ok().map(|at| self.by_id[at].1)
    }

    /// States (host, layer) of one layer.
    pub(crate) fn states(&self, layer: usize) -> std::ops::Range<usize> {
        self.off[layer] as usize..self.off[layer + 1] as usize
    }

    /// The state of `host` at `layer`, if it holds it.
    pub(crate) fn state_at(&self, host: u32, layer: usize) -> Option<usize> {
        let states = self.states(layer);
        self.host_of[states.clone()].binary_search(&host).ok().map(|at| states.start + at)
    }

    /// Sum of the layer weights of `range`, which lies inside the model.
    pub fn weight_of(&self, range: LayerRange) -> f64 {
        self.weight[range.start() as usize..range.end() as usize].iter().sum()
    }

    /// Latency of one hop between two hosts, ms; infinite when they cannot talk, zero to itself.
    pub(crate) fn link_ms(&self, from: u32, to: u32) -> f64 {
        if from == to {
            return 0.0;
        }
        let (i, j) = (from as usize, to as usize);
        match &self.hops {
            Hops::Matrix { ms_to } => ms_to[j * self.hosts.len() + i],
            Hops::Regions { base, regions, .. } => match self.measured_ms(from, to) {
                Some(ms) => ms,
                None => {
                    let (a, b) = (&self.hosts[i], &self.hosts[j]);
                    base[a.access.region as usize * regions + b.access.region as usize]
                        + a.access.ms
                        + b.access.ms
                }
            },
        }
    }

    fn measured_ms(&self, from: u32, to: u32) -> Option<f64> {
        let Hops::Regions { pair_off, pair_to, pair_ms, .. } = &self.hops else { return None };
        let span = pair_off[from as usize] as usize..pair_off[from as usize + 1] as usize;
        pair_to[span.clone()].binary_search(&to).ok().map(|at| pair_ms[span.start + at])
    }
}

fn index_links(links: &Links, hosts: &[Host], order: &[usize], place: &[u32]) -> Result<Hops, BadSnapshot> {
    let n = hosts.len();
    match links {
        Links::Matrix(given) => {
            if given.len() != n * n || given.iter().any(|ms| ms.is_nan() || *ms < 0.0) {
                return Err(BadSnapshot::Links);
            }
            let mut ms_to = Vec::with_capacity(n * n);
            for &to in order {
                ms_to.extend(order.iter().map(|&from| if from == to { 0.0 } else { given[from * n + to] }));
            }
            Ok(Hops::Matrix { ms_to })
        }
        Links::Regions { base_ms, regions, measured } => {
            let fits = base_ms.len() == regions * regions
                && hosts.iter().all(|host| (host.access.region as usize) < *regions)
                && base_ms.iter().all(|ms| !ms.is_nan() && *ms >= 0.0)
                && measured
                    .iter()
                    .all(|&(i, j, ms)| (i as usize) < n && (j as usize) < n && !ms.is_nan() && ms >= 0.0);
            if !fits {
                return Err(BadSnapshot::Links);
            }
            let mut pairs: Vec<(u32, u32, f64)> = measured
                .iter()
                .filter(|(i, j, _)| i != j)
                .map(|&(i, j, ms)| (place[i as usize], place[j as usize], ms))
                .collect();
            pairs.sort_by_key(|&(i, j, _)| (i, j));
            // A pair listed twice keeps its last entry.
            pairs.dedup_by(|later, kept| {
                let same = (later.0, later.1) == (kept.0, kept.1);
                if same {
                    kept.2 = later.2;
                }
                same
            });
            let mut pair_off = vec![0u32; n + 1];
            pairs.iter().for_each(|&(i, ..)| pair_off[i as usize + 1] += 1);
            (0..n).for_each(|i| pair_off[i + 1] += pair_off[i]);
            let access = |i: u32| hosts[order[i as usize]].access.ms;
            let net: Vec<f64> = pairs.iter().map(|&(i, j, ms)| ms - access(i) - access(j)).collect();
            let least = |i: usize| {
                let net = &net[pair_off[i] as usize..pair_off[i + 1] as usize];
                net.iter().copied().fold(f64::INFINITY, f64::min)
            };
            Ok(Hops::Regions {
                base: base_ms.clone(),
                regions: *regions,
                least_net: (0..n).map(least).collect(),
                pair_net: net,
                pair_to: pairs.iter().map(|pair| pair.1).collect(),
                pair_ms: pairs.iter().map(|pair| pair.2).collect(),
                pair_off,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BadSnapshot, Host, Links, Snapshot};
    use crate::{LayerRange, ModelId, NodeId};

    fn host(id: u64, start: u32, end: u32) -> Host {
        Host::new(NodeId::numbered(id), LayerRange::new(start, end).unwrap().into(), 1.0)
    }

    fn build(hosts: Vec<Host>, links: &Links) -> Result<Snapshot, BadSnapshot> {
        Snapshot::new(ModelId::default(), 4, None, hosts, links)
    }

    #[test]
    fn links_follow_their_hosts_whatever_the_order() {
        let links = Links::Matrix(vec![0.0, 7.0, 9.0, 0.0]);
        let snapshot = build(vec![host(2, 0, 4), host(1, 0, 2)], &links).unwrap();
        let [one, two] = [1, 2].map(|id| snapshot.index_of(NodeId::numbered(id)).unwrap());
        assert_eq!((snapshot.link_ms(two, one), snapshot.link_ms(one, two)), (7.0, 9.0));
        assert_eq!(snapshot.states(0).len(), 2);
        assert_eq!(snapshot.states(3).len(), 1);
    }

    #[test]
    fn a_measured_pair_replaces_the_guess_in_its_direction_only() {
        let links = Links::Regions { base_ms: vec![10.0], regions: 1, measured: vec![(0, 1, 3.0)] };
        let mut far = host(2, 0, 4);
        far.access.ms = 5.0;
        let snapshot = build(vec![host(1, 0, 2), far], &links).unwrap();
        assert_eq!((snapshot.link_ms(0, 1), snapshot.link_ms(1, 0)), (3.0, 15.0));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let none = Links::Matrix(vec![0.0]);
        for spoil in [
            |h: &mut Host| h.decode_ms = f64::NAN,
            |h: &mut Host| h.visit_ms = -1.0,
            |h: &mut Host| h.queue_ms = f64::INFINITY,
            |h: &mut Host| h.trust = 0.0,
            |h: &mut Host| h.access.up_bytes_per_ms = 0.0,
            |h: &mut Host| h.loaded = LayerRange::new(2, 5).unwrap().into(),
        ] {
            let mut bad = host(1, 0, 4);
            spoil(&mut bad);
            assert_eq!(build(vec![bad], &none).unwrap_err(), BadSnapshot::Host(NodeId::numbered(1)));
        }
        let twice = build(vec![host(1, 0, 4), host(1, 0, 2)], &Links::Matrix(vec![0.0; 4]));
        assert_eq!(twice.unwrap_err(), BadSnapshot::Twice(NodeId::numbered(1)));
        assert_eq!(build(vec![host(1, 0, 4)], &Links::Matrix(vec![])).unwrap_err(), BadSnapshot::Links);
    }
}
