//! The serving side's door: who gets a lease here, who waits a moment, who is refused and why.
//!
//! What is decided is [`scheduler::door`]: a slot and the memory of the caches are reserved before the worker hears of a
//! session, a lease that is not used or whose requester is gone is taken back, and one requester does not hold all slots
//! while others wait. This file feeds it with leases, signs of use, connections and time, and does what it says. A place
//! comes back when the stage's task ends, however it ends: its guard is dropped then.
//!
//! What is answered carries what the requester's next route needs: a grant says how many sessions count on this node, a
//! refusal of layers says which ones are held.
//!
//! Limits: [`SLOTS`] sessions of others, fewer where `--sessions` says so; [`WAITING`] leases wait at most [`WAIT_MS`],
//! then they are refused as busy; a quarter of the slots is kept for nodes that have worked for this one, as soon as there
//! are any.

use std::{collections::BTreeMap, time::Duration};

use p2p::{
    ReplyTo,
    wire::control::{Answer, Lease, Refusal, Role},
};
use scheduler::{
    NodeId, SessionId,
    account::Tier,
    admit::{self, Guards, Limits, SlotGuard},
    door::{self, Decision, Ending, Key, Refused},
    governor::Resource,
};
use tokio::sync::oneshot;

use super::Serving;
use crate::{
    sessions::{Inlets, Order},
    stage::{Sign, Stage},
};

/// Sessions of others served at once; far beyond what runs at full speed, since most of them are elsewhere at any
/// moment. Higher and all are slow; lower and a rush is refused that could have been served.
pub(crate) const SLOTS: u32 = 64;
/// Leases that wait for a slot.
const WAITING: usize = 64;
/// A requester gives a lease up after two seconds: this leaves the answer half a second to arrive.
const WAIT_MS: u64 = 1_500;
/// A stage that has not answered a request for the bill by then has ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// One slot in so many is kept for contributors, rounded up.
const KEPT_OF: u32 = 4;

/// See the module's page.
pub(crate) struct Door {
    decides: door::Door,
    guards: Guards,
    /// What each ask wants and where its answer goes, until it is decided.
    asks: BTreeMap<u64, (Lease, ReplyTo)>,
    next_id: u64,
    kv_bytes: u64,
    /// Nodes that have worked for this one.
    contributors: u32,
}

impl Door {
    /// A door to a worker with so much memory for caches.
    pub fn new(kv_bytes: u64) -> Self {
        let limits = Limits { slots: SLOTS, kv_bytes, waiting: WAITING, tiers: Tier::shares(SLOTS) };
        Self {
            decides: door::Door::new(limits),
            guards: Guards::default(),
            asks: BTreeMap::new(),
            next_id: 0,
            kv_bytes,
            contributors: 0,
        }
    }

    /// Sessions of others that count on this node.
    pub fn sessions(&mut self) -> u32 {
        self.collect();
        self.decides.sessions()
    }

    /// Memory for caches that no session has reserved.
    pub fn kv_free(&mut self) -> u64 {
        self.collect();
        self.kv_bytes.saturating_sub(self.decides.queue().kv_used())
    }

    /// So many slots are left for sessions of others.
    fn set_slots(&mut self, slots: u32) {
        self.decides.set_slots(slots, kept(slots, self.contributors));
    }

    /// Takes back what ended.
    fn collect(&mut self) {
        while let Some(id) = self.guards.freed() {
            self.decides.ended(id);
        }
    }
}

/// Of so many slots, those that strangers leave alone. None before any node has contributed, and never all.
fn kept(slots: u32, contributors: u32) -> u32 {
    slots.div_ceil(KEPT_OF).min(contributors).min(slots.saturating_sub(1))
}

impl Serving {
    /// A requester needs a session no more.
    pub(crate) fn released(&mut self, from: NodeId, session: SessionId, epoch: u32, reply: ReplyTo) {
        if let Some(inlets) = self.table.get(from, session) {
            let _ = inlets.orders.try_send(Order::Release { epoch });
        }
        for ask in self.door.decides.release(Key { requester: from, session }, epoch) {
            self.door.asks.remove(&ask.id);
        }
        self.node.network.answer(reply, Answer::Released);
    }

    /// A requester wants a stage; by the work that was signed for it is of `tier`.
    pub(crate) fn lease(&mut self, from: NodeId, lease: Lease, tier: usize, reply: ReplyTo) {
        let key = Key { requester: from, session: lease.session };
        if let Some(refusal) = self.refusal(key, &lease) {
            return self.node.network.answer(reply, refusal);
        }
        let held = self.models.get(lease.model);
        let kv_bytes = held
            .map_or(0, |held| held.ready.state_bytes(lease.layers, u64::from(lease.positions), lease.kind));
        self.door.next_id += 1;
        let ask = door::Ask {
            id: self.door.next_id,
            key,
            epoch: lease.epoch,
            tier,
            layers: lease.layers,
            kv_bytes,
            standby: lease.role != Role::Stage,
            patience_ms: WAIT_MS,
        };
        self.door.asks.insert(ask.id, (lease, reply));
        self.door.collect();
        self.set_slots();
        let decision = self.door.decides.lease(self.node.now(), ask);
        decision.into_iter().for_each(|decision| self.decide(decision));
        self.admit();
    }

    /// A requester wants the bill.
    pub(crate) fn settle(&self, from: NodeId, session: SessionId, upto: u32, reply: ReplyTo) {
        let network = self.node.network.clone();
        let gone = || Answer::refused(Refusal::Failed, "no such session");
        let Some(inlets) = self.table.get(from, session) else {
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
    fn refusal(&self, key: Key, lease: &Lease) -> Option<Answer> {
        let held = self.models.get(lease.model).filter(|held| held.computes());
        let served = held.map_or(&[][..], |held| &held.served);
        if !served.iter().any(|range| range.covers(lease.layers)) {
            return Some(Answer::not_held(served));
        }
        if self.models.get(lease.model).is_some_and(|held| held.ready.lacks(lease.kind).is_some()) {
            let why = format!("sessions of {} are not computed here: choose dense, and f16", lease.kind);
            return Some(Answer::refused(Refusal::Malformed, &why));
        }
        if self.gate.paused {
            return Some(Answer::refused(Refusal::Draining, "this node serves no requests for now"));
        }
        (self.gate.is_draining() && !self.door.decides.has(key))
            .then(|| Answer::refused(Refusal::Draining, "this node is about to leave"))
    }

    /// A stage says that its lease is used.
    pub(crate) fn sign(&mut self, key: Key, sign: Sign) {
        let now = self.node.now();
        let decision = match sign {
            Sign::Granted => {
                self.door.decides.granted(now, key);
                None
            }
            Sign::Beacon => {
                self.door.decides.beacon(key);
                None
            }
            Sign::Rows => self.door.decides.rows(now, key),
        };
        decision.into_iter().for_each(|decision| self.decide(decision));
    }

    /// The last connection of a node is gone.
    pub(crate) fn gone(&mut self, node: NodeId) {
        self.door.decides.gone(self.node.now(), node);
    }

    /// A connection to a node is there.
    pub(crate) fn back(&mut self, node: NodeId) {
        self.door.decides.back(node);
    }

    /// So many nodes have worked for this one.
    pub(crate) fn keep_for(&mut self, contributors: usize) {
        self.door.contributors = contributors as u32;
    }

    /// Prompts of others that are conducted here take slots as well.
    fn set_slots(&mut self) {
        let most = u32::try_from(self.gate.most).unwrap_or(SLOTS).min(SLOTS);
        self.door.set_slots(most.saturating_sub(self.guests() as u32));
    }

    /// Starts the asks whose turn it is, refuses those that waited too long and ends what is not used. Called whenever
    /// something changed, and regularly.
    pub(crate) fn admit(&mut self) {
        self.door.collect();
        self.set_slots();
        for decision in self.door.decides.turn(self.node.now()) {
            self.decide(decision);
        }
        // Asks of requesters that are gone are decided no more.
        let Door { decides, asks, .. } = &mut self.door;
        asks.retain(|id, _| decides.waits(*id));
    }

    fn decide(&mut self, decision: Decision) {
        match decision {
            Decision::Start(ask) => {
                let slot = self.door.guards.issue(ask.id);
                if let Some((lease, reply)) = self.door.asks.remove(&ask.id) {
                    self.start_stage(ask.key, lease, reply, slot);
                }
            }
            Decision::Forward(ask) => {
                let Some((lease, reply)) = self.door.asks.remove(&ask.id) else { return };
                match self.table.get(ask.key.requester, ask.key.session) {
                    Some(inlets) => self.order(&inlets, lease, reply),
                    None => {
                        let ended = Answer::refused(Refusal::Busy, "this session has just ended; ask again");
                        self.node.network.answer(reply, ended);
                    }
                }
            }
            Decision::Refuse(ask, why) => {
                if let Some((_, reply)) = self.door.asks.remove(&ask.id) {
                    self.node.network.governor().refuse(Resource::Leases);
                    self.node.network.answer(reply, refused(why));
                }
            }
            Decision::End(key, why) => self.end(key, why),
        }
    }

    /// Ends a session. Its place is free when its task is over.
    fn end(&self, key: Key, why: Ending) {
        let Some(inlets) = self.table.get(key.requester, key.session) else { return };
        tracing::info!(session = %key.session, requester = %key.requester, ?why, "a lease is taken back");
        let told = match why {
            // Nothing is heard of it; what would be sent reaches no reader.
            Ending::Unused | Ending::Away => None,
            Ending::Yields => Some("others wait for the place, and it was idle"),
            Ending::NoRoom => Some("its memory was taken while it stood by"),
        };
        // A full channel must not keep the place.
        tokio::spawn(async move { inlets.orders.send(Order::End { told }).await });
    }

    fn start_stage(&mut self, key: Key, lease: Lease, reply: ReplyTo, slot: SlotGuard) {
        let Key { requester, session } = key;
        // Its model was here when it asked.
        let Some(held) = self.models.get(lease.model) else {
            return self.node.network.answer(reply, Answer::not_held(&[]));
        };
        let permit = match self.node.network.governor().take_for(requester, Resource::Leases, 1) {
            Ok(permit) => permit,
            Err(refused) => {
                let busy = Answer::refused(Refusal::Busy, &refused.to_string());
                return self.node.network.answer(reply, busy);
            }
        };
        let Some((inlets, doors)) = self.table.enter(requester, session) else {
            let busy = Answer::refused(Refusal::Busy, "no more sessions here");
            return self.node.network.answer(reply, busy);
        };
        let stage = Stage {
            session,
            requester,
            network: self.node.network.clone(),
            identity: self.node.identity.clone(),
            hidden: held.ready.hidden,
            class: held.ready.class,
            worker: held.source().assign(),
            table: self.table.clone(),
            books: self.books.clone(),
            draining: self.gate.draining.subscribe(),
            slot,
            permit,
            prefixes: self.prefixes.clone(),
        };
        self.totals.sessions += 1;
        tokio::spawn(stage.run(inlets.clone(), doors));
        self.order(&inlets, lease, reply);
    }

    /// Hands a lease to the session's task and its answer to the requester.
    fn order(&mut self, inlets: &Inlets, lease: Lease, reply: ReplyTo) {
        let knee = Self::knee(self.models.get(lease.model).unwrap_or(&self.models.first));
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

/// The answer to a lease that the door refuses.
fn refused(why: Refused) -> Answer {
    let (reason, text) = match why {
        Refused::Queue(admit::Refusal::TooBig) => (Refusal::NoRoom, "its caches would not fit"),
        Refused::Queue(_) => (Refusal::Busy, "too many wait here already; ask again in a moment"),
        Refused::Late => (Refusal::Busy, "as many sessions of others run here as may (--sessions)"),
        Refused::GivenBack => (Refusal::Busy, "this epoch of the session was given back"),
        Refused::Ending => (Refusal::Busy, "the session is being ended; ask again in a moment"),
    };
    Answer::refused(reason, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::Millis;

    fn ask(id: u64, requester: u64, kv_bytes: u64) -> door::Ask {
        let key = Key { requester: NodeId::numbered(requester), session: SessionId::numbered(id) };
        let layers = scheduler::LayerRange::new(0, 1).unwrap();
        door::Ask { id, key, epoch: 1, tier: 0, layers, kv_bytes, standby: false, patience_ms: WAIT_MS }
    }

    #[test]
    fn memory_is_free_again_when_the_slot_is_dropped() {
        let mut door = Door::new(1_000);
        assert_eq!(door.decides.lease(Millis(0), ask(1, 1, 600)), None);
        assert_eq!(door.decides.lease(Millis(0), ask(2, 1, 600)), None);
        assert_eq!(door.decides.turn(Millis(0)), [Decision::Start(ask(1, 1, 600))]);
        let slot = door.guards.issue(1);
        assert_eq!((door.sessions(), door.kv_free()), (2, 400));
        drop(slot);
        assert_eq!((door.sessions(), door.kv_free()), (1, 1_000));
        let late = Decision::Refuse(ask(2, 1, 600), Refused::Late);
        assert_eq!(door.decides.turn(Millis(WAIT_MS)), [late]);
    }

    #[test]
    fn slots_are_kept_once_a_node_has_contributed_and_never_all_of_them() {
        assert_eq!([0, 1, 2, 4, 5, 64].map(|slots| kept(slots, 0)), [0; 6]);
        assert_eq!([0, 1, 2, 4, 5, 64].map(|slots| kept(slots, 100)), [0, 0, 1, 1, 2, 16]);
        assert_eq!(kept(64, 3), 3, "one for each of them");
    }
}
