//! Keeps a process that computes running: starts it, hears what it says, and starts another one when it dies.
//!
//! A model that nothing was asked of for as long as [`Retention::unload_after`](super::confined::Retention) says is unloaded: its engine
//! ends. What is known of it stays, and the next request has another engine started and waits for it.
//!
//! Bounds: [`MAX_EARLY_DEATHS`] engines that die before their model is loaded, after which the model is given up.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::{
    choice::Draft,
    inference::{Embeddings, Event, Failure, ModelInfo, Plan},
};
use data_encoding::HEXLOWER;
use p2p::Governor;
use shard::{
    executor::DeviceName,
    kernels::{Cores, threads::Pool},
};
use tokio::{
    io::AsyncWriteExt,
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use super::{
    RETRY_AFTER_S,
    batch::Reading,
    wire::{self, EngineSpec, FromEngine, ToEngine, WINDOW},
};
use crate::{
    confine::{
        self,
        child::{Child, lock},
    },
    library, panel_cache,
    platform::{
        Handed, Stamp, files, handed_files,
        streams::{ReadHalf, Stream},
    },
    state_store::Place,
};

/// Engines that may die while they load a model, one after the other: the model kills them, and the next one too.
const MAX_EARLY_DEATHS: u32 = 3;
/// Engines that may end without a word on a GPU before the processor takes over: a driver ends them.
const MOST_GPU_DEATHS: u32 = 2;
/// Rest after an engine's death: one that dies at once must not take a processor by being started again.
const REST: Duration = Duration::from_millis(500);
/// Events that a client read before the engine hears of it: a message for each would cost as much as the event.
const READ_BATCH: u32 = WINDOW as u32 / 4;
/// How often it is looked whether anything is still asked of a model that is to be unloaded.
const QUIET: Duration = Duration::from_secs(1);

/// Whether the model is there.
#[derive(Clone, Copy, PartialEq)]
enum Presence {
    /// Loaded, or on its way for the first time or after a death.
    Here,
    /// Unloaded, as nothing was asked of it.
    Unloaded,
    /// Unloaded until an engine has loaded it for a request that waits.
    Wanted,
}

pub(super) struct Shared {
    spec: EngineSpec,
    /// BLAKE3 of the model's file, where it is known.
    hash: Option<String>,
    pub(super) program: PathBuf,
    /// What forms ask that wait to be tried.
    pub(super) governor: Governor,
    /// What may draft tokens of requests that do not say.
    pub(super) draft: Draft,
    /// Where states of ended answers lie, and of which files they are.
    place: Option<(Place, Vec<u8>)>,
    unload_after: Option<Duration>,
    /// Changes under the lock of the state only.
    presence: watch::Sender<Presence>,
    next: AtomicU64,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) loaded: Option<Result<ModelInfo, String>>,
    /// Whether the engine that runs has its model.
    is_ready: bool,
    running: HashMap<u64, Running>,
    /// When something was begun or ended.
    used: Option<Instant>,
    pub(super) reading: Reading,
    /// Where messages go. Its length is bounded by what clients may ask at once: a request, its end and few reports of
    /// reading each.
    pub(super) engine: Option<mpsc::UnboundedSender<Vec<u8>>>,
    pub(super) pid: u32,
    /// Why the device of an engine computes nothing any more: later engines compute on the processor.
    lost: Option<String>,
    /// Engines that ended without a word while they computed on a GPU.
    gpu_deaths: u32,
}

pub(super) enum Running {
    Answer { begun: Option<oneshot::Sender<Result<Plan, Failure>>>, events: mpsc::Sender<Event> },
    Texts { vectors: Vec<Vec<f32>>, done: oneshot::Sender<Result<Embeddings, Failure>> },
    Count(oneshot::Sender<Result<usize, Failure>>),
}

pub(super) fn lost() -> Failure {
    let why = "the process that computes stopped, and another one starts: ask again".into();
    Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S }
}

impl Running {
    fn fail(self, failure: Failure) {
        match self {
            Self::Answer { begun: Some(begun), .. } => drop(begun.send(Err(failure))),
            // Its channel has a place for the end.
            Self::Answer { begun: None, events } => drop(events.try_send(Event::Failed(failure))),
            Self::Texts { done, .. } => drop(done.send(Err(failure))),
            Self::Count(done) => drop(done.send(Err(failure))),
        }
    }
}

impl State {
    /// Takes out what was running, which it no longer is.
    fn end(&mut self, id: u64) -> Option<Running> {
        self.used = Some(Instant::now());
        self.running.remove(&id)
    }

    /// How long nothing was asked of a model that is there; `None` while it answers or loads.
    fn quiet(&self) -> Option<Duration> {
        let is_quiet = self.is_ready && self.running.is_empty();
        self.used.filter(|_| is_quiet).map(|used| used.elapsed())
    }
}

/// What the files of a model are, as far as the system says: a state of another content means nothing.
pub(super) fn identity(located: Option<&library::Located>) -> io::Result<Vec<u8>> {
    let Some(located) = located else { return Ok(library::embedded_hash().to_vec()) };
    let mut out = located.path.as_os_str().as_encoded_bytes().to_vec();
    for (file, bytes) in located.files() {
        let Stamp { place: (_, number), written: (s, ns), .. } = files::stamp(file)?;
        out.extend(format!("|{bytes} {number} {s} {ns}").into_bytes());
    }
    Ok(out)
}

/// Has an engine running as long as that makes sense.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut early = 0;
    loop {
        let why = match run(&shared).await {
            Ok(Over::Unloaded) => {
                tracing::info!(model = shared.spec.name, "unloaded: nothing was asked of the model");
                early = 0;
                let mut presence = shared.presence.subscribe();
                // Its sender is in what is shared.
                let _ = presence.wait_for(|presence| *presence == Presence::Wanted).await;
                continue;
            }
            Ok(Over::Ended) => "it ended".to_owned(),
            Err(error) => error.to_string(),
        };
        let (running, given_up) = bury(&shared, &mut early, &why);
        running.into_iter().for_each(|running| running.fail(lost()));
        if given_up {
            return;
        }
        tracing::warn!(%why, "the process that computes is gone; another one is started");
        sleep(REST).await;
    }
}

/// Notes that an engine is gone: what it was computing, and whether no other one is to be started.
fn bury(shared: &Shared, early: &mut u32, why: &str) -> (Vec<Running>, bool) {
    let mut state = lock(&shared.state);
    state.engine = None;
    state.pid = 0;
    let running = state.running.drain().map(|(_, running)| running).collect();
    let (loaded, was_ready) = (state.loaded.take(), std::mem::take(&mut state.is_ready));
    if state.lost.is_none() && is_on_gpu(&shared.spec) {
        state.gpu_deaths += 1;
        state.lost = (state.gpu_deaths >= MOST_GPU_DEATHS).then(|| why.to_owned());
        lost_for(&shared.spec, state.lost.as_deref());
    }
    *early = if was_ready { 0 } else { *early + 1 };
    state.loaded = match loaded {
        // What it said of the model holds for the next one too.
        Some(Err(why)) => Some(Err(why)),
        _ if *early >= MAX_EARLY_DEATHS => Some(Err(format!("the process that loads it dies of it ({why})"))),
        _ => None,
    };
    shared.presence.send_replace(Presence::Here);
    (running, state.loaded.is_some())
}

/// Whether engines have a driver that may end them.
fn is_on_gpu(spec: &EngineSpec) -> bool {
    !confine::computes_on_processors(&spec.device.0)
}

fn lost_for(spec: &EngineSpec, why: Option<&str>) {
    if let Some(why) = why {
        let device = spec.device.0.as_str();
        tracing::warn!(device, why, "the device failed: the processor computes from now on");
    }
}

/// How the run of an engine is over.
enum Over {
    Ended,
    /// Nothing was asked of it.
    Unloaded,
}

/// One engine, from its start to its death.
async fn run(shared: &Shared) -> io::Result<Over> {
    let drafter = shared.spec.drafter.as_ref().map(|(name, _)| library::locate(name)).transpose();
    let head = shared.spec.draft_head.as_ref().map(|(path, _)| library::Located::open(path)).transpose();
    let located = library::locate(&shared.spec.model).and_then(|it| Ok((it, drafter?.flatten(), head?)));
    let (located, drafter, head) = match located {
        Ok(located) => located,
        Err(error) => {
            lock(&shared.state).loaded = Some(Err(error.to_string()));
            return Ok(Over::Ended);
        }
    };
    let most_bytes = shared.spec.panel_cache;
    let located = match library::home() {
        Ok(home) => located.map(|located| panel_cache::attach(located, &home, &[], most_bytes)),
        Err(_) => located,
    };
    let mut spec = shared.spec.clone();
    spec.panels = located.as_ref().is_some_and(|located| located.panels.is_some());
    if lock(&shared.state).lost.is_some() {
        spec.device.0 = DeviceName::Cpu.to_string();
    }
    let file = |it: &library::Located| (it.path.clone(), it.files().map(|(_, bytes)| bytes).collect());
    spec.file = located.as_ref().map(file);
    spec.drafter.iter_mut().for_each(|(_, place)| *place = drafter.as_ref().map(file));
    spec.draft_head = head.as_ref().map(file);
    // The engine may open no file: what it computes on is claimed here, and given back when it has ended.
    let threads = spec.threads.map_or_else(Pool::physical_cores, usize::from);
    let cores = (!spec.no_pin).then(|| Cores::claim(threads)).flatten();
    spec.processors = cores.as_ref().map_or_else(Vec::new, |cores| cores.processors().to_vec());
    // A file that was replaced is another model.
    let place =
        shared.place.as_ref().filter(|(_, files)| identity(located.as_ref()).is_ok_and(|now| now == *files));
    let ticket = place.and_then(|(place, _)| place.ticket().ok());
    spec.state_secret = ticket.as_ref().map(|ticket| ticket.secret);
    let (child, ours) = Child::start(shared.program.clone(), &["worker", "--engine"], false).await?;
    // Small enough for the socket's buffer, so nothing waits for a reader that is slow.
    io::Write::write_all(&mut &ours, &wire::frame(&ToEngine::Start(Box::new(spec)))?)?;
    let hand = |handed| handed_files::send(&ours, &[handed]);
    for located in [&located, &drafter, &head].into_iter().flatten() {
        let paths = located.paths();
        let files = located.files().zip(&paths).map(|((file, _), path)| Handed::read(file, path));
        let files: Vec<_> = files.collect();
        files.chunks(handed_files::MAX_FILES).try_for_each(|files| handed_files::send(&ours, files))?;
        located.panels.iter().try_for_each(|panels| hand(Handed::write(panels, &located.path)))?;
    }
    ticket.iter().try_for_each(|ticket| hand(Handed::write(&ticket.file, &ticket.path)))?;
    ours.set_nonblocking(true)?;
    let (mut read, mut write) = Stream::from_std(ours)?.into_split();
    let (sender, mut messages) = mpsc::unbounded_channel::<Vec<u8>>();
    {
        let mut state = lock(&shared.state);
        state.engine = Some(sender);
        state.pid = child.pid();
    }
    let writer = tokio::spawn(async move {
        while let Some(frame) = messages.recv().await {
            if write.write_all(&frame).await.is_err() {
                break;
            }
        }
    });
    let over = tokio::select! {
        ended = listen(shared, &mut read) => ended.map(|()| Over::Ended),
        () = rest(shared) => Ok(Over::Unloaded),
    };
    writer.abort();
    child.kill();
    over
}

/// Waits until nothing was asked of the engine for so long that its model is unloaded, which is noted then.
async fn rest(shared: &Shared) {
    let Some(after) = shared.unload_after else { return std::future::pending().await };
    loop {
        let left = {
            let mut state = lock(&shared.state);
            let left = state.quiet().map_or(QUIET, |quiet| after.saturating_sub(quiet));
            if left.is_zero() {
                (state.engine, state.pid, state.is_ready) = (None, 0, false);
                shared.presence.send_replace(Presence::Unloaded);
                return;
            }
            left
        };
        sleep(left.min(QUIET)).await;
    }
}

async fn listen(shared: &Shared, read: &mut ReadHalf) -> io::Result<()> {
    loop {
        let message = match wire::receive::<FromEngine>(read).await {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut state = lock(&shared.state);
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "it says what was not asked");
        match message {
            FromEngine::Loaded(loaded) => {
                (state.is_ready, state.used) = (loaded.is_ok(), Some(Instant::now()));
                state.loaded = Some(loaded.map(|info| *info));
                shared.presence.send_replace(Presence::Here);
            }
            FromEngine::Gauges(reading) => state.reading = reading,
            FromEngine::Lost { why } => {
                lost_for(&shared.spec, Some(&why));
                state.lost = Some(why);
                return Ok(());
            }
            FromEngine::Begun { id, plan } => {
                if let Some(Running::Answer { begun, .. }) = state.running.get_mut(&id) {
                    drop(begun.take().ok_or_else(odd)?.send(Ok(plan)));
                }
            }
            FromEngine::Refused { id, failure } => {
                if let Some(running) = state.end(id) {
                    running.fail(failure);
                }
            }
            FromEngine::Event { id, event } => {
                let over = matches!(event, Event::Done(_) | Event::Failed(_));
                if let Some(Running::Answer { events, .. }) = state.running.get(&id) {
                    // A full channel is more than the window: the engine does not keep to it.
                    if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(event) {
                        return Err(odd());
                    }
                }
                if over {
                    state.end(id);
                }
            }
            FromEngine::Counted { id, tokens } => {
                if let Some(Running::Count(done)) = state.end(id) {
                    let _ = done.send(Ok(tokens));
                }
            }
            FromEngine::Vector { id, values } => {
                if let Some(Running::Texts { vectors, .. }) = state.running.get_mut(&id) {
                    vectors.push(values);
                }
            }
            FromEngine::Embedded { id, model, prompt_tokens } => {
                if let Some(Running::Texts { vectors, done }) = state.end(id) {
                    let _ = done.send(Ok(Embeddings { model, vectors, prompt_tokens }));
                }
            }
        }
    }
}

impl Shared {
    /// Of an engine that does not run yet.
    pub(super) fn new(
        spec: EngineSpec,
        program: PathBuf,
        (governor, draft): (Governor, Draft),
        place: Option<(Place, Vec<u8>)>,
        unload_after: Option<Duration>,
    ) -> Self {
        let (presence, next, state) =
            (watch::Sender::new(Presence::Here), AtomicU64::new(1), Mutex::default());
        let hash = library::known_id(&spec.model).map(|id| HEXLOWER.encode(id.as_bytes()));
        Self { spec, hash, program, governor, draft, place, unload_after, presence, next, state }
    }

    pub(super) fn info(&self) -> Result<ModelInfo, Failure> {
        let unavailable = |why: String| Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S };
        match &lock(&self.state).loaded {
            None => Err(unavailable(format!("the model {} is being loaded", self.spec.name))),
            Some(Err(why)) => Err(unavailable(format!("the model could not be loaded: {why}"))),
            Some(Ok(info)) => Ok(ModelInfo { hash: self.hash.clone(), ..info.clone() }),
        }
    }

    /// Sends a request to the engine and notes who waits for what comes of it. A model that was unloaded is loaded first.
    pub(super) async fn begin(&self, id: u64, message: &ToEngine, running: Running) -> Result<(), Failure> {
        let frame =
            wire::frame(message).map_err(|error| Failure::Invalid { field: None, why: error.to_string() })?;
        loop {
            let mut presence = self.presence.subscribe();
            {
                let mut state = lock(&self.state);
                if *presence.borrow_and_update() == Presence::Here {
                    let engine = state.engine.as_ref().ok_or_else(lost)?;
                    engine.send(frame).map_err(|_| lost())?;
                    state.used = Some(Instant::now());
                    state.running.insert(id, running);
                    return Ok(());
                }
                self.presence.send_replace(Presence::Wanted);
            }
            presence.wait_for(|presence| *presence == Presence::Here).await.map_err(|_| lost())?;
        }
    }

    pub(super) fn post(&self, message: &ToEngine) {
        if let (Ok(frame), Some(engine)) = (wire::frame(message), &lock(&self.state).engine) {
            // An engine that is gone needs no word.
            let _ = engine.send(frame);
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// A request under way; dropping it cancels.
pub(super) struct Ticket {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) read: u32,
}

impl Ticket {
    pub(super) fn read(&mut self) {
        self.read += 1;
        if self.read >= READ_BATCH {
            let events = std::mem::take(&mut self.read);
            self.shared.post(&ToEngine::Read { id: self.id, events });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let running = lock(&self.shared.state).end(self.id);
        if running.is_some() {
            self.shared.post(&ToEngine::Cancel { id: self.id });
        }
    }
}
