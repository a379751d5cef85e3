//! What the handles of a worker share, and the two tasks that own its stream.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use p2p::codec::Wire;
use scheduler::{LayerRange, SessionId, layer_cost::LayerCosts};
use shard::kernels::Cores;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
};

use super::{
    Body, ExpertAsks, ExpertQuestion, Fault, Output, PoisonGuard, Room,
    ipc::{self, Ask, Frame, Tell, Trouble},
    room::{Keeps, Part},
};
use crate::{
    confine::child::{Child, lock},
    platform::streams::{ReadHalf, WriteHalf},
    state_store::Loan,
};

/// What the handles and the reader task share.
pub(super) struct Shared {
    /// `None` for a worker that never was.
    pub(super) child: Option<Child>,
    /// What it was started from; other processes of this node are started from it too.
    pub(super) program: PathBuf,
    /// What the child's threads are bound to; claimed for as long as this is there.
    pub(super) _cores: Option<Cores>,
    /// While the child runs, no other worker writes where it keeps states.
    pub(super) states: Mutex<Option<Arc<Loan>>>,
    pub(super) guard: PoisonGuard,
    pub(super) room: Room,
    /// What the child keeps of ended sessions, as the room counts it.
    pub(super) keeps: OnceLock<Keeps>,
    /// What each layer costs; `None` for a worker that never was.
    pub(super) costs: Option<LayerCosts>,
    /// As [`super::Ready::small_shares`].
    pub(super) small_shares: Option<[u32; 2]>,
    pub(super) alive: AtomicBool,
    /// Whether a driver may have ended the child.
    pub(super) on_gpu: bool,
    /// What it said of its device before it ended.
    pub(super) trouble: OnceLock<Trouble>,
    /// Whether we wanted the child to end.
    pub(super) dismissed: AtomicBool,
    pub(super) next_id: AtomicU64,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Unanswered questions.
    pub(super) replies: HashMap<u64, oneshot::Sender<Result<Reply, Fault>>>,
    /// Jobs under way: whose, and how many bytes.
    pub(super) jobs: HashMap<u64, (SessionId, usize)>,
    pub(super) queued_bytes: usize,
    /// Open ranges by session and first layer.
    pub(super) open: HashMap<(SessionId, u32), Range>,
    /// Why the child is gone.
    pub(super) dead: Option<String>,
}

/// An open range.
pub(super) struct Range {
    pub(super) epoch: u32,
    pub(super) layers: LayerRange,
    /// Positions it was opened for.
    pub(super) positions: u32,
    /// Memory it may grow to.
    pub(super) part: Part,
}

impl State {
    /// What a range of `session` that is opened on `layers` replaces, bytes.
    pub(super) fn replaced_bytes(&self, session: SessionId, layers: LayerRange) -> u64 {
        let replaced = |key: &(SessionId, u32), held: &Range| {
            key.0 == session && held.layers.intersect(layers).is_some()
        };
        self.open.iter().filter(|(key, held)| replaced(key, held)).map(|(_, held)| held.part.bytes()).sum()
    }

    /// Enters a range that the worker has opened, in the place of what it replaces.
    pub(super) fn opened(&mut self, session: SessionId, mut range: Range, bytes: u64) {
        let replaced = |key: &(SessionId, u32), held: &mut Range| {
            key.0 == session && held.layers.intersect(range.layers).is_some()
        };
        for (_, old) in self.open.extract_if(replaced) {
            range.part.join(old.part);
        }
        range.part.shrink(bytes);
        self.open.insert((session, range.layers.start()), range);
    }
}

/// An answer to a question.
pub(super) struct Reply {
    pub(super) have: u32,
    pub(super) payload: Vec<u8>,
}

impl Shared {
    /// Ends the child now, because we want it to.
    pub(super) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::SeqCst);
        self.kill();
    }

    /// Ends the child now, whatever it does.
    pub(super) fn kill(&self) {
        if let Some(child) = &self.child {
            child.kill();
        }
    }

    pub(super) fn fault(&self) -> Fault {
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
            Tell::Pong { id } | Tell::Checked { id } | Tell::Finished { id } | Tell::ExpertsRan { id } => {
                self.answer(id, Ok(Reply { have: 0, payload }));
            }
            Tell::Encoded { id, reasoning } => {
                self.answer(id, Ok(Reply { have: u32::from(reasoning), payload }));
            }
            Tell::Opened { id, have } => self.answer(id, Ok(Reply { have, payload })),
            Tell::Exported { id, raw_bytes } => self.answer(id, Ok(Reply { have: raw_bytes, payload })),
            Tell::Drafted { id, read } => self.answer(id, Ok(Reply { have: read, payload })),
            Tell::Refused { id, fault } => self.answer(id, Err(fault)),
            Tell::Dropped { job } => self.job_done(job),
            Tell::Kept { bytes } => {
                if let Some(keeps) = self.keeps.get() {
                    keeps.tell(bytes);
                }
            }
            Tell::Closed { session, first } => {
                lock(&self.state).open.remove(&(ipc::session(session), first));
            }
            Tell::Output(output) => {
                self.job_done(output.job);
                return checked(output, payload).map(Some);
            }
            Tell::Unfit { trouble } => {
                let _ = self.trouble.set(trouble);
            }
            Tell::Ready(_) | Tell::Failed { .. } | Tell::WantExperts { .. } => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it loaded twice"));
            }
        }
        Ok(None)
    }

    /// The child is gone: suspects what it was doing, fails what waits, and returns an output for each open range.
    fn bury(&self, why: String) -> Vec<Output> {
        self.alive.store(false, Ordering::SeqCst);
        lock(&self.states).take();
        let mut state = lock(&self.state);
        let State { replies, jobs, open, .. } = std::mem::take(&mut *state);
        state.dead = Some(why.clone());
        drop(state);
        // A device that fails is no fault of the sessions; what a session does on a processor as well is found there.
        if !self.dismissed.load(Ordering::SeqCst) && !self.on_gpu {
            let mut suspects: Vec<SessionId> = jobs.into_values().map(|job| job.0).collect();
            suspects.sort_unstable();
            suspects.dedup();
            suspects.into_iter().for_each(|session| self.guard.suspect(session));
        }
        for sender in replies.into_values() {
            let _ = sender.send(Err(Fault::Dead(why.clone())));
        }
        let failed = |((session, _), range): ((SessionId, u32), Range)| Output {
            session,
            epoch: range.epoch,
            attempt: 0,
            layers: range.layers,
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
        ipc::Body::Sampled(sampled) if sampled.is_empty() => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a sample without a token"));
        }
        ipc::Body::Sampled(mut sampled) => {
            if let Some(first) = sampled.first_mut().filter(|_| !payload.is_empty()) {
                first.prompt = ipc::prompt_from_bytes(&payload)?;
            }
            Body::Sampled(sampled)
        }
    };
    Ok(Output {
        session: ipc::session(output.session),
        epoch: output.epoch,
        attempt: output.attempt,
        layers: ipc::range(output.layers)?,
        from: output.from,
        rows: output.rows,
        body,
        compute_us: output.compute_us,
        batched: output.batched,
    })
}

/// Sends what is queued; ends when no handle is left or the child is gone.
pub(super) async fn write_frames(mut to: WriteHalf, mut queue: mpsc::Receiver<Frame>, shared: Arc<Shared>) {
    while let Some(frame) = queue.recv().await {
        if frame.send(&mut to).await.is_err() {
            return;
        }
    }
    shared.dismissed.store(true, Ordering::SeqCst);
    let _ = to.shutdown().await;
}

/// Has rows computed that need experts of another node; the child is answered in any case.
async fn want(id: u64, work: Vec<u8>, asks: &ExpertAsks, frames: mpsc::WeakSender<Frame>) {
    let (reply, answer) = oneshot::channel();
    // At a full channel the child waits, as it does for the answer.
    let _ = asks.questions.send(ExpertQuestion { work, reply }).await;
    tokio::spawn(async move {
        let answer = answer.await.unwrap_or_else(|_| Err("this node leaves".into()));
        let failed = answer.is_err();
        let payload = answer.unwrap_or_else(String::into_bytes);
        if let (Some(frames), Ok(frame)) =
            (frames.upgrade(), Frame::new(&Ask::ExpertOutputs { id, failed }, payload))
        {
            let _ = frames.send(frame).await;
        }
    });
}

/// Reads until the child is gone or talks nonsense, which ends it.
pub(super) async fn read_frames(
    mut from: BufReader<ReadHalf>,
    outputs: mpsc::Sender<Output>,
    (shared, experts): (Arc<Shared>, Option<(ExpertAsks, mpsc::WeakSender<Frame>)>),
) {
    let why = loop {
        let taken = match ipc::receive::<Tell>(&mut from).await {
            Ok(Some((Tell::WantExperts { id }, work))) if experts.is_some() => {
                if let Some((asks, frames)) = &experts {
                    want(id, work, asks, frames.clone()).await;
                }
                Ok(None)
            }
            Ok(Some((tell, payload))) => shared.take(tell, payload),
            Ok(None) => break "its stream ended".to_string(),
            Err(error) => Err(error),
        };
        match taken {
            // It computes nothing more, and may hang in a driver at its end.
            _ if shared.trouble.get().is_some() => break "its device failed".to_string(),
            // Without a receiver the answer has no reader; the handles may still ask.
            Ok(Some(output)) => drop(outputs.send(output).await),
            Ok(None) => {}
            Err(error) => break error.to_string(),
        }
    };
    shared.kill();
    for output in shared.bury(why) {
        let _ = outputs.send(output).await;
    }
}
