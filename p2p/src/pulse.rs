//! Pings each connection as often as its use asks for, with libp2p's ping protocol.
//!
//! libp2p's own behaviour has one interval for all connections and for their whole life. At 5 s, which a session needs to
//! hear of a dead stage, a node that rests sends each of its peers more in pings than in anything else; at 30 s, which a node
//! that rests can afford, a stage that froze would be found half a minute later. Here the event loop sets the [`Pace`] of a connection,
//! and changes it when streams come and go.
//!
//! ```text
//! this end                      the other end
//! 32 random bytes  -- ping -->  the same bytes back, on the same substream, as often as they come
//! ```
//!
//! Limits: one substream each way for a connection; a newer one of the peer's takes the place of the older.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{AsyncReadExt, AsyncWriteExt, FutureExt};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::ping::PROTOCOL_NAME;
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, StreamProtocol, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Sleep;

/// Bytes of a ping.
const PING_BYTES: usize = 32;
/// Longer than any link in use; a slower one cannot carry a token anyway.
const TIMEOUT: Duration = Duration::from_secs(4);

/// How often a connection is pinged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// Every second: something runs over it, or it is doubted.
    InUse,
    /// Every 5 s: the peer was met a moment ago, and how far it is is hardly known, or others reach this node through it.
    New,
    /// Every 30 s: nothing runs over it, and that the peer is there and how far it is still counts.
    Resting,
    /// Every minute: another connection to the same peer is pinged more often.
    Spare,
}

impl Pace {
    fn interval(self) -> Duration {
        Duration::from_secs(match self {
            Self::InUse => 1,
            Self::New => 5,
            Self::Resting => 30,
            Self::Spare => 60,
        })
    }
}

/// A ping was answered, after this long, or was not: why.
pub(crate) type Pinged = io::Result<Duration>;

/// What became of a ping over a connection.
#[derive(Debug)]
pub(crate) struct Event {
    pub peer: PeerId,
    pub connection: ConnectionId,
    pub result: Pinged,
}

/// Pings of all connections.
#[derive(Default)]
pub(crate) struct Behaviour {
    paces: HashMap<ConnectionId, Pace>,
    /// At most one change for a connection and tick, and one event for a ping.
    queue: VecDeque<ToSwarm<Event, Pace>>,
    waker: Option<Waker>,
}

impl Behaviour {
    /// Pings this connection to `peer` so often from now on.
    pub fn set(&mut self, peer: PeerId, connection: ConnectionId, pace: Pace) {
        let Some(known) = self.paces.get_mut(&connection).filter(|known| **known != pace) else { return };
        *known = pace;
        let handler = NotifyHandler::One(connection);
        self.queue.push_back(ToSwarm::NotifyHandler { peer_id: peer, handler, event: pace });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(Pace::New))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(Pace::New))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(made) => {
                self.paces.insert(made.connection_id, Pace::New);
            }
            FromSwarm::ConnectionClosed(closed) => {
                self.paces.remove(&closed.connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        result: THandlerOutEvent<Self>,
    ) {
        self.queue.push_back(ToSwarm::GenerateEvent(Event { peer, connection, result }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        if let Some(event) = self.queue.pop_front() {
            return Poll::Ready(event);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Where the next ping stands.
enum Outbound {
    /// There is no substream.
    Closed,
    /// One is being negotiated.
    Opening,
    /// It waits for the next ping.
    Open(libp2p::Stream),
    /// A ping is under way.
    Pinging(BoxFuture<'static, io::Result<(libp2p::Stream, Duration)>>),
    /// The peer does not speak the protocol.
    Unsupported,
}

/// Pings one connection and answers its pings.
pub(crate) struct Handler {
    pace: Pace,
    outbound: Outbound,
    /// Answers one ping of the peer after the other.
    inbound: Option<BoxFuture<'static, io::Result<libp2p::Stream>>>,
    /// When the last ping began.
    last: Option<Instant>,
    /// Until the next one.
    timer: Option<Pin<Box<Sleep>>>,
    /// What a substream failed with that was not opened.
    failed: Option<io::Error>,
}

impl Handler {
    fn new(pace: Pace) -> Self {
        Self { pace, outbound: Outbound::Closed, inbound: None, last: None, timer: None, failed: None }
    }

    /// Whether a ping is due; if not, the task is woken when it is.
    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        let (interval, Some(last)) = (self.pace.interval(), self.last) else { return true };
        let timer = self.timer.get_or_insert_with(|| {
            let at = tokio::time::Instant::from_std(last + interval);
            Box::pin(tokio::time::sleep_until(at))
        });
        timer.as_mut().poll(cx).is_ready()
    }

    fn begin(&mut self) {
        (self.last, self.timer) = (Some(Instant::now()), None);
    }
}

/// One ping over `stream`, and how long its answer took.
async fn ping(mut stream: libp2p::Stream) -> io::Result<(libp2p::Stream, Duration)> {
    let mut sent = [0; PING_BYTES];
    getrandom::fill(&mut sent).map_err(io::Error::other)?;
    let began = Instant::now();
    let exchange = async {
        stream.write_all(&sent).await?;
        stream.flush().await?;
        let mut heard = [0; PING_BYTES];
        stream.read_exact(&mut heard).await?;
        let took = began.elapsed();
        match heard == sent {
            true => Ok((stream, took)),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes came back")),
        }
    };
    tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Waits for a ping of the peer and answers it.
async fn answer(mut stream: libp2p::Stream) -> io::Result<libp2p::Stream> {
    let mut heard = [0; PING_BYTES];
    stream.read_exact(&mut heard).await?;
    stream.write_all(&heard).await?;
    stream.flush().await?;
    Ok(stream)
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Pace;
    type ToBehaviour = Pinged;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL_NAME), ())
    }

    fn on_behaviour_event(&mut self, pace: Pace) {
        (self.pace, self.timer) = (pace, None);
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), Pinged>> {
        if let Some(Poll::Ready(answered)) = self.inbound.as_mut().map(|answering| answering.poll_unpin(cx)) {
            self.inbound = answered.ok().map(|stream| answer(stream).boxed());
            // One at a time, however many wait: others have their turn between.
            cx.waker().wake_by_ref();
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(Err(error)));
        }
        loop {
            match std::mem::replace(&mut self.outbound, Outbound::Closed) {
                Outbound::Pinging(mut pinging) => match pinging.poll_unpin(cx) {
                    Poll::Pending => self.outbound = Outbound::Pinging(pinging),
                    Poll::Ready(pinged) => {
                        let result = pinged.map(|(stream, took)| {
                            self.outbound = Outbound::Open(stream);
                            took
                        });
                        return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(result));
                    }
                },
                Outbound::Open(stream) if self.is_due(cx) => {
                    self.begin();
                    self.outbound = Outbound::Pinging(ping(stream).boxed());
                    continue;
                }
                Outbound::Closed if self.is_due(cx) => {
                    self.begin();
                    self.outbound = Outbound::Opening;
                    let protocol = self.listen_protocol().with_timeout(TIMEOUT);
                    return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
                }
                other => self.outbound = other,
            }
            return Poll::Pending;
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: mut stream, ..
            }) => {
                stream.ignore_for_keep_alive();
                self.inbound = Some(answer(stream).boxed());
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: mut stream,
                ..
            }) => {
                stream.ignore_for_keep_alive();
                self.outbound = Outbound::Pinging(ping(stream).boxed());
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, .. }) => {
                self.outbound = Outbound::Closed;
                match error {
                    StreamUpgradeError::NegotiationFailed => self.outbound = Outbound::Unsupported,
                    StreamUpgradeError::Timeout => self.failed = Some(io::ErrorKind::TimedOut.into()),
                    StreamUpgradeError::Io(error) => self.failed = Some(error),
                    StreamUpgradeError::Apply(never) => match never {},
                }
            }
            _ => {}
        }
    }
}
