//! Private swarms, relays and what a path is called.

mod support;

use p2p::{Config, Event, Path, Plane};
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_swarm_opens_to_its_key_only() {
    for listen in [TCP, QUIC] {
        let key = Some([7; 32]);
        let (a, mut of_a) = node(Config { psk: key, ..config(1, listen) }).await;
        let at = address(&a).await;
        for wrong in [None, Some([8; 32])] {
            let (outsider, _events) = node(Config { psk: wrong, ..config(2, listen) }).await;
            let refused = outsider.dial(&at).await;
            assert!(matches!(refused, Err(p2p::Error::Unreachable(_))), "{listen} {wrong:?}: {refused:?}");
            let back = a.dial(&address(&outsider).await).await;
            assert!(matches!(back, Err(p2p::Error::Unreachable(_))), "{listen} {wrong:?}: {back:?}");
        }
        let (b, mut of_b) = node(Config { psk: key, ..config(3, listen) }).await;
        b.dial(&at).await.unwrap();
        // Not one word of the outsiders came through: the first who is connected is the member.
        let first = expect(&mut of_a, |event| match event {
            Event::Connected { node, .. } => Some(node),
            Event::Incoming { from, .. } | Event::Ask { from, .. } => {
                panic!("{from} spoke before it connected")
            }
            _ => None,
        });
        assert_eq!(first.await, b.me());
        connected(&mut of_b, a.me()).await;
        let mut stream = a.open(b.me(), Plane::Blob).await.unwrap();
        stream.send(b"x", &[]).await.unwrap();
        let arrived = expect(&mut of_b, |event| match event {
            Event::Incoming { plane: Plane::Blob, stream, .. } => Some(stream),
            _ => None,
        });
        let mut byte = [0];
        arrived.await.recv_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"x");
    }
}

/// A relay, a node behind it and its circuit address, and a node that knows nothing else.
struct Relayed {
    _relay: (p2p::Network, p2p::Events),
    b: (p2p::Network, p2p::Events),
    c: (p2p::Network, p2p::Events),
    /// How B and C first heard of each other.
    first: [Path; 2],
}

async fn relayed(punch: bool) -> Relayed {
    let (relay, mut of_relay) = node(Config { relay: true, ..config(1, TCP) }).await;
    let relays = vec![address(&relay).await];
    let (b, mut of_b) = node(Config { relays, punch, ..config(2, TCP) }).await;
    connected(&mut of_relay, b.me()).await;
    let circuit = expect(&mut of_b, |event| match event {
        Event::Listening { address } if address.contains("p2p-circuit") => Some(address),
        _ => None,
    })
    .await;
    let (c, mut of_c) = node(Config { punch, ..config(3, TCP) }).await;
    assert_eq!(c.dial(&circuit).await.unwrap(), b.me());
    let first = [connected(&mut of_b, c.me()).await, connected(&mut of_c, b.me()).await];
    Relayed { _relay: (relay, of_relay), b: (b, of_b), c: (c, of_c), first }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_carries_a_conversation() {
    let Relayed { _relay, b: (b, mut of_b), c: (c, _of_c), first } = relayed(false).await;
    assert_eq!(first, [Path::Relayed; 2]);
    let mut stream = c.open(b.me(), Plane::Data).await.unwrap();
    assert_eq!(stream.path(), Path::Relayed);
    // More than the 128 KiB at which a relay with default limits hangs up.
    let sending = tokio::spawn(async move {
        stream.send(&vec![5; 400_000], &[]).await.unwrap();
        stream
    });
    let mut arrived = expect(&mut of_b, |event| match event {
        Event::Incoming { from, stream, .. } if from == c.me() => Some(stream),
        _ => None,
    })
    .await;
    assert_eq!(arrived.path(), Path::Relayed);
    let mut payload = Vec::new();
    arrived.recv_payload(400_000, 1 << 20, &mut payload).await.unwrap();
    assert!(payload.iter().all(|byte| *byte == 5));
    sending.await.unwrap();
    assert!(c.peers().await.iter().any(|peer| peer.node == b.me() && peer.path == Path::Relayed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayed_path_gives_way_to_a_direct_one() {
    // Hole punching works on loopback too: both learn of the shorter path, new streams take it. It can be so quick that one
    // of them never hears of the relayed path.
    let Relayed { _relay, b: (b, mut of_b), c: (c, mut of_c), first } = relayed(true).await;
    if first[0] != Path::Loopback {
        assert_eq!(connected(&mut of_b, c.me()).await, Path::Loopback);
    }
    if first[1] != Path::Loopback {
        assert_eq!(connected(&mut of_c, b.me()).await, Path::Loopback);
    }
    assert_eq!(c.open(b.me(), Plane::Data).await.unwrap().path(), Path::Loopback);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_share_a_process() {
    let listen = |i: u8| vec![format!("/memory/{}", 9_000 + u64::from(i))];
    let (hub, _of_hub) = node(Config { memory: true, listen: listen(0), ..config(100, TCP) }).await;
    let boot = vec![address(&hub).await];
    let mut nodes = Vec::new();
    for i in 1..=20 {
        let config =
            Config { memory: true, listen: listen(i), bootstrap: boot.clone(), ..config(100 + i, TCP) };
        nodes.push(node(config).await);
    }
    for (_, events) in &mut nodes {
        connected(events, hub.me()).await;
    }
    nodes[0].0.publish(announcement(&identity(101), 1)).await.unwrap();
    for (_, events) in &mut nodes[1..] {
        announced(events, identity(101).node(), 1).await;
    }
}
