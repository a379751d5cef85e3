//! Connections that come in and have not proved who they are.
//!
//! A socket costs its opener nothing, and until its handshake is over there is no name to hold it against. So the place
//! where handshakes wait has three rules beside its size, which is the governor's:
//!
//! * A handshake, from the accepted socket to the proof of the swarm's key, takes at most [`HANDSHAKE`].
//! * At a limit a newcomer does not wait: the oldest handshake makes room, at the limit of a prefix the oldest of that
//!   prefix, at the limit of the node the oldest of the prefix that has most of them. Who opens many sockets closes its own.
//! * QUIC has places of its own.
//!
//! It wraps the transport, below the swarm: one that must go is dropped, and its socket closed, whatever it waits for.
//! Limits: a prefix that opens sockets faster than an honest handshake takes, divided by its places, keeps its own
//! neighbors out; who shares a prefix with an attacker is told from it by nothing yet.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Transport};
use scheduler::governor::{Holder, Prefix, Resource, Scope};
use tokio::sync::oneshot;

use crate::governor::{Governor, Permit};
use crate::path;

/// How long a handshake of a connection that comes in may take: six round trips of half a second.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(3);
/// Sockets refused in one turn before others get theirs.
const MAX_REFUSALS: usize = 64;

type Output = (PeerId, StreamMuxerBox);
type Inner = Boxed<Output>;

/// A transport whose incoming handshakes wait here; see the [module](self).
pub(crate) struct WaitingRoom {
    inner: Inner,
    places: Places,
}

impl WaitingRoom {
    /// `inner` under `governor`.
    pub fn new(inner: Inner, governor: Governor) -> Self {
        Self { inner, places: Places { governor, taken: Arc::default() } }
    }
}

/// Everything that waits, the oldest first.
#[derive(Default, Debug)]
struct Taken {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    prefix: Prefix,
    resource: Resource,
    /// Dropped, it ends the handshake.
    _go: oneshot::Sender<()>,
    _permit: Permit,
}

#[derive(Clone, Debug)]
struct Places {
    governor: Governor,
    taken: Arc<Mutex<Taken>>,
}

/// A place; dropping it leaves it.
#[derive(Debug)]
struct Place {
    places: Places,
    number: u64,
    /// Ends when the place was given to another.
    gone: oneshot::Receiver<()>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.places.taken().waiting.remove(&self.number);
        // The permit is given back without the lock.
        drop(left);
    }
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a handshake from `prefix`, for which others may have to go; none where there are no places at all.
    fn enter(&self, prefix: Prefix, resource: Resource) -> Option<Place> {
        let holder = Holder { prefix: Some(prefix), peer: None };
        let mut taken = self.taken();
        let permit = loop {
            match self.governor.take(holder, resource, 1) {
                Ok(permit) => break permit,
                Err(refused) => {
                    let number = taken.displaced(refused.scope, resource)?;
                    let gone = taken.waiting.remove(&number)?;
                    tracing::debug!(prefix = %gone.prefix, %refused, "the oldest handshake makes room");
                }
            }
        };
        let (go, gone) = oneshot::channel();
        let number = taken.next;
        taken.next += 1;
        taken.waiting.insert(number, Waiting { prefix, resource, _go: go, _permit: permit });
        Some(Place { places: self.clone(), number, gone })
    }
}

impl Taken {
    /// Which handshake makes room at a limit.
    fn displaced(&self, scope: Scope, resource: Resource) -> Option<u64> {
        let of = |prefix: Prefix| {
            move |(_, waiting): &(&u64, &Waiting)| (waiting.resource, waiting.prefix) == (resource, prefix)
        };
        let fullest = match scope {
            Scope::Prefix(prefix) => prefix,
            Scope::Node | Scope::Peer(_) => {
                let mut counts: BTreeMap<Prefix, (usize, std::cmp::Reverse<u64>)> = BTreeMap::new();
                for (number, waiting) in self.waiting.iter().filter(|(_, w)| w.resource == resource) {
                    // Of two that are as full, the one whose oldest is older.
                    counts.entry(waiting.prefix).or_insert((0, std::cmp::Reverse(*number))).0 += 1;
                }
                counts.into_iter().max_by_key(|(_, count)| *count)?.0
            }
        };
        self.waiting.iter().find(of(fullest)).map(|(number, _)| *number)
    }
}

/// QUIC has places of its own.
fn resource(local: &Multiaddr) -> Resource {
    let quic = local.iter().any(|part| matches!(part, Protocol::Quic | Protocol::QuicV1))
        && !local.iter().any(|part| part == Protocol::P2pCircuit);
    if quic { Resource::QuicHandshakes } else { Resource::Handshakes }
}

impl Transport for WaitingRoom {
    type Output = Output;
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, io::Result<Output>>;
    type Dial = <Inner as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        self.inner.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        for _ in 0..MAX_REFUSALS {
            let event = match Pin::new(&mut self.inner).poll(cx) {
                Poll::Ready(event) => event,
                Poll::Pending => return Poll::Pending,
            };
            let place = match &event {
                TransportEvent::Incoming { local_addr, send_back_addr, .. } => {
                    let prefix = path::prefix(send_back_addr, local_addr);
                    self.places.enter(prefix, resource(local_addr))
                }
                _ => return Poll::Ready(event.map_upgrade(|upgrade| upgrade.boxed())),
            };
            if let Some(place) = place {
                return Poll::Ready(event.map_upgrade(|upgrade| wait(upgrade, place).boxed()));
            }
            // Dropping the event closes the socket.
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A handshake that ends in time, or when its place is given to another.
async fn wait(upgrade: impl Future<Output = io::Result<Output>>, mut place: Place) -> io::Result<Output> {
    tokio::select! {
        upgraded = upgrade => upgraded,
        _ = &mut place.gone => Err(io::Error::other("the handshake made room for a newer one")),
        () = tokio::time::sleep(HANDSHAKE) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use scheduler::governor::Limits;

    use super::*;

    fn places(node: u64, prefix: u64) -> Places {
        let limits = Limits::default().set(Resource::Handshakes, [node, prefix, u64::MAX]);
        Places { governor: Governor::new(limits), taken: Arc::default() }
    }

    fn from(number: u8) -> Prefix {
        Prefix::V4([127, 0, number])
    }

    fn is_gone(place: &mut Place) -> bool {
        place.gone.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn enter(places: &Places, prefix: u8) -> Place {
        places.enter(from(prefix), Resource::Handshakes).expect("there is always a place")
    }

    #[test]
    fn a_prefix_that_is_full_makes_room_for_itself() {
        let places = places(8, 2);
        let (mut other, mut first, mut second) = (enter(&places, 2), enter(&places, 1), enter(&places, 1));
        let mut third = enter(&places, 1);
        assert!(is_gone(&mut first), "the oldest of its own");
        assert!(![&mut other, &mut second, &mut third].into_iter().any(is_gone));
        drop(first);
        assert_eq!(places.governor.used(Resource::Handshakes, Scope::Node), 3, "its place is counted once");
        let quic = places.enter(from(1), Resource::QuicHandshakes).unwrap();
        assert!(!is_gone(&mut second), "QUIC has places of its own");
        drop((other, second, third, quic));
        assert_eq!(places.governor.used(Resource::Handshakes, Scope::Node), 0);
        assert!(places.taken().waiting.is_empty());
    }

    #[test]
    fn a_full_node_takes_from_the_fullest_prefix() {
        let places = places(6, 4);
        let mut crowd: Vec<Place> = [1, 2, 2, 2, 3, 3].map(|prefix| enter(&places, prefix)).into();
        let mut newcomer = enter(&places, 9);
        assert!(is_gone(&mut crowd[1]) && !is_gone(&mut crowd[0]));
        // Many prefixes at once: a single newcomer stays as long as any of them has two.
        for _ in 0..4 {
            crowd.push(enter(&places, 4));
            assert!(!is_gone(&mut newcomer));
        }
        assert_eq!(places.governor.used(Resource::Handshakes, Scope::Node), 6);
    }

    #[test]
    fn without_any_place_a_newcomer_is_refused() {
        assert!(places(0, 0).enter(from(1), Resource::Handshakes).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_one_is_given_up_in_time() {
        let places = places(4, 4);
        let started = tokio::time::Instant::now();
        let silent = wait(futures::future::pending(), enter(&places, 1)).await;
        assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), HANDSHAKE);
        assert_eq!(places.governor.used(Resource::Handshakes, Scope::Node), 0);
    }
}
