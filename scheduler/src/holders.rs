//! Who is the only holder of a layer: the nodes whose loss stops every prompt.
//!
//! The holder graph has one vertex per node, one per run of layers that the same nodes hold, and an edge where a node
//! holds a run. A root is joined to every node, so that the graph stays in one piece unless a run loses its last
//! holder:
//!
//! ```text
//!            root                 A [0..4)   B [2..8)   C [6..8)
//!          /  |   \
//!         A   B    C              B is an articulation point: without it 4..6 is cut off.
//!        / \ /|\  /               A is one: without it 0..2 is. C is none: B holds 6..8 too.
//!     0..2 2..4 4..6 6..8
//! ```
//!
//! The nodes among the articulation points are exactly those without which a layer has no holder. `status` and `doctor`
//! show them, and placement asks for them: no node leaves what it alone holds, and of places that serve as well the one
//! is taken that bares the fewest layers.
//!
//! Limits: layers without any holder are no node's to bare and are not listed; links between nodes are not looked at.

use std::collections::BTreeSet;

use petgraph::algo::articulation_points::articulation_points;
use petgraph::graph::UnGraph;

use crate::{LayerRange, LayerSet, NodeId};

/// A node, and the layers that no other node holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bares {
    /// The only holder.
    pub node: NodeId,
    /// Layers without a holder when it leaves.
    pub layers: LayerSet,
}

/// The nodes whose loss leaves a layer without a holder, by id, each with those layers. A node listed twice holds both
/// sets.
pub fn bares(held: &[(NodeId, LayerSet)]) -> Vec<Bares> {
    let mut graph = UnGraph::<Option<NodeId>, ()>::default();
    let root = graph.add_node(None);
    let ids: BTreeSet<NodeId> = held.iter().map(|(node, _)| *node).collect();
    let nodes: Vec<_> = ids
        .into_iter()
        .map(|id| {
            let vertex = graph.add_node(Some(id));
            graph.add_edge(root, vertex, ());
            (id, vertex)
        })
        .collect();
    let mut sole: Vec<(NodeId, LayerRange)> = Vec::new();
    for run in runs(held) {
        let vertex = graph.add_node(None);
        let mut holders: Vec<NodeId> =
            held.iter().filter(|(_, set)| set.covers(run)).map(|(node, _)| *node).collect();
        holders.sort_unstable();
        holders.dedup();
        for (_, node) in nodes.iter().filter(|(id, _)| holders.binary_search(id).is_ok()) {
            graph.add_edge(*node, vertex, ());
        }
        if let [only] = holders[..] {
            sole.push((only, run));
        }
    }
    let mut points: Vec<NodeId> =
        articulation_points(&graph).into_iter().filter_map(|vertex| graph[vertex]).collect();
    points.sort_unstable();
    let layers = |node: NodeId| sole.iter().filter(|(only, _)| *only == node).map(|(_, run)| *run).collect();
    points.into_iter().map(|node| Bares { node, layers: layers(node) }).collect()
}

/// The layers that `node` alone holds.
pub fn alone(held: &[(NodeId, LayerSet)], node: NodeId) -> LayerSet {
    bares(held).into_iter().find(|bares| bares.node == node).map(|bares| bares.layers).unwrap_or_default()
}

/// The layers held, cut wherever the holders may change.
fn runs(held: &[(NodeId, LayerSet)]) -> Vec<LayerRange> {
    let ranges = || held.iter().flat_map(|(_, set)| set.ranges());
    let cuts: BTreeSet<u32> = ranges().flat_map(|range| [range.start(), range.end()]).collect();
    let cuts: Vec<u32> = cuts.into_iter().collect();
    let between = cuts.windows(2).filter_map(|pair| LayerRange::new(pair[0], pair[1]));
    between.filter(|run| ranges().any(|range| range.covers(*run))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Bares, bares};
    use crate::{LayerRange, LayerSet, NodeId};
    use proptest::prelude::*;

    fn set(ranges: &[(u32, u32)]) -> LayerSet {
        ranges.iter().filter_map(|&(start, end)| LayerRange::new(start, end)).collect()
    }

    fn named(held: &[(u64, &[(u32, u32)])]) -> Vec<(NodeId, LayerSet)> {
        held.iter().map(|(node, ranges)| (NodeId::numbered(*node), set(ranges))).collect()
    }

    fn bare(node: u64, ranges: &[(u32, u32)]) -> Bares {
        Bares { node: NodeId::numbered(node), layers: set(ranges) }
    }

    #[test]
    fn the_example_of_the_page() {
        let held = named(&[(1, &[(0, 4)]), (2, &[(2, 8)]), (3, &[(6, 8)])]);
        assert_eq!(bares(&held), [bare(1, &[(0, 2)]), bare(2, &[(4, 6)])]);
    }

    #[test]
    fn one_node_alone_bares_all_and_a_bridge_bares_nothing() {
        assert_eq!(bares(&named(&[(7, &[(0, 8)])])), [bare(7, &[(0, 8)])]);
        let bridge = [(1, &[(0, 4)][..]), (2, &[(0, 4)]), (3, &[(2, 6)]), (4, &[(4, 8)]), (5, &[(4, 8)])];
        assert_eq!(bares(&named(&bridge)), []);
        assert_eq!(bares(&[]), []);
    }

    proptest! {
        /// Counting the holders of every layer says the same.
        #[test]
        fn articulation_points_are_the_only_holders(
            held in prop::collection::vec((0..6_u64, 0..9_u32, 1..5_u32, 0..9_u32, 1..5_u32), 0..7),
        ) {
            let held: Vec<(NodeId, LayerSet)> = held
                .into_iter()
                .map(|(node, a, n, b, m)| (NodeId::numbered(node), set(&[(a, a + n), (b, b + m)])))
                .collect();
            let found = bares(&held);
            for layer in 0..14 {
                let mut holders: Vec<NodeId> =
                    held.iter().filter(|(_, set)| set.contains(layer)).map(|(node, _)| *node).collect();
                holders.sort_unstable();
                holders.dedup();
                let only: Vec<NodeId> =
                    found.iter().filter(|b| b.layers.contains(layer)).map(|b| b.node).collect();
                prop_assert_eq!(only, if holders.len() == 1 { holders } else { vec![] });
            }
            prop_assert!(found.iter().all(|bares| !bares.layers.is_empty()));
        }
    }
}
