//! What a pipeline costs a request, each term named once.
//!
//! ```text
//! segment on node i, layers [a, b), every line x weight(a, b) but the last three:
//!   decode    steps  x decode_i
//!   prefill   prompt x prefill_i
//!   crowding  (steps + chunks) x rows_i               rows_i = decode_i x running there / knee_i: what the rows of others
//!                                                     add to a pass
//!   others    (steps x rows_i + prompt x min(rows_i, prefill_i x running there)) / trust_i
//!   doubt     all of its own so far x (1 / trust_i - 1)  expected retries of a node that answers with probability trust_i
//!   visit     frames x visit_i
//!   queue     frames x queue_i
//!   load      load_i x layers still on its disk
//! hop i -> j:
//!   hop       turns  x link(i, j)
//!   transfer  tokens x bytes x (1 / up_i + 1 / down_j)
//! ends:
//!   closing   turns  x (link(requester, first) + link(last, requester)); token ids only, no activation bytes
//! ```
//!
//! Every term belongs to one layer, one entry or one hop, so a shortest path is exact. `frames` are the chunks of the prompt and
//! the further steps; `turns` the ways around the ring that follow each other: chunks do not wait for one another, so
//! all of a prompt is one turn. Transfer counts the slower side and the faster one after the other (store and forward),
//! which over-prices by at most two.
//!
//! **Load.** A pass over a layer takes `alpha + beta x rows`: the reading of its weights and the arithmetic of a row. A node
//! says `decode = alpha + beta` and `prefill = beta`, and as its knee how many rows take as long as one step,
//! `decode / prefill`. Of B sessions B rows share a pass, so each step of one more takes `beta x B = decode x B / knee`
//! longer (*crowding*) and delays those who are there by as much, and a chunk delays each of them by its own rows
//! (*others*). The search minimizes both together, `alpha + beta x (2 B + 1)` for a step; what a request is
//! told that it takes is its own time ([`Cost::own_ms`]).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

use crate::no_route::NoRoute;
use crate::snapshot::{Hops, Host, Snapshot};
use crate::{LayerRange, NodeId, Pipeline, Request, Segment, Shape};

/// Predicted milliseconds of one request, term by term. See the module's page for each.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Cost {
    /// Decoding on idle nodes.
    pub decode_ms: f64,
    /// Prefill on idle nodes.
    pub prefill_ms: f64,
    /// What the rows of others add to compute.
    pub crowding_ms: f64,
    /// What it delays others: a price, and no time of its own.
    pub others_ms: f64,
    /// What expected retries add to compute.
    pub doubt_ms: f64,
    /// Entering nodes.
    pub visit_ms: f64,
    /// Waiting behind others.
    pub queue_ms: f64,
    /// Loading layers from disk.
    pub load_ms: f64,
    /// Latency between nodes.
    pub hop_ms: f64,
    /// Bytes between nodes.
    pub transfer_ms: f64,
    /// From the requester to the first node and back from the last.
    pub closing_ms: f64,
}

impl Cost {
    /// All terms, by name, in the order of the module's page.
    pub fn terms(&self) -> [(&'static str, f64); 11] {
        [
            ("decode", self.decode_ms),
            ("prefill", self.prefill_ms),
            ("crowding", self.crowding_ms),
            ("others", self.others_ms),
            ("doubt", self.doubt_ms),
            ("visit", self.visit_ms),
            ("queue", self.queue_ms),
            ("load", self.load_ms),
            ("hop", self.hop_ms),
            ("transfer", self.transfer_ms),
            ("closing", self.closing_ms),
        ]
    }

    /// The sum of all terms, ms: what the search minimizes.
    pub fn total_ms(&self) -> f64 {
        self.terms().iter().map(|term| term.1).sum()
    }

    /// What the request itself takes, ms: all but what it delays others.
    pub fn own_ms(&self) -> f64 {
        Self { others_ms: 0.0, ..*self }.total_ms()
    }

    /// The same where every layer is in memory by now, ms.
    pub fn loaded_ms(&self) -> f64 {
        Self { load_ms: 0.0, ..*self }.own_ms()
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.decode_ms += other.decode_ms;
        self.prefill_ms += other.prefill_ms;
        self.crowding_ms += other.crowding_ms;
        self.others_ms += other.others_ms;
        self.doubt_ms += other.doubt_ms;
        self.visit_ms += other.visit_ms;
        self.queue_ms += other.queue_ms;
        self.load_ms += other.load_ms;
        self.hop_ms += other.hop_ms;
        self.transfer_ms += other.transfer_ms;
        self.closing_ms += other.closing_ms;
    }
}

impl fmt::Display for Cost {
    /// `152.3 ms = decode 120.0 + visit 12.3 + hop 20.0`; terms below a microsecond are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.total_ms())?;
        let shown = self.terms().into_iter().filter(|term| term.1 >= 0.001);
        for (i, (name, ms)) in shown.enumerate() {
            write!(f, " {} {name} {ms:.1}", if i == 0 { "=" } else { "+" })?;
        }
        Ok(())
    }
}

/// One segment and what it costs, the hop into it included (the closing hops belong to the first and the last leg).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Leg {
    /// Who runs what.
    pub segment: Segment,
    /// Its share of the cost.
    pub cost: Cost,
}

/// The prices one node contributes; 32 bytes so that the search touches half a cache line per state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePrice {
    /// Per unit of layer weight.
    pub rate: f64,
    /// Per entry; infinite when the node may not serve.
    pub enter: f64,
    /// Leaving towards another node: serialization, and access with regional links.
    pub out: f64,
    /// Arriving from another node.
    pub into: f64,
}

/// What lies beyond an end of the layers searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub host: u32,
    /// Whether activations cross (inside a pipeline) or only token ids (at its ends).
    pub carries: bool,
}

/// A snapshot priced for one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Price {
    /// Ways around the ring that follow each other.
    pub turns: f64,
    pub node: Vec<NodePrice>,
    /// Per cold layer, by node; empty when nothing is cold.
    pub cold: Vec<f64>,
    /// Bytes of state a node may take for this request; `u64::MAX` when it has room for the whole model.
    pub room: Vec<u64>,
    pub capped: bool,
    /// Bytes of state that all layers before each one take, and behind the last those of all.
    need: Vec<u64>,
    pub home: Option<u32>,
    /// Where the token comes from before the first layer, and goes after the last.
    pub entry_from: Option<End>,
    pub exit_to: Option<End>,
    /// Layers below `head` and from `tail_from` on belong to the requester.
    pub head: usize,
    pub tail_from: usize,
}

impl Price {
    /// Prices every host of `snapshot` for `request`, reusing this value's memory.
    pub fn refill(&mut self, snapshot: &Snapshot, request: &Request) -> Result<(), NoRoute> {
        self.begin(snapshot, request)?;
        let shape = request.shape;
        let whole = self.refill_needs(snapshot, shape);
        self.node.clear();
        self.room.clear();
        self.capped = false;
        let bytes = f64::from(shape.tokens_carried()) * f64::from(shape.activation_bytes);
        for host in &snapshot.hosts {
            self.node.push(self.of(snapshot, request, bytes, host));
            let room = host.kv_bytes.filter(|room| *room < whole).unwrap_or(u64::MAX);
            self.capped |= room != u64::MAX;
            self.room.push(room);
        }
        self.correct_few(snapshot, request, 0..snapshot.hosts.len() as u32);
        let least = self.least();
        for (price, room) in self.node.iter_mut().zip(&self.room) {
            if *room < least {
                price.enter = f64::INFINITY;
            }
        }
        self.fill_cold(snapshot);
        Ok(())
    }

    /// The price of a pipeline's hosts only: of the others nothing is to be asked. With `roomy` as if every host had room for everything.
    pub fn refill_few(
        &mut self,
        snapshot: &Snapshot,
        request: &Request,
        pipeline: &Pipeline,
        roomy: bool,
    ) -> Result<(), NoRoute> {
        self.begin(snapshot, request)?;
        let whole = self.refill_needs(snapshot, request.shape);
        let never = NodePrice { rate: 0.0, enter: f64::INFINITY, out: 0.0, into: 0.0 };
        self.node.clear();
        self.node.resize(snapshot.hosts.len(), never);
        self.room.clear();
        self.room.resize(snapshot.hosts.len(), u64::MAX);
        let bytes = f64::from(request.shape.tokens_carried()) * f64::from(request.shape.activation_bytes);
        let nodes = pipeline.segments().iter().map(|segment| segment.node).chain(request.requester);
        let few: BTreeSet<u32> = nodes.filter_map(|node| snapshot.index_of(node)).collect();
        for &i in &few {
            let host = &snapshot.hosts[i as usize];
            self.node[i as usize] = self.of(snapshot, request, bytes, host);
            let room = host.kv_bytes.filter(|room| *room < whole && !roomy).unwrap_or(u64::MAX);
            self.room[i as usize] = room;
        }
        self.correct_few(snapshot, request, few.iter().copied());
        let least = self.least();
        for &i in &few {
            if self.room[i as usize] < least {
                self.node[i as usize].enter = f64::INFINITY;
            }
        }
        self.fill_cold(snapshot);
        Ok(())
    }

    /// What does not depend on single hosts.
    fn begin(&mut self, snapshot: &Snapshot, request: &Request) -> Result<(), NoRoute> {
        let policy = &request.policy;
        let shape = request.shape;
        self.home = match request.requester {
            Some(id) => snapshot.index_of(id),
            None => None,
        };
        let closing = policy.closing_hop && request.requester.is_some();
        let end = self.home.filter(|_| closing).map(|host| End { host, carries: false });
        (self.entry_from, self.exit_to) = (end, end);
        if self.home.is_none() && (closing || policy.boomerang.is_some()) {
            return Err(NoRoute::UnknownRequester);
        }
        (self.head, self.tail_from) = match policy.boomerang {
            Some(ends) => {
                (ends.head.max(1) as usize, snapshot.layers.saturating_sub(ends.tail.max(1) as usize))
            }
            None => (0, snapshot.layers),
        };
        self.turns = f64::from(shape.turns().max(1));
        Ok(())
    }

    /// Nothing runs on `host`.
    pub fn bar(&mut self, host: u32) {
        self.node[host as usize].enter = f64::INFINITY;
    }

    /// A host's prices before the policy and running requests correct them.
    fn of(&self, snapshot: &Snapshot, request: &Request, bytes: f64, host: &Host) -> NodePrice {
        let shape = request.shape;
        let regional = matches!(snapshot.hops, Hops::Regions { .. });
        let access = if regional { self.turns * host.access.ms } else { 0.0 };
        NodePrice {
            rate: Compute::of(host, shape, 0).price_ms() / host.trust,
            enter: if host.trust < request.policy.trust_floor { f64::INFINITY } else { enter(host, shape) },
            out: access + bytes / host.access.up_bytes_per_ms,
            into: access + bytes / host.access.down_bytes_per_ms,
        }
    }

    /// What the state of layers takes; returns that of all.
    fn refill_needs(&mut self, snapshot: &Snapshot, shape: Shape) -> u64 {
        let positions = u64::from(shape.positions().max(1));
        self.need.clear();
        self.need.push(0);
        let mut whole = 0u64;
        for layer in 0..snapshot.layers {
            whole = whole.saturating_add(snapshot.state_bytes(layer, positions));
            self.need.push(whole);
        }
        whole
    }

    /// What the smallest layer takes.
    fn least(&self) -> u64 {
        self.need.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(0)
    }

    fn fill_cold(&mut self, snapshot: &Snapshot) {
        self.cold.clear();
        if !snapshot.cold.is_empty() {
            self.cold.extend(snapshot.hosts.iter().map(|host| host.load_ms));
        }
    }

    /// Takes `bytes` of a host's room away.
    pub fn charge(&mut self, snapshot: &Snapshot, host: u32, bytes: u64) {
        let i = host as usize;
        let Some(announced) = snapshot.hosts[i].kv_bytes else { return };
        let room = if self.room[i] == u64::MAX { announced } else { self.room[i] };
        let left = room.saturating_sub(bytes);
        let least = self.least();
        self.room[i] = left;
        self.capped |= self.need.last().is_some_and(|whole| left < *whole);
        if left < least {
            self.node[i].enter = f64::INFINITY;
        }
    }

    /// Bytes of state that the layers from `first` up to `end` take for this request.
    pub fn needs(&self, first: u32, end: u32) -> u64 {
        self.need[end as usize] - self.need[first as usize]
    }

    /// The hosts that the policy or the requester's own running requests treat apart.
    fn correct_few(&mut self, snapshot: &Snapshot, request: &Request, priced: impl Iterator<Item = u32>) {
        let policy = &request.policy;
        for &(id, running) in &request.in_flight {
            if let Some(i) = snapshot.index_of(id) {
                let host = &snapshot.hosts[i as usize];
                self.node[i as usize].rate =
                    Compute::of(host, request.shape, running).price_ms() / host.trust;
            }
        }
        if let Some(home) = self.home {
            let host = &snapshot.hosts[home as usize];
            self.node[home as usize].enter = enter(host, request.shape);
            self.node[home as usize].rate *= host.trust;
        }
        if let Some(allow) = &policy.allow {
            for i in priced {
                if !allow.contains(&snapshot.hosts[i as usize].id) && self.home != Some(i) {
                    self.bar(i);
                }
            }
        }
        for id in &policy.deny {
            if let Some(i) = snapshot.index_of(*id) {
                self.node[i as usize].enter = f64::INFINITY;
            }
        }
    }

    /// Whether only the requester may run `layer`.
    pub fn home_only(&self, layer: usize) -> bool {
        layer < self.head || layer >= self.tail_from
    }

    /// Leaving `from` for `to`, without entering it.
    pub fn hop(&self, snapshot: &Snapshot, from: u32, to: u32) -> f64 {
        let link = self.turns * snapshot.link_ms(from, to);
        link + snapshot.transfer(self, from, to)
    }

    /// From the requester to the first node.
    pub fn entry(&self, snapshot: &Snapshot, first: u32) -> f64 {
        match self.entry_from {
            None => 0.0,
            Some(End { host, carries: true }) => self.hop(snapshot, host, first),
            Some(End { host, .. }) => self.turns * snapshot.link_ms(host, first),
        }
    }

    /// From the last node to the requester.
    pub fn exit(&self, snapshot: &Snapshot, last: u32) -> f64 {
        match self.exit_to {
            None => 0.0,
            Some(End { host, carries: true }) => self.hop(snapshot, last, host),
            Some(End { host, .. }) => self.turns * snapshot.link_ms(last, host),
        }
    }

    /// Compute and loading of one state (a node at a layer).
    pub fn layer(&self, snapshot: &Snapshot, state: usize, layer: usize) -> f64 {
        let host = snapshot.host_of[state] as usize;
        let cold = if snapshot.cold.get(state) == Some(&true) { self.cold[host] } else { 0.0 };
        self.node[host].rate * snapshot.weight[layer] + cold
    }
}

impl Snapshot {
    /// There and back between two nodes, ms; `None` where one is unknown.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let (one, other) = (self.index_of(one)?, self.index_of(other)?);
        Some(self.link_ms(one, other) + self.link_ms(other, one))
    }

    /// Serialization of a hop: the parts of `out` and `into` that are not access.
    fn transfer(&self, price: &Price, from: u32, to: u32) -> f64 {
        let access = match self.hops {
            Hops::Regions { .. } => {
                price.turns * (self.hosts[from as usize].access.ms + self.hosts[to as usize].access.ms)
            }
            Hops::Matrix { .. } => 0.0,
        };
        price.node[from as usize].out + price.node[to as usize].into - access
    }
}

/// Entering a host, ms: every frame of a request does.
fn enter(host: &Host, shape: Shape) -> f64 {
    f64::from(shape.passes().max(1)) * (host.visit_ms + host.queue_ms)
}

/// The price of one step on a host beside the sessions that it announces, ms per unit of layer weight.
pub(crate) fn step_price_ms(host: &Host) -> f64 {
    Compute::of(host, Shape::ONE_TOKEN, 0).price_ms()
}

/// What a request computes on a host, ms per unit of layer weight; see the module's page on load.
#[derive(Clone, Copy)]
struct Compute {
    decode_ms: f64,
    prefill_ms: f64,
    crowding_ms: f64,
    others_ms: f64,
}

impl Compute {
    /// Beside the announced sessions and `running` more.
    fn of(host: &Host, shape: Shape, running: u32) -> Self {
        let (steps, prompt) = (f64::from(shape.decode_steps()), f64::from(shape.prompt_tokens));
        let there = f64::from(host.active) + f64::from(running);
        let rows_ms = host.decode_ms * there / f64::from(host.batch_knee.max(1));
        Self {
            decode_ms: steps * host.decode_ms,
            prefill_ms: prompt * host.prefill_ms,
            crowding_ms: (steps + f64::from(shape.chunks())) * rows_ms,
            others_ms: steps * rows_ms + prompt * rows_ms.min(host.prefill_ms * there),
        }
    }

    fn own_ms(self) -> f64 {
        self.decode_ms + self.prefill_ms + self.crowding_ms
    }

    fn price_ms(self) -> f64 {
        self.own_ms() + self.others_ms
    }
}

/// Sessions believed on a host over its knee, this one not counted.
pub(crate) fn fullness(snapshot: &Snapshot, request: &Request, host: u32) -> f64 {
    let host = &snapshot.hosts[host as usize];
    let sessions = f64::from(host.active) + f64::from(running_on(request, host.id));
    sessions / f64::from(host.batch_knee.max(1))
}

/// Prices a given pipeline, leg by leg, checking that it may run at all.
///
/// # Errors
/// [`NoRoute::Broken`] names the first layer whose node is unknown, does not hold it, may not serve it, cannot be
/// reached, or lacks KV room for it.
pub fn explain(snapshot: &Snapshot, request: &Request, pipeline: &Pipeline) -> Result<Vec<Leg>, NoRoute> {
    let mut price = Price::default();
    price.refill_few(snapshot, request, pipeline, false)?;
    explain_priced(snapshot, request, &price, pipeline)
}

/// As [`explain`], as if every node had room for everything.
pub(crate) fn explain_roomy(
    snapshot: &Snapshot,
    request: &Request,
    pipeline: &Pipeline,
) -> Result<Vec<Leg>, NoRoute> {
    let mut price = Price::default();
    price.refill_few(snapshot, request, pipeline, true)?;
    explain_priced(snapshot, request, &price, pipeline)
}

/// As [`explain`], summed.
///
/// # Errors
/// As [`explain`].
pub fn price(snapshot: &Snapshot, request: &Request, pipeline: &Pipeline) -> Result<Cost, NoRoute> {
    explain(snapshot, request, pipeline).map(|legs| total(&legs))
}

/// The sum over all legs.
pub fn total(legs: &[Leg]) -> Cost {
    legs.iter().fold(Cost::default(), |mut sum, leg| {
        sum += leg.cost;
        sum
    })
}

/// What the prompt of `shape` takes from its first frame to its last output, ms, by the legs of a request for one token and
/// with all layers in memory: `sum_i (c_i + hop_i) + (chunks - 1) x max_i c_i`, where `c_i` is what a chunk takes on a node or on
/// a line. Stages compute different chunks at the same time, so that the slowest one sets the pace.
pub fn prompt_ms(legs: &[Leg], shape: Shape) -> f64 {
    let chunks = f64::from(shape.chunks().max(1));
    let delay_ms = |cost: &Cost| cost.hop_ms + cost.closing_ms;
    let computed_ms = |cost: &Cost| cost.loaded_ms() - cost.transfer_ms - delay_ms(cost);
    let on = |node: NodeId| {
        let its = legs.iter().filter(|leg| leg.segment.node == node);
        its.map(|leg| computed_ms(&leg.cost)).sum::<f64>()
    };
    let slowest = legs.iter().map(|leg| on(leg.segment.node).max(leg.cost.transfer_ms)).fold(0.0, f64::max);
    let delays: f64 = legs.iter().map(|leg| delay_ms(&leg.cost)).sum();
    let all: f64 = legs.iter().map(|leg| leg.cost.loaded_ms()).sum();
    delays + (all - delays) / chunks + slowest * (chunks - 1.0) / chunks
}

pub(crate) fn explain_priced(
    snapshot: &Snapshot,
    request: &Request,
    price: &Price,
    pipeline: &Pipeline,
) -> Result<Vec<Leg>, NoRoute> {
    let last = pipeline.segments().len() - 1;
    let mut legs = Vec::with_capacity(pipeline.segments().len());
    let mut used: Vec<(u32, u64)> = Vec::new();
    let mut before: Option<u32> = None;
    for (at, segment) in pipeline.segments().iter().enumerate() {
        let broken = NoRoute::Broken { layer: segment.layers.start() };
        let Some(i) = snapshot.index_of(segment.node) else { return Err(broken) };
        if pipeline.num_layers() != snapshot.num_layers() || !may_run(snapshot, price, i, segment.layers) {
            return Err(broken);
        }
        let mut cost = segment_cost(snapshot, request, price, i, segment.layers);
        if let Some(from) = before {
            cost.hop_ms = price.turns * snapshot.link_ms(from, i);
            cost.transfer_ms = if from == i { 0.0 } else { snapshot.transfer(price, from, i) };
        }
        if at == 0 {
            cost.closing_ms += price.entry(snapshot, i);
        }
        if at == last {
            cost.closing_ms += price.exit(snapshot, i);
        }
        let need = price.needs(segment.layers.start(), segment.layers.end());
        match used.iter_mut().find(|entry| entry.0 == i) {
            Some(entry) => entry.1 += need,
            None => used.push((i, need)),
        }
        let fits = used.iter().all(|&(i, bytes)| bytes <= price.room[i as usize]);
        if !fits || !cost.total_ms().is_finite() {
            return Err(broken);
        }
        legs.push(Leg { segment: *segment, cost });
        before = Some(i);
    }
    Ok(legs)
}

fn may_run(snapshot: &Snapshot, price: &Price, i: u32, layers: LayerRange) -> bool {
    let held = snapshot
        .state_at(i, layers.start() as usize)
        .is_some_and(|state| snapshot.run_end[state] >= layers.end());
    let home = price.home == Some(i);
    let ends_at_home =
        home || (layers.start() as usize >= price.head && layers.end() as usize <= price.tail_from);
    held && ends_at_home && price.node[i as usize].enter.is_finite()
}

fn segment_cost(snapshot: &Snapshot, request: &Request, price: &Price, i: u32, layers: LayerRange) -> Cost {
    let host = &snapshot.hosts[i as usize];
    let weight = snapshot.weight_of(layers);
    let compute = Compute::of(host, request.shape, running_on(request, host.id));
    let trust = if price.home == Some(i) { 1.0 } else { host.trust };
    let missing = (layers.start()..layers.end()).filter(|layer| !host.loaded.contains(*layer)).count();
    let frames = f64::from(request.shape.passes().max(1));
    Cost {
        decode_ms: compute.decode_ms * weight,
        prefill_ms: compute.prefill_ms * weight,
        crowding_ms: compute.crowding_ms * weight,
        others_ms: compute.others_ms * weight / trust,
        doubt_ms: compute.own_ms() * weight * (1.0 / trust - 1.0),
        visit_ms: frames * host.visit_ms,
        queue_ms: frames * host.queue_ms,
        load_ms: host.load_ms * missing as f64,
        ..Cost::default()
    }
}

fn running_on(request: &Request, id: NodeId) -> u32 {
    request.in_flight.iter().find(|entry| entry.0 == id).map_or(0, |entry| entry.1)
}
