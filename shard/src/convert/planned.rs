//! One tensor of a file: which rows of a checkpoint it is made of, and what becomes of them.

use std::ops::Range;

use super::checkpoint::{Checkpoint, Stored};
use crate::{Error, Result};

/// One tensor of the GGUF file and where its rows come from.
pub(super) struct Planned {
    pub name: String,
    pub cols: usize,
    /// Whether it is one-dimensional.
    pub vector: bool,
    /// Number of matrices stacked, 1 for a plain matrix.
    pub stacked: usize,
    pub pieces: Vec<Piece>,
    pub permute: Option<usize>,
    pub add_one: bool,
    /// The groups of columns in the order of the file, each this wide.
    pub columns: Option<(Vec<usize>, usize)>,
    /// What rows are multiplied by, one after the other.
    pub factors: Vec<(Range<usize>, f32)>,
    /// Whether all of it is rounded to three values: minus, zero and plus the mean of its magnitudes.
    pub ternary: bool,
    /// The shape that the file says it has, outermost dimension first, where that is another.
    pub shape: Vec<usize>,
}

/// Consecutive rows of one checkpoint tensor, or values computed from the configuration.
pub(super) enum Piece {
    Rows {
        tensor: String,
        rows: Range<usize>,
    },
    /// Every `step`th of those rows.
    Every {
        tensor: String,
        rows: Range<usize>,
        step: usize,
    },
    /// So many columns of those rows, each as a row: number `first` of them and every `step`th behind it.
    Columns {
        tensor: String,
        rows: Range<usize>,
        first: usize,
        step: usize,
        count: usize,
    },
    Values(Vec<f32>),
}

impl Piece {
    pub fn rows(&self) -> usize {
        match self {
            Self::Rows { rows, .. } => rows.len(),
            Self::Every { rows, step, .. } => rows.len().div_ceil((*step).max(1)),
            Self::Columns { count, .. } => *count,
            Self::Values(_) => 1,
        }
    }
}

impl Planned {
    /// These pieces one after the other as they are: one matrix, or a vector.
    pub fn plain(name: String, cols: usize, vector: bool, pieces: Vec<Piece>) -> Self {
        Self {
            name,
            cols,
            vector,
            stacked: 1,
            pieces,
            permute: None,
            add_one: false,
            columns: None,
            factors: Vec::new(),
            ternary: false,
            shape: Vec::new(),
        }
    }

    pub fn matrix(name: String, tensor: &str, stored: &Stored) -> Self {
        let pieces = vec![Piece::Rows { tensor: tensor.into(), rows: 0..stored.rows() }];
        Self::plain(name, stored.cols(), stored.shape.len() < 2, pieces)
    }

    /// The matrix called `name` of some rows of this one; `None` where it has not all of them in one tensor of the checkpoint.
    pub fn some_rows(&self, name: &str, rows: &[usize]) -> Option<Self> {
        let [Piece::Rows { tensor, rows: all }] = &self.pieces[..] else { return None };
        let piece = |row: &usize| {
            let row = all.start + row;
            all.contains(&row).then(|| Piece::Rows { tensor: tensor.clone(), rows: row..row + 1 })
        };
        let pieces = rows.iter().map(piece).collect::<Option<_>>()?;
        Some(Self::plain(name.into(), self.cols, false, pieces))
    }

    /// Errors: an expert that no tensor of the checkpoint brought.
    pub fn check_experts(&self) -> Result<()> {
        let missing = |piece: &Piece| matches!(piece, Piece::Rows { tensor, .. } if tensor.is_empty());
        match self.pieces.iter().position(missing) {
            Some(expert) => {
                Err(Error::malformed(&self.name, format!("the checkpoint has no expert {expert} for it")))
            }
            None => Ok(()),
        }
    }

    /// Rows of all stacked matrices together.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(Piece::rows).sum()
    }

    /// Dimensions as GGUF lists them, innermost first.
    pub fn dims(&self) -> Vec<u64> {
        let (cols, rows) = (self.cols as u64, self.rows() as u64);
        match (self.vector, self.stacked) {
            _ if !self.shape.is_empty() => self.shape.iter().rev().map(|size| *size as u64).collect(),
            (true, _) => vec![cols],
            (false, 1) => vec![cols, rows],
            (false, n) => vec![cols, rows / n as u64, n as u64],
        }
    }

    /// Slices must start on a multiple of this many rows.
    pub fn row_unit(&self) -> usize {
        match (self.permute, self.pieces.first()) {
            _ if self.ternary => self.rows(),
            (Some(heads), _) => self.rows() / heads,
            // Each column is read with all of its matrix.
            (None, Some(Piece::Columns { count, .. })) => *count,
            _ => 1,
        }
    }

    /// The f32 values of some rows, in GGUF's order.
    pub fn read(&self, checkpoint: &Checkpoint<'_>, rows: Range<usize>) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(rows.len() * self.cols);
        let mut start = 0;
        for piece in &self.pieces {
            let end = start + piece.rows();
            let wanted = rows.start.max(start)..rows.end.min(end);
            if !wanted.is_empty() {
                match piece {
                    Piece::Values(all) => values.extend_from_slice(all),
                    Piece::Every { tensor, rows, step } => {
                        let (from, to) = (wanted.start - start, wanted.end - start - 1);
                        let read = rows.start + from * step..rows.start + to * step + 1;
                        let all = checkpoint.read(tensor, read)?;
                        values.extend(all.chunks_exact(self.cols).step_by(*step).flatten());
                    }
                    Piece::Columns { tensor, rows, first, step, .. } => {
                        let all = checkpoint.read(tensor, rows.clone())?;
                        let width = all.len() / rows.len().max(1);
                        let columns = (wanted.start - start..wanted.end - start).map(|at| first + at * step);
                        let column = |at: usize| all.iter().skip(at).step_by(width.max(1)).copied();
                        values.extend(columns.flat_map(column));
                    }
                    Piece::Rows { tensor, rows } => {
                        let at = rows.start + wanted.start - start;
                        values.extend(checkpoint.read(tensor, at..at + wanted.len())?);
                    }
                }
            }
            start = end;
        }
        if let Some(heads) = self.permute {
            values = interleave(&values, self.rows() / heads, self.cols);
        }
        if self.ternary {
            ternary(&mut values);
        }
        if let Some((order, width)) = &self.columns {
            let rows = values.chunks_exact(self.cols);
            let group = |row: &[f32], at: usize| row[at * width..(at + 1) * width].to_vec();
            values = rows.flat_map(|row| order.iter().flat_map(|at| group(row, *at))).collect();
        }
        if self.add_one {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        for (factored, by) in &self.factors {
            let part = factored.start.max(rows.start)..factored.end.min(rows.end);
            for row in part {
                let at = (row - rows.start) * self.cols;
                values[at..at + self.cols].iter_mut().for_each(|v| *v *= by);
            }
        }
        Ok(values)
    }
}

/// Reorders the rows of whole heads so that rotating (i, i + d/2) becomes rotating the pair (2i, 2i + 1).
pub(super) fn interleave(values: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks(head_dim * cols) {
        for row in 0..head_dim {
            let from = (row % 2) * (head_dim / 2) + row / 2;
            out.extend_from_slice(&head[from * cols..(from + 1) * cols]);
        }
    }
    out
}

/// Rounds a matrix to three values: minus, zero and plus the mean of its magnitudes, which is at least 1e-5.
fn ternary(weights: &mut [f32]) {
    let sum: f64 = weights.iter().map(|weight| f64::from(weight.abs())).sum();
    let mean = (sum / weights.len().max(1) as f64).max(1e-5) as f32;
    let by = 1.0 / mean;
    weights.iter_mut().for_each(|weight| *weight = (*weight * by).round_ties_even().clamp(-1.0, 1.0) / by);
}

#[cfg(test)]
mod tests {
    use super::{Piece, Planned, interleave, ternary};

    #[test]
    fn halves_become_neighbors() {
        // Two heads of four rows, one column: rows 0 and 2 of a head were a pair.
        assert_eq!(
            interleave(&[0., 1., 2., 3., 10., 11., 12., 13.], 4, 1),
            [0., 2., 1., 3., 10., 12., 11., 13.]
        );
    }

    #[test]
    fn a_missing_expert_is_named() {
        let piece = |tensor: &str| Piece::Rows { tensor: tensor.into(), rows: 0..1 };
        let stack = |pieces| Planned {
            stacked: 2,
            ..Planned::plain("blk.3.ffn_up_exps.weight".into(), 1, false, pieces)
        };
        assert!(stack(vec![piece("a"), piece("b")]).check_experts().is_ok());
        let why = stack(vec![piece("a"), piece("")]).check_experts().unwrap_err().to_string();
        assert!(why.contains("blk.3.ffn_up_exps.weight") && why.contains("expert 1"), "{why}");
    }

    #[test]
    fn weights_are_rounded_to_their_mean() {
        let mut weights = [0.5, -1.5, 0.25, -3.75];
        ternary(&mut weights);
        assert_eq!(weights, [0.0, -1.5, 0.0, -1.5]);
        let mut nothing = [0.0; 3];
        ternary(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }
}
