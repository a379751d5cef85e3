//! Which layers this node should hold from now on.
//!
//! A node that may choose (`Serve::Scarcest`) looks every [`TICK_MS`] whether the swarm would answer faster if it held other
//! layers. The measure is what the scarcest layer of the model can give, tokens per second, since no prompt is answered
//! faster than that: a node that decodes a layer in d ms and holds n gives each of them 1000 / (d n). A layer no node
//! holds gives nothing.
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
//! Limits: the ends (first and last layer) are everybody's own and not placed; memory holds both workers for a moment; who
//! else may move is not announced, so the lottery counts every node that could leave its layers without baring one.

use scheduler::{
    LayerRange, LayerSet, Millis, NodeId,
    layer_cost::LayerCosts,
    place::{Advice, Keeper, Move, Room, scarcest},
};
use shard::executor::DeviceName;
use tokio::sync::mpsc;

use super::{Serving, initial_placement::with_ends};
use crate::{
    daemon::view::{TTL_MS, Viewing},
    worker::{self, Output, Ready, Worker},
};

/// How often it is looked.
const TICK_MS: u64 = 2_000;
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
            withdrawn: None,
            loading: false,
            waiting: None,
        }
    }

    /// What of the layers served is announced: all, or what will be kept.
    pub fn offered(&self, served: &[LayerRange]) -> Vec<LayerRange> {
        match self.withdrawn {
            None => served.to_vec(),
            Some(kept) => served.iter().filter_map(|range| range.intersect(kept)).collect(),
        }
    }
}

/// What another node holds and how fast it is.
struct Other {
    node: NodeId,
    /// The number of its announcement.
    sequence: u64,
    held: LayerSet,
    layer_ms: f64,
}

/// What the scarcest of the layers between the ends can give, tokens per second.
fn scarcest_tps<'a>(
    num_layers: u32,
    costs: Option<&LayerCosts>,
    holders: impl Iterator<Item = (&'a LayerSet, f64)> + Clone,
) -> f64 {
    // A node says what a mean layer takes it; each of those it holds takes by its own weight.
    let weight = |held: &LayerSet| match costs {
        Some(costs) => held.ranges().iter().map(|range| costs.weight(*range, 0)).sum(),
        None => f64::from(held.len()),
    };
    let gives = |layer: u32| -> f64 {
        let holds = holders.clone().filter(|(held, _)| held.contains(layer));
        holds.map(|(held, layer_ms)| 1e3 / (layer_ms * weight(held))).sum()
    };
    (1..num_layers.saturating_sub(1)).map(gives).fold(f64::INFINITY, f64::min)
}

/// The number of the turn in which it is `unix_ms`, the same for all nodes that are in the same hurry.
fn turn(unix_ms: u64, hurry: u64) -> u64 {
    unix_ms * hurry / TURN_MS
}

/// Which announcements of the others are believed: another number with each that comes or goes.
fn heard(others: &[Other]) -> u64 {
    others.iter().fold(0, |sum, other| sum.wrapping_add(other.sequence))
}

/// Holders of each layer.
fn holders(num_layers: u32, others: &[Other]) -> Vec<u32> {
    (0..num_layers).map(|layer| others.iter().filter(|o| o.held.contains(layer)).count() as u32).collect()
}

/// Where a node should go, and what the scarcest layer gives now and then.
fn advise(
    num_layers: u32,
    room: &Room,
    own: &LayerSet,
    own_ms: f64,
    others: &[Other],
) -> (Option<LayerRange>, f64, f64) {
    let sets: Vec<LayerSet> = others.iter().map(|other| other.held.clone()).collect();
    // Layers are placed between the ends, which everybody keeps for himself.
    let between = LayerRange::new(1, num_layers.saturating_sub(1));
    let found = between.and_then(|between| scarcest(between, &sets, room));
    let costs = room.costs.as_ref();
    let rest = || others.iter().map(|other| (&other.held, other.layer_ms));
    let present = scarcest_tps(num_layers, costs, rest().chain([(own, own_ms)]));
    let target = found.map(LayerSet::from).unwrap_or_default();
    let advised = scarcest_tps(num_layers, costs, rest().chain([(&target, own_ms)]));
    (found, present, advised)
}

/// Whether a layer of `own` that is not in `target` has no other holder.
fn leaves_bare(own: &LayerSet, target: LayerRange, holders: &[u32]) -> bool {
    let layers = own.ranges().iter().flat_map(|range| range.start()..range.end());
    layers
        .filter(|layer| !target.contains(*layer))
        .any(|layer| holders.get(layer as usize).is_none_or(|held| *held == 0))
}

impl Serving {
    /// What is served of the layers between the ends: no requester needs the ends from another node.
    fn between_ends(&self) -> LayerSet {
        let between = LayerRange::new(1, self.models.first.ready.num_layers.saturating_sub(1));
        self.models.first.served.iter().filter_map(|range| between.and_then(|b| range.intersect(b))).collect()
    }

    /// Looks whether other layers would serve the swarm better; returns whether others should hear of a change. At `unix_ms` of
    /// the time of day.
    pub(crate) fn place(&mut self, view: &Viewing, unix_ms: u64) -> bool {
        let now = self.node.now();
        let switched = self.switch_when_quiet(now, view);
        let num_layers = self.models.first.ready.num_layers;
        let since = now.since(self.placing.looked);
        let room = self.placing.room.clone().filter(|room| room.layers > 0 && num_layers > 2);
        let Some(mut room) = room else {
            return switched;
        };
        let busy = self.placing.loading || self.placing.waiting.is_some();
        if since < TICK_MS || self.gate.is_draining() || busy {
            return switched;
        }
        let others = self.others(view);
        let own = self.between_ends();
        room.costs = self.models.first.ready.costs.clone();
        let weighs = |costs: &LayerCosts| own.ranges().iter().map(|range| costs.weight_bytes(*range)).sum();
        // What it holds now it may hold elsewhere.
        room.bytes = room.bytes.max(room.costs.as_ref().map_or(0, weighs));
        let own_ms = self.models.first.ready.decode_ms;
        let (advised, present_tps, advised_tps) = advise(num_layers, &room, &own, own_ms, &others);
        let holders = holders(num_layers, &others);
        let movers = self.movers(&own, &others, &holders);
        let heard = heard(&others);
        let placing = &mut self.placing;
        placing.looked = now;
        let hurry = if present_tps == 0.0 { HURRY } else { 1 };
        placing.clock = Millis(placing.clock.0 + since * hurry);
        let choice = Move {
            node: self.node.me,
            held: &own,
            advised,
            present_tps,
            advised_tps,
            others: &holders,
            movers: &movers,
            tick: turn(unix_ms, hurry),
            state: if hurry > 1 { placing.clock.0 } else { heard },
        };
        let advice = placing.keeper.tick(placing.clock, &choice);
        let withdrawn = match advice {
            Advice::Stay => None,
            Advice::Withdraw(layers) | Advice::Hold(layers) => Some(layers),
        };
        let reconsidered = placing.withdrawn != withdrawn;
        if reconsidered {
            tracing::info!(?advice, present_tps, advised_tps, "layers reconsidered");
            placing.withdrawn = withdrawn;
        }
        if let Advice::Hold(layers) = advice {
            self.load(layers);
        }
        switched || reconsidered
    }

    fn others(&self, view: &Viewing) -> Vec<Other> {
        let of = |node: &NodeId| {
            let capability = view.swarm.get(*node)?;
            let holding =
                capability.holding(self.models.first.id).filter(|_| !capability.claim().draining)?;
            let sequence = capability.claim().sequence;
            Some(Other { node: *node, sequence, held: holding.loaded_set(), layer_ms: holding.decode_ms })
        };
        view.facts.keys().filter_map(of).collect()
    }

    /// Nodes that could leave all they hold without baring a layer, and this one.
    fn movers(&self, own: &LayerSet, others: &[Other], holders: &[u32]) -> Vec<NodeId> {
        let count =
            |layer: u32| holders.get(layer as usize).copied().unwrap_or(0) + u32::from(own.contains(layer));
        let spare = |other: &&Other| {
            let mut layers = other.held.ranges().iter().flat_map(|range| range.start()..range.end());
            layers.all(|layer| count(layer) > 1)
        };
        let mut movers: Vec<NodeId> = others.iter().filter(spare).map(|other| other.node).collect();
        movers.push(self.node.me);
        movers
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
        let holders = holders(self.models.first.ready.num_layers, &self.others(view));
        if leaves_bare(&self.between_ends(), layers, &holders) {
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
    use scheduler::layer_cost::LayerCost;

    use super::*;

    fn set(start: u32, end: u32) -> LayerSet {
        LayerRange::new(start, end).unwrap().into()
    }

    fn other(node: u64, start: u32, end: u32) -> Other {
        Other { node: NodeId::numbered(node), sequence: 1, held: set(start, end), layer_ms: 1.0 }
    }

    #[test]
    fn a_bare_layer_is_worth_moving_for_and_the_ends_are_not_placed() {
        let others = [other(1, 1, 4), other(2, 4, 6)];
        // Layer 6 of 0..8 has no holder; this node doubles 1..4.
        let (to, present, advised) = advise(8, &Room::of_layers(3), &set(1, 4), 1.0, &others);
        assert_eq!((to, present), (LayerRange::new(4, 7), 0.0));
        assert!(advised > 0.0);
        assert_eq!(holders(8, &others), [0, 1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn where_all_are_held_alike_nothing_is_gained() {
        let others = [other(1, 1, 4), other(2, 4, 7), other(3, 4, 7)];
        let (_, present, advised) = advise(8, &Room::of_layers(3), &set(1, 4), 1.0, &others);
        assert!(advised <= present, "{present} {advised}");
    }

    #[test]
    fn what_layers_give_is_priced_by_their_own_weight() {
        let layer = |row_work| LayerCost {
            row_work,
            weight_bytes: row_work,
            seen_work: 0,
            window: None,
            state_bytes: 0,
            position_bytes: 0,
        };
        // Two layers of 1, then experts of 4: the mean is 3.
        let layers = [1, 1, 4, 4, 4, 4].map(|work| layer(work * 300)).to_vec();
        let costs = LayerCosts::new(layers, 8).unwrap();
        let (light, heavy) = (set(1, 2), set(2, 5));
        let holders = || [(&light, 1.0), (&heavy, 1.0)].into_iter();
        // The heavy three take 1 ms x 3 x 4/3.
        assert!((scarcest_tps(6, Some(&costs), holders()) - 250.0).abs() < 1e-9);
        assert!((scarcest_tps(6, None, holders()) - 1e3 / 3.0).abs() < 1e-9);
        // Where the room is for one layer of experts, two of them are not advised.
        let room = Room { layers: 4, bytes: 1_500, costs: Some(costs) };
        let (to, ..) = advise(6, &room, &LayerSet::default(), 1.0, &[]);
        assert_eq!(to, LayerRange::new(1, 3), "one light and one heavy: 300 + 1,200 bytes");
    }

    #[test]
    fn who_became_the_last_holder_while_it_loaded_stays() {
        let (own, target) = (set(1, 4), LayerRange::new(3, 6).unwrap());
        let both = [other(1, 1, 4)];
        assert!(!leaves_bare(&own, target, &holders(8, &both)));
        assert!(leaves_bare(&own, target, &holders(8, &[other(1, 2, 4)])), "layer 1 is its own alone");
        assert!(leaves_bare(&own, target, &holders(8, &[])));
        assert!(!leaves_bare(&set(3, 5), target, &holders(8, &[])), "nothing is left");
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
        let others = || vec![other(1, 1, 4), other(2, 4, 7)];
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
