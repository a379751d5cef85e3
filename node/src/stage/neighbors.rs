//! Whether the neighbors of a session are there, asked while nothing comes from them.
//!
//! A way that carries one direction only is not reported to either end. The requester finds out because it waits for
//! something; a stage that waits for its next frame cannot tell a slow swarm from a lost frame. So it asks, once a second, the requester and
//! the stage after it: who does not answer over the connection there is is reached over another, and what the stage sends
//! from then on takes that. What was lost meanwhile the requester sends again.
//!
//! The other way round a stage that nothing comes to tells the requester how far its inputs have come, where the requester has said that it
//! understands that: what was sent to the stage and is lost shows there at once, no matter which node sent it.
//!
//! Limits: only a stage asks, never one that follows; a session that moves faster than [`QUIET`] a step is never asked about.

use std::time::Duration;

use p2p::{
    Network,
    wire::control::{Contact, Lease, Role},
};
use scheduler::{NodeId, door::Terms};
use tokio::{sync::mpsc, time::Instant};

use crate::sessions::Order;

/// How often a stage looks whether it should ask.
pub(super) const LOOK_MS: u64 = 200;
/// Silence before it asks: a little more than the requester's own patience, which ends a step that only seems slow.
const QUIET: Duration = Duration::from_millis(400);
/// Between two rounds of asking.
const EVERY: Duration = Duration::from_secs(1);
/// An answer that takes longer is sought another way: long round trips included, of which a stage knows nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// A stage that nothing has come to for so long says that it waits, as often as others say that they compute, until the requester has
/// had time to act on it: longer than an ordinary step of any model takes, shorter than the requester's own patience.
const IDLE: Duration = Duration::from_millis(150);
const IDLE_AT_MOST: Duration = Duration::from_secs(3);

/// The neighbors of one session.
pub(super) struct Neighbors {
    network: Network,
    orders: mpsc::Sender<Order>,
    asked: Instant,
    /// The requester understands what a stage that waits says.
    listens: bool,
}

impl Neighbors {
    /// None asked yet. The session hears [`Order::Detoured`] through `orders`.
    pub(super) fn new(network: Network, orders: mpsc::Sender<Order>) -> Self {
        Self { network, orders, asked: Instant::now(), listens: false }
    }

    /// The requester has asked how far the inputs of a segment have come.
    pub(super) fn listens(&mut self) {
        self.listens = true;
    }

    /// Whether a session that is idle since then says that it waits.
    pub(super) fn is_told_of_waiting(&self, idle_since: Instant) -> bool {
        self.listens && (IDLE..IDLE_AT_MOST).contains(&idle_since.elapsed())
    }

    /// Asks the neighbors, where the session has been idle since a while and runs a stage.
    pub(super) fn look(&mut self, idle_since: Instant, requester: NodeId, leases: &Terms<Lease>) {
        if idle_since.elapsed() < QUIET || self.asked.elapsed() < EVERY {
            return;
        }
        let stages = || leases.all().filter(|lease| lease.role == Role::Stage);
        if stages().next().is_none() {
            return;
        }
        self.asked = Instant::now();
        // The requester asked over a connection that is there; where it listens this node has heard from others.
        let requester = Contact { node: requester, addresses: Vec::new() };
        let named = stages().filter_map(|lease| Some((lease.next.clone()?, Some(requester.node))));
        for (contact, by) in named.chain([(requester.clone(), None)]) {
            let (network, orders) = (self.network.clone(), self.orders.clone());
            tokio::spawn(async move {
                if network.ping(&contact, by, PATIENCE).await == Some(false) {
                    let _ = orders.send(Order::Detoured(contact.node)).await;
                }
            });
        }
    }
}
