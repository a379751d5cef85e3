//! Factors on the products of a matrix, which a file may have beside it: `attn_q.scale` of `attn_q.weight`.
//!
//! Converters write them for checkpoints whose blocks have scales of a few bits and one more for the whole matrix (NVFP4 as
//! NVIDIA's tools store it). A product is multiplied once its sum is there, before a bias is added; of experts each has its
//! own. `attn_q.input_scale` says how such checkpoints round what goes into a product; ours is rounded by profile `d1`.

use super::{Blueprint, tensors::split};
use crate::gguf::Gguf;

/// The factors on the products of the matrix `weight`: one, or one for each matrix of a stack. `None` where the file has none, or
/// where the family uses a tensor of that name for something else.
pub fn factors(gguf: &Gguf, blueprint: &Blueprint, weight: &str) -> Option<Vec<f32>> {
    let name = format!("{}.scale", weight.strip_suffix(".weight")?);
    let tensor = gguf.tensor(&name)?;
    let layer = split(&name).and_then(|(layer, suffix)| Some((blueprint.layers.get(layer)?, suffix)));
    if layer.is_some_and(|(layer, suffix)| layer.has(suffix)) {
        return None;
    }
    Some(tensor.to_f32())
}
