//! Matrices of the oracle, dequantized, and their products.

use super::Arithmetic;
use crate::{
    Result,
    gguf::Gguf,
    models::{Blueprint, Factors},
    quant::{self, QuantizedRow},
};

/// A tensor of the model.
pub(super) struct Weights {
    cols: usize,
    format: &'static quant::Format,
    bytes: Vec<u8>,
    pub values: Vec<f32>,
    /// What products are multiplied by.
    factors: Option<Factors>,
}

/// Some rows of a matrix.
pub(super) struct Slice<'a> {
    format: &'static quant::Format,
    bytes: &'a [u8],
    /// Bytes of a row.
    row: usize,
    pub values: &'a [f32],
    factor: f32,
}

impl Weights {
    /// Tensor `name` of the model in `gguf`.
    pub fn read(gguf: &Gguf, blueprint: &Blueprint, name: &str) -> Result<Self> {
        let tensor = gguf.require(name)?;
        let (cols, format, bytes) = (tensor.cols(), tensor.format, tensor.bytes.to_vec());
        let factors = Factors::read(gguf, blueprint, &tensor);
        Ok(Self { cols, format, bytes, values: tensor.unscaled(), factors })
    }

    /// Bytes of memory held.
    pub fn resident_bytes(&self) -> usize {
        self.bytes.len() + 4 * self.values.len()
    }

    /// `count` rows from `first` on, of one matrix where it is a stack.
    pub fn slice(&self, first: usize, count: usize) -> Slice<'_> {
        let all = self.values.len() / self.cols;
        let row = self.bytes.len() / all;
        let factor = self.factors.as_ref().map_or(1.0, |factors| factors.of(first));
        let bytes = &self.bytes[first * row..(first + count) * row];
        let values = &self.values[first * self.cols..(first + count) * self.cols];
        Slice { format: self.format, bytes, row, values, factor }
    }
}

impl Slice<'_> {
    /// Each row times `x`.
    pub fn product(&self, arithmetic: Arithmetic, x: &[f32]) -> Vec<f32> {
        let factor = self.factor;
        if arithmetic == Arithmetic::Float || !self.format.integer {
            let sum = |w: &[f32]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            return self.values.chunks_exact(x.len()).map(|w| factor * sum(w)).collect();
        }
        let (mut q, mut d, mut sums) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0; x.len() / 16]);
        quant::quantize_row(x, &mut q, &mut d, &mut sums);
        let x = QuantizedRow { x, q: &q, d: &d, sums: &sums };
        self.bytes.chunks_exact(self.row).map(|row| factor * (self.format.dot)(row, &x)).collect()
    }
}
