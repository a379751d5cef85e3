//! The event loop of a storm: machines, clocks, announcements, faults, healing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use scheduler::capability::{Claim, Holding};
use scheduler::chance::Chance;
use scheduler::lease::Load;
use scheduler::place::{Advice, Keeper, Move};
use scheduler::recover::{BEACON_MS, Failure};
use scheduler::session::{Event, Standbys};
use scheduler::view::{Geography, Merged, SwarmView};
use scheduler::{Capability, LayerRange, LayerSet, Millis, ModelId, NodeId, OperatorId, Pipeline, SessionId};

use super::Report;
use super::asker::{Asker, Turn};
use super::checks::Checks;
use super::net::Net;
use super::options::Options;
use super::stage::{Framed, KEEP_MS, Lease, Stage, token_of};
use crate::scale::REGIONS_MS;
pub(super) use crate::world::{id, index};

/// A machine speaks this often, ms.
const ANNOUNCE_MS: u64 = 5_000;
/// A machine looks at its leases this often, ms.
const SWEEP_MS: u64 = 1_000;
/// A machine considers moving this often, ms.
const TICK_MS: u64 = 3_000;
/// After healing, announcements have this long before everybody must be served, ms.
const SETTLE_MS: u64 = 20_000;
/// After healing, everything must have ended within this, ms.
pub const BOUND_MS: u64 = 120_000;
/// Times a user asks after healing before it counts as not served: what one request learns of wrong announcements and
/// pairs that cannot talk, the next one knows.
const ASKS: u32 = 3;
/// Events of one storm; beyond, something sends for ever.
const MOST_EVENTS: u64 = 50_000_000;

/// What machines tell each other.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Open(Lease),
    /// Under the epoch in which the session was at that time.
    Close {
        session: SessionId,
        epoch: u32,
    },
    Frame {
        session: SessionId,
        epoch: u32,
        layer: u32,
        from: u32,
        inputs: Vec<u64>,
        home: usize,
    },
    Feed {
        session: SessionId,
        layer: u32,
        from: u32,
        inputs: Vec<u64>,
        home: usize,
    },
    Gossip(Box<Capability>),
    Opened {
        session: SessionId,
        stage: usize,
        epoch: u32,
        have: u32,
        load: Load,
    },
    /// `node` will not serve the session; if that is because it does not hold the layers, this is what it holds.
    Failed {
        session: SessionId,
        epoch: u32,
        node: NodeId,
        failure: Failure,
        held: Option<LayerSet>,
    },
    /// Two nodes cannot reach each other.
    NoWay {
        session: SessionId,
        epoch: u32,
        from: NodeId,
        to: NodeId,
    },
    Short {
        session: SessionId,
        stage: usize,
        epoch: u32,
        have: u32,
    },
    Logged {
        session: SessionId,
        stage: usize,
        node: NodeId,
        epoch: u32,
        layer: u32,
        from: u32,
        outputs: Vec<u64>,
    },
    Token {
        session: SessionId,
        epoch: u32,
        position: u32,
        token: u32,
    },
    Beacon {
        session: SessionId,
        stage: usize,
        node: NodeId,
        epoch: u32,
    },
    Ping {
        session: SessionId,
        home: usize,
    },
    Pong {
        session: SessionId,
        node: NodeId,
    },
    Fed {
        session: SessionId,
        node: NodeId,
        have: u32,
    },
    Lost {
        node: NodeId,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Crash { at: usize, silent: bool },
    Restart { at: usize },
    Freeze { at: usize, ms: u64 },
    Slow { at: usize, times: u64 },
    Cut { inside: u64, outward: bool, inward: bool },
}

pub(super) enum Happening {
    Deliver { to: usize, body: Box<Body> },
    Computed { at: usize, boot: u64, lease: Box<Lease>, from: u32, outputs: Vec<u64> },
    Beacon { at: usize, boot: u64, until: u64, lease: Box<Lease> },
    Wake { at: usize, session: SessionId },
    Cancel { at: usize, session: SessionId },
    Route { at: usize, session: SessionId, found: Box<Option<(Pipeline, Standbys)>> },
    Ask { at: usize, turn: Box<Turn> },
    AskAgain { at: usize },
    Announce { at: usize },
    Sweep { at: usize },
    Tick { at: usize },
    Fault(Fault),
    Heal,
    Must,
    Settled,
    Final,
}

/// A clock of its own: it starts anywhere, runs off, and may leap ahead once.
#[derive(Clone, Copy, Debug)]
struct Clock {
    start: u64,
    rate: f64,
    leap: Option<(u64, u64)>,
}

pub(super) struct Machine {
    up: bool,
    boot: u64,
    frozen_until: u64,
    slow: u64,
    busy_until: u64,
    layer_ms: f64,
    claims: f64,
    pretends: Option<LayerRange>,
    clock: Clock,
    sequence: u64,
    keeper: Keeper,
    wanted: Option<LayerRange>,
    withdrawn: Option<LayerRange>,
    ticks: u64,
    pub stage: Stage,
    pub view: SwarmView,
    pub asker: Asker,
}

/// A storm under way.
pub(super) struct Swarm {
    pub options: Options,
    pub now: u64,
    pub net: Net,
    pub chance: Chance,
    pub machines: Vec<Machine>,
    pub checks: Checks,
    pub report: Report,
    pub sessions: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Happening>>,
    free: Vec<usize>,
    healed: bool,
    /// Asks scheduled and not begun.
    due: usize,
    /// Nobody asks any more: only leases run out.
    closing: bool,
    over: bool,
}

/// Tells one storm from beginning to end.
pub fn run(options: &Options) -> Report {
    let mut swarm = Swarm::new(options);
    swarm.schedule();
    while let Some(Reverse(key)) = swarm.queue.pop() {
        let Some(happening) = swarm.events[key.2].take() else { continue };
        swarm.free.push(key.2);
        swarm.now = key.0;
        swarm.report.events += 1;
        swarm.happen(happening);
        if swarm.over {
            break;
        }
        if swarm.report.events > MOST_EVENTS {
            swarm.checks.that(false, || "messages without end".into());
            break;
        }
    }
    swarm.report.ms = swarm.now;
    swarm.report.stalls_ms.sort_unstable();
    Report { violations: swarm.checks.violations, ..swarm.report }
}

impl Swarm {
    fn new(options: &Options) -> Self {
        let mut chance = Chance::new(options.seed);
        let net = Net::draw(options, &mut chance.fork());
        let mut draw = chance.fork();
        let base: Vec<f64> = REGIONS_MS.iter().flatten().map(|ms| ms / 2.0).collect();
        let held = windows(options, &mut draw);
        let machines = (0..options.nodes + options.requesters).map(|at| {
            let serves = at < options.nodes;
            let geography = Geography::new(REGIONS_MS.len(), base.clone());
            let (slots, kv) = if serves { (options.slots, options.kv) } else { (64, 1 << 20) };
            let pretends = draw.happens(options.pretenders) && serves;
            let start = draw.below(options.layers as usize) as u32;
            let leap = options
                .jumps
                .then(|| (draw.below(options.heal_ms as usize) as u64, 1_000 + draw.below(3_600_000) as u64));
            Machine {
                up: true,
                boot: 0,
                frozen_until: 0,
                slow: 1,
                busy_until: 0,
                layer_ms: if serves { 0.5 + 3.0 * draw.unit() } else { 1.0 },
                claims: if serves && draw.happens(options.boasters) { 0.2 } else { 1.0 },
                pretends: LayerRange::new(start, options.layers).filter(|_| pretends),
                clock: Clock {
                    start: draw.below(1 << 40) as u64,
                    rate: 1.0 + options.drift * draw.between(-1.0, 1.0),
                    leap: leap.filter(|_| draw.happens(0.4)),
                },
                sequence: 0,
                keeper: Keeper::default(),
                wanted: None,
                withdrawn: None,
                ticks: 0,
                stage: Stage::new(held[at].clone(), slots, kv),
                view: SwarmView::new(geography.unwrap_or_else(|| Geography::flat(50.0))),
                asker: Asker::default(),
            }
        });
        Self {
            machines: machines.collect(),
            now: 0,
            net,
            chance,
            checks: Checks::default(),
            report: Report::default(),
            sessions: 0,
            order: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            closing: false,
            healed: false,
            due: 0,
            over: false,
            options: options.clone(),
        }
    }

    pub fn at(&mut self, ms: u64, happening: Happening) {
        self.due += usize::from(matches!(happening, Happening::Ask { .. } | Happening::AskAgain { .. }));
        self.order += 1;
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(happening),
            None => self.events.push(Some(happening)),
        }
        self.queue.push(Reverse((ms.max(self.now), self.order, slot)));
    }

    /// What a machine's own clock says.
    pub fn local(&self, at: usize) -> Millis {
        let clock = &self.machines[at].clock;
        let leapt = clock.leap.filter(|leap| leap.0 <= self.now).map_or(0, |leap| leap.1);
        Millis(clock.start + (self.now as f64 * clock.rate) as u64 + leapt)
    }

    /// Draws all that goes wrong and all that is asked.
    fn schedule(&mut self) {
        let o = self.options.clone();
        let mut draw = self.chance.fork();
        let before = |draw: &mut Chance| draw.below(o.heal_ms as usize) as u64;
        for at in 0..self.machines.len() {
            self.at(draw.below(200) as u64, Happening::Announce { at });
            self.at(draw.below(SWEEP_MS as usize) as u64, Happening::Sweep { at });
            if o.moves && at < o.nodes {
                self.at(draw.below(TICK_MS as usize) as u64, Happening::Tick { at });
            }
        }
        for _ in 0..o.crashes {
            let (at, when) = (draw.below(o.nodes), before(&mut draw));
            self.at(when, Happening::Fault(Fault::Crash { at, silent: draw.happens(0.5) }));
            let back = when + 500 + draw.below(8_000) as u64;
            self.at(back, Happening::Fault(Fault::Restart { at }));
        }
        for _ in 0..o.freezes {
            let at = draw.below(self.machines.len());
            let ms = 200 + draw.below(6_000) as u64;
            self.at(before(&mut draw), Happening::Fault(Fault::Freeze { at, ms }));
        }
        for _ in 0..o.grays {
            let at = draw.below(o.nodes);
            self.at(before(&mut draw), Happening::Fault(Fault::Slow { at, times: 20 }));
        }
        for _ in 0..o.partitions {
            let inside = draw.next_u64();
            let one_way = draw.happens(o.one_way);
            let outward = draw.happens(0.5);
            let cut = Fault::Cut { inside, outward: outward || !one_way, inward: !outward || !one_way };
            self.at(before(&mut draw), Happening::Fault(cut));
        }
        for at in o.nodes..self.machines.len() {
            for _ in 0..o.conversations {
                let history = (0..o.tokens.0).map(|_| draw.below(50_000) as u32).collect();
                let turn = Turn { history, left: o.turns - 1, must: 0 };
                let when = 3_000 + draw.below(o.heal_ms as usize) as u64;
                self.at(when, Happening::Ask { at, turn: Box::new(turn) });
            }
        }
        self.at(o.heal_ms, Happening::Heal);
        self.at(o.heal_ms + SETTLE_MS, Happening::Must);
    }

    /// Sends a message, or lets the sender know that it cannot be sent.
    pub fn send(&mut self, from: usize, to: usize, body: Body) {
        if !self.machines[from].up {
            return;
        }
        let machines = &self.machines;
        match self.net.way_ms(from, to, |at| machines[at].up) {
            Some(way) => {
                for when in self.net.send(self.now, from, to, way, &mut self.chance) {
                    self.at(when, Happening::Deliver { to, body: Box::new(body.clone()) });
                }
            }
            // A dial that fails is known at once; a stage that cannot reach the next one tells the requester.
            None => {
                let (session, epoch, home) = match &body {
                    Body::Open(lease) => (lease.session, lease.epoch, lease.requester),
                    Body::Frame { session, epoch, home, .. } => (*session, *epoch, *home),
                    _ => return,
                };
                let told = Body::NoWay { session, epoch, from: id(from), to: id(to) };
                if from == home {
                    self.at(self.now + 1, Happening::Deliver { to: home, body: Box::new(told) });
                } else {
                    self.send(from, home, told);
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { to, body } => match self.awake(to) {
                Ok(true) => self.deliver(to, *body),
                Ok(false) => {}
                Err(thaw) => self.at(thaw, Happening::Deliver { to, body }),
            },
            Happening::Computed { at, boot, lease, from, outputs } => match self.awake(at) {
                Ok(true) if self.machines[at].boot == boot => self.computed(at, &lease, from, outputs),
                Ok(_) => {}
                Err(thaw) => self.at(thaw, Happening::Computed { at, boot, lease, from, outputs }),
            },
            Happening::Beacon { at, boot, until, lease } => {
                if self.awake(at) == Ok(true) && self.machines[at].boot == boot && self.now <= until {
                    let Lease { session, stage, epoch, requester, .. } = *lease;
                    self.send(at, requester, Body::Beacon { session, stage, node: id(at), epoch });
                    self.at(self.now + BEACON_MS, Happening::Beacon { at, boot, until, lease });
                }
            }
            Happening::Wake { at, session } => match self.awake(at) {
                Err(thaw) => self.at(thaw, Happening::Wake { at, session }),
                Ok(_) => self.tell_session(at, session, Event::Tick),
            },
            Happening::Cancel { at, session } => self.tell_session(at, session, Event::Cancel),
            Happening::Route { at, session, found } => {
                self.tell_session(at, session, Event::Rerouted(*found))
            }
            Happening::Ask { at, turn } => {
                self.due -= 1;
                self.ask(at, *turn, 0);
            }
            Happening::AskAgain { at } => {
                self.due -= 1;
                if let Some((turn, tries)) = self.machines[at].asker.waiting.pop_front() {
                    self.ask(at, turn, tries);
                }
            }
            Happening::Announce { at } => {
                self.announce(at);
                self.at(self.now + ANNOUNCE_MS, Happening::Announce { at });
            }
            Happening::Sweep { at } => {
                let now = self.local(at);
                if self.awake(at) == Ok(true) {
                    self.machines[at].stage.expire(now);
                    self.admit(at);
                }
                self.at(self.now + SWEEP_MS, Happening::Sweep { at });
            }
            Happening::Tick { at } => {
                if self.awake(at) == Ok(true) && self.options.moves {
                    self.consider_moving(at);
                }
                self.at(self.now + TICK_MS, Happening::Tick { at });
            }
            Happening::Fault(fault) => self.fault(fault),
            Happening::Heal => self.heal(),
            Happening::Must => self.must(),
            Happening::Settled => self.settled(),
            Happening::Final => {
                for at in 0..self.machines.len() {
                    self.admit(at);
                    self.checks.balanced(self.now, at, &mut self.machines[at].stage);
                }
                self.over = true;
            }
        }
    }

    /// Whether a machine can act now; if it is stopped, when it goes on.
    fn awake(&self, at: usize) -> Result<bool, u64> {
        let machine = &self.machines[at];
        if machine.up && self.now < machine.frozen_until { Err(machine.frozen_until) } else { Ok(machine.up) }
    }

    fn deliver(&mut self, to: usize, body: Body) {
        let now = self.local(to);
        match body {
            Body::Open(lease) => self.open(to, lease),
            Body::Close { session, epoch } => {
                self.machines[to].stage.close(now, session, epoch);
                self.admit(to);
            }
            Body::Frame { session, epoch, layer, from, inputs, home } => {
                self.frame(to, (session, layer), epoch, from, &inputs, home);
            }
            Body::Feed { session, layer, from, inputs, home } => {
                if let Some(have) = self.machines[to].stage.feed(now, (session, layer), from, &inputs) {
                    self.send(to, home, Body::Fed { session, node: id(to), have });
                }
                self.checks.memory(self.now, to, &mut self.machines[to].stage);
            }
            Body::Gossip(capability) => self.hear(to, *capability),
            Body::Opened { session, stage, epoch, have, load } => {
                self.opened(to, session, stage, epoch, have, load);
            }
            Body::Failed { session, epoch, node, failure, held } => {
                let corrected = held
                    .is_some_and(|held| self.machines[to].view.correct(node, ModelId::default(), held, now));
                let failure = if corrected { Failure::Misrouted } else { failure };
                self.failed_in(to, session, epoch, node, failure);
            }
            Body::NoWay { session, epoch, from, to: other } => {
                self.machines[to].view.unreachable(from, other, now);
                self.failed_in(to, session, epoch, other, Failure::Misrouted);
            }
            Body::Short { session, stage, epoch, have } => {
                self.tell_session(to, session, Event::NeedReplay { stage, epoch, have });
            }
            Body::Logged { session, stage, node, epoch, layer, from, outputs } => {
                self.logged(to, session, epoch, (stage, node), (layer, from, outputs));
            }
            Body::Token { session, epoch, position, token } => {
                self.tell_session(to, session, Event::Token { epoch, position, token, stop: false });
            }
            Body::Beacon { session, stage, node, epoch } => {
                // A shadow that computes says nothing about the stage it follows.
                if self.machines[to].asker.runs(session, stage) == Some(node) {
                    self.tell_session(to, session, Event::Beacon { stage, epoch });
                }
            }
            Body::Ping { session, home } => self.send(to, home, Body::Pong { session, node: id(to) }),
            Body::Pong { session, node } => self.tell_session(to, session, Event::Pong { node }),
            Body::Fed { session, node, have } => self.fed(to, session, node, have),
            Body::Lost { node } => self.node_failed(to, None, node, Failure::Closed),
        }
    }

    /// A failure counts under the epoch it was met in.
    fn failed_in(&mut self, to: usize, session: SessionId, epoch: u32, node: NodeId, failure: Failure) {
        let live = self.machines[to].asker.live.get(&session);
        if live.is_some_and(|live| live.epoch() == epoch) {
            self.node_failed(to, Some(session), node, failure);
        }
    }

    fn open(&mut self, to: usize, lease: Lease) {
        let now = self.local(to);
        let (session, epoch, home) = (lease.session, lease.epoch, lease.requester);
        let (layer, follow, stage) = (lease.layers.start(), lease.follow, lease.stage);
        let holds = self.machines[to].stage.held.covers(lease.layers);
        let opened = self.machines[to].stage.open(now, lease);
        if opened.is_err() {
            let held = (!holds).then(|| self.machines[to].stage.held.clone());
            let failure = Failure::Refused;
            return self.send(to, home, Body::Failed { session, epoch, node: id(to), failure, held });
        }
        self.admit(to);
        // Asked again, or asked under a new epoch while it runs: promised at once.
        if opened == Ok(true)
            && !follow
            && let Some(have) = self.machines[to].stage.have(session, layer, epoch)
        {
            let load = self.machines[to].stage.load(id(to));
            self.send(to, home, Body::Opened { session, stage, epoch, have, load });
        }
    }

    /// Lets in whoever may start, and tells them.
    fn admit(&mut self, at: usize) {
        let now = self.local(at);
        for lease in self.machines[at].stage.admitted(now) {
            let load = self.machines[at].stage.load(id(at));
            if !lease.follow {
                let Lease { session, stage, epoch, requester, .. } = lease;
                self.send(at, requester, Body::Opened { session, stage, epoch, have: 0, load });
            }
        }
        self.checks.memory(self.now, at, &mut self.machines[at].stage);
    }

    fn frame(
        &mut self,
        at: usize,
        key: (SessionId, u32),
        epoch: u32,
        from: u32,
        inputs: &[u64],
        home: usize,
    ) {
        let now = self.local(at);
        let before = self.machines[at].stage.have(key.0, key.1, epoch);
        let session = key.0;
        match self.machines[at].stage.frame(now, key, epoch, from, inputs) {
            Framed::Outputs(outputs, lease) => {
                let machine = &mut self.machines[at];
                let holds = machine.stage.held.covers(lease.layers);
                let in_place = before.is_some_and(|have| from <= have);
                let boot = machine.boot;
                let tokens = inputs.len() as f64;
                let each = if tokens > 1.0 { tokens / 5.0 } else { 1.0 };
                let work = 1.0 + machine.layer_ms * f64::from(lease.layers.len()) * each.max(1.0);
                let finish = self.now.max(machine.busy_until) + work.ceil() as u64 * machine.slow;
                machine.busy_until = finish;
                self.checks.computes(self.now, (at, boot), (session, key.1, epoch), holds, in_place);
                self.checks.memory(self.now, at, &mut self.machines[at].stage);
                let lease = Box::new(lease);
                let beacon = Happening::Beacon { at, boot, until: finish, lease: lease.clone() };
                if finish > self.now + BEACON_MS {
                    self.at(self.now + BEACON_MS, beacon);
                }
                self.at(finish, Happening::Computed { at, boot, lease, from, outputs });
            }
            Framed::Short(have, lease) => {
                self.send(at, lease.requester, Body::Short { session, stage: lease.stage, epoch, have });
            }
            Framed::Unknown => {
                let failure = Failure::Refused;
                self.send(at, home, Body::Failed { session, epoch, node: id(at), failure, held: None });
            }
            Framed::Dropped => {}
        }
    }

    fn computed(&mut self, at: usize, lease: &Lease, from: u32, outputs: Vec<u64>) {
        let Lease { session, stage, epoch, requester, layers, next, .. } = *lease;
        let position = from + outputs.len() as u32;
        match next {
            Some(next) => {
                let layer = layers.end();
                let inputs = outputs.clone();
                let ahead = Body::Frame { session, epoch, layer, from, inputs, home: requester };
                self.send(at, index(next), ahead);
                self.send(
                    at,
                    requester,
                    Body::Logged { session, stage, node: id(at), epoch, layer, from, outputs },
                );
            }
            None => {
                let token = outputs.last().map_or(0, |hidden| token_of(*hidden));
                self.send(at, requester, Body::Token { session, epoch, position, token });
            }
        }
    }

    fn announce(&mut self, at: usize) {
        if self.awake(at) != Ok(true) || self.closing {
            return;
        }
        let machine = &mut self.machines[at];
        machine.sequence += 1;
        let pretended = LayerSet::new(machine.pretends);
        let loaded = match machine.withdrawn {
            Some(kept) => machine.stage.held.ranges().iter().filter_map(|r| r.intersect(kept)).collect(),
            None => machine.stage.held.clone(),
        };
        let decode_ms = machine.layer_ms * machine.slow as f64 * machine.claims;
        let claim = Claim {
            node: id(at),
            operator: OperatorId::numbered(at as u64),
            sequence: machine.sequence,
            region: self.net.region(at) as u16,
            access_ms: self.net.access_ms(at),
            up_bytes_per_ms: 1e5,
            down_bytes_per_ms: 1e5,
            draining: false,
            holdings: vec![Holding {
                model: ModelId::default(),
                loaded: loaded.union(&pretended).ranges().to_vec(),
                on_disk: Vec::new(),
                decode_ms,
                prefill_ms: decode_ms / 5.0,
                visit_ms: 1.0,
                queue_ms: 0.0,
                load_ms: 0.0,
                active: (machine.stage.running() as f64 * machine.claims) as u32,
                batch_knee: 4,
                kv_layer_positions: machine.stage.kv_room() - machine.stage.reserved(),
            }],
        };
        let Ok(capability) = Capability::try_from(claim) else { return };
        self.hear(at, capability.clone());
        for to in (0..self.machines.len()).filter(|to| *to != at) {
            if self.chance.happens(self.options.gossip_loss) || self.net.is_cut(at, to) {
                continue;
            }
            let when = self.now + 1 + self.chance.below(self.options.gossip_ms as usize) as u64;
            let body = Box::new(Body::Gossip(Box::new(capability.clone())));
            self.at(when, Happening::Deliver { to, body });
        }
    }

    fn hear(&mut self, at: usize, capability: Capability) {
        let (now, node) = (self.local(at), capability.node());
        let merged = self.machines[at].view.merge(capability, now);
        self.checks.that(merged != Merged::Equivocation, || format!("{node} seems to equivocate"));
        self.report.announcements += u64::from(merged == Merged::Fresh);
    }

    /// Advice may be anything; what the keeper makes of it must not bare a layer.
    fn consider_moving(&mut self, at: usize) {
        let now = self.local(at);
        let layers = self.options.layers;
        if self.machines[at].ticks.is_multiple_of(20) {
            let len = 1 + self.chance.below(self.options.room as usize) as u32;
            let start = self.chance.below((layers - len.min(layers)) as usize + 1) as u32;
            self.machines[at].wanted = LayerRange::new(start, (start + len).min(layers));
        }
        let region = self.net.region(at);
        let movers: Vec<NodeId> =
            (0..self.options.nodes).filter(|&i| self.net.region(i) == region).map(id).collect();
        let machine = &mut self.machines[at];
        machine.ticks += 1;
        machine.view.expire(now);
        let mut others = vec![0u32; layers as usize];
        for node in (0..self.options.nodes).filter(|other| *other != at) {
            let Some(known) = machine.view.get(id(node)) else { continue };
            let held = known.holding(ModelId::default()).map(Holding::loaded_set).unwrap_or_default();
            (0..layers).filter(|layer| held.contains(*layer)).for_each(|layer| others[layer as usize] += 1);
        }
        let choice = Move {
            node: id(at),
            held: &machine.stage.held.clone(),
            advised: machine.wanted,
            present_tps: 1.0,
            advised_tps: 2.0,
            others: &others,
            movers: &movers,
            tick: self.now / TICK_MS,
        };
        match machine.keeper.tick(now, &choice) {
            Advice::Hold(range) => return self.hold(at, range),
            Advice::Withdraw(range) if machine.withdrawn.is_none() => machine.withdrawn = Some(range),
            Advice::Stay if machine.withdrawn.is_some() => machine.withdrawn = None,
            Advice::Withdraw(_) | Advice::Stay => return,
        }
        self.announce(at);
    }

    fn hold(&mut self, at: usize, range: LayerRange) {
        let everybody = |machines: &[Machine], nodes: usize| {
            // Who only pretends to hold a layer deceives the keepers of others; nothing can be done about that.
            let shown = |machine: &Machine| machine.stage.held.union(&LayerSet::new(machine.pretends));
            machines[..nodes].iter().fold(LayerSet::default(), |all, machine| all.union(&shown(machine)))
        };
        let before = everybody(&self.machines, self.options.nodes);
        let gone = self.machines[at].stage.hold(LayerSet::from(range));
        self.machines[at].withdrawn = None;
        let after = everybody(&self.machines, self.options.nodes);
        self.checks.covered(self.now, &before, &after, self.options.layers);
        self.report.moves += 1;
        for Lease { session, epoch, requester, .. } in gone {
            let (failure, held) = (Failure::Refused, Some(self.machines[at].stage.held.clone()));
            self.send(at, requester, Body::Failed { session, epoch, node: id(at), failure, held });
        }
        self.announce(at);
    }

    fn fault(&mut self, fault: Fault) {
        if self.healed && !matches!(fault, Fault::Restart { .. }) {
            return;
        }
        match fault {
            Fault::Crash { at, silent } if self.machines[at].up => {
                let now = self.now;
                let fresh = {
                    let stage = &self.machines[at].stage;
                    Stage::new(stage.held.clone(), stage.slots(), stage.kv_room())
                };
                let machine = &mut self.machines[at];
                machine.up = false;
                machine.boot += 1;
                machine.busy_until = now;
                machine.stage = fresh;
                for to in (0..self.machines.len()).filter(|_| !silent) {
                    if let Some(way) = self.net.way_ms(at, to, |_| true)
                        && !self.net.is_cut(at, to)
                        && to != at
                    {
                        let body = Box::new(Body::Lost { node: id(at) });
                        self.at(now + way as u64, Happening::Deliver { to, body });
                    }
                }
            }
            Fault::Crash { .. } => {}
            Fault::Restart { at } => {
                self.machines[at].up = true;
                self.announce(at);
            }
            Fault::Freeze { at, ms } => self.machines[at].frozen_until = self.now + ms,
            Fault::Slow { at, times } => self.machines[at].slow = times,
            Fault::Cut { inside, outward, inward } => self.net.cut(inside, outward, inward),
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        self.options.gossip_loss = 0.0;
        self.options.moves = false;
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            machine.up = true;
            machine.slow = 1;
            machine.withdrawn = None;
            machine.frozen_until = machine.frozen_until.min(self.now);
            machine.busy_until = machine.busy_until.min(self.now + 1_000);
            self.announce(at);
        }
    }

    /// Everybody asks once more, and must be served whole.
    fn must(&mut self) {
        for at in self.options.nodes..self.machines.len() {
            let history = (0..self.options.tokens.0).map(|_| self.chance.below(50_000) as u32).collect();
            let must = if self.feasible(at) { ASKS } else { 0 };
            self.ask(at, Turn { history, left: 0, must }, 0);
        }
        self.at(self.now + SWEEP_MS, Happening::Settled);
    }

    fn settled(&mut self) {
        let idle = |machine: &Machine| machine.asker.live.is_empty() && machine.asker.waiting.is_empty();
        let quiet = self.due == 0 && self.machines.iter().all(idle);
        let late = self.now >= self.options.heal_ms + BOUND_MS;
        self.checks.that(quiet || !late, || format!("a request is alive {BOUND_MS} ms after healing"));
        if quiet || late {
            self.closing = true;
            self.at(self.now + KEEP_MS * 5 / 4 + 2 * SWEEP_MS, Happening::Final);
        } else {
            self.at(self.now + SWEEP_MS, Happening::Settled);
        }
    }
}

/// What machines hold at first: windows where the fewest hold, so that every layer has somebody; under boomerang the
/// requesters hold the ends.
fn windows(options: &Options, draw: &mut Chance) -> Vec<LayerSet> {
    let n = options.layers as usize;
    let mut holders = vec![0u32; n];
    let mut held = Vec::new();
    for _ in 0..options.nodes {
        let len = (options.room as usize).min(n);
        let need = |start: usize| {
            holders[start..start + len].iter().map(|h| 4u32.saturating_sub(*h).pow(3)).sum::<u32>()
        };
        let most = (0..=n - len).map(need).max().unwrap_or(0);
        let starts: Vec<usize> = (0..=n - len).filter(|start| need(*start) == most).collect();
        let start = starts[draw.below(starts.len())];
        (start..start + len).for_each(|layer| holders[layer] += 1);
        held.push(LayerRange::new(start as u32, (start + len) as u32).into_iter().collect());
    }
    let n = options.layers;
    let ends = [LayerRange::new(0, 1), LayerRange::new(n - 1, n)];
    let home: LayerSet = ends.into_iter().flatten().filter(|_| options.boomerang).collect();
    held.extend((0..options.requesters).map(|_| home.clone()));
    held
}
