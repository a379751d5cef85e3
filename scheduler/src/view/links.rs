//! Round trips that were measured between nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::SwarmView;
use crate::NodeId;
use crate::latency::RoundTrip;

/// Measured links kept per node.
pub const MAX_LINKS: usize = 32;

impl SwarmView {
    /// Notes a measured (or gossiped) round trip between two known nodes; one way counts as half of it.
    pub fn observe_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if from == to || !self.known.contains_key(&from) || !self.known.contains_key(&to) {
            return;
        }
        let links = self.links.entry(from).or_default();
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
        self.epoch += 1;
    }

    /// Forgets a measured link's past: from now on it is `round_trip_ms`. For who smooths its measurements itself.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, round_trip_ms: f64) {
        if let Some(links) = self.links.get_mut(&from) {
            links.retain(|link| link.0 != to);
        }
        self.observe_link(from, to, round_trip_ms);
    }

    /// The round trip between two nodes as either measured it, ms.
    pub fn round_trip_ms(&self, one: NodeId, other: NodeId) -> Option<f64> {
        let seen = |from, to| {
            let link = self.links.get(&from)?.iter().find(|link| link.0 == to)?;
            link.1.mean_ms()
        };
        seen(one, other).or_else(|| seen(other, one))
    }

    /// Measured one-way times between indexed nodes; a pair measured one way only counts both ways.
    pub(super) fn measured(&self, index: &BTreeMap<NodeId, u32>) -> Vec<(u32, u32, f64)> {
        let mut pairs = Vec::new();
        let mut direct = BTreeSet::new();
        for (from, links) in &self.links {
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
        // The last entry of a pair counts.
        for (one, other) in self.unreachable.keys() {
            if let (Some(&i), Some(&j)) = (index.get(one), index.get(other)) {
                pairs.extend([(i, j, f64::INFINITY), (j, i, f64::INFINITY)]);
            }
        }
        pairs
    }
}
