//! What a node says of itself when it is connected.
//!
//! libp2p's identify tells every peer all addresses that a node listens on; here each connection is told those that
//! [`Disclosure`] lets over it.

use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionId, ExternalAddresses, FromSwarm, ListenAddresses,
    NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, identify};

use crate::disclosure::Disclosure;

type ToHandler = THandlerInEvent<identify::Behaviour>;

/// Introduces this node to its peers; see the [module](self).
pub(crate) struct Introduction {
    inner: identify::Behaviour,
    disclosure: Disclosure,
    listens: ListenAddresses,
    external: ExternalAddresses,
}

impl Introduction {
    /// By identify as `config` says.
    pub fn new(config: identify::Config, loopback_only: bool) -> Self {
        Self {
            inner: identify::Behaviour::new(config),
            disclosure: Disclosure::new(loopback_only),
            listens: ListenAddresses::default(),
            external: ExternalAddresses::default(),
        }
    }

    /// A handler for a connection that is about to be made, which knows no address that is not to be said over it.
    fn introduce(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        endpoint: &ConnectedPoint,
        mut handler: THandler<identify::Behaviour>,
    ) -> THandler<identify::Behaviour> {
        let path = self.disclosure.made(connection, peer, endpoint);
        let own = self.listens.iter().chain(self.external.iter());
        let said = own.filter(|address| self.disclosure.is_said(address, path)).cloned().collect();
        handler.on_behaviour_event(ToHandler::AddressesChanged(said));
        handler
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
        Ok(self.introduce(connection, peer, &endpoint, handler))
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
        Ok(self.introduce(connection, peer, &endpoint, handler))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.listens.on_swarm_event(&event);
        self.external.on_swarm_event(&event);
        self.disclosure.on_swarm_event(&event);
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
                handler,
                event: ToHandler::AddressesChanged(mut addresses),
            } => {
                let path = self.disclosure.path(&peer_id, &handler);
                addresses.retain(|address| self.disclosure.is_said(address, path));
                ToSwarm::NotifyHandler { peer_id, handler, event: ToHandler::AddressesChanged(addresses) }
            }
            other => other,
        })
    }
}
