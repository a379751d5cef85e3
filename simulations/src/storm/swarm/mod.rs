//! The event loop of a storm: machines, clocks, announcements, faults, healing.

pub(super) mod asker;
mod faults;
mod hold;
mod serve;

use scheduler::coordinate::Coordinate;
use scheduler::lease::Load;
use scheduler::place::Keeper;
use scheduler::recover::{BEACON_MS, Failure};
use scheduler::rng::Rng;
use scheduler::session::{Event, Rows, Standbys};
use scheduler::view::{Geography, SwarmView};
use scheduler::{Capability, LayerRange, LayerSet, Millis, NodeId, Pipeline, SessionId};

use crate::storm::Report;
use crate::storm::checks::Checks;
use crate::storm::net::Net;
use crate::storm::options::Options;
use crate::storm::stage::{Lease, Stage};
use crate::storm::swarm::asker::{Asker, Requester, Turn};
use crate::storm::swarm::serve::Server;
use crate::timeline::Timeline;
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
        rows: Rows,
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
    Gossip(Box<(Capability, Coordinate)>),
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
        attempt: u16,
        layer: u32,
        from: u32,
        outputs: Vec<u64>,
    },
    /// The token after every row of a frame.
    Drawn {
        session: SessionId,
        epoch: u32,
        attempt: u16,
        from: u32,
        tokens: Vec<u32>,
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
    Computed { at: usize, boot: u64, lease: Box<Lease>, rows: Rows, outputs: Vec<u64> },
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

/// Whether a machine runs, and how well.
struct Health {
    up: bool,
    boot: u64,
    frozen_until: u64,
    slow: u64,
    busy_until: u64,
}

/// What a machine thinks of holding other layers.
#[derive(Default)]
struct Moving {
    keeper: Keeper,
    wanted: Option<LayerRange>,
    withdrawn: Option<LayerRange>,
    ticks: u64,
}

pub(super) struct Machine {
    health: Health,
    layer_ms: f64,
    claims: f64,
    pretends: Option<LayerRange>,
    clock: Clock,
    sequence: u64,
    moving: Moving,
    pub stage: Stage,
    /// Where it believes to be.
    place: Coordinate,
    pub view: SwarmView,
    pub asker: Asker,
}

/// A storm under way.
pub(super) struct Swarm {
    pub options: Options,
    pub now: u64,
    pub net: Net,
    pub chance: Rng,
    pub machines: Vec<Machine>,
    pub checks: Checks,
    pub report: Report,
    pub sessions: u64,
    timeline: Timeline<Happening>,
    healed: bool,
    /// Asks scheduled and not begun.
    due: usize,
    /// No machine asks any more: only leases run out.
    closing: bool,
    over: bool,
}

/// Tells one storm from beginning to end.
pub fn run(options: &Options) -> Report {
    let mut swarm = Swarm::new(options);
    swarm.schedule();
    while let Some((now, happening)) = swarm.timeline.next() {
        swarm.now = now;
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
        let mut chance = Rng::new(options.seed);
        let net = Net::draw(options, &mut chance.fork());
        let mut draw = chance.fork();
        let held = hold::windows(options, &mut draw);
        let machines = (0..options.size.nodes + options.size.requesters).map(|at| {
            let serves = at < options.size.nodes;
            let (slots, kv) =
                if serves { (options.capacity.slots, options.capacity.kv) } else { (64, 1 << 20) };
            let pretends = draw.happens(options.lies.pretenders) && serves;
            let start = draw.below(options.size.layers as usize) as u32;
            let leap = options
                .jumps
                .then(|| (draw.below(options.heal_ms as usize) as u64, 1_000 + draw.below(3_600_000) as u64));
            Machine {
                health: Health { up: true, boot: 0, frozen_until: 0, slow: 1, busy_until: 0 },
                layer_ms: if serves { 0.5 + 3.0 * draw.unit() } else { 1.0 },
                claims: if serves && draw.happens(options.lies.boasters) { 0.2 } else { 1.0 },
                pretends: LayerRange::new(start, options.size.layers).filter(|_| pretends),
                clock: Clock {
                    start: draw.below(1 << 40) as u64,
                    rate: 1.0 + options.drift * draw.between(-1.0, 1.0),
                    leap: leap.filter(|_| draw.happens(0.4)),
                },
                sequence: 0,
                moving: Moving::default(),
                stage: Stage::new(held[at].clone(), slots, kv),
                place: Coordinate::default(),
                view: SwarmView::new(Geography::around(50.0)),
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
            timeline: Timeline::default(),
            closing: false,
            healed: false,
            due: 0,
            over: false,
            options: options.clone(),
        }
    }

    pub fn at(&mut self, ms: u64, happening: Happening) {
        self.due += usize::from(matches!(happening, Happening::Ask { .. } | Happening::AskAgain { .. }));
        self.timeline.add(ms.max(self.now), happening);
    }

    /// A machine in its part as requester.
    fn requester(&mut self, at: usize) -> Requester<'_> {
        Requester { swarm: self, here: at }
    }

    /// A machine in its part as server.
    fn server(&mut self, at: usize) -> Server<'_> {
        Server { swarm: self, here: at }
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
        let before = |draw: &mut Rng| draw.below(o.heal_ms as usize) as u64;
        for at in 0..self.machines.len() {
            self.at(draw.below(200) as u64, Happening::Announce { at });
            self.at(draw.below(SWEEP_MS as usize) as u64, Happening::Sweep { at });
            if o.moves && at < o.size.nodes {
                self.at(draw.below(TICK_MS as usize) as u64, Happening::Tick { at });
            }
        }
        for _ in 0..o.faults.crashes {
            let (at, when) = (draw.below(o.size.nodes), before(&mut draw));
            self.at(when, Happening::Fault(Fault::Crash { at, silent: draw.happens(0.5) }));
            let back = when + 500 + draw.below(8_000) as u64;
            self.at(back, Happening::Fault(Fault::Restart { at }));
        }
        for _ in 0..o.faults.freezes {
            let at = draw.below(self.machines.len());
            let ms = 200 + draw.below(6_000) as u64;
            self.at(before(&mut draw), Happening::Fault(Fault::Freeze { at, ms }));
        }
        for _ in 0..o.faults.grays {
            let at = draw.below(o.size.nodes);
            self.at(before(&mut draw), Happening::Fault(Fault::Slow { at, times: 20 }));
        }
        for _ in 0..o.faults.partitions {
            let inside = draw.next_u64();
            let one_way = draw.happens(o.faults.one_way);
            let outward = draw.happens(0.5);
            let cut = Fault::Cut { inside, outward: outward || !one_way, inward: !outward || !one_way };
            self.at(before(&mut draw), Happening::Fault(cut));
        }
        for at in o.size.nodes..self.machines.len() {
            for _ in 0..o.demand.conversations {
                let history = (0..o.demand.tokens.0).map(|_| draw.below(50_000) as u32).collect();
                let turn = Turn { history, left: o.demand.turns - 1, must: 0 };
                let when = 3_000 + draw.below(o.heal_ms as usize) as u64;
                self.at(when, Happening::Ask { at, turn: Box::new(turn) });
            }
        }
        self.at(o.heal_ms, Happening::Heal);
        self.at(o.heal_ms + SETTLE_MS, Happening::Must);
    }

    /// Sends a message, or lets the sender know that it cannot be sent.
    pub fn send(&mut self, from: usize, to: usize, body: Body) {
        if !self.machines[from].health.up {
            return;
        }
        let machines = &self.machines;
        match self.net.way_ms(from, to, |at| machines[at].health.up) {
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
                Ok(true) => self.server(to).deliver(*body),
                Ok(false) => {}
                Err(thaw) => self.at(thaw, Happening::Deliver { to, body }),
            },
            Happening::Computed { at, boot, lease, rows, outputs } => match self.awake(at) {
                Ok(true) if self.machines[at].health.boot == boot => {
                    self.server(at).computed(&lease, rows, outputs)
                }
                Ok(_) => {}
                Err(thaw) => self.at(thaw, Happening::Computed { at, boot, lease, rows, outputs }),
            },
            Happening::Beacon { at, boot, until, lease } => {
                if self.awake(at) == Ok(true) && self.machines[at].health.boot == boot && self.now <= until {
                    let Lease { session, stage, epoch, requester, .. } = *lease;
                    self.send(at, requester, Body::Beacon { session, stage, node: id(at), epoch });
                    self.at(self.now + BEACON_MS, Happening::Beacon { at, boot, until, lease });
                }
            }
            Happening::Wake { at, session } => match self.awake(at) {
                Err(thaw) => self.at(thaw, Happening::Wake { at, session }),
                Ok(_) => self.requester(at).tell_session(session, Event::Tick),
            },
            Happening::Cancel { at, session } => self.requester(at).tell_session(session, Event::Cancel),
            Happening::Route { at, session, found } => {
                self.requester(at).tell_session(session, Event::Rerouted(*found))
            }
            Happening::Ask { at, turn } => {
                self.due -= 1;
                self.requester(at).ask(*turn, 0);
            }
            Happening::AskAgain { at } => {
                self.due -= 1;
                if let Some((turn, tries)) = self.machines[at].asker.waiting.pop_front() {
                    self.requester(at).ask(turn, tries);
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
                    self.server(at).admit();
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
                    self.server(at).admit();
                    self.checks.balanced(self.now, at, &mut self.machines[at].stage);
                }
                self.over = true;
            }
        }
    }

    /// Whether a machine can act now; if it is stopped, when it goes on.
    fn awake(&self, at: usize) -> Result<bool, u64> {
        let machine = &self.machines[at];
        if machine.health.up && self.now < machine.health.frozen_until {
            Err(machine.health.frozen_until)
        } else {
            Ok(machine.health.up)
        }
    }
}
