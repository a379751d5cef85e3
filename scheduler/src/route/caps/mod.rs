//! The search when KV room binds: the layers a node runs are bounded over *all* of its segments together.
//!
//! A shortest path does not see such a bound, so four steps follow, each with bounded work whatever was announced:
//!
//! 1. `flow`: can the layers be shared out at all? Every layer goes to one of its holders, every node takes what it has room
//!    for: bipartite matching where all layers take the same, a flow that may split layers where they do not. Without one
//!    there is no route: a proof, over all nodes, since a route is such a sharing out.
//! 2. `problem`: the nodes that a good route may use, with their prices laid out densely. Up to [`MAX_HOSTS`] all of them.
//! 3. `tolls`, `bounds`: a toll per unit of room on every node that is overrun, found by subgradient steps (Held and Karp, *The
//!    traveling-salesman problem and minimum spanning trees: part II*, 1971): the cheapest route with tolls, less the tolls of
//!    all room there is, is a bound from below, and one that happens to fit is a route.
//! 4. `labels`: a dive that never takes what would leave later layers without room, for a route at once; then beams
//!    guided by the tolls close the gap, or stop at their budget.
//!
//! Where every pair of nodes can talk and layers take the same, the dive always ends in a route: the matching of the rest is
//! one. Otherwise the answer may be that nothing is proven ([`Answer::Unproven`]).

mod bounds;
mod flow;
mod labels;
mod problem;
mod tolls;
mod windows;

use super::Visit;
use super::table::Table;
use crate::rng::Rng;
use crate::snapshot::Snapshot;
use bounds::Bounds;
use flow::{Flow, Net};
use problem::Problem;
use windows::Windows;

/// Nodes that the search looks at. More make each step dearer by the square.
const MAX_HOSTS: usize = 96;
/// Pairs of states that all sweeps with tolls may look at together, some ns each.
const MAX_PAIRS: usize = 600_000;
/// Sweeps with tolls, at most and at least.
const SWEEPS: (usize, usize) = (60, 4);

/// Segments that the first dive may try, and each later one, a microsecond each.
const TAKEN: usize = 600;
const TAKEN_AGAIN: usize = 60;
/// Dives with drawn tolls, some 30 us each where they matter.
const DRAWN: usize = 4;
/// Keeps the draw of tolls apart from others.
const SALT: u64 = 0x524f_4f4d;

/// A route that keeps every bound.
pub(super) struct Found {
    pub visits: Vec<Visit>,
    pub ms: f64,
    pub exact: bool,
}

/// What is known after the search.
pub(super) enum Answer {
    Found(Found),
    /// There is no route.
    None,
    /// None was found within the budget; there may be one.
    Unproven,
}

/// The best route within KV room, given the table of the unbounded problem.
pub(super) fn search(snapshot: &Snapshot, table: &Table) -> Answer {
    let net = Net::new(snapshot, table);
    let Some(flow) = Flow::whole(&net) else { return Answer::None };
    let problem = Problem::new(snapshot, table, &net, &flow);
    let Some(flow) = Flow::whole(&problem.net) else { return Answer::Unproven };
    let mut best = Best::default();
    let mut bounds = Bounds::new(&problem);
    bounds.sweep(&problem);
    let mut complete = labels::dive(&problem, &bounds, &flow, TAKEN, &mut best);
    if best.segments.is_empty() && complete {
        return if problem.whole { Answer::None } else { Answer::Unproven };
    }
    let least = tolls::tighten(&mut bounds, &problem, &flow, &mut best);
    complete = least >= best.ms * (1.0 - ROUNDING);
    if !complete {
        let mut rng = Rng::new(SALT);
        let mut drawn = bounds.clone();
        let mut windows = Windows::new(&problem);
        windows.polish(&problem, &mut best);
        for _ in 0..DRAWN {
            drawn.draw(&bounds, &problem, &mut rng);
            let mut other = Best::default();
            labels::dive(&problem, &drawn, &flow, TAKEN_AGAIN, &mut other);
            windows.polish(&problem, &mut other);
            best.offer(other.ms, || other.segments);
        }
        complete = labels::beams(&problem, &bounds, &mut windows, &mut best);
    }
    let exact = complete && problem.whole;
    if best.segments.is_empty() {
        return if exact { Answer::None } else { Answer::Unproven };
    }
    let visits = best.segments.iter().map(|&(host, start, end)| {
        let first = table.first as u32;
        (problem.host[host as usize], first + start, first + end)
    });
    Answer::Found(Found { visits: visits.collect(), ms: best.ms, exact })
}

/// Sums along a path and backwards differ in the last bits; a route this close to a bound is the optimum.
const ROUNDING: f64 = 1e-12;

/// The best route so far: host of the problem, first layer, one past the last.
struct Best {
    ms: f64,
    segments: Vec<Visit>,
}

impl Default for Best {
    fn default() -> Self {
        Self { ms: f64::INFINITY, segments: Vec::new() }
    }
}

impl Best {
    fn offer(&mut self, ms: f64, segments: impl FnOnce() -> Vec<Visit>) {
        if ms < self.ms {
            (self.ms, self.segments) = (ms, segments());
        }
    }
}
