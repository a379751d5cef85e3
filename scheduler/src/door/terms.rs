//! Which frames of a session count.

use std::collections::BTreeMap;

use crate::{LayerRange, NodeId};

/// What a lease says about the frames it lets in.
pub trait Term {
    /// The layers it is for.
    fn layers(&self) -> LayerRange;
    /// The epoch it was granted under.
    fn epoch(&self) -> u32;
    /// Whose frames count besides the requester's.
    fn previous(&self) -> Option<NodeId>;
}

/// The leases of one session, by their first layer. No two of them overlap.
#[derive(Clone, Debug)]
pub struct Terms<T>(BTreeMap<u32, T>);

impl<T> Default for Terms<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Term> Terms<T> {
    /// Whether a lease of this epoch is too late: a later one is served.
    pub fn is_past(&self, epoch: u32) -> bool {
        self.0.values().any(|held| held.epoch() > epoch)
    }

    /// Enters a lease in the place of those it overlaps.
    pub fn grant(&mut self, term: T) {
        self.0.retain(|_, held| held.layers().intersect(term.layers()).is_none());
        self.0.insert(term.layers().start(), term);
    }

    /// Gives back what was leased under this epoch or a lower one; true when nothing is left.
    pub fn release(&mut self, epoch: u32) -> bool {
        self.0.retain(|_, held| held.epoch() > epoch);
        self.0.is_empty()
    }

    /// The lease under which something of this layer and epoch has an effect.
    pub fn of(&self, layer: u32, epoch: u32) -> Option<&T> {
        self.0.get(&layer).filter(|held| held.epoch() == epoch)
    }

    /// The lease under which a frame counts: it is of the lease's epoch, and from the requester or, where it came `down`
    /// the chain, from the node of the segment before.
    pub fn admits(&self, requester: NodeId, from: NodeId, down: bool, layer: u32, epoch: u32) -> Option<&T> {
        let before = |held: &&T| down && held.previous() == Some(from);
        self.of(layer, epoch).filter(|held| from == requester || before(held))
    }

    /// Whether `from` may send anything at all.
    pub fn knows(&self, from: NodeId) -> bool {
        self.0.values().any(|held| held.previous() == Some(from))
    }

    /// The lease that starts at this layer.
    pub fn get(&self, layer: u32) -> Option<&T> {
        self.0.get(&layer)
    }

    /// Whether a lease starts at this layer.
    pub fn starts_at(&self, layer: u32) -> bool {
        self.0.contains_key(&layer)
    }

    /// All leases.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug)]
    struct Lease(u32, u32, u32, Option<u64>);

    impl Term for Lease {
        fn layers(&self) -> LayerRange {
            LayerRange::new(self.0, self.1).unwrap()
        }

        fn epoch(&self) -> u32 {
            self.2
        }

        fn previous(&self) -> Option<NodeId> {
            self.3.map(NodeId::numbered)
        }
    }

    #[test]
    fn a_frame_counts_under_the_epoch_of_its_lease_and_from_whom_it_names() {
        let (me, before, other) = (NodeId::numbered(1), NodeId::numbered(2), NodeId::numbered(3));
        let mut terms = Terms::default();
        terms.grant(Lease(2, 4, 5, Some(2)));
        let admits = |terms: &Terms<Lease>, from, down, layer, epoch| {
            terms.admits(me, from, down, layer, epoch).is_some()
        };
        assert!(admits(&terms, me, false, 2, 5) && admits(&terms, before, true, 2, 5));
        assert!(!admits(&terms, before, false, 2, 5), "it feeds no standby");
        assert!(!admits(&terms, other, true, 2, 5), "it is of another session");
        assert!(!admits(&terms, me, false, 2, 4) && !admits(&terms, me, false, 2, 6));
        assert!(!admits(&terms, me, false, 3, 5), "no lease starts there");
        assert!(terms.is_past(4) && !terms.is_past(5));
        terms.grant(Lease(3, 6, 6, None));
        assert!(!terms.starts_at(2) && terms.starts_at(3), "the old one overlapped");
        assert!(!terms.release(5) && terms.release(6));
    }
}
