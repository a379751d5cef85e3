//! The dispatches of a layer, and of what follows the last one, bound to the buffers of passes.

use std::sync::Arc;

use super::{
    GpuShard,
    device::{Compiled, Gpu, dispatch},
    matrices::{NormPart, Part, TILE},
    mixers::MixerParts,
    scratch::{NetworkScratch, Scratch, TOP_PART},
    source::{Kernel, ROWS},
    weights::{ExpertParts, LayerNorms, LayerParts, NetworkParts, SharedParts},
};
use crate::models::{Blueprint, Groups as Grouping, NormKind, Router};

/// Which of the parameters of a product says where its factors begin, the last of them.
const FACTORS_AT: usize = 11;

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
pub(super) enum Groups {
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

/// How what a sublayer made comes to a row.
#[derive(Clone, Copy)]
enum Added {
    /// It takes the row's place.
    Instead,
    Plain,
    Times(f32),
}

impl Added {
    fn to_residual(b: &Blueprint) -> Self {
        if b.residual_scale == 1.0 { Self::Plain } else { Self::Times(b.residual_scale) }
    }
}

/// Makes dispatches.
pub(super) struct Binder<'a> {
    gpu: &'a Gpu,
    pub scratch: &'a Scratch,
    info: &'a wgpu::Buffer,
    steps: Vec<Step>,
}

impl Binder<'_> {
    /// A dispatch of one kernel, whatever the number of rows.
    pub fn one(
        &mut self,
        name: &'static str,
        kernel: Kernel,
        params: &[u32],
        buffers: &[&wgpu::Buffer],
        groups: Groups,
    ) {
        let kernel = self.gpu.kernel(kernel);
        self.add((name, 0), [kernel.clone(), kernel], params, buffers, groups);
    }

    /// Rows made by `kernel` of `from` and `weights`, and rounded.
    pub fn made(
        &mut self,
        name: &'static str,
        kernel: Kernel,
        params: &[u32],
        (from, weights): (&wgpu::Buffer, &wgpu::Buffer),
        groups: Groups,
    ) {
        let [row, codes, scales, sums] = &self.scratch.row;
        self.one(name, kernel, params, &[from, weights, row, codes, scales, sums], groups);
    }

    /// A product of the rounded row, or the row itself, with matrices.
    pub fn matrix(
        &mut self,
        about: (&'static str, usize),
        part: &Part,
        params: &[u32],
        (aside, out): (&wgpu::Buffer, &wgpu::Buffer),
        groups: Groups,
    ) {
        let [row, codes, scales, sums] = &self.scratch.row;
        let x = if part.integer { codes } else { row };
        let buffers = [&part.matrix, x, scales, sums, aside, out];
        let mut params = params.to_vec();
        params.resize(FACTORS_AT, 0);
        params.push(part.factors_at.unwrap_or(0) as u32);
        self.add(about, part.kernels.clone(), &params, &buffers, groups);
    }

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
    pub fn row(
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
        let weights = norm.map_or(&self.scratch.nothing, |(norm, _)| &norm.weights);
        let params = match norm {
            Some((norm, eps)) => [cols as u32, eps.to_bits(), u32::from(norm.has_bias), 0],
            None => [cols as u32, 0, 0, 0],
        };
        let [row, codes, scales, sums] = &self.scratch.row;
        let buffers = [from, weights, aside.unwrap_or(row), codes, scales, sums];
        self.one(name, kernel, &params, &buffers, groups);
    }

    /// The network of experts of the row, added to the residual row `x` or put aside.
    fn experts(
        &mut self,
        network: &NetworkParts,
        parts: &ExpertParts,
        (x, b): (&wgpu::Buffer, &Blueprint),
        aside: bool,
    ) {
        let ExpertParts { router, norms, aside: beside, latent, spec, shared, one_more } = parts;
        let NetworkScratch { scores, chosen, .. } = &self.scratch.network;
        let visited = parts.visits() as u32;
        let logits = router.iter().map(|part| part.rows).sum();
        if let Some([norm, _]) = norms {
            self.residual(x, Some(norm), b);
        }
        self.products("router", router, (scores, logits), None);
        if let Some([_, norm]) = norms {
            self.residual(x, Some(norm), b);
        }
        let kind = match spec.router {
            Router::Softmax => 0,
            Router::SoftmaxOfChosen => 1,
            Router::Sigmoid => 2,
        };
        let shares = spec.renormalize || spec.router == Router::SoftmaxOfChosen;
        let groups = spec.groups.unwrap_or(Grouping { count: 1, used: 1, best: 1 });
        let params = [
            spec.count as u32,
            spec.used as u32,
            kind,
            u32::from(shares),
            spec.scale.to_bits(),
            logits as u32,
            beside.as_ref().map_or(0, |(what, _)| *what as u32),
            groups.count as u32,
            groups.used as u32,
            groups.best as u32,
            u32::from(*one_more),
        ];
        let beside = beside.as_ref().map_or(&self.scratch.nothing, |(_, values)| values);
        let buffers = [scores, beside, chosen];
        self.one("choice of experts", Kernel::Route, &params, &buffers, Groups::Rows);
        let inner = &self.scratch.network.inner;
        let (width, sides) = (network.width, network.sides());
        if let Some(SharedParts { gate_up, width, .. }) = shared {
            self.products("gate, up of all", gate_up, (&self.scratch.network.shared, sides * width), None);
        }
        let [narrow, mixed] = &self.scratch.narrow;
        if let Some(([down, _], width)) = latent {
            self.products("narrow rows", down, (narrow, *width), None);
            self.row(Kernel::Copy, (narrow, *width), None, None);
        }
        let visits = Groups::Visits((sides * width).div_ceil(64) as u32, visited);
        self.visits("gate, up", &network.gate_up, (inner, sides * width), (parts, [0, 0]), visits);
        self.rows(network.curve, (inner, width), None, None, Groups::EachVisit(visited));
        let added = match (aside || latent.is_some(), b.residual_scale) {
            (true, _) => [0, 0],
            (false, 1.0) => [1, 0],
            (false, factor) => [2, factor.to_bits()],
        };
        let to = if aside { &self.scratch.made } else { x };
        let (out, width) = latent.as_ref().map_or((to, b.hidden), |(_, width)| (mixed, *width));
        let rows = Groups::Each(width.div_ceil(64) as u32);
        self.visits("down", &network.down, (out, width), (parts, added), rows);
        if let Some(([_, up], width)) = latent {
            self.row(Kernel::Copy, (mixed, *width), None, None);
            self.leave("wide rows", up, (x, b), aside);
        }
        let Some(SharedParts { width, down, .. }) = shared else { return };
        self.row(network.curve, (&self.scratch.network.shared, *width), None, None);
        for part in down {
            let [rows, cols, words] = [part.rows, part.cols, part.row_words].map(|size| size as u32);
            let params = [rows, cols, words, b.hidden as u32, part.first as u32, 0, 3, 0, 2 * visited + 1];
            let groups = Groups::Matrix(rows.div_ceil(64));
            self.matrix(("down of all", part.bytes), part, &params, (chosen, to), groups);
        }
    }

    /// The matrices of the experts that rows visit, times these, into `out` of `outputs` columns, or added to what is there.
    fn visits(
        &mut self,
        name: &'static str,
        parts: &[Part],
        (out, outputs): (&wgpu::Buffer, usize),
        (experts, [adds, factor]): (&ExpertParts, [u32; 2]),
        groups: Groups,
    ) {
        for part in parts {
            let [outputs, cols, words] = [outputs, part.cols, part.row_words].map(|size| size as u32);
            let (visited, biases_at) = (experts.visits() as u32, part.biases_at.unwrap_or(0) as u32);
            let words_of_one = outputs.next_multiple_of(TILE as u32) * words;
            let params =
                [outputs, cols, words, outputs, 0, 0, adds, factor, words_of_one, visited, biases_at];
            let about = (name, part.bytes / experts.count() * experts.visits());
            self.matrix(about, part, &params, (&self.scratch.network.chosen, out), groups);
        }
    }

    /// The network of a layer, over the row that was made, added to the residual row `x`; the norms are of what `down` reads and of
    /// what it makes.
    fn network(
        &mut self,
        network: &NetworkParts,
        (x, b): (&wgpu::Buffer, &Blueprint),
        (inside, after): (Option<&NormPart>, Option<&NormPart>),
        scale: Option<f32>,
    ) {
        let scratch = self.scratch;
        let made = &scratch.made;
        let aside = match &network.experts {
            Some(experts) => {
                let aside = after.is_some() || experts.shared.is_some();
                self.experts(network, experts, (x, b), aside);
                aside
            }
            None => {
                let inner = (&scratch.network.inner, network.sides() * network.width);
                self.products("gate, up", &network.gate_up, inner, None);
                let between = &scratch.network.between;
                let sides = (&scratch.network.inner, network.width);
                self.row(network.curve, sides, None, inside.map(|_| between));
                if let Some(norm) = inside {
                    let rms = Kernel::Norm { center: false };
                    self.row(rms, (between, network.width), Some((norm, b.norm.eps)), None);
                }
                let aside = after.is_some() || network.beside.is_some();
                self.leave("down", &network.down, (x, b), aside);
                aside
            }
        };
        let Some(beside) = &network.beside else {
            if aside {
                self.add_made((made, x), after, (Added::to_residual(b), scale), b);
            }
            return;
        };
        let both = &scratch.network.beside;
        self.add_made((made, both), Some(&beside.dense_norm_after), (Added::Instead, None), b);
        if let Some(experts) = &beside.experts.experts {
            self.experts(&beside.experts, experts, (x, b), true);
        }
        self.add_made((made, both), Some(&beside.experts_norm_after), (Added::Plain, None), b);
        self.add_made((both, x), after, (Added::to_residual(b), scale), b);
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
            true => self.products(name, parts, (&self.scratch.made, b.hidden), None),
            false => self.products(name, parts, (x, b.hidden), Some(b.residual_scale)),
        }
    }

    /// What [`Binder::leave`] put aside is added to the residual row.
    fn add_aside(&mut self, x: &wgpu::Buffer, norm: Option<&NormPart>, b: &Blueprint) {
        let made = &self.scratch.made;
        self.add_made((made, x), norm, (Added::to_residual(b), None), b);
    }

    /// `made`, normed or not, is added to `x`, which is then scaled where there is a factor.
    fn add_made(
        &mut self,
        (made, x): (&wgpu::Buffer, &wgpu::Buffer),
        norm: Option<&NormPart>,
        (how, scale): (Added, Option<f32>),
        b: &Blueprint,
    ) {
        let weights = norm.map_or(&self.scratch.nothing, |norm| &norm.weights);
        let (adds, factor) = match how {
            Added::Instead => (0, 0.0),
            Added::Plain => (1, 0.0),
            Added::Times(factor) => (2, factor),
        };
        let params = [
            b.hidden as u32,
            b.norm.eps.to_bits(),
            u32::from(norm.is_some()),
            adds,
            factor.to_bits(),
            u32::from(scale.is_some()),
            scale.unwrap_or(1.0).to_bits(),
        ];
        let buffers = [made, weights, x];
        self.one("adding", Kernel::After, &params, &buffers, Groups::Rows);
    }

    /// The row times matrices, into `out` of `stride` columns; with a factor, added to what is there.
    pub fn products(
        &mut self,
        name: &'static str,
        parts: &[Part],
        (out, stride): (&wgpu::Buffer, usize),
        added: Option<f32>,
    ) {
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
            let bias = part.bias.as_ref().unwrap_or(&self.scratch.nothing);
            let groups = Groups::Matrix(part.rows.div_ceil(64) as u32);
            self.matrix((name, part.bytes), part, &params, (bias, out), groups);
        }
    }
}

impl Steps {
    /// The dispatches of `layer`, whose pages are in these buffers, the arenas from number `place.0` on.
    pub fn of_layer(
        shard: &GpuShard,
        scratch: &Scratch,
        layer: &LayerParts,
        place: (u32, &[wgpu::Buffer]),
    ) -> Self {
        let b = &shard.blueprint;
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[0], steps: Vec::new() };
        let x = &scratch.x[0];
        let LayerNorms { before, inside, after } = &layer.norms;
        if let Some((mixer, out)) = &layer.mixer {
            binder.residual(x, before[0].as_ref(), b);
            binder.mixer(b, mixer, place, inside[0].as_ref());
            // A network that reads the same row is given it before it changes.
            let later = layer.parallel && layer.network.is_some();
            // Of two mixers the first has put aside what it makes.
            let joins = matches!(mixer, MixerParts::Beside(..));
            let aside = after[0].is_some() || later || joins;
            match joins {
                true => binder.products("output", out, (&scratch.made, b.hidden), Some(1.0)),
                false => binder.leave("output", out, (x, b), aside),
            }
            if later {
                binder.residual(x, before[1].as_ref(), b);
            }
            if aside {
                binder.add_aside(x, after[0].as_ref(), b);
            }
        }
        if let Some(network) = &layer.network {
            if layer.mixer.is_none() || !layer.parallel {
                binder.residual(x, before[1].as_ref(), b);
            }
            let norms = (inside[1].as_ref(), after[1].as_ref());
            binder.network(network, (x, b), norms, layer.scale);
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

    /// The dispatches that find the `most` largest logits of each row, at most [`super::scratch::MOST_TOP`].
    pub fn of_top(shard: &GpuShard, scratch: &Scratch, most: usize) -> Self {
        let mut binder = Binder { gpu: &shard.gpu, scratch, info: &scratch.info[1], steps: Vec::new() };
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
            binder.one("largest logits", Kernel::Top, &params, &buffers, Groups::Each(groups as u32));
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
