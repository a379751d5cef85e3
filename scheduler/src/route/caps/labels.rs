//! Searches over what routes take of every node's room: a dive for one route at once, and beams for the best one.

use std::rc::Rc;

use super::bounds::Bounds;
use super::flow::{Flow, Way};
use super::problem::Problem;
use super::windows::Windows;
use super::{Best, ROUNDING};
use crate::route::Visit;
use crate::snapshot::NONE;

/// Labels that all beams may make together, about; some 0.1 us each.
const MAX_LABELS: usize = 20_000;
/// Labels of a layer that the first beam follows, and how many times more the next one.
const WIDTH: usize = 8;
const WIDER: usize = 3;
/// Labels of a layer looked at for each one that may be followed: the others are dominated.
const SEEN: usize = 8;
/// At first only routes are looked for that are better by this share: few labels remain. Then, if labels are left, all that are better.
const WORTH: f64 = 0.004;

struct Dive<'a> {
    problem: &'a Problem,
    bounds: &'a Bounds,
    way: Way,
    path: Vec<Visit>,
    taken: usize,
    most: usize,
}

/// Looks for one route, segment by segment, always the one that seems cheapest of those that leave room for all later
/// layers, and at most `most` in all. Returns whether it saw everything that could be better than `best`, when it found nothing.
pub(super) fn dive(problem: &Problem, bounds: &Bounds, flow: &Flow, most: usize, best: &mut Best) -> bool {
    let way = Way::new(problem.hosts());
    let mut dive = Dive { problem, bounds, way, path: Vec::new(), taken: 0, most };
    let left = problem.net.room.clone();
    !dive.descend(0, 0.0, flow, &left, best) && dive.taken < most
}

impl Dive<'_> {
    /// Whether a route was found.
    fn descend(&mut self, layer: u32, spent: f64, flow: &Flow, left: &[u64], best: &mut Best) -> bool {
        let (problem, bounds, n) = (self.problem, self.bounds, self.problem.hosts());
        let before = self.path.last().map(|visit| visit.0);
        let mut ways: Vec<(f64, f64, u32, u32)> = Vec::new();
        for &host in &problem.net.at[layer as usize] {
            let i = host as usize;
            let enter = before.map_or(problem.entry[i], |from| problem.hop(from, host));
            if before == Some(host) || !enter.is_finite() {
                continue;
            }
            for end in layer + 1..=problem.run_end(host, layer) {
                let units = problem.needs(layer, end);
                if units > left[i] {
                    break;
                }
                let ms = spent + enter + problem.run(host, layer, end);
                let whole = ms + bounds.toll[i] * units as f64 + bounds.leave(n, end, host);
                if whole.is_finite() {
                    ways.push((whole, ms, host, end));
                }
            }
        }
        ways.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.2, a.3).cmp(&(b.2, b.3))));
        for (_, ms, host, end) in ways {
            if self.taken >= self.most {
                return false;
            }
            self.taken += 1;
            let Some(flow) = flow.taken(&problem.net, host, layer, end, &mut self.way) else { continue };
            self.path.push((host, layer, end));
            let found = if end as usize == problem.layers {
                best.offer(ms + problem.exit[host as usize], || self.path.clone());
                true
            } else {
                let mut left = left.to_vec();
                left[host as usize] -= problem.needs(layer, end);
                self.descend(end, ms, &flow, &left, best)
            };
            if found {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

/// About to run `host` from `layer` on.
struct Label {
    host: u32,
    layer: u32,
    parent: u32,
    /// Without tolls.
    spent: f64,
    /// Units taken so far of hosts that are bound and hold later layers, by host; labels that differ only in where they go next
    /// share it.
    used: Rc<[(u32, u64)]>,
}

struct Search<'a> {
    problem: &'a Problem,
    bounds: &'a Bounds,
    /// Tolls of the room that can still be taken from each layer on, of all hosts, while none is taken.
    free: Vec<f64>,
    labels: Vec<Label>,
    /// By layer: bound of the whole, label.
    waiting: Vec<Vec<(f64, u32)>>,
    best: &'a mut Best,
    /// Share of the best route by which another has to be better.
    worth: f64,
}

/// Improves on the route in `best` by beams, each wider than the one before; returns whether it is proven to be the best.
///
/// Layer by layer, of the labels there that could still lead to something better the most promising are followed. One is
/// dropped when another at the same state cost no more and took no more of anything. A beam that left none out is a proof.
pub(super) fn beams(problem: &Problem, bounds: &Bounds, windows: &mut Windows, best: &mut Best) -> bool {
    let n = problem.hosts();
    let free = |layer: u32| -> f64 { (0..n as u32).map(|host| bounds.slack(problem, host, layer, 0)).sum() };
    let free = (0..=problem.layers as u32).map(free).collect();
    let waiting = vec![Vec::new(); problem.layers];
    let mut search = Search { problem, bounds, free, labels: Vec::new(), waiting, best, worth: WORTH };
    let (mut width, mut made) = (WIDTH, 0);
    loop {
        let whole = search.beam(width);
        if whole && search.worth == ROUNDING {
            return true;
        }
        windows.polish(problem, search.best);
        made += search.labels.len();
        if whole {
            search.worth = ROUNDING;
        } else {
            width *= WIDER;
        }
        if made + WIDER * search.labels.len() > MAX_LABELS {
            return false;
        }
    }
}

impl Search<'_> {
    /// What costs as much is not looked at.
    fn limit(&self) -> f64 {
        self.best.ms * (1.0 - self.worth)
    }

    /// Whether it left nothing out that could be better than the best.
    fn beam(&mut self, width: usize) -> bool {
        let none = Rc::default();
        self.labels.clear();
        for &host in &self.problem.net.at[0] {
            let spent = self.problem.entry[host as usize];
            let estimate = spent + self.tolls(&none, 0) + self.bounds.start(self.problem.hosts(), 0, host);
            if estimate < self.limit() {
                self.push(Label { host, layer: 0, parent: NONE, spent, used: Rc::clone(&none) }, estimate);
            }
        }
        let mut whole = true;
        let mut settled: Vec<Vec<u32>> = vec![Vec::new(); self.problem.hosts()];
        for layer in 0..self.problem.layers {
            let mut waiting = std::mem::take(&mut self.waiting[layer]);
            waiting.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            settled.iter_mut().for_each(Vec::clear);
            let mut followed = 0;
            for (seen, &(bound, label)) in waiting.iter().enumerate() {
                if bound >= self.limit() {
                    break;
                }
                if seen == width * SEEN {
                    whole = false;
                    break;
                }
                let state = &mut settled[self.labels[label as usize].host as usize];
                if state.iter().any(|&earlier| self.dominates(earlier, label)) {
                    continue;
                }
                if followed == width {
                    whole = false;
                    break;
                }
                followed += 1;
                state.push(label);
                self.expand(label);
            }
            waiting.clear();
            self.waiting[layer] = waiting;
        }
        whole
    }

    /// What has to be taken from the cost-to-go with tolls for a bound, as a negative number: no route that keeps the bounds
    /// pays more of them from `layer` on than for what is left, and what is held.
    fn tolls(&self, used: &[(u32, u64)], layer: u32) -> f64 {
        let (problem, bounds) = (self.problem, self.bounds);
        let slack = |&(host, units): &(u32, u64)| {
            bounds.slack(problem, host, layer, 0) - bounds.slack(problem, host, layer, units)
        };
        used.iter().map(slack).sum::<f64>() - self.free[layer as usize]
    }

    fn push(&mut self, label: Label, estimate: f64) {
        self.waiting[label.layer as usize].push((estimate, self.labels.len() as u32));
        self.labels.push(label);
    }

    fn dominates(&self, earlier: u32, later: u32) -> bool {
        let (a, b) = (&self.labels[earlier as usize], &self.labels[later as usize]);
        a.spent <= b.spent && a.used.iter().all(|&(host, units)| units <= used_on(&b.used, host))
    }

    fn expand(&mut self, at: u32) {
        let (problem, bounds, n) = (self.problem, self.bounds, self.problem.hosts());
        let Label { host, layer, spent, .. } = self.labels[at as usize];
        let used = Rc::clone(&self.labels[at as usize].used);
        let i = host as usize;
        let before = used_on(&used, host);
        for end in layer + 1..=problem.run_end(host, layer) {
            let units = problem.needs(layer, end);
            if problem.bound[i] && before + units > problem.net.room[i] {
                break;
            }
            let ms = spent + problem.run(host, layer, end);
            if end as usize == problem.layers {
                let ms = ms + problem.exit[i];
                if ms < self.best.ms {
                    self.best.ms = ms;
                    self.best.segments = self.segments(at, end);
                }
                continue;
            }
            let used = with_used(problem, &used, host, before + units, end);
            let tolls = self.tolls(&used, end);
            if ms + tolls + bounds.leave(n, end, host) >= self.limit() {
                continue;
            }
            for &next in &problem.net.at[end as usize] {
                let spent = ms + problem.hop(host, next);
                let estimate = spent + tolls + bounds.start(n, end, next);
                let room = problem.net.room[next as usize];
                if estimate < self.limit()
                    && next != host
                    && (!problem.bound[next as usize]
                        || used_on(&used, next) + problem.needs(end, end + 1) <= room)
                {
                    self.push(
                        Label { host: next, layer: end, parent: at, spent, used: Rc::clone(&used) },
                        estimate,
                    );
                }
            }
        }
    }

    fn segments(&self, at: u32, end: u32) -> Vec<Visit> {
        let (mut at, mut end, mut segments) = (at, end, Vec::new());
        while at != NONE {
            let label = &self.labels[at as usize];
            segments.push((label.host, label.layer, end));
            (at, end) = (label.parent, label.layer);
        }
        segments.reverse();
        segments
    }
}

fn used_on(used: &[(u32, u64)], host: u32) -> u64 {
    used.iter().find(|entry| entry.0 == host).map_or(0, |entry| entry.1)
}

/// `used` with `taken` units on `host`, less the hosts that hold nothing from `end` on.
fn with_used(
    problem: &Problem,
    used: &Rc<[(u32, u64)]>,
    host: u32,
    taken: u64,
    end: u32,
) -> Rc<[(u32, u64)]> {
    let matters = |host: u32| problem.bound[host as usize] && problem.held(host, end) > 0;
    let others = used.iter().copied().filter(|entry| entry.0 != host && matters(entry.0));
    others.chain(matters(host).then_some((host, taken))).collect()
}
