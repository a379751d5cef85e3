//! What mixes positions: the weights of each kind on the device, and how wide the rows between them are.

use super::{
    matrices::{Part, Uploader, bytes},
    source::Places,
};
use crate::{
    Error, Result,
    kernels::{DeltaShape, Mamba2Shape, by_tap},
    models::{Attention, BareNorm, Blueprint, Latent, Layer, ShortConv, Softmax, layer_name},
};

/// Widest head of softmax attention, and widest latent with the rotated part of its key.
const MOST_HEAD: usize = 512;
const MOST_LATENT: (usize, usize) = (512, 640);

/// What mixes the positions of a layer.
pub(super) enum MixerParts {
    Softmax(SoftmaxParts),
    Latent(Box<LatentParts>),
    Delta(DeltaParts),
    Mamba2(Mamba2Parts),
    ShortConv(ShortConvParts),
    /// Softmax attention, and Mamba2 over the same rows with the matrix behind it.
    Beside(Box<(SoftmaxParts, Mamba2Parts, Vec<Part>)>),
}

/// Softmax attention.
pub(super) struct SoftmaxParts {
    pub spec: Softmax,
    pub qkv: Vec<Part>,
    /// Values are the keys as projected.
    pub same: bool,
    /// The norms of queries and of keys, one after the other.
    pub head_norms: wgpu::Buffer,
    pub has_head_norms: [bool; 2],
    /// Whether these norms are over all heads.
    pub wide_norms: bool,
    pub sinks: Option<wgpu::Buffer>,
}

/// Latent attention.
pub(super) struct LatentParts {
    pub spec: Latent,
    /// The norm and the width of the narrow row that queries are made of.
    pub narrow: Option<(wgpu::Buffer, usize)>,
    pub q: Vec<Part>,
    /// That row, where there is one, and the latent and the rotated key.
    pub row: Vec<Part>,
    /// The norm of the latent.
    pub row_norm: wgpu::Buffer,
    /// For each head what its query is multiplied by, and what its result is.
    pub keys: Part,
    pub values: Part,
}

/// A gated delta net.
pub(super) struct DeltaParts {
    pub shape: DeltaShape,
    /// q, k, v and then what gates, strengths and decays are made of, as far as the layer's row gives them.
    pub projected: Vec<Part>,
    /// Gates and decays where they come through narrow rows.
    pub narrow: Option<NarrowGates>,
    /// The convolution, what is added to decays, and their factors.
    pub constants: wgpu::Buffer,
    pub norm: wgpu::Buffer,
}

/// What makes gates and decays of narrow rows: the matrices into these, their width, and those out of them.
pub(super) struct NarrowGates {
    pub inner: [Vec<Part>; 2],
    pub width: usize,
    pub outer: [Vec<Part>; 2],
}

/// The state space of Mamba2.
pub(super) struct Mamba2Parts {
    pub shape: Mamba2Shape,
    /// Gate, x, b and c, and steps.
    pub projected: Vec<Part>,
    /// The convolution, what is added to steps, the factors of decays, and the convolution's bias.
    pub constants: wgpu::Buffer,
    pub has_bias: bool,
    pub skip: wgpu::Buffer,
    pub norm: Option<wgpu::Buffer>,
}

/// A gated short convolution.
pub(super) struct ShortConvParts {
    pub spec: ShortConv,
    pub projected: Vec<Part>,
    pub taps: wgpu::Buffer,
}

/// Values of rows between the matrices of a mixer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MixerWidths {
    /// What the first matrices give.
    pub projected: usize,
    /// What a recurrence reads, or queries before they are absorbed.
    pub inputs: usize,
    /// Strengths and decays.
    pub gates: usize,
    /// Narrow rows, one of two.
    pub narrow: usize,
    /// Queries of attention.
    pub queries: usize,
    /// What attention gives, before values are made of it.
    pub attended: usize,
    /// What the output matrix reads.
    pub mixed: usize,
}

impl MixerWidths {
    fn of_softmax(heads: usize, softmax: Softmax) -> Self {
        let q = heads * softmax.kv.head_dim;
        let kv = softmax.kv.kv_heads * softmax.kv.head_dim;
        let projected = q * if softmax.gated { 2 } else { 1 } + 2 * kv;
        Self { projected, queries: q, attended: q, mixed: q, ..Self::default() }
    }

    fn of_mamba2(shape: Mamba2Shape) -> Self {
        Self {
            projected: shape.projected(),
            inputs: shape.channels(),
            gates: 2 * shape.heads,
            mixed: shape.width(),
            ..Self::default()
        }
    }

    fn of(blueprint: &Blueprint, layer: &Layer) -> Self {
        let heads = blueprint.heads;
        match layer.attention {
            Attention::Softmax(softmax) => Self::of_softmax(heads, softmax),
            Attention::Mamba2(shape) => Self::of_mamba2(shape),
            Attention::Beside(softmax, shape) => Self::of_softmax(heads, softmax).max(Self::of_mamba2(shape)),
            Attention::Latent(latent) => Self {
                projected: latent.query_rank.unwrap_or(0) + latent.rank + latent.rotated,
                inputs: heads * latent.query(),
                queries: heads * latent.shape().head_dim,
                attended: heads * latent.rank,
                mixed: heads * latent.value,
                ..Self::default()
            },
            Attention::DeltaNet(shape) => Self {
                projected: DeltaColumns::of(&shape).stride,
                inputs: shape.channels(),
                gates: shape.value_heads + shape.decays(),
                narrow: if shape.by_channel { narrow_width(layer) } else { 0 },
                mixed: shape.value_width(),
                ..Self::default()
            },
            Attention::ShortConv(spec) => {
                Self { projected: 3 * spec.width, inputs: spec.width, mixed: spec.width, ..Self::default() }
            }
            Attention::Recurrence(_) | Attention::None => Self::default(),
        }
    }

    /// Enough for every layer of `blueprint`.
    pub fn most(blueprint: &Blueprint) -> Self {
        let of = |layer: &Layer| Self::of(blueprint, layer);
        blueprint.layers.iter().map(of).fold(Self::default(), Self::max)
    }

    /// Enough for both.
    fn max(self, other: Self) -> Self {
        Self {
            projected: self.projected.max(other.projected),
            inputs: self.inputs.max(other.inputs),
            gates: self.gates.max(other.gates),
            narrow: self.narrow.max(other.narrow),
            queries: self.queries.max(other.queries),
            attended: self.attended.max(other.attended),
            mixed: self.mixed.max(other.mixed),
        }
    }

    /// Values of all of them.
    pub fn sum(&self) -> usize {
        let Self { projected, inputs, gates, narrow, queries, attended, mixed } = *self;
        projected + inputs + gates + 2 * narrow + queries + attended + mixed
    }

    /// The widest row of all.
    pub fn widest_made(&self) -> usize {
        let Self { projected, inputs, gates, narrow, queries, attended, mixed } = *self;
        [projected, inputs, gates, narrow, queries, attended, mixed].into_iter().max().unwrap_or(0)
    }

    /// The widest row that a matrix reads.
    pub fn widest(&self) -> usize {
        self.mixed.max(self.attended).max(self.inputs).max(self.narrow)
    }
}

/// Where a delta net's row has what is projected, behind q, k and v.
#[derive(Clone, Copy)]
pub(super) struct DeltaColumns {
    pub gate: usize,
    pub strengths: usize,
    pub decays: usize,
    pub stride: usize,
}

impl DeltaColumns {
    pub fn of(shape: &DeltaShape) -> Self {
        let gate = shape.channels();
        let strengths = gate + shape.value_width();
        let decays = strengths + shape.value_heads;
        Self { gate, strengths, decays, stride: decays + shape.decays() }
    }
}

/// Width of the narrow rows that gates and decays of channels are made of.
fn narrow_width(layer: &Layer) -> usize {
    let of = |name: &str| layer.tensors.iter().find(|rule| rule.name == name).map_or(0, |rule| rule.dims[1]);
    of("ssm_g_a.weight").max(of("ssm_f_a.weight"))
}

/// Why what mixes the positions of `layer` is not computed here.
pub(super) fn beyond_mixer(blueprint: &Blueprint, layer: &Layer) -> Option<&'static str> {
    let is_wide = |name: &str, width: usize| {
        layer.tensors.iter().any(|rule| rule.name == name && rule.dims[0] != width)
    };
    match layer.attention {
        Attention::Softmax(softmax) | Attention::Beside(softmax, _) => match () {
            () if softmax.source.is_some() => Some("keys and values shared between layers"),
            () if softmax.chunk.is_some() => Some("attention in blocks"),
            () if softmax.temperature.is_some() => Some("queries scaled by position"),
            () if softmax.bare_norm == Some(BareNorm::Rotated) => Some("norms without weights"),
            () if softmax.norms_rotated => Some("norms behind the rotation"),
            () if softmax.kv.head_dim > MOST_HEAD || !softmax.kv.head_dim.is_multiple_of(2) => {
                Some("heads of this width")
            }
            () if is_wide("attn_k_norm.weight", softmax.kv.head_dim) && softmax.gated => {
                Some("norms over all heads of gated attention")
            }
            () if is_wide("attn_sub_norm.weight", blueprint.heads * softmax.kv.head_dim) => {
                Some("norms inside a sublayer of this width")
            }
            () => None,
        },
        Attention::Latent(latent) => {
            let (rank, key) = MOST_LATENT;
            let even = latent.rotated.is_multiple_of(2) && latent.rank.is_multiple_of(2);
            let fits = latent.rank <= rank && latent.shape().head_dim <= key && even;
            (!fits).then_some("latents of this width")
        }
        Attention::DeltaNet(_) | Attention::Mamba2(_) | Attention::ShortConv(_) => None,
        Attention::Recurrence(_) => Some("linear recurrences"),
        Attention::None => None,
    }
}

impl MixerParts {
    /// Bytes of its matrices.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Softmax(parts) => bytes(&parts.qkv),
            Self::Latent(parts) => {
                bytes(&parts.q) + bytes(&parts.row) + parts.keys.bytes + parts.values.bytes
            }
            Self::Delta(parts) => {
                let narrow = parts.narrow.iter().flat_map(|narrow| narrow.inner.iter().chain(&narrow.outer));
                bytes(&parts.projected) + narrow.map(|parts| bytes(parts)).sum::<usize>()
            }
            Self::Mamba2(parts) => bytes(&parts.projected),
            Self::ShortConv(parts) => bytes(&parts.projected),
            Self::Beside(parts) => bytes(&parts.0.qkv) + bytes(&parts.1.projected) + bytes(&parts.2),
        }
    }
}

impl Uploader<'_> {
    /// What mixes the positions of layer `index`, and the matrix behind it.
    pub fn mixer(&self, index: usize) -> Result<Option<(MixerParts, Vec<Part>)>> {
        let (mixer, out) = match self.blueprint.layers[index].attention {
            Attention::Softmax(spec) => (MixerParts::Softmax(self.softmax(index, spec)?), "attn_output"),
            Attention::Latent(spec) => {
                (MixerParts::Latent(Box::new(self.latent(index, spec)?)), "attn_output")
            }
            Attention::DeltaNet(shape) if shape.by_channel => {
                (MixerParts::Delta(self.delta_by_channel(index, shape)?), "attn_output")
            }
            Attention::DeltaNet(shape) => (MixerParts::Delta(self.delta(index, shape)?), "ssm_out"),
            Attention::Mamba2(shape) => (MixerParts::Mamba2(self.mamba2(index, shape)?), "ssm_out"),
            Attention::ShortConv(spec) => {
                let projected = self.matrices(&[&layer_name(index, "shortconv.in_proj")])?;
                let stored = self.values(index, "shortconv.conv.weight")?;
                let taps = self.gpu.upload_floats("taps", &by_tap(&stored, spec.kernel));
                (MixerParts::ShortConv(ShortConvParts { spec, projected, taps }), "shortconv.out_proj")
            }
            Attention::Beside(softmax, shape) => {
                let out = self.matrices(&[&layer_name(index, "ssm_out")])?;
                let parts = (self.softmax(index, softmax)?, self.mamba2(index, shape)?, out);
                (MixerParts::Beside(Box::new(parts)), "attn_output")
            }
            Attention::Recurrence(_) => {
                return Err(Error::unsupported("linear recurrences on this device"));
            }
            Attention::None => return Ok(None),
        };
        Ok(Some((mixer, self.matrices(&[&layer_name(index, out)])?)))
    }

    fn values(&self, index: usize, suffix: &str) -> Result<Vec<f32>> {
        Ok(self.gguf.require(&layer_name(index, suffix))?.to_f32())
    }

    fn softmax(&self, index: usize, spec: Softmax) -> Result<SoftmaxParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let fused = name("attn_qkv");
        let is_there = |prefix: &str| self.gguf.info(&format!("{prefix}.weight")).is_some();
        let same = !is_there(&fused) && !is_there(&name("attn_v"));
        let qkv = match is_there(&fused) {
            true => self.matrices(&[&fused])?,
            false if same => self.matrices(&[&name("attn_q"), &name("attn_k")])?,
            false => self.matrices(&[&name("attn_q"), &name("attn_k"), &name("attn_v")])?,
        };
        let norms = ["attn_q_norm.weight", "attn_k_norm.weight"].map(|suffix| self.vector(&name(suffix)));
        let has_head_norms = norms.each_ref().map(Option::is_some);
        let dim = spec.kv.head_dim;
        let longest = norms.iter().flatten().map(Vec::len).max();
        let both: Vec<f32> =
            norms.into_iter().flat_map(|norm| norm.unwrap_or_else(|| vec![0.0; dim])).collect();
        let sinks = self.vector(&name("attn_sinks.weight"));
        Ok(SoftmaxParts {
            spec,
            qkv,
            same,
            head_norms: self.gpu.upload_floats("head norms", &both),
            has_head_norms,
            wide_norms: longest.is_some_and(|len| len > dim),
            sinks: sinks.map(|sinks| self.gpu.upload_floats("sinks", &sinks)),
        })
    }

    fn latent(&self, index: usize, spec: Latent) -> Result<LatentParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let norm =
            |suffix: &str| Ok::<_, Error>(self.gpu.upload_floats(suffix, &self.values(index, suffix)?));
        let row = name("attn_kv_a_mqa");
        let (narrow, q, row) = match spec.query_rank {
            None => (None, self.matrices(&[&name("attn_q")])?, self.matrices(&[&row])?),
            Some(rank) => {
                let narrow = Some((norm("attn_q_a_norm.weight")?, rank));
                let row = self.matrices(&[&name("attn_q_a"), &row])?;
                (narrow, self.matrices(&[&name("attn_q_b")])?, row)
            }
        };
        let heads = |what: &str, suffix: &str| {
            let all = vec![self.rows(&name(suffix))?];
            self.stack(what, all, self.blueprint.heads, Places::Heads)
        };
        Ok(LatentParts {
            spec,
            narrow,
            q,
            row,
            row_norm: norm("attn_kv_a_norm.weight")?,
            keys: heads("keys of all heads", "attn_k_b")?,
            values: heads("values of all heads", "attn_v_b")?,
        })
    }

    fn delta(&self, index: usize, shape: DeltaShape) -> Result<DeltaParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let fused = name("ssm_ba");
        let mut rows = vec![self.rows(&name("attn_qkv"))?, self.rows(&name("attn_gate"))?];
        match self.gguf.info(&format!("{fused}.weight")) {
            None => rows.extend([self.rows(&name("ssm_beta"))?, self.rows(&name("ssm_alpha"))?]),
            Some(_) => {
                // For each key head, beta of its value heads and then alpha.
                let shared = shape.value_heads / shape.key_heads;
                for part in 0..2 {
                    let heads = (0..shape.key_heads).map(|head| (2 * head + part) * shared);
                    rows.push(self.gathered(&fused, heads.map(|first| first..first + shared))?);
                }
            }
        }
        let mut constants = by_tap(&self.values(index, "ssm_conv1d.weight")?, shape.kernel);
        constants.extend(self.values(index, "ssm_dt.bias")?);
        constants.extend(self.values(index, "ssm_a")?);
        self.delta_of(index, shape, (self.join(rows, 0)?, None), &constants)
    }

    fn delta_by_channel(&self, index: usize, shape: DeltaShape) -> Result<DeltaParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let one = |suffix: &str, first: usize| self.join(vec![self.rows(&name(suffix))?], first);
        let columns = DeltaColumns::of(&shape);
        let mut projected = self.matrices(&[&name("attn_q"), &name("attn_k"), &name("attn_v")])?;
        projected.extend(one("ssm_beta", columns.strengths)?);
        let narrow = NarrowGates {
            inner: [one("ssm_g_a", 0)?, one("ssm_f_a", 0)?],
            width: narrow_width(&self.blueprint.layers[index]),
            outer: [one("ssm_g_b", columns.gate)?, one("ssm_f_b", columns.decays)?],
        };
        let mut stored = Vec::new();
        for part in ["ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"] {
            stored.extend(self.values(index, part)?);
        }
        let mut constants = by_tap(&stored, shape.kernel);
        constants.extend(self.values(index, "ssm_dt.bias")?);
        let a = self.values(index, "ssm_a")?;
        constants.extend(a.into_iter().flat_map(|a| std::iter::repeat_n(a, shape.key_dim)));
        self.delta_of(index, shape, (projected, Some(narrow)), &constants)
    }

    fn delta_of(
        &self,
        index: usize,
        shape: DeltaShape,
        (projected, narrow): (Vec<Part>, Option<NarrowGates>),
        constants: &[f32],
    ) -> Result<DeltaParts> {
        let constants = self.gpu.upload_floats("constants", constants);
        let norm = self.gpu.upload_floats("norm", &self.values(index, "ssm_norm.weight")?);
        Ok(DeltaParts { shape, projected, narrow, constants, norm })
    }

    fn mamba2(&self, index: usize, shape: Mamba2Shape) -> Result<Mamba2Parts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let bias = self.vector(&name("ssm_conv1d.bias"));
        let has_bias = bias.is_some();
        let mut constants = by_tap(&self.values(index, "ssm_conv1d.weight")?, shape.kernel);
        constants.extend(self.values(index, "ssm_dt.bias")?);
        constants.extend(self.values(index, "ssm_a")?);
        constants.extend(bias.into_iter().flatten());
        let norm = self.vector(&name("ssm_norm.weight"));
        Ok(Mamba2Parts {
            shape,
            projected: self.matrices(&[&name("ssm_in")])?,
            constants: self.gpu.upload_floats("constants", &constants),
            has_bias,
            skip: self.gpu.upload_floats("skip", &self.values(index, "ssm_d")?),
            norm: norm.map(|norm| self.gpu.upload_floats("norm", &norm)),
        })
    }
}
