//! The buffers of passes, the dispatches bound to them, and the results of the last pass.

use super::{
    GpuShard,
    device::Reserved,
    scratch::{Scratch, scratch_bytes, table_entries},
    steps::Steps,
};
use crate::{
    Result,
    executor::{Buffers, Capacity, Gave, batch::Span},
};

/// The buffers of one executor's passes, and the results of the last one.
pub(super) struct GpuBuffers {
    pub capacity: Capacity,
    /// The executor they were made for, by its address.
    pub owner: usize,
    pub scratch: Scratch,
    pub spans: Vec<Span>,
    /// For each layer held, its dispatches and the buffers of pages that they are bound to.
    pub layers: Vec<Option<(Vec<wgpu::Buffer>, Steps)>>,
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
        let tables = shard.pool.count() * capacity.items * table_entries(shard.context, rows);
        let capacity = Capacity { logit_rows, ..capacity };
        let memory = gpu.reserve(scratch_bytes(b, shard.context, capacity))?;
        let scratch = Scratch::new(gpu, b, (rows, logit_rows), 4 + 2 * rows + tables)?;
        gpu.check()?;
        Ok(Self {
            capacity,
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
