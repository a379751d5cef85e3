//! Experts of a layer on several nodes: the worker that leads a layer asks for what it lacks, and one that holds experts computes for
//! others.
//!
//! ```text
//! leader's worker ── WantExperts ──▶ daemon ══ p2p::wire::experts ══▶ daemon ── RunExperts ──▶ holder's worker
//!                 ◀── ExpertOutputs ──                                      ◀── ExpertsRan ──
//! ```
//!
//! Both daemons carry bytes ([`p2p::wire::experts::Work`]) that only the workers read. A pass of the leader waits for outputs, and its
//! worker answers nothing else meanwhile: so a node that leads computes no experts for others, and no two wait for each other.
//!
//! Limits: what a layer needs of one holder travels in pieces of [`MAX_VALUES`] values.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, SyncSender},
};

use p2p::{
    codec::{self, Wire},
    wire::experts::{MAX_VALUES, MAX_VISITS, Work},
};
use shard::{
    Error as ShardError, Result as ShardResult,
    executor::{Executor, ExpertWork, RemoteExperts, Workspace},
};

use super::{
    Fault, Worker,
    ipc::{Ask, Frame, Tell},
};
use crate::{Error, Result, confine::child::lock};

/// What the daemon answered: to which question, and the outputs or why there are none.
pub(super) type Given = (u64, Result<Vec<u8>, String>);

/// In the worker: the way to experts that are elsewhere, for one workspace.
#[derive(Clone)]
pub(super) struct ExpertLine {
    tells: Arc<SyncSender<Frame>>,
    given: Arc<Mutex<Receiver<Given>>>,
    next: Arc<AtomicU64>,
    /// Questions whose answers are not read yet, and how many visits each has.
    waits: Vec<(u64, usize)>,
    /// Values that a visit gives.
    width: usize,
    outputs: Vec<f32>,
}

impl ExpertLine {
    pub(super) fn new(tells: Arc<SyncSender<Frame>>, given: Receiver<Given>) -> Self {
        let given = Arc::new(Mutex::new(given));
        Self { tells, given, next: Arc::default(), waits: Vec::new(), width: 0, outputs: Vec::new() }
    }
}

impl RemoteExperts for ExpertLine {
    fn ask(&mut self, work: ExpertWork<'_>) -> ShardResult<()> {
        self.waits.clear();
        self.outputs.clear();
        for piece in pieces(work)? {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            self.width = piece.width as usize;
            self.waits.push((id, piece.visits.len()));
            let frame = Frame::new(&Tell::WantExperts { id }, piece.encode());
            let sent = frame.is_ok_and(|frame| self.tells.send(frame).is_ok());
            if !sent {
                return Err(ShardError::invalid("rows for experts elsewhere that cannot be sent"));
            }
        }
        Ok(())
    }

    fn take(&mut self) -> ShardResult<&[f32]> {
        let given = lock(&self.given);
        for (id, visits) in self.waits.drain(..) {
            // What was asked in a pass that failed is not read any more.
            let outputs = given.iter().find(|(answered, _)| *answered == id).map(|(_, outputs)| outputs);
            let outputs = outputs.unwrap_or_else(|| Err("the daemon is gone".into()));
            let outputs = outputs.map_err(|why| ShardError::invalid(format!("experts elsewhere: {why}")))?;
            codec::decode(Wire::Raw, self.width, visits, &outputs, &mut self.outputs)
                .map_err(|malformed| ShardError::invalid(format!("experts elsewhere: {malformed}")))?;
        }
        Ok(&self.outputs)
    }
}

/// `work` in pieces that may travel.
fn pieces(work: ExpertWork<'_>) -> ShardResult<impl Iterator<Item = Work>> {
    let rows = work.visits.iter().map(|(_, row)| *row as usize + 1).max().unwrap_or(1);
    let width = work.rows.len() / rows;
    let mut bytes = Vec::new();
    codec::encode(Wire::Raw, width, work.rows, &mut bytes)
        .map_err(|_| ShardError::invalid("rows for experts elsewhere are not finite"))?;
    let mut whole = Work { layer: work.layer, width: width as u32, visits: Vec::new(), rows: bytes };
    let most = (MAX_VALUES / width.max(1)).clamp(1, MAX_VISITS);
    Ok(work.visits.chunks(most).map(move |visits| {
        whole.visits = visits.to_vec();
        whole.part(|_| true)
    }))
}

/// Where the experts of a worker's layers are that are not in memory.
pub(super) enum Lacking {
    /// All are in memory.
    Nothing,
    /// Elsewhere, and no pass of this worker needs them.
    Unasked,
    /// Where this leads.
    Asked(ExpertLine),
}

/// For a workspace that is measured before there is a way to others: their experts give nothing and take no time.
#[derive(Default)]
pub(super) struct Silence(Vec<f32>);

impl RemoteExperts for Silence {
    fn ask(&mut self, work: ExpertWork<'_>) -> ShardResult<()> {
        let rows = work.visits.iter().map(|(_, row)| *row as usize + 1).max().unwrap_or(1);
        self.0.clear();
        self.0.resize(work.visits.len() * (work.rows.len() / rows), 0.0);
        Ok(())
    }

    fn take(&mut self) -> ShardResult<&[f32]> {
        Ok(&self.0)
    }
}

impl Worker {
    /// What experts held here give for `work`, a [`p2p::wire::experts::Work`] as another node wrote it.
    ///
    /// # Errors
    /// [`Fault::Refused`] for experts that are not here and malformed work; [`Fault::Busy`], [`Fault::Dead`].
    pub async fn experts(&self, work: Vec<u8>) -> Result<Vec<u8>, Fault> {
        Ok(self.ask(|id| Ask::RunExperts { id }, work).await?.payload)
    }
}

/// What experts of this worker give for `payload`, a [`Work`] of another node; f32 as bytes.
pub(super) fn run(
    stages: &[Box<dyn Executor>],
    workspaces: &mut [Workspace],
    payload: &[u8],
) -> Result<Vec<u8>> {
    let malformed = |malformed: p2p::wire::Malformed| Error::usage(malformed.to_string());
    let work = Work::decode(payload).map_err(malformed)?;
    let (width, mut rows) = (work.width as usize, Vec::new());
    codec::decode(Wire::Raw, width, work.rows.len() / (4 * width), &work.rows, &mut rows)
        .map_err(malformed)?;
    let stage = stages.iter().position(|stage| stage.range().contains(work.layer));
    let stage = stage.ok_or_else(|| Error::usage(format!("layer {} is not here", work.layer)))?;
    let asked = ExpertWork { layer: work.layer, visits: &work.visits, rows: &rows };
    let (mut outputs, mut bytes) = (Vec::new(), Vec::new());
    stages[stage].experts(&mut workspaces[stage], asked, &mut outputs)?;
    if outputs.len() != work.visits.len() * width {
        return Err(Error::usage(format!("rows of {width} values are none that these experts read")));
    }
    codec::encode(Wire::Raw, width, &outputs, &mut bytes).map_err(|odd| Error::usage(odd.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use scheduler::ExpertRange;
    use shard::{
        executor::{self, Capacity, Device, DeviceName, Ends, Options},
        gguf::Gguf,
        kernels::threads::Pool,
    };

    use super::*;
    use crate::model;

    #[test]
    fn long_work_travels_in_pieces_that_hold_all_of_it() {
        let width = 1 << 14;
        let visits: Vec<(u32, u32)> =
            (0..10).flat_map(|expert| (0..30).map(move |row| (expert, row))).collect();
        let rows: Vec<f32> = (0..30 * width).map(|value| value as f32).collect();
        let pieces: Vec<Work> =
            pieces(ExpertWork { layer: 1, visits: &visits, rows: &rows }).unwrap().collect();
        assert_eq!(pieces.iter().map(|piece| piece.visits.len()).collect::<Vec<_>>(), [128, 128, 44]);
        let read = |piece: &Work| Work::decode(&piece.encode()).unwrap();
        assert!(pieces.iter().all(|piece| read(piece) == *piece));
        let experts = |piece: &Work| piece.visits.iter().map(|(expert, _)| *expert).collect::<Vec<_>>();
        let told: Vec<u32> = pieces.iter().flat_map(experts).collect();
        assert_eq!(told, visits.iter().map(|(expert, _)| *expert).collect::<Vec<_>>());
        // The last visits are to rows 16 to 29 of expert 8 and to all of expert 9.
        assert_eq!(pieces[2].visits[0], (8, 16));
        assert_eq!(pieces[2].rows[..4], 0f32.to_le_bytes());
    }

    /// Whatever a node that leads sends gets an answer or a sentence, and never ends the process.
    #[test]
    fn odd_rows_are_refused_with_a_sentence() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/families/qwen3moe.gguf");
        let gguf = Arc::new(Gguf::open(file).unwrap());
        let device = Device::open(DeviceName::Cpu, None, || model::cpu(None, Pool::new(1, false))).unwrap();
        let (range, held) = (executor::whole_range(&gguf).unwrap(), ExpertRange::new(0, 2).unwrap());
        let stage =
            executor::load_experts(&device, &gguf, range, Ends::BOTH, Options::default(), held).unwrap();
        let width = stage.blueprint().hidden as u32;
        let mut workspaces = vec![Workspace::new(&*stage, Capacity::one_session(4)).unwrap()];
        let stages = vec![stage];
        let work = |layer, width: u32, visits: &[(u32, u32)], values: u32| {
            let rows = (0..values).flat_map(|value| (value as f32).to_le_bytes()).collect();
            Work { layer, width, visits: visits.to_vec(), rows }.encode()
        };
        let mut answer = |payload: &[u8]| {
            run(&stages, &mut workspaces, payload).map(|bytes| bytes.len()).map_err(|error| error.to_string())
        };
        let two = [(0, 0), (1, 1)];
        assert_eq!(answer(&work(0, width, &two, 2 * width)), Ok(8 * width as usize));
        for (payload, said) in [
            (work(99, width, &two, 2 * width), "layer 99 is not here"),
            (work(0, width, &[(0, 0), (7, 1)], 2 * width), "expert 7 is not here"),
            (work(0, width, &[(0, 0); 5], width), "more than a pass takes"),
            (work(0, width / 2, &[(0, 0), (1, 1)], width), "none of 1 rows"),
            (work(0, 2 * width, &[(0, 0), (1, 0)], 2 * width), "are none that these experts read"),
            (work(0, width + 1, &two, 2 * width + 2), "rows of experts that are none"),
            (b"owl".to_vec(), "truncated"),
        ] {
            let error = answer(&payload).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(answer(&work(0, width, &two, 2 * width)).is_ok(), "it goes on");
    }
}
