//! The serving side's door as a value: who has a place, how long it lasts without a sign of use, and when it comes back.
//!
//! A place belongs to a requester and one of its sessions ([`Key`]), so a name that another requester took first stands
//! in no way. Slots and memory are [`admit::Queue`]'s; the door adds what a stranger could abuse:
//!
//! 1. *A lease is used or lost.* Without a frame or a beacon within [`FIRST_SIGN_MS`] of its grant the place is taken
//!    back. A standby waits for rows as long as its lease says, but the requester's beacon must come as well.
//! 2. *A place ends with its requester's last connection*, [`GRACE_MS`] later, so that one that reconnects goes on.
//! 3. *One place while others wait.* A requester of the lowest tier that has several places loses the idlest one when an ask
//!    of a requester with fewer waits: after [`SPARE_MS`] where no rows have come yet, after [`IDLE_MS`] without rows
//!    otherwise. It loses its only one when that was idle for [`LONG_IDLE_MS`] or a contributor waits. A place that works
//!    is never taken.
//! 4. *What was given back stays so.* [`CLOSED`] sessions are remembered with the epoch they were given back under, so
//!    that a lease which its own release overtook is not granted after it; beyond, the oldest is forgotten and such a
//!    lease is lost by the first rule.
//!
//! What to do about it is a [`Decision`]. The door holds no channel and reads no clock, and `tests/model` plays all
//! orders of what can happen to a small one. Which frames count inside a place is [`Terms`]'.

mod terms;

use std::collections::{BTreeMap, VecDeque};

pub use self::terms::{Term, Terms};
use crate::admit::{self, Limits, Queue};
use crate::{LayerRange, Millis, NodeId, SessionId};

/// A granted lease without a frame or a beacon for this long is lost, ms. The requester says so as soon as it has the
/// grant: this is a lost datagram, a retransmission and a busy machine.
pub const FIRST_SIGN_MS: u64 = 3_000;
/// A place outlives the last connection of its requester by this, ms: a handshake over a relay, several times.
pub const GRACE_MS: u64 = 3_000;
/// A place without rows for this long is idle, ms; well above what a step of an ordinary pipeline takes.
pub const IDLE_MS: u64 = 3_000;
/// A place beyond a stranger's first that no rows have come to is idle after this, ms: an ask waits longer than this.
pub const SPARE_MS: u64 = 1_000;
/// The only place of a stranger is idle after this, ms: a stage may wait as long for the first chunk of a long prompt.
pub const LONG_IDLE_MS: u64 = 10_000;
/// Sessions given back that are remembered.
pub const CLOSED: usize = 1_024;
/// Requesters without a connection that are remembered; each has a place or an ask, so there are not more.
const MAX_AWAY: usize = 4_096;

/// Whose session, and which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Who leases.
    pub requester: NodeId,
    /// Which of its sessions; the name says nothing without the requester.
    pub session: SessionId,
}

/// A lease that asks to be let in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    /// Names it; unique among all asks of this door.
    pub id: u64,
    /// For which session.
    pub key: Key,
    /// Under which epoch of it.
    pub epoch: u32,
    /// How its requester stands; 0 is unknown.
    pub tier: usize,
    /// Which layers. A later lease of the session takes the place of those that it overlaps, and stands beside the others.
    pub layers: LayerRange,
    /// Memory it needs until it ends.
    pub kv_bytes: u64,
    /// Whether it only stands by.
    pub standby: bool,
    /// How long it may wait, ms.
    pub patience_ms: u64,
}

/// Why an ask was turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The queue does not take it.
    Queue(admit::Refusal),
    /// It waited as long as it may.
    Late,
    /// This epoch of the session was given back.
    GivenBack,
    /// Its place is being taken back.
    Ending,
}

/// Why a place is taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// No sign of use came in time.
    Unused,
    /// Its requester is not connected any more.
    Away,
    /// Others wait, and its requester has more than its share.
    Yields,
    /// Its rows arrived and their memory is taken.
    NoRoom,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decision {
    /// This ask gets a place: start its session.
    Start(Ask),
    /// The session has its place already: hand the ask to it.
    Forward(Ask),
    /// Answer no.
    Refuse(Ask, Refused),
    /// End this session; its place is free once [`Door::ended`] says so.
    End(Key, Ending),
}

#[derive(Clone, Debug)]
struct Place {
    ask: u64,
    /// What is leased and the memory reserved for it; no two overlap, so there are no more than layers.
    parts: Vec<(LayerRange, u64)>,
    /// The grant; the start until then.
    since: Millis,
    granted: bool,
    /// Whether any sign of use came.
    shown: bool,
    /// Whether rows came.
    used: bool,
    /// The last rows, or the grant.
    worked: Millis,
    /// Whether it was told to end.
    ending: bool,
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Door {
    queue: Queue,
    waiting: BTreeMap<u64, Ask>,
    places: BTreeMap<Key, Place>,
    closed: VecDeque<(Key, u32)>,
    away: BTreeMap<NodeId, Millis>,
}

impl Door {
    /// An empty node.
    pub fn new(limits: Limits) -> Self {
        Self {
            queue: Queue::new(limits),
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            closed: VecDeque::new(),
            away: BTreeMap::new(),
        }
    }

    /// Slots and memory.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Changes how many sessions may run at once, and how many slots the lowest tier leaves alone.
    pub fn set_slots(&mut self, slots: u32, kept: u32) {
        self.queue.set_slots(slots);
        self.queue.keep(kept);
    }

    /// Sessions that count on this node.
    pub fn sessions(&self) -> u32 {
        (self.queue.running() + self.queue.waiting()) as u32
    }

    /// Whether a session has a place.
    pub fn has(&self, key: Key) -> bool {
        self.places.contains_key(&key)
    }

    /// Whether this ask still waits. One whose requester is gone does not, and no decision says so: what the caller keeps of
    /// it goes when this is false.
    pub fn waits(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Whether this epoch of a session was given back.
    pub fn is_closed(&self, key: Key, epoch: u32) -> bool {
        self.closed.iter().any(|known| known.0 == key && epoch <= known.1)
    }

    /// A lease comes in. `None` while it waits; [`Door::turn`] has more to say afterwards.
    pub fn lease(&mut self, now: Millis, ask: Ask) -> Option<Decision> {
        if self.is_closed(ask.key, ask.epoch) {
            return Some(Decision::Refuse(ask, Refused::GivenBack));
        }
        if self.places.contains_key(&ask.key) {
            return Some(self.forward(ask));
        }
        let entry = admit::Ask {
            id: ask.id,
            requester: ask.key.requester,
            tier: ask.tier,
            kv_bytes: ask.kv_bytes,
            deadline: Some(now + ask.patience_ms),
            predicted_ms: 0.0,
            standby: ask.standby,
        };
        match self.queue.submit(now, entry) {
            Ok(()) => {
                self.waiting.insert(ask.id, ask);
                None
            }
            Err(why) => Some(Decision::Refuse(ask, Refused::Queue(why))),
        }
    }

    /// A lease of a session that has its place.
    fn forward(&mut self, ask: Ask) -> Decision {
        let Some(place) = self.places.get_mut(&ask.key) else {
            return Decision::Refuse(ask, Refused::Ending);
        };
        if place.ending {
            return Decision::Refuse(ask, Refused::Ending);
        }
        let replaced = |part: &(LayerRange, u64)| part.0.intersect(ask.layers).is_some();
        let before = place.parts.iter().filter(|part| replaced(part)).map(|part| part.1).sum();
        // A standby that is to run the segment needs its memory now.
        if !self.queue.resize(place.ask, before, ask.kv_bytes, !ask.standby) {
            return Decision::Refuse(ask, Refused::Queue(admit::Refusal::TooBig));
        }
        place.parts.retain(|part| !replaced(part));
        place.parts.push((ask.layers, ask.kv_bytes));
        Decision::Forward(ask)
    }

    /// A requester gives back what it leased under this epoch or a lower one; the session itself is told by the caller.
    /// Returns the asks that need not wait any more.
    pub fn release(&mut self, key: Key, epoch: u32) -> Vec<Ask> {
        self.close(key, epoch);
        self.drop_waiting(|ask| ask.key == key && ask.epoch <= epoch)
    }

    fn drop_waiting(&mut self, gone: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let asks: Vec<Ask> = self.waiting.values().filter(|ask| gone(ask)).copied().collect();
        for ask in &asks {
            self.queue.cancel(ask.id);
            self.waiting.remove(&ask.id);
        }
        asks
    }

    /// The session took the lease: from now on it must be used.
    pub fn granted(&mut self, now: Millis, key: Key) {
        if let Some(place) = self.places.get_mut(&key).filter(|place| !place.granted) {
            (place.granted, place.since, place.worked) = (true, now, now);
        }
    }

    /// A beacon of the requester came.
    pub fn beacon(&mut self, key: Key) {
        if let Some(place) = self.places.get_mut(&key) {
            place.shown = true;
        }
    }

    /// Rows came. A standby takes its memory now, and ends where there is none.
    pub fn rows(&mut self, now: Millis, key: Key) -> Option<Decision> {
        let place = self.places.get_mut(&key)?;
        (place.shown, place.used, place.worked) = (true, true, now);
        let id = place.ask;
        (!self.queue.claim(id)).then(|| self.end(key, Ending::NoRoom)).flatten()
    }

    /// The session is over, however it ended.
    pub fn ended(&mut self, id: u64) {
        self.queue.free(id);
        self.places.retain(|_, place| place.ask != id);
    }

    /// The last connection of a node is gone.
    pub fn gone(&mut self, now: Millis, node: NodeId) {
        let matters = self.places.keys().any(|key| key.requester == node)
            || self.waiting.values().any(|ask| ask.key.requester == node);
        if matters && self.away.len() < MAX_AWAY {
            self.away.entry(node).or_insert(now);
        }
    }

    /// A connection to a node is there.
    pub fn back(&mut self, node: NodeId) {
        self.away.remove(&node);
    }

    /// What time and freed places lead to. Call it after anything happened, and regularly.
    pub fn turn(&mut self, now: Millis) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.take_back(now, &mut decisions);
        while let Some(entry) = self.queue.next(now) {
            let Some(ask) = self.waiting.remove(&entry.id) else {
                self.queue.free(entry.id);
                continue;
            };
            if self.places.contains_key(&ask.key) {
                // A second lease of one session waited beside the first.
                self.queue.free(ask.id);
                decisions.push(self.forward(ask));
                continue;
            }
            let place = Place {
                ask: ask.id,
                parts: vec![(ask.layers, ask.kv_bytes)],
                since: now,
                granted: false,
                shown: false,
                used: false,
                worked: now,
                ending: false,
            };
            self.places.insert(ask.key, place);
            decisions.push(Decision::Start(ask));
        }
        let late: Vec<u64> = self.waiting.keys().copied().filter(|id| !self.queue.waits(*id)).collect();
        let late = late.into_iter().filter_map(|id| self.waiting.remove(&id));
        decisions.extend(late.map(|ask| Decision::Refuse(ask, Refused::Late)));
        self.make_room(now, &mut decisions);
        decisions
    }

    /// Ends places that are not used, and those of requesters that are gone.
    fn take_back(&mut self, now: Millis, decisions: &mut Vec<Decision>) {
        let unused = |place: &Place| !place.shown && now.since(place.since) >= FIRST_SIGN_MS;
        let unused: Vec<Key> = self.places.iter().filter(|(_, p)| unused(p)).map(|(key, _)| *key).collect();
        decisions.extend(unused.into_iter().filter_map(|key| self.end(key, Ending::Unused)));
        let gone = self.away.iter().filter(|(_, since)| now.since(**since) >= GRACE_MS);
        let gone: Vec<NodeId> = gone.map(|(node, _)| *node).collect();
        for node in gone {
            self.away.remove(&node);
            // Its answers cannot reach it.
            self.drop_waiting(|ask| ask.key.requester == node);
            let its: Vec<Key> = self.places.keys().filter(|key| key.requester == node).copied().collect();
            decisions.extend(its.into_iter().filter_map(|key| self.end(key, Ending::Away)));
        }
    }

    /// Where an ask waits for a slot, the idlest place yields that its requester has beyond its share.
    fn make_room(&mut self, now: Millis, decisions: &mut Vec<Decision>) {
        for head in self.queue.heads() {
            let under_way = self.places.values().filter(|place| place.ending).count();
            if under_way >= self.queue.waiting() || !self.queue.is_full(head.tier) {
                return;
            }
            let its = self.queue.places(head.requester);
            let yields = |(key, place): &(&Key, &Place)| {
                let others = self.queue.places(key.requester);
                let several = head.tier > 0 || others > its + 1;
                let idle_ms = match (several, place.used) {
                    (true, false) => SPARE_MS,
                    (true, true) => IDLE_MS,
                    (false, _) => LONG_IDLE_MS,
                };
                self.queue.tier(place.ask) == Some(0)
                    && !place.ending
                    && now.since(place.worked) >= idle_ms
                    && key.requester != head.requester
                    && (head.tier > 0 || others > its)
            };
            let idlest = self.places.iter().filter(yields).min_by_key(|(key, place)| (place.worked, **key));
            let idlest = idlest.map(|(key, _)| *key);
            decisions.extend(idlest.and_then(|key| self.end(key, Ending::Yields)));
        }
    }

    /// Tells a place to end, once.
    fn end(&mut self, key: Key, why: Ending) -> Option<Decision> {
        let place = self.places.get_mut(&key).filter(|place| !place.ending)?;
        place.ending = true;
        Some(Decision::End(key, why))
    }

    /// Remembers what a requester gave back.
    fn close(&mut self, key: Key, epoch: u32) {
        if let Some(known) = self.closed.iter_mut().find(|known| known.0 == key) {
            known.1 = known.1.max(epoch);
            return;
        }
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((key, epoch));
    }
}

#[cfg(test)]
mod tests;
