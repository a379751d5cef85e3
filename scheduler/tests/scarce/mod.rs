//! Drawn swarms in which room for caches is scarce, and an exact answer to each that shares no code with the router:
//! all ways to give layers to nodes, layer by layer, merged where they end on the same node having taken the same.

use scheduler::layer_cost::{LayerCost, LayerCosts};
use scheduler::rng::Rng;
use scheduler::snapshot::{Host, Links};
use scheduler::{LayerRange, ModelId, NodeId, Request, Shape, Snapshot};

/// Bits of a node's count in a packed word: rooms are smaller.
const BITS: u32 = 5;
/// Sweeps for the oracle's tolls.
const SWEEPS: usize = 300;

/// One node.
struct Peer {
    start: usize,
    end: usize,
    ms: f64,
    visit: f64,
    /// In units of the smallest layer.
    room: u64,
    place: (f64, f64),
}

/// A drawn case. Node 0 asks and holds nothing.
pub struct Rooms {
    peers: Vec<Peer>,
    /// Units that each layer takes.
    units: Vec<u64>,
    /// Pairs that cannot talk.
    apart: Vec<(usize, usize)>,
}

/// What is true of a case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Truth {
    /// The least cost of any route, ms.
    Best(f64),
    /// There is no route.
    None,
    /// The oracle has too much to look at.
    Unknown,
}

impl Rooms {
    /// 8 to 24 nodes and 8 to 24 layers, of which nodes have room for about as much as the model takes, up to twice.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let layers = 8 + rng.below(17);
        let nodes = 8 + rng.below(17);
        let unequal = rng.below(4) == 0;
        let units =
            (0..layers).map(|_| if unequal { 1 + rng.below(3) as u64 } else { 1 }).collect::<Vec<_>>();
        let whole: u64 = units.iter().sum();
        let wide = rng.between(0.2, 0.8);
        let scarce = rng.between(0.95, 2.0);
        let share = scarce * whole as f64 / nodes as f64;
        let peers = (0..nodes).map(|_| {
            let width = ((layers as f64 * rng.between(0.5, 1.5) * wide) as usize).clamp(2, layers);
            let start = rng.below(layers - width + 1);
            let room = (share * rng.between(0.4, 1.6)).round() as u64;
            Peer {
                start,
                end: start + width,
                ms: rng.between(0.3, 4.0),
                visit: rng.between(0.0, 3.0),
                room: room.clamp(1, (1 << BITS) - 1),
                place: (rng.between(0.0, 40.0), rng.between(0.0, 40.0)),
            }
        });
        let peers: Vec<Peer> = peers.collect();
        let cut = if rng.below(4) == 0 { nodes / 2 } else { 0 };
        let apart = (0..cut).map(|_| (rng.below(nodes), rng.below(nodes))).collect();
        Self { peers, units, apart }
    }

    fn node(i: usize) -> NodeId {
        NodeId::numbered(i as u64 + 1)
    }

    /// From node i to node j, ms; the requester stands at the origin.
    fn hop(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (self.peers[i].place, self.peers[j].place);
        if self.apart.contains(&(i, j)) { f64::INFINITY } else { (a.0 - b.0).hypot(a.1 - b.1) }
    }

    fn home(&self, i: usize) -> f64 {
        self.peers[i].place.0.hypot(self.peers[i].place.1)
    }

    /// What the router is asked.
    pub fn snapshot(&self) -> (Snapshot, Request) {
        let n = self.peers.len();
        let positions = u64::from(Shape::ONE_TOKEN.positions());
        let hosts = self.peers.iter().enumerate().map(|(i, peer)| {
            let layers = LayerRange::new(peer.start as u32, peer.end as u32).expect("not empty");
            Host {
                visit_ms: peer.visit,
                kv_bytes: Some(peer.room * positions),
                ..Host::new(Self::node(i), layers.into(), peer.ms)
            }
        });
        let me = Self::node(n);
        let hosts = hosts.chain([Host::new(me, Default::default(), 1.0)]).collect();
        let cell = |i: usize, j: usize| match (i == n, j == n) {
            (true, true) => 0.0,
            (true, false) => self.home(j),
            (false, true) => self.home(i),
            (false, false) => self.hop(i, j),
        };
        let ms = (0..=n).flat_map(|i| (0..=n).map(move |j| (i, j))).map(|(i, j)| cell(i, j)).collect();
        let layers = self.units.len() as u32;
        let costs = self.units.iter().map(|&units| LayerCost {
            row_work: 1,
            weight_bytes: 1,
            seen_work: 0,
            window: None,
            state_bytes: 0,
            position_bytes: units as u32,
        });
        let costs = LayerCosts::new(costs.collect(), 1).expect("layers");
        let snapshot = Snapshot::new(ModelId::default(), layers, None, hosts, &Links::Matrix(ms));
        let snapshot = snapshot.and_then(|snapshot| snapshot.with_costs(costs)).expect("a drawn swarm");
        let mut request = Request::new(me, Shape::ONE_TOKEN);
        request.policy.near_equal = 0.0;
        (snapshot, request)
    }

    fn holds(&self, i: usize, layer: usize) -> bool {
        self.peers[i].start <= layer && layer < self.peers[i].end && self.units[layer] <= self.peers[i].room
    }

    /// From node `before` (or home) to a layer on node i, without the layer.
    fn way(&self, before: Option<usize>, i: usize) -> f64 {
        match before {
            None => self.home(i) + self.peers[i].visit,
            Some(last) if last == i => 0.0,
            Some(last) => self.hop(last, i) + self.peers[i].visit,
        }
    }

    /// The cost of finishing from layer l on node i, that included, with tolls: `to_go[l][i]`.
    fn to_go(&self, tolls: &[f64]) -> Vec<Vec<f64>> {
        let (n, layers) = (self.peers.len(), self.units.len());
        let mut to_go = vec![vec![f64::INFINITY; n]; layers];
        for layer in (0..layers).rev() {
            for i in (0..n).filter(|&i| self.holds(i, layer)) {
                let rest = match to_go.get(layer + 1) {
                    None => self.home(i),
                    Some(later) => {
                        (0..n).map(|j| self.way(Some(i), j) + later[j]).fold(f64::INFINITY, f64::min)
                    }
                };
                to_go[layer][i] = self.peers[i].ms + tolls[i] * self.units[layer] as f64 + rest;
            }
        }
        to_go
    }

    /// Tolls per unit of room that make a high bound: plain subgradient steps of shrinking length.
    fn tolls(&self) -> Vec<f64> {
        let n = self.peers.len();
        let mut tolls = vec![0.0; n];
        let (mut kept, mut high) = (tolls.clone(), f64::NEG_INFINITY);
        for sweep in 0..SWEEPS {
            let to_go = self.to_go(&tolls);
            let mut used = vec![0.0; n];
            let mut before = None;
            let mut bound = 0.0;
            for (layer, rest) in to_go.iter().enumerate() {
                let from = |i: &usize| self.way(before, *i) + rest[*i];
                let Some(i) = (0..n).min_by(|a, b| from(a).total_cmp(&from(b))) else { return tolls };
                if layer == 0 {
                    bound = from(&i);
                }
                used[i] += self.units[layer] as f64;
                before = Some(i);
            }
            bound -= (0..n).map(|i| tolls[i] * self.peers[i].room as f64).sum::<f64>();
            if !bound.is_finite() {
                return vec![0.0; n];
            }
            if bound > high {
                (high, kept) = (bound, tolls.clone());
            }
            let step = 2.0 / (1.0 + sweep as f64 / 10.0);
            (0..n).for_each(|i| {
                tolls[i] = f64::max(0.0, tolls[i] + step * (used[i] - self.peers[i].room as f64));
            });
        }
        kept
    }

    /// The truth, given a cost that some route is known to have (infinite when none is known); of each layer at most
    /// `states` are looked at.
    pub fn truth(&self, known_ms: f64, states: usize) -> Truth {
        let (n, layers) = (self.peers.len(), self.units.len());
        let tolls = self.tolls();
        let to_go = self.to_go(&tolls);
        let limit = known_ms * (1.0 + 1e-9) + 1e-9;
        let count = |used: u128, i: usize| (used >> (i as u32 * BITS)) as u64 & ((1 << BITS) - 1);
        let later = |i: usize, from: usize| {
            (from..layers).filter(|&l| self.holds(i, l)).map(|l| self.units[l]).sum::<u64>()
        };
        // Node, what every node that holds later layers has taken, cost.
        let most = states;
        let mut states: Vec<(usize, u128, f64)> = Vec::new();
        for (layer, whole) in to_go.iter().enumerate() {
            let rest: Vec<u64> = (0..n).map(|i| later(i, layer + 1)).collect();
            let mut next: Vec<(usize, u128, f64)> = Vec::new();
            let begin = [(usize::MAX, 0, 0.0)];
            for &(last, used, ms) in if layer == 0 { &begin[..] } else { &states[..] } {
                let before = (last != usize::MAX).then_some(last);
                for i in (0..n).filter(|&i| self.holds(i, layer)) {
                    if count(used, i) + self.units[layer] > self.peers[i].room {
                        continue;
                    }
                    let spent = ms + self.way(before, i);
                    let slack = |j: usize| {
                        tolls[j]
                            * (self.peers[j].room - count(used, j)).min(later_at(&rest, self, j, layer))
                                as f64
                    };
                    let bound = spent + whole[i] - (0..n).map(slack).sum::<f64>();
                    if !bound.is_finite() || bound > limit {
                        continue;
                    }
                    let mut taken = used + (u128::from(self.units[layer]) << (i as u32 * BITS));
                    for j in (0..n).filter(|&j| rest[j] == 0) {
                        taken &= !(((1u128 << BITS) - 1) << (j as u32 * BITS));
                    }
                    next.push((i, taken, spent + self.peers[i].ms));
                }
            }
            if next.len() > 4 * most {
                return Truth::Unknown;
            }
            next.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
            next.dedup_by_key(|state| (state.0, state.1));
            if next.len() > most {
                return Truth::Unknown;
            }
            states = next;
        }
        let ends = states.iter().map(|&(last, _, ms)| ms + self.home(last));
        match ends.fold(f64::INFINITY, f64::min) {
            ms if ms.is_finite() => Truth::Best(ms),
            _ => Truth::None,
        }
    }
}

/// Units that node j still holds from `layer` on, given those it holds from the next one on.
fn later_at(rest: &[u64], rooms: &Rooms, j: usize, layer: usize) -> u64 {
    rest[j] + if rooms.holds(j, layer) { rooms.units[layer] } else { 0 }
}
