//! What small models of one kind share (gemma3n, gemma4 E2B and E4B): a row of the token for every layer, and layers that read the
//! keys and values of earlier ones.

use super::{
    Blueprint, PerLayer, Rule, limits,
    reader::{Reader, Sizes},
};
use crate::{Error, Result};

/// Width of what each layer reads of the token itself.
const WIDTH: &str = "embedding_length_per_layer_input";
/// How many of the last layers have no keys and values of their own.
const SHARED: &str = "attention.shared_kv_layers";

/// The width of what each layer reads of the token itself, if layers do.
pub(super) fn width(reader: &Reader<'_>, sizes: &Sizes) -> Result<Option<usize>> {
    let width = reader.size_opt(WIDTH, limits::HEAD_DIM)?;
    if let Some(width) = width.filter(|width| width * sizes.layers > limits::PER_LAYER) {
        let why = format!("{width} in {} layers, the limit is {} in all", sizes.layers, limits::PER_LAYER);
        return Err(Error::malformed(reader.name(WIDTH), why));
    }
    Ok(width)
}

/// Says that layers read the token itself, by the tensors outside of layers.
pub(super) fn add(blueprint: &mut Blueprint, read: PerLayer) {
    let all = blueprint.layers.len() * read.width;
    blueprint.per_layer = Some(read);
    blueprint.tensors.extend([
        Rule::required("per_layer_token_embd.weight", &[all, blueprint.vocab]),
        Rule::required("per_layer_model_proj.weight", &[blueprint.hidden, all]),
        Rule::required("per_layer_proj_norm.weight", &[read.width]),
    ]);
}

/// For each layer the one whose keys and values it reads, if it has none of its own: the last before those that share which has a
/// window as it has, or none as it has.
pub(super) fn sources(
    reader: &Reader<'_>,
    slides: &[bool],
    kv_heads: &[usize],
) -> Result<Vec<Option<usize>>> {
    let layers = kv_heads.len();
    let own = layers - reader.size_opt(SHARED, layers)?.unwrap_or(0);
    let source = |index: usize| {
        let found = (0..own).rev().find(|&at| slides[at] == slides[index]);
        found.filter(|&at| kv_heads[at] == kv_heads[index]).ok_or_else(|| {
            let why = format!("layer {index} has no layer of its kind to read from");
            Error::malformed(reader.name(SHARED), why)
        })
    };
    (0..layers).map(|index| (index >= own).then(|| source(index)).transpose()).collect()
}
