//! The child: `shoal worker`.
//!
//! Its standard input is one end of a socket pair, in both directions. The first frame says what to load; after that a
//! reader thread feeds a bounded queue, this thread computes (it is worker 0 of the kernels' pool), and a writer thread
//! drains another bounded queue. A full queue stops its writer: the reader, and with it the daemon's writer, or
//! the computing.
//!
//! The process ends when the daemon does, in whatever way: on Linux the kernel kills it, and everywhere the reader sees
//! the end of the stream and exits at once, even in the middle of a pass.

use scheduler::{AttentionKind, CacheType, SessionKind, attention::Sparse};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader},
    os::{fd::AsFd, unix::net::UnixStream},
    process,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use shard::kernels::threads::Pool;

use super::{
    MAX_JOBS,
    batcher::{Asked, Batcher},
    ipc::{self, Ask, Fault, Frame, Load, Ready, Tell},
    load::Loaded,
    probe::{self, Times},
};
use crate::{
    Error, Result,
    confine::{self, Confinement, Purpose, descriptors},
};

/// Frames between two threads.
const QUEUE: usize = 64;
/// Frames taken out of the queue to look for jobs that can share a pass: all that may be under way, so that none
/// waits unseen while its session counts as idle.
const WAITING: usize = MAX_JOBS + QUEUE;
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Buffer of the reader: a decode step of most models in one system call.
const READ_BUFFER: usize = 64 << 10;

/// Serves the daemon at the other end of standard input until it goes.
///
/// # Errors
/// When standard input is no socket, the first frame is not [`Ask::Load`], or the model cannot be loaded (which the
/// daemon is told as well).
pub fn run() -> Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if stream.peer_addr().is_err() {
        return Err(Error::usage(
            "`shoal worker` is started by the daemon: standard input must be its socket",
        ));
    }
    confine::begin_worker();
    let mut writer = stream;
    // Without a buffer: it would swallow the byte that brings the file.
    let Some((Ask::Load(load), _)) = ipc::read(&mut writer)? else {
        return Err(Error::usage("the daemon's first frame asks for no model"));
    };
    let file = match load.path {
        Some(_) => descriptors::receive(&writer)?.into_iter().next().map(File::from),
        None => None,
    };
    if load.nice {
        confine::give_way();
    }
    // The processors are told by files that cannot be opened from here on.
    Pool::physical_cores();
    let memory = confine::for_model(load.bytes, load.kv_bytes);
    let confinement = confine::enter_worker(Purpose::Compute, &load.device, memory);
    let asks = spawn_reader(BufReader::with_capacity(READ_BUFFER, writer.try_clone()?))?;
    let loaded = match Loaded::load(&load, file) {
        Ok(loaded) => loaded,
        Err(error) => {
            Frame::new(&Tell::Failed { why: error.to_string() }, Vec::new())?.write(&mut writer)?;
            return Err(error);
        }
    };
    let mut engine = Batcher::new(&loaded, load.kv_bytes)?;
    let ready = ready(&loaded, &load, confinement)?;
    Frame::new(&Tell::Ready(ready), Vec::new())?.write(&mut writer)?;
    let tells = spawn_writer(writer)?;
    serve(&mut engine, &asks, &tells)
}

fn ready(loaded: &Loaded, load: &Load, confinement: Confinement) -> Result<Ready> {
    let times = if load.measure { probe::measure(loaded)? } else { Times::default() };
    let blueprint = loaded.blueprint();
    let attends = |kind: SessionKind| loaded.stages.iter().all(|stage| stage.attends(kind).is_ok());
    Ok(Ready {
        model: *loaded.model.as_bytes(),
        name: loaded.name.clone(),
        num_layers: loaded.num_layers(),
        layers: loaded.stages.iter().map(|stage| ipc::pair(stage.range())).collect(),
        hidden: blueprint.hidden as u32,
        vocab: blueprint.vocab as u32,
        context: loaded.context as u32,
        kv_bytes_per_layer_position: loaded.position_bytes(),
        resident_bytes: loaded.stages.iter().map(|stage| stage.resident_bytes() as u64).sum(),
        decode_ms: times.decode_ms,
        prefill_ms: times.prefill_ms,
        visit_ms: times.visit_ms,
        head_ms: times.head_ms,
        load_ms: loaded.load_ms,
        layer_bytes: loaded.layer_bytes,
        costs: loaded.costs.runs().into_iter().map(ipc::cost_run).collect(),
        exact: probe::is_exact(loaded, load.exact)?,
        goes_back: blueprint.goes_back(),
        attends_window: attends(AttentionKind::Window(1).into()),
        attends_sparse: attends(AttentionKind::Sparse(Sparse::DEFAULT).into()),
        small_shares: attends(SessionKind { cache: CacheType::Q8, ..SessionKind::DEFAULT })
            .then(|| [CacheType::Q8, CacheType::Q4].map(|cache| loaded.share(cache))),
        sandboxed: confinement.filtered,
        landlocked: confinement.landlocked,
    })
}

/// Reads frames until the daemon goes, which ends the process, as does a malformed frame.
fn spawn_reader(mut from: BufReader<UnixStream>) -> Result<Receiver<Asked>> {
    let (sender, receiver) = sync_channel(QUEUE);
    thread::Builder::new().name("reader".into()).spawn(move || {
        loop {
            match ipc::read::<Ask>(&mut from) {
                Ok(Some(frame)) => {
                    if sender.send(frame).is_err() {
                        return;
                    }
                }
                Ok(None) => process::exit(0),
                Err(error) => {
                    eprintln!("error: worker: {error}");
                    process::exit(1);
                }
            }
        }
    })?;
    Ok(receiver)
}

/// Writes frames; if that fails the daemon is gone, and so is the process.
fn spawn_writer(mut to: UnixStream) -> Result<SyncSender<Frame>> {
    let (sender, receiver) = sync_channel::<Frame>(QUEUE);
    thread::Builder::new().name("writer".into()).spawn(move || {
        for frame in receiver {
            if frame.write(&mut to).is_err() {
                process::exit(0);
            }
        }
    })?;
    Ok(sender)
}

fn serve(engine: &mut Batcher<'_>, asks: &Receiver<Asked>, tells: &SyncSender<Frame>) -> Result<()> {
    // An answer that does not fit a frame is a bug here, and silence would be a hang there.
    let mut tell = |tell: Tell, payload: Vec<u8>| {
        let sent = Frame::new(&tell, payload).map(|frame| tells.send(frame).is_ok());
        if !matches!(sent, Ok(true)) {
            eprintln!("error: worker: an answer could not be sent");
            process::exit(1);
        }
    };
    let mut waiting: VecDeque<Asked> = VecDeque::with_capacity(WAITING);
    let mut swept = Instant::now();
    let mut kept_bytes = 0;
    loop {
        if waiting.is_empty() {
            match asks.recv_timeout(SWEEP) {
                Ok(asked) => waiting.push_back(asked),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        waiting.extend(asks.try_iter().take(WAITING - waiting.len()));
        match waiting.front() {
            Some((Ask::Run(_), _)) => {
                let jobs = engine.fold(&mut waiting);
                engine.run(jobs, &mut tell);
            }
            Some(_) => {
                if let Some((ask, payload)) = waiting.pop_front() {
                    let moves = !matches!(ask, Ask::Ping { .. } | Ask::Check { .. } | Ask::Encode { .. });
                    answer(engine, ask, &payload, &mut tell)?;
                    if moves {
                        tell_kept(engine, &mut kept_bytes, &mut tell);
                    }
                }
            }
            None => {}
        }
        let now = Instant::now();
        if now.duration_since(swept) >= SWEEP {
            swept = now;
            for (ask, _) in &waiting {
                if let Ask::Run(run) = ask {
                    engine.sessions.touch((ipc::session(run.session), run.layer), now);
                }
            }
            for (session, first) in engine.sessions.sweep(now) {
                tell(Tell::Closed { session: *session.as_bytes(), first }, Vec::new());
            }
            tell_kept(engine, &mut kept_bytes, &mut tell);
        }
    }
}

/// Lets what is kept of ended sessions give way, and says what it takes where that has changed.
fn tell_kept(engine: &mut Batcher<'_>, told: &mut u64, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
    let bytes = engine.sessions.fit_kept(Instant::now());
    if bytes != *told {
        *told = bytes;
        tell(Tell::Kept { bytes }, Vec::new());
    }
}

/// Everything that is no job.
fn answer(
    engine: &mut Batcher<'_>,
    ask: Ask,
    payload: &[u8],
    tell: &mut dyn FnMut(Tell, Vec<u8>),
) -> Result<()> {
    let refused = |error: Error| Fault::Refused(error.to_string());
    let now = Instant::now();
    let (id, outcome) = match ask {
        Ask::Ping { id } => (id, Ok((Tell::Pong { id }, Vec::new()))),
        Ask::Check { id } => {
            let format = str::from_utf8(payload).map_err(|_| Fault::Refused("a form that is no text".into()));
            let made = format.and_then(|format| engine.model.constraint(Some(format)).map_err(refused));
            (id, made.map(|_| (Tell::Checked { id }, Vec::new())))
        }
        Ask::Encode { id, kind } => {
            let ids = engine.model.encode(&kind, payload).map_err(refused);
            let told = |ids: Vec<u32>| {
                let reasoning = engine.model.opens_reasoning(&kind, &ids);
                (Tell::Encoded { id, reasoning }, ipc::ids_to_bytes(&ids))
            };
            (id, ids.map(told))
        }
        Ask::Open { id, open } => {
            let have = ipc::ids_from_bytes(payload)
                .ok_or_else(|| Fault::Refused("a history that is no list of ids".into()))
                .and_then(|history| engine.sessions.open(open, history, now));
            (id, have.map(|have| (Tell::Opened { id, have }, Vec::new())))
        }
        Ask::Finish { id, session } => {
            let text = engine
                .sessions
                .conductor(ipc::session(session))
                .map(|conductor| conductor.finish())
                .ok_or_else(|| Fault::Refused("the session does not conduct here".into()));
            (id, text.map(|text| (Tell::Finished { id }, text.into_bytes())))
        }
        Ask::Truncate { session, to } => {
            return engine.sessions.truncate(ipc::session(session), to, now);
        }
        Ask::Close { session, keep } => {
            engine.sessions.close(ipc::session(session), &keep, now);
            return Ok(());
        }
        Ask::Forget { session } => {
            engine.sessions.kept().forget(ipc::session(session));
            return Ok(());
        }
        Ask::Keep { most_bytes } => {
            engine.sessions.kept().set_limit(most_bytes);
            return Ok(());
        }
        Ask::Load(_) | Ask::Run(_) => return Err(Error::usage("a second model for one worker")),
    };
    match outcome {
        Ok((message, payload)) => tell(message, payload),
        Err(fault) => tell(Tell::Refused { id, fault }, Vec::new()),
    }
    Ok(())
}
