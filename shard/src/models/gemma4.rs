//! `gemma4`: the text part of Gemma 4: 31B (dense), 26B-A4B (experts), E2B and E4B (per-layer embeddings).
//!
//! Layers with a window and layers that see everything have heads of different widths, and may have different numbers of key heads.
//! Queries, keys and values have RMS norms over each head, that of the values without weights, and the factor on q.k is 1. Where a
//! layer that sees everything has no `attn_v`, its values are its keys as projected. The rotation of those layers leaves most pairs
//! where they are: `rope_freqs.weight` divides their frequencies by a number beyond all positions.
//!
//! Mixtures run a dense network and experts side by side; the router has a norm of its own, and each chosen weight a factor of
//! its expert; gate and up of the experts are two tensors or one. In E2B and E4B the last layers read keys and values of the last
//! layer before them of the same kind (checkpoints have matrices of keys and values there all the same; nothing reads them), with
//! wider networks, and every layer adds what a gate takes from a row of the token itself. A factor ends every layer.

use super::{
    Activation, BareNorm, Blueprint, Dense, Experts, FeedForward, NormKind, PerLayer, Rope, Scaling, Softmax,
    block::{Bias, Block},
    layer_name, limits, per_layer,
    reader::{Reader, Sizes, layers},
};
use crate::{Error, Result, kernels::Pairing};

/// Every sixth layer sees the whole context unless the file says otherwise.
const PERIOD: usize = 6;

const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let global = reader.sizes_varying()?;
    let head_dim = reader.size_opt("attention.key_length_swa", limits::HEAD_DIM)?.unwrap_or(global.head_dim);
    let local = Sizes { head_dim, ..global };
    if reader.size_opt("attention.value_length_swa", limits::HEAD_DIM)?.is_some_and(|width| width != head_dim)
    {
        return Err(Error::unsupported("keys and values of different width"));
    }
    if !head_dim.is_multiple_of(2) || global.heads * head_dim > limits::QUERIES {
        let why = format!("{head_dim} is odd, or too wide for {} heads", global.heads);
        return Err(Error::malformed(reader.name("attention.key_length_swa"), why));
    }
    let ropes = ropes(reader, &global, &local)?;
    let window = reader.size("attention.sliding_window", usize::MAX)?.min(global.context);
    let slides = reader.slides(&global, PERIOD)?;
    let kv_heads = reader.each("attention.head_count_kv", limits::HEADS, &global)?;
    let widths = reader.each("feed_forward_length", limits::FEED_FORWARD, &global)?;
    if let Some(heads) = kv_heads.iter().find(|&&heads| !global.heads.is_multiple_of(heads)) {
        let why = format!("{heads} does not divide {} heads", global.heads);
        return Err(Error::malformed(reader.name("attention.head_count_kv"), why));
    }
    let sources = per_layer::sources(reader, &slides, &kv_heads)?;
    let values = (0..global.layers).any(|index| {
        sources[index].is_none() && !slides[index] && reader.has(&layer_name(index, "attn_v.weight"))
    });
    let experts = experts(reader, &global)?;
    let read = per_layer::width(reader, &global)?;
    let layers = layers(global.layers, |index| {
        let (sizes, rope) = if slides[index] { (local, LOCAL) } else { (global, GLOBAL) };
        let sizes = Sizes { kv_heads: kv_heads[index], feed_forward: widths[index], ..sizes };
        let source = sources[index];
        let block = Block::new(&sizes).norms(Bias::None).norms_after().gated(Bias::None).scaled();
        let block = match source {
            Some(_) => block.attention_of_queries(),
            None if slides[index] || values => block.attention(Bias::None, Bias::None).head_norms(),
            None => block.attention_without_values().head_norms(),
        };
        let block = read.into_iter().fold(block, Block::per_layer);
        let attention = Softmax {
            rope: Some(rope),
            scale: 1.0,
            bare_norm: Some(BareNorm::Values),
            source,
            ..sizes.attention(slides[index].then_some(window))
        };
        let dense = Dense { width: widths[index], activation: Activation::GatedGelu };
        match experts {
            None => block.layer(attention, FeedForward::Dense(dense)),
            Some(experts) => {
                let stacked = !reader.has(&layer_name(index, "ffn_gate_exps.weight"));
                block.experts_beside(&experts, stacked).layer(attention, FeedForward::Both(dense, experts))
            }
        }
    });
    let mut blueprint = reader.assemble(&global, reader.norm(NormKind::Rms)?, ropes, layers);
    blueprint.embedding.scale = (global.hidden as f32).sqrt();
    blueprint.head.softcap = reader.cap("final_logit_softcapping")?;
    if let Some(width) = read {
        per_layer::add(&mut blueprint, PerLayer { width, streams: 1 });
    }
    Ok(blueprint)
}

/// The rotation of layers that see everything, and that of layers with a window.
fn ropes(reader: &Reader<'_>, global: &Sizes, local: &Sizes) -> Result<Vec<Rope>> {
    let far = reader.rope(global, Pairing::Halves)?;
    if !matches!(far.scaling, Scaling::Factors(_)) {
        return Err(Error::unsupported("tensor rope_freqs.weight is missing"));
    }
    let dims = reader.size_opt("rope.dimension_count_swa", limits::HEAD_DIM)?.unwrap_or(local.head_dim);
    if dims > local.head_dim || !dims.is_multiple_of(2) {
        let why = format!("is {dims}, a head has {}", local.head_dim);
        return Err(Error::malformed(reader.name("rope.dimension_count_swa"), why));
    }
    let base = reader.base("rope.freq_base_swa")?;
    let near = Rope { base, dims, ..far.unscaled() };
    Ok(vec![far, near])
}

/// The experts beside the dense network, if there are some.
fn experts(reader: &Reader<'_>, sizes: &Sizes) -> Result<Option<Experts>> {
    if reader.size_opt("expert_count", limits::EXPERTS)?.is_none() {
        return Ok(None);
    }
    reader.size("expert_feed_forward_length", limits::FEED_FORWARD)?;
    let experts = reader.experts(sizes, true, None)?;
    Ok(Some(Experts { activation: Activation::GatedGelu, ..experts }))
}
