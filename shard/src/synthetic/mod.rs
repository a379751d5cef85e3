//! Models with random weights, of any shape and format: for benchmarks before any download, golden hashes and tests.
//!
//! [`Shape`] says what the model is, [`Shape::write`] and [`Shape::to_bytes`] make a GGUF of one [`Family`] that loads
//! like any other. Weights are drawn block by block: random codes under a scale chosen so that a row of inputs
//! of size one gives outputs of size about one. Matrices are copied at pseudo-random offsets from one pool of about a
//! mebibyte of such blocks, which takes a second for a billion weights instead of a minute of quantization; speed does
//! not depend on values. The same seed, shape and format give the same bytes on every machine.
//!
//! A model speaks if it is given another's vocabulary ([`Shape::write_speaking`]): a swarm can then run it, with a text that is
//! noise. Without one it has no tokenizer.

mod pool;
mod random;

use std::{
    io::{Cursor, Write},
    path::Path,
};

use crate::{
    Error, Result,
    gguf::{Metadata, TensorWriter, Writer},
    kernels::{DeltaShape, Mamba2Shape},
    models,
    quant::{self, Format},
};
use pool::Pool;
pub use random::Random;

const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
/// `token_type` of an id without a text (the list of types in the GGUF specification).
const UNUSED: i32 = 5;

/// Which family a file is of, and what only that family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `llama`: all layers alike.
    Llama,
    /// `gemma3`: layers see a window, every `period`-th one everything.
    Gemma3 {
        /// Positions of the window.
        window: usize,
        /// Every how many layers one sees everything.
        period: usize,
    },
    /// `qwen3moe` with experts behind a few dense layers. [`Shape::experts`] must be set.
    Qwen3Moe {
        /// First layers without experts.
        dense: usize,
        /// Width of their network.
        width: usize,
    },
    /// `qwen3next` with experts in every layer: gated delta nets, every `interval`-th layer attention. [`Shape::experts`] must be set.
    Qwen3Next {
        /// Every how many layers one is attention.
        interval: usize,
        /// The others; not tiled.
        delta: DeltaShape,
    },
    /// `granitehybrid`: Mamba2, every `interval`-th layer attention that does not rotate.
    GraniteHybrid {
        /// Every how many layers one is attention.
        interval: usize,
        /// The others.
        mamba: Mamba2Shape,
    },
    /// The family that only fixtures have ([`models::FIXTURE`]): gated recurrences, every `interval`-th layer softmax attention.
    Recurrent {
        /// Every how many layers one is attention.
        interval: usize,
    },
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Gemma3 { .. } => "gemma3",
            Self::Qwen3Moe { .. } => "qwen3moe",
            Self::Qwen3Next { .. } => "qwen3next",
            Self::GraniteHybrid { .. } => "granitehybrid",
            Self::Recurrent { .. } => models::FIXTURE,
        }
    }

    /// Whether layer `layer` is a recurrence.
    fn recurs(self, layer: usize) -> bool {
        matches!(self, Self::Recurrent { interval } if !(layer + 1).is_multiple_of(interval.max(1)))
    }

    /// Whether queries and keys are normed.
    fn norms_heads(self) -> bool {
        matches!(self, Self::Gemma3 { .. } | Self::Qwen3Moe { .. } | Self::Qwen3Next { .. })
    }

    /// The delta net of layer `layer`, if it is one.
    fn delta(self, layer: usize) -> Option<DeltaShape> {
        match self {
            Self::Qwen3Next { interval, delta } => {
                (!(layer + 1).is_multiple_of(interval.max(1))).then_some(delta)
            }
            _ => None,
        }
    }

    /// The Mamba2 of layer `layer`, if it is one.
    fn mamba(self, layer: usize) -> Option<Mamba2Shape> {
        match self {
            Self::GraniteHybrid { interval, mamba } => {
                (!(layer + 1).is_multiple_of(interval.max(1))).then_some(mamba)
            }
            _ => None,
        }
    }
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Which family it is of.
    pub family: Family,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network, or of one expert.
    pub feed_forward: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Context.
    pub context: usize,
    /// Whether the embedding table is also the head.
    pub tied: bool,
    /// Experts and how many of them a token visits.
    pub experts: Option<(usize, usize)>,
}

/// The published models whose shapes `shoal bench --shape` offers.
pub static SHAPES: &[(&str, Shape)] = &[
    ("llama-1b", llama(16, 2048, (32, 8, 64), 8192, 128_256, true)),
    ("llama-3b", llama(28, 3072, (24, 8, 128), 8192, 128_256, true)),
    ("llama-8b", llama(32, 4096, (32, 8, 128), 14_336, 128_256, false)),
    ("bitnet-2b", llama(30, 2560, (20, 5, 128), 6912, 128_256, true)),
    ("qwen2-0.5b", llama(24, 896, (14, 2, 64), 4864, 151_936, true)),
    ("tiny", llama(4, 256, (4, 2, 64), 768, 512, false)),
    (
        "gemma3-1b",
        Shape {
            family: Family::Gemma3 { window: 512, period: 6 },
            context: 32_768,
            ..llama(26, 1152, (4, 1, 256), 6912, 262_144, true)
        },
    ),
    (
        "moe-dense-first",
        Shape {
            family: Family::Qwen3Moe { dense: 2, width: 6144 },
            experts: Some((32, 2)),
            ..llama(8, 2048, (32, 4, 128), 768, 32_768, false)
        },
    ),
    (
        "qwen3next",
        Shape {
            family: Family::Qwen3Next {
                interval: 4,
                delta: DeltaShape {
                    key_heads: 16,
                    value_heads: 32,
                    key_dim: 128,
                    value_dim: 128,
                    kernel: 4,
                    tiled: false,
                    by_channel: false,
                },
            },
            experts: Some((32, 10)),
            context: 32_768,
            ..llama(12, 2048, (16, 2, 256), 512, 32_768, false)
        },
    ),
    (
        "granite-4-h-tiny",
        Shape {
            family: Family::GraniteHybrid {
                interval: 10,
                mamba: Mamba2Shape { heads: 48, head_dim: 64, state: 128, groups: 1, kernel: 4 },
            },
            experts: Some((64, 6)),
            context: 32_768,
            ..llama(20, 1536, (12, 4, 128), 512, 100_352, true)
        },
    ),
];

const fn llama(
    layers: usize,
    hidden: usize,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    feed_forward: usize,
    vocab: usize,
    tied: bool,
) -> Shape {
    let context = 8192;
    let family = Family::Llama;
    Shape {
        family,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        vocab,
        context,
        tied,
        experts: None,
    }
}

/// The shape called `name`.
pub fn shape(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape)
}

/// How a tensor is filled.
#[derive(Clone, Copy)]
enum Fill {
    /// Random blocks of the model's format, outputs of size about `gain` for inputs of size one.
    Matrix { gain: f32 },
    /// Normal values around one.
    Norm,
    /// Normal values of this size in F32 (routers).
    Router { gain: f32 },
    /// Values around minus one (decays).
    Decay,
}

struct Planned {
    name: String,
    dims: Vec<u64>,
    fill: Fill,
}

impl Shape {
    /// Writes the model to `path`, which appears when it is complete.
    ///
    /// # Errors
    /// [`Error::Invalid`] when rows are not whole blocks of `format`; [`Error::Io`].
    pub fn write(&self, path: impl AsRef<Path>, format: &'static Format, seed: u64) -> Result<()> {
        self.write_as(path.as_ref(), format, seed, None)
    }

    /// [`Shape::write`] with the tokenizer and chat template of `metadata`; ids that it has no token for are unused tokens.
    ///
    /// # Errors
    /// As for [`Shape::write`], and [`Error::Invalid`] when there are more tokens than the shape has ids.
    pub fn write_speaking(
        &self,
        path: impl AsRef<Path>,
        format: &'static Format,
        seed: u64,
        metadata: &Metadata,
    ) -> Result<()> {
        self.write_as(path.as_ref(), format, seed, Some(metadata))
    }

    fn write_as(
        &self,
        path: &Path,
        format: &'static Format,
        seed: u64,
        speaks: Option<&Metadata>,
    ) -> Result<()> {
        let (writer, tensors) = self.plan(format, seed, speaks)?;
        let mut out = writer.create(path)?;
        fill_all(&mut out, &tensors, format, seed)?;
        out.finish().map(drop)
    }

    /// The model as the bytes of a GGUF file.
    ///
    /// # Errors
    /// As for [`Shape::write`].
    pub fn to_bytes(&self, format: &'static Format, seed: u64) -> Result<Vec<u8>> {
        let (writer, tensors) = self.plan(format, seed, None)?;
        let mut out = writer.start(Cursor::new(Vec::new()))?;
        fill_all(&mut out, &tensors, format, seed)?;
        Ok(out.finish()?.into_inner())
    }

    /// Number of weights.
    pub fn weights(&self) -> u64 {
        self.tensors().iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum()
    }

    fn plan(
        &self,
        format: &'static Format,
        seed: u64,
        speaks: Option<&Metadata>,
    ) -> Result<(Writer, Vec<Planned>)> {
        let delta = (0..self.layers).find_map(|layer| self.family.delta(layer));
        let delta = delta.map(|delta| delta.value_width());
        let mamba = (0..self.layers).find_map(|layer| self.family.mamba(layer)).map(|mamba| mamba.width());
        let delta = delta.or(mamba).unwrap_or(self.hidden);
        let widths = [self.hidden, self.heads * self.head_dim, self.feed_forward, self.dense_width(), delta];
        if let Some(width) = widths.iter().find(|width| !width.is_multiple_of(format.block_len)) {
            let name = format.name;
            return Err(Error::invalid(format!("rows of {width} weights are not whole blocks of {name}")));
        }
        let mut writer = Writer::new();
        let family = self.family.name();
        writer.add_str("general.architecture", family).add_str("general.name", "synthetic");
        writer.add_u32(&format!("{family}.vocab_size"), self.vocab as u32);
        match speaks {
            Some(metadata) => add_vocabulary(&mut writer, metadata, self.vocab)?,
            // Other programs must open the file too, to be compared with: "none" is how they know there is no tokenizer.
            None => drop(writer.add_str("tokenizer.ggml.model", "none")),
        }
        writer.add_u64("synthetic.seed", seed);
        for (key, value) in [
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("block_count", self.layers),
            ("feed_forward_length", self.dense_width()),
            ("attention.head_count", self.heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.rotated()),
        ] {
            writer.add_u32(&format!("{family}.{key}"), value as u32);
        }
        let kv_heads = |layer| if self.family.mamba(layer).is_some() { 0 } else { self.kv_heads as u32 };
        let key = format!("{family}.attention.head_count_kv");
        match self.family {
            Family::GraniteHybrid { .. } => {
                writer.add_u32s(&key, &(0..self.layers).map(kv_heads).collect::<Vec<_>>())
            }
            _ => writer.add_u32(&key, self.kv_heads as u32),
        };
        if let Some((count, used)) = self.experts {
            writer.add_u32(&format!("{family}.expert_count"), count as u32);
            writer.add_u32(&format!("{family}.expert_used_count"), used as u32);
        }
        match self.family {
            Family::Llama => {}
            Family::Qwen3Next { interval, delta } => {
                for (key, value) in [
                    ("expert_feed_forward_length", self.feed_forward),
                    ("expert_shared_feed_forward_length", self.feed_forward),
                    ("full_attention_interval", interval),
                    ("ssm.conv_kernel", delta.kernel),
                    ("ssm.state_size", delta.key_dim),
                    ("ssm.group_count", delta.key_heads),
                    ("ssm.time_step_rank", delta.value_heads),
                    ("ssm.inner_size", delta.value_width()),
                ] {
                    writer.add_u32(&format!("{family}.{key}"), value as u32);
                }
            }
            Family::GraniteHybrid { mamba, .. } => {
                for (key, value) in [
                    ("ssm.conv_kernel", mamba.kernel),
                    ("ssm.state_size", mamba.state),
                    ("ssm.group_count", mamba.groups),
                    ("ssm.time_step_rank", mamba.heads),
                    ("ssm.inner_size", mamba.width()),
                ] {
                    writer.add_u32(&format!("{family}.{key}"), value as u32);
                }
                writer.add_bool("granitehybrid.rope.scaling.finetuned", false);
            }
            Family::Recurrent { interval } => {
                writer.add_u32(&format!("{family}.attention_interval"), interval as u32);
            }
            Family::Gemma3 { window, period } => {
                writer.add_u32("gemma3.attention.sliding_window", window as u32);
                writer.add_u32("gemma3.attention.sliding_window_pattern", period as u32);
            }
            Family::Qwen3Moe { dense, .. } => {
                writer.add_u32("qwen3moe.expert_feed_forward_length", self.feed_forward as u32);
                writer.add_u32("qwen3moe.leading_dense_block_count", dense as u32);
            }
        }
        writer.add_f32(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-5);
        writer.add_f32(&format!("{family}.rope.freq_base"), 500_000.0);
        let tensors = self.tensors();
        for tensor in &tensors {
            let format = if let Fill::Matrix { .. } = tensor.fill { format } else { &quant::F32 };
            writer.add_tensor_info(&tensor.name, &tensor.dims, format);
        }
        Ok((writer, tensors))
    }

    /// Width of the networks of layers without experts, or of the experts where there are no others.
    fn dense_width(&self) -> usize {
        match self.family {
            Family::Qwen3Moe { width, .. } => width,
            _ => self.feed_forward,
        }
    }

    /// Values of a head that rotate.
    fn rotated(&self) -> usize {
        match self.family {
            Family::Qwen3Next { .. } => self.head_dim / 4,
            _ => self.head_dim,
        }
    }

    /// The experts of a layer, if it has any.
    fn experts_of(&self, layer: usize) -> Option<(usize, usize)> {
        match self.family {
            Family::Qwen3Moe { dense, .. } if layer < dense => None,
            _ => self.experts,
        }
    }

    fn tensors(&self) -> Vec<Planned> {
        let mut all = Vec::new();
        let mut add = |name: String, dims: &[usize], fill| {
            all.push(Planned { name, dims: dims.iter().map(|&d| d as u64).collect(), fill });
        };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, inner, wide) = (self.hidden, self.feed_forward, self.dense_width());
        let matrix = |gain| Fill::Matrix { gain };
        add("token_embd.weight".into(), &[hidden, self.vocab], matrix((hidden as f32).sqrt()));
        for layer in 0..self.layers {
            let mut add = |name: &str, dims: &[usize], fill| add(format!("blk.{layer}.{name}"), dims, fill);
            add("attn_norm.weight", &[hidden], Fill::Norm);
            if self.family.recurs(layer) {
                add("recurrence_gate.weight", &[hidden, q], matrix(1.2));
                add("recurrence_gate.bias", &[q], Fill::Norm);
                add("recurrence_input.weight", &[hidden, q], matrix(1.0));
            } else if let Some(delta) = self.family.delta(layer) {
                let (channels, values, heads) = (delta.channels(), delta.value_width(), delta.value_heads);
                add("attn_qkv.weight", &[hidden, channels], matrix(1.0));
                add("attn_gate.weight", &[hidden, values], matrix(1.0));
                add("ssm_ba.weight", &[hidden, 2 * heads], matrix(1.0));
                add("ssm_conv1d.weight", &[delta.kernel, channels], Fill::Router { gain: 1.0 });
                add("ssm_dt.bias", &[heads], Fill::Norm);
                add("ssm_a", &[heads], Fill::Decay);
                add("ssm_norm.weight", &[delta.value_dim], Fill::Norm);
            } else if let Some(mamba) = self.family.mamba(layer) {
                add("ssm_in.weight", &[hidden, mamba.projected()], matrix(1.0));
                add("ssm_conv1d.weight", &[mamba.kernel, mamba.channels()], Fill::Router { gain: 1.0 });
                add("ssm_dt.bias", &[mamba.heads], Fill::Norm);
                add("ssm_a", &[1, mamba.heads], Fill::Decay);
                add("ssm_d", &[1, mamba.heads], Fill::Norm);
                add("ssm_norm.weight", &[mamba.width() / mamba.groups, mamba.groups], Fill::Norm);
            } else {
                let gated = if let Family::Qwen3Next { .. } = self.family { 2 } else { 1 };
                add("attn_q.weight", &[hidden, gated * q], matrix(1.2));
                add("attn_k.weight", &[hidden, kv], matrix(1.2));
                add("attn_v.weight", &[hidden, kv], matrix(1.0));
            }
            let delta = self.family.delta(layer).map(|delta| delta.value_width());
            match delta.or(self.family.mamba(layer).map(|mamba| mamba.width())) {
                Some(width) => add("ssm_out.weight", &[width, hidden], matrix(0.7)),
                None => add("attn_output.weight", &[q, hidden], matrix(0.7)),
            }
            if self.family.norms_heads() && self.family.delta(layer).is_none() {
                add("attn_q_norm.weight", &[self.head_dim], Fill::Norm);
                add("attn_k_norm.weight", &[self.head_dim], Fill::Norm);
            }
            if let Family::Gemma3 { .. } = self.family {
                add("post_attention_norm.weight", &[hidden], Fill::Norm);
                add("post_ffw_norm.weight", &[hidden], Fill::Norm);
            }
            if let Family::Qwen3Next { .. } = self.family {
                add("post_attention_norm.weight", &[hidden], Fill::Norm);
                add("ffn_gate_inp_shexp.weight", &[hidden], Fill::Router { gain: 1.0 });
                add("ffn_gate_shexp.weight", &[hidden, inner], matrix(1.0));
                add("ffn_up_shexp.weight", &[hidden, inner], matrix(1.0));
                add("ffn_down_shexp.weight", &[inner, hidden], matrix(1.0));
            } else {
                add("ffn_norm.weight", &[hidden], Fill::Norm);
            }
            match self.experts_of(layer) {
                None => {
                    add("ffn_gate.weight", &[hidden, wide], matrix(1.0));
                    add("ffn_up.weight", &[hidden, wide], matrix(1.0));
                    add("ffn_down.weight", &[wide, hidden], matrix(1.0));
                }
                Some((count, _)) => {
                    add("ffn_gate_inp.weight", &[hidden, count], Fill::Router { gain: 1.5 });
                    add("ffn_gate_exps.weight", &[hidden, inner, count], matrix(1.0));
                    add("ffn_up_exps.weight", &[hidden, inner, count], matrix(1.0));
                    add("ffn_down_exps.weight", &[inner, hidden, count], matrix(1.0));
                }
            }
        }
        add("output_norm.weight".into(), &[hidden], Fill::Norm);
        if !self.tied {
            add("output.weight".into(), &[hidden, self.vocab], matrix(2.0));
        }
        all
    }
}

/// The tokenizer of `metadata` with a token for each of `vocab` ids.
fn add_vocabulary(writer: &mut Writer, metadata: &Metadata, vocab: usize) -> Result<()> {
    let tokens = metadata.strings(TOKENS).ok_or_else(|| Error::malformed(TOKENS, "missing"))?;
    let unused = vocab.checked_sub(tokens.len()).ok_or_else(|| {
        Error::invalid(format!("{} tokens do not fit into {vocab} ids of the shape", tokens.len()))
    })?;
    for (key, value) in metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        match key {
            TOKENS => {
                let names = (0..unused).map(|index| format!("<unused{index}>"));
                let tokens: Vec<String> = tokens.clone().map(str::to_owned).chain(names).collect();
                writer.add_strs(key, &tokens);
            }
            KINDS => {
                let mut kinds = metadata.i32s(key).unwrap_or_default();
                kinds.resize(vocab, UNUSED);
                writer.add_i32s(key, &kinds);
            }
            SCORES => {
                let mut scores = metadata.f32s(key).unwrap_or_default();
                scores.resize(vocab, 0.0);
                writer.add_f32s(key, &scores);
            }
            _ => drop(writer.add_value(key, value)),
        }
    }
    Ok(())
}

fn fill_all<W: Write>(
    out: &mut TensorWriter<W>,
    tensors: &[Planned],
    format: &'static Format,
    seed: u64,
) -> Result<()> {
    let mut random = Random(seed);
    let mut pool = Pool::new(format, &mut random);
    for tensor in tensors {
        let cols = tensor.dims[0] as usize;
        let count = tensor.dims.iter().product::<u64>() as usize;
        match tensor.fill {
            Fill::Norm => out.tensor(&random.normals(count, 0.2, 1.0))?,
            Fill::Decay => out.tensor(&random.normals(count, 0.2, -1.0))?,
            Fill::Router { gain } => out.tensor(&random.normals(count, gain / (cols as f32).sqrt(), 0.0))?,
            Fill::Matrix { gain } => {
                pool.set_size(gain / (cols as f32).sqrt());
                let mut left = count / format.block_len * format.block_bytes;
                while left > 0 {
                    let blocks = pool.bytes.len() / format.block_bytes;
                    let at = random.below(blocks) * format.block_bytes;
                    let part = &pool.bytes[at..(at + left).min(pool.bytes.len())];
                    out.write(part)?;
                    left -= part.len();
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
