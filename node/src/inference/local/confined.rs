//! The API's other side where a process of its own computes: what `shoal serve` answers with.
//!
//! The process that speaks HTTP holds the token and parses neither models nor forms. It opens the model's file, hands the
//! descriptor to a confined process ([`super::engine`]), and passes requests and events between that process and clients
//! ([`super::wire`]). When the engine dies, what it was computing fails, new requests are told to come back, and another
//! engine is started.
//!
//! Bounds: [`WINDOW`] events unread in each answer; [`MAX_EARLY_DEATHS`] engines that die before their model is loaded,
//! after which the model is given up.

use std::{
    collections::HashMap,
    io,
    os::unix::{fs::MetadataExt, net::UnixStream as StdStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api::{
    Inference,
    choice::Draft,
    inference::{
        EmbedRequest, Embeddings, Event, Failure, GenerateRequest, Generation, Metric, Mode, ModelInfo, Plan,
        Ranking, RerankRequest,
    },
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use p2p::Governor;
use scheduler::governor::Holder;
use shard::{
    executor::DeviceName,
    kernels::{Cores, threads::Pool},
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixStream, unix::OwnedReadHalf},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::sleep,
};

use super::{
    RETRY_AFTER_S,
    batch::Reading,
    gauges, model_name, no_swarm, snapshot,
    wire::{self, EngineSpec, FromEngine, ToEngine, WINDOW},
};
use crate::{
    Error, Result,
    cli::EngineArgs,
    confine::{
        self,
        child::{Child, lock},
        descriptors,
    },
    constrain::trial,
    library, memory, model, panel_cache,
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
/// Events an answer may have here: those on the way, the plan's place and the end's.
const CHANNEL: usize = WINDOW + 2;
/// How often readers of the page hear whether the state changed.
const LOOK: Duration = Duration::from_millis(200);

/// `shoal serve` alone: the engine is another process.
pub struct Confined {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    spec: EngineSpec,
    program: PathBuf,
    /// What forms ask that wait to be tried.
    governor: Governor,
    /// What may draft tokens of requests that do not say.
    draft: Draft,
    /// Where states of ended answers lie, and of which files they are.
    place: Option<(Place, Vec<u8>)>,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loaded: Option<Result<ModelInfo, String>>,
    running: HashMap<u64, Running>,
    reading: Reading,
    /// Where messages go. Its length is bounded by what clients may ask at once: a request, its end and few reports of
    /// reading each.
    engine: Option<mpsc::UnboundedSender<Vec<u8>>>,
    pid: u32,
    /// Why the device of an engine computes nothing any more: later engines compute on the processor.
    lost: Option<String>,
    /// Engines that ended without a word while they computed on a GPU.
    gpu_deaths: u32,
}

enum Running {
    Answer { begun: Option<oneshot::Sender<Result<Plan, Failure>>>, events: mpsc::Sender<Event> },
    Texts { vectors: Vec<Vec<f32>>, done: oneshot::Sender<Result<Embeddings, Failure>> },
    Count(oneshot::Sender<Result<usize, Failure>>),
}

fn lost() -> Failure {
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

impl Confined {
    /// Starts an engine for the model of `args`, and another one whenever one dies. `kv_bytes` bounds the memory of all
    /// sessions, `draft` says what may draft tokens of requests that do not, forms of answers are tried under `governor`, and states of
    /// ended answers are kept on disk as `keep_state` says. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// When this program cannot be found again.
    pub fn start(
        args: &EngineArgs,
        kv_bytes: usize,
        draft: Draft,
        governor: Governor,
        keep_state: Option<(&Path, u64)>,
    ) -> Result<Arc<Self>> {
        Self::of(std::env::current_exe()?, args, kv_bytes, draft, governor, keep_state)
    }

    /// As [`Self::start`], with the program that engines are started from.
    ///
    /// # Errors
    /// Those of [`EngineArgs::device`].
    pub fn of(
        program: PathBuf,
        args: &EngineArgs,
        kv_bytes: usize,
        draft: Draft,
        governor: Governor,
        keep_state: Option<(&Path, u64)>,
    ) -> Result<Arc<Self>> {
        let spec = EngineSpec {
            model: args.model.clone(),
            name: model_name(&args.model),
            file: None,
            panel_cache: args.panel_cache,
            panels: false,
            drafter: draft.model().map(|name| (name.to_owned(), None)),
            draft_head: args.draft_head.clone().map(|path| (path, Vec::new())),
            processors: Vec::new(),
            threads: args.threads,
            ctx: args.ctx,
            device: (args.device()?.to_string(), model::pipelines()),
            isa: args.isa.clone(),
            no_pin: args.no_pin,
            kv_bytes,
            state_secret: None,
        };
        let place = keep_state.map(|(home, bytes)| {
            let files = identity(library::locate(&args.model)?.as_ref())?;
            Ok::<_, Error>((Place::open(home, &files, bytes)?, files))
        });
        let place = place.transpose()?;
        let (next, state) = (AtomicU64::new(1), Mutex::default());
        let shared = Arc::new(Shared { spec, program, governor, draft, place, next, state });
        let keeper = tokio::spawn(keep(shared.clone()));
        Ok(Arc::new(Self { shared, keeper }))
    }

    /// Whether the model is loaded, or why it cannot be; `None` while it loads.
    pub fn loaded(&self) -> Option<Result<(), String>> {
        lock(&self.shared.state).loaded.as_ref().map(|state| state.as_ref().map(|_| ()).map_err(Clone::clone))
    }

    /// What the engine makes of texts.
    fn pooled(
        &self,
        message: impl FnOnce(u64) -> ToEngine + Send + 'static,
    ) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            let id = shared.id();
            let (done, embedded) = oneshot::channel();
            let _ticket = Ticket { shared: shared.clone(), id, read: 0 };
            let running = Running::Texts { vectors: Vec::new(), done };
            shared.begin(id, &message(id), running)?;
            embedded.await.map_err(|_| lost())?
        }
        .boxed()
    }

    /// The engine's process number; 0 while there is none.
    pub fn pid(&self) -> u32 {
        lock(&self.shared.state).pid
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        self.keeper.abort();
        // Without a sender the writer ends, and with it the stream and the engine.
        lock(&self.shared.state).engine = None;
    }
}

/// What the files of a model are, as far as the system says: a state of another content means nothing.
fn identity(located: Option<&library::Located>) -> io::Result<Vec<u8>> {
    let Some(located) = located else { return Ok(library::embedded_hash().to_vec()) };
    let mut out = located.path.as_os_str().as_encoded_bytes().to_vec();
    for (file, bytes) in located.files() {
        let about = file.metadata()?;
        out.extend(format!("|{bytes} {} {} {}", about.ino(), about.mtime(), about.mtime_nsec()).into_bytes());
    }
    Ok(out)
}

/// Has an engine running as long as that makes sense.
async fn keep(shared: Arc<Shared>) {
    let mut early = 0;
    loop {
        let why = match run(&shared).await {
            Ok(()) => "it ended".to_owned(),
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
    let loaded = state.loaded.take();
    if state.lost.is_none() && is_on_gpu(&shared.spec) {
        state.gpu_deaths += 1;
        state.lost = (state.gpu_deaths >= MOST_GPU_DEATHS).then(|| why.to_owned());
        lost_for(&shared.spec, state.lost.as_deref());
    }
    *early = if loaded.as_ref().is_some_and(Result::is_ok) { 0 } else { *early + 1 };
    state.loaded = match loaded {
        // What it said of the model holds for the next one too.
        Some(Err(why)) => Some(Err(why)),
        _ if *early >= MAX_EARLY_DEATHS => Some(Err(format!("the process that loads it dies of it ({why})"))),
        _ => None,
    };
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

/// One engine, from its start to its death.
async fn run(shared: &Shared) -> io::Result<()> {
    let (ours, theirs) = StdStream::pair()?;
    let drafter = shared.spec.drafter.as_ref().map(|(name, _)| library::locate(name)).transpose();
    let head = shared.spec.draft_head.as_ref().map(|(path, _)| library::Located::open(path)).transpose();
    let located = library::locate(&shared.spec.model).and_then(|it| Ok((it, drafter?.flatten(), head?)));
    let (located, drafter, head) = match located {
        Ok(located) => located,
        Err(error) => {
            lock(&shared.state).loaded = Some(Err(error.to_string()));
            return Ok(());
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
    // Small enough for the socket's buffer, so nothing waits for a reader that does not exist yet.
    io::Write::write_all(&mut &ours, &wire::frame(&ToEngine::Start(Box::new(spec)))?)?;
    for located in [&located, &drafter, &head].into_iter().flatten() {
        let files: Vec<_> = located.files().map(|(file, _)| file).collect();
        files.chunks(descriptors::MAX_FILES).try_for_each(|files| descriptors::send(&ours, files))?;
        located.panels.iter().try_for_each(|panels| descriptors::send(&ours, &[&**panels]))?;
    }
    ticket.iter().try_for_each(|ticket| descriptors::send(&ours, &[&ticket.file]))?;
    ours.set_nonblocking(true)?;
    let child = Child::start(shared.program.clone(), &["worker", "--engine"], theirs.into()).await?;
    let (mut read, mut write) = UnixStream::from_std(ours)?.into_split();
    let (sender, mut messages) = mpsc::unbounded_channel::<Vec<u8>>();
    {
        let mut state = lock(&shared.state);
        state.engine = Some(sender);
        state.pid = child.pid.as_raw_nonzero().get().unsigned_abs();
    }
    let writer = tokio::spawn(async move {
        while let Some(frame) = messages.recv().await {
            if write.write_all(&frame).await.is_err() {
                break;
            }
        }
    });
    let ended = listen(shared, &mut read).await;
    writer.abort();
    child.kill();
    ended
}

async fn listen(shared: &Shared, read: &mut OwnedReadHalf) -> io::Result<()> {
    loop {
        let message = match wire::receive::<FromEngine>(read).await {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut state = lock(&shared.state);
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "it says what was not asked");
        match message {
            FromEngine::Loaded(loaded) => state.loaded = Some(loaded.map(|info| *info)),
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
                if let Some(running) = state.running.remove(&id) {
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
                    state.running.remove(&id);
                }
            }
            FromEngine::Counted { id, tokens } => {
                if let Some(Running::Count(done)) = state.running.remove(&id) {
                    let _ = done.send(Ok(tokens));
                }
            }
            FromEngine::Vector { id, values } => {
                if let Some(Running::Texts { vectors, .. }) = state.running.get_mut(&id) {
                    vectors.push(values);
                }
            }
            FromEngine::Embedded { id, model, prompt_tokens } => {
                if let Some(Running::Texts { vectors, done }) = state.running.remove(&id) {
                    let _ = done.send(Ok(Embeddings { model, vectors, prompt_tokens }));
                }
            }
        }
    }
}

impl Shared {
    fn info(&self) -> Result<ModelInfo, Failure> {
        let unavailable = |why: String| Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S };
        match &lock(&self.state).loaded {
            None => Err(unavailable(format!("the model {} is being loaded", self.spec.name))),
            Some(Err(why)) => Err(unavailable(format!("the model could not be loaded: {why}"))),
            Some(Ok(info)) => Ok(info.clone()),
        }
    }

    /// Sends a request to the engine and notes who waits for what comes of it.
    fn begin(&self, id: u64, message: &ToEngine, running: Running) -> Result<(), Failure> {
        let frame =
            wire::frame(message).map_err(|error| Failure::Invalid { field: None, why: error.to_string() })?;
        let mut state = lock(&self.state);
        let engine = state.engine.as_ref().ok_or_else(lost)?;
        engine.send(frame).map_err(|_| lost())?;
        state.running.insert(id, running);
        Ok(())
    }

    fn post(&self, message: &ToEngine) {
        if let (Ok(frame), Some(engine)) = (wire::frame(message), &lock(&self.state).engine) {
            // An engine that is gone needs no word.
            let _ = engine.send(frame);
        }
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// A request under way; dropping it cancels.
struct Ticket {
    shared: Arc<Shared>,
    id: u64,
    read: u32,
}

impl Ticket {
    fn read(&mut self) {
        self.read += 1;
        if self.read >= READ_BATCH {
            let events = std::mem::take(&mut self.read);
            self.shared.post(&ToEngine::Read { id: self.id, events });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let running = lock(&self.shared.state).running.remove(&self.id);
        if running.is_some() {
            self.shared.post(&ToEngine::Cancel { id: self.id });
        }
    }
}

/// What the engine says of so many documents, whose file is a stranger's.
fn ranking(said: Embeddings, documents: usize) -> Result<Ranking, Failure> {
    let Embeddings { model, vectors, prompt_tokens } = said;
    let scores: Vec<f32> = vectors.into_iter().flatten().collect();
    if scores.len() != documents || scores.iter().any(|score| !(0.0..=1.0).contains(score)) {
        return Err(Failure::Internal { why: "the engine's scores are not those of the documents".into() });
    }
    Ok(Ranking { model, scores, prompt_tokens })
}

impl Inference for Confined {
    fn models(&self) -> Vec<ModelInfo> {
        self.shared.info().into_iter().collect()
    }

    fn ready(&self, _model: Option<&str>) -> Result<(), Failure> {
        self.shared.info().map(drop)
    }

    fn generate(&self, mut request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            trial::attempt(&shared.program, &request.format, (&shared.governor, Holder::default())).await?;
            let id = shared.id();
            let (begun, plan) = oneshot::channel();
            let (sender, events) = mpsc::channel(CHANNEL);
            let ticket = Ticket { shared: shared.clone(), id, read: 0 };
            request.sampling.draft.get_or_insert_with(|| shared.draft.clone());
            let message = ToEngine::Generate { id, request: Box::new(request) };
            shared.begin(id, &message, Running::Answer { begun: Some(begun), events: sender })?;
            let plan = plan.await.map_err(|_| lost())??;
            let events = stream::unfold((events, ticket), |(mut events, mut ticket)| async move {
                let event = events.recv().await?;
                ticket.read();
                Some((event, (events, ticket)))
            });
            Ok(Generation { plan, events: events.boxed() })
        }
        .boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            let id = shared.id();
            let (done, counted) = oneshot::channel();
            let _ticket = Ticket { shared: shared.clone(), id, read: 0 };
            let message = ToEngine::Count { id, request: Box::new(request) };
            shared.begin(id, &message, Running::Count(done))?;
            counted.await.map_err(|_| lost())?
        }
        .boxed()
    }

    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        self.pooled(|id| ToEngine::Embed { id, request })
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        let documents = request.documents.len();
        let ranking = move |embeddings| ranking(embeddings, documents);
        self.pooled(|id| ToEngine::Rerank { id, request }).map(move |made| made.and_then(ranking)).boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        snapshot(&self.shared.info(), self.loaded().is_some())
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        // Alone, what changes is whether the model is loaded.
        let told = lock(&self.shared.state).loaded.as_ref().map(Result::is_ok);
        stream::unfold((self.shared.clone(), told), |(shared, mut told)| async move {
            loop {
                sleep(LOOK).await;
                let now = lock(&shared.state).loaded.as_ref().map(Result::is_ok);
                if now != told {
                    told = now;
                    let snapshot = snapshot(&shared.info(), now.is_some());
                    let (state, reason) = (snapshot.state, snapshot.reason);
                    return Some((SwarmEvent::State { state, reason }, (shared, told)));
                }
            }
        })
        .boxed()
    }

    fn agree(&self, _: Mode, _: bool) -> Result<(), Failure> {
        Err(no_swarm("everything is computed on this machine"))
    }

    fn contribute(&self, _: ContributionChange) -> Result<Contribution, Failure> {
        Err(no_swarm("so there is nothing to give or to pause"))
    }

    fn metrics(&self) -> Vec<Metric> {
        let (reading, pid) = {
            let state = lock(&self.shared.state);
            (state.reading, state.pid)
        };
        gauges(reading, memory::resident_bytes(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_documents_or_refused() {
        let said = |scores: &[f32]| {
            let vectors = scores.iter().map(|score| vec![*score]).collect();
            ranking(Embeddings { model: "m".into(), vectors, prompt_tokens: 4 }, 2)
        };
        assert_eq!(said(&[0.25, 1.0]).unwrap().scores, [0.25, 1.0]);
        for wrong in [&[0.5][..], &[0.5; 3], &[0.5, f32::NAN], &[0.5, 1.5]] {
            assert!(said(wrong).is_err(), "{wrong:?}");
        }
    }
}
