//! `qwen2moe`: Qwen 1.5 MoE and Qwen 2 MoE. As `qwen2` with experts whose weights keep their softmax values, and a
//! shared expert behind a sigmoid gate.

use super::{
    Blueprint, FeedForward, NormKind,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let shared = reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?;
    let experts = reader.experts(&sizes, false, Some(shared.unwrap_or(sizes.feed_forward)))?;
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::Required, Bias::None);
        block.experts(&experts).layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
