//! `dots1`: dots.llm1. Norms over each head of q and k; the first layers dense, the others with experts chosen by the sigmoid
//! of the router and a bias, their weights renormalized and scaled, and a shared expert added as it is.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, NormKind, Router,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let experts = reader.experts(&sizes, true, None)?;
    let shared = reader.size_opt("expert_shared_count", limits::EXPERTS)?.map(|n| n * experts.width);
    let router = reader.router(Router::Sigmoid)?;
    let experts = Experts { router, shared, shared_gate: false, ..experts };
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).head_norms();
        if index < leading {
            return block.gated(Bias::None).layer(attention, dense);
        }
        let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
        block.layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
