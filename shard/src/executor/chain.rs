//! A model cut into stages that feed each other inside one process.
//!
//! What a swarm does over the network, without one: each stage has its own weights, state and buffers, and only f32
//! rows pass between them. It shows that cuts do not change bits, and what a cut costs.

use std::sync::Arc;

use scheduler::{LayerRange, SessionKind};

use super::{Capacity, Device, Ends, Executor, Input, Item, Options, Output, Workspace, load};
use crate::{Error, Result, gguf::Gguf, round::Rounding, state::SessionState};

/// Shards that together hold a whole model, and one session running through them.
pub struct Chain {
    stages: Vec<Stage>,
    rows: Vec<f32>,
    chunk: usize,
    rounding: Rounding,
}

struct Stage {
    executor: Box<dyn Executor>,
    state: SessionState,
    workspace: Workspace,
}

impl Chain {
    /// Loads one shard per range; the ranges cover all layers in order. Passes carry at most `chunk` rows.
    ///
    /// # Errors
    /// Those of [`load`] and [`Workspace::new`]; [`Error::Invalid`] for ranges with a gap.
    pub fn load(
        device: &Device,
        gguf: &Arc<Gguf>,
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
            let executor = load(device, gguf, range, ends, options)?;
            let workspace = Workspace::new(&*executor, Capacity::one_session(chunk))?;
            Ok(Stage { state: executor.new_state(), executor, workspace })
        };
        let stages = ranges.iter().enumerate().map(stage).collect::<Result<_>>()?;
        Ok(Self { stages, rows: Vec::new(), chunk, rounding: Rounding::NONE })
    }

    /// From now on activations are rounded as `rounding` says, wherever the shards are cut; see [`Executor::run`].
    pub fn round(&mut self, rounding: Rounding) {
        self.rounding = rounding;
    }

    /// Begins an empty session of another kind.
    ///
    /// # Errors
    /// Those of [`Executor::new_state_with`].
    pub fn attend(&mut self, kind: SessionKind) -> Result<()> {
        for stage in &mut self.stages {
            stage.state = stage.executor.new_state_with(stage.executor.range(), kind)?;
        }
        Ok(())
    }

    /// The layers of each shard.
    pub fn ranges(&self) -> impl Iterator<Item = LayerRange> {
        self.stages.iter().map(|stage| stage.executor.range())
    }

    /// Vocabulary entries, and so logits per row.
    pub fn vocab(&self) -> usize {
        self.stages[0].executor.blueprint().vocab
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
            let items = &mut [Item { state: &mut stage.state, input, output }];
            stage.executor.run(&mut stage.workspace, stage.executor.range(), &self.rounding, items)?;
            self.rows.clear();
            self.rows.extend_from_slice(stage.workspace.activations(0));
        }
        Ok(())
    }
}
