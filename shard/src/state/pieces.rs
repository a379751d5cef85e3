//! Snapshots in pieces, for states that are too long for one message.
//!
//! A piece is any range of the bytes that [`SessionState::snapshot`] writes. Reader and writer hold the bytes of one layer at a
//! time, beside the state itself.

use std::ops::Range;

use super::{HEADER, SessionState};
use crate::{Error, Result};

/// A state as bytes, a range at a time.
pub struct SnapshotReader {
    state: SessionState,
    /// The layer that was read last, and its bytes.
    read: Option<(usize, Vec<u8>)>,
}

impl SnapshotReader {
    /// Of this state.
    pub fn new(state: SessionState) -> Self {
        Self { state, read: None }
    }

    /// Bytes of the whole snapshot.
    pub fn bytes(&self) -> usize {
        self.state.snapshot_len(self.state.len)
    }

    /// Those bytes of the snapshot; ranges that follow one another read each layer once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range beyond [`SnapshotReader::bytes`], and when the device does not give its memory.
    pub fn read(&mut self, range: Range<usize>) -> Result<Vec<u8>> {
        let bytes = self.bytes();
        if range.start > range.end || range.end > bytes {
            return Err(Error::invalid(format!("bytes {range:?} of a snapshot of {bytes}")));
        }
        let mut out = Vec::with_capacity(range.len());
        // What of `part`, which starts at `at` of the snapshot, is in the range.
        let mut take = |at: usize, part: &[u8]| {
            let within = |place: usize| place.clamp(at, at + part.len()) - at;
            out.extend_from_slice(&part[within(range.start)..within(range.end)]);
        };
        take(0, &self.state.header());
        let mut at = HEADER;
        for layer in 0..self.state.layers.len() {
            let len = self.state.layers[layer].snapshot_len(self.state.len);
            let ends = at + len;
            if len > 0 && at < range.end && range.start < ends {
                if self.read.as_ref().is_none_or(|(read, _)| *read != layer) {
                    let mut bytes = self.read.take().map(|(_, bytes)| bytes).unwrap_or_default();
                    bytes.clear();
                    self.state.layers[layer].snapshot(self.state.len, &mut bytes)?;
                    self.read = Some((layer, bytes));
                }
                self.read.iter().for_each(|(_, bytes)| take(at, bytes));
            }
            at = ends;
        }
        Ok(out)
    }
}

/// A state that is restored from the bytes of a snapshot as they come.
pub struct SnapshotWriter {
    state: SessionState,
    /// Positions of the snapshot.
    len: usize,
    /// The layer whose bytes are next, once the header has come.
    layer: Option<usize>,
    /// What has come of it, or of the header.
    came: Vec<u8>,
}

impl SnapshotWriter {
    /// Replaces what `state` holds by so many positions.
    pub fn new(mut state: SessionState, len: usize) -> Self {
        state.clear();
        Self { state, len, layer: None, came: Vec::new() }
    }

    /// Bytes of a snapshot of so many positions.
    pub fn bytes(&self) -> usize {
        self.state.snapshot_len(self.len)
    }

    /// The next bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] and [`Error::Invalid`] as [`SessionState::restore`], and for another number of positions; nothing
    /// can follow then.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(whole) = self.next_len() {
            let missing = whole - self.came.len();
            let (here, after) = bytes.split_at(missing.min(bytes.len()));
            self.came.extend_from_slice(here);
            bytes = after;
            if here.len() < missing {
                return Ok(());
            }
            let layer = match self.layer {
                None => {
                    if self.state.check_header(&self.came)? != self.len {
                        return Err(Error::malformed("snapshot: header", "is of other positions"));
                    }
                    self.state.reserve(self.len)?;
                    0
                }
                Some(layer) => {
                    self.state.layers[layer].restore(self.len, &self.came)?;
                    layer + 1
                }
            };
            self.layer = Some(layer);
            self.came.clear();
        }
        match bytes {
            [] => Ok(()),
            _ => Err(Error::malformed("snapshot: length", "is more than its positions")),
        }
    }

    /// Bytes of what comes next: the header or a layer; `None` after the last.
    fn next_len(&self) -> Option<usize> {
        match self.layer {
            None => Some(HEADER),
            Some(layer) => self.state.layers.get(layer).map(|layer| layer.snapshot_len(self.len)),
        }
    }

    /// The state, when all of it has come.
    ///
    /// # Errors
    /// [`Error::Malformed`] when bytes are missing.
    pub fn finish(mut self) -> Result<SessionState> {
        if self.next_len().is_some() {
            return Err(Error::malformed("snapshot: length", "is less than its positions"));
        }
        self.state.len = self.len;
        Ok(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Kind, tests::cache};

    #[test]
    fn pieces_of_any_length_are_the_snapshot() {
        for (len, step) in [(0, 1), (0, 32), (3, 1), (3, 7), (70, 100), (70, 4096), (70, 1 << 20)] {
            let state = cache(len, 5);
            let whole = state.snapshot().unwrap();
            let mut reader = SnapshotReader::new(state.share(len).unwrap());
            assert_eq!(reader.bytes(), whole.len());
            let mut writer = SnapshotWriter::new(cache(90, 1), len);
            assert_eq!(writer.bytes(), whole.len());
            for start in (0..whole.len()).step_by(step) {
                let range = start..(start + step).min(whole.len());
                let piece = reader.read(range.clone()).unwrap();
                assert!(piece == whole[range.clone()], "{range:?} of {len} positions");
                writer.write(&piece).unwrap();
            }
            assert!(writer.finish().unwrap().snapshot().unwrap() == whole, "{len} positions by {step}");
            // Another order reads what the first has.
            for start in (0..whole.len()).step_by(step).rev() {
                let range = start..(start + step).min(whole.len());
                assert!(reader.read(range.clone()).unwrap() == whole[range]);
            }
            assert!(reader.read(0..whole.len() + 1).is_err());
        }
    }

    #[test]
    fn layers_without_bytes_are_passed_over() {
        let layers =
            || [Kind::Nothing, Kind::Recurrent { width: 3 }, Kind::Nothing].map(|kind| kind.empty(9));
        let state = || SessionState::new(7, layers().into(), 9);
        let whole = state().snapshot().unwrap();
        let mut writer = SnapshotWriter::new(state(), 0);
        whole.chunks(5).for_each(|piece| writer.write(piece).unwrap());
        assert!(writer.finish().unwrap().snapshot().unwrap() == whole);
    }

    #[test]
    fn what_is_no_snapshot_is_refused_where_it_shows() {
        let good = cache(3, 5).snapshot().unwrap();
        let written = |bytes: &[u8]| {
            let mut writer = SnapshotWriter::new(cache(0, 0), 3);
            bytes.chunks(9).try_for_each(|piece| writer.write(piece)).and_then(|()| writer.finish().map(drop))
        };
        assert!(written(&good).is_ok());
        let refuse = |bytes: &[u8], what: &str| {
            let error = written(bytes).expect_err(what).to_string();
            assert!(error.contains(what), "{error} should mention {what}");
        };
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        (0..good.len()).for_each(|cut| refuse(&good[..cut], "less than"));
        refuse(&[&good[..], &[0]].concat(), "more than");
        refuse(&changed(0, b'X'), "header");
        refuse(&changed(4, 8), "tag");
        refuse(&changed(24, 4), "other positions");
        refuse(&changed(31, 0xff), "positions");
        refuse(&changed(good.len() - 1, 0x7c), "not finite");
    }
}
