//! Which frames of a stage's inputs are still worth computing.
//!
//! The same position may come twice: from the stage before and, when that one was hedged or its frame got lost, from the
//! requester. What the stage before sends after that must not be computed: the session may have gone on, and computing an old
//! position cuts the cache back. What the requester sends always is: it knows what it lacks. Frames of an abandoned attempt are
//! not computed, from either sender.

use p2p::wire::frame::Header;
use scheduler::session::{Attempts, Rows, Taken};

/// How far the inputs of one lease have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    /// Below this position from anybody.
    reached: u32,
    /// Below this position from the requester.
    given: u32,
    attempts: Attempts,
}

impl Inputs {
    /// A stage whose cache holds `have` positions.
    pub(super) fn from(have: u32) -> Self {
        Self { reached: have, given: 0, attempts: Attempts::default() }
    }

    /// The cache turned out to hold `have` positions.
    pub(super) fn cut(&mut self, have: u32) {
        (self.reached, self.given) = (have, 0);
    }

    /// Inputs below this position have come.
    pub(super) fn reached(&self) -> u32 {
        self.reached
    }

    /// The latest attempt.
    pub(super) fn attempt(&self) -> u16 {
        self.attempts.attempt()
    }

    /// Positions from where the attempt began to `from`, for the next stage.
    pub(super) fn since(&self, from: u32) -> u16 {
        self.attempts.since(from)
    }

    /// Positions below which the cache may be kept into another epoch.
    pub(super) fn begin_epoch(&mut self) -> u32 {
        self.attempts.begin_epoch()
    }

    /// Notes the inputs that a frame carries and says what to do with them.
    pub(super) fn take(&mut self, header: &Header, of_requester: bool) -> Taken {
        if header.attempt > self.attempt() {
            // It goes back to where the attempt begins.
            (self.reached, self.given) = (self.reached.min(header.from), self.given.min(header.from));
        }
        let end = header.to();
        if !of_requester && (end < self.reached || end <= self.given) {
            return Taken::Abandoned;
        }
        let rows = Rows {
            attempt: header.attempt,
            from: header.from,
            rows: header.rows,
            drafted: u32::from(header.drafted),
            since: header.since,
        };
        let taken = self.attempts.take(&rows);
        match taken {
            Taken::Compute => {
                self.reached = self.reached.max(end);
                if of_requester {
                    self.given = self.given.max(end);
                }
            }
            Taken::NeedReplay(have) => self.cut(have),
            Taken::Abandoned => {}
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        codec::Wire,
        wire::frame::{Header, Kind},
    };
    use scheduler::session::Taken;

    use super::Inputs;

    /// Rows that end at `end`.
    fn rows(end: u32, rows: u32) -> Header {
        let header = Header::signal(Kind::Activations, 1, 2, end - rows, 4 * rows as usize);
        Header { rows, wire: Wire::Raw, ..header }
    }

    fn takes(inputs: &mut Inputs, end: u32, of_requester: bool) -> bool {
        inputs.take(&rows(end, 1), of_requester) == Taken::Compute
    }

    #[test]
    fn what_comes_second_is_not_computed_again() {
        let mut inputs = Inputs::from(20);
        let mut take = |end, of_requester| takes(&mut inputs, end, of_requester);
        assert!(take(21, false));
        assert!(take(21, false), "its output may have been lost: the same frame again");
        // The stage before was late, its shadow was quicker, and the requester passed that on.
        assert!(take(22, true));
        assert!(!take(22, false), "the late one");
        assert!(take(23, false), "it is back");
        assert!(!take(22, false), "the session has gone on");
        assert!(take(22, true), "the requester knows what it does");
        assert!(take(23, false));
    }

    #[test]
    fn a_replay_is_taken_from_where_the_cache_ends() {
        let mut inputs = Inputs::from(0);
        let mut take = |end, of_requester| takes(&mut inputs, end, of_requester);
        assert!(take(96, true) && take(120, true));
        assert!(!take(120, false));
        assert!(take(121, false));
    }

    #[test]
    fn a_later_attempt_goes_back_and_an_earlier_one_is_dropped() {
        let mut inputs = Inputs::from(20);
        let draft = Header { drafted: 4, since: 20, ..rows(25, 5) };
        assert_eq!(inputs.take(&draft, false), Taken::Compute);
        // One of four was right; the stage before sends what follows.
        let next = Header { since: 0, ..rows(23, 1) }.under(1);
        assert_eq!(inputs.take(&next, false), Taken::Compute);
        assert_eq!((inputs.attempt(), inputs.since(23)), (1, 1));
        assert_eq!(inputs.take(&draft, false), Taken::Abandoned);
        assert_eq!(inputs.take(&draft, true), Taken::Abandoned);
        // A stage that missed the start of an attempt asks for what it lacks.
        let mut missed = Inputs::from(20);
        missed.take(&draft, false);
        let later = Header { since: 1, ..rows(24, 1) }.under(1);
        assert_eq!(missed.take(&later, false), Taken::NeedReplay(22));
        assert_eq!(missed.take(&Header { since: 0, ..rows(24, 2) }.under(1), true), Taken::Compute);
    }
}
