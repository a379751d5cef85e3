//! Makes a route that fits better, window by window: some segments in a row are laid out again, with the room that the others
//! leave, as long as that saves something.

use super::Best;
use super::bounds::cost;
use super::problem::Problem;
use crate::route::Visit;

/// Segments laid out again at once, at most.
const SPAN: usize = 5;
/// Rounds over all windows.
const ROUNDS: usize = 4;

/// Better costs and choices of one window.
pub(super) struct Windows {
    start: Vec<f64>,
    end: Vec<u32>,
    leave: Vec<f64>,
    to: Vec<u32>,
    left: Vec<u64>,
}

impl Windows {
    pub fn new(problem: &Problem) -> Self {
        let states = (problem.layers + 1) * problem.hosts();
        Self {
            start: vec![f64::INFINITY; states],
            end: vec![0; states],
            leave: vec![f64::INFINITY; states],
            to: vec![0; states],
            left: Vec::new(),
        }
    }

    /// Replaces the route in `best` by a better one as long as a window gives one.
    pub fn polish(&mut self, problem: &Problem, best: &mut Best) {
        for _ in 0..ROUNDS {
            let before = best.ms;
            let mut first = 0;
            while first < best.segments.len() {
                for last in first..best.segments.len().min(first + SPAN) {
                    if let Some(segments) = self.replaced(problem, &best.segments, first, last) {
                        let ms = cost(problem, &segments);
                        if ms < best.ms * (1.0 - super::ROUNDING) {
                            (best.ms, best.segments) = (ms, segments);
                            break;
                        }
                    }
                }
                first += 1;
            }
            if best.ms >= before {
                break;
            }
        }
    }

    /// The route with the segments from `first` to `last` laid out again as is cheapest for their layers, if that fits.
    fn replaced(
        &mut self,
        problem: &Problem,
        route: &[Visit],
        first: usize,
        last: usize,
    ) -> Option<Vec<Visit>> {
        self.left.clone_from(&problem.net.room);
        let outside = || route[..first].iter().chain(&route[last + 1..]);
        for &(host, start, end) in outside() {
            self.left[host as usize] -= problem.needs(start, end);
        }
        let from = first.checked_sub(1).map(|at| route[at].0);
        let to = route.get(last + 1).map(|visit| visit.0);
        let (begin, until) = (route[first].1, route[last].2);
        self.sweep(problem, begin, until, to);
        let n = problem.hosts();
        let entry = |host: u32| match from {
            None => problem.entry[host as usize],
            Some(from) if from == host => 0.0,
            Some(from) => problem.hop(from, host),
        };
        let at = problem.net.at[begin as usize].iter();
        let entries = at.map(|&host| (entry(host) + self.start[begin as usize * n + host as usize], host));
        let (_, mut host) = entries.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|found| found.0.is_finite())?;
        let mut segments: Vec<Visit> = route[..first].to_vec();
        let add = |segments: &mut Vec<Visit>, visit: Visit| match segments.last_mut() {
            Some(before) if before.0 == visit.0 => before.2 = visit.2,
            _ => segments.push(visit),
        };
        let mut layer = begin;
        while layer < until {
            let end = self.end[layer as usize * n + host as usize];
            let units = problem.needs(layer, end);
            self.left[host as usize] = self.left[host as usize].checked_sub(units)?;
            add(&mut segments, (host, layer, end));
            host = self.to[end as usize * n + host as usize];
            layer = end;
        }
        route[last + 1..].iter().for_each(|visit| add(&mut segments, *visit));
        Some(segments)
    }

    fn sweep(&mut self, problem: &Problem, begin: u32, until: u32, exit: Option<u32>) {
        let n = problem.hosts();
        for layer in (begin..until).rev() {
            let (l, after) = (layer as usize, layer as usize + 1);
            for &host in &problem.net.at[l] {
                let i = host as usize;
                let (mut best, mut to) = (f64::INFINITY, host);
                if after == until as usize {
                    best = match exit {
                        None => problem.exit[i],
                        Some(next) if next == host => 0.0,
                        Some(next) => problem.hop(host, next),
                    };
                } else {
                    for &next in &problem.net.at[after] {
                        let ms = self.start[after * n + next as usize] + problem.hop(host, next);
                        if ms < best && next != host {
                            (best, to) = (ms, next);
                        }
                    }
                }
                (self.leave[after * n + i], self.to[after * n + i]) = (best, to);
                let (mut least, mut ended) = (f64::INFINITY, 0);
                for end in layer + 1..=problem.run_end(host, layer).min(until) {
                    if problem.needs(layer, end) > self.left[i] {
                        break;
                    }
                    let ms = problem.run(host, layer, end) + self.leave[end as usize * n + i];
                    if ms < least {
                        (least, ended) = (ms, end);
                    }
                }
                (self.start[l * n + i], self.end[l * n + i]) = (least, ended);
            }
        }
    }
}
