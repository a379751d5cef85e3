//! How a node takes part in a swarm, with the reason for each default.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use libp2p::StreamProtocol;
use scheduler::governor;

use crate::identity::Identity;
use crate::link_kind::LinkMode;
use crate::members::Members;
use crate::plane::Plane;

/// The version of everything said between nodes: control, announcements, frames, blobs. A peer of another version is
/// turned away when it introduces itself.
pub const VERSION: u32 = 4;

/// Which swarm: a hash of its name. Names of protocols and topics carry it, so nodes of different swarms have nothing
/// to say to each other even when they meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwarmId([u8; 16]);

impl SwarmId {
    /// The swarm that a node joins unless it names another.
    pub const PUBLIC_NAME: &str = "public";

    /// The swarm of that name.
    pub fn named(name: &str) -> Self {
        let hash = blake3::derive_key("shoal 1 swarm name", name.as_bytes());
        Self(std::array::from_fn(|i| hash[i]))
    }

    /// From its bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for SwarmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SwarmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Settings of a node, fixed before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this node is.
    pub identity: Identity,
    /// Multiaddresses to listen on. Port 0 lets the system choose, so any number of nodes share one host. Addresses
    /// that cannot be listened on are skipped (a host without IPv6) unless none is left.
    pub listen: Vec<String>,
    /// Nodes to find the swarm through, with `/p2p/`. They are dialed until they answer, for as long as this node runs.
    pub bootstrap: Vec<String>,
    /// Which swarm.
    pub swarm: SwarmId,
    /// Who may be connected.
    pub admission: Admission,
    /// Look for nodes of the local network. Tells the local network that this node exists.
    pub mdns: bool,
    /// Carry other nodes' connections when they cannot reach each other. Off: it spends bandwidth on strangers.
    pub relay: bool,
    /// How others reach this node.
    pub reach: Reach,
    /// Where known peers are remembered between runs.
    pub cache: Option<PathBuf>,
    /// Neither listen on nor dial anything but this host. For tests and swarms of one machine; turns mDNS and UPnP off.
    pub loopback_only: bool,
    /// Listen on `/memory` addresses too: nodes in one process, for tests and simulations.
    pub memory: bool,
    /// The program name and version that other nodes see.
    pub agent: String,
    /// The version spoken: [`VERSION`], except in tests of how another one is refused.
    pub version: u32,
    /// Which links carry frames to neighbors.
    pub links: LinkConfig,
    /// How much strangers may take.
    pub limits: Limits,
}

/// Who may be connected; by default all who speak the swarm's name.
#[derive(Clone, Default, Debug)]
pub struct Admission {
    /// The key of a private swarm: every connection, over whatever transport, must prove it before anything else is
    /// said on it.
    pub psk: Option<[u8; 32]>,
    /// Which nodes, where they are listed.
    pub members: Members,
}

/// How others reach a node.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Addresses under which this node is known to be reachable from outside: a forwarded port, a name.
    pub external: Vec<String>,
    /// Relays to be reachable through, with `/p2p/`, whatever AutoNAT finds. Relays met in the swarm are used by
    /// themselves when this node turns out not to be reachable.
    pub relays: Vec<String>,
    /// Ask the router to forward a port.
    pub upnp: bool,
    /// Turn relayed connections into direct ones where the networks between allow it.
    pub punch: bool,
}

impl Default for Reach {
    /// Whatever the network finds by itself.
    fn default() -> Self {
        Self { external: Vec::new(), relays: Vec::new(), upnp: true, punch: true }
    }
}

/// Which links carry frames to neighbors, and how.
#[derive(Clone, Default, Debug)]
pub struct LinkConfig {
    /// Which.
    pub mode: LinkMode,
    /// How long the receiver of datagrams looks for the next one without sleeping: a processor is busy for so long after each.
    pub spin: Duration,
    /// How many of a thousand datagrams are lost on purpose: for tests.
    pub loss: u16,
    /// After so many frames to a neighbor the other link is used, and again after as many; 0 for never. For tests.
    pub turn: u16,
    /// Links within this host are measured as any other, in place of keeping the stream. For tests.
    pub within_host: bool,
}

/// Bounds on what others make this node hold, and on what it opens itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// What others may hold or spend.
    pub others: governor::Limits,
    /// Connections this node opened.
    pub outgoing: u32,
    /// Connections to one peer, from either side: two transports, a relayed one and its upgrade. One would make an
    /// upgrade impossible.
    pub per_peer: u32,
    /// Streams this node holds open at one peer: one for each of its sessions, as many again that are being closed, and half
    /// as many asks. Both ways that is less than the muxers take, 512 on a connection.
    pub streams_per_peer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { others: governor::Limits::default(), outgoing: 64, per_peer: 4, streams_per_peer: 128 }
    }
}

impl Config {
    /// The defaults: every transport, every interface, the public swarm, no bootstrap nodes.
    pub fn new(identity: Identity) -> Self {
        let listen =
            ["/ip4/0.0.0.0/udp/0/quic-v1", "/ip4/0.0.0.0/tcp/0", "/ip6/::/udp/0/quic-v1", "/ip6/::/tcp/0"];
        Self {
            identity,
            listen: listen.map(str::to_owned).to_vec(),
            bootstrap: Vec::new(),
            swarm: SwarmId::named(SwarmId::PUBLIC_NAME),
            admission: Admission::default(),
            mdns: true,
            relay: false,
            reach: Reach::default(),
            cache: None,
            loopback_only: false,
            memory: false,
            agent: concat!("shoal/", env!("CARGO_PKG_VERSION")).to_owned(),
            version: VERSION,
            links: LinkConfig::default(),
            limits: Limits::default(),
        }
    }

    /// Whether it has peers to dial from its start: named ones, or those that an earlier run wrote down.
    pub fn knows_peers(&self) -> bool {
        let remembered = self.cache.as_ref().and_then(|path| path.metadata().ok());
        !self.bootstrap.is_empty() || remembered.is_some_and(|file| file.len() > 0)
    }

    /// A node that speaks to its own host only.
    pub fn loopback(identity: Identity) -> Self {
        let listen = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"];
        Self {
            listen: listen.map(str::to_owned).to_vec(),
            loopback_only: true,
            mdns: false,
            ..Self::new(identity)
        }
    }
}

/// What the protocols of one swarm are called.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// What identify calls the whole; a peer that says otherwise is in another swarm or of another version.
    pub version: String,
    /// The number in it.
    pub spoken: u32,
    /// The part of it that names the swarm.
    swarm: String,
    pub kad: StreamProtocol,
    pub control: StreamProtocol,
    pub planes: [StreamProtocol; Plane::ALL.len()],
    /// Frames that may take another link; a peer that does not know it has the plain data plane.
    pub linked: StreamProtocol,
    /// What neighbors agree on about links.
    pub links: StreamProtocol,
    pub topic: String,
    /// Under which gossipsub's own protocols are found.
    pub gossip: String,
}

impl Names {
    pub fn new(swarm: SwarmId, version: u32) -> Self {
        let name = |what: &str| {
            StreamProtocol::try_from_owned(format!("/shoal/{swarm}/{what}/{version}"))
                .expect("it starts with a slash")
        };
        let swarm = format!("/shoal/{swarm}/");
        Self {
            version: format!("{swarm}{version}"),
            spoken: version,
            kad: name("kad"),
            control: name("control"),
            planes: Plane::ALL.map(|plane| name(plane.name())),
            linked: name("linked"),
            links: name("links"),
            topic: format!("{swarm}announce/{version}"),
            gossip: format!("{swarm}gossip"),
            swarm,
        }
    }

    /// The version that a peer of this swarm introduces itself with; `None` for a peer of another swarm.
    pub fn version_of(&self, introduction: &str) -> Option<u32> {
        introduction.strip_prefix(&self.swarm)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, SwarmId, VERSION};

    #[test]
    fn swarms_share_no_name() {
        let (a, b) = (Names::new(SwarmId::named("a"), 2), Names::new(SwarmId::named("b"), 2));
        assert_ne!(a.version, b.version);
        assert_ne!(a.topic, b.topic);
        assert_ne!(a.kad, b.kad);
        assert!(a.planes.iter().all(|name| !b.planes.contains(name) && *name != a.control));
    }

    #[test]
    fn versions_share_no_name_and_the_introduction_tells_them_apart() {
        let swarm = SwarmId::named("a");
        let (old, new) = (Names::new(swarm, 1), Names::new(swarm, VERSION));
        assert!(old.kad != new.kad && old.control != new.control && old.topic != new.topic);
        assert!(old.planes.iter().all(|name| !new.planes.contains(name)));
        assert_eq!(new.version_of(&old.version), Some(1));
        assert_eq!(new.version_of(&new.version), Some(VERSION));
        let other = Names::new(SwarmId::named("b"), 1);
        assert_eq!(new.version_of(&other.version), None);
        assert_eq!(new.version_of("/ipfs/0.1.0"), None);
    }
}
