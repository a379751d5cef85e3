//! What hybrids of gated delta nets and gated attention share: Qwen 3 Next and what came after it.
//!
//! Every `full_attention_interval`-th layer is softmax attention with an output gate, RMS norms over the heads of q and k and a
//! rotation of the first part of each head; the others are gated delta nets (see [`crate::kernels::delta`]). The norm in front of
//! the feed-forward network is named after attention, behind which it stands. Norm weights are those that multiply: the
//! converter has added the one that the checkpoints leave out. Position sections for images collapse to plain positions in a
//! text. Layers that predict tokens further ahead are left out of a pass; the first of them is softmax attention, too
//! ([`crate::draft::MtpHead`]).

use super::{
    Blueprint, FeedForward, NormKind, Softmax,
    block::Block,
    limits,
    reader::{Reader, Sizes, layers},
};
use crate::{
    Error, Result,
    kernels::{DeltaShape, Pairing},
};

/// Every how many layers one is attention where the file does not say.
const INTERVAL: usize = 4;
/// Inputs of the convolution.
const KERNEL: usize = 16;

/// How a family's files store delta nets.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// Value head `i` reads key head `i mod key heads`; otherwise consecutive ones share a key head.
    pub tiled: bool,
    /// Beta and alpha are the rows of one matrix.
    pub fused: bool,
}

/// A blueprint whose layers end in `feed_forward`; `network` adds its tensors.
pub(super) fn read(
    reader: &Reader<'_>,
    sizes: &Sizes,
    stored: Stored,
    (feed_forward, network): (FeedForward, impl Fn(Block) -> Block),
) -> Result<Blueprint> {
    let rope = reader.rope(sizes, Pairing::Halves)?;
    reader.ignore("rope.dimension_sections");
    let delta = shape(reader, stored.tiled)?;
    let recurs = reader.flags_opt("attention.recurrent_layers");
    if recurs.as_ref().is_some_and(|recurs| recurs.len() < sizes.layers) {
        return Err(Error::malformed(
            "attention.recurrent_layers",
            "has fewer entries than there are layers",
        ));
    }
    let interval = reader.size_opt("full_attention_interval", limits::LAYERS)?.unwrap_or(INTERVAL);
    let recurs = |index: usize| match &recurs {
        Some(recurs) => recurs[index],
        None => !(index + 1).is_multiple_of(interval),
    };
    let attention = Softmax { gated: true, ..sizes.attention(None) };
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(sizes).norms_around_attention();
        match recurs(index) {
            true => network(block.delta_net(&delta, stored.fused)).layer(delta, feed_forward),
            false => network(block.attention_gated().head_norms()).layer(attention, feed_forward),
        }
    });
    let mut blueprint = reader.assemble(sizes, reader.norm(NormKind::Rms)?, vec![rope], layers);
    if blueprint.ahead.layers > 0 {
        let block = Block::new(sizes).norms_around_attention().attention_gated().head_norms().next_token();
        blueprint.ahead.first = Some(Box::new(network(block).layer(attention, feed_forward)));
    }
    Ok(blueprint)
}

/// Experts in every layer, renormalized, and a gated shared one.
pub(super) fn experts(
    reader: &Reader<'_>,
    sizes: &Sizes,
) -> Result<(FeedForward, impl Fn(Block) -> Block + use<>)> {
    let shared = reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?;
    let experts = reader.experts(sizes, true, Some(shared.unwrap_or(sizes.feed_forward)))?;
    Ok((FeedForward::Experts(experts), move |block: Block| block.experts(&experts)))
}

fn shape(reader: &Reader<'_>, tiled: bool) -> Result<DeltaShape> {
    let key_heads = reader.size("ssm.group_count", limits::HEADS)?;
    let value_heads = reader.size("ssm.time_step_rank", limits::HEADS)?;
    let key_dim = reader.size("ssm.state_size", limits::HEAD_DIM)?;
    let inner = reader.size("ssm.inner_size", limits::QUERIES)?;
    let kernel = reader.size("ssm.conv_kernel", KERNEL)?;
    let key = |name: &str| reader.name(name);
    if !value_heads.is_multiple_of(key_heads) {
        let why = format!("{key_heads} does not divide {value_heads} value heads");
        return Err(Error::malformed(key("ssm.group_count"), why));
    }
    if !inner.is_multiple_of(value_heads) || inner / value_heads > limits::HEAD_DIM {
        let why = format!("{inner} is no width of {value_heads} value heads");
        return Err(Error::malformed(key("ssm.inner_size"), why));
    }
    if key_heads * key_dim > limits::QUERIES {
        let why = format!("{key_heads} heads of {key_dim}, the limit is {} in all", limits::QUERIES);
        return Err(Error::malformed(key("ssm.state_size"), why));
    }
    let value_dim = inner / value_heads;
    if !value_dim.is_multiple_of(DeltaShape::LANES) {
        return Err(Error::unsupported(format!(
            "value heads of {value_dim} that are not whole groups of 16"
        )));
    }
    if inner * key_dim > limits::STATE {
        let why = format!("{key_dim} with {inner} values, the limit is {} in all", limits::STATE);
        return Err(Error::malformed(key("ssm.state_size"), why));
    }
    Ok(DeltaShape { key_heads, value_heads, key_dim, value_dim, kernel, tiled, by_channel: false })
}
