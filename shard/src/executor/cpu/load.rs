//! Matrices and small tensors out of a file.

use std::{borrow::Cow, ops::Range};

use scheduler::ExpertRange;

use crate::{
    Result,
    gguf::{Gguf, Tensor},
    kernels::{Cpu, Matrix, panel_file::Name},
    models::{Blueprint, Factors},
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

    /// Adds the bias, if there is one, to every row of products.
    pub fn add_bias(&self, cpu: &Cpu, rows: &mut [f32]) {
        if let Some(bias) = &self.bias {
            cpu.add_bias(rows, bias);
        }
    }
}

/// Reads tensors of a model whose blueprint has accepted all names and shapes.
pub(super) struct Loader<'a> {
    pub gguf: &'a Gguf,
    pub cpu: &'a Cpu,
    pub blueprint: &'a Blueprint,
    /// Which experts of a layer, if not all.
    pub experts: Option<ExpertRange>,
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
        let parts: Vec<_> = parts.collect();
        let matrix = self.packed(&tensor, &parts, || {
            let bytes = parts.iter().flat_map(|part| &tensor.bytes[part.start * row..part.end * row]);
            Cow::Owned(bytes.copied().collect())
        })?;
        Ok(Linear { matrix, bias: None })
    }

    /// The rows `parts` of `tensor`: from the file of panels where they are in it, else packed of what `bytes` gives; watched
    /// where inputs are.
    fn packed<'b>(
        &self,
        tensor: &Tensor<'_>,
        parts: &[Range<usize>],
        bytes: impl FnOnce() -> Cow<'b, [u8]>,
    ) -> Result<Matrix> {
        let mark = self.cpu.inputs().map(|inputs| {
            let of_expert = tensor.info.dims.get(1).map_or(1, |rows| *rows as usize);
            let expert = parts.first().map_or(0, |part| part.start / of_expert.max(1));
            inputs.watch(&tensor.info.name, (expert, tensor.rows() / of_expert.max(1)), tensor.cols())
        });
        let first = parts.first().map_or(0, |part| part.start);
        let factor =
            Factors::read(self.gguf, self.blueprint, tensor).map_or(1.0, |factors| factors.of(first));
        self.found(tensor, parts, bytes).map(|matrix| matrix.times(factor).marked(mark))
    }

    fn found<'b>(
        &self,
        tensor: &Tensor<'_>,
        parts: &[Range<usize>],
        bytes: impl FnOnce() -> Cow<'b, [u8]>,
    ) -> Result<Matrix> {
        let (rows, cols) = (parts.iter().map(Range::len).sum(), tensor.cols());
        let Some(panels) = self.gguf.panels() else {
            return Matrix::pack(self.cpu, tensor.format, rows, cols, &bytes());
        };
        let name = name(tensor, parts);
        let found = panels.find(self.cpu, &name);
        if let Some(matrix) = found.and_then(|found| Matrix::of_packed(tensor.format, rows, cols, found)) {
            return Ok(matrix);
        }
        let matrix = Matrix::pack(self.cpu, tensor.format, rows, cols, &bytes())?;
        panels.note(name, matrix.packed());
        Ok(matrix)
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
        self.packed(&tensor, &[rows], || Cow::Borrowed(bytes))
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

/// What a matrix of the rows `parts` of `tensor` is called in a file of panels.
fn name(tensor: &Tensor<'_>, parts: &[Range<usize>]) -> Name {
    let info = tensor.info;
    let mut hasher = blake3::Hasher::new();
    hasher.update(info.name.as_bytes());
    let numbers = [0, u64::from(info.ggml_type), info.offset, info.len, tensor.cols() as u64];
    let rows = parts.iter().flat_map(|part| [part.start as u64, part.end as u64]);
    numbers.into_iter().chain(rows).for_each(|number| {
        hasher.update(&number.to_le_bytes());
    });
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    name
}
