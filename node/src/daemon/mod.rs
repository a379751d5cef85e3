//! The running node: one loop that owns what it knows, and tasks for everything that takes time.
//!
//! ```text
//!   network ──┐                         ┌── stage tasks (sessions of others)      table.rs, stage.rs
//!   commands ─┤                         │
//!   books ────┼──> [ Daemon::run ] ─────┼── prompt tasks (sessions of ours)       prompt.rs, generate/
//!   routes ───┤     view, contacts,     │
//!   clock ────┘     history, held       └── worker subprocess (weights, KV)       worker/
//! ```
//!
//! The loop never waits for a peer or the worker: whatever could take time is a task that sends its result back.
//! Weights, text and activations never enter it. Bounds are at the channels: a full one makes its sender wait, and
//! the network's events are the only ones that may be dropped (announcements, which come again).

mod acquire;
mod admit;
mod api_view;
mod bandwidth;
mod delegate;
mod durable;
mod estimate;
mod gossip;
mod initial_placement;
mod params;
mod place;
mod probation;
mod prompt;
mod pull;
mod reach;
mod report;
mod retry;
mod route;
mod setup;
mod share;
mod status;
mod verdicts;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use p2p::{
    Event, Identity, Network, Plane, Reachability, ReplyTo,
    invite::Invite,
    wire::{
        control::{Answer, Ask as ControlAsk},
        receipt::Receipt,
    },
};
use scheduler::{
    Millis, ModelId, NodeId, SessionId,
    trust::Outcome,
    view::{Geography, SwarmView},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, broadcast, mpsc, watch},
    time::interval,
};

pub use self::{
    acquire::{Absent, Where},
    api_view::Front,
    prompt::PromptTask,
    setup::{Beside, Caps, Notice, Serve, Setup},
    workers::MOST_BESIDE,
};
use self::{
    acquire::{Acquire, News},
    admit::Door,
    estimate::Measured,
    gossip::Facts,
    place::{Moved, Placing},
    probation::Challenges,
    pull::Pulls,
    route::{ConductorQuestion, RouteQuestion},
    share::Uploads,
    workers::{Held, Weights, pump},
};
use crate::{
    Error, Result, clock,
    content::peers,
    control::{self, Call, Question},
    feedback::FeedbackQueue,
    receipts::Receipts,
    request::Reroute,
    sessions::{Order, SessionTable},
    stage::Served,
    trust::Trust,
    worker,
};

/// What a hop to a node is taken to cost that no round trip was measured to, ms one way: another continent, so that what
/// is known to be near goes first.
const UNMEASURED_MS: f64 = 50.0;
/// Looks at the clock this often: announces, expires.
const TICK_MS: u64 = 250;
/// Prompts remembered for `why`.
const HISTORY: usize = 64;
/// Nodes whose loss is told to running prompts; a prompt that lags behind hears of the rest from its streams.
const LOSSES: usize = 256;
/// Entries in the books waiting to be added up.
const BOOKS: usize = 1_024;
/// Words about a model that is on its way; progress beyond is dropped.
const NEWS: usize = 64;
/// How long `leave` waits for what runs.
const DRAIN_MS: u64 = 10_000;

/// A prompt of this node is over.
pub struct Finished {
    session: SessionId,
    model: ModelId,
    /// What there is to say about it.
    line: Option<Value>,
    /// What it taught.
    measured: Measured,
    /// What to remember of whom.
    outcomes: Vec<(NodeId, Outcome)>,
    /// Work that was signed for.
    receipts: Vec<[u8; Receipt::LEN]>,
    /// Proofs against liars.
    proofs: Vec<Vec<u8>>,
}

impl Finished {
    /// Nothing to remember.
    fn new(session: SessionId, model: ModelId, line: Option<Value>) -> Self {
        let (measured, outcomes, receipts, proofs) = Default::default();
        Self { session, model, line, measured, outcomes, receipts, proofs }
    }
}

/// Sums since the node started.
#[derive(Clone, Copy, Default)]
struct Totals {
    rows: u64,
    layer_rows: u64,
    bytes_in: u64,
    bytes_out: u64,
    sessions: u64,
}

struct Daemon {
    me: NodeId,
    front: Front,
    identity: Identity,
    network: Network,
    invite: Invite,
    home: PathBuf,
    keeps: bool,
    started: Instant,
    view: SwarmView,
    facts: BTreeMap<NodeId, Facts>,
    /// The model it was started with.
    held: Held,
    /// Models beside it.
    beside: Vec<Held>,
    trust: Trust,
    receipts: Receipts,
    table: SessionTable,
    /// Where lazy shadows keep what they are sent.
    room: Arc<Semaphore>,
    gossip: gossip::Announcer,
    line: bandwidth::Line,
    /// Bytes of models fetched when it was looked last.
    fetched_bytes: u64,
    door: Door,
    placing: Placing,
    lessons: FeedbackQueue,
    challenges: Challenges,
    history: VecDeque<Value>,
    totals: Totals,
    draining: watch::Sender<bool>,
    paused: bool,
    reachability: Reachability,
    leaving: Option<(Instant, mpsc::Sender<Value>)>,
    notices: mpsc::Sender<Notice>,
    lost: broadcast::Sender<NodeId>,
    books: mpsc::Sender<Served>,
    reroutes: mpsc::Sender<Reroute>,
    routes: mpsc::Sender<RouteQuestion>,
    conductors: mpsc::Sender<ConductorQuestion>,
    finished: mpsc::Sender<Finished>,
    /// Workers that died, by process number.
    deaths: mpsc::Sender<u32>,
    /// Prompts of this node and the peers they run on.
    in_flight: BTreeMap<SessionId, Vec<NodeId>>,
    caps: Caps,
    /// Prompts of other nodes being conducted here hold a clone.
    guests: Arc<()>,
    uploads: Uploads,
    pulls: Pulls,
    shared: watch::Receiver<Vec<p2p::wire::announce::Offer>>,
    provided: BTreeSet<ModelId>,
    news: mpsc::Sender<News>,
}

/// Runs a node until it is told to leave or `stop` turns true.
pub async fn run(setup: Setup, notices: mpsc::Sender<Notice>, mut stop: watch::Receiver<bool>) -> Result<()> {
    let started = Instant::now();
    let listener = control::listen(&setup.home).await?;
    let (network, mut events) = p2p::spawn(setup.network).await.map_err(|e| Error::Failed(e.to_string()))?;
    let table = SessionTable::default();
    let kv_bytes = setup.worker.kv_bytes;
    // A model that is not on this disk is not loaded anew wherever others would like it.
    let cap = match setup.serve {
        Serve::Scarcest(cap) if setup.absent.is_none() => Some(cap),
        _ => None,
    };
    let (deaths, mut died) = mpsc::channel(1);
    let room = worker::Room::new(kv_bytes);
    let spec = worker::Spec { model: Some(setup.model), room, ..setup.worker };
    let weights = Weights::new(setup.caps.weights_bytes);
    let beside = setup.beside.iter().map(|beside| {
        let spec = worker::Spec { model: None, class: None, ..spec.clone() };
        Held::absent(beside.place.id(), &beside.about.name, beside.about.clone(), spec)
    });
    let beside: Vec<Held> = beside.collect();
    let about = setup.front.about.clone();
    let (held, heard) = match (&setup.absent, &setup.serve) {
        (Some(absent), _) => (Held::absent(absent.id, &absent.name, about, spec), Vec::new()),
        (None, serve) => {
            let (serve, heard) = match serve {
                Serve::These(layers) => (layers.clone(), Vec::new()),
                Serve::Scarcest(cap) => {
                    let (range, heard) =
                        initial_placement::choose(&mut events, setup.model, setup.num_layers, *cap).await;
                    (range.into_iter().collect(), heard)
                }
            };
            let (held, outputs) = Held::load(spec, serve, setup.num_layers, setup.file_bytes, about).await?;
            let _ = weights.take(0, held.ready.resident_bytes);
            let pid = held.worker.borrow().pid();
            tokio::spawn(pump(outputs, pid, table.clone(), deaths.clone()));
            (held, heard)
        }
    };

    let (calls_in, mut calls) = mpsc::channel(control::QUESTIONS);
    let seats = control::Seats::default();
    tokio::spawn(control::serve(listener, calls_in.clone(), seats.clone()));
    let (books, mut served) = mpsc::channel(BOOKS);
    let (reroutes, mut reroute) = mpsc::channel(control::QUESTIONS);
    let (routes, mut route) = mpsc::channel(control::QUESTIONS);
    let (conductors, mut conductor) = mpsc::channel(control::QUESTIONS);
    let (finished, mut done) = mpsc::channel(control::QUESTIONS);
    let (born, mut newborn) = mpsc::channel(1);
    let (moves, mut moved) = mpsc::channel(1);
    let (questions, mut question) = mpsc::channel::<peers::Question>(control::QUESTIONS);
    let (news, mut told) = mpsc::channel(NEWS);
    let pulls = Pulls::new(setup.home.clone(), network.clone(), questions, &setup.caps);
    let first = setup.absent.map(|absent| (0, absent.name.clone(), Where::Away(absent), setup.serve));
    let beside_it = setup.beside.into_iter().zip(1..);
    let beside_it = beside_it.map(|(beside, place)| (place, beside.about.name, beside.place, beside.serve));
    for (place, name, from, serve) in first.into_iter().chain(beside_it) {
        let (pulls, weights, news) = (pulls.clone(), weights.clone(), news.clone());
        Acquire { pulls, place, name, from, serve, weights, news }.start();
    }
    let uploads = Uploads::new(setup.home.clone(), setup.caps.upload_bytes_per_s);
    let shared = share::watch_list(setup.home.clone());
    let me = network.me();
    let mut daemon = Daemon {
        me,
        front: setup.front,
        identity: setup.identity,
        network,
        invite: setup.invite,
        home: setup.home.clone(),
        keeps: setup.keeps,
        started,
        view: SwarmView::new(Geography::around(UNMEASURED_MS)),
        facts: BTreeMap::new(),
        trust: Trust::open(&setup.home),
        receipts: Receipts::open(&setup.home, me, clock::receipt_s()),
        held,
        beside,
        table,
        room: crate::stage::room(kv_bytes),
        gossip: gossip::Announcer::new(clock::unix_ms()),
        line: bandwidth::Line::default(),
        fetched_bytes: 0,
        door: Door::new(kv_bytes),
        placing: Placing::new(cap),
        lessons: FeedbackQueue::default(),
        challenges: Challenges::default(),
        history: VecDeque::new(),
        totals: Totals::default(),
        draining: watch::Sender::new(false),
        paused: false,
        reachability: Reachability::Unknown,
        leaving: None,
        notices,
        lost: broadcast::Sender::new(LOSSES),
        books,
        reroutes,
        routes,
        conductors,
        finished,
        deaths,
        in_flight: BTreeMap::new(),
        caps: setup.caps,
        guests: Arc::new(()),
        uploads,
        pulls,
        shared: shared.clone(),
        provided: BTreeSet::new(),
        news,
    };
    let mut list = shared;
    for event in heard {
        daemon.event(event).await;
    }
    daemon.announce(true).await;
    let status = daemon.status().await;
    let _ = daemon.notices.send(Notice::Ready(status)).await;
    if let Some(door) = daemon.front.door.take() {
        door.send_replace(Some(calls_in));
    }
    let mut clock = interval(Duration::from_millis(TICK_MS));
    loop {
        tokio::select! {
            Some(event) = events.next() => daemon.event(event).await,
            Some(call) = calls.recv() => daemon.call(call).await,
            Some(question) = reroute.recv() => daemon.reroute(question),
            Some(question) = route.recv() => daemon.answer_route(question),
            Some(question) = conductor.recv() => daemon.answer_conductors(question),
            Some(entry) = served.recv() => daemon.book(entry),
            Some(pid) = died.recv() => daemon.bear(pid, born.clone()),
            Some(other) = moved.recv() => daemon.moved(other),
            Some((place, worker)) = newborn.recv() => {
                if let Some(held) = daemon.place_mut(place) {
                    held.replace(worker);
                }
            }
            Some(over) = done.recv() => daemon.remember(over),
            Some(question) = question.recv() => daemon.answer_content(question),
            Some(news) = told.recv() => daemon.arrived(news).await,
            Ok(()) = list.changed() => daemon.shared_changed().await,
            _ = clock.tick() => if daemon.tick(&moves).await { break },
            _ = stop.changed() => daemon.leave(None),
        }
    }
    drop(calls);
    daemon.stop().await;
    seats.empty().await;
    let _ = std::fs::remove_file(control::socket(&setup.home));
    Ok(())
}

impl Daemon {
    fn now(&self) -> Millis {
        Millis(self.started.elapsed().as_millis() as u64)
    }

    async fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Announcement(announcement, _) => self.heard(*announcement, now).await,
            Event::Ask { from, ask, reply } => self.asked(from, ask, reply),
            Event::Incoming { from, plane: Plane::Data, stream } => {
                let (reader, _writer) = stream.split();
                tokio::spawn(self.table.clone().read(from, reader));
            }
            Event::Incoming { from, plane: Plane::Delegate, stream } => {
                let (task, guest) = (self.prompt_task(), self.guest());
                tokio::spawn(async move {
                    match &guest {
                        Some(_) => task.delegated(from, stream).await,
                        None => delegate::decline(stream).await,
                    }
                });
            }
            // Closing the stream says enough: the puller asks somebody else.
            Event::Incoming { plane: Plane::Blob, .. } if self.paused => {}
            Event::Incoming { from, plane: Plane::Blob, stream } => self.uploads.answer(from, stream),
            Event::Connected { node, path } => {
                tracing::debug!(%node, %path, "connected");
                // Whoever failed to reach it failed before.
                self.take_lessons();
                self.view.reachable(self.me, node);
                if !self.facts.contains_key(&node) {
                    // Nobody who was met before: what was learned is about a process that is gone.
                    self.lessons.forget(node);
                }
                self.gossip.reached(node, path);
                self.announce(true).await;
            }
            Event::Disconnected { node } => {
                self.take_lessons();
                self.view.forget(node);
                self.gossip.gone(node);
                if self.facts.remove(&node).is_some() {
                    let _ = self.notices.try_send(Notice::Left(node));
                }
                let _ = self.lost.send(node);
            }
            Event::RoundTrip { node, ms } => {
                let ms = self.gossip.measured(node, now, ms);
                self.view.set_link(self.me, node, ms);
            }
            Event::Reachability { reachability } => {
                self.reachability = reachability;
                self.gossip.tell();
            }
            Event::Listening { address } => {
                tracing::info!(%address, "listening");
                self.gossip.tell();
            }
            _ => {}
        }
    }

    /// True when the node may stop.
    async fn tick(&mut self, moves: &mpsc::Sender<Moved>) -> bool {
        let now = self.now();
        for node in self.view.expire(now) {
            if node != self.me && self.facts.remove(&node).is_some() {
                let _ = self.notices.try_send(Notice::Left(node));
            }
        }
        self.admit();
        self.place(moves);
        self.watch_line(now).await;
        self.challenge();
        self.announce(false).await;
        let Some((since, _)) = &self.leaving else { return false };
        self.table.serving(self.me) == 0 || since.elapsed() > Duration::from_millis(DRAIN_MS)
    }

    fn leave(&mut self, caller: Option<mpsc::Sender<Value>>) {
        self.draining.send_replace(true);
        self.gossip.drain();
        let nobody = mpsc::channel(1).0;
        self.leaving.get_or_insert_with(|| (Instant::now(), caller.unwrap_or(nobody)));
    }

    async fn stop(&mut self) {
        if let Some((_, caller)) = self.leaving.take() {
            let _ = caller.try_send(json!({ "left": true, "end": true }));
        }
        self.models().for_each(|held| held.worker.borrow().kill());
        self.network.shutdown().await;
        let _ = self.notices.send(Notice::Stopped).await;
    }

    // --- what peers ask ------------------------------------------------------------------------------------------

    fn asked(&mut self, from: NodeId, ask: ControlAsk, reply: ReplyTo) {
        match ask {
            ControlAsk::Lease(lease) => self.lease(from, lease, reply),
            ControlAsk::Release { session, epoch } => self.released(from, session, epoch, reply),
            ControlAsk::Settle { session, upto } => self.settle(from, session, upto, reply),
            ControlAsk::Receipt(receipt) => {
                self.keep_receipt(from, &receipt);
                self.network.answer(reply, Answer::Released);
            }
            // These are answered by the network itself.
            ControlAsk::CatchUp { .. } | ControlAsk::Ping => {}
        }
    }

    /// Sessions and prompts of other nodes that run here.
    fn strangers(&self) -> usize {
        self.table.serving(self.me) + Arc::strong_count(&self.guests) - 1
    }

    /// A seat for another node's prompt, if there is one.
    fn guest(&self) -> Option<Arc<()>> {
        let open = !self.paused && self.leaving.is_none() && self.strangers() < self.caps.sessions;
        open.then(|| self.guests.clone())
    }

    fn book(&mut self, entry: Served) {
        match entry {
            Served::Rows { rows, layers, bytes_in, bytes_out } => {
                self.totals.rows += u64::from(rows);
                self.totals.layer_rows += u64::from(rows) * u64::from(layers);
                self.totals.bytes_in += bytes_in;
                self.totals.bytes_out += bytes_out;
            }
            Served::Waited { ms, served_ms } => {
                let now = self.now();
                self.gossip.waited(now, ms, served_ms);
            }
            Served::Ended(session) => {
                tracing::debug!(%session, "session over");
                self.admit();
            }
        }
    }

    // --- what commands ask ---------------------------------------------------------------------------------------

    async fn call(&mut self, call: Call) {
        let Call { question, lines } = call;
        let line = match question {
            Question::Generate(ask) => {
                let keeps = self.keeps && (ask.api.repeatable || !ask.api.over_http);
                let home = keeps.then(|| self.home.clone());
                tokio::spawn(self.prompt_task().answer_kept(home, *ask, lines));
                return;
            }
            Question::Resume { session } => {
                let (task, home) = (self.prompt_task(), self.home.clone());
                tokio::spawn(async move { task.resume(&home, session, lines).await });
                return;
            }
            Question::Cancel { session } => self.cancel(&session),
            Question::Plan(ask) => {
                tokio::spawn(self.prompt_task().plan(*ask, lines));
                return;
            }
            Question::Pull(ask) => return self.pulls.answer(*ask, lines),
            Question::Leave => return self.leave(Some(lines)),
            Question::Status => self.status().await,
            Question::Peers => self.peers().await,
            Question::View => self.page().await,
            Question::Receipts => self.list_receipts(),
            Question::Invite => self.invite_code().await,
            Question::Why { session } => self.why(session.as_deref()),
            Question::Pause { paused } => {
                self.paused = paused;
                self.gossip.tell();
                json!({ "paused": paused, "end": true })
            }
        };
        let _ = lines.try_send(line);
    }

    /// Stops an answer of this node.
    fn cancel(&self, session: &str) -> Value {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(session.as_bytes()).ok();
        let session = bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).map(SessionId::new);
        let own =
            session.and_then(|session| self.table.get(session)).filter(|inlets| inlets.requester == self.me);
        let cancelled = own.is_some_and(|inlets| inlets.orders.try_send(Order::Cancel).is_ok());
        json!({ "cancelled": cancelled, "end": true })
    }

    fn prompt_task(&self) -> PromptTask {
        PromptTask {
            me: self.me,
            network: self.network.clone(),
            identity: self.identity.clone(),
            local: self.local(&self.held),
            beside: self.beside.iter().map(|held| self.local(held)).collect(),
            approx: self.approx(),
            table: self.table.clone(),
            routes: self.routes.clone(),
            conductors: self.conductors.clone(),
            reroutes: self.reroutes.clone(),
            lost: self.lost.clone(),
            finished: self.finished.clone(),
            lessons: self.lessons.clone(),
            prove: None,
        }
    }

    fn remember(&mut self, over: Finished) {
        self.in_flight.remove(&over.session);
        let now = self.now();
        for (node, weight, ms) in over.measured.visits {
            self.view.observe_visit(node, over.model, now, weight, ms);
        }
        if let Some(held) = self.model_mut(over.model) {
            over.measured.home_ms.into_iter().for_each(|ms| held.at_home.add(now, ms));
            over.measured.opening_ms.into_iter().for_each(|ms| held.at_opening.add(now, ms));
            over.measured.prefill_factor.into_iter().for_each(|factor| held.at_prefill.add(now, factor));
        }
        self.learn(over.model, over.outcomes, &over.receipts, &over.proofs);
        let Some(line) = over.line else { return };
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }
}
