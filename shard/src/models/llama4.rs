//! `llama4`: Llama 4 Scout and Maverick, text part.
//!
//! Three of four layers rotate adjacent pairs, norm queries and keys without weights behind the rotation (not the models of 128
//! experts), and see no further back than the beginning of their block of 8,192 positions. The fourth sees everything,
//! does not rotate, and multiplies queries by a factor that grows with the position. The sigmoid of the router multiplies what the
//! one chosen expert reads; a shared expert is added as it is. Every `interleave_moe_layer_step`-th layer has experts, the
//! others are dense.
//!
//! Files state neither the length of a block nor the numbers of the factor; those that do are believed
//! (`attention.sliding_window`, `attention.temperature_length`, `attention.temperature_scale`). A block of zero is none.

use super::{
    Activation, BareNorm, Blueprint, Dense, Experts, FeedForward, NormKind, Router, Softmax, Temperature,
    block::{Bias, Block},
    limits,
    reader::{Reader, layers},
};
use crate::{
    Error, Result,
    kernels::{Pairing, QUARTER},
};

/// Positions of a block, and those after which the factor on queries grows.
pub(crate) const BLOCK: usize = 8192;
/// The factor on the logarithm of steps.
const TEMPERATURE: f32 = 0.1;
/// Every fourth layer sees everything.
const PERIOD: usize = 4;
/// Models of this many experts have no norms of queries and keys.
pub(crate) const EXPERTS_WITHOUT_NORMS: usize = 128;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let whole = reader.is_zero("attention.sliding_window");
    let block = reader.size_opt("attention.sliding_window", limits::CONTEXT)?.unwrap_or(BLOCK);
    if !block.is_multiple_of(QUARTER) {
        return Err(Error::unsupported(format!("attention in blocks of {block}, no multiple of {QUARTER}")));
    }
    let length = reader.size_opt("attention.temperature_length", limits::CONTEXT)?.unwrap_or(BLOCK);
    let scale = reader.cap("attention.temperature_scale")?.unwrap_or(TEMPERATURE);
    let width = reader.size("expert_feed_forward_length", limits::FEED_FORWARD)?;
    let experts = Experts {
        router: reader.router(Router::Sigmoid)?,
        weighs_input: true,
        shared: Some(width),
        shared_gate: false,
        ..reader.experts(&sizes, false, None)?
    };
    reader.ignore("expert_shared_count");
    let step = reader.size_opt("interleave_moe_layer_step", limits::LAYERS)?.unwrap_or(1);
    let norm = (experts.count != EXPERTS_WITHOUT_NORMS).then_some(BareNorm::Rotated);
    let near = Softmax {
        chunk: (block < sizes.context && !whole).then_some(block),
        bare_norm: norm,
        ..sizes.attention(None)
    };
    let temperature = Some(Temperature { scale, length: length as f32, ahead: 1 });
    let far = Softmax { rope: None, temperature, ..sizes.attention(None) };
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let sees_all = !whole && (index + 1).is_multiple_of(PERIOD);
        let attention = if sees_all { far } else { near };
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None);
        match (index + 1).is_multiple_of(step) {
            true => block.experts(&experts).layer(attention, FeedForward::Experts(experts)),
            false => block.gated(Bias::None).layer(attention, dense),
        }
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
