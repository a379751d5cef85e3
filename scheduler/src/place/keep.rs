//! When advice is worth following, and what to do without moving other nodes.
//!
//! Loading layers costs minutes and takes the node away meanwhile, so a node moves only when the swarm would gain a
//! third ([`MIN_GAIN`]), said so in three states of the view running ([`CONFIRMATIONS`]), the node has not moved for ten minutes
//! ([`MIN_DWELL_MS`]), it is its turn among the would-be movers of its region, and every layer it leaves is still
//! held by another node. Readings that flicker (a transient load, a late announcement) therefore move no node.
//!
//! Two nodes that see each other hold a layer must not both leave it. So leaving has two steps: first the node
//! *withdraws* ([`Advice::Withdraw`]): it goes on serving, but announces only what it will keep. Another node that
//! wants to leave then no longer counts on it. Only after [`SETTLE_MS`], when all nodes have heard that or forgotten
//! what was said before, it looks once more, and moves if others still hold all that it leaves; else it stays and
//! announces so.
//!
//! ```text
//!   A   holds l ──withdraws────────────settles── B still announces l?  no: stays
//!   B   holds l ─────withdraws────────────settles── A still announces l?  no: stays
//! ```
//!
//! With announcements that travel for at most as long as they count this holds whatever is lost on the way, so a swarm
//! whose announcements last longer settles longer ([`Keeper::lasting`]). Both staying is the price; the lottery makes it
//! rare.

use super::{Ground, Placement, anneal, effort, finish};
use crate::rng::mix;
use crate::{LayerRange, LayerSet, Millis, NodeId, Pipeline, layer_cost::LayerCosts};

/// Advised over present goodput; lower and ordinary noise reloads gigabytes.
pub const MIN_GAIN: f64 = 1.33;
/// States of the view in a row that must agree; lower and one stale snapshot is enough.
pub const CONFIRMATIONS: u32 = 3;
/// Time a node keeps what it loaded; lower and loading eats what placement gains.
pub const MIN_DWELL_MS: u64 = 600_000;

/// From withdrawing to leaving, ms, where announcements count for [`EXPIRY_MS`](crate::view::EXPIRY_MS): those heard before
/// have expired by then everywhere, with as much again for those that were late. Shorter and two nodes can leave the same
/// layer. Where they count longer, see [`Keeper::lasting`].
pub const SETTLE_MS: u64 = 2 * crate::view::EXPIRY_MS;

/// What a node knows when it considers moving.
#[derive(Clone, PartialEq, Debug)]
pub struct Move<'a> {
    /// The node itself.
    pub node: NodeId,
    /// What it holds.
    pub held: &'a LayerSet,
    /// What the placement wants it to hold, if anything.
    pub advised: Option<LayerRange>,
    /// Tokens per second as things are.
    pub present_tps: f64,
    /// Tokens per second once all nodes followed the advice.
    pub advised_tps: f64,
    /// Other live holders of each layer, by what they announce now: those who withdrew do not count.
    pub others: &'a [u32],
    /// Nodes of the same region that the advice wants elsewhere, this one included.
    pub movers: &'a [NodeId],
    /// The number of this tick, the same for all nodes (for example minutes of the time of day).
    pub tick: u64,
    /// What of the view the advice rests on: another number as soon as something was heard since. However often one state is
    /// looked at, it agrees once.
    pub state: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Keep what is held, and announce all of it.
    Stay,
    /// Serve as before, but announce only what is both held and within these layers; load what is missing of them if
    /// there is room. Goes on until `Hold` or `Stay`.
    Withdraw(LayerRange),
    /// Load these layers and drop the others.
    Hold(LayerRange),
}

/// A node's memory of past ticks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keeper {
    settle_ms: u64,
    moved: Option<Millis>,
    wanted: Option<LayerRange>,
    agreed: u32,
    /// The state that agreed last.
    state: Option<u64>,
    withdrawn: Option<Millis>,
}

impl Default for Keeper {
    /// Among announcements that count for [`EXPIRY_MS`](crate::view::EXPIRY_MS).
    fn default() -> Self {
        Self { settle_ms: SETTLE_MS, moved: None, wanted: None, agreed: 0, state: None, withdrawn: None }
    }
}

impl Keeper {
    /// Among announcements that count for `lasts_ms`: settling takes twice that, at least [`SETTLE_MS`].
    pub fn lasting(lasts_ms: u64) -> Self {
        Self { settle_ms: lasts_ms.saturating_mul(2).max(SETTLE_MS), ..Self::default() }
    }

    /// One tick. Answering [`Advice::Hold`] counts as having moved.
    pub fn tick(&mut self, now: Millis, choice: &Move<'_>) -> Advice {
        let worth = choice.advised_tps >= MIN_GAIN * choice.present_tps && choice.advised_tps > 0.0;
        let elsewhere = choice.advised.filter(|range| worth && LayerSet::from(*range) != *choice.held);
        if elsewhere.is_none() || self.wanted != elsewhere {
            (self.wanted, self.agreed, self.state, self.withdrawn) = (elsewhere, 0, None, None);
        }
        let Some(target) = elsewhere else { return Advice::Stay };
        if self.state != Some(choice.state) {
            (self.agreed, self.state) = (self.agreed.saturating_add(1), Some(choice.state));
        }
        if bares(choice, target) {
            self.withdrawn = None;
            return Advice::Stay;
        }
        if let Some(since) = self.withdrawn {
            if now.since(since) < self.settle_ms {
                return Advice::Withdraw(target);
            }
            *self = Self { settle_ms: self.settle_ms, moved: Some(now), ..Self::default() };
            return Advice::Hold(target);
        }
        let dwelt = self.moved.is_none_or(|moved| now.since(moved) >= MIN_DWELL_MS);
        if self.agreed < CONFIRMATIONS || !dwelt || !is_turn(choice) {
            return Advice::Stay;
        }
        self.withdrawn = Some(now);
        Advice::Withdraw(target)
    }
}

/// One mover per region and tick: a lottery that every node draws alike.
fn is_turn(choice: &Move<'_>) -> bool {
    let ticket = |node: &NodeId| {
        let words = node.as_bytes().chunks_exact(8);
        let hash = words.fold(mix(choice.tick), |hash, word| {
            mix(hash ^ word.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
        });
        (hash, *node)
    };
    choice.movers.iter().all(|other| ticket(other) >= ticket(&choice.node))
}

/// Whether a layer that is left would have no holder.
fn bares(choice: &Move<'_>, target: LayerRange) -> bool {
    let left = choice.held.ranges().iter().flat_map(|range| range.start()..range.end());
    left.filter(|layer| !target.contains(*layer))
        .any(|layer| choice.others.get(layer as usize).is_none_or(|holders| *holders == 0))
}

/// Keeps the pipelines of `current` that still stand and builds more from the sites that are in none.
///
/// For joins and leaves: survivors of a broken pipeline and idle newcomers are put together, no other node moves.
pub fn restitch(ground: &Ground, current: &[Pipeline]) -> Placement {
    let standing: Vec<&Pipeline> =
        current.iter().filter(|pipeline| ground.pace(pipeline).is_some()).collect();
    let used = |id: NodeId| standing.iter().any(|pipeline| pipeline.visits(id));
    let free: Vec<usize> = (0..ground.sites.len()).filter(|&i| !used(ground.sites[i].id)).collect();
    let occupied: f64 = standing
        .iter()
        .filter_map(|pipeline| ground.pace(pipeline))
        .map(|pace| pace.latency_ms / pace.slowest_ms)
        .sum();
    let rest = Ground {
        num_layers: ground.num_layers,
        concurrency: (ground.concurrency - occupied).max(1.0),
        sites: free.iter().map(|&i| ground.sites[i].clone()).collect(),
        hop_ms: free
            .iter()
            .flat_map(|&i| free.iter().map(move |&j| ground.hop(i as u32, j as u32)))
            .collect(),
    };
    let pool: Vec<u32> = (0..rest.sites.len() as u32).collect();
    let chains = anneal::improve(&rest, anneal::grow_best(&rest, &pool), effort(pool.len()));
    let added = finish(&rest, &chains);
    let mut pipelines: Vec<Pipeline> = standing.into_iter().cloned().collect();
    pipelines.extend(added.pipelines);
    let paces: Vec<_> = pipelines.iter().filter_map(|pipeline| ground.pace(pipeline)).collect();
    Placement { goodput_tps: super::goodput_tps(&paces, ground.concurrency), pipelines, idle: added.idle }
}

/// What a node has room for.
#[derive(Clone, PartialEq, Debug)]
pub struct Room {
    /// So many layers at most.
    pub layers: u32,
    /// Weights of so many bytes at most; counts where `costs` is known.
    pub bytes: u64,
    /// What the layers cost.
    pub costs: Option<LayerCosts>,
}

impl Room {
    /// Room for so many layers, whatever they weigh.
    pub fn of_layers(layers: u32) -> Self {
        Self { layers, bytes: u64::MAX, costs: None }
    }

    /// The most layers from `start` on that fit, below `end` and cut where the model may be cut.
    pub fn longest(&self, start: u32, end: u32) -> Option<LayerRange> {
        let most = LayerRange::new(start, end.min(start.saturating_add(self.layers)))?;
        let Some(costs) = &self.costs else { return Some(most) };
        let ends = (most.start() + 1..=most.end()).rev();
        let mut ranges = ends.filter_map(|end| LayerRange::new(start, end));
        ranges.find(|range| {
            let cut = costs.may_cut(range.start()) && costs.may_cut(range.end());
            cut && costs.weight_bytes(*range) <= self.bytes
        })
    }
}

/// The layers side by side of those `within` that the fewest nodes hold, as many as there is `room` for, the first of several
/// equal ones: what a node should hold that knows who holds what, but not yet how far away they are. Layers are counted by who
/// holds them and measured by their own bytes: where they are light more of them fit. `None` when there is room for no layer.
pub fn scarcest(within: LayerRange, held: &[LayerSet], room: &Room) -> Option<LayerRange> {
    let need = |layer: u32| scarcity(held.iter().filter(|set| set.contains(layer)).count() as u32);
    let mut best: Option<(f64, LayerRange)> = None;
    for start in within.start()..within.end() {
        let Some(window) = room.longest(start, within.end()) else { continue };
        let sum: f64 = (window.start()..window.end()).map(need).sum();
        if best.is_none_or(|(most, _)| sum > most) {
            best = Some((sum, window));
        }
    }
    best.map(|found| found.1)
}

/// How much one more holder helps: a bare layer stops everything, a second holder makes failover possible.
fn scarcity(holders: u32) -> f64 {
    match holders {
        0 => 1e6,
        held => 1.0 / f64::from(held * held),
    }
}
