//! One policy through one scenario: a discrete-event loop over virtual time.
//!
//! The unit of work is a *visit*: one step of one request at one machine, which serves a few at once and queues the
//! rest. Routing, views, standbys and recovery budgets are the scheduler's own code. A crash loses what the machine
//! was doing; after the detection time the request recovers, and what the replacement lacks of the keys and values
//! is computed again as one prefill.
//!
//! Safety is checked as it happens ([`Violations`]); when the scenario is over all faults heal, and every request that
//! is still alive must end within ten minutes.
//!
//! Limits: all requesters share one view, refreshed once a second; frames are not lost singly and doors are open ([`crate::storm`]
//! does both); memory for keys and values is not a constraint here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use scheduler::chance::Chance;
use scheduler::lease::{Leases, Load, Verdict};
use scheduler::recover::{Budget, Failure, Options, Recovery, SILENCE_MS};
use scheduler::route::Router;
use scheduler::snapshot::{Host, Links};
use scheduler::standby::{self, Cover};
use scheduler::view::{Geography, SwarmView};
use scheduler::{
    Boomerang, Millis, ModelId, NodeId, Pipeline, Request, Segment, Shape, Snapshot, cost, route,
};

use crate::policy::{self, Believed, Policy};
use crate::scale::REGIONS_MS;
use crate::scenario::Scenario;
use crate::world::{World, id, index};

/// A machine speaks this often, ms.
const ANNOUNCE_MS: f64 = 5_000.0;
/// A snapshot serves this long, ms.
const SNAPSHOT_MS: f64 = 1_000.0;
/// Above this many nodes requesters share a snapshot, taken once per round of announcements.
const SHARE_FROM: usize = 1_024;
/// After healing, everything must end within this, ms.
const LIVENESS_MS: f64 = 600_000.0;
/// One route in so many is compared with what a clairvoyant would have chosen.
const REGRET_EVERY: usize = 16;

/// What must never happen, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Violations {
    /// A machine was asked to run what it does not hold.
    pub not_held: u64,
    /// An end of the model left home under boomerang.
    pub ends_abroad: u64,
    /// A token twice or out of order.
    pub order: u64,
    /// Slots or running counts that did not come back to zero.
    pub unbalanced: u64,
    /// Requests that never ended.
    pub stuck: u64,
}

impl Violations {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.not_held + self.ends_abroad + self.order + self.unbalanced + self.stuck
    }
}

/// What a run came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Requests that arrived, ended whole, and were given up.
    pub requests: (u64, u64, u64),
    /// Tokens given to users while requests arrived.
    pub tokens: u64,
    /// The same per second of virtual time, for plotting.
    pub tokens_by_second: Vec<u32>,
    /// Time to first token of every request that got one, ms, sorted.
    pub first_ms: Vec<f64>,
    /// Mean time per further token of every whole request, ms, sorted.
    pub each_ms: Vec<f64>,
    /// Longest gap between two tokens of every request that met a crash, ms, sorted.
    pub stall_ms: Vec<f64>,
    /// True cost of the chosen route over the clairvoyant's, sampled, sorted.
    pub regret: Vec<f64>,
    /// Busiest over mean number of visits, over machines that hold layers.
    pub skew: f64,
    /// Most sessions per lane that counted on one machine at any time.
    pub peak: f64,
    /// Announcements made; every machine hears every one.
    pub announcements: u64,
    /// What must not happen.
    pub violations: Violations,
}

/// The value below which the share `q` of sorted samples lies; NaN without samples.
pub fn percentile(sorted: &[f64], q: f64) -> f64 {
    sorted
        .get(((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive,
    Reach { request: usize, attempt: u32 },
    Served { at: usize, boot: u64, request: usize, attempt: u32 },
    Lost { request: usize, attempt: u32 },
    Announce { at: usize },
    Leave { at: usize },
    Return { at: usize },
    Gray { on: bool },
    Heal,
}

struct Live {
    requester: usize,
    segments: Vec<Segment>,
    /// Positions each stage has computed.
    have: Vec<u32>,
    covers: Vec<Cover>,
    stage: usize,
    known: u32,
    attempt: u32,
    began: f64,
    last: f64,
    first: Option<f64>,
    stall: f64,
    crashed: bool,
    budget: Budget,
    failed: Vec<NodeId>,
    over: bool,
    /// Round trips of lease requests, spent before the next step starts, ms.
    delay_ms: f64,
}

struct Server {
    boot: u64,
    serving: Vec<(usize, u32)>,
    queue: VecDeque<(usize, u32)>,
    visits: u64,
}

struct Run<'a> {
    scenario: &'a Scenario,
    policy: Policy,
    world: World,
    now: f64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Event>,
    free: Vec<usize>,
    chance: Chance,
    servers: Vec<Server>,
    live: Vec<Live>,
    view: SwarmView,
    snapshots: BTreeMap<usize, (f64, Snapshot)>,
    router: Router,
    fixed: Vec<Pipeline>,
    cursor: usize,
    running: BTreeMap<(usize, NodeId), u32>,
    /// By requester: what nodes said when asked for a lease.
    leases: BTreeMap<usize, Leases>,
    healed: bool,
    outcome: Outcome,
}

/// Runs `policy` through `scenario`; the same seed draws the same machines, arrivals and faults for every policy.
pub fn run(scenario: &Scenario, policy: Policy, seed: u64) -> Outcome {
    let mut draw = Chance::new(seed);
    let mut world = World::draw(scenario, &mut draw.fork());
    let fixed = policy::hold(policy, scenario, &mut world);
    let base: Vec<f64> = REGIONS_MS.iter().flatten().copied().collect();
    let geography = Geography::new(REGIONS_MS.len(), base).unwrap_or_else(|| Geography::flat(50.0));
    let servers = world.machines.iter().map(|_| Server {
        boot: 0,
        serving: Vec::new(),
        queue: VecDeque::new(),
        visits: 0,
    });
    let mut run = Run {
        scenario,
        policy,
        servers: servers.collect(),
        world,
        now: 0.0,
        order: 0,
        queue: BinaryHeap::new(),
        events: Vec::new(),
        free: Vec::new(),
        chance: draw.fork(),
        live: Vec::new(),
        view: SwarmView::new(geography),
        snapshots: BTreeMap::new(),
        router: Router::default(),
        fixed,
        cursor: 0,
        running: BTreeMap::new(),
        leases: BTreeMap::new(),
        healed: false,
        outcome: Outcome { tokens_by_second: vec![0; scenario.seconds as usize + 1], ..Outcome::default() },
    };
    run.schedule_faults(&mut draw);
    run.go();
    run.finish()
}

fn announced(view: &SwarmView, node: NodeId) -> u32 {
    let holding = view.get(node).and_then(|capability| capability.holding(ModelId::default()));
    holding.map_or(0, |holding| holding.active)
}

impl Run<'_> {
    fn at(&mut self, ms: f64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = event;
                slot
            }
            None => {
                self.events.push(event);
                self.events.len() - 1
            }
        };
        self.order += 1;
        self.queue.push(Reverse(((ms.max(self.now) * 1_000.0) as u64, self.order, slot)));
    }

    /// Draws arrivals and faults ahead, so that they do not depend on what the policy does.
    fn schedule_faults(&mut self, draw: &mut Chance) {
        let end = self.scenario.seconds * 1_000.0;
        let (mut arrivals, mut faults, mut grays) = (draw.fork(), draw.fork(), draw.fork());
        let mut t = 0.0;
        loop {
            let crowd =
                self.scenario.flash.filter(|(from, long, _)| (*from..from + long).contains(&(t / 1_000.0)));
            t += arrivals.exponential(1_000.0 / (self.scenario.rate * crowd.map_or(1.0, |crowd| crowd.2)));
            if t >= end {
                break;
            }
            self.at(t, Event::Arrive);
        }
        for at in 0..self.world.machines.len() {
            let first = ANNOUNCE_MS * faults.unit() - ANNOUNCE_MS;
            self.at(first, Event::Announce { at });
        }
        if self.scenario.churn_per_hour > 0.0 {
            for at in 0..self.world.nodes {
                let mut t = faults.exponential(3_600_000.0 / self.scenario.churn_per_hour);
                while t < end {
                    let back = t + faults.exponential(60_000.0);
                    self.at(t, Event::Leave { at });
                    self.at(back.min(end), Event::Return { at });
                    t = back + faults.exponential(3_600_000.0 / self.scenario.churn_per_hour);
                }
            }
        }
        if self.scenario.gray > 0.0 {
            self.at(end * 0.5, Event::Gray { on: true });
            self.at(end * 0.75, Event::Gray { on: false });
            for machine in &mut self.world.machines[..self.world.nodes] {
                // Marked by a slowdown that is only applied when the time comes.
                machine.slow = if grays.happens(self.scenario.gray) { 1.0 + f64::EPSILON } else { 1.0 };
            }
        }
        self.at(end, Event::Heal);
    }

    fn go(&mut self) {
        let last = self.scenario.seconds * 1_000.0 + LIVENESS_MS;
        while let Some(Reverse((micros, _, slot))) = self.queue.pop() {
            self.now = micros as f64 / 1_000.0;
            let event = self.events[slot];
            self.free.push(slot);
            if self.now > last || (self.healed && self.live.iter().all(|live| live.over)) {
                return;
            }
            match event {
                Event::Arrive => self.arrive(),
                Event::Reach { request, attempt } => self.reach(request, attempt),
                Event::Served { at, boot, request, attempt } => self.served(at, boot, request, attempt),
                Event::Lost { request, attempt } => self.lost(request, attempt),
                Event::Announce { at } => self.announce(at),
                Event::Leave { at } => self.leave(at),
                Event::Return { at } => self.world.machines[at].up = true,
                Event::Gray { on } => {
                    let gray = self.world.machines.iter_mut().filter(|machine| machine.slow != 1.0);
                    gray.for_each(|machine| machine.slow = if on { 10.0 } else { 1.0 });
                }
                Event::Heal => self.heal(),
            }
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        for machine in &mut self.world.machines {
            (machine.up, machine.slow) = (true, 1.0);
        }
    }

    fn announce(&mut self, at: usize) {
        if self.world.machines[at].up
            && let Some(capability) = self.world.announce(at, self.now)
        {
            self.view.merge(capability, Millis(self.now as u64));
            self.outcome.announcements += 1;
        }
        self.at(self.now + ANNOUNCE_MS, Event::Announce { at });
    }

    fn leave(&mut self, at: usize) {
        self.world.machines[at].up = false;
        self.world.machines[at].load = 0;
        let server = &mut self.servers[at];
        server.boot += 1;
        let orphans: Vec<_> = server.serving.drain(..).chain(server.queue.drain(..)).collect();
        for (request, attempt) in orphans {
            self.at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt });
        }
    }

    fn arrive(&mut self) {
        let requester = self.world.nodes + self.chance.below(self.scenario.requesters as usize);
        self.outcome.requests.0 += 1;
        self.live.push(Live {
            requester,
            segments: Vec::new(),
            have: Vec::new(),
            covers: Vec::new(),
            stage: 0,
            known: self.scenario.tokens.0.max(1),
            attempt: 0,
            began: self.now,
            last: self.now,
            first: None,
            stall: 0.0,
            crashed: false,
            budget: Budget::default(),
            failed: Vec::new(),
            over: false,
            delay_ms: 0.0,
        });
        self.route_again(self.live.len() - 1);
    }

    fn ask(&self, request: usize) -> Request {
        let live = &self.live[request];
        let left = self.scenario.tokens.0 + self.scenario.tokens.1 - live.known;
        let shape = Shape {
            prompt_tokens: live.known,
            output_tokens: left.max(1),
            prefill_chunk: live.known,
            activation_bytes: 4_352,
        };
        let mut ask = Request::new(id(live.requester), shape);
        ask.seed = (request as u64) << 8 | u64::from(live.attempt);
        if self.scenario.boomerang && self.policy != Policy::Local {
            ask.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        }
        ask.policy.deny = live.failed.iter().copied().collect();
        if let Some(near_equal) = self.scenario.near_equal {
            ask.policy.near_equal = near_equal;
        }
        if let Some(leases) = self.leases.get(&live.requester) {
            leases.amend(Millis(self.now as u64), &mut ask, |node| self.announced(node));
        }
        ask
    }

    fn announced(&self, node: NodeId) -> u32 {
        announced(&self.view, node)
    }

    /// Asks the nodes of a pipeline for a lease; they answer with the sessions they have.
    fn lease(&mut self, request: usize, looks: u32, pipeline: &Pipeline) -> Verdict {
        let home = self.live[request].requester;
        let mut asked_ms = 0f64;
        let mut answers = Vec::new();
        for segment in pipeline.segments() {
            let at = index(segment.node);
            let machine = &self.world.machines[at];
            answers.push(Load { node: segment.node, sessions: machine.sessions, lanes: machine.knee() });
            asked_ms = asked_ms.max(2.0 * self.world.hop_ms(home, at));
        }
        self.live[request].delay_ms += asked_ms;
        let view = &self.view;
        let leases = self.leases.entry(home).or_default();
        leases.heard(Millis(self.now as u64), looks, &answers, |node| announced(view, node))
    }

    fn choose(&mut self, request: usize) -> Option<(Pipeline, Vec<Cover>)> {
        let requester = self.live[request].requester;
        let deny = self.live[request].failed.clone();
        match self.policy {
            Policy::Ours => {
                self.refresh(requester);
                let mut ask = self.ask(request);
                let mut found = self.look(requester, &ask)?;
                let mut looks = 0;
                while self.lease(request, looks, &found.pipeline) == Verdict::Again {
                    looks += 1;
                    ask = self.ask(request);
                    found = self.look(requester, &ask)?;
                }
                let snapshot = &self.snapshots.get(&self.shared(requester))?.1;
                let covers = if self.scenario.churn_per_hour > 0.0 {
                    standby::covers(snapshot, &ask, &found.pipeline)
                } else {
                    Vec::new()
                };
                Some((found.pipeline, covers))
            }
            Policy::Local => {
                let layers = scheduler::LayerRange::new(0, self.world.layers)?;
                let alone = vec![Segment { node: id(requester), layers }];
                let can = self.world.holds(requester, layers);
                Pipeline::new(alone, self.world.layers)
                    .ok()
                    .filter(|_| can)
                    .map(|pipeline| (pipeline, Vec::new()))
            }
            _ => {
                self.view.expire(Millis(self.now as u64));
                let up: Vec<bool> =
                    (0..self.world.machines.len()).map(|i| self.view.get(id(i)).is_some()).collect();
                let believed = Believed { world: &self.world, up: &up };
                let found = match self.policy {
                    Policy::Parallax => policy::round_robin(&self.fixed, &believed, &mut self.cursor),
                    Policy::Petals => policy::petals(&believed, requester, &deny),
                    _ => policy::random(&believed, &deny, &mut self.chance),
                };
                found.map(|pipeline| (pipeline, Vec::new()))
            }
        }
    }

    fn look(&mut self, requester: usize, ask: &Request) -> Option<route::Route> {
        let snapshot = &self.snapshots.get(&self.shared(requester))?.1;
        self.router.prepare(snapshot, ask).ok()?;
        self.router.route(snapshot, ask).ok()
    }

    /// Whose snapshot a requester routes on. In a large swarm all share one: only what they believe of themselves
    /// would differ.
    fn shared(&self, requester: usize) -> usize {
        if self.world.nodes > SHARE_FROM { self.world.nodes } else { requester }
    }

    fn refresh(&mut self, requester: usize) {
        let key = self.shared(requester);
        let lasts = if self.world.nodes > SHARE_FROM { ANNOUNCE_MS } else { SNAPSHOT_MS };
        let fresh = self.snapshots.get(&key).is_some_and(|(at, _)| self.now - at < lasts);
        if !fresh {
            self.view.expire(Millis(self.now as u64));
            if let Ok(snapshot) = self.view.snapshot(ModelId::default(), self.world.layers, id(key)) {
                self.snapshots.insert(key, (self.now, snapshot));
            }
        }
    }

    /// Finds a pipeline for the rest of a request, or gives it up.
    fn route_again(&mut self, request: usize) {
        self.release(request);
        let Some((pipeline, covers)) = self.choose(request) else { return self.end(request, false) };
        self.check_route(request, &pipeline);
        let live = &mut self.live[request];
        let kept = |segment: &Segment| {
            live.segments.iter().position(|old| old == segment).map_or(0, |at| live.have[at])
        };
        live.have = pipeline.segments().iter().map(kept).collect();
        live.segments = pipeline.segments().to_vec();
        live.covers = covers;
        self.occupy(request);
        self.restart(request);
    }

    fn occupy(&mut self, request: usize) {
        let live = &self.live[request];
        for segment in &live.segments {
            *self.running.entry((live.requester, segment.node)).or_insert(0) += 1;
            let machine = &mut self.world.machines[index(segment.node)];
            machine.count(self.now, true);
            if index(segment.node) < self.world.nodes {
                self.outcome.peak = self.outcome.peak.max(f64::from(machine.sessions) / machine.lanes as f64);
            }
        }
    }

    fn release(&mut self, request: usize) {
        let live = &self.live[request];
        for segment in &live.segments {
            match self.running.get_mut(&(live.requester, segment.node)) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    self.world.machines[index(segment.node)].count(self.now, false);
                }
                _ => self.outcome.violations.unbalanced += 1,
            }
        }
    }

    fn check_route(&mut self, request: usize, pipeline: &Pipeline) {
        let home = id(self.live[request].requester);
        let segments = pipeline.segments();
        for segment in segments {
            self.outcome.violations.not_held +=
                u64::from(!self.world.holds(index(segment.node), segment.layers));
        }
        let ends = [segments.first(), segments.last()];
        let abroad = ends.into_iter().flatten().any(|segment| segment.node != home);
        let bound = self.scenario.boomerang && self.policy == Policy::Ours;
        self.outcome.violations.ends_abroad += u64::from(bound && abroad);
        if request.is_multiple_of(REGRET_EVERY)
            && self.world.nodes <= 2_000
            && self.live[request].attempt == 0
        {
            self.note_regret(request, pipeline);
        }
    }

    /// Compares a choice with the best route over the true state.
    fn note_regret(&mut self, request: usize, pipeline: &Pipeline) {
        let requester = self.live[request].requester;
        let shown = (0..self.world.machines.len())
            .filter(|&i| i < self.world.nodes && self.world.machines[i].up || i == requester);
        let hosts = shown.map(|i| {
            let machine = &self.world.machines[i];
            let held = machine.held.iter().copied().collect();
            let decode_ms = machine.layer_ms * machine.slow;
            let mut host = Host::new(id(i), held, decode_ms);
            host.prefill_ms = decode_ms / crate::world::PREFILL_GAIN;
            host.visit_ms = crate::world::VISIT_MS;
            (host.region, host.access_ms) = (machine.region as u16, machine.access_ms);
            (host.active, host.batch_knee) = (machine.load as u32, machine.lanes as u32);
            host
        });
        let base_ms = REGIONS_MS.iter().flatten().copied().collect();
        let links = Links::Regions { base_ms, regions: REGIONS_MS.len(), measured: Vec::new() };
        let truth = Snapshot::new(ModelId::default(), self.world.layers, None, hosts.collect(), &links);
        let mut ask = self.ask(request);
        ask.policy.near_equal = 0.0;
        ask.in_flight.clear();
        ask.policy.boomerang = ask.policy.boomerang.filter(|_| self.policy == Policy::Ours);
        if let Ok(truth) = truth
            && let (Ok(best), Ok(chosen)) = (route::route(&truth, &ask), cost::price(&truth, &ask, pipeline))
        {
            self.outcome.regret.push(chosen.total_ms() / best.optimum_ms);
        }
    }

    /// Starts the current step from the first stage, under a new attempt.
    fn restart(&mut self, request: usize) {
        let live = &mut self.live[request];
        live.attempt += 1;
        live.stage = 0;
        let (from, attempt) = (live.requester, live.attempt);
        let to = index(live.segments[0].node);
        self.travel(from, to, request, attempt);
    }

    fn travel(&mut self, from: usize, to: usize, request: usize, attempt: u32) {
        let asked = std::mem::take(&mut self.live[request].delay_ms);
        let ms = asked + self.world.hop_ms(from, to) * (1.0 + self.scenario.jitter * self.chance.unit());
        self.at(self.now + ms, Event::Reach { request, attempt });
    }

    fn reach(&mut self, request: usize, attempt: u32) {
        let live = &self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        if live.stage == live.segments.len() {
            return self.token(request);
        }
        let at = index(live.segments[live.stage].node);
        if !self.world.machines[at].up {
            return self.at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt });
        }
        self.world.machines[at].load += 1;
        self.servers[at].queue.push_back((request, attempt));
        self.serve(at);
    }

    fn serve(&mut self, at: usize) {
        while self.servers[at].serving.len() < self.world.machines[at].lanes {
            let Some((request, attempt)) = self.servers[at].queue.pop_front() else { return };
            let live = &self.live[request];
            if live.attempt != attempt || live.over {
                self.world.machines[at].load -= 1;
                continue;
            }
            let tokens = live.known - live.have[live.stage].min(live.known - 1);
            let ms = self.world.visit_ms(at, live.segments[live.stage].layers.len(), tokens);
            self.servers[at].serving.push((request, attempt));
            self.world.machines[at].seen_ms.1 += ms;
            self.servers[at].visits += 1;
            let boot = self.servers[at].boot;
            if tokens == 1 && self.policy == Policy::Ours {
                let layers = f64::from(live.segments[live.stage].layers.len());
                let each = (ms - crate::world::VISIT_MS) / layers;
                self.view.observe_speed(id(at), Millis(self.now as u64), each);
            }
            self.at(self.now + ms, Event::Served { at, boot, request, attempt });
        }
    }

    fn served(&mut self, at: usize, boot: u64, request: usize, attempt: u32) {
        if self.servers[at].boot != boot {
            return;
        }
        self.servers[at].serving.retain(|visit| *visit != (request, attempt));
        self.world.machines[at].load -= 1;
        self.serve(at);
        let live = &mut self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        live.have[live.stage] = live.known;
        live.stage += 1;
        let to = live.segments.get(live.stage).map_or(live.requester, |segment| index(segment.node));
        self.travel(at, to, request, attempt);
    }

    fn token(&mut self, request: usize) {
        let (prompt, wanted) = (self.scenario.tokens.0.max(1), self.scenario.tokens.1);
        let now = self.now;
        let live = &mut self.live[request];
        let ordered = live.have.iter().all(|have| *have == live.known);
        self.outcome.violations.order += u64::from(!ordered);
        live.known += 1;
        live.budget.step_done();
        match live.first {
            None => live.first = Some(now - live.began),
            Some(_) => live.stall = live.stall.max(now - live.last),
        }
        live.last = now;
        if let Some(count) = self.outcome.tokens_by_second.get_mut((now / 1_000.0) as usize) {
            *count += 1;
            self.outcome.tokens += 1;
        }
        if live.known - prompt >= wanted {
            return self.end(request, true);
        }
        // The token goes straight into the next step: it is at the requester already.
        self.restart(request);
    }

    fn lost(&mut self, request: usize, attempt: u32) {
        let live = &mut self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        live.crashed = true;
        let stage = live.stage.min(live.segments.len() - 1);
        let node = live.segments[stage].node;
        live.failed.push(node);
        // Covers were chosen segment by segment; after a tiled one the indices have moved, so they are used once.
        let covers = std::mem::take(&mut live.covers);
        let cover = covers.into_iter().find(|cover| cover.index == stage).map(|cover| cover.segments);
        let options = Options { shadow: None, cover: cover.unwrap_or_default() };
        match live.budget.next(Failure::Closed, &options, true) {
            Recovery::Switch(segments) => {
                self.release(request);
                let live = &mut self.live[request];
                let fresh = vec![0; segments.len()];
                live.segments.splice(stage..=stage, segments);
                live.have.splice(stage..=stage, fresh);
                self.occupy(request);
                self.restart(request);
            }
            Recovery::GiveUp(_) => self.end(request, false),
            _ => self.route_again(request),
        }
    }

    fn end(&mut self, request: usize, whole: bool) {
        if !self.live[request].segments.is_empty() {
            self.release(request);
        }
        let prompt = self.scenario.tokens.0.max(1);
        let live = &mut self.live[request];
        live.segments.clear();
        live.over = true;
        if whole {
            self.outcome.requests.1 += 1;
            let further = f64::from(live.known - prompt - 1);
            let first = live.first.unwrap_or(0.0);
            if further > 0.0 {
                self.outcome.each_ms.push((live.last - live.began - first) / further);
            }
            self.outcome.first_ms.push(first);
            if live.crashed {
                self.outcome.stall_ms.push(live.stall);
            }
        } else {
            self.outcome.requests.2 += 1;
        }
    }

    fn finish(mut self) -> Outcome {
        self.outcome.violations.stuck += self.live.iter().filter(|live| !live.over).count() as u64;
        self.outcome.violations.unbalanced +=
            self.running.values().filter(|count| **count > 0).count() as u64;
        let busy: Vec<f64> = (0..self.world.nodes)
            .filter(|&i| !self.world.machines[i].held.is_empty())
            .map(|i| self.servers[i].visits as f64)
            .collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        self.outcome.skew = if mean > 0.0 { busy.iter().copied().fold(0.0, f64::max) / mean } else { 0.0 };
        let outcome = &mut self.outcome;
        for samples in
            [&mut outcome.first_ms, &mut outcome.each_ms, &mut outcome.stall_ms, &mut outcome.regret]
        {
            samples.sort_by(f64::total_cmp);
        }
        self.outcome
    }
}
