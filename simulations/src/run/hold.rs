//! Who holds what while the run goes on: newcomers, and those who move.
//!
//! A newcomer of ours holds what [`place::first_holding`] says and fills its room; *petals* and *random* take the window
//! with the least summed speed; *parallax* waits until newcomers alone make a pipeline. Every minute each machine of ours
//! asks its [`Keeper`] whether to follow the placement computed from the announcements: the one from
//! nothing if that is worth moving for, else what survivors and newcomers can be put together to. Who moves withdraws,
//! settles, and then loads for [`LOAD_MS`], serving what it holds before and after.

use scheduler::place::{self, Advice, Ground, Keeper, MIN_GAIN, Move, Placement, Room, Site};
use scheduler::{LayerRange, LayerSet, Millis, ModelId, NodeId, Pipeline, Segment};

use super::{CONSIDER_MS, Event, Run};
use crate::policy::{self, Policy};
use crate::world::{id, index};

/// Loading layers takes this long, ms: some gigabytes from disk.
const LOAD_MS: f64 = 20_000.0;

/// What is placed beyond the machines' own layers.
pub(super) struct Placed {
    /// Whose pipelines stand: *parallax* goes round them, ours keeps them until others are a third better.
    pub pipelines: Vec<Pipeline>,
    /// The pipeline that *parallax* took last.
    pub cursor: usize,
    keepers: Vec<Keeper>,
}

impl Placed {
    pub fn new(pipelines: Vec<Pipeline>, nodes: usize) -> Self {
        Self { pipelines, cursor: 0, keepers: vec![Keeper::default(); nodes] }
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

    /// What a newcomer holds first.
    fn first(&self, at: usize) -> Option<LayerRange> {
        let present: Vec<usize> = (0..self.world.nodes).filter(|&i| self.world.machines[i].up).collect();
        let ground = policy::ground(self.scenario, &self.world, &present)?;
        let layers = place::first_holding(&ground, &self.placed.pipelines, id(at))?;
        let mut held: Vec<Segment> = self.holdings(&present);
        held.push(Segment { node: id(at), layers });
        let wide = place::widen(&ground, &held);
        wide.into_iter().find(|segment| segment.node == id(at)).map(|segment| segment.layers)
    }

    fn holdings(&self, of: &[usize]) -> Vec<Segment> {
        let first =
            |&i: &usize| self.world.machines[i].held.first().map(|&layers| Segment { node: id(i), layers });
        of.iter().filter_map(first).collect()
    }

    /// What `node` announces to hold.
    fn shown(&self, node: NodeId) -> LayerSet {
        let holding = self.chooser.view.get(node).and_then(|known| known.holding(ModelId::default()));
        holding.map(scheduler::Holding::loaded_set).unwrap_or_default()
    }

    /// The swarm as it is announced, and who of it is alive.
    fn believed(&self) -> Option<(Ground, Vec<usize>)> {
        let alive: Vec<usize> =
            (0..self.world.nodes).filter(|&i| self.chooser.view.get(id(i)).is_some()).collect();
        let sites = alive.iter().map(|&i| {
            let known = self.chooser.view.get(id(i)).and_then(|known| known.holding(ModelId::default()));
            let layer_ms = known.map_or(1.0, |holding| holding.decode_ms.max(1e-3));
            Site::new(id(i), layer_ms, &Room::of_layers(self.world.machines[i].room), self.world.layers)
        });
        let sites = sites.collect();
        let pairs = alive.iter().flat_map(|&i| alive.iter().map(move |&j| (i, j)));
        let hops: Vec<f64> = pairs.map(|(i, j)| self.world.expected_ms(i, j)).collect();
        let busy = policy::concurrency(self.scenario);
        Some((Ground::new(self.world.layers, busy, sites, &hops).ok()?, alive))
    }

    /// Every machine looks whether another holding would serve the swarm better.
    pub(super) fn consider(&mut self) {
        if self.healed {
            return;
        }
        self.at(self.now + CONSIDER_MS, Event::Consider);
        let now = Millis(self.now as u64);
        self.chooser.view.expire(now);
        let Some((ground, alive)) = self.believed() else { return };
        let stands = |pipeline: &Pipeline| {
            pipeline.segments().iter().all(|segment| self.shown(segment.node).covers(segment.layers))
        };
        let standing: Vec<Pipeline> =
            self.placed.pipelines.iter().filter(|pipeline| stands(pipeline)).cloned().collect();
        let paces: Vec<_> = standing.iter().filter_map(|pipeline| ground.pace(pipeline)).collect();
        let present_tps = place::goodput_tps(&paces, ground.concurrency());
        let mut advice = place::place(&ground);
        if advice.goodput_tps < MIN_GAIN * present_tps {
            advice = place::restitch(&ground, &standing);
        }
        self.follow(&ground, &alive, &advice, present_tps);
        let holds = |segment: &Segment| {
            let held: LayerSet = self.world.machines[index(segment.node)].held.iter().copied().collect();
            held.covers(segment.layers)
        };
        if advice.pipelines.iter().flat_map(Pipeline::segments).all(holds) {
            self.placed.pipelines = advice.pipelines;
        }
    }

    fn follow(&mut self, ground: &Ground, alive: &[usize], advice: &Placement, present_tps: f64) {
        let segments: Vec<Segment> = advice.pipelines.iter().flat_map(Pipeline::segments).copied().collect();
        let wide = place::widen(ground, &segments);
        // Who holds its segment already has no reason to move.
        let elsewhere = |segment: &Segment| {
            let own = segments.iter().find(|own| own.node == segment.node);
            own.is_some_and(|own| !self.shown(segment.node).covers(own.layers))
        };
        let wanted: Vec<Segment> = wide.into_iter().filter(elsewhere).collect();
        let shown: Vec<LayerSet> = alive.iter().map(|&i| self.shown(id(i))).collect();
        let mut holders = vec![0u32; self.world.layers as usize];
        for layer in shown.iter().flat_map(|set| set.ranges()).flat_map(|range| range.start()..range.end()) {
            holders[layer as usize] += 1;
        }
        for (&at, shown) in alive.iter().zip(&shown) {
            let region = self.world.machines[at].line.region;
            let near = |segment: &&Segment| self.world.machines[index(segment.node)].line.region == region;
            let movers: Vec<NodeId> = wanted.iter().filter(near).map(|segment| segment.node).collect();
            let advised = wanted.iter().find(|segment| segment.node == id(at)).map(|segment| segment.layers);
            let others: Vec<u32> = (0..self.world.layers)
                .map(|layer| holders[layer as usize] - u32::from(shown.contains(layer)))
                .collect();
            let held: LayerSet = self.world.machines[at].held.iter().copied().collect();
            let choice = Move {
                node: id(at),
                held: &held,
                advised,
                present_tps,
                advised_tps: advice.goodput_tps,
                others: &others,
                movers: &movers,
                tick: (self.now / CONSIDER_MS) as u64,
                state: self.chooser.view.epoch(),
            };
            match self.placed.keepers[at].tick(Millis(self.now as u64), &choice) {
                Advice::Stay => self.world.machines[at].withdrawn = None,
                Advice::Withdraw(range) => self.world.machines[at].withdrawn = Some(range),
                Advice::Hold(range) => self.move_to(at, range),
            }
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
        let hit: Vec<(usize, u32)> = self
            .live
            .iter()
            .enumerate()
            .filter(|(_, live)| !live.over && live.segments.iter().any(relies))
            .map(|(request, live)| (request, live.attempt))
            .collect();
        for (request, attempt) in hit {
            self.at(self.now, Event::Lost { request, attempt });
        }
    }

    /// Moving must not leave a layer without a holder, unless its other holders just died.
    fn check_cover(&mut self) {
        let up = self.world.machines[..self.world.nodes].iter().filter(|machine| machine.up);
        let held: LayerSet = up.flat_map(|machine| machine.held.iter().copied()).collect();
        let bare = (0..self.world.layers).any(|layer| !held.contains(layer));
        self.outcome.violations.bared += u64::from(bare && self.scenario.churn_per_hour == 0.0);
    }

    /// The layers of a move are there.
    pub(super) fn loaded(&mut self, at: usize) {
        if let Some(range) = self.world.machines[at].withdrawn.take() {
            self.world.machines[at].held = vec![range];
        }
    }
}
