//! `llama`: Llama 2, 3 and 3.1, CodeLlama, TinyLlama, Mistral, and with experts Mixtral.
//!
//! Adjacent pairs rotate (the converter permuted q and k). Llama 3.1 scales frequencies by `rope_freqs.weight`.
//! Mixtral renormalizes the weights of its chosen experts. Biases exist in some fine-tunes and are optional.
//! A Mistral file does not carry its window; a file that does is obeyed.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, NormKind,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let attention = sizes.attention(reader.window(&sizes)?);
    let block = || Block::new(&sizes).norms(Bias::None).attention(Bias::Optional, Bias::Optional);
    let layers = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => {
            let dense = Dense { width: sizes.feed_forward, activation: Activation::GatedSilu };
            layers(sizes.layers, |_| {
                block().gated(Bias::Optional).layer(attention, FeedForward::Dense(dense))
            })
        }
        Some(count) => {
            let used = reader.size("expert_used_count", count)?;
            let scale = reader.cap("expert_weights_scale")?.unwrap_or(1.0);
            let experts = Experts { scale, ..Experts::softmax(count, used, sizes.feed_forward) };
            layers(sizes.layers, |_| {
                block().experts(&experts).layer(attention, FeedForward::Experts(experts))
            })
        }
    };
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
