//! Admission: who may start now, who waits, who is refused.
//!
//! A node runs a bounded number of sessions in a bounded KV memory; both are reserved when a session is admitted,
//! not when it first computes, because two requests three milliseconds apart otherwise both fit the same memory.
//! The reservation is a [`SlotGuard`]: whatever way the session ends (done, cancelled, timed out, panicked), dropping
//! it gives slot and memory back exactly once, and [`Admission::next`] sees it at once.
//!
//! Who is next:
//!
//! 1. *Tiers* share the slots. A tier below its share goes before one above; what a tier does not use, others borrow.
//! 2. Among them, smooth weighted round robin; a tier's weight doubles with every ten seconds its oldest ask has
//!    waited, so the lowest tier waits long but not for ever.
//! 3. Inside a tier, the requester served least goes first, so one requester with a hundred asks waits behind another
//!    with one.
//! 4. An ask whose memory is not free is passed over, until it has waited ten seconds; then no other ask passes it.
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

#[derive(Debug, Default)]
struct Lane {
    /// By requester: how often served, and what waits.
    requesters: BTreeMap<NodeId, (u64, VecDeque<Waiting>)>,
    credit: f64,
    running: u32,
}

impl Lane {
    /// The ask whose turn it is: of the requester served least, the oldest.
    fn head(&self) -> Option<Waiting> {
        let waiting =
            self.requesters.values().filter_map(|(served, asks)| asks.front().map(|ask| (*served, *ask)));
        waiting.min_by_key(|(served, waiting)| (*served, waiting.since, waiting.ask.id)).map(|found| found.1)
    }

    fn oldest(&self) -> Option<Millis> {
        self.requesters.values().filter_map(|(_, asks)| asks.front()).map(|waiting| waiting.since).min()
    }

    fn is_empty(&self) -> bool {
        self.requesters.values().all(|(_, asks)| asks.is_empty())
    }
}

/// The node's door.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    lanes: Vec<Lane>,
    running: BTreeMap<u64, (usize, u64)>,
    kv_used: u64,
    waiting: usize,
    sender: Sender<u64>,
    freed: Receiver<u64>,
}

impl Admission {
    /// An empty node. Without tiers there is one.
    pub fn new(mut limits: Limits) -> Self {
        if limits.tiers.is_empty() {
            limits.tiers.push(Tier { weight: 1.0, share: limits.slots });
        }
        let (sender, freed) = channel();
        let lanes = limits.tiers.iter().map(|_| Lane::default()).collect();
        Self { limits, lanes, running: BTreeMap::new(), kv_used: 0, waiting: 0, sender, freed }
    }

    /// Sessions running, as far as their guards have told.
    pub fn running(&mut self) -> usize {
        self.collect();
        self.running.len()
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

    /// Bytes reserved.
    pub fn kv_used(&mut self) -> u64 {
        self.collect();
        self.kv_used
    }

    /// Queues an ask.
    ///
    /// # Errors
    /// [`Refusal`] says why it can never or should not wait; nothing is kept of it.
    pub fn submit(&mut self, now: Millis, ask: Ask) -> Result<(), Refusal> {
        self.collect();
        let mut waiting =
            self.lanes.iter().flat_map(|lane| lane.requesters.values()).flat_map(|entry| &entry.1);
        if self.running.contains_key(&ask.id) || waiting.any(|other| other.ask.id == ask.id) {
            return Err(Refusal::Duplicate);
        }
        if ask.kv_bytes > self.limits.kv_bytes || self.limits.slots == 0 {
            return Err(Refusal::TooBig);
        }
        if ask.deadline.is_some_and(|deadline| ask.predicted_ms > deadline.since(now) as f64) {
            return Err(Refusal::TooLate);
        }
        if self.waiting >= self.limits.waiting {
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

    /// Forgets a waiting ask; whether there was one. A running one ends by dropping its guard.
    pub fn cancel(&mut self, id: u64) -> bool {
        let mut found = false;
        for lane in &mut self.lanes {
            for (_, asks) in lane.requesters.values_mut() {
                let before = asks.len();
                asks.retain(|waiting| waiting.ask.id != id);
                found |= asks.len() < before;
            }
        }
        self.waiting -= usize::from(found);
        found
    }

    /// Admits the next ask, if one may start now. Call until `None`, and again after any guard was dropped. Asks past
    /// their deadline are discarded on the way.
    pub fn next(&mut self, now: Millis) -> Option<(Ask, SlotGuard)> {
        self.collect();
        self.discard_late(now);
        if self.running.len() as u32 >= self.limits.slots {
            return None;
        }
        let free = self.limits.kv_bytes - self.kv_used;
        let heads: Vec<(usize, Waiting)> = self
            .lanes
            .iter()
            .enumerate()
            .filter_map(|(at, lane)| lane.head().map(|head| (at, head)))
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
        let head = self.lanes[tier].head()?;
        Some(self.start(tier, head.ask))
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

    fn start(&mut self, tier: usize, ask: Ask) -> (Ask, SlotGuard) {
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
        self.kv_used += ask.kv_bytes;
        self.running.insert(ask.id, (tier, ask.kv_bytes));
        (ask, SlotGuard { id: ask.id, freed: self.sender.clone() })
    }

    fn discard_late(&mut self, now: Millis) {
        let mut gone = 0;
        for lane in &mut self.lanes {
            for (_, asks) in lane.requesters.values_mut() {
                let before = asks.len();
                asks.retain(|waiting| waiting.ask.deadline.is_none_or(|deadline| now < deadline));
                gone += before - asks.len();
            }
        }
        self.waiting -= gone;
    }

    /// Takes back what dropped guards freed.
    fn collect(&mut self) {
        while let Ok(id) = self.freed.try_recv() {
            if let Some((tier, kv_bytes)) = self.running.remove(&id) {
                self.lanes[tier].running -= 1;
                self.kv_used -= kv_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AGE_MS, Admission, Ask, Limits, Refusal, SlotGuard, Tier};
    use crate::rng::Rng;
    use crate::{Millis, NodeId};

    fn limits(slots: u32) -> Limits {
        let tiers = [1.0, 2.0, 4.0, 8.0].into_iter().map(|weight| Tier { weight, share: slots.div_ceil(4) });
        Limits { slots, kv_bytes: 100, waiting: 1_000, tiers: tiers.collect() }
    }

    fn ask(id: u64, requester: u64, tier: usize, kv_bytes: u64) -> Ask {
        Ask { id, requester: NodeId::numbered(requester), tier, kv_bytes, deadline: None, predicted_ms: 0.0 }
    }

    fn start_all(door: &mut Admission, now: Millis) -> Vec<(Ask, SlotGuard)> {
        std::iter::from_fn(|| door.next(now)).collect()
    }

    #[test]
    fn memory_and_slots_are_never_oversold_and_always_come_back() {
        let mut chance = Rng::new(5);
        let mut door = Admission::new(limits(6));
        let mut held: Vec<(Ask, SlotGuard)> = Vec::new();
        let mut submitted = 0u64;
        let mut ended = 0;
        for t in 0..20_000u64 {
            let now = Millis(t * 50);
            match chance.below(4) {
                0 | 1 => {
                    let new =
                        ask(submitted, chance.below(5) as u64, chance.below(5), chance.below(60) as u64);
                    submitted += 1;
                    ended += u64::from(door.submit(now, new).is_err());
                }
                2 if !held.is_empty() => {
                    let gone = held.swap_remove(chance.below(held.len()));
                    ended += 1;
                    if chance.happens(0.1) {
                        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            let _gone = gone;
                            std::panic::resume_unwind(Box::new("worker died"));
                        }));
                        assert!(panicked.is_err());
                    }
                }
                _ => ended += u64::from(door.cancel(chance.below(submitted.max(1) as usize) as u64)),
            }
            held.extend(start_all(&mut door, now));
            let memory: u64 = held.iter().map(|(ask, _)| ask.kv_bytes).sum();
            assert!(held.len() <= 6 && memory <= 100);
            assert_eq!((door.running(), door.kv_used()), (held.len(), memory));
            assert_eq!(submitted, ended + held.len() as u64 + door.waiting() as u64, "no ask is lost");
        }
        held.clear();
        assert_eq!((door.running(), door.kv_used()), (0, 0));
    }

    #[test]
    fn no_slot_idles_while_somebody_waits() {
        let mut door = Admission::new(limits(8));
        (0..20).for_each(|id| door.submit(Millis(0), ask(id, 1, 0, 1)).unwrap());
        assert_eq!(start_all(&mut door, Millis(0)).len(), 8, "the lowest tier borrows all slots");
    }

    #[test]
    fn tiers_share_by_weight_and_the_lowest_is_not_starved() {
        let mut door = Admission::new(Limits { waiting: 10_000, ..limits(1) });
        let mut served = [0; 4];
        let mut worst = 0;
        let mut since = std::collections::BTreeMap::new();
        for t in 0..4_000u64 {
            let now = Millis(t * 100);
            for tier in 0..4 {
                if door.lanes[tier].is_empty() {
                    let id = t * 4 + tier as u64;
                    since.insert(id, now);
                    door.submit(now, ask(id, tier as u64, tier, 1)).unwrap();
                }
            }
            let (started, _guard) = door.next(now).unwrap();
            served[started.tier] += 1;
            worst = worst.max(now.since(since[&started.id]));
        }
        assert!(served[3] > 7 * served[0] && served[0] > 200, "{served:?}");
        assert!(worst <= 2 * AGE_MS, "{worst}");
    }

    #[test]
    fn one_busy_requester_does_not_delay_another() {
        let mut door = Admission::new(limits(1));
        (0..50).for_each(|id| door.submit(Millis(0), ask(id, 1, 1, 1)).unwrap());
        let mut order = Vec::new();
        for t in 0..6 {
            if t == 3 {
                door.submit(Millis(3), ask(99, 2, 1, 1)).unwrap();
            }
            order.push(door.next(Millis(t)).unwrap().0.id);
        }
        assert!(order[3..].contains(&99), "{order:?}");
    }

    #[test]
    fn a_big_ask_is_passed_over_but_not_for_ever() {
        let mut door = Admission::new(limits(10));
        door.submit(Millis(0), ask(1, 1, 3, 60)).unwrap();
        let running = start_all(&mut door, Millis(0));
        door.submit(Millis(1), ask(2, 2, 3, 90)).unwrap();
        door.submit(Millis(2), ask(3, 3, 2, 10)).unwrap();
        let small = start_all(&mut door, Millis(3));
        assert_eq!(small.len(), 1);
        door.submit(Millis(4), ask(4, 3, 2, 10)).unwrap();
        let late = Millis(1 + AGE_MS);
        assert!(start_all(&mut door, late).is_empty(), "no ask passes it any more");
        drop((running, small));
        assert_eq!(start_all(&mut door, late).first().map(|(ask, _)| ask.id), Some(2));
    }

    #[test]
    fn refusals_say_why() {
        let mut door = Admission::new(Limits { waiting: 1, ..limits(1) });
        assert_eq!(door.submit(Millis(0), ask(1, 1, 0, 101)), Err(Refusal::TooBig));
        let hurried = Ask { deadline: Some(Millis(50)), predicted_ms: 60.0, ..ask(1, 1, 0, 1) };
        assert_eq!(door.submit(Millis(0), hurried), Err(Refusal::TooLate));
        let fine = Ask { predicted_ms: 40.0, ..hurried };
        assert_eq!(door.submit(Millis(0), fine), Ok(()));
        assert_eq!(door.submit(Millis(0), fine), Err(Refusal::Duplicate));
        assert_eq!(door.submit(Millis(0), ask(2, 1, 0, 1)), Err(Refusal::Full));
        assert!(door.waits(1) && !door.waits(2));
        assert!(door.next(Millis(50)).is_none() && door.waiting() == 0, "its time is over");
        assert!(!door.waits(1));
    }
}
