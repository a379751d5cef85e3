//! `gemma3n`: the text part of Gemma 3n E2B and E4B.
//!
//! As Gemma 3 with norms of values and the factor 1 on q.k. The residual rows come in several streams (AltUp): a layer predicts all of
//! them, computes the first, and corrects all by what became of it. Beside attention runs a low-rank network from the same normed
//! rows (LAuReL, arXiv 2411.07501); what a layer makes of the token itself goes to every stream but the first. In the first layers
//! gates of the feed-forward network that lie below a cutoff count as nothing. The last layers read keys and values of earlier ones.

use super::{
    Activation, BareNorm, Blueprint, Dense, FeedForward, NormKind, PerLayer, Rope, Rule, Softmax,
    block::{Bias, Block},
    layer_name, limits, per_layer,
    reader::{Reader, layers},
};
use crate::{Error, Result, kernels::Pairing};

/// Every fifth layer sees the whole context.
const PERIOD: usize = 5;
/// Bound on the logits of files that do not say one.
const SOFTCAP: f32 = 30.0;
/// Standard deviations between the mean of the gates and the cutoff, layer by layer; minus infinity where all gates count.
const SPARSITY: &str = "activation_sparsity_scale";

const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let global = reader.rope(&sizes, Pairing::Halves)?;
    let base = reader.base("rope.freq_base_swa")?;
    let local = Rope { base, ..global.unscaled() };
    let window = reader.size("attention.sliding_window", usize::MAX)?.min(sizes.context);
    let slides = reader.slides(&sizes, PERIOD)?;
    let sources = per_layer::sources(reader, &slides, &vec![sizes.kv_heads; sizes.layers])?;
    let Some(width) = per_layer::width(reader, &sizes)? else {
        return Err(Error::unsupported("gemma3n without per-layer embeddings"));
    };
    let streams = reader.size("altup.num_inputs", limits::STREAMS)?;
    if streams < 2 || reader.size_opt("altup.active_idx", streams)?.is_some() {
        return Err(Error::unsupported("gemma3n whose layers compute another stream than the first"));
    }
    // Only its tensors say how wide the network beside attention is.
    let left = layer_name(0, "laurel_l.weight");
    let rank = reader.rows(&left).unwrap_or(1);
    if rank > sizes.hidden {
        return Err(Error::malformed(format!("tensor {left}: shape"), "has more rows than columns"));
    }
    let cutoffs = reader.floats(SPARSITY, sizes.layers)?;
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None).norms_after().gated(Bias::None);
        let block = match sources[index] {
            Some(_) => block.attention_of_queries(),
            None => block.attention(Bias::None, Bias::None).head_norms(),
        };
        let attention = Softmax {
            rope: Some(if slides[index] { LOCAL } else { GLOBAL }),
            scale: 1.0,
            bare_norm: Some(BareNorm::Values),
            source: sources[index],
            ..sizes.attention(slides[index].then_some(window))
        };
        let activation = match cutoffs[index] {
            f32::NEG_INFINITY => Activation::GatedGelu,
            deviations => Activation::SparseGelu(deviations),
        };
        let dense = Dense { width: sizes.feed_forward, activation };
        block.per_layer(width).streams(streams, rank).layer(attention, FeedForward::Dense(dense))
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![global, local], layers);
    blueprint.embedding.scale = (sizes.hidden as f32).sqrt();
    blueprint.head.softcap = Some(reader.cap("final_logit_softcapping")?.unwrap_or(SOFTCAP));
    per_layer::add(&mut blueprint, PerLayer { width, streams });
    let others = [sizes.hidden, sizes.hidden, streams - 1];
    blueprint.tensors.extend([
        Rule::required("altup_proj.weight", &others),
        Rule::required("altup_unembd_proj.weight", &others),
    ]);
    Ok(blueprint)
}
