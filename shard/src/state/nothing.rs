//! The state of a layer that remembers nothing: it reads what an earlier layer remembers.

use super::LayerState;
use crate::Result;

/// No state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl LayerState for Nothing {
    fn kind(&self) -> String {
        "nothing".into()
    }

    fn bytes(&self) -> usize {
        0
    }

    fn reserve(&mut self, _positions: usize) {}

    fn share(&self, _to: usize) -> Option<Box<dyn LayerState>> {
        Some(Box::new(Self))
    }

    fn parts(&self, _part: &mut dyn FnMut(usize, usize)) {}

    fn rewind(&mut self, _to: usize) {}

    fn advance(&mut self, _len: usize) {}

    fn snapshot_len(&self, _len: usize) -> usize {
        0
    }

    fn snapshot(&self, _len: usize, _out: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn restore(&mut self, _len: usize, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}
