//! The state of a layer that looks back and recurs at once (Falcon-H1): keys and values of every position, and one vector.
//!
//! It goes back where both go back; a snapshot holds the keys and values, then the vector.

use std::any::Any;

use super::LayerState;
use crate::Result;

/// Two states of one layer.
pub struct Beside {
    paged: Box<dyn LayerState>,
    recurrent: Box<dyn LayerState>,
}

impl Beside {
    /// Both as they are: one that goes back anywhere, and one that goes back to its checkpoints.
    pub fn new(paged: impl LayerState, recurrent: impl LayerState) -> Self {
        Self { paged: Box::new(paged), recurrent: Box::new(recurrent) }
    }

    /// The one that is an `L`.
    pub(crate) fn part<L: LayerState>(&self) -> Option<&L> {
        let parts: [&dyn Any; 2] = [&*self.paged, &*self.recurrent];
        parts.into_iter().find_map(|part| part.downcast_ref())
    }

    /// As [`Beside::part`], to store into.
    pub(crate) fn part_mut<L: LayerState>(&mut self) -> Option<&mut L> {
        let parts: [&mut dyn Any; 2] = [&mut *self.paged, &mut *self.recurrent];
        parts.into_iter().find_map(|part| part.downcast_mut())
    }
}

impl LayerState for Beside {
    fn kind(&self) -> String {
        format!("{} beside {}", self.paged.kind(), self.recurrent.kind())
    }

    fn bytes(&self) -> usize {
        self.paged.bytes() + self.recurrent.bytes()
    }

    fn reserve(&mut self, positions: usize) {
        self.paged.reserve(positions);
        self.recurrent.reserve(positions);
    }

    fn prepare(&mut self, positions: usize) {
        self.paged.prepare(positions);
        self.recurrent.prepare(positions);
    }

    fn forgets(&self, len: usize, to: usize) -> bool {
        self.paged.forgets(len, to) || self.recurrent.forgets(len, to)
    }

    fn checkpoint(&self, to: usize) -> usize {
        // The keys and values go back to any position, or to none but 0.
        self.paged.checkpoint(self.recurrent.checkpoint(to))
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        Some(Box::new(Self { paged: self.paged.share(to)?, recurrent: self.recurrent.share(to)? }))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        self.paged.parts(part);
        self.recurrent.parts(part);
    }

    fn rewind(&mut self, to: usize) {
        self.paged.rewind(to);
        self.recurrent.rewind(to);
    }

    fn advance(&mut self, len: usize) {
        self.paged.advance(len);
        self.recurrent.advance(len);
    }

    fn snapshot_len(&self, len: usize) -> usize {
        self.paged.snapshot_len(len) + self.recurrent.snapshot_len(len)
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.paged.snapshot(len, out)?;
        self.recurrent.snapshot(len, out)
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        let (paged, recurrent) = bytes.split_at(self.paged.snapshot_len(len));
        self.paged.restore(len, paged)?;
        self.recurrent.restore(len, recurrent)
    }
}
