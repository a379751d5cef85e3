//! `falcon-h1`: Falcon-H1. Every layer has attention that rotates halves and Mamba2 side by side, from the same normed rows, and a
//! gated network behind them. The converter has multiplied the multipliers of a checkpoint into its matrices, the embedding table
//! and the head, and calls the second norm `ffn_norm` without `.weight`. Mamba2 has a norm in some sizes.

use super::{
    Activation, Attention, Blueprint, Dense, FeedForward, Need, NormKind,
    block::{Bias, Block},
    hybrid, layer_name,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let mamba = hybrid::mamba2(reader)?;
    let attention = Attention::Beside(sizes.attention(None), mamba);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let named = if reader.has(&layer_name(0, "ffn_norm")) { "ffn_norm" } else { "ffn_norm.weight" };
    let normed = (0..sizes.layers).any(|layer| reader.has(&layer_name(layer, "ssm_norm.weight")));
    let norm = if normed { Need::Required } else { Need::Optional };
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms_named(named).attention(Bias::None, Bias::None);
        block.mamba2(&mamba, norm).gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
