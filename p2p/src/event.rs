//! The events that the event loop reports and the commands it takes from [`crate::Network`].

use libp2p::swarm::ConnectionId;
use scheduler::{ModelId, NodeId};
use tokio::sync::oneshot;

use crate::control::ReplyTo;
use crate::error::Result;
use crate::link::{LinkInfo, Stream, behaviour::Opened};
use crate::path::Path;
use crate::plane::{Lane, Plane};
use crate::wire::announce::Announcement;
use crate::wire::control::{Ask, Contact};

/// Whether others can open connections to this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reachability {
    /// Not known yet.
    Unknown,
    /// A node outside reached this one.
    Public,
    /// No node outside could: this node is reached through relays, or dials.
    Private,
}

/// Something the node should know.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A node announced something new about itself, or said that what it announced holds on; signature, bounds and freshness are
    /// checked. With the sealed bytes of what came.
    Announcement(Box<Announcement>, Vec<u8>),
    /// A peer asks for something; answer with [`Network::answer`](crate::Network::answer). May come before the peer's `Connected`.
    Ask {
        /// Who, proved by the transport.
        from: NodeId,
        /// What.
        ask: Ask,
        /// Where the answer goes.
        reply: ReplyTo,
    },
    /// A peer opened a stream. Nothing has been read of it: the first words need a deadline of the reader's.
    Incoming {
        /// Who, proved by the transport.
        from: NodeId,
        /// What for.
        plane: Plane,
        /// The stream.
        stream: Stream,
    },
    /// A peer of this swarm is connected, or the path to it changed.
    Connected {
        /// Who.
        node: NodeId,
        /// Over what.
        path: Path,
    },
    /// The last connection to a peer is gone.
    Disconnected {
        /// Who.
        node: NodeId,
    },
    /// A round trip was measured.
    RoundTrip {
        /// With whom.
        node: NodeId,
        /// How long, ms.
        ms: f64,
    },
    /// The node listens on one more address.
    Listening {
        /// With `/p2p/`.
        address: String,
    },
    /// Others can or cannot reach this node.
    Reachability {
        /// Which.
        reachability: Reachability,
    },
}

/// A peer of this swarm that was refused because it speaks another version of the protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedPeer {
    /// Who.
    pub node: NodeId,
    /// Which version it speaks; this node speaks [`crate::config::VERSION`].
    pub version: u32,
}

/// What is known of a connected peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerInfo {
    /// Who.
    pub node: NodeId,
    /// Where it can be reached, with `/p2p/`.
    pub addresses: Vec<String>,
    /// Over what it is reached now.
    pub path: Path,
    /// The last round trip, ms, once one was measured.
    pub rtt_ms: Option<f64>,
    /// How long it has been connected, ms.
    pub connected_for_ms: u64,
    /// Bytes read from its streams.
    pub bytes_in: u64,
    /// Bytes written to its streams.
    pub bytes_out: u64,
    /// What it says it runs.
    pub agent: String,
    /// The link that carries frames to it, once one did or more than its stream was tried.
    pub link: Option<LinkInfo>,
}

/// The other node that named the addresses of a dial, if one did: they are vetted then.
pub(crate) type NamedBy = Option<NodeId>;

/// What the event loop can be asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Addresses(oneshot::Sender<Vec<String>>),
    /// Those of them that the swarm is told.
    Announced(oneshot::Sender<Vec<String>>),
    Dial {
        addresses: Vec<String>,
        peer: Option<NodeId>,
        by: NamedBy,
        reply: oneshot::Sender<Result<NodeId>>,
    },
    Doubt {
        contact: Contact,
        by: NamedBy,
        connection: ConnectionId,
    },
    Publish {
        bytes: Vec<u8>,
        reply: oneshot::Sender<Result<()>>,
    },
    Open {
        node: NodeId,
        lane: Lane,
        reply: Opened,
    },
    Provide {
        model: ModelId,
        reply: oneshot::Sender<Result<()>>,
    },
    Withdraw {
        model: ModelId,
    },
    Holders {
        model: ModelId,
        reply: oneshot::Sender<Vec<NodeId>>,
    },
    Peers(oneshot::Sender<Vec<PeerInfo>>),
    Refused(oneshot::Sender<Vec<RefusedPeer>>),
    Close {
        node: NodeId,
        reply: oneshot::Sender<()>,
    },
    Shutdown(oneshot::Sender<()>),
}
