//! How many tokens to draft behind a step.
//!
//! A step of `1 + k` rows takes the ring and what its rows cost on every stage, `T(1 + k)`; it yields the token that is right
//! in any case and the drafted ones up to the first wrong one. With `p[i]` the chance of draft `i` where all before it are
//! right, that is
//!
//! ```text
//! E(k) = 1 + p[0] + p[0] p[1] + ... + p[0] .. p[k-1]
//! ```
//!
//! tokens, and the best depth is the `k` of the greatest `E(k) / T(1 + k)`. With equal chances `a` this is
//! `A(k) = (1 - a^k) / (1 - a)` of the usual notation, which counts the certain token among its `k`.
//!
//! Worked example: a ring of 300 ms, rows of 4 ms, chances of 0.8. No draft: 1 / 300 = 3.3 tokens a second. Four drafts:
//! `1 + 0.8 + 0.64 + 0.512 + 0.41 = 3.36` tokens in 316 ms, 10.6 a second. Eight: 4.33 in 332 ms, 13.0 a second. Sixteen:
//! 4.89 in 364 ms, 13.4 a second. The same on one machine, 30 ms a step: eight give 4.33 in 62 ms, twice the speed of none.
//!
//! Nothing here looks at a clock: times are arguments. Where drafts cost more than they bring though the figures promised
//! otherwise, [`Depth`] rests, longer each time.

/// Weight of the newest measurement.
const NEW: f64 = 0.2;
/// A measurement counts as at most so many times what was expected, or as the one before it: one stall says nothing of rows,
/// two in a row do.
const STALL: f64 = 3.0;
/// What a row is taken to cost goes back to what was believed by this share with every plain step: a cost that keeps drafts
/// away is not measured again otherwise.
const FADE: f64 = 0.03;
/// A draft must promise this much more than none, since figures are never exact.
const GAIN: f64 = 1.03;
/// The debt, in plain steps, at which drafting rests.
const DEBT: f64 = 0.5;
/// What drafts cost in vain is at most this share of the steps after it: a rest is at least so long.
const LOST: f64 = 0.035;
/// Longest rest for what was lost.
const MOST_LOST_STEPS: f64 = 4096.0;
/// Steps of the first rest; each one is twice as long as the one before.
const REST_STEPS: u32 = 16;
/// Longest rest: in an answer of common length a change of text is noticed.
const MOST_REST_STEPS: u32 = 128;
/// Rows that are told apart when extra rows are timed: up to 2, 4, 8 and more. Kernels cost by such classes.
const CLASSES: [u32; 3] = [2, 4, 8];

/// How often guesses of one kind are right, from those that were judged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Odds {
    right: f64,
    wrong: f64,
}

impl Odds {
    /// As much as this is believed before any guess, as if so many had been judged; both are at least 0.
    pub fn new(chance: f64, judged: f64) -> Self {
        let chance = if chance.is_finite() { chance.clamp(0.0, 1.0) } else { 0.0 };
        let judged = if judged.is_finite() { judged.max(1e-3) } else { 1.0 };
        Self { right: chance * judged, wrong: (1.0 - chance) * judged }
    }

    /// The chance of the next one, 0 to 1.
    pub fn chance(&self) -> f64 {
        self.right / (self.right + self.wrong)
    }

    /// Of one draft `right` guesses were right, and the next one was wrong if `missed`. What was seen long ago fades.
    pub fn judge(&mut self, right: u32, missed: bool) {
        if right == 0 && !missed {
            return;
        }
        // Twenty drafts or so are remembered.
        self.right = self.right * 0.95 + f64::from(right);
        self.wrong = self.wrong * 0.95 + f64::from(u8::from(missed));
    }
}

/// What one more row costs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct RowCost {
    /// As it was measured last, ms.
    seen_ms: f64,
    /// As it is taken, ms: the longer ago that was, the less it counts.
    taken_ms: f64,
}

/// What steps cost, and whether drafts have paid.
#[derive(Clone, PartialEq, Debug)]
pub struct Depth {
    /// A step of one row, ms.
    plain_ms: f64,
    /// Whether one was measured.
    measured: bool,
    /// Whether drafts wait for one: a step with drafts has come first, and what it took says nothing without one.
    waits: bool,
    /// One more row, ms, as long as none of its class was measured.
    row_ms: f64,
    /// What a row is believed to take of a plain step, where nothing is believed of that: no draft before one was measured.
    share: Option<f64>,
    /// One more row, by class of rows.
    rows: [Option<RowCost>; CLASSES.len() + 1],
    /// The rows and ms of the latest step with drafts, where that was too late to count in full or nothing to measure it by was
    /// known: it counts in full if the next one is as late.
    late: Option<(u32, f64)>,
    /// What drafts have cost beyond what they brought, in plain steps; never below 0.
    debt: f64,
    rest: u32,
    next_rest: u32,
}

fn class(rows: u32) -> usize {
    CLASSES.iter().position(|most| rows <= *most).unwrap_or(CLASSES.len())
}

impl Depth {
    /// With what is believed before anything is measured: ms of a step of one row, and of each row beyond.
    pub fn new(plain_ms: f64, row_ms: f64) -> Self {
        let sane = |ms: f64| if ms.is_finite() { ms.clamp(1e-3, 1e9) } else { 1.0 };
        Self {
            plain_ms: sane(plain_ms),
            measured: false,
            waits: false,
            row_ms: sane(row_ms),
            share: None,
            rows: Default::default(),
            late: None,
            debt: 0.0,
            rest: 0,
            next_rest: REST_STEPS,
        }
    }

    /// Where nothing is believed of a step but that each row beyond the first takes `share` of a step of one row, above 0:
    /// nothing is drafted before such a step was measured.
    pub fn unmeasured(share: f64) -> Self {
        let share = if share.is_finite() { share.clamp(1e-3, 1e3) } else { 1.0 };
        Self { share: Some(share), waits: true, ..Self::new(1.0, share) }
    }

    /// Milliseconds of a step of `rows` rows, as far as is known.
    pub fn step_ms(&self, rows: u32) -> f64 {
        self.plain_ms + self.row(rows).taken_ms * f64::from(rows.saturating_sub(1))
    }

    /// What one more of `rows` rows costs.
    fn row(&self, rows: u32) -> RowCost {
        let at = class(rows);
        // The nearest class that was measured says more than a belief.
        let near = (0..self.rows.len()).filter_map(|other| Some((other.abs_diff(at), self.rows[other]?)));
        let believed = RowCost { seen_ms: self.row_ms, taken_ms: self.row_ms };
        near.min_by_key(|(distance, _)| *distance).map_or(believed, |(_, cost)| cost)
    }

    /// How many drafts to send of those on offer, of which `chances` are the chances, each where all before it are right;
    /// a draft of `drafting_ms` each has still to be made. 0 while drafting rests.
    pub fn best(&self, chances: &[f64], drafting_ms: f64) -> usize {
        self.best_beyond(chances, 0, drafting_ms)
    }

    /// As [`Depth::best`], where the first `made` drafts are made already and cost nothing more.
    pub fn best_beyond(&self, chances: &[f64], made: usize, drafting_ms: f64) -> usize {
        if self.rests() {
            return 0;
        }
        let (mut tokens, mut all_right) = (1.0, 1.0);
        let (mut best, mut most) = (0, GAIN / self.step_ms(1));
        for (at, chance) in chances.iter().enumerate() {
            all_right *= if chance.is_finite() { chance.clamp(0.0, 1.0) } else { 0.0 };
            tokens += all_right;
            let ms =
                self.step_ms(at as u32 + 2) + drafting_ms.max(0.0) * (at + 1).saturating_sub(made) as f64;
            if tokens / ms > most {
                (best, most) = (at + 1, tokens / ms);
            }
        }
        best
    }

    /// A step of `rows` rows took `ms` and gave `tokens` tokens. Steps that were disturbed (a stage was lost) are not told.
    pub fn note(&mut self, rows: u32, tokens: u32, ms: f64) {
        if !(ms.is_finite() && ms > 0.0) || rows == 0 {
            return;
        }
        let RowCost { seen_ms, taken_ms } = self.row(rows);
        let most_ms = (self.plain_ms + seen_ms.max(taken_ms) * f64::from(rows - 1)) * STALL;
        if rows == 1 {
            let ms = if self.measured { ms.min(most_ms) } else { ms };
            let new = if self.measured { NEW } else { 1.0 };
            self.plain_ms += new * (ms - self.plain_ms);
            (self.measured, self.waits) = (true, false);
            if let Some(share) = self.share {
                self.row_ms = share * self.plain_ms;
            }
            self.rest = self.rest.saturating_sub(1);
            let believed = self.row_ms;
            self.rows.iter_mut().flatten().for_each(|row| row.taken_ms += FADE * (believed - row.taken_ms));
            self.settle();
            return;
        }
        if !self.measured {
            // What is believed of a step may be far off, so this one says neither what its rows took nor whether they paid.
            (self.waits, self.late) = (true, Some((rows, ms)));
            return;
        }
        let late = self.late.take().map_or(0.0, |(rows, ms)| (ms - self.plain_ms) / f64::from(rows - 1));
        self.late = (ms > most_ms).then_some((rows, ms));
        let ms = ms.min(most_ms.max(self.plain_ms + late * f64::from(rows - 1)));
        let extra = ((ms - self.plain_ms) / f64::from(rows - 1)).max(0.0);
        let known = &mut self.rows[class(rows)];
        // A cost that is seen twice was no accident; one that was high once and is not now is forgotten sooner.
        let before = |known: RowCost| if extra < known.seen_ms { known.taken_ms } else { known.seen_ms };
        let row_ms = known.map_or(extra, |known| before(known) + NEW * (extra - before(known)));
        *known = Some(RowCost { seen_ms: row_ms, taken_ms: row_ms });
        self.debt = (self.debt + ms / self.plain_ms - f64::from(tokens)).max(0.0);
        self.settle();
    }

    /// Making drafts took `ms` before a step that is told next.
    pub fn spend(&mut self, ms: f64) {
        if ms.is_finite() && ms > 0.0 {
            self.debt += ms / self.plain_ms;
        }
    }

    /// Rests where drafts have cost too much in vain.
    fn settle(&mut self) {
        if self.debt >= DEBT {
            let lost = (self.debt / LOST).min(MOST_LOST_STEPS) as u32;
            (self.rest, self.debt) = (self.next_rest.max(lost), 0.0);
            self.next_rest = (self.next_rest * 2).min(MOST_REST_STEPS);
        }
    }

    /// Whether drafting rests: it did not pay, or waits for a step without drafts.
    pub fn rests(&self) -> bool {
        self.rest > 0 || self.waits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_worked_example() {
        let ring = Depth::new(300.0, 4.0);
        let tokens = |k: i32| (1.0 - 0.8f64.powi(k + 1)) / 0.2;
        let speed = |k: i32| tokens(k) / (300.0 + 4.0 * f64::from(k)) * 1e3;
        assert!(
            (speed(8) - 13.04).abs() < 0.01 && (speed(16) - 13.43).abs() < 0.01,
            "{} {}",
            speed(8),
            speed(16)
        );
        let best = ring.best(&[0.8; 16], 0.0);
        assert!((1..=16).all(|k| speed(k) <= speed(best as i32)), "{best}");
        assert_eq!(ring.best(&[0.8; 4], 0.0), 4);
        assert_eq!(ring.best(&[], 0.0), 0);
        assert_eq!(ring.best(&[0.0; 16], 0.0), 0);
    }

    #[test]
    fn what_is_measured_replaces_what_was_believed() {
        let mut depth = Depth::new(1.0, 1.0);
        depth.note(1, 1, 100.0);
        depth.note(4, 1, 130.0);
        assert_eq!((depth.step_ms(1), depth.step_ms(4), depth.step_ms(11)), (100.0, 130.0, 200.0));
        // A stage that stalls for ten seconds is not what a row costs.
        depth.note(4, 4, 10_000.0);
        assert!(depth.step_ms(4) < 200.0, "{}", depth.step_ms(4));
    }

    #[test]
    fn nothing_is_drafted_before_a_plain_step_was_measured() {
        let mut depth = Depth::unmeasured(0.1);
        assert_eq!(depth.best(&[1.0; 4], 0.0), 0);
        depth.note(1, 1, 40.0);
        assert_eq!((depth.step_ms(1), depth.step_ms(3)), (40.0, 48.0));
        assert_eq!(depth.best(&[1.0; 4], 0.0), 4);
        assert_eq!(depth.best(&[0.05; 4], 0.0), 0);
    }

    /// A plan that believes a long ring to be a short one keeps no drafts away: the first step with drafts is not held against
    /// what was believed, and the next one has none.
    #[test]
    fn a_wrong_belief_is_no_debt() {
        let mut depth = Depth::new(30.0, 3.0);
        assert!(depth.best(&[0.5; 3], 0.0) > 0);
        depth.note(4, 1, 210.0);
        assert_eq!(depth.best(&[0.5; 3], 0.0), 0);
        depth.note(1, 1, 190.0);
        assert_eq!((depth.step_ms(1), depth.step_ms(2)), (190.0, 193.0));
        assert_eq!(depth.best(&[0.5; 3], 0.0), 3);
    }

    /// Drafts that are always right and still cost more than they bring: the second late step is no stall.
    #[test]
    fn a_second_late_step_is_what_rows_cost() {
        let mut depth = Depth::new(13.0, 0.0);
        depth.note(9, 9, 980.0);
        depth.note(1, 1, 13.0);
        assert_eq!(depth.best(&[1.0; 8], 0.0), 8, "one says nothing");
        depth.note(9, 9, 980.0);
        assert!(depth.rests());
        assert!((depth.step_ms(9) - 980.0).abs() < 1.0, "{}", depth.step_ms(9));
    }

    /// One pass that was late for another reason keeps drafts away for a while, not for good.
    #[test]
    fn a_late_pass_is_forgotten() {
        let mut depth = Depth::new(150.0, 2.0);
        depth.note(1, 1, 150.0);
        let best = depth.best(&[0.6; 4], 0.0);
        assert!(best >= 3, "{best}");
        depth.note(best as u32 + 1, 1, 450.0);
        let steps = (0..200).find(|_| {
            depth.note(1, 1, 150.0);
            depth.best(&[0.6; 4], 0.0) > 0
        });
        assert!(steps.is_some_and(|steps| steps < 60), "{steps:?}");
    }

    #[test]
    fn what_does_not_pay_rests_ever_longer() {
        let mut depth = Depth::new(10.0, 0.1);
        let mut drafted = Vec::new();
        for step in 0..2_000 {
            // Whatever was learned, the source claims to be certain.
            let k = depth.best(&[1.0; 3], 0.0);
            if k > 0 {
                drafted.push(step);
            }
            depth.note(k as u32 + 1, 1, if k > 0 { 20.0 } else { 10.0 });
        }
        assert!(drafted.len() < 40, "{drafted:?}");
        assert!(drafted.last() > Some(&1_800), "it tries again");
    }

    /// Drafts that take long to make are made only where they bring more, and what they cost in vain counts.
    #[test]
    fn what_a_draft_takes_to_make_counts() {
        let mut depth = Depth::new(100.0, 1.0);
        assert_eq!(depth.best(&[0.5; 8], 60.0), 0);
        let (free, dear) = (depth.best_beyond(&[0.5; 8], 2, 60.0), depth.best_beyond(&[0.5; 8], 2, 1.0));
        assert!(free == 2 && dear > 2, "{free} {dear}");
        depth.note(1, 1, 100.0);
        depth.spend(60.0);
        depth.note(1, 1, 100.0);
        assert!(depth.rests() && depth.best(&[1.0; 4], 0.0) == 0);
    }

    proptest! {
        /// No other depth has a better rate, and none is taken that is not better than no draft.
        #[test]
        fn the_best_is_the_best(
            plain in 0.1f64..1e3, row in 0.0f64..50.0, drafting in 0.0f64..20.0,
            chances in prop::collection::vec(0.0f64..=1.0, 0..17),
        ) {
            let depth = Depth::new(plain, row);
            let rate = |k: usize| {
                let tokens: f64 = (0..=k).map(|n| chances[..n].iter().product::<f64>()).sum();
                tokens / (depth.step_ms(k as u32 + 1) + drafting * k as f64)
            };
            let best = depth.best(&chances, drafting);
            prop_assert!(best <= chances.len());
            let most = (0..=chances.len()).map(rate).fold(0.0, f64::max);
            prop_assert!(rate(best) >= most / GAIN * (1.0 - 1e-12));
            prop_assert!(best == 0 || rate(best) > rate(0));
        }

        /// A longer ring never makes drafts shorter: rows cost the same, and what they save is more.
        #[test]
        fn a_longer_ring_drafts_no_less(
            plain in 0.1f64..1e3, more in 0.0f64..1e3, row in 0.0f64..50.0,
            chances in prop::collection::vec(0.0f64..=1.0, 0..17),
        ) {
            let near = Depth::new(plain, row).best(&chances, 0.0);
            prop_assert!(Depth::new(plain + more, row).best(&chances, 0.0) >= near);
        }

        /// Whatever the drafts are worth and rows cost, an answer takes hardly longer than without them.
        #[test]
        fn drafts_never_cost_much(
            seed in any::<u64>(), plain in 1.0f64..500.0, row in 0.0f64..200.0, believed in 0.0f64..20.0,
            chance in 0.0f64..=1.0, offered in 1usize..17, steps in 100u32..400,
        ) {
            let mut rng = Rng::new(seed);
            let (mut depth, mut odds) = (Depth::new(plain, believed), Odds::new(0.5, 2.0));
            let (mut spent, mut tokens) = (0.0, 0);
            while tokens < steps {
                let k = depth.best(&vec![odds.chance(); offered], 0.0) as u32;
                let right = (0..k).take_while(|_| rng.happens(chance)).count() as u32;
                odds.judge(right, right < k);
                let ms = plain + row * f64::from(k);
                depth.note(k + 1, right + 1, ms);
                spent += ms;
                tokens += right + 1;
            }
            // Learning costs a step of seventeen rows at worst, and rests see to the remainder.
            let allowed = plain * f64::from(tokens) * 1.05 + (plain + row * 16.0) * 2.0 + plain * 8.0;
            prop_assert!(spent <= allowed, "{spent} ms for {tokens} tokens of {plain} ms");
        }

        /// Odds stay odds, and no figure panics.
        #[test]
        fn odd_figures_are_taken(chance: f64, judged: f64, ms: f64, rows: u32, tokens: u32, rounds in 0u32..50) {
            let mut odds = Odds::new(chance, judged);
            let mut depth = Depth::new(ms, judged);
            for round in 0..rounds {
                odds.judge(round % 7, round % 3 == 0);
                depth.note(rows, tokens, ms);
                depth.best(&[chance, odds.chance()], judged);
            }
            prop_assert!((0.0..=1.0).contains(&odds.chance()));
            prop_assert!(depth.step_ms(5) > 0.0);
        }
    }
}
