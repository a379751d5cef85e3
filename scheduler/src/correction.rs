//! What computing a prompt takes, corrected by what prompts before took.
//!
//! Nodes say what a position costs them. A prompt takes something more whatever its length (streams are opened, memory is touched
//! for the first time, chunks follow each other through the stages), and the nodes' figures may all be off. So what
//! is taken is a fixed time and a factor, fitted to pairs of said and taken:
//!
//! ```text
//! took = fixed_ms + factor x said        least sum of weight x ((fixed_ms + factor x said) / took - 1)^2, and
//!                                        PRIOR x (factor - 1)^2; fixed_ms is not negative
//! ```
//!
//! Before prompts of several lengths were seen, the prior lets all of a difference be fixed: a short prompt that took 30 ms
//! longer says so of a long one too, not that it takes three times as long. The last [`KEPT`] pairs count, each
//! [`FADES`] times as much as the one after it; one that is far from the fit counts less ([`FAR`]), so that a single bad
//! sample moves nothing.

use std::collections::VecDeque;

/// Pairs kept.
pub const KEPT: usize = 24;
/// What a pair counts beside the next one.
pub const FADES: f64 = 0.93;
/// How much the belief counts that nodes' figures are right, beside a pair.
const PRIOR: f64 = 0.02;
/// The relative error at which a pair counts half.
pub const FAR: f64 = 0.3;
/// Fits of which each weighs the pairs by how far they are from the one before.
const ROUNDS: usize = 4;
/// No node's figures are further off than this.
const MOST_FACTOR: f64 = 8.0;

/// See the module's page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Correction {
    /// Said and taken, ms, the oldest first.
    seen: VecDeque<(f64, f64)>,
}

/// A line through pairs of said and taken.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fit {
    fixed_ms: f64,
    factor: f64,
}

impl Fit {
    fn of(&self, said_ms: f64) -> f64 {
        self.fixed_ms + self.factor * said_ms
    }

    /// The best one for pairs with weights.
    fn best(pairs: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        // In parts of what was taken: 1 = fixed x one + factor x said.
        let (mut ones, mut mixed, mut saids) = (0.0, 0.0, PRIOR);
        let (mut right, mut right_said) = (0.0, PRIOR);
        for (said, took, weight) in pairs {
            let (one, said) = (1.0 / took, said / took);
            ones += weight * one * one;
            mixed += weight * one * said;
            saids += weight * said * said;
            right += weight * one;
            right_said += weight * said;
        }
        let determinant = ones * saids - mixed * mixed;
        let fixed_ms = (right * saids - right_said * mixed) / determinant;
        let factor = (right_said * ones - right * mixed) / determinant;
        let bounded = |factor: f64| factor.clamp(1.0 / MOST_FACTOR, MOST_FACTOR);
        match fixed_ms > 0.0 && factor >= 1.0 / MOST_FACTOR {
            true => Self { fixed_ms, factor: bounded(factor) },
            false => Self { fixed_ms: 0.0, factor: bounded(right_said / saids) },
        }
    }
}

impl Correction {
    /// What was said to take `said_ms` took `took_ms`. Numbers that are not finite and positive are ignored.
    pub fn add(&mut self, said_ms: f64, took_ms: f64) {
        if ![said_ms, took_ms].iter().all(|ms| ms.is_finite() && *ms > 0.0) {
            return;
        }
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back((said_ms, took_ms));
    }

    /// What `said_ms` will take; as said before anything was seen.
    pub fn of(&self, said_ms: f64) -> f64 {
        self.fit().map_or(said_ms, |fit| fit.of(said_ms))
    }

    fn fit(&self) -> Option<Fit> {
        if self.seen.is_empty() {
            return None;
        }
        let fades = |at: usize| FADES.powi((self.seen.len() - 1 - at) as i32);
        let fit = |before: Option<Fit>| {
            Fit::best(self.seen.iter().enumerate().map(|(at, &(said, took))| {
                let far = before.map_or(0.0, |fit| (fit.of(said) / took - 1.0) / FAR);
                (said, took, fades(at) / (1.0 + far * far))
            }))
        };
        (0..ROUNDS).fold(None, |before, _| Some(fit(before)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Correction, KEPT};
    use crate::rng::Rng;

    fn of(pairs: &[(f64, f64)]) -> Correction {
        let mut correction = Correction::default();
        pairs.iter().for_each(|(said, took)| correction.add(*said, *took));
        correction
    }

    fn near(found: f64, wanted: f64) -> bool {
        (found / wanted - 1.0).abs() < 0.05
    }

    #[test]
    fn what_short_prompts_take_longer_is_fixed_until_long_ones_say_otherwise() {
        assert_eq!(Correction::default().of(70.0), 70.0);
        let short = of(&[(20.0, 50.0), (20.0, 51.0), (21.0, 50.0)]);
        assert!(near(short.of(20.0), 50.0) && near(short.of(900.0), 930.0), "{}", short.of(900.0));
        let mut both = short.clone();
        (0..3).for_each(|_| both.add(900.0, 480.0));
        assert!(near(both.of(900.0), 480.0) && near(both.of(20.0), 50.0), "{both:?}");
        // Faster than said: no time is fixed, and it is never negative.
        let fast = of(&[(20.0, 10.0), (20.0, 10.0)]);
        assert!(near(fast.of(20.0), 10.0) && fast.of(1.0) > 0.0, "{}", fast.of(20.0));
    }

    #[test]
    fn one_bad_sample_moves_little_and_a_change_is_followed() {
        let mut correction = of(&[(20.0, 40.0), (500.0, 530.0), (22.0, 41.0), (510.0, 525.0), (21.0, 42.0)]);
        let before = correction.of(500.0);
        correction.add(500.0, 5_000.0);
        assert!((correction.of(500.0) / before - 1.0).abs() < 0.1, "{} {}", correction.of(500.0), before);
        for _ in 0..KEPT {
            correction.add(20.0, 60.0);
            correction.add(500.0, 1_100.0);
        }
        assert!(near(correction.of(500.0), 1_100.0) && near(correction.of(20.0), 60.0));
    }

    #[test]
    fn any_line_is_found_behind_noise() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let (fixed, factor) = (rng.between(20.0, 100.0), rng.between(0.3, 3.0));
            let mut correction = Correction::default();
            for _ in 0..KEPT {
                let said = 2_f64.powf(rng.between(3.0, 11.0));
                correction.add(said, (fixed + factor * said) * rng.between(0.95, 1.05));
            }
            for said in [50.0, 300.0, 1_500.0] {
                let wanted = fixed + factor * said;
                let off = (correction.of(said) / wanted - 1.0).abs();
                assert!(off < 0.15, "{said}: {} for {wanted}", correction.of(said));
            }
        }
        let before = of(&[(10.0, 20.0)]);
        let mut after = before.clone();
        for (said, took) in [(0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (-1.0, 2.0)] {
            after.add(said, took);
        }
        assert_eq!(after, before);
    }
}
