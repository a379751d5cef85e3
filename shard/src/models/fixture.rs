//! `shoal-recurrent`: no published model. A family for tests, whose layers remember a vector instead of positions.
//!
//! Every `attention_interval`-th layer is softmax attention, the others are gated linear recurrences; both kinds stand in one
//! model, as in published hybrids, so that what holds for states holds for sessions that have several kinds.

use super::{
    Activation, Attention, Blueprint, Dense, FeedForward, NormKind, Recurrence,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let interval = reader.size_opt("attention_interval", limits::LAYERS)?;
    let attention = sizes.attention(None);
    let recurrence = Attention::Recurrence(Recurrence { width: sizes.heads * sizes.head_dim });
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None);
        match interval {
            Some(interval) if (index + 1).is_multiple_of(interval) => {
                block.attention(Bias::None, Bias::None).gated(Bias::None).layer(attention, dense)
            }
            _ => block.recurrence().gated(Bias::None).layer(recurrence, dense),
        }
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
