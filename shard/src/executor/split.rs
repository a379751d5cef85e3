//! One node's layers on two devices: the first ones on the processor, the others and the head on a GPU whose memory does not
//! hold them all.
//!
//! The GPU gets as many of the last layers as its free memory holds with the pages of one session and the buffers of a
//! pass; where neither the user (`--gpu-memory`) nor the system says how much there is, as many as it takes. Rows cross once a
//! pass, as raw f32. Layers of class `d1` have the same bits on both, so where they are cut changes nothing.
//!
//! Limits: sessions of dense attention alone, as on the GPU; where the layers are cut is decided at load.

use std::sync::Arc;

use scheduler::{CacheType, LayerRange, SessionKind};

use super::{
    Buffers, Capacity, Class, DeviceCounts, Ends, Executor, Gave, Input, Item, OperationTime, Options,
    Output, Pass, Workspace, batch,
    cpu::Shard,
    gpu::{Gpu, GpuShard, needed_bytes, scratch_bytes},
    tags::Tags,
};
use crate::{
    Error, Result,
    gguf::Gguf,
    kernels::{Cpu, PAGE},
    models::Blueprint,
    state::{LayerState, SessionState},
};

/// The largest passes that room is left for.
const PASSES: Capacity = Capacity { rows: 256, items: 16, logit_rows: 32 };

/// Layers on the processor, and those behind them on a GPU.
struct Split {
    /// The processor's, then the GPU's.
    parts: [Box<dyn Executor>; 2],
    range: LayerRange,
    tags: Tags,
}

/// Loads `layers` and `ends` on `gpu`, and those layers on `cpu` for which it has no memory.
///
/// # Errors
/// Those of [`GpuShard::load`] and of [`Shard::load`]; [`Error::Invalid`] when the GPU has no memory for one layer.
pub(super) fn load(
    gguf: &Arc<Gguf>,
    (gpu, cpu): (&Arc<Gpu>, &Arc<Cpu>),
    layers: LayerRange,
    ends: Ends,
    options: Options,
) -> Result<Box<dyn Executor>> {
    let blueprint = Blueprint::from_gguf(gguf)?;
    let context = batch::check_load(&blueprint, layers, ends, options)?;
    let cuts = |from: u32| (from..layers.end()).find(|&at| blueprint.may_cut(at as usize));
    let mut first = cuts(first_layer(gguf, gpu, &blueprint, layers, ends, context));
    while let Some((at, behind)) = first.and_then(|at| Some((at, LayerRange::new(at, layers.end())?))) {
        let embedding = ends.embedding && at == layers.start();
        let loaded = GpuShard::load(gguf, gpu.clone(), behind, Ends { embedding, ..ends }, options);
        // What was loaded before memory was missing is given back: fewer layers are tried.
        if loaded.is_err() && gpu.was_short() && gpu.lost().is_none() {
            first = cuts(at + behind.len().div_ceil(4));
            continue;
        }
        let behind: Box<dyn Executor> = Box::new(loaded?);
        let Some(before) = LayerRange::new(layers.start(), at) else { return Ok(behind) };
        let before = Shard::load(gguf, cpu.clone(), before, Ends { head: false, ..ends }, options)?;
        let frequencies: Vec<_> = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        let executor = if gpu.class() == Class::Approx { "gpu" } else { "" };
        let tags = Tags::new(gguf, executor, &blueprint, layers, &frequencies);
        return Ok(Box::new(Split { parts: [Box::new(before), behind], range: layers, tags }));
    }
    Err(Error::invalid(
        "the GPU has no memory for one layer of this model and its buffers; `--device cpu` computes it, `--ctx` makes sessions \
         shorter",
    ))
}

/// The first of the last layers that the free memory of `gpu` holds; all of them where it is not known.
fn first_layer(
    gguf: &Gguf,
    gpu: &Gpu,
    blueprint: &Blueprint,
    layers: LayerRange,
    ends: Ends,
    context: usize,
) -> u32 {
    let Some(free) = gpu.free_bytes() else { return layers.start() };
    let (each, head) = needed_bytes(gguf, blueprint, layers, context);
    let scratch = scratch_bytes(blueprint, context, PASSES) as u64;
    let Some(mut left) = free.checked_sub(scratch + if ends.head { head } else { 0 }) else {
        return layers.end();
    };
    let fit = each.iter().rev().take_while(|bytes| {
        let fits = **bytes <= left;
        left = left.saturating_sub(**bytes);
        fits
    });
    layers.end() - fit.count() as u32
}

/// The buffers of both parts.
struct SplitBuffers {
    parts: [Workspace; 2],
    /// The part that computed last.
    last: usize,
    spans: Vec<batch::Span>,
}

impl Buffers for SplitBuffers {
    fn capacity(&self) -> Capacity {
        self.parts[1].capacity()
    }

    fn given(&self, gave: Gave, index: usize) -> &[f32] {
        let part = &self.parts[self.last];
        match gave {
            Gave::Rows => part.activations(index),
            Gave::Logits => part.logits(index),
            Gave::States => part.states(index),
        }
    }

    fn top(&self, index: usize) -> &[(u32, f32)] {
        self.parts[self.last].top(index)
    }

    fn clear(&mut self) {
        self.parts.iter_mut().for_each(Workspace::clear);
        self.spans.clear();
    }
}

impl Split {
    /// The layer at which rows cross.
    fn cut(&self) -> u32 {
        self.parts[1].range().start()
    }

    /// The part that holds all of `layers`, if one does.
    fn part_of(&self, layers: LayerRange) -> Option<usize> {
        self.parts.iter().position(|part| part.range().covers(layers))
    }

    /// A pass over layers of both, whose items were admitted.
    fn cross(&self, buffers: &mut SplitBuffers, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        let missing = || Error::invalid("layers of one device alone");
        let before = LayerRange::new(pass.layers.start(), self.cut()).ok_or_else(missing)?;
        let behind = LayerRange::new(self.cut(), pass.layers.end()).ok_or_else(missing)?;
        let (tags, count) = (self.parts.each_ref(), before.len() as usize);
        let tags = [tags[0].state_tag(before), tags[1].state_tag(behind)];
        let mut states: Vec<[SessionState; 2]> =
            items.iter_mut().map(|item| item.state.lend(count, tags)).collect();
        let outcome = self.both(buffers, pass, [before, behind], items, &mut states);
        for (item, [first, second]) in items.iter_mut().zip(states) {
            item.state.take_back(first, second);
        }
        outcome
    }

    fn both(
        &self,
        buffers: &mut SplitBuffers,
        pass: Pass<'_>,
        [before, behind]: [LayerRange; 2],
        items: &[Item<'_>],
        states: &mut [[SessionState; 2]],
    ) -> Result<()> {
        let [first, second] = &mut buffers.parts;
        let mut ahead: Vec<Item<'_>> = states
            .iter_mut()
            .zip(items)
            .map(|([state, _], item)| Item { state, input: item.input, output: Output::All })
            .collect();
        self.parts[0].pass(first, Pass { layers: before, states: false, top: 0, ..pass }, &mut ahead)?;
        let mut rest: Vec<Item<'_>> = states
            .iter_mut()
            .zip(items)
            .enumerate()
            .map(|(index, ([_, state], item))| {
                let input = Input::Activations(first.activations(index));
                Item { state, input, output: item.output }
            })
            .collect();
        buffers.last = 1;
        self.parts[1].pass(second, Pass { layers: behind, ..pass }, &mut rest)
    }
}

impl Executor for Split {
    fn blueprint(&self) -> &Blueprint {
        self.parts[1].blueprint()
    }

    fn range(&self) -> LayerRange {
        self.range
    }

    fn ends(&self) -> Ends {
        Ends { embedding: self.parts[0].ends().embedding, head: self.parts[1].ends().head }
    }

    fn context(&self) -> usize {
        self.parts[1].context()
    }

    fn class(&self) -> Class {
        self.parts[1].class()
    }

    fn device(&self) -> String {
        let [before, behind] = self.parts.each_ref().map(|part| (part.range(), part.device()));
        format!("layers {} on {}, {} on {}", before.0, before.1, behind.0, behind.1)
    }

    fn lost(&self) -> Option<String> {
        self.parts.iter().find_map(|part| part.lost())
    }

    fn counts(&self) -> Option<DeviceCounts> {
        self.parts[1].counts()
    }

    fn operation_times(&self) -> Result<Vec<OperationTime>> {
        self.parts[1].operation_times()
    }

    fn resident_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.resident_bytes()).sum()
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        self.parts.iter().map(|part| part.bytes_per_token(position)).sum()
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        match self.part_of(layers) {
            Some(part) => self.parts[part].state_tag(layers),
            None => self.tags.of(self.range, layers),
        }
    }

    fn new_layer_state(&self, layer: u32, kind: SessionKind) -> Box<dyn LayerState> {
        self.parts[usize::from(layer >= self.cut())].new_layer_state(layer, kind)
    }

    /// As much as fills what the GPU has for its layers: the others are in the memory of the processor.
    fn state_room(&self) -> Option<u64> {
        let there = self.parts[1].state_room()?;
        let bytes = |layers| self.state_bytes(layers, PAGE, CacheType::F16) as u64;
        let (all, behind) = (bytes(self.range), bytes(self.parts[1].range()).max(1));
        Some(u64::try_from(u128::from(there) * u128::from(all) / u128::from(behind)).unwrap_or(u64::MAX))
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        let [before, behind] = &self.parts;
        let parts = [Workspace::new(&**before, capacity)?, Workspace::new(&**behind, capacity)?];
        Ok(Box::new(SplitBuffers { parts, last: 1, spans: Vec::with_capacity(capacity.items) }))
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let buffers: &mut SplitBuffers = ws.buffers()?;
        batch::check_held(self.range, pass.layers)?;
        if let Some(part) = self.part_of(pass.layers) {
            buffers.last = part;
            return self.parts[part].pass(&mut buffers.parts[part], pass, items);
        }
        let mut spans = std::mem::take(&mut buffers.spans);
        let admitted = batch::admit(self, buffers.capacity(), pass, items, &mut spans);
        buffers.spans = spans;
        let outcome =
            admitted.and_then(|rows| if rows == 0 { Ok(()) } else { self.cross(buffers, pass, items) });
        if outcome.is_err() {
            ws.clear();
        }
        outcome
    }
}
