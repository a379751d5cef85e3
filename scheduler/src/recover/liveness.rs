//! How long a node may be silent, from how long it took to answer.
//!
//! A fixed bound takes a busy machine for a dead one, and a crowd whose members all do so moves its sessions in circles
//! until none is left. So the bound follows what was seen, as in N. Hayashibara, X. Defago, R. Yared and T. Katayama, *The phi
//! accrual failure detector* (SRDS 2004): suspicion is how unlikely a silence is, given the answers before it. Their
//! distribution is taken as mean and deviation here ([`RoundTrip::p99_ms`]), so the bound is what one answer in a hundred exceeds.
//!
//! An answer that comes after the bound counts like any other: who was suspected in vain is given longer the next time.
//!
//! Limits: never less than the bound without a past, and never more than [`MOST_SILENCE_MS`]; a freeze that ends counts as an
//! answer of [`MOST_ANSWER_MS`], or a node that stood still once could do so for long.

use crate::Millis;
use crate::latency::RoundTrip;

/// Silence beyond this is suspect whatever the past: a reader notices, and a node so slow is better left where another is.
pub const MOST_SILENCE_MS: u64 = 3_000;
/// What an answer counts as at most.
const MOST_ANSWER_MS: u64 = 1_500;

/// How long one node takes to answer.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Liveness {
    answers: RoundTrip,
    asked: Option<Millis>,
}

impl Liveness {
    /// It was asked whether it is there, maybe again.
    pub fn asked(&mut self, now: Millis) {
        self.asked.get_or_insert(now);
    }

    /// It said something.
    pub fn answered(&mut self, now: Millis) {
        if let Some(asked) = self.asked.take() {
            self.answers.add(now.since(asked).min(MOST_ANSWER_MS) as f64);
        }
    }

    /// It said something of what it was given so long ago, and had said before that it waited for that: it was not lost.
    pub fn took(&mut self, ms: u64) {
        self.answers.add(ms.min(MOST_ANSWER_MS) as f64);
    }

    /// How long it may be silent, ms; `least` without a past.
    pub fn silence_ms(&self, least: u64) -> u64 {
        let usual = self.answers.p99_ms().map_or(0, |ms| ms as u64);
        least.max(usual.min(MOST_SILENCE_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::{Liveness, MOST_SILENCE_MS};
    use crate::Millis;

    fn after(answers: impl IntoIterator<Item = u64>) -> Liveness {
        let (mut node, mut now) = (Liveness::default(), Millis(0));
        for ms in answers {
            node.asked(now);
            // Asked again while it has not answered: the first time counts.
            node.asked(now + ms / 2);
            now = now + ms;
            node.answered(now);
            now = now + 100;
        }
        node
    }

    #[test]
    fn a_silence_is_judged_by_the_answers_before_it() {
        assert_eq!(Liveness::default().silence_ms(350), 350);
        assert_eq!(after([5; 20]).silence_ms(350), 350, "quick nodes are suspected as before");
        let busy = after([300, 500, 400, 700, 350, 600, 450]).silence_ms(350);
        assert!((700..=MOST_SILENCE_MS).contains(&busy), "{busy}");
        assert!(after([2_000; 9]).silence_ms(350) <= MOST_SILENCE_MS);
    }

    #[test]
    fn one_freeze_is_soon_forgotten() {
        let frozen = after([5; 20].into_iter().chain([60_000])).silence_ms(350);
        assert!(frozen > 1_000 && frozen <= MOST_SILENCE_MS, "{frozen}");
        assert_eq!(after([5; 20].into_iter().chain([60_000]).chain([5; 12])).silence_ms(350), 350);
    }

    #[test]
    fn what_was_not_asked_for_is_no_answer() {
        let mut node = Liveness::default();
        node.answered(Millis(9_000));
        assert_eq!(node, Liveness::default());
    }
}
