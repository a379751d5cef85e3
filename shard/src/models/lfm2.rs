//! `lfm2`, `lfm2moe`: LFM 2: short convolutions, and attention where the file lists key heads; networks, or behind the first
//! layers experts whose sigmoids a bias helps to choose.
//!
//! Attention has RMS norms over each head of q and k and rotates halves. The norm in front of the head is called
//! `token_embd_norm`. Files of `attention.head_count_kv` zero in a layer have a short convolution there (see
//! [`ShortConv`]).

use super::{
    Activation, Attention, Blueprint, Dense, Experts, FeedForward, NormKind, Router, ShortConv,
    block::{Bias, Block},
    hybrid, limits,
    reader::{Reader, Sizes, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let (sizes, kv_heads) = hybrid::sizes(reader)?;
    let rope = reader.rope(&sizes, Pairing::Halves)?;
    let kernel = reader.size("shortconv.l_cache", hybrid::KERNEL)?;
    let conv = Attention::ShortConv(ShortConv { kernel, width: sizes.hidden });
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let experts = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => None,
        Some(_) => {
            let router = reader.router(Router::Sigmoid)?;
            Some(Experts { router, ..reader.experts(&sizes, true, None)? })
        }
    };
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let layers = layers(sizes.layers, |index| {
        let sizes = Sizes { kv_heads: kv_heads[index].max(1), ..sizes };
        let block = Block::new(&sizes).norms(Bias::None);
        let (block, feed_forward) = match experts {
            Some(experts) if index >= leading => {
                let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
                (block, FeedForward::Experts(experts))
            }
            _ => (block.gated(Bias::None), dense),
        };
        match kv_heads[index] {
            0 => block.short_conv(kernel).layer(conv, feed_forward),
            _ => {
                let block = block.attention(Bias::None, Bias::None).head_norms();
                block.layer(sizes.attention(None), feed_forward)
            }
        }
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers);
    blueprint.head.norm = "token_embd_norm";
    for rule in blueprint.tensors.iter_mut().filter(|rule| rule.name == "output_norm.weight") {
        rule.name = "token_embd_norm.weight";
    }
    Ok(blueprint)
}
