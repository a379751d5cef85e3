//! Lends this node to members of its swarm as a relay.
//!
//! libp2p's relay with three things changed:
//!
//! * *Members only.* A request for a reservation or a circuit is looked at when the peer has introduced itself on that connection as
//!   a member of this swarm. A newcomer that dials through this node asks before that, so a request is held, [`MAX_HELD`] on a
//!   connection; that of a stranger ends with its connection. libp2p would grant it and tell afterwards.
//! * *Only when it can be reached*, as [`scheduler::reach`] judges it and not after one word of one peer: a relay that is hidden
//!   itself leads nowhere ([`Relay::offer`]).
//! * *Within the governor's limits* of reservations and circuits. A request beyond them is dropped, which resets its stream.
//!
//! And one thing is withheld: it is not told of connections that are themselves relayed, so that a circuit never runs through
//! two relays. It gives such connections a handler that takes no events and counts them all the same (libp2p-relay 0.22).

use std::collections::HashMap;
use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::derive_prelude::Either;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{PeerId, relay};
use scheduler::governor::{Holder, Resource};

use crate::governor::{Governor, Permit};
use crate::identity::node_id;

/// The first of two kinds of handlers or events: that of connections that are not relayed.
trait First {
    type Kind;
}

impl<L, R> First for Either<L, R> {
    type Kind = L;
}

type FromHandler = <THandlerOutEvent<relay::Behaviour> as First>::Kind;

/// Requests of a connection whose peer has not introduced itself; more are dropped.
const MAX_HELD: usize = 2;

/// A connection that is not relayed.
struct Known {
    peer: PeerId,
    /// Its peer has introduced itself on it.
    member: bool,
    /// What its peer asked for before that.
    held: Vec<FromHandler>,
    reservation: Option<Permit>,
    /// Circuits that its peer dialed over it.
    circuits: Vec<Permit>,
}

/// A relay for others; see the [module](self).
pub(crate) struct Relay {
    inner: relay::Behaviour,
    governor: Governor,
    offered: bool,
    known: HashMap<ConnectionId, Known>,
}

impl Relay {
    /// A relay run by `me` within the limits of `config` and `governor`. It offers nothing yet.
    pub fn new(me: PeerId, config: relay::Config, governor: Governor) -> Self {
        let mut inner = relay::Behaviour::new(me, config);
        // Whatever addresses are believed in.
        inner.set_status(Some(relay::Status::Disable));
        Self { inner, governor, offered: false, known: HashMap::new() }
    }

    /// The peer at the other end has said that it is of this swarm.
    pub fn introduced(&mut self, connection: ConnectionId) {
        let Some(known) = self.known.get_mut(&connection).filter(|known| !known.member) else { return };
        known.member = true;
        let (peer, held) = (known.peer, std::mem::take(&mut known.held));
        held.into_iter().for_each(|request| self.heard(peer, connection, request));
    }

    /// A handler tells something.
    fn heard(&mut self, peer: PeerId, connection: ConnectionId, event: FromHandler) {
        if self.admits(connection, &event) {
            self.inner.on_connection_handler_event(peer, connection, Either::Left(event));
        }
    }

    /// Whether members may be reached through this node from now on. Circuits that there are stay. Returns whether that changed.
    pub fn offer(&mut self, offered: bool) -> bool {
        let changed = std::mem::replace(&mut self.offered, offered) != offered;
        if changed {
            let status = if offered { relay::Status::Enable } else { relay::Status::Disable };
            self.inner.set_status(Some(status));
        }
        changed
    }

    /// Whether what a handler tells is passed on: a request is, where there is room for what it asks.
    fn admits(&mut self, connection: ConnectionId, event: &FromHandler) -> bool {
        let Some(known) = self.known.get_mut(&connection) else { return false };
        let holder = || node_id(&known.peer).map_or_else(Holder::default, |node| self.governor.holder(node));
        let refused = match event {
            FromHandler::ReservationReqReceived { .. } if known.reservation.is_none() => {
                let permit = self.governor.take(holder(), Resource::Reservations, 1);
                permit.map(|permit| known.reservation = Some(permit)).err()
            }
            FromHandler::CircuitReqReceived { .. } => {
                let permit = self.governor.take(holder(), Resource::Circuits, 1);
                permit.map(|permit| known.circuits.push(permit)).err()
            }
            FromHandler::ReservationReqAcceptFailed { .. }
            | FromHandler::ReservationReqDenied { .. }
            | FromHandler::ReservationReqDenyFailed { .. }
            | FromHandler::ReservationTimedOut {} => {
                known.reservation = None;
                None
            }
            FromHandler::CircuitReqDenied { .. }
            | FromHandler::CircuitReqDenyFailed { .. }
            | FromHandler::CircuitReqAcceptFailed { .. }
            | FromHandler::CircuitClosed { .. } => {
                // They are all alike.
                known.circuits.pop();
                None
            }
            _ => None,
        };
        if let Some(refused) = &refused {
            tracing::debug!(peer = %known.peer, %refused, "not relayed");
        }
        refused.is_none()
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
        self.inner.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match &event {
            // Closing a connection that was never counted changes nothing, so only the beginning is withheld.
            FromSwarm::ConnectionEstablished(made) if made.endpoint.is_relayed() => return,
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, .. }) => {
                let (held, circuits) = (Vec::new(), Vec::new());
                let known = Known { peer: *peer_id, member: false, held, reservation: None, circuits };
                self.known.insert(*connection_id, known);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. }) => {
                self.known.remove(connection_id);
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
        // A relayed connection has a handler that tells nothing.
        let Either::Left(event) = event;
        let asks = matches!(
            event,
            FromHandler::ReservationReqReceived { .. } | FromHandler::CircuitReqReceived { .. }
        );
        match self.known.get_mut(&connection) {
            Some(known) if asks && !known.member => {
                if known.held.len() < MAX_HELD {
                    known.held.push(event);
                }
            }
            _ => self.heard(peer, connection, event),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.inner.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use libp2p::core::ConnectedPoint;
    use libp2p::swarm::behaviour::ExternalAddrConfirmed;

    use super::*;

    /// How many connections are told when the relay, connected to a peer over `address`, begins its service.
    fn told(address: &str) -> usize {
        let (me, peer) = (PeerId::random(), PeerId::random());
        let mut relay = Relay::new(me, relay::Config::default(), Governor::default());
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
        let unasked = relay.poll(&mut Context::from_waker(Waker::noop()));
        assert!(
            !matches!(unasked, Poll::Ready(ToSwarm::NotifyHandler { .. })),
            "an address alone offers nothing"
        );
        relay.offer(true);
        relay.offer(true);
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
