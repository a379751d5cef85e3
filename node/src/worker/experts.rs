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

use p2p::wire::experts::{MAX_VALUES, MAX_VISITS, Work};
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
    /// Questions whose answers are not read yet, and how many values each has.
    waits: Vec<(u64, usize)>,
    outputs: Vec<f32>,
}

impl ExpertLine {
    pub(super) fn new(tells: Arc<SyncSender<Frame>>, given: Receiver<Given>) -> Self {
        let given = Arc::new(Mutex::new(given));
        Self { tells, given, next: Arc::default(), waits: Vec::new(), outputs: Vec::new() }
    }
}

impl RemoteExperts for ExpertLine {
    fn ask(&mut self, work: ExpertWork<'_>) -> ShardResult<()> {
        self.waits.clear();
        self.outputs.clear();
        for piece in pieces(work) {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            self.waits.push((id, piece.visits.len() * piece.width as usize));
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
        for (id, values) in self.waits.drain(..) {
            // What was asked in a pass that failed is not read any more.
            let outputs = given.iter().find(|(answered, _)| *answered == id).map(|(_, outputs)| outputs);
            let outputs = outputs.unwrap_or_else(|| Err("the daemon is gone".into()));
            let outputs = outputs.map_err(|why| ShardError::invalid(format!("experts elsewhere: {why}")))?;
            let (outputs, rest) = outputs.as_chunks::<4>();
            if outputs.len() != values || !rest.is_empty() {
                return Err(ShardError::invalid("experts elsewhere gave another number of values"));
            }
            self.outputs.extend(outputs.iter().map(|value| f32::from_le_bytes(*value)));
        }
        Ok(&self.outputs)
    }
}

/// `work` in pieces that may travel.
fn pieces(work: ExpertWork<'_>) -> impl Iterator<Item = Work> {
    let rows = work.visits.iter().map(|(_, row)| *row as usize + 1).max().unwrap_or(1);
    let width = work.rows.len() / rows.max(1);
    let most = (MAX_VALUES / width.max(1)).clamp(1, MAX_VISITS);
    work.visits.chunks(most).map(move |visits| {
        let whole =
            Work { layer: work.layer, width: width as u32, visits: visits.to_vec(), rows: Vec::new() };
        let rows = work.rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        Work { rows, ..whole }.part(|_| true)
    })
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
    let work = Work::decode(payload).map_err(|malformed| Error::usage(malformed.to_string()))?;
    let rows: Vec<f32> =
        work.rows.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let stage = stages.iter().position(|stage| stage.range().contains(work.layer));
    let stage = stage.ok_or_else(|| Error::usage(format!("layer {} is not here", work.layer)))?;
    let asked = ExpertWork { layer: work.layer, visits: &work.visits, rows: &rows };
    let mut outputs = Vec::new();
    stages[stage].experts(&mut workspaces[stage], asked, &mut outputs)?;
    Ok(outputs.iter().flat_map(|value| value.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_travels_in_pieces_that_hold_all_of_it() {
        let width = 1 << 14;
        let visits: Vec<(u32, u32)> =
            (0..10).flat_map(|expert| (0..30).map(move |row| (expert, row))).collect();
        let rows: Vec<f32> = (0..30 * width).map(|value| value as f32).collect();
        let pieces: Vec<Work> = pieces(ExpertWork { layer: 1, visits: &visits, rows: &rows }).collect();
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
}
