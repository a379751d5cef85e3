//! What is due by the clock, and what helper tasks bring back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::gossipsub::PublishError;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use scheduler::NodeId;
use scheduler::governor::Resource;
use scheduler::reach::Standing;

use super::{EventLoop, IDENTIFY, MAX_REFUSED, Met, Report, Reservation, standing, unix_now};
use crate::control::{self, ReplyTo};
use crate::event::{Event, Reachability, RefusedPeer};
use crate::gossip::{Budget, Verdict};
use crate::identity::peer_id;
use crate::link::{Stream, behaviour::NotOpened};
use crate::path::{self, Path};
use crate::peers;
use crate::plane::{Lane, Plane};
use crate::watch::Noticed;
use crate::wire::control::{Answer, Ask, Contact, Refusal};

/// Peers asked for announcements at once.
pub(super) const CATCHING_UP: usize = 4;
/// Peers waiting to be asked; more are not asked, others know the same.
pub(super) const MAX_CATCH_UPS: usize = 64;
/// How long a catch-up may take.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How often one peer is served a catch-up.
pub(super) const SERVE_EVERY: Duration = Duration::from_secs(2);
/// Own announcements a second: half of what others accept, so none is lost to their budgets.
const OWN_RATE: f64 = 1.0;
const OWN_BURST: f64 = 8.0;
/// News from catch-ups passed on a second: two meshes that meet tell each other, without a storm.
const NEWS_RATE: f64 = 16.0;
const NEWS_BURST: f64 = 64.0;
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// How soon whom this node met is on disk: it may lose its power, and a crowd that comes at once is written once.
pub(super) const SAVE_SOON: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Outgoing connections beyond this share of their limit are closed when they carry nothing, quarters.
const CROWDED_QUARTERS: usize = 3;
/// Connections younger than this are not closed.
const SETTLED: Duration = Duration::from_secs(60);
/// Relays used at once when this node cannot be reached directly: one may go.
const MAX_RELAYS: usize = 2;
/// How often a peer that does not say that it relays is asked to.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// Failures in a row after which another relay is used, where there is one: some four seconds.
const MAX_FAILURES: u32 = 3;
/// How long goodbyes may take.
const GOODBYE: Duration = Duration::from_millis(300);

pub(super) fn own_budget(now: Instant) -> Budget {
    Budget::full(OWN_BURST, now)
}

pub(super) fn news_budget(now: Instant) -> Budget {
    Budget::full(NEWS_BURST, now)
}

impl EventLoop {
    pub(super) fn on_tick(&mut self, now: Instant) {
        self.announce(now);
        for (peer, addresses) in self.book.due(now) {
            self.dial_peer(peer, addresses);
        }
        self.pace(now);
        self.settle_for_doubted(now);
        self.next_catch_up();
        self.reserve_due(now);
        self.probe_due(now);
        self.close_strangers(now);
        if now >= self.due.sweep {
            self.due.sweep = now + SWEEP_EVERY;
            self.sweep(now);
            self.reweigh(now);
        }
        if now >= self.due.save {
            self.due.save = now + SAVE_EVERY;
            self.save();
        }
    }

    /// Sends this node's announcement if one waits and the budget allows. Without peers it keeps waiting.
    pub(super) fn announce(&mut self, now: Instant) {
        if self.news.own.said.home && !self.known_swarm(now).passes(self.news.own.said) {
            // Strangers came since: the node was told, and says it otherwise.
            self.news.own.waiting = false;
        }
        if !self.news.own.waiting || !self.news.own.budget.take(OWN_RATE, OWN_BURST, now) {
            return;
        }
        let own = &self.news.own;
        let bytes = own.renewal.as_ref().unwrap_or(&own.bytes).clone();
        match self.swarm.behaviour_mut().gossip.publish(self.local.topic.clone(), bytes) {
            Ok(_) | Err(PublishError::Duplicate) => self.news.own.waiting = false,
            // Newcomers ask for it; until then no peer would receive it.
            Err(PublishError::NoPeersSubscribedToTopic) => {}
            Err(error) => tracing::debug!(%error, "own announcement not sent yet"),
        }
    }

    pub(super) fn on_report(&mut self, report: Report) {
        match report {
            Report::Linked(stream) => self.incoming(stream.node(), Plane::Data, *stream),
            Report::Asked(from, asked) => match *asked {
                (Ask::CatchUp { .. }, reply) => self.serve_catch_up(from, reply),
                (Ask::Probe(address), reply) => self.serve_probe(from, &address, reply),
                (Ask::DialBack(contact), reply) => {
                    let dialed = self.dial_back(from, &contact.addresses[0], contact.node);
                    answer_probe(dialed, reply);
                }
                (Ask::Ping, reply) => {
                    tokio::spawn(async move {
                        let _ = reply.send(&Answer::Pong).await;
                    });
                }
                (ask, reply) => {
                    if !self.outbox.may(Event::Ask { from, ask, reply }) {
                        tracing::warn!(node = %from, "the node does not keep up, an ask is refused");
                    }
                }
            },
            Report::Probed { by, address, reached } => {
                let now = Instant::now();
                let prefix = self.met.get(&by).and_then(|met| self.governor.holder(met.node).prefix);
                if let (Some(false), Some(prefix)) = (reached, prefix) {
                    self.way.missed(&address, prefix, now);
                }
                self.way.answered();
                self.reweigh(now);
            }
            Report::CaughtUp { from, announcements } => {
                let now = Instant::now();
                for bytes in announcements {
                    self.on_news(bytes, from, now);
                }
                self.next_catch_up();
            }
        }
    }

    /// An announcement from a catch-up: told to the node, and to the mesh, which may not know it either.
    fn on_news(&mut self, bytes: Vec<u8>, from: PeerId, now: Instant) {
        let Verdict::Fresh(announcement) = self.weigh(&bytes, &from, now) else { return };
        if announcement.node() == self.local.node {
            return;
        }
        self.hear_of(&announcement, now);
        if self.passes(&announcement, now) && self.news.relayed_news.take(NEWS_RATE, NEWS_BURST, now) {
            // A peer that knows it drops it by its hash; one that does not will ask.
            let _ = self.swarm.behaviour_mut().gossip.publish(self.local.topic.clone(), bytes.clone());
        }
        self.outbox.may(Event::Announcement(announcement, bytes));
    }

    fn serve_catch_up(&mut self, from: scheduler::NodeId, reply: ReplyTo) {
        let now = Instant::now();
        let met = self.met.values_mut().find(|met| met.node == from);
        let often = met.is_none_or(|met| {
            let last = met.served.replace(now);
            last.is_some_and(|last| now.saturating_duration_since(last) < SERVE_EVERY)
        });
        let mut known = Vec::new();
        if !often {
            let swarm = self.known_swarm(now);
            let path = peer_id(from).and_then(|peer| self.swarm.behaviour().link.path(&peer));
            let path = path.unwrap_or(Path::Relayed);
            let may = |said| swarm.hands(said, path);
            let own = &self.news.own;
            let said = [Some(&own.bytes), own.renewal.as_ref()].into_iter().flatten();
            known.extend(said.filter(|bytes| !bytes.is_empty() && may(own.said)).cloned());
            known.extend(self.news.ledger.known(now, may));
        }
        let answer = Answer::announcements(known);
        tokio::spawn(async move {
            // An asker that went away asks another node.
            let _ = reply.send(&answer).await;
        });
    }

    /// Asks the next peer for what it knows, while few are being asked.
    pub(super) fn next_catch_up(&mut self) {
        while let Some(peer) = self.news.catch_up.pop_back() {
            if !self.met.contains_key(&peer) {
                continue;
            }
            let Ok(permit) = Arc::clone(&self.news.catching_up).try_acquire_owned() else {
                self.news.catch_up.push_back(peer);
                return;
            };
            let (reply, opened) = tokio::sync::oneshot::channel();
            self.swarm.behaviour_mut().link.open(peer, Lane::Control, reply);
            let ask = Ask::CatchUp { have: self.news.ledger.len(Instant::now()) as u32 };
            let reporter = self.reporter.clone();
            tokio::spawn(async move {
                let asked = async {
                    let stream = opened.await.ok()?.ok()?;
                    match control::call(stream, &ask).await {
                        Ok(Answer::Announcements(announcements)) => Some(announcements),
                        _ => None,
                    }
                };
                let heard = tokio::time::timeout(CATCH_UP, asked).await.ok().flatten();
                drop(permit);
                // The loop may have stopped.
                let announcements = heard.unwrap_or_default();
                let _ = reporter.send(Report::CaughtUp { from: peer, announcements }).await;
            });
        }
    }

    /// Listens through a relay from now on.
    pub(super) fn reserve(&mut self, address: Multiaddr, named: bool, now: Instant) {
        let relay = relay_of(&address);
        if self.reservations.iter().all(|reservation| relay_of(&reservation.address) != relay) {
            self.reservations.push(Reservation { address, listener: None, named, due: now, failures: 0 });
        }
    }

    /// A peer has begun to relay: who waits for it waits no longer.
    pub(super) fn relay_began(&mut self, peer: &PeerId, now: Instant) {
        let waiting = self.reservations.iter_mut().filter(|r| relay_of(&r.address) == Some(*peer));
        waiting.filter(|r| r.listener.is_none()).for_each(|reservation| reservation.due = now);
        self.seek_relays(now);
    }

    /// A node that is hidden listens through [`MAX_RELAYS`] peers, of as many networks as there are: one may go. One that does not
    /// answer makes room for another. Those that say that they relay come first. A peer that begins to relay when it is connected
    /// already says so minutes later, so the others are tried too.
    fn seek_relays(&mut self, now: Instant) {
        if self.way.told != Reachability::Private {
            return;
        }
        let relays = |peer: PeerId| self.met.get(&peer).is_some_and(|met| met.relays);
        let failed = |r: &Reservation| {
            let patience = if relay_of(&r.address).is_some_and(relays) { MAX_FAILURES } else { 1 };
            !r.named && r.listener.is_none() && r.failures >= patience
        };
        let lost: Vec<Multiaddr> =
            self.reservations.iter().filter(|r| failed(r)).map(|r| r.address.clone()).collect();
        let room = MAX_RELAYS.saturating_sub(self.reservations.len() - lost.len());
        let reserved = |peer: &PeerId| self.reservations.iter().any(|r| relay_of(&r.address) == Some(*peer));
        let prefix = |node| self.governor.holder(node).prefix;
        let networks: Vec<_> =
            self.met.iter().filter(|(peer, _)| reserved(peer)).map(|(_, met)| prefix(met.node)).collect();
        let due = |met: &Met| {
            met.relays || met.tried.is_none_or(|tried| now.saturating_duration_since(tried) > TRY_EVERY)
        };
        let mut found: Vec<((bool, bool, PeerId), Multiaddr)> = self
            .met
            .iter()
            .filter(|(peer, met)| met.told == Some(Path::Direct) && due(met) && !reserved(peer))
            .filter_map(|(peer, met)| {
                let known = self.book.addresses(peer).iter().find(|a| path::of_address(a) == Path::Direct)?;
                Some(((!met.relays, networks.contains(&prefix(met.node)), *peer), known.clone()))
            })
            .collect();
        found.sort();
        found.truncate(room);
        let gone = lost.len().min(found.len());
        self.reservations.retain(|r| !lost[..gone].contains(&r.address));
        for ((_, _, peer), address) in found {
            if let Some(met) = self.met.get_mut(&peer) {
                met.tried = Some(now);
            }
            self.reserve(address.with(Protocol::P2p(peer)).with(Protocol::P2pCircuit), false, now);
        }
    }

    /// Others connected to this node, or say that they could.
    pub(super) fn on_noticed(&mut self, noticed: &Noticed) {
        let now = Instant::now();
        match noticed {
            Noticed::Came { remote, local, strange } => self.way.came(remote, local, *strange, now),
            Noticed::Tested { address, server, reached } => {
                let server = self.met.get(server).and_then(|met| self.governor.holder(met.node).prefix);
                if let Some(prefix) = server {
                    self.way.tested(address, prefix, *reached, now);
                }
            }
        }
        self.reweigh(now);
    }

    /// Does what follows from what is known of the way in: this node says that it is at the addresses that are confirmed, relays
    /// when there is one, and looks for relays when there is none.
    pub(super) fn reweigh(&mut self, now: Instant) {
        for (address, confirmed) in self.way.verdicts(now) {
            let believed = self.swarm.external_addresses().any(|known| *known == address);
            match (believed, confirmed) {
                (false, true) => self.swarm.add_external_address(address),
                (true, false) => self.swarm.remove_external_address(&address),
                _ => {}
            }
        }
        let standing = self.way.standing(now);
        let relay = self.swarm.behaviour_mut().relay.as_mut();
        if relay.is_some_and(|relay| relay.offer(standing == Standing::Confirmed)) {
            tracing::info!(?standing, "whether this node relays has changed");
        }
        // A swarm of one host has no outside.
        if self.local.loopback_only {
            return;
        }
        self.judge(match standing {
            Standing::Confirmed => Reachability::Public,
            Standing::Hidden => Reachability::Private,
            Standing::Unknown => Reachability::Unknown,
        });
        self.seek_relays(now);
    }

    /// Asks a peer to have this node dialed, where that is due: each time the one that was asked longest ago.
    fn probe_due(&mut self, now: Instant) {
        let outside = self.way.outside;
        let able = |met: &&mut Met| met.told == Some(outside);
        let Some(met) = self.met.values_mut().filter(able).min_by_key(|met| met.probed) else { return };
        let Some(address) = self.way.due(now) else { return };
        met.probed = Some(now);
        let (Some(by), reporter) = (peer_id(met.node), self.reporter.clone()) else { return };
        let (reply, opened) = tokio::sync::oneshot::channel();
        self.swarm.behaviour_mut().link.open(by, Lane::Control, reply);
        tokio::spawn(async move {
            let reached = word(opened, Ask::Probe(address.to_string())).await;
            // The loop may have stopped.
            let _ = reporter.send(Report::Probed { by, address, reached }).await;
        });
    }

    /// Has a peer dialed by another one, which it may not know; without another one by this node. Only at an address of the
    /// network that it comes from: this node is not sent to third ones.
    fn serve_probe(&mut self, from: NodeId, address: &str, reply: ReplyTo) {
        let holder = self.governor.holder(from);
        let parsed = address.parse::<Multiaddr>().ok().filter(|address| {
            path::of_address(address) == self.way.outside
                && Some(path::prefix(address, address)) == holder.prefix
        });
        let spent = self.governor.spend(holder, Resource::Dials, 1);
        if parsed.is_none() || spent.is_err() {
            return answer_probe(None, reply);
        }
        let others: Vec<NodeId> = self
            .met
            .values()
            .filter(|met| met.told == Some(self.way.outside) && met.node != from)
            .map(|met| met.node)
            .filter(|node| self.governor.holder(*node).prefix != holder.prefix)
            .collect();
        // Without randomness the first one will do.
        let drawn = getrandom::u64().unwrap_or_default() as usize;
        let other = others.get(drawn % others.len().max(1)).copied();
        let Some(other) = other.and_then(peer_id) else {
            let dialed = self.dial_back(from, address, from);
            return answer_probe(dialed, reply);
        };
        let (asked, opened) = tokio::sync::oneshot::channel();
        self.swarm.behaviour_mut().link.open(other, Lane::Control, asked);
        let ask = Ask::DialBack(Contact { node: from, addresses: vec![address.to_owned()] });
        tokio::spawn(async move { say(word(opened, ask).await, reply).await });
    }

    fn reserve_due(&mut self, now: Instant) {
        for reservation in &mut self.reservations {
            if reservation.listener.is_some() || reservation.due > now {
                continue;
            }
            match self.swarm.listen_on(reservation.address.clone()) {
                Ok(listener) => reservation.listener = Some(listener),
                Err(error) => {
                    tracing::debug!(relay = %reservation.address, %error, "no reservation");
                    reservation.put_off(now);
                }
            }
        }
    }

    /// Closes connections of peers that do not say that they are of this swarm, and lets callers know.
    fn close_strangers(&mut self, now: Instant) {
        let silent = |met: &Met| met.told.is_none() && now.saturating_duration_since(met.since) > IDENTIFY;
        let strangers: Vec<PeerId> = self.met.iter().filter(|(_, m)| silent(m)).map(|(p, _)| *p).collect();
        for peer in strangers {
            self.turn_away(&peer, "it does not say which swarm it is of");
        }
    }

    /// Parts with a peer of another swarm.
    pub(super) fn turn_away(&mut self, peer: &PeerId, why: &str) {
        self.dial_failed(peer, why);
        self.book.foreign(peer, Instant::now());
        // Gone already is fine.
        let _ = self.swarm.disconnect_peer_id(*peer);
    }

    /// Parts with a peer of this swarm that speaks another version, and remembers it for who asks.
    pub(super) fn refuse_version(&mut self, peer: &PeerId, version: u32) {
        let ours = self.local.names.spoken;
        if let Some(node) = self.met.get(peer).map(|met| met.node) {
            if self.dialing.refused.iter().all(|refused| refused.node != node) {
                let update = if version < ours { "that node" } else { "this node" };
                tracing::warn!(
                    %node,
                    "a node of this swarm speaks version {version} of the protocols and this node speaks version {ours}: \
                     they cannot work together until {update} is updated"
                );
            }
            self.dialing.refused.retain(|refused| refused.node != node);
            if self.dialing.refused.len() == MAX_REFUSED {
                self.dialing.refused.pop_front();
            }
            self.dialing.refused.push_back(RefusedPeer { node, version });
        }
        self.turn_away(
            peer,
            &format!("it speaks version {version} of the protocols, this node speaks version {ours}"),
        );
    }

    fn sweep(&mut self, now: Instant) {
        let connected = self.met.values().filter(|met| met.told.is_some());
        connected.for_each(|met| self.news.ledger.hold(met.node, now));
        self.news.ledger.expire(now);
        // The mesh may have passed by what a neighbor said of itself: it is asked until it is heard.
        let unheard = |(peer, met): (&PeerId, &Met)| {
            let settled = met.told.is_some() && now.saturating_duration_since(met.since) > SWEEP_EVERY;
            (settled && !self.news.ledger.knows(met.node, now)).then_some(*peer)
        };
        let unheard: Vec<PeerId> = self.met.iter().filter_map(unheard).take(MAX_CATCH_UPS).collect();
        for peer in unheard {
            if self.news.catch_up.len() < MAX_CATCH_UPS && !self.news.catch_up.contains(&peer) {
                self.news.catch_up.push_back(peer);
            }
        }
        for connection in self.swarm.behaviour().link.superseded() {
            self.swarm.close_connection(connection);
        }
        let forgiven: Vec<PeerId> = self
            .met
            .iter_mut()
            .filter(|(_, met)| met.deaf_until.is_some_and(|until| until <= now))
            .map(|(peer, met)| {
                met.deaf_until = None;
                *peer
            })
            .collect();
        for peer in forgiven {
            self.swarm.behaviour_mut().gossip.set_application_score(&peer, 0.0);
        }
        let crowd = self.swarm.network_info().connection_counters().num_established_outgoing() as usize;
        let most = self.local.outgoing_limit * CROWDED_QUARTERS / 4;
        if crowd > most {
            self.let_go(crowd - most, now);
        }
    }

    /// Parts with up to `many` peers met a while ago, to whom this node opened a connection that carries nothing.
    fn let_go(&mut self, many: usize, now: Instant) {
        let settled: Vec<PeerId> = self
            .met
            .iter()
            .filter(|(_, met)| now.saturating_duration_since(met.since) > SETTLED)
            .map(|(peer, _)| *peer)
            .collect();
        let behaviour = self.swarm.behaviour();
        let mesh: Vec<PeerId> = behaviour.gossip.all_mesh_peers().copied().collect();
        let idle = settled.into_iter().filter(|peer| {
            let link = &behaviour.link;
            !mesh.contains(peer)
                && !self.book.is_bootstrap(peer)
                && link.is_dialed(peer)
                && link.is_idle(peer)
        });
        for peer in idle.take(many).collect::<Vec<_>>() {
            // Gone already is fine.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    /// Writes the cache in the background if it changed.
    pub(super) fn save(&mut self) {
        if let Some((path, lines)) = self.unsaved() {
            tokio::task::spawn_blocking(move || store(&path, &lines));
        }
    }

    fn unsaved(&mut self) -> Option<(std::path::PathBuf, String)> {
        let path = self.local.cache.clone()?;
        self.book.take_changes().map(|lines| (path, lines))
    }

    /// Closes everything in order: peers see the end at once instead of a silence.
    pub(super) async fn stop(&mut self) {
        self.met
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .iter()
            .for_each(|peer| self.book.met_now(peer, unix_now()));
        if let Some((path, lines)) = self.unsaved() {
            // Written by the time `shutdown` returns.
            let _ = tokio::task::spawn_blocking(move || store(&path, &lines)).await;
        }
        for peer in self.swarm.connected_peers().copied().collect::<Vec<_>>() {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let all_gone = async {
            while self.swarm.connected_peers().next().is_some() {
                futures::StreamExt::select_next_some(&mut self.swarm).await;
            }
        };
        // Who does not take the goodbye will notice the silence.
        let _ = tokio::time::timeout(GOODBYE, all_gone).await;
    }

    /// Notes whether others can reach this node.
    pub(super) fn judge(&mut self, reachability: Reachability) {
        if self.way.told != reachability {
            self.way.told = reachability;
            let mode = match reachability {
                Reachability::Private => libp2p::kad::Mode::Client,
                _ => libp2p::kad::Mode::Server,
            };
            self.swarm.behaviour_mut().kad.inner.set_mode(Some(mode));
            self.outbox.must(Event::Reachability { reachability });
        }
    }
}

/// The relay that a circuit leads through.
pub(super) fn relay_of(circuit: &Multiaddr) -> Option<PeerId> {
    circuit.iter().find_map(|part| match part {
        Protocol::P2p(relay) => Some(relay),
        _ => None,
    })
}

/// What a peer says when it was asked to dial, or to have dialed; `None` when it says nothing of the address.
async fn word(opened: tokio::sync::oneshot::Receiver<Result<Stream, NotOpened>>, ask: Ask) -> Option<bool> {
    let asked = async {
        let stream = opened.await.ok()?.ok()?;
        match control::call(stream, &ask).await {
            Ok(Answer::Pong) => Some(true),
            Ok(Answer::Refused { reason: Refusal::Failed, .. }) => Some(false),
            _ => None,
        }
    };
    tokio::time::timeout(standing::PROBE, asked).await.ok().flatten()
}

async fn say(reached: Option<bool>, reply: ReplyTo) {
    let answer = match reached {
        Some(true) => Answer::Pong,
        Some(false) => Answer::refused(Refusal::Failed, "no connection could be opened"),
        None => Answer::refused(Refusal::Busy, "not dialed: no address of yours, or too many dials lately"),
    };
    // An asker that went away asks another node.
    let _ = reply.send(&answer).await;
}

/// Answers when the dial is over; without one at once.
fn answer_probe(dialed: Option<tokio::sync::oneshot::Receiver<bool>>, reply: ReplyTo) {
    tokio::spawn(async move {
        let reached = match dialed {
            Some(dialed) => dialed.await.ok(),
            None => None,
        };
        say(reached, reply).await;
    });
}

impl Reservation {
    /// Tries again after one second, two, ... up to a minute.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.listener = None;
        self.failures = (self.failures + 1).min(7);
        self.due = now + Duration::from_millis(500 << self.failures);
    }
}

fn store(path: &std::path::Path, lines: &str) {
    if let Err(error) = peers::write_cache(path, lines) {
        tracing::warn!(path = %path.display(), %error, "known peers cannot be written");
    }
}
