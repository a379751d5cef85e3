//! Who has opened connections to this node, and who says that it could: what [`scheduler::reach`] judges by.
//!
//! Around libp2p's AutoNAT client, which believes in an address after one peer has dialed it and never asks again. Its findings are
//! passed on as words of that peer and change nothing by themselves. And every connection that comes in is reported, with
//! whether its host is strange: this node has neither dialed it nor been connected to it for [`FORGOTTEN`], so that no router on
//! the way was told to let it in.
//!
//! Peers are asked about public addresses only. Whether a peer of the same network reaches an address of it, a connection says; and
//! before a peer dials for others it asks for up to 100 kB.
//!
//! Limits: [`MAX_HOSTS`] hosts are remembered, beyond them the one heard of longest ago is taken for strange too early.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId, autonat};

use crate::path::{self, Path};

/// How long a router may remember whom its host has talked to, twice what RFC 4787 asks for.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Hosts that are remembered; a node has far fewer connections.
const MAX_HOSTS: usize = 4_096;

/// What was noticed.
#[derive(Debug)]
pub(crate) enum Noticed {
    /// AutoNAT: `server` has dialed `address` from a port of its own that this node never sent anything to, or could not.
    Tested { address: Multiaddr, server: PeerId, reached: bool },
    /// A host opened a connection from `remote` to the socket at `local`.
    Came { remote: Multiaddr, local: Multiaddr, strange: bool },
}

#[derive(Clone, Copy, Debug)]
struct Host {
    connections: usize,
    last: Instant,
}

/// See the [module](self).
pub(crate) struct Watch {
    client: Toggle<autonat::v2::client::Behaviour>,
    hosts: HashMap<IpAddr, Host>,
    /// Where the connections lead that there are.
    connected: HashMap<ConnectionId, IpAddr>,
    /// Whom this node is dialing.
    dialing: HashMap<ConnectionId, PeerId>,
    /// Drained whenever the swarm polls; one for each connection that came in.
    noticed: VecDeque<Noticed>,
}

fn host(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)),
        _ => None,
    }
}

impl Watch {
    /// `probes`: whether peers are asked, which makes sense where some may be outside.
    pub fn new(probes: bool) -> Self {
        let client = probes.then(autonat::v2::client::Behaviour::default);
        Self {
            client: client.into(),
            hosts: HashMap::new(),
            connected: HashMap::new(),
            dialing: HashMap::new(),
            noticed: VecDeque::new(),
        }
    }

    /// This node sends something to a host, or has received something from it.
    fn talk(&mut self, ip: IpAddr, now: Instant) -> &mut Host {
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&ip) {
            let idle = self.hosts.iter().filter(|(_, host)| host.connections == 0);
            if let Some(oldest) = idle.min_by_key(|(_, host)| host.last).map(|(ip, _)| *ip) {
                self.hosts.remove(&oldest);
            }
        }
        let host = self.hosts.entry(ip).or_insert(Host { connections: 0, last: now });
        host.last = now;
        host
    }

    fn is_strange(&self, ip: IpAddr, peer: &PeerId, now: Instant) -> bool {
        let known = self
            .hosts
            .get(&ip)
            .is_some_and(|host| host.connections > 0 || now.saturating_duration_since(host.last) < FORGOTTEN);
        !known && !self.dialing.values().any(|dialed| dialed == peer)
    }

    fn made(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint, now: Instant) {
        self.dialing.remove(&connection);
        if endpoint.is_relayed() {
            return;
        }
        let Some(ip) = host(endpoint.get_remote_address()) else { return };
        if let ConnectedPoint::Listener { local_addr, send_back_addr } = endpoint {
            let strange = self.is_strange(ip, &peer, now);
            let (remote, local) = (send_back_addr.clone(), local_addr.clone());
            self.noticed.push_back(Noticed::Came { remote, local, strange });
        }
        self.talk(ip, now).connections += 1;
        self.connected.insert(connection, ip);
    }

    fn ended(&mut self, connection: ConnectionId, now: Instant) {
        self.dialing.remove(&connection);
        let Some(ip) = self.connected.remove(&connection) else { return };
        let host = self.talk(ip, now);
        host.connections = host.connections.saturating_sub(1);
    }
}

impl NetworkBehaviour for Watch {
    type ConnectionHandler = <Toggle<autonat::v2::client::Behaviour> as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = Noticed;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.client.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let now = Instant::now();
        addresses.iter().filter_map(host).for_each(|ip| {
            self.talk(ip, now);
        });
        if let Some(peer) = peer {
            self.dialing.insert(connection, peer);
        }
        self.client.handle_pending_outbound_connection(connection, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.client.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match &event {
            FromSwarm::ConnectionEstablished(made) => {
                self.made(made.peer_id, made.connection_id, made.endpoint, Instant::now());
            }
            FromSwarm::ConnectionClosed(closed) => self.ended(closed.connection_id, Instant::now()),
            FromSwarm::DialFailure(failed) => self.ended(failed.connection_id, Instant::now()),
            FromSwarm::NewExternalAddrCandidate(seen) if path::of_address(seen.addr) != Path::Direct => {
                return;
            }
            _ => {}
        }
        self.client.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.client.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(noticed) = self.noticed.pop_front() {
            return Poll::Ready(ToSwarm::GenerateEvent(noticed));
        }
        loop {
            match self.client.poll(cx) {
                // One peer's word: the judge decides.
                Poll::Ready(ToSwarm::ExternalAddrConfirmed(_)) => {}
                Poll::Ready(action) => {
                    return Poll::Ready(action.map_out(|tested| Noticed::Tested {
                        address: tested.tested_addr,
                        server: tested.server,
                        reached: tested.result.is_ok(),
                    }));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes(watch: &mut Watch, number: usize, from: &str, now: Instant) -> bool {
        let endpoint = ConnectedPoint::Listener {
            local_addr: "/ip4/127.0.0.1/tcp/1".parse().unwrap(),
            send_back_addr: from.parse().unwrap(),
        };
        watch.made(PeerId::random(), ConnectionId::new_unchecked(number), &endpoint, now);
        match watch.noticed.pop_front() {
            Some(Noticed::Came { strange, .. }) => strange,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_host_is_strange_until_it_was_talked_to_and_again_when_that_is_long_ago() {
        let mut watch = Watch::new(false);
        let now = Instant::now();
        assert!(comes(&mut watch, 1, "/ip4/127.0.7.1/tcp/5", now));
        assert!(!comes(&mut watch, 2, "/ip4/127.0.7.1/udp/6/quic-v1", now), "it is connected");
        assert!(comes(&mut watch, 3, "/ip4/127.0.7.2/tcp/5", now), "another host of its network");
        let dialed = ["/ip4/127.0.8.1/tcp/9".parse().unwrap()];
        let dial = ConnectionId::new_unchecked(4);
        watch.handle_pending_outbound_connection(dial, None, &dialed, Endpoint::Dialer).unwrap();
        assert!(!comes(&mut watch, 5, "/ip4/127.0.8.1/tcp/5", Instant::now()), "it was dialed");
        for number in 1..=5 {
            watch.ended(ConnectionId::new_unchecked(number), now);
        }
        assert!(!comes(&mut watch, 6, "/ip4/127.0.7.1/tcp/5", now + FORGOTTEN / 2));
        watch.ended(ConnectionId::new_unchecked(6), now + FORGOTTEN / 2);
        assert!(comes(&mut watch, 7, "/ip4/127.0.7.1/tcp/5", now + FORGOTTEN * 2));
    }

    #[test]
    fn a_peer_that_is_being_dialed_is_no_stranger_wherever_it_comes_from() {
        let mut watch = Watch::new(false);
        let (peer, dial) = (PeerId::random(), ConnectionId::new_unchecked(1));
        watch.handle_pending_outbound_connection(dial, Some(peer), &[], Endpoint::Dialer).unwrap();
        let ip = "127.0.7.1".parse().unwrap();
        assert!(!watch.is_strange(ip, &peer, Instant::now()));
        assert!(watch.is_strange(ip, &PeerId::random(), Instant::now()));
        watch.ended(dial, Instant::now());
        assert!(watch.is_strange(ip, &peer, Instant::now()));
    }

    #[test]
    fn a_flood_of_hosts_is_bounded() {
        let mut watch = Watch::new(false);
        let now = Instant::now();
        for number in 0..MAX_HOSTS as u32 + 100 {
            watch.talk(IpAddr::from(number.to_be_bytes()), now + Duration::from_millis(u64::from(number)));
        }
        assert_eq!(watch.hosts.len(), MAX_HOSTS);
    }
}
