//! Round trips that were measured between nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::feedback::Corrections;
use super::geography::Ground;
use crate::NodeId;
use crate::latency::RoundTrip;
use crate::snapshot::Host;

/// Measured links kept per node that said them.
pub const MAX_LINKS: usize = 32;
/// Links kept of the viewer itself: more than it has peers.
pub const MAX_OWN_LINKS: usize = 1_024;
/// A measured round trip that changed by this share is the same: snapshots and tables outlast it.
const SAME: f64 = 0.05;
/// As [`SAME`], ms.
const SAME_MS: f64 = 0.25;
/// Hosts up to which links that others announced are priced one by one although coordinates are known.
pub(super) const SAID_UP_TO: usize = 2_048;

/// By node, the round trips from it.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredLinks {
    from: BTreeMap<NodeId, Vec<(NodeId, RoundTrip)>>,
    /// Of each viewer, who says how far it is to it: among ten thousand nodes they are not looked for at each question.
    to: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Viewers to whom a node said how far it is and says it no more.
    lost: BTreeSet<NodeId>,
}

impl MeasuredLinks {
    /// Notes a round trip; of `from` the `most` shortest are kept.
    pub fn observe(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64, most: usize) {
        let links = self.from.entry(from).or_default();
        let at = links.iter().position(|link| link.0 == to).unwrap_or_else(|| {
            links.push((to, RoundTrip::default()));
            links.len() - 1
        });
        links[at].1.add(round_trip_ms);
        if let Some(said) = self.to.get_mut(&to) {
            said.insert(from);
        }
        if links.len() > most {
            let slowest = |a: &(NodeId, RoundTrip), b: &(NodeId, RoundTrip)| {
                a.1.mean_ms().unwrap_or(f64::MAX).total_cmp(&b.1.mean_ms().unwrap_or(f64::MAX))
            };
            if let Some(worst) = (0..links.len()).max_by(|&a, &b| slowest(&links[a], &links[b])) {
                let (dropped, _) = links.swap_remove(worst);
                self.unsay(from, dropped);
            }
        }
    }

    /// Forgets a link's past and notes a round trip, unless it is the same; whether it was another.
    pub fn replace(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64, most: usize) -> bool {
        if let Some(links) = self.from.get_mut(&from) {
            let before = links.iter().find(|link| link.0 == to).and_then(|link| link.1.mean_ms());
            if before.is_some_and(|ms| (round_trip_ms - ms).abs() <= (SAME * ms).max(SAME_MS)) {
                return false;
            }
            links.retain(|link| link.0 != to);
        }
        self.observe(from, to, round_trip_ms, most);
        true
    }

    /// All round trips: who measured, to whom, ms.
    pub fn all(&self) -> impl Iterator<Item = (NodeId, NodeId, f64)> {
        let of = |(by, links): (&NodeId, &Vec<(NodeId, RoundTrip)>)| {
            let by = *by;
            let said = links.iter().filter_map(move |(to, trip)| Some((by, *to, trip.mean_ms()?)));
            said.collect::<Vec<_>>()
        };
        self.from.iter().flat_map(of)
    }

    /// Forgets all links from a node.
    pub fn forget_node(&mut self, node: NodeId) {
        for (to, _) in self.from.remove(&node).into_iter().flatten() {
            self.unsay(node, to);
        }
    }

    fn unsay(&mut self, from: NodeId, to: NodeId) {
        if self.to.get_mut(&to).is_some_and(|said| said.remove(&from)) {
            self.lost.insert(to);
        }
    }

    /// The viewers to whom a way is not said any more that was since this was asked last.
    pub fn take_lost(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.lost)
    }

    /// The nodes to which `me` measured how far they are.
    pub fn measured_by(&self, me: NodeId) -> BTreeSet<NodeId> {
        self.from.get(&me).into_iter().flatten().map(|link| link.0).collect()
    }

    /// From now on [`Self::ways`] of `me` takes the time of what it returns.
    pub fn watch(&mut self, me: NodeId) {
        if !self.to.contains_key(&me) {
            let said = self.from.iter().filter(|(_, links)| links.iter().any(|link| link.0 == me));
            let said = said.map(|(from, _)| *from).collect();
            self.to.insert(me, said);
        }
    }

    /// The nodes to which one of those `from` measured how far they are.
    pub fn reached(&self, from: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
        let measured = self.from.iter().filter(|(node, _)| from(**node));
        measured.flat_map(|(_, links)| links.iter().map(|link| link.0)).collect()
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let seen = |from, to| {
            let link = self.from.get(&from)?.iter().find(|link| link.0 == to)?;
            link.1.mean_ms()
        };
        seen(one, other).or_else(|| seen(other, one))
    }

    /// Whether `from` says how far it is to `to`.
    pub fn says_way(&self, from: NodeId, to: NodeId) -> bool {
        self.from.get(&from).is_some_and(|links| links.iter().any(|link| link.0 == to))
    }

    /// What `me` measured, or, where it did not, others to it: one way in ms, by node.
    pub fn ways(&self, me: NodeId) -> BTreeMap<NodeId, f64> {
        let said = |from: NodeId| {
            let links = self.from.get(&from).filter(|_| from != me)?;
            let back = links.iter().find(|link| link.0 == me).and_then(|link| link.1.mean_ms());
            Some((from, back? / 2.0))
        };
        let mut ways: BTreeMap<NodeId, f64> = match self.to.get(&me) {
            Some(watched) => watched.iter().copied().filter_map(said).collect(),
            None => self.from.keys().copied().filter_map(said).collect(),
        };
        let own = self.from.get(&me).into_iter().flatten();
        ways.extend(own.filter_map(|(to, trip)| Some((*to, trip.mean_ms()? / 2.0))));
        ways
    }

    /// Measured one-way times between `hosts`, which stand in the order of their names; a pair measured one way only counts
    /// both ways. Where there is a map, what nodes say of ways between each other is bounded by it, and among many hosts
    /// only the viewer's own measurements count beside it.
    pub fn one_way(
        &self,
        hosts: &[Host],
        me: NodeId,
        ground: &Ground<'_>,
        corrections: &Corrections,
    ) -> Vec<(u32, u32, f64)> {
        let index = |node: &NodeId| hosts.binary_search_by_key(node, |host| host.id).ok().map(|at| at as u32);
        let mut pairs = Vec::new();
        let said = !ground.is_mapped() || hosts.len() <= SAID_UP_TO;
        for (from, links) in self.from.iter().filter(|(from, _)| said && **from != me) {
            let Some(i) = index(from) else { continue };
            for (to, trip) in links.iter().filter(|(to, _)| *to != me) {
                if let (Some(j), Some(ms)) = (index(to), trip.mean_ms()) {
                    pairs.push((i, j, ground.bounded(*from, *to, ms / 2.0)));
                }
            }
        }
        pairs.sort_unstable_by_key(|&(i, j, _)| (i, j));
        let direct = |i, j| pairs.binary_search_by_key(&(i, j), |&(i, j, _)| (i, j)).is_ok();
        let mut back: Vec<_> =
            pairs.iter().filter(|&&(i, j, _)| !direct(j, i)).map(|&(i, j, ms)| (j, i, ms)).collect();
        pairs.append(&mut back);
        if let Some(i) = index(&me) {
            let own = ground.ways().iter().filter_map(|(node, ms)| Some((index(node)?, *ms)));
            own.for_each(|(j, ms)| pairs.extend([(i, j, ms), (j, i, ms)]));
        }
        // The last entry of a pair counts.
        let apart = corrections.pairs_apart(|node| index(&node));
        pairs.extend(apart.map(|(i, j)| (i, j, f64::INFINITY)));
        pairs
    }
}
