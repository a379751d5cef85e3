//! Matrices in the device's memory: rows as the file stores them, their words in tiles of 32 rows.

use std::{ops::Range, sync::Arc};

use super::{
    device::{Compiled, Gpu, Reserved},
    formats::{DeviceFormat, row_bytes},
    source::{Kernel, Places, ROWS},
};
use crate::{
    Error, Result,
    gguf::Gguf,
    models::{Blueprint, Factors},
    quant::{ACTIVATION_BLOCK, Format},
};

/// Rows side by side in memory.
pub(super) const TILE: usize = 32;
/// Bytes handed to the driver at once, so that its copy of them stays small.
const PIECE: usize = 4 << 20;

/// Some rows of a matrix, in one binding of the device, and where their products go.
pub(super) struct Part {
    pub matrix: wgpu::Buffer,
    /// Whether it reads rounded activations.
    pub integer: bool,
    pub bias: Option<wgpu::Buffer>,
    /// Of a stack of matrices: the word of the binding where their biases begin, if they have some.
    pub biases_at: Option<usize>,
    /// The word where factors of their products begin, if they have some.
    pub factors_at: Option<usize>,
    /// Of a stack: those of each matrix.
    pub rows: usize,
    pub cols: usize,
    pub row_words: usize,
    /// The first of their columns in the result.
    pub first: usize,
    /// The kernels for one row and for several.
    pub kernels: [Arc<Compiled>; 2],
    pub bytes: usize,
    _memory: Reserved,
}

/// A norm, weights and then biases.
pub(super) struct NormPart {
    pub weights: wgpu::Buffer,
    pub has_bias: bool,
}

/// Bytes of all of these.
pub(super) fn bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.bytes).sum()
}

/// Some rows of a matrix of the file, in the order in which they are multiplied.
pub(super) struct Rows<'t> {
    format: &'static Format,
    cols: usize,
    rows: Vec<&'t [u8]>,
    bias: Option<Vec<f32>>,
    /// What the products of each row are multiplied by.
    factors: Option<Vec<f32>>,
}

impl<'t> Rows<'t> {
    /// Whether rows of both fit in one matrix.
    pub fn alike(&self, other: &Rows<'_>) -> bool {
        let has = |rows: &Rows<'_>| (rows.format, rows.cols, rows.bias.is_some(), rows.factors.is_some());
        has(self) == has(other)
    }

    /// Puts `more` rows, which are alike, behind these.
    pub fn extend(&mut self, more: Rows<'t>) {
        self.rows.extend(more.rows);
        if let (Some(bias), Some(more)) = (&mut self.bias, more.bias) {
            bias.extend(more);
        }
        if let (Some(factors), Some(more)) = (&mut self.factors, more.factors) {
            factors.extend(more);
        }
    }
}

/// Reads tensors of a model whose blueprint has accepted all names and shapes.
pub(super) struct Uploader<'a> {
    pub gguf: &'a Gguf,
    pub gpu: &'a Gpu,
    pub blueprint: &'a Blueprint,
}

impl Uploader<'_> {
    /// The norm whose weights are called `prefix.weight`, or `prefix` alone.
    pub fn norm(&self, prefix: &str) -> Result<NormPart> {
        let mut weights = self.gguf.norm(prefix)?.to_f32();
        let bias = self.vector(&format!("{prefix}.bias"));
        let has_bias = bias.is_some();
        weights.extend(bias.into_iter().flatten());
        Ok(NormPart { weights: self.gpu.upload_floats(prefix, &weights), has_bias })
    }

    /// The head: its own matrix, or the embedding table.
    pub fn head(&self) -> Result<Vec<Part>> {
        self.matrices(&[if self.blueprint.head.tied { "token_embd" } else { "output" }])
    }

    pub fn vector(&self, name: &str) -> Option<Vec<f32>> {
        self.gguf.tensor(name).map(|tensor| tensor.to_f32())
    }

    /// The matrices of these names, one after the other; see [`Uploader::join`].
    pub fn matrices(&self, prefixes: &[&str]) -> Result<Vec<Part>> {
        self.join(prefixes.iter().map(|prefix| self.rows(prefix)).collect::<Result<_>>()?, 0)
    }

    /// All rows of a matrix, with its biases.
    pub fn rows(&self, prefix: &str) -> Result<Rows<'_>> {
        let tensor = self.gguf.require(&format!("{prefix}.weight"))?;
        let row_bytes = tensor.bytes.len() / tensor.rows();
        let each = |factors: Factors| (0..tensor.rows()).map(|row| factors.of(row)).collect();
        Ok(Rows {
            format: tensor.format,
            cols: tensor.cols(),
            rows: tensor.bytes.chunks_exact(row_bytes).collect(),
            bias: self.vector(&format!("{prefix}.bias")),
            factors: Factors::read(self.gguf, self.blueprint, &tensor).map(each),
        })
    }

    /// The rows `parts` of a matrix that has no biases.
    pub fn gathered(&self, prefix: &str, parts: impl Iterator<Item = Range<usize>>) -> Result<Rows<'_>> {
        let all = self.rows(prefix)?;
        let places: Vec<usize> = parts.flatten().collect();
        let factors = all.factors.map(|factors| places.iter().map(|row| factors[*row]).collect());
        Ok(Rows { rows: places.iter().map(|row| all.rows[*row]).collect(), bias: None, factors, ..all })
    }

    /// So many matrices of one shape in one binding, each made of as many rows of every side; `places` says which of them a row
    /// meets. Biases lie behind all of them.
    pub fn stack(&self, what: &str, sides: Vec<Rows<'_>>, count: usize, places: Places) -> Result<Part> {
        let Rows { format, cols, .. } = sides[0];
        let refused = |why: &str| {
            Error::unsupported(format!("{what} {why} on this device; `--device cpu` computes them"))
        };
        if !sides.iter().all(|side| side.alike(&sides[0])) {
            return Err(refused("of several formats"));
        }
        let zeros = vec![0; sides[0].rows[0].len()];
        let each: usize = sides.iter().map(|side| side.rows.len() / count).sum();
        let (mut rows, mut biases, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..count {
            for side in &sides {
                let own = side.rows.len() / count;
                let own = index * own..(index + 1) * own;
                rows.extend_from_slice(&side.rows[own.clone()]);
                biases.extend(side.bias.iter().flat_map(|bias| &bias[own.clone()]));
                factors.extend(side.factors.iter().flat_map(|factors| &factors[own.clone()]));
            }
            // Each begins with a tile of its own.
            rows.resize(rows.len() + each.next_multiple_of(TILE) - each, &zeros);
        }
        let mut parts = Vec::new();
        let beside = Beside { biases: Biases::Behind(&biases), factors: &factors };
        upload(self.gpu, (format, cols, &rows), (beside, places), 0, &mut parts)?;
        let (Some(mut part), true) = (parts.pop(), parts.is_empty()) else {
            return Err(refused("in one binding"));
        };
        part.rows = each;
        Ok(part)
    }

    /// Rows one after the other, in as few parts as formats, biases and the device's bindings allow; their products begin in
    /// column `first` of the result.
    pub fn join(&self, all: Vec<Rows<'_>>, mut first: usize) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for joined in all.chunk_by(Rows::alike) {
            let biases: Vec<f32> =
                joined.iter().flat_map(|rows| rows.bias.iter().flatten()).copied().collect();
            let factors: Vec<f32> =
                joined.iter().flat_map(|rows| rows.factors.iter().flatten()).copied().collect();
            let beside = Beside { biases: Biases::Apart(&biases), factors: &factors };
            let rows: Vec<&[u8]> = joined.iter().flat_map(|rows| &rows.rows).copied().collect();
            let Rows { format, cols, .. } = joined[0];
            let rows = (format, cols, &rows[..]);
            first = upload(self.gpu, rows, (beside, Places::Rows), first, &mut parts)?;
        }
        Ok(parts)
    }
}

/// What is added to products.
pub(super) enum Biases<'a> {
    /// One for each row, or none, in a binding of their own.
    Apart(&'a [f32]),
    /// Those of a stack, behind its matrices in one binding.
    Behind(&'a [f32]),
}

/// What products are multiplied by and what is added to them, for each row or for none.
pub(super) struct Beside<'a> {
    pub biases: Biases<'a>,
    pub factors: &'a [f32],
}

impl Beside<'_> {
    /// Nothing.
    pub const NONE: Self = Self { biases: Biases::Apart(&[]), factors: &[] };
}

/// Uploads rows of one format, whose products begin in column `first` of the result; returns the column behind them. A stack has a kernel
/// for one row only.
pub(super) fn upload(
    gpu: &Gpu,
    (format, cols, rows): (&'static Format, usize, &[&[u8]]),
    (Beside { biases, factors }, places): (Beside<'_>, Places),
    first: usize,
    parts: &mut Vec<Part>,
) -> Result<usize> {
    let Format { name, integer, ggml_type, .. } = *format;
    let Some(stored) = DeviceFormat::of(ggml_type) else {
        return Err(Error::unsupported(format!(
            "weights in format {name} on this device; `--device cpu` computes them"
        )));
    };
    if integer && !cols.is_multiple_of(ACTIVATION_BLOCK) {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    // One word more, so that bytes that lie across two words need no care at the end.
    let row_words = row_bytes(format, rows[0].len()).div_ceil(4) + 1;
    let limit = usize::try_from(gpu.info().binding_bytes).unwrap_or(usize::MAX);
    let most = limit / (4 * row_words * TILE) * TILE;
    if most == 0 {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    let few = if places == Places::Rows { ROWS } else { 1 };
    let kernels = [1, few].map(|rows| gpu.kernel(Kernel::Matmul { ggml_type, rows, places }));
    let mut first = first;
    for (index, rows) in rows.chunks(most).enumerate() {
        let bytes = rows.len().next_multiple_of(TILE) * row_words * 4;
        let here = |values: &[f32]| {
            let first = (index * most).min(values.len());
            first..(first + rows.len()).min(values.len())
        };
        let biases_behind = if let Biases::Behind(biases) = biases { biases } else { &[] };
        let factors = &factors[here(factors)];
        let behind: Vec<u32> = biases_behind.iter().chain(factors).map(|value| value.to_bits()).collect();
        let memory = gpu.reserve(bytes + size_of_val(&behind[..]))?;
        let matrix = gpu.buffer(name, bytes + size_of_val(&behind[..]));
        gpu.write(&matrix, bytes, &behind);
        let piece = (PIECE / (4 * row_words * TILE)).max(1) * TILE;
        for (at, rows) in rows.chunks(piece).enumerate() {
            gpu.write(&matrix, at * piece * row_words * 4, &tiled(rows, row_words, &stored));
        }
        gpu.check()?;
        let apart = if let Biases::Apart(biases) = biases { biases } else { &[] };
        let own = &apart[here(apart)];
        let bias = (!own.is_empty()).then(|| gpu.upload_floats("bias", own));
        let (rows, kernels) = (rows.len(), kernels.clone());
        parts.push(Part {
            matrix,
            integer,
            bias,
            biases_at: (!biases_behind.is_empty()).then_some(bytes / 4),
            factors_at: (!factors.is_empty()).then_some(bytes / 4 + biases_behind.len()),
            rows,
            cols,
            row_words,
            first,
            kernels,
            bytes,
            _memory: memory,
        });
        first += rows;
    }
    Ok(first)
}

/// Rows of bytes as words, tile by tile: word `k` of the 32 rows of a tile side by side.
fn tiled(rows: &[&[u8]], row_words: usize, format: &DeviceFormat) -> Vec<u32> {
    let mut all = vec![0u32; rows.len().next_multiple_of(TILE) * row_words];
    let mut other = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let row = match format.repack {
            None => row,
            Some(repack) => {
                other.clear();
                repack(row, &mut other);
                &other[..]
            }
        };
        let tile = at / TILE * TILE * row_words + at % TILE;
        for (k, bytes) in row.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            all[tile + k * TILE] = u32::from_le_bytes(word);
        }
    }
    all
}
