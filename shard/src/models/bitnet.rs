//! `bitnet-b1.58`: BitNet b1.58. Norms inside the sublayers: over what attention makes, and over the inner rows of the
//! feed-forward network, which is gated by squared ReLU. Weights are ternary in the published files; activations are
//! rounded as for any other integer format. `bitnet` is the earlier family, whose gate is silu.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    read_gated(reader, Activation::GatedReluSquared)
}

pub(super) fn read_silu(reader: &Reader<'_>) -> Result<Blueprint> {
    read_gated(reader, Activation::GatedSilu)
}

fn read_gated(reader: &Reader<'_>, activation: Activation) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None);
        block.inner_norms().gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
