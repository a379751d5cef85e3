//! What matrices are multiplied with, while a text is read: sums of squares by input, for searches that weigh errors
//! (`convert::importance`).
//!
//! Limits: sums are f32 over f64 additions in the order of the passes, so their last bits depend on how a text is cut into passes.

use std::sync::{Mutex, PoisonError};

/// The inputs of the matrices of a model.
#[derive(Default)]
pub struct Inputs(Mutex<Vec<Sums>>);

/// The inputs of one tensor's matrices.
struct Sums {
    name: String,
    /// Sums of squares, and rows that they are of, by expert.
    experts: Vec<(Vec<f64>, u64)>,
}

/// What a tensor's matrices were multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The tensor's name.
    pub name: String,
    /// Sums of squares, `[experts][cols]`.
    pub sums: Vec<f32>,
    /// Rows that they are of, by expert.
    pub counts: Vec<f32>,
}

/// Which of the matrices that are watched one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    tensor: usize,
    expert: usize,
}

impl Inputs {
    /// Watches part `expert` of the `experts` matrices of the tensor called `name`, of `cols` columns.
    pub fn watch(&self, name: &str, (expert, experts): (usize, usize), cols: usize) -> Mark {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tensor = all.iter().position(|sums| sums.name == name).unwrap_or_else(|| {
            all.push(Sums { name: name.to_owned(), experts: vec![(vec![0.0; cols], 0); experts] });
            all.len() - 1
        });
        Mark { tensor, expert }
    }

    /// The matrix was multiplied with the rows of `x`.
    pub(super) fn add(&self, mark: Mark, x: &[f32]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((sums, rows)) = all.get_mut(mark.tensor).and_then(|sums| sums.experts.get_mut(mark.expert))
        else {
            return;
        };
        for row in x.chunks_exact(sums.len().max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            *rows += 1;
        }
    }

    /// What was seen until now, in the order in which the matrices were loaded; tensors that were never used are left out.
    pub fn seen(&self) -> Vec<Seen> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = all.iter().filter(|sums| sums.experts.iter().any(|(_, rows)| *rows > 0));
        let seen = |sums: &Sums| Seen {
            name: sums.name.clone(),
            sums: sums.experts.iter().flat_map(|(sums, _)| sums).map(|sum| *sum as f32).collect(),
            counts: sums.experts.iter().map(|(_, rows)| *rows as f32).collect(),
        };
        used.map(seen).collect()
    }
}
