//! Cost-to-go over whole segments, with a toll per unit of room.
//!
//! `start[l, i]` is the least cost of finishing from layer l when host i has just been entered: no segment longer than its
//! host's room, no host entered twice in a row. It forgets earlier visits, so it never exceeds the true cost; with tolls
//! `t` every route that keeps the bounds costs at least `least(t) = start(t) - sum of t_i * room_i`.

use super::problem::Problem;
use crate::rng::Rng;
use crate::route::Visit;

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
    pub fn cheapest(&self, problem: &Problem) -> Option<(f64, Vec<Visit>)> {
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
