//! Lends this node to others as a relay.
//!
//! libp2p's relay, with one thing withheld: it is not told of connections that are themselves relayed. It gives such
//! connections a handler that takes no events, counts them all the same, and when it begins or ceases to offer its
//! service tells every connection it counted so (libp2p-relay 0.22, `reconfigure_relay_status`): the handler that
//! takes no events panics, and a relayed conversation ends the moment one of its ends learns that it can be reached.

use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{PeerId, relay};

/// A relay for others; see the [module](self).
pub(crate) struct Relay(relay::Behaviour);

impl Relay {
    /// A relay run by `me` within the limits of `config`.
    pub fn new(me: PeerId, config: relay::Config) -> Self {
        Self(relay::Behaviour::new(me, config))
    }
}

impl NetworkBehaviour for Relay {
    type ConnectionHandler = <relay::Behaviour as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = relay::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.0.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.0.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        // Closing a connection that was never counted changes nothing, so only the beginning is withheld.
        if !matches!(&event, FromSwarm::ConnectionEstablished(made) if made.endpoint.is_relayed()) {
            self.0.on_swarm_event(event);
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.0.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.0.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use libp2p::core::ConnectedPoint;
    use libp2p::swarm::behaviour::{ConnectionEstablished, ExternalAddrConfirmed};

    use super::*;

    /// How many connections are told when the relay, connected to a peer over `address`, begins its service.
    fn told(address: &str) -> usize {
        let (me, peer) = (PeerId::random(), PeerId::random());
        let mut relay = Relay::new(me, relay::Config::default());
        let endpoint = ConnectedPoint::Dialer {
            address: address.parse().unwrap(),
            role_override: Endpoint::Dialer,
            port_use: PortUse::Reuse,
        };
        relay.on_swarm_event(FromSwarm::ConnectionEstablished(ConnectionEstablished {
            peer_id: peer,
            connection_id: ConnectionId::new_unchecked(1),
            endpoint: &endpoint,
            failed_addresses: &[],
            other_established: 0,
        }));
        let mine = "/ip4/198.51.100.7/tcp/9".parse().unwrap();
        relay.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &mine }));
        let mut told = 0;
        while let Poll::Ready(action) = relay.poll(&mut Context::from_waker(Waker::noop())) {
            told += usize::from(matches!(action, ToSwarm::NotifyHandler { .. }));
        }
        told
    }

    #[test]
    fn only_direct_connections_hear_that_the_service_began() {
        assert_eq!(told("/ip4/203.0.113.1/tcp/9"), 1);
        let through = format!("/ip4/203.0.113.1/tcp/9/p2p/{}/p2p-circuit", PeerId::random());
        assert_eq!(told(&through), 0);
    }
}
