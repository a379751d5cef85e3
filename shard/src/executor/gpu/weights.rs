//! Weights in the device's memory: matrices as the file stores them, their words in tiles of 32 rows.

use std::sync::Arc;

use super::{
    device::{Compiled, Gpu},
    source::{self, Curve, Kernel, ROWS},
};
use crate::{
    Error, Result,
    gguf::Gguf,
    models::{ATTENTION_NORM, Attention, Blueprint, FeedForward, HEAD_NORM, Layer, Softmax, layer_name},
    quant::{ACTIVATION_BLOCK, Format},
};

/// Rows side by side in memory.
const TILE: usize = 32;
/// Bytes handed to the driver at once, so that its copy of them stays small.
const PIECE: usize = 4 << 20;

/// Some rows of a matrix, in one binding of the device, and where their products go.
pub(super) struct Part {
    pub matrix: wgpu::Buffer,
    /// Whether it reads rounded activations.
    pub integer: bool,
    pub bias: Option<wgpu::Buffer>,
    pub rows: usize,
    pub cols: usize,
    pub row_words: usize,
    /// The first of their columns in the result.
    pub first: usize,
    /// The kernels for one row and for several.
    pub kernels: [Arc<Compiled>; 2],
    pub bytes: usize,
}

/// A norm, weights and then biases.
pub(super) struct NormPart {
    pub weights: wgpu::Buffer,
    pub has_bias: bool,
}

/// Everything one layer computes with.
pub(super) struct LayerParts {
    pub attention_norm: NormPart,
    pub spec: Softmax,
    pub qkv: Vec<Part>,
    /// The norms of queries and of keys, one after the other.
    pub head_norms: wgpu::Buffer,
    pub has_head_norms: [bool; 2],
    pub sinks: Option<wgpu::Buffer>,
    pub out: Vec<Part>,
    pub feed_forward_norm: NormPart,
    pub gate_up: Vec<Part>,
    pub width: usize,
    pub curve: Kernel,
    pub down: Vec<Part>,
}

impl LayerParts {
    /// Bytes of the layer's matrices.
    pub fn bytes(&self) -> usize {
        [&self.qkv, &self.out, &self.gate_up, &self.down].into_iter().flatten().map(|part| part.bytes).sum()
    }
}

/// Reads tensors of a model whose blueprint has accepted all names and shapes.
pub(super) struct Loader<'a> {
    pub gguf: &'a Gguf,
    pub gpu: &'a Gpu,
    pub blueprint: &'a Blueprint,
}

/// Why layers of `blueprint` are not computed here, by the first part that is missing.
pub(super) fn beyond(blueprint: &Blueprint) -> Option<&'static str> {
    let other = |layer: &Layer| match (&layer.attention, &layer.feed_forward) {
        (Attention::Softmax(softmax), FeedForward::Dense(dense)) => {
            let whole = layer.tensors.iter().any(|rule| {
                matches!(rule.name, "attn_k_norm.weight") && rule.dims[0] != blueprint.kv.head_dim
            });
            match () {
                () if blueprint.unusual(layer).is_some() => blueprint.unusual(layer),
                () if softmax.gated => Some("gated attention"),
                () if whole => Some("norms over all heads"),
                () if layer.parallel() => Some("parallel layers"),
                () if !layer.has("attn_norm.weight") => Some("layers without a norm before attention"),
                () if layer.has("post_attention_norm.weight") || layer.has("post_ffw_norm.weight") => {
                    Some("norms after a sublayer")
                }
                () if layer.has("attn_sub_norm.weight") || layer.has("ffn_sub_norm.weight") => {
                    Some("norms inside a sublayer")
                }
                () if Curve::of(dense.activation).is_none() => Some("this activation"),
                () => None,
            }
        }
        (Attention::Softmax(_), FeedForward::Experts(_) | FeedForward::Both(..)) => Some("experts"),
        (Attention::Latent(_), _) => Some("latent attention"),
        _ => Some("recurrent layers"),
    };
    if blueprint.kv.head_dim > 256 || !blueprint.kv.head_dim.is_multiple_of(2) {
        return Some("heads of this width");
    }
    if blueprint.head.norm != HEAD_NORM {
        return Some("a norm of the head under another name");
    }
    blueprint.layers.iter().find_map(other)
}

impl Loader<'_> {
    /// The norm of this name.
    pub fn norm(&self, prefix: &str) -> Result<NormPart> {
        let mut weights = self.gguf.require(&format!("{prefix}.weight"))?.to_f32();
        let bias = self.vector(&format!("{prefix}.bias"));
        let has_bias = bias.is_some();
        weights.extend(bias.into_iter().flatten());
        Ok(NormPart { weights: self.gpu.upload_floats(prefix, &weights), has_bias })
    }

    /// Layer `index` of the model.
    pub fn layer(&self, index: usize) -> Result<LayerParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let (layer, blueprint) = (&self.blueprint.layers[index], self.blueprint);
        let (Attention::Softmax(spec), FeedForward::Dense(dense)) = (layer.attention, layer.feed_forward)
        else {
            return Err(Error::unsupported("recurrent layers or experts on this device"));
        };
        let fused = name("attn_qkv");
        let qkv = match self.gguf.info(&format!("{fused}.weight")) {
            Some(_) => self.matrices(&[&fused])?,
            None => self.matrices(&[&name("attn_q"), &name("attn_k"), &name("attn_v")])?,
        };
        let dim = blueprint.kv.head_dim;
        let norms = ["attn_q_norm.weight", "attn_k_norm.weight"].map(|suffix| self.vector(&name(suffix)));
        let has_head_norms = norms.each_ref().map(Option::is_some);
        let both: Vec<f32> =
            norms.into_iter().flat_map(|norm| norm.unwrap_or_else(|| vec![0.0; dim])).collect();
        let curve = Curve::of(dense.activation).ok_or_else(|| Error::unsupported("this activation"))?;
        let (curve, gate_up) = match dense.activation.gated() {
            false => (Kernel::Curve(curve), self.matrices(&[&name("ffn_up")])?),
            true if self.gguf.info(&name("ffn_gate.weight")).is_none() => {
                (Kernel::Gate(curve), self.matrices(&[&name("ffn_up")])?)
            }
            true => (Kernel::Gate(curve), self.matrices(&[&name("ffn_gate"), &name("ffn_up")])?),
        };
        Ok(LayerParts {
            attention_norm: self.norm(&name(ATTENTION_NORM))?,
            spec,
            qkv,
            head_norms: self.gpu.upload_floats("head norms", &both),
            has_head_norms,
            sinks: self
                .vector(&name("attn_sinks.weight"))
                .map(|sinks| self.gpu.upload_floats("sinks", &sinks)),
            out: self.matrices(&[&name("attn_output")])?,
            feed_forward_norm: self.norm(&name(layer.feed_forward_norm))?,
            gate_up,
            width: dense.width,
            curve,
            down: self.matrices(&[&name("ffn_down")])?,
        })
    }

    /// The head: its own matrix, or the embedding table.
    pub fn head(&self) -> Result<Vec<Part>> {
        self.matrices(&[if self.blueprint.head.tied { "token_embd" } else { "output" }])
    }

    fn vector(&self, name: &str) -> Option<Vec<f32>> {
        self.gguf.tensor(name).map(|tensor| tensor.to_f32())
    }

    /// The matrices of these names, their rows one after the other in as few parts as formats, biases and the device's
    /// bindings allow.
    fn matrices(&self, prefixes: &[&str]) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut first = 0;
        let mut at = 0;
        while at < prefixes.len() {
            let tensor = |prefix: &&str| self.gguf.require(&format!("{prefix}.weight"));
            let bias = |prefix: &str| self.vector(&format!("{prefix}.bias"));
            let one = tensor(&prefixes[at])?;
            let has_bias = bias(prefixes[at]).is_some();
            let mut joined = vec![one];
            for prefix in &prefixes[at + 1..] {
                let next = tensor(prefix)?;
                if next.format != one.format || bias(prefix).is_some() != has_bias {
                    break;
                }
                joined.push(next);
            }
            let biases: Vec<f32> =
                prefixes[at..at + joined.len()].iter().filter_map(|prefix| bias(prefix)).flatten().collect();
            at += joined.len();
            let row_bytes = one.bytes.len() / one.rows();
            let rows: Vec<&[u8]> =
                joined.iter().flat_map(|tensor| tensor.bytes.chunks_exact(row_bytes)).collect();
            first = upload(self.gpu, one.format, one.cols(), &rows, &biases, first, &mut parts)?;
        }
        Ok(parts)
    }
}

/// Uploads `rows` of one format, whose products begin in column `first` of the result; returns the column behind them.
pub(super) fn upload(
    gpu: &Gpu,
    format: &'static Format,
    cols: usize,
    rows: &[&[u8]],
    biases: &[f32],
    first: usize,
    parts: &mut Vec<Part>,
) -> Result<usize> {
    let Format { name, integer, ggml_type, .. } = *format;
    if source::format(ggml_type).is_none() {
        return Err(Error::unsupported(format!(
            "weights in format {name} on this device; `--device cpu` computes them"
        )));
    }
    if integer && !cols.is_multiple_of(ACTIVATION_BLOCK) {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    // One word more, so that bytes that lie across two words need no care at the end.
    let row_words = rows[0].len().div_ceil(4) + 1;
    let limit = usize::try_from(gpu.info().binding_bytes).unwrap_or(usize::MAX);
    let most = limit / (4 * row_words * TILE) * TILE;
    if most == 0 {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    let kernels = [1, ROWS].map(|rows| gpu.kernel(Kernel::Matmul(ggml_type, rows)));
    let mut first = first;
    for (index, rows) in rows.chunks(most).enumerate() {
        let bytes = rows.len().next_multiple_of(TILE) * row_words * 4;
        let matrix = gpu.buffer(name, bytes);
        let piece = (PIECE / (4 * row_words * TILE)).max(1) * TILE;
        for (at, rows) in rows.chunks(piece).enumerate() {
            gpu.write(&matrix, at * piece * row_words * 4, &tiled(rows, row_words));
        }
        gpu.check()?;
        let own = biases.get(index * most..).map(|rest| &rest[..rows.len().min(rest.len())]);
        let bias = own.filter(|own| !own.is_empty()).map(|own| gpu.upload_floats("bias", own));
        let (rows, kernels) = (rows.len(), kernels.clone());
        parts.push(Part { matrix, integer, bias, rows, cols, row_words, first, kernels, bytes });
        first += rows;
    }
    Ok(first)
}

/// Rows of bytes as words, tile by tile: word `k` of the 32 rows of a tile side by side.
fn tiled(rows: &[&[u8]], row_words: usize) -> Vec<u32> {
    let mut all = vec![0u32; rows.len().next_multiple_of(TILE) * row_words];
    for (at, row) in rows.iter().enumerate() {
        let tile = at / TILE * TILE * row_words + at % TILE;
        for (k, bytes) in row.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            all[tile + k * TILE] = u32::from_le_bytes(word);
        }
    }
    all
}
