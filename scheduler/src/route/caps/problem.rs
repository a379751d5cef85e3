//! The nodes that a route within KV room may use, and all of their prices, laid out densely.

use super::MAX_HOSTS;
use super::flow::{Flow, Net};
use crate::route::table::Table;
use crate::snapshot::Snapshot;

/// Of each layer so many of the best holders are looked at before [`MAX_HOSTS`] are chosen.
const BEST: usize = 16;

/// A small routing problem over layers `0..layers`; hosts have numbers of their own, from 0.
pub(super) struct Problem {
    /// Whether every node is in it that may serve.
    pub whole: bool,
    pub layers: usize,
    /// The snapshot's hosts.
    pub host: Vec<u32>,
    pub net: Net,
    /// Whether the host's layers take more than its room, all together.
    pub bound: Vec<bool>,
    /// Getting to the host from the requester and entering it.
    pub entry: Vec<f64>,
    /// Getting from it to the requester.
    pub exit: Vec<f64>,
    /// Leaving a host for another and entering that: `hop[from * hosts + to]`.
    hop: Vec<f64>,
    /// Compute of the layers before each one: `ms[host * (layers + 1) + layer]`.
    ms: Vec<f64>,
    /// One past the last layer that the host runs on from each one, 0 where it cannot run that.
    run_end: Vec<u32>,
    /// Units that the layers take which the host holds from each one on: `held[host * (layers + 1) + layer]`.
    held: Vec<u64>,
}

impl Problem {
    /// Chooses hosts of `snapshot`, those of `flow` among them, and prices them as `table` does.
    pub fn new(snapshot: &Snapshot, table: &Table, all: &Net, flow: &Flow) -> Self {
        let (host, whole) = choose(snapshot, table, all, flow);
        let price = &table.price;
        let (n, layers) = (host.len(), all.at.len());
        let enter = |to: u32| price.node[to as usize].enter;
        let mut number = vec![u32::MAX; snapshot.hosts.len()];
        host.iter().zip(0..).for_each(|(&host, i)| number[host as usize] = i);
        let chosen = |hosts: &Vec<u32>| -> Vec<u32> {
            hosts.iter().map(|&host| number[host as usize]).filter(|&i| i != u32::MAX).collect()
        };
        let net = Net {
            at: all.at.iter().map(chosen).collect(),
            need: all.need.clone(),
            room: host.iter().map(|&host| all.room[host as usize]).collect(),
        };
        let mut problem = Self {
            whole,
            layers,
            bound: vec![false; n],
            entry: host.iter().map(|&host| price.entry(snapshot, host) + enter(host)).collect(),
            exit: host.iter().map(|&host| price.exit(snapshot, host)).collect(),
            hop: Vec::with_capacity(n * n),
            ms: vec![0.0; n * (layers + 1)],
            run_end: vec![0; n * layers],
            held: vec![0; n * (layers + 1)],
            net,
            host,
        };
        for &from in &problem.host {
            let to = problem.host.iter();
            problem.hop.extend(to.map(|&to| price.hop(snapshot, from, to) + enter(to)));
        }
        for layer in (0..layers).rev() {
            let row = |i: usize| i * (layers + 1) + layer;
            (0..n).for_each(|i| problem.held[row(i)] = problem.held[row(i) + 1]);
            for &i in &problem.net.at[layer] {
                let i = i as usize;
                let after = if layer + 1 < layers { problem.run_end[i * layers + layer + 1] } else { 0 };
                problem.run_end[i * layers + layer] = after.max(layer as u32 + 1);
                let units = problem.needs(layer as u32, layer as u32 + 1);
                problem.held[row(i)] = problem.held[row(i)].saturating_add(units);
                let state = snapshot.state_at(problem.host[i], table.first + layer);
                let ms = state.map_or(0.0, |state| price.layer(snapshot, state, table.first + layer));
                problem.ms[i * (layers + 1) + layer + 1] = ms;
            }
        }
        for i in 0..n {
            problem.bound[i] = problem.held(i as u32, 0) > problem.net.room[i];
            let row = &mut problem.ms[i * (layers + 1)..(i + 1) * (layers + 1)];
            (0..layers).for_each(|layer| row[layer + 1] += row[layer]);
        }
        problem
    }

    pub fn hosts(&self) -> usize {
        self.host.len()
    }

    pub fn hop(&self, from: u32, to: u32) -> f64 {
        self.hop[from as usize * self.hosts() + to as usize]
    }

    /// Compute of the layers from `start` up to `end`.
    pub fn run(&self, host: u32, start: u32, end: u32) -> f64 {
        let row = host as usize * (self.layers + 1);
        self.ms[row + end as usize] - self.ms[row + start as usize]
    }

    pub fn run_end(&self, host: u32, layer: u32) -> u32 {
        self.run_end[host as usize * self.layers + layer as usize]
    }

    /// Units that the layers take which the host holds from `layer` on.
    pub fn held(&self, host: u32, layer: u32) -> u64 {
        self.held[host as usize * (self.layers + 1) + layer as usize]
    }

    pub fn needs(&self, start: u32, end: u32) -> u64 {
        self.net.needs(start, end)
    }

    /// What a sweep over segments looks at.
    pub fn pairs(&self) -> usize {
        let at = &self.net.at;
        let hops: usize = at.windows(2).map(|two| two[0].len() * two[1].len()).sum();
        let runs: usize = (0..self.layers as u32)
            .map(|layer| {
                let ends = at[layer as usize].iter().map(|&host| self.run_end(host, layer) - layer);
                ends.sum::<u32>() as usize
            })
            .sum();
        hops + runs
    }
}

/// The hosts to look at, and whether they are all that may serve.
fn choose(snapshot: &Snapshot, table: &Table, all: &Net, flow: &Flow) -> (Vec<u32>, bool) {
    let mut within = vec![false; snapshot.hosts.len()];
    all.at.iter().flatten().for_each(|&host| within[host as usize] = true);
    let able: Vec<u32> = (0..snapshot.hosts.len() as u32).filter(|&host| within[host as usize]).collect();
    if able.len() <= MAX_HOSTS {
        return (able, true);
    }
    within.fill(false);
    let mut chosen = Vec::with_capacity(MAX_HOSTS);
    let mut take = |host: u32, most: usize| {
        if !within[host as usize] && chosen.len() < most {
            within[host as usize] = true;
            chosen.push(host);
        }
    };
    // Those of the flow first: with them the layers can be shared out.
    flow.hosts().chain(table.price.home).for_each(|host| take(host, usize::MAX));
    let price = &table.price;
    let mut entry = vec![f64::INFINITY; snapshot.hosts.len()];
    for &host in &able {
        entry[host as usize] = price.entry(snapshot, host) + price.node[host as usize].enter;
    }
    // Then by what a route that began there would take, and among those that have room for all that they would run.
    let mut ranks: Vec<[Vec<(f64, u32)>; 2]> = Vec::with_capacity(all.at.len());
    for (hosts, layer) in all.at.iter().zip(table.first..) {
        let mut best: Vec<(f64, u32, bool)> = Vec::with_capacity(hosts.len());
        for &host in hosts {
            if let Some(state) = snapshot.state_at(host, layer) {
                let end = snapshot.run_end[state].min(table.end as u32);
                let roomy = price.needs(layer as u32, end) <= price.room[host as usize];
                best.push((table.to_go[state] + entry[host as usize], host, roomy));
            }
        }
        let rank = |roomy: bool| {
            let able = best.iter().filter(|state| state.0.is_finite() && (state.2 || !roomy));
            let mut states: Vec<(f64, u32)> = able.map(|state| (state.0, state.1)).collect();
            let order = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            if states.len() > BEST {
                states.select_nth_unstable_by(BEST, order);
                states.truncate(BEST);
            }
            states.sort_unstable_by(order);
            states
        };
        ranks.push([rank(false), rank(true)]);
    }
    for nth in 0..BEST {
        for ways in &ranks {
            ways.iter().filter_map(|way| way.get(nth)).for_each(|state| take(state.1, MAX_HOSTS));
        }
    }
    chosen.sort_unstable();
    (chosen, false)
}
