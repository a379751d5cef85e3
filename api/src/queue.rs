//! How many answers may be under way, and what happens to the one too many.
//!
//! Every choice of every request holds a place from before it is routed until its stream is dropped, which is when the
//! client has everything or has gone. When no place is left the request is refused at once with 429 and an estimate of
//! when one will be free: a client that waits in a queue it cannot see cannot decide to go elsewhere.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{
    doors::{Door, Doors, Pass},
    error::{ApiError, Kind},
    keys,
};

/// A client told to wait longer than this should not have been told to wait.
const MAX_RETRY_S: u64 = 60;

/// The places.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    doors: Arc<dyn Doors>,
    /// Mean time a place is held, in microseconds, moving.
    held_us: Arc<AtomicU64>,
}

/// A place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _pass: Pass,
    since: Instant,
    held_us: Arc<AtomicU64>,
}

impl Queue {
    pub(crate) fn new(doors: Arc<dyn Doors>) -> Self {
        Self { doors, held_us: Arc::new(AtomicU64::new(1_000_000)) }
    }

    /// Places in use.
    pub(crate) fn in_use(&self) -> u64 {
        self.doors.standing(Door::Answers).used
    }

    /// Takes `n` places at once, or refuses.
    pub(crate) fn enter(&self, n: usize) -> Result<Place, ApiError> {
        let holder = keys::holder();
        let pass = self.doors.take(Door::Answers, holder.as_deref(), n as u64).map_err(|full| {
            let seconds = self.held_us.load(Ordering::Relaxed) / 1_000_000 / full.most.max(1) + 1;
            let seconds = seconds.min(MAX_RETRY_S) as u32;
            let whose = if holder.is_some() { " of this key or of all" } else { "" };
            ApiError {
                retry_after_s: Some(seconds),
                ..ApiError::new(
                    Kind::Busy,
                    format!(
                        "{} answers{whose} are under way, which is the most; try again in {seconds} s",
                        full.most
                    ),
                )
            }
        })?;
        Ok(Place { _pass: pass, since: Instant::now(), held_us: self.held_us.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let us = self.since.elapsed().as_micros() as u64;
        let old = self.held_us.load(Ordering::Relaxed);
        self.held_us.store(old - old / 8 + us / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::Alone;

    #[test]
    fn one_too_many_is_refused_and_a_dropped_place_is_free() {
        let queue = Queue::new(Arc::new(Alone::new([1, 1, 3])));
        let first = queue.enter(2).unwrap();
        let error = queue.enter(2).unwrap_err();
        assert_eq!(error.kind, Kind::Busy);
        assert!(error.retry_after_s.is_some_and(|s| s >= 1));
        let second = queue.enter(1).unwrap();
        assert_eq!(queue.in_use(), 3);
        drop(first);
        assert_eq!(queue.in_use(), 1);
        drop(second);
        assert!(queue.enter(3).is_ok());
    }
}
