//! Who follows the stages of a request, and what of their inputs each has been given.

use std::collections::BTreeMap;

use scheduler::{NodeId, Segment};

/// The shadows of one request.
#[derive(Default)]
pub(super) struct Followers {
    by_stage: BTreeMap<usize, NodeId>,
    /// By shadow that promised and the first layer of what it follows, positions given to it.
    fed: BTreeMap<(NodeId, u32), u32>,
}

impl Followers {
    /// No stage is followed: an earlier follower may run a stage now, or follow another.
    pub(super) fn clear(&mut self) {
        self.by_stage.clear();
    }

    /// A node is asked to follow a stage. Until it has promised it knows nothing of the session: what it was sent would be lost.
    pub(super) fn follow(&mut self, stage: usize, segment: Segment) {
        self.by_stage.insert(stage, segment.node);
        self.fed.remove(&(segment.node, segment.layers.start()));
    }

    /// Who follows a stage.
    pub(super) fn of(&self, stage: usize) -> Option<NodeId> {
        self.by_stage.get(&stage).copied()
    }

    /// Whether a node follows any.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.nodes().any(|shadow| shadow == node)
    }

    /// The stages that a node follows.
    pub(super) fn stages_of(&self, node: NodeId) -> Vec<usize> {
        self.by_stage.iter().filter(|(_, shadow)| **shadow == node).map(|(stage, _)| *stage).collect()
    }

    /// All of them.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_stage.values().copied()
    }

    /// A node follows no longer.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.by_stage.retain(|_, shadow| *shadow != node);
    }

    /// Positions of what enters `layer` that a node has been given; `None` before it promised.
    pub(super) fn fed(&self, node: NodeId, layer: u32) -> Option<u32> {
        self.fed.get(&(node, layer)).copied()
    }

    /// A node has been given what enters `layer` below position `to`.
    pub(super) fn set_fed(&mut self, node: NodeId, layer: u32, to: u32) {
        self.fed.insert((node, layer), to);
    }

    /// Rows from position `from` on left the logs: they are given again once they are there again.
    pub(super) fn cut(&mut self, from: u32) {
        self.fed.values_mut().for_each(|fed| *fed = (*fed).min(from));
    }
}
