//! `gemma3`: the text part of Gemma 3.
//!
//! As Gemma 2 without softcaps and with RMS norms over each head of q and k. Five layers with a window and their own
//! unscaled rotation (base 10,000), then one that sees everything with the scaled rotation, and so on; the metadata
//! may give another period.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Rope, Softmax,
    block::{Bias, Block},
    gemma2,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// Every sixth layer sees the whole context.
const PERIOD: usize = 6;

const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let global = reader.rope(&sizes, Pairing::Halves)?;
    let base = reader.base("rope.freq_base_swa")?;
    let local = Rope { base, ..global.unscaled() };
    let window = reader.size_opt("attention.sliding_window", usize::MAX)?.map(|w| w.min(sizes.context));
    let slides = reader.slides(&sizes, PERIOD)?;
    let attention = Softmax { scale: gemma2::factor(reader, &sizes)?, ..sizes.attention(None) };
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedGelu });
    let layers = layers(sizes.layers, |index| {
        let attention = match window {
            Some(_) if slides[index] => Softmax { window, rope: Some(LOCAL), ..attention },
            _ => Softmax { rope: Some(GLOBAL), ..attention },
        };
        let block = Block::new(&sizes).norms(Bias::None).norms_after();
        block.attention(Bias::None, Bias::None).head_norms().gated(Bias::None).layer(attention, dense)
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![global, local], layers);
    blueprint.embedding.scale = (sizes.hidden as f32).sqrt();
    blueprint.head.softcap = reader.cap("final_logit_softcapping")?;
    Ok(blueprint)
}
