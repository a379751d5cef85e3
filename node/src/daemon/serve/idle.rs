//! When a model's worker is ended for want of work, and started again.
//!
//! ```text
//! loaded ──nothing needs it for --unload-after──> unloaded ──a session or a prompt needs it──> loading ──> loaded
//! ```
//!
//! An unloaded model's layers are announced as on the disk, with what loading takes: routes pay it once, and pass the node by where
//! that is dearer. Its memory for weights stays promised to it, so it can always come back. What the worker kept of ended sessions is
//! lost with it, but for what `--keep-state` wrote to the disk.
//!
//! Limits: models that are on their way, and those whose experts lie on several nodes, stay; so does a draft model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::worker::Uses;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Loaded,
    Unloaded,
    Loading,
}

/// Whether the worker of one model is needed.
pub(super) struct Idle {
    uses: Uses,
    phase: Phase,
    since: Instant,
}

impl Idle {
    /// That of a model which is loaded `now`; `wanted` is told when an unloaded one is needed.
    pub(super) fn new(wanted: Arc<Notify>, now: Instant) -> Self {
        Self { uses: Uses::new(wanted), phase: Phase::Loaded, since: now }
    }

    /// What counts who needs it.
    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Whether there is no worker, because nothing needed it: it may be on its way.
    pub(super) fn is_unloaded(&self) -> bool {
        self.phase != Phase::Loaded
    }

    /// Whether the worker is to be ended: nothing has needed it for `after`, and it is not `kept` for another reason. Called
    /// regularly; true once, for one that is loaded.
    pub(super) fn is_over(&mut self, now: Instant, after: Duration, kept: bool) -> bool {
        if self.phase != Phase::Loaded || kept || self.uses.are_any() {
            self.since = now;
            return false;
        }
        let over = now.saturating_duration_since(self.since) >= after;
        if over {
            self.phase = Phase::Unloaded;
        }
        over
    }

    /// Whether a worker is to be started: something needs an unloaded model. True once.
    pub(super) fn begins_again(&mut self) -> bool {
        let begins = self.phase == Phase::Unloaded && self.uses.are_any();
        if begins {
            self.phase = Phase::Loading;
        }
        begins
    }

    /// A worker of the model is there.
    pub(super) fn loaded(&mut self, now: Instant) {
        (self.phase, self.since) = (Phase::Loaded, now);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::worker::Worker;

    const AFTER: Duration = Duration::from_secs(60);

    #[test]
    fn a_model_that_nothing_needs_is_unloaded_once_and_loaded_again_once() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut idle = Idle::new(Arc::default(), at(0));
        let latest = watch::Sender::new(Worker::absent("unloaded"));
        let source = idle.uses().source(latest.subscribe());
        assert!(!idle.is_over(at(59), AFTER, false));
        let used = source.assign();
        assert!(!idle.is_over(at(100), AFTER, false), "a session runs");
        drop(used);
        assert!(!idle.is_over(at(159), AFTER, false), "it ended a minute ago at most");
        assert!(!idle.is_over(at(200), AFTER, true), "it is kept");
        assert!(!idle.is_over(at(259), AFTER, false) && !idle.is_unloaded());
        assert!(idle.is_over(at(260), AFTER, false) && idle.is_unloaded());
        assert!(!idle.is_over(at(999), AFTER, false), "it is unloaded already");
        assert!(!idle.begins_again(), "nothing needs it");
        let used = source.assign();
        assert!(idle.begins_again() && idle.is_unloaded());
        assert!(!idle.begins_again(), "it is being loaded");
        idle.loaded(at(1_000));
        drop(used);
        assert!(!idle.is_unloaded() && !idle.is_over(at(1_059), AFTER, false));
        assert!(idle.is_over(at(1_060), AFTER, false));
    }
}
