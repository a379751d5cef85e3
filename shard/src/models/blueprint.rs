//! What a model is, once its metadata is read: plain data that one executor interprets.

use super::{rope::Rope, tensors::Rule};
use crate::{
    kernels::{DeltaShape, KvShape},
    state::Kind,
};

/// Everything the executor must know about a model besides its weights.
///
/// Built by one file per family from the metadata and tensor list of a GGUF; the fields obey the bounds of
/// [`super::limits`] and agree with the shapes of the tensors, so the executor does not check again.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The value of `general.architecture`.
    pub architecture: &'static str,
    /// Positions the model was trained for.
    pub context: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table and of the head.
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head, of K and of V alike.
    pub head_dim: usize,
    /// Every norm over the residual stream, before and after sublayers and before the head.
    pub norm: Norm,
    /// Factor on embedding rows (gemma: square root of `hidden`).
    pub embedding_scale: f32,
    /// The rotations in use; layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// The decoder layers, first to last.
    pub layers: Vec<Layer>,
    /// The vocabulary head.
    pub head: Head,
    /// Layers that the file holds after those and a pass does not run: they predict tokens further ahead.
    pub unused_layers: usize,
    /// The tensors outside layers; no other may exist in the file.
    pub tensors: Vec<Rule>,
}

/// A norm over the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which statistics are removed.
    pub kind: NormKind,
    /// Added to the mean square or variance before the root.
    pub eps: f32,
}

/// Which statistics a norm removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divides by the root of the mean square.
    Rms,
    /// Subtracts the mean, divides by the standard deviation, may add a bias.
    Layer,
}

/// One decoder layer: `x += attention(norm(x))`, then `x += feed_forward(norm(x))`.
///
/// Biases, q/k norms and the norms after a sublayer apply where their tensors are present; `tensors` says which
/// may be, so presence is never a guess.
#[derive(Clone, Debug)]
pub struct Layer {
    /// How positions see each other.
    pub attention: Attention,
    /// What follows attention.
    pub feed_forward: FeedForward,
    /// The norm between the two, as its tensors are named without `.weight`.
    pub feed_forward_norm: &'static str,
    /// The tensors of this layer, without the `blk.N.` prefix; no other may exist in the file.
    pub tensors: Vec<Rule>,
}

/// How the positions of a layer see each other. Latent attention and sparse selections are
/// further variants; each brings its own state and its own step in the executor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention with a softmax over cached keys.
    Softmax(Softmax),
    /// A gated linear recurrence.
    Recurrence(Recurrence),
    /// A gated delta net: each head keeps a matrix that maps keys to values.
    DeltaNet(DeltaShape),
}

impl Attention {
    /// The rotation of queries and keys, as an index into [`Blueprint::ropes`].
    pub fn rope(&self) -> Option<usize> {
        match self {
            Self::Softmax(softmax) => softmax.rope,
            Self::Recurrence(_) | Self::DeltaNet(_) => None,
        }
    }

    /// How many positions a position sees, itself included, if not all before it.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Softmax(softmax) => softmax.window,
            Self::Recurrence(_) | Self::DeltaNet(_) => None,
        }
    }
}

/// The numbers of a gated linear recurrence: `state = input + sigmoid(gate) * (state - input)` at every position, value by
/// value, and the state is what the layer reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrence {
    /// Values of the state; as wide as all query heads together.
    pub width: usize,
}

/// The numbers of softmax attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// Index into [`Blueprint::ropes`]; `None` leaves queries and keys unrotated.
    pub rope: Option<usize>,
    /// A position sees itself and the `window - 1` before it; `None` sees all before it.
    pub window: Option<usize>,
    /// Factor on q.k.
    pub scale: f32,
    /// `cap * tanh(score / cap)` on scaled scores, before the mask.
    pub softcap: Option<f32>,
    /// Whether the result is multiplied by the sigmoid of a gate, whose rows follow each head's in the matrix of queries.
    pub gated: bool,
}

/// What follows attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// One network for every token.
    Dense(Dense),
    /// A router chooses some of many networks for each token.
    Experts(Experts),
}

/// A two-layer network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Width between the two layers.
    pub width: usize,
    /// The nonlinearity.
    pub activation: Activation,
}

/// The nonlinearity of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) * up`.
    GatedSilu,
    /// `gelu_tanh(gate) * up`.
    GatedGelu,
    /// `gelu_tanh(up)`, no gate.
    Gelu,
}

/// A mixture of gated SiLU experts, chosen by a softmax over all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts each token visits.
    pub used: usize,
    /// Width of one expert.
    pub width: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub renormalize: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Width of the expert every token visits, if there is one; its output is multiplied by the sigmoid of a learned gate.
    pub shared: Option<usize>,
}

/// The vocabulary head: norm, matrix, factor, softcap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Whether the embedding table is the matrix.
    pub tied: bool,
    /// Factor on logits.
    pub scale: f32,
    /// `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

impl Layer {
    /// The norm after attention, as its tensors are named, if the one of that name is not the one in front of the feed-forward.
    pub fn norm_after_attention(&self) -> Option<&'static str> {
        const AFTER: &str = "post_attention_norm";
        (self.feed_forward_norm != AFTER).then_some(AFTER)
    }
}

impl Blueprint {
    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// What a session remembers in layer `layer`.
    pub fn state_kind(&self, layer: usize) -> Kind {
        match self.layers[layer].attention {
            Attention::Softmax(_) => {
                Kind::Paged(KvShape { kv_heads: self.kv_heads, head_dim: self.head_dim })
            }
            Attention::Recurrence(recurrence) => Kind::Recurrent { width: recurrence.width },
            Attention::DeltaNet(delta) => Kind::Recurrent { width: delta.state_len() },
        }
    }

    /// Width of what layer `layer` makes of the positions it sees, in front of its output matrix.
    pub fn mixed_width(&self, layer: usize) -> usize {
        match self.layers[layer].attention {
            Attention::Softmax(_) => self.q_width(),
            Attention::Recurrence(recurrence) => recurrence.width,
            Attention::DeltaNet(delta) => delta.value_width(),
        }
    }

    /// Bytes each further position takes in the state of all layers: keys and values as f16.
    pub fn kv_bytes_per_token(&self) -> usize {
        (0..self.layers.len()).map(|layer| self.state_kind(layer).position_bytes()).sum()
    }

    /// Width of all key heads, or of all value heads, together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The widest feed-forward network of any layer, experts and shared expert included.
    pub fn widest(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| match layer.feed_forward {
                FeedForward::Dense(dense) => dense.width,
                FeedForward::Experts(experts) => experts.width.max(experts.shared.unwrap_or(0)),
            })
            .max()
            .unwrap_or(0)
    }
}
