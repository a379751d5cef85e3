//! The daemon's end of a worker.
//!
//! Two tasks and a thread per worker. The thread starts the child and waits for it: Linux kills a child with the *thread*
//! that started it, so that thread must live as long as the child. The writer task owns the way out, the reader task
//! the way in; it ends when the child does, and then fails everything that waits: questions with [`Fault::Dead`], every
//! open range with an output [`Body::Failed`], after which the channel of outputs is closed.
//!
//! The child is let go when the last [`Worker`] is dropped: it reads the end of its stream and exits.

use std::{
    collections::HashMap,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt, unix::net::UnixStream as StdStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use p2p::{codec::Wire, wire::announce::Class};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use scheduler::{LayerRange, ModelId, SessionId};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

use super::{
    Body, Conduct, Fault, Job, JobInput, MAX_JOBS, MAX_QUEUED_BYTES, MAX_REPLIES, OUTPUTS, OpenSession,
    Output, PoisonGuard, Prompt, Ready, Source, Spec,
    ipc::{self, Ask, Frame, Sampled, Tell},
};

/// Frames on their way to the writer task: all jobs, and as many questions as may be unanswered.
const FRAMES: usize = MAX_JOBS + MAX_REPLIES;
/// Round trips measured after loading; the shortest counts.
const PINGS: u32 = 8;
const READ_BUFFER: usize = 64 << 10;

/// A running worker. Clones speak to the same child.
#[derive(Clone)]
pub struct Worker {
    frames: mpsc::Sender<Frame>,
    shared: Arc<Shared>,
}

/// What the handles and the reader task share.
struct Shared {
    child: Child,
    guard: PoisonGuard,
    alive: AtomicBool,
    /// Whether we wanted the child to end.
    dismissed: AtomicBool,
    next_id: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Unanswered questions.
    replies: HashMap<u64, oneshot::Sender<Result<Reply, Fault>>>,
    /// Jobs under way: whose, and how many bytes.
    jobs: HashMap<u64, (SessionId, usize)>,
    queued_bytes: usize,
    /// Open ranges by session and first layer: epoch and layers.
    open: HashMap<(SessionId, u32), (u32, LayerRange)>,
    /// Why the child is gone.
    dead: Option<String>,
}

/// An answer to a question.
struct Reply {
    have: u32,
    payload: Vec<u8>,
}

/// The child process, which may be signaled until it is reaped.
struct Child {
    pid: Pid,
    reaped: Arc<Mutex<bool>>,
}

impl Child {
    /// Starts `program worker` with `stdin`, from a thread that stays until the child has ended.
    async fn start(program: PathBuf, stdin: OwnedFd) -> io::Result<Self> {
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name("worker-wait".into()).spawn(move || {
            let mut command = Command::new(program);
            command.arg("worker").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::inherit()).env_clear();
            for name in ["RUST_LOG", "RUST_BACKTRACE"] {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
            let spawned = command.spawn();
            // Its copy of the child's end of the pair would hide the child's death.
            drop(command);
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let pid = Pid::from_child(&child);
            let reaped = Arc::new(Mutex::new(false));
            let unclaimed = sender.send(Ok(Self { pid, reaped: reaped.clone() })).is_err();
            if unclaimed {
                let _ = child.kill();
            }
            // Waiting without reaping keeps the process number taken until nobody can signal it any more.
            while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                if error != rustix::io::Errno::INTR {
                    break;
                }
            }
            *lock(&reaped) = true;
            let _ = child.wait();
        })?;
        receiver.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts workers ended")))
    }

    /// Ends it now, whatever it does.
    fn kill(&self) {
        let reaped = lock(&self.reaped);
        if !*reaped {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// A panic elsewhere leaves these maps as consistent as they were.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker, lets it load and measure, and connects it. Call it inside a tokio runtime.
///
/// # Errors
/// [`Fault::Refused`] when the model cannot be loaded, [`Fault::Dead`] when the child cannot be started or dies meanwhile.
pub async fn spawn(spec: Spec) -> Result<(Worker, Ready, mpsc::Receiver<Output>), Fault> {
    let dead = |error: io::Error| Fault::Dead(error.to_string());
    let program = match &spec.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(dead)?,
    };
    let load = load(&spec).map_err(dead)?;
    let (ours, theirs) = StdStream::pair().map_err(dead)?;
    ours.set_nonblocking(true).map_err(dead)?;
    let (read, mut write) = UnixStream::from_std(ours).map_err(dead)?.into_split();
    // From here on whoever gives up waiting for the model ends the child: its stream ends.
    let child = Child::start(program, theirs.into()).await.map_err(dead)?;
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    let frame = Frame::new(&Ask::Load(load), Vec::new()).map_err(dead)?;
    // A child that dies at once breaks the pipe; what it said before, if anything, says more.
    let _ = frame.send(&mut write).await;
    let ready = match ipc::receive::<Tell>(&mut read).await {
        Ok(Some((Tell::Ready(ready), _))) => accept(ready).map_err(dead),
        Ok(Some((Tell::Failed { why }, _))) => Err(Fault::Refused(why)),
        Ok(Some(_)) => Err(Fault::Dead("it spoke before it was ready".into())),
        Ok(None) => Err(Fault::Dead("it ended while it loaded the model".into())),
        Err(error) => Err(Fault::Dead(error.to_string())),
    };
    let mut ready = ready.inspect_err(|_| child.kill())?;
    let shared = Arc::new(Shared {
        child,
        guard: spec.guard,
        alive: AtomicBool::new(true),
        dismissed: AtomicBool::new(false),
        next_id: AtomicU64::new(0),
        state: Mutex::default(),
    });
    let (frames, queue) = mpsc::channel(FRAMES);
    let (sender, outputs) = mpsc::channel(OUTPUTS);
    tokio::spawn(write_frames(write, queue, shared.clone()));
    tokio::spawn(read_frames(read, sender, shared.clone()));
    let worker = Worker { frames, shared };
    ready.visit_ms += worker.shortest_round_trip_ms().await?;
    Ok((worker, ready, outputs))
}

fn load(spec: &Spec) -> io::Result<ipc::Load> {
    let path = match &spec.source {
        Source::Embedded => None,
        Source::File(path) => Some(std::path::absolute(path)?.as_os_str().as_bytes().to_vec()),
    };
    Ok(ipc::Load {
        path,
        model: spec.model.map(|model| *model.as_bytes()),
        layers: spec.layers.iter().copied().map(ipc::pair).collect(),
        context: spec.context as u64,
        threads: spec.threads.map(|threads| threads as u32),
        isa: spec.isa.clone(),
        kv_bytes: spec.kv_bytes,
        pin: spec.pin,
        nice: spec.nice,
    })
}

fn accept(ready: ipc::Ready) -> io::Result<Ready> {
    Ok(Ready {
        model: ModelId::new(ready.model),
        name: ready.name,
        num_layers: ready.num_layers,
        layers: ready.layers.into_iter().map(ipc::range).collect::<io::Result<_>>()?,
        hidden: ready.hidden,
        vocab: ready.vocab,
        context: ready.context,
        kv_bytes_per_layer_position: ready.kv_bytes_per_layer_position,
        resident_bytes: ready.resident_bytes,
        decode_ms: ready.decode_ms,
        prefill_ms: ready.prefill_ms,
        visit_ms: ready.visit_ms,
        head_ms: ready.head_ms,
        load_ms: ready.load_ms,
        class: if ready.exact { Class::D1 } else { Class::Approx },
        sandboxed: ready.sandboxed,
    })
}

impl Worker {
    /// Text to token ids.
    ///
    /// # Errors
    /// [`Fault::Refused`] when the template or the tokenizer cannot take it; [`Fault::Dead`].
    pub async fn encode(&self, prompt: Prompt) -> Result<Vec<u32>, Fault> {
        let Prompt { text, kind } = prompt;
        let reply = self.ask(|id| Ask::Encode { id, kind }, text.into_bytes()).await?;
        ipc::ids_from_bytes(&reply.payload).ok_or_else(|| Fault::Dead("it sent ids that are none".into()))
    }

    /// Opens a range of a session, or opens it again; returns how many positions are still computed.
    ///
    /// # Errors
    /// [`Fault::NoRoom`], [`Fault::Poison`], [`Fault::Refused`]; [`Fault::Dead`].
    pub async fn open(&self, open: OpenSession) -> Result<u32, Fault> {
        if self.shared.guard.is_poison(open.session) {
            return Err(Fault::Poison);
        }
        let OpenSession { session, epoch, layers, positions, at, wire, rounding, conduct } = open;
        let Conduct { sampling, seed, stop, history, prompt_tokens } = conduct.clone().unwrap_or_default();
        let conducts = conduct.is_some();
        let open = ipc::Open {
            session: *session.as_bytes(),
            epoch,
            layers: ipc::pair(layers),
            positions,
            at,
            wire: wire as u8,
            rounding,
            conduct: conducts.then(|| ipc::Conduct {
                sampling: (&sampling).into(),
                seed,
                stop,
                prompt_tokens,
            }),
        };
        let reply = self.ask(|id| Ask::Open { id, open }, ipc::ids_to_bytes(&history)).await?;
        let mut state = lock(&self.shared.state);
        state.open.retain(|key, held| key.0 != session || held.1.intersect(layers).is_none());
        state.open.insert((session, layers.start()), (epoch, layers));
        Ok(reply.have)
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
            layer: job.layer,
            from: job.from,
            rows: job.rows,
            wire,
            want: job.want,
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
        self.frames.try_send(frame).map_err(|_| Fault::Busy)?;
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
        if self.post(&Ask::Close { session: *session.as_bytes() }).is_ok() {
            lock(&self.shared.state).open.retain(|key, _| key.0 != session);
        }
    }

    /// Ends the child now; its memory is free as soon as the system has cleaned up.
    pub fn kill(&self) {
        self.shared.dismissed.store(true, Ordering::SeqCst);
        self.shared.child.kill();
    }

    /// Whether the child runs, as far as we know.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::SeqCst)
    }

    /// The child's process number.
    pub fn pid(&self) -> u32 {
        self.shared.child.pid.as_raw_nonzero().get() as u32
    }

    /// Jobs under way.
    pub fn jobs(&self) -> usize {
        lock(&self.shared.state).jobs.len()
    }

    fn post(&self, ask: &Ask) -> Result<(), Fault> {
        let frame = Frame::new(ask, Vec::new()).map_err(|error| Fault::Refused(error.to_string()))?;
        self.frames.try_send(frame).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Fault::Busy,
            mpsc::error::TrySendError::Closed(_) => self.shared.fault(),
        })
    }

    async fn ask(&self, ask: impl FnOnce(u64) -> Ask, payload: Vec<u8>) -> Result<Reply, Fault> {
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

    async fn shortest_round_trip_ms(&self) -> Result<f64, Fault> {
        let mut shortest = f64::INFINITY;
        for _ in 0..PINGS {
            let asked = Instant::now();
            self.ask(|id| Ask::Ping { id }, Vec::new()).await?;
            shortest = shortest.min(asked.elapsed().as_secs_f64() * 1e3);
        }
        Ok(shortest)
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        Fault::Dead(lock(&self.state).dead.clone().unwrap_or_else(|| "its stream ended".into()))
    }

    fn answer(&self, id: u64, reply: Result<Reply, Fault>) {
        // Who asked may have gone meanwhile.
        if let Some(sender) = lock(&self.state).replies.remove(&id) {
            let _ = sender.send(reply);
        }
    }

    fn job_done(&self, job: u64) {
        let mut state = lock(&self.state);
        if let Some((_, bytes)) = state.jobs.remove(&job) {
            state.queued_bytes -= bytes;
        }
    }

    /// What an answer means here; an output for the receiver, if it is one.
    fn take(&self, tell: Tell, payload: Vec<u8>) -> io::Result<Option<Output>> {
        match tell {
            Tell::Pong { id } | Tell::Encoded { id } | Tell::Finished { id } => {
                self.answer(id, Ok(Reply { have: 0, payload }));
            }
            Tell::Opened { id, have } => self.answer(id, Ok(Reply { have, payload })),
            Tell::Refused { id, fault } => self.answer(id, Err(fault)),
            Tell::Dropped { job } => self.job_done(job),
            Tell::Closed { session, first } => {
                lock(&self.state).open.remove(&(ipc::session(session), first));
            }
            Tell::Output(output) => {
                self.job_done(output.job);
                return checked(output, payload).map(Some);
            }
            Tell::Ready(_) | Tell::Failed { .. } => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it loaded twice"));
            }
        }
        Ok(None)
    }

    /// The child is gone: suspects what it was doing, fails what waits, and returns an output for each open range.
    fn bury(&self, why: String) -> Vec<Output> {
        self.alive.store(false, Ordering::SeqCst);
        let mut state = lock(&self.state);
        let State { replies, jobs, open, .. } = std::mem::take(&mut *state);
        state.dead = Some(why.clone());
        drop(state);
        if !self.dismissed.load(Ordering::SeqCst) {
            let mut suspects: Vec<SessionId> = jobs.into_values().map(|job| job.0).collect();
            suspects.sort_unstable();
            suspects.dedup();
            suspects.into_iter().for_each(|session| self.guard.suspect(session));
        }
        for sender in replies.into_values() {
            let _ = sender.send(Err(Fault::Dead(why.clone())));
        }
        let failed = |((session, _), (epoch, layers))| Output {
            session,
            epoch,
            layers,
            from: 0,
            rows: 0,
            body: Body::Failed(format!("the worker is gone ({why})")),
            compute_us: 0,
            batched: 0,
        };
        open.into_iter().map(failed).collect()
    }
}

fn checked(output: ipc::Output, payload: Vec<u8>) -> io::Result<Output> {
    let body = match output.body {
        ipc::Body::Nothing => Body::Nothing,
        ipc::Body::NeedReplay { have } => Body::NeedReplay { have },
        ipc::Body::Failed(why) => Body::Failed(why),
        ipc::Body::Activations(wire) => {
            let wire = Wire::from_u8(wire)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "activations of no known form"))?;
            Body::Activations(wire, payload)
        }
        ipc::Body::Sampled(sampled) => {
            let Sampled { position, id, text, stop, ends_turn, bytes, logprob, top } = sampled;
            Body::Sampled { position, id, text, stop, ends_turn, bytes, logprob, top }
        }
    };
    Ok(Output {
        session: ipc::session(output.session),
        epoch: output.epoch,
        layers: ipc::range(output.layers)?,
        from: output.from,
        rows: output.rows,
        body,
        compute_us: output.compute_us,
        batched: output.batched,
    })
}

/// Sends what is queued; ends when no handle is left or the child is gone.
async fn write_frames(mut to: OwnedWriteHalf, mut queue: mpsc::Receiver<Frame>, shared: Arc<Shared>) {
    while let Some(frame) = queue.recv().await {
        if frame.send(&mut to).await.is_err() {
            return;
        }
    }
    shared.dismissed.store(true, Ordering::SeqCst);
    let _ = to.shutdown().await;
}

/// Reads until the child is gone or talks nonsense, which ends it.
async fn read_frames(mut from: BufReader<OwnedReadHalf>, outputs: mpsc::Sender<Output>, shared: Arc<Shared>) {
    let why = loop {
        let taken = match ipc::receive::<Tell>(&mut from).await {
            Ok(Some((tell, payload))) => shared.take(tell, payload),
            Ok(None) => break "its stream ended".to_string(),
            Err(error) => Err(error),
        };
        match taken {
            // Without a receiver the answer has no reader; the handles may still ask.
            Ok(Some(output)) => drop(outputs.send(output).await),
            Ok(None) => {}
            Err(error) => break error.to_string(),
        }
    };
    shared.child.kill();
    for output in shared.bury(why) {
        let _ = outputs.send(output).await;
    }
}
