//! Streams of two nodes of this host whose frames take datagrams, the substream, and both in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scheduler::NodeId;
use scheduler::governor::{Resource, Scope};
use tokio::net::UdpSocket;

use super::choice::choose;
use super::{LinkInfo, Stream};
use crate::config::LinkConfig;
use crate::link_kind::{LinkKind, LinkMode};
use crate::plane::Plane;
use crate::{Config, Event, Events, Identity, Network};

/// Longer than anything here takes on a loaded machine.
const SOON: Duration = Duration::from_secs(120);

async fn node(seed: u8, mode: LinkMode, loss: u16) -> (Network, Events) {
    node_of(seed, mode, loss, false).await
}

async fn node_of(seed: u8, mode: LinkMode, loss: u16, within_host: bool) -> (Network, Events) {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
    let identity = Identity::from_seed([seed; 32]);
    let links = LinkConfig { mode, loss, within_host, ..LinkConfig::default() };
    crate::spawn(Config { listen, links, ..Config::loopback(identity) }).await.unwrap()
}

async fn incoming(events: &mut Events) -> Stream {
    let stream = async {
        loop {
            if let Event::Incoming { stream, plane: Plane::Data, .. } = events.next().await.unwrap() {
                return stream;
            }
        }
    };
    tokio::time::timeout(SOON, stream).await.expect("a stream comes")
}

async fn info(network: &Network, node: NodeId) -> Option<LinkInfo> {
    network.peers().await.into_iter().find(|peer| peer.node == node)?.link
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect(what);
}

/// A stream from `a` to `b`, and its other end.
async fn stream(a: &Network, b: NodeId, of_b: &mut Events) -> (Stream, Stream) {
    let mut out = a.open(b, Plane::Data).await.unwrap();
    out.send(b"hello", &[]).await.unwrap();
    let mut back = incoming(of_b).await;
    let mut hello = [0; 5];
    back.recv_exact_within(&mut hello, SOON).await.unwrap();
    assert_eq!(&hello, b"hello");
    (out, back)
}

fn payload(number: u32) -> Vec<u8> {
    let len = (number as usize * 7_919) % 40_000;
    (0..len).map(|i| (i as u32 ^ number) as u8).collect()
}

async fn frames(mut to: Stream, from: Stream, count: u32, mut between: impl AsyncFnMut(u32)) {
    let mut from = from.split().0;
    let read = tokio::spawn(async move {
        let mut bytes = Vec::new();
        for number in 0..count {
            let mut head = [0; 8];
            from.recv_exact_within(&mut head, SOON).await.unwrap();
            assert_eq!(u32::from_le_bytes(head[..4].try_into().unwrap()), number);
            let len = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
            from.recv_payload(len, 1 << 20, &mut bytes).await.unwrap();
            assert!(bytes == payload(number), "frame {number} has other bytes");
        }
        assert!(from.recv_exact_within(&mut [0], SOON).await.is_err(), "the stream ends");
    });
    for number in 0..count {
        between(number).await;
        let bytes = payload(number);
        let head = [number.to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        tokio::time::timeout(SOON, to.send(&head, &bytes)).await.expect("a frame leaves").unwrap();
    }
    tokio::time::timeout(SOON, to.finish()).await.expect("a stream ends").unwrap();
    read.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_take_datagrams_and_change_in_the_middle() {
    let (a, _of_a) = node(1, LinkMode::Datagram, 50).await;
    let (b, mut of_b) = node(2, LinkMode::Auto, 50).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || datagrams(&a, to).await).await;
    frames(out, back, 400, async |number| match number {
        100 | 300 => assert!(a.use_link(to, LinkKind::Stream)),
        200 => assert!(a.use_link(to, LinkKind::Datagram)),
        _ => {}
    })
    .await;
    let said = info(&a, to).await.unwrap();
    assert!(said.messages >= 1, "datagrams carried none");
    until("keys are exchanged for others", async || info(&a, to).await.unwrap().renewed >= 1).await;
    let held = async || b.governor().used(Resource::Bytes, Scope::Node) == 0;
    until("all bytes are given back", held).await;
    until("what was measured is said", async || info(&a, to).await.unwrap().stream.is_some()).await;
}

/// Two at once, each with a stream to the other: one session serves both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_dial_each_other_agree() {
    let (a, mut of_a) = node(3, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(4, LinkMode::Datagram, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let me = a.me();
    let (first, second) = tokio::join!(stream(&a, to, &mut of_b), stream(&b, me, &mut of_a));
    let quiet = async |_| {};
    tokio::join!(frames(first.0, first.1, 60, quiet), frames(second.0, second.1, 60, quiet));
    until("they have a session", async || info(&a, to).await.is_some()).await;
    let (out, back) = stream(&b, me, &mut of_a).await;
    until("datagrams are used", async || datagrams(&b, me).await).await;
    frames(out, back, 60, quiet).await;
    assert!(info(&b, me).await.unwrap().messages >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_takes_streams_only_has_them() {
    let (a, _of_a) = node(5, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(6, LinkMode::Stream, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    frames(out, back, 40, async |_| {}).await;
    let said = info(&a, to).await.unwrap();
    assert_eq!((said.kind, said.messages, said.streamed), (LinkKind::Stream, 0, 41), "{said:?}");
}

/// Datagrams that stop arriving in the middle: the stream takes over what was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_that_vanish_cost_no_frame() {
    let (a, _of_a) = node(7, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(8, LinkMode::Auto, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || datagrams(&a, to).await).await;
    frames(out, back, 60, async |number| {
        if number == 20 {
            a.cut_datagrams();
        }
    })
    .await;
    let said = info(&a, to).await.unwrap();
    assert!(said.returned >= 1 && said.kind == LinkKind::Stream, "{said:?}");
}

/// A host of the network without any key sends all it can: nothing is held for it, and frames go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_without_a_key_holds_nothing() {
    let (a, _of_a) = node(9, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(10, LinkMode::Auto, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || datagrams(&a, to).await).await;
    let flood = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    flood.set_ttl(255).unwrap();
    let target = ("127.0.0.1", b.datagram_port().unwrap());
    let mut forged = b"SLAN\x01\x00\x00\x00".to_vec();
    forged.resize(1_448, 0x77);
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let flooding = tokio::spawn(async move {
        for number in 0_u64.. {
            forged[8..16].copy_from_slice(&number.to_le_bytes());
            // What the system does not take is not sent.
            let _ = flood.send_to(&forged, target).await;
            count.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    frames(out, back, 60, async |_| {}).await;
    until("much was sent", async || sent.load(Ordering::Relaxed) >= 1_000).await;
    flooding.abort();
    assert_eq!(b.strange_datagrams(), 0, "the system drops them before they are read");
    until("nothing is held", async || b.governor().used(Resource::Bytes, Scope::Node) == 0).await;
    assert_eq!(b.governor().used(Resource::Links, Scope::Node), 1, "one session, that of the neighbor");
}

async fn datagrams(of: &Network, to: NodeId) -> bool {
    info(of, to).await.is_some_and(|info| info.kind == LinkKind::Datagram)
}

/// Neither end is told what to use: the link is the one that the figures choose, at both ends; when datagrams stop, both use the
/// stream, and they are measured again, and chosen again by what is measured then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_measured_chooses_the_link_of_both_ends() {
    let (a, _of_a) = node_of(11, LinkMode::Auto, 0, true).await;
    let (b, mut of_b) = node_of(12, LinkMode::Auto, 0, true).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let me = a.me();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("both links are measured", async || {
        info(&a, to).await.is_some_and(|info| info.stream.is_some() && info.datagram.is_some())
    })
    .await;
    let measured = info(&a, to).await.unwrap();
    let chosen = choose(LinkKind::Stream, measured.stream, measured.datagram);
    until("both ends use what was chosen", async || {
        let kinds = [info(&a, to).await, info(&b, me).await].map(|info| info.unwrap().kind);
        kinds == [chosen; 2]
    })
    .await;
    // Whatever was chosen: datagrams from here on, which do not arrive.
    assert!(b.use_link(me, LinkKind::Datagram));
    a.cut_datagrams();
    frames_until_measured((&a, to), (out, back), &a, to).await;
    until("the dialer says that both use the stream", async || !datagrams(&b, me).await).await;
    assert!(info(&a, to).await.unwrap().returned >= 1);
}

/// Sends frames by datagrams, which come back, until the dialer has measured that none arrive.
async fn frames_until_measured(
    (from, to): (&Network, NodeId),
    (mut out, back): (Stream, Stream),
    dialer: &Network,
    dialed: NodeId,
) {
    let mut back = back.split().0;
    let reads = tokio::spawn(async move { while back.recv_exact(&mut [0; 9]).await.is_ok() {} });
    until("what does not arrive has no figures", async || {
        if info(dialer, dialed).await.unwrap().datagram.is_none() {
            return true;
        }
        // A word of the dialer's that was on its way may have changed it.
        assert!(from.use_link(to, LinkKind::Datagram));
        out.send(b"one frame", &[]).await.unwrap();
        false
    })
    .await;
    reads.abort();
}

/// The end that did not dial loses its datagrams: it says so, and the dialer measures at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_that_did_not_dial_is_heard() {
    let (a, mut of_a) = node_of(13, LinkMode::Auto, 0, true).await;
    let (b, mut of_b) = node_of(14, LinkMode::Auto, 0, true).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let me = a.me();
    let first = stream(&a, to, &mut of_b).await;
    until("datagrams are measured", async || info(&a, to).await.is_some_and(|info| info.datagram.is_some()))
        .await;
    let streams = stream(&b, me, &mut of_a).await;
    b.cut_datagrams();
    frames_until_measured((&b, me), streams, &a, to).await;
    assert!(info(&b, me).await.unwrap().returned >= 1);
    drop(first);
}

/// The way becomes narrower in the middle: frames go on, and the next session has chunks that pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_becomes_narrower_has_shorter_chunks() {
    let (a, _of_a) = node(15, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(16, LinkMode::Auto, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || datagrams(&a, to).await).await;
    let wide = info(&a, to).await.unwrap().chunk_bytes;
    // Packets of 1,400 bytes, in which IPv4 and UDP take 28.
    frames(out, back, 60, async |number| {
        if number == 20 {
            a.shrink_datagrams(1_372);
            b.shrink_datagrams(1_372);
        }
    })
    .await;
    until("a session of shorter chunks is used", async || {
        // The next stream dials the next session; one that is opened while they change may end at once.
        let opened = a.open(to, Plane::Data).await;
        while tokio::time::timeout(Duration::from_millis(20), of_b.next()).await.is_ok() {}
        let said = info(&a, to).await;
        drop(opened);
        said.is_some_and(|said| said.kind == LinkKind::Datagram && said.chunk_bytes == 1_280)
    })
    .await;
    assert!(wide > 1_280, "loopback carries long packets");
    let mut out = a.open(to, Plane::Data).await.unwrap();
    out.send(b"hello", &[]).await.unwrap();
    let back = loop {
        let (mut back, mut hello) = (incoming(&mut of_b).await, [0; 5]);
        if back.recv_exact_within(&mut hello, SOON).await.is_ok() {
            break back;
        }
    };
    let before = info(&a, to).await.unwrap();
    frames(out, back, 60, async |_| {}).await;
    let after = info(&a, to).await.unwrap();
    assert!(after.chunk_bytes == 1_280 && after.messages > before.messages, "{before:?} {after:?}");
}

/// A neighbor that restarts under its name: what was open ends, and the streams after it have a session of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbor_that_restarts_has_another_session() {
    let (a, _of_a) = node(17, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(18, LinkMode::Auto, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let first = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || datagrams(&a, to).await).await;
    let (mut out, back) = stream(&a, to, &mut of_b).await;
    let mut carried = 0;
    until("a frame is carried", async || {
        out.send(b"a frame", &[]).await.unwrap();
        carried = info(&a, to).await.unwrap().messages;
        carried > 0
    })
    .await;
    b.shutdown().await;
    drop((b, of_b, back, first));
    until("what was open ends", async || out.send(b"a frame", &[]).await.is_err()).await;
    let (b, mut of_b) = node(18, LinkMode::Auto, 0).await;
    assert_eq!(a.dial(&b.addresses().await[0]).await.unwrap(), to);
    // The first stream dials the session, and may be open before it is agreed on.
    let first = stream(&a, to, &mut of_b).await;
    until("datagrams are used again", async || datagrams(&a, to).await).await;
    let (out, back) = stream(&a, to, &mut of_b).await;
    frames(out, back, 60, async |_| {}).await;
    let said = info(&a, to).await.unwrap();
    assert!(said.messages > 0, "{carried} before, then {said:?}");
    drop(first);
}
