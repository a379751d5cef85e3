//! The executor: one pass over a range of layers, whatever the architecture.
//!
//! A [`Shard`] holds the packed weights of some consecutive layers, and at the ends of the model the embedding table
//! and the head. [`Shard::run`] takes some of those layers and a batch of [`Item`]s, one per session: token ids or the
//! residual rows that the previous stage gave, and the session's [`KvCache`] for those layers. Prefill chunks, decode
//! steps, verify windows and replays are this one call with other row counts. [`Shard::forward`] is the same over all
//! layers held.
//!
//! ```text
//! tokens -> embedding -> [ x += attention(norm(x)); x += feed_forward(norm(x)) ] per layer -> norm -> head -> logits
//!           ^ first shard only                    ^ activations cross shards here as raw f32 rows   ^ last shard only
//! ```
//!
//! Why the same bits always come out: all rows of a batch go through every matrix together, yet each row's result
//! depends on that row alone (see [`crate::kernels`]); attention runs per item; experts add their outputs to a row in
//! ascending expert order, whoever else is in the batch. So chunk sizes, batches, thread counts and cuts do not matter.
//!
//! A session may fix layer boundaries at which its activations are rounded as wire `q8` rounds them ([`crate::round`]).
//! Boundary `b` lies before layer `b` and, for `b` the number of layers, before the head; a pass rounds at every such
//! boundary it touches, both its ends included, and rounding twice is rounding once. So two stages that meet at a
//! boundary, and one that runs over it, compute the same bits.
//!
//! All buffers live in a [`Workspace`] made once. After a first pass has sized the kernels' scratch memory, a pass allocates
//! only the pages that a growing cache needs (none after [`KvCache::reserve`]).
//!
//! NaN and infinity are refused, coming in and going out: a pass that returns an error has not advanced any session.
//!
//! Limits: whole model families only as [`crate::models`] describes them; one workspace serves one pass at a time.

mod chain;
mod experts;
mod forward;
mod mean;
mod network;
mod run;
mod weights;
mod workspace;

use std::sync::Arc;

use scheduler::LayerRange;

use crate::{
    Error, Result,
    gguf::{Ends, Gguf, Tensor},
    kernels::{Cpu, KvShape, Matrix},
    models::{Attention, Blueprint, FeedForward, Frequencies, Layer},
    state::KvCache,
};
pub use chain::Chain;
pub use mean::Mean;
pub use run::{argmax, fingerprint};
use weights::{LayerWeights, NormWeights};
pub use workspace::{Capacity, Workspace};

/// What is decided at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Positions a session may grow to; `None` for the context the model was trained with. It also chooses between the
    /// short and the long frequency factors of models that have both, so all shards of a session must agree on it.
    pub context: Option<usize>,
}

/// One session's part of a batch.
pub struct Item<'a> {
    /// The session's cache; the first row's position is its length, and the pass advances it.
    pub kv: &'a mut KvCache,
    /// The rows to compute.
    pub input: Input<'a>,
    /// Which rows' results are wanted.
    pub output: Output,
}

/// The rows of an item, at least one.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids, for layers that begin with layer 0 of a shard with the embedding.
    Tokens(&'a [u32]),
    /// Residual rows, `[n][hidden]`, as the previous stage gave them; at layer 0, embedded tokens.
    Activations(&'a [f32]),
}

/// Which rows' results are wanted: logits when the last layer is among those run and the shard has the head, residual
/// rows otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// None: the caches are filled.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

/// The packed weights of consecutive layers, ready to compute.
pub struct Shard {
    blueprint: Blueprint,
    cpu: Arc<Cpu>,
    range: LayerRange,
    context: usize,
    frequencies: Vec<Frequencies>,
    layers: Vec<LayerWeights>,
    embedding: Option<Embedding>,
    head: Option<HeadWeights>,
    tags: Tags,
    /// The tag of all layers held.
    tag: u64,
}

/// The embedding table, read row by row from the file.
struct Embedding {
    gguf: Arc<Gguf>,
}

impl Embedding {
    const NAME: &str = "token_embd.weight";

    fn table(&self) -> Result<Tensor<'_>> {
        self.gguf.require(Self::NAME)
    }
}

struct HeadWeights {
    norm: NormWeights,
    matrix: Matrix,
}

impl Shard {
    /// Loads and packs `layers` and `ends` of the model in `gguf`; tensors of other layers are not touched.
    ///
    /// The file stays open while the shard lives if it holds the embedding, whose rows are read when used.
    ///
    /// # Errors
    /// Those of [`Blueprint::from_gguf`]; [`Error::Invalid`] for layers the model does not have, ends that do not belong
    /// to the layers, or a context of zero or beyond what the model was trained for.
    pub fn load(
        gguf: &Arc<Gguf>,
        cpu: Arc<Cpu>,
        layers: LayerRange,
        ends: Ends,
        options: Options,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_gguf(gguf)?;
        let count = blueprint.layers.len();
        if layers.end() as usize > count {
            return Err(Error::invalid(format!("layers {layers} of a model with {count}")));
        }
        if ends.embedding && layers.start() != 0 {
            return Err(Error::invalid(format!("layers {layers} do not begin with the embedding")));
        }
        if ends.head && (layers.end() as usize) != count {
            return Err(Error::invalid(format!("layers {layers} do not end with the head")));
        }
        let context = options.context.unwrap_or(blueprint.context);
        if context == 0 || context > blueprint.context {
            let trained = blueprint.context;
            return Err(Error::invalid(format!("a context of {context}: this model allows 1 to {trained}")));
        }
        let frequencies: Vec<_> = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        let loader = weights::Loader { gguf, cpu: &cpu, blueprint: &blueprint };
        // The head first: it is the largest tensor, and while one is packed its pages in the file are in memory too.
        let head = match ends.head {
            true => Some(HeadWeights { norm: loader.norm("output_norm")?, matrix: loader.head()? }),
            false => None,
        };
        let weights = (layers.start()..layers.end())
            .map(|index| loader.layer(index as usize))
            .collect::<Result<Vec<_>>>()?;
        let tags = Tags::new(gguf, &blueprint, layers, &frequencies);
        // Reading maps a neighborhood around every touched page; what is needed again is mapped again.
        gguf.forget_range(0..gguf.file_len());
        let embedding = ends.embedding.then(|| Embedding { gguf: gguf.clone() });
        Ok(Self {
            cpu,
            range: layers,
            context,
            frequencies,
            layers: weights,
            embedding,
            head,
            tag: tags.of(layers, layers),
            tags,
            blueprint,
        })
    }

    /// Loads the whole model with default options.
    pub fn whole(gguf: &Arc<Gguf>, cpu: Arc<Cpu>) -> Result<Self> {
        let range = whole_range(gguf)?;
        Self::load(gguf, cpu, range, Ends::BOTH, Options::default())
    }

    /// What the model is.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The layers held.
    pub fn range(&self) -> LayerRange {
        self.range
    }

    /// The ends held.
    pub fn ends(&self) -> Ends {
        Ends { embedding: self.embedding.is_some(), head: self.head.is_some() }
    }

    /// Positions a session may grow to.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The processor that computes.
    pub fn cpu(&self) -> &Arc<Cpu> {
        &self.cpu
    }

    /// Bytes of all weights in memory.
    pub fn resident_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(LayerWeights::resident_bytes).sum();
        layers + self.head.as_ref().map_or(0, |head| head.matrix.resident_bytes())
    }

    /// Bytes read from memory to compute one token at `position`: the weights it passes through, and the cache.
    pub fn bytes_per_token(&self, position: usize) -> usize {
        let held = &self.blueprint.layers[self.range.start() as usize..self.range.end() as usize];
        let used = |layer: &Layer| match layer.feed_forward {
            FeedForward::Experts(experts) => experts.used,
            FeedForward::Dense(_) => 0,
        };
        let layers: usize = self.layers.iter().zip(held).map(|(w, layer)| w.touched_bytes(used(layer))).sum();
        let head = self.head.as_ref().map_or(0, |head| head.matrix.resident_bytes());
        let cached = |layer: &Layer| match layer.attention {
            Attention::Softmax(softmax) => softmax.window.unwrap_or(usize::MAX).min(position),
        };
        let positions: usize = held.iter().map(cached).sum();
        layers + head + positions * 4 * self.blueprint.kv_width()
    }

    /// What caches of this shard are marked with: a digest of the blueprint, the layers, the rotation and a sample of
    /// every tensor's bytes. Equal for every machine that runs the same layers of the same file with the same context
    /// choice, whatever else it holds.
    pub fn kv_tag(&self) -> u64 {
        self.tag
    }

    /// An empty cache for a new session over all layers held.
    pub fn new_kv(&self) -> KvCache {
        KvCache::new(self.tag, self.layers.len(), self.kv_shape(), self.context)
    }

    /// An empty cache for a new session over `layers`, for [`Shard::run`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for layers that are not held.
    pub fn new_kv_of(&self, layers: LayerRange) -> Result<KvCache> {
        self.check_held(layers)?;
        Ok(KvCache::new(self.tag_of(layers), layers.len() as usize, self.kv_shape(), self.context))
    }

    fn check_held(&self, layers: LayerRange) -> Result<()> {
        if self.range.covers(layers) {
            return Ok(());
        }
        Err(Error::invalid(format!("layers {layers} of a shard that holds {}", self.range)))
    }

    /// The tag of caches of `layers`, which are held.
    fn tag_of(&self, layers: LayerRange) -> u64 {
        if layers == self.range { self.tag } else { self.tags.of(self.range, layers) }
    }

    fn kv_shape(&self) -> KvShape {
        KvShape { kv_heads: self.blueprint.kv_heads, head_dim: self.blueprint.head_dim }
    }
}

/// All layers of the model in `gguf`.
pub fn whole_range(gguf: &Gguf) -> Result<LayerRange> {
    let layers = Blueprint::from_gguf(gguf)?.layers.len() as u32;
    LayerRange::new(0, layers).ok_or_else(|| Error::malformed("block_count", "is zero"))
}

/// Bytes of each tensor that enter the tag: enough that two quantizations or fine-tunes of a model never agree.
const SAMPLE: usize = 256;

/// What the tags of caches are made of.
struct Tags {
    /// Digest of the blueprint and the rotation.
    model: [u8; blake3::OUT_LEN],
    /// Digest of a sample of every tensor, per layer held.
    layers: Vec<[u8; blake3::OUT_LEN]>,
}

impl Tags {
    fn new(gguf: &Gguf, blueprint: &Blueprint, held: LayerRange, ropes: &[Frequencies]) -> Self {
        let mut hasher = blake3::Hasher::new();
        // The debug form names every field of the blueprint: sizes, norms, windows, scales, softcaps, experts.
        hasher.update(format!("{blueprint:?}").as_bytes());
        for rope in ropes {
            hasher.update(&rope.magnitude.to_bits().to_le_bytes());
            rope.radians.iter().for_each(|r| {
                hasher.update(&r.to_bits().to_le_bytes());
            });
        }
        let model = *hasher.finalize().as_bytes();
        let layer = |layer: u32| {
            let prefix = format!("blk.{layer}.");
            let mut hasher = blake3::Hasher::new();
            for info in gguf.tensors().iter().filter(|info| info.name.starts_with(&prefix)) {
                let Some(tensor) = gguf.tensor(&info.name) else { continue };
                hasher.update(info.name.as_bytes()).update(&info.ggml_type.to_le_bytes());
                let middle = tensor.bytes.len() / 2;
                hasher.update(&tensor.bytes[middle..(middle + SAMPLE).min(tensor.bytes.len())]);
            }
            *hasher.finalize().as_bytes()
        };
        Self { model, layers: (held.start()..held.end()).map(layer).collect() }
    }

    /// The tag of `layers`, which lie inside the layers `held`.
    fn of(&self, held: LayerRange, layers: LayerRange) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.model);
        hasher.update(&layers.start().to_le_bytes()).update(&layers.end().to_le_bytes());
        let first = (layers.start() - held.start()) as usize;
        self.layers[first..first + layers.len() as usize].iter().for_each(|digest| {
            hasher.update(digest);
        });
        let digest = *hasher.finalize().as_bytes();
        u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
    }
}
