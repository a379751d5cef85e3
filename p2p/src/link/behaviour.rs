//! The libp2p side of links: which connections a peer has, opening substreams on the best of them, taking in what it
//! opens here.
//!
//! Written rather than taken from a crate because three things matter here that the general-purpose one leaves open:
//! *which* connection a stream runs on (never a relayed one beside a direct one), that a stream that cannot be taken
//! is refused rather than silently lost, and that nothing is kept of a connection that closed.
//!
//! A connection may carry one way only, and neither end is told. Two things say so. What this node asked over it is not
//! answered: then it is *doubted*, and streams run on any other until a ping over it is answered. And the peer, which has
//! doubts of its own, opens its streams on a newer connection and none on this one any more: then it is *left*, and what
//! this node sends follows the peer.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    AddressChange, ConnectionClosed, ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent,
    ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, StreamProtocol, StreamUpgradeError,
    SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use scheduler::NodeId;
use scheduler::governor::Resource;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Guard, Seat, Stream, Traffic};
use crate::config::Names;
use crate::error::HopError;
use crate::governor::Governor;
use crate::identity;
use crate::path::{self, Path};
use crate::plane::{Lane, Plane};
use crate::pulse::Pace;

/// How long a connection is pinged often to learn how far its peer is.
const NEW: Duration = Duration::from_secs(30);
/// Opens waiting on one connection; more are refused at once. A connection negotiates them side by side, so this many
/// waiting means that it is stuck.
const MAX_OPENING: usize = 32;

/// Where the answer to an open goes.
pub(crate) type Opened = oneshot::Sender<Result<Stream, NotOpened>>;

/// Why a stream was not opened.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// As many as there may be are open, or being opened: one may end soon.
    Full,
    /// Trying again is of no use.
    Failed(HopError),
}

/// Room for streams that this node opens at one peer. Asks have their own: they are short, and who has too many streams must still be
/// able to give one back.
#[derive(Debug)]
struct Room {
    asks: Arc<Semaphore>,
    planes: Arc<Semaphore>,
}

impl Room {
    fn new(streams: usize) -> Self {
        Self {
            asks: Arc::new(Semaphore::new(streams.div_ceil(2))),
            planes: Arc::new(Semaphore::new(streams)),
        }
    }

    fn take(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let room = if lane == Lane::Control { &self.asks } else { &self.planes };
        room.clone().try_acquire_owned().ok()
    }
}

/// A peer opened a stream here.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub lane: Lane,
    pub stream: Stream,
}

/// What is known of one connection.
#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    path: Path,
    quic: bool,
    dialed: bool,
    /// The address at its other end, where it is direct.
    remote: Option<IpAddr>,
    /// What was asked over it was not answered, and no ping since.
    doubted: bool,
    /// When it was made.
    made: Instant,
    /// The same, until the peer has introduced itself on it: another process of it may be found there.
    fresh: Option<Instant>,
    /// The number of the last stream that the peer opened on it, counted over all its connections.
    opened: u64,
    /// Streams on it.
    live: Arc<AtomicUsize>,
}

impl Connection {
    /// Counts one more stream on it, for as long as what this gives is kept.
    fn guard(&self, traffic: &Arc<Traffic>, lane: Lane, seat: Seat) -> Guard {
        self.live.fetch_add(1, Ordering::Relaxed);
        Guard {
            traffic: traffic.clone(),
            connection: self.id,
            remote: self.remote,
            live: self.live.clone(),
            frames: lane == Lane::Plane(Plane::Data),
            _seat: seat,
        }
    }
}

#[derive(Debug)]
struct Remote {
    node: NodeId,
    connections: Vec<Connection>,
    traffic: Arc<Traffic>,
    room: Room,
    /// Streams that the peer has opened.
    opened: u64,
}

impl Remote {
    /// Those that seem to carry both ways first, then short paths, then TCP, then age: connection numbers count up.
    fn best(&self) -> Option<&Connection> {
        self.connections.iter().min_by_key(|c| (c.doubted, self.is_left(c), c.path, c.quic, c.id))
    }

    /// Whether the peer opens its streams on a connection newer than this one.
    fn is_left(&self, connection: &Connection) -> bool {
        self.connections.iter().any(|other| other.id > connection.id && other.opened > connection.opened)
    }
}

/// The address of a host, where one is named by its number.
fn remote_of(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    })
}

/// Streams of every plane with every peer.
pub(crate) struct Behaviour {
    names: Arc<Names>,
    governor: Governor,
    streams_per_peer: usize,
    remotes: HashMap<PeerId, Remote>,
    /// Drained by the swarm whenever it polls; grows by one per command or event handled, never by itself.
    queue: VecDeque<ToSwarm<Incoming, Open>>,
    waker: Option<Waker>,
}

impl Behaviour {
    pub fn new(names: Arc<Names>, governor: Governor, streams_per_peer: usize) -> Self {
        let (remotes, queue) = (HashMap::new(), VecDeque::new());
        Self { names, governor, streams_per_peer, remotes, queue, waker: None }
    }

    /// Opens a stream on the best connection to `peer`; the answer goes to `reply`.
    pub fn open(&mut self, peer: PeerId, lane: Lane, reply: Opened) {
        // A receiver that went away wants no answer.
        let refuse = |reply: Opened, why| drop(reply.send(Err(why)));
        let closed = NotOpened::Failed(HopError::Closed);
        let Some(remote) = self.remotes.get(&peer) else { return refuse(reply, closed) };
        let Some(connection) = remote.best() else { return refuse(reply, closed) };
        let Some(permit) = remote.room.take(lane) else { return refuse(reply, NotOpened::Full) };
        let guard = connection.guard(&remote.traffic, lane, Seat::Own { _permit: permit });
        let (node, path) = (remote.node, connection.path);
        let event = Open { protocol: self.protocol(lane), node, path, guard, reply };
        let handler = NotifyHandler::One(connection.id);
        self.queue.push_back(ToSwarm::NotifyHandler { peer_id: peer, handler, event });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Over what `peer` is reached now, `None` when it is not.
    pub fn path(&self, peer: &PeerId) -> Option<Path> {
        self.remotes.get(peer)?.best().map(|connection| connection.path)
    }

    /// What was asked over this connection is not answered.
    pub fn doubt(&mut self, peer: &PeerId, connection: ConnectionId) {
        let remote = self.remotes.get_mut(peer);
        let found = remote.and_then(|remote| remote.connections.iter_mut().find(|c| c.id == connection));
        found.into_iter().for_each(|c| c.doubted = true);
    }

    /// This connection has just carried something there and an answer back. Whether it was doubted.
    pub fn trust(&mut self, peer: &PeerId, connection: ConnectionId) -> bool {
        let remote = self.remotes.get_mut(peer);
        let found = remote.and_then(|remote| remote.connections.iter_mut().find(|c| c.id == connection));
        found.is_some_and(|c| std::mem::take(&mut c.doubted))
    }

    /// The peer has introduced itself on this connection.
    pub fn introduce(&mut self, peer: &PeerId, connection: ConnectionId) {
        let remote = self.remotes.get_mut(peer);
        let found = remote.and_then(|remote| remote.connections.iter_mut().find(|c| c.id == connection));
        found.into_iter().for_each(|c| c.fresh = None);
    }

    /// Whether streams to `peer` would take a connection that it has not introduced itself on, and was to for no longer than `patience`.
    pub fn is_fresh(&self, peer: &PeerId, patience: Duration) -> bool {
        let best = self.remotes.get(peer).and_then(Remote::best);
        best.and_then(|best| best.fresh).is_some_and(|since| since.elapsed() < patience)
    }

    /// Whether no connection to `peer` is known to carry both ways.
    pub fn is_doubted(&self, peer: &PeerId) -> bool {
        self.remotes.get(peer).and_then(Remote::best).is_some_and(|best| best.doubted)
    }

    /// The bytes that crossed streams with `peer`, in and out.
    pub fn traffic(&self, peer: &PeerId) -> (u64, u64) {
        self.remotes.get(peer).map_or((0, 0), |remote| {
            let traffic = &remote.traffic;
            (traffic.bytes_in.load(Ordering::Relaxed), traffic.bytes_out.load(Ordering::Relaxed))
        })
    }

    /// The frames that went to `peer` on streams that take no other link.
    pub fn frames(&self, peer: &PeerId) -> u64 {
        self.remotes.get(peer).map_or(0, |remote| remote.traffic.frames_out.load(Ordering::Relaxed))
    }

    /// Whether no stream runs to or from `peer`.
    pub fn is_idle(&self, peer: &PeerId) -> bool {
        let connections = self.remotes.get(peer).map_or(&[][..], |remote| &remote.connections);
        connections.iter().all(|connection| connection.live.load(Ordering::Relaxed) == 0)
    }

    /// Whether this connection is QUIC.
    pub fn is_quic(&self, peer: &PeerId, connection: ConnectionId) -> bool {
        let remote = self.remotes.get(peer);
        remote.is_some_and(|remote| remote.connections.iter().any(|c| c.id == connection && c.quic))
    }

    /// How often each connection is to be pinged, and whether its peer is in use. A peer over one of whose connections something
    /// runs, or one of which is doubted, is watched on all of them.
    pub fn paces(&self, now: Instant) -> impl Iterator<Item = (PeerId, ConnectionId, Pace)> {
        self.remotes.iter().flat_map(move |(peer, remote)| {
            let used = |c: &Connection| c.doubted || c.live.load(Ordering::Relaxed) > 0;
            let in_use = remote.connections.iter().any(used);
            let best = remote.best().map(|best| best.id);
            remote.connections.iter().map(move |connection| {
                let pace = match () {
                    () if in_use => Pace::InUse,
                    () if best != Some(connection.id) => Pace::Spare,
                    () if now.saturating_duration_since(connection.made) < NEW => Pace::New,
                    () => Pace::Resting,
                };
                (*peer, connection.id, pace)
            })
        })
    }

    /// Whether this node opened a connection to `peer`.
    pub fn is_dialed(&self, peer: &PeerId) -> bool {
        self.remotes.get(peer).is_some_and(|remote| remote.connections.iter().any(|c| c.dialed))
    }

    /// Whether every connection to `peer` is QUIC: one that says nothing when the process at its other end dies.
    pub fn is_quic_only(&self, peer: &PeerId) -> bool {
        self.remotes.get(peer).is_some_and(|remote| remote.connections.iter().all(|c| c.quic))
    }

    /// Relayed connections to peers that have a better one, with no stream left on them: to be closed.
    pub fn superseded(&self) -> Vec<ConnectionId> {
        let mut idle = Vec::new();
        for remote in self.remotes.values().filter(|remote| remote.connections.len() > 1) {
            if remote.best().is_some_and(|best| best.path != Path::Relayed) {
                let relayed = remote.connections.iter().filter(|c| c.path == Path::Relayed);
                idle.extend(relayed.filter(|c| c.live.load(Ordering::Relaxed) == 0).map(|c| c.id));
            }
        }
        idle
    }

    fn protocol(&self, lane: Lane) -> StreamProtocol {
        match lane {
            Lane::Control => self.names.control.clone(),
            Lane::Plane(plane) => self.names.planes[plane as usize].clone(),
            Lane::Linked => self.names.linked.clone(),
            Lane::Links => self.names.links.clone(),
        }
    }

    fn handler(&self) -> Handler {
        let own = [Lane::Control, Lane::Linked, Lane::Links];
        let mut lanes = own.map(|lane| (lane, self.protocol(lane))).to_vec();
        lanes.extend(Plane::ALL.map(|plane| (Lane::Plane(plane), self.protocol(Lane::Plane(plane)))));
        Handler { lanes: lanes.into(), wanted: VecDeque::new(), opening: 0, arrived: VecDeque::new() }
    }

    fn connected(&mut self, peer: PeerId, id: ConnectionId, endpoint: &ConnectedPoint) {
        let Some(node) = identity::node_id(&peer) else { return };
        let remote = self.remotes.entry(peer).or_insert_with(|| Remote {
            node,
            connections: Vec::new(),
            traffic: Arc::default(),
            room: Room::new(self.streams_per_peer),
            opened: 0,
        });
        let quic = endpoint.get_remote_address().iter().any(|part| part == Protocol::QuicV1);
        let path = path::classify(endpoint);
        let (dialed, now) = (endpoint.is_dialer(), Instant::now());
        remote.connections.push(Connection {
            id,
            path,
            quic,
            dialed,
            remote: remote_of(endpoint.get_remote_address()).filter(|_| path != Path::Relayed),
            doubted: false,
            made: now,
            fresh: Some(now),
            opened: 0,
            live: Arc::default(),
        });
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Incoming;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) => self.connected(peer_id, connection_id, endpoint),
            FromSwarm::AddressChange(AddressChange { peer_id, connection_id, new, .. }) => {
                if let Some(remote) = self.remotes.get_mut(&peer_id) {
                    let moved = remote.connections.iter_mut().filter(|c| c.id == connection_id);
                    moved.for_each(|c| {
                        c.path = path::classify(new);
                        let remote = remote_of(new.get_remote_address());
                        c.remote = remote.filter(|_| c.path != Path::Relayed);
                    });
                }
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                if let Some(remote) = self.remotes.get_mut(&peer_id) {
                    remote.connections.retain(|c| c.id != connection_id);
                    if remote.connections.is_empty() {
                        self.remotes.remove(&peer_id);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        let Some(remote) = self.remotes.get_mut(&peer) else { return };
        let Some(connection) = remote.connections.iter_mut().find(|c| c.id == connection) else { return };
        remote.opened += 1;
        connection.opened = remote.opened;
        let (lane, io) = event;
        let resource = if lane == Lane::Control { Resource::Asks } else { Resource::Streams };
        let permit = match self.governor.take_for(remote.node, resource, 1) {
            Ok(permit) => permit,
            Err(refused) => {
                // Dropping the substream resets it: the peer sees its stream closed.
                tracing::debug!(node = %remote.node, %refused, "a stream is refused");
                return;
            }
        };
        let guard = connection.guard(&remote.traffic, lane, Seat::Others { _permit: permit });
        let stream = Stream::new(remote.node, connection.path, io, guard);
        self.queue.push_back(ToSwarm::GenerateEvent(Incoming { lane, stream }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.queue.pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A stream to open on one connection.
#[derive(Debug)]
pub(crate) struct Open {
    protocol: StreamProtocol,
    node: NodeId,
    path: Path,
    guard: Guard,
    reply: Opened,
}

impl Open {
    /// Tells the waiting caller, which may be gone.
    fn finish(self, opened: Result<libp2p::Stream, NotOpened>) {
        let Self { node, path, guard, reply, .. } = self;
        drop(reply.send(opened.map(|io| Stream::new(node, path, io, guard))));
    }
}

/// Negotiates substreams on one connection.
pub(crate) struct Handler {
    lanes: Arc<[(Lane, StreamProtocol)]>,
    /// At most [`MAX_OPENING`]; beyond, an open is refused.
    wanted: VecDeque<Open>,
    /// Negotiations under way.
    opening: usize,
    /// Taken over by the behaviour at the next poll.
    arrived: VecDeque<(Lane, libp2p::Stream)>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = (Lane, libp2p::Stream);
    type InboundProtocol = Take;
    type OutboundProtocol = Give;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Open;

    fn listen_protocol(&self) -> SubstreamProtocol<Take> {
        SubstreamProtocol::new(Take(self.lanes.clone()), ())
    }

    /// Peers of one swarm stay connected; the event loop closes whom it does not want.
    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn on_behaviour_event(&mut self, open: Open) {
        if self.wanted.len() + self.opening >= MAX_OPENING {
            return open.finish(Err(NotOpened::Full));
        }
        self.wanted.push_back(open);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Give, Open, Self::ToBehaviour>> {
        if let Some(arrived) = self.arrived.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(arrived));
        }
        if let Some(open) = self.wanted.pop_front() {
            self.opening += 1;
            let protocol = SubstreamProtocol::new(Give(open.protocol.clone()), open);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Take, Give, (), Open>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                self.arrived.push_back(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                self.opening = self.opening.saturating_sub(1);
                info.finish(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                self.opening = self.opening.saturating_sub(1);
                info.finish(Err(NotOpened::Failed(match error {
                    StreamUpgradeError::Timeout => HopError::Timeout,
                    StreamUpgradeError::NegotiationFailed => {
                        HopError::Refused("it does not speak this protocol".into())
                    }
                    StreamUpgradeError::Io(_) => HopError::Closed,
                    StreamUpgradeError::Apply(never) => match never {},
                })));
            }
            _ => {}
        }
    }
}

/// Takes a stream of any lane.
#[derive(Clone, Debug)]
pub(crate) struct Take(Arc<[(Lane, StreamProtocol)]>);

impl UpgradeInfo for Take {
    type Info = Named;
    type InfoIter = Vec<Named>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.iter().map(|(lane, name)| Named(*lane, name.clone())).collect()
    }
}

impl InboundUpgrade<libp2p::Stream> for Take {
    type Output = (Lane, libp2p::Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, io: libp2p::Stream, Named(lane, _): Named) -> Self::Future {
        ready(Ok((lane, io)))
    }
}

/// A lane with its protocol name.
#[derive(Clone, Debug)]
pub(crate) struct Named(Lane, StreamProtocol);

impl AsRef<str> for Named {
    fn as_ref(&self) -> &str {
        self.1.as_ref()
    }
}

/// Opens a stream of one lane.
#[derive(Clone, Debug)]
pub(crate) struct Give(StreamProtocol);

impl UpgradeInfo for Give {
    type Info = StreamProtocol;
    type InfoIter = [StreamProtocol; 1];

    fn protocol_info(&self) -> Self::InfoIter {
        [self.0.clone()]
    }
}

impl OutboundUpgrade<libp2p::Stream> for Give {
    type Output = libp2p::Stream;
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, io: libp2p::Stream, _: Self::Info) -> Self::Future {
        ready(Ok(io))
    }
}
