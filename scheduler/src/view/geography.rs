//! How far nodes are from each other where no node has measured it.

use std::collections::BTreeMap;

use super::SwarmView;
use super::atlas::{Atlas, Placed, fits};
use crate::{Claim, NodeId};

/// The own share of a way of a node that the viewer never measured counts as this much of what it says, and
/// [`UNSEEN_MS`] more: of many nodes the nearest by their own word are those that erred or lied most.
const UNSEEN: f64 = 1.2;
/// See [`UNSEEN`].
const UNSEEN_MS: f64 = 2.0;
/// Of a coordinate's relative error what is above [`USUAL_ERROR`] costs so many ms: nodes that do not know where they are.
const ERROR_MS: f64 = 40.0;
/// The error of a node that has peers enough.
const USUAL_ERROR: f64 = 0.2;
/// One way to a node of which others measured that it is not where it says, ms: as far as a planet is wide, until it was measured.
const REFUTED_MS: f64 = 200.0;
/// Ways so short that coordinates cannot tell, ms.
const BOUND_MS: f64 = 5.0;

/// Region-to-region round trips assumed where nothing was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Geography {
    pub(super) regions: usize,
    pub(super) base_ms: Vec<f64>,
    /// Hops priced around the viewer; see [`Geography::around`].
    pub(super) unmeasured_ms: Option<f64>,
}

impl Geography {
    /// `base_ms[from * regions + to]`; `None` unless it is square and all finite and non-negative.
    pub fn new(regions: usize, base_ms: Vec<f64>) -> Option<Self> {
        let fits = base_ms.len() == regions * regions && regions > 0;
        (fits && base_ms.iter().all(|ms| ms.is_finite() && *ms >= 0.0)).then_some(Self {
            regions,
            base_ms,
            unmeasured_ms: None,
        })
    }

    /// One region, `ms` apart.
    pub fn flat(ms: f64) -> Self {
        let ms = if ms.is_finite() { ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![ms], unmeasured_ms: None }
    }

    /// No map. Nodes that announced a coordinate ([`super::SwarmView::place`]) are as far from each other as these say, once the
    /// viewer has one too and unless the viewer or other nodes measured something else. Each other node lies half of its
    /// measured round trip away from the viewer, `unmeasured_ms` when there is none, and as far from the others as the
    /// way past the viewer: that bounds what no node has measured from above (the triangle).
    pub fn around(unmeasured_ms: f64) -> Self {
        let ms = if unmeasured_ms.is_finite() { unmeasured_ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![0.0], unmeasured_ms: Some(ms) }
    }
}

/// Where a host stands for a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub region: u16,
    pub access_ms: f64,
}

/// The ground as one viewer knows it, for one snapshot.
pub(super) struct Ground<'a> {
    geography: &'a Geography,
    atlas: Option<(&'a Atlas, Placed)>,
    me: NodeId,
    /// What the viewer measured, one way in ms, by node.
    ways: BTreeMap<NodeId, f64>,
}

impl<'a> Ground<'a> {
    pub fn new(view: &'a SwarmView, me: NodeId) -> Self {
        let ways = view.links.ways(me);
        let around = view.geography.unmeasured_ms.is_some() && view.atlas.regions() > 0;
        let atlas = view.atlas.get(me).filter(|_| around).map(|here| (&view.atlas, *here));
        Self { geography: &view.geography, atlas, me, ways }
    }

    /// Regions and the ways between them.
    pub fn regions(&self) -> (usize, Vec<f64>) {
        match self.atlas {
            Some((atlas, _)) => (atlas.regions(), atlas.base_ms().to_vec()),
            None => (self.geography.regions, self.geography.base_ms.clone()),
        }
    }

    /// Whether coordinates price what was not measured.
    pub fn is_mapped(&self) -> bool {
        self.atlas.is_some()
    }

    /// What the viewer measured to nodes, one way in ms.
    pub fn ways(&self) -> &BTreeMap<NodeId, f64> {
        &self.ways
    }

    /// Where `claim`'s node stands, which says that it is at `placed` and is measured to be `way` ms away.
    pub fn spot(&self, claim: &Claim, placed: Option<&Placed>, way: Option<f64>) -> Spot {
        let node = claim.node;
        let Some(unmeasured) = self.geography.unmeasured_ms else {
            let declared = (claim.region as usize) < self.geography.regions;
            return Spot { region: if declared { claim.region } else { 0 }, access_ms: claim.access_ms };
        };
        let Some((atlas, here)) = self.atlas else {
            let access_ms = if node == self.me { 0.0 } else { way.unwrap_or(unmeasured) };
            return Spot { region: 0, access_ms };
        };
        if node == self.me {
            return Spot { region: here.region, access_ms: here.access_ms };
        }
        let beyond =
            |region: u16, way: f64| (way - atlas.between_ms(here.region, region) - here.access_ms).max(0.0);
        let sound = |placed: &&Placed| {
            let expected = here.coordinate.round_trip_ms(&placed.coordinate);
            placed.believed && way.is_none_or(|way| fits(expected, 2.0 * way))
        };
        match (placed.filter(sound), way) {
            // A node cannot say its own share of a way down to less than half of what is left of a measured one.
            (Some(placed), Some(way)) => {
                let access_ms = placed.access_ms.max(beyond(placed.region, way) / 2.0);
                Spot { region: placed.region, access_ms }
            }
            (Some(placed), None) => {
                let doubt_ms = ERROR_MS * (placed.coordinate.error() - USUAL_ERROR).clamp(0.0, 1.0);
                Spot { region: placed.region, access_ms: placed.access_ms * UNSEEN + UNSEEN_MS + doubt_ms }
            }
            // Around the viewer.
            (None, way) => {
                let unmeasured = if placed.is_some() { REFUTED_MS } else { unmeasured };
                Spot { region: here.region, access_ms: beyond(here.region, way.unwrap_or(unmeasured)) }
            }
        }
    }

    /// What a node that is not the viewer says of the way to another counts as, one way in ms: not less than half of what the
    /// coordinates of both say. That it is farther than these say harms that node alone.
    pub fn bounded(&self, from: NodeId, to: NodeId, ms: f64) -> f64 {
        let placed =
            |node| self.atlas.and_then(|(atlas, _)| atlas.get(node)).filter(|placed| placed.believed);
        let (Some(a), Some(b)) = (placed(from), placed(to)) else { return ms };
        let expected = a.coordinate.round_trip_ms(&b.coordinate) / 2.0;
        ms.max(expected / 2.0 - BOUND_MS)
    }
}
