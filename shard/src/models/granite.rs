//! `granite`, `granitemoe`: Granite 3 and later, dense and with experts.
//!
//! As `llama` with four factors: on embedding rows, on scores (in place of one over the root of the head's width), on
//! what each sublayer adds, and a divisor of logits. Experts are as wide as the metadata's network and weighed by the
//! softmax of the chosen; a shared one, where there is one, has no gate.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, NormKind, Router, Softmax,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let usual = sizes.attention(None);
    let attention = Softmax { scale: reader.cap("attention.scale")?.unwrap_or(usual.scale), ..usual };
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
            let experts = Experts {
                router: Router::SoftmaxOfChosen,
                shared: reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?,
                shared_gate: false,
                ..Experts::softmax(count, used, sizes.feed_forward)
            };
            layers(sizes.layers, |_| {
                block().experts(&experts).layer(attention, FeedForward::Experts(experts))
            })
        }
    };
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers);
    blueprint.embedding.scale = reader.cap("embedding_scale")?.unwrap_or(1.0);
    blueprint.residual_scale = reader.cap("residual_scale")?.unwrap_or(1.0);
    blueprint.head.scale = 1.0 / reader.cap("logit_scale")?.unwrap_or(1.0);
    Ok(blueprint)
}
