//! `gemma2`: Gemma 2.
//!
//! Norms before and after both sublayers (the stored weights already include the `1 +`), embedding rows times the root
//! of the width, gelu gates, softcaps on scores and on logits, tied head. Layers 0, 2, ... see a window. The attention
//! factor is one over the root of the head's width, but of the width over the heads where heads are 128 wide ([`factor`]).

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Softmax,
    block::{Bias, Block},
    reader::{Reader, Sizes, layers},
};
use crate::{Result, kernels::Pairing};

/// Width of heads of the 27B models of Gemma 2 and 3, the only ones with another attention factor. A file does not carry it, and
/// counts layers or not: models with layers left out or doubled are still of their kind.
const HEADS_27B: usize = 128;
/// What the metadata leaves out in the oldest files.
const WINDOW: usize = 4096;
const SCORE_CAP: f32 = 50.0;
const LOGIT_CAP: f32 = 30.0;

/// The attention factor of Gemma 2 and 3: what the file says (`attention.scale`), or by the width of its heads.
pub(super) fn factor(reader: &Reader<'_>, sizes: &Sizes) -> Result<f32> {
    let width = if sizes.head_dim == HEADS_27B { sizes.hidden / sizes.heads } else { sizes.head_dim };
    Ok(reader.cap("attention.scale")?.unwrap_or(1.0 / (width as f32).sqrt()))
}

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let window =
        reader.size_opt("attention.sliding_window", usize::MAX)?.unwrap_or(WINDOW).min(sizes.context);
    let softcap = reader.float_opt("attn_logit_softcapping")?.unwrap_or(SCORE_CAP);
    let final_cap = reader.float_opt("final_logit_softcapping")?.unwrap_or(LOGIT_CAP);
    let mut attention = Softmax { softcap: (softcap > 0.0).then_some(softcap), ..sizes.attention(None) };
    attention.scale = factor(reader, &sizes)?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedGelu });
    let layers = layers(sizes.layers, |index| {
        let window = (index % 2 == 0).then_some(window);
        let block = Block::new(&sizes).norms(Bias::None).norms_after().attention(Bias::None, Bias::None);
        block.gated(Bias::None).layer(Softmax { window, ..attention }, dense)
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers);
    blueprint.embedding.scale = (sizes.hidden as f32).sqrt();
    blueprint.head.softcap = (final_cap > 0.0).then_some(final_cap);
    Ok(blueprint)
}
