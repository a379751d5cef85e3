//! The API's other side on a node of a swarm: prompts become questions to the running node.
//!
//! ```text
//! HTTP ── Swarmed::generate ── admission ── Question::Generate ──> daemon/prompts ──> the swarm
//!            events  <── answer.rs <── lines: route, token, pace, moved, done
//!            vectors <── texts.rs  <── Question::Generate, one for each text
//!            page    <── view.rs   <── Question::View, every 400 ms
//! ```
//!
//! The daemon may run in this process (`shoal join --api`) or in another one (`shoal serve --via swarm`): both are asked
//! the same questions. Text is encoded, tokens are chosen, stop strings and forms are kept in the node's own worker, by the
//! code that answers alone, so at the same seed the answer is the same byte for byte.
//!
//! Bounds: sessions of all prompts together reserve at most the node's memory for caches, and no more than [`SESSIONS`] run;
//! others wait in their order before anything is computed, within the API's own limit of answers.
//! Limits: a model that only others hold is asked for as text, in modes that allow it; what such a peer could not be told
//! (forms, tools, log-probabilities) is refused by name, and so are its vectors and scores.

mod answer;
mod door;
mod question;
mod records;
mod texts;
mod view;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{
    Inference,
    choice::{Draft, WireChoice},
    inference::{
        EmbedRequest, Embeddings, Failure, GenerateRequest, Generation, Metric, Mode, ModelInfo, Ranking,
        RerankRequest, SwarmRecords,
    },
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use scheduler::governor::Resource;
use serde::de::IgnoredAny;
use tokio::sync::{Semaphore, broadcast::error::RecvError};

pub use self::door::Door;
use self::view::Board;
use crate::{
    consent,
    control::Question,
    inference::local,
    reports::{LimitReport, Own},
    sessions,
};

/// Prompts in flight; the node's table holds the sessions of others, too.
const SESSIONS: usize = sessions::MAX_SESSIONS / 2;
/// Granularity of the memory that sessions reserve.
const UNIT_BYTES: u64 = 64 << 10;

/// What the operator decided.
#[derive(Clone, Debug, Default)]
pub struct Preferences {
    /// How activations travel where a request does not say it.
    pub wire: WireChoice,
    /// Nodes that may compute in trusted mode, 64 hex digits each.
    pub trusted: BTreeSet<String>,
    /// The mode of requests that name none; `None` takes what is faster of this machine alone and `boomerang`.
    pub mode: Option<Mode>,
    /// What may draft tokens of requests that do not say.
    pub draft: Draft,
    /// The node's data folder, where it is kept whether strangers may compute ([`crate::consent`]).
    pub home: PathBuf,
}

/// A node of a swarm, as the API asks it.
pub struct Swarmed(Arc<SwarmState>);

pub(crate) struct SwarmState {
    door: Door,
    board: Board,
    trusted: BTreeSet<String>,
    wire: WireChoice,
    mode: Option<Mode>,
    draft: Draft,
    home: PathBuf,
    sessions: Arc<Semaphore>,
    /// Memory for caches in units, made once the node has said how much there is.
    room: OnceLock<(Arc<Semaphore>, u32)>,
    /// Prompts that wait for it.
    waiting: AtomicU64,
}

impl SwarmState {
    /// What a request that names no mode gets: nothing goes to strangers that can stay here before it was agreed to.
    fn default_mode(&self, snapshot: &SwarmSnapshot) -> Mode {
        let can = |wanted: Mode| snapshot.modes.iter().find(|info| info.mode == wanted && info.available);
        let others = can(Mode::Boomerang).is_some_and(|info| info.agreed || can(Mode::Local).is_none());
        self.mode.unwrap_or(if others { Mode::Boomerang } else { Mode::Local })
    }
}

impl Swarmed {
    /// Asks the node behind `door` from now on. Call it inside a tokio runtime.
    pub fn start(door: Door, preferences: Preferences) -> Arc<Self> {
        let shared = Arc::new(SwarmState {
            door,
            board: Board::new(),
            trusted: preferences.trusted,
            mode: preferences.mode,
            draft: preferences.draft,
            wire: preferences.wire,
            home: preferences.home,
            sessions: Arc::new(Semaphore::new(SESSIONS)),
            room: OnceLock::new(),
            waiting: AtomicU64::new(0),
        });
        tokio::spawn(view::follow(Arc::downgrade(&shared)));
        Arc::new(Self(shared))
    }

    /// Whether prompts for the node's first model can be answered, or why not.
    pub fn readiness(&self) -> Result<(), Failure> {
        let view = self.0.board.view()?;
        match view::incomplete(&view.snapshot) {
            Some(why) => Err(door::unavailable(&why)),
            None => Ok(()),
        }
    }
}

impl Inference for Swarmed {
    fn models(&self) -> Vec<ModelInfo> {
        let Ok(view) = self.0.board.view() else { return Vec::new() };
        let snapshot = self.0.board.snapshot(&self.0);
        let first = snapshot.models.first().map(|model| model.id.clone());
        let own = |(at, own): (usize, &Own)| {
            let hash = if at == 0 { first.clone() } else { Some(own.id.clone()) };
            let model = snapshot.models.iter().find(|model| Some(&model.id) == hash.as_ref());
            let modes = view::modes(&snapshot, model, own.conducts, &self.0).into_iter();
            let modes = modes.filter(|mode| mode.available).map(|mode| mode.mode).collect();
            let local = view::holds_all(&snapshot, model);
            ModelInfo { hash, modes, local, ..own.about.clone() }
        };
        let own: Vec<ModelInfo> =
            std::iter::once(&view.own).chain(&view.beside).enumerate().map(own).collect();
        let known = |id: &String| own.iter().any(|model| model.hash.as_ref() == Some(id));
        let abroad = snapshot.models.iter().filter(|model| model.complete && !known(&model.id));
        let abroad = abroad.filter(|model| is_plain(&model.name)).map(|model| ModelInfo {
            name: model.name.clone(),
            hash: Some(model.id.clone()),
            architecture: "unknown".into(),
            format: String::new(),
            parameters: 0,
            file_bytes: model.file_bytes,
            context: 0,
            num_layers: model.num_layers as usize,
            hidden: 0,
            template: None,
            created_s: view.own.about.created_s,
            modes: vec![Mode::Trusted, Mode::Open],
            tools: false,
            embeddings: false,
            local: false,
        });
        let abroad: Vec<ModelInfo> =
            abroad.filter(|model| own.iter().all(|known| known.name != model.name)).collect();
        own.into_iter().chain(abroad).collect()
    }

    fn ready(&self, model: Option<&str>) -> Result<(), Failure> {
        // Whether another model has a route is known when it is asked for.
        if self.0.board.view()?.is_first(model) { self.readiness() } else { Ok(()) }
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        answer::begin(self.0.clone(), request).boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        answer::count(self.0.clone(), request).boxed()
    }

    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        texts::embed(self.0.clone(), request).boxed()
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        texts::rerank(self.0.clone(), request).boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        self.0.board.snapshot(&self.0)
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        let shared = self.0.clone();
        let events = shared.board.listen();
        stream::unfold((shared, events), |(shared, mut events)| async move {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(_)) => {
                    SwarmEvent::Snapshot { snapshot: Box::new(shared.board.snapshot(&shared)) }
                }
                Err(RecvError::Closed) => return None,
            };
            Some((event, (shared, events)))
        })
        .boxed()
    }

    fn agree(&self, mode: Mode, agreed: bool) -> Result<(), Failure> {
        consent::set(&self.0.home, mode, agreed)
            .map_err(|error| Failure::Internal { why: error.to_string() })?;
        self.0.board.tell_everything(&self.0);
        Ok(())
    }

    fn contribute(&self, change: ContributionChange) -> Result<Contribution, Failure> {
        let fixed = [
            ("memory_bytes", change.memory_bytes.is_some()),
            ("threads", change.threads.is_some()),
            ("upload_bytes_per_s", change.upload_bytes_per_s.is_some()),
        ];
        if let Some((field, _)) = fixed.into_iter().find(|(_, asked)| *asked) {
            let why = "cannot change while the node runs: restart it with another --memory or --threads";
            return Err(Failure::invalid(field, why));
        }
        let mut contribution = self.0.board.view()?.snapshot.contribution.clone();
        if let Some(paused) = change.paused {
            let shared = self.0.clone();
            contribution.paused = paused;
            tokio::spawn(async move {
                if let Err(why) = shared.door.one::<IgnoredAny>(Question::Pause { paused }).await {
                    tracing::warn!(%why, "the node could not be paused");
                }
                shared.refresh().await;
            });
        }
        Ok(contribution)
    }

    fn records(&self) -> Option<Arc<dyn SwarmRecords>> {
        Some(Arc::new(records::Records(self.0.clone())))
    }

    fn metrics(&self) -> Vec<Metric> {
        let Ok(view) = self.0.board.view() else { return Vec::new() };
        let contribution = &view.snapshot.contribution;
        let gauge = |name, help, counter, value: f64| Metric {
            name,
            help,
            counter,
            values: vec![(Vec::new(), value)],
        };
        let up_and_down = [
            local::gauge("sessions", "Sessions this node computes a part of now.", view.sessions),
            local::gauge(
                "sessions_waiting",
                "Prompts asked for here that wait for room.",
                self.0.waiting.load(Ordering::Relaxed),
            ),
            local::gauge(
                "kv_used_bytes",
                "Memory promised to the caches of these sessions.",
                view.kv_used_bytes,
            ),
            local::gauge("kv_capacity_bytes", "What all caches together may take.", view.kv_bytes),
        ];
        let (name, help) = local::WORKER_RESIDENT;
        let resident = view.worker_resident_bytes.map(|bytes| local::gauge(name, help, bytes));
        let peers = view.snapshot.nodes.iter().filter(|node| !node.me && node.state == "up").count();
        let rest = [
            gauge("peers", "Nodes connected.", false, peers as f64),
            gauge(
                "served_layer_tokens_total",
                "Tokens times layers computed for others.",
                true,
                contribution.served_layer_tokens as f64,
            ),
            gauge(
                "served_sessions_total",
                "Prompts of others served a part of.",
                true,
                contribution.served_sessions as f64,
            ),
            gauge("received_bytes", "Bytes from peers connected now.", false, contribution.bytes_in as f64),
            gauge("sent_bytes", "Bytes to peers connected now.", false, contribution.bytes_out as f64),
        ];
        up_and_down.into_iter().chain(resident).chain(rest).chain(limits(&view.limits)).collect()
    }
}

/// What others may hold of this node and do, by resource: names come from the table, never from a peer.
fn limits(reports: &[LimitReport]) -> [Metric; 3] {
    let all = |name, help, counter, value: fn(&LimitReport) -> u64| {
        let row = |resource: Resource| {
            let report = reports.iter().find(|report| report.resource == resource.name());
            (vec![("resource", resource.name())], report.map_or(0.0, |report| value(report) as f64))
        };
        // The API says itself what its clients hold.
        let others = Resource::ALL.into_iter().filter(|resource| !resource.is_of_clients());
        Metric { name, help, counter, values: others.map(row).collect() }
    };
    [
        all("others_limit", "What other nodes may hold or spend of this one.", false, |report| report.node),
        all("others_used", "What other nodes hold or have spent of it now.", false, |report| report.used),
        all("others_refused_total", "How often more was refused.", true, |report| report.refused),
    ]
}

/// Whether a stranger's name of a model can be shown and asked for as it is.
fn is_plain(name: &str) -> bool {
    // Most files name their model in words.
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | ' ');
    !name.is_empty() && name.len() <= 96 && name.trim() == name && name.chars().all(letter)
}
