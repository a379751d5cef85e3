//! `granite`, `granitemoe`, `granitehybrid`: Granite 3 and later, dense and with experts, and with Mamba2 in most layers.
//!
//! As `llama` with four factors: on embedding rows, on scores (in place of one over the root of the head's width), on
//! what each sublayer adds, and a divisor of logits. Experts are as wide as the metadata's network and weighed by the
//! softmax of the chosen; a shared one, where there is one, has no gate.
//!
//! A hybrid lists key heads for each layer, and layers of none are Mamba2. Its attention does not rotate where the file says
//! that `rope.scaling.finetuned` is false (Granite 4.0 H; Bamba rotates). A network without experts has the width of the shared one.

use super::{
    Activation, Blueprint, Dense, Experts, FeedForward, Layer, Need, NormKind, Rope, Router, Softmax,
    block::{Bias, Block},
    hybrid, limits,
    reader::{Reader, Sizes, layers},
};
use crate::{Result, kernels::Pairing};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let attention = attention(reader, &sizes, true)?;
    let (feed_forward, network) = network(reader, &sizes)?;
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::Optional, Bias::Optional);
        network(block).layer(attention, feed_forward)
    });
    assemble(reader, &sizes, vec![rope], layers)
}

pub(super) fn read_hybrid(reader: &Reader<'_>) -> Result<Blueprint> {
    let (sizes, kv_heads) = hybrid::sizes(reader)?;
    let shared = reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?;
    let sizes = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => Sizes { feed_forward: shared.unwrap_or(sizes.feed_forward), ..sizes },
        Some(_) => sizes,
    };
    let rotates = reader.flag_opt("rope.scaling.finetuned").unwrap_or(true);
    let ropes = if rotates { vec![reader.rope(&sizes, Pairing::Adjacent)?] } else { Vec::new() };
    let mamba = hybrid::mamba2(reader)?;
    let attention = attention(reader, &sizes, rotates)?;
    let (feed_forward, network) = network(reader, &sizes)?;
    let layers = layers(sizes.layers, |index| {
        let sizes = Sizes { kv_heads: kv_heads[index].max(1), ..sizes };
        let block = Block::new(&sizes).norms(Bias::None);
        match kv_heads[index] {
            0 => network(block.mamba2(&mamba, Need::Required)).layer(mamba, feed_forward),
            _ => {
                let block = network(block.attention(Bias::Optional, Bias::Optional));
                block.layer(Softmax { kv: sizes.kv(), ..attention }, feed_forward)
            }
        }
    });
    assemble(reader, &sizes, ropes, layers)
}

/// Attention with the scale that the file states.
fn attention(reader: &Reader<'_>, sizes: &Sizes, rotates: bool) -> Result<Softmax> {
    let usual = sizes.attention(None);
    let scale = reader.cap("attention.scale")?.unwrap_or(usual.scale);
    Ok(Softmax { scale, rope: usual.rope.filter(|_| rotates), ..usual })
}

/// What follows attention, and what adds its tensors.
fn network(reader: &Reader<'_>, sizes: &Sizes) -> Result<(FeedForward, impl Fn(Block) -> Block + use<>)> {
    let feed_forward = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu }),
        Some(count) => {
            let used = reader.size("expert_used_count", count)?;
            FeedForward::Experts(Experts {
                router: Router::SoftmaxOfChosen,
                shared: reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?,
                shared_gate: false,
                ..Experts::softmax(count, used, sizes.feed_forward)
            })
        }
    };
    Ok((feed_forward, move |block: Block| match feed_forward.experts() {
        Some(experts) => block.experts(experts),
        None => block.gated(Bias::Optional),
    }))
}

fn assemble(reader: &Reader<'_>, sizes: &Sizes, ropes: Vec<Rope>, layers: Vec<Layer>) -> Result<Blueprint> {
    let mut blueprint = reader.assemble(sizes, reader.norm(NormKind::Rms)?, ropes, layers);
    blueprint.embedding.scale = reader.cap("embedding_scale")?.unwrap_or(1.0);
    blueprint.residual_scale = reader.cap("residual_scale")?.unwrap_or(1.0);
    blueprint.head.scale = 1.0 / reader.cap("logit_scale")?.unwrap_or(1.0);
    Ok(blueprint)
}
