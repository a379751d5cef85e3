//! Whose turn it is to compute with a model.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::Duration,
};

use crate::Error;

/// How often a call that waits asks whether it was cancelled; a person notices no less.
const LOOK: Duration = Duration::from_millis(50);

/// One answer at a time, by the thread that computes it.
#[derive(Default)]
pub(crate) struct Turns {
    holder: Mutex<Option<ThreadId>>,
    freed: Condvar,
}

/// This thread's turn, until it is dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for this thread's turn; `None` when it was `cancelled` meanwhile.
    ///
    /// # Errors
    /// When this thread has the turn already: it would wait for itself.
    pub(crate) fn take(&self, cancelled: &dyn Fn() -> bool) -> Result<Option<Turn<'_>>, Error> {
        let me = thread::current().id();
        let mut holder = self.holder();
        loop {
            if cancelled() {
                return Ok(None);
            }
            match *holder {
                None => {
                    *holder = Some(me);
                    return Ok(Some(Turn(self)));
                }
                Some(other) if other == me => {
                    let why =
                        "the model is computing the answer whose piece this is; generate after it has ended";
                    return Err(Error(why.into()));
                }
                Some(_) => {
                    let waited = self.freed.wait_timeout(holder, LOOK);
                    holder = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Nothing is left half done under the lock, so a panic elsewhere does not matter.
    fn holder(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.holder() = None;
        self.0.freed.notify_one();
    }
}
