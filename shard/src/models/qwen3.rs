//! `qwen3`: Qwen 3. RMS norms over each head of q and k before the rotation, no biases; halves rotate. A reranker has the rows of the
//! head for yes and no once more, as `cls.output`.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Ranks, Rule,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

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
