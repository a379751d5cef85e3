//! The search: cost-to-go over (layer, node), swept backwards once.
//!
//! `to_go[s]` of state s = (node i, layer l) is the least cost of finishing layers l.. when i runs layer l and has
//! already been entered. From the last layer down:
//!
//! ```text
//! to_go(i, l) = layer(i, l) + min( to_go(i, l + 1)                                    stay, if i holds l + 1
//!                                , min over j of hop(i, j) + enter(j) + to_go(j, l + 1) )     switch
//! ```
//!
//! The inner minimum is what costs. With regional links `hop(i, j) = out(i) + base(region, region) + into(j)`, so one
//! minimum per region serves all of its nodes and a layer costs O(hosts + regions^2). Measured pairs break that
//! form; a node that has some looks at each of them, and at the best entry per region *not* among them (three are
//! kept; a full scan when all three are measured). With a matrix a layer is one min-plus product
//! over whole rows, which compilers turn into vector code, and the step is found when the route is read.
//!
//! Staying wins ties, then the lower (region, first layer, id): every node computes the same route from the same snapshot.

use crate::cost::Price;
use crate::snapshot::{Hops, NONE, Snapshot};

/// Best entries kept per region.
const KEPT: usize = 3;

/// Priced snapshot, cost-to-go and best step of every state. Reuse one value: it keeps its memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub price: Price,
    pub to_go: Vec<f64>,
    /// With regional links, the state at the next layer on the best way on.
    steps: Vec<u32>,
    /// The layers searched.
    pub first: usize,
    pub end: usize,
    entered: [Vec<Entered>; 2],
}

/// What entering a node at the layer below costs, by node; stale unless `state` belongs to that layer.
#[derive(Clone, Copy, Debug)]
struct Entered {
    ms: f64,
    state: u32,
}

/// The cheapest entries into one region, ascending.
#[derive(Clone, Copy, Debug)]
struct Best {
    ms: [f64; KEPT],
    state: [u32; KEPT],
}

impl Best {
    const EMPTY: Self = Self { ms: [f64::INFINITY; KEPT], state: [NONE; KEPT] };

    fn add(&mut self, ms: f64, state: u32) {
        if ms < self.ms[KEPT - 1] {
            let mut at = KEPT - 1;
            while at > 0 && ms < self.ms[at - 1] {
                self.ms[at] = self.ms[at - 1];
                self.state[at] = self.state[at - 1];
                at -= 1;
            }
            self.ms[at] = ms;
            self.state[at] = state;
        }
    }
}

impl Table {
    /// Another snapshot may follow.
    pub fn forget(&mut self) {
        self.entered.iter_mut().for_each(Vec::clear);
    }

    /// Fills `to_go` and `step` of layers `[first, end)` under the current prices.
    pub fn sweep(&mut self, snapshot: &Snapshot, first: usize, end: usize) {
        (self.first, self.end) = (first, end);
        let states = snapshot.host_of.len();
        // Only the layers searched are read.
        let searched = snapshot.off[first] as usize..snapshot.off[end] as usize;
        self.to_go.resize(states, f64::INFINITY);
        self.to_go[searched.clone()].fill(f64::INFINITY);
        if matches!(snapshot.hops, Hops::Regions { .. }) {
            self.steps.resize(states, NONE);
            self.steps[searched].fill(NONE);
        }
        self.last_layer(snapshot);
        match snapshot.hops {
            Hops::Matrix { .. } => self.sweep_matrix(snapshot),
            Hops::Regions { .. } => self.sweep_regions(snapshot),
        }
    }

    fn last_layer(&mut self, snapshot: &Snapshot) {
        let layer = self.end - 1;
        for state in snapshot.states(layer) {
            let host = snapshot.host_of[state];
            if !self.price.home_only(layer) || self.price.home == Some(host) {
                self.to_go[state] =
                    self.price.layer(snapshot, state, layer) + self.price.exit(snapshot, host);
            }
        }
    }

    fn sweep_matrix(&mut self, snapshot: &Snapshot) {
        let Hops::Matrix { ms_to } = &snapshot.hops else { return };
        let n = snapshot.hosts.len();
        let turns = self.price.turns;
        let mut switch = vec![f64::INFINITY; n];
        for layer in (self.first..self.end - 1).rev() {
            switch.fill(f64::INFINITY);
            for state in snapshot.states(layer + 1) {
                let host = snapshot.host_of[state] as usize;
                let entry = self.entry(snapshot, state);
                if entry.is_finite() {
                    let column = &ms_to[host * n..(host + 1) * n];
                    for (best, ms) in switch.iter_mut().zip(column) {
                        let sum = entry + turns * ms;
                        *best = if sum < *best { sum } else { *best };
                    }
                }
            }
            let home_only = self.price.home_only(layer);
            for state in snapshot.states(layer) {
                let host = snapshot.host_of[state];
                if home_only && self.price.home != Some(host) {
                    continue;
                }
                let next = snapshot.next[state];
                let stay = if next == NONE { f64::INFINITY } else { self.to_go[next as usize] };
                let leave = switch[host as usize] + self.price.node[host as usize].out;
                self.to_go[state] =
                    (if leave < stay { leave } else { stay }) + self.price.layer(snapshot, state, layer);
            }
        }
    }

    /// What entering a state from any other node costs, up to the end of the route.
    fn entry(&self, snapshot: &Snapshot, state: usize) -> f64 {
        let node = &self.price.node[snapshot.host_of[state] as usize];
        self.to_go[state] + node.enter + node.into
    }

    /// The state at the next layer on the best way on from `state`, [`NONE`] at the last layer. With a matrix it is
    /// found here, for the few states a route visits, rather than stored for all.
    pub fn step(&self, snapshot: &Snapshot, state: usize, layer: usize) -> u32 {
        let Hops::Matrix { ms_to, .. } = &snapshot.hops else { return self.steps[state] };
        if layer + 1 >= self.end {
            return NONE;
        }
        let n = snapshot.hosts.len();
        let host = snapshot.host_of[state] as usize;
        let mut step = snapshot.next[state];
        let mut best = if step == NONE { f64::INFINITY } else { self.to_go[step as usize] };
        let out = self.price.node[host].out;
        for other in snapshot.states(layer + 1) {
            let ms = self.price.turns * ms_to[snapshot.host_of[other] as usize * n + host];
            let leave = self.entry(snapshot, other) + ms + out;
            if leave < best {
                (best, step) = (leave, other as u32);
            }
        }
        step
    }

    fn sweep_regions(&mut self, snapshot: &Snapshot) {
        let Hops::Regions { base, regions, pair_off, least_net, .. } = &snapshot.hops else { return };
        let regions = *regions;
        let turns = self.price.turns;
        let base: Vec<f64> = base.iter().map(|ms| ms * turns).collect();
        let n = snapshot.hosts.len();
        // Entries of a sweep before are not of a layer that is looked at.
        for side in &mut self.entered {
            side.resize(n, Entered { ms: f64::INFINITY, state: NONE });
        }
        let mut bests = vec![Best::EMPTY; regions];
        let mut least = self.collect_entries(snapshot, self.end - 1, &mut bests);
        let mut switch = vec![(f64::INFINITY, NONE); regions];
        for layer in (self.first..self.end - 1).rev() {
            for (r, slot) in switch.iter_mut().enumerate() {
                *slot = (f64::INFINITY, NONE);
                for (to, best) in bests.iter().enumerate() {
                    let ms = base[r * regions + to] + best.ms[0];
                    if ms < slot.0 {
                        *slot = (ms, best.state[0]);
                    }
                }
            }
            let home_only = self.price.home_only(layer);
            for r in 0..regions {
                let run = snapshot.region_off[layer * regions + r] as usize
                    ..snapshot.region_off[layer * regions + r + 1] as usize;
                for state in run {
                    let host = snapshot.host_of[state];
                    let i = host as usize;
                    if home_only && self.price.home != Some(host) {
                        continue;
                    }
                    let next = snapshot.next[state];
                    let stay = if next == NONE { f64::INFINITY } else { self.to_go[next as usize] };
                    let out = self.price.node[i].out;
                    let paired = pair_off[i] != pair_off[i + 1];
                    let (mut best, mut step) = (stay, next);
                    if !paired {
                        if switch[r].0 + out < best {
                            (best, step) = (switch[r].0 + out, switch[r].1);
                        }
                    } else if switch[r].0.min(least + turns * least_net[i]) + out < stay {
                        let found =
                            self.measured_switch(snapshot, layer, i, &base[r * regions..], &bests, switch[r]);
                        if found.0 < best {
                            (best, step) = found;
                        }
                    }
                    self.to_go[state] = best + self.price.layer(snapshot, state, layer);
                    self.steps[state] = step;
                }
            }
            least = self.collect_entries(snapshot, layer, &mut bests);
        }
    }

    /// What entering each node at `layer` costs: the best per region, all by node, and the least of all.
    fn collect_entries(&mut self, snapshot: &Snapshot, layer: usize, bests: &mut [Best]) -> f64 {
        let regions = bests.len();
        let mut least = f64::INFINITY;
        for (r, best) in bests.iter_mut().enumerate() {
            *best = Best::EMPTY;
            let run = snapshot.region_off[layer * regions + r] as usize
                ..snapshot.region_off[layer * regions + r + 1] as usize;
            for state in run {
                let host = snapshot.host_of[state] as usize;
                let node = &self.price.node[host];
                let ms = self.to_go[state] + node.enter + node.into;
                least = if ms < least { ms } else { least };
                self.entered[layer & 1][host] = Entered { ms, state: state as u32 };
                best.add(ms, state as u32);
            }
        }
        least
    }

    /// The best switch of node `i` after `layer` when some of its links are measured. `unmeasured` is the best one by
    /// region, which stands unless it happens to be a measured pair.
    fn measured_switch(
        &self,
        snapshot: &Snapshot,
        layer: usize,
        i: usize,
        base: &[f64],
        bests: &[Best],
        unmeasured: (f64, u32),
    ) -> (f64, u32) {
        let Hops::Regions { pair_off, pair_to, pair_net, .. } = &snapshot.hops else {
            return (f64::INFINITY, NONE);
        };
        let span = pair_off[i] as usize..pair_off[i + 1] as usize;
        let pairs = &pair_to[span.clone()];
        let measured = |state: u32| pairs.contains(&snapshot.host_of[state as usize]);
        let (out, turns) = (self.price.node[i].out, self.price.turns);
        let mut found = (f64::INFINITY, NONE);
        let mut offer = |ms: f64, state: u32| {
            if ms < found.0 {
                found = (ms, state);
            }
        };
        let usual = unmeasured.1 != NONE && !measured(unmeasured.1);
        if usual {
            offer(out + unmeasured.0, unmeasured.1);
        }
        for (to, best) in bests.iter().enumerate().filter(|_| !usual) {
            match (0..KEPT).find(|&k| best.state[k] == NONE || !measured(best.state[k])) {
                Some(k) => offer(out + base[to] + best.ms[k], best.state[k]),
                None => {
                    let regions = bests.len();
                    let from = snapshot.region_off[(layer + 1) * regions + to];
                    let until = snapshot.region_off[(layer + 1) * regions + to + 1];
                    for state in (from..until).filter(|&state| !measured(state)) {
                        let node = &self.price.node[snapshot.host_of[state as usize] as usize];
                        offer(out + base[to] + self.to_go[state as usize] + node.enter + node.into, state);
                    }
                }
            }
        }
        let below = snapshot.states(layer + 1);
        for (&j, &ms) in pairs.iter().zip(&pair_net[span]) {
            let entered = self.entered[(layer + 1) & 1][j as usize];
            if below.contains(&(entered.state as usize)) {
                offer(entered.ms + turns * ms + out, entered.state);
            }
        }
        found
    }

    /// Cost of entering `state` of the first layer and finishing from there.
    pub fn whole_from(&self, snapshot: &Snapshot, state: usize) -> f64 {
        let host = snapshot.host_of[state];
        self.to_go[state] + self.price.node[host as usize].enter + self.price.entry(snapshot, host)
    }

    /// The best first state and the cost of the whole route, if there is one.
    pub fn best_start(&self, snapshot: &Snapshot) -> Option<(usize, f64)> {
        let mut best: Option<(usize, f64)> = None;
        for state in snapshot.states(self.first) {
            // The entry hop is looked up only where it could matter.
            if !self.to_go[state].is_finite() || best.is_some_and(|(_, ms)| ms <= self.to_go[state]) {
                continue;
            }
            let ms = self.whole_from(snapshot, state);
            if ms.is_finite() && best.is_none_or(|(_, least)| ms < least) {
                best = Some((state, ms));
            }
        }
        best
    }
}
