//! Estimators: what a stream of measurements says about now.
//!
//! All take the time of a sample as an argument and weigh by age, not by count, so that a busy and a quiet minute
//! count alike. None leaves the range of its samples, and samples that are negative, NaN or infinite are ignored:
//! some come from strangers.

use std::collections::VecDeque;

use crate::Millis;

/// How fast load changes.
pub const LOAD_TAU_MS: u64 = 5_000;
/// How fast the speed of a machine changes.
pub const SPEED_TAU_MS: u64 = 300_000;
/// Samples a window keeps; the oldest go first.
const WINDOW: usize = 64;

fn sane(sample: f64) -> bool {
    sample.is_finite() && sample >= 0.0
}

/// Exponential mean over time: a sample `dt` after the last one gets the weight `1 - exp(-dt / tau)`.
///
/// The first five samples are averaged by their median, so that one cold start does not stand for the machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Ema {
    tau_ms: f64,
    first: Vec<f64>,
    mean: f64,
    at: Millis,
}

impl Ema {
    /// Samples that are only used through their median.
    pub const WARM_UP: usize = 5;

    /// An estimator that forgets over about `tau_ms`.
    pub fn new(tau_ms: u64) -> Self {
        Self { tau_ms: tau_ms.max(1) as f64, first: Vec::new(), mean: 0.0, at: Millis(0) }
    }

    /// Adds a measurement taken at `now`.
    pub fn add(&mut self, now: Millis, sample: f64) {
        if !sane(sample) {
            return;
        }
        if self.first.len() < Self::WARM_UP {
            self.first.push(sample);
            self.mean = median(self.first.iter().copied()).unwrap_or(sample);
        } else {
            let weight = 1.0 - (-(now.since(self.at) as f64) / self.tau_ms).exp();
            self.mean += weight * (sample - self.mean);
        }
        self.at = self.at.max(now);
    }

    /// The estimate, once there is any sample.
    pub fn value(&self) -> Option<f64> {
        (!self.first.is_empty()).then_some(self.mean)
    }

    /// When the last sample came.
    pub fn last(&self) -> Millis {
        self.at
    }
}

/// The middle one of `values`, of an even number the mean of both; `None` without any.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    let (mid, odd) = (values.len() / 2, values.len() % 2 == 1);
    if values.is_empty() {
        return None;
    }
    let (below, upper, _) = values.select_nth_unstable_by(mid, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| !odd);
    Some(lower.map_or(*upper, |lower| f64::midpoint(lower, *upper)))
}

/// Smoothed round trip and its variation, as RFC 6298 has them: `srtt` with gain 1/8, `rttvar` with gain 1/4.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RoundTrip {
    state: Option<(f64, f64)>,
}

impl RoundTrip {
    /// Adds one measured round trip, ms.
    pub fn add(&mut self, sample: f64) {
        if sane(sample) {
            self.state = Some(match self.state {
                None => (sample, sample / 2.0),
                Some((mean, var)) => {
                    (mean + (sample - mean) / 8.0, var + ((sample - mean).abs() - var) / 4.0)
                }
            });
        }
    }

    /// The smoothed round trip, ms.
    pub fn mean_ms(&self) -> Option<f64> {
        self.state.map(|state| state.0)
    }

    /// A bound that about one round trip in a hundred exceeds: mean plus four variations, ms.
    pub fn p99_ms(&self) -> Option<f64> {
        self.state.map(|state| state.0 + 4.0 * state.1)
    }
}

/// The least or the greatest of the samples of the last `span_ms`.
///
/// The minimum of recent round trips is the distance without queues; the maximum of recent transfer rates is what
/// the path can carry.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    span_ms: u64,
    samples: VecDeque<(Millis, f64)>,
}

impl Window {
    /// A window over the last `span_ms`.
    pub fn new(span_ms: u64) -> Self {
        Self { span_ms, samples: VecDeque::new() }
    }

    /// Adds a measurement taken at `now`; beyond 64 the oldest is dropped.
    pub fn add(&mut self, now: Millis, sample: f64) {
        if !sane(sample) {
            return;
        }
        self.samples.retain(|(at, _)| now.since(*at) <= self.span_ms);
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back((now, sample));
    }

    fn live(&self, now: Millis) -> impl Iterator<Item = f64> + '_ {
        self.samples.iter().filter(move |(at, _)| now.since(*at) <= self.span_ms).map(|(_, sample)| *sample)
    }

    /// The least sample still in the window.
    pub fn min(&self, now: Millis) -> Option<f64> {
        self.live(now).reduce(f64::min)
    }

    /// The sample still in the window below which the share `q` of them lies, the lower one of two.
    pub fn quantile(&self, now: Millis, q: f64) -> Option<f64> {
        let mut samples: Vec<f64> = self.live(now).collect();
        let last = samples.len().checked_sub(1)?;
        let at = ((last as f64 * q.clamp(0.0, 1.0)) as usize).min(last);
        Some(*samples.select_nth_unstable_by(at, f64::total_cmp).1)
    }

    /// The greatest sample still in the window.
    pub fn max(&self, now: Millis) -> Option<f64> {
        self.live(now).reduce(f64::max)
    }
}

/// What a visit costs: `fixed + slope * layers`, fitted by least squares with older samples decayed.
///
/// Speed does not follow ping: a segment of two layers on a slow peer once took a chain from 152 to 3,768 ms a token.
/// So the fixed part is fitted on its own rather than guessed from round trips.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct VisitFit {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    at: Millis,
}

impl VisitFit {
    /// Adds a visit of `layers` layers that took `ms`, at `now`.
    pub fn add(&mut self, now: Millis, layers: u32, ms: f64) {
        if !sane(ms) || layers == 0 {
            return;
        }
        let keep =
            if self.weight > 0.0 { (-(now.since(self.at) as f64) / SPEED_TAU_MS as f64).exp() } else { 0.0 };
        let x = f64::from(layers);
        self.weight = self.weight * keep + 1.0;
        self.x = self.x * keep + x;
        self.y = self.y * keep + ms;
        self.xx = self.xx * keep + x * x;
        self.xy = self.xy * keep + x * ms;
        self.at = self.at.max(now);
    }

    /// `(fixed ms per visit, ms per layer)`, both at least zero. With only one width seen everything counts as
    /// slope, which prices other widths safely.
    pub fn fit(&self) -> Option<(f64, f64)> {
        if self.weight == 0.0 {
            return None;
        }
        let through_zero = (0.0, self.xy / self.xx);
        let spread = self.weight * self.xx - self.x * self.x;
        if spread <= 1e-9 * self.weight * self.xx {
            return Some(through_zero);
        }
        let slope = (self.weight * self.xy - self.x * self.y) / spread;
        let fixed = (self.y - slope * self.x) / self.weight;
        Some(match (fixed >= 0.0, slope >= 0.0) {
            (true, true) => (fixed, slope),
            (false, _) => through_zero,
            (true, false) => (self.y / self.weight, 0.0),
        })
    }
}

/// What visits wait that the price of load does not say already, ms: of `waited_ms` what is beyond the rows of `active` sessions,
/// where a step takes `step_ms` and as long again with `knee` of them ([`crate::cost`]). A wait is news of the last
/// seconds; priced in full beside the sessions that caused it, it sends all requests elsewhere at once, and back. Without
/// sessions it is over.
pub fn unexplained_wait_ms(waited_ms: f64, step_ms: f64, active: u32, knee: u32) -> f64 {
    if active == 0 {
        return 0.0;
    }
    (waited_ms - step_ms * f64::from(active) / f64::from(knee.max(1))).max(0.0)
}

/// What a stranger claims, bounded by what was seen of it: after three samples a claim counts only within half and
/// twice the observation, before that not below `prior`.
pub fn bounded_claim(claim: f64, seen: &Ema, prior: f64) -> f64 {
    match seen.value() {
        Some(observed) if seen.first.len() >= 3 => claim.clamp(0.5 * observed, 2.0 * observed),
        _ => claim.max(prior),
    }
}

#[cfg(test)]
mod tests {
    use super::{Ema, RoundTrip, SPEED_TAU_MS, VisitFit, Window, bounded_claim, unexplained_wait_ms};
    use crate::Millis;
    use crate::rng::Rng;

    #[test]
    fn the_mean_stays_in_range_and_follows_a_change() {
        let mut chance = Rng::new(1);
        let mut ema = Ema::new(1_000);
        for t in 0..500 {
            ema.add(Millis(t * 37), chance.between(3.0, 9.0));
            let mean = ema.value().unwrap();
            assert!((3.0..9.0).contains(&mean));
        }
        (0..100).for_each(|t| ema.add(Millis(20_000 + t * 100), 50.0));
        assert!((ema.value().unwrap() - 50.0).abs() < 0.5);
    }

    #[test]
    fn a_cold_start_and_nonsense_do_not_count() {
        let mut ema = Ema::new(SPEED_TAU_MS);
        assert_eq!(ema.value(), None);
        for (t, sample) in [900.0, 4.0, f64::NAN, 4.2, -1.0, 3.8, f64::INFINITY, 4.1].into_iter().enumerate()
        {
            ema.add(Millis(t as u64), sample);
        }
        assert_eq!(ema.value(), Some(4.1));
    }

    #[test]
    fn round_trips_as_in_the_rfc() {
        let mut rtt = RoundTrip::default();
        rtt.add(100.0);
        assert_eq!((rtt.mean_ms(), rtt.p99_ms()), (Some(100.0), Some(300.0)));
        rtt.add(140.0);
        assert_eq!((rtt.mean_ms(), rtt.p99_ms()), (Some(105.0), Some(295.0)));
    }

    #[test]
    fn a_window_forgets() {
        let mut window = Window::new(1_000);
        window.add(Millis(0), 5.0);
        window.add(Millis(900), 7.0);
        window.add(Millis(901), f64::NAN);
        assert_eq!((window.min(Millis(1_000)), window.max(Millis(1_000))), (Some(5.0), Some(7.0)));
        assert_eq!((window.min(Millis(1_500)), window.min(Millis(3_000))), (Some(7.0), None));
        assert_eq!(
            (window.quantile(Millis(1_500), 0.5), window.quantile(Millis(3_000), 0.5)),
            (Some(7.0), None)
        );
        (0..1_000).for_each(|t| window.add(Millis(2_000), f64::from(t)));
        let quantile = |q| window.quantile(Millis(2_000), q);
        assert_eq!((quantile(0.0), quantile(0.5), quantile(2.0)), (Some(936.0), Some(967.0), Some(999.0)));
        assert_eq!(window.min(Millis(2_000)), Some(936.0));
    }

    #[test]
    fn a_visit_is_fixed_plus_slope() {
        let mut fit = VisitFit::default();
        assert_eq!(fit.fit(), None);
        fit.add(Millis(0), 8, 100.0);
        assert_eq!(fit.fit(), Some((0.0, 12.5)));
        for (t, layers) in [2, 4, 8, 16, 2, 4].into_iter().enumerate() {
            fit.add(Millis(SPEED_TAU_MS * 20 + t as u64), layers, 30.0 + 5.0 * f64::from(layers));
        }
        let (fixed, slope) = fit.fit().unwrap();
        assert!((fixed - 30.0).abs() < 0.1 && (slope - 5.0).abs() < 0.01, "{fixed} {slope}");
    }

    #[test]
    fn a_wait_counts_beyond_what_sessions_explain() {
        assert_eq!(unexplained_wait_ms(50.0, 20.0, 7, 14), 40.0);
        assert_eq!(unexplained_wait_ms(5.0, 20.0, 7, 14), 0.0);
        assert_eq!(
            (unexplained_wait_ms(5.0, 20.0, 0, 14), unexplained_wait_ms(25.0, 20.0, 1, 0)),
            (0.0, 5.0)
        );
    }

    #[test]
    fn claims_are_bounded_by_what_was_seen() {
        let mut seen = Ema::new(SPEED_TAU_MS);
        assert_eq!(bounded_claim(0.1, &seen, 6.0), 6.0);
        (0..3).for_each(|t| seen.add(Millis(t), 10.0));
        assert_eq!(bounded_claim(0.1, &seen, 6.0), 5.0);
        assert_eq!(bounded_claim(100.0, &seen, 6.0), 20.0);
        assert_eq!(bounded_claim(9.0, &seen, 6.0), 9.0);
    }
}
