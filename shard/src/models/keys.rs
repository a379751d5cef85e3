//! The metadata keys of an architecture that a family need not read.
//!
//! A key that a family reads has its effect. Any other is refused unless it stands here: [`DESCRIPTIVE`] ones say nothing that
//! numbers depend on (sizes that the tensors' shapes say, too, and what is about pictures and sound), [`NEUTRAL`] ones ask for
//! nothing at the values given. So a key that a later converter adds is refused until it is known what it means.

use std::collections::BTreeSet;

use super::Blueprint;
use crate::{Error, Result, gguf::Metadata};

/// The values of a key that ask for nothing.
enum Neutral {
    Floats(&'static [f32]),
    Integers(&'static [u64]),
    Bool(bool),
    WholeContext,
    /// The number that another key has.
    As(&'static str),
    /// Any, of a model that does not rotate.
    Unrotated,
    /// Any, of a model without experts.
    Dense,
}

const NEUTRAL: &[(&str, Neutral)] = &[
    ("attention.sliding_window", Neutral::WholeContext),
    ("attn_logit_softcapping", Neutral::Floats(&[0.0])),
    ("final_logit_softcapping", Neutral::Floats(&[0.0])),
    ("router_logit_softcapping", Neutral::Floats(&[0.0])),
    ("logit_scale", Neutral::Floats(&[0.0, 1.0])),
    ("embedding_scale", Neutral::Floats(&[0.0, 1.0])),
    ("residual_scale", Neutral::Floats(&[0.0, 1.0])),
    ("attention.scale", Neutral::Floats(&[0.0])),
    ("attention.clamp_kqv", Neutral::Floats(&[0.0])),
    ("attention.max_alibi_bias", Neutral::Floats(&[0.0])),
    ("attention.temperature_scale", Neutral::Floats(&[0.0])),
    ("attention.temperature_length", Neutral::Integers(&[0])),
    ("attention.causal", Neutral::Bool(true)),
    ("attention.key_length_swa", Neutral::As("attention.key_length")),
    ("attention.value_length_swa", Neutral::As("attention.value_length")),
    ("attention.q_lora_rank", Neutral::Integers(&[0])),
    ("attention.kv_lora_rank", Neutral::Integers(&[0])),
    ("attention.shared_kv_layers", Neutral::Integers(&[0])),
    ("embedding_length_per_layer_input", Neutral::Integers(&[0])),
    ("use_parallel_residual", Neutral::Bool(false)),
    ("expert_count", Neutral::Integers(&[0])),
    ("expert_used_count", Neutral::Dense),
    ("expert_feed_forward_length", Neutral::Dense),
    ("expert_group_count", Neutral::Integers(&[0, 1])),
    ("expert_group_used_count", Neutral::Integers(&[0, 1])),
    ("expert_shared_count", Neutral::Integers(&[0])),
    ("expert_shared_feed_forward_length", Neutral::Integers(&[0])),
    ("expert_weights_scale", Neutral::Floats(&[0.0, 1.0])),
    ("expert_weights_norm", Neutral::Bool(false)),
    ("expert_gating_func", Neutral::Integers(&[0, 1])),
    ("leading_dense_block_count", Neutral::Integers(&[0])),
    ("interleave_moe_layer_step", Neutral::Integers(&[0, 1])),
    ("moe_every_n_layers", Neutral::Integers(&[0, 1])),
    ("rope.freq_base", Neutral::Unrotated),
    ("rope.freq_base_swa", Neutral::As("rope.freq_base")),
    ("rope.dimension_count", Neutral::Unrotated),
    ("rope.dimension_count_swa", Neutral::As("rope.dimension_count")),
    ("rope.scaling.type", Neutral::Unrotated),
    ("rope.scaling.factor", Neutral::Floats(&[0.0, 1.0])),
    ("rope.scaling.original_context_length", Neutral::Unrotated),
    ("rope.scaling.attn_factor", Neutral::Floats(&[0.0, 1.0])),
    ("rope.scaling.yarn_log_multiplier", Neutral::Floats(&[0.0])),
    ("rope.scaling.yarn_ext_factor", Neutral::Floats(&[1.0, -1.0])),
    ("rope.scaling.yarn_attn_factor", Neutral::Floats(&[1.0])),
    ("rope.scaling.alpha", Neutral::Floats(&[0.0, 1.0])),
];

/// Keys that may have any value.
const DESCRIPTIVE: &[&str] = &[
    "vocab_size",
    "tensor_data_layout",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    // One norm has one of the two.
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    // Whether a checkpoint was trained further with its stretch.
    "rope.scaling.finetuned",
    "pooling_type",
    "classifier.output_labels",
];

/// What stands in front of keys about pictures and sound.
const OTHER_SENSES: [&str; 3] = ["vision.", "audio.", "mm."];

/// Refuses metadata of `blueprint`'s architecture that is neither in `read` nor among the keys that need not be read.
///
/// # Errors
/// [`Error::Unsupported`] naming the first such key.
pub(super) fn refuse_unread(
    metadata: &Metadata,
    read: &BTreeSet<String>,
    blueprint: &Blueprint,
) -> Result<()> {
    let prefix = format!("{}.", blueprint.architecture);
    for (key, _) in metadata.iter() {
        let Some(name) = key.strip_prefix(&prefix).filter(|_| !read.contains(key)) else { continue };
        if DESCRIPTIVE.contains(&name) || OTHER_SENSES.iter().any(|sense| name.starts_with(sense)) {
            continue;
        }
        let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) else {
            return Err(Error::unsupported(format!(
                "{key}, a key that this architecture is not known to have"
            )));
        };
        if !neutral.holds(metadata, key, &prefix, blueprint) {
            return Err(Error::unsupported(format!("{key} in this architecture")));
        }
    }
    Ok(())
}

impl Neutral {
    fn holds(&self, metadata: &Metadata, key: &str, prefix: &str, blueprint: &Blueprint) -> bool {
        let float = metadata.f32(key);
        let integers =
            || metadata.u64s(key).or(metadata.u64(key).map(|value| vec![value])).unwrap_or_default();
        let experts = |blueprint: &Blueprint| {
            blueprint.layers.iter().any(|layer| layer.feed_forward.experts().is_some())
        };
        match self {
            Self::Floats(values) => float.is_some_and(|value| values.contains(&value)),
            Self::Integers(values) => {
                let integers = integers();
                !integers.is_empty() && integers.iter().all(|value| values.contains(value))
            }
            Self::Bool(value) => metadata.bool(key) == Some(*value),
            Self::WholeContext => {
                metadata.u64(key).is_some_and(|value| value == 0 || value >= blueprint.context as u64)
            }
            Self::As(other) => {
                let other = format!("{prefix}{other}");
                let counts = metadata.u64(key).zip(metadata.u64(&other));
                let floats = float.zip(metadata.f32(&other));
                counts.is_some_and(|(a, b)| a == b) || floats.is_some_and(|(a, b)| a == b)
            }
            Self::Unrotated => blueprint.ropes.is_empty(),
            Self::Dense => !experts(blueprint),
        }
    }
}
