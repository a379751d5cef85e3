//! Streams of two nodes of this host whose frames take datagrams, the substream, and both in turn.

use std::time::Duration;

use scheduler::NodeId;
use scheduler::governor::{Resource, Scope};
use tokio::net::UdpSocket;

use super::{LinkInfo, LinkKind, LinkMode, Plane, Stream};
use crate::{Config, Event, Events, Identity, Network};

/// Longer than anything here takes on a loaded machine.
const SOON: Duration = Duration::from_secs(120);

async fn node(seed: u8, link: LinkMode, link_loss: u16) -> (Network, Events) {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
    let identity = Identity::from_seed([seed; 32]);
    crate::spawn(Config { listen, link, link_loss, ..Config::loopback(identity) }).await.unwrap()
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
    until("datagrams are used", async || info(&a, to).await.is_some_and(|i| i.kind == LinkKind::Datagram))
        .await;
    frames(out, back, 400, async |number| match number {
        100 | 300 => assert!(a.use_link(to, LinkKind::Stream)),
        200 => assert!(a.use_link(to, LinkKind::Datagram)),
        _ => {}
    })
    .await;
    let said = info(&a, to).await.unwrap();
    assert!(said.messages >= 1, "datagrams carried none");
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
    until("datagrams are used", async || info(&b, me).await.is_some_and(|i| i.kind == LinkKind::Datagram))
        .await;
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
    assert!(info(&a, to).await.is_none());
}

/// Datagrams that stop arriving in the middle: the stream takes over what was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_that_vanish_cost_no_frame() {
    let (a, _of_a) = node(7, LinkMode::Datagram, 0).await;
    let (b, mut of_b) = node(8, LinkMode::Auto, 0).await;
    let to = a.dial(&b.addresses().await[0]).await.unwrap();
    let (out, back) = stream(&a, to, &mut of_b).await;
    until("datagrams are used", async || info(&a, to).await.is_some_and(|i| i.kind == LinkKind::Datagram))
        .await;
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
    until("datagrams are used", async || info(&a, to).await.is_some_and(|i| i.kind == LinkKind::Datagram))
        .await;
    let flood = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    flood.set_ttl(255).unwrap();
    let target = ("127.0.0.1", b.datagram_port().unwrap());
    let mut forged = b"SLAN\x01\x00\x00\x00".to_vec();
    forged.resize(1_448, 0x77);
    let flooding = tokio::spawn(async move {
        for number in 0_u64.. {
            forged[8..16].copy_from_slice(&number.to_le_bytes());
            // What the system does not take is not sent.
            let _ = flood.send_to(&forged, target).await;
            tokio::task::yield_now().await;
        }
    });
    frames(out, back, 60, async |_| {}).await;
    flooding.abort();
    until("nothing is held", async || b.governor().used(Resource::Bytes, Scope::Node) == 0).await;
    assert_eq!(b.governor().used(Resource::Links, Scope::Node), 1, "one session, that of the neighbor");
}
