//! States on their way to and from other nodes, a piece at a time.
//!
//! Bounds: of what leaves one state is read at a time, another takes its place and it is begun again where it was left; [`MOST`]
//! states arrive, each with its memory reserved; both are given up after [`PATIENCE`] without a piece.

use std::{collections::HashMap, time::Duration, time::Instant};

use p2p::wire::pages::{MAX_STATE, MAX_WORTH_MS, PIECE};
use scheduler::{LayerRange, SessionId};
use shard::{
    round::Rounding,
    state::{SessionState, SnapshotReader, SnapshotWriter},
};

use super::{
    Fault,
    kept::{Ended, Key},
    refused,
};
use crate::byte_planes::{pack, unpack};

/// States that arrive at once: as many as the governor lets a node transfer ([`scheduler::governor::Resource::Pages`]).
const MOST: usize = 8;
/// The daemon has given a transfer up by then, however slow the line.
const PATIENCE: Duration = Duration::from_millis(MAX_WORTH_MS as u64);

/// What is on its way.
#[derive(Default)]
pub(super) struct Transit {
    leaving: Option<Leaving>,
    arriving: HashMap<Key, Arriving>,
}

struct Leaving {
    key: Key,
    positions: usize,
    reader: SnapshotReader,
    touched: Instant,
}

/// A state of which not all pieces have come.
pub(super) struct Arriving {
    pub(super) layers: LayerRange,
    pub(super) rounding: Rounding,
    pub(super) reserved_bytes: u64,
    writer: SnapshotWriter,
    /// Where the next piece starts.
    next: usize,
    touched: Instant,
}

impl Arriving {
    /// One of so many positions, into `state`.
    pub(super) fn new(
        (layers, rounding): (LayerRange, Rounding),
        reserved_bytes: u64,
        (state, positions): (SessionState, usize),
        now: Instant,
    ) -> Self {
        let writer = SnapshotWriter::new(state, positions);
        Self { layers, rounding, reserved_bytes, writer, next: 0, touched: now }
    }
}

impl Transit {
    /// Memory of states that arrive, bytes.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.arriving.values().map(|it| it.reserved_bytes).sum()
    }

    /// The piece that starts at byte `start` of a state of so many positions, packed, and bytes of the whole state; `lend` gives it
    /// where another one left meanwhile.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it is not kept, too large to travel, or ends before.
    pub(super) fn leave(
        &mut self,
        (key, positions): (Key, usize),
        start: usize,
        lend: impl FnOnce() -> Option<SessionState>,
        now: Instant,
    ) -> Result<(u32, Vec<u8>), Fault> {
        let before = self.leaving.take().filter(|it| (it.key, it.positions) == (key, positions));
        let reader = match before {
            Some(it) => Some(it.reader),
            None => lend().map(SnapshotReader::new),
        };
        let mut reader = reader.ok_or_else(|| refused("it is not kept here"))?;
        let bytes = reader.bytes();
        if bytes > MAX_STATE {
            return Err(refused("the state is too large to travel"));
        }
        let end = bytes.min(start.saturating_add(PIECE));
        let packed = pack(&reader.read(start..end).map_err(refused)?).map_err(refused)?;
        if end < bytes {
            self.leaving = Some(Leaving { key, positions, reader, touched: now });
        }
        Ok((bytes as u32, packed))
    }

    /// Begins with a state.
    ///
    /// # Errors
    /// [`Fault::Refused`] when too many arrive already, or it would be of other bytes than the sender says.
    pub(super) fn arrive(&mut self, key: Key, raw_bytes: usize, arriving: Arriving) -> Result<(), Fault> {
        if arriving.writer.bytes() != raw_bytes || raw_bytes > MAX_STATE {
            return Err(refused("other bytes than a state of so many positions has"));
        }
        if self.arriving.len() >= MOST && !self.arriving.contains_key(&key) {
            return Err(refused(format!("{MOST} states are on their way here: wait")));
        }
        self.arriving.insert(key, arriving);
        Ok(())
    }

    /// Takes the packed piece that starts at byte `start`; the state when it was the last.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it does not follow the one before or is no piece of that state, which is given up then.
    pub(super) fn take(
        &mut self,
        key: Key,
        start: usize,
        packed: &[u8],
        now: Instant,
    ) -> Result<Option<Ended>, Fault> {
        let Some(mut it) = self.arriving.remove(&key).filter(|it| it.next == start) else {
            return Err(refused("a piece that does not follow another"));
        };
        let bytes = it.writer.bytes();
        let raw = unpack(packed, PIECE.min(bytes - start));
        let raw = raw.ok_or_else(|| refused("a piece that was not packed"))?;
        it.writer.write(&raw).map_err(refused)?;
        (it.next, it.touched) = (start + raw.len(), now);
        if it.next < bytes {
            self.arriving.insert(key, it);
            return Ok(None);
        }
        let Arriving { layers, rounding, writer, .. } = it;
        Ok(Some(Ended { layers, rounding, state: writer.finish().map_err(refused)? }))
    }

    /// Gives up what belongs to a session.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.leaving.take_if(|it| it.key.0 == session);
        self.arriving.retain(|key, _| key.0 != session);
    }

    /// Gives up what nothing came or left of for long.
    pub(super) fn sweep(&mut self, now: Instant) {
        let late = |touched: Instant| now.saturating_duration_since(touched) > PATIENCE;
        self.leaving.take_if(|it| late(it.touched));
        self.arriving.retain(|_, it| !late(it.touched));
    }
}

/// Whether two states are the same bit for bit, looked at a piece at a time.
///
/// # Errors
/// [`Fault::Refused`] when a device does not give its memory.
pub(super) fn are_same(one: SessionState, other: SessionState) -> Result<bool, Fault> {
    let (mut one, mut other) = (SnapshotReader::new(one), SnapshotReader::new(other));
    let bytes = one.bytes();
    if other.bytes() != bytes {
        return Ok(false);
    }
    for start in (0..bytes).step_by(PIECE) {
        let piece = start..bytes.min(start + PIECE);
        if one.read(piece.clone()).map_err(refused)? != other.read(piece).map_err(refused)? {
            return Ok(false);
        }
    }
    Ok(true)
}
