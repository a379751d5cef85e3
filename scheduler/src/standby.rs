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
//! * [`shadow`]: the one node that should follow a segment token by token: it must hold the whole segment, since it
//!   replays exactly that input log, and be run by another node than the segment's, since it also checks it.
//!
//! Limits: `disjoint` takes the primary as given; a swarm may have two disjoint pipelines neither of which is part
//! of the best one. Per-segment covers exist more often and are what failover uses first.

use crate::route::{NoRoute, Route, Router};
use crate::snapshot::Snapshot;
use crate::{LayerRange, NodeId, Pipeline, Request, Segment};

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
    let mut room = snapshot.clone();
    let positions = u64::from(request.shape.positions().max(1));
    primary.segments().iter().for_each(|segment| charge(&mut room, segment, positions));
    let mut covers = Vec::new();
    for (index, segment) in primary.segments().iter().enumerate() {
        if Some(segment.node) == request.requester {
            continue;
        }
        let cover = cover(&room, request, primary, index);
        cover.segments.iter().for_each(|segment| charge(&mut room, segment, positions));
        covers.push(cover);
    }
    covers
}

fn charge(snapshot: &mut Snapshot, segment: &Segment, positions: u64) {
    let layers = segment.layers.start() as usize..segment.layers.end() as usize;
    let bytes = layers.map(|layer| snapshot.state_bytes(layer, positions)).fold(0, u64::saturating_add);
    if let Some(i) = snapshot.index_of(segment.node)
        && let Some(left) = &mut snapshot.hosts[i as usize].kv_bytes
    {
        *left = left.saturating_sub(bytes);
    }
}

/// The cheapest tiling of one segment by nodes outside `primary`, other operators first.
fn cover(snapshot: &Snapshot, request: &Request, primary: &Pipeline, index: usize) -> Cover {
    let failed = primary.segments()[index];
    let mut best = Cover { index, segments: Vec::new(), total_ms: f64::INFINITY };
    let operator = snapshot.host(failed.node).map(|host| host.operator);
    for other_operators in [true, false] {
        let mut asked = without(snapshot, request, primary, false);
        if let Some(home) = request.requester {
            asked.policy.deny.insert(home);
        }
        if other_operators {
            let kin = snapshot.hosts().iter().filter(|host| Some(host.operator) == operator);
            asked.policy.deny.extend(kin.map(|host| host.id));
        }
        if let Some(found) = tile(snapshot, &asked, primary, index) {
            best = found;
            break;
        }
    }
    best
}

/// Routes the layers of one segment between its two neighbors.
fn tile(snapshot: &Snapshot, request: &Request, primary: &Pipeline, index: usize) -> Option<Cover> {
    let mut router = Router::default();
    let from = index.checked_sub(1).map(|i| primary.segments()[i].node).or(request.requester);
    let to = primary.segments().get(index + 1).map(|s| s.node).or(request.requester);
    let range = primary.segments()[index].layers;
    let (segments, part_ms) = router.between(snapshot, request, range, from, to)?;
    let whole = primary.replaced(index, &segments).ok()?;
    let mut lenient = request.clone();
    whole.segments().iter().for_each(|s| {
        lenient.policy.deny.remove(&s.node);
    });
    // The nodes that stay have their room charged already, so the sum is priced without that bound.
    let total_ms =
        crate::cost::price_unbounded(snapshot, &lenient, &whole).map_or(part_ms, |cost| cost.total_ms());
    Some(Cover { index, segments, total_ms })
}

/// The node that should shadow segment `index` of `primary`: holds all of it, is not part of the pipeline, is of
/// another operator than the segment's node, and is the nearest to take over among those trusted at least
/// `trust_floor` of the policy. `None` when no node fits.
pub fn shadow(snapshot: &Snapshot, request: &Request, primary: &Pipeline, index: usize) -> Option<NodeId> {
    let segment = primary.segments().get(index)?;
    let operator = snapshot.host(segment.node)?.operator;
    let mut asked = without(snapshot, request, primary, false);
    asked.policy.deny.extend(request.requester);
    let kin = snapshot.hosts().iter().filter(|host| host.operator == operator);
    asked.policy.deny.extend(kin.map(|host| host.id));
    let whole = |id: NodeId| {
        let alone = primary.replaced(index, &[Segment { node: id, layers: segment.layers }]).ok()?;
        crate::cost::price(snapshot, &asked_without_primary(&asked, primary), &alone)
            .ok()
            .map(|cost| cost.total_ms())
    };
    let held = |host: &&crate::snapshot::Host| host.loaded.covers(segment.layers);
    let able = snapshot.hosts().iter().filter(held).filter(|host| !asked.policy.deny.contains(&host.id));
    able.filter_map(|host| whole(host.id).map(|ms| (ms, host.id)))
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map(|best| best.1)
}

/// `asked` with the pipeline's own nodes admitted again, for pricing them beside a shadow.
fn asked_without_primary(asked: &Request, primary: &Pipeline) -> Request {
    let mut request = asked.clone();
    primary.segments().iter().for_each(|segment| {
        request.policy.deny.remove(&segment.node);
    });
    request
}

/// The layers of `range` that no cover reaches.
pub fn bare(covers: &[Cover], primary: &Pipeline) -> Vec<LayerRange> {
    covers.iter().filter(|c| c.segments.is_empty()).map(|c| primary.segments()[c.index].layers).collect()
}
