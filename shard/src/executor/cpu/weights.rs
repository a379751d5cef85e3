//! From tensors in a file to packed weights of one layer.

use super::{
    load::{Linear, Loader},
    recurrent::{DeltaWeights, Mamba2Weights},
};
use crate::{
    Error, Result,
    kernels::{Matrix, by_tap},
    models::{
        ATTENTION_NORM, Attention, CHOICE_FACTORS, Dense, Experts, FeedForward, LAYER_SCALE, Latent, Softmax,
        layer_name,
    },
};

/// The weights of a norm.
pub(super) struct NormWeights {
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

/// A feed-forward network; without `gate` it is not gated.
pub(super) struct Network {
    pub gate: Option<Linear>,
    pub up: Linear,
    /// The norm over the inner rows.
    pub inner_norm: Option<Vec<f32>>,
    pub down: Linear,
}

/// A router and its experts.
pub(super) struct ExpertWeights {
    pub router: Linear,
    /// The norm in front of the router, where it has one of its own.
    pub router_norm: Option<Vec<f32>>,
    /// For each expert a factor on its weight.
    pub factors: Option<Vec<f32>>,
    /// What is added to the scores for the choice alone.
    pub selection: Option<Vec<f32>>,
    /// The experts held.
    pub experts: Vec<Network>,
    /// Which one is the first of them.
    pub first: usize,
    /// The matrices into the narrower rows that experts read and out of those that they give.
    pub latent: Option<[Linear; 2]>,
    /// The gate of the shared expert, one row, if it has one, and the expert.
    pub shared: Option<(Option<Matrix>, Network)>,
}

#[allow(clippy::large_enum_variant, reason = "one per layer, made once")]
pub(super) enum FeedForwardWeights {
    None,
    Dense(Network),
    Experts(Box<ExpertWeights>),
    Both(Box<BothWeights>),
}

/// A network and experts side by side, with their norms.
pub(super) struct BothWeights {
    pub dense: Network,
    pub dense_norm_after: Vec<f32>,
    pub experts_norm: NormWeights,
    pub experts: ExpertWeights,
    pub experts_norm_after: Vec<f32>,
}

/// Where the keys and values of a layer come from.
#[allow(clippy::large_enum_variant, reason = "one per layer, made once")]
pub(super) enum Keys {
    /// Keys and values have their matrices.
    Own(Linear, Linear),
    /// Values are the keys as projected.
    Same(Linear),
    /// An earlier layer has them.
    Elsewhere,
}

/// The projections of softmax attention.
pub(super) struct SoftmaxWeights {
    pub q: Linear,
    /// The gate of the result.
    pub gate: Option<Linear>,
    pub keys: Keys,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    /// A logit per query head without a value.
    pub sinks: Option<Vec<f32>>,
}

/// The projections of latent attention.
pub(super) struct LatentWeights {
    /// The narrow row that queries are made of, and its norm.
    pub narrow: Option<(Linear, Vec<f32>)>,
    pub q: Linear,
    /// The latent and the rotated key.
    pub row: Linear,
    pub row_norm: Vec<f32>,
    /// For each head what its query is multiplied by.
    pub keys: Vec<Linear>,
    /// For each head what its result is multiplied by.
    pub values: Vec<Linear>,
}

/// Softmax attention and Mamba2 side by side.
pub(super) struct BesideWeights {
    pub softmax: SoftmaxWeights,
    pub mamba: Mamba2Weights,
    /// The matrix behind Mamba2.
    pub out: Linear,
}

/// What mixes positions.
pub(super) enum Mixer {
    None,
    Latent(LatentWeights),
    Softmax(SoftmaxWeights),
    Recurrence {
        gate: Linear,
        input: Linear,
    },
    DeltaNet(Box<DeltaWeights>),
    Mamba2(Mamba2Weights),
    Beside(Box<BesideWeights>),
    /// The projection to three rows, and the taps, `[kernel][width]`, oldest row first.
    ShortConv {
        input: Linear,
        taps: Vec<f32>,
    },
}

/// Everything one layer computes with.
pub(super) struct LayerWeights {
    pub attention_norm: Option<NormWeights>,
    pub mixer: Mixer,
    /// The norm over what the mixer makes.
    pub mixed_norm: Option<Vec<f32>>,
    /// The matrix behind it, where something mixes positions.
    pub out: Option<Linear>,
    pub attention_norm_after: Option<Vec<f32>>,
    /// The norm of the residual rows behind attention.
    pub attention_sum_norm: Option<NormWeights>,
    pub feed_forward_norm: Option<NormWeights>,
    pub feed_forward: FeedForwardWeights,
    pub feed_forward_norm_after: Option<Vec<f32>>,
    /// The norm of the residual rows that the layer gives.
    pub sum_norm: Option<NormWeights>,
    /// What it adds of the token itself.
    pub token: Option<LayerInputWeights>,
    /// What predicts and corrects the streams of the residual rows.
    pub streams: Option<Box<StreamWeights>>,
    /// The factor on what it gives.
    pub scale: Option<f32>,
}

/// What makes the rows of a token that layers read.
pub(super) struct TokenWeights {
    pub projection: Linear,
    /// As wide as the part of one layer.
    pub norm: Vec<f32>,
    /// What makes the streams of the residual rows behind the first.
    pub streams: Vec<Linear>,
}

/// What makes of its part of a token's row what a layer adds.
pub(super) struct LayerInputWeights {
    pub gate: Linear,
    pub out: Linear,
    pub norm: Vec<f32>,
}

/// What one layer predicts and corrects with.
pub(super) struct StreamWeights {
    pub router: Linear,
    /// Weights of the norm in front of the router, over the width.
    pub router_norm: Vec<f32>,
    pub predict: Linear,
    pub correct: Linear,
    /// Factors on the first stream where it meets the token's row.
    pub scale: Vec<f32>,
    pub laurel: [Linear; 2],
    pub laurel_norm: Vec<f32>,
}

impl StreamWeights {
    fn resident_bytes(&self) -> usize {
        let matrices = [&self.router, &self.predict, &self.correct, &self.laurel[0], &self.laurel[1]];
        matrices.into_iter().map(Linear::resident_bytes).sum()
    }
}

impl Keys {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let (keys, values) = match self {
            Self::Own(keys, values) => (Some(keys), Some(values)),
            Self::Same(keys) => (Some(keys), None),
            Self::Elsewhere => (None, None),
        };
        keys.into_iter().chain(values)
    }
}

impl TokenWeights {
    pub fn resident_bytes(&self) -> usize {
        self.projection.resident_bytes() + self.streams.iter().map(Linear::resident_bytes).sum::<usize>()
    }
}

impl SoftmaxWeights {
    fn resident_bytes(&self) -> usize {
        let all = [&self.q].into_iter().chain(self.keys.linears()).chain(&self.gate);
        all.map(Linear::resident_bytes).sum()
    }
}

impl Network {
    fn resident_bytes(&self) -> usize {
        let gate = self.gate.as_ref().map_or(0, Linear::resident_bytes);
        gate + self.up.resident_bytes() + self.down.resident_bytes()
    }
}

impl ExpertWeights {
    fn experts_bytes(&self) -> usize {
        self.experts.iter().map(Network::resident_bytes).sum()
    }

    fn resident_bytes(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, |(gate, network)| {
            gate.as_ref().map_or(0, Matrix::resident_bytes) + network.resident_bytes()
        });
        let latent = self.latent.iter().flatten().map(Linear::resident_bytes).sum::<usize>();
        self.router.resident_bytes() + self.experts_bytes() + latent + shared
    }
}

impl LayerWeights {
    /// Bytes of the layer's matrices in memory.
    pub fn resident_bytes(&self) -> usize {
        let mixer: usize = match &self.mixer {
            Mixer::Softmax(w) => w.resident_bytes(),
            Mixer::DeltaNet(w) => w.resident_bytes(),
            Mixer::Mamba2(w) => w.resident_bytes(),
            Mixer::Beside(w) => {
                w.softmax.resident_bytes() + w.mamba.resident_bytes() + w.out.resident_bytes()
            }
            Mixer::Recurrence { gate, input } => gate.resident_bytes() + input.resident_bytes(),
            Mixer::None => 0,
            Mixer::ShortConv { input, .. } => input.resident_bytes(),
            Mixer::Latent(w) => {
                let narrow = w.narrow.as_ref().map(|(narrow, _)| narrow);
                let heads = w.keys.iter().chain(&w.values);
                [&w.q, &w.row].into_iter().chain(narrow).chain(heads).map(Linear::resident_bytes).sum()
            }
        };
        let attention = mixer + self.out.as_ref().map_or(0, Linear::resident_bytes);
        let feed_forward = match &self.feed_forward {
            FeedForwardWeights::None => 0,
            FeedForwardWeights::Dense(network) => network.resident_bytes(),
            FeedForwardWeights::Experts(experts) => experts.resident_bytes(),
            FeedForwardWeights::Both(both) => both.dense.resident_bytes() + both.experts.resident_bytes(),
        };
        let token = self.token.as_ref().map_or(0, |w| w.gate.resident_bytes() + w.out.resident_bytes());
        attention + feed_forward + token + self.streams.as_ref().map_or(0, |w| w.resident_bytes())
    }

    /// Bytes of the matrices that one token passes through when `used` experts are chosen for it.
    pub fn touched_bytes(&self, used: usize) -> usize {
        let Some(experts) = self.feed_forward.experts() else { return self.resident_bytes() };
        let all = experts.experts_bytes();
        self.resident_bytes() - all + (all / experts.experts.len().max(1) * used).min(all)
    }
}

impl FeedForwardWeights {
    /// Its experts, if it has any.
    pub fn experts(&self) -> Option<&ExpertWeights> {
        match self {
            Self::None | Self::Dense(_) => None,
            Self::Experts(experts) => Some(experts),
            Self::Both(both) => Some(&both.experts),
        }
    }
}

impl Loader<'_> {
    /// The norm whose tensors are `prefix.weight`, or `prefix` alone, and maybe `prefix.bias`.
    pub fn norm(&self, prefix: &str) -> Result<NormWeights> {
        let weight = self.gguf.norm(prefix)?.to_f32();
        Ok(NormWeights { weight, bias: self.vector(&format!("{prefix}.bias")) })
    }

    /// The same where the file has it.
    pub fn norm_opt(&self, prefix: &str) -> Result<Option<NormWeights>> {
        self.gguf.has_norm(prefix).then(|| self.norm(prefix)).transpose()
    }

    /// The head's matrix: its own, or the embedding table.
    pub fn head(&self) -> Result<Matrix> {
        let name = if self.blueprint.head.tied { "token_embd.weight" } else { "output.weight" };
        self.matrix(name)
    }

    /// Layer `index` of the model.
    pub fn layer(&self, index: usize) -> Result<LayerWeights> {
        let name = |suffix: &str| layer_name(index, suffix);
        let mixer = match self.blueprint.layers[index].attention {
            Attention::Softmax(softmax) => Mixer::Softmax(self.softmax(index, softmax)?),
            Attention::Beside(softmax, mamba) => Mixer::Beside(Box::new(BesideWeights {
                softmax: self.softmax(index, softmax)?,
                mamba: Mamba2Weights::load(self, index, &mamba)?,
                out: self.linear(&name("ssm_out"))?,
            })),
            Attention::DeltaNet(delta) => Mixer::DeltaNet(Box::new(DeltaWeights::load(self, index, &delta)?)),
            Attention::Mamba2(mamba) => Mixer::Mamba2(Mamba2Weights::load(self, index, &mamba)?),
            Attention::None => Mixer::None,
            Attention::Latent(latent) => Mixer::Latent(self.latent(index, &latent)?),
            Attention::ShortConv(conv) => Mixer::ShortConv {
                input: self.linear(&name("shortconv.in_proj"))?,
                taps: by_tap(&self.values(&name("shortconv.conv.weight"))?, conv.kernel),
            },
            Attention::Recurrence(_) => Mixer::Recurrence {
                gate: self.linear(&name("recurrence_gate"))?,
                input: self.linear(&name("recurrence_input"))?,
            },
        };
        let layer = &self.blueprint.layers[index];
        let feed_forward = match &layer.feed_forward {
            FeedForward::None => FeedForwardWeights::None,
            FeedForward::Dense(dense) => FeedForwardWeights::Dense(self.network(index, dense)?),
            FeedForward::Experts(experts) => {
                FeedForwardWeights::Experts(Box::new(self.experts(index, experts)?))
            }
            FeedForward::Both(dense, experts) => FeedForwardWeights::Both(Box::new(BothWeights {
                dense: self.network(index, dense)?,
                dense_norm_after: self.values(&name("post_ffw_norm_1.weight"))?,
                experts_norm: self.norm(&name("pre_ffw_norm_2"))?,
                experts: self.experts(index, experts)?,
                experts_norm_after: self.values(&name("post_ffw_norm_2.weight"))?,
            })),
        };
        let token = match self.blueprint.per_layer {
            None => None,
            Some(_) => Some(LayerInputWeights {
                gate: self.linear(&name("inp_gate"))?,
                out: self.linear(&name("proj"))?,
                norm: self.values(&name("post_norm.weight"))?,
            }),
        };
        let (out, after) = (
            match layer.attention {
                Attention::None => None,
                Attention::DeltaNet(delta) if delta.by_channel => Some("attn_output"),
                Attention::DeltaNet(_) | Attention::Mamba2(_) => Some("ssm_out"),
                Attention::ShortConv(_) => Some("shortconv.out_proj"),
                _ => Some("attn_output"),
            },
            layer.norm_after_attention().map(|after| format!("{after}.weight")),
        );
        Ok(LayerWeights {
            attention_norm: self.norm_opt(&name(ATTENTION_NORM))?,
            mixer,
            mixed_norm: self.vector(&name("attn_sub_norm.weight")),
            out: out.map(|out| self.linear(&name(out))).transpose()?,
            attention_norm_after: after.and_then(|after| self.vector(&name(&after))),
            attention_sum_norm: self.norm_opt(&name("attn_output_norm"))?,
            feed_forward_norm: self.norm_opt(&name(layer.feed_forward_norm))?,
            feed_forward,
            feed_forward_norm_after: self.vector(&name("post_ffw_norm.weight")),
            sum_norm: self.norm_opt(&name("layer_output_norm"))?,
            token,
            streams: self.streams(index)?.map(Box::new),
            scale: self.vector(&name(LAYER_SCALE)).and_then(|scale| scale.first().copied()),
        })
    }

    /// What makes the rows of a token that layers read, where they do.
    pub fn token(&self) -> Result<Option<TokenWeights>> {
        let read = |_| {
            Ok(TokenWeights {
                projection: self.linear("per_layer_model_proj")?,
                norm: self.values("per_layer_proj_norm.weight")?,
                streams: self.streams_behind_the_first("altup_proj")?,
            })
        };
        self.blueprint.per_layer.map(read).transpose()
    }

    /// What predicts and corrects streams in layer `index`, if residual rows come in several.
    fn streams(&self, index: usize) -> Result<Option<StreamWeights>> {
        if self.blueprint.per_layer.is_none_or(|read| read.streams == 1) {
            return Ok(None);
        }
        let linear = |suffix: &str| self.linear(&layer_name(index, suffix));
        let values = |suffix: &str| self.values(&layer_name(index, suffix));
        Ok(Some(StreamWeights {
            router: linear("altup_router")?,
            router_norm: values("altup_router_norm.weight")?,
            predict: linear("altup_predict_coef")?,
            correct: linear("altup_correct_coef")?,
            scale: values("altup_correct_scale.weight")?,
            laurel: [linear("laurel_l")?, linear("laurel_r")?],
            laurel_norm: values("laurel_post_norm.weight")?,
        }))
    }

    /// The square matrices of a stack, one for each stream of the residual rows behind the first; none in most models.
    pub fn streams_behind_the_first(&self, stack: &str) -> Result<Vec<Linear>> {
        let count = self.blueprint.per_layer.map_or(1, |read| read.streams);
        let width = self.blueprint.hidden;
        (1..count).map(|stream| self.linear_rows(stack, (stream - 1) * width..stream * width)).collect()
    }

    /// Queries, keys and values, which may be the rows of one matrix.
    fn softmax(&self, index: usize, spec: Softmax) -> Result<SoftmaxWeights> {
        let name = |suffix: &str| layer_name(index, suffix);
        let (q, kv) = (self.blueprint.heads * spec.kv.head_dim, spec.kv.kv_heads * spec.kv.head_dim);
        let fused = name("attn_qkv");
        let (q, keys) = match self.gguf.info(&format!("{fused}.weight")) {
            None if spec.source.is_some() => (self.linear(&name("attn_q"))?, Keys::Elsewhere),
            None if self.gguf.info(&name("attn_v.weight")).is_none() => {
                (self.linear(&name("attn_q"))?, Keys::Same(self.linear(&name("attn_k"))?))
            }
            None => {
                let keys = Keys::Own(self.linear(&name("attn_k"))?, self.linear(&name("attn_v"))?);
                (self.linear(&name("attn_q"))?, keys)
            }
            Some(_) => {
                let values = self.linear_rows(&fused, q + kv..q + 2 * kv)?;
                let keys = Keys::Own(self.linear_rows(&fused, q..q + kv)?, values);
                (self.linear_rows(&fused, 0..q)?, keys)
            }
        };
        self.gguf.forget(&format!("{fused}.weight"));
        let q_norm = self.vector(&name("attn_q_norm.weight"));
        let k_norm = if spec.source.is_none() { self.vector(&name("attn_k_norm.weight")) } else { None };
        let (q, gate) = match spec.gated {
            false => (q, None),
            true => {
                let dim = spec.kv.head_dim;
                // Each head's queries, then its gate.
                let part = |first: usize| {
                    let heads = (0..self.blueprint.heads).map(move |head| 2 * head + first);
                    self.gathered(&name("attn_q"), heads.map(move |part| part * dim..(part + 1) * dim))
                };
                (part(0)?, Some(part(1)?))
            }
        };
        let sinks = self.vector(&name("attn_sinks.weight"));
        Ok(SoftmaxWeights { q, gate, keys, q_norm, k_norm, sinks })
    }

    fn latent(&self, index: usize, latent: &Latent) -> Result<LatentWeights> {
        let name = |suffix: &str| layer_name(index, suffix);
        let vector = |suffix: &str| self.values(&name(suffix));
        let (narrow, q) = match latent.query_rank {
            None => (None, self.linear(&name("attn_q"))?),
            Some(_) => {
                let narrow = (self.linear(&name("attn_q_a"))?, vector("attn_q_a_norm.weight")?);
                (Some(narrow), self.linear(&name("attn_q_b"))?)
            }
        };
        let heads = |suffix: &str, rows: usize| {
            let all = (0..self.blueprint.heads)
                .map(|head| self.linear_rows(&name(suffix), head * rows..(head + 1) * rows))
                .collect::<Result<Vec<_>>>();
            self.gguf.forget(&name(&format!("{suffix}.weight")));
            all
        };
        Ok(LatentWeights {
            narrow,
            q,
            row: self.linear(&name("attn_kv_a_mqa"))?,
            row_norm: vector("attn_kv_a_norm.weight")?,
            keys: heads("attn_k_b", latent.rank)?,
            values: heads("attn_v_b", latent.value)?,
        })
    }

    /// The dense network; gate and up may be the halves of one matrix.
    fn network(&self, index: usize, spec: &Dense) -> Result<Network> {
        let width = spec.width;
        let [gate, up, down] = ["ffn_gate", "ffn_up", "ffn_down"].map(|suffix| layer_name(index, suffix));
        let stacked =
            spec.activation.gated() && self.gguf.require(&format!("{up}.weight"))?.rows() == 2 * width;
        let (gate, up) = match self.gguf.info(&format!("{gate}.weight")) {
            Some(_) => (Some(self.linear(&gate)?), self.linear(&up)?),
            None if stacked => {
                let halves = (self.linear_rows(&up, 0..width)?, self.linear_rows(&up, width..2 * width)?);
                self.gguf.forget(&format!("{up}.weight"));
                (Some(halves.0), halves.1)
            }
            None => (None, self.linear(&up)?),
        };
        let inner_norm = self.vector(&layer_name(index, "ffn_sub_norm.weight"));
        Ok(Network { gate, up, inner_norm, down: self.linear(&down)? })
    }

    fn experts(&self, index: usize, spec: &Experts) -> Result<ExpertWeights> {
        let name = |suffix: &str| layer_name(index, suffix);
        let parts = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].map(name);
        let biases = parts.each_ref().map(|part| self.vector(&format!("{part}.bias")));
        let (outer, width) = (spec.latent.unwrap_or(self.blueprint.hidden), spec.width);
        let fused = name("ffn_gate_up_exps");
        let stacked = self.gguf.info(&format!("{fused}.weight")).is_some();
        let held = self.experts.map_or(0..spec.count, |held| held.start() as usize..held.end() as usize);
        let first = held.start;
        let experts = held.map(|e| {
            let part = |part: usize, rows: usize| {
                if stacked && part < 2 {
                    let first = (2 * e + part) * rows;
                    return self.linear_rows(&fused, first..first + rows);
                }
                let own = e * rows..(e + 1) * rows;
                let matrix = self.matrix_rows(&format!("{}.weight", parts[part]), own.clone())?;
                let bias = biases[part].as_ref().map(|bias| bias[own].to_vec());
                Ok::<_, Error>(Linear { matrix, bias })
            };
            let gate = spec.activation.gated().then(|| part(0, width)).transpose()?;
            let (up, down) = (part(1, width)?, part(2, outer)?);
            Ok(Network { gate, up, inner_norm: None, down })
        });
        let experts = experts.collect::<Result<Vec<_>>>()?;
        parts.iter().chain([&fused]).for_each(|part| self.gguf.forget(&format!("{part}.weight")));
        let gated = spec.activation.gated();
        let shared = match spec.shared {
            None => None,
            Some(_) => {
                let gate =
                    spec.shared_gate.then(|| self.matrix(&name("ffn_gate_inp_shexp.weight"))).transpose()?;
                let network = Network {
                    gate: gated.then(|| self.linear(&name("ffn_gate_shexp"))).transpose()?,
                    up: self.linear(&name("ffn_up_shexp"))?,
                    inner_norm: None,
                    down: self.linear(&name("ffn_down_shexp"))?,
                };
                Some((gate, network))
            }
        };
        let latent = match spec.latent {
            Some(_) => Some([self.linear(&name("ffn_latent_down"))?, self.linear(&name("ffn_latent_up"))?]),
            None => None,
        };
        let selection = self.vector(&name("exp_probs_b.bias"));
        let of_choice = self.blueprint.layers[index].has(CHOICE_FACTORS);
        let root = 1.0 / (self.blueprint.hidden as f32).sqrt();
        let router_norm = self
            .vector(&name("ffn_gate_inp.scale"))
            .map(|scale| scale.into_iter().map(|scale| scale * root).collect());
        Ok(ExpertWeights {
            router: self.linear(&name("ffn_gate_inp"))?,
            router_norm,
            factors: of_choice.then(|| self.vector(&name(CHOICE_FACTORS))).flatten(),
            selection,
            experts,
            first,
            latent,
            shared,
        })
    }
}
