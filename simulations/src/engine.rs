//! How machines of the simulator compute.

use scheduler::{LayerRange, LayerSet};

/// Rows of a chunk of a prompt.
const CHUNK_ROWS: u32 = 96;

/// How machines compute.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Engine {
    /// Whether rows that wait share a pass.
    pub batches: bool,
    /// Prompt tokens computed in the time of one decoded token.
    pub gain: f64,
}

impl Engine {
    /// Rows of a prompt that travel together.
    pub fn chunk(&self, prompt: u32) -> u32 {
        if self.batches { prompt.min(CHUNK_ROWS) } else { prompt }.max(1)
    }

    /// What a pass takes, in time per layer of one row: `alpha + beta x rows` a layer, the reading of weights and the
    /// arithmetic. `parts` are layers and rows.
    pub fn pass(&self, parts: &[(LayerRange, u32)]) -> f64 {
        let read: LayerSet = parts.iter().map(|part| part.0).collect();
        let rows: f64 = parts.iter().map(|(layers, rows)| f64::from(layers.len()) * f64::from(*rows)).sum();
        f64::from(read.len()) * (1.0 - 1.0 / self.gain) + rows / self.gain
    }
}
