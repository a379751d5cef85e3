//! The mean of a text's hidden states, as one vector that stands for the text.
//!
//! Sums are kept in `f64` and rows are added in the order of their positions, so how a text was cut into passes, and what
//! else was in them, changes no bit.

/// Adds up rows of one width.
pub struct Mean {
    sums: Vec<f64>,
    rows: usize,
}

impl Mean {
    /// Of no rows yet, `hidden` values wide.
    pub fn new(hidden: usize) -> Self {
        Self { sums: vec![0.0; hidden], rows: 0 }
    }

    /// Adds rows, `[n][hidden]`.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.sums.len().max(1)) {
            self.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            self.rows += 1;
        }
    }

    /// Rows added.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The direction of the mean: of Euclidean length 1, or all zeros where the mean is.
    pub fn unit(&self) -> Vec<f32> {
        // The number of rows scales all values alike, so it falls out.
        let length = self.sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length == 0.0 || !length.is_finite() {
            return vec![0.0; self.sums.len()];
        }
        self.sums.iter().map(|x| (x / length) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_length_one_however_its_rows_came() {
        let mut whole = Mean::new(2);
        whole.add(&[3.0, 0.0, 3.0, 8.0]);
        assert_eq!((whole.unit(), whole.rows()), (vec![0.6, 0.8], 2));
        let mut parts = Mean::new(2);
        parts.add(&[3.0, 0.0]);
        parts.add(&[3.0, 8.0]);
        assert_eq!(parts.unit(), whole.unit());
    }

    #[test]
    fn a_mean_of_nothing_points_nowhere() {
        let mut mean = Mean::new(3);
        assert_eq!(mean.unit(), [0.0; 3]);
        mean.add(&[1.0, -2.0, 3.0, -1.0, 2.0, -3.0]);
        assert_eq!(mean.unit(), [0.0; 3]);
    }
}
