//! Computing again what another node claims to have computed: the word that outweighs everybody's.
//!
//! An audit starts a worker of its own with just the layers in question, takes the logged inputs through them from
//! position 0 on as one prompt, and compares bytes. It needs no other node's help and trusts none, so it settles what two
//! disagreeing nodes cannot.
//!
//! Limits: the model's file must be whole here and the machine of class `d1`; one audit at a time, the others wait. It
//! costs loading the layers, and as much computing as the same number of prompt tokens.

use std::sync::Arc;

use p2p::{
    blob::sparse,
    codec::{self, Rounding, Wire},
    wire::announce::Class,
};
use scheduler::{LayerRange, ModelId, SessionId, SessionKind};
use shard::executor::DeviceName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::worker::{self, Body, DraftIds, Job, JobInput, Measure, OpenSession, Source, Spec, Want};

/// Rows of one job.
const ROWS: u32 = 128;
/// What audits that go on after their answers have ended may hold of their sessions, KiB; the next answer waits for its own.
const MAX_BEHIND_KIB: u32 = 128 << 10;

/// What to compute again.
#[derive(Clone)]
pub struct Case {
    /// Which layers.
    pub layers: LayerRange,
    /// Where the session rounds.
    pub rounding: Rounding,
    /// Which earlier positions its rows see, and how keys and values are kept.
    pub kind: SessionKind,
    /// Values of a row.
    pub hidden: usize,
    /// The rows that entered, from position 0 on, all in one form.
    pub inputs: (Wire, Vec<u8>),
    /// The form of the rows that left.
    pub output: Wire,
}

/// What an audit found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Audit {
    /// Positions compared.
    pub upto: u32,
    /// The first that differs.
    pub wrong: Option<u32>,
}

impl Audit {
    /// Compares rows of `row` bytes, at least one, as far as there are both.
    pub(crate) fn compare(row: usize, own: &[u8], said: &[u8]) -> Self {
        let wrong = own.chunks_exact(row).zip(said.chunks_exact(row)).position(|(own, said)| own != said);
        let upto = (own.len().min(said.len()) / row) as u32;
        Self { upto, wrong: wrong.map(|at| at as u32) }
    }
}

/// Who can audit.
#[derive(Clone)]
pub struct Auditor {
    spec: Spec,
    model: ModelId,
    seats: Arc<Semaphore>,
    behind: Arc<Semaphore>,
}

impl Auditor {
    /// An auditor of the model that workers of `spec` load; `None` when its file has holes or this machine does not
    /// compute exactly.
    pub fn new(spec: &Spec, model: ModelId, class: Class) -> Option<Self> {
        let whole = match &spec.source {
            Source::Embedded => true,
            Source::File(path) => sparse::is_whole(path, model),
        };
        // What is served must not be kept from being checked: an audit does not take from the room of those it checks.
        let room = worker::Room::default();
        // The processor has the same bits, and memory of a GPU is for what is served.
        let own = if spec.is_on_gpu() { None } else { spec.class };
        let (guard, device) = (worker::PoisonGuard::default(), DeviceName::Cpu);
        let spec = Spec {
            guard,
            device,
            class: own,
            measure: Measure::Nothing,
            room,
            draft_head: None,
            ..spec.clone()
        };
        (whole && class == Class::D1).then(|| Self {
            spec,
            model,
            seats: Arc::new(Semaphore::new(1)),
            behind: Arc::new(Semaphore::new(MAX_BEHIND_KIB as usize)),
        })
    }

    /// Whose layers it computes.
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// The right to go on auditing after the answer has ended, with a log of `bytes`, for as long as it is held; `None` when as
    /// many do as may. The longest log has the room for itself.
    pub fn behind(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).clamp(1, MAX_BEHIND_KIB);
        Arc::clone(&self.behind).try_acquire_many_owned(kib).ok()
    }

    /// The rows that leave the layers; `None` when they cannot be computed here.
    pub async fn outputs(&self, case: &Case) -> Option<Vec<u8>> {
        let (wire, inputs) = &case.inputs;
        let row = codec::encoded_len(*wire, 1, case.hidden)?;
        let positions = u32::try_from(inputs.len() / row).ok().filter(|rows| *rows > 0)?;
        let _seat = self.seats.acquire().await.ok()?;
        let spec = Spec { layers: vec![case.layers], model: Some(self.model), ..self.spec.clone() };
        let (worker, _, mut outputs) = worker::spawn(spec).await.ok()?;
        let session = SessionId::new([0; 16]);
        let open = OpenSession {
            session,
            epoch: 1,
            layers: case.layers,
            positions,
            at: 0,
            rounding: case.rounding.clone(),
            kind: case.kind,
            kept: Vec::new(),
            conduct: None,
        };
        worker.open(open).await.ok()?;
        let mut computed = Vec::new();
        for (from, rows) in (0..positions).step_by(ROWS as usize).map(|at| (at, ROWS.min(positions - at))) {
            let bytes = inputs[from as usize * row..(from + rows) as usize * row].to_vec();
            let input = JobInput::Wire(*wire, bytes);
            let layer = case.layers.start();
            let (want, draft) = (Want::Activations, DraftIds::default());
            worker
                .run(Job { session, epoch: 1, layer, from, rows, input, want, attempt: 0, draft, foresee: 0 })
                .ok()?;
            match outputs.recv().await?.body {
                Body::Activations(_, bytes) => computed.extend(bytes),
                _ => return None,
            }
        }
        worker.kill();
        Some(computed)
    }

    /// Compares what was `said` to have left the layers, row after row, with an own computation.
    pub async fn audit(&self, case: &Case, said: &[u8]) -> Option<Audit> {
        let row = codec::encoded_len(case.output, 1, case.hidden)?;
        Some(Audit::compare(row, &self.outputs(case).await?, said))
    }
}
