//! The sessions this node takes part in, as requester or as a stage, and the channels their news arrives on.
//!
//! Every session is one task that owns its state; what happens to it arrives on three bounded channels. Streams from
//! neighbors are read by one task each, which looks the session up here per frame: the map is the only thing that
//! readers, worker and daemon share.

mod order;
pub mod peer_streams;

use std::{sync::Arc, time::Duration};

use dashmap::{DashMap, mapref::entry::Entry};
use p2p::{
    link::Reader,
    wire::frame::{HEADER_LEN, Header, Hello, Kind, MAX_FRAME},
};
use scheduler::{NodeId, SessionId};
use tokio::sync::mpsc;

pub use self::order::{Loss, Order};
use crate::worker::Output;

/// A neighbor that opened a stream says at once what for.
const HELLO: Duration = Duration::from_secs(10);
/// Frames waiting for one session; when they are full the stream they came from is read no further.
const FRAMES: usize = 32;
/// Outputs of the worker waiting for one session. A session has at most [`JOBS_AHEAD`] jobs out, so it never fills.
const OUTPUTS: usize = 4 * JOBS_AHEAD;
/// Orders waiting for one session; the sender waits.
const ORDERS: usize = 64;
/// Jobs one session may have at the worker: enough that the next chunk is there when one ends.
pub const JOBS_AHEAD: usize = 4;
/// Sessions of one node, its own and others'; a lease beyond is refused.
pub const MAX_SESSIONS: usize = 256;

/// What a neighbor's stream brought.
#[derive(Debug)]
pub enum Arrival {
    /// A neighbor opened a stream, which its frames under this epoch come by from now on.
    Began {
        /// Who.
        from: NodeId,
        /// Under which epoch.
        epoch: u32,
    },
    /// A frame, its header checked.
    Frame {
        /// Who sent it.
        from: NodeId,
        /// What it is.
        header: Header,
        /// Its bytes.
        payload: Vec<u8>,
    },
    /// The stream ended.
    Ended {
        /// Whose.
        from: NodeId,
    },
}

/// The doors of one session.
#[derive(Clone, Debug)]
pub struct Inlets {
    /// From neighbors.
    pub frames: mpsc::Sender<Arrival>,
    /// From this node's worker.
    pub outputs: mpsc::Sender<Output>,
    /// From this node.
    pub orders: mpsc::Sender<Order>,
    /// Whose prompt it is.
    pub requester: NodeId,
}

/// The other side of the doors.
#[derive(Debug)]
pub struct Outlets {
    /// From neighbors.
    pub frames: mpsc::Receiver<Arrival>,
    /// From this node's worker.
    pub outputs: mpsc::Receiver<Output>,
    /// From this node.
    pub orders: mpsc::Receiver<Order>,
}

/// All sessions of this node.
#[derive(Clone, Debug, Default)]
pub struct SessionTable(Arc<DashMap<SessionId, Inlets>>);

impl SessionTable {
    /// Enters a session. `None` when the node has as many as it takes or the name is in use.
    pub fn enter(&self, session: SessionId, requester: NodeId) -> Option<(Inlets, Outlets)> {
        if self.0.len() >= MAX_SESSIONS {
            return None;
        }
        let (frames, frames_out) = mpsc::channel(FRAMES);
        let (outputs, outputs_out) = mpsc::channel(OUTPUTS);
        let (orders, orders_out) = mpsc::channel(ORDERS);
        match self.0.entry(session) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                let inlets = Inlets { frames, outputs, orders, requester };
                vacant.insert(inlets.clone());
                Some((inlets, Outlets { frames: frames_out, outputs: outputs_out, orders: orders_out }))
            }
        }
    }

    /// The doors of a session.
    pub fn get(&self, session: SessionId) -> Option<Inlets> {
        self.0.get(&session).map(|inlets| inlets.clone())
    }

    /// Forgets a session.
    pub fn leave(&self, session: SessionId) {
        self.0.remove(&session);
    }

    /// Whether no session runs here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sessions of others running here.
    pub fn serving(&self, me: NodeId) -> usize {
        self.0.iter().filter(|entry| entry.requester != me).count()
    }

    /// Hands an output of the worker to its session; dropped when that is over.
    pub async fn deliver(&self, output: Output) {
        if let Some(inlets) = self.get(output.session) {
            let _ = inlets.outputs.send(output).await;
        }
    }

    /// Reads a neighbor's stream until it ends, frame by frame, into the session it names. A frame that cannot be read
    /// ends the stream.
    pub async fn read(self, from: NodeId, mut stream: Reader) {
        let mut hello = [0; Hello::LEN];
        if stream.recv_exact_within(&mut hello, HELLO).await.is_err() {
            return;
        }
        let Ok(hello) = Hello::read(&hello) else { return };
        let Some(inlets) = self.get(hello.session) else { return };
        if inlets.frames.send(Arrival::Began { from, epoch: hello.epoch }).await.is_err() {
            return;
        }
        let mut head = [0; HEADER_LEN];
        while stream.recv_exact(&mut head).await.is_ok() {
            let Ok(header) = Header::read(&head) else { break };
            let mut payload = Vec::new();
            if stream.recv_payload(header.len as usize, MAX_FRAME, &mut payload).await.is_err() {
                break;
            }
            if inlets.frames.send(Arrival::Frame { from, header, payload }).await.is_err()
                || header.kind == Kind::Bye
            {
                break;
            }
        }
        let _ = inlets.frames.send(Arrival::Ended { from }).await;
    }
}
