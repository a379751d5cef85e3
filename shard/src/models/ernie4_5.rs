//! `ernie4_5`: ERNIE 4.5, dense. As `llama`; its own checkpoints rotate adjacent pairs, so nothing was permuted.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::Optional, Bias::Optional);
        block.gated(Bias::Optional).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
