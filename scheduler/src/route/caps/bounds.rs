//! Cost-to-go over whole segments, with a toll per unit of room, and the tolls that make the best bound of it.
//!
//! `start[l, i]` is the least cost of finishing from layer l when host i has just been entered: no segment longer than its
//! host's room, no host entered twice in a row. It forgets earlier visits, so it never exceeds the true cost; with tolls
//! `t` every route that keeps the bounds costs at least `least(t) = start(t) - sum of t_i * room_i`.

use super::flow::Flow;
use super::problem::Problem;
use super::{Best, MAX_PAIRS, ROUNDING, SWEEPS, TAKEN_AGAIN, labels};
use crate::rng::Rng;
use crate::route::Visit;

/// Sweeps without a better bound after which steps are halved.
const PATIENCE: usize = 3;

/// A dive follows so many sweeps.
const DIVE: usize = 3;

#[derive(Clone)]
pub(super) struct Bounds {
    /// Per unit of room, by host; 0 where it is not bound.
    pub toll: Vec<f64>,
    /// Entered at this layer (`layer * hosts + host`), nothing run yet, tolls included.
    start: Vec<f64>,
    end: Vec<u32>,
    /// The layer before was the last of its segment.
    leave: Vec<f64>,
    to: Vec<u32>,
    /// Tolls of all room.
    all: f64,
}

impl Bounds {
    pub fn new(problem: &Problem) -> Self {
        let states = (problem.layers + 1) * problem.hosts();
        Self {
            toll: vec![0.0; problem.hosts()],
            start: vec![f64::INFINITY; states],
            end: vec![0; states],
            leave: vec![f64::INFINITY; states],
            to: vec![0; states],
            all: 0.0,
        }
    }

    pub fn start(&self, hosts: usize, layer: u32, host: u32) -> f64 {
        self.start[layer as usize * hosts + host as usize]
    }

    pub fn leave(&self, hosts: usize, layer: u32, host: u32) -> f64 {
        self.leave[layer as usize * hosts + host as usize]
    }

    /// Tolls around those of `others`, swept.
    pub fn draw(&mut self, others: &Self, problem: &Problem, rng: &mut Rng) {
        for (toll, around) in self.toll.iter_mut().zip(&others.toll) {
            *toll = around * rng.between(0.0, 2.0);
        }
        self.sweep(problem);
    }

    /// Tolls of the room that `host` still gives from `layer` on when `used` units of it are taken.
    pub fn slack(&self, problem: &Problem, host: u32, layer: u32, used: u64) -> f64 {
        let toll = self.toll[host as usize];
        if toll == 0.0 {
            return 0.0;
        }
        let left = problem.net.room[host as usize].saturating_sub(used);
        toll * left.min(problem.held(host, layer)) as f64
    }

    pub fn sweep(&mut self, problem: &Problem) {
        let (n, layers) = (problem.hosts(), problem.layers);
        let tolls = self.toll.iter().zip(&problem.net.room).filter(|(toll, _)| **toll > 0.0);
        self.all = tolls.map(|(toll, room)| toll * *room as f64).sum();
        let at = &problem.net.at;
        for layer in (0..layers as u32).rev() {
            let l = layer as usize;
            let after = l + 1;
            for &host in &at[l] {
                let i = host as usize;
                let (mut best, mut to) = (f64::INFINITY, host);
                if after == layers {
                    best = problem.exit[i];
                } else {
                    for &next in &at[after] {
                        let ms = self.start[after * n + next as usize] + problem.hop(host, next);
                        if ms < best && next != host {
                            (best, to) = (ms, next);
                        }
                    }
                }
                (self.leave[after * n + i], self.to[after * n + i]) = (best, to);
                let (mut least, mut until) = (f64::INFINITY, 0);
                for end in layer + 1..=problem.run_end(host, layer) {
                    let units = problem.needs(layer, end);
                    if units > problem.net.room[i] {
                        break;
                    }
                    let ms = problem.run(host, layer, end)
                        + self.toll[i] * units as f64
                        + self.leave[end as usize * n + i];
                    if ms < least {
                        (least, until) = (ms, end);
                    }
                }
                (self.start[l * n + i], self.end[l * n + i]) = (least, until);
            }
        }
    }

    /// The best route with tolls: its segments and the bound that it proves.
    fn cheapest(&self, problem: &Problem) -> Option<(f64, Vec<Visit>)> {
        let n = problem.hosts();
        let first = problem.net.at[0].iter();
        let entries = first.map(|&host| (problem.entry[host as usize] + self.start(n, 0, host), host));
        let (ms, mut host) = entries.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|best| best.0.is_finite())?;
        let (mut segments, mut layer) = (Vec::new(), 0);
        while (layer as usize) < problem.layers {
            let end = self.end[layer as usize * n + host as usize];
            segments.push((host, layer, end));
            host = self.to[end as usize * n + host as usize];
            layer = end;
        }
        Some((ms - self.all, segments))
    }

    /// Finds tolls for a high bound, offering every route on the way that fits; returns the bound and keeps its tolls swept.
    pub fn tighten(&mut self, problem: &Problem, flow: &Flow, best: &mut Best) -> f64 {
        let sweeps = (MAX_PAIRS / problem.pairs().max(1)).clamp(SWEEPS.1, SWEEPS.0);
        let (mut least, mut kept) = (f64::NEG_INFINITY, self.toll.clone());
        let (mut scale, mut idle) = (1.0, 0);
        let mut used = vec![0u64; problem.hosts()];
        for sweep in 0..sweeps {
            if sweep > 0 {
                self.sweep(problem);
            }
            let Some((ms, segments)) = self.cheapest(problem) else { return f64::INFINITY };
            idle += 1;
            if ms > least + least.abs() * 1e-6 {
                idle = 0;
            }
            if ms > least {
                least = ms;
                kept.copy_from_slice(&self.toll);
            }
            if idle >= PATIENCE {
                (scale, idle) = (scale / 2.0, 0);
                self.toll.copy_from_slice(&kept);
            }
            used.fill(0);
            segments.iter().for_each(|visit| used[visit.0 as usize] += problem.needs(visit.1, visit.2));
            let over = |i: usize| used[i] as f64 - problem.net.room[i] as f64;
            let bound = (0..problem.hosts()).filter(|&i| problem.bound[i]);
            if bound.clone().all(|i| over(i) <= 0.0) {
                best.offer(cost(problem, &segments), || segments);
            }
            if sweep % DIVE == DIVE - 1 {
                labels::dive(problem, self, flow, TAKEN_AGAIN, best);
            }
            if least >= best.ms * (1.0 - ROUNDING) {
                break;
            }
            let active = |i: &usize| over(*i) > 0.0 || self.toll[*i] > 0.0;
            let norm: f64 = bound.clone().filter(active).map(|i| over(i) * over(i)).sum();
            if norm == 0.0 {
                break;
            }
            // Polyak's step towards the best route, or a little above the bound while there is none.
            let goal = if best.ms.is_finite() { best.ms } else { ms.max(least) * 1.05 + 1e-9 };
            let step = scale * (goal - ms).max(1e-9) / norm;
            let moves: Vec<(usize, f64)> = bound.filter(active).map(|i| (i, step * over(i))).collect();
            moves.into_iter().for_each(|(i, by)| self.toll[i] = (self.toll[i] + by).max(0.0));
        }
        self.toll = kept;
        self.sweep(problem);
        least
    }
}

/// What a route costs without tolls.
pub(super) fn cost(problem: &Problem, segments: &[Visit]) -> f64 {
    let mut before = None;
    let mut ms = 0.0;
    for &(host, start, end) in segments {
        ms += before.map_or(problem.entry[host as usize], |from| problem.hop(from, host));
        ms += problem.run(host, start, end);
        before = Some(host);
    }
    ms + before.map_or(0.0, |last| problem.exit[last as usize])
}
