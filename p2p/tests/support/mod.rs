//! Nodes on loopback for tests.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::Duration;

use p2p::identity::Identity;
use p2p::wire::announce::{self, Class, Draft};
use p2p::{Config, Event, Events, Network};
use scheduler::{Claim, NodeId, OperatorId};

/// Longer than anything here takes on a loaded machine; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub const TCP: &str = "/ip4/127.0.0.1/tcp/0";
pub const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// The identity numbered `seed`.
pub fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

/// A node of this host on one transport.
pub fn config(seed: u8, listen: &str) -> Config {
    Config { listen: vec![listen.to_owned()], ..Config::loopback(identity(seed)) }
}

/// Starts a node.
pub async fn node(config: Config) -> (Network, Events) {
    p2p::spawn(config).await.expect("a node starts on loopback")
}

/// The first address of a node.
pub async fn address(network: &Network) -> String {
    network.addresses().await.into_iter().next().expect("a node has an address")
}

/// The first event that `wanted` makes something of.
pub async fn expect<T>(events: &mut Events, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
    let found = async {
        loop {
            let event = events.next().await.expect("the network runs");
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the event comes")
}

/// Waits until it `holds`.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect(what);
}

/// Waits for the connection to `node`.
pub async fn connected(events: &mut Events, node: NodeId) -> p2p::Path {
    expect(events, |event| match event {
        Event::Connected { node: who, path } if who == node => Some(path),
        _ => None,
    })
    .await
}

/// Waits for the end of the connection to `node`.
pub async fn disconnected(events: &mut Events, node: NodeId) {
    expect(events, |event| match event {
        Event::Disconnected { node: who } if who == node => Some(()),
        _ => None,
    })
    .await;
}

/// Waits for an announcement of `node` numbered at least `sequence`.
pub async fn announced(events: &mut Events, node: NodeId, sequence: u64) -> Vec<u8> {
    expect(events, |event| match event {
        Event::Announcement(announcement, bytes) => {
            let claim = announcement.capability.claim();
            (claim.node == node && claim.sequence >= sequence).then_some(bytes)
        }
        _ => None,
    })
    .await
}

/// What a node that offers nothing announces.
pub fn announcement(identity: &Identity, sequence: u64) -> Vec<u8> {
    announcement_at(identity, sequence, Vec::new())
}

/// The same of a node that says where it is.
pub fn announcement_at(identity: &Identity, sequence: u64, addresses: Vec<String>) -> Vec<u8> {
    let node = identity.node();
    let claim = Claim {
        node,
        operator: OperatorId::new(*node.as_bytes()),
        sequence,
        region: 0,
        access_ms: 1.0,
        up_bytes_per_ms: 1_000.0,
        down_bytes_per_ms: 1_000.0,
        draining: false,
        holdings: Vec::new(),
    };
    let draft = Draft {
        claim,
        class: Class::D1,
        offers: Vec::new(),
        links: Vec::new(),
        coordinate: None,
        rooms: Vec::new(),
        addresses,
        ttl_ms: 60_000,
        agent: "test".into(),
    };
    announce::seal(&draft, identity).expect("the draft is within bounds")
}
