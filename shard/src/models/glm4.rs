//! `glm4`: GLM 4 (0414). Norms before and after both sublayers, the first part of a head rotates in adjacent pairs,
//! one matrix for gate and up, biases on q, k and v in some sizes.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    layer_name,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None).norms_after();
        let block = match reader.has(&layer_name(index, "attn_qkv.weight")) {
            true => block.attention_fused(Bias::Optional),
            false => block.attention(Bias::Optional, Bias::None),
        };
        block.gated_fused().layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
