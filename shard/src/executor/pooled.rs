//! One vector that stands for a text, made of the hidden states of its tokens.
//!
//! Sums are kept in `f64` and rows are added in the order of their positions, so how a text was cut into passes, and what
//! else was in them, changes no bit.

use crate::{Error, Result, gguf::Metadata};

/// Which hidden states stand for a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all of them.
    #[default]
    Mean,
    /// That of the first token.
    First,
    /// That of the last token (Qwen 3 Embedding).
    Last,
}

impl Pooling {
    /// What a file asks for in `pooling_type`, numbered as llama.cpp numbers it; the mean where it says nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that ranks texts instead, and for other numbers.
    pub fn of(metadata: &Metadata) -> Result<Self> {
        let key = format!("{}.pooling_type", metadata.architecture()?);
        match metadata.get(&key).map(|_| metadata.u64(&key)) {
            None | Some(Some(0 | 1)) => Ok(Self::Mean),
            Some(Some(2)) => Ok(Self::First),
            Some(Some(3)) => Ok(Self::Last),
            Some(Some(4)) => {
                Err(Error::unsupported("embeddings of a model that ranks texts (pooling_type 4)"))
            }
            Some(Some(other)) => Err(Error::unsupported(format!("{key} {other}"))),
            Some(None) => Err(Error::malformed(key, "is no number")),
        }
    }

    /// Whether a file says that its model ranks texts (`pooling_type` 4); an encoder's first hidden state makes the score, a decoder's last.
    pub fn ranks(metadata: &Metadata) -> bool {
        let key = |architecture| format!("{architecture}.pooling_type");
        metadata.architecture().is_ok_and(|architecture| metadata.u64(&key(architecture)) == Some(4))
    }
}

/// The vector of one text; takes its rows in order.
pub struct Pooled {
    pooling: Pooling,
    sums: Vec<f64>,
    rows: usize,
}

impl Pooled {
    /// Of no rows yet, `hidden` values wide.
    pub fn new(hidden: usize, pooling: Pooling) -> Self {
        Self { pooling, sums: vec![0.0; hidden], rows: 0 }
    }

    /// Adds rows, `[n][hidden]`.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.sums.len().max(1)) {
            let first = self.rows == 0;
            if self.pooling == Pooling::Last {
                self.sums.fill(0.0);
            }
            if first || self.pooling != Pooling::First {
                self.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            self.rows += 1;
        }
    }

    /// Rows added.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The sum of what was added: of the first or the last row that row itself.
    pub fn sum(&self) -> Vec<f32> {
        self.sums.iter().map(|x| *x as f32).collect()
    }

    /// Its direction: of Euclidean length 1, or all zeros where there is none.
    pub fn unit(&self) -> Vec<f32> {
        // The number of rows scales all values of a mean alike, so it falls out.
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
    use crate::gguf::{Gguf, Writer};

    #[test]
    fn a_vector_has_length_one_however_its_rows_came() {
        for (pooling, expected) in
            [(Pooling::Mean, [0.6, 0.8]), (Pooling::First, [1.0, 0.0]), (Pooling::Last, [0.0, 1.0])]
        {
            let rows = [6.0, 0.0, 0.0, 8.0];
            let mut whole = Pooled::new(2, pooling);
            whole.add(&rows);
            assert_eq!((whole.unit(), whole.rows()), (expected.to_vec(), 2), "{pooling:?}");
            let mut parts = Pooled::new(2, pooling);
            rows.chunks(2).for_each(|row| parts.add(row));
            assert_eq!(parts.unit(), whole.unit(), "{pooling:?}");
        }
    }

    #[test]
    fn a_mean_of_nothing_points_nowhere() {
        let mut mean = Pooled::new(3, Pooling::Mean);
        assert_eq!(mean.unit(), [0.0; 3]);
        mean.add(&[1.0, -2.0, 3.0, -1.0, 2.0, -3.0]);
        assert_eq!(mean.unit(), [0.0; 3]);
    }

    #[test]
    fn a_file_says_which_states_stand_for_a_text() {
        let asks = |number: Option<u32>| {
            let mut writer = Writer::new();
            writer.add_str("general.architecture", "qwen3");
            if let Some(number) = number {
                writer.add_u32("qwen3.pooling_type", number);
            }
            let bytes = writer.start(std::io::Cursor::new(Vec::new())).unwrap().finish().unwrap();
            Pooling::of(Gguf::from_bytes(bytes.into_inner()).unwrap().metadata())
        };
        assert_eq!(asks(None).unwrap(), Pooling::Mean);
        assert_eq!([1, 2, 3].map(|n| asks(Some(n)).unwrap()), [Pooling::Mean, Pooling::First, Pooling::Last]);
        assert!(asks(Some(4)).unwrap_err().to_string().contains("ranks"));
        assert!(asks(Some(9)).unwrap_err().to_string().contains("pooling_type 9"));
    }
}
