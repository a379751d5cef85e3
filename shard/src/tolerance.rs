//! How far a stage that computes other bits is from what its layers give.
//!
//! A machine of class `approx` sums in another order and with other precision, so its rows are near those of
//! [`crate::executor::cpu`] and never the same. What its layers were to add to a row says how near is near enough:
//!
//! ```text
//! distance of a row = |said - own| / |own - entered|       lengths of vectors over the hidden dimension
//! ```
//!
//! The residual stream is many times longer than what a few layers add to it. Measured against the row itself, a stage that
//! gives back its inputs would seem to be nearly right; measured against what it was to add it is at distance 1.
//!
//! Limits: a node that changes rows by less than other hardware does is not found, by this or by any other test of one
//! answer (a digest of exact bits finds it, which is why such a node alone never serves a strict request).

/// An answer whose median row is nearer is what its layers give, computed by other hardware. Measured on the default model
/// (`tests/integration/tolerance.rs`), for one to six layers: f32 weights and activations 0.005 to 0.011, eight-bit
/// activations rounded elsewhere 0.008 to 0.019; weights of six bits 0.023 to 0.050.
pub const NEAR: f64 = 0.03;
/// One whose median row is farther is not: weights of five bits 0.040 to 0.083, of four bits 0.074 to 0.170, a layer left
/// out 0.44 to 0.62.
pub const FAR: f64 = 0.06;
/// Nor is one with a single row as far as this; of honest ones the farthest is 0.032.
pub const FAR_ROW: f64 = 0.25;

/// What the distances of an answer say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// The layers' work.
    Near {
        /// The median distance.
        median: f64,
    },
    /// Too far for honest hardware that was measured, too near for a cheat.
    Unclear {
        /// The median distance.
        median: f64,
    },
    /// Not the layers' work.
    Far {
        /// The first row that says so.
        row: usize,
        /// The median distance.
        median: f64,
    },
}

/// Judges the [`distances`] of an answer's rows; no rows are near.
pub fn judge(distances: &[f64]) -> Verdict {
    let mut sorted = distances.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let first = |beyond: f64| distances.iter().position(|distance| *distance > beyond);
    match (first(FAR_ROW), first(FAR)) {
        (Some(row), _) => Verdict::Far { row, median },
        (None, Some(row)) if median > FAR => Verdict::Far { row, median },
        _ if median > NEAR => Verdict::Unclear { median },
        _ => Verdict::Near { median },
    }
}

/// The distance of each row of `said`, what a stage gave, from `own`, what its layers give; `entered` went in. All three are
/// `[rows][hidden]`. A row whose own computation added nothing is at distance 0 when `said` says the same, else infinity.
///
/// # Panics
/// When `hidden` is zero.
pub fn distances(entered: &[f32], own: &[f32], said: &[f32], hidden: usize) -> Vec<f64> {
    let rows = entered.chunks_exact(hidden).zip(own.chunks_exact(hidden)).zip(said.chunks_exact(hidden));
    rows.map(|((entered, own), said)| {
        let (off, added) = (apart(said, own), apart(own, entered));
        if off == 0.0 { 0.0 } else { off / added }
    })
    .collect()
}

/// The length of the difference of two rows.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)) * (f64::from(*a) - f64::from(*b));
    a.iter().zip(b).map(square).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_the_measure() {
        let (entered, own) = ([100.0, 0.0, 100.0, 0.0], [100.0, 4.0, 100.0, 0.0]);
        assert_eq!(distances(&entered, &own, &own, 2), [0.0, 0.0]);
        // Giving back the inputs, and half of the work; what adds nothing leaves no room.
        assert_eq!(distances(&entered, &own, &entered, 2), [1.0, 0.0]);
        assert_eq!(distances(&entered, &own, &[100.0, 2.0, 100.0, 0.5], 2), [0.5, f64::INFINITY]);
    }

    #[test]
    fn a_median_and_a_row_are_judged() {
        let at = |median: f64| [median; 9].to_vec();
        assert_eq!(judge(&at(0.02)), Verdict::Near { median: 0.02 });
        assert_eq!(judge(&at(0.04)), Verdict::Unclear { median: 0.04 });
        assert_eq!(judge(&at(0.07)), Verdict::Far { row: 0, median: 0.07 });
        let mut one = at(0.02);
        one[5] = 0.2;
        assert_eq!(judge(&one), Verdict::Near { median: 0.02 });
        one[5] = 0.3;
        assert_eq!(judge(&one), Verdict::Far { row: 5, median: 0.02 });
        assert_eq!(judge(&[]), Verdict::Near { median: 0.0 });
    }
}
