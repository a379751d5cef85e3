//! The device's memory for passes, and the dispatches of a layer bound to it.

use std::sync::Arc;

use super::{
    GpuShard,
    device::{Compiled, Gpu, Reserved, dispatch},
    source::{Kernel, ROWS},
    state::Arena,
    weights::{ExpertParts, LayerNorms, LayerParts, NormPart, Part},
};
use crate::{
    Error, Result,
    executor::{Buffers, Capacity, Gave, batch::Span},
    kernels::{PAGE, Pairing},
    models::{Blueprint, Experts, NormKind, Router},
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
    /// A row between two norms, and what a sublayer made before it is added.
    between: [wgpu::Buffer; 2],
    /// Of experts: what the router says, and which are visited, with their weights.
    experts: [wgpu::Buffer; 2],
    /// Cosines and sines of each rotation.
    pub angles: Vec<wgpu::Buffer>,
    pub logits: wgpu::Buffer,
    /// The largest logits of parts of rows, and of rows: ids, then keys.
    pub top: [wgpu::Buffer; 2],
    /// Where there is nothing to read.
    nothing: wgpu::Buffer,
}

/// Most of the largest logits of a row that the device finds.
pub(super) const MOST_TOP: usize = 64;
/// Logits that one workgroup looks through.
const TOP_PART: usize = 1024;

/// One dispatch: kernels for one row and for several, what they read and write, workgroups.
struct Step {
    name: &'static str,
    /// Bytes of weights that it reads.
    bytes: usize,
    kernels: [Arc<Compiled>; 2],
    buffers: Vec<wgpu::Buffer>,
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
    /// One for each of so many visits of a row.
    EachVisit(u32),
    /// So many for each of several visits of a row.
    Visits(u32, u32),
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
    /// How many of the largest logits of a row the last pass gave, and these.
    pub top: (usize, Vec<(u32, f32)>),
    /// The dispatches that find so many of them.
    pub top_steps: Option<(usize, Steps)>,
    _memory: Reserved,
}

/// Values between the two products of a network, of all experts that a row visits; and the most experts that a row chooses
/// from and visits.
fn inner_width(b: &Blueprint) -> (usize, (usize, usize)) {
    let mut most = (0, (0, 0));
    for layer in &b.layers {
        let dense = layer.feed_forward.dense().map_or(0, |dense| dense.width);
        let (width, count, used) =
            layer.feed_forward.experts().map_or((0, 0, 0), |e| (e.width, e.count, e.used));
        most = (dense.max(used * width).max(most.0), (count.max(most.1.0), used.max(most.1.1)));
    }
    most
}

/// Bytes that passes up to `capacity` take on a device beside weights and states.
pub(in crate::executor) fn scratch_bytes(b: &Blueprint, context: usize, capacity: Capacity) -> usize {
    let (inner, (scores, visits)) = inner_width(b);
    let widest = b.hidden.max(b.q_width()).max(inner);
    let angles: usize = b.ropes.iter().map(|rope| rope.dims).sum();
    let row = 3 * b.hidden + 3 * b.q_width() + 2 * b.kv_width() + 3 * inner + angles + 2;
    let row = row + scores + 2 * visits;
    let tables = 4 * b.layers.len() * capacity.items * context.div_ceil(PAGE);
    let logits = 4 * b.vocab + 8 * MOST_TOP * (b.vocab.div_ceil(TOP_PART) + 1);
    capacity.rows * (4 * row + 6 * widest) + capacity.logit_rows * logits + tables
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

    fn top(&self, index: usize) -> &[(u32, f32)] {
        let (most, top) = &self.top;
        match self.spans.get(index) {
            Some(span) if !top.is_empty() => &top[span.first_wanted * most..][..span.wanted * most],
            _ => &[],
        }
    }

    fn clear(&mut self) {
        self.results.clear();
        self.top.1.clear();
        self.spans.clear();
    }
}

impl GpuBuffers {
    /// For passes of `shard` up to `capacity`.
    pub fn new(shard: &GpuShard, capacity: Capacity) -> Result<Self> {
        let (gpu, b) = (&shard.gpu, &shard.blueprint);
        let logit_rows = if shard.head.is_some() { capacity.logit_rows.min(capacity.rows) } else { 0 };
        let rows = capacity.rows;
        let (inner, experts) = inner_width(b);
        let widest = b.hidden.max(b.q_width()).max(inner);
        let floats = |label: &str, width: usize| gpu.buffer(label, 4 * rows * width);
        let tables = shard.context.div_ceil(PAGE);
        let info = 4 + 2 * rows + shard.layers.len().max(1) * capacity.items * tables;
        let largest = 4 * (rows * 2 * widest).max(logit_rows * b.vocab).max(info);
        if largest as u64 > gpu.info().binding_bytes {
            return Err(Error::invalid(format!(
                "passes of {rows} rows need {largest} bytes in one buffer, the device has {}; ask for fewer rows",
                gpu.info().binding_bytes
            )));
        }
        let scratch_capacity = Capacity { logit_rows, ..capacity };
        let memory = gpu.reserve(scratch_bytes(b, shard.context, scratch_capacity))?;
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
            inner: floats("inner", 2 * inner),
            between: [floats("between", inner), floats("made", b.hidden)],
            experts: [floats("scores", experts.0), floats("chosen", 2 * experts.1)],
            angles: b.ropes.iter().map(|rope| floats("angles", rope.dims)).collect(),
            logits: gpu.buffer("logits", 4 * logit_rows * b.vocab),
            top: [b.vocab.div_ceil(TOP_PART), 1]
                .map(|parts| gpu.buffer("top", 8 * logit_rows * parts * MOST_TOP)),
            nothing: gpu.buffer("nothing", 16),
        };
        gpu.check()?;
        Ok(Self {
            capacity: scratch_capacity,
            owner: std::ptr::from_ref(shard).addr(),
            scratch,
            spans: Vec::with_capacity(capacity.items),
            layers: shard.layers.iter().map(|_| None).collect(),
            tail: None,
            gave: Gave::Rows,
            results: Vec::new(),
            width: 0,
            top: (0, Vec::new()),
            top_steps: None,
            _memory: memory,
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
        (name, bytes): (&'static str, usize),
        kernels: [Arc<Compiled>; 2],
        params: &[u32],
        buffers: &[&wgpu::Buffer],
        groups: Groups,
    ) {
        let params = self.gpu.upload("params", params);
        let all: Vec<&wgpu::Buffer> =
            [self.info, &params].into_iter().chain(buffers.iter().copied()).collect();
        let bind = self.gpu.bind(&kernels[0], &all);
        let buffers = all.into_iter().cloned().collect();
        self.steps.push(Step { name, bytes, kernels, buffers, bind, groups });
    }

    /// A row made by `kernel` of `from`, `cols` wide, and rounded; `aside` keeps it as f32 where the next one is made of it.
    fn row(
        &mut self,
        kernel: Kernel,
        (from, cols): (&wgpu::Buffer, usize),
        norm: Option<(&NormPart, f32)>,
        aside: Option<&wgpu::Buffer>,
    ) {
        self.rows(kernel, (from, cols), norm, aside, Groups::Rows);
    }

    /// As [`Binder::row`], of as many rows as `groups` says.
    fn rows(
        &mut self,
        kernel: Kernel,
        (from, cols): (&wgpu::Buffer, usize),
        norm: Option<(&NormPart, f32)>,
        aside: Option<&wgpu::Buffer>,
        groups: Groups,
    ) {
        let name = match kernel {
            Kernel::Norm { .. } => "norm",
            Kernel::Copy => "rounding",
            _ => "activation",
        };
        let kernel = self.gpu.kernel(kernel);
        let weights = norm.map_or(&self.scratch.nothing, |(norm, _)| &norm.weights);
        let params = match norm {
            Some((norm, eps)) => [cols as u32, eps.to_bits(), u32::from(norm.has_bias)],
            None => [cols as u32, 0, 0],
        };
        let [row, codes, scales, sums] = &self.scratch.row;
        let buffers = [from, weights, aside.unwrap_or(row), codes, scales, sums];
        self.add((name, 0), [kernel.clone(), kernel], &params, &buffers, groups);
    }

    /// The network of experts of the row, added to the residual row `x` or put aside.
    fn experts(
        &mut self,
        layer: &LayerParts,
        parts: &ExpertParts,
        (x, b): (&wgpu::Buffer, &Blueprint),
        aside: bool,
    ) {
        let ExpertParts { router, spec } = parts;
        let [scores, chosen] = &self.scratch.experts;
        let used = spec.used as u32;
        self.products("router", router, (scores, spec.count), None);
        let kind = match spec.router {
            Router::Softmax => 0,
            Router::SoftmaxOfChosen => 1,
            Router::Sigmoid => 2,
        };
        let shares = spec.renormalize || spec.router == Router::SoftmaxOfChosen;
        let params = [spec.count as u32, used, kind, u32::from(shares), spec.scale.to_bits()];
        let kernel = self.gpu.kernel(Kernel::Route);
        let buffers = [scores, chosen];
        self.add(("choice of experts", 0), [kernel.clone(), kernel], &params, &buffers, Groups::Rows);
        let inner = &self.scratch.inner;
        let visits = Groups::Visits((2 * layer.width).div_ceil(64) as u32, used);
        self.visits("gate, up", &layer.gate_up, (inner, 2 * layer.width), (spec, [0, 0]), visits);
        self.rows(layer.curve, (inner, layer.width), None, None, Groups::EachVisit(used));
        let added = match (aside, b.residual_scale) {
            (true, _) => [0, 0],
            (false, 1.0) => [1, 0],
            (false, factor) => [2, factor.to_bits()],
        };
        let to = if aside { &self.scratch.between[1] } else { x };
        let rows = Groups::Each(b.hidden.div_ceil(64) as u32);
        self.visits("down", &layer.down, (to, b.hidden), (spec, added), rows);
    }

    /// The matrices of the experts that rows visit, times these, into `out` of `outputs` columns, or added to what is there.
    fn visits(
        &mut self,
        name: &'static str,
        parts: &[Part],
        (out, outputs): (&wgpu::Buffer, usize),
        (spec, [adds, factor]): (&Experts, [u32; 2]),
        groups: Groups,
    ) {
        let [row, codes, scales, sums] = &self.scratch.row;
        for part in parts {
            let [outputs, cols, words] = [outputs, part.cols, part.row_words].map(|size| size as u32);
            let params =
                [outputs, cols, words, outputs, 0, 0, adds, factor, outputs * words, spec.used as u32];
            let x = if part.integer { codes } else { row };
            let buffers = [&part.matrix, x, scales, sums, &self.scratch.experts[1], out];
            let bytes = part.bytes / spec.count * spec.used;
            self.add((name, bytes), part.kernels.clone(), &params, &buffers, groups);
        }
    }

    /// The residual row `from`, normed by `norm` where there is one.
    fn residual(&mut self, from: &wgpu::Buffer, norm: Option<&NormPart>, b: &Blueprint) {
        let kernel = match norm {
            Some(_) => Kernel::Norm { center: b.norm.kind == NormKind::Layer },
            None => Kernel::Copy,
        };
        self.row(kernel, (from, b.hidden), norm.map(|norm| (norm, b.norm.eps)), None);
    }

    /// The row times the last matrix of a sublayer, added to the residual row: at once, or aside where it is normed first.
    fn leave(
        &mut self,
        name: &'static str,
        parts: &[Part],
        (x, b): (&wgpu::Buffer, &Blueprint),
        aside: bool,
    ) {
        match aside {
            true => self.products(name, parts, (&self.scratch.between[1], b.hidden), None),
            false => self.products(name, parts, (x, b.hidden), Some(b.residual_scale)),
        }
    }

    /// What [`Binder::leave`] put aside is added to the residual row.
    fn add_aside(&mut self, x: &wgpu::Buffer, norm: Option<&NormPart>, b: &Blueprint) {
        let kernel = self.gpu.kernel(Kernel::After);
        let weights = norm.map_or(&self.scratch.nothing, |norm| &norm.weights);
        let adds = if b.residual_scale == 1.0 { 1 } else { 2 };
        let params = [
            b.hidden as u32,
            b.norm.eps.to_bits(),
            u32::from(norm.is_some()),
            adds,
            b.residual_scale.to_bits(),
        ];
        let buffers = [&self.scratch.between[1], weights, x];
        self.add(("adding", 0), [kernel.clone(), kernel], &params, &buffers, Groups::Rows);
    }

    /// The row times matrices, into `out` of `stride` columns; with a factor, added to what is there.
    fn products(
        &mut self,
        name: &'static str,
        parts: &[Part],
        (out, stride): (&wgpu::Buffer, usize),
        added: Option<f32>,
    ) {
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
            let buffers = [&part.matrix, x, scales, sums, bias, out];
            self.add((name, part.bytes), part.kernels.clone(), &params, &buffers, groups);
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
        let x = &scratch.x[0];
        let LayerNorms { before, inside, after } = &layer.norms;
        let rms = Kernel::Norm { center: false };
        let stride = b.q_width() + 2 * b.kv_width();
        binder.residual(x, before[0].as_ref(), b);
        binder.products("query, key, value", &layer.qkv, (&scratch.qkv, stride), None);
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
        let groups = Groups::Each(heads + 2 * kv_heads);
        binder.add(("rotation and storing", 0), [kernel.clone(), kernel], &params, &buffers, groups);
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
        let kernel = shard.gpu.kernel(Kernel::Attention { capped: layer.spec.softcap.is_some() });
        let buffers = [&scratch.queries, &arena.buffer, sinks, &scratch.attended];
        binder.add(("attention", 0), [kernel.clone(), kernel], &params, &buffers, Groups::Each(heads));
        let mixed = inside[0].as_ref().map(|norm| (norm, b.norm.eps));
        binder.row(mixed.map_or(Kernel::Copy, |_| rms), (&scratch.attended, b.q_width()), mixed, None);
        let aside = after[0].is_some() || layer.parallel;
        binder.leave("output", &layer.out, (x, b), aside);
        if aside && !layer.parallel {
            binder.add_aside(x, after[0].as_ref(), b);
        }
        binder.residual(x, before[1].as_ref(), b);
        if layer.parallel {
            binder.add_aside(x, after[0].as_ref(), b);
        }
        let aside = after[1].is_some();
        if let Some(experts) = &layer.experts {
            binder.experts(layer, experts, (x, b), aside);
            if aside {
                binder.add_aside(x, after[1].as_ref(), b);
            }
            return Self(binder.steps);
        }
        let gated = matches!(layer.curve, Kernel::Gate(_));
        let inner = layer.width * if gated { 2 } else { 1 };
        binder.products("gate, up", &layer.gate_up, (&scratch.inner, inner), None);
        let between = &scratch.between[0];
        binder.row(layer.curve, (&scratch.inner, layer.width), None, inside[1].as_ref().map(|_| between));
        if let Some(norm) = &inside[1] {
            binder.row(rms, (between, layer.width), Some((norm, b.norm.eps)), None);
        }
        binder.leave("down", &layer.down, (x, b), aside);
        if aside {
            binder.add_aside(x, after[1].as_ref(), b);
        }
        Self(binder.steps)
    }

    /// The dispatches after the last layer, over the wanted rows: the norm, which leaves the hidden states, and the head.
    pub fn of_head(shard: &GpuShard, scratch: &Scratch, (norm, parts): (&NormPart, &[Part])) -> Self {
        let b = &shard.blueprint;
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[1], steps: Vec::new() };
        binder.residual(&scratch.x[1], Some(norm), b);
        binder.products("head", parts, (&scratch.logits, b.vocab), None);
        Self(binder.steps)
    }

    /// The dispatches that find the `most` largest logits of each row, at most [`MOST_TOP`].
    pub fn of_top(shard: &GpuShard, scratch: &Scratch, most: usize) -> Self {
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[1], steps: Vec::new() };
        let kernel = shard.gpu.kernel(Kernel::Top);
        let vocab = shard.blueprint.vocab;
        let parts = vocab.div_ceil(TOP_PART);
        let ties = u32::from(most == 1);
        let sizes = [(vocab, TOP_PART, 0, parts), (parts * most, parts * most, 1, 1)];
        let buffers = [
            [&scratch.logits, &scratch.nothing, &scratch.top[0]],
            [&scratch.nothing, &scratch.top[0], &scratch.top[1]],
        ];
        for ((count, part, found, groups), buffers) in sizes.into_iter().zip(buffers) {
            let params = [count as u32, most as u32, part as u32, found, groups as u32, ties];
            let kernels = [kernel.clone(), kernel.clone()];
            binder.add(("largest logits", 0), kernels, &params, &buffers, Groups::Each(groups as u32));
        }
        Self(binder.steps)
    }

    /// Records them for `rows` rows; the first alone for hidden states.
    pub fn record(&self, pass: &mut wgpu::ComputePass<'_>, rows: usize, first_only: bool) {
        let count = if first_only { 1 } else { self.0.len() };
        (0..count).for_each(|index| self.record_one(pass, index, rows));
    }

    /// Records number `index` of them for `rows` rows.
    pub fn record_one(&self, pass: &mut wgpu::ComputePass<'_>, index: usize, rows: usize) {
        let (kernel, groups) = self.workgroups(index, rows);
        dispatch(pass, kernel, &self.0[index].bind, groups);
    }

    /// The kernel of number `index` of them for `rows` rows, and how many workgroups of it.
    fn workgroups(&self, index: usize, rows: usize) -> (&Compiled, [u32; 2]) {
        let (step, rows) = (&self.0[index], rows as u32);
        match step.groups {
            Groups::Rows => (&step.kernels[0], [rows, 1]),
            Groups::Each(x) => (&step.kernels[0], [x, rows]),
            Groups::Matrix(x) if rows == 1 => (&step.kernels[0], [x, 1]),
            Groups::Matrix(x) => (&step.kernels[1], [x, rows.div_ceil(ROWS)]),
            Groups::EachVisit(visits) => (&step.kernels[0], [rows * visits, 1]),
            Groups::Visits(x, visits) => (&step.kernels[0], [x, rows * visits]),
        }
    }

    /// Each of them for one row: its kernel, the buffers it is bound to, workgroups.
    pub fn of_one_row(&self) -> impl Iterator<Item = (&Compiled, &[wgpu::Buffer], [u32; 2])> {
        self.0.iter().enumerate().map(|(index, step)| {
            let (kernel, groups) = self.workgroups(index, 1);
            (kernel, &step.buffers[..], groups)
        })
    }

    /// What number `index` of them does, and the bytes of weights that it reads.
    pub fn about(&self, index: usize) -> (&'static str, usize) {
        (self.0[index].name, self.0[index].bytes)
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
