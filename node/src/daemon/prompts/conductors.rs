//! Which peers could answer a prompt of a model that this node cannot begin itself.

use std::collections::BTreeSet;

use p2p::wire::announce::Offer;
use scheduler::{ModelId, NodeId};
use tokio::sync::oneshot;

use super::route::Router;

/// Who could conduct a prompt of this model?
pub struct ConductorQuestion {
    /// By name.
    pub model: String,
    /// Only these, unless empty.
    pub trusted: BTreeSet<NodeId>,
    /// The nearest first.
    pub answer: oneshot::Sender<Vec<Conductor>>,
}

/// A node that could answer.
#[derive(Clone, Copy, Debug)]
pub struct Conductor {
    pub(super) node: NodeId,
    /// The model that was meant, as it is there.
    pub(super) model: ModelId,
    /// Its layers.
    pub(super) num_layers: u32,
}

impl Router<'_> {
    /// Answers who could conduct a prompt.
    pub(crate) fn answer_conductors(&self, question: ConductorQuestion) {
        let ConductorQuestion { model, trusted, answer } = question;
        let trusted = |node: &NodeId| trusted.is_empty() || trusted.contains(node);
        let mut nodes: Vec<(f64, Conductor)> = self
            .view
            .facts
            .iter()
            .filter(|(node, _)| trusted(node))
            .filter_map(|(node, facts)| {
                let offer = facts.offers.iter().find(|offer| self.computes(*node, offer, &model))?;
                let conductor = Conductor { node: *node, model: offer.model, num_layers: offer.num_layers };
                Some((self.gossip.rtt_ms(*node).unwrap_or(f64::MAX), conductor))
            })
            .collect();
        nodes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let _ = answer.send(nodes.into_iter().map(|(_, conductor)| conductor).collect());
    }

    /// Whether `node` computes layers of what it offers, and that is called `model`, by name or id in hex.
    fn computes(&self, node: NodeId, offer: &Offer, model: &str) -> bool {
        let holds = |capability: &scheduler::Capability| {
            capability.holding(offer.model).is_some_and(|holding| !holding.held_set().is_empty())
        };
        (offer.name == model || crate::content::hex(offer.model) == model)
            && self.view.swarm.get(node).is_some_and(holds)
    }
}
