//! What a node says of itself when it is connected, and which of its addresses it says to whom.
//!
//! libp2p's identify tells every peer all addresses that a node listens on. Those of a private network or of a host are of no use
//! to a peer elsewhere, which learns from them how a home is built. So each connection is told what can be reached from its
//! other end:
//!
//! ```text
//! the peer is reached over   it is told addresses of
//!   this host                this host, its network, outside
//!   its network              its network, outside
//!   the Internet, a relay    outside, and circuits through relays that are outside
//! ```
//!
//! Over what a peer is reached is judged from the connection ([`path`]), never from what it says. Who is near finds this node all the
//! same: over mDNS, by an invite, or by the addresses that it is told once it is connected nearby.
//!
//! Limits: of a peer behind a relay it is not known that it shares this node's network, and the two stay relayed, or punch a
//! hole, unless they meet over mDNS. In a swarm of one host ([`Config::loopback_only`](crate::Config)) everything is said: it has no outside.

use std::collections::HashMap;
use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionId, ExternalAddresses, FromSwarm, ListenAddresses,
    NetworkBehaviour, NotifyHandler, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, identify};

use crate::path::{self, Path};

type ToHandler = THandlerInEvent<identify::Behaviour>;

/// Introduces this node to its peers; see the [module](self).
pub(crate) struct Introduction {
    inner: identify::Behaviour,
    /// Whether the whole swarm is on this host.
    loopback_only: bool,
    listens: ListenAddresses,
    external: ExternalAddresses,
    /// Over what the connections run that there are.
    paths: HashMap<ConnectionId, Path>,
}

impl Introduction {
    /// By identify as `config` says.
    pub fn new(config: identify::Config, loopback_only: bool) -> Self {
        Self {
            inner: identify::Behaviour::new(config),
            loopback_only,
            listens: ListenAddresses::default(),
            external: ExternalAddresses::default(),
            paths: HashMap::new(),
        }
    }

    /// Whether an own address is said to a peer that is reached over `path`.
    fn is_said(&self, address: &Multiaddr, path: Path) -> bool {
        self.loopback_only || is_of_use(address, path)
    }

    /// A handler for a connection that is about to be made, which knows no address that is not to be said over it.
    fn introduce(
        &mut self,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
        mut handler: THandler<identify::Behaviour>,
    ) -> THandler<identify::Behaviour> {
        let path = path::classify(endpoint);
        self.paths.insert(connection, path);
        let own = self.listens.iter().chain(self.external.iter());
        let said = own.filter(|address| self.is_said(address, path)).cloned().collect();
        handler.on_behaviour_event(ToHandler::AddressesChanged(said));
        handler
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

impl NetworkBehaviour for Introduction {
    type ConnectionHandler = THandler<identify::Behaviour>;
    type ToSwarm = identify::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler = self.inner.handle_established_inbound_connection(connection, peer, local, remote)?;
        let endpoint = ConnectedPoint::Listener { local_addr: local.clone(), send_back_addr: remote.clone() };
        Ok(self.introduce(connection, &endpoint, handler))
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler =
            self.inner.handle_established_outbound_connection(connection, peer, address, role, port)?;
        let endpoint =
            ConnectedPoint::Dialer { address: address.clone(), role_override: role, port_use: port };
        Ok(self.introduce(connection, &endpoint, handler))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.listens.on_swarm_event(&event);
        self.external.on_swarm_event(&event);
        match &event {
            // A connection that another part refused was noted and never made.
            FromSwarm::DialFailure(failed) => drop(self.paths.remove(&failed.connection_id)),
            FromSwarm::ListenFailure(failed) => drop(self.paths.remove(&failed.connection_id)),
            FromSwarm::ConnectionClosed(closed) => drop(self.paths.remove(&closed.connection_id)),
            FromSwarm::AddressChange(change) => {
                self.paths.insert(change.connection_id, path::classify(change.new));
            }
            _ => {}
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.inner.poll(cx).map(|action| match action {
            ToSwarm::NotifyHandler {
                peer_id,
                handler: NotifyHandler::One(connection),
                event: ToHandler::AddressesChanged(mut addresses),
            } => {
                // Of a connection that is gone nothing is known; it is told nothing of a home.
                let path = self.paths.get(&connection).copied().unwrap_or(Path::Relayed);
                addresses.retain(|address| self.is_said(address, path));
                let event = ToHandler::AddressesChanged(addresses);
                ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(connection), event }
            }
            other => other,
        })
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
