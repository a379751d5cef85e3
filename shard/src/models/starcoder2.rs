//! `starcoder2`: StarCoder 2. Layer norms with bias, biases everywhere, a feed-forward network without gate (gelu).

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(reader.window(&sizes)?);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::Gelu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::Required).attention(Bias::Optional, Bias::Optional);
        block.plain(Bias::Optional).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Layer)?, vec![rope], layers))
}
