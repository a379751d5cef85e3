//! Matrices and small tensors out of a file.

use std::ops::Range;

use crate::{
    Result,
    gguf::Gguf,
    kernels::{Cpu, Matrix},
    models::Blueprint,
};

/// A matrix and what is added to its products.
pub(super) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    pub fn resident_bytes(&self) -> usize {
        self.matrix.resident_bytes()
    }
}

/// Reads tensors of a model whose blueprint has accepted all names and shapes.
pub(super) struct Loader<'a> {
    pub gguf: &'a Gguf,
    pub cpu: &'a Cpu,
    pub blueprint: &'a Blueprint,
}

impl Loader<'_> {
    pub fn linear(&self, prefix: &str) -> Result<Linear> {
        let matrix = self.matrix(&format!("{prefix}.weight"))?;
        Ok(Linear { matrix, bias: self.vector(&format!("{prefix}.bias")) })
    }

    pub fn linear_rows(&self, prefix: &str, rows: Range<usize>) -> Result<Linear> {
        let matrix = self.matrix_rows(&format!("{prefix}.weight"), rows.clone())?;
        let bias = self.vector(&format!("{prefix}.bias")).map(|bias| bias[rows].to_vec());
        Ok(Linear { matrix, bias })
    }

    /// The rows of `parts`, one after the other, as one matrix.
    pub fn gathered(&self, prefix: &str, parts: impl Iterator<Item = Range<usize>>) -> Result<Linear> {
        let tensor = self.gguf.require(&format!("{prefix}.weight"))?;
        let row = tensor.bytes.len() / tensor.rows();
        let mut bytes = Vec::new();
        let mut rows = 0;
        for part in parts {
            rows += part.len();
            bytes.extend_from_slice(&tensor.bytes[part.start * row..part.end * row]);
        }
        let matrix = Matrix::pack(self.cpu, tensor.format, rows, tensor.cols(), &bytes)?;
        Ok(Linear { matrix, bias: None })
    }

    /// Packs a whole tensor and lets go of its pages in the file.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        let rows = self.gguf.require(name)?.rows();
        let matrix = self.matrix_rows(name, 0..rows);
        self.gguf.forget(name);
        matrix
    }

    pub fn matrix_rows(&self, name: &str, rows: Range<usize>) -> Result<Matrix> {
        let tensor = self.gguf.require(name)?;
        let row = tensor.bytes.len() / tensor.rows();
        let bytes = &tensor.bytes[rows.start * row..rows.end * row];
        Matrix::pack(self.cpu, tensor.format, rows.len(), tensor.cols(), bytes)
    }

    /// A small tensor as f32.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.gguf.require(name)?.to_f32())
    }

    /// The same, if the file has it.
    pub fn vector(&self, name: &str) -> Option<Vec<f32>> {
        self.gguf.tensor(name).map(|tensor| tensor.to_f32())
    }
}
