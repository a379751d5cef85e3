//! What each layer of a model costs, read off its blueprint and the sizes of its tensors.
//!
//! A row reads every weight of its layer once, of a mixture only the experts it visits, and for each position that it
//! sees a key and a value. Both are counted in bytes, and arithmetic on top as the bytes that could be read meanwhile:
//! [`WEIGHTS_PER_BYTE`] and [`SCORES_PER_BYTE`]. Only ratios between layers count, so one pair of constants serves all
//! machines.
//!
//! Predicted against measured, as shares of the mean layer (`cargo run -p shoal-shard --example layer_costs`, one
//! thread of an x86-64 with AVX-512, least of 40 rounds, other programs running):
//!
//! | shape, format | positions before | layers | predicted | measured |
//! |---|---|---|---|---|
//! | `gemma3-1b`, 6 layers, q4_0 | 2,048 | window of 512 | 0.967 | 0.96 to 1.00 |
//! | | | all positions | 1.163 | 1.116 |
//! | | 8,192 | window of 512 | 0.856 | 0.85 to 0.90 |
//! | | | all positions | 1.719 | 1.634 |
//! | `moe-dense-first`, 5 layers, q4_0 | 0 | dense | 1.421 | 1.36 to 1.38 |
//! | | | experts | 0.719 | 0.75 to 0.76 |
//! | | 4,096 | dense | 1.183 | 1.19 |
//! | | | experts | 0.878 | 0.85 to 0.89 |
//! | the same, q6_k | 0 | dense | 1.423 | 1.40 to 1.45 |
//! | | | experts | 0.718 | 0.70 to 0.73 |
//!
//! Limits: experts are taken to be alike; rows that share a pass read more experts than one row does.

use scheduler::layer_cost::{LayerCost, LayerCosts};

use super::{Attention, Blueprint, Need, layer_name};
use crate::{Error, Result, gguf::Gguf, state::Kind};

/// Products of weights that take as long as reading one byte of weights.
const WEIGHTS_PER_BYTE: u64 = 4;
/// Products of queries with keys, and of scores with values, that take as long as reading one byte of weights.
const SCORES_PER_BYTE: u64 = 1;

/// What the layers of `blueprint` cost, with the weights that `gguf` describes; its header is enough.
///
/// # Errors
/// [`Error::Malformed`] for figures beyond the bounds of [`LayerCosts::new`].
pub fn layer_costs(blueprint: &Blueprint, gguf: &Gguf) -> Result<LayerCosts> {
    let layers = (0..blueprint.layers.len()).map(|index| one(blueprint, gguf, index));
    LayerCosts::new(layers.collect(), u32::try_from(blueprint.hidden).unwrap_or(u32::MAX))
        .map_err(|why| Error::malformed("tensors", why.to_string()))
}

fn one(blueprint: &Blueprint, gguf: &Gguf, index: usize) -> LayerCost {
    let layer = &blueprint.layers[index];
    let (used, count) = match layer.feed_forward.experts() {
        None => (1, 1),
        Some(experts) => (experts.used as u64, experts.count.max(1) as u64),
    };
    let (mut whole, mut bytes, mut products) = (0, 0, 0);
    for rule in layer.tensors.iter().filter(|rule| rule.need != Need::Unused) {
        let Some(info) = gguf.info(&layer_name(index, rule.name)) else { continue };
        let part = |whole: u64| if rule.name.contains("_exps.") { whole * used / count } else { whole };
        whole += info.len;
        bytes += part(info.len);
        products += part(info.dims.iter().product());
    }
    // What a position costs to look back at and to keep, and what the state takes however long the session is.
    let (seen_work, position_bytes, state_bytes) = match layer.attention.kv() {
        Some(shape) => {
            let seen_bytes = Kind::Paged(shape).position_bytes() as u64;
            let products = (blueprint.heads * (shape.head_dim + shape.value_dim())) as u64;
            let kept_bytes = blueprint.state_kind(index).position_bytes() as u64;
            let state = match layer.attention {
                Attention::Beside(_, mamba) => {
                    let width = mamba.state_len();
                    Kind::Recurrent { width }.bytes(blueprint.context) as u64
                }
                _ => 0,
            };
            (seen_bytes + products / SCORES_PER_BYTE, kept_bytes, state)
        }
        None => (0, 0, blueprint.state_kind(index).bytes(blueprint.context) as u64),
    };
    // Delta nets and Mamba2 read and write their states for every row.
    let state_work = match layer.attention {
        Attention::DeltaNet(delta) => 2 * (delta.matrices_len() * size_of::<f32>()) as u64,
        Attention::Mamba2(mamba) | Attention::Beside(_, mamba) => {
            2 * (mamba.matrices_len() * size_of::<f32>()) as u64
        }
        _ => 0,
    };
    let figure = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    LayerCost {
        row_work: bytes + products / WEIGHTS_PER_BYTE + state_work,
        weight_bytes: whole,
        seen_work: figure(seen_work),
        window: layer.attention.window().map(|window| figure(window as u64)),
        state_bytes: figure(state_bytes),
        position_bytes: figure(position_bytes),
    }
}
