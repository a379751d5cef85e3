//! Second choices: who takes over when a node of the pipeline fails, and who shadows it meanwhile.
//!
//! Three strengths, strongest first:
//!
//! * [`disjoint`]: a whole second pipeline that shares no node with the first (the requester excepted). It survives
//!   any number of failures in the first one. Found whenever one exists, since it is the same exact search without
//!   those nodes; preferring other operators comes first and is given up only when it leaves no route.
//! * [`covers`]: per segment, the cheapest way to run just its layers on other nodes, priced with the hops from and
//!   to the neighbors that stay. Several nodes may tile one segment. Covers are chosen one after the other and each
//!   is charged against the KV room of its nodes, so two segments never count on the same free memory.
//! * [`shadows`]: the one node that should follow a segment token by token: it must hold the whole segment, since it
//!   replays exactly that input log, and be run by another node than the segment's, since it also checks it.
//!
//! Limits: `disjoint` takes the primary as given; a swarm may have two disjoint pipelines neither of which is part
//! of the best one. Per-segment covers exist more often and are what failover uses first.

use std::collections::BTreeMap;

use crate::cost::{self, Price};
use crate::route::{NoRoute, Route, Router};
use crate::snapshot::Snapshot;
use crate::{LayerRange, NodeId, OperatorId, Pipeline, Request, Segment};

/// A second pipeline that shares no node with `primary`, the requester excepted, and, if that leaves a route, no
/// operator either.
///
/// # Errors
/// [`NoRoute`] when the other nodes do not cover the model.
pub fn disjoint(snapshot: &Snapshot, request: &Request, primary: &Pipeline) -> Result<Route, NoRoute> {
    disjoint_with(&mut Router::default(), snapshot, request, primary)
}

/// As [`disjoint`], with the memory of a router kept for this: at ten thousand nodes half of the time of a first search
/// is the memory of its table. The router is prepared again.
///
/// # Errors
/// As [`disjoint`].
pub fn disjoint_with(
    router: &mut Router,
    snapshot: &Snapshot,
    request: &Request,
    primary: &Pipeline,
) -> Result<Route, NoRoute> {
    let others = without(snapshot, request, primary, true);
    if others.policy.deny.len() > without(snapshot, request, primary, false).policy.deny.len()
        && let Ok(route) = router.prepare(snapshot, &others).and_then(|()| router.route(snapshot, &others))
    {
        return Ok(route);
    }
    let others = without(snapshot, request, primary, false);
    router.prepare(snapshot, &others)?;
    router.route(snapshot, &others)
}

/// `request` with the nodes of `primary` denied, or all nodes of their operators.
fn without(snapshot: &Snapshot, request: &Request, primary: &Pipeline, operators: bool) -> Request {
    let mut request = request.clone();
    request.policy.near_equal = 0.0;
    // An open chain has no home whose nodes could be shared.
    let shares = request.policy.boomerang.is_some() || request.policy.closing_hop;
    let home = request.requester.filter(|_| shares);
    let used: Vec<NodeId> =
        primary.segments().iter().map(|s| s.node).filter(|id| Some(*id) != home).collect();
    if operators {
        let theirs: Vec<_> =
            used.iter().filter_map(|id| snapshot.host(*id)).map(|host| host.operator).collect();
        let kin = snapshot.hosts().iter().filter(|host| theirs.contains(&host.operator));
        request.policy.deny.extend(kin.map(|host| host.id).filter(|id| Some(*id) != home));
    }
    request.policy.deny.extend(used);
    request
}

/// Who would run one segment if its node failed.
#[derive(Clone, PartialEq, Debug)]
pub struct Cover {
    /// Index of the segment in the primary.
    pub index: usize,
    /// Nodes that tile exactly its layers; empty when no nodes can.
    pub segments: Vec<Segment>,
    /// Predicted cost of the pipeline with the cover in place, ms; infinite when none can.
    pub total_ms: f64,
}

/// A cover for every segment of `primary` that is not the requester's own, in order.
pub fn covers(snapshot: &Snapshot, request: &Request, primary: &Pipeline) -> Vec<Cover> {
    let mut router = Router::default();
    let others = without(snapshot, request, primary, false);
    let priced = router.prepare_parts(snapshot, &others);
    priced.map_or_else(|_| none(request, primary), |()| covers_by(&mut router, snapshot, request, primary))
}

/// As [`covers`], where `priced` was prepared for `request`; `router` lends its memory.
pub(crate) fn covers_with(
    router: &mut Router,
    priced: &Router,
    snapshot: &Snapshot,
    request: &Request,
    primary: &Pipeline,
) -> Vec<Cover> {
    let others = without(snapshot, request, primary, false);
    let used = others.policy.deny.difference(&request.policy.deny);
    router.prepare_parts_as(priced, used.filter_map(|node| snapshot.index_of(*node)));
    covers_by(router, snapshot, request, primary)
}

/// A router that is priced for others than those of `primary`.
fn covers_by(router: &mut Router, snapshot: &Snapshot, request: &Request, primary: &Pipeline) -> Vec<Cover> {
    let mut covering = Covering::new(router, snapshot, request, primary);
    let mut covers = none(request, primary);
    for cover in &mut covers {
        if let Some(found) = covering.cover(cover.index) {
            found.segments.iter().for_each(|segment| covering.charge(segment));
            *cover = found;
        }
    }
    covers
}

fn none(request: &Request, primary: &Pipeline) -> Vec<Cover> {
    let segments = primary.segments().iter().enumerate();
    let others = segments.filter(|(_, segment)| Some(segment.node) != request.requester);
    others.map(|(index, _)| Cover { index, segments: Vec::new(), total_ms: f64::INFINITY }).collect()
}

/// The cheapest nodes outside of `pipeline` that together run exactly the layers of its segment `index`, other operators first; where
/// there are none, those of the pipeline may take part. The pipeline's other segments stay as they are.
pub fn tiling(
    snapshot: &Snapshot,
    request: &Request,
    pipeline: &Pipeline,
    index: usize,
) -> Option<Vec<Segment>> {
    let failed = pipeline.segments().get(index)?.node;
    let cover = |others: Request| {
        let mut router = Router::default();
        router.prepare_parts(snapshot, &others).ok()?;
        Covering::new(&mut router, snapshot, request, pipeline).cover(index)
    };
    let found = cover(without(snapshot, request, pipeline, false)).or_else(|| {
        let mut others = request.clone();
        others.policy.near_equal = 0.0;
        others.policy.deny.insert(failed);
        cover(others)
    });
    Some(found?.segments).filter(|segments| !segments.is_empty())
}

/// What all covers of one pipeline share.
struct Covering<'a> {
    snapshot: &'a Snapshot,
    primary: &'a Pipeline,
    requester: Option<NodeId>,
    positions: u64,
    /// Without the nodes that may take no part, with the room that is left.
    router: &'a mut Router,
    /// The pipeline with a cover in it is priced without bounds on room: the nodes that stay have theirs charged already.
    request: Request,
    /// By the pipeline's operators, who else is theirs.
    kin: BTreeMap<OperatorId, Vec<u32>>,
}

impl<'a> Covering<'a> {
    /// `router` is priced for those that may take part, and keeps the requester out.
    fn new(router: &'a mut Router, snapshot: &'a Snapshot, request: &Request, primary: &'a Pipeline) -> Self {
        let home = request.requester.and_then(|node| snapshot.index_of(node));
        home.into_iter().for_each(|home| router.bar(home));
        let mut lenient = request.clone();
        let mut kin: BTreeMap<OperatorId, Vec<u32>> = BTreeMap::new();
        primary.segments().iter().for_each(|segment| {
            lenient.policy.deny.remove(&segment.node);
            kin.extend(snapshot.host(segment.node).map(|host| (host.operator, Vec::new())));
        });
        for (host, i) in snapshot.hosts().iter().zip(0u32..) {
            if let Some(kin) = kin.get_mut(&host.operator) {
                kin.push(i);
            }
        }
        let positions = u64::from(request.shape.positions().max(1));
        let requester = request.requester;
        let mut covering = Self { snapshot, primary, requester, positions, router, request: lenient, kin };
        primary.segments().iter().for_each(|segment| covering.charge(segment));
        covering
    }

    fn charge(&mut self, segment: &Segment) {
        let layers = segment.layers.start() as usize..segment.layers.end() as usize;
        let bytes = layers.map(|layer| self.snapshot.state_bytes(layer, self.positions));
        if let Some(host) = self.snapshot.index_of(segment.node) {
            self.router.charge(self.snapshot, host, bytes.fold(0, u64::saturating_add));
        }
    }

    /// The cheapest tiling of one segment by nodes outside the pipeline, other operators first.
    fn cover(&mut self, index: usize) -> Option<Cover> {
        let failed = self.primary.segments()[index];
        let kin = self.snapshot.host(failed.node).and_then(|host| self.kin.get(&host.operator));
        let others = kin.into_iter().flatten().copied();
        let kin: Vec<u32> = others.filter(|i| self.snapshot.hosts()[*i as usize].id != failed.node).collect();
        let tried = if kin.is_empty() { None } else { self.tile(index, &kin) };
        tried.or_else(|| self.tile(index, &[]))
    }

    /// Routes the layers of one segment between its two neighbors.
    fn tile(&mut self, index: usize, barred: &[u32]) -> Option<Cover> {
        let segments = self.primary.segments();
        let from = index.checked_sub(1).map(|i| segments[i].node).or(self.requester);
        let to = segments.get(index + 1).map(|s| s.node).or(self.requester);
        let (segments, part_ms) =
            self.router.between(self.snapshot, segments[index].layers, barred, from, to)?;
        let whole = self.primary.replaced(index, &segments).ok()?;
        let legs = cost::explain_roomy(self.snapshot, &self.request, &whole);
        let total_ms = legs.map_or(part_ms, |legs| cost::total(&legs).total_ms());
        Some(Cover { index, segments, total_ms })
    }
}

/// The node that should shadow each segment of `primary`, in order: it holds all of the segment, is not part of the pipeline, is
/// of another operator than the segment's node, and is the nearest to take over among those trusted at least `trust_floor`
/// of the policy. `None` where no node fits, and for the requester's own segments.
pub fn shadows(snapshot: &Snapshot, request: &Request, primary: &Pipeline) -> Vec<Option<NodeId>> {
    let mut price = Price::default();
    match price.refill(snapshot, request) {
        Ok(()) => shadows_priced(snapshot, request, &price, primary),
        Err(_) => vec![None; primary.segments().len()],
    }
}

/// As [`shadows`], with the prices of `request`.
pub(crate) fn shadows_priced(
    snapshot: &Snapshot,
    request: &Request,
    price: &Price,
    primary: &Pipeline,
) -> Vec<Option<NodeId>> {
    let segments = primary.segments().iter().enumerate();
    let of = |(index, segment): (usize, &Segment)| {
        let own = Some(segment.node) == request.requester;
        (!own).then(|| shadow(snapshot, request, price, primary, index)).flatten()
    };
    segments.map(of).collect()
}

/// What differs between two holders is their own compute and the hops beside it: only these are priced.
fn shadow(
    snapshot: &Snapshot,
    request: &Request,
    price: &Price,
    primary: &Pipeline,
    index: usize,
) -> Option<NodeId> {
    let segments = primary.segments();
    let layers = segments.get(index)?.layers;
    let operator = snapshot.host(segments[index].node)?.operator;
    let neighbor =
        |at: Option<usize>| at.and_then(|at| segments.get(at)).and_then(|s| snapshot.index_of(s.node));
    let (before, after) = (neighbor(index.checked_sub(1)), neighbor(Some(index + 1)));
    let weight = snapshot.weight_of(layers);
    let ends = layers.start() as usize >= price.head && layers.end() as usize <= price.tail_from;
    let need = price.needs(layers.start(), layers.end());
    let ms = |i: u32| {
        let into = before.map_or_else(|| price.entry(snapshot, i), |from| price.hop(snapshot, from, i));
        let out = after.map_or_else(|| price.exit(snapshot, i), |to| price.hop(snapshot, i, to));
        let node = &price.node[i as usize];
        into + node.enter + node.rate * weight + out
    };
    let holders =
        snapshot.states(layers.start() as usize).filter(|state| snapshot.run_end[*state] >= layers.end());
    let holders = holders.map(|state| snapshot.host_of[state]);
    let able = holders.map(|i| (&snapshot.hosts()[i as usize], i)).filter(|(host, i)| {
        let apart = host.operator != operator && Some(host.id) != request.requester;
        ends && apart
            && price.room[*i as usize] >= need
            && host.loaded.covers(layers)
            && !segments.iter().any(|segment| segment.node == host.id)
    });
    able.map(|(host, i)| (ms(i), host.id))
        .filter(|found| found.0.is_finite())
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map(|best| best.1)
}

/// The layers of `range` that no cover reaches.
pub fn bare(covers: &[Cover], primary: &Pipeline) -> Vec<LayerRange> {
    covers.iter().filter(|c| c.segments.is_empty()).map(|c| primary.segments()[c.index].layers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Host, Links};
    use crate::{LayerSet, ModelId, Shape};

    fn segment(node: u64, start: u32, end: u32) -> Segment {
        Segment { node: NodeId::numbered(node), layers: LayerRange::new(start, end).unwrap() }
    }

    /// Node 1 has the ends; 2 runs 1..3 and 3 runs 3..5. Only 2 holds what 3 runs, only 4 beside 2 what 2 runs.
    fn swarm() -> (Snapshot, Request, Pipeline) {
        let held = [vec![(0, 1), (5, 6)], vec![(1, 5)], vec![(3, 5)], vec![(1, 3)]];
        let hosts = (1..).zip(held).map(|(node, held)| {
            let layers: LayerSet = held.iter().map(|(a, b)| LayerRange::new(*a, *b).unwrap()).collect();
            Host::new(NodeId::numbered(node), layers, 1.0)
        });
        let snapshot =
            Snapshot::new(ModelId::default(), 6, None, hosts.collect(), &Links::Matrix(vec![1.0; 16]))
                .unwrap();
        let request = Request::new(NodeId::numbered(1), Shape::ONE_TOKEN);
        let segments = vec![segment(1, 0, 1), segment(2, 1, 3), segment(3, 3, 5), segment(1, 5, 6)];
        (snapshot, request, Pipeline::new(segments, 6).unwrap())
    }

    #[test]
    fn nodes_of_the_pipeline_share_a_part_where_no_others_can() {
        let (snapshot, request, pipeline) = swarm();
        assert_eq!(tiling(&snapshot, &request, &pipeline, 1), Some(vec![segment(4, 1, 3)]));
        assert_eq!(tiling(&snapshot, &request, &pipeline, 2), Some(vec![segment(2, 3, 5)]));
    }
}
