//! The sessions this node takes part in, as requester or as a stage, and the channels their news arrives on.
//!
//! A session's name is chosen by its requester, so it says nothing without that: two requesters may choose the same,
//! by mistake or to keep each other out. Here, at the worker and on streams a session goes by its [`place`], a
//! digest of both.
//!
//! Every session is one task that owns its state; what happens to it arrives on three bounded channels. Streams from
//! neighbors are read by one task each, which looks the session up here per frame: the map is the only thing that
//! readers, worker and daemon share.

mod order;
pub mod peer_streams;
pub mod reader;
pub mod reading;

use std::sync::Arc;

use dashmap::{DashMap, mapref::entry::Entry};
use p2p::wire::frame::Header;
use scheduler::{NodeId, SessionId};
use tokio::sync::mpsc;

pub use self::order::{Loss, Order, PlannedSource, Rerouted};
use self::reading::{Payload, Reading};
use crate::worker::Output;

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
        /// Its bytes; none where the header promised others than the session's rows have.
        payload: Payload,
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
    /// What the readers of its streams share.
    pub reading: Arc<Reading>,
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

/// What a session is called here, at the worker and on the streams between its nodes: a digest of whose it is and of
/// the name that its requester gave it.
pub fn place(requester: NodeId, session: SessionId) -> SessionId {
    let mut hasher = blake3::Hasher::new_derive_key("shoal 2026 a session's place");
    hasher.update(requester.as_bytes()).update(session.as_bytes());
    let mut place = [0; 16];
    hasher.finalize_xof().fill(&mut place);
    SessionId::new(place)
}

/// All sessions of this node, by [`place`].
#[derive(Clone, Debug, Default)]
pub struct SessionTable(Arc<DashMap<SessionId, Inlets>>);

impl SessionTable {
    /// Enters a session. `None` when the node has as many as it takes or the requester runs it here already.
    pub fn enter(&self, requester: NodeId, session: SessionId) -> Option<(Inlets, Outlets)> {
        if self.0.len() >= MAX_SESSIONS {
            return None;
        }
        let (frames, frames_out) = mpsc::channel(FRAMES);
        let (outputs, outputs_out) = mpsc::channel(OUTPUTS);
        let (orders, orders_out) = mpsc::channel(ORDERS);
        match self.0.entry(place(requester, session)) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                let inlets = Inlets { frames, outputs, orders, requester, reading: Arc::default() };
                vacant.insert(inlets.clone());
                Some((inlets, Outlets { frames: frames_out, outputs: outputs_out, orders: orders_out }))
            }
        }
    }

    /// The doors of a requester's session.
    pub fn get(&self, requester: NodeId, session: SessionId) -> Option<Inlets> {
        self.at(place(requester, session))
    }

    /// The doors of the session in this [`place`].
    pub fn at(&self, place: SessionId) -> Option<Inlets> {
        self.0.get(&place).map(|inlets| inlets.clone())
    }

    /// Forgets a session.
    pub fn leave(&self, requester: NodeId, session: SessionId) {
        self.0.remove(&place(requester, session));
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
        if let Some(inlets) = self.at(output.session) {
            let _ = inlets.outputs.send(output).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_another_requester_took_stands_in_no_way() {
        let table = SessionTable::default();
        let (one, other) = (NodeId::numbered(1), NodeId::numbered(2));
        let session = SessionId::numbered(7);
        let (_its, _) = table.enter(other, session).unwrap();
        let (_ours, _) = table.enter(one, session).unwrap();
        assert!(table.enter(one, session).is_none(), "it runs here");
        assert_eq!(table.get(one, session).unwrap().requester, one);
        assert_eq!(table.at(place(other, session)).unwrap().requester, other);
        assert!(table.at(session).is_none(), "the name alone leads nowhere");
        table.leave(other, session);
        assert!(table.get(one, session).is_some() && table.get(other, session).is_none());
    }
}
