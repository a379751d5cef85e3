//! Which worker computes a session.
//!
//! A node that comes to hold more layers starts a worker with all of them, and sessions that begin from then on are computed
//! there. Those under way stay with the worker that has their state until their route changes, which a later epoch says: then
//! they may be asked for layers that it has not, and what was computed comes again from the log. One that has computed nothing
//! yet goes there at once when it is asked for such layers ([`Assigned::move_on`]). A worker ends when its last
//! session leaves it, since its child is let go with the last [`Worker`]. A session whose worker died goes to the one that was
//! started in its place.

use std::sync::{Arc, Mutex, Weak};

use scheduler::SessionId;
use tokio::sync::{Notify, watch};

use super::Worker;
use crate::confine::child::lock;

/// The worker of one session.
pub struct Assigned {
    /// The node's worker, now this one, then that.
    latest: watch::Receiver<Worker>,
    own: Mutex<Own>,
    wanted: Arc<Notify>,
    _in_use: Arc<()>,
}

struct Own {
    worker: Worker,
    /// The latest one that [`Assigned::enter`] was told of.
    epoch: Option<u32>,
}

/// Counts what needs the worker of a model: it is not unloaded while an [`Assigned`] lives.
pub struct Uses {
    count: Arc<()>,
    wanted: Arc<Notify>,
}

impl Uses {
    /// Nothing needs it yet; `wanted` is told when it is needed and gone.
    pub fn new(wanted: Arc<Notify>) -> Self {
        Self { count: Arc::default(), wanted }
    }

    /// Whether anything needs it.
    pub fn are_any(&self) -> bool {
        Arc::strong_count(&self.count) > 1
    }

    /// Where it is to be had: `latest` is the node's worker of the model, now this one, then that.
    pub fn source(&self, latest: watch::Receiver<Worker>) -> WorkerSource {
        WorkerSource { latest, count: Arc::downgrade(&self.count), wanted: self.wanted.clone() }
    }
}

/// Where the node's worker of a model is to be had. It needs none by itself.
#[derive(Clone)]
pub struct WorkerSource {
    latest: watch::Receiver<Worker>,
    count: Weak<()>,
    wanted: Arc<Notify>,
}

impl WorkerSource {
    /// The worker that is there now, for as long as it runs.
    pub fn assign(&self) -> Assigned {
        // The node that counts is ending where there is no count.
        let in_use = self.count.upgrade().unwrap_or_default();
        let (latest, wanted) = (self.latest.clone(), self.wanted.clone());
        let own = Mutex::new(Own { worker: latest.borrow().clone(), epoch: None });
        Assigned { latest, own, wanted, _in_use: in_use }
    }
}

impl Assigned {
    /// Ranges of `session` are opened under `epoch`: where that is a later one, the node's worker computes them from here on.
    pub fn enter(&self, session: SessionId, epoch: u32) {
        let mut own = lock(&self.own);
        if own.epoch >= Some(epoch) {
            return;
        }
        own.epoch = Some(epoch);
        drop(own);
        self.move_on(session);
    }

    /// The node's worker computes `session` from here on, where that is another one: `None` where it is not, or is gone. What the
    /// session had opened is closed.
    pub fn move_on(&self, session: SessionId) -> Option<Worker> {
        let mut own = lock(&self.own);
        let latest = self.latest.borrow().clone();
        if !latest.is_alive() || latest.is(&own.worker) {
            return None;
        }
        own.worker.close(session);
        own.worker = latest.clone();
        Some(latest)
    }

    /// The session's worker, or the node's when that is gone.
    pub fn get(&self) -> Worker {
        let mut own = lock(&self.own);
        if !own.worker.is_alive() {
            own.worker = self.latest.borrow().clone();
        }
        own.worker.clone()
    }

    /// What was kept of ended sessions is not needed any more: this session's worker has it, or the node's.
    pub fn forget(&self, sessions: &[SessionId]) {
        let (own, latest) = (self.get(), self.latest.borrow().clone());
        let others = (!latest.is(&own)).then_some(&latest);
        for worker in std::iter::once(&own).chain(others) {
            sessions.iter().for_each(|session| worker.forget(*session));
        }
    }

    /// As [`Assigned::get`], when it runs: another one is waited for when it is gone. `None` when the node ends.
    pub async fn running(&self) -> Option<Worker> {
        let mut latest = self.latest.clone();
        loop {
            let worker = self.get();
            if worker.is_alive() {
                return Some(worker);
            }
            self.wanted.notify_one();
            latest.wait_for(Worker::is_alive).await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(node: &watch::Sender<Worker>) -> Assigned {
        Uses::new(Arc::default()).source(node.subscribe()).assign()
    }

    #[tokio::test]
    async fn a_session_goes_to_the_latest_worker_with_a_later_epoch() {
        let ((first, mut to_first), (second, mut to_second)) = (Worker::unanswered(), Worker::unanswered());
        let node = watch::Sender::new(first.clone());
        let (assigned, session) = (assigned(&node), SessionId::numbered(1));
        assigned.enter(session, 1);
        node.send_replace(second.clone());
        assigned.enter(session, 1);
        assert!(assigned.get().is(&first), "its state is there");
        assert!(to_first.is_empty());
        assigned.enter(session, 2);
        assert!(assigned.get().is(&second) && to_first.try_recv().is_ok(), "closed where it was");
        node.send_replace(Worker::absent("gone"));
        assigned.enter(session, 3);
        assert!(assigned.get().is(&second), "a worker that is not there computes nothing");
        assert!(to_first.is_empty() && to_second.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_session_that_has_computed_nothing_moves_on_under_its_epoch() {
        let ((first, mut to_first), (second, _to_second)) = (Worker::unanswered(), Worker::unanswered());
        let node = watch::Sender::new(first.clone());
        let (assigned, session) = (assigned(&node), SessionId::numbered(1));
        assigned.enter(session, 1);
        assert!(assigned.move_on(session).is_none() && to_first.is_empty(), "there is no other");
        node.send_replace(second.clone());
        assert!(assigned.move_on(session).is_some_and(|worker| worker.is(&second)));
        assert!(assigned.get().is(&second) && to_first.try_recv().is_ok(), "closed where it was");
        node.send_replace(Worker::absent("gone"));
        assert!(assigned.move_on(session).is_none() && assigned.get().is(&second));
    }

    #[tokio::test]
    async fn what_was_kept_is_forgotten_at_both_workers() {
        let ((first, to_first), (second, to_second)) = (Worker::unanswered(), Worker::unanswered());
        let node = watch::Sender::new(first);
        let assigned = assigned(&node);
        let sessions = [SessionId::numbered(1), SessionId::numbered(2)];
        assigned.forget(&sessions);
        assert_eq!(to_first.len(), 2, "once where it is the same");
        node.send_replace(second);
        assigned.forget(&sessions);
        assert_eq!((to_first.len(), to_second.len()), (4, 2));
    }
}
