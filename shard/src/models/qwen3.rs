//! `qwen3`: Qwen 3. RMS norms over each head of q and k before the rotation, no biases; halves rotate. A reranker has the rows of the
//! head for yes and no once more, as `cls.output`.
//!
//! `qwen3vl` is the text model of Qwen 3-VL: a token of text has the same position in each of its `rope.dimension_sections`, and
//! what `n_deepstack_layers` is about is added to the rows of pictures alone.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Ranks, Rule,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read_text(reader: &Reader<'_>) -> Result<Blueprint> {
    ignore_pictures(reader);
    read(reader)
}

/// Takes note of what a file of Qwen 3-VL says about pictures.
pub(super) fn ignore_pictures(reader: &Reader<'_>) {
    reader.ignore("rope.dimension_sections");
    reader.ignore("n_deepstack_layers");
}

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).head_norms();
        block.gated(Bias::None).layer(attention, dense)
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers);
    if reader.has("cls.output.weight") {
        blueprint.head.rank = Some(Ranks::Choice);
        blueprint.tensors.push(Rule::required("cls.output.weight", &[sizes.hidden, 2]));
    }
    Ok(blueprint)
}
