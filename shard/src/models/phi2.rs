//! `phi2`: Phi 1, 1.5 and 2. One layer norm feeds attention and the feed-forward network side by side; biases everywhere, on
//! the head too; gelu without a gate; part of a head rotates.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Rule,
    block::{Bias, Block},
    layer_name,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::Gelu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norm_before_both(Bias::Required);
        let block = match reader.has(&layer_name(index, "attn_qkv.weight")) {
            true => block.attention_fused(Bias::Required).output_bias(),
            false => block.attention(Bias::Required, Bias::Required),
        };
        block.plain(Bias::Required).layer(attention, dense)
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Layer)?, vec![rope], layers);
    blueprint.tensors.push(Rule::required("output.bias", &[sizes.vocab]));
    Ok(blueprint)
}
