//! What to do when a stage misbehaves: wait, hedge, switch, retry, reroute or give up.
//!
//! Being late is not being dead. A late stage is *hedged*: its shadow gets the same frame and the first answer wins;
//! since all honest nodes compute the same bits, hedging risks nothing, and a difference is evidence. Hedges are
//! paid from a bucket of one per twenty steps, so a slow swarm is not loaded double. Where no node can be hedged with,
//! the frame is sent to the same stage once more, which costs less than moving away from a node whose packet was lost.
//! A dead stage is *switched* to its shadow (warm) or its cover (replayed from the requester's log), else the rest of
//! the request is *rerouted* without the nodes that failed. Everything has a budget, so every request ends.
//!
//! [`Detector`] says when a stage is late, and when it has become slow, from its own past; [`Liveness`] how long a node may be
//! silent, from how long it took to answer.

mod detector;
mod liveness;

pub use self::detector::Detector;
pub use self::liveness::{Liveness, MOST_SILENCE_MS};

use crate::{NodeId, Segment};

/// A computing stage says so this often.
pub const BEACON_MS: u64 = 100;
/// Least silence that makes a stage suspect: three beacons and a little; lower and jitter alone triggers hedges.
pub const SILENCE_MS: u64 = 350;
/// Bounds of the deadline of one step.
pub const STEP_MS: (u64, u64) = (250, 3_000);
/// Deadline of a step whose stage has no past.
pub const COLD_STEP_MS: u64 = 2_000;
/// Steps that pay for one hedge: 5 % of steps.
const STEPS_PER_HEDGE: f64 = 20.0;
/// Hedges that can be saved up.
const MOST_HEDGES: f64 = 3.0;
/// Steps that pay for one more of everything else: what a request may cost is bounded by what it gets done.
const STEPS_PER_MOVE: u32 = 8;

/// What is wrong with a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Past its deadline, or silent; may still answer.
    Late,
    /// It says nothing, not even that it is there: frozen, or cut off.
    Silent,
    /// Its transport closed.
    Closed,
    /// It will not serve (any more): no room, draining, unknown session.
    Refused,
    /// It answered something that cannot be, or was proven wrong.
    Corrupt,
    /// Its worker died on this very session.
    Crashed,
    /// It answers, but far slower than it used to, every time or ever again.
    Gray,
    /// The route was wrong about it: it does not hold these layers, or its neighbor cannot reach it. The caller has told
    /// the view ([`crate::SwarmView::correct`], [`crate::SwarmView::unreachable`]); the node itself may serve elsewhere.
    Misrouted,
}

impl Failure {
    /// Whether the request should avoid the node from now on.
    pub fn bars(self) -> bool {
        !matches!(self, Self::Gray | Self::Misrouted)
    }

    /// Whether it ends all that the node does for the request: every segment that it runs, and what it follows. A node that is late
    /// with one segment, or has no room for it, may go on with another.
    pub fn ends_all(self) -> bool {
        matches!(self, Self::Silent | Self::Closed | Self::Corrupt | Self::Crashed)
    }
}

/// Why a request was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUp {
    /// No other node can serve its layers.
    NoRoute,
    /// It has been moved as often as one request may be.
    Exhausted,
    /// It killed two workers; it will not get a third.
    Poison,
}

/// The next move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// Stay: go on with the next step, or send the frame of this one once more.
    Wait,
    /// Send the pending frame to this node too.
    Hedge(NodeId),
    /// These run the segment from now on.
    Switch(Vec<Segment>),
    /// Ask the same nodes again under a new epoch.
    Retry,
    /// Find another pipeline without the nodes that failed.
    Reroute,
    /// End the request.
    GiveUp(GiveUp),
}

/// Who could take over the segment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Options {
    /// Follows the segment already.
    pub shadow: Option<Segment>,
    /// Would have to replay.
    pub cover: Vec<Segment>,
}

/// What one request may still cost the swarm.
#[derive(Clone, PartialEq, Debug)]
pub struct Budget {
    hedges: f64,
    switches: u32,
    retries: u32,
    reroutes: u32,
    misroutes: u32,
    refusals: u32,
    crashes: u32,
    /// Steps that have not paid for anything yet.
    steps: u32,
    /// What the last search for a route was paid from, until it is known whether it burdened anybody.
    search: Paid,
}

/// Which purse paid for a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Paid {
    #[default]
    Nothing,
    Reroute,
    Misroute,
    Refusal,
}

impl Default for Budget {
    /// One hedge in hand, eight switches, three retries, four reroutes, eight for routes that were wrong, and 32 for nodes that
    /// have no room: a crowd ends by itself, and waiting for it is bounded by its own clock.
    fn default() -> Self {
        Self {
            hedges: 1.0,
            switches: 8,
            retries: 3,
            reroutes: 4,
            misroutes: 8,
            refusals: 32,
            crashes: 0,
            steps: 0,
            search: Paid::Nothing,
        }
    }
}

impl Budget {
    /// A step ended well: it pays its part of a hedge, and [`STEPS_PER_MOVE`] of them pay for one move of each kind, up
    /// to what a request has at its start. A long answer may outlive more failures than a short one; one that gets
    /// nowhere ends.
    pub fn step_done(&mut self) {
        self.hedges = (self.hedges + 1.0 / STEPS_PER_HEDGE).min(MOST_HEDGES);
        self.steps += 1;
        if self.steps >= STEPS_PER_MOVE {
            let full = Self::default();
            self.steps = 0;
            self.switches = (self.switches + 1).min(full.switches);
            self.retries = (self.retries + 1).min(full.retries);
            self.reroutes = (self.reroutes + 1).min(full.reroutes);
            self.misroutes = (self.misroutes + 1).min(full.misroutes);
            self.refusals = (self.refusals + 1).min(full.refusals);
        }
    }

    /// The next move after `failure`. `hedged` says that this step has been hedged, or its frame sent again, already.
    pub fn next(&mut self, failure: Failure, options: &Options, hedged: bool) -> Recovery {
        match failure {
            Failure::Crashed => {
                self.crashes += 1;
                if self.crashes >= 2 {
                    return Recovery::GiveUp(GiveUp::Poison);
                }
            }
            Failure::Gray => {
                // A planned move: only to a warm node, and never at the price of the last switch.
                return match options.shadow {
                    Some(shadow) if self.switches > 1 => self.switch(vec![shadow]),
                    _ => Recovery::Wait,
                };
            }
            Failure::Late if !hedged => {
                return match options.shadow.filter(|_| self.hedges >= 1.0) {
                    Some(shadow) => {
                        self.hedges -= 1.0;
                        Recovery::Hedge(shadow.node)
                    }
                    None => Recovery::Wait,
                };
            }
            _ => {}
        }
        if let Some(shadow) = options.shadow.filter(|_| self.switches > 0) {
            return self.switch(vec![shadow]);
        }
        // The cover was chosen with the same wrong idea; the view knows better now, and every such move teaches it.
        if failure == Failure::Misrouted && self.misroutes > 0 {
            self.misroutes -= 1;
            self.search = Paid::Misroute;
            return Recovery::Reroute;
        }
        if !options.cover.is_empty() && self.switches > 0 {
            return self.switch(options.cover.clone());
        }
        if failure == Failure::Refused && self.refusals > 0 {
            self.refusals -= 1;
            self.search = Paid::Refusal;
            return Recovery::Reroute;
        }
        if failure == Failure::Late && self.retries > 0 {
            self.retries -= 1;
            return Recovery::Retry;
        }
        self.reroute()
    }

    fn switch(&mut self, to: Vec<Segment>) -> Recovery {
        self.switches -= 1;
        Recovery::Switch(to)
    }

    /// The last search found no node and burdened none: what was paid for it is given back, once. A search that
    /// nothing was paid for gives nothing back, or waiting would pay for moves and a request could crawl on for ever.
    pub(crate) fn spare_search(&mut self) {
        match std::mem::take(&mut self.search) {
            Paid::Nothing => {}
            Paid::Reroute => self.reroutes += 1,
            Paid::Misroute => self.misroutes += 1,
            Paid::Refusal => self.refusals += 1,
        }
    }

    /// Pays for another pipeline.
    pub(crate) fn reroute(&mut self) -> Recovery {
        if self.reroutes == 0 {
            return Recovery::GiveUp(GiveUp::Exhausted);
        }
        self.reroutes -= 1;
        self.search = Paid::Reroute;
        Recovery::Reroute
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Failure, GiveUp, Options, Recovery};
    use crate::{LayerRange, NodeId, Segment};

    fn segment(node: u64) -> Segment {
        Segment { node: NodeId::numbered(node), layers: LayerRange::new(2, 5).unwrap() }
    }

    fn both() -> Options {
        Options { shadow: Some(segment(1)), cover: vec![segment(2)] }
    }

    #[test]
    fn late_is_hedged_once_and_dead_is_switched() {
        let mut budget = Budget::default();
        assert_eq!(budget.next(Failure::Late, &both(), false), Recovery::Hedge(NodeId::numbered(1)));
        assert_eq!(budget.next(Failure::Late, &both(), true), Recovery::Switch(vec![segment(1)]));
        assert_eq!(budget.next(Failure::Closed, &both(), false), Recovery::Switch(vec![segment(1)]));
        let cover = Options { shadow: None, ..both() };
        assert_eq!(budget.next(Failure::Refused, &cover, false), Recovery::Switch(vec![segment(2)]));
        assert_eq!(budget.next(Failure::Late, &Options::default(), false), Recovery::Wait);
        assert_eq!(budget.next(Failure::Late, &Options::default(), true), Recovery::Retry);
        assert_eq!(budget.next(Failure::Closed, &Options::default(), false), Recovery::Reroute);
        assert_eq!(budget.next(Failure::Silent, &Options::default(), false), Recovery::Reroute);
        assert_eq!(budget.next(Failure::Silent, &cover, false), Recovery::Switch(vec![segment(2)]));
        assert_eq!(budget.next(Failure::Gray, &cover, false), Recovery::Wait);
        assert_eq!(budget.next(Failure::Misrouted, &both(), false), Recovery::Switch(vec![segment(1)]));
        assert_eq!(budget.next(Failure::Misrouted, &cover, false), Recovery::Reroute);
    }

    #[test]
    fn hedges_are_one_in_twenty_steps() {
        let mut budget = Budget::default();
        let hedges = (0..2_000).filter(|_| {
            budget.step_done();
            budget.hedges >= 1.0 && matches!(budget.next(Failure::Late, &both(), false), Recovery::Hedge(_))
        });
        assert!((100..=101).contains(&hedges.count()));
    }

    #[test]
    fn progress_pays_for_moves() {
        let mut budget = Budget::default();
        let none = Options::default();
        while budget.next(Failure::Closed, &none, true) == Recovery::Reroute {}
        for _ in 1..super::STEPS_PER_MOVE {
            budget.step_done();
        }
        assert_eq!(budget.next(Failure::Closed, &none, true), Recovery::GiveUp(GiveUp::Exhausted));
        budget.step_done();
        assert_eq!(budget.next(Failure::Closed, &none, true), Recovery::Reroute);
    }

    #[test]
    fn a_search_is_given_back_once_to_the_purse_that_paid() {
        let none = Options::default();
        let full = Budget::default();
        for (failure, left) in [(Failure::Closed, (3, 8)), (Failure::Misrouted, (4, 7))] {
            let mut budget = full.clone();
            assert_eq!(budget.next(failure, &none, true), Recovery::Reroute);
            assert_eq!((budget.reroutes, budget.misroutes), left);
            (0..3).for_each(|_| budget.spare_search());
            assert_eq!(budget, full, "{failure:?}");
        }
    }

    #[test]
    fn every_budget_ends() {
        for failure in [
            Failure::Late,
            Failure::Silent,
            Failure::Closed,
            Failure::Refused,
            Failure::Corrupt,
            Failure::Crashed,
            Failure::Misrouted,
        ] {
            let mut budget = Budget::default();
            let moves = (0..100).find(|_| matches!(budget.next(failure, &both(), true), Recovery::GiveUp(_)));
            let most = if failure == Failure::Refused { 50 } else { 20 };
            assert!(moves.is_some_and(|moves| moves <= most), "{failure:?} {moves:?}");
        }
        let mut budget = Budget::default();
        assert!(matches!(budget.next(Failure::Crashed, &both(), false), Recovery::Switch(_)));
        assert_eq!(budget.next(Failure::Crashed, &both(), false), Recovery::GiveUp(GiveUp::Poison));
    }
}
