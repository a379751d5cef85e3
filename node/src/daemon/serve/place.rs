//! Which layers this node should hold from now on.
//!
//! A node that may choose (`Serve::Scarcest`) looks every [`LOOK_MS`] whether the swarm would answer faster if it held other
//! layers: what [`Stand`] makes of those around it, by what they announce and how far they are. What it may hold itself it
//! announces, so that all plan with the same, and each acts on its own row. It is thought out beside the daemon's loop.
//!
//! Moving is [`Keeper`]'s decision: never for a little, never before it was advised a few times, one mover at a time, never
//! when a layer would be left without a holder; first withdrawn, then, when everything said before counts no more
//! ([`TTL_MS`], and as much again for what was late), moved. While a layer is bare no prompt is served at all, so haste risks
//! only what is lost already: the keeper's clock then runs [`HURRY`] times faster.
//!
//! To move is to start a second worker with the new layers, and to let the first one go when the new one is ready and
//! no session needs the old one, at the latest after [`PATIENCE_MS`]. Loading takes a while, so it is looked once more then:
//! a layer that another node held when it was decided, and none holds any more, keeps this node where it is. A worker
//! that cannot load leaves everything as it was too.
//!
//! Limits: the ends (first and last layer) are everybody's own and not placed; memory holds both workers for a moment; only the
//! first model's layers are placed.

use std::collections::BTreeMap;

use scheduler::{
    LayerRange, LayerSet, Millis, NodeId, holders,
    layer_cost::LayerCosts,
    place::{
        Advice, Keeper, Move, Room,
        stand::{self, Advised, Stand},
    },
};
use shard::executor::DeviceName;
use tokio::sync::{
    mpsc,
    oneshot::{self, error::TryRecvError},
};

use super::{Serving, initial_placement::with_ends};
use crate::{
    daemon::view::{TTL_MS, Viewing},
    worker::{self, Output, Ready, Worker},
};

/// How often it is looked at most.
const TICK_MS: u64 = 2_000;
/// How often it is looked while every layer has a holder: thinking it out takes some 50 ms of a core among a hundred nodes.
const LOOK_MS: u64 = 10_000;
/// How long one of those who may move has the turn, the same minute of the time of day for all. Clocks that differ by more let
/// two move at once, which costs no layer its last holder.
const TURN_MS: u64 = 60_000;
/// How much faster the keeper's clock runs while a layer is bare: then it settles in 15 s. Slower and everybody waits; much
/// faster and an announcement under way is not waited for.
const HURRY: u64 = 12;
/// How long sessions may keep the old worker, ms. Longer and a layer stays bare for one chat; shorter and a prompt of a
/// minute is moved while it runs.
const PATIENCE_MS: u64 = 20_000;

/// A worker with other layers.
pub(crate) struct Moved {
    pub layers: LayerRange,
    /// What it was to compute on.
    device: DeviceName,
    /// The worker, what it holds, what it will say; or why there is none.
    pub worker: Result<(Worker, Ready, mpsc::Receiver<Output>), String>,
}

/// What this node does about its layers.
pub(crate) struct Placing {
    /// What it may hold; `None` when the user said which.
    room: Option<Room>,
    keeper: Keeper,
    looked: Millis,
    /// The keeper's clock.
    clock: Millis,
    /// What is being thought out beside the loop, and of which state of the view.
    considering: Option<(u64, oneshot::Receiver<Advised>)>,
    /// What came of it last.
    last: Advised,
    withdrawn: Option<LayerRange>,
    loading: bool,
    /// Ready, and since when it waits for sessions to end.
    waiting: Option<(Moved, Millis)>,
}

impl Placing {
    /// A node that may hold layers of its choice, as far as there is `room`.
    pub fn new(room: Option<Room>) -> Self {
        Self {
            room,
            keeper: Keeper::lasting(u64::from(TTL_MS)),
            looked: Millis(0),
            clock: Millis(0),
            considering: None,
            last: Advised::default(),
            withdrawn: None,
            loading: false,
            waiting: None,
        }
    }

    /// Has `stand`, taken of the view in `state`, thought out.
    fn consider(&mut self, stand: Stand, state: u64) {
        let (told, heard) = oneshot::channel();
        self.considering = Some((state, heard));
        let last = std::mem::take(&mut self.last);
        tokio::task::spawn_blocking(move || drop(told.send(stand.advise(&last))));
    }

    /// What came of it, as soon as it is there.
    fn considered(&mut self) -> Option<(u64, Advised)> {
        let (state, heard) = self.considering.as_mut()?;
        let found = match heard.try_recv() {
            Ok(advised) => {
                self.last = advised.clone();
                Some((*state, advised))
            }
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Closed) => None,
        };
        self.considering = None;
        found
    }

    /// What of the layers served is announced: all, or what will be kept.
    pub fn offered(&self, served: &[LayerRange]) -> Vec<LayerRange> {
        match self.withdrawn {
            None => served.to_vec(),
            Some(kept) => served.iter().filter_map(|range| range.intersect(kept)).collect(),
        }
    }
}

/// What another node holds.
struct Other {
    node: NodeId,
    /// The number of its announcement.
    sequence: u64,
    held: LayerSet,
}

/// The number of the turn in which it is `unix_ms`, the same for all nodes that are in the same hurry.
fn turn(unix_ms: u64, hurry: u64) -> u64 {
    unix_ms * hurry / TURN_MS
}

/// Which announcements of the others are believed: another number with each that comes or goes.
fn heard(others: &[Other]) -> u64 {
    others.iter().fold(0, |sum, other| sum.wrapping_add(other.sequence))
}

/// What of its `own` layers this node, `me`, alone holds.
fn alone(me: NodeId, own: &LayerSet, others: &[Other]) -> LayerSet {
    let held = others.iter().map(|other| (other.node, other.held.clone())).chain([(me, own.clone())]);
    holders::alone(&held.collect::<Vec<_>>(), me)
}

/// The layers that are placed: the ends are everybody's own.
fn between(num_layers: u32) -> Option<LayerRange> {
    LayerRange::new(1, num_layers.saturating_sub(1))
}

impl Serving {
    /// What is served of the layers between the ends: no requester needs the ends from another node.
    fn between_ends(&self) -> LayerSet {
        let between = between(self.models.first.ready.num_layers);
        self.models.first.served.iter().filter_map(|range| between.and_then(|b| range.intersect(b))).collect()
    }

    /// What this node may hold of its first model, if it chooses itself.
    pub(crate) fn place_room(&self) -> Option<Room> {
        let ready = &self.models.first.ready;
        let mut room = self.placing.room.clone().filter(|room| room.layers > 0 && ready.num_layers > 2)?;
        room.costs = ready.costs.clone();
        let own = self.between_ends();
        let weighs = |costs: &LayerCosts| own.ranges().iter().map(|range| costs.weight_bytes(*range)).sum();
        // What it holds now it may hold elsewhere.
        room.bytes = room.bytes.max(room.costs.as_ref().map_or(0, weighs));
        Some(room)
    }

    /// Looks whether other layers would serve the swarm better; returns whether others should hear of a change. At `unix_ms` of
    /// the time of day.
    pub(crate) fn place(&mut self, view: &Viewing, unix_ms: u64) -> bool {
        let now = self.node.now();
        let switched = self.switch_when_quiet(now, view);
        let since = now.since(self.placing.looked);
        let busy = self.placing.loading || self.placing.waiting.is_some();
        if since < TICK_MS || self.gate.is_draining() || busy {
            return switched;
        }
        let Some(room) = self.place_room() else { return switched };
        let (num_layers, others, own) =
            (self.models.first.ready.num_layers, self.others(view), self.between_ends());
        let held = others.iter().fold(own.clone(), |held, other| held.union(&other.held));
        let bare = (1..num_layers - 1).any(|layer| !held.contains(layer));
        let hurry = if bare { HURRY } else { 1 };
        let placing = &mut self.placing;
        let Some((state, advised)) = placing.considered() else {
            if placing.considering.is_none() && since >= TICK_MS.max(LOOK_MS / hurry) {
                match self.stand(view, room) {
                    Some(stand) => self.placing.consider(stand, heard(&others)),
                    // This node has not said yet what it holds.
                    None => self.placing.looked = now,
                }
            }
            return switched;
        };
        placing.looked = now;
        placing.clock = Millis(placing.clock.0 + since * hurry);
        let choice = Move {
            node: self.node.me,
            held: &own,
            advised: advised.of(self.node.me),
            present_tps: advised.present_tps,
            advised_tps: advised.advised_tps,
            secures: advised.secures,
            alone: &alone(self.node.me, &own, &others),
            movers: &advised.movers(self.node.me),
            tick: turn(unix_ms, hurry),
            state: if bare { placing.clock.0 } else { state },
        };
        let advice = placing.keeper.tick(placing.clock, &choice);
        let withdrawn = match advice {
            Advice::Stay => None,
            Advice::Withdraw(layers) | Advice::Hold(layers) => Some(layers),
        };
        let reconsidered = placing.withdrawn != withdrawn;
        if reconsidered {
            let (present_tps, advised_tps) = (advised.present_tps, advised.advised_tps);
            tracing::info!(?advice, present_tps, advised_tps, "layers reconsidered");
            placing.withdrawn = withdrawn;
        }
        if let Advice::Hold(layers) = advice {
            self.load(layers);
        }
        switched || reconsidered
    }

    /// Where this node and those around it stand that hold its first model.
    fn stand(&self, view: &Viewing, room: Room) -> Option<Stand> {
        let (first, me) = (&self.models.first, self.node.me);
        let holds = |node: &NodeId| view.swarm.get(*node)?.holding(first.id).map(|_| *node);
        let place = |node: NodeId| (node, view.swarm.coordinate(node).unwrap_or_default());
        let places = view.facts.keys().filter_map(holds).chain([me]).map(place);
        let group = stand::group(me, places.collect());
        let costs = &room.costs;
        let told = |node: &NodeId| {
            let facts = view.facts.get(node)?;
            let told = facts.room?;
            let of = facts.offers.get(usize::from(told.offer)).filter(|offer| offer.model == first.id);
            let room = Room { layers: told.layers, bytes: told.bytes, costs: costs.clone() };
            of.map(|_| (*node, room))
        };
        let mut rooms: BTreeMap<NodeId, Room> = group.iter().filter_map(told).collect();
        rooms.insert(me, room.clone());
        let num_layers = first.ready.num_layers;
        let snapshot = match costs {
            Some(costs) => view.swarm.snapshot_of(first.id, costs, 0, me),
            None => view.swarm.snapshot(first.id, num_layers, me),
        };
        Stand::of(&snapshot.ok()?, &group, &rooms, between(num_layers)?)
    }

    fn others(&self, view: &Viewing) -> Vec<Other> {
        let of = |node: &NodeId| {
            let capability = view.swarm.get(*node)?;
            let holding =
                capability.holding(self.models.first.id).filter(|_| !capability.claim().draining)?;
            let sequence = capability.claim().sequence;
            Some(Other { node: *node, sequence, held: holding.held_set() })
        };
        view.facts.keys().filter_map(of).collect()
    }

    fn load(&mut self, layers: LayerRange) {
        self.placing.loading = true;
        let moved = self.moves.clone();
        let num_layers = self.models.first.ready.num_layers;
        let spec =
            worker::Spec { layers: with_ends(&[layers], num_layers), ..self.models.first.spec.clone() };
        tokio::spawn(async move {
            let device = spec.device;
            let worker = worker::spawn_rehearsed(spec).await.map_err(|fault| fault.to_string());
            let _ = moved.send(Moved { layers, device, worker }).await;
        });
    }

    /// A worker with other layers is ready, or is not; returns whether others should hear of a change.
    pub(crate) fn moved(&mut self, moved: Moved) -> bool {
        self.placing.loading = false;
        match &moved.worker {
            Ok(_) => {
                self.placing.waiting = Some((moved, self.node.now()));
                false
            }
            Err(why) => {
                tracing::warn!(layers = %moved.layers, why, "other layers cannot be loaded; these stay");
                self.placing.withdrawn = None;
                true
            }
        }
    }

    /// Returns whether others should hear of a change.
    fn switch_when_quiet(&mut self, now: Millis, view: &Viewing) -> bool {
        let quiet = self.table.is_empty();
        let due = |since: &Millis| quiet || now.since(*since) >= PATIENCE_MS;
        if !self.placing.waiting.as_ref().is_some_and(|(_, since)| due(since)) {
            return false;
        }
        let Some((Moved { layers, device, worker: Ok((worker, ready, outputs)) }, _)) =
            self.placing.waiting.take()
        else {
            return false;
        };
        if !self.models.first.takes(device, ready.class) {
            tracing::info!(%layers, %device, "the device failed while other layers were loaded: these stay");
            worker.kill();
            self.placing.withdrawn = None;
            return true;
        }
        let alone = alone(self.node.me, &self.between_ends(), &self.others(view));
        if !alone.without(layers).is_empty() {
            tracing::info!(%layers, "no other node holds what this node would leave any more: it stays");
            worker.kill();
            self.placing.withdrawn = None;
            return true;
        }
        tracing::info!(%layers, "other layers are served from now on");
        self.models.listen_to(outputs, worker.pid());
        let old = self.models.first.worker.borrow().clone();
        self.models.first.spec.layers = ready.layers.clone();
        self.models.first.loaded = ready.layers.clone();
        self.models.first.served = vec![layers];
        self.models.first.ready = ready;
        self.models.first.replace(worker);
        old.kill();
        self.placing.withdrawn = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(start: u32, end: u32) -> LayerSet {
        LayerRange::new(start, end).unwrap().into()
    }

    fn other(start: u32, end: u32) -> Other {
        Other { node: NodeId::numbered(2), sequence: 1, held: set(start, end) }
    }

    #[test]
    fn the_ends_are_not_placed() {
        assert_eq!((between(8), between(2)), (LayerRange::new(1, 7), None));
    }

    #[test]
    fn who_became_the_last_holder_while_it_loaded_stays() {
        let (own, target) = (set(1, 4), LayerRange::new(3, 6).unwrap());
        let me = NodeId::numbered(1);
        let leaves_bare =
            |own: &LayerSet, others: &[Other]| !alone(me, own, others).without(target).is_empty();
        assert!(!leaves_bare(&own, &[other(1, 4)]));
        assert!(leaves_bare(&own, &[other(2, 4)]), "layer 1 is its own alone");
        assert!(leaves_bare(&own, &[]));
        assert!(!leaves_bare(&set(3, 5), &[]), "nothing is left");
    }

    #[test]
    fn the_turn_is_the_same_for_all_nodes_whenever_they_started() {
        let at = 1_700_000_040_000;
        assert_eq!(turn(at, 1), turn(at + TURN_MS - 20_001, 1));
        assert_eq!(turn(at, 1) + 1, turn(at + TURN_MS, 1));
        // Whose keeper's clock runs faster sees more turns, but all see the same.
        assert_eq!(turn(at, HURRY) + HURRY, turn(at + TURN_MS, HURRY));
    }

    #[test]
    fn a_state_is_another_with_each_announcement() {
        let others = || vec![other(1, 4), other(4, 7)];
        let state = heard(&others());
        assert_eq!(heard(&others()), state);
        let mut newer = others();
        newer[1].sequence += 1;
        assert_ne!(heard(&newer), state);
        assert_ne!(heard(&others()[..1]), state);
    }

    #[test]
    fn what_is_withdrawn_is_not_offered() {
        let mut placing = Placing::new(Some(Room::of_layers(3)));
        let served = [LayerRange::new(1, 4).unwrap()];
        assert_eq!(placing.offered(&served), served);
        placing.withdrawn = LayerRange::new(3, 6);
        assert_eq!(placing.offered(&served), [LayerRange::new(3, 4).unwrap()]);
        placing.withdrawn = LayerRange::new(5, 7);
        assert!(placing.offered(&served).is_empty());
    }
}
