//! The policies compared: who holds what, and which pipeline a request takes.
//!
//! All but ours are our own code after published descriptions, priced with the announced figures and true
//! distances, so they are not handicapped by worse information:
//!
//! * *parallax*: fixed pipelines by its dynamic program (`parallax.rs`) where that ends in reasonable time, else grown in
//!   list order until the layers are covered; split in proportion to speed (water-filling by compute); requests go
//!   round robin over the pipelines whose nodes are all believed alive.
//! * *petals*: every node takes the window of layers with the least summed speed, in order of arrival; requests take
//!   the shortest path in which a node, once entered, runs to the end of its range; load is ignored.
//! * *random*: the holdings of petals, a random holder wherever a range ends.
//! * *nearest*: the holdings of petals, the nearest holder wherever a range ends.
//! * *least loaded*: the same with the holder that has the fewest sessions at that moment for what it serves side by side.
//! * *local*: everything at the requester, if it can.

mod parallax;

use std::collections::BTreeMap;

use scheduler::place::{Ground, Room, Site, place, restitch, widen};
use scheduler::rng::Rng;
use scheduler::{LayerRange, NodeId, Pipeline, Segment};

use crate::scenario::Scenario;
use crate::world::{VISIT_MS, World, id};

/// Which rules a run follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// This workspace's scheduler.
    Ours,
    /// Greedy fixed pipelines, round robin.
    Parallax,
    /// Max-min windows, shortest path without load.
    Petals,
    /// Max-min windows, random holders.
    Random,
    /// Max-min windows, the nearest holder.
    Nearest,
    /// Max-min windows, the holder with the fewest sessions.
    LeastLoaded,
    /// No other node.
    Local,
    /// Our placement and an exact route over the true state of every machine at that very moment: what no router can do,
    /// for comparison.
    Clairvoyant,
}

/// All, in the order of the report.
pub const ALL: [Policy; 8] = [
    Policy::Ours,
    Policy::Parallax,
    Policy::Petals,
    Policy::Random,
    Policy::Nearest,
    Policy::LeastLoaded,
    Policy::Local,
    Policy::Clairvoyant,
];

impl Policy {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Parallax => "parallax",
            Self::Petals => "petals",
            Self::Random => "random",
            Self::Nearest => "nearest",
            Self::LeastLoaded => "least_loaded",
            Self::Local => "local",
            Self::Clairvoyant => "clairvoyant",
        }
    }

    /// Whether the scheduler's router chooses, so that its rules can be asked for.
    pub fn routes_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Clairvoyant)
    }
}

/// Above this many nodes ours places by windows too: a full placement of ten thousand is planned per region in
/// practice, and the quadratic table of hops does not fit.
pub const PLACE_UP_TO: usize = 1_024;

/// Gives every machine its layers; pipelines that are fixed from then on are returned.
pub fn hold(policy: Policy, scenario: &Scenario, world: &mut World) -> Vec<Pipeline> {
    let present: Vec<usize> = (0..world.nodes).filter(|&i| world.machines[i].up).collect();
    match policy {
        Policy::Ours | Policy::Clairvoyant if world.nodes <= PLACE_UP_TO => {
            place_ours(scenario, world, &present)
        }
        Policy::Parallax => match parallax::chains(world, &present) {
            Some(chains) => chains.into_iter().filter_map(|chain| assign(world, chain)).collect(),
            None => chains_in_order(world, &present),
        },
        Policy::Local => Vec::new(),
        _ => {
            place_windows(world);
            Vec::new()
        }
    }
}

/// Requests to be served at once, on average, in a crowd if there is one.
pub fn concurrency(scenario: &Scenario) -> f64 {
    let mean_layer = (scenario.hardware.layer_ms.0 * scenario.hardware.layer_ms.1).sqrt();
    let service = mean_layer * f64::from(scenario.layers) * f64::from(scenario.demand.tokens.1) / 1000.0;
    (scenario.demand.rate * scenario.demand.flash.map_or(1.0, |flash| flash.2) * service).max(2.0)
}

/// The machines of `present` as sites, at their true speed.
pub fn ground(scenario: &Scenario, world: &World, present: &[usize]) -> Option<Ground> {
    let sites = present.iter().map(|&i| {
        let machine = &world.machines[i];
        Site::new(id(i), machine.layer_ms, &Room::of_layers(machine.room), scenario.layers)
    });
    let pairs = present.iter().flat_map(|&i| present.iter().map(move |&j| (i, j)));
    let hops: Vec<f64> = pairs.map(|(i, j)| world.expected_ms(i, j)).collect();
    Ground::new(scenario.layers, concurrency(scenario), sites.collect(), &hops).ok()
}

fn place_ours(scenario: &Scenario, world: &mut World, present: &[usize]) -> Vec<Pipeline> {
    let Some(ground) = ground(scenario, world, present) else { return Vec::new() };
    let mut placement = place(&ground);
    // What is left over makes further pipelines while it can: each is the best of those who are still free, so that
    // every region gets some, and one that breaks has another beside it.
    loop {
        let more = restitch(&ground, &placement.pipelines);
        if more.pipelines.len() == placement.pipelines.len() {
            break;
        }
        placement = more;
    }
    let segments: Vec<Segment> = placement.pipelines.iter().flat_map(Pipeline::segments).copied().collect();
    for Segment { node, layers } in widen(&ground, &segments) {
        world.machines[crate::world::index(node)].held = vec![layers];
    }
    // The idle ones hold the barest windows: they are the standbys.
    place_windows(world);
    placement.pipelines
}

/// Every machine that holds nothing takes the window with the least summed speed.
pub fn place_windows(world: &mut World) {
    let n = world.layers as usize;
    let mut speed = vec![0.0; n];
    for machine in &world.machines[..world.nodes] {
        for range in &machine.held {
            (range.start()..range.end()).for_each(|l| speed[l as usize] += 1.0 / machine.layer_ms);
        }
    }
    for machine in world.machines[..world.nodes].iter_mut().filter(|m| m.up && m.held.is_empty()) {
        let len = (machine.room as usize).min(n);
        let sorted = |start: usize| {
            let mut window = speed[start..start + len].to_vec();
            window.sort_by(f64::total_cmp);
            window
        };
        let start = (0..=n - len).min_by(|&a, &b| {
            let (a, b) = (sorted(a), sorted(b));
            a.iter()
                .zip(&b)
                .map(|(a, b)| a.total_cmp(b))
                .find(|o| o.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let Some(range) = start.and_then(|start| LayerRange::new(start as u32, (start + len) as u32)) else {
            continue;
        };
        (range.start()..range.end()).for_each(|l| speed[l as usize] += 1.0 / machine.layer_ms);
        machine.held = vec![range];
    }
}

/// Pipelines grown from `present` in that order, each as soon as its layers are covered.
pub fn chains_in_order(world: &mut World, present: &[usize]) -> Vec<Pipeline> {
    let mut pipelines = Vec::new();
    let mut chain: Vec<usize> = Vec::new();
    for &i in present.iter().filter(|&&i| world.machines[i].room > 0).collect::<Vec<_>>() {
        chain.push(i);
        if chain.iter().map(|&i| world.machines[i].room).sum::<u32>() >= world.layers {
            pipelines.extend(assign(world, std::mem::take(&mut chain)));
        }
    }
    pipelines
}

/// Gives a chain its layers: the widest machine first, as its allocator orders the stages, in proportion to speed.
fn assign(world: &mut World, mut chain: Vec<usize>) -> Option<Pipeline> {
    chain.sort_by_key(|&i| std::cmp::Reverse(world.machines[i].room));
    let speed: f64 = chain.iter().map(|&i| 1.0 / world.machines[i].layer_ms).sum();
    let mut len: Vec<u32> = chain
        .iter()
        .map(|&i| {
            let share = f64::from(world.layers) / (world.machines[i].layer_ms * speed);
            (share as u32).clamp(1, world.machines[i].room)
        })
        .collect();
    let order = |len: &[u32], more: bool| {
        (0..chain.len())
            .filter(|&k| if more { len[k] < world.machines[chain[k]].room } else { len[k] > 1 })
            .min_by(|&a, &b| {
                let stage = |k: usize| f64::from(len[k]) * world.machines[chain[k]].layer_ms;
                if more { stage(a).total_cmp(&stage(b)) } else { stage(b).total_cmp(&stage(a)) }
            })
    };
    while len.iter().sum::<u32>() != world.layers {
        let more = len.iter().sum::<u32>() < world.layers;
        let k = order(&len, more)?;
        len[k] = if more { len[k] + 1 } else { len[k] - 1 };
    }
    let mut at = 0;
    let mut segments = Vec::new();
    for (&i, len) in chain.iter().zip(&len) {
        let layers = LayerRange::new(at, at + len)?;
        world.machines[i].held = vec![layers];
        segments.push(Segment { node: id(i), layers });
        at += len;
    }
    Pipeline::new(segments, world.layers).ok()
}

/// What the routers that ignore load know: who is believed up, and what each announced.
pub struct Believed<'a> {
    /// The world, for distances and holdings.
    pub world: &'a World,
    /// Who is believed up.
    pub up: &'a [bool],
}

/// Round robin over the fixed pipelines believed whole.
pub fn round_robin(pipelines: &[Pipeline], believed: &Believed<'_>, cursor: &mut usize) -> Option<Pipeline> {
    for _ in 0..pipelines.len() {
        *cursor = (*cursor + 1) % pipelines.len();
        let whole = |segment: &Segment| believed.up[crate::world::index(segment.node)];
        if pipelines[*cursor].segments().iter().all(whole) {
            return Some(pipelines[*cursor].clone());
        }
    }
    None
}

/// Shortest path in which a node runs to the end of its range; load ignored.
pub fn petals(believed: &Believed<'_>, requester: usize, deny: &[NodeId]) -> Option<Pipeline> {
    let Believed { world, up } = *believed;
    let n = world.layers;
    let mut hosts: BTreeMap<u32, Vec<(usize, u32)>> = BTreeMap::new();
    for i in (0..world.nodes).filter(|&i| up[i] && !deny.contains(&id(i))) {
        for range in &world.machines[i].held {
            for layer in range.start()..range.end() {
                hosts.entry(layer).or_default().push((i, range.end()));
            }
        }
    }
    // best[l]: per host of layer l, cost of finishing from there and the next host.
    let mut best: BTreeMap<u32, Vec<(usize, u32, f64, usize)>> = BTreeMap::new();
    let mut ends: Vec<u32> = hosts.values().flatten().map(|host| host.1).filter(|end| *end < n).collect();
    ends.push(0);
    ends.sort_unstable();
    ends.dedup();
    for &layer in ends.iter().rev() {
        let mut row = Vec::new();
        for &(i, end) in hosts.get(&layer)? {
            let machine = &world.machines[i];
            let run = VISIT_MS + machine.layer_ms * machine.claimed * machine.slow * f64::from(end - layer);
            let (rest, next) = if end == n {
                (world.hop_ms(i, requester), usize::MAX)
            } else {
                let onward = best.get(&end)?.iter().map(|b| (world.hop_ms(i, b.0) + b.2, b.0));
                onward.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, usize::MAX))
            };
            row.push((i, end, run + rest, next));
        }
        best.insert(layer, row);
    }
    let first = best.get(&0)?.iter().min_by(|a, b| {
        (world.hop_ms(requester, a.0) + a.2).total_cmp(&(world.hop_ms(requester, b.0) + b.2))
    })?;
    let mut segments = Vec::new();
    let (mut layer, mut at) = (0, *first);
    loop {
        segments.push(Segment { node: id(at.0), layers: LayerRange::new(layer, at.1)? });
        if at.1 == n {
            return Pipeline::new(segments, n).ok();
        }
        layer = at.1;
        at = *best.get(&layer)?.iter().find(|b| b.0 == at.3)?;
    }
}

/// A random holder at the start and wherever a range ends.
pub fn random(believed: &Believed<'_>, deny: &[NodeId], chance: &mut Rng) -> Option<Pipeline> {
    step_by_step(believed, deny, |holders, _| holders.get(chance.below(holders.len())).copied())
}

/// The nearest holder to the requester, and to the one before wherever a range ends.
pub fn nearest(believed: &Believed<'_>, requester: usize, deny: &[NodeId]) -> Option<Pipeline> {
    step_by_step(believed, deny, |holders, before| {
        let ms = |holder: &(usize, u32)| believed.world.hop_ms(before.unwrap_or(requester), holder.0);
        holders.iter().copied().min_by(|a, b| ms(a).total_cmp(&ms(b)))
    })
}

/// The holder with the fewest sessions, for what it serves side by side.
pub fn least_loaded(believed: &Believed<'_>, deny: &[NodeId]) -> Option<Pipeline> {
    step_by_step(believed, deny, |holders, _| {
        let load = |holder: &(usize, u32)| {
            let machine = &believed.world.machines[holder.0];
            f64::from(machine.work.sessions) / f64::from(machine.knee().max(1))
        };
        holders.iter().copied().min_by(|a, b| load(a).total_cmp(&load(b)))
    })
}

/// A pipeline of holders, each chosen where the range of the one before ends, and run to the end of its own.
fn step_by_step(
    believed: &Believed<'_>,
    deny: &[NodeId],
    mut choose: impl FnMut(&[(usize, u32)], Option<usize>) -> Option<(usize, u32)>,
) -> Option<Pipeline> {
    let Believed { world, up } = *believed;
    let mut segments: Vec<Segment> = Vec::new();
    let mut layer = 0;
    while layer < world.layers {
        let holders: Vec<(usize, u32)> = (0..world.nodes)
            .filter(|&i| up[i] && !deny.contains(&id(i)))
            .flat_map(|i| world.machines[i].held.iter().map(move |range| (i, *range)))
            .filter(|(_, range)| range.contains(layer))
            .map(|(i, range)| (i, range.end()))
            .collect();
        let before = segments.last().map(|segment| crate::world::index(segment.node));
        let (i, end) = choose(&holders, before)?;
        segments.push(Segment { node: id(i), layers: LayerRange::new(layer, end)? });
        layer = end;
    }
    Pipeline::new(segments, world.layers).ok()
}
