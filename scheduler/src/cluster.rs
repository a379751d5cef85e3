//! Routes in two stages, for swarms of which no node knows all members.
//!
//! ```text
//!  members of a cluster ──▶ summary: a claim as if the cluster were one node ──▶ known everywhere
//!  summaries ──▶ route over clusters ──▶ one to three clusters ──▶ their members ──▶ route over nodes
//! ```
//!
//! Near nodes form a cluster of at most [`MEMBERS`]. It speaks as one node of its name does ([`summary`]): the layers that its members
//! hold together, what its best chain over them takes, the room and the sessions of all. So the first stage is the search that
//! there is, over some hundred clusters ([`chosen`]); the second one is the same over the members of those that it names.
//!
//! Limits: a cluster is priced by its best chain, at the moment of its summary; nodes of clusters that were not chosen are not seen,
//! so a route that takes single nodes from many clusters is not found. Who speaks for a cluster is not decided here.

use std::sync::Arc;

use crate::capability::{Claim, Holding};
use crate::coordinate::{AXES, Coordinate};
use crate::cost::step_price_ms;
use crate::decide::Engine;
use crate::latency::median;
use crate::route::{NoRoute, Router};
use crate::{Capability, LayerRange, NodeId, OperatorId, Request, Shape, Snapshot};

/// Members of a cluster at most: a state of 24 bytes of each is heard by all others.
pub const MEMBERS: usize = 128;
/// Clusters whose members a request pulls, unless its best route leads through more.
pub const PULLED: usize = 3;

/// Groups of near nodes, none of more than `most`: halves along the axis on which they lie widest apart, again and again. The
/// order of `places` changes nothing.
pub fn partition(mut places: Vec<(NodeId, Coordinate)>, most: usize) -> Vec<Vec<NodeId>> {
    let mut groups = Vec::new();
    places.sort_unstable_by_key(|place| place.0);
    split(places, most.max(1), &mut groups);
    groups
}

fn split(mut places: Vec<(NodeId, Coordinate)>, most: usize, groups: &mut Vec<Vec<NodeId>>) {
    if places.len() <= most {
        if !places.is_empty() {
            groups.push(places.into_iter().map(|place| place.0).collect());
        }
        return;
    }
    let on = |place: &(NodeId, Coordinate), axis: usize| place.1.parts().0[axis];
    let wide = |axis: &usize| {
        let ends = places.iter().map(|place| on(place, *axis));
        let (low, high) = ends.fold((f32::MAX, f32::MIN), |(low, high), at| (low.min(at), high.max(at)));
        high - low
    };
    let axis = (0..AXES).max_by(|a, b| wide(a).total_cmp(&wide(b))).unwrap_or(0);
    // Stable: of nodes at one place the lower names come first.
    places.sort_by(|a, b| on(a, axis).total_cmp(&on(b, axis)));
    let rest = places.split_off(places.len() / 2);
    split(places, most, groups);
    split(rest, most, groups);
}

/// The middle of a cluster: the mean of where its members are, as far from the net as the median of them.
pub fn center(members: &[Coordinate]) -> Coordinate {
    let count = members.len().max(1) as f32;
    let mean = |axis: usize| members.iter().map(|member| member.parts().0[axis] / count).sum();
    let height = median(members.iter().map(Coordinate::height_ms)).unwrap_or(0.0);
    let error = median(members.iter().map(Coordinate::error)).unwrap_or(1.0);
    Coordinate::new(std::array::from_fn(mean), height as f32, error as f32).unwrap_or_default()
}

/// What a cluster says of a model as if it were one node, `name`; `members` is a snapshot of its members only.
/// `None` where they hold nothing.
pub fn summary(members: &Snapshot, name: NodeId, sequence: u64) -> Option<Capability> {
    let mut ask = Request::new(name, Shape::ONE_TOKEN);
    (ask.requester, ask.policy.closing_hop, ask.policy.near_equal) = (None, false, 0.0);
    let mut router = Router::default();
    let priced = router.prepare_parts(members, &ask).is_ok();
    let held = |layer: u32| !members.states(layer as usize).is_empty();
    let mut loaded = Vec::new();
    let (mut decode_ms, mut prefill_ms, mut other_ms, mut layers) = (0.0, 0.0, 0.0, 0u32);
    let (mut active, mut lanes, mut stages) = (0u32, 0u32, 0u32);
    let mut first = 0;
    while first < members.num_layers() && priced {
        let end = (first..members.num_layers()).find(|layer| !held(*layer)).unwrap_or(members.num_layers());
        let chain = LayerRange::new(first, end);
        let chain = chain.and_then(|range| Some((range, router.between(members, range, &[], None, None)?)));
        if let Some((range, (segments, ms))) = chain {
            loaded.push(range);
            other_ms += ms;
            for segment in &segments {
                let Some(host) = members.host(segment.node) else { continue };
                let len = f64::from(segment.layers.len());
                decode_ms += host.decode_ms * len;
                prefill_ms += host.prefill_ms * len;
                // Compute and load are said apart.
                other_ms -= step_price_ms(host) * len;
                (active, lanes) = (active.saturating_add(host.active), lanes.saturating_add(host.batch_knee));
                stages += 1;
            }
            layers += range.len();
        }
        first = end + 1;
    }
    if layers == 0 {
        return None;
    }
    let runs = loaded.len() as f64;
    let each = f64::from(layers);
    let room = members.hosts().iter().map(|host| host.kv_bytes.unwrap_or(u64::MAX));
    let least = |rate: &dyn Fn(&crate::snapshot::Host) -> f64| {
        let rates = members.hosts().iter().map(rate).filter(|rate| rate.is_finite());
        median(rates).unwrap_or(1e9)
    };
    let holding = Holding {
        model: members.model(),
        loaded,
        on_disk: Vec::new(),
        decode_ms: (decode_ms / each).max(1e-6),
        prefill_ms: prefill_ms / each,
        visit_ms: (other_ms / runs).max(0.0),
        queue_ms: 0.0,
        load_ms: 0.0,
        active: active / stages.max(1),
        batch_knee: (lanes / stages.max(1)).max(1),
        kv_bytes: room.fold(0, u64::saturating_add),
    };
    let claim = Claim {
        node: name,
        operator: OperatorId::new(*name.as_bytes()),
        sequence,
        region: 0,
        access_ms: 0.0,
        up_bytes_per_ms: least(&|host| host.access.up_bytes_per_ms),
        down_bytes_per_ms: least(&|host| host.access.down_bytes_per_ms),
        draining: false,
        holdings: vec![holding],
    };
    Capability::try_from(claim).ok()
}

/// The clusters whose members a request should pull: those of the best route over `summaries`, in its order, then those of the best
/// routes past them until there are [`PULLED`].
///
/// # Errors
/// As [`route`](crate::route::route), when no route leads through clusters.
pub fn chosen(
    engine: &mut Engine,
    summaries: &Arc<Snapshot>,
    request: &Request,
) -> Result<Vec<NodeId>, NoRoute> {
    let mut ask = request.clone();
    ask.policy.near_equal = 0.0;
    let mut chosen: Vec<NodeId> = Vec::new();
    while chosen.len() < PULLED {
        let found = match engine.route(summaries, &ask) {
            Ok(found) => found,
            Err(why) if chosen.is_empty() => return Err(why),
            Err(_) => break,
        };
        let nodes = found.pipeline.segments().iter().map(|segment| segment.node);
        let others: Vec<NodeId> = nodes.filter(|node| Some(*node) != request.requester).collect();
        let room = if chosen.is_empty() { usize::MAX } else { PULLED - chosen.len() };
        if others.is_empty() {
            break;
        }
        for node in others.into_iter().take(room) {
            if !chosen.contains(&node) {
                chosen.push(node);
            }
            ask.policy.deny.insert(node);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::snapshot::{Host, Links};
    use crate::{LayerSet, ModelId};

    fn node(n: u64) -> NodeId {
        NodeId::numbered(n)
    }

    #[test]
    fn near_nodes_are_one_group_whatever_the_order() {
        let mut rng = Rng::new(1);
        let place = |n: u64| {
            let city = if n.is_multiple_of(2) { 0.0 } else { 150.0 };
            Coordinate::new([city + (n % 7) as f32, (n % 5) as f32, 0.0], 3.0, 0.1).unwrap()
        };
        let mut places: Vec<(NodeId, Coordinate)> = (0..200).map(|n| (node(n), place(n))).collect();
        let groups = partition(places.clone(), 60);
        for at in (1..places.len()).rev() {
            places.swap(at, rng.below(at + 1));
        }
        assert_eq!(groups, partition(places, 60));
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 200);
        assert!(groups.iter().all(|group| group.len() <= 60));
        let city = |id: &NodeId| id.as_bytes()[7] % 2;
        assert!(groups.iter().all(|group| group.iter().all(|id| city(id) == city(&group[0]))));
        assert!(partition(Vec::new(), 4).is_empty());
    }

    /// Two members tile eight layers, of which one layer is held by none in the second cluster.
    #[test]
    fn a_summary_prices_the_best_chain_of_its_members() {
        let layers = |start, end| -> LayerSet { LayerRange::new(start, end).unwrap().into() };
        let members = |held: [LayerSet; 3]| {
            let hosts = held.into_iter().zip(2..);
            let hosts = hosts.map(|(held, n)| Host { visit_ms: 1.0, ..Host::new(node(n), held, n as f64) });
            Snapshot::new(ModelId::numbered(7), 8, None, hosts.collect(), &Links::Matrix(vec![5.0; 9]))
                .unwrap()
        };
        let whole = members([layers(0, 4), layers(4, 8), layers(0, 8)]);
        let said = summary(&whole, node(100), 3).unwrap();
        let holding = &said.claim().holdings[0];
        assert_eq!(holding.loaded, vec![LayerRange::new(0, 8).unwrap()]);
        // 4 x 2 + 5 + 1 + 1 + 4 x 3 = 27, and alone 8 x 4 + 1 = 33.
        assert_eq!((holding.decode_ms, holding.visit_ms), (2.5, 7.0));
        let broken = members([layers(0, 3), layers(4, 8), layers(0, 2)]);
        let said = summary(&broken, node(100), 3).unwrap();
        assert_eq!(said.claim().holdings[0].loaded.len(), 2);
        let empty = || LayerSet::default();
        assert!(summary(&members([empty(), empty(), empty()]), node(100), 3).is_none());
    }

    #[test]
    fn the_best_clusters_are_pulled_and_those_past_them() {
        let layers = |start, end| -> LayerSet { LayerRange::new(start, end).unwrap().into() };
        let hosts = vec![
            Host::new(node(1), LayerSet::default(), 1.0),
            Host::new(node(2), layers(0, 8), 3.0),
            Host::new(node(3), layers(0, 4), 1.0),
            Host::new(node(4), layers(4, 8), 1.0),
            Host::new(node(5), layers(0, 8), 2.0),
        ];
        let links = Links::Matrix(vec![1.0; 25]);
        let clusters = Arc::new(Snapshot::new(ModelId::numbered(7), 8, None, hosts, &links).unwrap());
        let request = Request::new(node(1), Shape::ONE_TOKEN);
        let found = chosen(&mut Engine::default(), &clusters, &request);
        assert_eq!(found, Ok(vec![node(3), node(4), node(5)]));
        let mut picky = request.clone();
        picky.policy.deny = (2..6).map(node).collect();
        assert!(chosen(&mut Engine::default(), &clusters, &picky).is_err());
    }
}
