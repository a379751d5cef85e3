//! Established connections that others opened, under the governor, and where each peer comes from.
//!
//! A connection that would exceed a limit is closed before any protocol has a handler on it. Connections that this node
//! opens are its own choice and are bounded in [`crate::config::Limits`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, DialFailure, ListenFailure};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use scheduler::NodeId;
use scheduler::governor::{Holder, Prefix, Resource};

use crate::governor::{Governor, Permit};
use crate::identity::node_id;
use crate::path;

/// A connection; its permit if another node opened it.
struct Known {
    node: NodeId,
    _permit: Option<Permit>,
}

/// See the [module](self).
pub(crate) struct Doors {
    governor: Governor,
    known: HashMap<ConnectionId, Known>,
}

impl Doors {
    pub fn new(governor: Governor) -> Self {
        Self { governor, known: HashMap::new() }
    }

    fn made(&mut self, connection: ConnectionId, node: NodeId, prefix: Prefix, permit: Option<Permit>) {
        self.governor.connected(node, prefix);
        self.known.insert(connection, Known { node, _permit: permit });
    }

    fn ended(&mut self, connection: ConnectionId) {
        if let Some(known) = self.known.remove(&connection) {
            self.governor.disconnected(known.node);
        }
    }
}

impl NetworkBehaviour for Doors {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let prefix = path::prefix(remote, local);
        // The event loop parts with a peer whose name is no key of ours.
        if let Some(node) = node_id(&peer) {
            let holder = Holder { prefix: Some(prefix), peer: Some(node) };
            let taken = self.governor.take(holder, Resource::Connections, 1);
            self.made(connection, node, prefix, Some(taken.map_err(ConnectionDenied::new)?));
        }
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if let Some(node) = node_id(&peer) {
            self.made(connection, node, path::prefix(address, address), None);
        }
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. })
            | FromSwarm::DialFailure(DialFailure { connection_id, .. }) => self.ended(connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
