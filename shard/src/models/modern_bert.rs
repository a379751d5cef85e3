//! `modern-bert`: ModernBERT. Layer norms in front of the sublayers, without biases and in the first layer none before
//! attention; gated gelu; the first of every three layers sees everything, the others half a window to each side with a
//! rotation of their own.
//!
//! The window in the metadata is the width of both sides together.

use super::{
    Activation, Blueprint, Dense, FeedForward, Ranks, Rope, Softmax,
    block::{Bias, Block},
    encoder,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// One layer in so many sees everything.
const PERIOD: usize = 3;
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let global = reader.rope(&sizes, Pairing::Halves)?;
    let base = reader.base_or("rope.freq_base_swa", global.base)?;
    let local = Rope { base, ..global.unscaled() };
    let window = reader.size_opt("attention.sliding_window", usize::MAX)?;
    let slides = reader.slides_behind_the_first(&sizes, PERIOD)?;
    let whole = Softmax { rope: Some(GLOBAL), ..encoder::attention(reader, &sizes)? };
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedGelu });
    let layers = layers(sizes.layers, |index| {
        let attention = match window {
            Some(window) if slides[index] => {
                Softmax { rope: Some(LOCAL), window: Some(window / 2 + 1), ahead: window / 2, ..whole }
            }
            _ => whole,
        };
        let block = Block::new(&sizes).attention_fused(Bias::None).gated_fused();
        let block = if index == 0 { block.norm_before_feed_forward() } else { block.norms(Bias::None) };
        block.layer(attention, dense)
    });
    let mut blueprint = encoder::assemble(reader, &sizes, vec![global, local], layers, Ranks::Gelu)?;
    blueprint.tensors.push(super::Rule::required("output_norm.weight", &[sizes.hidden]));
    Ok(blueprint)
}
