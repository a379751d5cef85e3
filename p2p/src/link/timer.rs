//! When the sessions of a node have something to do next.
//!
//! One task sleeps until the earliest moment that a session named, and asks all of them when it wakes. A later moment does not
//! wake it: a message that is acknowledged in time costs no timer of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::datagram::Time;

/// Nothing is due.
const NEVER: u64 = u64::MAX;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) began: Instant,
    /// What the task sleeps until, us since the beginning.
    armed_us: AtomicU64,
    changed: Notify,
}

impl Timer {
    /// Its time begins at `began`.
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, armed_us: AtomicU64::new(NEVER), changed: Notify::new() }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Something is due then.
    pub(crate) fn arm(&self, due: Option<Time>) {
        if self.note(due) {
            self.changed.notify_one();
        }
    }

    /// Whether that is earlier than what was known.
    fn note(&self, due: Option<Time>) -> bool {
        let due_us = due.map_or(NEVER, |due| u64::try_from(due.as_micros()).unwrap_or(NEVER));
        self.armed_us.fetch_min(due_us, Ordering::AcqRel) > due_us
    }
}

/// Has `on_time` do what is due and say when the next thing is, until its owner is dropped.
pub(crate) async fn keep<T>(timer: Arc<Timer>, owner: Weak<T>, on_time: fn(&T) -> Option<Time>) {
    loop {
        timer.armed_us.store(NEVER, Ordering::Release);
        // What is armed from here on is noted, and looked at below.
        let Some(due) = owner.upgrade().map(|owner| on_time(&owner)) else { return };
        timer.note(due);
        match timer.armed_us.load(Ordering::Acquire) {
            NEVER => timer.changed.notified().await,
            until_us => {
                let until = timer.began + Time::from_micros(until_us);
                tokio::select! {
                    () = sleep_until(until) => {}
                    () = timer.changed.notified() => {}
                }
            }
        }
    }
}
