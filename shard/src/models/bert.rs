//! `bert`: BERT and the encoders of its shape. Rows of tables for positions and for the two texts of a pair are added to the
//! embedding, behind which there is a norm; each sublayer is followed by a layer norm of the sum instead of preceded by one;
//! biases everywhere; gelu without a gate.
//!
//! The published models have the gelu of the error function; the one computed here is its approximation by a hyperbolic
//! tangent, as elsewhere for GGUF files. What it costs stands in the table of families.

use super::{
    Activation, Blueprint, Dense, FeedForward, Ranks,
    block::{Bias, Block},
    encoder, layer_name,
    reader::{Reader, layers},
};
use crate::Result;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let attention = encoder::attention(reader, &sizes)?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::Gelu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes);
        let block = match reader.has(&layer_name(index, "attn_qkv.weight")) {
            true => block.attention_fused(Bias::Required).output_bias(),
            false => block.attention(Bias::Required, Bias::Required),
        };
        block.plain(Bias::Required).norms_of_sums(Bias::Required).layer(attention, dense)
    });
    encoder::assemble(reader, &sizes, Vec::new(), layers, Ranks::Tanh)
}
