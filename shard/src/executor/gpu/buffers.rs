//! The device's memory for passes, and the dispatches of a layer bound to it.

use std::sync::Arc;

use super::{
    GpuShard,
    device::{Compiled, Gpu, dispatch},
    source::{Kernel, ROWS},
    state::Arena,
    weights::{LayerParts, NormPart, Part},
};
use crate::{
    Error, Result,
    executor::{Buffers, Capacity, Gave, batch::Span},
    kernels::Pairing,
    models::NormKind,
};

/// What a pass keeps on the device, `[rows][width]` each.
pub(super) struct Scratch {
    /// What a pass is about, for all rows and for those that are wanted.
    pub info: [wgpu::Buffer; 2],
    /// Residual rows, all and those that are wanted.
    pub x: [wgpu::Buffer; 2],
    /// A row as the next matrix reads it: as f32, rounded, scales, sums.
    row: [wgpu::Buffer; 4],
    qkv: wgpu::Buffer,
    queries: wgpu::Buffer,
    attended: wgpu::Buffer,
    inner: wgpu::Buffer,
    /// Cosines and sines of each rotation.
    pub angles: Vec<wgpu::Buffer>,
    pub logits: wgpu::Buffer,
    /// Where there is nothing to read.
    nothing: wgpu::Buffer,
}

/// One dispatch: kernels for one row and for several, what they read and write, workgroups.
struct Step {
    kernels: [Arc<Compiled>; 2],
    bind: wgpu::BindGroup,
    groups: Groups,
}

/// Workgroups of a dispatch over n rows.
#[derive(Clone, Copy)]
enum Groups {
    /// One a row.
    Rows,
    /// So many for each row.
    Each(u32),
    /// So many for each few rows.
    Matrix(u32),
}

/// The dispatches of a layer, or of what follows the last one.
pub(super) struct Steps(Vec<Step>);

/// The buffers of one executor's passes, and the results of the last one.
pub(super) struct GpuBuffers {
    pub capacity: Capacity,
    /// The executor they were made for, by its address.
    pub owner: usize,
    pub scratch: Scratch,
    pub spans: Vec<Span>,
    /// For each layer held, its dispatches and the buffer of pages that they are bound to.
    pub layers: Vec<Option<(wgpu::Buffer, Steps)>>,
    pub tail: Option<Steps>,
    pub gave: Gave,
    pub results: Vec<f32>,
    /// Values of one row of the results.
    pub width: usize,
}

impl Buffers for GpuBuffers {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn given(&self, gave: Gave, index: usize) -> &[f32] {
        let Some(span) = self.spans.get(index).filter(|_| self.gave == gave && !self.results.is_empty())
        else {
            return &[];
        };
        &self.results[span.first_wanted * self.width..][..span.wanted * self.width]
    }

    fn clear(&mut self) {
        self.results.clear();
        self.spans.clear();
    }
}

impl GpuBuffers {
    /// For passes of `shard` up to `capacity`.
    pub fn new(shard: &GpuShard, capacity: Capacity) -> Result<Self> {
        let (gpu, b) = (&shard.gpu, &shard.blueprint);
        let logit_rows = if shard.head.is_some() { capacity.logit_rows.min(capacity.rows) } else { 0 };
        let rows = capacity.rows;
        let widest = b.hidden.max(b.q_width()).max(b.widest());
        let floats = |label: &str, width: usize| gpu.buffer(label, 4 * rows * width);
        let tables = shard.context.div_ceil(crate::kernels::PAGE);
        let info = 4 + 2 * rows + shard.layers.len().max(1) * capacity.items * tables;
        let largest = 4 * (rows * 2 * widest).max(logit_rows * b.vocab).max(info);
        if largest as u64 > gpu.info().binding_bytes {
            return Err(Error::invalid(format!(
                "passes of {rows} rows need {largest} bytes in one buffer, the device has {}; ask for fewer rows",
                gpu.info().binding_bytes
            )));
        }
        let scratch = Scratch {
            info: [gpu.buffer("pass", 4 * info), gpu.buffer("pass", 16)],
            x: [floats("x", b.hidden), floats("x wanted", b.hidden)],
            row: [
                floats("row", widest),
                gpu.buffer("codes", rows * widest),
                gpu.buffer("scales", rows * widest / 8),
                gpu.buffer("sums", rows * widest / 4),
            ],
            qkv: floats("qkv", b.q_width() + 2 * b.kv_width()),
            queries: floats("queries", b.q_width()),
            attended: floats("attended", b.q_width()),
            inner: floats("inner", 2 * b.widest()),
            angles: b.ropes.iter().map(|rope| floats("angles", rope.dims)).collect(),
            logits: gpu.buffer("logits", 4 * logit_rows * b.vocab),
            nothing: gpu.buffer("nothing", 16),
        };
        gpu.check()?;
        Ok(Self {
            capacity: Capacity { logit_rows, ..capacity },
            owner: std::ptr::from_ref(shard).addr(),
            scratch,
            spans: Vec::with_capacity(capacity.items),
            layers: shard.layers.iter().map(|_| None).collect(),
            tail: None,
            gave: Gave::Rows,
            results: Vec::new(),
            width: 0,
        })
    }
}

/// Makes dispatches.
struct Binder<'a> {
    gpu: &'a Gpu,
    scratch: &'a Scratch,
    info: &'a wgpu::Buffer,
    steps: Vec<Step>,
}

impl Binder<'_> {
    fn add(
        &mut self,
        kernels: [Arc<Compiled>; 2],
        params: &[u32],
        buffers: &[&wgpu::Buffer],
        groups: Groups,
    ) {
        let params = self.gpu.upload("params", params);
        let all: Vec<&wgpu::Buffer> =
            [self.info, &params].into_iter().chain(buffers.iter().copied()).collect();
        let bind = self.gpu.bind(&kernels[0], &all);
        self.steps.push(Step { kernels, bind, groups });
    }

    /// A row made by `kernel` of `from`, `cols` wide, and rounded.
    fn row(&mut self, kernel: Kernel, from: &wgpu::Buffer, cols: usize, norm: Option<(&NormPart, f32)>) {
        let kernel = self.gpu.kernel(kernel);
        let weights = norm.map_or(&self.scratch.nothing, |(norm, _)| &norm.weights);
        let params = match norm {
            Some((norm, eps)) => [cols as u32, eps.to_bits(), u32::from(norm.has_bias)],
            None => [cols as u32, 0, 0],
        };
        let [row, codes, scales, sums] = &self.scratch.row;
        let buffers = [from, weights, row, codes, scales, sums];
        self.add([kernel.clone(), kernel], &params, &buffers, Groups::Rows);
    }

    /// The row times matrices, into `out` of `stride` columns; with a factor, added to what is there.
    fn products(&mut self, parts: &[Part], out: &wgpu::Buffer, stride: usize, added: Option<f32>) {
        let [row, codes, scales, sums] = &self.scratch.row;
        for part in parts {
            let adds = added.map_or(0, |factor| if factor == 1.0 { 1 } else { 2 });
            let params = [
                part.rows as u32,
                part.cols as u32,
                part.row_words as u32,
                stride as u32,
                part.first as u32,
                u32::from(part.bias.is_some()),
                adds,
                added.unwrap_or(0.0).to_bits(),
            ];
            let x = if part.integer { codes } else { row };
            let bias = part.bias.as_ref().unwrap_or(&self.scratch.nothing);
            let groups = Groups::Matrix(part.rows.div_ceil(64) as u32);
            self.add(part.kernels.clone(), &params, &[&part.matrix, x, scales, sums, bias, out], groups);
        }
    }
}

impl Steps {
    /// The dispatches of `layer`, number `held` of those held, whose pages are in `arena`.
    pub fn of_layer(
        shard: &GpuShard,
        scratch: &Scratch,
        (held, layer): (usize, &LayerParts),
        arena: &Arena,
    ) -> Self {
        let b = &shard.blueprint;
        let (heads, kv_heads, dim) = (b.heads as u32, b.kv.kv_heads as u32, b.kv.head_dim as u32);
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[0], steps: Vec::new() };
        let norm = Kernel::Norm { center: b.norm.kind == NormKind::Layer };
        let x = &scratch.x[0];
        let stride = b.q_width() + 2 * b.kv_width();
        binder.row(norm, x, b.hidden, Some((&layer.attention_norm, b.norm.eps)));
        binder.products(&layer.qkv, &scratch.qkv, stride, None);
        let (turning, apart, angles) = match layer.spec.rope {
            Some(rope) => {
                let apart = b.ropes[rope].pairing == Pairing::Halves;
                (b.ropes[rope].dims as u32, u32::from(apart), &scratch.angles[rope])
            }
            None => (0, 0, &scratch.nothing),
        };
        let [q_norm, k_norm] = layer.has_head_norms.map(u32::from);
        let params =
            [heads, kv_heads, dim, held as u32, turning, apart, q_norm, k_norm, b.norm.eps.to_bits()];
        let buffers = [&scratch.qkv, angles, &layer.head_norms, &scratch.queries, &arena.buffer];
        let kernel = shard.gpu.kernel(Kernel::Heads);
        binder.add([kernel.clone(), kernel], &params, &buffers, Groups::Each(heads + 2 * kv_heads));
        let params = [
            heads,
            kv_heads,
            dim,
            held as u32,
            layer.spec.window.map_or(u32::MAX, |window| window as u32),
            layer.spec.scale.to_bits(),
            layer.spec.softcap.map_or(0, f32::to_bits),
            u32::from(layer.sinks.is_some()),
        ];
        let sinks = layer.sinks.as_ref().unwrap_or(&scratch.nothing);
        let kernel = shard.gpu.kernel(Kernel::Attention);
        let buffers = [&scratch.queries, &arena.buffer, sinks, &scratch.attended];
        binder.add([kernel.clone(), kernel], &params, &buffers, Groups::Each(heads));
        binder.row(Kernel::Copy, &scratch.attended, b.q_width(), None);
        binder.products(&layer.out, x, b.hidden, Some(b.residual_scale));
        binder.row(norm, x, b.hidden, Some((&layer.feed_forward_norm, b.norm.eps)));
        let gated = matches!(layer.curve, Kernel::Gate(_));
        let inner = layer.width * if gated { 2 } else { 1 };
        binder.products(&layer.gate_up, &scratch.inner, inner, None);
        binder.row(layer.curve, &scratch.inner, layer.width, None);
        binder.products(&layer.down, x, b.hidden, Some(b.residual_scale));
        Self(binder.steps)
    }

    /// The dispatches after the last layer, over the wanted rows: the norm, which leaves the hidden states, and the head.
    pub fn of_head(shard: &GpuShard, scratch: &Scratch, (norm, parts): (&NormPart, &[Part])) -> Self {
        let b = &shard.blueprint;
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[1], steps: Vec::new() };
        let kernel = Kernel::Norm { center: b.norm.kind == NormKind::Layer };
        binder.row(kernel, &scratch.x[1], b.hidden, Some((norm, b.norm.eps)));
        binder.products(parts, &scratch.logits, b.vocab, None);
        Self(binder.steps)
    }

    /// Records them for `rows` rows; the first alone for hidden states.
    pub fn record(&self, pass: &mut wgpu::ComputePass<'_>, rows: usize, first_only: bool) {
        let rows = rows as u32;
        let count = if first_only { 1 } else { self.0.len() };
        for step in &self.0[..count] {
            let (kernel, groups) = match step.groups {
                Groups::Rows => (&step.kernels[0], [rows, 1]),
                Groups::Each(x) => (&step.kernels[0], [x, rows]),
                Groups::Matrix(x) if rows == 1 => (&step.kernels[0], [x, 1]),
                Groups::Matrix(x) => (&step.kernels[1], [x, rows.div_ceil(ROWS)]),
            };
            dispatch(pass, kernel, &step.bind, groups);
        }
    }

    /// Number of dispatches.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Scratch {
    /// The row as the head reads it: hidden states.
    pub fn states(&self) -> &wgpu::Buffer {
        &self.row[0]
    }
}
