//! What is kept of the streams that neighbors opened to a session: the bytes read, and which streams there are.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use p2p::{Permit, wire::frame::Header};
use scheduler::NodeId;
use tokio::sync::oneshot;

/// Streams of one neighbor to one session: the one in use, two of epochs that are being left, and one to spare.
pub(super) const MAX_STREAMS: usize = 4;

/// The bytes of a frame, counted for their sender until they are dropped.
#[derive(Debug, Default)]
pub struct Payload {
    pub(super) bytes: Vec<u8>,
    pub(super) permit: Option<Permit>,
}

impl Payload {
    /// The bytes, and what counts them.
    pub fn into_parts(self) -> (Vec<u8>, Option<Permit>) {
        (self.bytes, self.permit)
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, permit: None }
    }
}

/// What the readers of one session share.
#[derive(Debug, Default)]
pub struct Reading {
    /// Values of a row, once the session has said so.
    width: OnceLock<u32>,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    next: u64,
    /// By neighbor, the oldest first, at most [`MAX_STREAMS`] each. A sender that is dropped ends its stream.
    open: BTreeMap<NodeId, VecDeque<(u64, oneshot::Sender<()>)>>,
}

/// A stream among those of its session; dropped, it is none of them any more.
pub(super) struct Seat {
    reading: Arc<Reading>,
    from: NodeId,
    number: u64,
    /// Ends when a later stream took the place.
    pub(super) gone: oneshot::Receiver<()>,
}

impl Reading {
    /// From now on a row of this session has `width` values; 0 where the model is not known yet.
    pub fn expect(&self, width: u32) {
        if width > 0 {
            // A session has one model: saying it twice changes nothing.
            let _ = self.width.set(width);
        }
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream of `from`; its oldest goes when it has too many.
    pub(super) fn enter(self: &Arc<Self>, from: NodeId) -> Seat {
        let (go, gone) = oneshot::channel();
        let mut streams = self.streams();
        let number = streams.next;
        streams.next += 1;
        let open = streams.open.entry(from).or_default();
        if open.len() == MAX_STREAMS {
            open.pop_front();
        }
        open.push_back((number, go));
        Seat { reading: self.clone(), from, number, gone }
    }

    /// Whether the header's payload is as long as the session's rows are.
    pub(super) fn fits(&self, header: &Header) -> bool {
        match self.width.get() {
            Some(width) if header.kind.carries() => header.fits(*width as usize),
            _ => true,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut streams = self.reading.streams();
        if let Some(open) = streams.open.get_mut(&self.from) {
            open.retain(|(number, _)| *number != self.number);
            if open.is_empty() {
                streams.open.remove(&self.from);
            }
        }
    }
}
