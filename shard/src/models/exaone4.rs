//! `exaone4`: EXAONE 4. No norm before the sublayers, one after each; RMS norms over each head of q and k. Where layers
//! have a window, three of four do, and those that see everything do not rotate.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Softmax,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// Of so many layers the last sees everything.
const PERIOD: usize = 4;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let window = reader.size_opt("attention.sliding_window", usize::MAX)?.map(|w| w.min(sizes.context));
    let slides = reader.slides(&sizes, PERIOD)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let attention = match window {
            None => attention,
            Some(_) if slides[index] => Softmax { window, ..attention },
            Some(_) => Softmax { rope: None, ..attention },
        };
        let block = Block::new(&sizes).norms_after().attention(Bias::None, Bias::None).head_norms();
        block.gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
