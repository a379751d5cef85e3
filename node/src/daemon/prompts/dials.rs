//! Two ways at once: the nodes of a route that are not connected, and those of the next best route.
//!
//! A node that only says where it is may be nowhere, and a dial takes seconds to find out. So the next best nodes are dialed
//! beside, and the route is taken past the first ones when the others are there long before them.
//!
//! Limits: one route and one beside it, of at most as many nodes as a pipeline has; a dial ends by itself
//! (`p2p::Network::connect`).

use std::time::Duration;

use p2p::{Network, wire::control::Contact};
use scheduler::NodeId;
use tokio::{task::JoinSet, time::timeout};

use crate::feedback::FeedbackQueue;

/// So much later than the others the nodes of the better route may be connected, and the route still leads through them: a
/// handshake over a relay.
const HEAD_START: Duration = Duration::from_secs(1);

/// Dials both; false when the next route should lead past the first, which `feedback` knows then.
pub(super) async fn reaches(
    network: &Network,
    feedback: &FeedbackQueue,
    me: NodeId,
    [first, second]: &[Vec<Contact>; 2],
) -> bool {
    let mut chosen = std::pin::pin!(missing(network, first));
    let beside = std::pin::pin!(missing(network, second));
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
    let late = || first.iter().map(|contact| contact.node).collect();
    for node in found.iter().flatten() {
        feedback.silent(*node);
    }
    let past: Vec<NodeId> = found.unwrap_or_else(late);
    past.iter().for_each(|node| feedback.apart(me, *node));
    past.is_empty()
}

/// Those that cannot be reached.
async fn missing(network: &Network, contacts: &[Contact]) -> Vec<NodeId> {
    let mut dials = JoinSet::new();
    for contact in contacts.iter().cloned() {
        let network = network.clone();
        dials.spawn(async move { network.connect(&contact).await.is_err().then_some(contact.node) });
    }
    dials.join_all().await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use p2p::{Config, Identity, Network};

    use super::*;

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
        assert!(reaches(&ours, &feedback, me, &[vec![there.clone()], vec![absent.clone()]]).await);
        assert!(feedback.take().is_empty());
        assert!(!reaches(&ours, &feedback, me, &[vec![absent], vec![there]]).await);
        assert!(feedback.take().contains(&crate::feedback::Feedback::Apart(me, sybil)));
    }
}
