//! Attacks on running nodes, while honest prompts go through them; a file for each that is not in this one.
//!
//! Here a crowd of strangers does what it likes to a serving node, while an honest neighbor's prompts go through it.
//!
//! Raw connections that say half a word and vanish, streams that promise frames larger than allowed, streams that
//! trickle, streams that are never read or written, and asks for everything that is known, again and again. What
//! counts is that every honest answer is right and that the memory of the daemon and of its worker stays bounded; both
//! are printed. Garbage gossip is in `p2p/tests/hostile.rs`, where the raw protocols are at hand.
//!
//! Leases that are not used, and names and addresses in them, are in `leases.rs`, made-up identities in `sybils.rs`, model files in
//! `files.rs`, requests over HTTP in `requests.rs`.
//!
//! Attackers and honest nodes are in different networks of loopback, which count as different prefixes of addresses.
//! `SHOAL_HOSTILE=full` opens 10,000 connections and asks 40 times, and holds the times that are promised, so it wants a machine with
//! nothing else to do and `--test-threads=1`; without it the same in small, with time to spare.

mod bytes;
mod files;
mod leases;
mod requests;
mod silent;
mod sybils;

use std::{
    fs,
    io::{self, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ::node::reports::LimitReport;
use harness::{Shoal, node::Node};
use p2p::{
    Config, Identity, Network, Plane,
    codec::Wire,
    wire::{
        control::Ask,
        frame::{HEADER_LEN, Header, Hello, Kind, MAX_FRAME},
    },
};
use scheduler::SessionId;
use tempfile::TempDir;
use tokio::net::TcpSocket;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// What the crowd may add to the memory of the node, KiB: three times what 10,000 connections were seen to add.
const MAX_GROWTH_KIB: u64 = 32 << 10;
/// How long a stranger waits for an answer.
const ANSWER: Duration = Duration::from_secs(2);

/// What a node's daemon may hold under any of these attacks, KiB: 76 MiB were seen.
const MAX_RESIDENT_KIB: u64 = 128 << 10;

/// The networks of loopback that raw sockets come from: other ones than those of honest nodes, which listen on 127.0.0.1.
const KNOCKERS: Ipv4Addr = Ipv4Addr::new(127, 30, 0, 1);

/// Whether the attacks have the size of real ones.
fn full() -> bool {
    std::env::var_os("SHOAL_HOSTILE").is_some_and(|value| value == "full")
}

/// How long what an attack held may take to come back: the five seconds that are promised where attacks have their full size,
/// which is on an idle machine. A busy machine takes some times that. A door that stays shut does so for as long as a lease may
/// last, ten minutes, or as the attacker's connections do, which is until these tests end.
fn back() -> Duration {
    Duration::from_secs(if full() { 5 } else { 45 })
}

/// What an honest prompt may take beyond 1.3 times what it takes undisturbed: a second where attacks have their full size, more
/// on a busy machine, where a debug build waits for its turn.
fn slack() -> Duration {
    Duration::from_secs(if full() { 1 } else { 15 })
}

/// A row of a node's limits.
fn limit(node: &Node, resource: &str) -> LimitReport {
    let status = node.ask(&["status"]);
    let rows: Vec<LimitReport> = serde_json::from_value(status["limits"].clone()).unwrap();
    rows.into_iter().find(|row| row.resource == resource).unwrap_or_else(|| panic!("no {resource}: {status}"))
}

/// The longest of so many times.
fn worst(times: usize, mut what: impl FnMut()) -> Duration {
    let mut time = || {
        let started = Instant::now();
        what();
        started.elapsed()
    };
    (0..times).map(|_| time()).max().unwrap_or_default()
}

struct Size {
    connections: usize,
    strangers: u8,
    streams: usize,
    prompts: usize,
}

fn size() -> Size {
    match full() {
        true => Size { connections: 10_000, strangers: 32, streams: 200, prompts: 40 },
        false => Size { connections: 400, strangers: 4, streams: 80, prompts: 4 },
    }
}

/// Resident memory of a process, KiB.
fn resident_kib(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What was done to the node, for the record.
#[derive(Default)]
struct Deeds {
    connections: AtomicU64,
    streams: AtomicU64,
    asks: AtomicU64,
}

/// A connection to a port of this host, from this address.
async fn connect_from(address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((address, 0).into())?;
    let stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Connects, says nothing or half a word, and goes.
fn knock(port: u16, most: usize, deeds: &Deeds) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut held = std::collections::VecDeque::new();
    for i in 0..most {
        // It may refuse at any moment, that is its right.
        let Ok(mut stream) = runtime.block_on(connect_from(KNOCKERS, port)) else { continue };
        if i.is_multiple_of(2) {
            let _ = stream.write_all(b"\x13/multistream/1.0.0\n");
        }
        deeds.connections.fetch_add(1, Ordering::Relaxed);
        held.push_back(stream);
        if held.len() > 48 {
            held.pop_front();
        }
    }
}

/// One stranger: opens streams and misuses each in its own way, until told to stop.
async fn misbehave(seed: u8, address: String, streams: usize, over: Arc<AtomicBool>, deeds: Arc<Deeds>) {
    // Not where raw sockets come from: those leave no room for their own neighbors.
    let listen = vec![format!("/ip4/127.34.0.{}/tcp/0", seed + 1)];
    // As the node's own default swarm.
    let swarm = p2p::SwarmId::named("shoal");
    let limits = p2p::config::Limits { streams_per_peer: 10_000, ..Default::default() };
    let config = Config {
        listen,
        swarm,
        limits,
        ..Config::loopback(Identity::from_seed([seed.wrapping_add(100); 32]))
    };
    let Ok((network, _events)) = p2p::spawn(config).await else { return };
    let victim = loop {
        match network.dial(&address).await {
            Ok(victim) => break victim,
            Err(_) if over.load(Ordering::Relaxed) => return network.shutdown().await,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let mut kept = Vec::new();
    let mut round = 0_usize;
    while !over.load(Ordering::Relaxed) {
        round += 1;
        if round <= streams {
            kept.extend(misuse(&network, victim, round).await);
            deeds.streams.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if round.is_multiple_of(8) {
            // The answer is of no interest.
            let _ = network.ask(victim, &Ask::CatchUp { have: 0 }, ANSWER).await;
            deeds.asks.fetch_add(1, Ordering::Relaxed);
        }
    }
    network.shutdown().await;
}

/// Opens a stream and does something that a peer should not; the stream, to be kept open.
async fn misuse(network: &Network, victim: scheduler::NodeId, round: usize) -> Option<p2p::link::Stream> {
    let plane = [Plane::Data, Plane::Blob, Plane::Delegate][round % 3];
    let mut stream = network.open(victim, plane).await.ok()?;
    let hello = Hello { session: SessionId::new([round as u8; 16]), epoch: 1 }.write();
    let promise = Header {
        kind: Kind::Activations,
        wire: Wire::Raw,
        epoch: 1,
        layer: 1,
        from: 0,
        rows: u32::MAX,
        len: MAX_FRAME as u32 + 1,
        attempt: 0,
        drafted: 0,
        since: 0,
    };
    let bytes: Vec<u8> = match round % 5 {
        // Nothing at all, for ever.
        0 => Vec::new(),
        // A frame that is too long.
        1 => [&hello[..], &promise.write()].concat(),
        // One byte, and then silence.
        2 => vec![hello[0]],
        // No protocol of ours.
        3 => vec![0xff; Hello::LEN + HEADER_LEN],
        // As much as goes out, in frames of a session that is not there.
        _ => [&hello[..], &vec![0; 256 << 10]].concat(),
    };
    if !bytes.is_empty() {
        // Stands still when the node does not read: then it is a slow stream.
        let _ = tokio::time::timeout(Duration::from_millis(20), stream.send(&bytes, &[])).await;
    }
    Some(stream)
}

#[test]
fn a_crowd_of_strangers_does_not_stop_honest_prompts() {
    let size = size();
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let alone = Shoal::new().json(["run", "--json", "-n", "16", PROMPT], "");
    let ask = || asks.ask(&["run", "--via", "swarm", "-n", "16", PROMPT]);
    assert_eq!(ask()["ids"], alone["ids"]);

    let daemon = u64::from(serves.child.id());
    let worker = serves.ask(&["status"])["worker_pid"].as_u64().unwrap();
    let before = (resident_kib(daemon), resident_kib(worker));
    let (over, deeds) = (Arc::new(AtomicBool::new(false)), Arc::new(Deeds::default()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let crowd: Vec<_> = (0..size.strangers)
        .map(|seed| {
            let task = misbehave(seed, serves.tcp().to_owned(), size.streams, over.clone(), deeds.clone());
            runtime.spawn(task)
        })
        .collect();
    let port: u16 = serves.tcp().split('/').nth(4).unwrap().parse().unwrap();
    let mut peak = before;
    thread::scope(|scope| {
        let knocking = scope.spawn(|| knock(port, size.connections, &deeds));
        let mut asked = 0;
        while asked < size.prompts || !knocking.is_finished() {
            let answer = ask();
            assert_eq!(answer["ids"], alone["ids"], "prompt {asked}: {answer}");
            assert!(answer["faults"].as_array().unwrap().is_empty(), "prompt {asked}: {answer}");
            asked += 1;
            peak = (peak.0.max(resident_kib(daemon)), peak.1.max(resident_kib(worker)));
        }
        println!("{asked} prompts answered meanwhile");
        over.store(true, Ordering::Relaxed);
    });
    runtime.block_on(async {
        for stranger in crowd {
            stranger.await.unwrap();
        }
    });
    let count = |deed: &AtomicU64| deed.load(Ordering::Relaxed);
    println!(
        "{} connections, {} streams, {} asks; daemon {} -> at most {} KiB, worker {} -> at most {} KiB",
        count(&deeds.connections),
        count(&deeds.streams),
        count(&deeds.asks),
        before.0,
        peak.0,
        before.1,
        peak.1
    );
    assert!(count(&deeds.connections) > 0 && count(&deeds.streams) > 0, "no attack ran");
    assert!(
        peak.0.saturating_sub(before.0) < MAX_GROWTH_KIB,
        "the daemon grew from {} to {}",
        before.0,
        peak.0
    );
    assert!(
        peak.1.saturating_sub(before.1) < MAX_GROWTH_KIB,
        "the worker grew from {} to {}",
        before.1,
        peak.1
    );
    assert_eq!(ask()["ids"], alone["ids"]);
}
