//! Which addresses a node says to whom.
//!
//! Addresses of a private network or of a host are of no use to a peer elsewhere, which learns from them how a home is built. So
//! each connection is told what can be reached from its other end:
//!
//! ```text
//! the peer is reached over   it is told addresses of
//!   this host                this host, its network, outside
//!   its network              its network, outside
//!   the Internet, a relay    outside, and circuits through relays that are outside
//! ```
//!
//! Over what a peer is reached is judged from the connection ([`path`]), never from what it says. Who is near finds this node all the
//! same: over mDNS, by an invite, or by the addresses that it is told once it is connected nearby. [`Introduction`] says this
//! node's own addresses by it, [`Kademlia`] those of peers.
//!
//! Limits: of a peer behind a relay it is not known that it shares this node's network, and the two stay relayed, or punch a
//! hole, unless they meet over mDNS. In a swarm of one host ([`Config::loopback_only`](crate::Config)) everything is said: it has no outside.
//!
//! [`Introduction`]: crate::introduction::Introduction
//! [`Kademlia`]: crate::kademlia::Kademlia

use std::collections::HashMap;

use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{ConnectionId, FromSwarm, NotifyHandler};
use libp2p::{Multiaddr, PeerId};

use crate::path::{self, Path};

/// What may be said over each connection; see the [module](self).
pub(crate) struct Disclosure {
    /// Whether the whole swarm is on this host.
    loopback_only: bool,
    /// Of whom the connections are that there are, and over what they run.
    paths: HashMap<ConnectionId, (PeerId, Path)>,
}

impl Disclosure {
    /// Without connections.
    pub fn new(loopback_only: bool) -> Self {
        Self { loopback_only, paths: HashMap::new() }
    }

    /// Notes a connection that is about to be made, and says over what it runs.
    pub fn made(&mut self, connection: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) -> Path {
        let path = path::classify(endpoint);
        self.paths.insert(connection, (peer, path));
        path
    }

    /// Forgets connections that ended and follows those that move.
    pub fn on_swarm_event(&mut self, event: &FromSwarm) {
        match event {
            // A connection that another part refused was noted and never made.
            FromSwarm::DialFailure(failed) => drop(self.paths.remove(&failed.connection_id)),
            FromSwarm::ListenFailure(failed) => drop(self.paths.remove(&failed.connection_id)),
            FromSwarm::ConnectionClosed(closed) => drop(self.paths.remove(&closed.connection_id)),
            FromSwarm::AddressChange(change) => {
                self.paths.insert(change.connection_id, (change.peer_id, path::classify(change.new)));
            }
            _ => {}
        }
    }

    /// Over what `handler` of `peer` is reached: the longest way where it may be any of its connections. Of one that is gone
    /// nothing is known; it is told nothing of a home.
    pub fn path(&self, peer: &PeerId, handler: &NotifyHandler) -> Path {
        let known = match handler {
            NotifyHandler::One(connection) => self.paths.get(connection).map(|(_, path)| *path),
            NotifyHandler::Any => {
                self.paths.values().filter(|(of, _)| of == peer).map(|(_, path)| *path).max()
            }
        };
        known.unwrap_or(Path::Relayed)
    }

    /// Whether `address` is said to a peer that is reached over `path`.
    pub fn is_said(&self, address: &Multiaddr, path: Path) -> bool {
        self.loopback_only || is_of_use(address, path)
    }
}

/// Whether a peer that is reached over `path` can dial `address`.
fn is_of_use(address: &Multiaddr, path: Path) -> bool {
    let first_hop: Multiaddr = address.iter().take_while(|part| *part != Protocol::P2pCircuit).collect();
    match (path, path::of_address(&first_hop)) {
        (Path::Loopback, _) => true,
        (Path::Lan, hop) => hop != Path::Loopback,
        // A relay that is named by no address says nothing of a home.
        (Path::Direct | Path::Relayed, hop) => hop >= Path::Direct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_what_it_can_dial() {
        let relay = "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC";
        let circuit = |through: &str| format!("{through}/p2p/{relay}/p2p-circuit");
        let [host, home, open] =
            ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.7/udp/1/quic-v1", "/ip4/8.8.8.8/tcp/1"]
                .map(str::to_owned);
        let of_home =
            [home.clone(), "/ip6/fd00::7/tcp/1".into(), "/ip4/169.254.1.1/tcp/1".into(), circuit(&home)];
        let of_host = [host.clone(), "/ip6/::1/tcp/1".into(), circuit(&host), "/memory/5".into()];
        let outside = [
            open.clone(),
            circuit(&open),
            "/dns4/node.example/tcp/1".into(),
            format!("/p2p/{relay}/p2p-circuit"),
        ];
        let told = |addresses: &[String], path| {
            let mut addresses = addresses.iter().map(|address| address.parse().unwrap());
            let told: Vec<bool> = addresses.by_ref().map(|address| is_of_use(&address, path)).collect();
            assert!(told.iter().all(|one| *one == told[0]), "{told:?} over {path}");
            told[0]
        };
        for (path, expected) in [
            (Path::Loopback, [true, true, true]),
            (Path::Lan, [false, true, true]),
            (Path::Direct, [false, false, true]),
            (Path::Relayed, [false, false, true]),
        ] {
            let of = [&of_host[..], &of_home, &outside].map(|addresses| told(addresses, path));
            assert_eq!(of, expected, "over {path}");
        }
    }
}
