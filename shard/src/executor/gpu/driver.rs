//! How long this process waits for a driver.
//!
//! A driver that hangs cannot be interrupted by the thread that called it. So every call that may wait holds a [`Call`], which says
//! how long it may last, and a thread that watches ([`overdue`]) can end the process.
//!
//! Limits: one watch for the process. Calls of several threads count as one, which is overdue when none of them has begun or
//! ended for as long as the most patient of them allows.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The calls that are under way.
static CALLS: Mutex<Calls> = Mutex::new(Calls { count: 0, moved: None, allowed: Duration::ZERO });

struct Calls {
    count: u32,
    /// When one of them last began or ended.
    moved: Option<Instant>,
    allowed: Duration,
}

impl Calls {
    fn begin(&mut self, now: Instant, allowed: Duration) {
        self.allowed = if self.count == 0 { allowed } else { self.allowed.max(allowed) };
        self.count += 1;
        self.moved = Some(now);
    }

    fn end(&mut self, now: Instant) {
        self.count = self.count.saturating_sub(1);
        self.moved = Some(now);
    }

    fn overdue(&self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.moved.filter(|_| self.count > 0)?);
        (waited > self.allowed).then_some(waited)
    }
}

/// What a mutex holds; a thread that panicked with it leaves it usable.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call into a driver, over when it is dropped.
#[derive(Debug)]
#[must_use = "the call is over when this is dropped"]
pub struct Call(());

impl Call {
    /// One that may last `allowed`.
    pub fn begin(allowed: Duration) -> Self {
        locked(&CALLS).begin(Instant::now(), allowed);
        Self(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        locked(&CALLS).end(Instant::now());
    }
}

/// How long a driver has not come back from a call that should have been over; `None` while all is well.
pub fn overdue() -> Option<Duration> {
    locked(&CALLS).overdue(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_overdue_when_nothing_moves_for_as_long_as_it_may_last() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut calls = Calls { count: 0, moved: None, allowed: Duration::ZERO };
        assert_eq!(calls.overdue(at(1_000)), None, "there is none");
        calls.begin(at(0), Duration::from_secs(60));
        assert_eq!((calls.overdue(at(60)), calls.overdue(at(61))), (None, Some(Duration::from_secs(61))));
        calls.begin(at(50), Duration::from_secs(300));
        assert_eq!(calls.overdue(at(350)), None, "the call within it may last longer");
        calls.end(at(350));
        assert_eq!(calls.overdue(at(640)), None, "it went on just now");
        calls.end(at(640));
        assert_eq!(calls.overdue(at(10_000)), None, "the driver came back");
        calls.begin(at(10_000), Duration::from_secs(60));
        assert!(calls.overdue(at(10_061)).is_some(), "the patience of calls that are over is forgotten");
    }
}
