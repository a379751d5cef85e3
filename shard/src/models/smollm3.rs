//! `smollm3`: SmolLM 3. As `llama`, every fourth layer without rotation.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Softmax,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// Every layer of this number, counted from one, leaves queries and keys as they are; the metadata does not carry it.
const UNROTATED: usize = 4;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let rope = (!(index + 1).is_multiple_of(UNROTATED)).then_some(0);
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).gated(Bias::None);
        block.layer(Softmax { rope, ..sizes.attention(None) }, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
