//! `phi3`: Phi 3, 3.5 and 4.
//!
//! One matrix for q, k and v (some converters split it) and one for gate and up. Part of a head may rotate. The
//! long-context models bring two sets of frequency factors; as in llama.cpp the *configured* context chooses between
//! them, once, at load, because keys cached under one set are wrong under the other. A window in the metadata is obeyed.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    layer_name,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(reader.window(&sizes)?);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None);
        let block = match reader.has(&layer_name(index, "attn_q.weight")) {
            true => block.attention(Bias::None, Bias::None),
            false => block.attention_fused(Bias::None),
        };
        block.gated_fused().layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
