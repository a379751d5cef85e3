//! The log that a lazy shadow keeps: inputs of a segment that another node runs, computed only when that one has failed.
//!
//! A [`LazyLog`] is the frames as they came, one after the other, from where the cache ends. The node that takes over replays them from
//! memory: they need not cross the network again, and until then nothing is computed.
//!
//! Bounds: [`MAX_BYTES`] for a segment, and what the governor allows of [`Resource::StandbyBytes`]. What does not fit is
//! not kept, nor is anything after it: the requester sends it when it is needed, as it does where no node stands by.

use std::collections::VecDeque;

use p2p::{Governor, Permit, wire::frame::Header};
use scheduler::{LayerRange, NodeId, governor::Resource};

/// Frames kept of one segment, bytes: a context of 16 Ki tokens of a model of 4,096 values, rounded to eight bits.
const MAX_BYTES: usize = 72 << 20;
/// Rows of a frame that is put together from those that came: those of a prompt's chunk, which compute faster together.
const MOST_ROWS: u32 = 96;

/// The inputs of one segment from position `from` to `upto`.
pub(super) struct LazyLog {
    /// Which segment.
    pub(super) layers: LayerRange,
    from: u32,
    upto: u32,
    bytes: usize,
    /// Ascending, without gaps.
    frames: VecDeque<Frame>,
}

/// A frame that was kept.
pub(super) struct Frame {
    /// Which positions.
    pub(super) header: Header,
    /// Their inputs.
    pub(super) payload: Vec<u8>,
    /// Its bytes among those kept for the requester.
    taken: Permit,
}

impl LazyLog {
    /// Nothing yet, beside a cache of `from` positions.
    pub(super) fn new(layers: LayerRange, from: u32) -> Self {
        Self { layers, from, upto: from, bytes: 0, frames: VecDeque::new() }
    }

    /// One past the last position kept.
    pub(super) fn upto(&self) -> u32 {
        self.upto
    }

    /// Keeps the inputs of `header.rows` positions for `requester`, where they go on from what is kept and there is room; what
    /// is kept of these positions and of later ones is replaced.
    pub(super) fn keep(
        &mut self,
        header: Header,
        mut payload: Vec<u8>,
        (governor, requester): (&Governor, NodeId),
    ) {
        self.cut(header.from);
        if header.from != self.upto || self.bytes + payload.len() > MAX_BYTES {
            return;
        }
        let taken = governor.take_for(requester, Resource::StandbyBytes, payload.len() as u64);
        let Ok(mut taken) = taken else { return };
        self.upto += header.rows;
        self.bytes += payload.len();
        if let Some(last) = self.frames.back_mut()
            && last.header.wire == header.wire
            && last.header.rows + header.rows <= MOST_ROWS
        {
            match last.taken.merge(taken) {
                Ok(()) => {
                    last.payload.reserve_exact(payload.len());
                    last.payload.append(&mut payload);
                    last.header.rows += header.rows;
                    last.header.len = last.payload.len() as u32;
                    return;
                }
                // The requester comes from elsewhere now.
                Err(apart) => taken = apart,
            }
        }
        payload.shrink_to_fit();
        self.frames.push_back(Frame { header, payload, taken });
    }

    /// Forgets positions from `at` on, and everything where the cache of `have` positions does not reach what is kept.
    pub(super) fn fit(&mut self, have: u32, at: u32) {
        if have < self.from || have > self.upto {
            *self = Self::new(self.layers, have);
        }
        self.cut(at);
    }

    /// Forgets positions from `at` on.
    fn cut(&mut self, at: u32) {
        while let Some(last) = self.frames.back_mut().filter(|_| self.upto > at) {
            let rows = last.header.rows;
            let left = at.saturating_sub(self.upto - rows).min(rows);
            let bytes = last.payload.len() / rows.max(1) as usize * left as usize;
            self.bytes -= last.payload.len() - bytes;
            self.upto -= rows - left;
            if left == 0 {
                self.frames.pop_back();
            } else {
                last.payload.truncate(bytes);
                (last.header.rows, last.header.len) = (left, bytes as u32);
            }
        }
    }

    /// The frames that a cache of `have` positions lacks, to be computed under `epoch`.
    pub(super) fn replay(mut self, have: u32, epoch: u32) -> VecDeque<Frame> {
        self.frames.retain_mut(|Frame { header, payload, .. }| {
            let end = header.from + header.rows;
            if header.from < have && have < end {
                let had = payload.len() / header.rows as usize * (have - header.from) as usize;
                payload.drain(..had);
                (header.from, header.rows, header.len) = (have, end - have, payload.len() as u32);
            }
            (header.epoch, header.attempt, header.since) = (epoch, 0, 0);
            end > have
        });
        self.frames
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        Governor,
        codec::Wire,
        wire::frame::{Header, Kind},
    };
    use scheduler::{
        LayerRange, NodeId,
        governor::{Limits, Resource, Scope},
    };

    use super::{Frame, LazyLog, MAX_BYTES};

    fn used(governor: &Governor) -> u64 {
        governor.used(Resource::StandbyBytes, Scope::Node)
    }

    /// Rows of four bytes, each of which says its position.
    fn frame(from: u32, rows: u32) -> (Header, Vec<u8>) {
        let payload: Vec<u8> = (from..from + rows).flat_map(u32::to_le_bytes).collect();
        let len = payload.len() as u32;
        let header = Header::signal(Kind::Feed, 1, 2, from, len as usize);
        (Header { wire: Wire::Raw, rows, ..header }, payload)
    }

    fn kept(frames: &[(u32, u32)], governor: &Governor) -> LazyLog {
        let mut kept = LazyLog::new(LayerRange::new(2, 4).unwrap(), 3);
        for (from, rows) in frames {
            let (header, payload) = frame(*from, *rows);
            kept.keep(header, payload, (governor, NodeId::numbered(1)));
        }
        kept
    }

    /// Positions that a cache of `have` is given, each checked to be where its header says.
    fn replayed(kept: LazyLog, have: u32) -> Vec<u32> {
        let frames = kept.replay(have, 7);
        let of_frame = |Frame { header, payload, .. }| {
            assert_eq!((header.epoch, header.len as usize), (7, payload.len()));
            let said: Vec<u32> =
                payload.chunks(4).map(|row| u32::from_le_bytes(row.try_into().unwrap())).collect();
            assert_eq!(said, (header.from..header.from + header.rows).collect::<Vec<_>>());
            said
        };
        frames.into_iter().flat_map(of_frame).collect()
    }

    #[test]
    fn what_is_kept_is_replayed_from_where_the_cache_ends() {
        let room = Governor::default();
        for have in 3..12 {
            let kept = kept(&[(3, 4), (7, 1), (8, 4)], &room);
            assert_eq!(kept.upto(), 12);
            assert_eq!(replayed(kept, have), (have..12).collect::<Vec<_>>());
        }
        assert_eq!(used(&room), 0, "all is given back");
    }

    #[test]
    fn gaps_are_not_kept_and_what_comes_again_replaces_what_was() {
        let room = Governor::default();
        assert_eq!(kept(&[(4, 4)], &room).upto(), 3);
        assert_eq!(kept(&[(3, 4), (9, 4)], &room).upto(), 7);
        let again = kept(&[(3, 4), (7, 4), (5, 4)], &room);
        assert_eq!(again.upto(), 9);
        assert_eq!(replayed(again, 3), (3..9).collect::<Vec<_>>());
    }

    #[test]
    fn it_is_cut_with_the_session_and_forgotten_with_the_cache() {
        let room = Governor::default();
        let cut = |have, at| {
            let mut kept = kept(&[(3, 4), (7, 4)], &room);
            kept.fit(have, at);
            (kept.upto(), replayed(kept, have))
        };
        assert_eq!(cut(3, 100), (11, (3..11).collect()));
        assert_eq!(cut(5, 9), (9, (5..9).collect()));
        assert_eq!(cut(5, 5), (5, vec![]));
        assert_eq!(cut(0, 9), (0, vec![]), "the worker has lost its cache");
        assert_eq!(cut(20, 20), (20, vec![]), "it ran the segment meanwhile");
    }

    #[test]
    fn there_is_room_for_so_much() {
        let room = Governor::new(Limits::default().set(Resource::StandbyBytes, [1_600, 1_600, 1_600]));
        let full = kept(&[(3, 200), (203, 200), (403, 200), (603, 1)], &room);
        assert_eq!((full.upto(), used(&room)), (403, 1_600), "nothing after what did not fit");
        drop(full);
        let room = Governor::default();
        let mut large = LazyLog::new(LayerRange::new(2, 4).unwrap(), 0);
        for at in 0..3 {
            let (header, _) = frame(at, 1);
            large.keep(header, vec![0; MAX_BYTES / 2], (&room, NodeId::numbered(1)));
        }
        assert_eq!(large.upto(), 2);
    }
}
