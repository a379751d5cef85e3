//! `nemotron`: Nemotron 4 and Minitron. Layer norms with bias (the stored weights already include the `1 +`), squared ReLU
//! in a network of two matrices, part of a head rotates.

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
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::ReluSquared });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::Required).attention(Bias::Optional, Bias::Optional);
        block.plain(Bias::Optional).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Layer)?, vec![rope], layers))
}
