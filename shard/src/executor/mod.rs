//! What runs the layers of a model: one trait, one module per executor.
//!
//! An [`Executor`] holds the weights of some consecutive layers, and at the ends of the model the embedding table and the head.
//! [`Executor::run`] takes some of those layers and a batch of [`Item`]s, one per session: token ids or the residual rows that
//! the previous stage gave, and the session's [`SessionState`] for those layers. Prefill chunks, decode steps, verify
//! windows and replays are this one call with other row counts.
//!
//! ```text
//! tokens -> embedding -> [ x += attention(norm(x)); x += feed_forward(norm(x)) ] per layer -> norm -> head -> logits
//!           ^ first range only                    ^ activations cross ranges here as raw f32 rows   ^ last range only
//! ```
//!
//! | module | computes with | class |
//! |---|---|---|
//! | [`cpu`] | kernels of our own | `d1`: the same bits on every machine |
//! | [`candle`](mod@candle) (a feature) | candle's tensors, on its CPU, CUDA and Metal devices | `approx` |
//! | `gpu` (a feature) | kernels of our own on GPUs of every vendor | `d1` where the device rounds as it must, else `approx` |
//! | `spare` (with it) | a GPU, and the processor for sessions of kinds that the GPU does not compute | `d1` |
//! | `split` (with it) | the first layers on the processor, the others on a GPU | that of the GPU |
//! | [`mod@reference`] | plain loops, written to be read | `approx` |
//!
//! [`load`] is the only place that chooses one; everything else, in this crate and outside, sees the trait.
//!
//! A session may fix layer boundaries at which its activations are rounded as a wire rounds them ([`crate::round`]).
//! Boundary `b` lies before layer `b` and, for `b` the number of layers, before the head; a pass rounds at every such
//! boundary it touches, both its ends included, and rounding twice is rounding once. So two stages that meet at a
//! boundary, and one that runs over it, compute the same bits.
//!
//! NaN and infinity are refused, coming in and going out: a pass that returns an error has not advanced any session.
//!
//! Limits: one workspace serves one pass at a time.

mod batch;
#[cfg(feature = "candle")]
pub mod candle;
mod chain;
pub mod cpu;
mod device;
#[cfg(feature = "gpu")]
pub mod gpu;
mod host;
mod pooled;
pub mod reference;
mod remote_experts;
mod run;
#[cfg(feature = "gpu")]
mod spare;
#[cfg(feature = "gpu")]
mod split;
mod tags;
mod workspace;

use std::sync::Arc;

use scheduler::{AttentionKind, CacheType, LayerRange, SessionKind};

pub use crate::gguf::Ends;
use crate::{
    Error, Result,
    gguf::Gguf,
    models::Blueprint,
    round::Rounding,
    state::{Evicting, SessionState},
};
pub use chain::Chain;
pub use device::{Device, DeviceName, GpuName, gpus, load, load_experts, overdue};
pub use pooled::{Pooled, Pooling};
pub use remote_experts::{ExpertWork, RemoteExperts};
pub use run::{argmax, fingerprint, whole_range};
pub use workspace::{Buffers, Capacity, Gave, Workspace};

/// What is decided at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Positions a session may grow to; `None` for the context the model was trained with. It also chooses between the
    /// short and the long frequency factors of models that have both, so all stages of a session must agree on it.
    pub context: Option<usize>,
}

/// What passes have cost a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Command buffers handed to it.
    pub submits: u64,
    /// Kernels started.
    pub dispatches: u64,
    /// Bytes read back.
    pub bytes_back: u64,
    /// Kernels that were made ready, where compiled ones are kept on disk.
    pub pipelines: u64,
    /// Those of them that an earlier process had compiled.
    pub pipeline_hits: u64,
}

/// What one operation of a decode step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// Which, of which layer or of what follows the last.
    pub name: String,
    /// Once, microseconds.
    pub us: f64,
    /// Bytes of weights that it reads.
    pub bytes: usize,
}

/// Which bits an executor computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Those of profile `d1`, if the device passes its self-test (`golden::check_device`).
    D1,
    /// Near them: its work is held to [`crate::tolerance`].
    Approx,
}

/// One session's part of a batch.
pub struct Item<'a> {
    /// What the session remembers; the first row's position is its length, and the pass advances it.
    pub state: &'a mut SessionState,
    /// The rows to compute.
    pub input: Input<'a>,
    /// Which rows' results are wanted.
    pub output: Output,
}

/// The rows of an item, at least one.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids, for layers that begin with layer 0 of an executor with the embedding.
    Tokens(&'a [u32]),
    /// Residual rows, `[n][hidden]`, as the previous stage gave them; at layer 0, embedded tokens.
    Activations(&'a [f32]),
}

/// Which rows' results are wanted: logits when the last layer is among those run and the executor has the head, residual
/// rows otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// None: the state is filled.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

/// What one pass does besides its items.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The layers to run, all of them held.
    pub layers: LayerRange,
    /// Where activations are rounded, and how.
    pub rounding: &'a Rounding,
    /// Whether the pass ends after the norm in front of the head: hidden states instead of logits.
    pub states: bool,
    /// With how many of each row's largest logits the caller is content, 0 for all of them: where an executor keeps to it,
    /// [`Workspace::top`] gives them and [`Workspace::logits`] gives none. Ties go to the lowest id.
    pub top: usize,
}

/// What computes some consecutive layers of one model.
///
/// A pass is one virtual call; what it costs beyond that is the executor's own. Adding an executor: a module that
/// implements this trait and [`Buffers`], and its device in `device.rs`, where the compiler names every match that lacks it.
pub trait Executor: Send + Sync {
    /// What the model is.
    fn blueprint(&self) -> &Blueprint;

    /// The layers held.
    fn range(&self) -> LayerRange;

    /// The ends held.
    fn ends(&self) -> Ends;

    /// Positions a session may grow to.
    fn context(&self) -> usize;

    /// Which bits come out.
    fn class(&self) -> Class;

    /// What computes, for people: a device and what matters about it.
    fn device(&self) -> String;

    /// Why no further pass can succeed, if that is so: the device is lost or hangs. What it held is lost with it.
    fn lost(&self) -> Option<String> {
        None
    }

    /// What the passes so far have cost a device; `None` for processors.
    fn counts(&self) -> Option<DeviceCounts> {
        None
    }

    /// What the operations of a decode step take on a device, one after the other; none for processors.
    ///
    /// # Errors
    /// What the device says when it fails.
    fn operation_times(&self) -> Result<Vec<OperationTime>> {
        Ok(Vec::new())
    }

    /// Bytes of all weights in memory.
    fn resident_bytes(&self) -> usize;

    /// Bytes read from memory to compute one token at `position`: the weights it passes through, and the state.
    fn bytes_per_token(&self, position: usize) -> usize;

    /// What states of `layers` are marked with, which are held: model, layers and rotation. Equal on every machine that runs
    /// the same layers of the same file with the same kind of executor and the same choice of context.
    fn state_tag(&self, layers: LayerRange) -> u64;

    /// Refuses sessions of a kind that this executor does not compute: all but dense ones that keep f16, unless it says
    /// otherwise.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    fn attends(&self, kind: SessionKind) -> Result<()> {
        let SessionKind { attention, cache } = kind;
        match (attention.is_dense(), cache) {
            (true, CacheType::F16) => Ok(()),
            (false, _) => {
                Err(Error::unsupported(format!("attention {attention} on {}: choose dense", self.device())))
            }
            (true, cache) => {
                Err(Error::unsupported(format!("a cache of {cache} on {}: choose f16", self.device())))
            }
        }
    }

    /// The score of a text whose hidden state is `state`, one row: before a sigmoid makes it a probability.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that ranks no texts ([`crate::models::Head::rank`]), an executor without its head, and a
    /// row of another width; [`Error::Invalid`] for a score that is not finite.
    fn rank(&self, _state: &[f32]) -> Result<f32> {
        Err(not_ranked())
    }

    /// The layer behind the last that predicts one token further ([`crate::models::Ahead`]), by itself, with a norm of its own in front
    /// of this executor's head; `gguf` is the model's file. `None` for a model without one, and where it is not computed.
    ///
    /// # Errors
    /// Those of a damaged file.
    fn next_token_layer(&self, _gguf: &Arc<Gguf>) -> Result<Option<Box<dyn Executor>>> {
        Ok(None)
    }

    /// What an empty session of `kind`, which the executor computes, remembers in layer `layer` of the model, which is held.
    fn new_layer_state(&self, layer: u32, kind: SessionKind) -> Box<dyn crate::state::LayerState>;

    /// Bytes that states of `layers` take for `positions`, with keys and values in the form `cache`.
    fn state_bytes(&self, layers: LayerRange, positions: usize, cache: CacheType) -> usize {
        let layers = layers.start() as usize..layers.end() as usize;
        let kind = SessionKind { attention: AttentionKind::Dense, cache };
        layers.map(|layer| layer_bytes(self.blueprint(), layer, positions, kind)).sum()
    }

    /// Bytes that states of `layers` take for `positions` in a session of `kind`, which the executor computes.
    fn session_bytes(&self, layers: LayerRange, positions: usize, kind: SessionKind) -> usize {
        let blueprint = self.blueprint();
        let of = |layer: u32| {
            let one = LayerRange::new(layer, layer + 1)?;
            let shape = blueprint.layers[layer as usize].attention.kv();
            match blueprint.evicts(layer as usize, kind.attention).zip(shape) {
                Some((rule, shape)) => Some(Evicting::bytes_for(shape, rule, positions)),
                None if kind.attention.is_dense() => Some(self.state_bytes(one, positions, kind.cache)),
                None => Some(layer_bytes(blueprint, layer as usize, positions, kind)),
            }
        };
        (layers.start()..layers.end()).filter_map(of).sum()
    }

    /// Bytes that states may take together, where a device's memory bounds them.
    fn state_room(&self) -> Option<u64> {
        None
    }

    /// Buffers for passes up to `capacity`, which has rows and items; see [`Workspace::new`].
    ///
    /// # Errors
    /// What the device says when there is no memory for them.
    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>>;

    /// Computes all rows of all items through the layers of `pass` and advances their states; results are read from `ws` until
    /// the next pass. Each item gets what it would get alone, and in one run what it gets in several over adjacent layers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for layers that are not held; when an item does not belong to them, holds no row or a token
    /// beyond the vocabulary; when the batch exceeds the workspace or a session its context; for rounding in a model
    /// whose rows are no whole blocks; for hidden states of an executor without the head; and when a value coming in, going
    /// out or being rounded is not finite. No state is advanced then.
    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()>;

    /// What experts held here give for `work`, which another node routed: the output of every visit in the order of the visits,
    /// `[visits][width]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for executors that compute no experts by themselves; [`Error::Invalid`] for experts that are not
    /// held, rows that are none of the work's, visits out of order, more rows than the workspace takes, and values that are
    /// not finite.
    fn experts(&self, _ws: &mut Workspace, _work: ExpertWork<'_>, _out: &mut Vec<f32>) -> Result<()> {
        Err(Error::unsupported(format!("experts by themselves on {}: choose the processor", self.device())))
    }

    /// [`Executor::pass`] over `layers`, rounding at `rounding`, up to rows or logits.
    ///
    /// # Errors
    /// Those of [`Executor::pass`].
    fn run(
        &self,
        ws: &mut Workspace,
        layers: LayerRange,
        rounding: &Rounding,
        items: &mut [Item<'_>],
    ) -> Result<()> {
        self.pass(ws, Pass { layers, rounding, states: false, top: 0 }, items)
    }

    /// [`Executor::run`] over all layers held, without rounding.
    ///
    /// # Errors
    /// Those of [`Executor::pass`]; [`Error::Invalid`] for activations when the executor begins with the embedding.
    fn forward(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<()> {
        let rows_come_in = |item: &Item<'_>| matches!(item.input, Input::Activations(_));
        if self.ends().embedding && items.iter().any(rows_come_in) {
            ws.clear();
            return Err(Error::invalid("activations for a shard that begins with the embedding"));
        }
        self.run(ws, self.range(), &Rounding::NONE, items)
    }

    /// As [`Executor::forward`], up to the norm in front of the head: gives the hidden states that the head would read,
    /// by [`Workspace::states`], and no logits. Any number of rows may be wanted.
    ///
    /// # Errors
    /// Those of [`Executor::forward`]; [`Error::Invalid`] for an executor without the head.
    fn states(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<()> {
        let (layers, rounding) = (self.range(), &Rounding::NONE);
        self.pass(ws, Pass { layers, rounding, states: true, top: 0 }, items)
    }

    /// An empty state for a new session over all layers held.
    fn new_state(&self) -> SessionState {
        state_of(self, self.range(), SessionKind::DEFAULT)
    }

    /// An empty state for a new session over `layers`, for [`Executor::run`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for layers that are not held or cannot stand by themselves ([`Blueprint::check_cut`]).
    fn new_state_of(&self, layers: LayerRange) -> Result<SessionState> {
        self.new_state_with(layers, SessionKind::DEFAULT)
    }

    /// An empty state for a new session of `kind` over `layers`.
    ///
    /// # Errors
    /// Those of [`Executor::new_state_of`] and [`Executor::attends`]; [`Error::Invalid`] for numbers out of their bounds.
    fn new_state_with(&self, layers: LayerRange, kind: SessionKind) -> Result<SessionState> {
        batch::check_held(self.range(), layers)?;
        self.blueprint().check_cut(layers)?;
        kind.attention.checked().map_err(|why| Error::invalid(why.to_string()))?;
        self.attends(kind)?;
        Ok(state_of(self, layers, kind))
    }

    /// Feeds an input of any length in passes of at most `chunk` rows; `sink` sees the workspace after each.
    ///
    /// With [`Output::Last`] only the last pass has a result. The chunk size changes speed, never what is computed.
    ///
    /// # Errors
    /// Those of [`Executor::forward`]; passes before the failing one have advanced the state.
    fn feed(
        &self,
        ws: &mut Workspace,
        state: &mut SessionState,
        input: Input<'_>,
        chunk: usize,
        output: Output,
        sink: &mut dyn FnMut(&Workspace),
    ) -> Result<()> {
        let hidden = self.blueprint().hidden;
        let (rows, fits) = match input {
            Input::Tokens(tokens) => (tokens.len(), true),
            Input::Activations(x) => (x.len() / hidden, x.len().is_multiple_of(hidden)),
        };
        if !fits {
            return Err(Error::invalid(format!("activations are no rows of {hidden} values")));
        }
        let chunk = chunk.clamp(1, ws.capacity().rows);
        if self.blueprint().encodes() && rows > chunk {
            return Err(Error::invalid(format!(
                "{rows} rows of an encoder in passes of {chunk}: it reads a text in one pass"
            )));
        }
        let mut done = 0;
        loop {
            let end = (done + chunk).min(rows);
            let input = match input {
                Input::Tokens(tokens) => Input::Tokens(&tokens[done..end]),
                Input::Activations(x) => Input::Activations(&x[done * hidden..end * hidden]),
            };
            let output = if output == Output::Last && end < rows { Output::None } else { output };
            self.forward(ws, &mut [Item { state: &mut *state, input, output }])?;
            sink(ws);
            done = end;
            if done == rows {
                return Ok(());
            }
        }
    }

    /// Feeds a prompt in passes as large as the workspace allows; the logits of its last token are in `ws` then.
    ///
    /// # Errors
    /// Those of [`Executor::feed`].
    fn prefill(&self, ws: &mut Workspace, state: &mut SessionState, tokens: &[u32]) -> Result<()> {
        let chunk = ws.capacity().rows;
        self.feed(ws, state, Input::Tokens(tokens), chunk, Output::Last, &mut |_| {})
    }

    /// Feeds one token and gives the one with the largest logit after it, which is all that need come back from a device.
    ///
    /// # Errors
    /// Those of [`Executor::forward`].
    fn greedy(&self, ws: &mut Workspace, state: &mut SessionState, token: u32) -> Result<u32> {
        let pass = Pass { layers: self.range(), rounding: &Rounding::NONE, states: false, top: 1 };
        let item = Item { state, input: Input::Tokens(&[token]), output: Output::Last };
        self.pass(ws, pass, &mut [item])?;
        Ok(match ws.top(0) {
            [(id, _), ..] => *id,
            [] => argmax(ws.logits(0)),
        })
    }

    /// Feeds one token; its logits are in `ws` then.
    ///
    /// # Errors
    /// Those of [`Executor::forward`].
    fn step(&self, ws: &mut Workspace, state: &mut SessionState, token: u32) -> Result<()> {
        self.forward(ws, &mut [Item { state, input: Input::Tokens(&[token]), output: Output::Last }])
    }
}

fn not_ranked() -> Error {
    Error::unsupported("a score of texts: this model has no head that ranks them")
}

fn state_of<E: Executor + ?Sized>(executor: &E, layers: LayerRange, kind: SessionKind) -> SessionState {
    let states = (layers.start()..layers.end()).map(|layer| executor.new_layer_state(layer, kind));
    SessionState::new(executor.state_tag(layers), states.collect(), executor.context()).with_kind(kind)
}

/// Bytes that the state of `layer` takes for `positions` in a session of `kind` that does not forget by itself.
fn layer_bytes(blueprint: &Blueprint, layer: usize, positions: usize, kind: SessionKind) -> usize {
    let state = blueprint.state_kind(layer).stored(kind.cache);
    state.bytes_behind(blueprint.back(layer, kind.attention), positions)
}

/// Bytes of state that one token at `position` reads in `layers` of a model.
fn read_bytes(blueprint: &Blueprint, layers: LayerRange, position: usize) -> usize {
    let layers = layers.start() as usize..layers.end() as usize;
    layers
        .map(|layer| match (blueprint.layers[layer].attention.kv(), blueprint.state_kind(layer)) {
            (Some(shape), _) => {
                let seen = blueprint.layers[layer].attention.window().unwrap_or(usize::MAX).min(position);
                seen * shape.position_len() * size_of::<u16>()
            }
            (None, kind) => kind.whole_bytes(),
        })
        .sum()
}
