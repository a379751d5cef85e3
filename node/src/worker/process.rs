//! The child: `shoal worker`.
//!
//! Its standard input is one end of a socket pair, in both directions. The first frame says what to load; after that a
//! reader thread feeds a bounded queue, this thread computes (it is worker 0 of the kernels' pool), and a writer thread
//! drains another bounded queue. A full queue stops its writer: the reader, and with it the daemon's writer, or
//! the computing.
//!
//! The process ends when the daemon does, in whatever way: on Linux the kernel kills it, and everywhere the reader sees
//! the end of the stream and exits at once, even in the middle of a pass.

use scheduler::{
    AttentionKind, CacheType, SessionKind,
    attention::{H2o, Sparse},
};
use std::{
    collections::VecDeque,
    io::{self, BufReader},
    process,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shard::{draft::DraftToken, executor::Device, golden, kernels::threads::Pool, tokenizer::Tokenizer};

use super::{
    MAX_JOBS, Measure, PoolingTask,
    batcher::{Asked, Batcher},
    experts::{self, ExpertLine, Given, Lacking},
    filed::Filed,
    ipc::{self, Ask, Fault, Frame, Load, Ready, Tell, Trouble},
    load::{self, Files, Loaded},
    probe,
    ready::{Abilities, Memory, Times, Vocabulary},
};
use crate::{
    Error, Result,
    confine::{self, Confinement, Purpose, watch},
    platform::{handed_files, streams::BlockingStream},
    state_store::{StateStore, Ticket},
};

/// Frames between two threads.
const QUEUE: usize = 64;
/// Frames taken out of the queue to look for jobs that can share a pass: all that may be under way, so that none
/// waits unseen while its session counts as idle.
const WAITING: usize = MAX_JOBS + QUEUE;
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// How often a device that has nothing to do computes a hash of the self-test again.
const CHECK: Duration = Duration::from_secs(60);
/// Buffer of the reader: a decode step of most models in one system call.
const READ_BUFFER: usize = 64 << 10;

/// Serves the daemon at the other end of standard input until it goes.
///
/// # Errors
/// When standard input is no socket, the first frame is not [`Ask::Load`], or the model cannot be loaded (which the
/// daemon is told as well).
pub fn run() -> Result<()> {
    let mut writer = confine::child::to_parent()?;
    confine::begin_worker();
    // Without a buffer: it would swallow the byte that brings the file.
    let Some((Ask::Load(load), _)) = ipc::read(&mut writer)? else {
        return Err(Error::usage("the daemon's first frame asks for no model"));
    };
    let receive = || io::Result::Ok(handed_files::receive(&writer)?.into_iter().next());
    let (file, panels) = match load.file {
        Some((.., panels)) => (receive()?, if panels { receive()?.map(Arc::new) } else { None }),
        None => (None, None),
    };
    let head = if load.draft_head.is_some() { receive()? } else { None };
    let ticket = match load.state_secret {
        None => None,
        Some(secret) => receive()?.map(|file| Ticket { file, path: Default::default(), secret }),
    };
    if load.threads.nice {
        confine::give_way();
    }
    // The processors are told by files that cannot be opened from here on.
    Pool::physical_cores();
    let memory = confine::for_model(load.file.as_ref().map_or(0, |(_, bytes, _)| *bytes), load.kv_bytes);
    let confinement = confine::enter_worker(Purpose::Compute, &load.device.0, memory);
    let (asks, given) = spawn_reader(BufReader::with_capacity(READ_BUFFER, writer.try_clone()?))?;
    let (tells, written) = spawn_writer(writer)?;
    let last_words = Arc::downgrade(&tells);
    watch::start(&load.device.0, move |why| {
        if let (Some(tells), Ok(told)) = (last_words.upgrade(), unfit(why)) {
            let _ = tells.try_send(told);
        }
    })?;
    let filed = ticket.map(StateStore::open).transpose()?.map(Filed::new);
    let leads = load.experts.is_some_and(|(_, leads)| leads);
    let line = leads.then(|| ExpertLine::new(tells.clone(), given));
    let files = Files { model: file, panels, head };
    let outcome = compute(&load, (files, filed, line), confinement, &asks, &tells);
    drop(tells);
    // What was said last is read before this process ends.
    let _ = written.join();
    outcome
}

fn unfit(why: String) -> io::Result<Frame> {
    Frame::new(&Tell::Unfit { trouble: Trouble::Lost(why) }, Vec::new())
}

/// Loads the model and computes with it until the daemon goes.
fn compute(
    load: &Load,
    (files, filed, line): (Files, Option<Filed>, Option<ExpertLine>),
    confinement: Confinement,
    asks: &Receiver<Asked>,
    tells: &SyncSender<Frame>,
) -> Result<()> {
    let say = |frame: Frame| drop(tells.send(frame));
    let failed = |error: &Error, device: Option<&Device>| match device.and_then(Device::lost) {
        Some(why) => unfit(why),
        None => Frame::new(&Tell::Failed { why: error.to_string() }, Vec::new()),
    };
    let device = match load::open_device(load) {
        Ok(device) => device,
        Err(error) => {
            say(failed(&error, None)?);
            return Err(error);
        }
    };
    #[cfg(debug_assertions)]
    super::fault::meet(&device, None);
    let mut loaded = match Loaded::load(load, files, device.clone()) {
        Ok(loaded) => loaded,
        Err(error) => {
            say(failed(&error, Some(&device))?);
            return Err(error);
        }
    };
    if let Some(line) = line {
        loaded.experts = Lacking::Asked(line);
    }
    let begin = || {
        let mut ready = ready(&loaded, load, confinement)?;
        let mut engine = Batcher::new(&loaded, load.kv_bytes)?;
        engine.sessions.kept().set_filed(filed);
        // What passes take is taken now.
        ready.memory.kv_bytes = loaded.state_room(load.kv_bytes);
        Ok((engine, ready))
    };
    let (mut engine, ready) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            say(failed(&error, Some(&device))?);
            return Err(error);
        }
    };
    say(Frame::new(&Tell::Ready(Box::new(ready)), Vec::new())?);
    serve(&mut engine, asks, tells)
}

/// [`CHECK`], sooner where a test makes a device go wrong.
fn check_every() -> Duration {
    #[cfg(debug_assertions)]
    if super::fault::is_hasty() {
        return SWEEP;
    }
    CHECK
}

fn ready(loaded: &Loaded, load: &Load, confinement: Confinement) -> Result<Ready> {
    let blueprint = loaded.blueprint();
    let attends = |kind: SessionKind| loaded.stages.iter().all(|stage| stage.attends(kind).is_ok());
    Ok(Ready {
        model: *loaded.model.as_bytes(),
        name: loaded.name.clone(),
        num_layers: loaded.num_layers(),
        layers: loaded.stages.iter().map(|stage| ipc::pair(stage.range())).collect(),
        hidden: blueprint.hidden as u32,
        vocabulary: Vocabulary {
            tokens: blueprint.vocab as u32,
            digest: loaded.tokenizer.as_ref().map_or([0; 32], |tokenizer| *tokenizer.digest().as_bytes()),
            closing: loaded.tokenizer.as_ref().ok().and_then(Tokenizer::closing),
        },
        context: loaded.context as u32,
        memory: Memory {
            kv_bytes_per_layer_position: loaded.position_bytes(),
            kv_bytes: load.kv_bytes,
            resident_bytes: loaded.stages.iter().map(|stage| stage.resident_bytes() as u64).sum(),
            layer_bytes: loaded.layer_bytes,
        },
        times: if load.measure != Measure::Nothing { probe::measure(loaded)? } else { Times::default() },
        load_ms: loaded.load_ms,
        costs: loaded.costs.runs().into_iter().map(ipc::cost_run).collect(),
        exact: loaded.exact,
        device: loaded.stages[0].device(),
        abilities: Abilities {
            goes_back: blueprint.goes_back(),
            attends_window: attends(AttentionKind::Window(1).into()),
            attends_sparse: attends(AttentionKind::Sparse(Sparse::DEFAULT).into()),
            attends_h2o: attends(AttentionKind::H2o(H2o::DEFAULT).into()),
            small_shares: attends(SessionKind { cache: CacheType::Q8, ..SessionKind::DEFAULT })
                .then(|| [CacheType::Q8, CacheType::Q4].map(|cache| loaded.share(cache))),
            draft_head_bytes: loaded.draft_head.as_ref().map(|head| head.bytes() as u64),
            encodes: blueprint.encodes(),
            embeds: loaded.pooling.states(PoolingTask::Embed).is_some(),
            scores: loaded.pooling.states(PoolingTask::Score).is_some(),
            experts: loaded.expert_shape(),
        },
        confinement,
    })
}

/// Reads frames until the daemon goes, which ends the process, as does a malformed frame. What a pass waits for comes by a way of
/// its own.
fn spawn_reader(mut from: BufReader<BlockingStream>) -> Result<(Receiver<Asked>, Receiver<Given>)> {
    let (sender, receiver) = sync_channel(QUEUE);
    let (give, given) = sync_channel(QUEUE);
    thread::Builder::new().name("reader".into()).spawn(move || {
        loop {
            match ipc::read::<Ask>(&mut from) {
                Ok(Some((Ask::ExpertOutputs { id, failed }, payload))) => {
                    let why = || String::from_utf8_lossy(&payload).into_owned();
                    // A worker that holds all experts asked for none.
                    let _ = give.send((id, if failed { Err(why()) } else { Ok(payload) }));
                }
                Ok(Some(frame)) => {
                    if sender.send(frame).is_err() {
                        return;
                    }
                }
                Ok(None) => process::exit(0),
                // A daemon that was killed with answers unread ends its stream so.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => process::exit(0),
                Err(error) => {
                    eprintln!("error: worker: {error}");
                    process::exit(1);
                }
            }
        }
    })?;
    Ok((receiver, given))
}

/// Writes frames; if that fails the daemon is gone, and so is the process.
fn spawn_writer(mut to: BlockingStream) -> Result<(Arc<SyncSender<Frame>>, JoinHandle<()>)> {
    let (sender, receiver) = sync_channel::<Frame>(QUEUE);
    let writer = thread::Builder::new().name("writer".into()).spawn(move || {
        for frame in receiver {
            if frame.write(&mut to).is_err() {
                process::exit(0);
            }
        }
    })?;
    Ok((Arc::new(sender), writer))
}

/// What another hash than that of profile `d1` says of the device: spot check `number` is computed again, and where it differs
/// the whole self-test. A device that fails while it is checked has computed nothing: [`Loaded::lost`] says so, or a later check.
fn inexact(loaded: &Loaded, number: u64) -> Option<Trouble> {
    #[allow(unused_mut)]
    let mut spot = golden::check_spot(&loaded.device, number)?.ok()?;
    #[cfg(debug_assertions)]
    super::fault::spoil(number, &mut spot);
    if spot.passed() {
        return None;
    }
    let name = spot.name;
    let again = match golden::check_device(&loaded.device) {
        Ok(checks) => {
            let passed = checks.iter().filter(|check| check.passed()).count();
            format!("{passed} of {} hashes were right", checks.len())
        }
        Err(error) => format!("the self-test ended: {error}"),
    };
    Some(Trouble::Inexact(format!("{name} came out otherwise; then {again}")))
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
    let (mut checked, mut checks) = (swept, 0);
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
                #[cfg(debug_assertions)]
                if let Some(position) = jobs.iter().map(|(run, _)| run.from).max() {
                    super::fault::meet(&engine.model.device, Some(position));
                }
                engine.run(jobs, &mut tell);
            }
            Some(_) => {
                if let Some((ask, payload)) = waiting.pop_front() {
                    let moves = !matches!(
                        ask,
                        Ask::Ping { .. }
                            | Ask::Check { .. }
                            | Ask::Encode { .. }
                            | Ask::Draft { .. }
                            | Ask::RunExperts { .. }
                    );
                    answer(engine, ask, &payload, &mut tell)?;
                    if moves {
                        tell_kept(engine, &mut kept_bytes, &mut tell);
                    }
                }
            }
            None => {}
        }
        if let Some(why) = engine.model.device.lost() {
            tell(Tell::Unfit { trouble: Trouble::Lost(why) }, Vec::new());
            return Ok(());
        }
        let now = Instant::now();
        if waiting.is_empty() && engine.model.exact && now.duration_since(checked) >= check_every() {
            checked = now;
            if let Some(trouble) = inexact(engine.model, checks) {
                tell(Tell::Unfit { trouble }, Vec::new());
                return Ok(());
            }
            checks += 1;
        }
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
            engine.drafts.sweep(now);
            engine.sessions.kept().filed().into_iter().for_each(|filed| filed.write(now));
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
        Ask::OpenDraft { id, session, sampling, seed, vocab } => {
            let opened = engine.drafts.open(ipc::session(session), &sampling.into(), (seed, vocab), now);
            (id, opened.map(|()| (Tell::Opened { id, have: 0 }, Vec::new())))
        }
        Ask::Draft { id, session } => {
            let said = ipc::ids_from_bytes(payload)
                .ok_or_else(|| Fault::Refused("a text that is no list of ids".into()))
                .and_then(|text| engine.drafts.draft(ipc::session(session), &text, now));
            let told = |(said, read): (Option<DraftToken>, usize)| {
                (Tell::Drafted { id, read: read as u32 }, said.map(ipc::drafted_to_bytes).unwrap_or_default())
            };
            (id, said.map(told))
        }
        Ask::Export { id, session, first, positions, start } => {
            let key = (ipc::session(session), first);
            let packed = engine.sessions.export(key, positions as usize, start as usize, now);
            (id, packed.map(|(raw_bytes, packed)| (Tell::Exported { id, raw_bytes }, packed)))
        }
        Ask::Agree { id, session, first, kept, positions } => {
            let (key, kept) = ((ipc::session(session), first), ipc::session(kept));
            let same = engine.sessions.agree(key, kept, positions as usize, now);
            (id, same.map(|same| (Tell::Opened { id, have: same.into() }, Vec::new())))
        }
        Ask::Import { id, open, start, raw_bytes } => {
            let have = engine.sessions.import(open, payload, (start as usize, raw_bytes as usize), now);
            (id, have.map(|have| (Tell::Opened { id, have }, Vec::new())))
        }
        Ask::RunExperts { id } => {
            let outputs =
                experts::run(&engine.model.stages, &mut engine.workspaces, payload).map_err(refused);
            (id, outputs.map(|outputs| (Tell::ExpertsRan { id }, outputs)))
        }
        Ask::Truncate { session, to } => {
            return engine.sessions.truncate(ipc::session(session), to, now);
        }
        Ask::Close { session, keep, file } => {
            engine.sessions.close(ipc::session(session), &keep, file, now);
            engine.drafts.close(ipc::session(session));
            return Ok(());
        }
        Ask::Forget { session } => {
            engine.sessions.forget(ipc::session(session));
            return Ok(());
        }
        Ask::Keep { most_bytes } => {
            engine.sessions.kept().set_limit(most_bytes);
            return Ok(());
        }
        Ask::Load(_) | Ask::Run(_) | Ask::ExpertOutputs { .. } => {
            return Err(Error::usage("a second model for one worker"));
        }
    };
    match outcome {
        Ok((message, payload)) => tell(message, payload),
        Err(fault) => tell(Tell::Refused { id, fault }, Vec::new()),
    }
    Ok(())
}
