//! `seed_oss`: Seed-OSS. As `qwen2` with its own width of heads; the norm in front of the feed-forward network has the name
//! of the place after attention.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms_around_attention().attention(Bias::Required, Bias::None);
        block.gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
