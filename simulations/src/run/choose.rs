//! Which pipeline a request takes, and what a clairvoyant would have taken.

use std::collections::BTreeMap;

use scheduler::lease::{LOOKS, Leases, Load, Verdict, is_further};
use scheduler::recover::SILENCE_MS;
use scheduler::rng::Rng;
use scheduler::route::{self, Router};
use scheduler::snapshot::{Host, Links};
use scheduler::standby::{self, Cover};
use scheduler::view::SwarmView;
use scheduler::{
    Boomerang, LayerRange, Millis, ModelId, NodeId, Pipeline, Request, Segment, Shape, Snapshot, cost,
};

use super::hold::Placed;
use super::{ANNOUNCE_MS, Live, SHARE_FROM, SNAPSHOT_MS, is_cut};
use crate::policy::{self, Believed, Policy};
use crate::scale::REGIONS_MS;
use crate::scenario::Scenario;
use crate::world::{ACTIVATION_BYTES, VISIT_MS, World, id, index};

/// A request that wants a pipeline, and the world it asks in.
pub(super) struct Question<'a> {
    pub scenario: &'a Scenario,
    pub policy: Policy,
    pub world: &'a World,
    pub now: f64,
    pub request: usize,
    pub live: &'a Live,
}

/// What a request takes.
pub(super) struct Choice {
    pub pipeline: Pipeline,
    pub covers: Vec<Cover>,
    /// Round trips of lease requests, ms.
    pub asked_ms: f64,
}

/// What requesters know, and what it taught them.
pub(super) struct Chooser {
    pub view: SwarmView,
    snapshots: BTreeMap<usize, (f64, Snapshot)>,
    router: Router,
    /// By requester: what nodes said when asked for a lease.
    leases: BTreeMap<usize, Leases>,
}

impl Question<'_> {
    fn ask(&self) -> Request {
        let Self { scenario, live, .. } = *self;
        let left = live.tokens.0 + live.tokens.1 - live.known;
        let shape = Shape {
            prompt_tokens: live.known,
            output_tokens: left.max(1),
            prefill_chunk: self.world.engine.chunk(live.known),
            activation_bytes: ACTIVATION_BYTES,
        };
        let mut ask = Request::new(id(live.requester), shape);
        ask.seed = (self.request as u64) << 8 | u64::from(live.attempt);
        if scenario.boomerang && self.policy != Policy::Local {
            ask.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        }
        ask.policy.deny = live.failed.iter().copied().collect();
        if let Some(near_equal) = scenario.near_equal {
            ask.policy.near_equal = near_equal;
        }
        ask
    }

    /// A request of a machine that needs no guess.
    fn ask_knowing(&self) -> Request {
        let mut ask = self.ask();
        ask.policy.near_equal = 0.0;
        ask
    }

    fn millis(&self) -> Millis {
        Millis(self.now as u64)
    }

    /// What is true of the swarm at this moment, as the requester would see it if it knew everything.
    fn truth(&self) -> Option<Snapshot> {
        let world = self.world;
        let shown = (0..world.machines.len())
            .filter(|&i| i < world.nodes && world.machines[i].up || i == self.live.requester);
        let hosts = shown.map(|i| {
            let machine = &world.machines[i];
            let held = machine.held.iter().copied().collect();
            let decode_ms = machine.layer_ms * machine.slow;
            let mut host = Host::new(id(i), held, decode_ms);
            host.prefill_ms = decode_ms / world.engine.gain;
            host.visit_ms = VISIT_MS;
            let line = &machine.line;
            (host.access.region, host.access.ms) = (line.region as u16, line.access_ms);
            (host.active, host.batch_knee) = (machine.work.sessions, machine.knee());
            (host.access.up_bytes_per_ms, host.access.down_bytes_per_ms) =
                (line.up_bytes_per_ms, line.down_bytes_per_ms);
            host
        });
        let mut base_ms: Vec<f64> = REGIONS_MS.iter().flatten().copied().collect();
        if is_cut(self.scenario, self.now) {
            let n = REGIONS_MS.len();
            (1..n).flat_map(|region| [region, region * n]).for_each(|pair| base_ms[pair] = f64::INFINITY);
        }
        let links = Links::Regions { base_ms, regions: REGIONS_MS.len(), measured: Vec::new() };
        Snapshot::new(ModelId::default(), world.layers, None, hosts.collect(), &links).ok()
    }

    /// Segments of `pipeline` that their nodes do not hold, and whether an end of it left home though it must not.
    pub fn breaks(&self, pipeline: &Pipeline) -> (u64, bool) {
        let home = id(self.live.requester);
        let segments = pipeline.segments();
        let holds = |segment: &&Segment| self.world.holds(index(segment.node), segment.layers);
        let ends = [segments.first(), segments.last()];
        let abroad = ends.into_iter().flatten().any(|segment| segment.node != home);
        let bound = self.scenario.boomerang && self.policy.routes_ours();
        ((segments.len() - segments.iter().filter(holds).count()) as u64, bound && abroad)
    }

    /// True cost of a choice over that of the best route.
    pub fn regret(&self, pipeline: &Pipeline) -> Option<f64> {
        let mut ask = self.ask_knowing();
        ask.policy.boomerang = ask.policy.boomerang.filter(|_| self.policy.routes_ours());
        let truth = self.truth()?;
        let best = route::route(&truth, &ask).ok()?;
        let chosen = cost::price(&truth, &ask, pipeline).ok()?;
        Some(chosen.total_ms() / best.optimum_ms)
    }
}

impl Chooser {
    pub fn new(view: SwarmView) -> Self {
        Self { view, snapshots: BTreeMap::new(), router: Router::default(), leases: BTreeMap::new() }
    }

    pub fn choose(
        &mut self,
        question: &Question<'_>,
        placed: &mut Placed,
        chance: &mut Rng,
    ) -> Option<Choice> {
        let (world, requester) = (question.world, question.live.requester);
        let deny = &question.live.failed;
        let alone = |pipeline| Choice { pipeline, covers: Vec::new(), asked_ms: 0.0 };
        match question.policy {
            Policy::Ours => self.choose_ours(question),
            Policy::Clairvoyant => {
                let truth = question.truth()?;
                let ask = question.ask_knowing();
                self.router.prepare(&truth, &ask).ok()?;
                Some(alone(self.router.route(&truth, &ask).ok()?.pipeline))
            }
            Policy::Local => {
                let layers = LayerRange::new(0, world.layers)?;
                let here = vec![Segment { node: id(requester), layers }];
                let can = world.holds(requester, layers);
                Pipeline::new(here, world.layers).ok().filter(|_| can).map(alone)
            }
            _ => {
                self.view.expire(question.millis());
                let up: Vec<bool> =
                    (0..world.machines.len()).map(|i| self.view.get(id(i)).is_some()).collect();
                let believed = Believed { world, up: &up };
                let found = match question.policy {
                    Policy::Parallax => policy::round_robin(&placed.pipelines, &believed, &mut placed.cursor),
                    Policy::Petals => policy::petals(&believed, requester, deny),
                    Policy::Nearest => policy::nearest(&believed, requester, deny),
                    Policy::LeastLoaded => policy::least_loaded(&believed, deny),
                    _ => policy::random(&believed, deny, chance),
                };
                found.map(alone)
            }
        }
    }

    fn choose_ours(&mut self, question: &Question<'_>) -> Option<Choice> {
        self.refresh(question);
        let mut ask = self.ask(question, false);
        let mut found = self.look(question, &ask)?;
        let (mut looks, mut asked_ms) = (0, 0.0);
        while self.lease(question, looks, &found.pipeline, &mut asked_ms) == Verdict::Again {
            looks += 1;
            ask = self.ask(question, looks + 1 == LOOKS);
            found = match self.look(question, &ask) {
                Some(found) => found,
                None => {
                    ask = self.ask(question, false);
                    self.look(question, &ask)?
                }
            };
        }
        // Who stands by need not have been looked at.
        ask = self.ask(question, false);
        let snapshot = &self.snapshots.get(&shared(question))?.1;
        let covers = if question.scenario.faults.churn_per_hour > 0.0 {
            standby::covers(snapshot, &ask, &found.pipeline)
        } else {
            Vec::new()
        };
        Some(Choice { pipeline: found.pipeline, covers, asked_ms })
    }

    /// The question with what leases taught; the last look of a request settles for what it has seen.
    fn ask(&self, question: &Question<'_>, last: bool) -> Request {
        let mut ask = question.ask();
        if let Some(leases) = self.leases.get(&question.live.requester) {
            let (now, announced) = (question.millis(), |node| announced(&self.view, node));
            match last {
                true => leases.settle(now, now, &mut ask, announced),
                false => leases.amend(now, &mut ask, announced),
            }
        }
        ask
    }

    /// Asks the nodes of a pipeline for a lease; they answer with the sessions they have.
    fn lease(
        &mut self,
        question: &Question<'_>,
        looks: u32,
        pipeline: &Pipeline,
        asked_ms: &mut f64,
    ) -> Verdict {
        let (world, home) = (question.world, question.live.requester);
        let mut round_trip_ms = 0f64;
        let mut answers = Vec::new();
        let mut further = false;
        let cut = is_cut(question.scenario, question.now);
        for segment in pipeline.segments() {
            let at = index(segment.node);
            if cut && world.are_apart(home, at) {
                self.part(home, at, shared(question), question.now);
                (further, round_trip_ms) = (true, SILENCE_MS as f64);
                continue;
            }
            let (sessions, lanes) = (world.machines[at].work.sessions, world.machines[at].knee());
            answers.push(Load { node: segment.node, sessions, lanes });
            let way_ms = 2.0 * world.hop_ms(home, at);
            round_trip_ms = round_trip_ms.max(way_ms);
            if world.near.is_some() {
                let believed = self.view.round_trip_ms(id(home), segment.node);
                let believed = believed.unwrap_or_else(|| 2.0 * world.expected_ms(home, at));
                further |= is_further(believed, way_ms);
                self.view.measure(id(home), segment.node, way_ms);
            }
        }
        *asked_ms += round_trip_ms;
        if further {
            self.snapshots.remove(&shared(question));
            self.refresh(question);
            if looks + 1 < LOOKS {
                return Verdict::Again;
            }
        }
        let view = &self.view;
        let leases = self.leases.entry(home).or_default();
        leases.heard(question.millis(), looks, &answers, |node| announced(view, node))
    }

    fn look(&mut self, question: &Question<'_>, ask: &Request) -> Option<route::Route> {
        let snapshot = &self.snapshots.get(&shared(question))?.1;
        let careful = route::acquainted(snapshot, ask);
        let mut route = |ask: &Request| {
            self.router.prepare(snapshot, ask).ok()?;
            self.router.route(snapshot, ask).ok()
        };
        // Where no route leads past strangers they may serve.
        route(&careful).or_else(|| (careful != *ask).then(|| route(ask)).flatten())
    }

    /// Two machines turned out not to reach each other; who asks for `home` routes knowing it.
    pub fn part(&mut self, one: usize, other: usize, home: usize, now: f64) {
        self.view.unreachable(id(one), id(other), Millis(now as u64));
        self.snapshots.remove(&home);
    }

    fn refresh(&mut self, question: &Question<'_>) {
        let (key, world) = (shared(question), question.world);
        let lasts = if world.nodes > SHARE_FROM { ANNOUNCE_MS } else { SNAPSHOT_MS };
        let fresh = self.snapshots.get(&key).is_some_and(|(at, _)| question.now - at < lasts);
        if !fresh {
            let now = question.millis();
            self.view.expire(now);
            let snapshot =
                self.view.snapshot_to_route(ModelId::default(), world.layers, None, id(key), now.0);
            if let Ok(snapshot) = snapshot {
                self.snapshots.insert(key, (question.now, snapshot));
            }
        }
    }
}

/// Whose snapshot a requester routes on. In a large swarm all share one: only what they believe of themselves
/// would differ.
fn shared(question: &Question<'_>) -> usize {
    let nodes = question.world.nodes;
    if nodes > SHARE_FROM { nodes } else { question.live.requester }
}

fn announced(view: &SwarmView, node: NodeId) -> u32 {
    let holding = view.get(node).and_then(|capability| capability.holding(ModelId::default()));
    holding.map_or(0, |holding| holding.active)
}
