//! Established connections that others opened, under the governor, and where each peer comes from.
//!
//! At a limit a newcomer takes the place of the oldest connection that has not introduced itself, of its own prefix or of the
//! one that has most of those: proving a key costs a stranger little, so a proved name alone keeps no newcomer out. Without such
//! a connection the newcomer is closed before any protocol has a handler on it. Connections that this node opens are its own
//! choice and are bounded in [`crate::config::Limits`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, DialFailure, ListenFailure};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use scheduler::NodeId;
use scheduler::governor::{Holder, Prefix, Refused, Resource, Scope};

use crate::governor::{Governor, Permit};
use crate::identity::node_id;
use crate::members::Members;
use crate::path;

/// A connection; its permit if another node opened it.
struct Known {
    peer: PeerId,
    node: NodeId,
    prefix: Prefix,
    introduced: bool,
    permit: Option<Permit>,
}

impl Known {
    /// Whether it must go before a newcomer is refused.
    fn is_loose(&self) -> bool {
        self.permit.is_some() && !self.introduced
    }
}

/// See the [module](self).
pub(crate) struct Doors {
    governor: Governor,
    known: HashMap<ConnectionId, Known>,
    members: Members,
    /// The list of members that connections were held to last.
    version: u64,
    /// Connections that made room or whose peer is no member any more, to be closed; drained whenever the swarm polls.
    closing: VecDeque<(PeerId, ConnectionId)>,
}

/// A peer that is not on the list of members.
#[derive(Debug)]
struct NoMember;

impl std::fmt::Display for NoMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not on the list of members")
    }
}

impl std::error::Error for NoMember {}

impl Doors {
    pub fn new(governor: Governor, members: Members) -> Self {
        Self { governor, known: HashMap::new(), members, version: 0, closing: VecDeque::new() }
    }

    /// Refuses who is no member.
    fn admit(&self, peer: PeerId) -> Result<(), ConnectionDenied> {
        // The event loop parts with a peer whose name is no key of ours.
        let Some(node) = node_id(&peer).filter(|node| !self.members.has(*node)) else { return Ok(()) };
        if self.members.turn_away(node) {
            tracing::warn!(node = ?node, "a node that is not on the list of members was turned away");
        }
        Err(ConnectionDenied::new(NoMember))
    }

    /// Lets go of who is no member any more, where the list has changed.
    fn hold_to_list(&mut self) {
        let version = self.members.version();
        if version == self.version {
            return;
        }
        self.version = version;
        let left = self.known.iter().filter(|(_, known)| !self.members.has(known.node));
        self.closing.extend(left.map(|(connection, known)| (known.peer, *connection)));
    }

    /// The peer at the other end has said that it is of this swarm.
    pub fn introduced(&mut self, connection: ConnectionId) {
        if let Some(known) = self.known.get_mut(&connection) {
            known.introduced = true;
        }
    }

    fn made(&mut self, connection: ConnectionId, peer: PeerId, prefix: Prefix, permit: Option<Permit>) {
        // The event loop parts with a peer whose name is no key of ours.
        let Some(node) = node_id(&peer) else { return };
        self.governor.connected(node, prefix);
        self.known.insert(connection, Known { peer, node, prefix, introduced: false, permit });
    }

    /// A permit for a connection from `holder`, for which another one may have to go.
    fn take(&mut self, holder: Holder) -> Result<Permit, Refused> {
        loop {
            let refused = match self.governor.take(holder, Resource::Connections, 1) {
                Ok(permit) => return Ok(permit),
                Err(refused) => refused,
            };
            let Some(connection) = self.displaced(refused.scope) else { return Err(refused) };
            let Some(known) = self.known.get_mut(&connection) else { return Err(refused) };
            tracing::debug!(prefix = %known.prefix, %refused, "the oldest connection without a name makes room");
            known.permit = None;
            self.closing.push_back((known.peer, connection));
        }
    }

    /// Which connection makes room at a limit.
    fn displaced(&self, scope: Scope) -> Option<ConnectionId> {
        let loose = || self.known.iter().filter(|(_, known)| known.is_loose());
        let prefix = match scope {
            // A peer has few connections, and chooses among them itself.
            Scope::Peer(_) => return None,
            Scope::Prefix(prefix) => prefix,
            Scope::Node => {
                let mut counts: BTreeMap<Prefix, usize> = BTreeMap::new();
                loose().for_each(|(_, known)| *counts.entry(known.prefix).or_default() += 1);
                counts.into_iter().max_by_key(|(_, count)| *count)?.0
            }
        };
        // Connection numbers count up.
        loose().filter(|(_, known)| known.prefix == prefix).map(|(connection, _)| *connection).min()
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
        self.admit(peer)?;
        let prefix = path::prefix(remote, local);
        let permit = self.take(Holder { prefix: Some(prefix), peer: node_id(&peer) });
        self.made(connection, peer, prefix, Some(permit.map_err(ConnectionDenied::new)?));
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
        self.admit(peer)?;
        self.made(connection, peer, path::prefix(address, address), None);
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
        self.hold_to_list();
        match self.closing.pop_front() {
            Some((peer_id, connection)) => {
                let connection = CloseConnection::One(connection);
                Poll::Ready(ToSwarm::CloseConnection { peer_id, connection })
            }
            // What fills the queue is a call of the swarm, which polls again after it; a list that changed is seen when
            // gossip's clock next wakes the swarm, within a second.
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use scheduler::governor::Limits;

    use super::*;
    use crate::Identity;

    fn comes(doors: &mut Doors, number: usize, prefix: u8) -> bool {
        let peer = Identity::from_seed([number as u8; 32]).keypair().public().to_peer_id();
        let remote = format!("/ip4/127.0.{prefix}.1/tcp/{}", 1_000 + number).parse().unwrap();
        let local = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let connection = ConnectionId::new_unchecked(number);
        doors.handle_established_inbound_connection(connection, peer, &local, &remote).is_ok()
    }

    fn closed(doors: &mut Doors) -> Vec<ConnectionId> {
        let mut closed = Vec::new();
        while let Poll::Ready(action) = doors.poll(&mut Context::from_waker(std::task::Waker::noop())) {
            if let ToSwarm::CloseConnection { connection: CloseConnection::One(connection), .. } = action {
                closed.push(connection);
            }
        }
        closed
    }

    #[test]
    fn who_is_not_listed_is_turned_away_and_who_is_no_more_is_let_go() {
        let node = |number: u8| Identity::from_seed([number; 32]).node();
        let members = Members::default();
        let mut doors = Doors::new(Governor::new(Limits::default()), members.clone());
        assert!(comes(&mut doors, 1, 1) && comes(&mut doors, 2, 1), "without a list all may come");
        members.set([node(1), node(3)].into());
        assert_eq!(closed(&mut doors), [ConnectionId::new_unchecked(2)]);
        doors.ended(ConnectionId::new_unchecked(2));
        assert!(comes(&mut doors, 3, 1) && !comes(&mut doors, 4, 1));
        let peer = Identity::from_seed([4; 32]).keypair().public().to_peer_id();
        let address = "/ip4/127.0.0.1/tcp/4".parse().unwrap();
        let connection = ConnectionId::new_unchecked(5);
        let dialed = doors.handle_established_outbound_connection(
            connection,
            peer,
            &address,
            Endpoint::Dialer,
            PortUse::New,
        );
        assert!(dialed.is_err(), "who is dialed must be listed too");
        members.set([node(1), node(3), node(4)].into());
        assert!(closed(&mut doors).is_empty() && comes(&mut doors, 4, 1));
    }

    #[test]
    fn who_has_not_introduced_itself_makes_room_and_who_has_does_not() {
        let limits = Limits::default().set(Resource::Connections, [4, 3, 2]);
        let governor = Governor::new(limits);
        let mut doors = Doors::new(governor.clone(), Members::default());
        assert!(comes(&mut doors, 1, 1) && comes(&mut doors, 2, 1) && comes(&mut doors, 3, 1));
        doors.introduced(ConnectionId::new_unchecked(1));
        assert!(comes(&mut doors, 4, 1), "its prefix is full");
        assert_eq!(
            closed(&mut doors),
            [ConnectionId::new_unchecked(2)],
            "the oldest of its prefix without a name"
        );
        assert!(comes(&mut doors, 5, 2) && comes(&mut doors, 6, 3), "the node is full");
        assert_eq!(
            closed(&mut doors),
            [ConnectionId::new_unchecked(3)],
            "of the prefix that has most of them"
        );
        for number in [4, 5, 6] {
            doors.introduced(ConnectionId::new_unchecked(number));
        }
        assert!(!comes(&mut doors, 7, 4) && closed(&mut doors).is_empty(), "all have a name");
        assert_eq!(governor.used(Resource::Connections, Scope::Node), 4);
        (1..8).for_each(|number| doors.ended(ConnectionId::new_unchecked(number)));
        assert_eq!(governor.used(Resource::Connections, Scope::Node), 0);
        assert!(doors.known.is_empty());
    }
}
