//! The search when KV room binds: the layers a node runs are bounded over *all* of its segments together.
//!
//! First a second backward sweep, over whole segments: `start_ms[s]` is the least cost of finishing from state s when
//! its node has just been entered, no segment longer than its node's room, no node entered twice in a row. It never
//! exceeds the true cost (it forgets earlier visits), so a best-first search guided by it meets the optimum first:
//!
//! * a label is "about to run node i from layer l, having taken so many bytes on these capped nodes";
//! * a label popped later at the same state is dropped when an earlier one cost no more and used no more of anything;
//! * successors are all segment ends and all next nodes whose estimate beats the best complete route.
//!
//! [`MAX_LABELS`] bounds it. Beyond, and for snapshots whose layers have too many host pairs for the second sweep
//! ([`MAX_PAIRS`]), the answer is found by lowering the room of the nodes that were overrun, or leaving them out,
//! until the route fits: valid, but not proven best.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::table::Table;
use super::{Visit, fits, follow};
use crate::snapshot::{NONE, Snapshot};

/// Labels expanded before giving up on a proof.
const MAX_LABELS: usize = 20_000;
/// Host pairs over adjacent layers that the segment sweep may look at (some 10 ns each).
const MAX_PAIRS: usize = 8_000_000;
/// Rounds of leaving nodes out before giving up on a route.
const MAX_ROUNDS: usize = 64;

/// A route that keeps every bound.
pub(super) struct Found {
    pub visits: Vec<Visit>,
    pub ms: f64,
    pub exact: bool,
}

/// The best route within KV room, given the table of the unbounded problem and its optimum.
pub(super) fn search(snapshot: &Snapshot, table: &Table, free_ms: f64) -> Option<Found> {
    let pairs: usize =
        (table.first + 1..table.end).map(|l| snapshot.states(l - 1).len() * snapshot.states(l).len()).sum();
    if pairs > MAX_PAIRS {
        return leave_out(snapshot, table);
    }
    let mut rooms = table.price.room.clone();
    let bounds = Bounds::sweep(snapshot, table, &rooms);
    match best_first(snapshot, table, &bounds, free_ms) {
        Outcome::Found(found) => Some(found),
        Outcome::None => None,
        Outcome::OutOfBudget(best) => {
            let dive = lower_rooms(snapshot, table, &mut rooms);
            [best, dive].into_iter().flatten().min_by(|a, b| a.ms.total_cmp(&b.ms))
        }
    }
}

/// Cost-to-go over whole segments.
struct Bounds {
    /// Entered at this state, nothing run yet.
    start_ms: Vec<f64>,
    /// One past the last layer of the best segment from here.
    end: Vec<u32>,
    /// This state's layer was the last of its segment.
    leave_ms: Vec<f64>,
    /// The state entered after that.
    leave_to: Vec<u32>,
}

impl Bounds {
    fn sweep(snapshot: &Snapshot, table: &Table, rooms: &[u64]) -> Self {
        let n = snapshot.host_of.len();
        let mut bounds = Self {
            start_ms: vec![f64::INFINITY; n],
            end: vec![0; n],
            leave_ms: vec![f64::INFINITY; n],
            leave_to: vec![NONE; n],
        };
        let price = &table.price;
        for layer in (table.first..table.end).rev() {
            for state in snapshot.states(layer) {
                let host = snapshot.host_of[state];
                if price.home_only(layer) && price.home != Some(host) {
                    continue;
                }
                bounds.leave(snapshot, table, layer, state);
                let held = (snapshot.run_end[state] as usize).min(table.end) - layer;
                let room = rooms[host as usize];
                let (mut at, mut ms) = (state, 0.0);
                for end in layer + 1..=layer + held {
                    if price.needs(layer as u32, end as u32) > room {
                        break;
                    }
                    ms += price.layer(snapshot, at, end - 1);
                    let whole = ms + bounds.leave_ms[at];
                    if whole < bounds.start_ms[state] {
                        bounds.start_ms[state] = whole;
                        bounds.end[state] = end as u32;
                    }
                    at = snapshot.next[at] as usize;
                }
            }
        }
        bounds
    }

    fn leave(&mut self, snapshot: &Snapshot, table: &Table, layer: usize, state: usize) {
        let host = snapshot.host_of[state];
        if layer + 1 == table.end {
            self.leave_ms[state] = table.price.exit(snapshot, host);
            return;
        }
        for next in snapshot.states(layer + 1) {
            let to = snapshot.host_of[next];
            let inside = self.start_ms[next] + table.price.node[to as usize].enter;
            if to != host && inside < self.leave_ms[state] {
                let ms = inside + table.price.hop(snapshot, host, to);
                if ms < self.leave_ms[state] {
                    self.leave_ms[state] = ms;
                    self.leave_to[state] = next as u32;
                }
            }
        }
    }

    fn best_start(&self, snapshot: &Snapshot, table: &Table) -> Option<(usize, f64)> {
        let price = &table.price;
        let from = |state: usize| {
            let host = snapshot.host_of[state];
            price.entry(snapshot, host) + price.node[host as usize].enter + self.start_ms[state]
        };
        let best = snapshot.states(table.first).map(|s| (s, from(s))).min_by(|a, b| a.1.total_cmp(&b.1));
        best.filter(|found| found.1.is_finite())
    }

    fn follow(&self, snapshot: &Snapshot, first: u32, start: usize) -> Vec<Visit> {
        let mut visits = Vec::new();
        let (mut state, mut layer) = (start, first);
        loop {
            let end = self.end[state];
            visits.push((snapshot.host_of[state], layer, end));
            let Some(last) = snapshot.state_at(snapshot.host_of[state], end as usize - 1) else {
                return visits;
            };
            if self.leave_to[last] == NONE {
                return visits;
            }
            (state, layer) = (self.leave_to[last] as usize, end);
        }
    }
}

enum Outcome {
    Found(Found),
    None,
    OutOfBudget(Option<Found>),
}

/// About to run `state`, or done when it is [`NONE`].
struct Label {
    state: u32,
    layer: u32,
    parent: u32,
    spent: f64,
    /// Bytes of state taken so far on capped nodes, by node; labels that differ only in where they go next share it.
    used: Rc<[(u32, u64)]>,
}

#[derive(PartialEq)]
struct Queued {
    estimate: f64,
    label: u32,
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        other.estimate.total_cmp(&self.estimate).then(other.label.cmp(&self.label))
    }
}

struct Search<'a> {
    snapshot: &'a Snapshot,
    table: &'a Table,
    bounds: &'a Bounds,
    labels: Vec<Label>,
    queue: BinaryHeap<Queued>,
    best_ms: f64,
    best: u32,
}

fn best_first(snapshot: &Snapshot, table: &Table, bounds: &Bounds, free_ms: f64) -> Outcome {
    let mut search = Search {
        snapshot,
        table,
        bounds,
        labels: Vec::new(),
        queue: BinaryHeap::new(),
        best_ms: f64::INFINITY,
        best: NONE,
    };
    let none = Rc::default();
    for state in snapshot.states(table.first) {
        let host = snapshot.host_of[state];
        let spent = table.price.entry(snapshot, host) + table.price.node[host as usize].enter;
        search.push(NONE, state as u32, table.first as u32, spent, &none, bounds.start_ms[state]);
    }
    let mut settled: Vec<Vec<u32>> = vec![Vec::new(); snapshot.host_of.len()];
    let mut expanded = 0;
    // Sums along a path and backwards differ in the last bits; a route this close to the bound is the optimum.
    let rounding = 1e-12 * free_ms.abs();
    while let Some(Queued { estimate, label }) = search.queue.pop() {
        if estimate >= search.best_ms - rounding {
            break;
        }
        let state = search.labels[label as usize].state as usize;
        if settled[state].iter().any(|&earlier| search.dominates(earlier, label)) {
            continue;
        }
        settled[state].push(label);
        expanded += 1;
        if expanded > MAX_LABELS {
            return Outcome::OutOfBudget(search.found(false));
        }
        search.expand(label);
    }
    search.found(true).map_or(Outcome::None, Outcome::Found)
}

impl Search<'_> {
    fn push(&mut self, parent: u32, state: u32, layer: u32, spent: f64, used: &Rc<[(u32, u64)]>, rest: f64) {
        let estimate = spent + rest;
        if estimate < self.best_ms {
            let label = self.labels.len() as u32;
            self.labels.push(Label { state, layer, parent, spent, used: Rc::clone(used) });
            if state == NONE {
                self.best_ms = estimate;
                self.best = label;
            } else {
                self.queue.push(Queued { estimate, label });
            }
        }
    }

    fn dominates(&self, earlier: u32, later: u32) -> bool {
        let (a, b) = (&self.labels[earlier as usize], &self.labels[later as usize]);
        let no_more = |&(host, bytes): &(u32, u64)| b.used.iter().any(|u| u.0 == host && bytes <= u.1);
        a.spent <= b.spent && a.used.iter().all(no_more)
    }

    fn expand(&mut self, at: u32) {
        let (snapshot, table, bounds) = (self.snapshot, self.table, self.bounds);
        let price = &table.price;
        let Label { state, layer, spent, .. } = self.labels[at as usize];
        let used = Rc::clone(&self.labels[at as usize].used);
        let mut state = state as usize;
        let host = snapshot.host_of[state];
        let before = used_on(&used, host);
        let held = snapshot.run_end[state].min(table.end as u32) - layer;
        let room = price.room[host as usize];
        let mut ms = spent;
        for end in layer + 1..=layer + held {
            let abroad = price.home_only(end as usize - 1) && price.home != Some(host);
            let taken = before.saturating_add(price.needs(layer, end));
            if abroad || taken > room {
                break;
            }
            ms += price.layer(snapshot, state, end as usize - 1);
            if ms + bounds.leave_ms[state] < self.best_ms {
                let used = with_used(&used, host, taken, room);
                if end as usize == table.end {
                    self.push(at, NONE, end, ms + price.exit(snapshot, host), &used, 0.0);
                } else {
                    self.switch(at, host, end, ms, &used);
                }
            }
            state = snapshot.next[state] as usize;
        }
    }

    fn switch(&mut self, at: u32, host: u32, end: u32, ms: f64, used: &Rc<[(u32, u64)]>) {
        let (snapshot, table, bounds) = (self.snapshot, self.table, self.bounds);
        let price = &table.price;
        for next in snapshot.states(end as usize) {
            let to = snapshot.host_of[next];
            let enter = price.node[to as usize].enter;
            if to == host || ms + enter + bounds.start_ms[next] >= self.best_ms {
                continue;
            }
            if used_on(used, to).saturating_add(price.needs(end, end + 1)) <= price.room[to as usize] {
                let spent = ms + price.hop(snapshot, host, to) + enter;
                self.push(at, next as u32, end, spent, used, bounds.start_ms[next]);
            }
        }
    }

    fn found(&self, exact: bool) -> Option<Found> {
        if self.best == NONE {
            return None;
        }
        let mut visits = Vec::new();
        let (mut at, mut end) = (self.labels[self.best as usize].parent, self.table.end as u32);
        while at != NONE {
            let label = &self.labels[at as usize];
            visits.push((self.snapshot.host_of[label.state as usize], label.layer, end));
            (at, end) = (label.parent, label.layer);
        }
        visits.reverse();
        Some(Found { visits, ms: self.best_ms, exact })
    }
}

fn used_on(used: &[(u32, u64)], host: u32) -> u64 {
    used.iter().find(|entry| entry.0 == host).map_or(0, |entry| entry.1)
}

/// `used` with `taken` bytes on `host`, where that has a bound.
fn with_used(used: &Rc<[(u32, u64)]>, host: u32, taken: u64, room: u64) -> Rc<[(u32, u64)]> {
    if room == u64::MAX {
        return Rc::clone(used);
    }
    used.iter().copied().filter(|entry| entry.0 != host).chain([(host, taken)]).collect()
}

/// Shares the room of every overrun node out over its visits until the best route fits.
fn lower_rooms(snapshot: &Snapshot, table: &Table, rooms: &mut [u64]) -> Option<Found> {
    for _ in 0..MAX_ROUNDS {
        let bounds = Bounds::sweep(snapshot, table, rooms);
        let (start, ms) = bounds.best_start(snapshot, table)?;
        let visits = bounds.follow(snapshot, table.first as u32, start);
        if fits(&table.price, &visits) {
            return Some(Found { visits, ms, exact: false });
        }
        for &(host, ..) in &visits {
            let own = visits.iter().filter(|v| v.0 == host).map(|v| table.price.needs(v.1, v.2));
            let own: Vec<u64> = own.collect();
            let room = table.price.room[host as usize];
            if own.iter().sum::<u64>() > room {
                let most = own.iter().copied().max().unwrap_or(0);
                rooms[host as usize] = (room / own.len() as u64).min(most.saturating_sub(1));
            }
        }
    }
    None
}

/// Leaves out the nodes that were overrun until the best route fits.
fn leave_out(snapshot: &Snapshot, table: &Table) -> Option<Found> {
    let mut table = table.clone();
    for _ in 0..MAX_ROUNDS {
        let (start, ms) = table.best_start(snapshot)?;
        let visits = follow(snapshot, &table, start);
        if fits(&table.price, &visits) {
            return Some(Found { visits, ms, exact: false });
        }
        for &(host, ..) in &visits {
            let bytes: u64 = visits.iter().filter(|v| v.0 == host).map(|v| table.price.needs(v.1, v.2)).sum();
            if bytes > table.price.room[host as usize] {
                table.price.node[host as usize].enter = f64::INFINITY;
            }
        }
        table.sweep(snapshot, table.first, table.end);
    }
    None
}
