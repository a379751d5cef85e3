//! The serving side's door: who gets a lease here, who waits a moment, who is refused and why.
//!
//! A lease for a session that is not served yet asks [`scheduler::admit`] for a slot and for the memory of its caches;
//! both are reserved before the worker hears of it and come back when the stage's task ends, however it ends. Further
//! leases of a session that is served (another epoch, another segment) go straight to its task: it has its slot.
//!
//! What is answered carries what the requester's next route needs: a grant says how many sessions count on this node, a
//! refusal of layers says which ones are held.
//!
//! Limits: [`SLOTS`] sessions of others; [`WAITING`] leases wait at most [`WAIT_MS`], then they are refused as busy;
//! [`CLOSED`] sessions given back are remembered, so that a lease which its own release overtook is not granted after
//! it; beyond, the oldest is forgotten and such a lease would live until its time is over.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use p2p::{
    ReplyTo,
    wire::control::{Answer, Lease, Refusal},
};
use scheduler::{
    Millis, NodeId, SessionId,
    account::Tier,
    admit::{self, Admission, Limits, SlotGuard},
};
use tokio::sync::oneshot;

use super::Serving;
use crate::{
    sessions::{Inlets, Order},
    stage::Stage,
};

/// Sessions of others served at once; far beyond what runs at full speed, since most of them are elsewhere at any
/// moment. Higher and everybody is slow; lower and a rush is refused that could have been served.
pub(crate) const SLOTS: u32 = 64;
/// Leases that wait for a slot.
const WAITING: usize = 64;
/// A requester gives a lease up after two seconds: this leaves the answer half a second to arrive.
const WAIT_MS: u64 = 1_500;
/// A stage that has not answered a request for the bill by then has ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sessions given back that are remembered.
const CLOSED: usize = 1_024;

struct Waiting {
    from: NodeId,
    lease: Lease,
    reply: ReplyTo,
}

/// See the module's page.
pub(crate) struct Door {
    admission: Admission,
    waiting: BTreeMap<u64, Waiting>,
    next_id: u64,
    closed: VecDeque<(NodeId, SessionId, u32)>,
    kv_bytes: u64,
}

impl Door {
    /// A door to a worker with so much memory for caches.
    pub fn new(kv_bytes: u64) -> Self {
        let limits = Limits { slots: SLOTS, kv_bytes, waiting: WAITING, tiers: Tier::shares(SLOTS) };
        let admission = Admission::new(limits);
        Self { admission, waiting: BTreeMap::new(), next_id: 0, closed: VecDeque::new(), kv_bytes }
    }

    /// Sessions of others that count on this node.
    pub fn sessions(&mut self) -> u32 {
        (self.admission.running() + self.admission.waiting()) as u32
    }

    /// Memory for caches that nobody has reserved.
    pub fn kv_free(&mut self) -> u64 {
        self.kv_bytes.saturating_sub(self.admission.kv_used())
    }

    /// Remembers what a requester gave back.
    fn close(&mut self, from: NodeId, session: SessionId, epoch: u32) {
        if let Some(known) = self.closed.iter_mut().find(|known| (known.0, known.1) == (from, session)) {
            known.2 = known.2.max(epoch);
            return;
        }
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((from, session, epoch));
    }

    fn is_closed(&self, from: NodeId, session: SessionId, epoch: u32) -> bool {
        self.closed.iter().any(|known| (known.0, known.1) == (from, session) && epoch <= known.2)
    }
}

impl Serving {
    /// A requester needs a session no more.
    pub(crate) fn released(&mut self, from: NodeId, session: SessionId, epoch: u32, reply: ReplyTo) {
        if let Some(inlets) = self.table.get(session).filter(|inlets| inlets.requester == from) {
            let _ = inlets.orders.try_send(Order::Release { epoch });
        }
        let gone = |waiting: &Waiting| {
            (waiting.from, waiting.lease.session) == (from, session) && waiting.lease.epoch <= epoch
        };
        let ids: Vec<u64> = self.door.waiting.iter().filter(|(_, w)| gone(w)).map(|(id, _)| *id).collect();
        for id in ids {
            self.door.admission.cancel(id);
            self.door.waiting.remove(&id);
        }
        self.door.close(from, session, epoch);
        self.node.network.answer(reply, Answer::Released);
    }

    /// A requester wants a stage; by the work that was signed for it is of `tier`.
    pub(crate) fn lease(&mut self, from: NodeId, lease: Lease, tier: usize, reply: ReplyTo) {
        if let Some(refusal) = self.refusal(from, &lease) {
            return self.node.network.answer(reply, refusal);
        }
        match self.table.get(lease.session) {
            Some(inlets) if inlets.requester == from => self.order(&inlets, lease, reply),
            Some(_) => {
                let text = "another node's session";
                self.node.network.answer(reply, Answer::refused(Refusal::NotTrusted, text));
            }
            None => self.queue(from, lease, tier, reply),
        }
    }

    /// A requester wants the bill.
    pub(crate) fn settle(&self, from: NodeId, session: SessionId, upto: u32, reply: ReplyTo) {
        let network = self.node.network.clone();
        let gone = || Answer::refused(Refusal::Failed, "no such session");
        let Some(inlets) = self.table.get(session).filter(|inlets| inlets.requester == from) else {
            return network.answer(reply, gone());
        };
        let (answer, answered) = oneshot::channel();
        if inlets.orders.try_send(Order::Settle { upto, answer }).is_err() {
            return network.answer(reply, gone());
        }
        tokio::spawn(async move {
            let settled = tokio::time::timeout(PATIENCE, answered).await.ok().and_then(Result::ok);
            network.answer(reply, settled.unwrap_or_else(gone));
        });
    }

    /// Why a lease cannot be granted, if that is plain.
    fn refusal(&self, from: NodeId, lease: &Lease) -> Option<Answer> {
        let served = self.models.get(lease.model).map_or(&[][..], |held| &held.served);
        if !served.iter().any(|range| range.covers(lease.layers)) {
            return Some(Answer::not_held(served));
        }
        if self.gate.paused {
            return Some(Answer::refused(Refusal::Draining, "this node serves nobody for now"));
        }
        if self.table.get(lease.session).is_none() && self.is_full() {
            let text = "as many sessions of others run here as may (--sessions)";
            return Some(Answer::refused(Refusal::Busy, text));
        }
        if self.gate.is_draining() && self.table.get(lease.session).is_none() {
            return Some(Answer::refused(Refusal::Draining, "this node is about to leave"));
        }
        self.door.is_closed(from, lease.session, lease.epoch).then(|| {
            let text = "this epoch of the session was given back";
            Answer::refused(Refusal::Malformed, text)
        })
    }

    fn queue(&mut self, from: NodeId, lease: Lease, tier: usize, reply: ReplyTo) {
        let held = self.models.get(lease.model);
        let kv_bytes =
            held.map_or(0, |held| held.ready.state_bytes(lease.layers, u64::from(lease.positions)));
        let now = self.node.now();
        self.door.next_id += 1;
        let id = self.door.next_id;
        let ask = admit::Ask {
            id,
            requester: from,
            tier,
            kv_bytes,
            deadline: Some(Millis(now.0 + WAIT_MS)),
            predicted_ms: 0.0,
        };
        if let Err(why) = self.door.admission.submit(now, ask) {
            let answer = match why {
                admit::Refusal::TooBig => Answer::refused(Refusal::NoRoom, "its caches would not fit"),
                _ => Answer::refused(Refusal::Busy, "too many wait here already"),
            };
            return self.node.network.answer(reply, answer);
        }
        self.door.waiting.insert(id, Waiting { from, lease, reply });
        self.admit();
    }

    /// Starts whoever's turn it is and refuses whoever waited too long. Called whenever something changed.
    pub(crate) fn admit(&mut self) {
        let now = self.node.now();
        while let Some((ask, slot)) = self.door.admission.next(now) {
            if let Some(waiting) = self.door.waiting.remove(&ask.id) {
                self.start_stage(waiting, slot);
            }
        }
        if self.door.admission.waiting() < self.door.waiting.len() {
            // Admission has discarded the late ones.
            let door = &mut self.door;
            let late: Vec<u64> =
                door.waiting.keys().copied().filter(|id| !door.admission.waits(*id)).collect();
            for waiting in late.into_iter().filter_map(|id| door.waiting.remove(&id)) {
                let busy = Answer::refused(Refusal::Busy, "all slots are taken");
                self.node.network.answer(waiting.reply, busy);
            }
        }
    }

    fn start_stage(&mut self, waiting: Waiting, slot: SlotGuard) {
        let Waiting { from, lease, reply } = waiting;
        let session = lease.session;
        // Its model was here when it asked.
        let Some(held) = self.models.get(lease.model) else {
            return self.node.network.answer(reply, Answer::not_held(&[]));
        };
        let Some((inlets, doors)) = self.table.enter(session, from) else {
            // A second lease of one session waited beside the first.
            return match self.table.get(session).filter(|inlets| inlets.requester == from) {
                Some(inlets) => self.order(&inlets, lease, reply),
                None => {
                    self.node.network.answer(reply, Answer::refused(Refusal::Busy, "no more sessions here"))
                }
            };
        };
        let stage = Stage {
            session,
            requester: from,
            network: self.node.network.clone(),
            identity: self.node.identity.clone(),
            hidden: held.ready.hidden,
            class: held.ready.class,
            worker: held.worker.subscribe(),
            table: self.table.clone(),
            books: self.books.clone(),
            draining: self.gate.draining.subscribe(),
            slot,
            room: self.room.clone(),
        };
        self.totals.sessions += 1;
        tokio::spawn(stage.run(inlets.clone(), doors));
        self.order(&inlets, lease, reply);
    }

    /// Hands a lease to the session's task and its answer to the requester.
    fn order(&mut self, inlets: &Inlets, lease: Lease, reply: ReplyTo) {
        let knee = self.knee(self.models.get(lease.model).unwrap_or(&self.models.first));
        let (answer, answered) = oneshot::channel();
        let order = Order::Lease { lease: Box::new(lease), answer };
        if inlets.orders.try_send(order).is_err() {
            let busy = Answer::refused(Refusal::Busy, "this session has too much to do");
            return self.node.network.answer(reply, busy);
        }
        let network = self.node.network.clone();
        let others = self.door.sessions().saturating_sub(1);
        tokio::spawn(async move {
            let answer = match answered.await {
                // The task knows the session, the door knows the others.
                Ok(Answer::Accepted { have, .. }) => Answer::Accepted { have, sessions: others, lanes: knee },
                Ok(refused) => refused,
                Err(_) => Answer::refused(Refusal::Failed, "the session ended"),
            };
            network.answer(reply, answer);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_remembered_but_not_for_ever() {
        let mut door = Door::new(1_000);
        let (one, other) = (NodeId::numbered(1), NodeId::numbered(2));
        let session = SessionId::numbered;
        door.close(one, session(5), 3);
        door.close(one, session(5), 2);
        assert!(door.is_closed(one, session(5), 3) && !door.is_closed(one, session(5), 4));
        assert!(!door.is_closed(other, session(5), 1), "nobody closes another's session");
        (0..CLOSED as u64).for_each(|n| door.close(other, session(100 + n), 1));
        assert!(!door.is_closed(one, session(5), 3));
        assert_eq!(door.closed.len(), CLOSED);
    }

    #[test]
    fn memory_is_free_again_when_the_slot_is_dropped() {
        let mut door = Door::new(1_000);
        let ask = |id, kv_bytes| admit::Ask {
            id,
            requester: NodeId::numbered(1),
            tier: 0,
            kv_bytes,
            deadline: Some(Millis(WAIT_MS)),
            predicted_ms: 0.0,
        };
        door.admission.submit(Millis(0), ask(1, 600)).unwrap();
        door.admission.submit(Millis(0), ask(2, 600)).unwrap();
        let (_, slot) = door.admission.next(Millis(0)).unwrap();
        assert!(door.admission.next(Millis(0)).is_none() && door.admission.waits(2));
        assert_eq!((door.sessions(), door.kv_free()), (2, 400));
        drop(slot);
        assert_eq!((door.sessions(), door.kv_free()), (1, 1_000));
        assert!(door.admission.next(Millis(WAIT_MS)).is_none() && !door.admission.waits(2), "too late");
    }
}
