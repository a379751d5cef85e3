//! Peers that flood, stall, lie about lengths and open whatever they can: memory and service hold.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use p2p::wire::control::{Answer, Ask, Contact};
use p2p::{Config, Event, HopError, Plane};
use scheduler::SessionId;
use scheduler::governor::Resource;
use support::*;

/// Growth of this process that a flood may cause, KiB: TRUST.md's figure. Attacker and victim share the process.
const MAX_GROWTH_KIB: u64 = 64 << 10;

/// How soon a newcomer is in while others crowd the door; 3 s is promised, and a debug build on a busy machine is slower.
const JOIN: Duration = Duration::from_secs(12);

/// Memory and time are counted per process: the tests take turns in it.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Resident memory of this process, KiB; `None` where the system does not say.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn assert_growth(before: Option<u64>, what: &str) {
    if let (Some(before), Some(after)) = (before, resident_kib()) {
        let growth = after.saturating_sub(before);
        println!("{what}: {before} KiB -> {after} KiB");
        assert!(growth < MAX_GROWTH_KIB, "{what}: grew by {growth} KiB");
    }
}

/// Answers every ask of a node with `Released`, until it stops.
fn serve(network: p2p::Network, mut events: p2p::Events) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::Ask { reply, .. } = event {
                network.answer(reply, Answer::Released);
            }
        }
    })
}

/// An honest node can connect and is answered: at once, or when the places that a flood took are free again.
async fn assert_serves(address: &str, node_seed: u8) {
    let until = Instant::now() + PATIENCE;
    let (honest, _events, peer) = loop {
        // With a port of its own each time: a port that an earlier socket still occupies cannot be dialed from.
        let (honest, events) = node(config(node_seed, TCP)).await;
        match honest.dial(address).await {
            Ok(peer) => break (honest, events, peer),
            Err(error) if Instant::now() > until => panic!("no honest node gets in: {error}"),
            Err(_) => honest.shutdown().await,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ask = Ask::Release { session: SessionId::new([2; 16]), epoch: 1 };
    assert_eq!(honest.ask(peer, &ask, PATIENCE).await, Ok(Answer::Released));
    honest.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_come_and_go() {
    let _alone = ALONE.lock().await;
    let (victim, events) = node(config(1, TCP)).await;
    let at = address(&victim).await;
    let serving = serve(victim.clone(), events);
    assert_serves(&at, 2).await;
    let before = resident_kib();
    let port: u16 = at.split('/').nth(4).unwrap().parse().unwrap();
    let flood = tokio::task::spawn_blocking(move || {
        let mut held = std::collections::VecDeque::new();
        for i in 0..10_000 {
            // The victim may refuse at any moment, that is its right.
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            if i % 2 == 0 {
                let _ = stream.write_all(b"\x13/multistream/1.0.0\n");
            }
            held.push_back(stream);
            if held.len() > 64 {
                held.pop_front();
            }
        }
    });
    flood.await.unwrap();
    assert_serves(&at, 3).await;
    assert_growth(before, "10,000 connections");
    assert!(victim.peers().await.len() <= 1, "raw sockets are no peers");
    victim.shutdown().await;
    serving.await.unwrap();
}

/// Silent sockets to a port, from addresses of loopback networks of their own.
async fn silent_sockets(
    port: u16,
    from: impl Iterator<Item = std::net::Ipv4Addr>,
) -> Vec<tokio::net::TcpStream> {
    let mut held = Vec::new();
    for ip in from {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((ip, 0).into()).unwrap();
        // The victim may refuse at any moment, that is its right.
        let connected = socket.connect((std::net::Ipv4Addr::LOCALHOST, port).into());
        if let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_secs(5), connected).await {
            held.push(stream);
        }
    }
    held
}

/// Sockets that say nothing: many of one network, then some of each of many. They are held open all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sockets_do_not_keep_newcomers_out() {
    let _alone = ALONE.lock().await;
    let full = std::env::var_os("SHOAL_HOSTILE").is_some_and(|value| value == "full");
    let (one, prefixes, each) = if full { (2_000, 100, 5) } else { (300, 60, 5) };
    let both = Config { listen: vec![TCP.to_owned(), QUIC.to_owned()], ..config(1, TCP) };
    let (victim, events) = node(both).await;
    let addresses = victim.addresses().await;
    let over = |word: &str| addresses.iter().find(|address| address.contains(word)).unwrap().clone();
    let (tcp, quic) = (over("/tcp/"), over("/udp/"));
    let port: u16 = tcp.split('/').nth(4).unwrap().parse().unwrap();
    let serving = serve(victim.clone(), events);
    let before = resident_kib();
    let row = |victim: &p2p::Network| {
        let usage = victim.governor().usage();
        usage.into_iter().find(|row| row.limit.resource == Resource::Handshakes).unwrap()
    };

    let crowd = silent_sockets(port, (0..one).map(|_| std::net::Ipv4Addr::new(127, 9, 0, 1))).await;
    assert!(crowd.len() > one / 2, "only {} sockets were let in", crowd.len());
    let used = row(&victim);
    assert!(used.prefix_used <= used.limit.prefix && used.refused > 0, "{used:?}");
    let started = Instant::now();
    assert_serves(&tcp, 2).await;
    println!("joined over TCP in {:?} under {} sockets of one network", started.elapsed(), crowd.len());
    assert!(started.elapsed() < JOIN, "a newcomer needed {:?}", started.elapsed());
    drop(crowd);

    let many =
        (0..prefixes).flat_map(|n| (0..each).map(move |host| std::net::Ipv4Addr::new(127, 10, n, host + 1)));
    let crowd = silent_sockets(port, many).await;
    let used = row(&victim);
    assert!(used.used <= used.limit.node, "{used:?}");
    for (seed, address) in [(3, &tcp), (4, &quic)] {
        let started = Instant::now();
        assert_serves(address, seed).await;
        println!("joined at {address} in {:?} under {} sockets", started.elapsed(), crowd.len());
        assert!(started.elapsed() < JOIN, "a newcomer needed {:?}", started.elapsed());
    }
    assert_growth(before, "silent sockets");
    // They are still open here, and no longer there.
    until("silent handshakes are given up", async || row(&victim).used == 0).await;
    drop(crowd);
    victim.shutdown().await;
    serving.await.unwrap();
}

/// Set in the process of the attacker of `streams_never_read_are_bounded`: the victim's address.
const GREEDY: &str = "SHOAL_TEST_GREEDY";

/// Opens 2,000 streams to a node, sends what fits into each, says how many it holds and holds them until its input ends.
async fn open_and_hold(at: &str) {
    let (greedy, _events) = node(Config {
        limits: p2p::config::Limits { streams_per_peer: 10_000, ..Default::default() },
        ..config(2, TCP)
    })
    .await;
    let peer = greedy.dial(at).await.unwrap();
    let mut open = Vec::new();
    for _ in 0..2_000 {
        let Ok(mut stream) = greedy.open(peer, Plane::Data).await else { continue };
        // At most a window's worth leaves; then the sender waits, not the victim's memory.
        let sent = tokio::time::timeout(Duration::from_millis(1), stream.send(&[1; 64 << 10], &[])).await;
        drop(sent);
        open.push(stream);
    }
    println!("opened {}", open.len());
    // The victim's process closes it, also when it fails.
    let end = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(end).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_never_read_are_bounded() {
    if let Ok(at) = std::env::var(GREEDY) {
        return open_and_hold(&at).await;
    }
    let _alone = ALONE.lock().await;
    let (victim, mut events) = node(config(1, TCP)).await;
    let at = address(&victim).await;
    // The victim takes streams and never reads them.
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(event) = events.next().await {
            if let Event::Incoming { stream, .. } = event {
                held.push(stream);
            }
        }
        held.len()
    });
    let before = resident_kib();
    // The attacker has a process of its own: what it holds itself is not the victim's.
    let mut attacker = Command::new(std::env::current_exe().unwrap())
        .args(["streams_never_read_are_bounded", "--exact", "--nocapture"])
        .env(GREEDY, &at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(attacker.stdout.take().unwrap()).lines().map_while(Result::ok);
    let opened = tokio::task::spawn_blocking(move || {
        let said = lines.find_map(|line| line.split_once("opened ").map(|(_, opened)| opened.to_owned()));
        // What it says later goes nowhere, and its output stays open.
        (said.and_then(|opened| opened.trim().parse::<usize>().ok()), lines)
    });
    let (opened, _lines) = opened.await.unwrap();
    let opened = opened.expect("the attacker says what it opened");
    assert!(opened >= 128, "the attacker opened {opened} streams only");
    assert_growth(before, "2,000 streams never read");
    let ask = Ask::CatchUp { have: 0 };
    let (honest, _of_honest) = node(config(3, TCP)).await;
    let peer = honest.dial(&at).await.unwrap();
    assert_eq!(honest.ask(peer, &ask, PATIENCE).await, Ok(Answer::Announcements(Vec::new())));
    drop(attacker.stdin.take());
    attacker.wait().unwrap();
    victim.shutdown().await;
    let held = held.await.unwrap();
    assert!((1..=128).contains(&held), "{held} streams of one peer were taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_length_costs_nothing() {
    let _alone = ALONE.lock().await;
    let (victim, mut of_victim) = node(config(1, TCP)).await;
    let (liar, _of_liar) = node(config(2, TCP)).await;
    let peer = liar.dial(&address(&victim).await).await.unwrap();
    let mut stream = liar.open(peer, Plane::Data).await.unwrap();
    stream.send(&[1; 10], &[]).await.unwrap();
    let mut taken = expect(&mut of_victim, |event| match event {
        Event::Incoming { stream, .. } => Some(stream),
        _ => None,
    })
    .await;
    let mut payload = Vec::new();
    assert_eq!(taken.recv_payload(9 << 20, 8 << 20, &mut payload).await, Err(HopError::Corrupt));
    assert_eq!(payload.capacity(), 0, "beyond the cap nothing is allocated");
    let claimed = taken.recv_payload(8 << 20, 8 << 20, &mut payload);
    assert!(
        tokio::time::timeout(Duration::from_millis(200), claimed).await.is_err(),
        "ten bytes came, not 8 MiB"
    );
    assert!(payload.capacity() <= 128 << 10, "{} bytes for ten", payload.capacity());
    let mut byte = [0];
    let waited = taken.recv_exact_within(&mut byte, Duration::from_millis(50)).await;
    assert_eq!(waited, Err(HopError::Timeout), "a slow peer runs into the reader's deadline");
    let oversize = vec![0; p2p::link::MAX_SEND + 1];
    assert!(matches!(stream.send(&oversize, &[]).await, Err(HopError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_announcements_is_cut_off() {
    let _alone = ALONE.lock().await;
    let (victim, mut of_victim) = node(config(1, TCP)).await;
    let at = address(&victim).await;
    let (honest, _of_honest) = node(config(3, TCP)).await;
    honest.dial(&at).await.unwrap();
    connected(&mut of_victim, honest.me()).await;
    let (flooder, mut of_flooder) = node(config(2, TCP)).await;
    flooder.dial(&at).await.unwrap();
    connected(&mut of_flooder, victim.me()).await;
    // What one node publishes in a burst leaves at its own rate; the last word is what counts.
    let started = Instant::now();
    for sequence in 1..=200 {
        flooder.publish(announcement(&identity(2), sequence)).await.unwrap();
    }
    let mut heard = 0;
    expect(&mut of_victim, |event| match event {
        Event::Announcement(announcement, _) if announcement.node() == flooder.me() => {
            heard += 1;
            (announcement.capability.claim().sequence == 200).then_some(())
        }
        _ => None,
    })
    .await;
    // Eight at once and one a second, at the most, and what each of the two others had when it was asked to catch up.
    let allowed = 10 + started.elapsed().as_secs();
    assert!(heard <= allowed, "{heard} of 200 announcements came through");
    honest.publish(announcement(&identity(3), 1)).await.unwrap();
    announced(&mut of_victim, honest.me(), 1).await;
}

/// Garbage and stale announcements, without any of our own restraint: the flooder is shut out, others are heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_garbage_gossip_is_shut_out() {
    let _alone = ALONE.lock().await;
    use futures::StreamExt;
    let (victim, mut of_victim) = node(config(1, TCP)).await;
    let at = address(&victim).await;
    let (honest, mut of_honest) = node(config(3, TCP)).await;
    honest.dial(&at).await.unwrap();
    connected(&mut of_honest, victim.me()).await;
    connected(&mut of_victim, honest.me()).await;
    let swarm = p2p::SwarmId::named(p2p::SwarmId::PUBLIC_NAME);
    let topic =
        libp2p::gossipsub::IdentTopic::new(format!("/shoal/{swarm}/announce/{}", p2p::config::VERSION));
    let mut attacker = raw::swarm(swarm, &topic);
    attacker.dial(at.parse::<libp2p::Multiaddr>().unwrap()).unwrap();
    let before = resident_kib();
    let flood = tokio::spawn(async move {
        let mut sent = 0_u64;
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            let garbage = [&sent.to_le_bytes()[..], &[0; 1_000]].concat();
            sent += u64::from(attacker.behaviour_mut().gossip.publish(topic.clone(), garbage).is_ok());
            // Give the connection a turn, or nothing leaves.
            let _ = tokio::time::timeout(Duration::from_micros(50), attacker.next()).await;
        }
        sent
    });
    let told = async {
        for sequence in 1..=6 {
            honest.publish(announcement(&identity(3), sequence)).await.unwrap();
            announced(&mut of_victim, honest.me(), sequence).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    told.await;
    let sent = flood.await.unwrap();
    assert!(sent > 100, "the flood was {sent} messages");
    println!("{sent} pieces of garbage");
    assert_growth(before, "garbage gossip");
}

/// Asks in a loop: beyond its share of the processor a peer gets no answers, and another one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_without_end_leave_time_for_others() {
    let _alone = ALONE.lock().await;
    let others = p2p::config::Limits::default().others.set(Resource::Cpu, [1_000_000, 600_000, 5_000]);
    let limits = p2p::config::Limits { others, ..Default::default() };
    let (victim, events) = node(Config { limits, ..config(1, TCP) }).await;
    let at = address(&victim).await;
    let serving = serve(victim.clone(), events);
    let (greedy, _of_greedy) = node(config(2, TCP)).await;
    let peer = greedy.dial(&at).await.unwrap();
    let asks = (0..200).map(|_| greedy.ask(peer, &Ask::Ping, PATIENCE));
    let answered = futures::future::join_all(asks).await.into_iter().filter(Result::is_ok).count();
    let row =
        |resource| victim.governor().usage().into_iter().find(|row| row.limit.resource == resource).unwrap();
    println!("{answered} of 200 asks were answered: {:?}", row(Resource::Cpu));
    assert!(
        row(Resource::Cpu).refused > 0 && answered < 200,
        "200 asks cost forty times its share of a second"
    );
    assert_serves(&at, 3).await;
    victim.shutdown().await;
    serving.await.unwrap();
}

/// A lease that names a node with addresses of the requester's choosing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_does_not_choose_what_is_dialed() {
    let _alone = ALONE.lock().await;
    let (victim, mut of_victim) = node(config(1, TCP)).await;
    let (meant, _of_meant) = node(config(3, TCP)).await;
    let stranger = identity(9).node();
    let target = tokio::net::TcpListener::bind("127.9.0.1:0").await.unwrap();
    let at_target = format!("/ip4/127.9.0.1/tcp/{}", target.local_addr().unwrap().port());
    let named = Contact { node: meant.me(), addresses: vec![at_target, address(&meant).await] };
    for _ in 0..3 {
        let reached = victim.reach_named(&named, stranger, Duration::from_secs(1)).await;
        let said = reached.expect_err("neither address is known to be that node's").to_string();
        assert!(said.contains("announced"), "{said}");
    }
    // What the node says of itself is heard by way of another.
    let (between, _of_between) = node(config(4, TCP)).await;
    between.dial(&address(&victim).await).await.unwrap();
    meant.dial(&address(&between).await).await.unwrap();
    let own = meant.addresses().await;
    meant.publish(announcement_at(&identity(3), 1, own)).await.unwrap();
    announced(&mut of_victim, meant.me(), 1).await;
    assert!(victim.reach_named(&named, stranger, PATIENCE).await.unwrap(), "it is where it said");
    let dialed = tokio::time::timeout(Duration::from_millis(500), target.accept()).await;
    assert!(dialed.is_err(), "the stranger's target was dialed");
}

mod raw {
    use libp2p::gossipsub::{
        self, ConfigBuilder, IdentTopic, MessageAuthenticity, MessageId, ValidationMode,
    };
    use libp2p::swarm::NetworkBehaviour;
    use libp2p::{SwarmBuilder, identify, noise, tcp, yamux};

    #[derive(NetworkBehaviour)]
    pub struct Behaviour {
        pub gossip: gossipsub::Behaviour,
        pub identify: identify::Behaviour,
    }

    pub fn swarm(swarm: p2p::SwarmId, topic: &IdentTopic) -> libp2p::Swarm<Behaviour> {
        let settings = ConfigBuilder::default()
            .protocol_id_prefix(format!("/shoal/{swarm}/gossip"))
            .validation_mode(ValidationMode::Anonymous)
            .message_id_fn(|message| MessageId::new(blake3::hash(&message.data).as_bytes()))
            .heartbeat_initial_delay(std::time::Duration::from_millis(100))
            .build()
            .unwrap();
        let mut gossip = gossipsub::Behaviour::new(MessageAuthenticity::Anonymous, settings).unwrap();
        gossip.subscribe(topic).unwrap();
        SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|key| {
                let settings =
                    identify::Config::new(format!("/shoal/{swarm}/{}", p2p::config::VERSION), key.public());
                Behaviour { gossip, identify: identify::Behaviour::new(settings) }
            })
            .unwrap()
            .build()
    }
}
