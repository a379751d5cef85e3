//! The life of a prompt across the swarm, top to bottom, as its requester lives it.
//!
//! ```text
//! route ── who runs what, who stands by                  (asked of the daemon, which owns the view)
//!   lease ── every stage promises, all at once           Open, Follow   -> Opened
//!     prefill ── chunks chase each other down the chain  Send           -> Boundary, Boundary, ..
//!       decode ── one pass a token                       Send           -> Boundary, .., Token -> Emit
//!         a stage fails ── the same steps from where the replacement stands; nothing is said twice
//!     release ── leases, KV                              Close          -> Done
//! ```
//!
//! What to do is decided by [`scheduler::session::Session`], which sees events and answers with actions; this file does
//! them. It holds the truth of the session (the tokens) and the log: what entered each segment, as it crossed the
//! wire, so that a replacement can be brought to the same bits.
//!
//! The first and the last segment run in this node's own worker, which also samples: token ids, text and logits never
//! leave the machine. Frames from a stage carry the epoch they were leased under; others are dropped.
//!
//! Limits: the log keeps at most [`MAX_LOG_BYTES`]; beyond, what is missing is computed again from the tokens.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use p2p::{
    HopError, Network,
    codec::{self, Wire},
    wire::{
        control::{Answer, Ask, Contact, Lease},
        frame::{Header, Kind},
    },
};
use scheduler::{
    LayerRange, Millis, NodeId, Pipeline, RoutePolicy, Segment, SessionId, Shape,
    recover::Failure,
    session::{Action, End, Event, Session, Standbys},
};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use crate::{
    table::{Arrival, Inlets, JOBS_AHEAD, Order, Outbox, Outlets},
    worker::{Body, Conduct, Job, JobInput, OpenSession, Output, Top, Want, Worker},
};

/// Rows of one prefill frame: enough to amortize unpacking weights, small enough that stages overlap.
pub const CHUNK_ROWS: u32 = 96;
/// A shadow is fed every this many positions (the lag it may have).
const FEED_ROWS: u32 = 16;
/// Bytes of inputs kept for replays, all segments together.
const MAX_LOG_BYTES: usize = 1 << 28;
/// Own stages say this often that they compute, as those of others do.
const BEACON: Duration = Duration::from_millis(100);
/// An answer to a lease later than this counts as none.
const LEASE_MS: u64 = 2_000;
/// How long a stage keeps a session nobody sends frames for.
const TTL_MS: u32 = 60_000;

/// What is to be generated, and where.
pub struct Plan {
    /// Its name.
    pub session: SessionId,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// How tokens are chosen, and what was said already.
    pub conduct: Conduct,
    /// How activations travel.
    pub wire: Wire,
    /// Width of an activation.
    pub hidden: usize,
    /// Which model.
    pub model: scheduler::ModelId,
    /// Who runs what.
    pub pipeline: Pipeline,
    /// Who stands by.
    pub standbys: Standbys,
    /// Where nodes are.
    pub contacts: Vec<Contact>,
    /// The network's share of the slowest ordinary step, ms.
    pub rtt_p99_ms: f64,
    /// What the requester insists on.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
}

impl Plan {
    fn contact(&self, node: NodeId) -> Contact {
        let known = self.contacts.iter().find(|contact| contact.node == node);
        known.cloned().unwrap_or_else(|| Contact { node, addresses: Vec::new() })
    }
}

/// What the caller hears.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A token, in order, once.
    Token {
        /// Its position, the prompt included.
        position: u32,
        /// Its id.
        id: u32,
        /// Text that became certain with it.
        text: String,
        /// Its log-probability, when asked for.
        logprob: Option<f32>,
        /// The likeliest tokens at its position: id, log-probability.
        top: Vec<Top>,
    },
    /// Somebody failed and somebody else goes on.
    Moved {
        /// Who failed.
        failed: NodeId,
        /// Who runs what from now on.
        segments: Vec<Segment>,
    },
    /// It is over.
    Done(Box<Report>),
}

/// What happened, for `why` and for the answer's metadata.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub end: End,
    /// Text that was held back and turned out to belong to the answer.
    pub rest: String,
    /// Ids generated.
    pub ids: Vec<u32>,
    /// Who ran what at the end.
    pub segments: Vec<Segment>,
    /// Milliseconds of a decode step until the output of each segment arrived, means.
    pub stage_ms: Vec<f64>,
    /// Time to the first token.
    pub ttft_ms: f64,
    /// From token to token, ms, in order.
    pub gaps_ms: Vec<f64>,
    /// Failures survived: who and how long nothing came, ms.
    pub faults: Vec<(NodeId, f64)>,
    /// Bytes of activations sent and received.
    pub wire_bytes: (u64, u64),
    /// Two answers for one position differed this often.
    pub evidence: u32,
}

/// What the conductor needs from the rest of the node.
pub struct Means {
    /// This node.
    pub me: NodeId,
    /// The way out.
    pub network: Network,
    /// Its own worker; another one after a crash.
    pub worker: watch::Receiver<Worker>,
    /// Asks the daemon for another pipeline without these nodes.
    pub reroute: mpsc::Sender<Reroute>,
    /// Nodes that closed their connections.
    pub lost: broadcast::Receiver<NodeId>,
    /// The caller.
    pub progress: mpsc::Sender<Progress>,
}

/// A question to the daemon.
#[derive(Debug)]
pub struct Reroute {
    /// Whose.
    pub session: SessionId,
    /// What the requester insists on.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
    /// Nodes that failed this request.
    pub deny: BTreeSet<NodeId>,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Option<(Pipeline, Standbys, Vec<Contact>)>>,
}

/// Inputs of one boundary, as they crossed the wire, from position 0 without a gap.
#[derive(Default)]
struct Log {
    wire: Option<Wire>,
    bytes: Vec<u8>,
}

struct Conductor {
    means: Means,
    plan: Plan,
    orders: mpsc::Sender<Order>,
    machine: Session,
    began: Instant,
    tokens: Vec<u32>,
    /// By the layer the inputs enter.
    logs: BTreeMap<u32, Log>,
    rounding: Vec<u32>,
    outboxes: BTreeMap<NodeId, Outbox>,
    /// Jobs for the own worker that wait for their turn.
    waiting: VecDeque<Job>,
    running: usize,
    running_epoch: u32,
    /// The step whose sample was asked for.
    sampling: Option<(u32, u32)>,
    /// What the worker said about the token that the machine is about to emit.
    sampled: Option<(Progress, bool)>,
    /// By stage, positions given to its shadow.
    fed: BTreeMap<NodeId, u32>,
    shadows: BTreeMap<usize, NodeId>,
    step_began: Instant,
    stage_ms: BTreeMap<u32, (f64, u32)>,
    silent_since: Option<(NodeId, Instant)>,
    report: Report,
}

/// Runs the prompt to its end. Nothing is returned: the caller hears of it through [`Progress`].
pub async fn conduct(means: Means, plan: Plan, inlets: Inlets, mut doors: Outlets) {
    let began = Instant::now();
    let prompt = plan.prompt.len() as u32;
    let (machine, first) = Session::start(
        plan.session,
        Millis(0),
        prompt,
        plan.max_tokens,
        &plan.pipeline,
        &plan.standbys,
        plan.rtt_p99_ms,
    );
    let rounding = match plan.wire {
        Wire::Raw => Vec::new(),
        Wire::Q8 => plan.pipeline.segments().iter().skip(1).map(|segment| segment.layers.start()).collect(),
    };
    let report = Report {
        end: End::Cancelled,
        rest: String::new(),
        ids: Vec::new(),
        segments: plan.pipeline.segments().to_vec(),
        stage_ms: Vec::new(),
        ttft_ms: 0.0,
        gaps_ms: Vec::new(),
        faults: Vec::new(),
        wire_bytes: (0, 0),
        evidence: 0,
    };
    let mut conductor = Conductor {
        tokens: plan.prompt.clone(),
        means,
        plan,
        orders: inlets.orders,
        machine,
        began,
        logs: BTreeMap::new(),
        rounding,
        outboxes: BTreeMap::new(),
        waiting: VecDeque::new(),
        running: 0,
        running_epoch: 0,
        sampling: None,
        sampled: None,
        fed: BTreeMap::new(),
        shadows: BTreeMap::new(),
        step_began: began,
        stage_ms: BTreeMap::new(),
        silent_since: None,
        report,
    };
    let mut over = conductor.perform(first).await;
    while !over {
        conductor.feed_worker();
        let now = conductor.now();
        let due = conductor
            .machine
            .wake()
            .map_or(Duration::from_secs(1), |due| Duration::from_millis(due.since(now)));
        let events = tokio::select! {
            biased;
            Some(output) = doors.outputs.recv() => conductor.output(output),
            Some(arrival) = doors.frames.recv() => conductor.arrival(arrival),
            Some(order) = doors.orders.recv() => conductor.order(order),
            Ok(node) = conductor.means.lost.recv() => conductor.failed(node, Failure::Closed),
            () = sleep(due.min(BEACON)) => conductor.tick(),
        };
        for event in events {
            let now = conductor.now();
            let before: Vec<Segment> = conductor.machine.segments().collect();
            let actions = conductor.machine.step(now, event);
            over = conductor.perform(actions).await || over;
            conductor.notice_move(&before).await;
        }
    }
}

impl Conductor {
    /// Time passed. The own stages say like any other that they are computing.
    fn tick(&self) -> Vec<Event> {
        let epoch = self.machine.epoch();
        let home = self.machine.segments().enumerate().filter(|(_, segment)| segment.node == self.means.me);
        let computing = self.running > 0 && self.means.worker.borrow().is_alive();
        let beacons = home.filter(|_| computing).map(|(stage, _)| Event::Beacon { stage, epoch });
        beacons.chain([Event::Tick]).collect()
    }

    fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
    }

    /// Does what the machine says; true when it is over.
    async fn perform(&mut self, actions: Vec<Action>) -> bool {
        for action in actions {
            match action {
                Action::Open { stage, epoch, segment, next, at } => {
                    self.open(Some(stage), epoch, segment, next, at)
                }
                Action::Follow { stage, epoch, segment, next, at } => {
                    self.shadows.insert(stage, segment.node);
                    self.fed.insert(segment.node, 0);
                    self.open(None, epoch, segment, next, at);
                }
                Action::Send { stage, epoch, node, from, to } => self.send(stage, epoch, node, from, to),
                Action::Emit { position, token } => self.emit(position, token).await,
                Action::FindRoute { deny } => self.find_route(deny),
                Action::Close { node, epoch } => self.close(node, epoch),
                Action::Evidence { .. } => self.report.evidence += 1,
                Action::Done(end) => {
                    self.done(end).await;
                    return true;
                }
            }
        }
        false
    }

    // --- lease -------------------------------------------------------------------------------------------------

    fn open(&mut self, stage: Option<usize>, epoch: u32, segment: Segment, next: Option<NodeId>, at: u32) {
        let (orders, node) = (self.orders.clone(), segment.node);
        // A cut that a failover made is not a rounding boundary: it travels raw.
        let rounded = self.rounding.contains(&segment.layers.end());
        let wire = if rounded { self.plan.wire } else { Wire::Raw };
        let positions = self.plan.prompt.len() as u32 + self.plan.max_tokens;
        self.sampling = None;
        self.waiting.retain(|job| job.epoch == epoch);
        if self.running_epoch != epoch {
            // What was under way belongs to the epoch before; the worker drops it without an answer.
            (self.running_epoch, self.running) = (epoch, 0);
        }
        if node == self.means.me {
            let last = segment.layers.end() == self.machine_layers();
            let history = self.tokens.clone();
            let open = OpenSession {
                session: self.plan.session,
                epoch,
                layers: segment.layers,
                positions,
                at,
                wire,
                rounding: self.rounding.clone(),
                conduct: last.then(|| Conduct { history, ..self.plan.conduct.clone() }),
            };
            let mut workers = self.means.worker.clone();
            tokio::spawn(async move {
                let alive =
                    timeout(Duration::from_millis(LEASE_MS), workers.wait_for(Worker::is_alive)).await;
                let worker = alive.ok().and_then(Result::ok).map(|worker| worker.clone());
                let answer = match worker {
                    Some(worker) => worker.open(open).await.map_err(|_| Failure::Refused),
                    None => Err(Failure::Late),
                };
                let _ = orders.send(Order::Opened { stage, epoch, node, answer }).await;
            });
            return;
        }
        let next = next.filter(|next| *next != self.means.me);
        let lease = Lease {
            session: self.plan.session,
            epoch,
            model: self.plan.model,
            layers: segment.layers,
            positions,
            at,
            wire,
            rounding: self.rounding.clone(),
            next: next.map(|next| self.plan.contact(next)),
            log: true,
            ttl_ms: TTL_MS,
            follow: stage.is_none(),
        };
        let (network, there) = (self.means.network.clone(), self.plan.contact(node));
        tokio::spawn(async move {
            let asked = async {
                network.connect(&there).await.map_err(|_| HopError::Closed)?;
                network.ask(node, &Ask::Lease(lease), Duration::from_millis(LEASE_MS)).await
            }
            .await;
            let answer = match asked {
                Ok(Answer::Accepted { have }) => Ok(have),
                Ok(Answer::Refused { reason, text }) => {
                    tracing::info!(%node, ?reason, text, "lease refused");
                    Err(Failure::Refused)
                }
                Ok(_) | Err(HopError::Corrupt) => Err(Failure::Corrupt),
                Err(HopError::Refused(_)) => Err(Failure::Refused),
                Err(HopError::Timeout) => Err(Failure::Late),
                Err(HopError::Closed) => Err(Failure::Closed),
            };
            let _ = orders.send(Order::Opened { stage, epoch, node, answer }).await;
        });
    }

    fn machine_layers(&self) -> u32 {
        self.plan.pipeline.num_layers()
    }

    fn segment(&self, stage: usize) -> Option<Segment> {
        self.machine.segments().nth(stage)
    }

    fn stage_from(&self, start: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.start() == start)
    }

    fn stage_to(&self, end: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.end() == end)
    }

    // --- prefill, decode, replay: one thing ---------------------------------------------------------------------

    /// Sends the inputs `[from, to)` of a stage: tokens to the first, the log to any other.
    fn send(&mut self, stage: usize, epoch: u32, node: NodeId, from: u32, to: u32) {
        let Some(segment) = self.segment(stage) else { return };
        if stage == 0 {
            self.step_began = Instant::now();
        }
        if node != segment.node {
            // A hedge: whoever follows must first have all that came before.
            self.feed(node, segment.layers.start(), epoch, from);
        }
        let mut at = from;
        while at < to {
            let rows = CHUNK_ROWS.min(to - at);
            if segment.layers.start() == 0 {
                let ids = self.tokens[at as usize..(at + rows) as usize].to_vec();
                self.run_at_home(segment.layers, epoch, at, rows, JobInput::Tokens(ids));
            } else if let Some((wire, bytes)) = self.logged(segment.layers.start(), at, rows) {
                self.give(node, segment.layers, epoch, at, rows, wire, bytes);
            }
            at += rows;
        }
    }

    fn logged(&self, boundary: u32, from: u32, rows: u32) -> Option<(Wire, Bytes)> {
        let log = self.logs.get(&boundary)?;
        let wire = log.wire?;
        let row = codec::encoded_len(wire, 1, self.plan.hidden)?;
        let bytes = log.bytes.get(from as usize * row..(from + rows) as usize * row)?;
        Some((wire, Bytes::copy_from_slice(bytes)))
    }

    /// Gives inputs to whoever runs `layers`.
    #[allow(clippy::too_many_arguments)]
    fn give(
        &mut self,
        node: NodeId,
        layers: LayerRange,
        epoch: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: Bytes,
    ) {
        if node == self.means.me {
            self.run_at_home(layers, epoch, from, rows, JobInput::Wire(wire, bytes.to_vec()));
        } else {
            self.frame(node, Kind::Activations, layers.start(), epoch, from, rows, wire, bytes);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn frame(
        &mut self,
        node: NodeId,
        kind: Kind,
        layer: u32,
        epoch: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: Bytes,
    ) {
        let header = Header { kind, wire, epoch, layer, from, rows, len: bytes.len() as u32 };
        self.report.wire_bytes.0 += bytes.len() as u64;
        let (network, orders, session) = (&self.means.network, &self.orders, self.plan.session);
        let contact = self.plan.contact(node);
        let outbox = self
            .outboxes
            .entry(node)
            .or_insert_with(|| Outbox::open(network.clone(), contact, session, epoch, orders.clone()));
        if !outbox.send(header, bytes) {
            self.outboxes.remove(&node);
            let _ = self.orders.try_send(Order::Lost(node));
        }
    }

    fn run_at_home(&mut self, layers: LayerRange, epoch: u32, from: u32, rows: u32, input: JobInput) {
        let known = self.tokens.len() as u32;
        let last = layers.end() == self.machine_layers();
        let want = if !last {
            Want::Activations
        } else if from + rows == known && self.sampling != Some((epoch, known)) {
            self.sampling = Some((epoch, known));
            Want::Sample
        } else {
            Want::Nothing
        };
        self.waiting.push_back(Job {
            session: self.plan.session,
            epoch,
            layer: layers.start(),
            from,
            rows,
            input,
            want,
        });
    }

    /// Keeps the own worker busy without filling its queue.
    fn feed_worker(&mut self) {
        while self.running < JOBS_AHEAD
            && let Some(job) = self.waiting.pop_front()
        {
            let worker = self.means.worker.borrow().clone();
            if worker.run(job).is_err() {
                let _ = self.orders.try_send(Order::Lost(self.means.me));
                return;
            }
            self.running += 1;
        }
    }

    /// The own worker answered.
    fn output(&mut self, output: Output) -> Vec<Event> {
        if output.epoch != self.machine.epoch() {
            return Vec::new();
        }
        self.running = self.running.saturating_sub(1);
        let Some(stage) = self.stage_from(output.layers.start()) else { return Vec::new() };
        let to = output.from + output.rows;
        match output.body {
            Body::Activations(wire, bytes) => self.boundary(
                stage,
                output.layers.end(),
                output.from,
                output.rows,
                wire,
                Bytes::from(bytes),
                true,
            ),
            Body::Sampled { id, text, stop, ends_turn, logprob, top, .. } => {
                let said = Progress::Token { position: to, id, text, logprob, top };
                self.sampled = Some((said, ends_turn));
                vec![Event::Token { epoch: output.epoch, position: to, token: id, stop }]
            }
            Body::NeedReplay { have } => vec![Event::NeedReplay { stage, epoch: output.epoch, have }],
            Body::Failed(why) => {
                tracing::warn!(why, "the own worker failed");
                self.failed(self.means.me, Failure::Crashed)
            }
            Body::Nothing => Vec::new(),
        }
    }

    /// A stage's frame came in.
    fn arrival(&mut self, arrival: Arrival) -> Vec<Event> {
        let (from, header, payload) = match arrival {
            Arrival::Frame { from, header, payload } => (from, header, payload),
            // The connection's end is told apart from a stream's: the machine hears of it through `lost`.
            Arrival::Ended { .. } => return Vec::new(),
        };
        if header.epoch != self.machine.epoch() {
            return Vec::new();
        }
        self.report.wire_bytes.1 += payload.len() as u64;
        let epoch = header.epoch;
        let stage = match header.kind {
            Kind::Activations => self.stage_to(header.layer),
            _ => self.stage_from(header.layer),
        };
        let Some(stage) = stage.filter(|stage| self.may_speak(*stage, from)) else { return Vec::new() };
        match header.kind {
            Kind::Activations => self.boundary(
                stage,
                header.layer,
                header.from,
                header.rows,
                header.wire,
                Bytes::from(payload),
                false,
            ),
            Kind::NeedReplay if self.segment(stage).is_some_and(|segment| segment.node == from) => {
                vec![Event::NeedReplay { stage, epoch, have: header.from }]
            }
            Kind::Beacon => vec![Event::Beacon { stage, epoch }],
            // It computes; whom it cannot reach is likelier to be gone than it is to lie.
            Kind::Unreachable => match self.segment(stage + 1) {
                Some(next) if next.node != self.means.me => self.failed(next.node, Failure::Closed),
                _ => Vec::new(),
            },
            Kind::Failed => {
                tracing::info!(node = %from, why = %String::from_utf8_lossy(&payload), "a stage failed");
                self.failed(from, Failure::Crashed)
            }
            _ => Vec::new(),
        }
    }

    fn may_speak(&self, stage: usize, node: NodeId) -> bool {
        self.segment(stage).is_some_and(|segment| segment.node == node)
            || self.shadows.get(&stage) == Some(&node)
    }

    /// The output of a stage is here: log it, pass it on where that is ours to do.
    #[allow(clippy::too_many_arguments)]
    fn boundary(
        &mut self,
        stage: usize,
        layer: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: Bytes,
        home: bool,
    ) -> Vec<Event> {
        let epoch = self.machine.epoch();
        let Some(row) = codec::encoded_len(wire, 1, self.plan.hidden) else { return Vec::new() };
        if bytes.len() != row * rows as usize || from + rows > self.tokens.len() as u32 {
            return self
                .segment(stage)
                .map_or_else(Vec::new, |segment| self.failed(segment.node, Failure::Corrupt));
        }
        let room =
            self.logs.values().map(|log| log.bytes.len()).sum::<usize>() + bytes.len() <= MAX_LOG_BYTES;
        let log = self.logs.entry(layer).or_default();
        let here = from as usize * row;
        log.wire.get_or_insert(wire);
        let mut reached = None;
        if log.wire == Some(wire) && here <= log.bytes.len() {
            let overlap = (log.bytes.len() - here).min(bytes.len());
            if log.bytes[here..here + overlap] != bytes[..overlap] {
                // The same inputs gave other bits. The first answer stands: it was used.
                self.report.evidence += 1;
                tracing::warn!(stage, layer, from, "two answers for one position differ");
            }
            if room {
                log.bytes.extend_from_slice(&bytes[overlap..]);
                reached = Some((log.bytes.len() / row) as u32);
            }
        }
        if rows == 1 {
            let ms = self.step_began.elapsed().as_secs_f64() * 1e3;
            let mean = self.stage_ms.entry(layer).or_insert((0.0, 0));
            *mean = (mean.0 + ms, mean.1 + 1);
        }
        let next = self.segment(stage + 1);
        if let Some(next) = next
            && (home || next.node == self.means.me)
        {
            self.give(next.node, next.layers, epoch, from, rows, wire, bytes);
        }
        self.feed_shadow(stage + 1);
        reached.map_or_else(Vec::new, |logged| {
            vec![Event::Boundary { stage, epoch, to: logged.min(from + rows) }]
        })
    }

    /// Gives the shadow of a stage what was logged since, in chunks.
    fn feed_shadow(&mut self, stage: usize) {
        let (Some(shadow), Some(segment)) = (self.shadows.get(&stage).copied(), self.segment(stage)) else {
            return;
        };
        let boundary = segment.layers.start();
        let Some(row) =
            self.logs.get(&boundary).and_then(|log| codec::encoded_len(log.wire?, 1, self.plan.hidden))
        else {
            return;
        };
        let logged = self.logs.get(&boundary).map_or(0, |log| (log.bytes.len() / row) as u32);
        if logged >= self.fed.get(&shadow).copied().unwrap_or(0) + FEED_ROWS {
            self.feed(shadow, boundary, self.machine.epoch(), logged);
        }
    }

    /// Gives a follower the inputs it has not had yet, below position `to`.
    fn feed(&mut self, shadow: NodeId, boundary: u32, epoch: u32, to: u32) {
        let mut at = self.fed.get(&shadow).copied().unwrap_or(0);
        while at < to {
            let rows = CHUNK_ROWS.min(to - at);
            let Some((wire, bytes)) = self.logged(boundary, at, rows) else { break };
            self.frame(shadow, Kind::Feed, boundary, epoch, at, rows, wire, bytes);
            at += rows;
        }
        self.fed.insert(shadow, at);
    }

    async fn emit(&mut self, position: u32, token: u32) {
        let now = self.began.elapsed().as_secs_f64() * 1e3;
        if self.report.ids.is_empty() {
            self.report.ttft_ms = now;
        } else {
            let before: f64 = self.report.ttft_ms + self.report.gaps_ms.iter().sum::<f64>();
            self.report.gaps_ms.push(now - before);
        }
        if let Some((node, since)) = self.silent_since.take() {
            self.report.faults.push((node, since.elapsed().as_secs_f64() * 1e3));
        }
        self.tokens.push(token);
        let Some((said, ends_turn)) = self.sampled.take() else { return };
        debug_assert!(matches!(said, Progress::Token { position: at, .. } if at == position));
        if ends_turn {
            // The token that ends the turn is not part of the answer; text held back before it may be.
            if let Progress::Token { text, .. } = said {
                self.report.rest.push_str(&text);
            }
            return;
        }
        self.report.ids.push(token);
        if self.means.progress.send(said).await.is_err() {
            // Nobody listens any more.
            let _ = self.orders.try_send(Order::Cancel);
        }
    }

    // --- failure -----------------------------------------------------------------------------------------------

    fn failed(&mut self, node: NodeId, failure: Failure) -> Vec<Event> {
        let ours = self.machine.segments().any(|segment| segment.node == node);
        let shadow = self.shadows.values().any(|shadow| *shadow == node);
        if ours && self.silent_since.is_none() {
            self.silent_since = Some((node, Instant::now()));
        }
        self.outboxes.remove(&node);
        self.shadows.retain(|_, shadow| *shadow != node);
        if ours || shadow { vec![Event::Failed { node, failure }] } else { Vec::new() }
    }

    fn order(&mut self, order: Order) -> Vec<Event> {
        match order {
            Order::Opened { stage: Some(stage), epoch, node, answer } => match answer {
                Ok(have) => vec![Event::Opened { stage, epoch, have }],
                Err(failure) if epoch == self.machine.epoch() => self.failed(node, failure),
                Err(_) => Vec::new(),
            },
            Order::Opened { stage: None, node, answer, .. } => match answer {
                Ok(have) => {
                    self.fed.insert(node, have);
                    Vec::new()
                }
                Err(failure) => self.failed(node, failure),
            },
            Order::Rerouted(found) => {
                let found = found.map(|(pipeline, standbys, contacts)| {
                    self.plan.contacts.extend(contacts);
                    (pipeline, standbys)
                });
                self.shadows.clear();
                vec![Event::Rerouted(found)]
            }
            Order::Lost(node) => self.failed(node, Failure::Closed),
            Order::Cancel => vec![Event::Cancel],
            Order::Lease { .. } | Order::Release { .. } => Vec::new(),
        }
    }

    fn find_route(&mut self, deny: Vec<NodeId>) {
        let (answer, found) = oneshot::channel();
        let question = Reroute {
            session: self.plan.session,
            policy: self.plan.policy.clone(),
            shape: self.plan.shape,
            deny: deny.into_iter().collect(),
            answer,
        };
        let (reroute, orders) = (self.means.reroute.clone(), self.orders.clone());
        tokio::spawn(async move {
            let found = match reroute.send(question).await {
                Ok(()) => found.await.unwrap_or(None),
                Err(_) => None,
            };
            let _ = orders.send(Order::Rerouted(found)).await;
        });
    }

    /// Tells the caller when somebody was replaced.
    async fn notice_move(&mut self, before: &[Segment]) {
        let now: Vec<Segment> = self.machine.segments().collect();
        if now == before {
            return;
        }
        // Who is out of it altogether, else (a slow stage relieved of some layers) whoever runs something else now.
        let out = before.iter().find(|old| now.iter().all(|new| new.node != old.node));
        if let Some(left) = out.or(before.iter().find(|old| !now.contains(old))) {
            let moved = Progress::Moved { failed: left.node, segments: now };
            let _ = self.means.progress.send(moved).await;
        }
    }

    // --- release -----------------------------------------------------------------------------------------------

    fn close(&mut self, node: NodeId, epoch: u32) {
        self.outboxes.remove(&node);
        if node == self.means.me {
            return;
        }
        let (network, session) = (self.means.network.clone(), self.plan.session);
        tokio::spawn(async move {
            let _ =
                network.ask(node, &Ask::Release { session, epoch }, Duration::from_millis(LEASE_MS)).await;
        });
    }

    async fn done(&mut self, end: End) {
        let session = self.plan.session;
        let worker = self.means.worker.borrow().clone();
        self.report.rest.push_str(&worker.finish(session).await.unwrap_or_default());
        worker.close(session);
        self.report.end = end;
        self.report.segments = self.machine.segments().collect();
        let stages = self.report.segments.iter().map(|segment| {
            let (sum, count) = self.stage_ms.get(&segment.layers.end()).copied().unwrap_or((0.0, 0));
            if count == 0 { 0.0 } else { sum / f64::from(count) }
        });
        self.report.stage_ms = stages.collect();
        let _ = self.means.progress.send(Progress::Done(Box::new(self.report.clone()))).await;
    }
}
