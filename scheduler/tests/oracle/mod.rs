//! Small drawn swarms, and two slow twins of the router that share no code with it: plain enumeration of every
//! assignment of hosts to layers, and Dijkstra (petgraph) over an explicit graph of (layer, node).

use petgraph::algo::dijkstra;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use scheduler::snapshot::{Access, Host, Links};
use scheduler::{Boomerang, LayerRange, LayerSet, ModelId, NodeId, OperatorId, Request, Shape, Snapshot};

/// One node of a drawn swarm; bit l of a mask is layer l.
#[derive(Clone, Debug)]
pub struct Peer {
    pub loaded: u128,
    pub on_disk: u128,
    pub decode: f64,
    pub prefill: f64,
    pub visit: f64,
    pub queue: f64,
    pub load: f64,
    pub active: u32,
    pub knee: u32,
    pub trust: f64,
    pub room: Option<u64>,
    pub up: f64,
    pub region: u16,
    pub access: f64,
    pub operator: u64,
}

/// A drawn routing problem.
#[derive(Clone, Debug)]
pub struct Case {
    pub layers: u32,
    pub peers: Vec<Peer>,
    /// Row by row; `None` cannot talk.
    pub matrix: Vec<Option<f64>>,
    /// Three by three; used when `regional`.
    pub base: Vec<f64>,
    pub measured: Vec<(u32, u32, f64)>,
    pub regional: bool,
    pub weights: Option<Vec<f64>>,
    pub requester: Option<usize>,
    pub boomerang: Option<Boomerang>,
    pub closing: bool,
    pub shape: Shape,
    pub floor: f64,
    pub in_flight: Vec<(usize, u32)>,
}

fn number(most: u32) -> impl Strategy<Value = f64> {
    (0..most * 4).prop_map(|n| f64::from(n) / 4.0)
}

fn peer(layers: u32) -> impl Strategy<Value = Peer> {
    let all = (1u128 << layers) - 1;
    let run = (0..layers, 1..=layers).prop_map(move |(start, len)| (((1u128 << len) - 1) << start) & all);
    let held = prop_oneof![3 => run, 1 => any::<u128>().prop_map(move |mask| mask & all), 1 => Just(all)];
    let cold = prop_oneof![4 => Just(0), 1 => any::<u128>().prop_map(move |mask| mask & all)];
    let speed = (number(8), number(3), prop_oneof![number(6), number(60)], number(5), number(20));
    let load = (0u32..4, 1u32..4, prop_oneof![Just(1.0), Just(0.5), Just(0.25)]);
    let place = (option::weighted(0.3, 0u64..40), 1u32..9, 0u16..3, number(10), 0u64..4);
    (held, cold, speed, load, place).prop_map(|(loaded, on_disk, speed, load, place)| Peer {
        loaded,
        on_disk,
        decode: speed.0,
        prefill: speed.1,
        visit: speed.2,
        queue: speed.3,
        load: speed.4,
        active: load.0,
        knee: load.1,
        trust: load.2,
        room: place.0,
        up: f64::from(place.1),
        region: place.2,
        access: place.3,
        operator: place.4,
    })
}

/// Cases of at most `nodes` nodes and `layers` layers.
pub fn case(nodes: usize, layers: u32) -> impl Strategy<Value = Case> {
    (1..=nodes, 1..=layers)
        .prop_flat_map(|(n, layers)| {
            let rtt = prop_oneof![6 => number(40).prop_map(Some), 1 => Just(None)];
            let links = (
                vec(rtt, n * n),
                vec(number(50), 9),
                vec((0..n as u32, 0..n as u32, number(60)), 0..4),
                any::<bool>(),
            );
            let shape = prop_oneof![
                2 => Just(Shape::ONE_TOKEN),
                1 => (0u32..9, 1u32..5, 1u32..5, 0u32..9).prop_map(|s| Shape {
                    prompt_tokens: s.0, output_tokens: s.1, prefill_chunk: s.2, activation_bytes: s.3
                }),
            ];
            let asks = (
                option::weighted(0.7, 0..n),
                option::weighted(0.3, (1u32..3, 1u32..3).prop_map(|(head, tail)| Boomerang { head, tail })),
                any::<bool>(),
                shape,
                prop_oneof![Just(0.0), Just(0.4)],
                vec((0..n, 1u32..4), 0..2),
            );
            let weights = option::weighted(0.3, vec(number(3), layers as usize));
            (Just(layers), vec(peer(layers), n), links, weights, asks)
        })
        .prop_map(|(layers, peers, links, weights, asks)| {
            let mut measured = links.2;
            measured.sort_by_key(|pair| (pair.0, pair.1));
            measured.dedup_by_key(|pair| (pair.0, pair.1));
            Case {
                layers,
                peers,
                matrix: links.0,
                base: links.1,
                measured,
                regional: links.3,
                weights,
                requester: asks.0,
                boomerang: asks.1.filter(|_| asks.0.is_some()),
                closing: asks.2,
                shape: asks.3,
                floor: asks.4,
                in_flight: asks.5,
            }
        })
}

pub fn id(i: usize) -> NodeId {
    NodeId::numbered(i as u64 + 1)
}

pub fn set(mask: u128) -> LayerSet {
    (0..128).filter(|l| mask >> l & 1 == 1).filter_map(|l| LayerRange::new(l, l + 1)).collect()
}

impl Case {
    pub fn snapshot(&self) -> Snapshot {
        let order: Vec<usize> = (0..self.peers.len()).collect();
        self.snapshot_in(&order)
    }

    /// The same swarm with its hosts listed in another order.
    pub fn snapshot_in(&self, order: &[usize]) -> Snapshot {
        let n = self.peers.len();
        let hosts = order.iter().map(|&i| {
            let peer = &self.peers[i];
            Host {
                operator: OperatorId::numbered(peer.operator),
                access: Access {
                    region: peer.region,
                    ms: peer.access,
                    up_bytes_per_ms: peer.up,
                    ..Access::FREE
                },
                on_disk: set(peer.on_disk),
                prefill_ms: peer.prefill,
                visit_ms: peer.visit,
                queue_ms: peer.queue,
                active: peer.active,
                batch_knee: peer.knee,
                kv_bytes: peer.room,
                load_ms: peer.load,
                trust: peer.trust,
                ..Host::new(id(i), set(peer.loaded), peer.decode)
            }
        });
        let at = |i: u32| order.iter().position(|&o| o == i as usize).unwrap() as u32;
        let links = if self.regional {
            let measured = self.measured.iter().map(|&(i, j, ms)| (at(i), at(j), ms)).collect();
            Links::Regions { base_ms: self.base.clone(), regions: 3, measured }
        } else {
            let cell = |i: usize, j: usize| self.matrix[i * n + j].unwrap_or(f64::INFINITY);
            Links::Matrix(order.iter().flat_map(|&i| order.iter().map(move |&j| cell(i, j))).collect())
        };
        Snapshot::new(ModelId::default(), self.layers, self.weights.clone(), hosts.collect(), &links).unwrap()
    }

    pub fn request(&self) -> Request {
        let mut request = Request::new(NodeId::default(), self.shape);
        request.requester = self.requester.map(id);
        request.policy.boomerang = self.boomerang;
        request.policy.closing_hop = self.closing;
        request.policy.trust_floor = self.floor;
        request.policy.near_equal = 0.0;
        request.in_flight = self.in_flight.iter().map(|&(i, running)| (id(i), running)).collect();
        request
    }

    fn turns(&self) -> f64 {
        f64::from(self.shape.turns().max(1))
    }

    fn link(&self, i: usize, j: usize) -> f64 {
        if i == j {
            return 0.0;
        }
        if !self.regional {
            return self.matrix[i * self.peers.len() + j].unwrap_or(f64::INFINITY);
        }
        let pair = self.measured.iter().find(|pair| (pair.0 as usize, pair.1 as usize) == (i, j));
        let (a, b) = (&self.peers[i], &self.peers[j]);
        pair.map_or(self.base[a.region as usize * 3 + b.region as usize] + a.access + b.access, |pair| pair.2)
    }

    fn hop(&self, i: usize, j: usize) -> f64 {
        let bytes = f64::from(self.shape.tokens_carried()) * f64::from(self.shape.activation_bytes);
        self.turns() * self.link(i, j) + bytes / self.peers[i].up
    }

    fn enter(&self, i: usize) -> f64 {
        f64::from(self.shape.passes().max(1)) * (self.peers[i].visit + self.peers[i].queue)
    }

    fn run(&self, i: usize, layer: u32) -> f64 {
        let peer = &self.peers[i];
        let own = self.in_flight.iter().find(|entry| entry.0 == i).map_or(0, |entry| entry.1);
        let there = f64::from(peer.active + own);
        let rows = there / f64::from(peer.knee) * peer.decode;
        let trust = if self.requester == Some(i) { 1.0 } else { peer.trust };
        let weight = self.weights.as_ref().map_or(1.0, |weights| weights[layer as usize]);
        let (steps, prompt) = (f64::from(self.shape.decode_steps()), f64::from(self.shape.prompt_tokens));
        let chunks = f64::from(self.shape.passes()) - steps;
        // Every row of others makes a pass longer, and every one of ours the passes of others.
        let step = peer.decode + 2.0 * rows;
        let tokens = steps * step + chunks * rows + prompt * (peer.prefill + rows.min(there * peer.prefill));
        let cold = if peer.loaded >> layer & 1 == 1 { 0.0 } else { peer.load };
        tokens / trust * weight + cold
    }

    fn room(&self, i: usize) -> u32 {
        let positions = u64::from(self.shape.positions().max(1));
        self.peers[i].room.map_or(u32::MAX, |room| (room / positions) as u32)
    }

    /// Whether node i may run this layer at all, `gone` being dead.
    fn may(&self, i: usize, layer: u32, gone: &[usize]) -> bool {
        let peer = &self.peers[i];
        let home = self.requester == Some(i);
        let ends = self.boomerang.is_some_and(|b| layer < b.head || layer + b.tail >= self.layers);
        (peer.loaded | peer.on_disk) >> layer & 1 == 1
            && (home || (!ends && peer.trust >= self.floor))
            && self.room(i) > 0
            && !gone.contains(&i)
    }

    /// The least cost over all assignments, by enumeration.
    pub fn brute_force(&self, gone: &[usize]) -> Option<f64> {
        let mut used = vec![0; self.peers.len()];
        let least = self.extend(0, None, &mut used, gone);
        least.is_finite().then_some(least)
    }

    fn extend(&self, layer: u32, before: Option<usize>, used: &mut [u32], gone: &[usize]) -> f64 {
        let home = self.requester.filter(|_| self.closing);
        if layer == self.layers {
            return match (home, before) {
                (Some(home), Some(last)) => self.turns() * self.link(last, home),
                _ => 0.0,
            };
        }
        let mut least = f64::INFINITY;
        for i in (0..self.peers.len()).filter(|&i| self.may(i, layer, gone)) {
            if used[i] >= self.room(i) {
                continue;
            }
            let way = match before {
                Some(last) if last == i => 0.0,
                Some(last) => self.hop(last, i) + self.enter(i),
                None => home.map_or(0.0, |home| self.turns() * self.link(home, i)) + self.enter(i),
            };
            used[i] += 1;
            let rest = self.extend(layer + 1, Some(i), used, gone);
            used[i] -= 1;
            least = least.min(way + self.run(i, layer) + rest);
        }
        least
    }

    /// The least cost by Dijkstra over (layer, node); ignores KV room.
    pub fn dijkstra(&self) -> Option<f64> {
        let n = self.peers.len();
        let mut graph: DiGraph<(), f64> = DiGraph::new();
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        let at: Vec<NodeIndex> = (0..n * self.layers as usize).map(|_| graph.add_node(())).collect();
        let vertex = |layer: u32, i: usize| at[layer as usize * n + i];
        let home = self.requester.filter(|_| self.closing);
        for layer in 0..self.layers {
            for i in (0..n).filter(|&i| self.may(i, layer, &[])) {
                if layer == 0 {
                    let hop = home.map_or(0.0, |home| self.turns() * self.link(home, i));
                    graph.add_edge(source, vertex(0, i), hop + self.enter(i));
                }
                if layer + 1 == self.layers {
                    let hop = home.map_or(0.0, |home| self.turns() * self.link(i, home));
                    graph.add_edge(vertex(layer, i), sink, self.run(i, layer) + hop);
                    continue;
                }
                for j in (0..n).filter(|&j| self.may(j, layer + 1, &[])) {
                    let way = if i == j { 0.0 } else { self.hop(i, j) + self.enter(j) };
                    graph.add_edge(vertex(layer, i), vertex(layer + 1, j), self.run(i, layer) + way);
                }
            }
        }
        graph.retain_edges(|graph, edge| graph[edge].is_finite());
        dijkstra(&graph, source, Some(sink), |edge| *edge.weight()).get(&sink).copied()
    }
}
