//! Who holds what while the run goes on: newcomers, and those who move.
//!
//! A newcomer of ours holds the layers that the fewest hold ([`place::scarcest`]); *petals* and *random* take the window
//! with the least summed speed; *parallax* waits until newcomers alone make a pipeline. Every minute each machine of ours
//! asks its [`Keeper`] whether to follow what [`Stand`] advises of the announcements, as a node does it. Who moves withdraws,
//! settles, and then loads for [`LOAD_MS`], serving what it holds before and after.

use std::collections::BTreeMap;

use scheduler::cluster::{MEMBERS, partition};
use scheduler::holders::alone;
use scheduler::place::stand::{Advised, Stand};
use scheduler::place::{self, Advice, Keeper, Move, Room};
use scheduler::{LayerRange, LayerSet, Millis, ModelId, NodeId, Pipeline, Segment};

use super::{CONSIDER_MS, Event, Run};
use crate::policy::{self, Policy};
use crate::world::{id, index};

/// Loading layers takes this long, ms: some gigabytes from disk.
const LOAD_MS: f64 = 20_000.0;

/// What is placed beyond the machines' own layers.
pub(super) struct Placed {
    /// The pipelines that *parallax* goes round.
    pub pipelines: Vec<Pipeline>,
    /// The pipeline that *parallax* took last.
    pub cursor: usize,
    keepers: Vec<Keeper>,
    /// By the first of each group, what was advised it last.
    advised: BTreeMap<NodeId, Advised>,
}

impl Placed {
    pub fn new(pipelines: Vec<Pipeline>, nodes: usize) -> Self {
        Self { pipelines, cursor: 0, keepers: vec![Keeper::default(); nodes], advised: BTreeMap::new() }
    }
}

impl Run<'_> {
    /// A machine comes for the first time.
    pub(super) fn join(&mut self, at: usize) {
        self.world.machines[at].up = true;
        match self.policy {
            Policy::Ours | Policy::Clairvoyant if self.world.nodes <= policy::PLACE_UP_TO => {
                if let Some(range) = self.first(at) {
                    self.world.machines[at].held = vec![range];
                }
            }
            Policy::Parallax => {
                let waits = |i: &usize| self.world.machines[*i].up && self.world.machines[*i].held.is_empty();
                let waiting: Vec<usize> = (0..self.world.nodes).filter(waits).collect();
                self.placed.pipelines.extend(policy::chains_in_order(&mut self.world, &waiting));
            }
            Policy::Local => {}
            _ => policy::place_windows(&mut self.world),
        }
    }

    /// What a newcomer holds first, which knows who holds what and no distances yet.
    fn first(&self, at: usize) -> Option<LayerRange> {
        let held: Vec<LayerSet> = (0..self.world.nodes).map(|i| self.shown(id(i))).collect();
        let room = Room::of_layers(self.world.machines[at].room);
        place::scarcest(LayerRange::new(0, self.world.layers)?, &held, &room)
    }

    /// What `node` announces to hold.
    fn shown(&self, node: NodeId) -> LayerSet {
        let holding = self.chooser.view.get(node).and_then(|known| known.holding(ModelId::default()));
        holding.map(scheduler::Holding::loaded_set).unwrap_or_default()
    }

    /// Every machine looks whether another holding would serve the swarm better.
    pub(super) fn consider(&mut self) {
        if self.healed {
            return;
        }
        self.at(self.now + CONSIDER_MS, Event::Consider);
        self.chooser.view.expire(Millis(self.now as u64));
        let (view, layers) = (&self.chooser.view, self.world.layers);
        let alive: Vec<usize> = (0..self.world.nodes).filter(|&i| view.get(id(i)).is_some()).collect();
        let Some(within) = LayerRange::new(0, layers) else { return };
        let Ok(snapshot) = view.snapshot(ModelId::default(), layers, id(self.world.nodes)) else { return };
        let room = |&i: &usize| (id(i), Room::of_layers(self.world.machines[i].room));
        let rooms: BTreeMap<NodeId, Room> = alive.iter().map(room).collect();
        let places = alive.iter().map(|&i| (id(i), view.coordinate(id(i)).unwrap_or_default())).collect();
        let shown: Vec<(NodeId, LayerSet)> = alive.iter().map(|&i| (id(i), self.shown(id(i)))).collect();
        for group in partition(places, MEMBERS) {
            let members = group.iter().copied().collect();
            let Some(stand) = Stand::of(&snapshot, &members, &rooms, within) else { continue };
            let last = group.first().and_then(|first| self.placed.advised.remove(first)).unwrap_or_default();
            let advised = stand.advise(&last);
            group.iter().for_each(|node| self.follow(index(*node), &advised, &shown));
            self.placed.advised.extend(group.first().map(|first| (*first, advised)));
        }
    }

    fn follow(&mut self, at: usize, advised: &Advised, shown: &[(NodeId, LayerSet)]) {
        let held: LayerSet = self.world.machines[at].held.iter().copied().collect();
        // Who is advised nothing leaves nothing.
        let alone = advised.of(id(at)).map(|_| {
            let others = shown.iter().filter(|(node, _)| *node != id(at)).cloned();
            alone(&others.chain([(id(at), held.clone())]).collect::<Vec<_>>(), id(at))
        });
        let choice = Move {
            node: id(at),
            held: &held,
            advised: advised.of(id(at)),
            present_tps: advised.present_tps,
            advised_tps: advised.advised_tps,
            secures: advised.secures,
            alone: &alone.unwrap_or_default(),
            movers: &advised.movers(id(at)),
            tick: (self.now / CONSIDER_MS) as u64,
            state: self.chooser.view.epoch(),
        };
        match self.placed.keepers[at].tick(Millis(self.now as u64), &choice) {
            Advice::Stay => self.world.machines[at].withdrawn = None,
            Advice::Withdraw(range) => self.world.machines[at].withdrawn = Some(range),
            Advice::Hold(range) => self.move_to(at, range),
        }
    }

    /// Leaves what is not within `range`, and loads the rest of it.
    fn move_to(&mut self, at: usize, range: LayerRange) {
        let machine = &mut self.world.machines[at];
        machine.held = machine.held.iter().filter_map(|held| held.intersect(range)).collect();
        machine.withdrawn = Some(range);
        self.outcome.moves += 1;
        self.check_cover();
        self.at(self.now + LOAD_MS, Event::Loaded { at });
        let relies = |segment: &Segment| segment.node == id(at) && !self.world.holds(at, segment.layers);
        let under_way = self.live.iter().enumerate().filter(|(_, live)| !live.over);
        let hit: Vec<Event> = under_way
            .filter_map(|(request, live)| {
                let stage = live.segments.iter().position(relies)?;
                Some(Event::Lost { request, attempt: live.attempt, stage, cut: false })
            })
            .collect();
        hit.into_iter().for_each(|lost| self.at(self.now, lost));
    }

    /// Moving must not leave a layer without a holder, unless its other holders just died.
    fn check_cover(&mut self) {
        let up = self.world.machines[..self.world.nodes].iter().filter(|machine| machine.up);
        let held: LayerSet = up.flat_map(|machine| machine.held.iter().copied()).collect();
        let bare = (0..self.world.layers).any(|layer| !held.contains(layer));
        self.outcome.violations.bared += u64::from(bare && self.scenario.faults.churn_per_hour == 0.0);
    }

    /// The layers of a move are there.
    pub(super) fn loaded(&mut self, at: usize) {
        if let Some(range) = self.world.machines[at].withdrawn.take() {
            self.world.machines[at].held = vec![range];
        }
    }
}
