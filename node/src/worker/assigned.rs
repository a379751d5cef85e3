//! Which worker computes a session.
//!
//! A node that comes to hold more layers starts a worker with all of them, and sessions that begin from then on are computed
//! there. Those under way stay with the worker that has their state; it ends when the last of them does, since its child is
//! let go with the last [`Worker`]. A session whose worker died goes to the one that was started in its place.

use std::sync::Mutex;

use tokio::sync::watch;

use super::Worker;
use crate::confine::child::lock;

/// The worker of one session.
pub struct Assigned {
    /// The node's worker, now this one, then that.
    latest: watch::Receiver<Worker>,
    own: Mutex<Worker>,
}

impl Assigned {
    /// The one that `latest` has now, for as long as it runs.
    pub fn new(latest: watch::Receiver<Worker>) -> Self {
        let own = Mutex::new(latest.borrow().clone());
        Self { latest, own }
    }

    /// The session's worker, or the node's when that is gone.
    pub fn get(&self) -> Worker {
        let mut own = lock(&self.own);
        if !own.is_alive() {
            *own = self.latest.borrow().clone();
        }
        own.clone()
    }

    /// As [`Assigned::get`], when it runs: another one is waited for when it is gone. `None` when the node ends.
    pub async fn running(&self) -> Option<Worker> {
        let mut latest = self.latest.clone();
        loop {
            let worker = self.get();
            if worker.is_alive() {
                return Some(worker);
            }
            latest.wait_for(Worker::is_alive).await.ok()?;
        }
    }
}
