//! Which peers could answer a prompt of a model that this node cannot begin itself.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Its layers, as most that offer it say.
    pub(super) num_layers: u32,
    /// Positions that it takes.
    pub(super) context: u32,
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
                let Offer { model, num_layers, context, .. } = *offer;
                let conductor = Conductor { node: *node, model, num_layers, context };
                Some((self.gossip.rtt_ms(*node).unwrap_or(f64::MAX), conductor))
            })
            .collect();
        let layers =
            agreed_layers(nodes.iter().map(|(_, conductor)| (conductor.model, conductor.num_layers)));
        nodes.iter_mut().for_each(|(_, conductor)| conductor.num_layers = layers[&conductor.model]);
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

/// How many layers each model has, by the word of its holders: what most say, of equally many the fewest.
fn agreed_layers(said: impl Iterator<Item = (ModelId, u32)>) -> BTreeMap<ModelId, u32> {
    let mut counts = BTreeMap::<_, usize>::new();
    said.for_each(|word| *counts.entry(word).or_default() += 1);
    let mut agreed = BTreeMap::<_, (usize, u32)>::new();
    // Fewer layers come first, and stay where more of them have no more voices.
    for ((model, num_layers), voices) in counts {
        let best = agreed.entry(model).or_insert((voices, num_layers));
        if voices > best.0 {
            *best = (voices, num_layers);
        }
    }
    agreed.into_iter().map(|(model, (_, num_layers))| (model, num_layers)).collect()
}

#[cfg(test)]
mod tests {
    use scheduler::ModelId;

    use super::agreed_layers;

    #[test]
    fn layers_are_what_most_holders_say() {
        let [one, other] = [1, 2].map(|n| ModelId::new([n; 32]));
        let said = [(one, 28), (other, 1_024), (one, 1), (one, 28), (other, 4)];
        let agreed = agreed_layers(said.into_iter());
        assert_eq!((agreed[&one], agreed[&other]), (28, 4));
    }
}
