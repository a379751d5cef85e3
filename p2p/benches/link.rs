//! Round trips of one frame between two nodes of this host: `cargo bench -p shoal-p2p --bench link [-- ROUNDS]`.
//!
//! Prints the median and the 99th percentile of a round trip and of one hop (half of it), µs, per transport and frame
//! size. Both ends run in this process on the same runtime, as two daemons of one machine would.

use std::time::{Duration, Instant};

use p2p::identity::Identity;
use p2p::{Config, Event, Plane};

const HEADER: [u8; 32] = [7; 32];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(2_000_usize).max(1);
    println!("{:<6} {:>8} {:>12} {:>12} {:>12}", "link", "bytes", "rtt p50 us", "rtt p99 us", "hop p50 us");
    for (name, listen) in [("tcp", "/ip4/127.0.0.1/tcp/0"), ("quic", "/ip4/127.0.0.1/udp/0/quic-v1")] {
        for bytes in [4 << 10, 16 << 10, 64 << 10] {
            // Not on the main task: it would pay one more wake-up per frame.
            let times = tokio::spawn(round_trips(listen, bytes, rounds)).await.expect("the bench runs");
            let us = |at: f64| times[((times.len() - 1) as f64 * at) as usize].as_secs_f64() * 1e6;
            println!("{name:<6} {bytes:>8} {:>12.1} {:>12.1} {:>12.1}", us(0.5), us(0.99), us(0.5) / 2.0);
        }
    }
}

/// Sorted round-trip times.
async fn round_trips(listen: &str, bytes: usize, rounds: usize) -> Vec<Duration> {
    let config = |seed| Config {
        listen: vec![listen.to_owned()],
        ..Config::loopback(Identity::from_seed([seed; 32]))
    };
    let (a, _of_a) = p2p::spawn(config(1)).await.expect("a node starts");
    let (b, mut of_b) = p2p::spawn(config(2)).await.expect("a node starts");
    let peer = a.dial(&b.addresses().await[0]).await.expect("they meet");
    let mut stream = a.open(peer, Plane::Data).await.expect("a stream opens");
    let echo = tokio::spawn(async move {
        let mut incoming = loop {
            match of_b.next().await.expect("the network runs") {
                Event::Incoming { stream, .. } => break stream,
                _ => continue,
            }
        };
        let (mut header, mut payload) = ([0; HEADER.len()], Vec::new());
        while incoming.recv_exact(&mut header).await.is_ok() {
            incoming.recv_payload(bytes, bytes, &mut payload).await.expect("a frame is whole");
            incoming.send(&header, &payload).await.expect("the frame goes back");
        }
    });
    let (frame, mut header, mut back) = (vec![3; bytes], [0; HEADER.len()], Vec::new());
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let start = Instant::now();
        stream.send(&HEADER, &frame).await.expect("a frame leaves");
        stream.recv_exact(&mut header).await.expect("a frame comes back");
        stream.recv_payload(bytes, bytes, &mut back).await.expect("it is whole");
        // The first tenth warms up.
        if round >= rounds / 10 {
            times.push(start.elapsed());
        }
    }
    assert_eq!(back, frame);
    stream.finish().await.expect("the stream ends");
    echo.await.expect("the echo ends");
    a.shutdown().await;
    b.shutdown().await;
    times.sort_unstable();
    times
}
