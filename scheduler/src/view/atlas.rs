//! Where nodes say that they are, which of them are believed, and the regions that they form.
//!
//! A search among ten thousand nodes needs regions ([`crate::snapshot::Links::Regions`]); no node declares one. They are found:
//! coordinates that lie within [`NEAR_MS`] of each other are a region, the [`MAX_FOUND`] most crowded ones count, and each node
//! belongs to the nearest. Between two regions lies the distance of their means, and the height of a node is its own way.
//!
//! A node whose coordinate does not fit what nodes that were met measured to it ([`Atlas::judge`]) is not believed: it is
//! taken to be where it would be without a coordinate.
//!
//! Limits: regions are found again after a quarter of all coordinates changed; in between a newcomer joins the nearest.

use std::collections::BTreeMap;

use crate::NodeId;
use crate::coordinate::Coordinate;

/// Round trip between the middle of a region and its rim, ms. Smaller, and a continent is many regions; larger, and two
/// cities are one.
const NEAR_MS: f64 = 20.0;
/// Regions at most: a search looks at each pair of them on each layer.
const MAX_FOUND: usize = 16;
/// Candidates for a region, while they are counted.
const MAX_CANDIDATES: usize = 64;
/// Coordinates that change before regions are found again, at least.
const LEAST_CHANGES: usize = 8;
/// A measured round trip fits a coordinate when it is off by this share of the greater, or by [`SLACK_MS`].
const TOLERANCE: f64 = 0.35;
/// See [`TOLERANCE`].
const SLACK_MS: f64 = 10.0;
/// Measurements of other nodes without which they say nothing of a coordinate.
const LEAST_WITNESSES: usize = 3;

/// A node's coordinate and what follows from it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Placed {
    pub coordinate: Coordinate,
    /// Which region of the atlas it belongs to.
    pub region: u16,
    /// Its own share of each hop, one way, ms.
    pub access_ms: f64,
    /// Whether other nodes measured about what the coordinate says.
    pub believed: bool,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Atlas {
    placed: BTreeMap<NodeId, Placed>,
    centers: Vec<Coordinate>,
    /// One way between regions, ms: `base_ms[from * regions + to]`.
    base_ms: Vec<f64>,
    changes: usize,
}

/// Whether a measured round trip can be that of two coordinates.
pub(super) fn fits(expected_ms: f64, measured_ms: f64) -> bool {
    (expected_ms - measured_ms).abs() <= TOLERANCE * expected_ms.max(measured_ms) + SLACK_MS
}

/// Which of `centers` is nearest, the first of equals, and how far it is, ms.
fn nearest<'a>(
    centers: impl IntoIterator<Item = &'a Coordinate>,
    coordinate: &Coordinate,
) -> Option<(usize, f64)> {
    let away = centers.into_iter().map(|center| center.across_ms(coordinate)).enumerate();
    away.min_by(|a, b| a.1.total_cmp(&b.1))
}

impl Atlas {
    pub fn get(&self, node: NodeId) -> Option<&Placed> {
        self.placed.get(&node)
    }

    /// All nodes that say where they are, in the order of their names.
    pub fn all(&self) -> &BTreeMap<NodeId, Placed> {
        &self.placed
    }

    pub fn regions(&self) -> usize {
        self.centers.len()
    }

    pub fn base_ms(&self) -> &[f64] {
        &self.base_ms
    }

    /// One way between the middles of two regions, ms.
    pub fn between_ms(&self, from: u16, to: u16) -> f64 {
        self.base_ms[from as usize * self.centers.len() + to as usize]
    }

    pub fn forget(&mut self, node: NodeId) {
        self.placed.remove(&node);
    }

    /// A node says where it is; whether that is news.
    pub fn set(&mut self, node: NodeId, coordinate: Coordinate) -> bool {
        let before = self.placed.get(&node);
        if before.is_some_and(|before| before.coordinate == coordinate) {
            return false;
        }
        let believed = before.is_none_or(|before| before.believed);
        let (region, access_ms) = self.locate(&coordinate);
        self.placed.insert(node, Placed { coordinate, region, access_ms, believed });
        self.changes += 1;
        true
    }

    /// Whether so much changed that regions should be found again.
    pub fn is_stale(&self) -> bool {
        self.centers.is_empty() && !self.placed.is_empty()
            || self.changes >= LEAST_CHANGES.max(self.placed.len() / 4)
    }

    /// Believes each coordinate, or not, by `measured`: who was measured, and by whom with what round trip, ms. Those who
    /// measured are to be nodes that were met: others may agree on a lie. Then finds regions among those believed.
    pub fn judge(&mut self, measured: impl Iterator<Item = (NodeId, NodeId, f64)>) {
        let mut votes: BTreeMap<NodeId, (usize, usize)> = BTreeMap::new();
        for (by, of, ms) in measured {
            if let (Some(by), Some(placed)) = (self.placed.get(&by), self.placed.get(&of)) {
                let (fit, all) = votes.entry(of).or_default();
                *fit += usize::from(fits(by.coordinate.round_trip_ms(&placed.coordinate), ms));
                *all += 1;
            }
        }
        for (node, placed) in &mut self.placed {
            let (fit, all) = votes.get(node).copied().unwrap_or_default();
            placed.believed = all < LEAST_WITNESSES || 2 * fit >= all;
        }
        self.find();
    }

    /// The nearest region and the node's way to the middle of it, one way in ms.
    fn locate(&self, coordinate: &Coordinate) -> (u16, f64) {
        let (region, across_ms) = nearest(&self.centers, coordinate).unwrap_or((0, 0.0));
        // Within a region its own width counts; beyond its rim the way there does.
        (region as u16, (coordinate.height_ms() + (across_ms - NEAR_MS).max(0.0)) / 2.0)
    }

    fn find(&mut self) {
        self.changes = 0;
        let mut found: Vec<(usize, Coordinate)> = Vec::new();
        for placed in self.placed.values().filter(|placed| placed.believed) {
            match nearest(found.iter().map(|(_, center)| center), &placed.coordinate) {
                Some((at, ms)) if ms <= NEAR_MS || found.len() == MAX_CANDIDATES => found[at].0 += 1,
                _ => found.push((1, placed.coordinate)),
            }
        }
        // Stable: of equally crowded ones the first.
        found.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        found.truncate(MAX_FOUND);
        self.centers = found.into_iter().map(|(_, center)| center).collect();
        let spread = self.recenter();
        let n = self.centers.len();
        self.base_ms = (0..n * n)
            .map(|at| match (at / n, at % n) {
                // Two members are as far apart as both from the middle, at right angles.
                (from, to) if from == to => spread[from] * std::f64::consts::SQRT_2 / 2.0,
                (from, to) => self.centers[from].across_ms(&self.centers[to]) / 2.0,
            })
            .collect();
        let all: Vec<(NodeId, (u16, f64))> =
            self.placed.iter().map(|(node, placed)| (*node, self.locate(&placed.coordinate))).collect();
        for (node, (region, access_ms)) in all {
            if let Some(placed) = self.placed.get_mut(&node) {
                (placed.region, placed.access_ms) = (region, access_ms);
            }
        }
    }

    /// Moves each center to the mean of its members; returns how far these are from it on average, ms.
    fn recenter(&mut self) -> Vec<f64> {
        let n = self.centers.len();
        let mut sums = vec![([0.0f64; crate::coordinate::AXES], 0.0f64); n];
        let near = |atlas: &Self, placed: &Placed| {
            nearest(&atlas.centers, &placed.coordinate).filter(|found| found.1 <= NEAR_MS)
        };
        for placed in self.placed.values().filter(|placed| placed.believed) {
            if let Some((at, _)) = near(self, placed) {
                let (sum, count) = &mut sums[at];
                sum.iter_mut()
                    .zip(placed.coordinate.parts().0)
                    .for_each(|(sum, axis)| *sum += f64::from(axis));
                *count += 1.0;
            }
        }
        for (center, (sum, count)) in
            self.centers.iter_mut().zip(&sums).filter(|(_, (_, count))| *count > 0.0)
        {
            let mean = sum.map(|axis| (axis / count) as f32);
            *center = Coordinate::new(mean, 0.0, 0.0).unwrap_or(*center);
        }
        let mut spread = vec![(0.0, 0.0); n];
        for placed in self.placed.values().filter(|placed| placed.believed) {
            if let Some((at, ms)) = near(self, placed) {
                spread[at].0 += ms;
                spread[at].1 += 1.0;
            }
        }
        spread.into_iter().map(|(sum, count)| sum / f64::max(count, 1.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Atlas, MAX_FOUND};
    use crate::NodeId;
    use crate::coordinate::Coordinate;

    fn at(x: f32, y: f32, height: f32) -> Coordinate {
        Coordinate::new([x, y, 0.0], height, 0.1).unwrap()
    }

    fn id(n: usize) -> NodeId {
        NodeId::numbered(n as u64)
    }

    #[test]
    fn continents_are_regions() {
        let mut atlas = Atlas::default();
        for n in 0..40 {
            let near = (n % 5) as f32;
            atlas.set(id(n), at(if n % 2 == 0 { near } else { 120.0 + near }, near, 6.0));
        }
        assert!(atlas.is_stale());
        atlas.judge(std::iter::empty());
        assert!(!atlas.is_stale());
        assert_eq!(atlas.regions(), 2);
        let of = |n| atlas.get(id(n)).unwrap();
        assert_eq!(of(0).region, of(2).region);
        assert_ne!(of(0).region, of(1).region);
        let apart = atlas.between_ms(of(0).region, of(1).region);
        assert!((apart - 60.0).abs() < 2.0, "half of the round trip: {apart}");
        assert_eq!(of(0).access_ms, 3.0);
        assert!(atlas.between_ms(0, 0) < 3.0);
    }

    #[test]
    fn places_of_liars_are_no_regions_and_no_flood_makes_more_than_the_bound() {
        let mut atlas = Atlas::default();
        let mut set = |n: usize, place| assert!(atlas.set(id(n), place));
        (0..20).for_each(|n| set(n, at(n as f32 / 10.0, 0.0, 2.0)));
        (20..23).for_each(|n| set(n, at(400.0, 0.0, 0.0)));
        // The first five measured all others: 5 ms.
        let seen = (0..5).flat_map(|by| (0..23).map(move |of| (id(by), id(of), 5.0)));
        atlas.judge(seen.clone());
        assert_eq!(atlas.regions(), 1);
        assert!(atlas.get(id(7)).unwrap().believed && !atlas.get(id(21)).unwrap().believed);
        for n in 23..600 {
            atlas.set(id(n), at((n * 61 % 4_000) as f32, (n * 17 % 4_000) as f32, 0.0));
        }
        atlas.judge(seen);
        assert_eq!(atlas.regions(), MAX_FOUND);
        assert!(atlas.get(id(0)).unwrap().access_ms < 2.0, "the crowded one is among them");
    }
}
