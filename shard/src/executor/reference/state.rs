//! What the oracle remembers of a layer: a key and a value per position, as they were computed; of a recurrence, the state
//! after every position.

use crate::{
    Error, Result,
    models::{Attention, Blueprint},
    state::LayerState,
};

/// Keys and values, `[position][width]`; the states of a recurrence count as values, and their keys are empty. A state
/// beside attention stands behind the value of its position.
#[derive(Clone, Default)]
pub(super) struct Rows {
    widths: [usize; 2],
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
}

impl Rows {
    /// None yet, of layer `layer`.
    pub fn of(blueprint: &Blueprint, layer: usize) -> Self {
        let widths = match blueprint.layers[layer].attention {
            Attention::None => [0, 0],
            Attention::Softmax(softmax) if softmax.source.is_some() => [0, 0],
            Attention::Softmax(softmax) => [softmax.kv.kv_heads * softmax.kv.head_dim; 2],
            Attention::Recurrence(recurrence) => [0, recurrence.width],
            Attention::DeltaNet(delta) => [0, delta.state_len()],
            Attention::Beside(softmax, mamba) => {
                let width = softmax.kv.kv_heads * softmax.kv.head_dim;
                [width, width + mamba.state_len()]
            }
            Attention::Mamba2(mamba) => [0, mamba.state_len()],
            Attention::ShortConv(conv) => [0, conv.state_len()],
            Attention::Latent(latent) => [latent.rotated + latent.rank, 0],
        };
        Self { widths, keys: Vec::new(), values: Vec::new() }
    }

    /// Bytes of one position.
    pub fn row_bytes(&self) -> usize {
        self.widths.iter().sum::<usize>() * size_of::<f32>()
    }
}

impl LayerState for Rows {
    fn kind(&self) -> String {
        format!("rows f32 {:?}", self.widths)
    }

    fn bytes(&self) -> usize {
        self.values.len() * self.row_bytes()
    }

    fn reserve(&mut self, _positions: usize) {}

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let mut shared = self.clone();
        shared.rewind(to);
        Some(Box::new(shared))
    }

    fn rewind(&mut self, to: usize) {
        self.keys.truncate(to);
        self.values.truncate(to);
    }

    fn advance(&mut self, _len: usize) {}

    fn snapshot_len(&self, len: usize) -> usize {
        len * self.row_bytes()
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
        let mut rest = &values[..];
        for _ in 0..len {
            let (key, after) = rest.split_at(self.widths[0]);
            let (value, after) = after.split_at(self.widths[1]);
            rest = after;
            self.keys.push(key.to_vec());
            self.values.push(value.to_vec());
        }
        Ok(())
    }
}
