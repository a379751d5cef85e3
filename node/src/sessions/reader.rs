//! Frames from the streams of neighbors.
//!
//! A neighbor decides when a stream is opened and what its headers promise, so what is read of it is bounded before it is
//! read:
//!
//! * A frame is as long as its rows and the width of the session's model make it. A header that says otherwise is handed to
//!   the session without its payload, which judges it, and the stream is read no further.
//! * The bytes of a frame are taken from the governor before they are read, and given back when the frame is computed. At
//!   the limit the stream is not read, and its sender waits: [`PATIENCE`] at most.
//! * A frame that has begun comes at [`MIN_RATE`] or more.
//! * A neighbor has at most [`MAX_STREAMS`](super::reading::MAX_STREAMS) streams to a session. One more ends the oldest: a neighbor that opened a stream
//!   for a later epoch has given up the earlier ones.
//! * A stream ends with its session, whatever it is in the middle of.

use std::time::Duration;

use p2p::{
    Governor,
    link::Reader,
    wire::frame::{HEADER_LEN, Header, Hello, Kind, MAX_FRAME},
};
use scheduler::{NodeId, governor::Resource};

use super::{Arrival, Inlets, SessionTable, reading::Payload};

/// A neighbor that opened a stream says at once what for.
const HELLO: Duration = Duration::from_secs(10);
/// Bytes a second of a frame that has begun; a slower line carries no session.
const MIN_RATE: u64 = 32 << 10;
/// What a frame has beside that: a line may stall, and a host may sleep for a moment.
const GRACE: Duration = Duration::from_secs(5);
/// How long a stream is not read because too many bytes are held. A prompt in chunks on a slow machine takes as long; its
/// sender notices that nothing is computed well before.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long `len` bytes of a frame may take.
fn limit(len: usize, grace: Duration) -> Duration {
    grace + Duration::from_millis(len as u64 * 1_000 / MIN_RATE)
}

/// Reads a neighbor's stream into the session it names, frame by frame, until either ends. A frame that cannot be read, or
/// comes too slowly, ends the stream.
pub async fn read(table: SessionTable, governor: Governor, from: NodeId, stream: Reader) {
    read_within(table, governor, from, stream, GRACE).await;
}

async fn read_within(
    table: SessionTable,
    governor: Governor,
    from: NodeId,
    mut stream: Reader,
    grace: Duration,
) {
    let mut hello = [0; Hello::LEN];
    if stream.recv_exact_within(&mut hello, HELLO).await.is_err() {
        return;
    }
    let Ok(hello) = Hello::read(&hello) else { return };
    let Some(inlets) = table.at(hello.session) else { return };
    let mut seat = inlets.reading.enter(from);
    // A session that has so much unread learns of it by the frames.
    let _ = inlets.frames.try_send(Arrival::Began { from, epoch: hello.epoch });
    loop {
        tokio::select! {
            more = frame(&inlets, &governor, from, &mut stream, grace) => if !more { break },
            () = inlets.frames.closed() => return,
            _ = &mut seat.gone => return,
        }
    }
    let _ = inlets.frames.send(Arrival::Ended { from }).await;
}

/// Reads one frame and hands it over; false when it was the last one.
async fn frame(
    inlets: &Inlets,
    governor: &Governor,
    from: NodeId,
    stream: &mut Reader,
    grace: Duration,
) -> bool {
    let mut head = [0; HEADER_LEN];
    if stream.recv_exact(&mut head).await.is_err() {
        return false;
    }
    let Ok(header) = Header::read(&head) else { return false };
    let len = header.len as usize;
    let mut payload = Payload::default();
    let fits = inlets.reading.fits(&header);
    if fits && len > 0 {
        let taken = governor.wait(governor.holder(from), Resource::Bytes, len as u64, PATIENCE).await;
        let Ok(permit) = taken else {
            tracing::info!(%from, "too many bytes are held, a stream is closed");
            return false;
        };
        payload.permit = Some(permit);
        let received = stream.recv_payload(len, MAX_FRAME, &mut payload.bytes);
        match tokio::time::timeout(limit(len, grace), received).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return false,
            Err(_) => {
                tracing::info!(%from, "a frame comes too slowly, its stream is closed");
                return false;
            }
        }
    }
    let last = !fits || header.kind == Kind::Bye;
    inlets.frames.send(Arrival::Frame { from, header, payload }).await.is_ok() && !last
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use p2p::{Config, Event, Events, Identity, Network, Plane, codec::Wire, link::Stream};
    use scheduler::{SessionId, governor::Scope};

    use super::*;
    use crate::sessions::{Outlets, place};

    /// Longer than anything here takes on a loaded machine.
    const SOON: Duration = Duration::from_secs(60);
    /// A model so wide that a frame of it has 8 MiB.
    const WIDTH: usize = 8_192;

    /// A node with a session, and a neighbor of it.
    struct Pair {
        node: Network,
        events: Events,
        neighbor: Network,
        _of_neighbor: Events,
        table: SessionTable,
        inlets: Inlets,
    }

    async fn network(seed: u8) -> (Network, Events) {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
        let limits = p2p::config::Limits { streams_per_peer: 512, ..Default::default() };
        let config = Config { listen, limits, ..Config::loopback(Identity::from_seed([seed; 32])) };
        p2p::spawn(config).await.unwrap()
    }

    async fn pair() -> (Pair, Outlets) {
        let ((node, events), (neighbor, of_neighbor)) = (network(1).await, network(2).await);
        neighbor.dial(&node.addresses().await[0]).await.unwrap();
        let table = SessionTable::default();
        let (inlets, outlets) = table.enter(neighbor.me(), SESSION).unwrap();
        inlets.reading.expect(WIDTH as u32);
        (Pair { node, events, neighbor, _of_neighbor: of_neighbor, table, inlets }, outlets)
    }

    const SESSION: SessionId = SessionId::new([7; 16]);

    impl Pair {
        /// A stream of the neighbor that has said hello, and is read here.
        async fn stream(&mut self, grace: Duration) -> (Stream, tokio::task::JoinHandle<()>) {
            let mut stream = self.neighbor.open(self.node.me(), Plane::Data).await.unwrap();
            stream
                .send(&Hello { session: place(self.neighbor.me(), SESSION), epoch: 1 }.write(), &[])
                .await
                .unwrap();
            let opened = async {
                loop {
                    if let Event::Incoming { stream, from, .. } = self.events.next().await.unwrap() {
                        return (from, stream.split().0);
                    }
                }
            };
            let (from, reader) = tokio::time::timeout(SOON, opened).await.unwrap();
            let governor = self.node.governor().clone();
            (stream, tokio::spawn(read_within(self.table.clone(), governor, from, reader, grace)))
        }

        fn held(&self, scope: Scope) -> u64 {
            self.node.governor().used(Resource::Bytes, scope)
        }

        async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
            let started = Instant::now();
            while !holds(self) {
                assert!(started.elapsed() < SOON, "{what}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// The longest frame there is, and all of it but its last byte.
    fn almost() -> (Header, Vec<u8>) {
        let header = Header::activations(Wire::Raw, 1, 0, 0, 256, WIDTH).unwrap();
        assert_eq!(header.len as usize, MAX_FRAME);
        (header, vec![0; MAX_FRAME - 1])
    }

    /// Streams that begin the longest frame and never end it: few are read, and all ends with the session.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn frames_that_never_end_hold_little_and_end_with_their_session() {
        let (mut pair, outlets) = pair().await;
        let (header, bytes) = almost();
        let mut held = Vec::new();
        for _ in 0..24 {
            let (mut stream, read) = pair.stream(SOON).await;
            // A stream that is not read stands still: the muxer's window is full.
            let sent =
                tokio::time::timeout(Duration::from_millis(300), stream.send(&header.write(), &bytes)).await;
            drop(sent);
            held.push((stream, read));
        }
        let peer = Scope::Peer(pair.neighbor.me());
        pair.until("the last streams are read", |pair| pair.held(peer) > 0).await;
        let limit =
            pair.node.governor().usage().into_iter().find(|row| row.limit.resource == Resource::Bytes);
        let limit = limit.unwrap().limit.peer;
        assert!(pair.held(peer) <= limit.min(4 * MAX_FRAME as u64), "{} bytes are held", pair.held(peer));
        let reading = held.iter().filter(|(_, read)| !read.is_finished()).count();
        assert!(reading <= 4, "{reading} streams of one neighbor are read");
        pair.table.leave(pair.neighbor.me(), SESSION);
        drop(outlets);
        pair.until("the bytes of a session that is over are given back", |pair| pair.held(Scope::Node) == 0)
            .await;
        for (_, read) in held {
            tokio::time::timeout(SOON, read).await.expect("a reader ends with its session").unwrap();
        }
        assert!(pair.inlets.frames.is_closed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_frame_that_trickles_is_given_up() {
        let (mut pair, mut outlets) = pair().await;
        let header = Header::activations(Wire::Raw, 1, 0, 0, 1, WIDTH).unwrap();
        let (mut stream, read) = pair.stream(Duration::from_millis(200)).await;
        stream.send(&header.write(), &[0; 16]).await.unwrap();
        tokio::time::timeout(SOON, read).await.expect("it is too slow").unwrap();
        assert!(matches!(outlets.frames.recv().await, Some(Arrival::Began { .. })));
        assert!(matches!(outlets.frames.recv().await, Some(Arrival::Ended { .. })));
        pair.until("its bytes are given back", |pair| pair.held(Scope::Node) == 0).await;
        assert!(limit(MAX_FRAME, GRACE) > limit(1_024, GRACE) && limit(0, GRACE) == GRACE);
    }

    /// A frame of another width is judged by the session without its bytes being read; a right one comes whole and is counted
    /// until it is dropped.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_frame_is_as_long_as_its_session_says() {
        let (mut pair, mut outlets) = pair().await;
        let (mut stream, read) = pair.stream(SOON).await;
        let right = Header::activations(Wire::Raw, 1, 0, 0, 2, WIDTH).unwrap();
        stream.send(&right.write(), &vec![0; right.len as usize]).await.unwrap();
        assert!(matches!(outlets.frames.recv().await, Some(Arrival::Began { epoch: 1, .. })));
        let Some(Arrival::Frame { payload, .. }) = outlets.frames.recv().await else { panic!("a frame") };
        assert_eq!(payload.len(), right.len as usize);
        assert_eq!(pair.held(Scope::Node), u64::from(right.len));
        drop(payload);
        assert_eq!(pair.held(Scope::Node), 0);
        let wide = Header::activations(Wire::Raw, 1, 0, 0, 2, 2 * WIDTH).unwrap();
        stream.send(&wide.write(), &[]).await.unwrap();
        let Some(Arrival::Frame { header, payload, .. }) = outlets.frames.recv().await else {
            panic!("a frame")
        };
        assert_eq!((header, payload.len()), (wide, 0));
        tokio::time::timeout(SOON, read).await.expect("nothing of it is read").unwrap();
    }
}
