//! A requester with one lease opens many streams and begins the longest frame on each: it makes the node hold little, and
//! nothing once the lease is given back, although the connection stays.

use std::{
    thread,
    time::{Duration, Instant},
};

use ::node::sessions::place;
use harness::{Shoal, node::Node};
use p2p::{
    Config, Identity, Network, Plane,
    codec::{Rounding, Wire},
    link::Stream,
    wire::{
        control::{Answer, Ask, Lease, Reuse, Role},
        frame::{Header, Hello, MAX_FRAME},
    },
};
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};
use tempfile::TempDir;

use super::{
    ANSWER, MAX_GROWTH_KIB, MAX_RESIDENT_KIB, PROMPT, back, full, limit, resident_kib, slack, worst,
};

/// Values of a row of minnow.
const HIDDEN: usize = 256;
/// Values of a row of a model whose longest frame has 8 MiB.
const WIDE: usize = 8_192;
const SESSION: SessionId = SessionId::new([77; 16]);

/// Opens a stream of the session and sends all of a frame but its last byte, as far as the node reads.
async fn begin(network: &Network, victim: NodeId, width: usize) -> Option<Stream> {
    let mut stream = network.open(victim, Plane::Data).await.ok()?;
    let hello = Hello { session: place(network.me(), SESSION), epoch: 1 };
    stream.send(&hello.write(), &[]).await.ok()?;
    let header = Header::activations(Wire::Raw, 1, 1, 0, 256, width).unwrap();
    let bytes = vec![0; header.len as usize - 1];
    // Stands still when the node does not read.
    let _ = tokio::time::timeout(Duration::from_millis(100), stream.send(&header.write(), &bytes)).await;
    Some(stream)
}

#[test]
fn frames_that_are_never_finished_hold_little() {
    let streams = if full() { 128 } else { 48 };
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let alone = Shoal::new().json(["run", "--json", "-n", "8", PROMPT], "");
    let ask = || {
        let answer = asks.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
        assert_eq!(answer["ids"], alone["ids"], "{answer}");
    };
    let undisturbed = worst(3, ask);
    let daemon = u64::from(serves.child.id());
    let before = resident_kib(daemon);
    let id = serves.ask(&["status"])["model"]["id"].as_str().unwrap().to_owned();
    let id: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap()).collect();
    let model = ModelId::new(id.try_into().unwrap());

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (network, victim, held) = runtime.block_on(async {
        let listen = vec!["/ip4/127.33.0.1/tcp/0".to_owned()];
        let limits = p2p::config::Limits { streams_per_peer: 1_000, ..Default::default() };
        let swarm = p2p::SwarmId::named("shoal");
        let config = Config { listen, swarm, limits, ..Config::loopback(Identity::from_seed([199; 32])) };
        let (network, events) = p2p::spawn(config).await.unwrap();
        // Never read: the stranger does not care.
        std::mem::forget(events);
        // Thousands of connections of another test may have just ended at the port that this one would come from.
        let started = Instant::now();
        let victim = loop {
            match network.dial(serves.tcp()).await {
                Ok(victim) => break victim,
                Err(why) => assert!(started.elapsed() < ANSWER * 45, "{why}"),
            }
            tokio::time::sleep(ANSWER / 2).await;
        };
        let lease = Lease {
            session: SESSION,
            epoch: 1,
            model,
            layers: LayerRange::new(1, 7).unwrap(),
            positions: 512,
            at: 0,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            next: None,
            previous: None,
            log: false,
            ttl_ms: 600_000,
            role: Role::Stage,
            reuse: Reuse::default(),
        };
        let answer = network.ask(victim, &Ask::Lease(Box::new(lease)), ANSWER * 10).await.unwrap();
        assert!(matches!(answer, Answer::Accepted { .. }), "{answer:?}");
        let mut held = Vec::new();
        for i in 0..streams {
            held.extend(begin(&network, victim, if i % 2 == 0 { WIDE } else { HIDDEN }).await);
        }
        (network, victim, held)
    });
    assert!(held.len() > streams / 2, "only {} streams were opened", held.len());
    let (now, bytes) = (resident_kib(daemon), limit(&serves, "bytes"));
    println!("{} streams: daemon {before} -> {now} KiB, {} bytes of frames held", held.len(), bytes.used);
    assert!(now < MAX_RESIDENT_KIB && now.saturating_sub(before) < MAX_GROWTH_KIB, "{before} -> {now} KiB");
    assert!(bytes.peer_used <= 4 * MAX_FRAME as u64, "{bytes:?}");
    let meanwhile = worst(3, ask);
    println!("the slowest prompt took {meanwhile:?}, before {undisturbed:?}");
    assert!(meanwhile < undisturbed.mul_f64(1.3) + slack(), "{meanwhile:?} instead of {undisturbed:?}");

    let released =
        runtime.block_on(network.ask(victim, &Ask::Release { session: SESSION, epoch: 1 }, ANSWER * 10));
    assert_eq!(released, Ok(Answer::Released));
    let started = Instant::now();
    // The stranger keeps its connection and its ends of the streams.
    while limit(&serves, "bytes").used > 0
        || limit(&serves, "leases").used > 0
        || limit(&serves, "streams").used > 0
    {
        assert!(started.elapsed() < back(), "not everything is back: {}", serves.ask(&["status"])["limits"]);
        thread::sleep(Duration::from_millis(100));
    }
    println!("everything was back after {:?}", started.elapsed());
    assert!(limit(&serves, "connections").used > 0, "the stranger is still connected");
    ask();
    drop(held);
    runtime.block_on(network.shutdown());
}
