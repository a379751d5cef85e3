//! Nodes that find each other, talk, and part.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use p2p::wire::control::{Answer, Ask, Contact};
use p2p::{Config, Event, Events, HopError, Network, Path, Plane, RefusedPeer};
use scheduler::{ModelId, NodeId, SessionId};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const RELEASE: Ask = Ask::Release { session: SessionId::new([1; 16]), epoch: 1 };

/// Two nodes on one transport: announcement, ask and frames, both ways.
async fn two_nodes(listen: &str) {
    let (a, mut of_a) = node(config(1, listen)).await;
    let (b, mut of_b) = node(config(2, listen)).await;
    let sealed = announcement(&identity(1), 1);
    a.publish(sealed.clone()).await.unwrap();
    assert_eq!(b.dial(&address(&a).await).await.unwrap(), a.me());
    assert_eq!(connected(&mut of_a, b.me()).await, Path::Loopback);
    assert_eq!(connected(&mut of_b, a.me()).await, Path::Loopback);
    // Published before they met: the newcomer catches up. Published after: gossip.
    assert_eq!(announced(&mut of_b, a.me(), 1).await, sealed);
    b.publish(announcement(&identity(2), 7)).await.unwrap();
    announced(&mut of_a, b.me(), 7).await;

    let answering = tokio::spawn({
        let a = a.clone();
        let asker = b.me();
        async move {
            let reply = expect(&mut of_a, |event| match event {
                Event::Ask { from, ask, reply } if from == asker && ask == RELEASE => Some(reply),
                _ => None,
            });
            a.answer(reply.await, Answer::Accepted { have: 42, sessions: 1, lanes: 2 });
            of_a
        }
    });
    assert_eq!(
        b.ask(a.me(), &RELEASE, PATIENCE).await,
        Ok(Answer::Accepted { have: 42, sessions: 1, lanes: 2 })
    );
    let mut of_a = answering.await.unwrap();

    let mut out = b.open(a.me(), Plane::Data).await.unwrap();
    out.send(b"head", b"payload").await.unwrap();
    let (from, mut into) = expect(&mut of_a, |event| match event {
        Event::Incoming { from, plane: Plane::Data, stream } => Some((from, stream)),
        _ => None,
    })
    .await;
    assert_eq!((from, into.node(), out.node()), (b.me(), b.me(), a.me()));
    let mut bytes = [0; 11];
    into.recv_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"headpayload");
    let large: Vec<u8> = (0..3_000_000).map(|i| (i % 251) as u8).collect();
    let (mut reader, mut writer) = into.split();
    let echo = tokio::spawn(async move {
        let mut payload = Vec::new();
        reader.recv_payload(3_000_000, 4 << 20, &mut payload).await.unwrap();
        writer.send(&[], &payload).await.unwrap();
        writer.finish().await.unwrap();
    });
    let (mut reader, mut writer) = out.split();
    let back = tokio::spawn(async move {
        let mut payload = Vec::new();
        reader.recv_payload(3_000_000, 4 << 20, &mut payload).await.unwrap();
        (payload, reader.recv_exact(&mut [0]).await)
    });
    writer.send(&[], &large).await.unwrap();
    echo.await.unwrap();
    let (echoed, end) = back.await.unwrap();
    assert!(echoed == large, "three megabytes come back as they went");
    assert_eq!(end, Err(HopError::Closed), "and then the stream ends");

    let peers = b.peers().await;
    assert_eq!(peers.len(), 1);
    assert!(peers[0].bytes_out >= 3_000_011 && peers[0].bytes_in >= 3_000_000, "{peers:?}");
    assert_eq!((peers[0].node, peers[0].path), (a.me(), Path::Loopback));
    assert!(peers[0].agent.starts_with("shoal/"));
    expect(&mut of_b, |event| {
        matches!(event, Event::RoundTrip { node, ms } if node == a.me() && ms > 0.0).then_some(())
    })
    .await;

    a.shutdown().await;
    disconnected(&mut of_b, a.me()).await;
    assert_eq!(b.open(a.me(), Plane::Data).await.unwrap_err(), HopError::Closed);
    assert_eq!(b.ask(a.me(), &RELEASE, PATIENCE).await, Err(HopError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_over_tcp() {
    two_nodes(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_over_quic() {
    two_nodes(QUIC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_over_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this host has no IPv6 loopback");
        return;
    }
    two_nodes("/ip6/::1/tcp/0").await;
    two_nodes("/ip6/::1/udp/0/quic-v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_reaches_who_is_not_connected() {
    let (b, mut of_b) = node(config(2, TCP)).await;
    let boot = vec![address(&b).await];
    let (a, mut of_a) = node(Config { bootstrap: boot.clone(), ..config(1, TCP) }).await;
    let (c, mut of_c) = node(Config { bootstrap: boot, ..config(3, QUIC) }).await;
    // C listens on QUIC and dials over TCP: one node, both transports.
    // In whatever order they come.
    let mut missing = std::collections::BTreeSet::from([a.me(), c.me()]);
    while !missing.is_empty() {
        let came = expect(&mut of_b, |event| match event {
            Event::Connected { node, .. } => Some(node),
            _ => None,
        });
        missing.remove(&came.await);
    }
    connected(&mut of_a, b.me()).await;
    connected(&mut of_c, b.me()).await;
    a.publish(announcement(&identity(1), 1)).await.unwrap();
    announced(&mut of_b, a.me(), 1).await;
    announced(&mut of_c, a.me(), 1).await;
    // Old news is no news: what arrives next is the next number.
    assert!(a.publish(announcement(&identity(1), 1)).await.is_err());
    assert!(a.publish(announcement(&identity(2), 9)).await.is_err(), "another's announcement");
    a.publish(announcement(&identity(1), 2)).await.unwrap();
    announced(&mut of_c, a.me(), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_a_model_are_found() {
    let (hub, _of_hub) = node(config(1, TCP)).await;
    let boot = vec![address(&hub).await];
    let (holder, mut of_holder) = node(Config { bootstrap: boot.clone(), ..config(2, TCP) }).await;
    let (seeker, mut of_seeker) = node(Config { bootstrap: boot, ..config(3, TCP) }).await;
    connected(&mut of_holder, hub.me()).await;
    connected(&mut of_seeker, hub.me()).await;
    let model = ModelId::numbered(5);
    holder.provide(model).await.unwrap();
    let found = async {
        loop {
            let found = seeker.holders(model).await;
            if !found.is_empty() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, found).await.unwrap(), [holder.me()]);
    assert_eq!(seeker.holders(ModelId::numbered(6)).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_addresses_are_named() {
    let (a, _of_a) = node(config(1, TCP)).await;
    let own = address(&a).await;
    for bad in ["", "nonsense", "/ip4/1.2.3.4/tcp/1", own.as_str()] {
        assert!(matches!(a.dial(bad).await, Err(p2p::Error::Address { .. })), "{bad}");
    }
    // A port that was free a moment ago: nothing answers.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert!(matches!(a.dial(&format!("/ip4/127.0.0.1/tcp/{free}")).await, Err(p2p::Error::Unreachable(_))));
    let contact = Contact { node: identity(9).node(), addresses: vec![format!("/ip4/127.0.0.1/tcp/{free}")] };
    assert!(matches!(a.connect(&contact).await, Err(p2p::Error::Unreachable(_))));
    assert!(matches!(
        p2p::spawn(config(2, "/ip4/0.0.0.0/tcp/0")).await.map(drop),
        Err(p2p::Error::Address { .. })
    ));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
    assert!(matches!(p2p::spawn(config(2, &listen)).await.map(drop), Err(p2p::Error::Listen(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swarms_do_not_mix() {
    let (a, _of_a) = node(config(1, TCP)).await;
    let other = p2p::SwarmId::named("other");
    let (b, _of_b) = node(Config { swarm: other, ..config(2, TCP) }).await;
    assert!(matches!(b.dial(&address(&a).await).await, Err(p2p::Error::Unreachable(_))));
    assert_eq!(b.peers().await, []);
    assert_eq!(a.peers().await, []);
}

/// A node of the version before this one is turned away, and the node that refuses it can say why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_an_older_version_is_refused_by_name() {
    let (new, _of_new) = node(config(1, TCP)).await;
    let (old, _of_old) = node(Config { version: p2p::VERSION - 1, ..config(2, TCP) }).await;
    let (there, older) = (address(&old).await, RefusedPeer { node: old.me(), version: p2p::VERSION - 1 });
    // Whichever introduction arrives first ends the connection, so more than one attempt may be needed.
    let refused = async {
        loop {
            let said = new.dial(&there).await.expect_err("they speak different versions").to_string();
            let refused = new.refused().await;
            if !refused.is_empty() {
                return (said, refused);
            }
            // Dials are limited: those of a moment ago are forgotten soon.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let (said, refused) = tokio::time::timeout(PATIENCE, refused).await.expect("it introduces itself");
    assert_eq!(refused, [older]);
    assert!(said.contains("version"), "{said}");
    assert_eq!((new.peers().await, old.peers().await), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wins_the_address_of_another_is_not_taken_for_it() {
    let (a, _of_a) = node(config(1, TCP)).await;
    let (b, _of_b) = node(config(2, TCP)).await;
    let bare = address(&a).await;
    let bare = bare.split("/p2p/").next().unwrap();
    let contact = Contact { node: identity(3).node(), addresses: vec![bare.to_owned()] };
    assert!(matches!(b.connect(&contact).await, Err(p2p::Error::Unreachable(_))));
    // Without a name the address is enough.
    assert_eq!(b.dial(bare).await.unwrap(), a.me());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_brings_a_node_back() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Some(dir.path().join("peers"));
    let (hub, mut of_hub) = node(config(1, TCP)).await;
    let (a, mut of_a) = node(Config { cache: cache.clone(), ..config(2, TCP) }).await;
    a.dial(&address(&hub).await).await.unwrap();
    connected(&mut of_a, hub.me()).await;
    // Who was not noticed is not missed.
    connected(&mut of_hub, a.me()).await;
    a.shutdown().await;
    disconnected(&mut of_hub, a.me()).await;
    // No node is named this time, and the hub does not know where to find it.
    let started = std::time::Instant::now();
    let (again, mut of_again) = node(Config { cache, ..config(2, TCP) }).await;
    assert_eq!(connected(&mut of_again, hub.me()).await, Path::Loopback);
    println!("rejoined after {} ms", started.elapsed().as_millis());
    assert_eq!(again.me(), a.me());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_bootstrap_node_is_found_again() {
    let (hub, _of_hub) = node(config(1, TCP)).await;
    let boot = address(&hub).await;
    let (a, mut of_a) = node(Config { bootstrap: vec![boot.clone()], ..config(2, TCP) }).await;
    connected(&mut of_a, hub.me()).await;
    hub.shutdown().await;
    disconnected(&mut of_a, hub.me()).await;
    let listen = boot.split("/p2p/").next().unwrap();
    let (hub, _of_hub) = node(config(1, listen)).await;
    connected(&mut of_a, hub.me()).await;
    a.close(hub.me()).await;
    disconnected(&mut of_a, hub.me()).await;
}

/// A stream from one node brings another what is written to it.
async fn assert_carries(from: &Network, to: NodeId, of_to: &mut Events) {
    let mut out = from.open(to, Plane::Data).await.unwrap();
    out.send(b"head", b"payload").await.unwrap();
    let mut into = expect(of_to, |event| match event {
        Event::Incoming { plane: Plane::Data, stream, .. } => Some(stream),
        _ => None,
    })
    .await;
    let mut bytes = [0; 11];
    into.recv_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"headpayload");
}

/// Killed and back before its neighbor noticed: QUIC says nothing when a process dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_restarted_unnoticed_is_met_again() {
    let (hub, mut of_hub) = node(config(1, QUIC)).await;
    let bootstrap = vec![address(&hub).await];
    let life = || Config { bootstrap: bootstrap.clone(), ..config(2, QUIC) };
    let first = tokio::runtime::Runtime::new().unwrap();
    let (before, events) = first.spawn(node(life())).await.unwrap();
    let peer = before.me();
    connected(&mut of_hub, peer).await;
    before.publish(announcement(&identity(2), 1)).await.unwrap();
    announced(&mut of_hub, peer, 1).await;
    // Not even a goodbye, as after a kill -9.
    first.shutdown_background();
    drop((before, events));

    let (again, mut of_again) = node(life()).await;
    connected(&mut of_again, hub.me()).await;
    again.publish(announcement(&identity(2), 2)).await.unwrap();
    announced(&mut of_hub, peer, 2).await;
    // What is said later is heard too, and streams take the living connection.
    again.publish(announcement(&identity(2), 3)).await.unwrap();
    announced(&mut of_hub, peer, 3).await;
    hub.publish(announcement(&identity(1), 1)).await.unwrap();
    announced(&mut of_again, hub.me(), 1).await;
    assert_carries(&hub, peer, &mut of_again).await;
}

/// QUIC says nothing when a process dies, and one that rests is missed after half a minute. Where a stream runs, its pings are not
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_dies_while_a_stream_runs_is_missed_at_once() {
    let (me, mut of_me) = node(config(1, QUIC)).await;
    let life = tokio::runtime::Runtime::new().unwrap();
    let (peer, events) = life.spawn(node(config(2, QUIC))).await.unwrap();
    let name = peer.me();
    me.dial(&address(&peer).await).await.unwrap();
    connected(&mut of_me, name).await;
    let stream = me.open(name, Plane::Data).await.unwrap();
    life.shutdown_background();
    drop((peer, events));
    let gone = tokio::time::timeout(Duration::from_secs(20), disconnected(&mut of_me, name));
    gone.await.expect("before its silence says so");
    drop(stream);
}

/// Killed and back elsewhere, and it does not call: a peer that must be sure that it is there finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_must_be_there_is_looked_for_beside_its_ghost() {
    let (me, _of_me) = node(config(1, QUIC)).await;
    let first = tokio::runtime::Runtime::new().unwrap();
    let (before, events) = first.spawn(node(config(2, QUIC))).await.unwrap();
    assert!(me.reach(&before.contact().await, PATIENCE).await.unwrap());
    first.shutdown_background();
    drop((before, events));

    let (again, mut of_again) = node(config(2, QUIC)).await;
    let contact = again.contact().await;
    me.connect(&contact).await.unwrap();
    // The connection to the ghost may be there still or have ended, and the dial may have found the new node already:
    // which of them is no matter here.
    let _ = me.ask(again.me(), &Ask::Ping, Duration::from_millis(50)).await;
    let found = async {
        // A busy machine may need more than one round.
        while !me.reach(&contact, Duration::from_millis(300)).await.unwrap_or(false) {}
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it is found");
    assert_carries(&me, again.me(), &mut of_again).await;
}

/// Carries TCP connections to `target`, each as long as its direction is not cut; what is cut vanishes, and neither end is told.
async fn wire(target: String, cut: Arc<[AtomicBool; 2]>) -> String {
    let port = |address: &str| address.split('/').nth(4).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = target.replacen(&port(&target), &listener.local_addr().unwrap().port().to_string(), 1);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(format!("127.0.0.1:{}", port(&target))).await.unwrap();
            let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
            for (direction, mut from, mut to) in [(0, from_near, to_far), (1, from_far, to_near)] {
                let cut = cut.clone();
                tokio::spawn(async move {
                    let (mut bytes, mut lost) = (vec![0; 16 << 10], false);
                    while let Ok(read @ 1..) = from.read(&mut bytes).await {
                        lost |= cut[direction].load(Ordering::SeqCst);
                        if !lost && to.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    near
}

/// One direction of a connection is cut. Who asks over it and is not answered finds another way, and the other end, which
/// may not have asked for anything, follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_carries_one_way_is_left_by_both_ends() {
    for direction in 0..2 {
        let (a, _of_a) = node(config(1, TCP)).await;
        let (b, mut of_b) = node(config(2, TCP)).await;
        let cut: Arc<[AtomicBool; 2]> = Arc::default();
        b.dial(&wire(address(&a).await, cut.clone()).await).await.unwrap();
        connected(&mut of_b, a.me()).await;
        let [to_a, to_b] = [a.contact().await, b.contact().await];
        assert_eq!(b.ping(&to_a, None, PATIENCE).await, Some(true));
        assert_eq!(a.ping(&to_b, None, PATIENCE).await, Some(true));
        cut[direction].store(true, Ordering::SeqCst);
        // The first word over the cut way goes unanswered; one that is left on a slow machine may have been replaced by then.
        let found = async { while b.ping(&to_a, None, Duration::from_millis(300)).await.is_none() {} };
        tokio::time::timeout(PATIENCE, found).await.expect("it is reached another way");
        assert_eq!(
            b.ping(&to_a, None, PATIENCE).await,
            Some(true),
            "direction {direction}: asked over the new one"
        );
        assert_eq!(
            a.ping(&to_b, None, PATIENCE).await,
            Some(true),
            "direction {direction}: the other end follows"
        );
        assert_carries(&a, b.me(), &mut of_b).await;
    }
}

/// QUIC is dialed faster, TCP carries faster near by and ends with the process at its other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_near_peer_is_met_over_tcp_too() {
    let both = || Config { listen: vec![TCP.to_owned(), QUIC.to_owned()], ..config(1, TCP) };
    let first = tokio::runtime::Runtime::new().unwrap();
    let (peer, events) = first.spawn(node(both())).await.unwrap();
    let quic = peer.addresses().await.into_iter().find(|a| a.contains("quic")).unwrap();
    let (me, mut of_me) = node(config(2, QUIC)).await;
    me.dial(&quic).await.unwrap();
    until("a TCP connection", async || me.peers().await.iter().any(|p| p.addresses[0].contains("/tcp/")))
        .await;
    // Its process dies: the TCP connection ends and takes the silent one along.
    first.shutdown_background();
    drop((peer, events));
    disconnected(&mut of_me, identity(1).node()).await;
    assert_eq!(me.peers().await, []);
}

/// A node that was started again listens elsewhere, and nothing answers where it was, which takes QUIC seconds to
/// find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_addresses_do_not_hold_up_new_ones() {
    let (peer, _events) = node(config(1, QUIC)).await;
    let (me, _of_me) = node(config(2, QUIC)).await;
    let silent: Vec<_> = (0..3).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let old =
        |which: usize| format!("/ip4/127.0.0.1/udp/{}/quic-v1", silent[which].local_addr().unwrap().port());
    let to = |address: String| {
        let (me, contact) = (me.clone(), Contact { node: peer.me(), addresses: vec![address] });
        tokio::spawn(async move { me.connect(&contact).await })
    };
    let first = to(old(0));
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Dialed beside the one that hangs: every waiting caller is served.
    to(address(&peer).await).await.unwrap().unwrap();
    first.await.unwrap().unwrap();

    me.close(peer.me()).await;
    let (peer, _events) = node(config(3, QUIC)).await;
    let to = |address: String| {
        let (me, contact) = (me.clone(), Contact { node: peer.me(), addresses: vec![address] });
        tokio::spawn(async move { me.connect(&contact).await })
    };
    let hanging = [to(old(1)), to(old(2))];
    tokio::time::sleep(Duration::from_millis(50)).await;
    // No third at once: it is dialed when those have failed, before any caller learns that they have.
    to(address(&peer).await).await.unwrap().unwrap();
    for one in hanging {
        one.await.unwrap().unwrap();
    }
}
