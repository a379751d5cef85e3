//! One policy through one scenario: a discrete-event loop over virtual time.
//!
//! The unit of work is a *visit*: one step of one request, or one chunk of its prompt, at one machine. Visits that wait share
//! a pass, which takes `alpha + beta x rows` a layer ([`crate::engine::Engine`]); chunks of a prompt follow each other through the
//! stages, over lines that carry one after the other. With `batching = false` each visit is a pass of its own, one after the
//! other, and a prompt is one visit. Routing, views, standbys and recovery budgets are the scheduler's own code. A crash loses what the machine
//! was doing; after the detection time the request recovers, and what the replacement lacks of the keys and values
//! is computed again as one prefill.
//!
//! Safety is checked as it happens ([`Violations`]); when the scenario is over all faults heal, and every request that
//! is still alive must end within ten minutes, or at least have gone on in the last five of them.
//!
//! Limits: all requesters share one view, refreshed once a second and not cut by a partition (who does not answer across one
//! is noted pair by pair), but each measured distances of its own ([`crate::near`]); frames are not lost singly and doors are open ([`crate::storm`]
//! does both); memory for keys and values is not a constraint here.

mod choose;
mod hold;
mod visit;

use std::collections::{BTreeMap, VecDeque};

use scheduler::recover::{Budget, SILENCE_MS};
use scheduler::rng::Rng;
use scheduler::standby::Cover;
use scheduler::view::{Geography, SwarmView};
use scheduler::{Millis, NodeId, Segment};

use self::choose::Chooser;
use self::hold::Placed;
use crate::near::{Near, SETTLED};
use crate::policy::{self, Policy};
use crate::scale::REGIONS_MS;
use crate::scenario::Scenario;
use crate::timeline::Timeline;
use crate::world::{World, id, index};

/// A machine speaks this often, ms.
const ANNOUNCE_MS: f64 = 5_000.0;
/// A snapshot serves this long, ms.
const SNAPSHOT_MS: f64 = 1_000.0;
/// Above this many nodes requesters share a snapshot, taken once per round of announcements.
const SHARE_FROM: usize = 1_024;
/// Other machines that an announcement says how far they are.
const LINKS: usize = 4;
/// One way to a machine of which nothing is known, ms: as the daemon takes it.
const UNMEASURED_MS: f64 = 50.0;
/// Strangers are looked up this often, ms.
const INTRODUCE_MS: f64 = 1_000.0;
/// Machines consider moving this often, ms.
const CONSIDER_MS: f64 = 60_000.0;
/// After healing, everything must end within this, or have given a token in its second half, ms.
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
    /// Moves that left a layer without a holder.
    pub bared: u64,
    /// Requests that neither ended nor went on.
    pub stuck: u64,
}

impl Violations {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.not_held + self.ends_abroad + self.order + self.unbalanced + self.bared + self.stuck
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
    /// Tokens of requests whose first and further tokens came within [`crate::scenario::Demand::target`].
    pub good_tokens: u64,
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
    /// Busiest over mean sessions, by machines that hold layers, whenever a request began and the mean was above one
    /// session per lane and the crowd had not gone; sorted.
    pub spread: Vec<f64>,
    /// Announcements made; every machine hears every one.
    pub announcements: u64,
    /// Machines that left layers for others.
    pub moves: u64,
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
    Arrive {
        tokens: (u32, u32),
    },
    Reach {
        visit: Visit,
    },
    Served {
        at: usize,
        boot: u64,
        pass: u64,
    },
    /// Nothing came of a stage, because two machines are apart or because it crashed or left its layers.
    Lost {
        request: usize,
        attempt: u32,
        stage: usize,
        cut: bool,
    },
    Announce {
        at: usize,
    },
    Leave {
        at: usize,
    },
    Return {
        at: usize,
    },
    Join {
        at: usize,
    },
    Consider,
    Loaded {
        at: usize,
    },
    Gray {
        on: bool,
    },
    Introduce,
    Heal,
}

/// A request under way.
struct Live {
    requester: usize,
    segments: Vec<Segment>,
    /// Positions each stage has computed.
    have: Vec<u32>,
    covers: Vec<Cover>,
    /// By stage, and behind the last one for the way back.
    lines: Vec<Line>,
    known: u32,
    /// Of the prompt and of the answer.
    tokens: (u32, u32),
    attempt: u32,
    times: Times,
    crashed: bool,
    budget: Budget,
    failed: Vec<NodeId>,
    over: bool,
    /// Round trips of lease requests, spent before the next step starts, ms.
    delay_ms: f64,
}

/// When the tokens of a request came, ms.
struct Times {
    began: f64,
    last: f64,
    /// From the beginning to the first token.
    first: Option<f64>,
    /// The longest gap between two tokens.
    stall: f64,
}

impl Live {
    /// Positions that a stage need not compute again: all but the newest at most.
    fn has(&self, stage: usize) -> u32 {
        self.have[stage].min(self.known - 1)
    }
}

/// Asks a stage of a request to compute the positions up to `to`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Visit {
    request: usize,
    attempt: u32,
    /// The requester, where it is one behind the last stage.
    stage: usize,
    to: u32,
    /// When it came, ms.
    since: f64,
}

/// The way into a stage of a request.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// When it is free, ms.
    free: f64,
    /// When what came last arrived, ms.
    last: f64,
    /// Positions whose activations were sent.
    sent: u32,
}

struct Server {
    boot: u64,
    /// By number: visits that are computed together, and how many rows of each.
    passes: BTreeMap<u64, Vec<(Visit, u32)>>,
    queue: VecDeque<Visit>,
    visits: u64,
    begun: u64,
}

struct Run<'a> {
    scenario: &'a Scenario,
    policy: Policy,
    world: World,
    now: f64,
    /// In microseconds.
    timeline: Timeline<Event>,
    chance: Rng,
    servers: Vec<Server>,
    live: Vec<Live>,
    chooser: Chooser,
    placed: Placed,
    running: BTreeMap<(usize, NodeId), u32>,
    healed: bool,
    /// The most sessions per lane of all machines together.
    fullest: f64,
    outcome: Outcome,
}

/// Runs `policy` through `scenario`; the same seed draws the same machines, arrivals and faults for every policy.
pub fn run(scenario: &Scenario, policy: Policy, seed: u64) -> Outcome {
    let mut draw = Rng::new(seed);
    let mut world = World::draw(scenario, &mut draw.fork());
    let knows = policy != Policy::Ours || scenario.oracle;
    world.near = (!knows).then(|| Near::settle(scenario, &world, seed));
    let pipelines = policy::hold(policy, scenario, &mut world);
    let base: Vec<f64> = REGIONS_MS.iter().flatten().copied().collect();
    let regions = knows.then(|| Geography::new(REGIONS_MS.len(), base)).flatten();
    let geography = regions.unwrap_or_else(|| Geography::around(UNMEASURED_MS));
    let servers = world.machines.iter().map(|_| Server {
        boot: 0,
        passes: BTreeMap::new(),
        queue: VecDeque::new(),
        visits: 0,
        begun: 0,
    });
    let mut run = Run {
        scenario,
        policy,
        servers: servers.collect(),
        world,
        now: 0.0,
        timeline: Timeline::default(),
        chance: draw.fork(),
        live: Vec::new(),
        chooser: Chooser::new(SwarmView::new(geography)),
        placed: Placed::new(pipelines, scenario.nodes as usize),
        running: BTreeMap::new(),
        healed: false,
        fullest: 0.0,
        outcome: Outcome {
            tokens_by_second: vec![0; scenario.demand.seconds as usize + 1],
            ..Outcome::default()
        },
    };
    run.schedule_faults(&mut draw);
    run.go();
    run.finish()
}

/// Lengths of prompts and answers, at most.
const LONGEST: f64 = 8_192.0;

/// One standard deviation from zero, on average.
fn normal(rng: &mut Rng) -> f64 {
    let (radius, angle) = ((-2.0 * (1.0 - rng.unit()).ln()).sqrt(), std::f64::consts::TAU * rng.unit());
    radius * angle.cos()
}

/// A number of tokens around its median, as lengths of prompts and answers spread (lognormal).
fn spread(median: u32, deviation: f64, rng: &mut Rng) -> u32 {
    if deviation == 0.0 {
        return median.max(1);
    }
    (f64::from(median) * (deviation * normal(rng)).exp()).clamp(1.0, LONGEST) as u32
}

/// A time between arrivals whose deviation is so many times its mean (lognormal).
fn bursting(mean: f64, times: f64, rng: &mut Rng) -> f64 {
    let variance = (1.0 + times * times).ln();
    mean * (variance.sqrt() * normal(rng) - variance / 2.0).exp()
}

/// Whether the first region and the others hear nothing of each other at `now` (ms).
fn is_cut(scenario: &Scenario, now: f64) -> bool {
    let ends = |(from, long): (f64, f64)| (from, (from + long).min(scenario.demand.seconds));
    scenario.faults.partition.map(ends).is_some_and(|(from, end)| (from..end).contains(&(now / 1_000.0)))
}

impl Run<'_> {
    fn at(&mut self, ms: f64, event: Event) {
        self.timeline.add((ms.max(self.now) * 1_000.0) as u64, event);
    }

    /// Draws arrivals and faults ahead, so that they do not depend on what the policy does.
    fn schedule_faults(&mut self, draw: &mut Rng) {
        let end = self.scenario.demand.seconds * 1_000.0;
        let (mut arrivals, mut faults, mut grays) = (draw.fork(), draw.fork(), draw.fork());
        let mut t = 0.0;
        loop {
            let crowd = self
                .scenario
                .demand
                .flash
                .filter(|(from, long, _)| (*from..from + long).contains(&(t / 1_000.0)));
            let mean_ms = 1_000.0 / (self.scenario.demand.rate * crowd.map_or(1.0, |crowd| crowd.2));
            t += match self.scenario.demand.burst == 1.0 {
                true => arrivals.exponential(mean_ms),
                false => bursting(mean_ms, self.scenario.demand.burst, &mut arrivals),
            };
            if t >= end {
                break;
            }
            let (prompt, answer) = self.scenario.demand.tokens;
            let (of_prompt, of_answer) = self.scenario.demand.tokens_spread;
            let tokens = (spread(prompt, of_prompt, &mut arrivals), spread(answer, of_answer, &mut arrivals));
            self.at(t, Event::Arrive { tokens });
        }
        for at in 0..self.world.machines.len() {
            let first = ANNOUNCE_MS * faults.unit() - ANNOUNCE_MS;
            self.at(first, Event::Announce { at });
        }
        if self.scenario.faults.churn_per_hour > 0.0 {
            for at in 0..self.world.nodes {
                let mut t = faults.exponential(3_600_000.0 / self.scenario.faults.churn_per_hour);
                while t < end {
                    let back = t + faults.exponential(60_000.0);
                    self.at(t, Event::Leave { at });
                    self.at(back.min(end), Event::Return { at });
                    t = back + faults.exponential(3_600_000.0 / self.scenario.faults.churn_per_hour);
                }
            }
        }
        if self.scenario.faults.gray > 0.0 {
            self.at(end * 0.5, Event::Gray { on: true });
            self.at(end * 0.75, Event::Gray { on: false });
            for machine in &mut self.world.machines[..self.world.nodes] {
                // Marked by a slowdown that is only applied when the time comes.
                machine.slow =
                    if grays.happens(self.scenario.faults.gray) { 1.0 + f64::EPSILON } else { 1.0 };
            }
        }
        for at in 0..self.world.nodes {
            if let Some(when) = self.world.machines[at].joins {
                self.at(when, Event::Join { at });
            }
        }
        if self.policy == Policy::Ours && self.world.nodes <= policy::PLACE_UP_TO {
            self.at(CONSIDER_MS, Event::Consider);
        }
        if self.scenario.met < 1.0 || self.world.near.is_some() {
            self.at(0.0, Event::Introduce);
        }
        self.at(end, Event::Heal);
    }

    fn go(&mut self) {
        let last = self.scenario.demand.seconds * 1_000.0 + LIVENESS_MS;
        while let Some((micros, event)) = self.timeline.next() {
            self.now = micros as f64 / 1_000.0;
            if self.now > last || (self.healed && self.live.iter().all(|live| live.over)) {
                return;
            }
            match event {
                Event::Arrive { tokens } => self.arrive(tokens),
                Event::Reach { visit } => self.reach(visit),
                Event::Served { at, boot, pass } => self.served(at, boot, pass),
                Event::Lost { request, attempt, stage, cut } => self.lost((request, attempt, stage), cut),
                Event::Announce { at } => self.announce(at),
                Event::Leave { at } => self.leave(at),
                Event::Return { at } => self.world.machines[at].up = true,
                Event::Join { at } => self.join(at),
                Event::Consider => self.consider(),
                Event::Loaded { at } => self.loaded(at),
                Event::Gray { on } => {
                    let gray = self.world.machines.iter_mut().filter(|machine| machine.slow != 1.0);
                    gray.for_each(|machine| machine.slow = if on { 10.0 } else { 1.0 });
                }
                Event::Introduce => self.introduce(),
                Event::Heal => self.heal(),
            }
        }
    }

    /// Whether nothing gets from one machine to another at this moment.
    fn is_cut(&self, from: usize, to: usize) -> bool {
        is_cut(self.scenario, self.now) && self.world.are_apart(from, to)
    }

    fn heal(&mut self) {
        self.healed = true;
        for machine in &mut self.world.machines[..self.world.sybils_from] {
            (machine.up, machine.slow) = (true, 1.0);
        }
    }

    /// What an announcement says of others, and whether its node is connected from the start.
    fn acquaint(&mut self, at: usize) {
        if self.world.near.is_some() {
            self.say_where(at);
        }
        if self.scenario.met >= 1.0 {
            return self.chooser.view.meet(id(at));
        }
        if self.world.is_sybil(at) {
            // They vouch for each other.
            let other =
                self.world.sybils_from + (at + 1) % (self.world.machines.len() - self.world.sybils_from);
            return self.chooser.view.observe_link(id(at), id(other), 1.0);
        }
        let neighbor = Rng::new(at as u64).happens(self.scenario.met) || at >= self.world.nodes;
        if neighbor {
            self.chooser.view.meet(id(at));
        }
        for _ in 0..if self.world.near.is_some() { 0 } else { LINKS } {
            let other = self.chance.below(self.world.nodes);
            let round_trip_ms = 2.0 * self.world.hop_ms(at, other);
            self.chooser.view.observe_link(id(at), id(other), round_trip_ms);
        }
    }

    /// Where a machine says that it is and how far its peers are; one that asks measured these itself.
    fn say_where(&mut self, at: usize) {
        let Some(mut near) = self.world.near.take() else { return };
        let (coordinate, seen) = near.announce(&self.world, at);
        self.world.near = Some(near);
        self.chooser.view.place(id(at), coordinate);
        let asks = self.asking().contains(&at);
        for (peer, ms) in seen {
            match asks {
                true => self.chooser.view.measure(id(at), id(peer), ms),
                false => self.chooser.view.set_link(id(at), id(peer), ms),
            }
        }
    }

    /// Machines that ask look nodes up, as the daemon does; those that know each other from the start have done so before.
    fn introduce(&mut self) {
        let know = self.scenario.met >= 1.0;
        let rounds = if know && self.now == 0.0 { SETTLED } else { 1 };
        for round in 1..=rounds {
            // They share what they know of strangers: one of them looks for all.
            for at in self.asking().take(if know { usize::MAX } else { 1 }) {
                self.dial(at);
            }
            if round < rounds {
                self.asking().for_each(|at| self.say_where(at));
            }
        }
        self.at(self.now + INTRODUCE_MS, Event::Introduce);
    }

    /// The machines that ask.
    fn asking(&self) -> std::ops::Range<usize> {
        self.world.nodes..self.world.sybils_from
    }

    fn dial(&mut self, at: usize) {
        let Some(node) = self.chooser.view.introduce(id(at), self.chance.next_u64()) else { return };
        let other = index(node);
        if !self.world.machines[other].up {
            return self.chooser.view.snub(Millis(self.now as u64), node);
        }
        self.chooser.view.meet(node);
        if let Some(mut near) = self.world.near.take() {
            near.meet(&self.world, at, other);
            self.world.near = Some(near);
            self.chooser.view.measure(id(at), node, 2.0 * self.world.hop_ms(at, other));
        }
    }

    fn announce(&mut self, at: usize) {
        if (self.world.machines[at].up || self.world.is_sybil(at))
            && let Some(capability) =
                self.world.announce(at, self.now / 1_000.0 / self.scenario.demand.seconds)
        {
            self.chooser.view.merge(capability, Millis(self.now as u64));
            self.outcome.announcements += 1;
            self.acquaint(at);
        }
        self.at(self.now + ANNOUNCE_MS, Event::Announce { at });
    }

    fn leave(&mut self, at: usize) {
        self.world.machines[at].up = false;
        // Keys and values are gone with it.
        for live in &mut self.live {
            let gone = |(segment, have): (&Segment, &mut u32)| {
                if segment.node == id(at) {
                    *have = 0;
                }
            };
            live.segments.iter().zip(&mut live.have).for_each(gone);
        }
        let server = &mut self.servers[at];
        server.boot += 1;
        let served = std::mem::take(&mut server.passes).into_values().flatten().map(|part| part.0);
        let orphans: Vec<Visit> = served.chain(server.queue.drain(..)).collect();
        for Visit { request, attempt, stage, .. } in orphans {
            self.at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt, stage, cut: false });
        }
    }

    fn arrive(&mut self, tokens: (u32, u32)) {
        let requester = self.world.nodes + self.chance.below(self.scenario.requesters as usize);
        self.outcome.requests.0 += 1;
        self.live.push(Live {
            requester,
            segments: Vec::new(),
            have: Vec::new(),
            covers: Vec::new(),
            lines: Vec::new(),
            known: tokens.0,
            tokens,
            attempt: 0,
            times: Times { began: self.now, last: self.now, first: None, stall: 0.0 },
            crashed: false,
            budget: Budget::default(),
            failed: Vec::new(),
            over: false,
            delay_ms: 0.0,
        });
        self.route_again(self.live.len() - 1);
    }

    fn finish(mut self) -> Outcome {
        let lately_ms = self.now - LIVENESS_MS / 2.0;
        for request in 0..self.live.len() {
            if !self.live[request].over {
                self.outcome.violations.stuck += u64::from(self.live[request].times.last < lately_ms);
                self.release(request);
            }
        }
        self.outcome.violations.unbalanced +=
            self.running.values().filter(|count| **count > 0).count() as u64;
        let busy: Vec<f64> = (0..self.world.nodes)
            .filter(|&i| !self.world.machines[i].held.is_empty())
            .map(|i| self.servers[i].visits as f64)
            .collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        self.outcome.skew = if mean > 0.0 { busy.iter().copied().fold(0.0, f64::max) / mean } else { 0.0 };
        let outcome = &mut self.outcome;
        for samples in [
            &mut outcome.first_ms,
            &mut outcome.each_ms,
            &mut outcome.stall_ms,
            &mut outcome.regret,
            &mut outcome.spread,
        ] {
            samples.sort_by(f64::total_cmp);
        }
        self.outcome
    }
}
