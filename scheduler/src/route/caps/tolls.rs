//! The tolls that make the best bound, found by subgradient steps.

use super::bounds::{Bounds, cost};
use super::flow::Flow;
use super::problem::Problem;
use super::{Best, MAX_PAIRS, ROUNDING, SWEEPS, TAKEN_AGAIN, labels};

/// Sweeps without a better bound after which steps are halved.
const PATIENCE: usize = 3;
/// A dive follows so many sweeps.
const DIVE: usize = 3;

/// Finds tolls for a high bound, offering every route on the way that fits; returns the bound and keeps its tolls swept.
pub(super) fn tighten(bounds: &mut Bounds, problem: &Problem, flow: &Flow, best: &mut Best) -> f64 {
    let sweeps = (MAX_PAIRS / problem.pairs().max(1)).clamp(SWEEPS.1, SWEEPS.0);
    let (mut least, mut kept) = (f64::NEG_INFINITY, bounds.toll.clone());
    let (mut scale, mut idle) = (1.0, 0);
    let mut used = vec![0u64; problem.hosts()];
    for sweep in 0..sweeps {
        if sweep > 0 {
            bounds.sweep(problem);
        }
        let Some((ms, segments)) = bounds.cheapest(problem) else { return f64::INFINITY };
        idle += 1;
        if ms > least + least.abs() * 1e-6 {
            idle = 0;
        }
        if ms > least {
            least = ms;
            kept.copy_from_slice(&bounds.toll);
        }
        if idle >= PATIENCE {
            (scale, idle) = (scale / 2.0, 0);
            bounds.toll.copy_from_slice(&kept);
        }
        used.fill(0);
        segments.iter().for_each(|visit| used[visit.0 as usize] += problem.needs(visit.1, visit.2));
        let over = |i: usize| used[i] as f64 - problem.net.room[i] as f64;
        let limited = (0..problem.hosts()).filter(|&i| problem.bound[i]);
        if limited.clone().all(|i| over(i) <= 0.0) {
            best.offer(cost(problem, &segments), || segments);
        }
        if sweep % DIVE == DIVE - 1 {
            labels::dive(problem, bounds, flow, TAKEN_AGAIN, best);
        }
        if least >= best.ms * (1.0 - ROUNDING) {
            break;
        }
        let active = |i: &usize| over(*i) > 0.0 || bounds.toll[*i] > 0.0;
        let norm: f64 = limited.clone().filter(active).map(|i| over(i) * over(i)).sum();
        if norm == 0.0 {
            break;
        }
        // Polyak's step towards the best route, or a little above the bound while there is none.
        let goal = if best.ms.is_finite() { best.ms } else { ms.max(least) * 1.05 + 1e-9 };
        let step = scale * (goal - ms).max(1e-9) / norm;
        let moves: Vec<(usize, f64)> = limited.filter(active).map(|i| (i, step * over(i))).collect();
        moves.into_iter().for_each(|(i, by)| bounds.toll[i] = (bounds.toll[i] + by).max(0.0));
    }
    bounds.toll = kept;
    bounds.sweep(problem);
    least
}
