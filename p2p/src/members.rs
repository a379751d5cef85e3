//! Which nodes may be connected at all, where an operator lists them.
//!
//! A private swarm's key says who was invited once; a key that was told cannot be untold. A list says who belongs to the swarm
//! now: a node that is not on it is turned away as soon as it has proved its name, dialed or dialing, and before any protocol
//! runs. Relays carry circuits of members only, since both ends are connected to them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use scheduler::NodeId;

/// Nodes that were turned away and are told of, each once, until the list changes: names cost nothing.
const MAX_REMEMBERED: usize = 64;

/// A list that may change while the network runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None` lets every node in.
    listed: Option<BTreeSet<NodeId>>,
    /// How often the list changed.
    version: u64,
    turned_away: BTreeSet<NodeId>,
}

impl Members {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these nodes and no others. Connections to others are closed within seconds.
    pub fn set(&self, listed: BTreeSet<NodeId>) {
        let mut state = self.state();
        if state.listed.as_ref() != Some(&listed) {
            state.listed = Some(listed);
            state.version += 1;
            state.turned_away.clear();
        }
    }

    /// How often the list changed.
    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// Whether a node may be connected.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.state().listed.as_ref().is_none_or(|listed| listed.contains(&node))
    }

    /// A node that is not listed wanted in; whether that is news.
    pub(crate) fn turn_away(&self, node: NodeId) -> bool {
        let mut state = self.state();
        state.turned_away.len() < MAX_REMEMBERED && state.turned_away.insert(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_list_every_node_is_in_and_each_is_turned_away_as_news_once() {
        let (members, a, b) = (Members::default(), NodeId::new([1; 32]), NodeId::new([2; 32]));
        assert!(members.has(a) && members.version() == 0);
        members.set(BTreeSet::from([a]));
        members.set(BTreeSet::from([a]));
        assert_eq!((members.has(a), members.has(b), members.version()), (true, false, 1));
        assert!(members.turn_away(b) && !members.turn_away(b));
        for n in 0..=MAX_REMEMBERED as u8 {
            members.turn_away(NodeId::new([n; 32]));
        }
        assert_eq!(members.state().turned_away.len(), MAX_REMEMBERED);
        assert!(!members.turn_away(NodeId::new([99; 32])));
    }
}
