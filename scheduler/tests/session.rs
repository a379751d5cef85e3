//! The session machine against a world of unreliable stages.
//!
//! Stages compute a real recurrence (each layer's output depends on all earlier inputs of that layer), so missing,
//! doubled or misplaced KV shows as a wrong token. The world loses, duplicates, delays and reorders messages and
//! kills, freezes and slows nodes. After every event: no token twice, none out of order, none wrong (I3, I5), no
//! stage computes off its KV length (I1), nothing of an old epoch counts (I2).

use std::collections::{BTreeMap, BTreeSet};

use scheduler::recover::{BEACON_MS, Failure};
use scheduler::rng::{Rng, mix};
use scheduler::session::{Action, End, Event, Session, Standbys};
use scheduler::standby::Cover;
use scheduler::{LayerRange, Millis, NodeId, Pipeline, Segment, SessionId};

const LAYERS: u32 = 6;
const CUTS: [(u32, u32); 3] = [(0, 2), (2, 5), (5, 6)];
const REPLICAS: u64 = 3;
const PROMPT: u32 = 5;
const WANTED: u32 = 24;

/// The KV of some layers and what computing on it gives.
#[derive(Clone, Default)]
struct Kv {
    /// Per position, what entered each layer.
    inputs: Vec<Vec<u64>>,
}

impl Kv {
    fn truncate(&mut self, to: u32) {
        self.inputs.truncate(to as usize);
    }

    fn compute(&mut self, layers: LayerRange, mut hidden: u64) -> u64 {
        let mut entered = Vec::new();
        for layer in layers.start()..layers.end() {
            let at = (layer - layers.start()) as usize;
            let past = self.inputs.iter().fold(7, |hash, inputs| mix(hash ^ inputs[at]));
            entered.push(hidden);
            hidden = mix(hidden ^ past ^ u64::from(layer));
        }
        self.inputs.push(entered);
        hidden
    }
}

fn token_of(hidden: u64) -> u32 {
    (hidden % 50_000) as u32
}

fn prompt(position: u32) -> u32 {
    mix(u64::from(position)) as u32 % 50_000
}

/// What a machine that never fails would say.
fn reference() -> Vec<u32> {
    let mut kv = Kv::default();
    let all = LayerRange::new(0, LAYERS).unwrap();
    let mut tokens: Vec<u32> = (0..PROMPT).map(prompt).collect();
    let mut next = 0;
    while tokens.len() < (PROMPT + WANTED) as usize {
        let hidden = kv.compute(all, u64::from(tokens[next]));
        next += 1;
        if next == tokens.len() {
            tokens.push(token_of(hidden));
        }
    }
    tokens.split_off(PROMPT as usize)
}

/// What one node remembers of the session, by segment.
#[derive(Clone, Default)]
struct Served {
    epoch: u32,
    stage: usize,
    next: Option<NodeId>,
    kv: Kv,
}

#[derive(Clone)]
enum Message {
    Open { stage: usize, epoch: u32, segment: Segment, next: Option<NodeId>, at: u32, follow: bool },
    Frame { epoch: u32, node: NodeId, layers: u32, from: u32, inputs: Vec<u64> },
    Feed { node: NodeId, layers: LayerRange, from: u32, inputs: Vec<u64> },
    ToSession(Event),
    Logged { layer: u32, from: u32, outputs: Vec<u64>, event: Event },
    Beacon { node: NodeId, until: u64, event: Event },
    Ping { node: NodeId },
    Short { node: NodeId, event: Event },
}

#[derive(Clone, Copy)]
struct Faults {
    loss: f64,
    duplicate: f64,
    kills: usize,
    freezes: usize,
    slow: usize,
    notice: bool,
    /// Share of segments that have a follower.
    shadows: f64,
}

struct World {
    chance: Rng,
    faults: Faults,
    now: u64,
    order: u64,
    queue: BTreeMap<(u64, u64), Message>,
    served: BTreeMap<(NodeId, u32), Served>,
    dead: BTreeSet<NodeId>,
    frozen: BTreeMap<NodeId, u64>,
    slow: BTreeSet<NodeId>,
    /// Outputs seen at the requester: inputs of the layer they enter, by position.
    log: BTreeMap<u32, BTreeMap<u32, u64>>,
    tokens: Vec<u32>,
    trouble: Vec<(u64, NodeId, bool)>,
    end: Option<End>,
    stalls: Vec<u64>,
}

fn node(segment: usize, replica: u64) -> NodeId {
    NodeId::numbered(1 + segment as u64 * 10 + replica)
}

fn segment(at: usize, replica: u64) -> Segment {
    let (start, end) = CUTS[at];
    Segment { node: node(at, replica), layers: LayerRange::new(start, end).unwrap() }
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut chance = Rng::new(seed);
        let mut trouble = Vec::new();
        // At most two of three replicas of a segment ever get into trouble, so that the swarm can always serve.
        for k in 0..faults.kills + faults.freezes {
            let victim = node(k % 3, chance.below(2) as u64);
            trouble.push((chance.below(3_000) as u64, victim, k < faults.kills));
        }
        let slow = (0..faults.slow).map(|k| node(k % 3, chance.below(2) as u64)).collect();
        let tokens = (0..PROMPT).map(prompt).collect();
        Self {
            chance,
            faults,
            now: 0,
            order: 0,
            queue: BTreeMap::new(),
            served: BTreeMap::new(),
            dead: BTreeSet::new(),
            frozen: BTreeMap::new(),
            slow,
            log: BTreeMap::new(),
            tokens,
            trouble,
            end: None,
            stalls: Vec::new(),
        }
    }

    fn put(&mut self, at: u64, message: Message) {
        self.order += 1;
        self.queue.insert((at, self.order), message);
    }

    /// Over the network: may be lost, come twice, overtake.
    fn send(&mut self, message: Message, work: u64) {
        let copies = if self.chance.happens(self.faults.loss) {
            0
        } else {
            1 + usize::from(self.chance.happens(self.faults.duplicate))
        };
        for _ in 0..copies {
            let delay = 5 + self.chance.below(20) as u64;
            self.put(self.now + work + delay, message.clone());
        }
    }

    fn act(&mut self, actions: Vec<Action>, session: &Session) {
        for action in actions {
            match action {
                Action::Open { stage, epoch, segment, next, at } => {
                    self.send(Message::Open { stage, epoch, segment, next, at, follow: false }, 0);
                }
                Action::Follow { stage, epoch, segment, next, at } => {
                    self.send(Message::Open { stage, epoch, segment, next, at, follow: true }, 0);
                    let log = self.inputs(segment.layers.start(), 0, at);
                    let Some(inputs) = log else { continue };
                    self.send(
                        Message::Feed { node: segment.node, layers: segment.layers, from: 0, inputs },
                        5,
                    );
                }
                Action::Send { stage, epoch, node, from, to } => {
                    let segment = session.segments().nth(stage).unwrap();
                    let layers = segment.layers.start();
                    // A follower first gets what it lacks.
                    let had =
                        self.served.get(&(node, layers)).map_or(0, |served| served.kv.inputs.len() as u32);
                    let from = if node == segment.node { from } else { from.min(had) };
                    let inputs = self.inputs(layers, from, to).expect("only what is logged is sent");
                    self.send(Message::Frame { epoch, node, layers, from, inputs }, 0);
                }
                Action::Ping { node } => self.send(Message::Ping { node }, 0),
                Action::Emit { position, token } => {
                    assert_eq!(position as usize, self.tokens.len(), "I3: once, in order");
                    self.tokens.push(token);
                    self.stalls.push(self.now);
                }
                Action::FindRoute { deny } => {
                    let found = self.route(&deny);
                    self.put(self.now + 1, Message::ToSession(Event::Rerouted(found)));
                }
                Action::Close { node, epoch } => {
                    self.served.retain(|key, served| key.0 != node || served.epoch > epoch);
                }
                Action::Evidence { position } => panic!("honest nodes differ at {position}"),
                Action::Done(end) => {
                    assert_eq!(self.end, None, "ends once");
                    self.end = Some(end);
                }
            }
        }
    }

    fn inputs(&self, layer: u32, from: u32, to: u32) -> Option<Vec<u64>> {
        (from..to)
            .map(|p| match layer {
                0 => self.tokens.get(p as usize).map(|t| u64::from(*t)),
                _ => self.log.get(&layer).and_then(|log| log.get(&p)).copied(),
            })
            .collect()
    }

    fn route(&mut self, deny: &[NodeId]) -> Option<(Pipeline, Standbys)> {
        let mut segments = Vec::new();
        let mut standbys = Standbys::default();
        for at in 0..CUTS.len() {
            let free: Vec<u64> = (0..REPLICAS).filter(|r| !deny.contains(&node(at, *r))).collect();
            let first = *free.first()?;
            segments.push(segment(at, first));
            standbys
                .shadows
                .push(free.get(1).map(|r| node(at, *r)).filter(|_| self.chance.happens(self.faults.shadows)));
            let cover = free.get(2).map(|r| vec![segment(at, *r)]).unwrap_or_default();
            standbys.covers.push(Cover { index: at, segments: cover, total_ms: 0.0 });
        }
        Some((Pipeline::new(segments, LAYERS).unwrap(), standbys))
    }

    fn awake(&self, node: NodeId) -> bool {
        !self.dead.contains(&node) && self.frozen.get(&node).is_none_or(|until| self.now >= *until)
    }

    /// A stage takes in a frame: its promise, as the session's page states it.
    fn frame(&mut self, epoch: u32, node: NodeId, layers: u32, from: u32, inputs: &[u64]) {
        if !self.awake(node) {
            return;
        }
        // Rows that are computed together cost a fifth each.
        let work = if self.slow.contains(&node) { 150 } else { 8 } * (4 + inputs.len() as u64) / 5;
        let Some(served) = self.served.get_mut(&(node, layers)) else { return };
        if epoch != served.epoch {
            return;
        }
        let stage = served.stage;
        let have = served.kv.inputs.len() as u32;
        if from > have {
            return self.send(Message::Short { node, event: Event::NeedReplay { stage, epoch, have } }, 0);
        }
        served.kv.truncate(from);
        let end = CUTS.iter().find(|cut| cut.0 == layers).unwrap().1;
        let range = LayerRange::new(layers, end).unwrap();
        let outputs: Vec<u64> = inputs
            .iter()
            .enumerate()
            .map(|(k, input)| {
                assert_eq!(served.kv.inputs.len() as u32, from + k as u32, "I1");
                served.kv.compute(range, *input)
            })
            .collect();
        let to = from + inputs.len() as u32;
        let next = served.next;
        let event = Event::Boundary { stage, node, epoch, to };
        let beacon = Event::Beacon { stage, epoch };
        self.put(self.now + BEACON_MS, Message::Beacon { node, until: self.now + work, event: beacon });
        match next {
            Some(next) => {
                self.send(
                    Message::Frame { epoch, node: next, layers: end, from, inputs: outputs.clone() },
                    work,
                );
                self.send(Message::Logged { layer: end, from, outputs, event }, work);
            }
            None => {
                let token = token_of(*outputs.last().unwrap());
                self.send(Message::ToSession(Event::Token { epoch, position: to, token, stop: false }), work);
            }
        }
    }

    fn deliver(&mut self, message: Message, session: &mut Session) {
        let event = match message {
            Message::Open { stage, epoch, segment, next, at, follow } => {
                if !self.awake(segment.node) {
                    return;
                }
                let served = self.served.entry((segment.node, segment.layers.start())).or_default();
                if epoch < served.epoch {
                    return;
                }
                (served.epoch, served.stage, served.next) = (epoch, stage, next);
                served.kv.truncate(at);
                let have = served.kv.inputs.len() as u32;
                if !follow {
                    self.send(Message::ToSession(Event::Opened { stage, epoch, have }), 0);
                }
                return;
            }
            Message::Frame { epoch, node, layers, from, inputs } => {
                return self.frame(epoch, node, layers, from, &inputs);
            }
            Message::Feed { node, layers, from, inputs } => {
                if self.awake(node)
                    && let Some(served) = self.served.get_mut(&(node, layers.start()))
                    && served.kv.inputs.len() as u32 == from
                {
                    inputs.iter().for_each(|input| {
                        served.kv.compute(layers, *input);
                    });
                }
                return;
            }
            Message::Logged { layer, from, outputs, event } => {
                let log = self.log.entry(layer).or_default();
                for (k, output) in outputs.into_iter().enumerate() {
                    let old = log.insert(from + k as u32, output);
                    assert!(old.is_none_or(|old| old == output), "I5: the same bits");
                }
                // The log is contiguous only as far as nothing was lost.
                let Event::Boundary { stage, node, epoch, to } = event else { unreachable!() };
                let whole = (0..to).take_while(|p| log.contains_key(p)).count() as u32;
                Event::Boundary { stage, node, epoch, to: to.min(whole) }
            }
            Message::Beacon { node, until, event } => {
                if !self.awake(node) || self.now > until {
                    return;
                }
                self.put(self.now + BEACON_MS, Message::Beacon { node, until, event: event.clone() });
                let Event::Beacon { stage, .. } = event else { unreachable!() };
                if session.segments().nth(stage).is_none_or(|segment| segment.node != node) {
                    return;
                }
                event
            }
            Message::Short { node, event } => {
                let Event::NeedReplay { stage, .. } = event else { unreachable!() };
                if session.segments().nth(stage).is_none_or(|segment| segment.node != node) {
                    return;
                }
                event
            }
            Message::Ping { node } => {
                if self.awake(node) {
                    self.send(Message::ToSession(Event::Pong { node }), 0);
                }
                return;
            }
            Message::ToSession(event) => event,
        };
        let before = (session.epoch(), session.emitted().len());
        let stale = match &event {
            Event::Opened { epoch, .. }
            | Event::NeedReplay { epoch, .. }
            | Event::Boundary { epoch, .. }
            | Event::Beacon { epoch, .. }
            | Event::Token { epoch, .. } => *epoch != session.epoch(),
            _ => false,
        };
        let actions = session.step(Millis(self.now), event);
        if stale {
            assert!(actions.is_empty() && before == (session.epoch(), session.emitted().len()), "I2");
        }
        self.act(actions, session);
    }

    fn troubles(&mut self, session: &mut Session) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) = self.trouble.drain(..).partition(|t| t.0 <= now);
        self.trouble = later;
        for (_, victim, kill) in due {
            if kill {
                self.dead.insert(victim);
                if self.faults.notice {
                    let failed = Event::Failed { node: victim, failure: Failure::Closed };
                    let actions = session.step(Millis(now), failed);
                    self.act(actions, session);
                }
            } else {
                self.frozen.insert(victim, now + 5_000);
            }
        }
    }
}

/// Runs one request through a world; the end and the virtual time it took.
fn run(seed: u64, faults: Faults) -> (End, u64, World) {
    let mut world = World::new(seed, faults);
    let (pipeline, standbys) = world.route(&[]).unwrap();
    let id = SessionId::numbered(seed);
    let (mut session, actions) = Session::start(id, Millis(0), PROMPT, WANTED, &pipeline, &standbys, 50.0);
    world.act(actions, &session);
    let expected = reference();
    while world.end.is_none() {
        let wake = session.wake().expect("not over").0.max(world.now);
        match world.queue.first_key_value().map(|entry| *entry.0) {
            Some(key) if key.0 <= wake => {
                world.now = key.0;
                let message = world.queue.remove(&key).unwrap();
                world.deliver(message, &mut session);
            }
            _ => {
                world.now = wake.max(world.now + 1);
                let actions = session.step(Millis(world.now), Event::Tick);
                world.act(actions, &session);
            }
        }
        world.troubles(&mut session);
        let said = &world.tokens[PROMPT as usize..];
        assert_eq!(said, &expected[..said.len()], "seed {seed}: the stream differs");
        assert!(world.now < 600_000, "seed {seed}: no end in ten minutes");
    }
    assert_eq!(session.wake(), None);
    assert_eq!(session.step(Millis(world.now), Event::Tick), []);
    (world.end.unwrap(), world.now, world)
}

/// Seeds per test; `SHOAL_SEEDS=1000000` runs that many instead.
fn seeds(usual: u64) -> u64 {
    std::env::var("SHOAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

const CALM: Faults =
    Faults { loss: 0.0, duplicate: 0.0, kills: 0, freezes: 0, slow: 0, notice: true, shadows: 0.6 };

#[test]
fn without_faults_nothing_is_recovered() {
    for seed in 0..50 {
        let (end, took, world) = run(seed, CALM);
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED));
        assert!(took < 4_000, "{took}");
    }
}

/// Kills are noticed by the transport: the stream goes on, the same stream, always.
#[test]
fn kills_lose_no_token() {
    for seed in 0..seeds(4_000) {
        let (end, _, world) = run(seed, Faults { kills: 1 + seed as usize % 3, ..CALM });
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
        let worst = world.stalls.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(worst < 1_500, "seed {seed}: stalled {worst} ms");
    }
}

/// Silent deaths and freezes are found by deadline.
#[test]
fn freezes_and_silent_deaths_lose_no_token() {
    for seed in 0..seeds(4_000) {
        let faults =
            Faults { kills: seed as usize % 2, freezes: 1 + seed as usize % 2, notice: false, ..CALM };
        let (end, _, world) = run(seed, faults);
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
    }
}

/// A stage freezes for five seconds, at any moment from before it promised. With a shadow the answer does not wait
/// for it: half a second until its silence counts, and the shadow's step. Without one its cover replays after twice
/// that. Times are virtual, ways are 5 to 25 ms.
#[test]
fn a_frozen_stage_is_not_waited_for() {
    for (shadows, bound) in [(1.0, 1_000), (0.0, 1_600)] {
        let mut stalls = Vec::new();
        for seed in 0..seeds(4_000) {
            let (end, _, world) = run(seed, Faults { freezes: 1, notice: false, shadows, ..CALM });
            assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
            let begins = [0].into_iter().chain(world.stalls.iter().copied());
            let gaps = begins.zip(&world.stalls).map(|(before, after)| after - before);
            stalls.push(gaps.max().unwrap());
        }
        stalls.sort_unstable();
        // Half of the freezes meet no node of the route, or come when all is over.
        let met = &stalls[stalls.partition_point(|ms| *ms < 300)..];
        let at = |share: f64| met[((met.len() - 1) as f64 * share) as usize];
        println!(
            "shadows {shadows}: n {}, p50 {} ms, p99 {} ms, most {} ms",
            met.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
        assert!(met.len() as u64 > seeds(4_000) / 10, "{} freezes were met", met.len());
        assert!(at(0.99) <= bound, "{} ms", at(0.99));
    }
}

/// Everything at once, with a network that loses and doubles: safety always, and nearly always an end as asked
/// (a request may run out of budget, never out of bounds).
#[test]
fn storms_are_survived_or_given_up_in_order() {
    let runs = seeds(8_000);
    let whole = (0..runs).filter(|&seed| {
        let faults = Faults {
            loss: 0.01,
            duplicate: 0.03,
            kills: seed as usize % 3,
            freezes: seed as usize % 2,
            slow: seed as usize % 2,
            notice: seed % 4 != 0,
            ..CALM
        };
        run(seed, faults).0 == End::Length
    });
    let share = whole.count() as f64 / runs as f64;
    assert!(share > 0.95, "{share}");
}

#[test]
fn a_cancel_ends_at_once() {
    let mut world = World::new(1, CALM);
    let (pipeline, standbys) = world.route(&[]).unwrap();
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), PROMPT, WANTED, &pipeline, &standbys, 50.0);
    let actions = session.step(Millis(5), Event::Cancel);
    assert_eq!(actions.last(), Some(&Action::Done(End::Cancelled)));
    assert!(actions.len() > 3 && session.is_over());
}
