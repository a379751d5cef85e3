//! What a swarm at rest sends.
//!
//! Five nodes on hosts of their own at one switch, found by the local network as in a home. The test counts the bytes on their
//! interfaces for half a minute, takes away what announcements may have cost (news of a busy machine are news), and holds the rest
//! to 2 kbit/s. `SHOAL_FIGURES=1` counts for ten minutes, and everything.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    lab::{Host, permitted},
    node::Node,
};
use tempfile::TempDir;

const NODES: usize = 5;
/// What one node may send, bits a second.
const BAR: f64 = 2_000.0;
/// Peers that were just met are pinged often, for so long.
const SETTLED: Duration = Duration::from_secs(35);
/// What a message of gossip takes around an announcement, on the wire, and its acknowledgement.
const ENVELOPE: f64 = 250.0;

/// Bytes that left a host by its interface.
fn sent(host: &Host) -> f64 {
    let counters = host.output("cat /proc/net/dev");
    let line = counters.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("an interface");
    // Eight counters of what came in, then those of what went out.
    line.split_whitespace().nth(8).expect("a counter").parse().unwrap()
}

/// What `node` has announced: bytes on the wire, each time it was passed on.
fn announced(node: &Node) -> f64 {
    let said = &node.ask(&["status"])["announcements"];
    let number = |key: &str| said[key].as_f64().expect("a number");
    number("said_bytes") + ENVELOPE * number("said")
}

#[test]
fn five_nodes_at_rest_send_two_kilobits_a_second_each() {
    if !permitted() {
        return;
    }
    let all = env::var_os("SHOAL_FIGURES").is_some();
    let (switch, folder) = (Host::new(), TempDir::new().unwrap());
    switch.run("ip link add br0 type bridge");
    switch.run("ip link set br0 up");
    let hosts: Vec<Host> = (1..=NODES)
        .map(|n| {
            let (host, port) = (Host::new(), format!("port{n}"));
            host.cable(("eth0", &[&format!("10.9.0.{n}/24")]), &switch, (&port, &[]));
            switch.run(&format!("ip link set {port} master br0"));
            host.default_route("10.9.0.254");
            host
        })
        .collect();
    let nodes: Vec<Node> = (0..NODES)
        .map(|n| Node::launch(hosts[n].command(binary()), &folder.path().join(n.to_string()), &[]))
        .collect();
    nodes.iter().for_each(|node| node.meets(NODES - 1));
    thread::sleep(if all { 4 * SETTLED } else { SETTLED });
    let told = || nodes.iter().map(announced).sum::<f64>();
    let (before, news, began) = (hosts.iter().map(sent).collect::<Vec<_>>(), told(), Instant::now());
    thread::sleep(Duration::from_secs(if all { 600 } else { 30 }));
    let seconds = began.elapsed().as_secs_f64();
    // Each passes each on to the four others at most.
    let news = if all { 0.0 } else { (told() - news) * (NODES - 1) as f64 };
    for (host, before) in hosts.iter().zip(before) {
        let bits = (sent(host) - before) * 8.0 / seconds;
        println!("{bits:.0} bit/s, announcements {:.0} at most", news * 8.0 / seconds);
        assert!(bits - news * 8.0 / seconds <= BAR, "{bits} bit/s");
    }
}
