//! Decides which layers nodes should hold: disjoint pipelines with the best goodput at the observed concurrency.
//!
//! **Objective.** A pipeline with latency `lat` (all stages and hops) and slowest stage `slow` serves x requests at
//! `min(x / lat, 1 / slow)` tokens per ms. With c requests to spread, the best spread fills pipelines in the order of
//! latency, each up to `x = lat / slow`; [`goodput_tps`] is its sum. The number rewards what matters and nothing
//! else: nearness when few ask, balance when many do. Counting pipelines or stages does not.
//!
//! **Search.** Spreading is a linear program, so at the margin every request is worth the same, `price` tokens per
//! second; given it, a pipeline's worth is `(1000 - price * lat) / slow`, apart from all others. That makes moves
//! cheap: only the pipelines they touch are priced again (`split.rs`). Pipelines are first grown from fast nodes by
//! the least latency added per layer covered, then improved by annealing (`anneal.rs`): move a node, swap two, drop
//! one, dissolve a few pipelines and grow them again. The marginal price is refreshed on the way and the best
//! placement by the true goodput is kept. Where growing finds nothing, one pipeline of the widest sites is tried
//! (`widest.rs`).
//!
//! **Sameness.** Sites are sorted by id and the generator is seeded with a constant: every node that knows the same
//! sites computes the same advice, in whatever order it learned of them. Effort is counted in pipelines priced,
//! never in time.
//!
//! **Change.** Moving layers costs minutes of loading; `keep.rs` decides when advice is worth following, and what a
//! newcomer or the survivors of a broken pipeline should hold without touching other nodes.
//!
//! Limits: one pipeline and one segment per node; one model. A node that chooses layers of several divides its memory between them
//! first (`knapsack.rs`), and follows that only where they do not all fit.

mod anneal;
mod keep;
pub mod knapsack;
mod split;
pub mod stand;
mod widen;
mod widest;
mod worth;

use crate::{LayerRange, NodeId, Pipeline, Segment};

pub use keep::{Advice, Keeper, MIN_DWELL_MS, MIN_GAIN, Move, Room, SETTLE_MS, restitch, scarcest};
pub use widen::widen;

/// One node that could hold layers.
#[derive(Clone, PartialEq, Debug)]
pub struct Site {
    /// Who.
    pub id: NodeId,
    /// One decoded token through one layer, ms.
    pub layer_ms: f64,
    /// Whole layers that fit its budget.
    pub cap_mid: u32,
    /// With the embedding beside them.
    pub cap_first: u32,
    /// With the output head beside them.
    pub cap_last: u32,
    /// With both.
    pub cap_both: u32,
}

impl Site {
    /// A node that has `room`: of a model of `num_layers` it may hold so many that any of them fit side by side. Where layers
    /// weigh differently the heaviest count.
    pub fn new(id: NodeId, layer_ms: f64, room: &Room, num_layers: u32) -> Self {
        let all = LayerRange::new(0, num_layers);
        let none = Self { id, layer_ms, cap_mid: 0, cap_first: 0, cap_last: 0, cap_both: 0 };
        all.map_or(none, |all| Self::within(id, layer_ms, room, all))
    }

    /// As [`Self::new`] where only layers `within` the model are placed, the first of which counts as 0.
    pub fn within(id: NodeId, layer_ms: f64, room: &Room, within: LayerRange) -> Self {
        let (first, end) = (within.start(), within.end());
        let longest = |start: u32| room.longest(start, end).map_or(0, |range| range.len());
        let between = (first..end).map(|start| (start, longest(start)));
        let cap_mid = between.filter(|(start, len)| start + len < end).map(|(_, len)| len).min();
        let last = (first..end).find(|start| start + longest(*start) == end);
        let (cap_first, cap_last) = (longest(first), last.map_or(0, |start| end - start));
        let cap_mid = cap_mid.unwrap_or(within.len());
        Self { id, layer_ms, cap_mid, cap_first, cap_last, cap_both: cap_first }
    }

    /// Layers it may hold at the given place of a pipeline.
    fn cap(&self, first: bool, last: bool) -> u32 {
        match (first, last) {
            (true, true) => self.cap_both,
            (true, false) => self.cap_first,
            (false, true) => self.cap_last,
            (false, false) => self.cap_mid,
        }
    }
}

/// Everything placement depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Ground {
    num_layers: u32,
    concurrency: f64,
    sites: Vec<Site>,
    hop_ms: Vec<f64>,
}

/// Why no ground could be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadGround;

impl std::fmt::Display for BadGround {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sites and hops do not describe a swarm")
    }
}

impl std::error::Error for BadGround {}

impl Ground {
    /// `hop_ms[i * n + j]` is a hop from the i-th to the j-th of `sites` as given, infinite when they cannot talk;
    /// `concurrency` is the number of requests to serve at once.
    ///
    /// # Errors
    /// [`BadGround`] for no layers, numbers that are negative or NaN, ids listed twice, or a matrix that does not fit.
    pub fn new(
        num_layers: u32,
        concurrency: f64,
        sites: Vec<Site>,
        hop_ms: &[f64],
    ) -> Result<Self, BadGround> {
        let n = sites.len();
        let sane = num_layers > 0
            && concurrency >= 0.0
            && concurrency.is_finite()
            && hop_ms.len() == n * n
            && hop_ms.iter().all(|ms| *ms >= 0.0)
            && sites.iter().all(|site| site.layer_ms > 0.0 && site.layer_ms.is_finite());
        if !sane {
            return Err(BadGround);
        }
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_unstable_by_key(|&i| sites[i].id);
        let hop_ms = order.iter().flat_map(|&i| order.iter().map(move |&j| hop_ms[i * n + j])).collect();
        let sites: Vec<Site> = order.iter().map(|&i| sites[i].clone()).collect();
        if sites.windows(2).any(|pair| pair[0].id == pair[1].id) {
            return Err(BadGround);
        }
        Ok(Self { num_layers, concurrency, sites, hop_ms })
    }

    /// The sites, by id.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Number of layers to hold.
    pub fn num_layers(&self) -> u32 {
        self.num_layers
    }

    /// Requests to serve at once.
    pub fn concurrency(&self) -> f64 {
        self.concurrency
    }

    fn index_of(&self, id: NodeId) -> Option<u32> {
        self.sites.binary_search_by_key(&id, |site| site.id).ok().map(|i| i as u32)
    }

    fn hop(&self, from: u32, to: u32) -> f64 {
        self.hop_ms[from as usize * self.sites.len() + to as usize]
    }

    /// Latency (one token through all stages and hops) and slowest stage of a pipeline, ms; `None` when it breaks a
    /// capacity or names an unknown site.
    pub fn pace(&self, pipeline: &Pipeline) -> Option<Pace> {
        let last = pipeline.segments().len() - 1;
        let mut pace = Pace { latency_ms: 0.0, slowest_ms: 0.0 };
        let mut before = None;
        for (at, segment) in pipeline.segments().iter().enumerate() {
            let i = self.index_of(segment.node)?;
            let site = &self.sites[i as usize];
            if segment.layers.len() > site.cap(at == 0, at == last) {
                return None;
            }
            let stage = f64::from(segment.layers.len()) * site.layer_ms;
            pace.latency_ms += stage + before.map_or(0.0, |from| self.hop(from, i));
            pace.slowest_ms = pace.slowest_ms.max(stage);
            before = Some(i);
        }
        Some(pace)
    }
}

/// How fast a pipeline is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// One token through all stages and hops.
    pub latency_ms: f64,
    /// Its slowest stage; requests overlap down to this.
    pub slowest_ms: f64,
}

/// Tokens per second of `pipelines` with `concurrency` requests spread in the best way.
pub fn goodput_tps(pipelines: &[Pace], concurrency: f64) -> f64 {
    fill(pipelines, concurrency).0
}

/// Goodput, and what one more request would add to it (tokens per second).
fn fill(pipelines: &[Pace], concurrency: f64) -> (f64, f64) {
    let mut order: Vec<Pace> = pipelines.to_vec();
    order.sort_unstable_by(|a, b| {
        a.latency_ms.total_cmp(&b.latency_ms).then(a.slowest_ms.total_cmp(&b.slowest_ms))
    });
    let (mut left, mut tps) = (concurrency, 0.0);
    for pace in order {
        let room = pace.latency_ms / pace.slowest_ms;
        let taken = left.min(room);
        tps += 1000.0 * taken / pace.latency_ms;
        left -= taken;
        if taken < room {
            return (tps, 1000.0 / pace.latency_ms);
        }
    }
    (tps, 0.0)
}

/// Who should hold what.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    /// Disjoint pipelines, the fastest first.
    pub pipelines: Vec<Pipeline>,
    /// Tokens per second at the ground's concurrency.
    pub goodput_tps: f64,
    /// Sites that serve best by holding nothing of this placement; they make good standbys.
    pub idle: Vec<NodeId>,
}

impl Placement {
    /// What `node` should hold.
    pub fn of(&self, node: NodeId) -> Option<Segment> {
        self.pipelines.iter().flat_map(Pipeline::segments).find(|segment| segment.node == node).copied()
    }
}

/// The best placement found for `ground` from nothing. Deterministic, the same in any order of sites.
pub fn place(ground: &Ground) -> Placement {
    let pool: Vec<u32> = (0..ground.sites.len() as u32).collect();
    let chains = anneal::improve(ground, anneal::grow_best(ground, &pool), effort(ground.sites.len()));
    finish(ground, &chains)
}

/// Pipelines priced: some 25 ms of work at 64 sites, half a second at 1,024.
fn effort(sites: usize) -> u64 {
    (4_000 + 700 * sites as u64).min(600_000)
}

fn finish(ground: &Ground, chains: &[Vec<u32>]) -> Placement {
    let paces: Vec<Pace> =
        chains.iter().filter_map(|chain| split::best(ground, chain, 0.0)).map(|plan| plan.pace).collect();
    let mut price = fill(&paces, ground.concurrency).1;
    let mut best = Placement::default();
    // The split of each pipeline depends on the marginal price, and the price on the splits.
    for _ in 0..8 {
        let found = with_price(ground, chains, price);
        let paces: Vec<Pace> = found.iter().filter_map(|pipeline| ground.pace(pipeline)).collect();
        let (goodput_tps, next) = fill(&paces, ground.concurrency);
        if goodput_tps > best.goodput_tps {
            best = Placement { pipelines: found, goodput_tps, idle: Vec::new() };
        }
        if next == price {
            break;
        }
        price = next;
    }
    let held = |id: NodeId| best.pipelines.iter().any(|pipeline| pipeline.visits(id));
    let idle: Vec<NodeId> = ground.sites.iter().map(|site| site.id).filter(|id| !held(*id)).collect();
    best.idle = idle;
    best
}

/// The chains as pipelines, each split for the given marginal price, fastest first.
fn with_price(ground: &Ground, chains: &[Vec<u32>], price: f64) -> Vec<Pipeline> {
    let mut found: Vec<(f64, Pipeline)> = Vec::new();
    for chain in chains {
        let Some(plan) = split::best(ground, chain, price) else { continue };
        let mut at = 0;
        let segments = chain.iter().zip(plan.layers()).filter_map(|(&site, &len)| {
            let layers = LayerRange::new(at, at + len);
            at += len;
            layers.map(|layers| Segment { node: ground.sites[site as usize].id, layers })
        });
        if let Ok(pipeline) = Pipeline::new(segments.collect(), ground.num_layers) {
            found.push((plan.pace.latency_ms, pipeline));
        }
    }
    found.sort_by(|a, b| {
        a.0.total_cmp(&b.0).then_with(|| a.1.segments()[0].node.cmp(&b.1.segments()[0].node))
    });
    found.into_iter().map(|entry| entry.1).collect()
}

#[cfg(test)]
mod tests;
