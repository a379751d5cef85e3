//! The weights of delta nets and of Mamba2.

use super::load::{Linear, Loader};
use crate::{
    Result,
    kernels::{DeltaShape, Mamba2Shape},
    models::layer_name,
};

/// Everything a delta net computes with in front of its output matrix.
pub(super) struct DeltaWeights {
    pub qkv: Linear,
    pub z: Linear,
    pub beta: Linear,
    pub alpha: Linear,
    /// The convolution, `[kernel][channels]`, oldest row first.
    pub taps: Vec<f32>,
    pub dt: Vec<f32>,
    pub a: Vec<f32>,
    pub norm: Vec<f32>,
}

/// Everything a Mamba2 layer computes with in front of its output matrix.
pub(super) struct Mamba2Weights {
    pub z: Linear,
    /// x, b and c.
    pub inputs: Linear,
    pub steps: Linear,
    /// The convolution, `[kernel][channels]`, oldest row first.
    pub taps: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    /// What is added to steps.
    pub dt: Vec<f32>,
    pub a: Vec<f32>,
    pub skip: Vec<f32>,
    pub norm: Option<Vec<f32>>,
}

impl Mamba2Weights {
    pub fn resident_bytes(&self) -> usize {
        [&self.z, &self.inputs, &self.steps].into_iter().map(Linear::resident_bytes).sum()
    }
}

/// The taps of a convolution, stored channel by channel, as `[kernel][channels]`.
pub(super) fn by_tap(stored: &[f32], kernel: usize) -> Vec<f32> {
    let tap = |tap: usize| stored.chunks_exact(kernel).map(move |channel| channel[tap]);
    (0..kernel).flat_map(tap).collect()
}

impl DeltaWeights {
    /// Those of layer `index`.
    pub fn load(loader: &Loader<'_>, index: usize, delta: &DeltaShape) -> Result<Self> {
        let name = |suffix: &str| layer_name(index, suffix);
        let values = |suffix: &str| loader.values(&name(suffix));
        let fused = name("ssm_ba");
        let (beta, alpha) = match loader.gguf.info(&format!("{fused}.weight")) {
            None => (loader.linear(&name("ssm_beta"))?, loader.linear(&name("ssm_alpha"))?),
            Some(_) => {
                // For each key head, beta of its value heads and then alpha.
                let shared = delta.value_heads / delta.key_heads;
                let part = |first: usize| {
                    let heads = (0..delta.key_heads).map(move |head| (2 * head + first) * shared);
                    loader.gathered(&fused, heads.map(move |first| first..first + shared))
                };
                (part(0)?, part(1)?)
            }
        };
        Ok(Self {
            qkv: loader.linear(&name("attn_qkv"))?,
            z: loader.linear(&name("attn_gate"))?,
            beta,
            alpha,
            taps: by_tap(&values("ssm_conv1d.weight")?, delta.kernel),
            dt: values("ssm_dt.bias")?,
            a: values("ssm_a")?,
            norm: values("ssm_norm.weight")?,
        })
    }
}

impl Mamba2Weights {
    /// Those of layer `index`, whose gate, inputs and steps are the rows of one matrix.
    pub fn load(loader: &Loader<'_>, index: usize, mamba: &Mamba2Shape) -> Result<Self> {
        let name = |suffix: &str| layer_name(index, suffix);
        let values = |suffix: &str| loader.values(&name(suffix));
        let (fused, width, channels) = (name("ssm_in"), mamba.width(), mamba.channels());
        let part = |first: usize, rows: usize| loader.linear_rows(&fused, first..first + rows);
        let weights = Self {
            z: part(0, width)?,
            inputs: part(width, channels)?,
            steps: part(width + channels, mamba.heads)?,
            taps: by_tap(&values("ssm_conv1d.weight")?, mamba.kernel),
            bias: loader.vector(&name("ssm_conv1d.bias")),
            dt: values("ssm_dt.bias")?,
            a: values("ssm_a")?,
            skip: values("ssm_d")?,
            norm: loader.vector(&name("ssm_norm.weight")),
        };
        loader.gguf.forget(&format!("{fused}.weight"));
        Ok(weights)
    }
}
