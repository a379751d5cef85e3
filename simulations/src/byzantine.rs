//! Machines that lie about results, at the level of digests: does checking catch them, and only them?
//!
//! One seed is one requester, one machine under a strategy and a run of requests. What decides is the scheduler's
//! `trust`: how often to check (drawn after the machine has committed), whom to believe ([`scheduler::trust::judge`]), what
//! follows. Every wrong output, whatever made it wrong (skipped layers, fewer bits, another model, one unit in the last
//! place, a steered or replayed state, a flipped bit), is a digest that differs; what strategies differ in is *when* they
//! lie and *who* else does.
//!
//! Limits: digests stand for bits, so this says nothing about computing them; an own recomputation is taken to find the
//! truth, as recomputing every layer of the segment does.

use scheduler::rng::Rng;
use scheduler::trust::{Outcome, Record, Standing, Testimony, Verdict, judge};
use scheduler::{Millis, NodeId, OperatorId};

/// When a machine lies, and who helps it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Strategy {
    /// Never.
    Honest,
    /// Always.
    Always,
    /// With this probability, in each request.
    Sometimes(f64),
    /// Never in so many requests, always from then on.
    After(u32),
    /// Signs one thing to the requester and another to the checker.
    Equivocate,
    /// Does not commit: cannot be checked, counts as a stall.
    Withhold,
    /// Honest, but its checker lies.
    Slandered,
    /// Lies, and its checker confirms the lie. Only an own recomputation helps.
    Colluding,
}

/// What came of one seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// Requests it served.
    pub requests: u32,
    /// Of those, how many were checked.
    pub checked: u32,
    /// Lies told, and lies told in requests that were checked.
    pub lies: (u32, u32),
    /// Checked lies that were proven.
    pub caught: u32,
    /// Whether the machine was convicted.
    pub convicted: bool,
    /// Whether an honest checker or an honest machine was.
    pub wronged: bool,
    /// Stretches of a segment replayed to reach verdicts.
    pub replays: u32,
}

fn testimony(who: u64, digest: u8) -> Testimony {
    Testimony { node: NodeId::numbered(who), operator: OperatorId::numbered(who), digest: [digest; 32] }
}

const MACHINE: u64 = 1;
const CHECKER: u64 = 2;
const THIRD: u64 = 3;
const TRUTH: u8 = 0;
const LIE: u8 = 1;

/// Plays `most` requests, or until the machine is no longer in good standing, from what `record` knows of it.
/// `own` says whether the requester can recompute.
pub fn play(seed: u64, strategy: Strategy, mut record: Record, most: u32, own: bool) -> Fate {
    let mut chance = Rng::new(seed);
    let mut fate = Fate::default();
    for request in 0..most {
        let now = Millis(u64::from(request) * 60_000);
        let lies = match strategy {
            Strategy::Honest | Strategy::Slandered | Strategy::Withhold => false,
            Strategy::Always | Strategy::Equivocate | Strategy::Colluding => true,
            Strategy::Sometimes(f) => chance.happens(f),
            Strategy::After(n) => request >= n,
        };
        fate.requests += 1;
        fate.lies.0 += u32::from(lies);
        if strategy == Strategy::Withhold {
            record.note(now, Outcome::Stalled);
            continue;
        }
        // Drawn after the commitment.
        if !record.checks(chance.unit()) {
            record.note(now, Outcome::Finished);
            continue;
        }
        fate.checked += 1;
        fate.lies.1 += u32::from(lies);
        if strategy == Strategy::Equivocate {
            record.note(now, Outcome::Equivocated);
            fate.caught += 1;
            fate.convicted = true;
            break;
        }
        let wrong = verdict(strategy, lies, own, &mut fate);
        let liars: &[u64] = match strategy {
            Strategy::Slandered => &[CHECKER],
            Strategy::Colluding => &[MACHINE, CHECKER, THIRD],
            _ if lies => &[MACHINE],
            _ => &[],
        };
        fate.wronged |= wrong.iter().any(|node| !liars.iter().any(|liar| NodeId::numbered(*liar) == *node));
        if wrong.contains(&NodeId::numbered(MACHINE)) {
            record.note(now, Outcome::Mismatch);
            fate.caught += u32::from(lies);
            fate.convicted = true;
            break;
        }
        record.note(now, Outcome::Verified { tokens: 100 });
        if record.standing(now) != Standing::Good {
            break;
        }
    }
    fate
}

/// Asks as many as it takes; who is wrong.
fn verdict(strategy: Strategy, lies: bool, own: bool, fate: &mut Fate) -> Vec<NodeId> {
    let said = if lies { LIE } else { TRUTH };
    let checker = match strategy {
        Strategy::Slandered | Strategy::Colluding => LIE,
        _ => TRUTH,
    };
    let third = if strategy == Strategy::Colluding { LIE } else { TRUTH };
    let mut heard = vec![testimony(MACHINE, said), testimony(CHECKER, checker)];
    fate.replays += 1;
    // Who can recompute does so even when all agree: that is what catches those who collude.
    let mut mine = own.then_some([TRUTH; 32]);
    loop {
        match judge(&heard, mine) {
            Verdict::Agreed => return Vec::new(),
            Verdict::Wrong(nodes) => return nodes,
            Verdict::AskAnother => {
                heard.push(testimony(THIRD, third));
                fate.replays += 1;
            }
            Verdict::Recompute if mine.is_none() => mine = Some([TRUTH; 32]),
            Verdict::Recompute => return Vec::new(),
        }
    }
}

/// A record after `verified` good requests.
pub fn veteran(verified: u32) -> Record {
    let mut record = Record::default();
    (0..verified).for_each(|_| record.note(Millis(0), Outcome::Verified { tokens: 100 }));
    record
}

/// How likely a machine that lies in a share `f` of its requests, all of them checked with probability `s`, is caught
/// within `n` requests.
pub fn predicted(f: f64, s: f64, n: u32) -> f64 {
    1.0 - (1.0 - f * s).powi(n as i32)
}
