//! Whom to believe, from own experience alone.
//!
//! Per peer and model this node counts what it checked itself. The score is the lower 95 % bound of the probability
//! that a checked token was right and in time (Wilson's interval), so a newcomer with three good answers stands
//! below an old hand with a thousand, and both rise with evidence. The router divides compute by it.
//!
//! How often to check follows from how little is known: everything of a new identity, then a fifth, a twentieth, at
//! least one in fifty. A new identity therefore gains nothing by churning: its first cheats are always checked.
//!
//! Strikes: the first proven lie quarantines for ten minutes and until a fresh challenge is passed, the second bans
//! for twelve hours, doubling from then on. Equivocation and forged signatures ban at once. Being unreachable is a
//! stall, which lowers the score and never bans.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Millis, NodeId, OperatorId};

/// Quarantine after the first proven lie.
pub const QUARANTINE_MS: u64 = 600_000;
/// First ban; doubles with every further strike.
pub const BAN_MS: u64 = 12 * 3_600_000;
/// Longest ban: 64 times the first, 32 days.
const MAX_DOUBLINGS: u32 = 6;
/// 97.5th percentile of the normal distribution: a two-sided 95 % interval.
const Z: f64 = 1.96;
/// Requests and tokens during which everything of a new key is checked.
const PROBATION: (u64, u64) = (20, 2_000);

/// Something seen of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A request ended; so many of its tokens were checked and right.
    Verified {
        /// Tokens checked.
        tokens: u64,
    },
    /// A request ended unchecked.
    Finished,
    /// It stopped answering in the middle.
    Stalled,
    /// It refused after promising.
    Aborted,
    /// It was proven wrong: recomputed here, or two unrelated peers agree against it.
    Mismatch,
    /// It signed two different things in one place, or forged a signature.
    Equivocated,
}

/// What may be asked of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Everything.
    Good,
    /// Nothing until then; afterwards a challenge first.
    Quarantined {
        /// When the time is over.
        until: Millis,
    },
    /// A challenge, nothing else.
    MustProve,
    /// Nothing until then.
    Banned {
        /// When the time is over.
        until: Millis,
    },
}

/// Own experience with one peer and model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    requests: u64,
    tokens_ok: u64,
    requests_ok: u64,
    failures: u64,
    strikes: u32,
    barred_until: Option<Millis>,
    must_prove: bool,
}

/// A [`Record`] in figures, for storage between runs; times are by the clock the record was noted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Figures {
    pub requests: u64,
    pub tokens_ok: u64,
    pub requests_ok: u64,
    pub failures: u64,
    pub strikes: u32,
    pub barred_until: Option<Millis>,
    pub must_prove: bool,
}

impl From<Figures> for Record {
    fn from(figures: Figures) -> Self {
        let Figures { requests, tokens_ok, requests_ok, failures, strikes, barred_until, must_prove } =
            figures;
        Self { requests, tokens_ok, requests_ok, failures, strikes, barred_until, must_prove }
    }
}

impl Record {
    /// The record in figures.
    pub fn figures(&self) -> Figures {
        let Self { requests, tokens_ok, requests_ok, failures, strikes, barred_until, must_prove } = *self;
        Figures { requests, tokens_ok, requests_ok, failures, strikes, barred_until, must_prove }
    }

    /// Notes an outcome.
    pub fn note(&mut self, now: Millis, outcome: Outcome) {
        match outcome {
            Outcome::Verified { tokens } => {
                self.requests += 1;
                self.requests_ok += 1;
                self.tokens_ok += tokens;
            }
            Outcome::Finished => self.requests += 1,
            Outcome::Stalled | Outcome::Aborted => {
                self.requests += 1;
                self.failures += 1;
            }
            Outcome::Mismatch => {
                self.requests += 1;
                self.failures += 1;
                self.strike(now, 1);
            }
            Outcome::Equivocated => self.strike(now, 2),
        }
    }

    fn strike(&mut self, now: Millis, least: u32) {
        self.strikes = (self.strikes + 1).max(least);
        let span = match self.strikes {
            1 => QUARANTINE_MS,
            n => BAN_MS << (n - 2).min(MAX_DOUBLINGS),
        };
        self.barred_until = Some(now + span);
        self.must_prove = true;
    }

    /// It passed a fresh challenge with a known answer.
    pub fn proved(&mut self, now: Millis) {
        if self.barred_until.is_none_or(|until| now >= until) {
            self.must_prove = false;
        }
    }

    /// What may be asked of it.
    pub fn standing(&self, now: Millis) -> Standing {
        match self.barred_until {
            Some(until) if now < until && self.strikes > 1 => Standing::Banned { until },
            Some(until) if now < until => Standing::Quarantined { until },
            _ if self.must_prove => Standing::MustProve,
            _ => Standing::Good,
        }
    }

    /// Lower bound of the probability that it answers rightly and in time, in `(0, 1)`; a stranger's is 0.34
    /// (as if one request had gone well and none wrong, and the bound is wide).
    pub fn score(&self) -> f64 {
        let good = self.requests_ok as f64 + 2.0;
        let n = good + self.failures as f64;
        let p = good / n;
        let z2 = Z * Z;
        let center = p + z2 / (2.0 * n);
        let margin = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
        ((center - margin) / (1.0 + z2 / n)).clamp(1e-3, 1.0)
    }

    /// Share of its requests to check.
    pub fn check_share(&self) -> f64 {
        if self.requests < PROBATION.0 || self.tokens_ok < PROBATION.1 && self.requests_ok < PROBATION.0 {
            return 1.0;
        }
        match self.requests_ok {
            0..100 => 0.2,
            100..1_000 => 0.05,
            _ => 0.02,
        }
    }

    /// Whether to check this request; `draw` is uniform in `[0, 1)` and drawn after the peer has committed.
    pub fn checks(&self, draw: f64) -> bool {
        draw < self.check_share()
    }
}

/// What a node says a segment's output at disputed positions is, as a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Testimony {
    /// Who computed it.
    pub node: NodeId,
    /// Who answers for it; several nodes of one operator count once.
    pub operator: OperatorId,
    /// Of the canonical output bytes.
    pub digest: [u8; 32],
}

/// What follows from testimonies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All say the same.
    Agreed,
    /// Ask one more holder, of an operator not heard yet.
    AskAnother,
    /// As many stand against as for: only an own recomputation decides.
    Recompute,
    /// These are wrong.
    Wrong(Vec<NodeId>),
}

/// Judges a dispute. Honest nodes of the exact class compute the same bits, so equal digests of unrelated operators are
/// the truth; `own` is the digest of an own recomputation (the layer audit), which outweighs all others.
///
/// A single other voice convicts no node, so a slanderer convicts none. Without `own`, two operators that
/// collude outvote one honest node: that is the limit of voting, and why a node that holds the weights should recompute.
pub fn judge(testimonies: &[Testimony], own: Option<[u8; 32]>) -> Verdict {
    let against = |truth: [u8; 32]| {
        let wrong = testimonies.iter().filter(|said| said.digest != truth).map(|said| said.node);
        Verdict::Wrong(wrong.collect())
    };
    if testimonies.windows(2).all(|pair| pair[0].digest == pair[1].digest)
        && own.is_none_or(|own| testimonies.iter().all(|said| said.digest == own))
    {
        return Verdict::Agreed;
    }
    if let Some(own) = own {
        return against(own);
    }
    let mut voices: BTreeMap<[u8; 32], BTreeSet<OperatorId>> = BTreeMap::new();
    for said in testimonies {
        voices.entry(said.digest).or_default().insert(said.operator);
    }
    let mut counts: Vec<(usize, [u8; 32])> =
        voices.iter().map(|(digest, who)| (who.len(), *digest)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    match counts[..] {
        [(most, truth), (next, _), ..] if most >= 2 && most > next => against(truth),
        [(1, _), ..] if counts.len() < 3 => Verdict::AskAnother,
        _ => Verdict::Recompute,
    }
}

#[cfg(test)]
mod tests {
    use super::{Testimony, Verdict, judge};
    use crate::{NodeId, OperatorId};

    #[test]
    fn no_node_is_convicted_by_one_voice() {
        let says = |node, operator, digest| Testimony {
            node: NodeId::numbered(node),
            operator: OperatorId::numbered(operator),
            digest: [digest; 32],
        };
        let (a, b, c) = (says(1, 1, 7), says(2, 2, 8), says(3, 3, 8));
        assert_eq!(judge(&[a, says(4, 4, 7)], None), Verdict::Agreed);
        assert_eq!(judge(&[a, b], None), Verdict::AskAnother);
        assert_eq!(judge(&[a, b, c], None), Verdict::Wrong(vec![NodeId::numbered(1)]));
        assert_eq!(judge(&[a, b, says(5, 2, 8)], None), Verdict::AskAnother, "one operator counts once");
        assert_eq!(judge(&[a, b, says(6, 6, 9)], None), Verdict::Recompute);
        assert_eq!(judge(&[a, says(7, 7, 7), b, c], None), Verdict::Recompute, "two against two");
        let both = Verdict::Wrong(vec![NodeId::numbered(2), NodeId::numbered(3)]);
        assert_eq!(judge(&[a, b, c], Some([7; 32])), both, "own work outweighs the majority");
        assert_eq!(judge(&[b, c], Some([7; 32])), both);
        assert_eq!(judge(&[a], Some([7; 32])), Verdict::Agreed);
    }

    use super::{BAN_MS, Outcome, QUARANTINE_MS, Record, Standing};
    use crate::Millis;
    use crate::rng::Rng;

    #[test]
    fn evidence_raises_the_score_and_failures_lower_it() {
        let mut record = Record::default();
        let stranger = record.score();
        assert!((0.33..0.35).contains(&stranger), "{stranger}");
        let mut last = stranger;
        for _ in 0..200 {
            record.note(Millis(0), Outcome::Verified { tokens: 100 });
            assert!(record.score() > last);
            last = record.score();
        }
        assert!(last > 0.97);
        record.note(Millis(0), Outcome::Stalled);
        assert!(record.score() < last);
        assert_eq!(record.standing(Millis(0)), Standing::Good);
    }

    #[test]
    fn newcomers_are_always_checked_and_no_node_never() {
        let mut record = Record::default();
        for _ in 0..20 {
            assert_eq!(record.check_share(), 1.0);
            record.note(Millis(0), Outcome::Verified { tokens: 200 });
        }
        assert_eq!(record.check_share(), 0.2);
        (0..2_000).for_each(|_| record.note(Millis(0), Outcome::Verified { tokens: 200 }));
        assert_eq!(record.check_share(), 0.02);
    }

    #[test]
    fn strikes_escalate() {
        let mut record = Record::default();
        record.note(Millis(0), Outcome::Mismatch);
        assert_eq!(record.standing(Millis(1)), Standing::Quarantined { until: Millis(QUARANTINE_MS) });
        record.proved(Millis(1));
        assert_eq!(record.standing(Millis(QUARANTINE_MS)), Standing::MustProve);
        record.proved(Millis(QUARANTINE_MS));
        assert_eq!(record.standing(Millis(QUARANTINE_MS)), Standing::Good);
        let again = Millis(QUARANTINE_MS + 5);
        record.note(again, Outcome::Mismatch);
        assert_eq!(record.standing(again), Standing::Banned { until: again + BAN_MS });
        record.note(again, Outcome::Mismatch);
        assert_eq!(record.standing(again), Standing::Banned { until: again + 2 * BAN_MS });
        let mut forger = Record::default();
        forger.note(Millis(0), Outcome::Equivocated);
        assert_eq!(forger.standing(Millis(0)), Standing::Banned { until: Millis(BAN_MS) });
    }

    /// A peer that cheats half of its requests, seen from the state in which a fifth is checked: 95 % are caught
    /// within 29 requests (1 - (1 - 0.5 * 0.2)^29 = 0.953).
    #[test]
    fn cheats_are_caught_as_often_as_computed() {
        let mut veteran = Record::default();
        (0..25).for_each(|_| veteran.note(Millis(0), Outcome::Verified { tokens: 200 }));
        let mut chance = Rng::new(11);
        let runs = 4_000;
        let caught = (0..runs).filter(|_| {
            (0..29).any(|_| {
                let cheats = chance.happens(0.5);
                let checked = veteran.checks(chance.unit());
                cheats && checked
            })
        });
        let share = caught.count() as f64 / f64::from(runs);
        assert!((0.94..0.966).contains(&share), "{share}");
    }
}
