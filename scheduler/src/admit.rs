//! Admission: who may start now, who waits, who is refused.
//!
//! A node runs a bounded number of sessions in a bounded KV memory; both are reserved when a session is admitted,
//! not when it first computes, because two requests three milliseconds apart otherwise both fit the same memory.
//! The reservation is a [`SlotGuard`]: whatever way the session ends (done, cancelled, timed out, panicked), dropping
//! it gives slot and memory back exactly once, and [`Admission::next`] sees it at once. A standby takes a slot, and its
//! memory only when rows arrive ([`Queue::claim`]).
//!
//! [`Queue`] is the whole decision as a value; [`Admission`] adds the guards.
//!
//! Who is next:
//!
//! 1. *Tiers* share the slots. A tier below its share goes before one above; what a tier does not use, others borrow.
//! 2. Among them, smooth weighted round robin; a tier's weight doubles with every ten seconds its oldest ask has
//!    waited, so the lowest tier waits long but not for ever.
//! 3. Inside a tier, the requester with the fewest places goes first, then the one served least, so one requester with
//!    a hundred asks waits behind another with one.
//! 4. An ask whose memory is not free is passed over, until it has waited ten seconds; then no other ask passes it.
//! 5. The lowest tier leaves the slots alone that are kept for contributors ([`Queue::keep`]).
//!
//! At [`Limits::waiting`] waiting asks the next one is refused: better an honest refusal that the requester can
//! route around than a queue that outlives its deadlines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::snapshot::Host;
use crate::{LayerRange, Millis, NodeId, Shape};

/// Waiting this long doubles a tier's weight, and lets a big ask hold the door.
pub const AGE_MS: u64 = 10_000;
/// Doublings counted; 2^20 outweighs any ratio of weights in use.
const MOST_DOUBLINGS: u64 = 20;

/// One tier of service.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tier {
    /// Its weight against the others; above zero.
    pub weight: f64,
    /// Slots it may claim before others borrow.
    pub share: u32,
}

/// What the node can bear.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// Sessions at once.
    pub slots: u32,
    /// Bytes for keys and values.
    pub kv_bytes: u64,
    /// Asks that may wait.
    pub waiting: usize,
    /// By tier, the lowest first.
    pub tiers: Vec<Tier>,
}

/// A request to serve a segment for a session.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    /// Names it; unique among those waiting and running.
    pub id: u64,
    /// Who asks.
    pub requester: NodeId,
    /// Its tier; beyond the last counts as the lowest.
    pub tier: usize,
    /// Memory it needs until it ends. See [`kv_bytes`].
    pub kv_bytes: u64,
    /// When it is no use any more, if ever.
    pub deadline: Option<Millis>,
    /// How long it is predicted to run. See [`predicted_ms`].
    pub predicted_ms: f64,
    /// Whether it only stands by: it takes its memory when its first rows arrive.
    pub standby: bool,
}

/// Keys and values of a segment for a whole request; `per_layer_position` is the model's bytes for one layer and one
/// position.
pub fn kv_bytes(shape: Shape, layers: LayerRange, per_layer_position: u64) -> u64 {
    u64::from(shape.positions()).saturating_mul(u64::from(layers.len())).saturating_mul(per_layer_position)
}

/// Time a request spends computing on `host`, ms.
pub fn predicted_ms(shape: Shape, layers: LayerRange, host: &Host) -> f64 {
    let per_layer =
        f64::from(shape.decode_steps()) * host.decode_ms + f64::from(shape.prompt_tokens) * host.prefill_ms;
    f64::from(shape.passes()) * host.visit_ms + f64::from(layers.len()) * per_layer
}

/// Why an ask was turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It would not fit if it were alone.
    TooBig,
    /// Too many wait already.
    Full,
    /// It could not end before its deadline even if it started now.
    TooLate,
    /// An ask of this id waits or runs.
    Duplicate,
}

/// Slot and memory of one running session, given back by dropping it.
#[derive(Debug)]
pub struct SlotGuard {
    id: u64,
    freed: Sender<u64>,
}

/// Where the guards of one door report.
#[derive(Debug)]
pub struct Guards {
    sender: Sender<u64>,
    freed: Receiver<u64>,
}

impl Default for Guards {
    fn default() -> Self {
        let (sender, freed) = channel();
        Self { sender, freed }
    }
}

impl Guards {
    /// The guard of an ask that was admitted.
    pub fn issue(&self, id: u64) -> SlotGuard {
        SlotGuard { id, freed: self.sender.clone() }
    }

    /// The next ask whose guard was dropped.
    pub fn freed(&self) -> Option<u64> {
        self.freed.try_recv().ok()
    }
}

impl SlotGuard {
    /// The ask it belongs to.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        // The admission may be gone already; then there is nothing left to free.
        let _ = self.freed.send(self.id);
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ask: Ask,
    since: Millis,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// By requester: how often served, and what waits.
    requesters: BTreeMap<NodeId, (u64, VecDeque<Waiting>)>,
    credit: f64,
    running: u32,
}

impl Lane {
    /// The ask whose turn it is: of the requester with the fewest `places` and served least, the oldest.
    fn head(&self, places: impl Fn(NodeId) -> u32) -> Option<Waiting> {
        let waiting = self.requesters.iter().filter_map(|(requester, (served, asks))| {
            asks.front().map(|ask| (places(*requester), *served, *ask))
        });
        let turn = waiting.min_by_key(|(places, served, w)| (*places, *served, w.since, w.ask.id));
        turn.map(|found| found.2)
    }

    fn oldest(&self) -> Option<Millis> {
        self.requesters.values().filter_map(|(_, asks)| asks.front()).map(|waiting| waiting.since).min()
    }

    fn is_empty(&self) -> bool {
        self.requesters.values().all(|(_, asks)| asks.is_empty())
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    requester: NodeId,
    tier: usize,
    /// Bytes reserved.
    held: u64,
    /// Bytes that a standby takes when its rows arrive.
    later: u64,
}

/// Who runs and who waits, as a value.
#[derive(Clone, Debug)]
pub struct Queue {
    limits: Limits,
    kept: u32,
    lanes: Vec<Lane>,
    running: BTreeMap<u64, Running>,
    kv_used: u64,
    waiting: usize,
}

impl Queue {
    /// An empty node. Without tiers there is one.
    pub fn new(mut limits: Limits) -> Self {
        if limits.tiers.is_empty() {
            limits.tiers.push(Tier { weight: 1.0, share: limits.slots });
        }
        let lanes = limits.tiers.iter().map(|_| Lane::default()).collect();
        Self { limits, kept: 0, lanes, running: BTreeMap::new(), kv_used: 0, waiting: 0 }
    }

    /// Changes how many sessions may run at once; those beyond go on to their end.
    pub fn set_slots(&mut self, slots: u32) {
        self.limits.slots = slots;
    }

    /// Keeps so many slots from the lowest tier, but never all of them.
    pub fn keep(&mut self, slots: u32) {
        self.kept = slots;
    }

    /// Sessions running.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sessions of one requester running.
    pub fn places(&self, requester: NodeId) -> u32 {
        self.running.values().filter(|running| running.requester == requester).count() as u32
    }

    /// The tier that a running session was admitted under.
    pub fn tier(&self, id: u64) -> Option<usize> {
        self.running.get(&id).map(|running| running.tier)
    }

    /// Asks waiting.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether an ask waits.
    pub fn waits(&self, id: u64) -> bool {
        let mut asks = self.lanes.iter().flat_map(|lane| lane.requesters.values()).flat_map(|entry| &entry.1);
        asks.any(|waiting| waiting.ask.id == id)
    }

    /// The asks whose turn it is, one of each tier where any waits, the highest tier first.
    pub fn heads(&self) -> Vec<Ask> {
        let heads = self.lanes.iter().rev().filter_map(|lane| lane.head(|node| self.places(node)));
        heads.map(|waiting| waiting.ask).collect()
    }

    /// Bytes reserved.
    pub fn kv_used(&self) -> u64 {
        self.kv_used
    }

    /// Whether every slot is taken that an ask of this tier could have.
    pub fn is_full(&self, tier: usize) -> bool {
        let lowest = tier == 0 && self.lanes.len() > 1;
        let kept = if lowest { self.kept.min(self.limits.slots.saturating_sub(1)) } else { 0 };
        let lowest_full = lowest && self.lanes[0].running >= self.limits.slots - kept;
        self.running.len() as u32 >= self.limits.slots || lowest_full
    }

    /// Queues an ask.
    ///
    /// # Errors
    /// [`Refusal`] says why it can never or should not wait; nothing is kept of it.
    pub fn submit(&mut self, now: Millis, ask: Ask) -> Result<(), Refusal> {
        if self.running.contains_key(&ask.id) || self.waits(ask.id) {
            return Err(Refusal::Duplicate);
        }
        if ask.kv_bytes > self.limits.kv_bytes {
            return Err(Refusal::TooBig);
        }
        if ask.deadline.is_some_and(|deadline| ask.predicted_ms > deadline.since(now) as f64) {
            return Err(Refusal::TooLate);
        }
        // Without a slot no turn comes.
        if self.waiting >= self.limits.waiting || self.limits.slots == 0 {
            return Err(Refusal::Full);
        }
        let tier = if ask.tier < self.lanes.len() { ask.tier } else { 0 };
        let lane = &mut self.lanes[tier];
        // A newcomer starts level with the least served of those waiting: no credit for having been away.
        let level =
            lane.requesters.values().filter(|(_, asks)| !asks.is_empty()).map(|(served, _)| *served).min();
        let entry = lane.requesters.entry(ask.requester).or_default();
        if entry.1.is_empty() {
            entry.0 = entry.0.max(level.unwrap_or(entry.0));
        }
        entry.1.push_back(Waiting { ask, since: now });
        self.waiting += 1;
        Ok(())
    }

    /// Forgets a waiting ask; whether there was one.
    pub fn cancel(&mut self, id: u64) -> bool {
        let mut found = false;
        for lane in &mut self.lanes {
            for (_, asks) in lane.requesters.values_mut() {
                let before = asks.len();
                asks.retain(|waiting| waiting.ask.id != id);
                found |= asks.len() < before;
            }
            lane.requesters.retain(|_, (served, asks)| *served > 0 || !asks.is_empty());
        }
        self.waiting -= usize::from(found);
        found
    }

    /// Admits the next ask, if one may start now. Call until `None`, and again after anything was given back. Asks past
    /// their deadline are discarded on the way.
    pub fn next(&mut self, now: Millis) -> Option<Ask> {
        self.discard_late(now);
        if self.running.len() as u32 >= self.limits.slots {
            return None;
        }
        let free = self.limits.kv_bytes.saturating_sub(self.kv_used);
        let heads: Vec<(usize, Waiting)> = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.is_full(*at))
            .filter_map(|(at, lane)| lane.head(|node| self.places(node)).map(|head| (at, head)))
            .collect();
        let holds_door = |w: &Waiting| w.ask.kv_bytes > free && now.since(w.since) >= AGE_MS;
        if heads.iter().any(|(_, waiting)| holds_door(waiting)) {
            return None;
        }
        let fits: Vec<usize> =
            heads.iter().filter(|(_, w)| w.ask.kv_bytes <= free).map(|(at, _)| *at).collect();
        let below = |at: &usize| self.lanes[*at].running < self.limits.tiers[*at].share;
        let entitled: Vec<usize> = fits.iter().copied().filter(below).collect();
        let tier = self.turn(now, if entitled.is_empty() { &fits } else { &entitled })?;
        let head = heads.iter().find(|(at, _)| *at == tier)?.1;
        self.start(tier, head.ask);
        Some(head.ask)
    }

    /// A running session is over: gives back what it has, once.
    pub fn free(&mut self, id: u64) {
        if let Some(running) = self.running.remove(&id) {
            self.lanes[running.tier].running -= 1;
            self.kv_used -= running.held;
        }
    }

    /// Takes the memory of a standby, now that its rows arrive; false when it is not free any more, and nothing has
    /// changed then. Any other session has it already.
    pub fn claim(&mut self, id: u64) -> bool {
        let free = self.limits.kv_bytes.saturating_sub(self.kv_used);
        match self.running.get_mut(&id) {
            Some(running) if running.later <= free => {
                running.held += running.later;
                self.kv_used += std::mem::take(&mut running.later);
                true
            }
            _ => false,
        }
    }

    /// What session `id` reserved for a part of its work, `before` bytes, is `after` bytes from here on: taken `now`, or, where it
    /// only stands by, with the rest when its rows arrive. False when so much is not free; nothing has changed then.
    pub fn resize(&mut self, id: u64, before: u64, after: u64, now: bool) -> bool {
        let free = self.limits.kv_bytes.saturating_sub(self.kv_used);
        let Some(running) = self.running.get_mut(&id) else { return false };
        if !now && running.later > 0 {
            running.later = running.later.saturating_sub(before).saturating_add(after);
            return true;
        }
        let all = running.held.saturating_add(running.later).saturating_sub(before).saturating_add(after);
        if all > running.held.saturating_add(free) {
            return false;
        }
        self.kv_used = self.kv_used - running.held + all;
        (running.held, running.later) = (all, 0);
        true
    }

    /// Smooth weighted round robin among `tiers`.
    fn turn(&mut self, now: Millis, tiers: &[usize]) -> Option<usize> {
        let mut total = 0.0;
        for &at in tiers {
            let waited = self.lanes[at].oldest().map_or(0, |since| now.since(since));
            let aged = 2f64.powi((waited / AGE_MS).min(MOST_DOUBLINGS) as i32);
            let weight = self.limits.tiers[at].weight * aged;
            total += weight;
            self.lanes[at].credit += weight;
        }
        let turn = tiers
            .iter()
            .copied()
            .max_by(|&a, &b| self.lanes[a].credit.total_cmp(&self.lanes[b].credit).then(b.cmp(&a)))?;
        self.lanes[turn].credit -= total;
        Some(turn)
    }

    fn start(&mut self, tier: usize, ask: Ask) {
        let lane = &mut self.lanes[tier];
        if let Some((served, asks)) = lane.requesters.get_mut(&ask.requester) {
            *served += 1;
            asks.retain(|waiting| waiting.ask.id != ask.id);
        }
        lane.running += 1;
        if lane.is_empty() {
            lane.requesters.clear();
            lane.credit = lane.credit.min(0.0);
        }
        self.waiting -= 1;
        let (held, later) = if ask.standby { (0, ask.kv_bytes) } else { (ask.kv_bytes, 0) };
        self.kv_used += held;
        self.running.insert(ask.id, Running { requester: ask.requester, tier, held, later });
    }

    fn discard_late(&mut self, now: Millis) {
        let mut gone = 0;
        for lane in &mut self.lanes {
            for (_, asks) in lane.requesters.values_mut() {
                let before = asks.len();
                asks.retain(|waiting| waiting.ask.deadline.is_none_or(|deadline| now < deadline));
                gone += before - asks.len();
            }
            lane.requesters.retain(|_, (served, asks)| *served > 0 || !asks.is_empty());
        }
        self.waiting -= gone;
    }
}

/// A [`Queue`] whose places come back by dropping their guards.
#[derive(Debug)]
pub struct Admission {
    queue: Queue,
    guards: Guards,
}

impl Admission {
    /// An empty node. Without tiers there is one.
    pub fn new(limits: Limits) -> Self {
        Self { queue: Queue::new(limits), guards: Guards::default() }
    }

    /// Sessions running, as far as their guards have told.
    pub fn running(&mut self) -> usize {
        self.collect();
        self.queue.running()
    }

    /// Asks waiting.
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// Bytes reserved.
    pub fn kv_used(&mut self) -> u64 {
        self.collect();
        self.queue.kv_used()
    }

    /// As [`Queue::submit`].
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn submit(&mut self, now: Millis, ask: Ask) -> Result<(), Refusal> {
        self.collect();
        self.queue.submit(now, ask)
    }

    /// As [`Queue::cancel`]. A running ask ends by dropping its guard.
    pub fn cancel(&mut self, id: u64) -> bool {
        self.queue.cancel(id)
    }

    /// As [`Queue::next`], with the guard of the place.
    pub fn next(&mut self, now: Millis) -> Option<(Ask, SlotGuard)> {
        self.collect();
        let ask = self.queue.next(now)?;
        Some((ask, self.guards.issue(ask.id)))
    }

    /// Takes back what dropped guards freed.
    fn collect(&mut self) {
        while let Some(id) = self.guards.freed() {
            self.queue.free(id);
        }
    }
}

#[cfg(test)]
mod tests;
