//! The weights of delta nets and of Mamba2.

use super::load::{Linear, Loader};
use crate::{
    Error, Result,
    kernels::{DeltaShape, Mamba2Shape, by_tap},
    models::layer_name,
};

/// Everything a delta net computes with in front of its output matrix.
pub(super) struct DeltaWeights {
    pub qkv: Projections,
    pub z: Through,
    pub beta: Linear,
    pub alpha: Through,
    /// The convolution, `[kernel][channels]`, oldest row first.
    pub taps: Vec<f32>,
    /// What is added to each decay in front of its softplus, and the factor behind it.
    pub dt: Vec<f32>,
    pub a: Vec<f32>,
    pub norm: Vec<f32>,
}

/// What makes q, k and v.
#[allow(clippy::large_enum_variant, reason = "one per layer, made once")]
pub(super) enum Projections {
    /// The rows of one matrix.
    One(Linear),
    Apart(Box<[Linear; 3]>),
}

/// A matrix, and the one that makes the narrow row in front of it, if there is one.
pub(super) struct Through {
    pub narrow: Option<Linear>,
    pub matrix: Linear,
}

impl Through {
    fn plain(matrix: Linear) -> Self {
        Self { narrow: None, matrix }
    }

    fn resident_bytes(&self) -> usize {
        self.narrow.as_ref().map_or(0, Linear::resident_bytes) + self.matrix.resident_bytes()
    }
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

impl DeltaWeights {
    /// Those of layer `index`.
    pub fn load(loader: &Loader<'_>, index: usize, delta: &DeltaShape) -> Result<Self> {
        if delta.by_channel {
            return Self::load_by_channel(loader, index, delta);
        }
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
            qkv: Projections::One(loader.linear(&name("attn_qkv"))?),
            z: Through::plain(loader.linear(&name("attn_gate"))?),
            beta,
            alpha: Through::plain(alpha),
            taps: by_tap(&values("ssm_conv1d.weight")?, delta.kernel),
            dt: values("ssm_dt.bias")?,
            a: values("ssm_a")?,
            norm: values("ssm_norm.weight")?,
        })
    }
}

impl DeltaWeights {
    /// Those of a layer with a decay for every channel of a key.
    fn load_by_channel(loader: &Loader<'_>, index: usize, delta: &DeltaShape) -> Result<Self> {
        let linear = |suffix: &str| loader.linear(&layer_name(index, suffix));
        let values = |suffix: &str| loader.values(&layer_name(index, suffix));
        let through = |narrow: &str, matrix: &str| {
            Ok::<_, Error>(Through { narrow: Some(linear(narrow)?), matrix: linear(matrix)? })
        };
        let mut stored = Vec::new();
        for part in ["ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"] {
            stored.extend(values(part)?);
        }
        Ok(Self {
            qkv: Projections::Apart(Box::new([linear("attn_q")?, linear("attn_k")?, linear("attn_v")?])),
            z: through("ssm_g_a", "ssm_g_b")?,
            beta: linear("ssm_beta")?,
            alpha: through("ssm_f_a", "ssm_f_b")?,
            taps: by_tap(&stored, delta.kernel),
            dt: values("ssm_dt.bias")?,
            a: values("ssm_a")?.into_iter().flat_map(|a| std::iter::repeat_n(a, delta.key_dim)).collect(),
            norm: values("ssm_norm.weight")?,
        })
    }

    pub fn resident_bytes(&self) -> usize {
        let qkv: usize = match &self.qkv {
            Projections::One(all) => all.resident_bytes(),
            Projections::Apart(parts) => parts.iter().map(Linear::resident_bytes).sum(),
        };
        qkv + self.z.resident_bytes() + self.beta.resident_bytes() + self.alpha.resident_bytes()
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
