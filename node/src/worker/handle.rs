//! The daemon's end of a worker.
//!
//! Two tasks and a thread per worker. The thread starts the child and waits for it. The writer task owns the way out, the
//! reader task the way in; it ends when the child does, and then fails everything that waits: questions with
//! [`Fault::Dead`], every open range with an output [`super::Body::Failed`], after which the channel of outputs is closed.
//!
//! The child is let go when the last [`Worker`] is dropped: it reads the end of its stream and exits.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use api::inference::Format;
use p2p::{Governor, wire::announce::Class};
use scheduler::{LayerRange, ModelId, SessionId, governor::Holder};
use shard::{
    draft::DraftToken,
    kernels::{Cores, PAGE, threads::Pool},
    sample::SamplingParams,
};
use tokio::{
    io::BufReader,
    sync::{mpsc, oneshot},
};

use super::{
    Conduct, Fault, Job, JobInput, MAX_JOBS, MAX_QUEUED_BYTES, MAX_REPLIES, Measure, OUTPUTS, OpenSession,
    Output, PoisonGuard, Prompt, Ready, Room, Source, Spec, identity,
    ipc::{self, Ask, Frame, Tell, Trouble},
    ready::shrunk,
    room::{Keeps, Part},
    shared::{Range, Reply, Shared, State, read_frames, write_frames},
};
use crate::{
    confine::child::{Child, lock},
    constrain::trial::{self, Untried},
    library::Located,
    model,
    platform::{self, Handed, files, handed_files, streams::Stream},
    state_store::file::Whose,
};

/// Frames on their way to the writer task: all jobs, and as many questions as may be unanswered.
const FRAMES: usize = MAX_JOBS + MAX_REPLIES;
/// Round trips measured after loading; their median counts.
const PINGS: usize = 8;
const READ_BUFFER: usize = 64 << 10;

/// A running worker. Clones speak to the same child.
#[derive(Clone)]
pub struct Worker {
    frames: mpsc::Sender<Frame>,
    shared: Arc<Shared>,
}

/// Starts a worker, lets it load and measure, and connects it. Call it inside a tokio runtime.
///
/// # Errors
/// [`Fault::Refused`] when the model cannot be loaded, [`Fault::Dead`] when the child cannot be started or dies meanwhile.
pub async fn spawn(spec: Spec) -> Result<(Worker, Ready, mpsc::Receiver<Output>), Fault> {
    let dead = |error: io::Error| Fault::Dead(error.to_string());
    let program = match &spec.program {
        Some(program) => program.clone(),
        None => platform::program().map_err(dead)?,
    };
    let threads = spec.manners.threads.unwrap_or_else(Pool::physical_cores);
    // The child may open no file: what it computes on is claimed here, and given back when the worker is dropped.
    let cores = spec.manners.pin.then(|| Cores::claim(threads)).flatten();
    let file = match &spec.source {
        Source::Embedded => None,
        // The child may open no file.
        Source::File(path) => {
            let path = std::path::absolute(path).map_err(dead)?;
            let located = Located::open(&path).and_then(|located| located.whole().map(|()| located));
            let located = located.map_err(|error| Fault::Refused(error.to_string()))?;
            Some(if spec.measure == Measure::Trial {
                located
            } else {
                spec.room.with_panels_of(located, &spec.layers)
            })
        }
    };
    let head = spec.draft_head.as_deref().map(Located::open).transpose();
    let head = head.map_err(|error| Fault::Refused(format!("the draft head: {error}")))?;
    let verify = match (&file, spec.model) {
        (Some(file), Some(model)) => {
            identity::must_be_hashed(&file.path, &file.file, model).await.map_err(Fault::Refused)?
        }
        _ => false,
    };
    let mut load =
        load(&spec, threads, cores.as_ref(), (file.as_ref(), head.as_ref()), verify).map_err(dead)?;
    let lent = if spec.measure == Measure::Trial { None } else { spec.room.lend(spec.model) };
    load.state_secret = lent.as_ref().map(|(ticket, _)| ticket.secret);
    let frame = Frame::new(&Ask::Load(load), Vec::new()).map_err(dead)?;
    // From here on a caller that stops waiting for the model ends the child: its stream ends.
    let (child, ours) = Child::start(program.clone(), &["worker"], spec.manners.nice).await.map_err(dead)?;
    // All of it fits the socket's buffer: nothing waits for a child that is slow.
    frame.write(&mut &ours).map_err(dead)?;
    let hand = |handed| handed_files::send(&ours, &[handed]).map_err(dead);
    if let Some(file) = &file {
        hand(Handed::read(&file.file, &file.path))?;
        file.panels.iter().try_for_each(|panels| hand(Handed::write(panels, &file.path)))?;
    }
    if let Some(head) = &head {
        hand(Handed::read(&head.file, &head.path))?;
    }
    if let Some((ticket, _)) = &lent {
        hand(Handed::write(&ticket.file, &ticket.path))?;
    }
    ours.set_nonblocking(true).map_err(dead)?;
    let (read, write) = Stream::from_std(ours).map_err(dead)?.into_split();
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    let ready = match ipc::receive::<Tell>(&mut read).await {
        Ok(Some((Tell::Ready(ready), _))) => accept(*ready).map_err(dead),
        Ok(Some((Tell::Failed { why }, _))) => Err(Fault::Refused(why)),
        Ok(Some((Tell::Unfit { trouble: Trouble::Lost(why) }, _))) => Err(Fault::Lost(why)),
        Ok(Some(_)) => Err(Fault::Dead("it spoke before it was ready".into())),
        Ok(None) => Err(Fault::Dead("it ended while it loaded the model".into())),
        Err(error) => Err(Fault::Dead(error.to_string())),
    };
    let mut ready = ready.inspect_err(|_| child.kill())?;
    if let Some(file) = file.as_ref().filter(|_| verify || spec.model.is_none()) {
        identity::checked(&file.file, ready.model);
    }
    let on_gpu = spec.is_on_gpu();
    let shared = Arc::new(Shared {
        child: Some(child),
        program,
        keeps: OnceLock::new(),
        _cores: cores,
        states: Mutex::new(lent.map(|(_, loan)| loan)),
        guard: spec.guard,
        room: spec.room,
        costs: ready.costs.clone(),
        small_shares: ready.abilities.small_shares,
        alive: AtomicBool::new(true),
        on_gpu,
        trouble: OnceLock::new(),
        dismissed: AtomicBool::new(false),
        next_id: AtomicU64::new(0),
        state: Mutex::default(),
    });
    let (frames, queue) = mpsc::channel(FRAMES);
    let _ = shared.keeps.set(Keeps::new(&shared.room, &frames));
    let (sender, outputs) = mpsc::channel(OUTPUTS);
    tokio::spawn(write_frames(write, queue, shared.clone()));
    let asks = spec.experts.and_then(|experts| experts.asks).map(|asks| (asks, frames.downgrade()));
    tokio::spawn(read_frames(read, sender, (shared.clone(), asks)));
    let worker = Worker { frames, shared };
    ready.times.visit_ms += worker.usual_round_trip_ms().await?;
    Ok((worker, ready, outputs))
}

/// A form as it travels.
fn form(format: &Format) -> Result<Option<String>, Fault> {
    match format {
        Format::Text => Ok(None),
        format => serde_json::to_string(format).map(Some).map_err(|error| Fault::Refused(error.to_string())),
    }
}

/// How a session is conducted, as it travels, and the ids beside it: those forgotten, and the history.
fn conducted(conduct: Conduct) -> Result<(ipc::Conduct, Vec<u32>), Fault> {
    let told = ipc::Conduct {
        sampling: (&conduct.sampling).into(),
        seed: conduct.seed,
        prompt_tokens: conduct.prompt_tokens,
        forgotten: conduct.forgotten.len() as u32,
        skipped: conduct.skipped,
        format: form(&conduct.format)?,
        show_special: conduct.show_special,
        echo: conduct.echo,
        pooling: conduct.pooling,
        stop: conduct.stop,
    };
    Ok((told, [conduct.forgotten, conduct.history].concat()))
}

/// A range to open, but for who conducts it.
fn ranged(open: &OpenSession) -> ipc::Open {
    ipc::Open {
        session: *open.session.as_bytes(),
        epoch: open.epoch,
        layers: ipc::pair(open.layers),
        positions: open.positions,
        at: open.at,
        wire: open.rounding.wire() as u8,
        rounding: open.rounding.boundaries().to_vec(),
        kind: open.kind.to_string(),
        kept: open.kept.iter().map(|(session, upto)| (*session.as_bytes(), *upto)).collect(),
        conduct: None,
    }
}

fn load(
    spec: &Spec,
    threads: usize,
    cores: Option<&Cores>,
    (file, head): (Option<&Located>, Option<&Located>),
    verify: bool,
) -> io::Result<ipc::Load> {
    let processors = cores.map_or(&[][..], Cores::processors);
    let model = spec.model.map(|model| *model.as_bytes());
    let pipelines = spec.room.home().map(|home| files::path_to_bytes(&model::pipelines_in(home)));
    Ok(ipc::Load {
        file: file.map(|file| (files::path_to_bytes(&file.path), file.bytes, file.panels.is_some())),
        model,
        verify,
        exact: spec.class.map(|class| class == Class::D1),
        layers: spec.layers.iter().copied().map(ipc::pair).collect(),
        context: spec.context as u64,
        experts: spec
            .experts
            .as_ref()
            .map(|share| ((share.range.start(), share.range.end()), share.asks.is_some())),
        threads: ipc::Threads {
            count: Some(threads as u32),
            processors: processors.iter().map(|processor| *processor as u32).collect(),
            nice: spec.manners.nice,
        },
        isa: spec.isa.clone(),
        device: (spec.device.to_string(), pipelines),
        kv_bytes: spec.kv_bytes,
        measure: spec.measure,
        draft_head: head.map(|head| (files::path_to_bytes(&head.path), head.bytes)),
        state_secret: None,
    })
}

/// Whether this node says that it computes other bits, which only tests make it do.
fn pretends() -> bool {
    #[cfg(debug_assertions)]
    let pretends = crate::cheat::is_approx();
    #[cfg(not(debug_assertions))]
    let pretends = false;
    pretends
}

fn accept(ready: ipc::Ready) -> io::Result<Ready> {
    Ok(Ready {
        model: ModelId::new(ready.model),
        name: ready.name,
        num_layers: ready.num_layers,
        layers: ready.layers.into_iter().map(ipc::range).collect::<io::Result<_>>()?,
        hidden: ready.hidden,
        vocabulary: ready.vocabulary,
        context: ready.context,
        memory: ready.memory,
        times: ready.times,
        load_ms: ready.load_ms,
        costs: Some(ipc::costs(&ready.costs, ready.num_layers, ready.hidden)?),
        class: if ready.exact && !pretends() { Class::D1 } else { Class::Approx },
        device: ready.device,
        abilities: ready.abilities,
        confinement: ready.confinement,
    })
}

impl Worker {
    /// No worker, because of `why`: whatever it is asked fails with [`Fault::Dead`].
    pub fn absent(why: &str) -> Self {
        let state = State { dead: Some(why.into()), ..State::default() };
        // The other end is dropped: nothing is ever queued.
        Self { frames: mpsc::channel(1).0, shared: Self::childless(state, false) }
    }

    /// One that runs, as far as it knows, and what it is asked.
    #[cfg(test)]
    pub(super) fn unanswered() -> (Self, mpsc::Receiver<Frame>) {
        let (frames, queue) = mpsc::channel(FRAMES);
        (Self { frames, shared: Self::childless(State::default(), true) }, queue)
    }

    fn childless(state: State, alive: bool) -> Arc<Shared> {
        Arc::new(Shared {
            child: None,
            program: Default::default(),
            keeps: OnceLock::new(),
            _cores: None,
            states: Mutex::default(),
            guard: PoisonGuard::default(),
            room: Room::default(),
            costs: None,
            small_shares: None,
            alive: AtomicBool::new(alive),
            on_gpu: false,
            trouble: OnceLock::new(),
            dismissed: AtomicBool::new(true),
            next_id: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// Text to token ids, and whether they end inside a block of reasoning.
    ///
    /// # Errors
    /// [`Fault::Refused`] when the template or the tokenizer cannot take it; [`Fault::Dead`].
    pub async fn encode(&self, prompt: Prompt) -> Result<(Vec<u32>, bool), Fault> {
        let Prompt { text, kind } = prompt;
        let reply = self.ask(|id| Ask::Encode { id, kind }, text.into_bytes()).await?;
        let ids = ipc::ids_from_bytes(&reply.payload);
        let ids = ids.ok_or_else(|| Fault::Dead("it sent ids that are none".into()))?;
        Ok((ids, reply.have != 0))
    }

    /// Opens a range of a session, or opens it again; returns how many positions are still computed.
    ///
    /// # Errors
    /// [`Fault::NoRoom`], here or in all workers of its [`Room`] together, [`Fault::Poison`], [`Fault::Refused`];
    /// [`Fault::Dead`].
    pub async fn open(&self, open: OpenSession) -> Result<u32, Fault> {
        if self.shared.guard.is_poison(open.session) {
            return Err(Fault::Poison);
        }
        let opened = ranged(&open);
        let OpenSession { session, epoch, layers, positions, kind, conduct, .. } = open;
        let (told, history) = conduct.map(conducted).transpose()?.unzip();
        let open = ipc::Open { conduct: told, ..opened };
        let paged = u64::from(positions).next_multiple_of(PAGE as u64);
        let costs = self.shared.costs.as_ref();
        let bytes = costs.map_or(0, |costs| shrunk(costs, layers, paged, self.shared.small_shares, kind));
        let replaced_bytes = lock(&self.shared.state).replaced_bytes(session, layers);
        let part = self.shared.room.take(bytes.saturating_sub(replaced_bytes))?;
        let reply =
            self.ask(|id| Ask::Open { id, open }, ipc::ids_to_bytes(&history.unwrap_or_default())).await?;
        lock(&self.shared.state).opened(session, Range { epoch, layers, positions, part }, bytes);
        Ok(reply.have)
    }

    /// Memory for a text of its own that grows to `positions` at most, of all layers.
    ///
    /// # Errors
    /// [`Fault::NoRoom`].
    pub(super) fn room_for(&self, positions: u32) -> Result<Part, Fault> {
        let paged = u64::from(positions).next_multiple_of(PAGE as u64);
        let costs = self.shared.costs.as_ref();
        let all = costs.and_then(|costs| LayerRange::new(0, costs.num_layers()));
        let bytes = costs.zip(all).map_or(0, |(costs, all)| costs.state_bytes(all, paged));
        self.shared.room.take(bytes)
    }

    /// Begins to draft for `session`, whose tokens are drawn by `sampling` and `seed` of `vocab` tokens.
    pub(super) async fn open_draft(
        &self,
        session: SessionId,
        sampling: &SamplingParams,
        seed: u64,
        vocab: u32,
    ) -> Result<(), Fault> {
        let (session, sampling) = (*session.as_bytes(), sampling.into());
        self.ask(|id| Ask::OpenDraft { id, session, sampling, seed, vocab }, Vec::new()).await.map(drop)
    }

    /// The token that follows `text`, and how many tokens of it were new to the worker.
    pub(super) async fn draft(
        &self,
        session: SessionId,
        text: &[u32],
    ) -> Result<(Option<DraftToken>, usize), Fault> {
        let session = *session.as_bytes();
        let reply = self.ask(|id| Ask::Draft { id, session }, ipc::ids_to_bytes(text)).await?;
        let said = ipc::drafted_from_bytes(&reply.payload).map_err(|error| Fault::Dead(error.to_string()))?;
        Ok((said, reply.have as usize))
    }

    /// Whether answers can be made to have this form: measured, tried in a process that may die of it, and then compiled by
    /// the worker.
    ///
    /// # Errors
    /// [`Fault::Refused`] with what is wrong with it; [`Fault::Busy`] at a limit of the governor too, [`Fault::Dead`].
    pub async fn check(&self, format: &Format, doors: (&Governor, Holder)) -> Result<(), Fault> {
        let Some(text) = form(format)? else { return Ok(()) };
        trial::attempt(&self.shared.program, format, doors).await.map_err(|untried| match untried {
            Untried::Form(why) => Fault::Refused(why),
            Untried::Busy => Fault::Busy,
            Untried::Failed(why) => Fault::Dead(why),
        })?;
        self.ask(|id| Ask::Check { id }, text.into_bytes()).await.map(drop)
    }

    /// Queues a job; its output comes on the receiver.
    ///
    /// # Errors
    /// [`Fault::Busy`] when too much is under way, [`Fault::Refused`] for an input beyond a frame, [`Fault::Dead`].
    pub fn run(&self, job: Job) -> Result<(), Fault> {
        let (wire, payload) = match job.input {
            JobInput::Tokens(ids) => (None, ipc::ids_to_bytes(&ids)),
            JobInput::Wire(wire, bytes) => (Some(wire as u8), bytes),
        };
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let run = ipc::Run {
            job: id,
            session: *job.session.as_bytes(),
            epoch: job.epoch,
            attempt: job.attempt,
            layer: job.layer,
            from: job.from,
            rows: job.rows,
            wire,
            want: job.want,
            draft: job.draft,
            foresee: job.foresee,
        };
        let frame = Frame::new(&Ask::Run(run), payload).map_err(|error| Fault::Refused(error.to_string()))?;
        let bytes = frame.len();
        let mut state = lock(&self.shared.state);
        if let Some(why) = &state.dead {
            return Err(Fault::Dead(why.clone()));
        }
        if state.jobs.len() >= MAX_JOBS || state.queued_bytes + bytes > MAX_QUEUED_BYTES {
            return Err(Fault::Busy);
        }
        self.frames.try_send(frame).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Fault::Busy,
            mpsc::error::TrySendError::Closed(_) => Fault::Dead("its stream ended".into()),
        })?;
        state.jobs.insert(id, (job.session, bytes));
        state.queued_bytes += bytes;
        Ok(())
    }

    /// The text that a conducting session still holds back, when nothing will follow.
    ///
    /// # Errors
    /// [`Fault::Refused`] for a session that does not conduct here; [`Fault::Dead`].
    pub async fn finish(&self, session: SessionId) -> Result<String, Fault> {
        let session = *session.as_bytes();
        let reply = self.ask(|id| Ask::Finish { id, session }, Vec::new()).await?;
        String::from_utf8(reply.payload).map_err(|_| Fault::Dead("it sent text that is none".into()))
    }

    /// Forgets positions from `to` on in all ranges of a session, after the jobs queued before.
    ///
    /// # Errors
    /// [`Fault::Busy`], [`Fault::Dead`].
    pub fn truncate(&self, session: SessionId, to: u32) -> Result<(), Fault> {
        self.post(&Ask::Truncate { session: *session.as_bytes(), to })
    }

    /// Forgets a session, after the jobs queued before. If too much is queued, the session's idle time does it.
    pub fn close(&self, session: SessionId) {
        self.close_but(session, Vec::new(), None);
    }

    /// As [`Worker::close`], but for what sessions that begin alike may need: by first layer of a range, how many positions of it. They are
    /// kept within the memory that no open session needs, and [`OpenSession::kept`] names them; with `file` on disk as well, if the worker
    /// room has a place there ([`Room::with_states`]).
    pub fn close_but(&self, session: SessionId, keep: Vec<(u32, u32)>, file: Option<Whose>) {
        if self.post(&Ask::Close { session: *session.as_bytes(), keep, file }).is_ok() {
            lock(&self.shared.state).open.retain(|key, _| key.0 != session);
        }
    }

    /// Forgets what was kept of an ended session. If too much is queued, its time to live does it.
    pub fn forget(&self, session: SessionId) {
        let _ = self.post(&Ask::Forget { session: *session.as_bytes() });
    }

    /// A piece of the first positions of a range that is kept of an ended session, packed for another node, from byte `start` on; and bytes
    /// of all of it as it is.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it is not kept or too large; [`Fault::Busy`], [`Fault::Dead`].
    pub async fn export(&self, range: (SessionId, u32), upto: (u32, u32)) -> Result<(u32, Vec<u8>), Fault> {
        let (session, first, (positions, start)) = (*range.0.as_bytes(), range.1, upto);
        let reply = self.ask(|id| Ask::Export { id, session, first, positions, start }, Vec::new()).await?;
        Ok((reply.have, reply.payload))
    }

    /// Keeps what another node's [`Worker::export`] gave, of the session, layers and positions that `open` says, as if a session had
    /// computed it here and ended: the piece from byte `start` of `raw_bytes` on, in their order. Whether it was the last.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it is something else; [`Fault::NoRoom`], [`Fault::Busy`], [`Fault::Dead`].
    pub async fn import(&self, open: &OpenSession, packed: Vec<u8>, at: (u32, u32)) -> Result<bool, Fault> {
        let (open, (start, raw_bytes)) = (ranged(open), at);
        Ok(self.ask(|id| Ask::Import { id, open, start, raw_bytes }, packed).await?.have > 0)
    }

    /// Whether the first positions of an open range are bit for bit those that are kept of an ended session.
    ///
    /// # Errors
    /// [`Fault::Refused`] when one of the two does not hold them; [`Fault::Busy`], [`Fault::Dead`].
    pub async fn agree(
        &self,
        (session, first): (SessionId, u32),
        kept: SessionId,
        positions: u32,
    ) -> Result<bool, Fault> {
        let (session, kept) = (*session.as_bytes(), *kept.as_bytes());
        let asked = |id| Ask::Agree { id, session, first, kept, positions };
        Ok(self.ask(asked, Vec::new()).await?.have == 1)
    }

    /// What is kept of ended sessions here and at the other workers of its [`Room`], bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.room.kept_bytes()
    }

    /// Ends the child now; its memory is free as soon as the system has cleaned up.
    pub fn kill(&self) {
        self.shared.dismiss();
    }

    /// What ends the child as [`Worker::kill`] does, and does not keep it.
    pub fn killer(&self) -> impl FnOnce() + Send + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || shared.upgrade().into_iter().for_each(|shared| shared.dismiss())
    }

    /// Whether both speak to the same child.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether the child runs, as far as we know.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::SeqCst)
    }

    /// What the child said of its device before it ended.
    pub fn trouble(&self) -> Option<Trouble> {
        self.shared.trouble.get().cloned()
    }

    /// The child's process number; 0 for a worker that never was.
    pub fn pid(&self) -> u32 {
        self.shared.child.as_ref().map_or(0, |child| child.pid())
    }

    /// Jobs under way.
    pub fn jobs(&self) -> usize {
        lock(&self.shared.state).jobs.len()
    }

    /// Sessions with a range open here, and what their caches are promised, layers x positions in whole pages.
    pub fn held(&self) -> (usize, u64) {
        let state = lock(&self.shared.state);
        let sessions: HashSet<SessionId> = state.open.keys().map(|(session, _)| *session).collect();
        let room = |range: &Range| {
            u64::from(range.layers.len()) * u64::from(range.positions).next_multiple_of(PAGE as u64)
        };
        (sessions.len(), state.open.values().map(room).sum())
    }

    fn post(&self, ask: &Ask) -> Result<(), Fault> {
        let frame = Frame::new(ask, Vec::new()).map_err(|error| Fault::Refused(error.to_string()))?;
        self.frames.try_send(frame).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Fault::Busy,
            mpsc::error::TrySendError::Closed(_) => self.shared.fault(),
        })
    }

    pub(super) async fn ask(&self, ask: impl FnOnce(u64) -> Ask, payload: Vec<u8>) -> Result<Reply, Fault> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = Frame::new(&ask(id), payload).map_err(|error| Fault::Refused(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = lock(&self.shared.state);
            if let Some(why) = &state.dead {
                return Err(Fault::Dead(why.clone()));
            }
            if state.replies.len() >= MAX_REPLIES {
                return Err(Fault::Busy);
            }
            state.replies.insert(id, sender);
        }
        if self.frames.send(frame).await.is_err() {
            lock(&self.shared.state).replies.remove(&id);
            return Err(self.shared.fault());
        }
        receiver.await.unwrap_or_else(|_| Err(self.shared.fault()))
    }

    /// The median: what a visit usually pays, a machine that is busy with other things included.
    async fn usual_round_trip_ms(&self) -> Result<f64, Fault> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let asked = Instant::now();
            self.ask(|id| Ask::Ping { id }, Vec::new()).await?;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[PINGS / 2])
    }
}
