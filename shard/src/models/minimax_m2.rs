//! `minimax-m2`: MiniMax M2.
//!
//! RMS norms over all of q and all of k, part of a head rotates, experts in every layer: chosen by the sigmoid of the
//! router and a bias, weighed by the sigmoid alone, renormalized.

use super::{
    Blueprint, Experts, FeedForward, NormKind, Router,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let attention = sizes.attention(None);
    let experts = Experts { router: reader.router(Router::Sigmoid)?, ..reader.experts(&sizes, true, None)? };
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None).whole_norms();
        let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
        block.layer(attention, FeedForward::Experts(experts))
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
