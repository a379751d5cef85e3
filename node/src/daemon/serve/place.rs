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
//! A node may choose layers of several models (`--also`). Where all of each fit in the memory for weights, the models take turns. Where
//! they do not, that memory is divided between them by what each is asked for and lacks ([`knapsack`]): a model gives up layers that
//! others hold, too, and when they are gone another one takes the memory.
//!
//! Limits: the ends (first and last layer) are everybody's own and not placed; memory holds both workers for a moment; a model that
//! came over the network stays as it came; the rooms of four models are told, and memory that is free is in each of them.

use std::collections::BTreeMap;

use p2p::wire::announce::PlaceRoom;
use scheduler::{
    LayerRange, LayerSet, Millis, ModelId, NodeId, holders,
    layer_cost::LayerCosts,
    place::{
        Advice, Keeper, Move, Room,
        knapsack::{self, Division},
        stand::{self, Advised, Stand},
    },
};
use shard::executor::DeviceName;
use tokio::sync::{
    mpsc,
    oneshot::{self, error::TryRecvError},
};

use super::{Held, Serving, initial_placement::with_ends};
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
    /// Of the model at this place.
    place: usize,
    layers: LayerRange,
    /// What it was to compute on.
    device: DeviceName,
    /// The worker, what it holds, what it will say; or why there is none.
    worker: Result<(Worker, Ready, mpsc::Receiver<Output>), String>,
}

/// A model whose layers the node chooses.
struct Chosen {
    /// So many at most.
    layers: u32,
    keeper: Keeper,
    /// What came of looking last.
    last: Advised,
    withdrawn: Option<LayerRange>,
}

/// What came of looking.
enum Considered {
    /// Of the model at this place.
    One(usize, Advised),
    /// Of the models at these places, between which memory is divided.
    Several(Vec<usize>, Division),
}

/// What this node does about its layers.
pub(crate) struct Placing {
    /// The models whose layers it chooses, by place.
    models: BTreeMap<usize, Chosen>,
    looked: Millis,
    /// The keepers' clock.
    clock: Millis,
    /// Whose turn it was last.
    turn: usize,
    /// What is being thought out beside the loop, and of which state of the view.
    considering: Option<(u64, oneshot::Receiver<Considered>)>,
    loading: bool,
    /// Ready, and since when it waits for sessions to end.
    waiting: Option<(Moved, Millis)>,
}

impl Placing {
    /// A node that may choose so many layers at most of the models at these places.
    pub fn new(layers: impl IntoIterator<Item = (usize, u32)>) -> Self {
        let chosen = |layers: u32| Chosen {
            layers,
            keeper: Keeper::lasting(u64::from(TTL_MS)),
            last: Advised::default(),
            withdrawn: None,
        };
        Self {
            models: layers.into_iter().map(|(place, layers)| (place, chosen(layers))).collect(),
            looked: Millis(0),
            clock: Millis(0),
            turn: 0,
            considering: None,
            loading: false,
            waiting: None,
        }
    }

    /// Has `think` done, of the view in `state`.
    fn consider(&mut self, state: u64, think: impl FnOnce() -> Considered + Send + 'static) {
        let (told, heard) = oneshot::channel();
        self.considering = Some((state, heard));
        tokio::task::spawn_blocking(move || drop(told.send(think())));
    }

    /// What came of it, as soon as it is there.
    fn considered(&mut self) -> Option<(u64, Considered)> {
        let (state, heard) = self.considering.as_mut()?;
        let found = match heard.try_recv() {
            Ok(considered) => {
                if let Considered::One(place, advised) = &considered
                    && let Some(chosen) = self.models.get_mut(place)
                {
                    chosen.last = advised.clone();
                }
                Some((*state, considered))
            }
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Closed) => None,
        };
        self.considering = None;
        found
    }

    fn stays(&mut self, place: usize) {
        if let Some(chosen) = self.models.get_mut(&place) {
            chosen.withdrawn = None;
        }
    }

    /// What of the layers served of the model at `place` is announced: all, or what will be kept.
    pub fn offered(&self, place: usize, served: &[LayerRange]) -> Vec<LayerRange> {
        match self.models.get(&place).and_then(|chosen| chosen.withdrawn) {
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
    /// What is served of the layers of a model between the ends: no requester needs the ends from another node.
    fn between_ends(held: &Held) -> LayerSet {
        let between = between(held.ready.num_layers);
        held.served.iter().filter_map(|range| between.and_then(|b| range.intersect(b))).collect()
    }

    /// The model at a place, if there is something to choose: it is in memory and whole.
    fn chosen(&self, place: usize) -> Option<&Held> {
        let held = self.models.at(place)?;
        let is_there = held.ready.num_layers > 2 && held.fetching.is_none() && !held.is_unloaded();
        (is_there && self.placing.models.contains_key(&place)).then_some(held)
    }

    /// What this node may hold of the model at a place, if it chooses itself.
    fn room(&self, place: usize) -> Option<Room> {
        let held = self.chosen(place)?;
        let layers = self.placing.models.get(&place)?.layers;
        let costs = held.ready.costs.clone();
        let own = Self::between_ends(held);
        let weighs = |costs: &LayerCosts| own.ranges().iter().map(|range| costs.weight_bytes(*range)).sum();
        let own_bytes = costs.as_ref().map_or(0, weighs);
        // What it holds now it may hold elsewhere. The ends are in memory in any case.
        let ends_bytes = held.ready.memory.resident_bytes.saturating_sub(own_bytes);
        let left = self.weights.left_bytes(place).map_or(u64::MAX, |left| left.saturating_sub(ends_bytes));
        (layers > 0).then(|| Room { layers, bytes: left.max(own_bytes), costs })
    }

    /// What this node may hold of the models of which it chooses the layers itself, by their ids.
    pub(crate) fn place_rooms(&self) -> impl Iterator<Item = (ModelId, Room)> {
        self.placing.models.keys().filter_map(|place| Some((self.models.at(*place)?.id, self.room(*place)?)))
    }

    /// Memory for what is placed of the models at `places` together; `None` where all of each fits.
    fn budget(&self, places: &[usize]) -> Option<u64> {
        let (mut budget, mut wanted) = (0u64, 0u64);
        for place in places {
            let held = self.chosen(*place)?;
            let costs = held.ready.costs.as_ref()?;
            let own = Self::between_ends(held);
            budget += own.ranges().iter().map(|range| costs.weight_bytes(*range)).sum::<u64>();
            wanted = wanted.saturating_add(costs.weight_bytes(between(held.ready.num_layers)?));
        }
        // What no model has taken is each one's to take, and what the first took beyond is to be given back.
        let budget = budget.saturating_add_signed(self.weights.free_bytes()?);
        (places.len() > 1 && wanted > budget).then_some(budget)
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
        let places: Vec<usize> =
            self.placing.models.keys().copied().filter(|place| self.room(*place).is_some()).collect();
        if places.is_empty() {
            return switched;
        }
        let bare = places.iter().any(|place| self.is_bare(*place, view));
        let hurry = if bare { HURRY } else { 1 };
        let Some((state, considered)) = self.placing.considered() else {
            if self.placing.considering.is_none() && since >= TICK_MS.max(LOOK_MS / hurry) {
                self.look(&places, view, now);
            }
            return switched;
        };
        let placing = &mut self.placing;
        placing.looked = now;
        placing.clock = Millis(placing.clock.0 + since * hurry);
        let state = if bare { placing.clock.0 } else { state };
        let tick = turn(unix_ms, hurry);
        let reconsidered = match considered {
            Considered::One(place, advised) => {
                let movers = advised.movers(self.node.me);
                let wanted = Wanted {
                    layers: advised.of(self.node.me),
                    tps: [advised.present_tps, advised.advised_tps],
                    secures: advised.secures,
                    movers: &movers,
                };
                self.weigh(place, &wanted, (tick, state), view)
            }
            Considered::Several(places, division) => {
                let Division { present, advised, secures, moves } = &division;
                let me = [self.node.me];
                let mut any = false;
                for (number, place) in places.iter().enumerate() {
                    let layers = moves.iter().find(|(other, _)| *other == number).map(|(_, layers)| *layers);
                    // Not before another model has given up what it takes.
                    let layers = layers.filter(|layers| self.fits(*place, *layers));
                    let wanted = Wanted { layers, tps: [*present, *advised], secures: *secures, movers: &me };
                    any |= self.weigh(*place, &wanted, (tick, state), view);
                    if self.placing.loading {
                        break;
                    }
                }
                any
            }
        };
        switched || reconsidered
    }

    /// Whether a layer of the model at a place has no holder.
    fn is_bare(&self, place: usize, view: &Viewing) -> bool {
        let Some(held) = self.models.at(place) else { return false };
        let others = self.others(held.id, view);
        let all = others.iter().fold(Self::between_ends(held), |all, other| all.union(&other.held));
        (1..held.ready.num_layers.saturating_sub(1)).any(|layer| !all.contains(layer))
    }

    /// Whether there is memory for these layers of the model at a place now.
    fn fits(&self, place: usize, layers: LayerRange) -> bool {
        let room = self.room(place);
        room.and_then(|room| room.longest(layers.start(), layers.end())) == Some(layers)
    }

    /// Which announcements of those who hold the model at a place are believed.
    fn heard(&self, place: usize, view: &Viewing) -> u64 {
        self.models.at(place).map_or(0, |held| heard(&self.others(held.id, view)))
    }

    /// Has it thought out what this node should hold of the models at `places`.
    fn look(&mut self, places: &[usize], view: &Viewing, now: Millis) {
        let me = self.node.me;
        if let Some(budget) = self.budget(places) {
            let state = places.iter().map(|place| self.heard(*place, view)).fold(0, u64::wrapping_add);
            let stands: Option<Vec<Stand>> =
                places.iter().map(|place| self.stand(*place, view, Some(budget))).collect();
            // A model of which this node has not said yet what it holds.
            let Some(stands) = stands else { return self.placing.looked = now };
            let places = places.to_vec();
            return self
                .placing
                .consider(state, move || Considered::Several(places, knapsack::divide(me, &stands, budget)));
        }
        let next = places.iter().find(|place| **place > self.placing.turn).or(places.first());
        let Some(place) = next.copied() else { return };
        self.placing.turn = place;
        let Some(stand) = self.stand(place, view, None) else { return self.placing.looked = now };
        let state = self.heard(place, view);
        let last = self.placing.models.get_mut(&place).map(|chosen| std::mem::take(&mut chosen.last));
        let last = last.unwrap_or_default();
        self.placing.consider(state, move || Considered::One(place, stand.advise(&last)));
    }

    /// What the keeper of the model at `place` makes of what is wanted; whether others should hear of a change.
    fn weigh(
        &mut self,
        place: usize,
        wanted: &Wanted<'_>,
        (tick, state): (u64, u64),
        view: &Viewing,
    ) -> bool {
        let Some(held) = self.models.at(place) else { return false };
        let (me, own, others) = (self.node.me, Self::between_ends(held), self.others(held.id, view));
        let model = held.about.name.clone();
        let [present_tps, advised_tps] = wanted.tps;
        let choice = Move {
            node: me,
            held: &own,
            advised: wanted.layers,
            present_tps,
            advised_tps,
            secures: wanted.secures,
            alone: &alone(me, &own, &others),
            movers: wanted.movers,
            tick,
            state,
        };
        let clock = self.placing.clock;
        let Some(chosen) = self.placing.models.get_mut(&place) else { return false };
        let advice = chosen.keeper.tick(clock, &choice);
        let withdrawn = match advice {
            Advice::Stay => None,
            Advice::Withdraw(layers) | Advice::Hold(layers) => Some(layers),
        };
        let reconsidered = chosen.withdrawn != withdrawn;
        if reconsidered {
            tracing::info!(model, ?advice, present_tps, advised_tps, "layers reconsidered");
            chosen.withdrawn = withdrawn;
        }
        if let Advice::Hold(layers) = advice {
            self.load(place, layers);
        }
        reconsidered
    }

    /// Where this node and those around it stand that hold the model at a place; with room for `bytes` of it where that is said.
    fn stand(&self, place: usize, view: &Viewing, bytes: Option<u64>) -> Option<Stand> {
        let (held, me) = (self.chosen(place)?, self.node.me);
        let mut room = self.room(place)?;
        room.bytes = bytes.unwrap_or(room.bytes);
        let holds = |node: &NodeId| view.swarm.get(*node)?.holding(held.id).map(|_| *node);
        let at = |node: NodeId| (node, view.swarm.coordinate(node).unwrap_or_default());
        let all = view.facts.keys().filter_map(holds).chain([me]).map(at);
        let group = stand::group(me, all.collect());
        let costs = &room.costs;
        let told = |node: &NodeId| {
            let facts = view.facts.get(node)?;
            let of = |told: &&PlaceRoom| {
                facts.offers.get(usize::from(told.offer)).is_some_and(|offer| offer.model == held.id)
            };
            let told = facts.rooms.iter().find(of)?;
            Some((*node, Room { layers: told.layers, bytes: told.bytes, costs: costs.clone() }))
        };
        let mut rooms: BTreeMap<NodeId, Room> = group.iter().filter_map(told).collect();
        rooms.insert(me, room.clone());
        let num_layers = held.ready.num_layers;
        let snapshot = match costs {
            Some(costs) => view.swarm.snapshot_of(held.id, costs, 0, me),
            None => view.swarm.snapshot(held.id, num_layers, me),
        };
        Stand::of(&snapshot.ok()?, &group, &rooms, between(num_layers)?)
    }

    fn others(&self, model: ModelId, view: &Viewing) -> Vec<Other> {
        let of = |node: &NodeId| {
            let capability = view.swarm.get(*node)?;
            let holding = capability.holding(model).filter(|_| !capability.claim().draining)?;
            let sequence = capability.claim().sequence;
            Some(Other { node: *node, sequence, held: holding.held_set() })
        };
        view.facts.keys().filter_map(of).collect()
    }

    fn load(&mut self, place: usize, layers: LayerRange) {
        let Some(held) = self.models.at(place) else { return };
        let moved = self.moves.clone();
        let spec = worker::Spec { layers: with_ends(&[layers], held.ready.num_layers), ..held.spec.clone() };
        self.placing.loading = true;
        tokio::spawn(async move {
            let device = spec.device;
            let worker = worker::spawn_rehearsed(spec).await.map_err(|fault| fault.to_string());
            let _ = moved.send(Moved { place, layers, device, worker }).await;
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
                self.placing.stays(moved.place);
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
        let Some((Moved { place, layers, device, worker: Ok((worker, ready, outputs)) }, _)) =
            self.placing.waiting.take()
        else {
            return false;
        };
        let Some(held) = self.models.at(place) else { return false };
        let model = held.about.name.clone();
        self.placing.stays(place);
        if !held.takes(device, ready.class) {
            tracing::info!(model, %layers, %device, "the device failed while other layers were loaded: these stay");
            worker.kill();
            return true;
        }
        let alone = alone(self.node.me, &Self::between_ends(held), &self.others(held.id, view));
        if !alone.without(layers).is_empty() {
            tracing::info!(model, %layers, "no other node holds what this node would leave any more: it stays");
            worker.kill();
            return true;
        }
        let resident_bytes = ready.memory.resident_bytes;
        if resident_bytes > held.ready.memory.resident_bytes
            && self.weights.left_bytes(place).is_some_and(|left| resident_bytes > left)
        {
            tracing::info!(model, %layers, "another model took the memory meanwhile: these stay");
            worker.kill();
            return true;
        }
        self.weights.holds(place, resident_bytes);
        tracing::info!(model, %layers, "other layers are served from now on");
        self.models.listen_to(outputs, worker.pid());
        let Some(held) = self.models.place_mut(place) else { return false };
        let old = held.worker.borrow().clone();
        held.spec.layers = ready.layers.clone();
        held.loaded = ready.layers.clone();
        held.served = vec![layers];
        held.ready = ready;
        held.replace(worker);
        old.kill();
        true
    }
}

/// What is wanted of a model.
struct Wanted<'a> {
    layers: Option<LayerRange>,
    /// As things are, and once it is followed.
    tps: [f64; 2],
    secures: bool,
    movers: &'a [NodeId],
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
        let mut placing = Placing::new([(0, 3), (2, 3)]);
        let served = [LayerRange::new(1, 4).unwrap()];
        assert_eq!(placing.offered(0, &served), served);
        placing.models.get_mut(&0).unwrap().withdrawn = LayerRange::new(3, 6);
        assert_eq!(placing.offered(0, &served), [LayerRange::new(3, 4).unwrap()]);
        assert_eq!(
            (placing.offered(1, &served), placing.offered(2, &served)),
            (served.to_vec(), served.to_vec())
        );
        placing.models.get_mut(&0).unwrap().withdrawn = LayerRange::new(5, 7);
        assert!(placing.offered(0, &served).is_empty());
        placing.stays(0);
        assert_eq!(placing.offered(0, &served), served);
    }
}
