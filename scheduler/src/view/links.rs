//! Round trips that were measured between nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::NodeId;
use crate::latency::RoundTrip;

/// Measured links kept per node.
pub const MAX_LINKS: usize = 32;

/// By node, the round trips from it.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredLinks(BTreeMap<NodeId, Vec<(NodeId, RoundTrip)>>);

impl MeasuredLinks {
    /// Notes a round trip.
    pub fn observe(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        let links = self.0.entry(from).or_default();
        let at = links.iter().position(|link| link.0 == to).unwrap_or_else(|| {
            links.push((to, RoundTrip::default()));
            links.len() - 1
        });
        links[at].1.add(round_trip_ms);
        if links.len() > MAX_LINKS {
            let slowest = |a: &(NodeId, RoundTrip), b: &(NodeId, RoundTrip)| {
                a.1.mean_ms().unwrap_or(f64::MAX).total_cmp(&b.1.mean_ms().unwrap_or(f64::MAX))
            };
            if let Some(worst) = (0..links.len()).max_by(|&a, &b| slowest(&links[a], &links[b])) {
                links.swap_remove(worst);
            }
        }
    }

    /// Forgets a link's past.
    pub fn forget(&mut self, from: NodeId, to: NodeId) {
        if let Some(links) = self.0.get_mut(&from) {
            links.retain(|link| link.0 != to);
        }
    }

    /// Forgets all links from a node.
    pub fn forget_node(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// The nodes to which one of those `from` measured how far they are.
    pub fn reached(&self, from: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
        let measured = self.0.iter().filter(|(node, _)| from(**node));
        measured.flat_map(|(_, links)| links.iter().map(|link| link.0)).collect()
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let seen = |from, to| {
            let link = self.0.get(&from)?.iter().find(|link| link.0 == to)?;
            link.1.mean_ms()
        };
        seen(one, other).or_else(|| seen(other, one))
    }

    /// One-way times between indexed nodes; a pair measured one way only counts both ways.
    pub fn one_way(&self, index: &BTreeMap<NodeId, u32>) -> Vec<(u32, u32, f64)> {
        let mut pairs = Vec::new();
        let mut direct = BTreeSet::new();
        for (from, links) in &self.0 {
            for (to, round_trip) in links {
                if let (Some(&i), Some(&j), Some(ms)) = (index.get(from), index.get(to), round_trip.mean_ms())
                {
                    direct.insert((i, j));
                    pairs.push((i, j, ms / 2.0));
                }
            }
        }
        let back: Vec<_> = pairs
            .iter()
            .filter(|(i, j, _)| !direct.contains(&(*j, *i)))
            .map(|&(i, j, ms)| (j, i, ms))
            .collect();
        pairs.extend(back);
        pairs
    }
}
