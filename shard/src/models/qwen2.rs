//! `qwen2`: Qwen 2 and 2.5. Biases on q, k and v but not on the output; halves rotate.
//!
//! `qwen2vl` is the text model of Qwen 2-VL and 2.5-VL: what a token of text is rotated by has the same position in each of its
//! `rope.dimension_sections`, which is the rotation of `qwen2`.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read_text(reader: &Reader<'_>) -> Result<Blueprint> {
    reader.ignore("rope.dimension_sections");
    read(reader)
}

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::Required, Bias::None);
        block.gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
