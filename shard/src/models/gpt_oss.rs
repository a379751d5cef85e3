//! `gpt-oss`: GPT-OSS 20B and 120B.
//!
//! Layers 0, 2, ... see a window. A logit per head without a value takes part in every softmax. The router chooses by its
//! biased logits and weighs by the softmax of the chosen; experts are clamped SwiGLU networks with biases. The norm in
//! front of the experts has the name of the place after attention. YaRN rounds its correction dimensions as ggml does,
//! whatever the checkpoint's `truncate` says.

use super::{
    Activation, Blueprint, Experts, FeedForward, NormKind, Router, Softmax,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let window = reader.window(&sizes)?;
    let experts = Experts {
        router: Router::SoftmaxOfChosen,
        activation: Activation::ClampedSwiglu,
        ..reader.experts(&sizes, true, None)?
    };
    let layers = layers(sizes.layers, |index| {
        let window = window.filter(|_| index % 2 == 0);
        let block = Block::new(&sizes).norms_around_attention().attention(Bias::Required, Bias::Required);
        let block = block.sinks().experts(&experts).expert_biases(&experts);
        block.layer(Softmax { window, ..sizes.attention(None) }, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
