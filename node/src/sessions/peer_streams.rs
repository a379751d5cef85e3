//! The ways out of a session: one stream to each neighbor it has something for.
//!
//! An outbox is a task that owns a stream and a queue in front of it. It outlives its use: what is queued when it is
//! closed is still sent. So it may break when it is not needed any more, and the neighbor may be fine: the one it was
//! closed for has ended the session, or was started again and is reached by another stream. Therefore a [`Loss`] names the
//! outbox it is about, and only that of the outbox in use says anything of the neighbor.
//!
//! A new epoch gets new streams. What an old one still holds has no effect any more, and at its other end may be a session
//! that is over: a neighbor that was left and came back reads it no further.
//!
//! A stream stays on the connection that it was opened on. When that carries one way only, the end that notices reaches the
//! other over a new connection and *turns*: its next frame opens a new stream. The other end sees a second stream of the epoch
//! begin and turns as well, because neither knows which of the two directions is cut.
//!
//! Limits: [`MAX_QUEUED`] frames to one neighbor; who lets it fill up is treated as gone.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::{Duration, Instant},
};

use bytes::Bytes;
use p2p::{
    HopError, Network, Plane,
    wire::{
        control::Contact,
        frame::{Header, Hello},
    },
};
use scheduler::{NodeId, SessionId};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

use super::order::{Loss, Order};

/// Frames on the way to one neighbor; a prompt of 128 Ki tokens in chunks of 96 fits. A neighbor that lets it fill up is
/// treated as gone.
pub const MAX_QUEUED: usize = 2_048;
/// A way out is turned once in this time at most: two ends that answer each other's turn would else never rest.
const TURN_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct PeerStream {
    number: u64,
    epoch: u32,
    queue: mpsc::Sender<(Header, Bytes)>,
    /// Ends the task because its queue is full.
    overflow: Option<oneshot::Sender<()>>,
    task: AbortHandle,
}

/// The outboxes of one session.
#[derive(Debug)]
pub struct PeerStreams {
    network: Network,
    session: SessionId,
    orders: mpsc::Sender<Order>,
    open: BTreeMap<NodeId, PeerStream>,
    opened: u64,
    /// When the way to a neighbor was turned last, and the epoch of the last stream that came from it.
    turned: BTreeMap<NodeId, Instant>,
    began: BTreeMap<NodeId, u32>,
}

impl PeerStreams {
    /// Those of the session in this [`place`](super::place), none yet. It hears [`Order::Lost`] through `orders`.
    pub fn new(network: Network, session: SessionId, orders: mpsc::Sender<Order>) -> Self {
        let (turned, began) = Default::default();
        Self { network, session, orders, open: BTreeMap::new(), opened: 0, turned, began }
    }

    /// Queues a frame to `node`. The first one of an epoch opens a stream in the background, where `contact` says that the
    /// node is; when that fails, the stream breaks later or the queue is full, the session hears of it.
    pub fn send(&mut self, node: NodeId, contact: impl FnOnce() -> Contact, header: Header, payload: Bytes) {
        if self.open.get(&node).is_some_and(|old| old.epoch < header.epoch)
            && let Some(old) = self.open.remove(&node)
        {
            // What it holds belongs to the epoch before.
            old.task.abort();
        }
        let outbox = match self.open.entry(node) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(vacant) => {
                self.opened += 1;
                let loss = Loss { node, outbox: self.opened };
                let hello = Hello { session: self.session, epoch: header.epoch };
                vacant.insert(PeerStream::open(
                    self.network.clone(),
                    contact(),
                    hello,
                    loss,
                    self.orders.clone(),
                ))
            }
        };
        outbox.send(header, payload);
    }

    /// Closes the outbox to `node`, if there is one: what is queued is sent, and how that goes is not reported.
    pub fn close(&mut self, node: NodeId) {
        self.open.remove(&node);
    }

    /// A neighbor is reached over another connection now: the next frame to it takes that.
    pub fn turn(&mut self, node: NodeId) {
        if self.turned.get(&node).is_none_or(|last| last.elapsed() > TURN_EVERY) {
            self.turned.insert(node, Instant::now());
            self.close(node);
        }
    }

    /// A neighbor has opened a stream. A second one in an epoch says that the first does not carry: what goes there turns.
    pub fn began(&mut self, from: NodeId, epoch: u32) {
        if self.began.insert(from, epoch) == Some(epoch) {
            self.turn(from);
        }
    }

    /// Whether `loss` is about the outbox in use, which is closed then. What is said of another is old.
    pub fn lost(&mut self, loss: Loss) -> bool {
        let current = self.open.get(&loss.node).is_some_and(|outbox| outbox.number == loss.outbox);
        if current {
            self.close(loss.node);
        }
        current
    }
}

impl PeerStream {
    fn open(
        network: Network,
        contact: Contact,
        hello: Hello,
        loss: Loss,
        orders: mpsc::Sender<Order>,
    ) -> Self {
        let (sender, mut queue) = mpsc::channel::<(Header, Bytes)>(MAX_QUEUED);
        let (overflow, overflowed) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let node = loss.node;
            let sent = async {
                network.connect(&contact).await.map_err(|_| HopError::Closed)?;
                let mut stream = network.open(node, Plane::Data).await?;
                stream.send(&hello.write(), &[]).await?;
                while let Some((header, payload)) = queue.recv().await {
                    stream.send(&header.write(), &payload).await?;
                }
                stream.finish().await
            };
            let sent = tokio::select! {
                sent = sent => sent,
                Ok(()) = overflowed => Err(HopError::Refused("it does not read".to_owned())),
            };
            // Once it is closed its outcome is not used.
            if let Err(error) = sent
                && !queue.is_closed()
            {
                tracing::debug!(%node, session = %hello.session, %error, "a neighbor cannot be reached");
                let _ = orders.send(Order::Lost(loss)).await;
            }
        });
        let (number, epoch, task) = (loss.outbox, hello.epoch, task.abort_handle());
        Self { number, epoch, queue: sender, overflow: Some(overflow), task }
    }

    fn send(&mut self, header: Header, payload: Bytes) {
        // Of a task that has ended the session hears anyway.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send((header, payload))
            && let Some(overflow) = self.overflow.take()
        {
            let _ = overflow.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use p2p::{
        Config, Event, Events, Identity, Network,
        link::Stream,
        wire::{
            control::Contact,
            frame::{HEADER_LEN, Header, Hello, Kind},
        },
    };
    use scheduler::{NodeId, SessionId};
    use tokio::{sync::mpsc, time::timeout};

    use super::{MAX_QUEUED, PeerStreams};
    use crate::sessions::Order;

    /// Longer than anything here takes on a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn frame(epoch: u32) -> Header {
        Header::signal(Kind::Beacon, epoch, 0, 0, 0)
    }

    async fn network(seed: u8) -> (Network, Events) {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
        let config = Config { listen, ..Config::loopback(Identity::from_seed([seed; 32])) };
        p2p::spawn(config).await.unwrap()
    }

    fn outboxes(network: &Network) -> (PeerStreams, mpsc::Receiver<Order>) {
        let (orders, heard) = mpsc::channel(4);
        (PeerStreams::new(network.clone(), SessionId::new([1; 16]), orders), heard)
    }

    async fn next(heard: &mut mpsc::Receiver<Order>) -> Option<Order> {
        timeout(PATIENCE, heard.recv()).await.expect("the tasks of the outboxes end")
    }

    /// A name that no node has.
    fn absent() -> Contact {
        Contact { node: Identity::from_seed([99; 32]).node(), addresses: Vec::new() }
    }

    fn send(outboxes: &mut PeerStreams, to: &Contact, epoch: u32) {
        outboxes.send(to.node, || to.clone(), frame(epoch), Bytes::new());
    }

    async fn incoming(events: &mut Events, from: NodeId) -> Stream {
        let stream = async {
            loop {
                match events.next().await.expect("the network runs") {
                    Event::Incoming { from: who, stream, .. } if who == from => return stream,
                    _ => {}
                }
            }
        };
        timeout(PATIENCE, stream).await.expect("a stream comes")
    }

    #[tokio::test]
    async fn who_cannot_be_reached_is_lost_once() {
        let (network, _events) = network(1).await;
        let (mut ways, mut heard) = outboxes(&network);
        send(&mut ways, &absent(), 1);
        let Some(Order::Lost(loss)) = next(&mut heard).await else { panic!("no loss is reported") };
        assert_eq!(loss.node, absent().node);
        assert!(ways.lost(loss));
        assert!(!ways.lost(loss));
    }

    /// The session closes an outbox, or begins a new epoch, and only then does what is behind it break.
    #[tokio::test]
    async fn what_was_closed_is_not_lost() {
        let (network, _events) = network(2).await;
        let (mut ways, mut heard) = outboxes(&network);
        send(&mut ways, &absent(), 1);
        ways.close(absent().node);
        drop(ways);
        assert!(next(&mut heard).await.is_none());
    }

    /// The loss was on its way already when the session closed the outbox and opened another to the same node.
    #[tokio::test]
    async fn a_loss_of_an_earlier_epoch_says_nothing_of_this_one() {
        let (network, _events) = network(3).await;
        let (mut ways, mut heard) = outboxes(&network);
        send(&mut ways, &absent(), 1);
        let Some(Order::Lost(old)) = next(&mut heard).await else { panic!("no loss is reported") };
        send(&mut ways, &absent(), 2);
        assert!(!ways.lost(old));
        let Some(Order::Lost(new)) = next(&mut heard).await else { panic!("no loss is reported") };
        assert!(ways.lost(new) && old != new);
    }

    /// The session at the other end is over, and another one of the same name began there.
    #[tokio::test]
    async fn a_new_epoch_does_not_go_the_way_of_the_old() {
        let (here, _of_here) = network(4).await;
        let (there, mut of_there) = network(5).await;
        let to = there.contact().await;
        let (mut ways, mut heard) = outboxes(&here);
        for epoch in [1, 2] {
            send(&mut ways, &to, epoch);
            let mut stream = incoming(&mut of_there, here.me()).await;
            let mut hello = [0; Hello::LEN];
            stream.recv_exact_within(&mut hello, PATIENCE).await.unwrap();
            assert_eq!(Hello::read(&hello).unwrap().epoch, epoch);
            let mut head = [0; HEADER_LEN];
            stream.recv_exact_within(&mut head, PATIENCE).await.unwrap();
            assert_eq!(Header::read(&head).unwrap().epoch, epoch);
        }
        // A frame of the old epoch, from a lease that is left, needs no stream of its own.
        send(&mut ways, &to, 1);
        drop(ways);
        assert!(next(&mut heard).await.is_none());
    }

    #[tokio::test]
    async fn who_does_not_read_is_lost() {
        let (here, _of_here) = network(6).await;
        let (there, _of_there) = network(7).await;
        let to = there.contact().await;
        let (mut ways, mut heard) = outboxes(&here);
        // The task has not run yet when the queue is full.
        (0..=MAX_QUEUED).for_each(|_| send(&mut ways, &to, 1));
        let Some(Order::Lost(loss)) = next(&mut heard).await else { panic!("the queue is full") };
        assert!(loss.node == to.node && ways.lost(loss));
    }
}
