//! A GPU, and the processor for sessions whose kind the GPU does not compute.
//!
//! A GPU computes dense sessions that keep f16. For all others (windows, sparse attention, caches of q8 and q4) the same layers are
//! loaded on the processor, when the first of them begins. Both are of class `d1`: a session has the same bits on either, and
//! stays where it began.
//!
//! Limits: the processor's copy of the weights stays in memory from then on, and is not in [`Executor::resident_bytes`] before. A
//! pass with sessions of both sorts is two passes.

use std::sync::{Arc, OnceLock};

use scheduler::{CacheType, LayerRange, SessionKind};

use super::{
    Buffers, Capacity, Class, DeviceCounts, Ends, Executor, Gave, Item, OperationTime, Options, Pass,
    Workspace,
    cpu::{self, Shard},
};
use crate::{
    Error, Result,
    gguf::Gguf,
    kernels::Cpu,
    models::Blueprint,
    state::{LayerState, SessionState},
};

/// Layers on a GPU, and on the processor where a session needs it.
pub(super) struct Spare {
    gpu: Box<dyn Executor>,
    /// What the processor's part is loaded from, and how.
    gguf: Arc<Gguf>,
    cpu: Arc<Cpu>,
    options: Options,
    loaded: OnceLock<Result<Shard, String>>,
}

impl Spare {
    /// `gpu`, which holds layers of `gguf`, with `cpu` for what it does not compute.
    pub(super) fn new(gpu: Box<dyn Executor>, gguf: &Arc<Gguf>, cpu: &Arc<Cpu>, options: Options) -> Self {
        Self { gpu, gguf: gguf.clone(), cpu: cpu.clone(), options, loaded: OnceLock::new() }
    }

    /// The processor's layers, loaded by the first session that needs them.
    fn processor(&self) -> Result<&Shard> {
        let load = || {
            let (range, ends) = (self.gpu.range(), self.gpu.ends());
            Shard::load(&self.gguf, self.cpu.clone(), range, ends, self.options).map_err(|e| e.to_string())
        };
        self.loaded.get_or_init(load).as_ref().map_err(|why| Error::invalid(why.clone()))
    }

    fn is_on_gpu(&self, kind: SessionKind) -> bool {
        self.gpu.attends(kind).is_ok()
    }

    fn both(&self, buffers: &mut SpareBuffers, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        let on_gpu: Vec<bool> = items.iter().map(|item| self.is_on_gpu(item.state.kind())).collect();
        let mut counts = [0; 2];
        for on_gpu in &on_gpu {
            let part = usize::from(!on_gpu);
            buffers.places.push((part, counts[part]));
            counts[part] += 1;
        }
        if counts[1] == 0 {
            return self.gpu.pass(&mut buffers.gpu, pass, items);
        }
        let processor = self.processor()?;
        let beside = match &mut buffers.cpu {
            Some(beside) => beside,
            none => none.insert(Workspace::new(processor, buffers.capacity)?),
        };
        if counts[0] == 0 {
            return processor.pass(beside, pass, items);
        }
        let lengths: Vec<usize> = items.iter().map(|item| item.state.len()).collect();
        let mut run = |executor: &dyn Executor, ws: &mut Workspace, is_gpu: bool| {
            let part = items.iter_mut().zip(&on_gpu).filter(|(_, on_gpu)| **on_gpu == is_gpu);
            let mut part: Vec<_> = part
                .map(|(item, _)| Item { state: &mut *item.state, input: item.input, output: item.output })
                .collect();
            executor.pass(ws, pass, &mut part)
        };
        run(&*self.gpu, &mut buffers.gpu, true)?;
        let outcome = run(processor, beside, false);
        if outcome.is_err() {
            // What the GPU computes is attention over pages, which goes back to any position.
            items.iter_mut().zip(lengths).for_each(|(item, len)| {
                item.state.rewind(len);
            });
        }
        outcome
    }
}

/// The buffers of both.
struct SpareBuffers {
    capacity: Capacity,
    gpu: Workspace,
    cpu: Option<Workspace>,
    /// Which of both computed each item of the last pass, and as which of its items.
    places: Vec<(usize, usize)>,
}

impl SpareBuffers {
    fn place(&self, index: usize) -> Option<(&Workspace, usize)> {
        let (part, index) = *self.places.get(index)?;
        Some((if part == 0 { &self.gpu } else { self.cpu.as_ref()? }, index))
    }
}

impl Buffers for SpareBuffers {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn given(&self, gave: Gave, index: usize) -> &[f32] {
        match (self.place(index), gave) {
            (None, _) => &[],
            (Some((part, index)), Gave::Rows) => part.activations(index),
            (Some((part, index)), Gave::Logits) => part.logits(index),
            (Some((part, index)), Gave::States) => part.states(index),
        }
    }

    fn top(&self, index: usize) -> &[(u32, f32)] {
        self.place(index).map_or(&[], |(part, index)| part.top(index))
    }

    fn bytes(&self) -> usize {
        self.gpu.bytes() + self.cpu.as_ref().map_or(0, Workspace::bytes)
    }

    fn clear(&mut self) {
        self.gpu.clear();
        self.cpu.iter_mut().for_each(Workspace::clear);
        self.places.clear();
    }
}

impl Executor for Spare {
    fn blueprint(&self) -> &Blueprint {
        self.gpu.blueprint()
    }

    fn range(&self) -> LayerRange {
        self.gpu.range()
    }

    fn ends(&self) -> Ends {
        self.gpu.ends()
    }

    fn context(&self) -> usize {
        self.gpu.context()
    }

    fn class(&self) -> Class {
        self.gpu.class()
    }

    fn device(&self) -> String {
        self.gpu.device()
    }

    fn lost(&self) -> Option<String> {
        self.gpu.lost()
    }

    fn counts(&self) -> Option<DeviceCounts> {
        self.gpu.counts()
    }

    fn operation_times(&self) -> Result<Vec<OperationTime>> {
        self.gpu.operation_times()
    }

    fn resident_bytes(&self) -> usize {
        let spare = self.loaded.get().and_then(|loaded| loaded.as_ref().ok());
        self.gpu.resident_bytes() + spare.map_or(0, Executor::resident_bytes)
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        self.gpu.bytes_per_token(position)
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        self.gpu.state_tag(layers)
    }

    fn state_room(&self) -> Option<u64> {
        self.gpu.state_room()
    }

    fn attends(&self, kind: SessionKind) -> Result<()> {
        if self.is_on_gpu(kind) { Ok(()) } else { cpu::attends(self.gpu.blueprint(), kind) }
    }

    fn new_layer_state(&self, layer: u32, kind: SessionKind) -> Box<dyn LayerState> {
        match self.processor() {
            Ok(processor) if !self.is_on_gpu(kind) => processor.new_layer_state(layer, kind),
            _ => self.gpu.new_layer_state(layer, kind),
        }
    }

    fn new_state_with(&self, layers: LayerRange, kind: SessionKind) -> Result<SessionState> {
        match self.is_on_gpu(kind) {
            true => self.gpu.new_state_with(layers, kind),
            false => self.processor()?.new_state_with(layers, kind),
        }
    }

    fn state_bytes(&self, layers: LayerRange, positions: usize, cache: CacheType) -> usize {
        self.gpu.state_bytes(layers, positions, cache)
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        let gpu = Workspace::new(&*self.gpu, capacity)?;
        Ok(Box::new(SpareBuffers { capacity, gpu, cpu: None, places: Vec::with_capacity(capacity.items) }))
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let outcome = self.both(ws.buffers()?, pass, items);
        if outcome.is_err() {
            ws.clear();
        }
        outcome
    }
}
