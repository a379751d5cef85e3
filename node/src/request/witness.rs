//! Nodes that could be asked where two disagree.

use std::collections::BTreeSet;

use p2p::wire::control::Contact;
use scheduler::{LayerRange, LayerSet, NodeId, OperatorId};

/// Holders remembered of a route, the most trusted first; a dispute needs one of another operator.
pub const MAX_WITNESSES: usize = 32;
/// A node that holds layers, and who answers for it.
#[derive(Clone)]
pub struct Witness {
    /// Where it is.
    pub contact: Contact,
    /// Whose it is.
    pub operator: OperatorId,
    /// What it holds in memory.
    pub holds: LayerSet,
}

/// The first of `witnesses` that holds `layers`, belongs to none of the operators of `parties`, and is not among
/// `busy`.
pub(super) fn unrelated<'a>(
    witnesses: &'a [Witness],
    layers: LayerRange,
    parties: &[NodeId],
    busy: &BTreeSet<NodeId>,
) -> Option<&'a Witness> {
    let operators: Vec<OperatorId> = parties.iter().map(|node| operator(witnesses, *node)).collect();
    witnesses.iter().find(|witness| {
        let node = witness.contact.node;
        witness.holds.covers(layers)
            && !busy.contains(&node)
            && !parties.contains(&node)
            && !operators.contains(&witness.operator)
    })
}

/// Whose `node` is; its own where nothing else is known.
pub(super) fn operator(witnesses: &[Witness], node: NodeId) -> OperatorId {
    let known = witnesses.iter().find(|witness| witness.contact.node == node);
    known.map_or_else(|| OperatorId::new(*node.as_bytes()), |witness| witness.operator)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use p2p::wire::control::Contact;
    use scheduler::{LayerRange, LayerSet, NodeId, OperatorId};

    use super::{Witness, operator, unrelated};

    #[test]
    fn a_witness_is_related_to_neither_party() {
        let range = |from, to| LayerRange::new(from, to).unwrap();
        let witness = |node, of, from, to| Witness {
            contact: Contact { node: NodeId::numbered(node), addresses: Vec::new() },
            operator: OperatorId::numbered(of),
            holds: LayerSet::new([range(from, to)]),
        };
        // Of the stage's operator, of the follower's, with too few layers, at work in the session, and one that fits.
        let all = [
            witness(1, 1, 0, 8),
            witness(2, 2, 0, 8),
            witness(3, 1, 0, 8),
            witness(4, 2, 0, 8),
            witness(5, 5, 0, 4),
            witness(6, 6, 0, 8),
            witness(7, 7, 2, 8),
        ];
        let parties = [NodeId::numbered(1), NodeId::numbered(2)];
        let busy = BTreeSet::from([NodeId::numbered(6)]);
        let asked = |witnesses: &[Witness]| {
            unrelated(witnesses, range(2, 6), &parties, &busy).map(|witness| witness.contact.node)
        };
        assert_eq!(asked(&all), Some(NodeId::numbered(7)));
        assert_eq!(asked(&all[..6]), None);
        assert_eq!(operator(&all, NodeId::numbered(3)), OperatorId::numbered(1));
        assert_eq!(operator(&[], NodeId::numbered(3)), OperatorId::new(*NodeId::numbered(3).as_bytes()));
    }
}
