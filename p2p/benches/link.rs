//! Round trips of one frame between two nodes, and how many bytes go one way per second of processor time:
//! `cargo bench --bench link [-- ROUNDS]`.
//!
//! Without further words both ends run in this process over loopback, as two daemons of one machine would. Between two hosts, or two
//! network namespaces (`p2p/benches/link.sh`), one end runs `link serve IP`, which prints where it is, and the other one
//! `link ask TCP_ADDRESS QUIC_ADDRESS SPIN_ADDRESS PORT [ROUNDS]`. At the third one both ends look for the next datagram without sleeping
//! for a millisecond after each. PORT takes the datagrams of the first: in the row `flood` a thread of the asking host sends forged ones
//! there as fast as it can, as a hostile neighbor would; it takes a processor of its own.
//!
//! Links are measured in turns; what is printed is the median of the turns: the median and the 99th percentile of the round trip of
//! a 16 KiB frame, us, and 64 KiB frames one way, MB/s and MB per second of processor time of both ends together.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use p2p::identity::Identity;
use p2p::{Config, Event, Events, LinkConfig, LinkKind, LinkMode, Network, Plane, Reach, Stream};

const HEADER_LEN: usize = 32;
const ECHO: u8 = 0;
const SINK: u8 = 1;
/// The end of a row of sinks: answered with the processor time of this end, ms.
const TOTAL: u8 = 2;
const ECHO_BYTES: usize = 16 << 10;
const SINK_BYTES: usize = 64 << 10;
const MOST: usize = 1 << 20;
const TURNS: usize = 5;
const SPIN: Duration = Duration::from_millis(1);
/// Longer than agreeing and measuring take.
const SOON: Duration = Duration::from_secs(30);

/// Sends datagrams that no session has, as fast as the system takes them, until it is dropped.
struct Flood(Arc<AtomicBool>);

impl Flood {
    fn start(ip: &str, port: u16) -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_ttl(255).expect("a hop limit");
        socket.connect((ip, port)).expect("an address");
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        std::thread::spawn(move || {
            let mut forged = b"SLAN\x01\0\0\0".to_vec();
            forged.resize(1_448, 0x77);
            let mut sent = 0_u64;
            while !told.load(Ordering::Relaxed) {
                forged[8..16].copy_from_slice(&sent.to_le_bytes());
                // What the system does not take is not sent.
                sent += u64::from(socket.send(&forged).is_ok());
            }
            eprintln!("{sent} forged datagrams");
        });
        Self(ends)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A node that the others are measured against.
struct Server {
    network: Network,
    address: String,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // `cargo bench` adds words of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let rounds = words.iter().filter_map(|word| word.parse().ok()).next().unwrap_or(1_000_usize).max(1);
    match words[..] {
        ["serve", ip] => {
            // A node ends when its last handle is dropped.
            let nodes = servers(ip).await;
            nodes.iter().for_each(|node| println!("{}", node.address));
            println!("{}", nodes[0].network.datagram_port().expect("it takes datagrams"));
            std::future::pending::<()>().await;
            drop(nodes);
        }
        ["ask", tcp, quic, spin, port, ..] => {
            let rounds = words.get(5).and_then(|word| word.parse().ok()).unwrap_or(1_000_usize).max(1);
            ask([tcp, quic, spin], port.parse().expect("a port"), rounds).await;
        }
        _ => {
            let nodes = servers("127.0.0.1").await;
            let port = nodes[0].network.datagram_port().expect("it takes datagrams");
            ask(std::array::from_fn(|i| nodes[i].address.as_str()), port, rounds).await;
            for node in nodes {
                node.network.shutdown().await;
            }
        }
    }
}

async fn servers(ip: &str) -> [Server; 3] {
    let zero = Duration::ZERO;
    [serve(ip, "tcp/0", zero).await, serve(ip, "udp/0/quic-v1", zero).await, serve(ip, "tcp/0", SPIN).await]
}

fn config(ip: &str, transport: &str, (mode, spin): (LinkMode, Duration)) -> Config {
    let identity = Identity::generate().expect("the system has randomness");
    Config {
        listen: vec![format!("/ip4/{ip}/{transport}")],
        mdns: false,
        reach: Reach { upnp: false, ..Reach::default() },
        loopback_only: ip == "127.0.0.1",
        links: LinkConfig { mode, spin, ..LinkConfig::default() },
        ..Config::new(identity)
    }
}

async fn serve(ip: &str, transport: &str, spin: Duration) -> Server {
    let (network, mut events) =
        p2p::spawn(config(ip, transport, (LinkMode::Auto, spin))).await.expect("it starts");
    let address = network.addresses().await.into_iter().next().expect("it listens");
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::Incoming { stream, .. } = event {
                tokio::spawn(answer(stream));
            }
        }
    });
    Server { network, address }
}

async fn answer(mut stream: Stream) {
    let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
    while stream.recv_exact(&mut header).await.is_ok() {
        let len = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes")) as usize;
        stream.recv_payload(len, MOST, &mut payload).await.expect("a frame is whole");
        match header[0] {
            ECHO => stream.send(&header, &payload).await.expect("the frame goes back"),
            TOTAL => {
                header[8..16].copy_from_slice(&processor_ms().to_le_bytes());
                stream.send(&header, &[]).await.expect("the total goes back");
            }
            _ => {}
        }
    }
}

/// Processor time of this process, of the system's work for it too, ms; 0 where it is not told.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // Hundredths of a second.
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * 10
}

fn header(kind: u8, len: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = kind;
    header[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    header
}

/// What one turn of a link gave.
#[derive(Default)]
struct Turn {
    p50_us: f64,
    p99_us: f64,
    mb_s: f64,
    mb_per_cpu_s: f64,
}

async fn ask([tcp, quic, spin]: [&str; 3], port: u16, rounds: usize) {
    let ip = if tcp.contains("127.0.0.1") { "127.0.0.1" } else { "0.0.0.0" };
    let links = [
        ("tcp", tcp, (LinkMode::Stream, Duration::ZERO), "tcp/0"),
        ("quic", quic, (LinkMode::Stream, Duration::ZERO), "udp/0/quic-v1"),
        ("datagram", tcp, (LinkMode::Datagram, Duration::ZERO), "tcp/0"),
        ("flood", tcp, (LinkMode::Datagram, Duration::ZERO), "tcp/0"),
        ("spin", spin, (LinkMode::Datagram, SPIN), "tcp/0"),
    ];
    let target = tcp.split('/').nth(2).expect("an address");
    let mut turns: [Vec<Turn>; 5] = Default::default();
    for _ in 0..TURNS {
        for (at, (name, address, link, transport)) in links.iter().enumerate() {
            let (network, events) = p2p::spawn(config(ip, transport, *link)).await.expect("a node starts");
            let _flood = (*name == "flood").then(|| Flood::start(target, port));
            let turn = measure(network.clone(), events, (*address).to_owned(), link.0, rounds);
            // Not on the main task: it would pay one more wake-up per frame.
            turns[at].push(tokio::spawn(turn).await.expect("a turn ends"));
            network.shutdown().await;
        }
    }
    println!("{:<9} {:>12} {:>12} {:>10} {:>14}", "link", "rtt p50 us", "rtt p99 us", "MB/s", "MB per cpu s");
    for ((name, ..), turns) in links.iter().zip(&turns) {
        let median = |of: fn(&Turn) -> f64| {
            let mut all: Vec<f64> = turns.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let (p50, p99) = (median(|t| t.p50_us), median(|t| t.p99_us));
        let (rate, cost) = (median(|t| t.mb_s), median(|t| t.mb_per_cpu_s));
        println!("{name:<9} {p50:>12.1} {p99:>12.1} {rate:>10.0} {cost:>14.0}");
    }
}

async fn measure(network: Network, _events: Events, address: String, link: LinkMode, rounds: usize) -> Turn {
    let peer = network.dial(&address).await.expect("they meet");
    let mut stream = network.open(peer, Plane::Data).await.expect("a stream opens");
    if link == LinkMode::Datagram {
        // Until it is agreed on, and the measuring of both links is over.
        let started = Instant::now();
        loop {
            let info = network.peers().await.into_iter().find(|info| info.node == peer).and_then(|i| i.link);
            if info.is_some_and(|info| info.kind == LinkKind::Datagram && info.stream.is_some()) {
                break;
            }
            assert!(started.elapsed() < SOON, "no datagrams: {info:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let (frame, mut head, mut back) = (vec![3; SINK_BYTES], [0; HEADER_LEN], Vec::new());
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let start = Instant::now();
        stream.send(&header(ECHO, ECHO_BYTES), &frame[..ECHO_BYTES]).await.expect("a frame leaves");
        stream.recv_exact(&mut head).await.expect("a frame comes back");
        stream.recv_payload(ECHO_BYTES, ECHO_BYTES, &mut back).await.expect("it is whole");
        // The first tenth warms up.
        if round >= rounds / 10 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    let mut totals = [(Duration::ZERO, 0); 2];
    let started = Instant::now();
    for (at, frames) in [0, 4 * rounds].into_iter().enumerate() {
        for _ in 0..frames {
            stream.send(&header(SINK, SINK_BYTES), &frame).await.expect("a frame leaves");
        }
        stream.send(&header(TOTAL, 0), &[]).await.expect("a frame leaves");
        stream.recv_exact(&mut head).await.expect("the total comes back");
        let theirs = u64::from_le_bytes(head[8..16].try_into().expect("8 bytes"));
        // Both ends in one process tell the same time.
        let both = if address.contains("127.0.0.1") { theirs } else { theirs + processor_ms() };
        totals[at] = (started.elapsed(), both);
    }
    if link == LinkMode::Datagram {
        let info = network.peers().await.into_iter().find(|info| info.node == peer).and_then(|i| i.link);
        eprintln!(
            "{}",
            info.map_or_else(|| "the session of datagrams has ended".to_owned(), |i| i.to_string())
        );
    }
    stream.finish().await.expect("the stream ends");
    let mb = (4 * rounds * SINK_BYTES) as f64 / 1e6;
    let [(before, cpu_before), (after, cpu_after)] = totals;
    Turn {
        p50_us: times[(times.len() - 1) / 2],
        p99_us: times[(times.len() - 1) * 99 / 100],
        mb_s: mb / (after - before).as_secs_f64(),
        mb_per_cpu_s: mb / ((cpu_after - cpu_before).max(10) as f64 / 1e3),
    }
}
