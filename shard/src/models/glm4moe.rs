//! `glm4moe`: GLM 4.5, 4.6 and 4.7.
//!
//! Biases on q, k and v, norms over each head in the larger models, the first half of a head rotates in halves. The first
//! layers are dense; the others choose experts by the sigmoid of the router and a bias, in groups where there are several,
//! and add a shared expert as it is. The norm in front of the feed-forward network has the name of the place after
//! attention.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, NormKind, Router,
    block::{Bias, Block},
    layer_name, limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let experts = reader.experts(&sizes, true, None)?;
    let shared = reader.size_opt("expert_shared_count", limits::EXPERTS)?.map(|n| n * experts.width);
    let experts = Experts {
        router: reader.router(Router::Sigmoid)?,
        groups: reader.groups(experts.count)?,
        shared,
        shared_gate: false,
        ..experts
    };
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms_around_attention().attention(Bias::Required, Bias::None);
        let norms = ["attn_q_norm.weight", "attn_k_norm.weight"];
        let block = match norms.iter().any(|norm| reader.has(&layer_name(index, norm))) {
            true => block.head_norms(),
            false => block,
        };
        if index < leading {
            return block.gated(Bias::None).layer(attention, dense);
        }
        let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
        block.layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
