//! What the node wants.

use std::time::{Duration, Instant};

use libp2p::kad::RecordKey;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use scheduler::governor::{Holder, Resource};
use scheduler::{ModelId, NodeId};
use tokio::sync::oneshot;

use super::{Dial, Dialed, EventLoop, address};
use crate::error::{Error, HopError, Result};
use crate::event::{Command, NamedBy, PeerInfo};
use crate::home::Said;
use crate::identity::{node_id, peer_id};
use crate::link::LinkInfo;
use crate::link::behaviour::NotOpened;
use crate::named::Vetting;
use crate::path;
use crate::peers::{MAX_ADDRESSES, Source, split_peer};
use crate::wire::announce;
use crate::wire::control::Contact;
use crate::wire::renewal::Renewal;

/// Attempts to reach one peer at once; a caller that names more addresses meanwhile waits for those under way.
pub(super) const MAX_DIALS: usize = 2;

/// A connection that is made beside a doubted one is waited for so long: a handshake takes three round trips, and one that takes
/// longer leads nowhere more often than not.
const BESIDE_PATIENCE: Duration = Duration::from_secs(1);

/// Where the holders of a model are looked up.
pub(super) fn model_key(model: ModelId) -> RecordKey {
    let mut key = b"/shoal/model/".to_vec();
    key.extend_from_slice(model.as_bytes());
    RecordKey::from(key)
}

impl EventLoop {
    /// Does what a command says. An answer is dropped when its caller is gone.
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Addresses(reply) => drop(reply.send(self.addresses())),
            Command::Announced(reply) => {
                let (mut addresses, swarm) = (self.addresses(), self.known_swarm(Instant::now()));
                addresses.retain(|address| swarm.says(address));
                let _ = reply.send(addresses);
            }
            Command::Dial { addresses, peer, by, reply } => self.dial(&addresses, peer, by, reply),
            Command::Doubt { contact, by, connection } => self.doubt(&contact, by, connection),
            Command::Publish { bytes, reply } => drop(reply.send(self.publish(bytes))),
            Command::Open { node, lane, reply } => match peer_id(node) {
                Some(peer) => self.swarm.behaviour_mut().link.open(peer, lane, reply),
                None => drop(reply.send(Err(NotOpened::Failed(HopError::Closed)))),
            },
            Command::Provide { model, reply } => {
                let provided = self.swarm.behaviour_mut().kad.inner.start_providing(model_key(model));
                drop(reply.send(provided.map(drop).map_err(|_| Error::Full("the table of provided models"))));
            }
            Command::Withdraw { model } => {
                self.swarm.behaviour_mut().kad.inner.stop_providing(&model_key(model))
            }
            Command::Holders { model, reply } => {
                let query = self.swarm.behaviour_mut().kad.inner.get_providers(model_key(model));
                self.holders.insert(query, (reply, Default::default()));
            }
            Command::Peers(reply) => drop(reply.send(self.peers())),
            Command::Refused(reply) => drop(reply.send(self.dialing.refused.iter().copied().collect())),
            Command::Close { node, reply } => {
                if let Some(peer) = peer_id(node) {
                    self.book.leave(&peer, Instant::now());
                    // Not connected is as good as closed.
                    let _ = self.swarm.disconnect_peer_id(peer);
                }
                let _ = reply.send(());
            }
            Command::Shutdown(_) => unreachable!("the loop stops by itself"),
        }
    }

    fn addresses(&self) -> Vec<String> {
        let mut all: Vec<Multiaddr> = self.swarm.external_addresses().cloned().collect();
        all.extend(self.swarm.listeners().cloned());
        // Nor is a circuit through a circuit of use: a dialer pays two relays, and either may go.
        let hops = |address: &Multiaddr| address.iter().filter(|part| *part == Protocol::P2pCircuit).count();
        all.retain(|address| path::plausible(address, path::Path::Loopback) && hops(address) <= 1);
        // Public, then relayed, then local: who is near finds the near ones by mDNS too.
        all.sort_by_key(|address| match path::of_address(address) {
            path::Path::Direct => 0,
            path::Path::Relayed => 1,
            path::Path::Lan => 2,
            path::Path::Loopback => 3,
        });
        let mut named = Vec::with_capacity(all.len());
        for address in all {
            let address = split_peer(address).0.with(Protocol::P2p(self.local.me)).to_string();
            if !named.contains(&address) {
                named.push(address);
            }
        }
        named
    }

    fn peers(&self) -> Vec<PeerInfo> {
        let link = &self.swarm.behaviour().link;
        let mut peers: Vec<PeerInfo> = self
            .met
            .iter()
            .filter_map(|(peer, met)| {
                let path = met.told?;
                let (bytes_in, bytes_out) = link.traffic(peer);
                let addresses = self.book.addresses(peer).iter().map(|a| format!("{a}/p2p/{peer}")).collect();
                let connected_for_ms = met.since.elapsed().as_millis() as u64;
                let (rtt_ms, agent) = (met.pulse.rtt_ms, met.agent.clone());
                Some(PeerInfo {
                    node: met.node,
                    addresses,
                    path,
                    rtt_ms,
                    connected_for_ms,
                    bytes_in,
                    bytes_out,
                    agent,
                    link: self.local.links.info(met.node).or_else(|| LinkInfo::of_stream(link.frames(peer))),
                })
            })
            .collect();
        peers.sort_by_key(|peer| peer.node);
        peers
    }

    fn dial(&mut self, addresses: &[String], node: Option<NodeId>, by: NamedBy, reply: Dialed) {
        let (peer, addresses) = match self.dialable(addresses, node) {
            Ok(found) => found,
            Err(e) => return drop(reply.send(Err(e))),
        };
        let now = Instant::now();
        let Some(peer) = peer else {
            let Some(address) = addresses.into_iter().next() else {
                return drop(reply.send(Err(Error::Unreachable("no address was given".into()))));
            };
            let options = DialOpts::unknown_peer_id().address(address).build();
            let connection = options.connection_id();
            match self.swarm.dial(options) {
                Ok(()) => drop(self.dialing.nameless.insert(connection, reply)),
                Err(e) => drop(reply.send(Err(Error::Unreachable(e.to_string())))),
            }
            return;
        };
        let connected = self.met.get(&peer).filter(|met| met.told.is_some()).map(|met| met.node);
        let all = match by {
            Some(_) if connected.is_some() => Vec::new(),
            Some(by) => self.vetted(&peer, by, addresses, now),
            None => self.and_known(&peer, addresses),
        };
        all.iter().for_each(|address| self.book.add(peer, address.clone(), Source::Found, now));
        if let Some(node) = connected {
            // A connection that is doubted will do only where the one that is being made beside it fails.
            let link = &self.swarm.behaviour().link;
            let under_way = link.is_doubted(&peer) && self.dialing.dials.contains_key(&peer);
            if !under_way && !link.is_fresh(&peer, BESIDE_PATIENCE) {
                return drop(reply.send(Ok(node)));
            }
            return self.dialing.waiting.entry(peer).or_default().push(reply);
        }
        if by.is_some() && all.is_empty() {
            let why = "none of its addresses may be dialed: it has not announced them, they are of a private network \
                       elsewhere, or too many were named lately";
            return drop(reply.send(Err(Error::Unreachable(why.into()))));
        }
        self.dialing.waiting.entry(peer).or_default().push(reply);
        self.dial_peer(peer, all);
    }

    /// Callers that wait for a connection beside a doubted one have waited long enough: that is what there is.
    pub(super) fn settle_for_doubted(&mut self, now: Instant) {
        let met = |peer: &PeerId| self.met.get(peer).is_some_and(|met| met.told.is_some());
        let under_way = |peer: &PeerId| {
            let dials = self.dialing.dials.get(peer).map_or(&[][..], Vec::as_slice);
            dials.iter().any(|dial| now.saturating_duration_since(dial.began) < BESIDE_PATIENCE)
        };
        let done = |peer: &PeerId| {
            let link = &self.swarm.behaviour().link;
            met(peer) && !link.is_fresh(peer, BESIDE_PATIENCE) && !(link.is_doubted(peer) && under_way(peer))
        };
        let settled: Vec<PeerId> = self.dialing.waiting.keys().filter(|peer| done(peer)).copied().collect();
        for peer in settled {
            let Some(node) = self.met.get(&peer).map(|met| met.node) else { continue };
            let waiting = self.dialing.waiting.remove(&peer);
            waiting.into_iter().flatten().for_each(|reply| drop(reply.send(Ok(node))));
        }
    }

    /// Of `addresses`, which the node `by` named as those of `peer`, and of all that are known of it, those that are dialed.
    fn vetted(&self, peer: &PeerId, by: NodeId, addresses: Vec<Multiaddr>, now: Instant) -> Vec<Multiaddr> {
        let announced = node_id(peer).map(|node| self.news.ledger.addresses(node, now)).unwrap_or_default();
        let announced: Vec<Multiaddr> = announced
            .iter()
            .take(MAX_ADDRESSES)
            .filter_map(|text| text.parse::<Multiaddr>().ok())
            .map(split_peer)
            .filter(|(_, named)| named.is_none_or(|named| named == *peer))
            .map(|(address, _)| address)
            .collect();
        let own: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        let (known, loopback_only) = (self.book.addresses(peer), self.local.loopback_only);
        let vetting = Vetting { known, announced: &announced, own: &own, loopback_only };
        let mut all = self.and_known(peer, addresses);
        all.retain(|address| vetting.admits(address));
        all.retain(|address| {
            let holder = Holder { prefix: Some(path::prefix(address, address)), peer: Some(by) };
            let spent = self.governor.spend(holder, Resource::Dials, 1);
            spent.inspect_err(|refused| tracing::debug!(%address, %refused, "not dialed")).is_ok()
        });
        all
    }

    /// `addresses`, and after them the others that are known of a peer.
    fn and_known(&self, peer: &PeerId, mut addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
        let known = self.book.addresses(peer).iter();
        let others: Vec<Multiaddr> = known.filter(|address| !addresses.contains(address)).cloned().collect();
        addresses.extend(others);
        addresses
    }

    /// A peer does not answer over a connection: it is used no more until it does. Where there is no better one, the peer is
    /// dialed beside it.
    fn doubt(&mut self, contact: &Contact, by: NamedBy, connection: ConnectionId) {
        let Ok((Some(peer), addresses)) = self.dialable(&contact.addresses, Some(contact.node)) else {
            return;
        };
        self.swarm.behaviour_mut().link.doubt(&peer, connection);
        if self.swarm.behaviour().link.is_doubted(&peer) {
            self.dial_beside(peer, addresses, by);
        }
    }

    /// Dials a peer although it is connected, unless that is under way or was done lately: what it is connected by
    /// may lead to a process that has died, or carry one way only, and says nothing of it. The new
    /// connection introduces the process that is there now ([`EventLoop::meet_restarted`]).
    pub(super) fn dial_beside(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, by: NamedBy) {
        let addresses = match by {
            Some(by) => self.vetted(&peer, by, addresses, Instant::now()),
            None => self.and_known(&peer, addresses),
        };
        if !self.met.contains_key(&peer) {
            return self.dial_peer(peer, addresses);
        }
        if self.dialing.dials.contains_key(&peer) || addresses.is_empty() {
            return;
        }
        if !self.book.may_dial_beside(&peer, Instant::now()) {
            return;
        }
        let options =
            DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses.clone()).build();
        let connection = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => self.dialing.dials.entry(peer).or_default().push(Dial {
                connection,
                began: Instant::now(),
                tried: addresses,
                follows: true,
            }),
            Err(error) => tracing::debug!(%peer, %error, "no second connection"),
        }
    }

    /// Dials a peer under all its addresses unless it is connected. While it is being dialed, only addresses that are
    /// not tried already: those of a restarted peer may be old, and QUIC waits for seconds where nothing listens. For
    /// the same reason no caller waits for a dial of Kademlia's, which knows the old addresses best.
    pub(super) fn dial_peer(&mut self, peer: PeerId, mut addresses: Vec<Multiaddr>) {
        let under_way = self.dialing.dials.get(&peer).map_or(&[][..], Vec::as_slice);
        addresses.retain(|address| !under_way.iter().any(|dial| dial.tried.contains(address)));
        if under_way.len() >= MAX_DIALS || !under_way.is_empty() && addresses.is_empty() {
            return;
        }
        let mut tried: Vec<Multiaddr> = under_way.iter().flat_map(|dial| dial.tried.clone()).collect();
        tried.extend_from_slice(&addresses);
        self.dial_under(peer, addresses, tried, false);
    }

    /// A dial failed. The peer has been heard of under other addresses meanwhile: they are dialed, else it has failed.
    pub(super) fn dial_on(&mut self, peer: PeerId, mut tried: Vec<Multiaddr>, why: &str) {
        let fresh: Vec<Multiaddr> =
            self.book.addresses(&peer).iter().filter(|address| !tried.contains(address)).cloned().collect();
        if fresh.is_empty() {
            return self.dial_failed(&peer, why);
        }
        tried.extend_from_slice(&fresh);
        self.dial_under(peer, fresh, tried, true);
    }

    fn dial_under(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, tried: Vec<Multiaddr>, follows: bool) {
        tracing::debug!(%peer, ?addresses, "dials");
        let options =
            DialOpts::peer_id(peer).condition(PeerCondition::Disconnected).addresses(addresses).build();
        let connection = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.book.dialing(&peer);
                self.dialing.dials.entry(peer).or_default().push(Dial {
                    connection,
                    began: Instant::now(),
                    tried,
                    follows,
                });
            }
            Err(libp2p::swarm::DialError::DialPeerConditionFalse(_)) => {}
            Err(e) => self.dial_failed(&peer, &e.to_string()),
        }
    }

    /// Dials `node` at the address that the node `by` named, because that one, or a peer of it, wants to know whether it can be
    /// reached there; the receiver hears whether it was. `None`: it is not dialed.
    pub(super) fn dial_back(
        &mut self,
        by: NodeId,
        address: &str,
        node: NodeId,
    ) -> Option<oneshot::Receiver<bool>> {
        let peer = peer_id(node).filter(|peer| *peer != self.local.me)?;
        let (address, named) = split_peer(address.parse().ok()?);
        let outside = self.way.outside;
        let fits = path::of_address(&address) == outside && path::plausible(&address, outside);
        if !fits || named.is_some_and(|named| named != peer) {
            return None;
        }
        let holder = Holder { prefix: Some(path::prefix(&address, &address)), peer: Some(by) };
        self.governor.spend(holder, Resource::Dials, 1).ok()?;
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![address]);
        // A router lets in a port that its host has talked to: where they know each other another one is used.
        let options = match self.met.contains_key(&peer) {
            true => options.allocate_new_port().build(),
            false => options.build(),
        };
        let connection = options.connection_id();
        self.swarm.dial(options).ok()?;
        let (reply, dialed) = oneshot::channel();
        self.dialing.backs.insert(connection, reply);
        Some(dialed)
    }

    /// A connection was made, perhaps only to see whether it could be: then it is closed where there is another one.
    pub(super) fn dialed_back(&mut self, peer: &PeerId, connection: ConnectionId) {
        if let Some(reply) = self.dialing.backs.remove(&connection) {
            // The asker may be gone.
            let _ = reply.send(true);
            if self.met.contains_key(peer) {
                self.swarm.close_connection(connection);
            }
        }
    }

    /// Tells every caller that waits for `peer` that it cannot be reached now.
    pub(super) fn dial_failed(&mut self, peer: &PeerId, why: &str) {
        self.book.failed(peer, Instant::now());
        for reply in self.dialing.waiting.remove(peer).into_iter().flatten() {
            drop(reply.send(Err(Error::Unreachable(why.to_owned()))));
        }
    }

    /// Which peer is meant, and its addresses without its name.
    fn dialable(&self, texts: &[String], node: Option<NodeId>) -> Result<(Option<PeerId>, Vec<Multiaddr>)> {
        let mut peer = match node {
            Some(node) => {
                let no_key = || Error::Unreachable(format!("{node} is no public key"));
                Some(peer_id(node).ok_or_else(no_key)?)
            }
            None => None,
        };
        let complain = |address: &String, why: &str| {
            Err(Error::Address { address: address.clone(), why: why.to_owned() })
        };
        let mut addresses = Vec::new();
        for text in texts.iter().take(MAX_ADDRESSES) {
            let (address, named) = split_peer(address(text, self.local.loopback_only)?);
            match (peer, named) {
                (Some(peer), Some(named)) if peer != named => return complain(text, "it is another node's"),
                (None, Some(named)) if node_id(&named).is_none() => {
                    return complain(text, "its name is no ed25519 key");
                }
                _ => peer = peer.or(named),
            }
            addresses.push(address);
        }
        if peer == Some(self.local.me) {
            let why = "it is this node's own".to_owned();
            return Err(Error::Address { address: texts.first().cloned().unwrap_or_default(), why });
        }
        Ok((peer, addresses))
    }

    fn publish(&mut self, bytes: Vec<u8>) -> Result<()> {
        if Renewal::is_meant(&bytes) {
            return self.renew(bytes);
        }
        let opened = announce::open(&bytes).map_err(|e| Error::Announcement(e.to_string()))?;
        if opened.node() != self.local.node {
            return Err(Error::Announcement("it is another node's".into()));
        }
        let sequence = self.numbered(opened.capability.claim().sequence)?;
        let own = &mut self.news.own;
        (own.said, own.renewal) = (Said::of(&opened.addresses), None);
        (own.bytes, own.of, own.sequence, own.waiting) = (bytes, sequence, sequence, true);
        self.announce(Instant::now());
        Ok(())
    }

    /// Says that this node's announcement holds on, unless it has not left yet.
    fn renew(&mut self, bytes: Vec<u8>) -> Result<()> {
        let renewal = Renewal::open(&bytes).map_err(|e| Error::Announcement(e.to_string()))?;
        if renewal.node != self.local.node || renewal.of != self.news.own.of {
            return Err(Error::Announcement("it renews another announcement than this node's last".into()));
        }
        let sequence = self.numbered(renewal.sequence)?;
        let own = &mut self.news.own;
        let unsaid = own.waiting && own.renewal.is_none();
        (own.sequence, own.waiting) = (sequence, true);
        own.renewal = (!unsaid).then_some(bytes);
        self.announce(Instant::now());
        Ok(())
    }

    /// A number above all that this node has used.
    fn numbered(&self, sequence: u64) -> Result<u64> {
        let last = self.news.own.sequence;
        let why = || Error::Announcement(format!("its sequence {sequence} is not above {last}"));
        if sequence > last { Ok(sequence) } else { Err(why()) }
    }
}
