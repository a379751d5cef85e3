//! The second executor: the same blueprints interpreted with candle tensors.
//!
//! On the CPU it is the independent reference of the tests: another project's matrix products, softmax and elementary
//! functions on dequantized f32 weights. With the features `cuda` and `metal` it runs on the GPU, quantized weights kept
//! as they are where candle knows the format. Its numbers are near those of [`super::cpu`], not the same bits: class `approx`.
//!
//! Limits: the items of a batch run one after the other; keys and values are kept as f32 and concatenated, so a long context
//! costs more than in [`super::cpu`]; the experts of a layer run one after the other.

use std::collections::HashMap;

use candle_core::{
    D, DType, Device, IndexOp, Module, Tensor,
    quantized::{GgmlDType, QMatMul, QStorage, QTensor},
};
use scheduler::{CacheType, LayerRange, SessionKind};

use super::{
    Buffers, Capacity, Class, Ends, Executor, Gave, Input, Item, Options, Pass, Workspace,
    batch::{Span, check_load, round_at},
    host::{HostBuffers, pass_each},
    read_bytes,
    tags::Tags,
};
use crate::{
    Error, Result,
    gguf::Gguf,
    kernels::{KvShape, Pairing},
    models::{
        Activation, Attention, Blueprint, Dense, Experts, Factors, FeedForward, Frequencies, HEAD_NORM,
        Layer, NormKind, Softmax, layer_name,
    },
    round::Rounding,
    state::LayerState,
};

impl From<candle_core::Error> for Error {
    fn from(e: candle_core::Error) -> Self {
        Self::invalid(format!("candle: {e}"))
    }
}

/// How matrices are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As f32: slower, the reference.
    Dequantized,
    /// As in the file where candle has kernels for the format, else as f32.
    Quantized,
}

/// The layers and ends of one model on one device.
pub struct CandleShard {
    blueprint: Blueprint,
    range: LayerRange,
    ends: Ends,
    frequencies: Vec<Frequencies>,
    vectors: HashMap<String, Tensor>,
    matrices: HashMap<String, QMatMul>,
    experts: HashMap<String, Vec<QMatMul>>,
    embedding: Option<Tensor>,
    device: Device,
    context: usize,
    tags: Tags,
    /// Bytes of all tensors.
    resident: usize,
}

/// Keys and values of one session in one layer, `[kv heads][positions][head_dim]`.
struct Cached {
    /// Of the positions held.
    now: Option<(Tensor, Tensor)>,
    /// Those and the rows of the pass under way.
    next: Option<(Tensor, Tensor)>,
    shape: KvShape,
    device: Device,
}

impl CandleShard {
    /// Loads `layers` and `ends` of the model in `gguf`.
    ///
    /// # Errors
    /// Those of [`super::load`]; [`Error::Invalid`] with what candle says.
    pub fn load(
        gguf: &Gguf,
        device: &Device,
        layers: LayerRange,
        ends: Ends,
        options: Options,
        keep: Keep,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_gguf(gguf)?;
        let context = check_load(&blueprint, layers, ends, options)?;
        let known = |layer: &Layer| match layer.attention {
            Attention::Softmax(softmax) => !softmax.gated,
            // Refused by its own name.
            Attention::Latent(_) => true,
            _ => false,
        };
        if !blueprint.layers.iter().all(known) {
            return Err(Error::unsupported("recurrent layers on this device; `--device cpu` computes them"));
        }
        if let Some(what) = blueprint.beyond_plain() {
            return Err(Error::unsupported(format!("{what} on this device; `--device cpu` computes them")));
        }
        let frequencies: Vec<_> = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        let mut shard = Self {
            range: layers,
            ends,
            context,
            tags: Tags::new(gguf, "candle", &blueprint, layers, &frequencies),
            frequencies,
            resident: 0,
            vectors: HashMap::new(),
            matrices: HashMap::new(),
            experts: HashMap::new(),
            embedding: None,
            device: device.clone(),
            blueprint,
        };
        for info in gguf.tensors() {
            if shard.needs(&info.name) {
                shard.add(gguf, &info.name, keep)?;
            }
        }
        if shard.ends.embedding {
            let table = shard.float(gguf, "token_embd.weight")?;
            shard.resident += 4 * table.elem_count();
            shard.embedding = Some(table);
        }
        Ok(shard)
    }

    fn needs(&self, name: &str) -> bool {
        match name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()) {
            Some(layer) => self.range.contains(layer),
            None if name == "token_embd.weight" => self.ends.head && self.blueprint.head.tied,
            None => self.ends.head,
        }
    }

    fn float(&self, gguf: &Gguf, name: &str) -> Result<Tensor> {
        let tensor = gguf.require(name)?;
        Ok(Tensor::from_vec(tensor.to_f32(), (tensor.rows(), tensor.cols()), &self.device)?)
    }

    fn add(&mut self, gguf: &Gguf, name: &str, keep: Keep) -> Result<()> {
        let tensor = gguf.require(name)?;
        if tensor.info.dims.len() == 1 {
            let vector = Tensor::from_vec(tensor.to_f32(), tensor.cols(), &self.device)?;
            // The gate of a shared expert is a matrix of one row, written as a vector by some tools.
            if name.ends_with("ffn_gate_inp_shexp.weight") {
                self.matrices.insert(name.into(), QMatMul::Tensor(vector.reshape((1, tensor.cols()))?));
            } else {
                self.vectors.insert(name.into(), vector);
            }
            return Ok(());
        }
        if Factors::read(gguf, &self.blueprint, &tensor).is_some() {
            return Err(Error::unsupported("factors of matrices by this executor"));
        }
        let (cols, stacked) = (tensor.cols(), tensor.info.dims.get(2).map_or(1, |&n| n as usize));
        let rows = tensor.rows() / stacked;
        let part = tensor.bytes.len() / stacked;
        let packed = keep == Keep::Quantized && ggml_type(tensor.format.name).is_some();
        self.resident += if packed { tensor.bytes.len() } else { 4 * rows * cols * stacked };
        let mut matrices = Vec::with_capacity(stacked);
        for bytes in tensor.bytes.chunks_exact(part) {
            let quantized = (keep == Keep::Quantized).then(|| ggml_type(tensor.format.name)).flatten();
            matrices.push(match quantized {
                Some(dtype) => {
                    let storage = QStorage::from_data(bytes.to_vec().into(), &self.device, dtype)?;
                    QMatMul::from_qtensor(QTensor::new(storage, (rows, cols))?)?
                }
                None => {
                    let mut values = vec![0.0; rows * cols];
                    (tensor.format.dequantize)(bytes, &mut values);
                    QMatMul::Tensor(Tensor::from_vec(values, (rows, cols), &self.device)?)
                }
            });
        }
        match (matrices.pop(), matrices.is_empty()) {
            (Some(matrix), true) => drop(self.matrices.insert(name.into(), matrix)),
            (Some(last), false) => {
                matrices.push(last);
                self.experts.insert(name.into(), matrices);
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// The rows of one item through the layers of a pass; what it remembers of them counts when the state advances.
    fn compute(&self, pass: Pass<'_>, item: &mut Item<'_>, span: Span, gave: Gave) -> Result<Vec<f32>> {
        let mut x = self.rows(item.input)?;
        for (at, layer) in (pass.layers.start()..pass.layers.end()).enumerate() {
            x = self.round(pass.rounding, layer, x)?;
            let cached = item.state.layer_mut::<Cached>(at);
            let cached = cached.ok_or_else(|| Error::invalid("the state is of another executor"))?;
            x = self.layer(layer as usize, cached, span.start, &x)?;
        }
        x = self.round(pass.rounding, pass.layers.end(), x)?;
        if span.wanted == 0 {
            return Ok(Vec::new());
        }
        let wanted = x.narrow(0, span.rows - span.wanted, span.wanted)?;
        let out = match gave {
            Gave::Rows => wanted,
            Gave::States => self.norm(HEAD_NORM, &wanted)?,
            Gave::Logits => self.head(&wanted)?,
        };
        Ok(out.flatten_all()?.to_vec1()?)
    }

    /// Rounds rows that cross `boundary`, if the session rounds there: on the host, by the same code as everywhere.
    fn round(&self, rounding: &Rounding, boundary: u32, x: Tensor) -> Result<Tensor> {
        if rounding.at(boundary).is_none() {
            return Ok(x);
        }
        let shape = x.dims2()?;
        let mut values = x.flatten_all()?.to_vec1()?;
        round_at(rounding, boundary, &mut values)?;
        Ok(Tensor::from_vec(values, shape, &self.device)?)
    }

    fn rows(&self, input: Input<'_>) -> Result<Tensor> {
        let hidden = self.blueprint.hidden;
        match (input, &self.embedding) {
            (Input::Tokens(ids), Some(table)) => {
                let ids = Tensor::new(ids, &self.device)?;
                Ok((table.index_select(&ids, 0)? * f64::from(self.blueprint.embedding.scale))?)
            }
            (Input::Activations(x), _) => {
                Ok(Tensor::from_slice(x, (x.len() / hidden, hidden), &self.device)?)
            }
            (Input::Tokens(_), None) => Err(Error::invalid("token ids for a shard without the embedding")),
        }
    }

    fn layer(&self, index: usize, cached: &mut Cached, start: usize, x: &Tensor) -> Result<Tensor> {
        let h = self.norm(&layer_name(index, "attn_norm"), x)?;
        let y = self.attention(index, cached, start, &h)?;
        let x = (x + self.norm_after(&layer_name(index, "post_attention_norm.weight"), y)?)?;
        let h = self.norm(&layer_name(index, "ffn_norm"), &x)?;
        let y = match &self.blueprint.layers[index].feed_forward {
            FeedForward::Dense(dense) => self.dense(index, dense, &h)?,
            FeedForward::Experts(experts) => self.experts(index, experts, &h)?,
            FeedForward::None | FeedForward::Both(..) => {
                return Err(Error::unsupported("experts beside a dense network"));
            }
        };
        Ok((&x + self.norm_after(&layer_name(index, "post_ffw_norm.weight"), y)?)?)
    }

    fn attention(&self, index: usize, cached: &mut Cached, start: usize, h: &Tensor) -> Result<Tensor> {
        let b = &self.blueprint;
        let Attention::Softmax(spec) = b.layers[index].attention else {
            return Err(Error::unsupported("recurrent layers"));
        };
        let n = h.dim(0)?;
        let [q, k, v] = if self.matrices.contains_key(&layer_name(index, "attn_qkv.weight")) {
            let all = self.linear(&layer_name(index, "attn_qkv"), h)?;
            let (q, kv) = (b.q_width(), b.kv_width());
            [all.narrow(1, 0, q)?, all.narrow(1, q, kv)?, all.narrow(1, q + kv, kv)?]
        } else {
            let part = |name: &str| self.linear(&layer_name(index, name), h);
            [part("attn_q")?, part("attn_k")?, part("attn_v")?]
        };
        let q = self.heads(index, "attn_q_norm.weight", q, b.heads, spec, start)?;
        let k = self.heads(index, "attn_k_norm.weight", k, b.kv.kv_heads, spec, start)?;
        let v = v.reshape((n, b.kv.kv_heads, b.kv.head_dim))?.transpose(0, 1)?.contiguous()?;
        let held = cached.now.as_ref().map_or(Ok(0), |(keys, _)| keys.dim(1))?;
        if held != start {
            return Err(Error::invalid(format!("the device has {held} of {start} positions")));
        }
        let (k, v) = match &cached.now {
            None => (k, v),
            Some((keys, values)) => (Tensor::cat(&[keys, &k], 1)?, Tensor::cat(&[values, &v], 1)?),
        };
        cached.next = Some((k.clone(), v.clone()));
        let group = b.heads / b.kv.kv_heads;
        let spread = |x: &Tensor| -> Result<Tensor> {
            let (heads, len, dim) = x.dims3()?;
            let x = x.unsqueeze(1)?.expand((heads, group, len, dim))?;
            Ok(x.reshape((heads * group, len, dim))?.contiguous()?)
        };
        let mut scores = (q.matmul(&spread(&k)?.transpose(1, 2)?.contiguous()?)? * f64::from(spec.scale))?;
        if let Some(cap) = spec.softcap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        let scores = scores.broadcast_add(&self.mask(n, start, spec.window)?)?;
        let out = softmax(&scores)?.matmul(&spread(&v)?)?;
        let out = out.transpose(0, 1)?.contiguous()?.reshape((n, b.q_width()))?;
        self.linear(&layer_name(index, "attn_output"), &out)
    }

    /// `[n][heads * dim]` to `[heads][n][dim]`, normed per head where the model does, rotated.
    fn heads(
        &self,
        index: usize,
        norm: &str,
        x: Tensor,
        heads: usize,
        spec: Softmax,
        start: usize,
    ) -> Result<Tensor> {
        let (n, dim) = (x.dim(0)?, self.blueprint.kv.head_dim);
        let x = self.norm_after(&layer_name(index, norm), x.reshape((n, heads, dim))?)?;
        let x = x.transpose(0, 1)?.contiguous()?;
        let Some(rope) = spec.rope else { return Ok(x) };
        let (dims, pairing) = (self.blueprint.ropes[rope].dims, self.blueprint.ropes[rope].pairing);
        let mut table = vec![0.0; n * dims];
        for (row, table) in table.chunks_exact_mut(dims).enumerate() {
            self.frequencies[rope].fill(start + row, table);
        }
        let table = Tensor::from_vec(table, (1, n, dims / 2, 2), &self.device)?;
        let (cos, sin) = (table.i((.., .., .., 0))?, table.i((.., .., .., 1))?);
        let turning = x.narrow(2, 0, dims)?;
        let (a, b, joined_at) = match pairing {
            Pairing::Halves => (turning.narrow(2, 0, dims / 2)?, turning.narrow(2, dims / 2, dims / 2)?, 2),
            Pairing::Adjacent => {
                let pairs = turning.contiguous()?.reshape((heads, n, dims / 2, 2))?;
                (pairs.i((.., .., .., 0))?, pairs.i((.., .., .., 1))?, 3)
            }
        };
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        let turned = match joined_at {
            2 => Tensor::cat(&[&turned_a, &turned_b], 2)?,
            _ => Tensor::stack(&[&turned_a, &turned_b], 3)?.reshape((heads, n, dims))?,
        };
        if dims == dim {
            Ok(turned)
        } else {
            Ok(Tensor::cat(&[&turned, &x.narrow(2, dims, dim - dims)?], 2)?)
        }
    }

    /// 0 where row `i` sees position `j`, minus infinity elsewhere, `[1][n][start + n]`.
    fn mask(&self, n: usize, start: usize, window: Option<usize>) -> Result<Tensor> {
        let sees = |row: usize, position: usize| {
            position <= start + row && window.is_none_or(|window| start + row - position < window)
        };
        let value = |i: usize| if sees(i / (start + n), i % (start + n)) { 0.0 } else { f32::NEG_INFINITY };
        let mask: Vec<f32> = (0..n * (start + n)).map(value).collect();
        Ok(Tensor::from_vec(mask, (1, n, start + n), &self.device)?)
    }

    fn dense(&self, index: usize, spec: &Dense, h: &Tensor) -> Result<Tensor> {
        let up = self.linear(&layer_name(index, "ffn_up"), h)?;
        let inner = match spec.activation {
            Activation::Gelu => up.gelu()?,
            _ => {
                let fused = up.dim(1)? == 2 * spec.width;
                let gate = if fused {
                    up.narrow(1, 0, spec.width)?
                } else {
                    self.linear(&layer_name(index, "ffn_gate"), h)?
                };
                let up = if fused { up.narrow(1, spec.width, spec.width)? } else { up };
                let curve =
                    if spec.activation == Activation::GatedSilu { gate.silu()? } else { gate.gelu()? };
                (curve * up)?
            }
        };
        self.linear(&layer_name(index, "ffn_down"), &inner.contiguous()?)
    }

    fn experts(&self, index: usize, spec: &Experts, h: &Tensor) -> Result<Tensor> {
        let weights = self.expert_weights(index, spec, h)?;
        let part = |name: &str, expert: usize, x: &Tensor| -> Result<Tensor> {
            let name = layer_name(index, name);
            let matrices = self.experts.get(&name);
            let matrix = matrices.and_then(|all| all.get(expert)).or_else(|| self.matrices.get(&name));
            Ok(matrix.ok_or_else(|| Error::unsupported(format!("tensor {name} is missing")))?.forward(x)?)
        };
        let mut out = h.zeros_like()?;
        for expert in 0..spec.count {
            let gate = part("ffn_gate_exps.weight", expert, h)?;
            let up = part("ffn_up_exps.weight", expert, h)?;
            let y = part("ffn_down_exps.weight", expert, &(gate.silu()? * up)?)?;
            out = (out + y.broadcast_mul(&weights.narrow(1, expert, 1)?)?)?;
        }
        if spec.shared.is_some() {
            let part = |name: &str, x: &Tensor| self.linear(&layer_name(index, name), x);
            let inner = (part("ffn_gate_shexp", h)?.silu()? * part("ffn_up_shexp", h)?)?;
            let share = part("ffn_gate_inp_shexp", h)?;
            let share = ((share.neg()?.exp()? + 1.0)?).recip()?;
            out = (out + part("ffn_down_shexp", &inner)?.broadcast_mul(&share)?)?;
        }
        Ok(out)
    }

    /// The weight of every expert for every row, 0 for those not chosen, `[n][experts]`.
    fn expert_weights(&self, index: usize, spec: &Experts, h: &Tensor) -> Result<Tensor> {
        let scores = softmax(&self.linear(&layer_name(index, "ffn_gate_inp"), h)?)?.to_vec2::<f32>()?;
        let mut weights = vec![0.0f32; scores.len() * spec.count];
        for (row, weights) in scores.iter().zip(weights.chunks_exact_mut(spec.count)) {
            let mut order: Vec<usize> = (0..spec.count).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            order.truncate(spec.used);
            let total: f32 = if spec.renormalize { order.iter().map(|&e| row[e]).sum() } else { 1.0 };
            order.iter().for_each(|&e| weights[e] = row[e] / total * spec.scale);
        }
        Ok(Tensor::from_vec(weights, (scores.len(), spec.count), &self.device)?)
    }

    fn head(&self, x: &Tensor) -> Result<Tensor> {
        let head = self.blueprint.head;
        let h = self.norm(HEAD_NORM, x)?;
        let logits =
            (self.linear(if head.tied { "token_embd" } else { "output" }, &h)? * f64::from(head.scale))?;
        Ok(match head.softcap {
            Some(cap) => ((logits / f64::from(cap))?.tanh()? * f64::from(cap))?,
            None => logits,
        })
    }

    fn linear(&self, prefix: &str, x: &Tensor) -> Result<Tensor> {
        let name = format!("{prefix}.weight");
        let matrix = self
            .matrices
            .get(&name)
            .ok_or_else(|| Error::unsupported(format!("tensor {name} is missing")))?;
        let y = matrix.forward(x)?;
        match self.vectors.get(&format!("{prefix}.bias")) {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }

    fn norm(&self, prefix: &str, x: &Tensor) -> Result<Tensor> {
        let name = format!("{prefix}.weight");
        let weight =
            self.vectors.get(&name).ok_or_else(|| Error::unsupported(format!("tensor {name} is missing")))?;
        let x = match self.blueprint.norm.kind {
            NormKind::Rms => x.clone(),
            NormKind::Layer => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
        };
        let y = self.divide_by_rms(&x)?.broadcast_mul(weight)?;
        match self.vectors.get(&format!("{prefix}.bias")) {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }

    /// An RMS norm where the model has one of this name.
    fn norm_after(&self, name: &str, x: Tensor) -> Result<Tensor> {
        match self.vectors.get(name) {
            Some(weight) => Ok(self.divide_by_rms(&x)?.broadcast_mul(weight)?),
            None => Ok(x),
        }
    }

    fn divide_by_rms(&self, x: &Tensor) -> Result<Tensor> {
        let square = x.sqr()?.mean_keepdim(D::Minus1)?;
        Ok(x.broadcast_div(&(square + f64::from(self.blueprint.norm.eps))?.sqrt()?)?)
    }
}

impl Executor for CandleShard {
    fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    fn range(&self) -> LayerRange {
        self.range
    }

    fn ends(&self) -> Ends {
        self.ends
    }

    fn context(&self) -> usize {
        self.context
    }

    fn class(&self) -> Class {
        Class::Approx
    }

    fn device(&self) -> String {
        format!("candle on {:?}", self.device.location())
    }

    fn resident_bytes(&self) -> usize {
        self.resident
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        // Keys and values are f32 here, twice what a page keeps.
        self.resident + 2 * read_bytes(&self.blueprint, self.range, position)
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        self.tags.of(self.range, layers)
    }

    fn new_layer_state(&self, _layer: u32, _kind: SessionKind) -> Box<dyn LayerState> {
        let shape = self.blueprint.kv;
        Box::new(Cached { now: None, next: None, shape, device: self.device.clone() })
    }

    fn state_bytes(&self, layers: LayerRange, positions: usize, _cache: CacheType) -> usize {
        // A pass holds the old and the new tensors of a layer for a moment.
        layers.len() as usize * positions * 2 * size_of::<f32>() * self.blueprint.kv_width()
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        Ok(Box::new(HostBuffers::new(capacity)))
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        pass_each(self, ws, pass, items, |item, span, gave| self.compute(pass, item, span, gave))
    }
}

impl Cached {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.now.iter().flat_map(|(keys, values)| [keys, values])
    }
}

impl LayerState for Cached {
    fn kind(&self) -> String {
        format!("tensors f32 {} x {}", self.shape.kv_heads, self.shape.head_dim)
    }

    fn bytes(&self) -> usize {
        self.tensors().map(|tensor| tensor.elem_count() * size_of::<f32>()).sum()
    }

    fn reserve(&mut self, _positions: usize) {}

    fn rewind(&mut self, to: usize) {
        self.next = None;
        let cut = |tensor: &Tensor| tensor.narrow(1, 0, to)?.force_contiguous();
        self.now = match &self.now {
            Some((keys, values)) if to > 0 => cut(keys).and_then(|keys| Ok((keys, cut(values)?))).ok(),
            _ => None,
        };
    }

    fn advance(&mut self, _len: usize) {
        if let Some(next) = self.next.take() {
            self.now = Some(next);
        }
    }

    fn snapshot_len(&self, len: usize) -> usize {
        2 * len * self.shape.kv_heads * self.shape.head_dim * size_of::<f32>()
    }

    fn snapshot(&self, _len: usize, out: &mut Vec<u8>) -> Result<()> {
        for tensor in self.tensors() {
            let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        self.rewind(0);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::malformed("snapshot: value", "is not finite"));
        }
        if len > 0 {
            let shape = (self.shape.kv_heads, len, self.shape.head_dim);
            let (keys, rest) = values.split_at(values.len() / 2);
            let tensor = |values: &[f32]| Tensor::from_slice(values, shape, &self.device);
            self.now = Some((tensor(keys)?, tensor(rest)?));
        }
        Ok(())
    }
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let exps = x.to_dtype(DType::F32)?.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    Ok(exps.broadcast_div(&exps.sum_keepdim(D::Minus1)?)?)
}

fn ggml_type(name: &str) -> Option<GgmlDType> {
    Some(match name {
        "f32" => GgmlDType::F32,
        "f16" => GgmlDType::F16,
        "q4_0" => GgmlDType::Q4_0,
        "q4_1" => GgmlDType::Q4_1,
        "q5_0" => GgmlDType::Q5_0,
        "q5_1" => GgmlDType::Q5_1,
        "q8_0" => GgmlDType::Q8_0,
        "q2_k" => GgmlDType::Q2K,
        "q3_k" => GgmlDType::Q3K,
        "q4_k" => GgmlDType::Q4K,
        "q5_k" => GgmlDType::Q5K,
        "q6_k" => GgmlDType::Q6K,
        _ => return None,
    })
}
