//! Round trips that were measured between nodes.

use std::collections::BTreeMap;

use super::SwarmView;
use super::geography::Ground;
use super::journal::Change;
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

impl SwarmView {
    /// Notes a measured (or gossiped) round trip between two known nodes; one way counts as half of it. Of each node the
    /// [`MAX_LINKS`] shortest are kept.
    pub fn observe_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        self.note_link(from, to, round_trip_ms, MAX_LINKS);
    }

    /// The viewer itself measured a round trip; it smooths its measurements before. [`MAX_OWN_LINKS`] are kept.
    pub fn measure(&mut self, me: NodeId, to: NodeId, round_trip_ms: f64) {
        self.replace_link(me, to, round_trip_ms, MAX_OWN_LINKS);
    }

    fn replace_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64, most: usize) {
        if let Some(links) = self.links.get_mut(&from) {
            let before = links.iter().find(|link| link.0 == to).and_then(|link| link.1.mean_ms());
            if before.is_some_and(|ms| (round_trip_ms - ms).abs() <= (SAME * ms).max(SAME_MS)) {
                return;
            }
            links.retain(|link| link.0 != to);
        }
        self.note_link(from, to, round_trip_ms, most);
    }

    fn note_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64, most: usize) {
        if from == to || !self.known.contains_key(&from) || !self.known.contains_key(&to) {
            return;
        }
        let links = self.links.entry(from).or_default();
        let at = links.iter().position(|link| link.0 == to).unwrap_or_else(|| {
            links.push((to, RoundTrip::default()));
            links.len() - 1
        });
        links[at].1.add(round_trip_ms);
        if links.len() > most {
            let slowest = |a: &(NodeId, RoundTrip), b: &(NodeId, RoundTrip)| {
                a.1.mean_ms().unwrap_or(f64::MAX).total_cmp(&b.1.mean_ms().unwrap_or(f64::MAX))
            };
            if let Some(worst) = (0..links.len()).max_by(|&a, &b| slowest(&links[a], &links[b])) {
                links.swap_remove(worst);
            }
        }
        self.changed(Change::Link(from));
    }

    /// Forgets a measured link's past: from now on it is `round_trip_ms`. For who smooths its measurements itself. A change of
    /// a twentieth, or of [`SAME_MS`], is none.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        self.replace_link(from, to, round_trip_ms, MAX_LINKS);
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let seen = |from, to| {
            let link = self.links.get(&from)?.iter().find(|link| link.0 == to)?;
            link.1.mean_ms()
        };
        seen(one, other).or_else(|| seen(other, one))
    }

    /// Whether `from` says how far it is to `to`.
    pub(super) fn says_way(&self, from: NodeId, to: NodeId) -> bool {
        self.links.get(&from).is_some_and(|links| links.iter().any(|link| link.0 == to))
    }

    /// What `me` measured, or, where it did not, others to it: one way in ms, by node.
    pub(super) fn ways(&self, me: NodeId) -> BTreeMap<NodeId, f64> {
        let mut ways = BTreeMap::new();
        for (from, links) in self.links.iter().filter(|(from, _)| **from != me) {
            let back = links.iter().find(|link| link.0 == me).and_then(|link| link.1.mean_ms());
            ways.extend(back.map(|ms| (*from, ms / 2.0)));
        }
        let own = self.links.get(&me).into_iter().flatten();
        ways.extend(own.filter_map(|(to, trip)| Some((*to, trip.mean_ms()? / 2.0))));
        ways
    }

    /// Measured one-way times between `hosts`, which stand in the order of their names; a pair measured one way only counts
    /// both ways. Where there is a map, what nodes say of ways between each other is bounded by it, and among many hosts
    /// only the viewer's own measurements count beside it.
    pub(super) fn measured(&self, hosts: &[Host], me: NodeId, ground: &Ground<'_>) -> Vec<(u32, u32, f64)> {
        let index = |node: &NodeId| hosts.binary_search_by_key(node, |host| host.id).ok().map(|at| at as u32);
        let mut pairs = Vec::new();
        let said = !ground.is_mapped() || hosts.len() <= SAID_UP_TO;
        for (from, links) in self.links.iter().filter(|(from, _)| said && **from != me) {
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
            let own = hosts.iter().zip(0u32..).filter_map(|(host, j)| Some((j, ground.way_ms(host.id)?)));
            own.for_each(|(j, ms)| pairs.extend([(i, j, ms), (j, i, ms)]));
        }
        // The last entry of a pair counts.
        for (one, other) in self.unreachable.keys() {
            if let (Some(i), Some(j)) = (index(one), index(other)) {
                pairs.extend([(i, j, f64::INFINITY), (j, i, f64::INFINITY)]);
            }
        }
        pairs
    }
}
