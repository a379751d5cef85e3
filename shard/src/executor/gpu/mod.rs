//! The executor on GPUs of every vendor, by Vulkan, Metal or DX12.
//!
//! Kernels are WGSL (`wgsl/`, put together by `source`), each with the processor's kernel of the same name as its
//! specification. A pass is one command buffer: per layer a norm, the products of queries, keys and values, their rotation
//! and storing, attention, the output, a norm, the products of gate and up, the activation, the product of down; rows are rounded
//! for the next matrix by the dispatch that makes them. Ten dispatches a layer where the matrices of one step have one format, as
//! many where it recurs (products, convolution, recurrence, gate), two more with experts, six more with latent attention. An
//! expert that every row visits is one more of the others where it is as wide and in the same formats; else it takes four.
//! Embedding rows are read from the file by the processor; what comes back are the rows that were asked for.
//!
//! What layers remember stays in the device's memory: pages of keys and values or of latents (`state`), vectors of layers that
//! recur with their checkpoints (`vector`). Snapshots are those of the processor.
//!
//! # Why the same bits
//! Every float operation is an addition, a product, a fused product or an exact conversion, in the order that
//! [`crate::quant`] and [`crate::kernels`] write down; division and square root are computed in integers (the standards of
//! GPUs allow errors there); a product that is not fused passes an opaque bit operation, so that no compiler fuses it.
//! [`Gpu::open`] probes what the device rounds. Where fused products round once and subnormals are kept, the class is `d1`. A
//! software device computes in integers what it lacks, exactly as well; a real one is `approx` then.
//!
//! # Limits
//! Models whose layers read the token itself (Gemma 3n, Gemma 4 E2B and E4B), attention in blocks (Llama 4), encoders, and weight
//! formats that `formats` lacks are refused by name. A pass reads an expert once for each row that visits it, and the rows of a
//! session go through a recurrence one after the other, head by head. An output is one thread's chain, so small matrices leave a
//! large device idle. Activations that a session rounds between two layers of a pass travel to the processor and back.

mod buffers;
mod device;
mod driver;
mod formats;
mod matrices;
mod mixers;
mod mixing;
pub mod ops;
mod pipeline_cache;
mod pool;
mod program;
mod scratch;
mod share;
mod source;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod timing;
mod vector;
mod weights;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use scheduler::{LayerRange, SessionKind};

use super::{
    Buffers, Capacity, Class, DeviceCounts, Ends, Executor, Gave, Input, Item, OperationTime, Options, Pass,
    Workspace,
    batch::{self, Span, refuse_non_finite, round_at},
    read_bytes,
    tags::Tags,
};
use crate::{
    Error, Result,
    gguf::Gguf,
    kernels::PAGE,
    models::{Blueprint, Frequencies},
    state::{LayerState, Nothing},
};
use buffers::GpuBuffers;
use device::words;
pub use device::{Access, Gpu, GpuInfo, list};
pub use driver::{Call, overdue};
use matrices::{NormPart, Part, Uploader};
pub use pipeline_cache::PipelineCounts;
use pool::Pool;
pub use program::{Action, Program};
use scratch::MOST_TOP;
pub(super) use scratch::scratch_bytes;
pub use source::Arithmetic;
use state::DevicePages;
use steps::Steps;
pub use timing::read_bandwidth;
use vector::DeviceVector;
pub(super) use weights::needed_bytes;
use weights::{LayerParts, beyond};

/// Consecutive layers of a model on a GPU.
pub struct GpuShard {
    gpu: Arc<Gpu>,
    gguf: Arc<Gguf>,
    blueprint: Blueprint,
    range: LayerRange,
    ends: Ends,
    context: usize,
    frequencies: Vec<Frequencies>,
    layers: Vec<LayerParts>,
    head: Option<(NormPart, Vec<Part>)>,
    pool: Arc<Pool>,
    tags: Tags,
    counts: Counts,
}

/// What passes have cost so far.
#[derive(Debug, Default)]
struct Counts {
    submits: AtomicU64,
    dispatches: AtomicU64,
    bytes_back: AtomicU64,
}

impl GpuShard {
    /// Loads `layers` and `ends` of the model in `gguf` into the memory of `gpu`.
    ///
    /// # Errors
    /// Those of [`super::load`]; [`Error::Unsupported`] for models and formats that this executor does not compute;
    /// [`Error::Invalid`] when the device has no memory for them.
    pub fn load(
        gguf: &Arc<Gguf>,
        gpu: Arc<Gpu>,
        layers: LayerRange,
        ends: Ends,
        options: Options,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_gguf(gguf)?;
        let context = batch::check_load(&blueprint, layers, ends, options)?;
        if let Some(what) = beyond(&blueprint) {
            return Err(Error::unsupported(format!("{what} on this device; `--device cpu` computes them")));
        }
        let frequencies: Vec<_> = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        let uploader = Uploader { gguf, gpu: &gpu, blueprint: &blueprint };
        let head = match ends.head {
            true => Some((uploader.norm(blueprint.head.norm)?, uploader.head()?)),
            false => None,
        };
        let weights = (layers.start()..layers.end())
            .map(|index| uploader.layer(index as usize))
            .collect::<Result<Vec<_>>>()?;
        gguf.forget_range(0..gguf.file_len());
        gpu.check()?;
        // States of class `d1` are those of the processor.
        let executor = if gpu.class() == Class::Approx { "gpu" } else { "" };
        let kinds = (layers.start()..layers.end()).map(|index| blueprint.state_kind(index as usize));
        Ok(Self {
            pool: Pool::new(gpu.clone(), kinds)?,
            tags: Tags::new(gguf, executor, &blueprint, layers, &frequencies),
            gguf: gguf.clone(),
            gpu,
            range: layers,
            ends,
            context,
            frequencies,
            layers: weights,
            head,
            blueprint,
            counts: Counts::default(),
        })
    }

    /// The rows that enter the first layer, as f32.
    fn enter(&self, items: &[Item<'_>]) -> Result<Vec<f32>> {
        let hidden = self.blueprint.hidden;
        let mut x = Vec::new();
        for item in items {
            match item.input {
                Input::Activations(rows) => x.extend_from_slice(rows),
                Input::Tokens(tokens) => {
                    let table = self.gguf.require("token_embd.weight")?;
                    for &id in tokens {
                        let at = x.len();
                        x.resize(at + hidden, 0.0);
                        (table.format.dequantize)(table.row(id as usize), &mut x[at..]);
                    }
                    let scale = self.blueprint.embedding.scale;
                    if scale != 1.0 {
                        let first = x.len() - tokens.len() * hidden;
                        x[first..].iter_mut().for_each(|x| *x *= scale);
                    }
                }
            }
        }
        Ok(x)
    }

    /// Positions, sessions and pages of a pass, as the kernels read them.
    fn describe(
        &self,
        ws: &GpuBuffers,
        items: &[Item<'_>],
        layers: LayerRange,
        rows: usize,
    ) -> Result<Vec<u32>> {
        let entries = |span: &Span| (span.start + span.rows).div_ceil(PAGE).max(vector::table_len(span));
        let room = ws.spans.iter().map(entries).max().unwrap_or(1);
        let mut info = vec![rows as u32, room as u32, items.len() as u32, 0];
        for (item, span) in ws.spans.iter().enumerate() {
            info.extend((span.start..span.start + span.rows).flat_map(|at| [at as u32, item as u32]));
        }
        let first = (layers.start() - self.range.start()) as usize;
        let tables = 4 + 2 * rows;
        info.resize(tables + self.pool.count() * items.len() * room, 0);
        for layer in 0..layers.len() as usize {
            let arenas = self.pool.of_layer(first + layer);
            for (index, (item, span)) in items.iter().zip(&ws.spans).enumerate() {
                let pages = item.state.layer::<DevicePages>(layer);
                let vector = item.state.layer::<DeviceVector>(layer);
                let pages = pages.map(|pages| pages.table(span.start + span.rows)).transpose()?;
                let found = pages.into_iter().chain(vector.map(|vector| vector.table(span)));
                let mut written = 0;
                for (arena, table) in arenas.clone().zip(found) {
                    let at = tables + (arena * items.len() + index) * room;
                    info[at..at + table.len()].copy_from_slice(&table);
                    written += 1;
                }
                if written == 0 {
                    item.state.layer::<Nothing>(layer).ok_or_else(foreign)?;
                }
            }
        }
        Ok(info)
    }

    /// Computes the rows that were admitted.
    fn compute(
        &self,
        ws: &mut GpuBuffers,
        pass: Pass<'_>,
        items: &mut [Item<'_>],
        rows: usize,
    ) -> Result<()> {
        ws.gave = Gave::by(self, pass);
        let hidden = self.blueprint.hidden;
        ws.width = if ws.gave == Gave::Logits { self.blueprint.vocab } else { hidden };
        let pool = self.pool.clone();
        let mut arenas = pool.arenas();
        for at in 0..pass.layers.len() as usize {
            for (item, span) in items.iter_mut().zip(&ws.spans) {
                if let Some(pages) = item.state.layer_mut::<DevicePages>(at) {
                    pages.own(span.start, span.start + span.rows, &mut arenas)?;
                }
                if let Some(vector) = item.state.layer_mut::<DeviceVector>(at) {
                    vector.prepare(span, &mut arenas)?;
                }
            }
        }
        let info = self.describe(ws, items, pass.layers, rows)?;
        self.gpu.write(&ws.scratch.info[0], 0, &info);
        self.turn(ws, rows);
        let mut x = self.enter(items)?;
        round_at(pass.rounding, pass.layers.start(), &mut x)?;
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        self.gpu.write(&ws.scratch.x[0], 0, &bits(&x));
        let mut encoder = self.gpu.encoder();
        for layer in pass.layers.start()..pass.layers.end() {
            if layer > pass.layers.start() && pass.rounding.at(layer).is_some() {
                // Rounding between two layers is the processor's, by the same code as everywhere.
                let bytes = self.finish(encoder, &[(&ws.scratch.x[0], 0..4 * x.len())])?;
                x = floats(&bytes);
                round_at(pass.rounding, layer, &mut x)?;
                self.gpu.write(&ws.scratch.x[0], 0, &bits(&x));
                encoder = self.gpu.encoder();
            }
            let held = (layer - self.range.start()) as usize;
            let own = &arenas[self.pool.of_layer(held)];
            let is_bound = |bound: &[wgpu::Buffer]| bound.iter().eq(own.iter().map(|arena| &arena.buffer));
            let bound = ws.layers[held].take().filter(|(buffers, _)| is_bound(buffers));
            let bound = bound.unwrap_or_else(|| {
                let buffers: Vec<_> = own.iter().map(|arena| arena.buffer.clone()).collect();
                let place = (self.pool.of_layer(held).start as u32, &buffers[..]);
                let steps = Steps::of_layer(self, &ws.scratch, &self.layers[held], place);
                (buffers, steps)
            });
            bound.1.record(&mut encoder.begin_compute_pass(&Default::default()), rows, false);
            self.counts.dispatches.fetch_add(bound.1.len() as u64, Relaxed);
            ws.layers[held] = Some(bound);
        }
        let wanted: usize = ws.spans.iter().map(|span| span.wanted).sum();
        let mut results = self.leave(ws, encoder, pass, wanted)?;
        if ws.gave == Gave::Rows {
            round_at(pass.rounding, pass.layers.end(), &mut results)?;
        }
        if ws.gave == Gave::Logits {
            self.scale(&mut results);
        }
        let what = match ws.gave {
            Gave::Rows => "outgoing activations",
            Gave::Logits => "logits",
            Gave::States => "hidden states",
        };
        refuse_non_finite(&results, what)?;
        ws.results = results;
        Ok(())
    }

    /// Factor and softcap of logits, by the processor's functions.
    fn scale(&self, logits: &mut [f32]) {
        let head = self.blueprint.head;
        if head.scale != 1.0 {
            logits.iter_mut().for_each(|logit| *logit *= head.scale);
        }
        if let Some(cap) = head.softcap {
            logits.iter_mut().for_each(|logit| *logit = crate::kernels::math::tanh_f32(*logit / cap) * cap);
        }
    }

    /// Cosines and sines of every row.
    fn turn(&self, ws: &GpuBuffers, rows: usize) {
        for ((rope, frequencies), buffer) in
            self.blueprint.ropes.iter().zip(&self.frequencies).zip(&ws.scratch.angles)
        {
            let mut table = vec![0.0; rows * rope.dims];
            let positions = ws.spans.iter().flat_map(|span| span.start..span.start + span.rows);
            for (position, row) in positions.zip(table.chunks_exact_mut(rope.dims.max(1))) {
                frequencies.fill(position, row);
            }
            self.gpu.write(buffer, 0, &table.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        }
    }

    /// What follows the layers, over the wanted rows, and the rows that come back.
    fn leave(
        &self,
        ws: &mut GpuBuffers,
        mut encoder: wgpu::CommandEncoder,
        pass: Pass<'_>,
        wanted: usize,
    ) -> Result<Vec<f32>> {
        let row = 4 * self.blueprint.hidden;
        let scratch = &ws.scratch;
        for span in ws.spans.iter().filter(|span| span.wanted > 0) {
            let from = ((span.first + span.rows - span.wanted) * row) as u64;
            let (to, bytes) = ((span.first_wanted * row) as u64, (span.wanted * row) as u64);
            encoder.copy_buffer_to_buffer(&scratch.x[0], from, &scratch.x[1], to, bytes);
        }
        let size = wanted * row;
        let head = self.head.as_ref().filter(|_| ws.gave != Gave::Rows && wanted > 0);
        let Some((norm, parts)) = head else {
            return Ok(floats(&self.finish(encoder, &[(&scratch.x[1], 0..size)])?));
        };
        if pass.rounding.at(pass.layers.end()).is_some() {
            let mut x = floats(&self.finish(encoder, &[(&scratch.x[1], 0..size)])?);
            round_at(pass.rounding, pass.layers.end(), &mut x)?;
            self.gpu.write(&scratch.x[1], 0, &x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            encoder = self.gpu.encoder();
        }
        self.gpu.write(&scratch.info[1], 0, &[wanted as u32, 0, 0, 0]);
        let steps = ws.tail.take().unwrap_or_else(|| Steps::of_head(self, &ws.scratch, (norm, parts)));
        let only_states = ws.gave == Gave::States;
        steps.record(&mut encoder.begin_compute_pass(&Default::default()), wanted, only_states);
        self.counts.dispatches.fetch_add(if only_states { 1 } else { steps.len() as u64 }, Relaxed);
        ws.tail = Some(steps);
        if let Some(most) = self.finds(pass.top).filter(|_| ws.gave == Gave::Logits) {
            self.find_top(ws, encoder, most, wanted)?;
            return Ok(Vec::new());
        }
        let (from, bytes) = match only_states {
            true => (ws.scratch.states(), size),
            false => (&ws.scratch.logits, 4 * wanted * self.blueprint.vocab),
        };
        Ok(floats(&self.finish(encoder, &[(from, 0..bytes)])?))
    }

    /// How many of the largest logits the device finds where a caller is content with `top` of them; `None` where all come back.
    fn finds(&self, top: usize) -> Option<usize> {
        let head = self.blueprint.head;
        // What changes logits on the way out is done by the processor, to all of them.
        let plain = head.scale == 1.0 && head.softcap.is_none();
        Some(top).filter(|top| plain && (1..=MOST_TOP.min(self.blueprint.vocab)).contains(top))
    }

    /// The largest logits of the wanted rows: ids, and values where there are several.
    fn find_top(
        &self,
        ws: &mut GpuBuffers,
        mut encoder: wgpu::CommandEncoder,
        most: usize,
        wanted: usize,
    ) -> Result<()> {
        let steps = ws.top_steps.take().filter(|(made_for, _)| *made_for == most);
        let (_, steps) = steps.unwrap_or_else(|| (most, Steps::of_top(self, &ws.scratch, most)));
        steps.record(&mut encoder.begin_compute_pass(&Default::default()), wanted, false);
        self.counts.dispatches.fetch_add(steps.len() as u64, Relaxed);
        let (count, top) = (wanted * most, &ws.scratch.top[1]);
        let keys = 4 * count..4 * count * if most == 1 { 1 } else { 2 };
        let back = words(&self.finish(encoder, &[(top, 0..4 * count), (top, keys)])?);
        let (ids, keys) = back.split_at(count);
        if ids.contains(&u32::MAX) {
            return Err(Error::invalid("logits hold a value that is not finite"));
        }
        let value = |key: u32| f32::from_bits(if key >> 31 == 1 { key ^ 1 << 31 } else { !key });
        let values = keys.iter().map(|key| value(*key)).chain(std::iter::repeat(0.0));
        ws.top = (most, ids.iter().copied().zip(values).collect());
        ws.top_steps = Some((most, steps));
        Ok(())
    }

    fn finish(
        &self,
        encoder: wgpu::CommandEncoder,
        wanted: &[(&wgpu::Buffer, std::ops::Range<usize>)],
    ) -> Result<Vec<u8>> {
        let bytes = self.gpu.finish(encoder, wanted)?;
        self.counts.submits.fetch_add(1, Relaxed);
        self.counts.bytes_back.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes)
    }
}

fn foreign() -> Error {
    Error::invalid("the state is of another executor")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

impl Executor for GpuShard {
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
        self.gpu.class()
    }

    fn device(&self) -> String {
        let GpuInfo { name, driver, .. } = self.gpu.info();
        let memory = self.gpu.memory_bytes().map(|bytes| format!(", {:.1} GB", bytes as f64 / 1e9));
        let share = self.gpu.share().asked_percent().map(|percent| format!(", {percent} % of its time"));
        format!("gpu ({name}{}{}, {driver})", memory.unwrap_or_default(), share.unwrap_or_default())
    }

    fn lost(&self) -> Option<String> {
        self.gpu.lost()
    }

    fn counts(&self) -> Option<DeviceCounts> {
        let Counts { submits, dispatches, bytes_back } = &self.counts;
        let [submits, dispatches, bytes_back] = [submits, dispatches, bytes_back].map(|n| n.load(Relaxed));
        let PipelineCounts { made, hits } = self.gpu.pipelines().unwrap_or_default();
        Some(DeviceCounts { submits, dispatches, bytes_back, pipelines: made, pipeline_hits: hits })
    }

    fn operation_times(&self) -> Result<Vec<OperationTime>> {
        timing::operations(self)
    }

    fn resident_bytes(&self) -> usize {
        let head: usize = self.head.iter().flat_map(|(_, parts)| parts).map(|part| part.bytes).sum();
        self.layers.iter().map(LayerParts::bytes).sum::<usize>() + head
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        let head: usize = self.head.iter().flat_map(|(_, parts)| parts).map(|part| part.bytes).sum();
        let layers: usize = self.layers.iter().map(LayerParts::bytes_per_token).sum();
        layers + head + read_bytes(&self.blueprint, self.range, position)
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        self.tags.of(self.range, layers)
    }

    fn new_layer_state(&self, layer: u32, kind: SessionKind) -> Box<dyn LayerState> {
        let back = self.blueprint.back(layer as usize, kind.attention);
        state::empty(&self.pool, (layer - self.range.start()) as usize, back)
    }

    /// Half of the free memory: the buffer of a layer grows to the next power of two of its pages.
    fn state_room(&self) -> Option<u64> {
        Some(self.gpu.free_bytes()? / 2)
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        Ok(Box::new(GpuBuffers::new(self, capacity)?))
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let ws: &mut GpuBuffers = ws.buffers()?;
        batch::check_held(self.range, pass.layers)?;
        if ws.owner != std::ptr::from_ref(self).addr() {
            return Err(Error::invalid("the workspace belongs to another shard"));
        }
        self.gpu.check()?;
        let share = self.gpu.share();
        std::thread::sleep(share.wait(Instant::now()));
        let began = Instant::now();
        let mut spans = std::mem::take(&mut ws.spans);
        let admitted = batch::admit(self, ws.capacity, pass, items, &mut spans);
        ws.spans = spans;
        let outcome = admitted.and_then(|rows| match rows {
            0 => Ok(()),
            rows => self.compute(ws, pass, items, rows),
        });
        match outcome {
            Ok(()) => items.iter_mut().zip(&ws.spans).for_each(|(item, span)| item.state.advance(span.rows)),
            Err(_) => ws.clear(),
        }
        share.passed(began, Instant::now());
        self.gpu.keep_pipelines();
        outcome
    }
}
