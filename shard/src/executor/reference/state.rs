//! What the oracle remembers of a layer: a key and a value per position, as they were computed.

use crate::{Error, Result, state::LayerState};

/// Keys and values, `[position][kv width]`.
#[derive(Clone, Default)]
pub(super) struct Rows {
    width: usize,
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
}

impl Rows {
    /// None yet, `width` values each.
    pub fn new(width: usize) -> Self {
        Self { width, keys: Vec::new(), values: Vec::new() }
    }
}

impl LayerState for Rows {
    fn kind(&self) -> String {
        format!("rows f32 {}", self.width)
    }

    fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * self.width * size_of::<f32>()
    }

    fn reserve(&mut self, _positions: usize) {}

    fn rewind(&mut self, to: usize) {
        self.keys.truncate(to);
        self.values.truncate(to);
    }

    fn advance(&mut self, _len: usize) {}

    fn snapshot_len(&self, len: usize) -> usize {
        2 * len * self.width * size_of::<f32>()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        for row in self.keys[..len].iter().zip(&self.values).flat_map(|(key, value)| [key, value]) {
            row.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        self.rewind(0);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::malformed("snapshot: value", "is not finite"));
        }
        for row in 0..len {
            let [key, value] = [2 * row, 2 * row + 1].map(|at| &values[at * self.width..][..self.width]);
            self.keys.push(key.to_vec());
            self.values.push(value.to_vec());
        }
        Ok(())
    }
}
