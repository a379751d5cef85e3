//! What Q3_K, Q6_K, IQ4_NL and IQ4_XS share: the search for the scales of a block's groups, whole multiples of one unit.

use super::{half, importances, inverse, nearest, signed_max, to_half};

/// How often unit and scales follow from each other at most.
const ROUNDS: usize = 4;

/// Fits codes `-limit..limit` of groups of 16, whose scales are `lowest..-lowest` units.
///
/// Tries scales for each group that put the largest magnitude 0.9 steps around `limit` steps from zero, see [`most_explained`].
pub(super) fn levels(weights: &[f32], importance: Option<&[f32]>, limit: f32, lowest: f32) -> Fit {
    let importance = importances(weights, importance);
    let value = |x| level(x, limit);
    let best = |(weights, importance): (&[f32], &[f32])| {
        most_explained(weights, importance, (-9..=9).map(|step| -(limit + 0.1 * step as f32)), value)
    };
    let wanted: Vec<f32> = weights.chunks_exact(16).zip(importance.chunks_exact(16)).map(best).collect();
    fit(weights, &importance, &wanted, lowest, value)
}

/// The whole number of `-limit..limit` that is nearest.
pub(super) fn level(x: f32, limit: f32) -> f32 {
    nearest(x).clamp(-limit, limit - 1.0)
}

/// Tries scales that put the largest magnitude at each of `ends`; of the least-squares scales of the values that follow, the one that
/// explains most.
pub(super) fn most_explained(
    weights: &[f32],
    importance: &[f32],
    ends: impl Iterator<Item = f32>,
    value: impl Fn(f32) -> f32,
) -> f32 {
    let max = signed_max(weights);
    if max.abs() < 1e-15 {
        return 0.0;
    }
    // The least-squares scale, and what it explains.
    let explain = |per_scale: f32| {
        let (mut with_weights, mut with_values) = (0.0f32, 0.0f32);
        for (w, importance) in weights.iter().zip(importance) {
            let value = value(w * per_scale);
            with_weights += importance * w * value;
            with_values += importance * value * value;
        }
        (with_weights * inverse(with_values), with_weights * with_weights * inverse(with_values))
    };
    let mut best = (0.0, -1.0);
    for end in ends {
        let found = explain(end / max);
        if found.1 > best.1 {
            best = found;
        }
    }
    best.0
}

/// A block's unit, and how many of it each group's scale is.
pub(super) struct Fit {
    pub d: [u8; 2],
    pub scales: Vec<i8>,
}

/// Fits `unit * scale * value` to the weights of a block: a scale of `lowest..-lowest` for each of the `wanted` ones, near it.
///
/// For each group the scales around what rounding gives are tried, since values follow the scale; then the unit that suits them all
/// by least squares is taken, and again, while errors become smaller.
pub(super) fn fit(
    weights: &[f32],
    importance: &[f32],
    wanted: &[f32],
    lowest: f32,
    value: impl Fn(f32) -> f32,
) -> Fit {
    let group = weights.len() / wanted.len();
    // What one unit gives: the scales, the error, and the unit that suits them by least squares.
    let with = |d: [u8; 2]| {
        let unit = half(&d);
        let (mut scales, mut sums) = (Vec::with_capacity(wanted.len()), [0.0f32; 3]);
        let groups = weights.chunks_exact(group).zip(importance.chunks_exact(group));
        for ((weights, importance), wanted) in groups.zip(wanted) {
            let tried = |scale: f32| {
                let per_scale = inverse(unit * scale);
                let mut sums = [0.0f32; 3];
                for (w, importance) in weights.iter().zip(importance) {
                    let units = scale * value(w * per_scale);
                    let off = unit * units - w;
                    let terms = [off * off, units * w, units * units];
                    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += importance * term);
                }
                (scale, sums)
            };
            let middle = nearest(wanted * inverse(unit));
            let around = [0.0, -1.0, 1.0].map(|step| tried((middle + step).clamp(lowest, -lowest - 1.0)));
            let (scale, of) = around.into_iter().min_by(|a, b| a.1[0].total_cmp(&b.1[0])).unwrap_or_default();
            scales.push(scale as i8);
            sums.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
        }
        let [error, with_weights, with_units] = sums;
        (Fit { d, scales }, error, to_half(with_weights * inverse(with_units)))
    };
    let mut best = with(to_half(signed_max(wanted) / lowest));
    for _ in 1..ROUNDS {
        let next = with(best.2);
        if next.1.total_cmp(&best.1).is_ge() {
            break;
        }
        best = next;
    }
    best.0
}
