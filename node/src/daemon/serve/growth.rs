//! When a node that fetches layers serves those that are here already.
//!
//! Each step starts a worker with all layers that are whole on the disk; what it computes before the rest has come is worth
//! more than the loading costs, as long as loading takes a small part of the time. A step waits until the worker of the
//! step before runs and the one that it replaced has gone with its last session, so that no more than two are in memory.
//!
//! Both count as weights, taken before the worker is started: a step whose worker does not fit beside the one before is left out. The last step, with all
//! layers, is never left out: where it does not fit, the workers before it go first ([`Step::needs_room`]).

use std::{
    sync::{Arc, Mutex, Weak},
    time::Instant,
};

use scheduler::{LayerSet, Millis};

use super::weights::{Beside, Weights};
use crate::confine::child::lock;

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

/// One of the steps in which a model comes.
pub(super) struct Step {
    /// They ascend.
    pub(super) number: u64,
    /// Whether no other follows.
    pub(super) is_last: bool,
    /// Set where the workers before it go first; gone when the step before is done.
    pub(super) needs_room: Option<Weak<Option<Beside>>>,
    /// What it takes beside the weights of the whole; dropped when its worker runs and the one before is gone, or when there is none.
    pub(super) done: Arc<Option<Beside>>,
}

/// The steps of one model, over all attempts to fetch it.
pub(crate) struct Steps {
    since: Instant,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    growth: Growth,
    steps: u64,
    /// Weights of the last step's worker and of the one before, bytes.
    weights: [u64; 2],
    under_way: Weak<Option<Beside>>,
}

impl Steps {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), taken: Mutex::default() }
    }

    /// A step to serve these layers, when it is due: its worker takes `bytes` of the `weights` of the model at `place`.
    pub(super) fn part(&self, serve: &LayerSet, bytes: u64, weights: (&Weights, usize)) -> Option<Step> {
        let now = Millis(self.since.elapsed().as_millis() as u64);
        lock(&self.taken).part(now, serve, bytes, weights)
    }

    /// The last step, of all layers.
    pub(super) fn last(&self, bytes: u64, weights: (&Weights, usize)) -> Step {
        lock(&self.taken).last(bytes, weights)
    }
}

impl Taken {
    fn part(
        &mut self,
        now: Millis,
        serve: &LayerSet,
        bytes: u64,
        weights: (&Weights, usize),
    ) -> Option<Step> {
        let is_done = self.under_way.strong_count() == 0;
        // While a step is under way none is due, and nothing is taken for it.
        let beside = if is_done { self.fits(bytes, weights)? } else { None };
        self.growth.is_due(now, serve, is_done).then(|| self.step(bytes, beside))
    }

    fn last(&mut self, bytes: u64, weights: (&Weights, usize)) -> Step {
        let fits = self.fits(bytes, weights);
        let needs_room = fits.is_none().then(|| self.under_way.clone());
        Step { is_last: true, needs_room, ..self.step(bytes, fits.flatten()) }
    }

    /// Memory for a worker beside those that are there; `None` where there is too little. The first one has no other beside it: its
    /// room was taken.
    fn fits(&self, bytes: u64, (weights, place): (&Weights, usize)) -> Option<Option<Beside>> {
        let [latest, before] = self.weights;
        let before = if self.under_way.strong_count() > 0 { before } else { 0 };
        let there = latest.saturating_add(before);
        if there == 0 {
            return Some(None);
        }
        weights.take_beside(place, there.saturating_add(bytes)).map(Some)
    }

    fn step(&mut self, bytes: u64, beside: Option<Beside>) -> Step {
        let done = Arc::new(beside);
        self.under_way = Arc::downgrade(&done);
        self.weights = [bytes, self.weights[0]];
        self.steps += 1;
        Step { number: self.steps, is_last: false, needs_room: None, done }
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

    #[test]
    fn a_part_that_does_not_fit_beside_the_one_before_is_left_out() {
        let (mut taken, room) = (Taken::default(), |most| Weights::new(Some(most)));
        let first = taken.part(Millis(0), &layers(1), 40, (&room(30), 1)).expect("its room was taken");
        assert!(
            taken.part(Millis(LEAST_MS), &layers(2), 60, (&room(200), 1)).is_none(),
            "the first is under way"
        );
        drop(first);
        assert!(taken.part(Millis(LEAST_MS), &layers(2), 60, (&room(99), 1)).is_none(), "40 are taken");
        assert!(taken.part(Millis(LEAST_MS), &layers(2), 60, (&room(100), 1)).is_none(), "it rests");
        let second = taken.part(Millis(MOST_MS * 2), &layers(2), 60, (&room(100), 1)).expect("both fit");
        assert!(!second.is_last && second.number == 2 && second.needs_room.is_none());
    }

    #[test]
    fn the_last_step_is_never_left_out_and_says_when_others_go_first() {
        let (mut taken, weights) = (Taken::default(), Weights::new(Some(200)));
        let first = taken.part(Millis(0), &layers(1), 40, (&weights, 1)).unwrap();
        drop(first);
        let second = taken.part(Millis(0), &layers(2), 60, (&weights, 1));
        assert!(second.is_none(), "it rests");
        let second = taken.part(Millis(LEAST_MS), &layers(2), 60, (&weights, 1)).unwrap();
        assert!(taken.fits(100, (&weights, 1)).is_some(), "40 + 60 + 100");
        let last = taken.last(101, (&weights, 1));
        assert_eq!(last.needs_room.as_ref().map(Weak::strong_count), Some(1), "the second is under way");
        drop(second);
        assert_eq!(last.needs_room.as_ref().map(Weak::strong_count), Some(0));
        assert!(last.is_last && last.number == 3);
        assert!(Taken::default().last(300, (&weights, 1)).needs_room.is_none(), "none goes before it");
        assert!(Taken::default().last(300, (&Weights::new(None), 1)).needs_room.is_none());
    }
}
