//! A state that is no history: one vector per layer, replaced at every position.
//!
//! What came before a position cannot be read back from such a state, so it keeps copies of itself: checkpoints after every
//! whole multiple of [`CHECKPOINT`] positions, counted from the beginning of the session and not of a pass, so that they do
//! not depend on chunks. Going back means going to one of them.
//!
//! ```text
//! positions   0 ........ 256 ........ 512 ..... 597 .. 600
//! kept        x           x            x         x      x (now)
//! rewind(590) -> 512      rewind(300) -> 256     rewind(599) -> 597
//! ```
//!
//! A pass writes another vector than the one it reads, so the state before the last pass is there, too, until the next one
//! begins: rows of a draft that were wrong cost the rows of that pass again, in the next one.
//!
//! A snapshot holds the state and the newest checkpoint before it, f32, little endian: what every session of that length has.
//!
//! Limits: the newest [`KEPT`] checkpoints are kept; before the oldest only the beginning is.

use std::ops::Range;

use super::LayerState;
use crate::{Error, Result};

/// Positions between checkpoints, absolute multiples: a page of states that have pages. It is part of what a replay
/// recomputes, never of what comes out.
pub const CHECKPOINT: usize = 256;
/// Checkpoints kept: going back further than `KEPT * CHECKPOINT` positions starts again from the beginning.
pub const KEPT: usize = 4;

/// One vector and its checkpoints.
pub struct Recurrent {
    /// After the positions held.
    now: Vec<f32>,
    /// After the rows of the pass under way; between passes what `now` was before the last one.
    next: Vec<f32>,
    len: usize,
    /// The positions held before the last pass, while `next` is the state of there.
    earlier: Option<usize>,
    /// Checkpoints below `len` or at it, ascending.
    kept: Vec<Checkpoint>,
    /// Those of the pass under way.
    made: Vec<Checkpoint>,
    /// Memory for more.
    spare: Vec<Vec<f32>>,
}

struct Checkpoint {
    at: usize,
    values: Vec<f32>,
}

impl Recurrent {
    /// The state before any position: zeros.
    pub fn new(width: usize) -> Self {
        Self {
            now: vec![0.0; width],
            next: vec![0.0; width],
            len: 0,
            earlier: None,
            kept: Vec::with_capacity(2 * KEPT),
            made: Vec::with_capacity(2 * KEPT),
            spare: Vec::with_capacity(2 * KEPT),
        }
    }

    /// Bytes of a state of `width` values that has room for `positions`.
    pub fn bytes_for(width: usize, positions: usize) -> usize {
        (2 + 2 * KEPT.min(positions / CHECKPOINT)) * width * size_of::<f32>()
    }

    /// Computes `rows` rows from `start` on; what comes out counts when it is advanced.
    ///
    /// `update` is given the state before the pass, the one to write and which rows of the pass to compute, up to a checkpoint or
    /// the last; what it is to write holds the state before those rows, except before the first rows of the pass.
    pub(crate) fn pass(
        &mut self,
        start: usize,
        rows: usize,
        mut update: impl FnMut(&[f32], &mut [f32], Range<usize>),
    ) {
        self.spare.extend(self.made.drain(..).map(|checkpoint| checkpoint.values));
        self.earlier = None;
        if rows == 0 {
            self.next.copy_from_slice(&self.now);
        }
        let mut done = 0;
        while done < rows {
            let at = (start + done + 1).next_multiple_of(CHECKPOINT).min(start + rows);
            update(&self.now, &mut self.next, done..at - start);
            done = at - start;
            if at.is_multiple_of(CHECKPOINT) {
                self.keep(at);
            }
        }
    }

    /// Notes a checkpoint of the pass under way.
    fn keep(&mut self, at: usize) {
        if self.made.len() == KEPT {
            self.spare.push(self.made.remove(0).values);
        }
        let mut values = self.spare.pop().unwrap_or_else(|| vec![0.0; self.next.len()]);
        values.copy_from_slice(&self.next);
        self.made.push(Checkpoint { at, values });
    }
}

/// A vector of `width` values in words.
pub(crate) fn kind_of(width: usize) -> String {
    format!("recurrent f32 {width}, checkpoints every {CHECKPOINT}")
}

/// The last position at or before `to` of which there is a state: one of the checkpoints `kept`, where the last pass began, or the
/// beginning.
pub(crate) fn last_before(
    to: usize,
    earlier: Option<usize>,
    kept: impl DoubleEndedIterator<Item = usize>,
) -> usize {
    let kept = kept.rev().find(|at| *at <= to);
    kept.max(earlier.filter(|at| *at <= to)).unwrap_or(0)
}

/// The newest checkpoint before `len`, if a snapshot of that length has one besides the state.
pub(crate) fn before(len: usize) -> Option<usize> {
    let at = len / CHECKPOINT * CHECKPOINT;
    (at > 0 && at < len).then_some(at)
}

impl LayerState for Recurrent {
    fn kind(&self) -> String {
        kind_of(self.now.len())
    }

    fn bytes(&self) -> usize {
        let vectors = 2 + self.kept.len() + self.made.len() + self.spare.len();
        vectors * self.now.len() * size_of::<f32>()
    }

    fn reserve(&mut self, positions: usize) {
        let wanted = 2 * KEPT.min(positions / CHECKPOINT);
        while self.kept.len() + self.made.len() + self.spare.len() < wanted {
            self.spare.push(vec![0.0; self.now.len()]);
        }
    }

    fn checkpoint(&self, to: usize) -> usize {
        if to == self.len {
            return to;
        }
        last_before(to, self.earlier, self.kept.iter().map(|checkpoint| checkpoint.at))
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let copy =
            |checkpoint: &Checkpoint| Checkpoint { at: checkpoint.at, values: checkpoint.values.clone() };
        let mut shared = Self { now: self.now.clone(), len: self.len, ..Self::new(self.now.len()) };
        if self.earlier == Some(to) {
            shared.next.copy_from_slice(&self.next);
            shared.earlier = self.earlier;
        }
        shared.kept.extend(self.kept.iter().map(copy));
        shared.rewind(to);
        Some(Box::new(shared))
    }

    fn rewind(&mut self, to: usize) {
        if to == self.len {
            return;
        }
        while let Some(last) = self.kept.pop_if(|checkpoint| checkpoint.at > to) {
            self.spare.push(last.values);
        }
        match self.kept.last().filter(|checkpoint| checkpoint.at == to) {
            _ if self.earlier == Some(to) => std::mem::swap(&mut self.now, &mut self.next),
            Some(checkpoint) => self.now.copy_from_slice(&checkpoint.values),
            None => self.now.fill(0.0),
        }
        self.earlier = None;
        self.len = to;
    }

    fn advance(&mut self, len: usize) {
        std::mem::swap(&mut self.now, &mut self.next);
        self.earlier = Some(self.len);
        self.len = len;
        self.kept.append(&mut self.made);
        while self.kept.len() > KEPT {
            self.spare.push(self.kept.remove(0).values);
        }
    }

    fn snapshot_len(&self, len: usize) -> usize {
        (1 + usize::from(before(len).is_some())) * self.now.len() * size_of::<f32>()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut put = |values: &[f32]| values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        put(&self.now);
        if let Some(at) = before(len) {
            let found = self.kept.iter().find(|checkpoint| checkpoint.at == at);
            put(&found.ok_or_else(|| Error::invalid(format!("no checkpoint at {at}")))?.values);
        }
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        self.rewind(0);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::malformed("snapshot: state", "is not finite"));
        }
        let (now, earlier) = values.split_at(self.now.len());
        self.now.copy_from_slice(now);
        self.len = len;
        let here = (len > 0 && len.is_multiple_of(CHECKPOINT)).then_some((len, now));
        if let Some((at, values)) = before(len).map(|at| (at, earlier)).or(here) {
            self.kept.push(Checkpoint { at, values: values.to_vec() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Kind, SessionState};

    /// A session of two layers whose states count positions, computed in passes of `chunk`.
    fn counted(len: usize, chunk: usize) -> SessionState {
        let layers = (0..2).map(|_| Kind::Recurrent { width: 3 }.empty(5000)).collect();
        let mut state = SessionState::new(7, layers, 5000);
        run(&mut state, len, chunk);
        state
    }

    fn run(state: &mut SessionState, len: usize, chunk: usize) {
        while state.len() < len {
            let (start, rows) = (state.len(), chunk.min(len - state.len()));
            state.reserve(start + rows).unwrap();
            for layer in 0..2 {
                let recurrent: &mut Recurrent = state.layer_mut(layer).unwrap();
                recurrent.pass(start, rows, |before, values, rows| {
                    if rows.start == 0 {
                        values.copy_from_slice(before);
                    }
                    values.iter_mut().for_each(|value| *value += rows.len() as f32);
                });
            }
            state.advance(rows);
        }
    }

    fn value(state: &mut SessionState) -> f32 {
        state.layer_mut::<Recurrent>(1).unwrap().now[0]
    }

    #[test]
    fn going_back_keeps_the_last_checkpoint_or_pass_and_says_so() {
        for (len, to, kept) in [
            (600, 600, 600),
            (600, 599, 592),
            (600, 592, 592),
            (600, 591, 512),
            (600, 512, 512),
            (600, 511, 256),
            (600, 3, 0),
            (200, 199, 185),
            (200, 184, 0),
            (256, 255, 222),
            (257, 256, 256),
            (3000, 2500, 2304),
            (3000, 2000, 0),
        ] {
            let mut state = counted(len, 37);
            assert_eq!(state.checkpoint(to), kept, "{len} back to {to}");
            assert_eq!((state.rewind(to), state.len()), (kept, kept), "{len} back to {to}");
            assert_eq!(value(&mut state), kept as f32);
            run(&mut state, len, 50);
            assert_eq!(value(&mut state), len as f32);
            assert_eq!(state.rewind(kept), kept, "what was computed again is kept as it was");
        }
    }

    #[test]
    fn passes_do_not_change_a_state_and_a_failed_one_does_not_count() {
        let expected = counted(700, 1).snapshot().unwrap();
        for chunk in [7, 256, 300, 700] {
            assert!(counted(700, chunk).snapshot().unwrap() == expected, "passes of {chunk}");
        }
        let mut state = counted(700, 64);
        assert_eq!(state.checkpoint(699), 640);
        let recurrent: &mut Recurrent = state.layer_mut(0).unwrap();
        recurrent.pass(700, 100, |_, values, _| values.fill(9.0));
        assert!(state.snapshot().unwrap() == expected);
        assert_eq!(state.checkpoint(699), 512, "what was before the last pass is written over");
        run(&mut state, 900, 64);
        assert!(state.snapshot().unwrap() == counted(900, 5).snapshot().unwrap());
    }

    #[test]
    fn a_snapshot_goes_on_and_goes_back() {
        for len in [0, 100, 256, 600, 768] {
            let bytes = counted(len, 50).snapshot().unwrap();
            let mut other = counted(1000, 50);
            other.restore(&bytes).unwrap();
            assert_eq!(other.len(), len);
            run(&mut other, 1024, 100);
            assert!(other.snapshot().unwrap() == counted(1024, 64).snapshot().unwrap(), "after {len}");
            let floor = len / CHECKPOINT * CHECKPOINT;
            other.restore(&bytes).unwrap();
            assert_eq!(other.rewind(len.saturating_sub(1)), if len == floor { 0 } else { floor });
        }
        let mut poisoned = counted(300, 50).snapshot().unwrap();
        let at = poisoned.len() - 4;
        poisoned[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        let mut state = counted(0, 1);
        assert!(state.restore(&poisoned).unwrap_err().to_string().contains("not finite"));
        assert!(state.is_empty());
    }

    #[test]
    fn a_shared_state_goes_on_from_where_it_can_and_changes_nothing() {
        let mut state = counted(600, 50);
        for (to, len) in [(590, 550), (549, 512)] {
            let mut shared = state.share(to).unwrap();
            assert_eq!((shared.len(), value(&mut shared)), (len, len as f32));
            run(&mut shared, 900, 50);
            assert!(shared.snapshot().unwrap() == counted(900, 64).snapshot().unwrap());
        }
        assert!(state.snapshot().unwrap() == counted(600, 64).snapshot().unwrap());
        assert_eq!(state.share(600).unwrap().digest().unwrap(), state.digest().unwrap());
        assert_eq!((state.len(), value(&mut state)), (600, 600.0));
    }

    #[test]
    fn memory_has_a_constant_part_and_a_bound() {
        let kind = Kind::Recurrent { width: 3 };
        assert_eq!(kind.bytes(0), 2 * 12);
        assert_eq!(kind.bytes(255), kind.bytes(0));
        assert_eq!(kind.bytes(256), 4 * 12);
        assert_eq!(kind.bytes(1_000_000), (2 + 2 * KEPT) * 12);
        let mut state = counted(0, 1);
        state.reserve(5000).unwrap();
        assert_eq!(state.bytes(), 2 * kind.bytes(5000));
        run(&mut state, 5000, 999);
        assert_eq!(state.bytes(), 2 * kind.bytes(5000), "passes take no more than was reserved");
    }
}
