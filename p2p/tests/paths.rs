//! Private swarms, relays and what a path is called.

mod support;

use p2p::{Admission, Config, Event, Path, Plane, Reach};
use support::*;

fn with(psk: Option<[u8; 32]>) -> Admission {
    Admission { psk, ..Admission::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_swarm_opens_to_its_key_only() {
    for listen in [TCP, QUIC] {
        let key = Some([7; 32]);
        let (a, mut of_a) = node(Config { admission: with(key), ..config(1, listen) }).await;
        let at = address(&a).await;
        for wrong in [None, Some([8; 32])] {
            let (outsider, _events) = node(Config { admission: with(wrong), ..config(2, listen) }).await;
            let refused = outsider.dial(&at).await;
            assert!(matches!(refused, Err(p2p::Error::Unreachable(_))), "{listen} {wrong:?}: {refused:?}");
            let back = a.dial(&address(&outsider).await).await;
            assert!(matches!(back, Err(p2p::Error::Unreachable(_))), "{listen} {wrong:?}: {back:?}");
        }
        let (b, mut of_b) = node(Config { admission: with(key), ..config(3, listen) }).await;
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

/// The same, reachable through `relays` only, and where `punch` says so through the networks between.
fn behind(relays: Vec<String>, punch: bool, config: Config) -> Config {
    Config { reach: Reach { relays, punch, ..Reach::default() }, ..config }
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
    let (b, mut of_b) = node(behind(relays, punch, config(2, TCP))).await;
    connected(&mut of_relay, b.me()).await;
    let circuit = expect(&mut of_b, |event| match event {
        Event::Listening { address } if address.contains("p2p-circuit") => Some(address),
        _ => None,
    })
    .await;
    let (c, mut of_c) = node(behind(Vec::new(), punch, config(3, TCP))).await;
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

/// The first circuit that a node listens on.
async fn circuit(events: &mut p2p::Events) -> String {
    expect(events, |event| match event {
        Event::Listening { address } if address.contains("p2p-circuit") => Some(address),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_neither_reached_through_a_relay_nor_reaches_others() {
    use futures::StreamExt;
    use libp2p::swarm::SwarmEvent;
    let (relay, _of_relay) = node(Config { relay: true, ..config(1, TCP) }).await;
    let at = address(&relay).await;
    let (member, mut of_member) = node(behind(vec![at.clone()], false, config(2, TCP))).await;
    let to_member = circuit(&mut of_member).await;
    let held = |resource| relay.governor().used(resource, scheduler::governor::Scope::Node);
    let (reserved, carried) =
        (scheduler::governor::Resource::Reservations, scheduler::governor::Resource::Circuits);
    assert_eq!((held(reserved), held(carried)), (1, 0));
    // It speaks the relay's protocol and does not say of which swarm it is.
    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(libp2p::tcp::Config::default(), libp2p::noise::Config::new, libp2p::yamux::Config::default)
        .unwrap()
        .with_relay_client(libp2p::noise::Config::new, libp2p::yamux::Config::default)
        .unwrap()
        .with_behaviour(|_, client| client)
        .unwrap()
        .build();
    let through: libp2p::Multiaddr = format!("{at}/p2p-circuit").parse().unwrap();
    let listener = stranger.listen_on(through).unwrap();
    let refused = async {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::ListenerClosed { listener_id, .. } if listener_id == listener => break,
                SwarmEvent::NewListenAddr { address, .. } => panic!("it is reached at {address}"),
                _ => {}
            }
        }
        stranger.dial(to_member.parse::<libp2p::Multiaddr>().unwrap()).unwrap();
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::OutgoingConnectionError { .. } => break,
                SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                    let peer = p2p::identity::node_id(&peer_id);
                    assert_eq!(peer, Some(relay.me()), "only the relay itself is reached");
                }
                _ => {}
            }
        }
    };
    // What it asks ends with its connections, which are closed when it does not introduce itself.
    tokio::time::timeout(4 * PATIENCE, refused).await.expect("it is refused");
    assert_eq!((held(reserved), held(carried)), (1, 0));
    // Another member is let through, and counts.
    let (other, _of_other) = node(behind(Vec::new(), false, config(3, TCP))).await;
    other.dial(&at).await.unwrap();
    other.dial(&to_member).await.unwrap();
    assert_eq!(held(carried), 1);
    other.shutdown().await;
    until("a circuit ends with its peer", async || held(carried) == 0).await;
    drop(member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circuits_and_reservations_keep_to_the_governor_s_limits() {
    use scheduler::governor::{Limits, Resource, Scope};
    let others = Limits::default().set(Resource::Reservations, [1, 1, 1]).set(Resource::Circuits, [0, 0, 0]);
    let limits = p2p::config::Limits { others, ..Default::default() };
    let (relay, _of_relay) = node(Config { relay: true, limits, ..config(1, TCP) }).await;
    let at = address(&relay).await;
    let with = |seed| behind(vec![at.clone()], false, config(seed, TCP));
    let (_first, mut of_first) = node(with(2)).await;
    let to_first = circuit(&mut of_first).await;
    let (second, mut of_second) = node(with(3)).await;
    connected(&mut of_second, relay.me()).await;
    let refused = |resource| {
        let rows = relay.governor().usage();
        rows.iter().find(|row| row.limit.resource == resource).unwrap().refused
    };
    until("it asks for a reservation", async || refused(Resource::Reservations) > 0).await;
    assert_eq!(relay.governor().used(Resource::Reservations, Scope::Node), 1);
    assert!(second.addresses().await.iter().all(|address| !address.contains("p2p-circuit")));
    assert!(second.dial(&to_first).await.is_err());
    assert!(refused(Resource::Circuits) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_knows_its_neighbors_only_asks_for_a_stranger() {
    // Three networks. The relay dials the one it knows, so a connection from there would prove nothing of the way in.
    let listen = |number: u8| format!("/ip4/127.0.{number}.1/tcp/0");
    let (knows, _of_knows) = node(config(2, &listen(2))).await;
    let (third, _of_third) = node(config(3, &listen(3))).await;
    third.dial(&address(&knows).await).await.unwrap();
    let relay = Config { relay: true, bootstrap: vec![address(&knows).await], ..config(1, &listen(1)) };
    let (relay, mut of_relay) = node(relay).await;
    connected(&mut of_relay, knows.me()).await;
    let (hidden, mut of_hidden) =
        node(behind(vec![address(&relay).await], false, config(4, &listen(1)))).await;
    let through = circuit(&mut of_hidden).await;
    assert!(through.contains("127.0.1.1"), "{through}");
    drop(hidden);
}

#[tokio::test]
async fn a_relay_behind_a_relay_is_refused() {
    let (relay, _of_relay) = node(config(1, TCP)).await;
    let at = address(&relay).await;
    let peer = p2p::identity::peer_id(identity(2).node()).unwrap();
    let relays = vec![format!("{at}/p2p-circuit/p2p/{peer}")];
    let refused = p2p::spawn(behind(relays, true, config(3, TCP))).await;
    assert!(
        matches!(&refused, Err(p2p::Error::Address { why, .. }) if why.contains("directly")),
        "{refused:?}"
    );
}

/// What a node that listens on this host says of itself to one that dials `at`, of the same swarm and with no other ties.
async fn told(swarm: p2p::SwarmId, at: &str) -> Vec<String> {
    use futures::StreamExt;
    use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
    use libp2p::{identify, noise, relay, tcp, yamux};

    #[derive(NetworkBehaviour)]
    struct Stranger {
        client: relay::client::Behaviour,
        identify: identify::Behaviour,
    }
    let version = format!("/shoal/{swarm}/{}", p2p::config::VERSION);
    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_relay_client(noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|key, client| {
            let identify = identify::Behaviour::new(identify::Config::new(version, key.public()));
            Stranger { client, identify }
        })
        .unwrap()
        .build();
    let at: libp2p::Multiaddr = at.parse().unwrap();
    let Some(libp2p::multiaddr::Protocol::P2p(meant)) = at.iter().last() else {
        panic!("{at} names no node")
    };
    stranger.dial(at).unwrap();
    let introduced = async {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::Behaviour(StrangerEvent::Identify(identify::Event::Received {
                    peer_id,
                    info,
                    ..
                })) if peer_id == meant => break info.listen_addrs,
                SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, introduced).await.expect("it introduces itself");
    told.iter().map(ToString::to_string).collect()
}

/// A relay says nothing of where its peer is: who comes through it hears no address of this host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_is_said_to_who_is_near_and_to_no_stranger() {
    let (relay, _of_relay) = node(Config { relay: true, ..config(1, TCP) }).await;
    let relays = vec![address(&relay).await];
    // As nodes are outside of tests: what is connected to it may be anywhere.
    let reach = Reach { relays, upnp: false, ..Reach::default() };
    let anywhere = Config { loopback_only: false, mdns: false, reach, ..config(2, TCP) };
    let swarm = anywhere.swarm;
    let (home, mut of_home) = node(anywhere).await;
    let through = circuit(&mut of_home).await;
    let near = home.addresses().await.into_iter().find(|address| !address.contains("p2p-circuit")).unwrap();
    let bare = near.split("/p2p/").next().unwrap();
    let said = told(swarm, &near).await;
    assert!(said.iter().any(|address| address == bare), "{near} of {said:?}");
    assert_eq!(told(swarm, &through).await, [""; 0], "through {through}");
}
