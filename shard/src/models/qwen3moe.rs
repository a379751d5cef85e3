//! `qwen3moe`: Qwen 3 MoE. As `qwen3` with experts whose chosen weights are renormalized, and no shared expert. The
//! first layers may be dense (`leading_dense_block_count`), as in other mixtures. `qwen3vlmoe` is to it as `qwen3vl` to `qwen3`.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    qwen3::ignore_pictures,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read_text(reader: &Reader<'_>) -> Result<Blueprint> {
    ignore_pictures(reader);
    read(reader)
}

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let experts = reader.experts(&sizes, true, None)?;
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).head_norms();
        if index < leading {
            return block.gated(Bias::None).layer(attention, dense);
        }
        block.experts(&experts).layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
