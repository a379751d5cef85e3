//! A pull that a command asked for, with the peers of this node as sources beside the mirrors.
//!
//! Each pull is a thread with a runtime of its own: checking and writing block, and the threads that carry frames must
//! not wait for a disk. What happens is told as the JSON lines of `shoal model pull --json`; when the caller goes away
//! the pull stops, and what came is kept.
//!
//! Limits: [`MAX_PULLS`] at a time; [`EVENTS`] events on their way to the caller, progress beyond is dropped;
//! everything below the node's disk and download caps.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use p2p::{
    Network,
    blob::{Event, Pace, Source},
};
use scheduler::{LayerRange, ModelId};
use tokio::sync::{mpsc, oneshot};

use crate::{
    Error, Result,
    content::{
        self, hex,
        peers::{Finder, Liars, Question},
        pull::{Ask, Found, Prepared, prepare},
    },
    control::{Line, PullAsk},
    daemon::setup::Caps,
    events::Refusal,
    reports::{PullLine, Transfer},
};

/// Pulls at a time: more would only share the same line.
const MAX_PULLS: usize = 4;
/// Events on their way to one caller.
const EVENTS: usize = 256;
/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// How long a pull waits for the first one who has the model, when there is no mirror.
const PATIENCE: Duration = Duration::from_secs(15);
/// With mirrors at hand, peers are waited for this long only.
const GLANCE: Duration = Duration::from_secs(2);

/// What every pull of this node shares.
#[derive(Clone)]
pub(crate) struct Pulls {
    pub home: std::path::PathBuf,
    pub network: Network,
    pub questions: mpsc::Sender<Question>,
    pub liars: Liars,
    /// Most disk that all pulled models may take together.
    pub disk_bytes: Option<u64>,
    /// Everything this node downloads of models.
    pub pace: Arc<Pace>,
    running: Arc<AtomicUsize>,
}

impl Pulls {
    pub fn new(
        home: std::path::PathBuf,
        network: Network,
        questions: mpsc::Sender<Question>,
        caps: &Caps,
    ) -> Self {
        let (liars, running) = (Liars::default(), Arc::default());
        let pace = Arc::new(Pace::new(caps.download_bytes_per_s));
        Self { home, network, questions, liars, disk_bytes: caps.disk_bytes, pace, running }
    }

    /// Pulls under way that commands asked for.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Who has `model`.
    pub fn finder(&self, model: ModelId) -> Finder {
        Finder::new(self.network.clone(), self.questions.clone(), model, self.liars.clone())
    }

    /// The one model announced as `name`.
    ///
    /// # Errors
    /// [`Error::Failed`] when no node announces it within `patience`, or different models are called so.
    pub async fn resolve(&self, name: &str, patience: Duration) -> Result<ModelId> {
        let started = Instant::now();
        loop {
            let (answer, answered) = oneshot::channel();
            let question = Question::Named { name: name.to_owned(), answer };
            let _ = self.questions.send(question).await;
            let found = answered.await.unwrap_or_default();
            match found.as_slice() {
                [one] => return Ok(one.model),
                [] if started.elapsed() < patience => tokio::time::sleep(Duration::from_millis(250)).await,
                [] => {
                    return Err(Error::Failed(format!(
                        "no node of the swarm announces a model called \"{name}\"; `shoal peers` shows what there is, \
                         and its holder shares it with `shoal model share`"
                    )));
                }
                several => {
                    let ids: Vec<String> = several.iter().map(|offer| hex(offer.model)).collect();
                    return Err(Error::Failed(format!(
                        "{} different models are called \"{name}\": say which one by its id ({})",
                        ids.len(),
                        ids.join(", ")
                    )));
                }
            }
        }
    }

    /// Does what a command asks for, line by line.
    pub fn answer(&self, ask: PullAsk, lines: mpsc::Sender<Line>) {
        if self.running.fetch_add(1, Ordering::Relaxed) >= MAX_PULLS {
            self.running.fetch_sub(1, Ordering::Relaxed);
            let why = "this node pulls as much as it does at a time; wait for one to end";
            let _ = lines.try_send(Refusal::new(why).into());
            return;
        }
        let pulls = self.clone();
        apart("pull", move || async move {
            let ended = tokio::select! {
                ended = pulls.pull(ask, &lines) => ended,
                () = lines.closed() => Err(Error::Interrupted),
            };
            if let Err(error) = ended {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                let _ = lines.send(Refusal::new(format!("{error}{hint}")).into()).await;
            }
            pulls.running.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn pull(&self, asked: PullAsk, lines: &mpsc::Sender<Line>) -> Result<()> {
        let PullAsk { id, called, name, from, layers, disk_bytes, bytes_per_s, plan_only } = asked;
        let mut id = match id.as_deref().map(content::parse_id) {
            Some(None) => return Err(Error::usage("an id is 64 hex digits")),
            Some(known) => known,
            None => None,
        };
        if let Some(called) = called.as_deref().filter(|_| id.is_none()) {
            id = Some(self.resolve(called, PATIENCE).await?);
        }
        let disk_bytes = [disk_bytes, self.disk_bytes].into_iter().flatten().min();
        let ask = Ask {
            name: name.or(called),
            from,
            layers: layers.iter().filter_map(|(start, end)| LayerRange::new(*start, *end)).collect(),
            disk_bytes,
            pace: Arc::new(Pace::within(self.pace.clone(), bytes_per_s)),
            ..Ask::new(self.home.clone(), id)
        };
        let mut sources = ask.mirrors()?;
        let finder = Arc::new(OnceLock::new());
        if let Some(id) = id {
            let finder = finder.get_or_init(|| self.finder(id));
            let patience = if sources.is_empty() && !ask.is_kept() { PATIENCE } else { GLANCE };
            sources.extend(finder.first(patience).await);
        }
        let (events, mut told) = mpsc::channel(EVENTS);
        let hear = listener(finder.clone(), events);
        let work = self.prepared(ask, sources, finder, plan_only, lines, hear);
        tokio::pin!(work);
        loop {
            // Events first: the last line is the result.
            tokio::select! {
                biased;
                Some(line) = told.recv() => if lines.send(line.into()).await.is_err() { return Err(Error::Interrupted) },
                ended = &mut work => {
                    let line = ended?;
                    while let Ok(line) = told.try_recv() {
                        let _ = lines.send(line.into()).await;
                    }
                    let _ = lines.send(line.into()).await;
                    return Ok(());
                }
            }
        }
    }

    async fn prepared(
        &self,
        ask: Ask,
        mut sources: Vec<Box<dyn Source>>,
        finder: Arc<OnceLock<Finder>>,
        plan_only: bool,
        lines: &mpsc::Sender<Line>,
        mut hear: impl FnMut(Event) + Send,
    ) -> Result<PullLine> {
        let layers = ask.layers.clone();
        let mut prepared = match prepare(ask, &mut sources, &mut hear).await? {
            Found::Here(entry) => {
                return Ok(PullLine::Done { entry, transfer: None, here: true, end: true });
            }
            Found::NoTree(why) => return Ok(PullLine::NoTree { why, end: true }),
            Found::Pull(prepared) => prepared,
        };
        let plan = PullLine::Plan {
            plan: prepared.plan(&layers),
            peers: Some(sources.len()),
            license: None,
            end: plan_only,
        };
        if plan_only {
            return Ok(plan);
        }
        let _ = lines.send(plan.into()).await;
        let guard = Saver(&mut prepared);
        // Known only from a mirror's tree: peers may have it too.
        let more = guard.0.entry().model().map(|id| finder.get_or_init(|| self.finder(id)).keep_looking());
        let report = guard.0.fetch(&mut sources, more, &mut hear).await?;
        let (entry, transfer) = (guard.0.entry().clone(), Some(Transfer::from(&report)));
        Ok(PullLine::Done { entry, transfer, here: false, end: true })
    }
}

/// Flushes what came, also when the pull is dropped in the middle.
struct Saver<'a>(&'a mut Prepared);

impl Drop for Saver<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.save() {
            tracing::warn!(%error, "what was fetched may have to be fetched again");
        }
    }
}

/// Turns events into lines for a caller, and tells the finder.
fn listener(finder: Arc<OnceLock<Finder>>, events: mpsc::Sender<PullLine>) -> impl FnMut(Event) + Send {
    let mut told: Option<Instant> = None;
    move |event| {
        if let Some(finder) = finder.get() {
            finder.heard(&event);
        }
        if let Event::Progress { .. } = event {
            if told.is_some_and(|told| told.elapsed() < PROGRESS_EVERY) {
                return;
            }
            told = Some(Instant::now());
        }
        let _ = events.try_send(event.into());
    }
}

/// Runs what `work` makes on a thread of its own with its own runtime.
pub(crate) fn apart<F: Future<Output = ()>>(name: &str, work: impl FnOnce() -> F + Send + 'static) {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(work()),
            Err(error) => tracing::error!(%error, "no runtime for a pull"),
        }
    });
    if let Err(error) = started {
        tracing::error!(%error, "no thread for a pull");
    }
}
