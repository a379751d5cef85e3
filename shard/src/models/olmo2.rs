//! `olmo2`: OLMo 2 and 3.
//!
//! No norm before the sublayers, one after each; RMS norms over all of q and all of k. OLMo 3 has windows in three of
//! four layers, whose rotation is not scaled.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Softmax,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// Of so many layers the last sees everything.
const PERIOD: usize = 4;

const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let global = reader.rope(&sizes, Pairing::Halves)?;
    let local = global.unscaled();
    let window = reader.window(&sizes)?;
    let slides = reader.slides(&sizes, PERIOD)?;
    let attention = sizes.attention(None);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let attention = match window {
            Some(_) if slides[index] => Softmax { window, rope: Some(LOCAL), ..attention },
            _ => Softmax { rope: Some(GLOBAL), ..attention },
        };
        let block = Block::new(&sizes).norms_after().attention(Bias::None, Bias::None).whole_norms();
        block.gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![global, local], layers))
}
