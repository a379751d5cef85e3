//! The device's memory between the dispatches of passes.

use super::{device::Gpu, mixers::MixerWidths, pool::PageKind, vector};
use crate::{
    Error, Result,
    executor::Capacity,
    kernels::PAGE,
    models::{Blueprint, FeedForward},
};

/// What a pass keeps on the device, `[rows][width]` each.
pub(super) struct Scratch {
    /// What a pass is about, for all rows and for those that are wanted.
    pub info: [wgpu::Buffer; 2],
    /// Residual rows, all and those that are wanted.
    pub x: [wgpu::Buffer; 2],
    /// A row as the next matrix reads it: as f32, rounded, scales, sums.
    pub row: [wgpu::Buffer; 4],
    pub mixer: MixerScratch,
    pub network: NetworkScratch,
    /// What a sublayer made before it is added.
    pub made: wgpu::Buffer,
    /// Narrow rows between two matrices.
    pub narrow: [wgpu::Buffer; 2],
    /// Cosines and sines of each rotation.
    pub angles: Vec<wgpu::Buffer>,
    pub logits: wgpu::Buffer,
    /// The largest logits of parts of rows, and of rows: ids, then keys.
    pub top: [wgpu::Buffer; 2],
    /// Where there is nothing to read.
    pub nothing: wgpu::Buffer,
}

/// Between the matrices of what mixes positions; see [`MixerWidths`].
pub(super) struct MixerScratch {
    pub projected: wgpu::Buffer,
    pub inputs: wgpu::Buffer,
    pub gates: wgpu::Buffer,
    pub queries: wgpu::Buffer,
    pub attended: wgpu::Buffer,
    pub mixed: wgpu::Buffer,
}

/// Between the matrices of networks; see [`NetworkWidths`].
pub(super) struct NetworkScratch {
    pub inner: wgpu::Buffer,
    /// The inner row in front of its norm.
    pub between: wgpu::Buffer,
    pub shared: wgpu::Buffer,
    pub beside: wgpu::Buffer,
    /// What routers say.
    pub scores: wgpu::Buffer,
    /// Which experts are visited, with their weights.
    pub chosen: wgpu::Buffer,
}

/// Most of the largest logits of a row that the device finds.
pub(super) const MOST_TOP: usize = 64;
/// Logits that one workgroup looks through.
pub(super) const TOP_PART: usize = 1024;

/// Values of rows in the networks of a model, enough for every layer.
#[derive(Default)]
struct NetworkWidths {
    /// Between the two products, of all experts that a row visits.
    inner: usize,
    /// The same of the expert that all rows visit.
    shared: usize,
    /// Rows that experts read, where they are narrower.
    latent: usize,
    /// Hidden values of a layer whose experts stand beside a network.
    beside: usize,
    /// What routers say, and most experts that a row visits.
    scores: usize,
    visits: usize,
}

impl NetworkWidths {
    fn most(b: &Blueprint) -> Self {
        let mut most = Self::default();
        for layer in &b.layers {
            let dense = layer.feed_forward.dense().map_or(0, |dense| dense.width);
            most.inner = most.inner.max(dense);
            if matches!(layer.feed_forward, FeedForward::Both(..)) {
                most.beside = b.hidden;
            }
            let Some(experts) = layer.feed_forward.experts() else { continue };
            let visits = experts.used + usize::from(experts.shared == Some(experts.width));
            most.inner = most.inner.max(visits * experts.width);
            most.shared = most.shared.max(experts.shared.unwrap_or(0));
            most.latent = most.latent.max(experts.latent.unwrap_or(0));
            most.scores = most.scores.max(experts.count + usize::from(experts.shared_gate));
            most.visits = most.visits.max(visits);
        }
        most
    }
}

/// The widest row that a matrix reads.
fn widest(b: &Blueprint, mixer: &MixerWidths, network: &NetworkWidths) -> usize {
    b.hidden.max(mixer.widest()).max(network.inner).max(network.shared).max(network.latent)
}

/// Entries of a session's table in a layer, for passes of `rows` rows.
pub(super) fn table_entries(context: usize, rows: usize) -> usize {
    context.div_ceil(PAGE).max(vector::most_entries(rows))
}

/// Bytes that passes up to `capacity` take on a device beside weights and states.
pub(in crate::executor) fn scratch_bytes(b: &Blueprint, context: usize, capacity: Capacity) -> usize {
    let (mixer, network) = (MixerWidths::most(b), NetworkWidths::most(b));
    let widest = widest(b, &mixer, &network);
    let NetworkWidths { inner, shared, latent, beside, scores, visits } = network;
    let angles: usize = b.ropes.iter().map(|rope| rope.dims).sum();
    let row = 3 * b.hidden + mixer.sum() + 3 * inner + 2 * shared + 2 * latent + beside + angles + 2;
    let row = row + scores + 2 * visits + 1;
    let arenas: usize = (0..b.layers.len()).map(|layer| PageKind::of(b.state_kind(layer)).len()).sum();
    let tables = 4 * arenas * capacity.items * table_entries(context, capacity.rows);
    let logits = 4 * b.vocab + 8 * MOST_TOP * (b.vocab.div_ceil(TOP_PART) + 1);
    capacity.rows * (4 * row + 6 * widest) + capacity.logit_rows * logits + tables
}

impl Scratch {
    /// For passes of `rows` rows, `logit_rows` of them wanted, that are told what they are about in `info` words.
    ///
    /// # Errors
    /// [`Error::Invalid`] for rows that one buffer of the device does not hold.
    pub fn new(gpu: &Gpu, b: &Blueprint, (rows, logit_rows): (usize, usize), info: usize) -> Result<Self> {
        let (mixer, network) = (MixerWidths::most(b), NetworkWidths::most(b));
        let widest = widest(b, &mixer, &network);
        let largest = 4 * (rows * (2 * widest).max(mixer.widest_made())).max(logit_rows * b.vocab).max(info);
        if largest as u64 > gpu.info().binding_bytes {
            return Err(Error::invalid(format!(
                "passes of {rows} rows need {largest} bytes in one buffer, the device has {}; ask for fewer rows",
                gpu.info().binding_bytes
            )));
        }
        let floats = |label: &str, width: usize| gpu.buffer(label, 4 * rows * width);
        Ok(Self {
            info: [gpu.buffer("pass", 4 * info), gpu.buffer("pass", 16)],
            x: [floats("x", b.hidden), floats("x wanted", b.hidden)],
            row: [
                floats("row", widest),
                gpu.buffer("codes", rows * widest),
                gpu.buffer("scales", rows * widest / 8),
                gpu.buffer("sums", rows * widest / 4),
            ],
            mixer: MixerScratch {
                projected: floats("projected", mixer.projected),
                inputs: floats("inputs", mixer.inputs),
                gates: floats("gates", mixer.gates),
                queries: floats("queries", mixer.queries),
                attended: floats("attended", mixer.attended),
                mixed: floats("mixed", mixer.mixed),
            },
            network: NetworkScratch {
                inner: floats("inner", 2 * network.inner),
                between: floats("between", network.inner),
                shared: floats("shared", 2 * network.shared),
                beside: floats("beside", network.beside),
                scores: floats("scores", network.scores),
                chosen: floats("chosen", 2 * network.visits + 1),
            },
            made: floats("made", b.hidden),
            narrow: [(); 2].map(|()| floats("narrow", mixer.narrow.max(network.latent))),
            angles: b.ropes.iter().map(|rope| floats("angles", rope.dims)).collect(),
            logits: gpu.buffer("logits", 4 * logit_rows * b.vocab),
            top: [b.vocab.div_ceil(TOP_PART), 1]
                .map(|parts| gpu.buffer("top", 8 * logit_rows * parts * MOST_TOP)),
            nothing: gpu.buffer("nothing", 16),
        })
    }

    /// The row as the head reads it: hidden states.
    pub fn states(&self) -> &wgpu::Buffer {
        &self.row[0]
    }
}
