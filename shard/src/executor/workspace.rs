//! Where passes compute and leave their results.

use std::any::Any;

use super::{Executor, RemoteExperts};
use crate::{Error, Result};

/// How much one pass may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of all items together: the largest prefill chunk, or the largest batch.
    pub rows: usize,
    /// Items of a batch.
    pub items: usize,
    /// Rows whose logits are wanted; each takes four bytes per vocabulary entry.
    pub logit_rows: usize,
}

impl Capacity {
    /// One session at a time: chunks of `rows`, the logits of one row.
    pub fn one_session(rows: usize) -> Self {
        Self { rows, items: 1, logit_rows: 1 }
    }
}

/// What a pass gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gave {
    /// Residual rows: the head does not follow its layers.
    Rows,
    /// Logits.
    Logits,
    /// Rows after the norm in front of the head.
    States,
}

/// The memory of one executor's passes, and the results of the last one.
pub trait Buffers: Any + Send {
    /// What one pass may carry.
    fn capacity(&self) -> Capacity;

    /// Results of item `index` of the last pass, `[wanted rows][hidden]`, of logits `[wanted rows][vocab]`; empty when the
    /// pass gave something else, or none were wanted.
    fn given(&self, gave: Gave, index: usize) -> &[f32];

    /// The largest logits of each wanted row of item `index`, largest first, `[wanted rows][Pass::top]`; empty where the pass
    /// gave all logits, or none. The logit of a single one is not told.
    fn top(&self, _index: usize) -> &[(u32, f32)] {
        &[]
    }

    /// Bytes held for passes of that capacity on the host; of rows, as many as it has.
    fn bytes(&self) -> usize {
        0
    }

    /// Forgets the results of the last pass, so that a failed one leaves none behind.
    fn clear(&mut self);

    /// From now on passes ask `remote` for what experts give that the executor lacks. Those of executors that hold all have
    /// no use for it.
    fn ask_of(&mut self, _remote: Box<dyn RemoteExperts>) {}
}

/// The buffers of one executor's passes, whichever it is; holds the results of the last pass.
///
/// The scratch memory inside may grow with the first pass of a size; later passes of [`super::cpu`] that are no larger
/// allocate nothing.
pub struct Workspace {
    buffers: Box<dyn Buffers>,
}

impl Workspace {
    /// Buffers for passes of `executor` up to `capacity`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a capacity of zero rows or items.
    pub fn new(executor: &dyn Executor, capacity: Capacity) -> Result<Self> {
        if capacity.rows == 0 || capacity.items == 0 {
            return Err(Error::invalid("a workspace needs at least one row and one item"));
        }
        Ok(Self { buffers: executor.buffers(capacity)? })
    }

    /// See [`Buffers::capacity`].
    pub fn capacity(&self) -> Capacity {
        self.buffers.capacity()
    }

    /// See [`Buffers::bytes`].
    pub fn bytes(&self) -> usize {
        self.buffers.bytes()
    }

    /// Logits of item `index` of the last pass, `[wanted rows][vocab]`; empty when the pass ended before the head or
    /// none were wanted.
    pub fn logits(&self, index: usize) -> &[f32] {
        self.buffers.given(Gave::Logits, index)
    }

    /// See [`Buffers::top`].
    pub fn top(&self, index: usize) -> &[(u32, f32)] {
        self.buffers.top(index)
    }

    /// Where the last pass gave the `most` largest logits of each wanted row of item `index`: writes them as rows of `vocab` logits,
    /// in which no other is chosen. Whether it did.
    pub fn spread_top(&self, index: usize, (most, vocab): (usize, usize), into: &mut Vec<f32>) -> bool {
        let top = self.top(index);
        into.clear();
        into.resize(top.len() / most.max(1) * vocab, f32::MIN);
        for (row, top) in into.chunks_exact_mut(vocab).zip(top.chunks_exact(most.max(1))) {
            top.iter().for_each(|(id, logit)| row[*id as usize] = *logit);
        }
        !top.is_empty()
    }

    /// Residual rows of item `index` of the last pass, `[wanted rows][hidden]`; empty when it went through the head.
    pub fn activations(&self, index: usize) -> &[f32] {
        self.buffers.given(Gave::Rows, index)
    }

    /// Hidden states of item `index` after the norm in front of the head, `[wanted rows][hidden]`, of a pass that was
    /// [`Executor::states`] or, where the executor keeps them as processors do, that gave logits; else empty.
    pub fn states(&self, index: usize) -> &[f32] {
        self.buffers.given(Gave::States, index)
    }

    /// See [`Buffers::ask_of`].
    pub fn ask_of(&mut self, remote: Box<dyn RemoteExperts>) {
        self.buffers.ask_of(remote);
    }

    /// See [`Buffers::clear`].
    pub fn clear(&mut self) {
        self.buffers.clear();
    }

    /// The buffers of an executor of one kind.
    ///
    /// # Errors
    /// [`Error::Invalid`] for those of another kind.
    pub fn buffers<B: Buffers>(&mut self) -> Result<&mut B> {
        let buffers: &mut dyn Any = &mut *self.buffers;
        buffers.downcast_mut().ok_or_else(|| Error::invalid("the workspace belongs to another executor"))
    }
}
