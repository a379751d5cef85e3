//! Messages that are being put together from their chunks.
//!
//! Limits: [`MAX_OPEN`] messages of a session, each of the length that its first chunk states and taken from the governor
//! before it is allocated; one that gets no chunk for [`STALE`] is dropped. Only chunks that proved the key come here.

use std::time::Duration;

use scheduler::NodeId;
use scheduler::governor::Resource;

use super::Time;
use super::header::{Header, Window};
use crate::governor::{Governor, Permit};

/// Messages of one session that are not whole.
pub(crate) const MAX_OPEN: usize = 4;
/// How long a message may wait for its next chunk.
pub(crate) const STALE: Duration = Duration::from_secs(2);

/// A message that lacks chunks.
#[derive(Debug)]
struct Open {
    message: u32,
    total_bytes: u32,
    chunks: u16,
    /// A bit for each chunk that is here.
    here: Vec<u64>,
    lacking: u16,
    sealed: Vec<u8>,
    /// When its last chunk came.
    touched: Time,
    permit: Permit,
}

/// A sealed message with all of its chunks, its bytes counted until the permit is dropped.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) sealed: Vec<u8>,
    pub(crate) permit: Permit,
}

/// What became of a chunk.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is the last one.
    Whole(Whole),
    /// Others lack.
    Stored,
    /// The message was complete before: its sender has not heard of it.
    Over,
    /// It was here already.
    Duplicate,
    /// There is no room, or it contradicts what was said of its message.
    Refused,
}

/// The messages of one session that are arriving.
#[derive(Debug)]
pub(crate) struct Receiver {
    governor: Governor,
    from: NodeId,
    chunk_bytes: usize,
    longest: u64,
    window: Window,
    open: Vec<Open>,
}

impl Receiver {
    /// Of messages of `from` in chunks of `chunk_bytes`, none longer than `longest` bytes.
    pub(crate) fn new(governor: Governor, from: NodeId, chunk_bytes: usize, longest: u64) -> Self {
        let open = Vec::with_capacity(MAX_OPEN);
        Self { governor, from, chunk_bytes, longest, window: Window::default(), open }
    }

    /// Takes in a chunk of a data datagram that is consistent and proved.
    pub(crate) fn take(&mut self, now: Time, header: &Header, chunk: &[u8]) -> Outcome {
        if self.window.is_over(header.message) {
            return Outcome::Over;
        }
        let at = match self.open.iter().position(|open| open.message == header.message) {
            Some(at) => at,
            None => match self.begin(now, header) {
                Some(at) => at,
                None => return Outcome::Refused,
            },
        };
        let open = &mut self.open[at];
        if open.total_bytes != header.total_bytes || open.chunks != header.chunks {
            return Outcome::Refused;
        }
        let (word, bit) = (usize::from(header.chunk / 64), 1_u64 << (header.chunk % 64));
        if open.here[word] & bit != 0 {
            return Outcome::Duplicate;
        }
        let start = usize::from(header.chunk) * self.chunk_bytes;
        let Some(place) = open.sealed.get_mut(start..start + chunk.len()) else { return Outcome::Refused };
        place.copy_from_slice(chunk);
        open.here[word] |= bit;
        open.lacking -= 1;
        open.touched = now;
        if open.lacking > 0 {
            return Outcome::Stored;
        }
        let Open { sealed, permit, .. } = self.open.swap_remove(at);
        Outcome::Whole(Whole { sealed, permit })
    }

    fn begin(&mut self, now: Time, header: &Header) -> Option<usize> {
        self.forget_stale(now);
        let bytes = u64::from(header.total_bytes);
        if self.open.len() == MAX_OPEN || bytes > self.longest {
            return None;
        }
        let permit = self.governor.take_for(self.from, Resource::Bytes, bytes).ok()?;
        self.open.push(Open {
            message: header.message,
            total_bytes: header.total_bytes,
            chunks: header.chunks,
            here: vec![0; usize::from(header.chunks).div_ceil(64)],
            lacking: header.chunks,
            sealed: vec![0; header.total_bytes as usize],
            touched: now,
            permit,
        });
        Some(self.open.len() - 1)
    }

    /// Takes in a message that was put together elsewhere.
    pub(crate) fn take_whole(&mut self, message: u32, sealed: &[u8]) -> Outcome {
        if self.window.is_over(message) {
            return Outcome::Over;
        }
        // What came of it before is not needed.
        self.open.retain(|open| open.message != message);
        let taken = self.governor.take_for(self.from, Resource::Bytes, sealed.len() as u64);
        let Ok(permit) = taken else { return Outcome::Refused };
        Outcome::Whole(Whole { sealed: sealed.to_vec(), permit })
    }

    /// The newest message that has been delivered.
    pub(crate) fn newest(&self) -> u32 {
        self.window.newest()
    }

    /// The message has been delivered: it is not taken again.
    pub(crate) fn close(&mut self, message: u32) {
        self.window.close(message);
    }

    /// Whether the message has been delivered.
    pub(crate) fn is_over(&self, message: u32) -> bool {
        self.window.is_over(message)
    }

    /// When [`Receiver::forget_stale`] has something to drop.
    pub(crate) fn due(&self) -> Option<Time> {
        self.open.iter().map(|open| open.touched + STALE).min()
    }

    /// Drops what lacks chunks for too long.
    pub(crate) fn forget_stale(&mut self, now: Time) {
        self.open.retain(|open| now.saturating_sub(open.touched) < STALE);
    }

    /// The payload of a nack: which of the first `chunks` chunks of a message lack, all of one that nothing is known of.
    pub(crate) fn lacking(&self, message: u32, chunks: u16) -> Vec<u8> {
        let open = self.open.iter().find(|open| open.message == message);
        let most = (self.chunk_bytes - 4) * 8;
        let count = open.map_or(chunks, |open| open.chunks).min(most as u16).max(1);
        let mut payload = vec![0; 4 + usize::from(count).div_ceil(8)];
        payload[2..4].copy_from_slice(&count.to_le_bytes());
        for chunk in 0..count {
            let here = open.is_some_and(|open| open.here[usize::from(chunk / 64)] >> (chunk % 64) & 1 == 1);
            if !here {
                payload[4 + usize::from(chunk / 8)] |= 1 << (chunk % 8);
            }
        }
        payload
    }
}
