//! How good predictions have been, and how far the next one may be off.
//!
//! A prediction of one number says nothing of its certainty. What was seen of earlier ones does: the ratios of seen to
//! predicted, of which the middle nine tenths are the range of the next. Before [`ENOUGH`] are known the range is that of all
//! ratios, widened; before any, half to twice.
//!
//! ```text
//!  ratios seen     0.9  1.0  1.0  1.1  1.6        range of 100 ms: 0.9 / 1.29 x 100 to 1.6 x 1.29 x 100 = 70 to 206 ms
//! ```
//!
//! Each new ratio is first compared with the range as it stood: the share that lay within is what the range is worth
//! ([`Score`]). What was disturbed by a fault or by other work must not be added: it says nothing of the next one.
//!
//! Limits: the last [`KEPT`] count alike, whatever they were predictions of; one forecast is for one quantity of one model.

use std::collections::VecDeque;

/// Ratios kept: predictions as they are made today, not last week.
pub const KEPT: usize = 48;
/// Ratios from which on the extremes are left out: one twentieth at each end.
pub const ENOUGH: usize = 19;
/// Left out at each end.
const TAIL: f64 = 0.05;

/// See the module's page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Forecast {
    /// Seen over predicted, and whether that was within the range as it stood.
    seen: VecDeque<(f64, bool)>,
}

/// How good predictions have been.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    /// Predictions that were compared.
    pub count: usize,
    /// The median of their relative errors.
    pub median_error: f64,
    /// The share of them that lay within the range.
    pub within: f64,
}

impl Forecast {
    /// `predicted` came true as `seen`. Numbers that are not finite and positive are ignored.
    pub fn add(&mut self, predicted: f64, seen: f64) {
        let ratio = seen / predicted;
        if !(ratio.is_finite() && ratio > 0.0 && predicted > 0.0) {
            return;
        }
        let (low, high) = self.ratios();
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back((ratio, (low..=high).contains(&ratio)));
    }

    /// From where to where `predicted` may come true.
    pub fn range(&self, predicted: f64) -> (f64, f64) {
        let (low, high) = self.ratios();
        (predicted * low, predicted * high)
    }

    /// How good predictions have been; `None` before any came true.
    pub fn score(&self) -> Option<Score> {
        let mut errors: Vec<f64> = self.seen.iter().map(|(ratio, _)| (ratio - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let within = self.seen.iter().filter(|(_, within)| *within).count();
        let count = errors.len();
        let median_error = *errors.get(count / 2)?;
        Some(Score { count, median_error, within: within as f64 / count as f64 })
    }

    fn ratios(&self) -> (f64, f64) {
        let mut ratios: Vec<f64> = self.seen.iter().map(|(ratio, _)| *ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        let (Some(&least), Some(&most)) = (ratios.first(), ratios.last()) else { return (0.5, 2.0) };
        if n < ENOUGH {
            let wider = 1.0 + 2.0 / (n as f64 + 2.0);
            return (least / wider, most * wider);
        }
        let out = ((n as f64 + 1.0) * TAIL) as usize - 1;
        (ratios[out], ratios[n - 1 - out])
    }
}

#[cfg(test)]
mod tests {
    use super::{ENOUGH, Forecast, KEPT};
    use crate::rng::Rng;

    #[test]
    fn the_example_of_the_page() {
        let mut forecast = Forecast::default();
        assert_eq!((forecast.range(100.0), forecast.score()), ((50.0, 200.0), None));
        [0.9, 1.0, 1.0, 1.1, 1.6].into_iter().for_each(|ratio| forecast.add(10.0, 10.0 * ratio));
        let (low, high) = forecast.range(100.0);
        assert_eq!((low.round(), high.round()), (70.0, 206.0));
        let score = forecast.score().unwrap();
        assert_eq!((score.count, score.within), (5, 0.8), "when 1.6 came, up to 1.47 was the range");
        assert!((score.median_error - 0.1).abs() < 1e-9, "{score:?}");
    }

    #[test]
    fn nine_in_ten_come_true_within_the_range_and_the_range_follows() {
        let mut forecast = Forecast::default();
        let mut rng = Rng::new(5);
        let mut within = 0;
        let seen = |around: f64, rng: &mut Rng| around * 2f64.powf(rng.between(-0.5, 0.5));
        for at in 0..600 {
            let (low, high) = forecast.range(40.0);
            let came = seen(50.0, &mut rng);
            within += u32::from(at >= 100 && (low..=high).contains(&came));
            forecast.add(40.0, came);
        }
        assert!((425..=485).contains(&within), "{within} of 500");
        let (low, high) = forecast.range(40.0);
        assert!((34.0..42.0).contains(&low) && (60.0..72.0).contains(&high), "{low} {high}");
        // Slower from now on: after as many as are kept nothing else is known.
        (0..KEPT).for_each(|_| forecast.add(40.0, seen(200.0, &mut rng)));
        assert!(forecast.range(40.0).0 > 140.0 && KEPT > ENOUGH);
        let before = forecast.clone();
        [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, -1.0)]
            .into_iter()
            .for_each(|(predicted, seen)| forecast.add(predicted, seen));
        assert_eq!(forecast, before);
    }
}
