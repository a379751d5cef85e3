//! What a model is, once its metadata is read: plain data that one executor interprets.

use scheduler::{
    LayerRange,
    attention::{AttentionKind, H2o, Sparse},
};

use super::{
    ends::{Embedding, Head},
    rope::Rope,
    temperature::Temperature,
    tensors::Rule,
};
use crate::{
    Error, Result,
    kernels::{DeltaShape, KvShape, Mamba2Shape},
    state::{Back, Kind},
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
    /// Key and value heads, whose number divides `heads`, and their width, where a layer does not have others ([`Softmax::kv`]).
    pub kv: KvShape,
    /// Every norm over the residual stream, before and after sublayers and before the head.
    pub norm: Norm,
    /// What becomes of a token in front of the first layer.
    pub embedding: Embedding,
    /// Factor on what each sublayer adds to the residual stream (granite).
    pub residual_scale: f32,
    /// The rotations in use; layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// The decoder layers, first to last.
    pub layers: Vec<Layer>,
    /// The vocabulary head.
    pub head: Head,
    /// What the file holds behind those, which a pass does not run.
    pub ahead: Ahead,
    /// What each layer reads of a token beside the residual row, if layers do (gemma3n, gemma4 E4B).
    pub per_layer: Option<PerLayer>,
    /// The tensors outside layers; no other may exist in the file.
    pub tensors: Vec<Rule>,
}

/// Layers that predict tokens further ahead.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// How many.
    pub layers: usize,
    /// The first of them, where the family says how it runs and the file has all of it ([`crate::draft::MtpHead`]).
    pub first: Option<Box<Layer>>,
}

/// What layers read of a token itself, and what of the residual rows they compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayer {
    /// Values of a token's row that a layer reads.
    pub width: usize,
    /// Streams of the residual rows, of which a layer computes the first and predicts the others (AltUp, arXiv 2301.13310); one in
    /// most models.
    pub streams: usize,
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

/// One decoder layer: `x += attention(norm(x))`, then `x += feed_forward(norm(x))`, or both from the same normed rows, or one of
/// the two alone ([`Attention::None`], [`FeedForward::None`]).
///
/// Biases, sinks, q/k norms, the norms around and inside a sublayer, the factor on what the layer gives
/// (`layer_output_scale.weight`) apply where their tensors are present; `tensors` says which may be, so presence is never a guess.
/// A layer that computes keys and has no `attn_v` takes the keys as projected for its values.
#[derive(Clone, Debug)]
pub struct Layer {
    /// How positions see each other.
    pub attention: Attention,
    /// What follows attention.
    pub feed_forward: FeedForward,
    /// The norm between the two, as its tensors are named without `.weight`; [`ATTENTION_NORM`] for a parallel layer.
    pub feed_forward_norm: &'static str,
    /// The tensors of this layer, without the `blk.N.` prefix; no other may exist in the file.
    pub tensors: Vec<Rule>,
}

/// The norm in front of attention.
pub const ATTENTION_NORM: &str = "attn_norm";

/// One value: the factor on the residual rows that a layer gives.
pub const LAYER_SCALE: &str = "layer_output_scale.weight";
/// Factors on the weights of chosen experts; in other families those of the matrices, as [`super::factors`] says.
pub const CHOICE_FACTORS: &str = "ffn_down_exps.scale";

impl Layer {
    /// Whether attention and feed-forward read the same normed rows: `x += attention(h) + feed_forward(h)`.
    pub fn parallel(&self) -> bool {
        self.feed_forward_norm == ATTENTION_NORM
    }

    /// Whether the file may have tensor `name` in this layer.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|rule| rule.name == name)
    }
}

/// How the positions of a layer see each other. A session may narrow what attention sees ([`Blueprint::sight`]). Each variant
/// brings its own state and its own step in the executor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention with a softmax over cached keys.
    Softmax(Softmax),
    /// A gated linear recurrence.
    Recurrence(Recurrence),
    /// A gated delta net: each head keeps a matrix that maps keys to values.
    DeltaNet(DeltaShape),
    /// The state space of Mamba2: each head keeps a matrix that fades.
    Mamba2(Mamba2Shape),
    /// Softmax attention whose heads share one narrow key per position, the latent among it.
    Latent(Latent),
    /// A gated convolution over the last few positions.
    ShortConv(ShortConv),
    /// Softmax attention and Mamba2 side by side, from the same normed rows; what they give is added (falcon-h1).
    Beside(Softmax, Mamba2Shape),
    /// They do not: the layer is its feed-forward network (nemotron_h).
    None,
}

impl Attention {
    /// The rotation of queries and keys, as an index into [`Blueprint::ropes`].
    pub fn rope(&self) -> Option<usize> {
        match self {
            Self::Softmax(softmax) | Self::Beside(softmax, _) => softmax.rope,
            Self::Latent(latent) => latent.rope,
            _ => None,
        }
    }

    /// How many positions a position sees, itself included, if not all before it.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Softmax(softmax) | Self::Beside(softmax, _) => softmax.window.or(softmax.chunk),
            _ => None,
        }
    }

    /// The heads of the keys and values that it looks back at, if it looks back.
    pub fn kv(&self) -> Option<KvShape> {
        match self {
            Self::Softmax(softmax) | Self::Beside(softmax, _) => Some(softmax.kv),
            Self::Latent(latent) => Some(latent.shape()),
            _ => None,
        }
    }

    /// The layer whose keys and values it reads instead of having its own.
    pub fn source(&self) -> Option<usize> {
        match self {
            Self::Softmax(softmax) => softmax.source,
            _ => None,
        }
    }
}

/// The numbers of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), in its absorbed form.
///
/// A position keeps one row for all heads: a key of `rotated` elements that the rotation has turned, and behind it a latent of
/// `rank` elements. The model says that head `h` has the key `k_h * latent` and the value `v_h * latent` beside the
/// rotated part; since `q . (k_h * latent)` is `(q * k_h) . latent`, and a sum of `v_h * latent` is `v_h` times the sum, each
/// head's query is multiplied by `k_h` before it looks back and its result by `v_h` afterwards, and the keys and values of
/// heads are never made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Index into [`Blueprint::ropes`]; `None` leaves queries and keys unrotated.
    pub rope: Option<usize>,
    /// Width of the latent.
    pub rank: usize,
    /// Elements of a query and of the shared key that rotate, if any do.
    pub rotated: usize,
    /// Elements of a head's query that do not rotate and stand in front of those that do.
    pub plain: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Width of what queries are made of, where they come from a narrow row with a norm of its own.
    pub query_rank: Option<usize>,
    /// Factor on q.k.
    pub scale: f32,
    /// Added to the mean square of a latent, and of a narrow row, in their norms.
    pub eps: f32,
}

impl Latent {
    /// What a position keeps.
    pub fn shape(&self) -> KvShape {
        KvShape { latent: Some(self.rank), ..KvShape::new(1, self.rotated + self.rank) }
    }

    /// Width of a head's query before it is absorbed.
    pub fn query(&self) -> usize {
        self.plain + self.rotated
    }
}

/// The numbers of a gated linear recurrence: `state = input + sigmoid(gate) * (state - input)` at every position, value by
/// value, and the state is what the layer reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrence {
    /// Values of the state; as wide as all query heads together.
    pub width: usize,
}

/// The numbers of a gated short convolution (LFM 2): a row is projected to three of its width, `b`, `c` and `x`; what the layer
/// gives in front of its output matrix is `c * sum of tap_i * (b * x)_i` over this position and the `kernel - 1` before it,
/// channel by channel, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Inputs of the convolution.
    pub kernel: usize,
    /// Channels.
    pub width: usize,
}

impl ShortConv {
    /// Values that a session keeps: the newest inputs of the convolution.
    pub fn state_len(&self) -> usize {
        (self.kernel - 1) * self.width
    }
}

/// The numbers of softmax attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// Key and value heads, whose number divides the query heads, and their width.
    pub kv: KvShape,
    /// Index into [`Blueprint::ropes`]; `None` leaves queries and keys unrotated.
    pub rope: Option<usize>,
    /// A position sees itself and the `window - 1` before it; `None` sees all before it.
    pub window: Option<usize>,
    /// A position sees no further back than its block of this many, whole quarters of pages; blocks begin at multiples of it.
    pub chunk: Option<usize>,
    /// Positions behind itself that a position sees, of those computed with it: none in decoders, `usize::MAX` for all.
    pub ahead: usize,
    /// Factor on q.k.
    pub scale: f32,
    /// Factor on queries that grows with the position.
    pub temperature: Option<Temperature>,
    /// `cap * tanh(score / cap)` on scaled scores, before the mask.
    pub softcap: Option<f32>,
    /// Whether the result is multiplied by the sigmoid of a gate, whose rows follow each head's in the matrix of queries.
    pub gated: bool,
    /// RMS norms over each head that have no weights.
    pub bare_norm: Option<BareNorm>,
    /// Whether norms of queries and keys that have weights stand behind the rotation.
    pub norms_rotated: bool,
    /// The earlier layer whose keys and values it reads, if it has none of its own; that one has the same heads.
    pub source: Option<usize>,
}

/// What RMS norms without weights act on, head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareNorm {
    /// Values (gemma4).
    Values,
    /// Queries and keys, behind the rotation (llama4).
    Rotated,
}

/// What follows attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// One network for every token.
    Dense(Dense),
    /// A router chooses some of many networks for each token.
    Experts(Experts),
    /// Both side by side, each with a norm behind it (`post_ffw_norm_1`, `post_ffw_norm_2`), added; the experts have another norm
    /// in front (`pre_ffw_norm_2`).
    Both(Dense, Experts),
    /// Nothing: the layer is what mixes positions (nemotron_h).
    None,
}

impl FeedForward {
    /// The network for every token, if there is one.
    pub fn dense(&self) -> Option<&Dense> {
        match self {
            Self::Dense(dense) | Self::Both(dense, _) => Some(dense),
            Self::Experts(_) | Self::None => None,
        }
    }

    /// The experts, if there are some.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Experts(experts) | Self::Both(_, experts) => Some(experts),
            Self::Dense(_) | Self::None => None,
        }
    }
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    GatedSilu,
    /// `gelu_tanh(gate) * up`.
    GatedGelu,
    /// `gelu_tanh(max(gate - cutoff, 0)) * up`, with a cutoff that lies so many standard deviations above the mean of the row's
    /// gates (gemma3n).
    SparseGelu(f32),
    /// `gelu_tanh(up)`, no gate.
    Gelu,
    /// `(clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g)` with `g = min(gate, 7)` (gpt-oss).
    ClampedSwiglu,
    /// `max(gate, 0)^2 * up`.
    GatedReluSquared,
    /// `max(up, 0)^2`, no gate.
    ReluSquared,
}

impl Activation {
    /// Whether a gate multiplies the network's inner rows.
    pub fn gated(self) -> bool {
        !matches!(self, Self::Gelu | Self::ReluSquared)
    }
}

/// How the logits of a router become the weights of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// The softmax over all experts.
    Softmax,
    /// The softmax over the chosen ones.
    SoftmaxOfChosen,
    /// The sigmoid of each.
    Sigmoid,
}

/// Experts in groups of equal size: a token chooses groups first, by the sum of the best experts of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups; divides the experts.
    pub count: usize,
    /// Groups whose experts a token may visit.
    pub used: usize,
    /// How many of its best experts a group counts: one or two.
    pub best: usize,
}

/// A mixture of experts. A selection bias (`exp_probs_b.bias`), which chooses but does not weigh, a bias of the router, biases of
/// experts, a factor of each on its weight (`ffn_down_exps.scale`) and weights of a norm in front of the router
/// (`ffn_gate_inp.scale`, times the root of the width) apply where their tensors are present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts each token visits.
    pub used: usize,
    /// Width of one expert.
    pub width: usize,
    /// Width of the rows that experts read and give, if it is not the model's: one matrix leads there and one back.
    pub latent: Option<usize>,
    /// The nonlinearity of every expert.
    pub activation: Activation,
    /// Where the weights come from.
    pub router: Router,
    /// Groups, if experts are chosen by group.
    pub groups: Option<Groups>,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub renormalize: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Whether the weights multiply what experts read instead of what they give.
    pub weighs_input: bool,
    /// Width of the expert every token visits, if there is one.
    pub shared: Option<usize>,
    /// Whether the output of that expert is multiplied by the sigmoid of a learned gate.
    pub shared_gate: bool,
}

impl Experts {
    /// Gated SiLU experts behind a softmax over all of them, renormalized, without a shared one.
    pub fn softmax(count: usize, used: usize, width: usize) -> Self {
        Self {
            count,
            used,
            width,
            latent: None,
            activation: Activation::GatedSilu,
            router: Router::Softmax,
            groups: None,
            renormalize: true,
            scale: 1.0,
            weighs_input: false,
            shared: None,
            shared_gate: true,
        }
    }
}

impl Layer {
    /// The norm after attention, as its tensors are named, if the one of that name is not the one in front of the feed-forward.
    pub fn norm_after_attention(&self) -> Option<&'static str> {
        const AFTER: &str = "post_attention_norm";
        (self.feed_forward_norm != AFTER).then_some(AFTER)
    }
}

impl Blueprint {
    /// Width of all query heads together, in layers with the usual heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.kv.head_dim
    }

    /// Refuses `layers` that cannot stand by themselves: what they read of other layers must be among them.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    pub fn check_cut(&self, layers: LayerRange) -> Result<()> {
        let at = [layers.start() as usize, layers.end() as usize];
        match at.into_iter().find(|&at| !self.may_cut(at)) {
            None => Ok(()),
            Some(_) if self.encodes() => Err(Error::invalid(format!(
                "layers {layers} of {}: every position of an encoder sees all others, so the model is not cut; run it whole",
                self.architecture
            ))),
            Some(_) if self.per_layer.is_some() => Err(Error::invalid(format!(
                "layers {layers} of {}: every layer reads the token itself (per-layer embeddings), so the model is not cut and its \
                 token ids go where it runs; run it whole on a machine you trust",
                self.architecture
            ))),
            Some(at) => Err(Error::invalid(format!(
                "layers {layers}: layers from {at} on read keys and values of layers before it; cut the model elsewhere"
            ))),
        }
    }

    /// Whether the model may be cut in front of layer `at`; its ends are no cuts.
    pub fn may_cut(&self, at: usize) -> bool {
        let reads = |layer: &Layer| layer.attention.source().is_some_and(|source| source < at);
        at == 0
            || at >= self.layers.len()
            || (self.per_layer.is_none() && !self.encodes() && !self.layers[at..].iter().any(reads))
    }

    /// Whether the model makes hidden states of whole texts, whose positions all see each other, and no logits.
    pub fn encodes(&self) -> bool {
        !self.head.logits
    }

    /// What a session remembers in layer `layer`. All layers of an encoder use the keys and values of the first in turn, since
    /// nothing looks at them later.
    pub fn state_kind(&self, layer: usize) -> Kind {
        match self.layers[layer].attention {
            Attention::Softmax(Softmax { source: Some(_), .. }) | Attention::None => Kind::Nothing,
            Attention::Softmax(_) if self.encodes() && layer > 0 => Kind::Nothing,
            Attention::Softmax(softmax) => Kind::Paged(softmax.kv),
            Attention::Recurrence(recurrence) => Kind::Recurrent { width: recurrence.width },
            Attention::DeltaNet(delta) => Kind::Recurrent { width: delta.state_len() },
            Attention::Mamba2(mamba) => Kind::Recurrent { width: mamba.state_len() },
            Attention::Beside(softmax, mamba) => Kind::Beside { kv: softmax.kv, width: mamba.state_len() },
            Attention::Latent(latent) => Kind::Paged(latent.shape()),
            Attention::ShortConv(conv) => Kind::Recurrent { width: conv.state_len() },
        }
    }

    /// Whether the states of all layers go back to any position.
    pub fn goes_back(&self) -> bool {
        (0..self.layers.len()).all(|layer| self.state_kind(layer).goes_back())
    }

    /// What rows of a session of `kind` see in layer `layer`: how many positions, themselves included, if not all before
    /// them, and the rule of what lies beyond a window. A layer with a window of its own sees no further.
    pub fn sight(&self, layer: usize, kind: AttentionKind) -> (Option<usize>, Option<Sparse>) {
        let own = match self.layers[layer].attention {
            // Where its block begins is the layer's own affair.
            Attention::Softmax(Softmax { chunk: Some(_), window, .. }) => {
                let narrowed = match kind {
                    AttentionKind::Window(narrow) => Some(narrow as usize + 1),
                    AttentionKind::Dense | AttentionKind::Sparse(_) | AttentionKind::H2o(_) => None,
                };
                return (window.into_iter().chain(narrowed).min(), None);
            }
            attention => attention.window(),
        };
        match (kind, own) {
            (AttentionKind::Dense | AttentionKind::H2o(_), own)
            | (AttentionKind::Sparse(_), own @ Some(_)) => (own, None),
            (AttentionKind::Window(window), own) => {
                let window = window as usize + 1;
                (Some(own.map_or(window, |own| own.min(window))), None)
            }
            (AttentionKind::Sparse(rule), None) => (None, Some(rule)),
        }
    }

    /// How far back the rows of a session of `kind` look in the state of layer `layer`: those of layers that read its keys and
    /// values look there as well.
    pub fn back(&self, layer: usize, kind: AttentionKind) -> Back {
        let seen = |reader: usize| {
            let block = match self.layers[reader].attention {
                Attention::Softmax(softmax) => softmax.chunk,
                _ => None,
            };
            match self.sight(reader, kind) {
                (window, None) => Back::new(window, block),
                (_, Some(_)) => Back::ALL,
            }
        };
        // The layers of an encoder use one state in turn; what forgets by itself has its own rule.
        if self.encodes() || self.evicts(layer, kind).is_some() {
            return Back::ALL;
        }
        let readers = (0..self.layers.len()).filter(|at| self.layers[*at].attention.source() == Some(layer));
        readers.fold(seen(layer), |back, reader| back.and(seen(reader)))
    }

    /// The rule by which layer `layer` forgets positions in a session of `kind`, if it does: a layer with a window of its own, or
    /// without keys, keeps what it keeps.
    pub fn evicts(&self, layer: usize, kind: AttentionKind) -> Option<H2o> {
        match (kind, self.layers[layer].attention) {
            (AttentionKind::H2o(rule), Attention::Softmax(Softmax { window: None, chunk: None, .. })) => {
                Some(rule)
            }
            _ => None,
        }
    }

    /// Width of what layer `layer` makes of the positions it sees, in front of its output matrix; what Mamba2 makes beside attention
    /// has a matrix of its own.
    pub fn mixed_width(&self, layer: usize) -> usize {
        match self.layers[layer].attention {
            Attention::Softmax(softmax) | Attention::Beside(softmax, _) => self.heads * softmax.kv.head_dim,
            Attention::Recurrence(recurrence) => recurrence.width,
            Attention::DeltaNet(delta) => delta.value_width(),
            Attention::Mamba2(mamba) => mamba.width(),
            Attention::Latent(latent) => self.heads * latent.value,
            Attention::ShortConv(conv) => conv.width,
            Attention::None => 0,
        }
    }

    /// Bytes each further position takes in the state of all layers: keys and values as f16.
    pub fn kv_bytes_per_token(&self) -> usize {
        (0..self.layers.len()).map(|layer| self.state_kind(layer).position_bytes()).sum()
    }

    /// Width of all key heads, or of all value heads, together, in layers with the usual heads.
    pub fn kv_width(&self) -> usize {
        self.kv.kv_heads * self.kv.head_dim
    }

    /// The widest feed-forward network of any layer, experts and shared expert included.
    pub fn widest(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| {
                let experts = layer.feed_forward.experts();
                let experts = experts.map_or(0, |experts| experts.width.max(experts.shared.unwrap_or(0)));
                layer.feed_forward.dense().map_or(0, |dense| dense.width).max(experts)
            })
            .chain(self.per_layer.map(|read| read.width))
            .max()
            .unwrap_or(0)
    }
}
