//! Sockets that say nothing crowd the port of a node: a newcomer joins all the same, and prompts are answered.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, node::Node};
use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};

use super::{MAX_RESIDENT_KIB, PROMPT, back, full, limit, resident_kib, slack, worst};

/// Opens sockets from these addresses and says nothing.
async fn crowd(port: u16, from: Vec<Ipv4Addr>) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for ip in from {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ip, 0).into()).unwrap();
        let connected = socket.connect((Ipv4Addr::LOCALHOST, port).into());
        // It may refuse at any moment, that is its right.
        if let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_secs(5), connected).await {
            held.push(stream);
        }
    }
    held
}

#[test]
fn newcomers_join_while_silent_sockets_crowd_the_port() {
    let (one, prefixes) = if full() { (2_000, 100) } else { (300, 40) };
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let quic =
        serves.addresses.iter().find(|address| address.contains("/quic-v1")).expect("it listens on QUIC");
    let joins = |name: &str, peer: &str| {
        let started = Instant::now();
        let node = Node::start(&folder.path().join(name), &["--ask-only", "--peer", peer]);
        node.meets(1);
        (node, started.elapsed())
    };
    let (asks, undisturbed) = joins("b", serves.tcp());
    let alone = Shoal::new().json(["run", "--json", "-n", "8", PROMPT], "");
    let ask = |from: &Node| {
        let answer = from.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
        assert_eq!(answer["ids"], alone["ids"], "{answer}");
    };
    let before = worst(3, || ask(&asks));

    let port: u16 = serves.tcp().split('/').nth(4).unwrap().parse().unwrap();
    let from_one = (0..one).map(|_| Ipv4Addr::new(127, 31, 0, 1));
    let from_many = (0..prefixes).flat_map(|n| (1..=5).map(move |host| Ipv4Addr::new(127, 32, n, host)));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let held = runtime.block_on(crowd(port, from_one.chain(from_many).collect()));
    assert!(held.len() > one / 2, "only {} sockets were let in", held.len());
    let crowded = limit(&serves, "handshakes");
    assert!(crowded.refused > 0 && crowded.used <= crowded.node, "{crowded:?}");

    let (newcomer, disturbed) = joins("c", serves.tcp());
    let (by_quic, disturbed_quic) = joins("d", quic);
    println!(
        "newcomers joined in {disturbed:?} by TCP and {disturbed_quic:?} by QUIC, before in {undisturbed:?}, under {} \
         silent sockets",
        held.len()
    );
    assert!(disturbed.max(disturbed_quic) < undisturbed + slack(), "{disturbed:?}, {disturbed_quic:?}");
    let meanwhile = worst(3, || ask(&asks)).max(worst(1, || ask(&newcomer))).max(worst(1, || ask(&by_quic)));
    println!("the slowest prompt took {meanwhile:?}, before {before:?}");
    assert!(meanwhile < before.mul_f64(1.3) + slack(), "{meanwhile:?} instead of {before:?}");
    let resident = resident_kib(u64::from(serves.child.id()));
    println!("the daemon holds {resident} KiB");
    assert!(resident < MAX_RESIDENT_KIB, "the daemon holds {resident} KiB");

    // The sockets are still open here, and given up there.
    let started = Instant::now();
    while limit(&serves, "handshakes").used > 0 {
        assert!(started.elapsed() < back(), "silent handshakes are not given up");
        thread::sleep(Duration::from_millis(100));
    }
    drop(held);
}
