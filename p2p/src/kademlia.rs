//! Finds peers, and who holds a model.
//!
//! libp2p's Kademlia answers every asker with all addresses that it knows of a peer, also those of this node's own network, at
//! which it met the peer; here each asker is told those that [`Disclosure`] lets over its connection. A peer whose addresses
//! are all of a home is named without any.

use std::num::NonZeroUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::kad::{
    self, KadPeer,
    store::{MemoryStore, MemoryStoreConfig},
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

use crate::config::Names;
use crate::disclosure::Disclosure;

/// How long a model is found under a node that fell silent.
const PROVIDER_TTL: Duration = Duration::from_secs(30 * 60);

type Inner = kad::Behaviour<MemoryStore>;
type ToHandler = THandlerInEvent<Inner>;

/// Kademlia that keeps addresses of a home at home; see the [module](self).
pub(crate) struct Kademlia {
    /// Its tables and queries.
    pub inner: Inner,
    disclosure: Disclosure,
}

impl Kademlia {
    /// Records of other nodes are not stored, only who provides what; look-ups take disjoint paths, so that one liar on the
    /// way does not decide them.
    pub fn new(me: PeerId, names: &Names, loopback_only: bool) -> Self {
        let mut settings = kad::Config::new(names.kad.clone());
        settings
            .disjoint_query_paths(true)
            .set_query_timeout(Duration::from_secs(10))
            .set_record_filtering(kad::StoreInserts::FilterBoth)
            .set_provider_record_ttl(Some(PROVIDER_TTL))
            .set_provider_publication_interval(Some(PROVIDER_TTL / 3))
            .set_periodic_bootstrap_interval(Some(Duration::from_secs(300)))
            .set_kbucket_size(NonZeroUsize::new(20).expect("twenty"))
            // Who is met is added by the event loop, with addresses that are plausible.
            .set_kbucket_inserts(kad::BucketInserts::Manual);
        let store = MemoryStoreConfig {
            max_records: 0,
            max_provided_keys: 1_024,
            max_providers_per_key: 20,
            max_value_bytes: 1_024,
        };
        let mut inner = kad::Behaviour::with_config(me, MemoryStore::with_config(me, store), settings);
        inner.set_mode(Some(kad::Mode::Server));
        Self { inner, disclosure: Disclosure::new(loopback_only) }
    }
}

/// The peers that a message to another node names; none where it names none.
fn peers_named(message: &mut ToHandler) -> impl Iterator<Item = &mut KadPeer> {
    let [one, two]: [&mut [KadPeer]; 2] = match message {
        ToHandler::FindNodeRes { closer_peers, .. } | ToHandler::GetRecordRes { closer_peers, .. } => {
            [closer_peers, &mut []]
        }
        ToHandler::GetProvidersRes { closer_peers, provider_peers, .. } => [closer_peers, provider_peers],
        ToHandler::AddProvider { provider, .. } => [std::slice::from_mut(provider), &mut []],
        _ => [&mut [], &mut []],
    };
    one.iter_mut().chain(two)
}

impl NetworkBehaviour for Kademlia {
    type ConnectionHandler = THandler<Inner>;
    type ToSwarm = kad::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler = self.inner.handle_established_inbound_connection(connection, peer, local, remote)?;
        let endpoint = ConnectedPoint::Listener { local_addr: local.clone(), send_back_addr: remote.clone() };
        self.disclosure.made(connection, peer, &endpoint);
        Ok(handler)
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
        self.disclosure.made(connection, peer, &endpoint);
        Ok(handler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
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
            ToSwarm::NotifyHandler { peer_id, handler, mut event } => {
                let path = self.disclosure.path(&peer_id, &handler);
                for named in peers_named(&mut event) {
                    named.multiaddrs.retain(|address| self.disclosure.is_said(address, path));
                }
                ToSwarm::NotifyHandler { peer_id, handler, event }
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use futures::StreamExt;
    use libp2p::swarm::{DialError, SwarmEvent};
    use libp2p::{Swarm, SwarmBuilder, noise, tcp, yamux};

    use super::*;
    use crate::{SwarmId, config::VERSION};

    fn node() -> Swarm<Kademlia> {
        SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_dns()
            .unwrap()
            .with_behaviour(|key| {
                Kademlia::new(key.public().to_peer_id(), &Names::new(SwarmId::named("test"), VERSION), false)
            })
            .unwrap()
            .build()
    }

    /// At which addresses `asker`, that looks for `about` at the only node that it knows, then dials it.
    async fn told(
        asker: &mut Swarm<Kademlia>,
        other: &mut Swarm<Kademlia>,
        about: PeerId,
    ) -> HashSet<Multiaddr> {
        asker.behaviour_mut().inner.get_closest_peers(about);
        loop {
            tokio::select! {
                _ = other.select_next_some() => {}
                event = asker.select_next_some() => {
                    if let SwarmEvent::OutgoingConnectionError {
                        peer_id, error: DialError::Transport(tried), ..
                    } = event && peer_id == Some(about)
                    {
                        return tried.iter().map(|(address, _)| address.iter().take(2).collect()).collect();
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn addresses_of_a_home_are_told_at_home_only() {
        let (mut answers, mut asks) = (node(), node());
        let about = PeerId::random();
        // Both refuse at once; a name is an address outside.
        let [home, open]: [Multiaddr; 2] =
            ["/ip4/127.0.0.1/tcp/1", "/dns4/localhost/tcp/1"].map(|address| address.parse().unwrap());
        answers.behaviour_mut().inner.add_address(&about, home.clone());
        answers.behaviour_mut().inner.add_address(&about, open.clone());
        asks.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let port = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = asks.select_next_some().await {
                break address.iter().nth(1).unwrap().acquire();
            }
        };
        // By a name, which is a peer outside as far as the connection says; then on this host.
        for (host, expected) in
            [("/dns4/localhost", vec![open.clone()]), ("/ip4/127.0.0.1", vec![home, open])]
        {
            let address = host.parse::<Multiaddr>().unwrap().with(port.clone());
            answers.dial(address.clone()).unwrap();
            let mut met = 0;
            while met < 2 {
                let event = tokio::select! { event = answers.select_next_some() => event, event = asks.select_next_some() => event };
                met += u32::from(matches!(event, SwarmEvent::ConnectionEstablished { .. }));
            }
            let known = *answers.local_peer_id();
            asks.behaviour_mut().inner.add_address(&known, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
            let heard = told(&mut asks, &mut answers, about).await;
            assert_eq!(heard, expected.into_iter().collect(), "over {address}");
            asks.disconnect_peer_id(known).unwrap();
            asks.behaviour_mut().inner.remove_peer(&about);
            let mut left = 0;
            while left < 2 {
                let event = tokio::select! { event = answers.select_next_some() => event, event = asks.select_next_some() => event };
                left += u32::from(matches!(event, SwarmEvent::ConnectionClosed { .. }));
            }
        }
    }
}
