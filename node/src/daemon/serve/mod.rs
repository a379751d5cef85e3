//! What this node does for others: the models in memory, the sessions of other nodes, and how busy both keep it.
//!
//! [`Serving`] owns the workers of all models (`workers.rs`), the door for sessions of others (`admit.rs`), the choice of
//! layers (`place.rs`) and the models on their way (`acquire.rs`). Whatever takes time is a task; what tasks send back
//! comes in by [`Inbox`] as a [`ServingEvent`]. Where others should hear of a change, a method says so to its caller.

mod acquire;
mod admit;
mod drafter;
mod experts;
mod growth;
mod idle;
mod initial_placement;
mod load;
mod place;
mod pull;
mod weights;
mod workers;

use std::{path::PathBuf, sync::Arc};

use api::inference::ModelInfo;
use p2p::{Events, Permit};
use scheduler::{LayerRange, Millis, NodeId, SessionId, governor::Resource, place::Room};
use tokio::sync::{Notify, mpsc, watch};

pub use self::workers::MOST_BESIDE;
use self::{
    acquire::{Acquire, News},
    admit::Door,
    experts::Leader,
    load::Waits,
    place::{Moved, Placing},
    weights::Weights,
};
pub(super) use self::{
    acquire::{Arrived, answer},
    drafter::{Drafted, Drafter, share_bytes},
    experts::Holder,
    growth::Steps,
    load::Figures,
    pull::Pulls,
    workers::{Held, Local, Models, Restarted},
};
use super::setup::{Absent, Beside, Caps, DraftWith, FirstModel, Node, Serve, Where};
use crate::{
    Error, Result,
    content::peers,
    control,
    sessions::{Order, SessionTable},
    stage::{Lender, Prefixes, Served},
    worker,
};

/// Entries in the books waiting to be added up.
const BOOKS: usize = 1_024;
/// News of models that are on their way; progress beyond is dropped.
const NEWS: usize = 64;
/// Rows that take as long as one step, at most: what a worker computes together.
const MOST_LANES: f64 = 16.0;

/// Sums since the node started.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) rows: u64,
    pub(super) layer_rows: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) sessions: u64,
}

/// Whether sessions and prompts of other nodes are taken, and how many at a time.
pub(super) struct Gate {
    /// Whether the user paused serving.
    pub(super) paused: bool,
    /// True once the node is about to leave.
    pub(super) draining: watch::Sender<bool>,
    /// Prompts of other nodes being conducted here hold a clone.
    guests: Arc<()>,
    /// Sessions and prompts of others at a time.
    most: usize,
}

impl Gate {
    fn new(most: usize) -> Self {
        Self { paused: false, draining: watch::Sender::new(false), guests: Arc::new(()), most }
    }

    /// Whether the node is about to leave.
    pub(super) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

/// What the node was told to serve.
pub(super) struct Wanted {
    /// The data folder.
    pub(super) home: PathBuf,
    /// How to run the first model's worker.
    pub(super) worker: worker::Spec,
    /// Layers of the first model to offer.
    pub(super) serve: Serve,
    /// The first model.
    pub(super) model: FirstModel,
    /// As the API shows it.
    pub(super) about: ModelInfo,
    /// Set when it is not whole on this disk.
    pub(super) absent: Option<Absent>,
    /// Models beside the first.
    pub(super) beside: Vec<Beside>,
    /// What may be taken from this machine.
    pub(super) caps: Caps,
}

/// What the tasks of [`Serving`] send back.
pub(super) enum ServingEvent {
    /// A stage served something.
    Served(Served),
    /// A worker died, by process number.
    Died(u32),
    /// A worker was started where one had died.
    Restarted(Restarted),
    /// A worker with other layers is ready, or is not.
    Moved(Box<Moved>),
    /// A task that moves models asks who holds what.
    Content(peers::Question),
    /// A model is on its way.
    News(News),
    /// Experts elsewhere were found, are gone, or take another time.
    Experts,
    /// Something needs a worker that is not there.
    Wanted,
}

/// Where the events of [`Serving`] come in.
pub(super) struct Inbox {
    served: mpsc::Receiver<Served>,
    died: mpsc::Receiver<u32>,
    restarted: mpsc::Receiver<Restarted>,
    moved: mpsc::Receiver<Moved>,
    content: mpsc::Receiver<peers::Question>,
    news: mpsc::Receiver<News>,
    experts: mpsc::Receiver<()>,
    wanted: Arc<Notify>,
}

impl Inbox {
    /// The next event; a call that is dropped loses none.
    pub(super) async fn next(&mut self) -> ServingEvent {
        tokio::select! {
            Some(entry) = self.served.recv() => ServingEvent::Served(entry),
            Some(pid) = self.died.recv() => ServingEvent::Died(pid),
            Some(restarted) = self.restarted.recv() => ServingEvent::Restarted(restarted),
            Some(moved) = self.moved.recv() => ServingEvent::Moved(Box::new(moved)),
            Some(question) = self.content.recv() => ServingEvent::Content(question),
            Some(news) = self.news.recv() => ServingEvent::News(news),
            Some(()) = self.experts.recv() => ServingEvent::Experts,
            () = self.wanted.notified() => ServingEvent::Wanted,
        }
    }
}

/// See the module's page.
pub(super) struct Serving {
    pub(super) node: Node,
    pub(super) models: Models,
    pub(super) table: SessionTable,
    /// What was computed in sessions of others that have ended.
    pub(super) prefixes: Prefixes,
    pub(super) door: Door,
    pub(super) gate: Gate,
    pub(super) placing: Placing,
    weights: Weights,
    waits: Waits,
    pub(super) totals: Totals,
    pub(super) pulls: Pulls,
    pub(super) books: mpsc::Sender<Served>,
    pub(super) moves: mpsc::Sender<Moved>,
    news: mpsc::Sender<News>,
}

impl Serving {
    /// Loads the first model and starts fetching what is not here. Returns what was heard of the swarm meanwhile, too.
    ///
    /// # Errors
    /// Those of a worker that cannot load the first model.
    pub(super) async fn start(
        node: Node,
        wanted: Wanted,
        events: &mut Events,
    ) -> Result<(Self, Inbox, Vec<p2p::Event>)> {
        let Wanted { home, worker, serve, model, about, absent, beside, caps } = wanted;
        let FirstModel { id: model, num_layers, file_bytes } = model;
        let kv_bytes = worker.kv_bytes;
        // A model that is not on this disk is not loaded again wherever others would like it.
        let first_chosen = match serve {
            Serve::Scarcest(layers) if absent.is_none() => Some((0, layers)),
            _ => None,
        };
        let beside_chosen =
            beside.iter().zip(1..).filter_map(|(beside, place)| match (&beside.serve, &beside.place) {
                (Serve::Scarcest(layers), Where::Here { .. }) => Some((place, *layers)),
                _ => None,
            });
        let placing = Placing::new(first_chosen.into_iter().chain(beside_chosen));
        let (books, served) = mpsc::channel(BOOKS);
        let (deaths, died) = mpsc::channel(1);
        let (restarts, restarted) = mpsc::channel(1);
        let (moves, moved) = mpsc::channel(1);
        let (questions, content) = mpsc::channel(control::QUESTIONS);
        let (news, told) = mpsc::channel(NEWS);
        let (changed, experts) = mpsc::channel(1);
        let wanted = Arc::new(Notify::new());
        let inbox =
            Inbox { served, died, restarted, moved, content, news: told, experts, wanted: wanted.clone() };
        let table = SessionTable::default();
        let mut spec = worker::Spec { model: Some(model), room: worker.room.bounded(kv_bytes), ..worker };
        let mut opened = None;
        if let Some(share) = spec.experts.as_mut().filter(|share| !share.from.is_empty()) {
            let experts = opened.insert(experts::Opened::new());
            share.asks = Some(experts.asks.clone());
        }
        let weights = Weights::new(caps.weights_bytes);
        let beside_it = beside.iter().map(|beside| {
            let spec =
                worker::Spec { model: None, class: None, draft_head: None, experts: None, ..spec.clone() };
            Held::absent(beside.place.id(), &beside.about.name, beside.about.clone(), spec)
        });
        let beside_it: Vec<Held> = beside_it.collect();
        let mut heard = Vec::new();
        let mut outputs = None;
        let first = match &absent {
            Some(absent) => Held::absent(absent.id, &absent.name, about, spec),
            None => {
                let layers = match &serve {
                    Serve::These(layers) => layers.clone(),
                    Serve::Scarcest(layers) => {
                        let room = Room::of_layers(*layers);
                        let (range, meanwhile) =
                            initial_placement::choose(events, model, num_layers, &room).await;
                        heard = meanwhile;
                        range.into_iter().collect()
                    }
                };
                let (held, said) = Held::load(spec, layers, num_layers, file_bytes, about).await?;
                let _ = weights.take(0, held.ready.memory.resident_bytes);
                outputs = Some(said);
                held
            }
        };
        if let Some(opened) = opened {
            Leader::start(node.network.clone(), &first, opened, changed);
        }
        // What the memory of a device does not hold is not promised.
        let device_bytes = if first.loaded.is_empty() { kv_bytes } else { first.ready.memory.kv_bytes };
        let models = Models::new(first, beside_it, table.clone(), (deaths, restarts), &wanted);
        if let Some(outputs) = outputs {
            models.listen_to(outputs, models.first.worker.borrow().pid());
        }
        let pulls = Pulls::new(home, node.network.clone(), questions, &caps);
        let first = absent.map(|absent| (0, absent.name.clone(), Where::Away(absent), serve));
        let others = beside.into_iter().zip(1..);
        let others = others.map(|(beside, place)| (place, beside.about.name, beside.place, beside.serve));
        for (place, name, from, serve) in first.into_iter().chain(others) {
            let (pulls, weights, news) = (pulls.clone(), weights.clone(), news.clone());
            Acquire { pulls, place, name, from, serve, weights, news, steps: Steps::new() }.start();
        }
        let serving = Self {
            node,
            models,
            table,
            prefixes: Prefixes::default(),
            door: Door::new(kv_bytes.min(device_bytes)),
            gate: Gate::new(caps.sessions),
            placing,
            weights,
            waits: Waits::new(),
            totals: Totals::default(),
            pulls,
            books,
            moves,
            news,
        };
        Ok((serving, inbox, heard))
    }

    /// Has a model draft for the prompts of this node, with `kv_bytes` for its states.
    ///
    /// # Errors
    /// When it cannot be loaded, or speaks other tokens than the first model, where that is here.
    pub(super) async fn draft_with(&mut self, with: DraftWith, kv_bytes: u64) -> Result<()> {
        let first = &self.models.first;
        let drafter = Drafter::start(&with.name, with.source, &first.spec, kv_bytes).await;
        let drafter = drafter.map_err(Error::usage)?;
        if first.ready.num_layers > 0 {
            drafter.fits(&first.ready).map_err(Error::usage)?;
        }
        self.models.drafter = Some(drafter);
        Ok(())
    }

    /// Adds up what a stage did.
    pub(super) fn book(&mut self, entry: Served) {
        match entry {
            Served::Rows { rows, layers, bytes_in, bytes_out } => {
                self.totals.rows += u64::from(rows);
                self.totals.layer_rows += u64::from(rows) * u64::from(layers);
                self.totals.bytes_in += bytes_in;
                self.totals.bytes_out += bytes_out;
            }
            Served::Waited { ms } => self.waits.add(self.node.now(), ms),
            Served::Sign(key, sign) => self.sign(key, sign),
            // Whom to believe is another owner's.
            Served::Misled { .. } => {}
            Served::Ended(session) => {
                tracing::debug!(%session, "session over");
                self.admit();
            }
        }
    }

    /// What hands states of ended sessions to nodes that their requesters name.
    pub(super) fn lender(&self) -> Lender {
        Lender {
            prefixes: self.prefixes.clone(),
            identity: self.node.identity.clone(),
            governor: self.node.network.governor().clone(),
            workers: self.models.all().map(|held| (held.id, held.worker.borrow().clone())).collect(),
        }
    }

    /// A model is on its way.
    pub(super) fn arrived(&mut self, news: News) -> Arrived {
        let (leaving, place) = (self.gate.is_draining(), news.place);
        let arrived = self.models.arrived(news, &self.news, leaving);
        if let (Arrived::Serving { whole: true, .. }, Some(held)) = (&arrived, self.models.at(place)) {
            self.weights.holds(place, held.ready.memory.resident_bytes);
        }
        arrived
    }

    /// Sessions and prompts of other nodes that run here.
    pub(super) fn strangers(&self) -> usize {
        self.table.serving(self.node.me) + self.guests()
    }

    /// Prompts of other nodes that are conducted here.
    fn guests(&self) -> usize {
        Arc::strong_count(&self.gate.guests) - 1
    }

    /// Whether as many sessions and prompts of others run here as may.
    pub(super) fn is_full(&self) -> bool {
        self.strangers() >= self.gate.most
    }

    /// A seat for a prompt of another node, if there is one: it counts as a session of that node. Half of the places stay
    /// with sessions, so that prompts alone keep no stage out.
    pub(super) fn guest(&self, from: NodeId) -> Option<(Arc<()>, Permit)> {
        let full = self.is_full() || self.guests() >= self.gate.most.div_ceil(2);
        let open = !self.gate.paused && !self.gate.is_draining() && !full;
        let permit = open.then(|| self.node.network.governor().take_for(from, Resource::Leases, 1))?;
        Some((self.gate.guests.clone(), permit.ok()?))
    }

    /// Stops the answer of this node with this session; returns whether there is one.
    pub(super) fn cancel(&self, session: SessionId) -> bool {
        let own = self.table.get(self.node.me, session);
        own.is_some_and(|inlets| inlets.orders.try_send(Order::Cancel).is_ok())
    }

    /// Rows of `held` that take as long as one step, as prices of load take it.
    pub(super) fn knee(held: &Held) -> u32 {
        let times = &held.ready.times;
        ((times.decode_ms / times.prefill_ms.max(1e-9)).round().clamp(1.0, MOST_LANES) as u32).max(1)
    }

    /// How busy this node is now.
    pub(super) fn figures(&mut self, now: Millis) -> Figures {
        let active = self.door.sessions();
        let (waited_ms, queue_ms) = self.waits.split(now);
        // What present visits wait is the work of present sessions.
        let queue_ms = if active == 0 { 0.0 } else { queue_ms };
        let full = self.is_full();
        let kv_bytes = self.door.kv_free();
        let leading = self.models.leading();
        Figures {
            visit_ms: leading.ready.times.visit_ms.max(waited_ms),
            queue_ms,
            active,
            knee: Self::knee(leading),
            kv_bytes,
            full,
        }
    }

    /// The layers of a model that others are told of.
    pub(super) fn offered(&self, held: &Held) -> Vec<LayerRange> {
        if !held.computes() {
            return Vec::new();
        }
        match self.models.all().position(|other| other.id == held.id) {
            Some(place) => self.placing.offered(place, &held.served),
            None => held.served.clone(),
        }
    }
}
