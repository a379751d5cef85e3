//! `qwen3moe`: Qwen 3 MoE. As `qwen3` with experts whose chosen weights are renormalized, and no shared expert.

use super::{
    Blueprint, Experts, FeedForward, NormKind,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let count = reader.size("expert_count", limits::EXPERTS)?;
    let used = reader.size("expert_used_count", count)?;
    let width = reader.size_opt("expert_feed_forward_length", limits::FEED_FORWARD)?;
    let experts = Experts {
        count,
        used,
        width: width.unwrap_or(sizes.feed_forward / used),
        renormalize: reader.flag_opt("expert_weights_norm").unwrap_or(true),
        scale: reader.cap("expert_weights_scale")?.unwrap_or(1.0),
        shared: None,
    };
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).head_norms();
        block.experts(&experts).layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
