//! When one stage is late, and when it has become slow, from its own past.
//!
//! A step is *slow* when it took over [`SLOW_TIMES`] what the stage usually takes, and longer than ordinary jitter
//! explains. One slow step is nothing. What counts is their share, and that is tested with the cumulative sum of
//! E. S. Page (*Continuous inspection schemes*, Biometrika 41, 1954) in its form for yes and no: a slow step adds
//! [`SLOW_ADDS`], any other takes one back, never below zero, and at [`GRAY`] the stage is *gray*.
//!
//! ```text
//! every step slow     4  8 12 16 20 24 28 32 36 40       gray with the 10th
//! every third slow    4  3  2  6  5  4  8  7  6 .. 40    gray with the 55th: each round of three adds two
//! every tenth slow    4  3  2  1  0  0  0  0  0  0  4    never: up to one in five comes to nothing
//! ```
//!
//! The sum ends at its bound, so a stage that recovers is not gray with its next ordinary step, and gray again with its next
//! slow one: it has to be ordinary for a while to be trusted as before.
//!
//! What jitter explains is what [`ORDINARY`] of the steps stay below, followed by stochastic approximation (Robbins and
//! Monro, *A stochastic approximation method*, 1951): a step above the bound raises it a little, one below lowers it
//! nineteen times less. Every step counts, and how far above it lies does not, so neither can a stutter move the bound
//! before it is noticed, nor do the long steps of a long way fail to. A context that grows takes bound and mean with it.
//!
//! The first [`FIRST_STEPS`] are sorted first, by the rule of F. R. Hampel (median and median deviation), so that a stage
//! that stutters from the start does not make its stutter the rule.
//!
//! Limits: a stage that has been slow at most steps since the session began is what it always was, and one that no
//! node could replace for some hundred steps has become it; the router measures such nodes against others. Steps
//! within [`UNNOTICED_MS`] of the usual are never slow.

use super::{COLD_STEP_MS, STEP_MS};
use crate::Millis;
use crate::latency::{Ema, RoundTrip, SPEED_TAU_MS, median};

/// A step is slow beyond this many times the usual. Lower and the jitter of a busy machine is slowness.
const SLOW_TIMES: f64 = 3.0;
/// Nor is a step slow that takes only so much longer: a slice of the system's scheduler, which no reader notices.
const UNNOTICED_MS: f64 = 5.0;
/// What a slow step adds to the sum: one in five is the share at which it neither rises nor falls.
const SLOW_ADDS: u32 = 4;
/// The sum at which a stage is gray: ten slow steps in a row. Lower and jitter with a long tail gets there by chance: in an
/// hour without a fault, at 3 % loss and 30 ms of jitter, eight in a row leave 1.1 stages per 10,000 tokens, ten 0.6.
const GRAY: u32 = 10 * SLOW_ADDS;
/// The share of steps that are ordinary however long they take.
const ORDINARY: f64 = 0.95;
/// How fast the bound of ordinary steps moves, in usual steps: ten slow ones in a row raise it by one and a quarter.
/// Faster, and it is there before a stutter is noticed; slower, and a stage with a long tail is taken for gray before it
/// is known.
const GAIN: f64 = 1.0 / 8.0;
/// Steps before anything counts as slow. Fewer, and quick ones at the start, by chance, make all later ones look slow and
/// shut them out of the baseline for ever.
const FIRST_STEPS: usize = 16;
/// Median deviations beyond which one of the first steps is no ordinary one: three standard deviations of a normal spread.
const HAMPEL: f64 = 3.0 * 1.4826;

/// When one stage is late, from its own past.
#[derive(Clone, PartialEq, Debug)]
pub struct Detector {
    /// Time per token and step, as a round trip with variation: its p99 bounds ordinary steps.
    step: RoundTrip,
    /// The first steps, ms, until there are [`FIRST_STEPS`]; empty from then on.
    first: Vec<f64>,
    /// What [`ORDINARY`] of the steps stay below, ms.
    bound: f64,
    /// What steps take that are not slow, ms; unknown during the first.
    baseline: Ema,
    /// Page's sum, up to [`GRAY`].
    sum: u32,
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            step: RoundTrip::default(),
            first: Vec::new(),
            bound: 0.0,
            baseline: Ema::new(SPEED_TAU_MS),
            sum: 0,
        }
    }
}

impl Detector {
    /// How long a frame of `tokens` tokens may take before the stage is late, ms; `rtt_p99_ms` is the network's part.
    pub fn patience_ms(&self, tokens: u32, rtt_p99_ms: f64) -> u64 {
        let (least, most) = STEP_MS;
        let own = match self.step.p99_ms() {
            Some(p99) => (3.0 * p99 + rtt_p99_ms).clamp(least as f64, most as f64),
            None => COLD_STEP_MS as f64 + rtt_p99_ms,
        };
        // A prompt's tokens are computed together, at a few times the speed of single ones.
        (own * (1.0 + f64::from(tokens.saturating_sub(1)) / 4.0)) as u64
    }

    /// Whether nothing is known of the stage yet.
    pub fn is_cold(&self) -> bool {
        self.step.p99_ms().is_none()
    }

    /// Notes a step that took `ms` for one token. What is no time is ignored.
    pub fn note(&mut self, now: Millis, ms: f64) {
        if !ms.is_finite() || ms < 0.0 {
            return;
        }
        self.step.add(ms);
        let Some(usual) = self.baseline.value() else {
            self.first.push(ms);
            if self.first.len() == FIRST_STEPS {
                self.settle(now);
            }
            return;
        };
        if self.is_slow(ms) {
            self.sum = (self.sum + SLOW_ADDS).min(GRAY);
        } else {
            self.sum = self.sum.saturating_sub(1);
            self.baseline.add(now, ms);
        }
        let above = if ms > self.bound { ORDINARY } else { ORDINARY - 1.0 };
        self.bound = (self.bound + GAIN * above * usual.max(1.0)).max(0.0);
    }

    /// Notes a step whose end was not awaited: it took `ms` and maybe more. What may have been an ordinary one says
    /// nothing.
    pub fn note_at_least(&mut self, ms: f64) {
        if ms.is_finite() && self.is_slow(ms) {
            self.sum = (self.sum + SLOW_ADDS).min(GRAY);
        }
    }

    /// Whether a step of `ms` is a slow one; none is before the first are known.
    fn is_slow(&self, ms: f64) -> bool {
        let least = |usual: f64| (SLOW_TIMES * usual).max(usual + UNNOTICED_MS).max(self.bound);
        self.baseline.value().is_some_and(|usual| ms > least(usual))
    }

    /// The first steps are all there: what is usual for the stage.
    fn settle(&mut self, now: Millis) {
        let first = std::mem::take(&mut self.first);
        let middle = |samples: Vec<f64>| median(samples).unwrap_or(0.0);
        let usual = middle(first.clone());
        let spread = middle(first.iter().map(|ms| (ms - usual).abs()).collect());
        let most = (SLOW_TIMES * usual).max(usual + UNNOTICED_MS).max(usual + HAMPEL * spread);
        self.bound = first.into_iter().filter(|ms| *ms <= most).fold(usual, f64::max);
        self.baseline.add(now, usual);
    }

    /// Whether too many of its latest steps were slow: over three times what it usually takes, and more than it ever takes
    /// by chance. Without the second, the jitter of a long way moved requests off healthy nodes.
    pub fn is_gray(&self) -> bool {
        self.sum == GRAY
    }
}

#[cfg(test)]
mod tests {
    use super::{Detector, FIRST_STEPS};
    use crate::Millis;
    use crate::rng::Rng;

    /// Notes steps one after another; the number of the first after which the stage is gray.
    fn gray_after(stage: &mut Detector, steps: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut now = 0.0;
        let mut numbered = steps.into_iter().zip(1..);
        numbered.find_map(|(ms, number)| {
            now += ms;
            stage.note(Millis(now as u64), ms);
            stage.is_gray().then_some(number)
        })
    }

    /// A stage of `usual` ms that nothing has happened to.
    fn known(usual: f64) -> Detector {
        let mut stage = Detector::default();
        assert_eq!(gray_after(&mut stage, std::iter::repeat_n(usual, 50)), None);
        stage
    }

    /// `usual` ms, and `times` as much at every `nth` step.
    fn every(nth: usize, usual: f64, times: f64) -> impl Iterator<Item = f64> {
        (1..).map(move |step: usize| if step.is_multiple_of(nth) { times * usual } else { usual })
    }

    /// A normal draw, from twelve even ones.
    fn normal(chance: &mut Rng) -> f64 {
        (0..12).map(|_| chance.unit()).sum::<f64>() - 6.0
    }

    #[test]
    fn patience_follows_the_past() {
        let mut stage = Detector::default();
        assert_eq!(stage.patience_ms(1, 0.0), 2_000);
        (0..50).for_each(|t| stage.note(Millis(t * 20), 20.0));
        assert_eq!(stage.patience_ms(1, 0.0), 250);
        assert!(stage.patience_ms(65, 0.0) > 4_000);
        (0..9).for_each(|t| stage.note(Millis(1_000 + t * 100), 200.0));
        assert!(!stage.is_gray());
        stage.note(Millis(3_000), 200.0);
        assert!(stage.is_gray() && stage.patience_ms(1, 0.0) > 500);
        stage.note(Millis(3_100), 21.0);
        assert!(!stage.is_gray());
    }

    #[test]
    fn what_is_no_time_is_ignored() {
        let mut stage = known(20.0);
        let before = stage.clone();
        [f64::NAN, f64::INFINITY, -1.0].into_iter().for_each(|ms| stage.note(Millis(9_000), ms));
        assert_eq!(stage, before);
    }

    #[test]
    fn a_stage_that_stutters_is_left() {
        let after = |nth, times| gray_after(&mut known(20.0), every(nth, 20.0, times).take(1_000));
        assert_eq!(after(1, 10.0), Some(10));
        assert_eq!(after(1, 3.5), Some(10));
        assert_eq!(after(2, 10.0), Some(2 * 13), "three more every two steps");
        assert_eq!(after(3, 10.0), Some(3 * 19), "two more every three steps");
        assert_eq!(after(4, 10.0), Some(4 * 37), "one more every four steps");
        assert_eq!(after(5, 10.0), None);
    }

    /// Another node answered in its place each time it stood still.
    #[test]
    fn a_stage_that_others_stand_in_for_is_left() {
        let mut stage = known(20.0);
        let gray = (1..=20).find(|_| {
            stage.note_at_least(25.0);
            stage.note_at_least(400.0);
            let gray = stage.is_gray();
            [20.0, 20.0].into_iter().for_each(|ms| stage.note(Millis(9_000), ms));
            gray
        });
        assert_eq!(gray, Some(19));
        let mut unknown = Detector::default();
        (0..20).for_each(|_| unknown.note_at_least(400.0));
        assert_eq!(unknown, Detector::default());
    }

    #[test]
    fn a_stage_that_stutters_from_the_start_is_left() {
        let after = gray_after(&mut Detector::default(), every(3, 20.0, 10.0).take(1_000));
        assert!(after.is_some_and(|after| after <= FIRST_STEPS + 60), "{after:?}");
    }

    /// Steps of 5 to 65 ms that begin, by chance, with the quick ones.
    #[test]
    fn jitter_is_not_slowness() {
        let mut stage = Detector::default();
        let mut chance = Rng::new(3);
        let quick = (0..5).map(|t| 6.0 + f64::from(t));
        let steps = (5..10_000).map(|_| chance.between(5.0, 65.0));
        assert_eq!(gray_after(&mut stage, quick.chain(steps)), None);
        assert_eq!(gray_after(&mut stage, std::iter::repeat_n(350.0, 10)), Some(10));
    }

    /// Up to a spread at which one step in six takes over 2.7 times the usual.
    #[test]
    fn a_long_tail_is_not_slowness() {
        for (seed, spread) in (0..30).zip([0.3, 0.6, 1.0].into_iter().cycle()) {
            let mut chance = Rng::new(seed);
            let steps = (0..10_000).map(|_| 20.0 * (spread * normal(&mut chance)).exp());
            assert_eq!(gray_after(&mut Detector::default(), steps), None, "seed {seed}, spread {spread}");
        }
    }

    /// From 20 ms to a second while the context fills up, with jitter on top.
    #[test]
    fn a_growing_context_is_not_slowness() {
        let mut chance = Rng::new(7);
        let steps = (0..4_000).map(|t| (20.0 + 0.25 * f64::from(t)) * (0.2 * normal(&mut chance)).exp());
        assert_eq!(gray_after(&mut Detector::default(), steps), None);
    }

    /// A clock of whole milliseconds, and a stage that takes less than one.
    #[test]
    fn what_goes_unnoticed_is_not_slowness() {
        let mut chance = Rng::new(5);
        let steps =
            (0..10_000).map(|_| if chance.happens(0.3) { chance.between(1.0, 5.0).floor() } else { 0.0 });
        assert_eq!(gray_after(&mut Detector::default(), steps), None);
    }
}
