//! A world of unreliable stages around one session machine.
//!
//! It loses, duplicates, delays and reorders messages and kills, freezes and slows nodes. After every event: no token
//! twice, none out of order, none wrong (I3, I5), no stage computes off its KV length (I1), nothing of an old epoch
//! counts (I2).

mod stage;

use std::collections::{BTreeMap, BTreeSet};

use scheduler::recover::{BEACON_MS, Failure};
use scheduler::rng::{Rng, mix};
use scheduler::session::{Action, End, Event, Rows, Session, Standbys, Taken};
use scheduler::standby::Cover;
use scheduler::{LayerRange, Millis, NodeId, Pipeline, Segment, SessionId};

use self::stage::{Served, prompt, reference, token_of};

const LAYERS: u32 = 6;
const CUTS: [(u32, u32); 3] = [(0, 2), (2, 5), (5, 6)];
const REPLICAS: u64 = 3;
pub const PROMPT: u32 = 5;
pub const WANTED: u32 = 24;

#[derive(Clone)]
enum Message {
    Open {
        stage: usize,
        epoch: u32,
        segment: Segment,
        next: Option<NodeId>,
        at: u32,
        follow: bool,
    },
    Frame {
        epoch: u32,
        node: NodeId,
        layers: u32,
        rows: Rows,
        inputs: Vec<u64>,
    },
    /// The token after every row of a frame.
    Sampled {
        epoch: u32,
        attempt: u16,
        from: u32,
        tokens: Vec<u32>,
    },
    Feed {
        node: NodeId,
        layers: LayerRange,
        from: u32,
        inputs: Vec<u64>,
    },
    ToSession(Event),
    Logged {
        layer: u32,
        from: u32,
        outputs: Vec<u64>,
        event: Event,
    },
    Beacon {
        node: NodeId,
        until: u64,
        event: Event,
    },
    Ping {
        node: NodeId,
    },
    /// How far the inputs of a stage have come.
    Question {
        node: NodeId,
        layers: u32,
        epoch: u32,
    },
    /// A stage had so many inputs a while ago.
    Idle {
        node: NodeId,
        layers: u32,
        epoch: u32,
        have: u32,
    },
    Short {
        node: NodeId,
        event: Event,
    },
}

#[derive(Clone, Copy)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    pub kills: usize,
    pub freezes: usize,
    pub slow: usize,
    pub notice: bool,
    /// Share of segments that have a follower.
    pub shadows: f64,
    /// Tokens that a step drafts at most, some of them wrong.
    pub drafts: u32,
    /// Whether one way between two that compute is cut.
    pub cut: bool,
}

/// From whom to whom; the requester is none of the nodes.
type Way = (Option<NodeId>, Option<NodeId>);

const HERE: Option<NodeId> = None;
/// When what was not acknowledged is sent again for the first time, as kernels do.
const RETRANSMIT_MS: u64 = 200;
/// A stage that nothing has come to for so long says that it waits, and again each [`BEACON_MS`].
const IDLE_MS: u64 = 200;

pub struct World {
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
    pub tokens: Vec<u32>,
    /// What is drafted behind them, the answer it is drafted from, and drafts that were right and wrong.
    draft: Vec<u32>,
    answer: Vec<u32>,
    pub drafted: (u32, u32),
    trouble: Vec<(u64, NodeId, bool)>,
    /// Which way is cut, and since when.
    pub cut: Option<(Way, u64)>,
    end: Option<End>,
    pub stalls: Vec<u64>,
}

fn node(segment: usize, replica: u64) -> NodeId {
    NodeId::numbered(1 + segment as u64 * 10 + replica)
}

fn segment(at: usize, replica: u64) -> Segment {
    let (start, end) = CUTS[at];
    Segment { node: node(at, replica), layers: LayerRange::new(start, end).unwrap() }
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut chance = Rng::new(seed);
        let mut trouble = Vec::new();
        // At most two of three replicas of a segment ever get into trouble, so that the swarm can always serve.
        for k in 0..faults.kills + faults.freezes {
            let victim = node(k % 3, chance.below(2) as u64);
            trouble.push((chance.below(3_000) as u64, victim, k < faults.kills));
        }
        let slow = (0..faults.slow).map(|k| node(k % 3, chance.below(2) as u64)).collect();
        let cut = faults.cut.then(|| {
            let ring: Vec<Option<NodeId>> =
                [HERE].into_iter().chain((0..CUTS.len()).map(|at| Some(node(at, 0)))).collect();
            let from = chance.below(ring.len());
            let to = (from + 1 + chance.below(ring.len() - 1)) % ring.len();
            ((ring[from], ring[to]), chance.below(1_500) as u64)
        });
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
            draft: Vec::new(),
            answer: reference(),
            drafted: (0, 0),
            trouble,
            cut,
            end: None,
            stalls: Vec::new(),
        }
    }

    fn put(&mut self, at: u64, message: Message) {
        self.order += 1;
        self.queue.insert((at, self.order), message);
    }

    /// When what is sent one way now arrives but for what its way takes. Where the other way is cut, so are the
    /// acknowledgements: a sender that hears none repeats what it has at twice the time from one time to the next.
    fn leaves(&self, way: Way, sent: u64) -> Option<u64> {
        match self.cut {
            Some((cut, since)) if cut == way && sent >= since => None,
            Some((cut, since)) if cut == (way.1, way.0) && sent > since + RETRANSMIT_MS => {
                let repeats = (1..).map(|k: u32| since + RETRANSMIT_MS * ((1 << k) - 1));
                repeats.into_iter().find(|at| *at >= sent)
            }
            _ => Some(sent),
        }
    }

    /// Over the network: may be lost, come twice, overtake.
    fn send(&mut self, way: Way, message: Message, work: u64) {
        let Some(leaves) = self.leaves(way, self.now + work) else { return };
        let copies = if self.chance.happens(self.faults.loss) {
            0
        } else {
            1 + usize::from(self.chance.happens(self.faults.duplicate))
        };
        for _ in 0..copies {
            let delay = 5 + self.chance.below(20) as u64;
            self.put(leaves + delay, message.clone());
        }
    }

    fn act(&mut self, actions: Vec<Action>, session: &Session) {
        for action in actions {
            match action {
                Action::Open { stage, epoch, segment, next, at } => {
                    let open = Message::Open { stage, epoch, segment, next, at, follow: false };
                    self.send((HERE, Some(segment.node)), open, 0);
                }
                Action::Follow { stage, epoch, segment, next, at } => {
                    let way = (HERE, Some(segment.node));
                    self.send(way, Message::Open { stage, epoch, segment, next, at, follow: true }, 0);
                    let log = self.inputs(segment.layers.start(), 0, at);
                    let Some(inputs) = log else { continue };
                    let feed = Message::Feed { node: segment.node, layers: segment.layers, from: 0, inputs };
                    self.send(way, feed, 5);
                }
                Action::Send { stage, epoch, attempt, node, from, to } => {
                    let segment = session.segments().nth(stage).unwrap();
                    let layers = segment.layers.start();
                    // A follower first gets what it lacks.
                    let had =
                        self.served.get(&(node, layers)).map_or(0, |served| served.kv.inputs.len() as u32);
                    let from = if node == segment.node { from } else { from.min(had) };
                    let inputs = self.inputs(layers, from, to).expect("only what is logged is sent");
                    let drafted = to.saturating_sub(self.tokens.len() as u32);
                    let since = Rows::since(from, session.attempt_start());
                    let rows = Rows { attempt, from, rows: to - from, drafted, since };
                    let frame = Message::Frame { epoch, node, layers, rows, inputs };
                    self.send((HERE, Some(node)), frame, 0);
                }
                Action::Ping { node } => {
                    self.send((HERE, Some(node)), Message::Ping { node }, 0);
                    let epoch = session.epoch();
                    for segment in session.segments().filter(|segment| segment.node == node) {
                        let question = Message::Question { node, layers: segment.layers.start(), epoch };
                        self.send((HERE, Some(node)), question, 0);
                    }
                }
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
                0 => self.tokens.iter().chain(&self.draft).nth(p as usize).map(|t| u64::from(*t)),
                _ => self.log.get(&layer).and_then(|log| log.get(&p)).copied(),
            })
            .collect()
    }

    pub fn route(&mut self, deny: &[NodeId]) -> Option<(Pipeline, Standbys)> {
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
    fn frame(&mut self, epoch: u32, node: NodeId, layers: u32, rows: Rows, inputs: &[u64]) {
        let Rows { attempt, from, .. } = rows;
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
        let sound = match served.attempts.take(&rows) {
            Taken::Abandoned => return,
            Taken::Compute => u32::MAX,
            Taken::NeedReplay(sound) => sound,
        };
        let have = sound.min(served.kv.inputs.len() as u32);
        if from > have {
            let short = Message::Short { node, event: Event::NeedReplay { stage, epoch, have } };
            return self.send((Some(node), HERE), short, 0);
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
        served.busy_until = self.now + work;
        let have = served.kv.inputs.len() as u32;
        self.put(self.now + work + IDLE_MS, Message::Idle { node, layers, epoch, have });
        let Some(served) = self.served.get(&(node, layers)) else { return };
        let ahead = Rows { since: served.attempts.since(from), ..rows };
        let event = Event::Boundary { stage, node, epoch, attempt, to };
        let beacon = Event::Beacon { stage, epoch };
        self.put(self.now + BEACON_MS, Message::Beacon { node, until: self.now + work, event: beacon });
        match next {
            Some(next) => {
                let inputs = outputs.clone();
                let frame = Message::Frame { epoch, node: next, layers: end, rows: ahead, inputs };
                self.send((Some(node), Some(next)), frame, work);
                self.send((Some(node), HERE), Message::Logged { layer: end, from, outputs, event }, work);
            }
            None => {
                let tokens = outputs.into_iter().map(token_of).collect();
                self.send((Some(node), HERE), Message::Sampled { epoch, attempt, from, tokens }, work);
            }
        }
    }

    /// A stage that computes nothing says how far its inputs have come.
    fn say_waiting(&mut self, node: NodeId, layers: u32, epoch: u32) {
        let Some(served) = self.served.get(&(node, layers)).filter(|served| served.epoch == epoch) else {
            return;
        };
        let (stage, have) = (served.stage, served.kv.inputs.len() as u32);
        if self.awake(node) && self.now >= served.busy_until {
            let waits = Event::Waits { stage, epoch, have, given_here: stage == 0 };
            self.send((Some(node), HERE), Message::ToSession(waits), 0);
        }
    }

    /// What the requester makes of the tokens that the last stage drew: those that agree with the draft and one more, and
    /// another draft behind them.
    fn sampled(
        &mut self,
        session: &Session,
        (epoch, attempt): (u32, u16),
        from: u32,
        sampled: &[u32],
    ) -> Event {
        let known = self.tokens.len() as u32;
        let current = (epoch, attempt) == (session.epoch(), session.attempt());
        let rows =
            sampled.get((known - 1).saturating_sub(from) as usize..).filter(|_| current && from < known);
        let Some(rows) = rows.filter(|rows| !rows.is_empty()) else {
            // Whatever an abandoned attempt drew must have no effect.
            let (position, tokens) = (from + 1, sampled.to_vec());
            return Event::Tokens { epoch, attempt, position, tokens, stop: false, draft: 0 };
        };
        let draft = &self.draft[..session.drafted() as usize];
        let right = rows.iter().zip(draft).take_while(|(drawn, drafted)| drawn == drafted).count();
        let tokens = rows[..rows.len().min(right + 1)].to_vec();
        self.drafted.0 += right as u32;
        self.drafted.1 += (draft.len() - right) as u32;
        let next = known + tokens.len() as u32;
        // What was computed from a wrong draft leaves the log, whatever the session does next.
        self.log.values_mut().for_each(|log| log.retain(|position, _| *position + 1 < next));
        let drawn = mix(u64::from(next) ^ u64::from(session.epoch()) << 32);
        let rest = self.answer.get((next - PROMPT) as usize..).unwrap_or(&[]);
        let count = drawn % u64::from(self.faults.drafts + 1);
        self.draft = rest.iter().take(count as usize).copied().collect();
        if let Some(wrong) = self.draft.get_mut((drawn >> 32) as usize % 8) {
            *wrong ^= 1;
        }
        let draft = self.draft.len() as u32;
        Event::Tokens { epoch, attempt, position: known, tokens, stop: false, draft }
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
                if epoch > served.epoch {
                    served.kv.truncate(served.attempts.begin_epoch());
                }
                (served.epoch, served.stage, served.next) = (epoch, stage, next);
                served.kv.truncate(at);
                let have = served.kv.inputs.len() as u32;
                if !follow {
                    let opened = Message::ToSession(Event::Opened { stage, epoch, have });
                    self.send((Some(segment.node), HERE), opened, 0);
                }
                return;
            }
            Message::Frame { epoch, node, layers, rows, inputs } => {
                return self.frame(epoch, node, layers, rows, &inputs);
            }
            Message::Sampled { epoch, attempt, from, tokens } => {
                self.sampled(session, (epoch, attempt), from, &tokens)
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
                let Event::Boundary { stage, node, epoch, attempt, to } = event else { unreachable!() };
                // Rows of an abandoned attempt, or of another epoch, are not for the log.
                let valid = if epoch == session.epoch() { session.valid_below(attempt) } else { 0 };
                let log = self.log.entry(layer).or_default();
                for (position, output) in (from..valid).zip(outputs) {
                    let old = log.insert(position, output);
                    assert!(old.is_none_or(|old| old == output), "I5: the same bits");
                }
                // The log is contiguous only as far as nothing was lost.
                let whole = (0..to.min(valid)).take_while(|p| log.contains_key(p)).count() as u32;
                Event::Boundary { stage, node, epoch, attempt, to: to.min(whole) }
            }
            Message::Beacon { node, until, event } => {
                if !self.awake(node) || self.now > until {
                    return;
                }
                self.put(self.now + BEACON_MS, Message::Beacon { node, until, event: event.clone() });
                let Event::Beacon { stage, .. } = event else { unreachable!() };
                if session.segments().nth(stage).is_some_and(|segment| segment.node == node) {
                    self.send((Some(node), HERE), Message::ToSession(event), 0);
                }
                return;
            }
            Message::Question { node, layers, epoch } => return self.say_waiting(node, layers, epoch),
            Message::Idle { node, layers, epoch, have } => {
                let served = self.served.get(&(node, layers));
                if served.is_some_and(|served| served.kv.inputs.len() as u32 == have && served.epoch == epoch)
                {
                    self.say_waiting(node, layers, epoch);
                    self.put(self.now + BEACON_MS, Message::Idle { node, layers, epoch, have });
                }
                return;
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
                    self.send((Some(node), HERE), Message::ToSession(Event::Pong { node }), 0);
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
            | Event::Waits { epoch, .. }
            | Event::Tokens { epoch, .. } => *epoch != session.epoch(),
            _ => false,
        };
        let attempt = (session.epoch(), session.attempt());
        let actions = session.step(Millis(self.now), event);
        self.forget_abandoned(attempt, session);
        if stale {
            assert!(actions.is_empty() && before == (session.epoch(), session.emitted().len()), "I2");
        }
        self.act(actions, session);
    }

    /// Rows of an abandoned attempt leave the log.
    fn forget_abandoned(&mut self, before: (u32, u16), session: &Session) {
        if before != (session.epoch(), session.attempt()) {
            let known = PROMPT + session.emitted().len() as u32;
            let below = if before.0 == session.epoch() { session.valid_below(before.1) } else { known };
            self.log.values_mut().for_each(|log| log.retain(|position, _| *position < below));
        }
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
                    let attempt = (session.epoch(), session.attempt());
                    let actions = session.step(Millis(now), failed);
                    self.forget_abandoned(attempt, session);
                    self.act(actions, session);
                }
            } else {
                self.frozen.insert(victim, now + 5_000);
            }
        }
    }
}

/// Runs one request through a world; the end and the virtual time it took.
pub fn run(seed: u64, faults: Faults) -> (End, u64, World) {
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
                let attempt = (session.epoch(), session.attempt());
                let actions = session.step(Millis(world.now), Event::Tick);
                world.forget_abandoned(attempt, &session);
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
