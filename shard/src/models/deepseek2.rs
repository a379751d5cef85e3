//! `deepseek2`: DeepSeek V2, V2.5, V3, V3.1, R1, Kimi K2 and Moonlight.
//!
//! Latent attention ([`Latent`]): a position keeps its latent and one rotated key for all heads. The rotation turns adjacent pairs.
//! With YaRN the length of cosines and sines stays 1 and the softmax has the factor `m^2`, `m = 0.1 mscale_all_dim ln factor + 1`, of
//! which the file holds the product `0.1 mscale_all_dim`. The first layers are dense; the others choose experts by the softmax of the
//! router (V2; a group counts as much as its best expert) or by its sigmoid and a bias (V3; as its two best), scale the weights
//! and add shared experts as they are.
//!
//! Files whose keys and values are still one matrix for all heads (`attn_kv_b`, as converters wrote them until 2025) lack
//! what the absorbed form multiplies by and are refused.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, Groups, Latent, NormKind, Router, Scaling,
    block::{Bias, Block},
    limits,
    reader::{Reader, Sizes, layers},
};
use crate::{
    Error, Result,
    kernels::{Pairing, math},
};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes_of_keys()?;
    let mut rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let mut latent = shape(reader, &sizes, rope.dims)?;
    if let (Scaling::Yarn { factor, .. }, Some(multiplier)) =
        (&rope.scaling, reader.cap("rope.scaling.yarn_log_multiplier")?)
        && *factor > 1.0
    {
        let more = f64::from(multiplier) * math::ln(*factor) + 1.0;
        latent.scale = (f64::from(latent.scale) * more * more) as f32;
        rope.magnitude /= 0.1 * math::ln(*factor) + 1.0;
    }
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let experts = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => None,
        Some(_) => Some(experts(reader, &sizes, Router::Softmax, false)?),
    };
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None).latent(&latent);
        match experts.filter(|_| index >= leading) {
            None => block.gated(Bias::None).layer(latent, dense),
            Some(experts) => {
                let bias = if experts.router == Router::Sigmoid { Bias::Required } else { Bias::None };
                let block = block.experts(&experts).selection_bias(bias, &experts);
                block.layer(latent, FeedForward::Experts(experts))
            }
        }
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}

/// Experts in groups beside shared ones; router and renormalization are what the family does unless told.
pub(super) fn experts(
    reader: &Reader<'_>,
    sizes: &Sizes,
    router: Router,
    renormalize: bool,
) -> Result<Experts> {
    let experts = reader.experts(sizes, renormalize, None)?;
    let shared = reader.size_opt("expert_shared_count", limits::EXPERTS)?.map(|n| n * experts.width);
    let router = reader.router(router)?;
    let best = if router == Router::Sigmoid { 2 } else { 1 };
    let groups = reader.groups(experts.count)?.map(|groups| Groups { best, ..groups });
    Ok(Experts { router, groups, shared, shared_gate: false, ..experts })
}

/// The latent of keys of which `rotated` elements rotate.
pub(super) fn shape(reader: &Reader<'_>, sizes: &Sizes, rotated: usize) -> Result<Latent> {
    let rank = reader.size("attention.kv_lora_rank", limits::HEAD_DIM)?;
    let query_rank = reader.size_opt("attention.q_lora_rank", limits::HIDDEN)?;
    let (Some(query), Some(value)) = (
        reader.size_opt("attention.key_length_mla", limits::HEAD_DIM)?,
        reader.size_opt("attention.value_length_mla", limits::HEAD_DIM)?,
    ) else {
        return Err(Error::unsupported(format!(
            "a model without {}: keys and values of all heads in one matrix; convert the checkpoint again with a newer \
             converter",
            reader.name("attention.key_length_mla")
        )));
    };
    let malformed = |name: &str, why: String| Err(Error::malformed(reader.name(name), why));
    if sizes.kv_heads != 1 || sizes.head_dim != rank + rotated {
        let why = format!("is {}, the latent of {rank} and {rotated} rotated make another", sizes.head_dim);
        return malformed("attention.key_length", why);
    }
    if reader.size_opt("attention.value_length", limits::HEAD_DIM)?.is_some_and(|width| width != rank) {
        return malformed("attention.value_length", format!("is not the latent of {rank}"));
    }
    if query <= rotated {
        return malformed("attention.key_length_mla", format!("is {query}, of which {rotated} rotate"));
    }
    if sizes.heads * query.max(value) > limits::QUERIES {
        return malformed("attention.key_length_mla", "is too wide for so many heads".into());
    }
    let scale = 1.0 / (query as f32).sqrt();
    let eps = reader.norm(NormKind::Rms)?.eps;
    Ok(Latent { rope: Some(0), rank, rotated, plain: query - rotated, value, query_rank, scale, eps })
}
