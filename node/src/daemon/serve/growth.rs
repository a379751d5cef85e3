//! When a node that fetches layers serves those that are here already.
//!
//! Each step starts a worker with all layers that are whole on the disk; what it computes before the rest has come is worth
//! more than the loading costs, as long as loading takes a small part of the time. A step waits until the worker of the
//! step before runs and the one that it replaced has gone with its last session, so that no more than two are in memory;
//! only the last step, with all layers, waits for nothing.

use scheduler::{LayerSet, Millis};

/// Least time between two steps, ms: as often as what has come is flushed to the disk (`p2p::blob`).
const LEAST_MS: u64 = 5_000;
/// Longest time between two steps, ms.
const MOST_MS: u64 = 120_000;
/// The rest after a step, in parts of what it took: loading takes a fifth of the time at most.
const REST: u64 = 4;

/// The steps of one model.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Layers of the last step.
    reached: LayerSet,
    /// Since when a step is under way.
    began: Option<Millis>,
    rests_until: Millis,
}

impl Growth {
    /// Whether to load `here`, the layers that are whole now; `is_done` says that nothing of the last step is under way.
    pub(super) fn is_due(&mut self, now: Millis, here: &LayerSet, is_done: bool) -> bool {
        if let Some(began) = self.began {
            if !is_done {
                return false;
            }
            let rest = (now.since(began) * REST).clamp(LEAST_MS, MOST_MS);
            (self.began, self.rests_until) = (None, Millis(now.0 + rest));
        }
        if here.len() <= self.reached.len() || now < self.rests_until {
            return false;
        }
        self.reached = here.clone();
        self.began = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use scheduler::LayerRange;

    use super::*;

    fn layers(count: u32) -> LayerSet {
        LayerRange::new(0, count).into_iter().collect()
    }

    #[test]
    fn a_layer_more_is_a_step_when_the_last_one_is_done_and_rested_from() {
        let mut growth = Growth::default();
        assert!(!growth.is_due(Millis(0), &layers(0), true), "nothing is here");
        assert!(growth.is_due(Millis(10), &layers(1), true), "the first layer at once");
        assert!(!growth.is_due(Millis(2_000), &layers(2), false), "it is being loaded");
        assert!(!growth.is_due(Millis(2_010), &layers(2), true), "2 s of loading, 8 s of rest");
        assert!(!growth.is_due(Millis(10_009), &layers(4), true));
        assert!(!growth.is_due(Millis(10_010), &layers(1), true), "no more than was loaded");
        assert!(growth.is_due(Millis(10_010), &layers(4), true));
    }

    #[test]
    fn rests_are_neither_short_nor_endless() {
        let mut growth = Growth::default();
        assert!(growth.is_due(Millis(0), &layers(1), true));
        assert!(!growth.is_due(Millis(1), &layers(2), true));
        assert!(!growth.is_due(Millis(LEAST_MS), &layers(2), true));
        assert!(growth.is_due(Millis(LEAST_MS + 1), &layers(2), true));
        // A session of an hour kept the worker before.
        assert!(!growth.is_due(Millis(3_600_000), &layers(3), true));
        assert!(growth.is_due(Millis(3_600_000 + MOST_MS), &layers(3), true));
    }
}
