//! Which frames of a stage's inputs are still worth computing.
//!
//! The same position may come twice: from the stage before and, when that one was hedged or its frame got lost, from the
//! requester. What the stage before sends after that must not be computed: the session may have gone on, and computing an old
//! position cuts the cache back. What the requester sends always is: it knows what it lacks.

/// How far the inputs of one lease have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    /// Below this position from anybody.
    reached: u32,
    /// Below this position from the requester.
    given: u32,
}

impl Inputs {
    /// A stage whose cache holds `have` positions.
    pub(super) fn from(have: u32) -> Self {
        Self { reached: have, given: 0 }
    }

    /// Notes inputs of the positions below `end` and says whether to compute them. What the requester sends always is: it
    /// knows what it lacks.
    pub(super) fn take(&mut self, end: u32, of_requester: bool) -> bool {
        if !of_requester && (end < self.reached || end <= self.given) {
            return false;
        }
        self.reached = self.reached.max(end);
        if of_requester {
            self.given = self.given.max(end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Inputs;

    #[test]
    fn what_comes_second_is_not_computed_again() {
        let mut inputs = Inputs::from(20);
        assert!(inputs.take(21, false));
        assert!(inputs.take(21, false), "its output may have been lost: the same frame again");
        // The stage before was late, its shadow was quicker, and the requester passed that on.
        assert!(inputs.take(22, true));
        assert!(!inputs.take(22, false), "the late one");
        assert!(inputs.take(23, false), "it is back");
        assert!(!inputs.take(22, false), "the session has gone on");
        assert!(inputs.take(22, true), "the requester knows what it does");
        assert!(inputs.take(23, false));
    }

    #[test]
    fn a_replay_is_taken_from_where_the_cache_ends() {
        let mut inputs = Inputs::from(0);
        assert!(inputs.take(96, true) && inputs.take(120, true));
        assert!(!inputs.take(120, false));
        assert!(inputs.take(121, false));
    }
}
