//! Swarms from sixty to a hundred thousand nodes in clusters: what every node hears, when it knows, and how good routes in two
//! stages are.
//!
//! Nodes stand in cities of five regions and hold windows of one model. What decides is the scheduler's own code
//! ([`scheduler::cluster`], the engine that a node decides with). News spread over drawn meshes, one in every cluster and one over
//! all nodes, each copy counted and timed: what is measured is how often a node receives one piece of news and when; times how
//! often there are such news is what it hears.
//!
//! Limits: news do not wait for each other; who speaks for a cluster does not fail; nodes agree on clusters.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use scheduler::capability::{Claim, Holding};
use scheduler::cluster::{self, MEMBERS};
use scheduler::coordinate::Coordinate;
use scheduler::cost;
use scheduler::decide::{Engine, Wanted};
use scheduler::rng::Rng;
use scheduler::route::route;
use scheduler::view::{Geography, MAX_NODES, SwarmView};
use scheduler::{Capability, LayerRange, Millis, ModelId, NodeId, OperatorId, Request, Shape};

/// Layers of the model.
const LAYERS: u32 = 80;
/// Where regions are, round trips in ms.
const REGIONS: [(f64, f64); 5] = [(0.0, 0.0), (70.0, 20.0), (90.0, -60.0), (-120.0, 100.0), (-90.0, -110.0)];
/// Nodes per city, on average.
const CITY: usize = 400;
/// How far cities lie from the middle of their region, ms.
const SPREAD_MS: f64 = 14.0;
/// Neighbors in a mesh; each passes on what it hears first to all others.
const MESH: usize = 4;
/// News wait so long for others to be sent with, at most, ms.
const GATHER_MS: f64 = 200.0;
/// Bytes of a node's changing state, on the wire.
const STATE_BYTES: f64 = 24.0;
/// Bytes of a cluster's summary.
const SUMMARY_BYTES: f64 = 300.0;
/// Bytes of what a node says once, signed.
const CLAIM_BYTES: f64 = 300.0;
/// A summary is said this often, s.
const SUMMARY_S: f64 = 10.0;
/// State changes a second on a node that is half busy: a session of half a minute begins and ends on each of four lanes.
const CHANGES: f64 = 0.13;
/// Claims a second and node: what a node holds changes four times a day, and it restarts once.
const CLAIMS: f64 = 5.0 / 86_400.0;
/// News of each kind whose way is followed.
const FOLLOWED: usize = 12;

/// What came out at one size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Nodes, and the clusters that they form.
    pub nodes: usize,
    /// Clusters that they form.
    pub clusters: usize,
    /// What a node receives, bytes a second: states of its cluster, summaries, claims, members pulled for one request a minute.
    pub bytes: [f64; 4],
    /// When 99 % of those that it matters to know a state (its cluster), and a summary (all nodes), after the change, ms.
    pub known_ms: [f64; 2],
    /// Cost of routes in two stages over the best of all nodes: median and 90 %.
    pub over: [f64; 2],
    /// Requests without a route in two stages although there is one.
    pub missed: usize,
    /// Time of a decision in two stages, both snapshots included: median and 90 %, in the unit of the clock.
    pub decision: [f64; 2],
}

struct Planet {
    places: Vec<Coordinate>,
    claims: Vec<Capability>,
}

fn id(node: usize) -> NodeId {
    NodeId::numbered(node as u64 + 1)
}

/// A cluster's name; no node has it.
fn name(cluster: usize) -> NodeId {
    NodeId::numbered((1 << 40) + cluster as u64)
}

impl Planet {
    fn draw(nodes: usize, rng: &mut Rng) -> Self {
        let normal = |rng: &mut Rng| (0..6).map(|_| rng.between(-1.0, 1.0)).sum::<f64>() / 2f64.sqrt();
        let cities: Vec<(f64, f64)> = (0..nodes.div_ceil(CITY).max(REGIONS.len()))
            .map(|city| {
                let (x, y) = REGIONS[city % REGIONS.len()];
                (x + SPREAD_MS * normal(rng), y + SPREAD_MS * normal(rng))
            })
            .collect();
        let mut planet = Self { places: Vec::with_capacity(nodes), claims: Vec::with_capacity(nodes) };
        for node in 0..nodes {
            let (x, y) = cities[rng.below(cities.len())];
            let at = [x + normal(rng), y + normal(rng), 0.0].map(|ms| ms as f32);
            planet.places.push(Coordinate::new(at, rng.exponential(6.0) as f32, 0.1).unwrap_or_default());
            planet.claims.extend(Capability::try_from(claim(node, rng)).ok());
        }
        planet
    }

    fn way_ms(&self, from: usize, to: usize) -> f64 {
        self.places[from].round_trip_ms(&self.places[to]) / 2.0
    }

    /// As many of the nearest nodes as a view takes: the best route leads no farther.
    fn nearest(&self, me: usize) -> SwarmView {
        let mut nodes: Vec<usize> = (0..self.places.len()).collect();
        nodes.select_nth_unstable_by(MAX_NODES, |a, b| {
            self.way_ms(me, *a).total_cmp(&self.way_ms(me, *b)).then(a.cmp(b))
        });
        nodes.truncate(MAX_NODES);
        if !nodes.contains(&me) {
            nodes[0] = me;
        }
        nodes.sort_unstable();
        self.view(nodes.into_iter())
    }

    /// A view of some nodes, all of them met.
    fn view(&self, nodes: impl Iterator<Item = usize>) -> SwarmView {
        let mut view = SwarmView::new(Geography::around(50.0));
        for node in nodes {
            view.merge(self.claims[node].clone(), Millis(0));
            view.meet(id(node));
            view.place(id(node), self.places[node]);
        }
        view
    }
}

/// A window of 4 to 24 layers.
fn claim(node: usize, rng: &mut Rng) -> Claim {
    let width = 4 + rng.below(21) as u32;
    let start = rng.below((LAYERS - width) as usize + 1) as u32;
    let active = rng.below(5) as u32;
    Claim {
        node: id(node),
        operator: OperatorId::numbered(node as u64),
        sequence: 1,
        region: 0,
        access_ms: 0.0,
        up_bytes_per_ms: 12_500.0,
        down_bytes_per_ms: 12_500.0,
        draining: false,
        holdings: vec![Holding {
            model: ModelId::numbered(7),
            loaded: LayerRange::new(start, start + width).into_iter().collect(),
            on_disk: Vec::new(),
            decode_ms: rng.between(0.3, 4.0),
            prefill_ms: rng.between(0.05, 0.5),
            visit_ms: rng.between(0.1, 3.0),
            queue_ms: 0.0,
            load_ms: 0.0,
            active,
            batch_knee: 4,
            kv_bytes: 1 << 34,
        }],
    }
}

/// What spreading one piece of news over a mesh takes: copies received a node, and when 99 % have it, ms.
fn spread(nodes: &[usize], planet: &Planet, rng: &mut Rng) -> (f64, f64) {
    let n = nodes.len();
    let mut mesh: Vec<Vec<usize>> = vec![Vec::new(); n];
    for at in 0..n {
        // Half of them are chosen, by half of them a node is chosen.
        for _ in 0..(MESH / 2).min(n - 1) {
            let other = rng.below(n);
            if other != at && !mesh[at].contains(&other) {
                mesh[at].push(other);
                mesh[other].push(at);
            }
        }
    }
    let (mut copies, mut late) = (0usize, Vec::new());
    for _ in 0..FOLLOWED {
        let mut known: Vec<Option<f64>> = vec![None; n];
        // In microseconds, so that times are ordered.
        let mut queue = BinaryHeap::from([Reverse((0u64, rng.below(n), usize::MAX))]);
        while let Some(Reverse((micros, at, from))) = queue.pop() {
            copies += usize::from(from != usize::MAX);
            if known[at].is_some() {
                continue;
            }
            let ms = micros as f64 / 1_000.0;
            known[at] = Some(ms);
            let gathered = ms + rng.between(0.0, GATHER_MS);
            for &next in mesh[at].iter().filter(|next| **next != from) {
                let arrives = gathered + planet.way_ms(nodes[at], nodes[next]);
                queue.push(Reverse(((arrives * 1_000.0) as u64, next, at)));
            }
        }
        // A node that the mesh does not reach hears it when sets are compared, with the next summary.
        let mut times: Vec<f64> =
            known.into_iter().map(|known| known.unwrap_or(1_000.0 * SUMMARY_S)).collect();
        times.sort_by(f64::total_cmp);
        late.push(times[(n * 99 / 100).min(n - 1)]);
    }
    late.sort_by(f64::total_cmp);
    (copies as f64 / (FOLLOWED * n) as f64, late[late.len() - 1])
}

/// Draws a swarm of so many nodes and asks `requests` times; `clock` counts up.
pub fn run(nodes: usize, requests: usize, seed: u64, clock: impl Fn() -> f64) -> Report {
    let mut rng = Rng::new(seed);
    let planet = Planet::draw(nodes, &mut rng);
    let index = |node: NodeId| {
        let head: [u8; 8] = node.as_bytes()[..8].try_into().unwrap_or_default();
        u64::from_be_bytes(head) as usize - 1
    };
    let places = (0..nodes).map(|node| (id(node), planet.places[node])).collect();
    let clusters: Vec<Vec<usize>> = cluster::partition(places, MEMBERS)
        .into_iter()
        .map(|members| members.into_iter().map(index).collect())
        .collect();

    let (model, all) = (ModelId::numbered(7), 0..nodes);
    let mut said = SwarmView::new(Geography::around(50.0));
    for (at, members) in clusters.iter().enumerate() {
        let view = planet.view(members.iter().copied());
        let Ok(snapshot) = view.snapshot(model, LAYERS, id(members[0])) else { continue };
        let Some(summary) = cluster::summary(&snapshot, name(at), 1) else { continue };
        said.merge(summary, Millis(0));
        said.meet(name(at));
        let spots: Vec<Coordinate> = members.iter().map(|member| planet.places[*member]).collect();
        said.place(name(at), cluster::center(&spots));
    }
    let everything = (nodes <= MAX_NODES).then(|| planet.view(all.clone()));

    let mut report = Report { nodes, clusters: clusters.len(), ..Report::default() };
    let (mut over, mut took, mut pulled) = (Vec::new(), Vec::new(), 0usize);
    for _ in 0..requests {
        let me = rng.below(nodes);
        let shape =
            Shape { prompt_tokens: 512, output_tokens: 100, prefill_chunk: 64, activation_bytes: 8_192 };
        let mut request = Request::new(id(me), shape);
        request.policy.near_equal = 0.0;
        let wanted = Wanted { model, num_layers: LAYERS, costs: None, me: id(me) };
        // A node knows itself and all summaries, and has asked before.
        let mut summaries = said.clone();
        summaries.merge(planet.claims[me].clone(), Millis(0));
        summaries.place(id(me), planet.places[me]);
        let mut first = Engine::default();
        let began = clock();
        let Ok(snapshot) = first.snapshot(&summaries, &wanted, 0) else { continue };
        let chosen = cluster::chosen(&mut first, &snapshot, &request);
        let found = chosen.ok().and_then(|names| {
            let members = names.iter().filter_map(|name| {
                let at = index(*name) + 1 - (1 << 40);
                clusters.get(at)
            });
            let mut near: Vec<usize> = members.flatten().copied().chain([me]).collect();
            near.sort_unstable();
            near.dedup();
            pulled += near.len();
            let mut second = Engine::default();
            let snapshot = second.snapshot(&planet.view(near.into_iter()), &wanted, 0).ok()?;
            second.route(&snapshot, &request).ok()
        });
        took.push(clock() - began);
        let known = everything.as_ref().map_or_else(|| planet.nearest(me), |view| view.clone());
        let Ok(truth) = known.snapshot(model, LAYERS, id(me)) else { continue };
        let best = route(&truth, &request);
        match (found, best) {
            (Some(found), Ok(best)) => {
                if let Ok(cost) = cost::price(&truth, &request, &found.pipeline) {
                    over.push(cost.total_ms() / best.optimum_ms);
                }
            }
            (None, Ok(_)) => report.missed += 1,
            _ => {}
        }
    }
    over.sort_by(f64::total_cmp);
    took.sort_by(f64::total_cmp);
    report.decision = [0.5, 0.9].map(|share| crate::run::percentile(&took, share));
    report.over = [0.5, 0.9].map(|share| crate::run::percentile(&over, share));

    let biggest = clusters.iter().max_by_key(|members| members.len()).cloned().unwrap_or_default();
    let everyone: Vec<usize> = all.collect();
    let (near_copies, near_ms) = spread(&biggest, &planet, &mut rng);
    let (far_copies, far_ms) = spread(&everyone, &planet, &mut rng);
    let members = biggest.len() as f64;
    report.bytes = [
        members * CHANGES * STATE_BYTES * near_copies,
        clusters.len() as f64 / SUMMARY_S * SUMMARY_BYTES * far_copies,
        members * CLAIMS * CLAIM_BYTES * near_copies,
        pulled as f64 / requests.max(1) as f64 / 60.0 * (CLAIM_BYTES + STATE_BYTES),
    ];
    report.known_ms = [near_ms, SUMMARY_S * 1_000.0 + near_ms + far_ms];
    report
}
