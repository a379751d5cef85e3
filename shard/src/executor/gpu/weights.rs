//! Weights in the device's memory: matrices as the file stores them, their words in tiles of 32 rows.

use std::sync::Arc;

use scheduler::LayerRange;

use super::{
    device::{Compiled, Gpu, Reserved},
    formats::{DeviceFormat, row_bytes},
    source::{Curve, Kernel, Places, ROWS},
    state,
};
use crate::{
    Error, Result,
    gguf::{Gguf, Tensor},
    models::{
        ATTENTION_NORM, Attention, Blueprint, Dense, Experts, FeedForward, HEAD_NORM, Layer, Softmax,
        layer_name,
    },
    quant::{self, ACTIVATION_BLOCK, Format},
};

/// Rows side by side in memory.
const TILE: usize = 32;
/// Most experts that a row chooses from, and most that it visits.
const MOST_EXPERTS: usize = 512;
const MOST_VISITS: usize = 32;
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
    _memory: Reserved,
}

/// A norm, weights and then biases.
pub(super) struct NormPart {
    pub weights: wgpu::Buffer,
    pub has_bias: bool,
}

/// The norms of a layer's sublayers, of attention and of the network; a layer has those that its tensors say.
pub(super) struct LayerNorms {
    /// Of the residual row that goes in.
    pub before: [Option<NormPart>; 2],
    /// Of what goes into the last matrix.
    pub inside: [Option<NormPart>; 2],
    /// Of what comes out.
    pub after: [Option<NormPart>; 2],
}

/// Everything one layer computes with.
pub(super) struct LayerParts {
    pub norms: LayerNorms,
    /// Whether the network reads the residual row that attention reads.
    pub parallel: bool,
    pub spec: Softmax,
    pub qkv: Vec<Part>,
    /// The norms of queries and of keys, one after the other.
    pub head_norms: wgpu::Buffer,
    pub has_head_norms: [bool; 2],
    pub sinks: Option<wgpu::Buffer>,
    pub out: Vec<Part>,
    pub gate_up: Vec<Part>,
    pub width: usize,
    pub curve: Kernel,
    pub down: Vec<Part>,
    /// Where the network is one of experts: `gate_up` and `down` are those of all of them.
    pub experts: Option<ExpertParts>,
}

/// What chooses experts.
pub(super) struct ExpertParts {
    pub router: Vec<Part>,
    pub spec: Experts,
}

impl LayerParts {
    /// Bytes of the layer's matrices.
    pub fn bytes(&self) -> usize {
        self.bytes_with(|_| 1.0)
    }

    /// Bytes of those that a token passes through.
    pub fn bytes_per_token(&self) -> usize {
        self.bytes_with(|spec| spec.used as f64 / spec.count as f64)
    }

    fn bytes_with(&self, share: impl Fn(&Experts) -> f64) -> usize {
        let bytes = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<usize>();
        let network = bytes(&self.gate_up) + bytes(&self.down);
        let (router, network) = match &self.experts {
            None => (0, network),
            Some(ExpertParts { router, spec }) => (bytes(router), (network as f64 * share(spec)) as usize),
        };
        bytes(&self.qkv) + bytes(&self.out) + router + network
    }
}

/// The part of a layer behind attention.
struct NetworkParts {
    gate_up: Vec<Part>,
    width: usize,
    curve: Kernel,
    down: Vec<Part>,
    experts: Option<ExpertParts>,
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
        (Attention::Softmax(softmax), FeedForward::Dense(_) | FeedForward::Experts(_)) => {
            let whole = layer.tensors.iter().any(|rule| {
                matches!(rule.name, "attn_k_norm.weight") && rule.dims[0] != blueprint.kv.head_dim
            });
            let narrow = layer.tensors.iter().any(|rule| {
                matches!(rule.name, "attn_sub_norm.weight") && rule.dims[0] != blueprint.q_width()
            });
            match () {
                () if blueprint.unusual(layer).is_some() => blueprint.unusual(layer),
                () if softmax.gated => Some("gated attention"),
                () if whole => Some("norms over all heads"),
                () if narrow => Some("norms inside a sublayer of this width"),
                () => match &layer.feed_forward {
                    FeedForward::Experts(experts) => beyond_experts(layer, experts),
                    other => {
                        let curve = other.dense().and_then(|dense| Curve::of(dense.activation));
                        curve.is_none().then_some("this activation")
                    }
                },
            }
        }
        (Attention::Softmax(_), FeedForward::Both(..)) => Some("experts beside a network"),
        (Attention::Softmax(_), FeedForward::None) => Some("layers without a network"),
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

/// Why `experts` are not computed here.
fn beyond_experts(layer: &Layer, experts: &Experts) -> Option<&'static str> {
    let plain = |name: &str| {
        ["ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"]
            .contains(&name)
    };
    let belongs =
        |name: &str| name.contains("_exps") || name.contains("exp_probs") || name.contains("gate_inp");
    let other = layer.tensors.iter().any(|rule| belongs(rule.name) && !plain(rule.name));
    let too_many = experts.count > MOST_EXPERTS || experts.used > MOST_VISITS;
    match () {
        () if experts.shared.is_some() => Some("experts that every token visits"),
        () if experts.groups.is_some() => Some("experts in groups"),
        () if experts.weighs_input => Some("experts whose inputs are weighed"),
        () if experts.latent.is_some() => Some("experts of narrower rows"),
        () if other || too_many || !experts.width.is_multiple_of(TILE) => Some("experts of this kind"),
        () if !experts.activation.gated() || Curve::of(experts.activation).is_none() => {
            Some("this activation")
        }
        () => None,
    }
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
        let Attention::Softmax(spec) = layer.attention else {
            return Err(Error::unsupported("recurrent layers on this device"));
        };
        let network = match layer.feed_forward {
            FeedForward::Dense(dense) => self.dense(index, dense)?,
            FeedForward::Experts(experts) => self.experts(index, experts)?,
            FeedForward::None | FeedForward::Both(..) => {
                return Err(Error::unsupported("experts beside a network on this device"));
            }
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
        let norm = |suffix: &str| {
            let prefix = name(suffix);
            self.gguf.info(&format!("{prefix}.weight")).map(|_| self.norm(&prefix)).transpose()
        };
        // Some families call the norm of what goes into the network so.
        let after = match layer.feed_forward_norm {
            "post_attention_norm" => None,
            _ => norm("post_attention_norm")?,
        };
        Ok(LayerParts {
            norms: LayerNorms {
                before: [norm(ATTENTION_NORM)?, norm(layer.feed_forward_norm)?],
                inside: [norm("attn_sub_norm")?, norm("ffn_sub_norm")?],
                after: [after, norm("post_ffw_norm")?],
            },
            parallel: layer.parallel(),
            spec,
            qkv,
            head_norms: self.gpu.upload_floats("head norms", &both),
            has_head_norms,
            sinks: self
                .vector(&name("attn_sinks.weight"))
                .map(|sinks| self.gpu.upload_floats("sinks", &sinks)),
            out: self.matrices(&[&name("attn_output")])?,
            gate_up: network.gate_up,
            width: network.width,
            curve: network.curve,
            down: network.down,
            experts: network.experts,
        })
    }

    fn dense(&self, index: usize, dense: Dense) -> Result<NetworkParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let curve = Curve::of(dense.activation).ok_or_else(|| Error::unsupported("this activation"))?;
        let (curve, gate_up) = match dense.activation.gated() {
            false => (Kernel::Curve(curve), self.matrices(&[&name("ffn_up")])?),
            true if self.gguf.info(&name("ffn_gate.weight")).is_none() => {
                (Kernel::Gate(curve), self.matrices(&[&name("ffn_up")])?)
            }
            true => (Kernel::Gate(curve), self.matrices(&[&name("ffn_gate"), &name("ffn_up")])?),
        };
        let down = self.matrices(&[&name("ffn_down")])?;
        Ok(NetworkParts { gate_up, width: dense.width, curve, down, experts: None })
    }

    /// All experts' matrices, each of one format and in one binding; the rows of gate and up of an expert one behind the other.
    fn experts(&self, index: usize, spec: Experts) -> Result<NetworkParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let curve = Curve::of(spec.activation).ok_or_else(|| Error::unsupported("this activation"))?;
        let one = |what: &str, mut parts: Vec<Part>, ggml_type: u32, places: Places| -> Result<Vec<Part>> {
            if parts.len() != 1 {
                return Err(Error::unsupported(format!(
                    "{what} in one binding on this device; `--device cpu` computes them"
                )));
            }
            let kernel = self.gpu.kernel(Kernel::Matmul { ggml_type, rows: 1, places });
            parts.iter_mut().for_each(|part| part.kernels = [kernel.clone(), kernel.clone()]);
            Ok(parts)
        };
        let (gate, up, down) = (
            self.gguf.require(&name("ffn_gate_exps.weight"))?,
            self.gguf.require(&name("ffn_up_exps.weight"))?,
            self.gguf.require(&name("ffn_down_exps.weight"))?,
        );
        if gate.format != up.format || !self.blueprint.hidden.is_multiple_of(TILE) {
            return Err(Error::unsupported(
                "experts of several formats on this device; `--device cpu` computes them",
            ));
        }
        let both: Vec<&[u8]> = (0..spec.count)
            .flat_map(|e| [rows_of(&gate, e, spec.width), rows_of(&up, e, spec.width)].concat())
            .collect();
        let mut gate_up = Vec::new();
        upload(self.gpu, gate.format, gate.cols(), &both, &[], 0, &mut gate_up)?;
        let rows: Vec<&[u8]> = down.bytes.chunks_exact(down.bytes.len() / down.rows()).collect();
        let mut parts = Vec::new();
        upload(self.gpu, down.format, down.cols(), &rows, &[], 0, &mut parts)?;
        Ok(NetworkParts {
            gate_up: one("gates of all experts", gate_up, gate.format.ggml_type, Places::Visits)?,
            width: spec.width,
            curve: Kernel::Gate(curve),
            down: one("all experts", parts, down.format.ggml_type, Places::Experts)?,
            experts: Some(ExpertParts { router: self.matrices(&[&name("ffn_gate_inp")])?, spec }),
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

/// The rows of one of the experts whose matrices are stacked in `tensor`, `rows` each.
fn rows_of<'t>(tensor: &Tensor<'t>, expert: usize, rows: usize) -> Vec<&'t [u8]> {
    let bytes = tensor.bytes.len() / tensor.rows();
    tensor.bytes[expert * rows * bytes..][..rows * bytes].chunks_exact(bytes).collect()
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
    let Some(stored) = DeviceFormat::of(ggml_type) else {
        return Err(Error::unsupported(format!(
            "weights in format {name} on this device; `--device cpu` computes them"
        )));
    };
    if integer && !cols.is_multiple_of(ACTIVATION_BLOCK) {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    // One word more, so that bytes that lie across two words need no care at the end.
    let row_words = row_bytes(format, rows[0].len()).div_ceil(4) + 1;
    let limit = usize::try_from(gpu.info().binding_bytes).unwrap_or(usize::MAX);
    let most = limit / (4 * row_words * TILE) * TILE;
    if most == 0 {
        return Err(Error::unsupported(format!("rows of {cols} values in format {name} on this device")));
    }
    let places = Places::Rows;
    let kernels = [1, ROWS].map(|rows| gpu.kernel(Kernel::Matmul { ggml_type, rows, places }));
    let mut first = first;
    for (index, rows) in rows.chunks(most).enumerate() {
        let bytes = rows.len().next_multiple_of(TILE) * row_words * 4;
        let memory = gpu.reserve(bytes)?;
        let matrix = gpu.buffer(name, bytes);
        let piece = (PIECE / (4 * row_words * TILE)).max(1) * TILE;
        for (at, rows) in rows.chunks(piece).enumerate() {
            gpu.write(&matrix, at * piece * row_words * 4, &tiled(rows, row_words, &stored));
        }
        gpu.check()?;
        let own = biases.get(index * most..).map(|rest| &rest[..rows.len().min(rest.len())]);
        let bias = own.filter(|own| !own.is_empty()).map(|own| gpu.upload_floats("bias", own));
        let (rows, kernels) = (rows.len(), kernels.clone());
        parts.push(Part {
            matrix,
            integer,
            bias,
            rows,
            cols,
            row_words,
            first,
            kernels,
            bytes,
            _memory: memory,
        });
        first += rows;
    }
    Ok(first)
}

/// Bytes that the matrices of the layers `layers`, each with what a session of `context` positions remembers there, take on a
/// device; the last number is for the head.
pub(in crate::executor) fn needed_bytes(
    gguf: &Gguf,
    blueprint: &Blueprint,
    layers: LayerRange,
    context: usize,
) -> (Vec<u64>, u64) {
    let of = |belongs: &dyn Fn(&str) -> bool| -> u64 {
        let matrices = gguf.tensors().iter().filter(|info| belongs(&info.name) && info.dims.len() > 1);
        matrices
            .map(|info| {
                let rows = info.dims[1..].iter().product::<u64>().max(1) as usize;
                let bytes = info.len as usize / rows;
                let format = quant::ALL.iter().find(|format| format.ggml_type == info.ggml_type);
                let row_words = format.map_or(bytes, |format| row_bytes(format, bytes)).div_ceil(4) + 1;
                (rows.next_multiple_of(TILE) * row_words * 4) as u64
            })
            .sum()
    };
    let head = if blueprint.head.tied { "token_embd.weight" } else { "output.weight" };
    let state = state::growth_bytes(blueprint.kv, context);
    let layer = |index: u32| {
        let prefix = format!("blk.{index}.");
        of(&|name| name.starts_with(&prefix)) + state
    };
    ((layers.start()..layers.end()).map(layer).collect(), of(&|name| name == head))
}

/// Rows of bytes as words, tile by tile: word `k` of the 32 rows of a tile side by side.
fn tiled(rows: &[&[u8]], row_words: usize, format: &DeviceFormat) -> Vec<u32> {
    let mut all = vec![0u32; rows.len().next_multiple_of(TILE) * row_words];
    let mut other = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let row = match format.repack {
            None => row,
            Some(repack) => {
                other.clear();
                repack(row, &mut other);
                &other[..]
            }
        };
        let tile = at / TILE * TILE * row_words + at % TILE;
        for (k, bytes) in row.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            all[tile + k * TILE] = u32::from_le_bytes(word);
        }
    }
    all
}
