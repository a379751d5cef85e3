//! A stream whose frames datagrams may carry, as its neighbor knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc};

use super::datagram::session::Delivered;

/// What a stream knows of its frames that datagrams carry.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The other end takes datagrams for it.
    pub(crate) ready: AtomicBool,
    /// Frames handed over that have neither arrived nor been written to the stream.
    pub(crate) outstanding: AtomicUsize,
    /// One of them has.
    pub(crate) settled: Notify,
}

impl Lane {
    /// A frame has arrived, or is on the stream.
    pub(crate) fn settle(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.settled.notify_waiters();
    }
}

/// What a lane receives by.
#[derive(Debug)]
pub(crate) struct Doors {
    pub(crate) lane: Arc<Lane>,
    pub(crate) inbox: mpsc::UnboundedReceiver<Delivered>,
    pub(crate) returns: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
}

/// A neighbor's side of [`Doors`].
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) lane: Arc<Lane>,
    /// The other end opened it, and has to hear that this one takes datagrams for it.
    pub(crate) accepted: bool,
    pub(crate) inbox: mpsc::UnboundedSender<Delivered>,
    /// Frames that take the stream after all. Here and not in the lane: the task that writes them ends with the entry.
    pub(crate) returns: mpsc::UnboundedSender<(u32, Vec<u8>)>,
}

impl Registered {
    /// Of a stream that the other end opened, or this one.
    pub(crate) fn new(accepted: bool) -> (Self, Doors) {
        let (inbox, inbox_out) = mpsc::unbounded_channel();
        let (returns, returns_out) = mpsc::unbounded_channel();
        let lane = Arc::new(Lane {
            ready: AtomicBool::new(accepted),
            outstanding: AtomicUsize::new(0),
            settled: Notify::new(),
        });
        let doors = Doors { lane: lane.clone(), inbox: inbox_out, returns: returns_out };
        (Self { lane, accepted, inbox, returns }, doors)
    }
}
