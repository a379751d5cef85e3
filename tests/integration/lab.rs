//! Networks as people have them: behind routers, with one version of IP or both, many nodes on one host.
//!
//! Real processes in network namespaces, see [`harness::lab`]. The public addresses are those set aside for
//! documentation (RFC 5737, RFC 3849).

use std::{
    path::Path,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary,
    lab::{Host, Nat, permitted},
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";

/// A node on `host`.
fn node(host: &Host, home: &Path, args: &[&str]) -> Node {
    Node::launch(host.command(binary()), home, args)
}

/// What `asks` answers through the swarm is what one machine answers alone.
fn answers_as_alone(asks: &Node, tokens: &str) -> Value {
    let alone = Shoal::new().json(["run", "--json", "-n", tokens, PROMPT], "");
    let split = asks.ask(&["run", "--via", "swarm", "-n", tokens, PROMPT]);
    assert_eq!(split["ids"], alone["ids"], "{split}");
    assert!(split["stages"].as_array().unwrap().len() >= 3, "no other node computed: {split}");
    split
}

/// Waits until `from` reaches `to` over `path`.
fn reaches(from: &Node, to: &Node, path: &str) {
    let started = Instant::now();
    loop {
        let peers = from.ask(&["peers"]);
        let peer = peers["peers"].as_array().unwrap().iter().find(|peer| peer["node"] == to.name.as_str());
        if peer.is_some_and(|peer| peer["path"] == path) {
            return;
        }
        let status = from.ask(&["status"]);
        assert!(started.elapsed() < PATIENCE, "not {path} after {PATIENCE:?}: {peers} {status}");
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// An address of a node that contains all of `parts`.
fn address<'a>(node: &'a Node, parts: &[&str]) -> &'a str {
    let found = node.addresses.iter().find(|address| parts.iter().all(|part| address.contains(part)));
    found.unwrap_or_else(|| panic!("no address with {parts:?} in {:?}", node.addresses))
}

/// Two homes behind routers, and a public host that is all that either knows of.
struct Homes {
    alice: Host,
    bob: Host,
    public: Host,
    _routers: [Host; 2],
}

impl Homes {
    fn new(of_alice: Nat, of_bob: Nat) -> Self {
        let (alice, bob, public) = (Host::new(), Host::new(), Host::new());
        let routers = [Host::new(), Host::new()];
        alice.cable(("eth0", &["10.1.0.2/24"]), &routers[0], ("lan", &["10.1.0.1/24"]));
        bob.cable(("eth0", &["10.2.0.2/24"]), &routers[1], ("lan", &["10.2.0.1/24"]));
        // The public host is also the Internet between the two.
        routers[0].cable(("wan", &["203.0.113.2/30"]), &public, ("cable0", &["203.0.113.1/30"]));
        routers[1].cable(("wan", &["198.51.100.2/30"]), &public, ("cable1", &["198.51.100.1/30"]));
        public.forward();
        alice.default_route("10.1.0.1");
        bob.default_route("10.2.0.1");
        routers[0].default_route("203.0.113.1");
        routers[1].default_route("198.51.100.1");
        routers[0].nat("wan", of_alice);
        routers[1].nat("wan", of_bob);
        Self { alice, bob, public, _routers: routers }
    }
}

/// The user names no address, port or relay: one bootstrap address each, as from an invite.
fn behind_nat(of_alice: Nat, of_bob: Nat, path: &str) {
    let homes = Homes::new(of_alice, of_bob);
    let folder = TempDir::new().unwrap();
    let public = node(&homes.public, &folder.path().join("public"), &["--ask-only"]);
    let alice_knows = address(&public, &["203.0.113.1", "/quic-v1"]);
    let bob_knows = address(&public, &["198.51.100.1", "/quic-v1"]);
    let alice =
        node(&homes.alice, &folder.path().join("alice"), &["--layers", "1..7", "--peer", alice_knows]);
    let bob = node(&homes.bob, &folder.path().join("bob"), &["--ask-only", "--peer", bob_knows]);
    reaches(&bob, &alice, path);
    let split = answers_as_alone(&bob, "12");
    assert_eq!(split["stages"][1]["node"], alice.name.as_str(), "{split}");
    let status = alice.ask(&["status"]);
    assert_eq!(status["reachability"], "private", "{status}");
    assert_eq!(status["reached"]["class"], "relayed", "{status}");
}

#[test]
fn two_behind_routers_meet_through_a_third_and_then_without_it() {
    if permitted() {
        behind_nat(Nat::Cone, Nat::Cone, "direct");
    }
}

#[test]
fn two_behind_symmetric_routers_stay_relayed_and_still_answer() {
    if permitted() {
        behind_nat(Nat::Symmetric, Nat::Symmetric, "relayed");
    }
}

#[test]
fn one_version_of_ip_is_enough_and_who_has_both_serves_both() {
    if !permitted() {
        return;
    }
    let (four, six, both) = (Host::new(), Host::new(), Host::new());
    four.without(6);
    six.without(4);
    four.cable(("eth0", &["192.0.2.2/24"]), &both, ("cable0", &["192.0.2.1/24"]));
    six.cable(("eth0", &["2001:db8::2/64"]), &both, ("cable1", &["2001:db8::1/64"]));
    let folder = TempDir::new().unwrap();
    let serves = node(&both, &folder.path().join("both"), &["--layers", "1..7"]);
    for (name, host, version, transport) in
        [("four", &four, "/ip4/192.0.2.1/", "/tcp/"), ("six", &six, "/ip6/2001:db8::1/", "/quic-v1")]
    {
        let peer = address(&serves, &[version, transport]);
        let asks = node(host, &folder.path().join(name), &["--ask-only", "--peer", peer]);
        let other = if version.starts_with("/ip4") { "/ip6/" } else { "/ip4/" };
        // Its own: where it is reached through the one with both, that one's addresses are of both versions.
        let mut own = asks.addresses.iter().filter(|address| !address.contains("/p2p-circuit"));
        assert!(own.all(|address| !address.starts_with(other)), "{:?}", asks.addresses);
        reaches(&asks, &serves, "direct");
        answers_as_alone(&asks, "8");
    }
}

#[test]
fn nodes_of_one_network_find_each_other_by_themselves() {
    if !permitted() {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    left.cable(("eth0", &["192.168.7.1/24"]), &right, ("eth0", &["192.168.7.2/24"]));
    // Multicast needs to know where to go.
    left.run("ip route add default dev eth0");
    right.run("ip route add default dev eth0");
    let folder = TempDir::new().unwrap();
    let serves = node(&left, &folder.path().join("left"), &["--layers", "1..7"]);
    let asks = node(&right, &folder.path().join("right"), &["--ask-only"]);
    reaches(&asks, &serves, "lan");
    answers_as_alone(&asks, "8");
}

#[test]
fn five_nodes_share_a_host_that_has_nothing_but_loopback() {
    if !permitted() {
        return;
    }
    let host = Host::new();
    let folder = TempDir::new().unwrap();
    let asks = node(&host, &folder.path().join("0"), &["--ask-only"]);
    let peer = address(&asks, &["/ip4/127.0.0.1/", "/tcp/"]).to_owned();
    let servers: Vec<Node> = [("1", "1..4"), ("2", "1..4"), ("3", "4..7"), ("4", "4..7")]
        .iter()
        .map(|(home, layers)| node(&host, &folder.path().join(home), &["--layers", layers, "--peer", &peer]))
        .collect();
    asks.meets(servers.len());
    let split = answers_as_alone(&asks, "12");
    assert!(split["stages"].as_array().unwrap().len() >= 4, "{split}");
    assert!(servers.iter().all(|node| reached_by_loopback(&asks, node)));
}

fn reached_by_loopback(asks: &Node, node: &Node) -> bool {
    let peers = asks.ask(&["peers"]);
    let peers = peers["peers"].as_array().unwrap();
    peers.iter().any(|peer| peer["node"] == node.name.as_str() && peer["path"] == "loopback")
}

/// How many circuits a node carries for others.
fn circuits(relay: &Node) -> u64 {
    let status = relay.ask(&["status"]);
    let mut limits = status["limits"].as_array().unwrap().iter();
    let row = limits.find(|row| row["resource"] == "circuits").unwrap_or_else(|| panic!("{status}"));
    row["used"].as_u64().unwrap()
}

/// A node that no router lets in is reached through two relays. The one that an answer crosses goes, and is not missed.
#[test]
fn one_of_two_relays_goes_and_the_other_carries_on() {
    if !permitted() {
        return;
    }
    let homes = Homes::new(Nat::Symmetric, Nat::Symmetric);
    let far = Host::new();
    far.cable(("eth0", &["192.0.2.2/24"]), &homes.public, ("cable2", &["192.0.2.1/24"]));
    far.default_route("192.0.2.1");
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let first = node(&homes.public, &home("first"), &["--ask-only"]);
    let at_first =
        ["203.0.113.1", "198.51.100.1", "192.0.2.1"].map(|ip| address(&first, &[ip, "/quic-v1"]).to_owned());
    let second = node(&far, &home("second"), &["--ask-only", "--peer", &at_first[2]]);
    let at_second = address(&second, &["192.0.2.2", "/quic-v1"]).to_owned();
    let knows = |at: &str| ["--peer", at, "--peer", &at_second].map(str::to_owned);
    let alice = [&["--layers", "1..7"].map(str::to_owned)[..], &knows(&at_first[0])].concat();
    let alice = node(&homes.alice, &home("alice"), &alice.iter().map(String::as_str).collect::<Vec<_>>());
    let bob = [&["--ask-only".to_owned()][..], &knows(&at_first[1])].concat();
    let bob = node(&homes.bob, &home("bob"), &bob.iter().map(String::as_str).collect::<Vec<_>>());
    reaches(&bob, &alice, "relayed");
    let mut relays = [first, second];
    let names = relays.each_ref().map(|relay| relay.addresses[0].rsplit('/').next().unwrap().to_owned());
    let started = Instant::now();
    // She says so once both have let her in.
    loop {
        let peers = bob.ask(&["peers"]);
        let peer = peers["peers"].as_array().unwrap().iter().find(|peer| peer["node"] == alice.name.as_str());
        let known = peer.map_or(Value::Null, |peer| peer["addresses"].clone()).to_string();
        if names.iter().all(|name| known.contains(&format!("{name}/p2p-circuit"))) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{known}");
        std::thread::sleep(Duration::from_millis(250));
    }
    let ask = ["-n", "160", "--raw", "--seed=3", "Once upon a time there was a"];
    let expected = Shoal::new().json(["run", "--json"].iter().chain(&ask), "")["ids"].clone();
    let mut prompt = Prompt::run(&bob.home, ask);
    assert!(prompt.reaches(20), "{:?}", prompt.last);
    let carries = relays.iter().position(|relay| circuits(relay) > 0).expect("one carries the answer");
    let struck = Instant::now();
    relays[carries].child.kill().unwrap();
    let last = prompt.ends();
    println!("one of two relays goes: stall {:.0} ms", prompt.stall_ms(struck));
    assert_eq!(last["ids"], expected, "{last}");
    assert_eq!(Value::Array(prompt.ids()), expected);
    let began = Instant::now();
    let mut prompt = Prompt::run(&bob.home, ask);
    assert!(prompt.reaches(1), "{:?}", prompt.last);
    println!("the next prompt's first token after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    assert_eq!(prompt.strangers(&bob.name), [alice.name.as_str()], "{}", prompt.route);
    assert_eq!(prompt.ends()["ids"], expected);
    assert!(circuits(&relays[1 - carries]) > 0, "the other one carries it");
}
