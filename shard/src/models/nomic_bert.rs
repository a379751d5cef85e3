//! `nomic-bert`: nomic-embed-text. As `bert` with rotated halves for the table of positions, gated SiLU, and no biases but those
//! of norms.

use super::{
    Activation, Blueprint, Dense, FeedForward, Ranks, Softmax,
    block::{Bias, Block},
    encoder, layer_name,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = Softmax { rope: Some(0), ..encoder::attention(reader, &sizes)? };
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes);
        let block = match reader.has(&layer_name(index, "attn_qkv.weight")) {
            true => block.attention_fused(Bias::None),
            false => block.attention(Bias::None, Bias::None),
        };
        block.gated(Bias::None).norms_of_sums(Bias::Required).layer(attention, dense)
    });
    encoder::assemble(reader, &sizes, vec![rope], layers, Ranks::Tanh)
}
