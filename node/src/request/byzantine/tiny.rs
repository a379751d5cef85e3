//! A tiny random model, computed for real: what honest stages give, and what cheats give instead.

use p2p::{
    codec::{self, Rounding, Wire},
    wire::receipt::{Reexecute, Terms},
};
use scheduler::{LayerRange, rng::Rng};
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    quant,
    synthetic::Shape,
};
use std::sync::Arc;

use crate::worker;

/// Layers of the model; the requester keeps what is not in [`segment`].
const LAYERS: usize = 8;
/// Values of a row.
pub(super) const HIDDEN: usize = 64;
/// Positions of a request: a prompt and what follows it.
pub(super) const POSITIONS: usize = 40;
/// Positions of the prompt.
pub(super) const PROMPT: u32 = 19;
/// Where a failover leaves a careless stage with another cache.
pub(super) const FAILOVER: usize = 12;
/// Requests that everything is computed for.
const REQUESTS: usize = 8;

/// What the stranger runs.
pub(super) fn segment() -> LayerRange {
    LayerRange::new(2, 6).unwrap()
}

/// Boundaries that a session over `wire` rounds at.
pub(super) fn rounding(wire: Wire) -> Rounding {
    Rounding::new(wire, vec![2, 6])
}

/// One model's layers up to the end of the segment.
struct Model(Shard);

impl Model {
    fn new(format: &'static quant::Format, seed: u64) -> Self {
        let shape = Shape {
            family: shard::synthetic::Family::Llama,
            layers: LAYERS,
            hidden: HIDDEN,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            feed_forward: 128,
            vocab: 96,
            context: 64,
            tied: true,
            experts: None,
        };
        let gguf = Arc::new(Gguf::from_bytes(shape.to_bytes(format, seed).unwrap()).unwrap());
        let cpu = Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false)));
        let (range, ends) = (LayerRange::new(0, 6).unwrap(), Ends { embedding: true, head: false });
        Self(Shard::load(&gguf, cpu, range, ends, Options::default()).unwrap())
    }

    /// The rows that leave `layers`, all positions in one pass.
    fn run(&self, layers: LayerRange, input: Input<'_>, rounding: &Rounding) -> Vec<f32> {
        let mut ws = Workspace::new(&self.0, Capacity::one_session(POSITIONS)).unwrap();
        let mut state = self.0.new_state_of(layers).unwrap();
        let item = Item { state: &mut state, input, output: Output::All };
        self.0.run(&mut ws, layers, &worker::rounding(rounding), &mut [item]).unwrap();
        ws.activations(0).to_vec()
    }
}

/// Rows as they travel, one after the other.
pub(super) type Rows = Vec<Vec<u8>>;

/// Rows in the form `wire`.
pub(super) fn encode(wire: Wire, values: &[f32]) -> Rows {
    let row = |values: &[f32]| {
        let mut bytes = Vec::new();
        codec::encode(wire, HIDDEN, values, &mut bytes).unwrap();
        bytes
    };
    values.chunks_exact(HIDDEN).map(row).collect()
}

/// The values of `rows`.
pub(super) fn decode(wire: Wire, rows: &[impl AsRef<[u8]>]) -> Vec<f32> {
    let mut values = Vec::new();
    rows.iter().for_each(|row| codec::decode(wire, HIDDEN, 1, row.as_ref(), &mut values).unwrap());
    values
}

/// What there is to one request, computed once: the inputs of the segment and what comes out of it.
pub(super) struct Computed {
    /// The form of all rows.
    pub(super) wire: Wire,
    /// What enters the segment.
    pub(super) inputs: Rows,
    /// What its layers give.
    pub(super) truth: Rows,
    /// With one, two and three layers left out.
    pub(super) skipped: [Rows; 3],
    /// With weights of fewer bits.
    pub(super) lower: Rows,
    /// With another model.
    pub(super) other: Rows,
    /// With another session's cache below [`FAILOVER`].
    pub(super) stale: Rows,
}

/// The models, and requests to them.
pub(super) struct Tiny {
    model: Model,
    /// Requests, over wire `raw` and wire `q8` in turn.
    pub(super) requests: Vec<Computed>,
}

impl Tiny {
    pub(super) fn new() -> Self {
        let (model, lower, other) =
            (Model::new(&quant::Q8_0, 1), Model::new(&quant::Q4_0, 1), Model::new(&quant::Q8_0, 2));
        let wires = [Wire::Raw, Wire::Q8];
        let requests = (0..2 * REQUESTS).map(|at| {
            let mut chance = Rng::new(at as u64);
            let (wire, rounding) = (wires[at % 2], rounding(wires[at % 2]));
            let mut entering = || {
                let tokens: Vec<u32> = (0..POSITIONS).map(|_| chance.below(96) as u32).collect();
                let head = LayerRange::new(0, 2).unwrap();
                encode(wire, &model.run(head, Input::Tokens(&tokens), &rounding))
            };
            let (inputs, others) = (entering(), entering());
            let run = |model: &Model, end: u32, rows: &Rows| {
                let layers = LayerRange::new(2, end).unwrap();
                encode(wire, &model.run(layers, Input::Activations(&decode(wire, rows)), &rounding))
            };
            let truth = run(&model, 6, &inputs);
            let mixed: Rows = others[..FAILOVER].iter().chain(&inputs[FAILOVER..]).cloned().collect();
            let forgot = run(&model, 6, &mixed);
            Computed {
                wire,
                skipped: [5, 4, 3].map(|end| run(&model, end, &inputs)),
                lower: run(&lower, 6, &inputs),
                other: run(&other, 6, &inputs),
                stale: truth[..FAILOVER].iter().chain(&forgot[FAILOVER..]).cloned().collect(),
                inputs,
                truth,
            }
        });
        Self { requests: requests.collect(), model }
    }

    /// The segment once more, from its inputs.
    pub(super) fn again(&self, wire: Wire, inputs: &[impl AsRef<[u8]>]) -> Rows {
        let values = decode(wire, inputs);
        encode(wire, &self.model.run(segment(), Input::Activations(&values), &rounding(wire)))
    }
}

/// A node that holds the layers can judge.
pub(super) struct Judge<'a>(pub(super) &'a Tiny);

impl Reexecute for Judge<'_> {
    fn inputs(&mut self, _: &Terms, _: &[u32], _: &[Wire]) -> Option<Vec<Vec<u8>>> {
        None
    }

    fn output(&mut self, _: &Terms, inputs: &[(Wire, &[u8])], form: Wire) -> Option<Vec<u8>> {
        let rows: Vec<&[u8]> = inputs.iter().map(|(_, row)| *row).collect();
        self.0.again(form, &rows).pop()
    }
}
