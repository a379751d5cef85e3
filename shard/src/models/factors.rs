//! Factors on the products of a matrix, which a file may have beside it: `attn_q.scale` of `attn_q.weight`.
//!
//! Converters write them for checkpoints whose blocks have scales of a few bits and one more for the whole matrix (NVFP4 as
//! NVIDIA's tools store it). A product is multiplied once its sum is there, before a bias is added; of experts each has its
//! own. A format whose blocks share one scale (I2_S) has it behind the matrix, which is such a factor, too. `attn_q.input_scale` says how such checkpoints round what goes into a product; ours is rounded by profile `d1`.

use super::{Blueprint, tensors::split};
use crate::gguf::{Gguf, Tensor};

/// The factors on the products of a matrix: one, or one for each matrix of a stack.
pub struct Factors {
    each: Vec<f32>,
    /// Rows that have the same factor.
    rows: usize,
}

impl Factors {
    /// Those of the matrix `weight`. `None` where the file has none.
    pub fn read(gguf: &Gguf, blueprint: &Blueprint, weight: &Tensor<'_>) -> Option<Self> {
        let each = match (Self::beside(gguf, blueprint, weight), weight.scale()) {
            (None, None) => return None,
            (beside, None) => beside?,
            (beside, Some(scale)) => {
                let mut each = beside.unwrap_or_else(|| vec![1.0]);
                each.iter_mut().for_each(|factor| *factor *= scale);
                each
            }
        };
        Some(Self { rows: weight.rows() / each.len(), each })
    }

    /// Those of a tensor beside it, unless the family uses one of that name for something else.
    fn beside(gguf: &Gguf, blueprint: &Blueprint, weight: &Tensor<'_>) -> Option<Vec<f32>> {
        let name = format!("{}.scale", weight.info.name.strip_suffix(".weight")?);
        let tensor = gguf.tensor(&name)?;
        let layer = split(&name).and_then(|(layer, suffix)| Some((blueprint.layers.get(layer)?, suffix)));
        if layer.is_some_and(|(layer, suffix)| layer.has(suffix)) {
            return None;
        }
        Some(tensor.to_f32())
    }

    /// The factor of row `index` of the matrix or stack.
    pub fn of(&self, index: usize) -> f32 {
        self.each[index / self.rows]
    }
}
