//! What the swarm reports.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::gossipsub::{self, MessageAcceptance, MessageId};
use libp2p::kad::{self, GetProvidersOk, QueryResult};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, identify, mdns, relay, upnp};
use scheduler::NodeId;
use scheduler::governor::Resource;
use scheduler::reach::Origin;

use super::pulse::{ASLEEP, Pulse};
use super::{Dial, EventLoop, IDENTIFY, Met, Report, address, unix_now, upkeep};
use crate::behaviour::{Behaviour, BehaviourEvent, split_life};
use crate::control;
use crate::error::Error;
use crate::event::Event;
use crate::gossip::{DEAF, Forwarder, Patience, Verdict};
use crate::governor::{ANNOUNCEMENT_US, ASK_US};
use crate::home::{KnownSwarm, Said};
use crate::identity::{node_id, peer_id};
use crate::link::{Stream, behaviour::Incoming};
use crate::path::{self, Path, plausible};
use crate::peers::{MAX_ADDRESSES, Source, split_peer};
use crate::plane::{Lane, Plane};
use crate::pulse::{self, Pace};
use crate::wire::announce::Announcement;

/// How long a peer that floods is not listened to.
const DEAF_FOR: Duration = Duration::from_secs(60);
/// Holders returned by one look-up.
const MAX_HOLDERS: usize = 64;

impl EventLoop {
    pub(super) fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, endpoint, num_established, cause } => {
                let met = self.met.get_mut(&peer_id);
                let used = met.is_some_and(|met| met.introduced.remove(&connection_id));
                self.on_closed(&peer_id, connection_id, num_established);
                // A near peer's TCP connection ends when its process does: what remains is dead. One that was never used
                // was refused, by a peer that has enough of them.
                let near =
                    path::is_tcp(endpoint.get_remote_address()) && path::is_near(path::classify(&endpoint));
                let lost = cause.is_some() && used && near;
                if lost && num_established > 0 && self.swarm.behaviour().link.is_quic_only(&peer_id) {
                    tracing::debug!(peer = %peer_id, "its TCP connection ended, the others are closed");
                    let _ = self.swarm.disconnect_peer_id(peer_id);
                }
            }
            SwarmEvent::OutgoingConnectionError { peer_id, connection_id, error } => {
                self.on_dial_error(peer_id, connection_id, &error);
            }
            SwarmEvent::NewListenAddr { listener_id, address } => self.on_listening(listener_id, &address),
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.way.forget(&address);
                self.reweigh(Instant::now());
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
                let now = Instant::now();
                tracing::debug!(?reason, "a listener closed");
                let lost = self.reservations.iter_mut().find(|r| r.listener == Some(listener_id));
                if let Some(reservation) = lost {
                    reservation.put_off(now);
                }
            }
            SwarmEvent::NewExternalAddrOfPeer { peer_id, address } => {
                self.book.add(peer_id, split_peer(address).0, Source::Found, Instant::now());
            }
            _ => {}
        }
    }

    fn on_listening(&mut self, listener: ListenerId, address: &Multiaddr) {
        if let Some(reservation) = self.reservations.iter_mut().find(|r| r.listener == Some(listener)) {
            reservation.failures = 0;
        }
        // In a swarm of one host only who relays needs to know.
        if self.local.relays || !self.local.loopback_only {
            self.way.learn(address, Origin::Own, Instant::now());
        }
        let address = split_peer(address.clone()).0.with(Protocol::P2p(self.local.me)).to_string();
        self.outbox.must(Event::Listening { address });
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let nameless = self.dialing.nameless.remove(&connection);
        self.dial_ended(&peer, connection);
        self.dialed_back(&peer, connection);
        let Some(node) = node_id(&peer) else {
            if let Some(reply) = nameless {
                drop(reply.send(Err(Error::Unreachable("its name is no ed25519 key".into()))));
            }
            let _ = self.swarm.disconnect_peer_id(peer);
            return;
        };
        // A connection through a relay is no address of its own to remember: the peer's listen addresses say it.
        let dialed = match endpoint {
            ConnectedPoint::Dialer { address, .. } if !endpoint.is_relayed() => {
                Some(split_peer(address.clone()).0)
            }
            _ => None,
        };
        self.book.connected(peer, dialed, unix_now(), now);
        self.met.entry(peer).or_insert_with(|| Met {
            node,
            since: now,
            pulse: Pulse::default(),
            agent: String::new(),
            introduced: HashSet::new(),
            life: None,
            restarted: false,
            told: None,
            served: None,
            probed: None,
            relays: false,
            tried: None,
            forwarder: Forwarder::new(now),
            deaf_until: None,
        });
        if let Some(reply) = nameless {
            match self.met[&peer].told {
                Some(_) => drop(reply.send(Ok(node))),
                None => self.dialing.waiting.entry(peer).or_default().push(reply),
            }
        }
        self.tell_path(&peer);
    }

    fn on_closed(&mut self, peer: &PeerId, connection: ConnectionId, left: u32) {
        if left > 0 {
            if let Some(met) = self.met.get_mut(peer) {
                met.pulse.forget(connection);
            }
            return self.tell_path(peer);
        }
        let Some(met) = self.met.remove(peer) else { return };
        tracing::debug!(%peer, "its last connection ended");
        self.book.disconnected(peer, Instant::now());
        if met.restarted {
            self.dial_peer(*peer, self.book.addresses(peer).to_vec());
        }
        if met.told.is_some() {
            self.outbox.must(Event::Disconnected { node: met.node });
        } else {
            self.dial_failed(peer, "the connection closed before the peer said who it is");
        }
    }

    fn on_dial_error(&mut self, peer: Option<PeerId>, connection: ConnectionId, error: &DialError) {
        if let Some(reply) = self.dialing.backs.remove(&connection) {
            // It was another node's question, and says nothing of the peer for this one.
            let _ = reply.send(false);
            return;
        }
        if let Some(reply) = self.dialing.nameless.remove(&connection) {
            drop(reply.send(Err(Error::Unreachable(error.to_string()))));
        }
        let Some(peer) = peer else { return };
        if let DialError::WrongPeerId { address, .. } = error {
            self.book.wrong_address(&peer, &split_peer(address.clone()).0);
        }
        tracing::debug!(%peer, %error, "a dial failed");
        let ended = self.dial_ended(&peer, connection);
        if let Some(met) = self.met.get(&peer).filter(|met| met.told.is_some()) {
            // It was dialed beside a connection that is doubted, and that is what there is.
            let node = met.node;
            if !self.dialing.dials.contains_key(&peer) {
                self.dialing
                    .waiting
                    .remove(&peer)
                    .into_iter()
                    .flatten()
                    .for_each(|reply| drop(reply.send(Ok(node))));
            }
        }
        let under_way = self.dialing.dials.contains_key(&peer) || self.met.contains_key(&peer);
        if under_way || matches!(error, DialError::DialPeerConditionFalse(_)) {
            return;
        }
        match ended {
            Some(dial) if !dial.follows => self.dial_on(peer, dial.tried, &error.to_string()),
            _ => self.dial_failed(&peer, &error.to_string()),
        }
    }

    /// Forgets a dial, whatever came of it.
    fn dial_ended(&mut self, peer: &PeerId, connection: ConnectionId) -> Option<Dial> {
        let dials = self.dialing.dials.get_mut(peer)?;
        let at = dials.iter().position(|dial| dial.connection == connection)?;
        let dial = dials.swap_remove(at);
        if dials.is_empty() {
            self.dialing.dials.remove(peer);
        }
        Some(dial)
    }

    /// Tells the node when the path to a peer of this swarm is another than it was told last.
    fn tell_path(&mut self, peer: &PeerId) {
        let Some(path) = self.swarm.behaviour().link.path(peer) else { return };
        let Some(met) = self.met.get_mut(peer) else { return };
        if met.told.is_some_and(|told| told != path) {
            met.told = Some(path);
            self.outbox.must(Event::Connected { node: met.node, path });
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Link(incoming) => self.on_incoming(incoming),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, connection_id }) => {
                self.on_identified(peer_id, connection_id, info);
            }
            BehaviourEvent::Pulse(event) => self.on_pulse(event),
            BehaviourEvent::Kad(event) => self.on_kad(event),
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                let now = Instant::now();
                for (peer, address) in found {
                    self.book.add(peer, split_peer(address).0, Source::Mdns, now);
                }
            }
            BehaviourEvent::RelayClient(relay::client::Event::ReservationReqAccepted {
                relay_peer_id,
                ..
            }) => {
                tracing::info!(relay = %relay_peer_id, "reachable through a relay");
            }
            BehaviourEvent::Watch(noticed) => self.on_noticed(&noticed),
            BehaviourEvent::Upnp(upnp::Event::NewExternalAddr { external_addr, .. }) => {
                let now = Instant::now();
                self.way.learn(&external_addr, Origin::Own, now);
                self.reweigh(now);
            }
            BehaviourEvent::Upnp(upnp::Event::ExpiredExternalAddr { external_addr, .. }) => {
                self.way.forget(&external_addr);
                self.reweigh(Instant::now());
            }
            BehaviourEvent::Dcutr(event) => match event.result {
                Ok(_) => self.tell_path(&event.remote_peer_id),
                Err(error) => tracing::debug!(peer = %event.remote_peer_id, %error, "no direct path"),
            },
            _ => {}
        }
    }

    /// Hands a peer's stream to the node.
    pub(super) fn incoming(&mut self, from: NodeId, plane: Plane, stream: Stream) {
        if !self.outbox.may(Event::Incoming { from, plane, stream }) {
            tracing::warn!(node = %from, "the node does not keep up, a stream is refused");
        }
    }

    fn on_incoming(&mut self, Incoming { lane, stream }: Incoming) {
        let from = stream.node();
        match lane {
            Lane::Plane(plane) => self.incoming(from, plane, stream),
            Lane::Links => {
                let links = self.local.links.clone();
                tokio::spawn(async move { links.accept(stream).await });
            }
            Lane::Linked => {
                let (links, reporter) = (self.local.links.clone(), self.reporter.clone());
                tokio::spawn(async move {
                    let neighbor = links.agreed(from).await;
                    let neighbor = neighbor.filter(|neighbor| neighbor.connection == stream.connection());
                    let Some(neighbor) = neighbor else { return };
                    let linked = tokio::time::timeout(IDENTIFY, stream.linked(neighbor, false)).await;
                    if let Ok(Ok(stream)) = linked {
                        // A loop that has stopped takes no streams.
                        let _ = reporter.send(Report::Linked(Box::new(stream))).await;
                    }
                });
            }
            Lane::Control => {
                let holder = self.governor.holder(from);
                if let Err(refused) = self.governor.spend(holder, Resource::Cpu, ASK_US) {
                    // Dropping the stream resets it.
                    tracing::debug!(node = %from, %refused, "an ask is refused");
                    return;
                }
                let reporter = self.reporter.clone();
                tokio::spawn(async move {
                    if let Ok((ask, reply)) = control::listen(stream).await {
                        // A loop that has stopped does not answer.
                        let _ = reporter.send(Report::Asked(from, Box::new((ask, reply)))).await;
                    }
                });
            }
        }
    }

    fn on_gossip(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message { propagation_source, message_id, message } = event else { return };
        let now = Instant::now();
        let accept = match self.patience(&propagation_source, now) {
            Patience::Listen => match self.weigh(&message.data, &propagation_source, now) {
                Verdict::Fresh(announcement) if announcement.node() == self.local.node => {
                    MessageAcceptance::Ignore
                }
                Verdict::Fresh(announcement) => {
                    self.hear_of(&announcement, now);
                    let passes = self.passes(&announcement, now);
                    self.outbox.may(Event::Announcement(announcement, message.data));
                    if passes { MessageAcceptance::Accept } else { MessageAcceptance::Ignore }
                }
                Verdict::Stale => MessageAcceptance::Ignore,
                Verdict::Invalid => MessageAcceptance::Reject,
            },
            Patience::Drop => MessageAcceptance::Ignore,
            Patience::Deafen => {
                tracing::warn!(peer = %propagation_source, "floods announcements, not listened to for a while");
                self.swarm.behaviour_mut().gossip.set_application_score(&propagation_source, DEAF);
                MessageAcceptance::Ignore
            }
        };
        self.settle(&message_id, &propagation_source, accept);
    }

    /// What an announcement is that `via` brought.
    pub(super) fn weigh(&mut self, bytes: &[u8], via: &PeerId, now: Instant) -> Verdict {
        let met = &self.met;
        let told = |peer| met.get(&peer).is_some_and(|met| met.told.is_some());
        let connected = |node| peer_id(node).is_some_and(told);
        self.news.ledger.hear(bytes, now, *via, connected)
    }

    /// Where this swarm is, as far as this node knows.
    pub(super) fn known_swarm(&self, now: Instant) -> KnownSwarm {
        let link = &self.swarm.behaviour().link;
        let farthest = self.met.keys().filter_map(|peer| link.path(peer)).max();
        KnownSwarm { farthest, beyond: self.news.ledger.reaches_beyond(now) }
    }

    /// Whether an announcement may go on to others as it is.
    pub(super) fn passes(&self, announcement: &Announcement, now: Instant) -> bool {
        self.known_swarm(now).passes(Said::of(&announcement.addresses))
    }

    /// Notes where a node says that it is: for one behind a router, the relays it is reached through, which no node but
    /// itself knows of. It signed for the addresses, and what answers there must prove that it is that node.
    pub(super) fn hear_of(&mut self, announcement: &Announcement, now: Instant) {
        let Some(peer) = peer_id(announcement.node()) else { return };
        // Who was not met says nothing about a network that is ours too: the local one has other ways to find it.
        let meant = if self.local.loopback_only { Path::Loopback } else { Path::Direct };
        for text in announcement.addresses.iter().take(MAX_ADDRESSES) {
            let Ok(address) = address(text, self.local.loopback_only) else { continue };
            let (address, named) = split_peer(address);
            if named.is_none_or(|named| named == peer) && plausible(&address, meant) {
                self.book.add(peer, address, Source::Found, now);
            }
        }
    }

    fn settle(&mut self, id: &MessageId, source: &PeerId, accept: MessageAcceptance) {
        self.swarm.behaviour_mut().gossip.report_message_validation_result(id, source, accept);
    }

    fn patience(&mut self, source: &PeerId, now: Instant) -> Patience {
        let Some(met) = self.met.get_mut(source) else { return Patience::Drop };
        let patience = met.forwarder.hear(now);
        let holder = self.governor.holder(met.node);
        if patience == Patience::Listen
            && self.governor.spend(holder, Resource::Cpu, ANNOUNCEMENT_US).is_err()
        {
            return Patience::Drop;
        }
        if patience == Patience::Deafen {
            met.deaf_until = Some(now + DEAF_FOR);
        }
        patience
    }

    fn on_identified(&mut self, peer: PeerId, connection: ConnectionId, info: identify::Info) {
        if info.protocol_version != self.local.names.version {
            return match self.local.names.version_of(&info.protocol_version) {
                Some(version) => self.refuse_version(&peer, version),
                None => self.turn_away(&peer, "it is of another swarm"),
            };
        }
        let now = Instant::now();
        let Some(path) = self.swarm.behaviour().link.path(&peer) else { return };
        let Some(met) = self.met.get_mut(&peer) else { return };
        let node = met.node;
        let (agent, life) = split_life(&info.agent_version);
        if life.is_some() && met.life.is_some_and(|known| Some(known) != life) {
            return self.meet_restarted(&peer);
        }
        met.life = life;
        met.introduced.insert(connection);
        self.swarm.behaviour_mut().link.introduce(&peer, connection);
        self.swarm.behaviour_mut().doors.introduced(connection);
        if let Some(relay) = self.swarm.behaviour_mut().relay.as_mut() {
            relay.introduced(connection);
        }
        met.agent = agent.chars().filter(|c| !c.is_control()).take(64).collect();
        let relays = info.protocols.contains(&relay::HOP_PROTOCOL_NAME);
        let begins = !std::mem::replace(&mut met.relays, relays) && relays;
        let fresh = met.told.is_none();
        if met.told != Some(path) {
            met.told = Some(path);
            self.due.save = self.due.save.min(now + upkeep::SAVE_SOON);
            self.news.ledger.prove(node);
            self.outbox.must(Event::Connected { node, path });
            // Often the first ping was faster than the introduction.
            if let Some(ms) = met.pulse.rtt_ms {
                self.outbox.may(Event::RoundTrip { node, ms });
            }
            // The node forgot it when it was gone, and its neighbors may have nothing newer to say.
            if let Some((again, bytes)) = self.news.ledger.again(node, now).filter(|_| fresh) {
                self.outbox.may(Event::Announcement(again, bytes));
            }
        }
        let speaks_kad = info.protocols.contains(&self.local.names.kad);
        let local_only = self.local.loopback_only;
        let meant =
            |a: &Multiaddr| plausible(a, path) && !(local_only && path::of_address(a) != Path::Loopback);
        let mut over_tcp = Vec::new();
        for address in info.listen_addrs.into_iter().filter(meant).take(MAX_ADDRESSES) {
            let address = split_peer(address).0;
            if path::of_address(&address) == path && path::is_tcp(&address) {
                over_tcp.push(address.clone());
            }
            self.book.add(peer, address.clone(), Source::Found, now);
            if speaks_kad {
                self.swarm.behaviour_mut().kad.inner.add_address(&peer, address);
            }
        }
        // Who came by itself is known by these addresses only.
        self.book.connected(peer, None, unix_now(), now);
        for reply in self.dialing.waiting.remove(&peer).into_iter().flatten() {
            drop(reply.send(Ok(node)));
        }
        if fresh {
            if self.news.catch_up.len() >= upkeep::MAX_CATCH_UPS {
                self.news.catch_up.pop_front();
            }
            self.news.catch_up.push_back(peer);
            self.next_catch_up();
            self.meet_over_tcp(peer, path, over_tcp);
        }
        if begins {
            self.relay_began(&peer, now);
        }
    }

    /// A near peer that this node met over QUIC, which dials faster, is met over TCP too: streams take that, it is faster
    /// there, and it ends at once when the peer's process dies, where QUIC is silent for half a minute.
    fn meet_over_tcp(&mut self, peer: PeerId, path: Path, addresses: Vec<Multiaddr>) {
        let link = &self.swarm.behaviour().link;
        if !path::is_near(path) || addresses.is_empty() || !link.is_dialed(&peer) || !link.is_quic_only(&peer)
        {
            return;
        }
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).build();
        if let Err(error) = self.swarm.dial(options) {
            tracing::debug!(%peer, %error, "QUIC will do");
        }
    }

    /// `peer` was started again and its old connections are dead, which was not noticed yet: QUIC says nothing when a
    /// process dies. All are closed, the new one too, because gossipsub introduces itself on a first connection only: a
    /// peer met beside its dead connection would never hear from this node, nor this node from it. It is dialed
    /// again, and dials by itself. Two processes under one key part each other so for as long as both run.
    fn meet_restarted(&mut self, peer: &PeerId) {
        tracing::info!(%peer, "it was started again, its old connections are closed");
        if let Some(met) = self.met.get_mut(peer) {
            met.restarted = self.book.started_again(peer, Instant::now());
        }
        // Gone already is fine.
        let _ = self.swarm.disconnect_peer_id(*peer);
    }

    /// Sets the pace of every connection by what runs over it now.
    pub(super) fn pace(&mut self, now: Instant) {
        let slept = now.saturating_duration_since(self.due.ticked) > ASLEEP;
        self.due.ticked = now;
        let relays: Vec<PeerId> =
            self.reservations.iter().filter_map(|r| upkeep::relay_of(&r.address)).collect();
        let Behaviour { link, pulse, .. } = &mut **self.swarm.behaviour_mut();
        for (peer, connection, pace) in link.paces(now) {
            let pace = if pace == Pace::Resting && relays.contains(&peer) { Pace::New } else { pace };
            pulse.set(peer, connection, pace);
            let Some(met) = self.met.get_mut(&peer) else { continue };
            // What goes out goes out under flow control: it says as much.
            let (bytes_in, bytes_out) = link.traffic(&peer);
            met.pulse.moved(pace == Pace::InUse, bytes_in.wrapping_add(bytes_out), slept, now);
        }
    }

    fn on_pulse(&mut self, event: pulse::Event) {
        let Some(met) = self.met.get_mut(&event.peer) else { return };
        let (connection, now) = (event.connection, Instant::now());
        let link = &mut self.swarm.behaviour_mut().link;
        match event.result {
            Ok(elapsed) => {
                let ms = met.pulse.answered(connection, elapsed, now);
                if link.trust(&event.peer, connection) {
                    self.book.doubted_in_vain(&event.peer);
                }
                if met.told.is_some() && met.pulse.is_due(now) {
                    self.outbox.may(Event::RoundTrip { node: met.node, ms });
                }
            }
            Err(error) => {
                let quic = link.is_quic(&event.peer, connection);
                let Some(dead) = met.pulse.failed(connection, &error, quic, (self.due.ticked, now)) else {
                    return;
                };
                link.doubt(&event.peer, connection);
                if dead {
                    tracing::debug!(node = %met.node, %error, "silent, its connection is closed");
                    self.swarm.close_connection(connection);
                } else if link.is_doubted(&event.peer) {
                    self.dial_beside(event.peer, Vec::new(), None);
                }
            }
        }
    }

    fn on_kad(&mut self, event: kad::Event) {
        match event {
            kad::Event::RoutingUpdated { peer, addresses, .. } => {
                let now = Instant::now();
                for address in addresses.iter().take(MAX_ADDRESSES) {
                    self.book.add(peer, split_peer(address.clone()).0, Source::Found, now);
                }
            }
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => {
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })) =
                    &result
                    && let Some((_, found)) = self.holders.get_mut(&id)
                {
                    found
                        .extend(providers.iter().filter_map(node_id).filter(|node| *node != self.local.node));
                }
                let enough = self.holders.get(&id).is_some_and(|(_, found)| found.len() >= MAX_HOLDERS);
                if step.last || enough {
                    self.answer_holders(id);
                }
            }
            _ => {}
        }
    }

    fn answer_holders(&mut self, id: kad::QueryId) {
        if let Some(mut query) = self.swarm.behaviour_mut().kad.inner.query_mut(&id) {
            query.finish();
        }
        if let Some((reply, found)) = self.holders.remove(&id) {
            let mut found: Vec<_> = found.into_iter().collect();
            found.sort_unstable();
            found.truncate(MAX_HOLDERS);
            // The caller is gone: the result is dropped.
            let _ = reply.send(found);
        }
    }
}
