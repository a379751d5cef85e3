//! A model cut into shards that feed each other inside one process.
//!
//! What a swarm does over the network, without one: each shard has its own weights, cache and buffers, and only f32
//! rows pass between them. It shows that cuts do not change bits, and what a cut costs.

use std::sync::Arc;

use scheduler::LayerRange;

use super::{Capacity, Ends, Input, Item, Options, Output, Shard, Workspace};
use crate::{Error, Result, gguf::Gguf, kernels::Cpu, state::KvCache};

/// Shards that together hold a whole model, and one session running through them.
pub struct Chain {
    stages: Vec<Stage>,
    rows: Vec<f32>,
    chunk: usize,
    rounding: Vec<u32>,
}

struct Stage {
    shard: Shard,
    kv: KvCache,
    workspace: Workspace,
}

impl Chain {
    /// Loads one shard per range; the ranges cover all layers in order. Passes carry at most `chunk` rows.
    ///
    /// # Errors
    /// Those of [`Shard::load`] and [`Workspace::new`]; [`Error::Invalid`] for ranges with a gap.
    pub fn load(
        gguf: &Arc<Gguf>,
        cpu: &Arc<Cpu>,
        ranges: &[LayerRange],
        options: Options,
        chunk: usize,
    ) -> Result<Self> {
        let count = super::whole_range(gguf)?.end();
        let ends = ranges.iter().map(|r| r.end()).chain([count]);
        if !ranges.iter().map(|r| r.start()).chain([count]).eq([0].into_iter().chain(ends.take(ranges.len())))
        {
            return Err(Error::invalid(format!("{ranges:?} do not cover layers 0..{count} in order")));
        }
        let stage = |(index, &range): (usize, &LayerRange)| {
            let ends = Ends { embedding: index == 0, head: index + 1 == ranges.len() };
            let shard = Shard::load(gguf, cpu.clone(), range, ends, options)?;
            let workspace = Workspace::new(&shard, Capacity::one_session(chunk))?;
            Ok(Stage { kv: shard.new_kv(), shard, workspace })
        };
        let stages = ranges.iter().enumerate().map(stage).collect::<Result<_>>()?;
        Ok(Self { stages, rows: Vec::new(), chunk, rounding: Vec::new() })
    }

    /// From now on activations are rounded before the layers in `boundaries`, wherever the shards are cut; see
    /// [`Shard::run`].
    pub fn round(&mut self, boundaries: Vec<u32>) {
        self.rounding = boundaries;
    }

    /// The layers of each shard.
    pub fn ranges(&self) -> impl Iterator<Item = LayerRange> {
        self.stages.iter().map(|stage| stage.shard.range())
    }

    /// Vocabulary entries, and so logits per row.
    pub fn vocab(&self) -> usize {
        self.stages[0].shard.blueprint().vocab
    }

    /// Appends `tokens` to the session and gives the logits after the last one.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let mut left = tokens.len();
        for part in tokens.chunks(self.chunk) {
            left -= part.len();
            self.pass(part, left == 0)?;
        }
        Ok(self.stages.last().map_or(&[], |stage| stage.workspace.logits(0)))
    }

    fn pass(&mut self, tokens: &[u32], last: bool) -> Result<()> {
        let final_stage = self.stages.len() - 1;
        for (index, stage) in self.stages.iter_mut().enumerate() {
            let input = if index == 0 { Input::Tokens(tokens) } else { Input::Activations(&self.rows) };
            let output = match (index == final_stage, last) {
                (false, _) => Output::All,
                (true, true) => Output::Last,
                (true, false) => Output::None,
            };
            let items = &mut [Item { kv: &mut stage.kv, input, output }];
            stage.shard.run(&mut stage.workspace, stage.shard.range(), &self.rounding, items)?;
            self.rows.clear();
            self.rows.extend_from_slice(stage.workspace.activations(0));
        }
        Ok(())
    }
}
