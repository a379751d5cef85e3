//! Checkpoints with Mamba2 layers (Granite 4.0 H, Nemotron-H, Falcon-H1): the metadata, the tensors of such a layer, and what Falcon-H1
//! multiplies its matrices by, which files have in them.

use std::ops::Range;

use super::{
    blocks::{Block, blocks},
    checkpoint::{Checkpoint, Stored},
    config::Config,
    family::{is_boundless, is_nemotron},
    planned::{Piece, Planned},
};
use crate::{Error, Result, gguf::Writer, kernels::math};

/// Most heads, and widest head or state, accepted.
const MAX: usize = 1 << 16;

/// What multiplies a step's size where a state fades, of the logarithm that checkpoints have: here and in delta nets.
pub(super) fn decay(log: f32) -> f32 {
    -math::exp(f64::from(log)) as f32
}

/// The sizes of Mamba2 layers.
struct Sizes {
    heads: usize,
    width: usize,
    state: usize,
    groups: usize,
    taps: usize,
}

impl Sizes {
    fn read(config: &Config) -> Result<Self> {
        let size = |key: &str| config.bounded(key, MAX);
        let [heads, width, state, groups, taps] = match is_nemotron(config.arch()) {
            true => ["mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"],
            false => ["mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"],
        };
        Ok(Self {
            heads: size(heads)?,
            width: size(width)?,
            state: size(state)?,
            groups: size(groups)?,
            taps: size(taps)?,
        })
    }

    fn inner(&self) -> usize {
        self.heads * self.width
    }
}

/// The name inside a Mamba2 layer, if a tensor is one of it.
pub(super) fn part(inner: &str) -> Option<&str> {
    let name = inner.strip_prefix("mamba.").or_else(|| inner.strip_prefix("mixer."))?;
    let own = ["A_log", "D", "dt_bias", "norm.", "conv1d.", "in_proj.", "out_proj."];
    own.iter().any(|own| name == *own || (own.ends_with('.') && name.starts_with(own))).then_some(name)
}

/// A tensor of a Mamba2 layer; `None` for one of another shape.
pub(super) fn plan(
    config: &Config,
    (layer, name): (usize, &str),
    full: &str,
    stored: &Stored,
    checkpoint: &Checkpoint<'_>,
) -> Result<Option<Planned>> {
    let sizes = Sizes::read(config)?;
    let plain = |name: &str| Planned::matrix(format!("blk.{layer}.{name}"), full, stored);
    let column = |name: &str, values: Vec<f32>| Planned {
        shape: vec![values.len(), 1],
        ..Planned::plain(format!("blk.{layer}.{name}"), values.len(), true, vec![Piece::Values(values)])
    };
    let planned = match name {
        "A_log" | "D" if stored.cols() != sizes.heads => return Ok(None),
        "A_log" => {
            let values = checkpoint.read(full, 0..stored.rows())?;
            column("ssm_a", values.into_iter().map(decay).collect())
        }
        "D" => column("ssm_d", checkpoint.read(full, 0..stored.rows())?),
        "dt_bias" => plain("ssm_dt.bias"),
        "norm.weight" if stored.cols() != sizes.inner() || !sizes.inner().is_multiple_of(sizes.groups) => {
            return Ok(None);
        }
        "norm.weight" => {
            Planned { shape: vec![sizes.groups, sizes.inner() / sizes.groups], ..plain("ssm_norm.weight") }
        }
        "conv1d.weight" => plain("ssm_conv1d.weight"),
        "conv1d.bias" => plain("ssm_conv1d.bias"),
        "in_proj.weight" => plain("ssm_in.weight"),
        "out_proj.weight" => plain("ssm_out.weight"),
        _ => return Ok(None),
    };
    Ok(Some(planned))
}

/// What the rows of a tensor of Falcon-H1 are multiplied by, in order: `stem` is its name behind the layer's, without its ending. None for
/// other tensors and families.
///
/// # Errors
/// Multipliers that are missing.
pub(super) fn factors(config: &Config, stem: &str, rows: usize) -> Result<Vec<(Range<usize>, f32)>> {
    if config.arch() != "falcon-h1" {
        return Ok(Vec::new());
    }
    let lacks = |key: &str| Error::malformed(format!("config.json: {key}"), "it is missing or no number");
    let number = |key: &str| config.float(key).ok_or_else(|| lacks(key));
    let listed = |key: &str, at: usize| config.json[key][at].as_f64().ok_or_else(|| lacks(key));
    let all = match stem {
        "feed_forward.gate_proj" => listed("mlp_multipliers", 0)?,
        "feed_forward.down_proj" => listed("mlp_multipliers", 1)?,
        "self_attn.q_proj" | "self_attn.v_proj" => number("attention_in_multiplier")?,
        "self_attn.k_proj" => number("attention_in_multiplier")? * number("key_multiplier")?,
        "self_attn.o_proj" => number("attention_out_multiplier")?,
        "mamba.out_proj" => number("ssm_out_multiplier")?,
        "mamba.in_proj" => number("ssm_in_multiplier")?,
        "lm_head" => number("lm_head_multiplier")?,
        "embed_tokens" => number("embedding_multiplier")?,
        _ => return Ok(Vec::new()),
    };
    let mut factors = vec![(0..rows, all as f32)];
    if stem == "mamba.in_proj" {
        let sizes = Sizes::read(config)?;
        let state = sizes.groups * sizes.state;
        let mut from = 0;
        for (at, part) in [sizes.inner(), sizes.inner(), state, state, sizes.heads].into_iter().enumerate() {
            factors.push((from..from + part, listed("ssm_multipliers", at)? as f32));
            from += part;
        }
        if from != rows {
            return Err(Error::malformed(
                "config.json: mamba_n_heads",
                format!("in_proj has {rows} rows, not {from}"),
            ));
        }
    }
    Ok(factors)
}

/// Adds what files of these families say.
///
/// # Errors
/// Keys that are missing or unsound, and choices that a file cannot express.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    let arch = config.arch();
    let key = |name: &str| format!("{arch}.{name}");
    let sizes = Sizes::read(config)?;
    for (name, value) in [
        ("ssm.conv_kernel", sizes.taps),
        ("ssm.state_size", sizes.state),
        ("ssm.group_count", sizes.groups),
        ("ssm.inner_size", sizes.inner()),
        ("ssm.time_step_rank", sizes.heads),
    ] {
        let value = u32::try_from(value).map_err(|_| Error::malformed(key(name), "is too large"))?;
        writer.add_u32(&key(name), value);
    }
    if !is_boundless(arch) {
        return Ok(());
    }
    writer.add_bool(&key("rope.scaling.finetuned"), false);
    if arch == "granitehybrid" {
        if config.text("position_embedding_type").is_some_and(|kind| kind != "nope") {
            return Err(Error::unsupported("config.json: position_embedding_type other than nope"));
        }
        if let Some(width) = config.size("shared_intermediate_size")? {
            writer.add_u32(&key("expert_shared_feed_forward_length"), width);
        }
        if config.experts() == 0 {
            writer.add_u32(&key("expert_count"), 0);
        }
        return Ok(());
    }
    let blocks = blocks(&config.json).unwrap_or_default();
    let experts = arch == "nemotron_h_moe";
    let width = config.number(if experts { "moe_intermediate_size" } else { "intermediate_size" })? as i32;
    let wide = |block: &Block| if matches!(block, Block::Dense | Block::Experts) { width } else { 0 };
    let widths: Vec<i32> = blocks.iter().map(wide).collect();
    writer.add_i32s(&key("feed_forward_length"), &widths);
    if !experts {
        return Ok(());
    }
    if blocks.contains(&Block::Dense) {
        return Err(Error::unsupported("config.json: dense networks beside experts"));
    }
    for (from, to) in [
        ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ("moe_latent_size", "moe_latent_size"),
        ("n_shared_experts", "expert_shared_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
    ] {
        if let Some(n) = config.size(from)? {
            writer.add_u32(&key(to), n);
        }
    }
    writer.add_bool(&key("expert_weights_norm"), config.flag("norm_topk_prob").unwrap_or(true));
    writer.add_f32(&key("expert_weights_scale"), config.float("routed_scaling_factor").unwrap_or(1.0) as f32);
    Ok(())
}
