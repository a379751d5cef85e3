//! Two ways at once: the nodes of a route that are not connected, and those of the next best route.
//!
//! A node that only says where it is may be nowhere, and a dial takes seconds to find out. So the next best nodes are dialed
//! beside, and the route is taken past the first ones when the others are there long before them.
//!
//! How far a node is that was never measured, only its own word says. So those of the route are asked once they are connected,
//! and where one is much further the next look knows it.
//!
//! Limits: one route and one beside it, of at most as many nodes as a pipeline has; a dial ends by itself
//! (`p2p::Network::connect`), and an answer is waited for 1 s.

use std::time::Duration;

use p2p::{Network, wire::control::Contact};
use scheduler::{NodeId, lease::is_further};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::feedback::FeedbackQueue;

/// So much later than the others the nodes of the better route may be connected, and the route still leads through them: a
/// handshake over a relay.
const HEAD_START: Duration = Duration::from_secs(1);

/// Nodes without a connection.
pub struct Dials {
    /// Those of the route, and how far they say that they are: there and back, ms.
    pub first: Vec<(Contact, f64)>,
    /// Those of the next best route.
    pub beside: Vec<Contact>,
}

/// Dials both; false when the next route should lead past the first, or be chosen knowing how far they are: `feedback` says
/// why.
pub(super) async fn reaches(
    network: &Network,
    feedback: &FeedbackQueue,
    me: NodeId,
    Dials { first, beside }: &Dials,
) -> bool {
    let mut chosen = std::pin::pin!(missing(network, first.iter().map(|entry| &entry.0)));
    let beside = std::pin::pin!(missing(network, beside.iter()));
    let found = tokio::select! {
        biased;
        found = &mut chosen => Some(found),
        others = beside => match timeout(HEAD_START, &mut chosen).await {
            Ok(found) => Some(found),
            // Where the others cannot be reached either, the session finds its way.
            Err(_) if !others.is_empty() => return true,
            Err(_) => None,
        },
    };
    let late = || first.iter().map(|entry| entry.0.node).collect();
    for node in found.iter().flatten() {
        feedback.silent(*node);
    }
    let past: Vec<NodeId> = found.unwrap_or_else(late);
    past.iter().for_each(|node| feedback.apart(me, *node));
    if !past.is_empty() {
        return false;
    }
    let further = further(network, first).await;
    further.iter().for_each(|(node, rtt_ms)| feedback.away(*node, *rtt_ms));
    further.is_empty()
}

/// Those that are further away than they say, and how far, ms.
async fn further(network: &Network, contacts: &[(Contact, f64)]) -> Vec<(NodeId, f64)> {
    let mut pings = JoinSet::new();
    for (contact, believed_ms) in contacts.iter().cloned() {
        let network = network.clone();
        pings.spawn(async move {
            let asked = Instant::now();
            let answered = timeout(HEAD_START, network.ping(&contact, None, HEAD_START)).await;
            let rtt_ms = asked.elapsed().as_secs_f64() * 1e3;
            // Who has not answered yet is so far at least; who is gone again says nothing of it, and the lease will tell.
            let is_far = !matches!(answered, Ok(None)) && is_further(believed_ms, rtt_ms);
            is_far.then_some((contact.node, rtt_ms))
        });
    }
    pings.join_all().await.into_iter().flatten().collect()
}

/// Those that cannot be reached.
async fn missing(network: &Network, contacts: impl Iterator<Item = &Contact>) -> Vec<NodeId> {
    let mut dials = JoinSet::new();
    for contact in contacts.cloned() {
        let network = network.clone();
        dials.spawn(async move { network.connect(&contact).await.is_err().then_some(contact.node) });
    }
    dials.join_all().await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use p2p::{Config, Identity, Network};

    use super::*;
    use crate::feedback::Feedback;

    async fn network(seed: u8) -> Network {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
        let config = Config { listen, ..Config::loopback(Identity::from_seed([seed; 32])) };
        p2p::spawn(config).await.unwrap().0
    }

    #[tokio::test]
    async fn a_route_leads_past_nodes_that_are_not_where_they_say() {
        let (ours, theirs) = (network(61).await, network(62).await);
        // A port that is bound and never listened on refuses at once.
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let nowhere = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
        let sybil = Identity::from_seed([63; 32]).node();
        let absent = Contact { node: sybil, addresses: vec![nowhere] };
        let there = theirs.contact().await;
        let feedback = FeedbackQueue::default();
        let me = ours.contact().await.node;
        let dials = |first: &Contact, beside: &Contact| {
            // So far that no answer is late.
            Dials { first: vec![(first.clone(), 1e6)], beside: vec![beside.clone()] }
        };
        assert!(reaches(&ours, &feedback, me, &dials(&there, &absent)).await);
        assert!(feedback.take().is_empty());
        assert!(!reaches(&ours, &feedback, me, &dials(&absent, &there)).await);
        assert!(feedback.take().contains(&Feedback::Apart(me, sybil)));
    }

    /// No node is nearer than at no distance: any answer is late.
    #[tokio::test]
    async fn a_node_that_is_further_than_it_says_is_looked_at_again() {
        let (ours, theirs) = (network(64).await, network(65).await);
        let (me, there) = (ours.contact().await.node, theirs.contact().await);
        let feedback = FeedbackQueue::default();
        let dials = |believed_ms| Dials { first: vec![(there.clone(), believed_ms)], beside: Vec::new() };
        assert!(!reaches(&ours, &feedback, me, &dials(-100.0)).await);
        let [Feedback::Away(node, rtt_ms)] = *feedback.take().make_contiguous() else {
            panic!("no word of it")
        };
        assert!(node == there.node && rtt_ms > 0.0, "{node} {rtt_ms}");
    }
}
