//! Where the beginning of a prompt was computed before, and when it pays to go there again.
//!
//! A node that holds the state of the first positions for a segment computes only the rest of the prompt there. [`price`] is what a
//! pipeline costs with that: a segment that ran on the same node then is priced for the rest, any other for all of the prompt.
//! [`stick`] compares the best route with the former one; where nodes of that are gone or full it tries the same cuts with the cheapest
//! other holder, since what crossed these cuts is known and need not be computed by the others again: first of all one that followed and
//! has the state, maybe a node that runs another segment too. Where no node holds all of a
//! part that is gone, several share it: there alone rows are computed that cross cuts which are not in the log.
//!
//! A node that has no such state may fetch it from one that has ([`fetch`]): packing, the slower of both lines, unpacking, where that takes
//! less than computing. With the state of 1,024 positions at 7,680 bytes each, packed to six sevenths, a line of 50 Mbit/s (6,250
//! bytes a ms) carries it in 1,079 ms; at 3 and 2 ms a MiB it is packed and unpacked in 38 ms; a node that takes 2.4 ms a position would
//! compute for 2,458 ms, and does so anyway in the share of fetches that it checks.
//!
//! Limits: the search itself does not know what is kept; a route that shares some segments with the former one and is better than
//! both is not found.

use crate::cost::{Cost, Leg, explain, total};
use crate::no_route::NoRoute;
use crate::route::Route;
use crate::{NodeId, Pipeline, Request, Segment, Snapshot, standby};
use std::collections::BTreeSet;

/// Crossings of a fetch before the first byte of a state comes: a handshake, the request and its answer.
const CROSSINGS: f64 = 6.0;
/// What is left of the bytes of keys and values when their planes of bytes are compressed.
const PACKED: f64 = 6.0 / 7.0;

/// What ran the beginning of a prompt before.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Former {
    /// Who ran what.
    pub segments: Vec<Segment>,
    /// Who computed along, and has the state as well.
    pub followers: Vec<Segment>,
    /// Positions that this prompt shares with it.
    pub positions: u32,
    /// Who may be asked for its state.
    pub lenders: BTreeSet<NodeId>,
    /// Who had it from another node, and from which.
    pub rests: Vec<(Segment, NodeId)>,
    /// Who may not be given a state.
    pub barred: BTreeSet<NodeId>,
    /// What a transfer costs beside the lines.
    pub packing: Packing,
}

/// What a state costs that travels, beside the lines.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Packing {
    /// Making a MiB of it shorter, ms.
    pub pack_ms_per_mib: f64,
    /// Making a MiB of it again, ms.
    pub unpack_ms_per_mib: f64,
    /// Share of fetches whose reader computes everything all the same, to compare.
    pub checked: f64,
}

impl Packing {
    /// What it takes until a node has `bytes` of state, ms, over lines of which the slower one carries `bytes_per_ms`.
    pub fn fetch_ms(&self, bytes: u64, link_ms: f64, bytes_per_ms: f64) -> f64 {
        let mib = bytes as f64 / f64::from(1 << 20);
        CROSSINGS * link_ms
            + PACKED * bytes as f64 / bytes_per_ms
            + mib * (self.pack_ms_per_mib + self.unpack_ms_per_mib)
    }

    /// Whether that is quicker, on average, than computing for `worth_ms`.
    pub fn pays(&self, fetch_ms: f64, worth_ms: f64) -> bool {
        fetch_ms < worth_ms * (1.0 - self.checked)
    }
}

/// A state that a node gets from another one instead of computing it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fetch {
    /// Who has it.
    pub holder: NodeId,
    /// What it takes, ms.
    pub ms: f64,
    /// What it saves, ms.
    pub worth_ms: f64,
}

impl Former {
    /// Whether the node of this segment has the state of its layers.
    pub fn has(&self, segment: &Segment) -> bool {
        self.segments.contains(segment) || self.followers.contains(segment)
    }

    /// From whom the node of this segment had the state, if from another one.
    pub fn rests(&self, segment: &Segment) -> Option<NodeId> {
        self.rests.iter().find(|(rests, _)| rests == segment).map(|(_, lender)| *lender)
    }

    /// The same where only those lend of which `lends` is true: what others have lent is not used either.
    pub fn lent_by(mut self, lends: impl Fn(NodeId) -> bool) -> Self {
        self.lenders.retain(|node| lends(*node));
        let (rests, lenders) = (std::mem::take(&mut self.rests), &self.lenders);
        let (kept, gone): (Vec<_>, Vec<_>) =
            rests.into_iter().partition(|(_, lender)| lenders.contains(lender));
        self.segments.retain(|segment| gone.iter().all(|(rests, _)| rests != segment));
        Self { rests: kept, ..self }
    }
}

/// Prices a pipeline for a request whose beginning is kept where `former` says.
///
/// # Errors
/// Those of [`explain`].
pub fn price(
    snapshot: &Snapshot,
    request: &Request,
    pipeline: &Pipeline,
    former: &Former,
) -> Result<Vec<Leg>, NoRoute> {
    let mut rest = request.clone();
    rest.shape.prompt_tokens = request.shape.prompt_tokens.saturating_sub(former.positions).max(1);
    let whole = explain(snapshot, request, pipeline)?;
    let rest = explain(snapshot, &rest, pipeline)?;
    let priced = |(whole, mut rest): (Leg, Leg)| {
        if former.has(&whole.segment) {
            return rest;
        }
        let Some(fetch) = cheapest(snapshot, (&whole, &rest), former) else { return whole };
        rest.cost.transfer_ms += fetch.ms;
        rest
    };
    let mut legs: Vec<Leg> = whole.into_iter().zip(rest).map(priced).collect();
    for at in 1..legs.len() {
        let node = legs[at].segment.node;
        if legs[at - 1].segment.node == node {
            legs[at].cost.hop_ms += relayed_ms(snapshot, request, node);
        }
    }
    Ok(legs)
}

/// Where the node of segment `at` of a pipeline gets the state of its beginning, if that is cheaper than computing it.
pub fn fetch(
    snapshot: &Snapshot,
    request: &Request,
    pipeline: &Pipeline,
    at: usize,
    former: &Former,
) -> Option<Fetch> {
    let segment = pipeline.segments().get(at)?;
    if former.positions == 0 || former.has(segment) {
        return None;
    }
    let mut rest = request.clone();
    rest.shape.prompt_tokens = request.shape.prompt_tokens.saturating_sub(former.positions).max(1);
    let whole = *explain(snapshot, request, pipeline).ok()?.get(at)?;
    let rest = *explain(snapshot, &rest, pipeline).ok()?.get(at)?;
    cheapest(snapshot, (&whole, &rest), former)
}

/// The cheapest lender of a leg's state, where that costs less than the leg does without it.
fn cheapest(snapshot: &Snapshot, (whole, rest): (&Leg, &Leg), former: &Former) -> Option<Fetch> {
    let Segment { node, layers } = whole.segment;
    if former.lenders.is_empty() || former.barred.contains(&node) {
        return None;
    }
    let worth_ms = whole.cost.total_ms() - rest.cost.total_ms();
    let reader = snapshot.host(node)?;
    let bytes: u64 = (layers.start()..layers.end())
        .map(|layer| snapshot.state_bytes(layer as usize, u64::from(former.positions)))
        .sum();
    let lends = |segment: &&Segment| {
        let its_own = former.rests(segment).is_none() && former.lenders.contains(&segment.node);
        segment.layers == layers && segment.node != node && its_own
    };
    let fetches = former.segments.iter().chain(&former.followers).filter(lends).filter_map(|segment| {
        let holder = snapshot.host(segment.node)?;
        let (from, to) = (snapshot.index_of(segment.node)?, snapshot.index_of(node)?);
        let link_ms = snapshot.link_ms(from, to).max(snapshot.link_ms(to, from));
        // The bytes flow: the slower line alone counts.
        let bytes_per_ms = holder.access.up_bytes_per_ms.min(reader.access.down_bytes_per_ms);
        let ms = former.packing.fetch_ms(bytes, link_ms, bytes_per_ms);
        Some(Fetch { holder: segment.node, ms, worth_ms })
    });
    fetches.min_by(|a, b| a.ms.total_cmp(&b.ms)).filter(|fetch| former.packing.pays(fetch.ms, worth_ms))
}

/// What it costs that rows between two segments of one node cross the requester: a node passes nothing on to itself, since each range has
/// a cache and a chain of its own.
fn relayed_ms(snapshot: &Snapshot, request: &Request, node: NodeId) -> f64 {
    let ends = request.requester.and_then(|id| snapshot.index_of(id)).zip(snapshot.index_of(node));
    let turns = f64::from(request.shape.turns().max(1));
    ends.map_or(0.0, |(home, at)| turns * (snapshot.link_ms(at, home) + snapshot.link_ms(home, at)))
}

/// The route to take: `best`, unless that of `former`, or its cuts with other nodes where those are missing, costs less with what is kept.
pub fn stick(snapshot: &Snapshot, request: &Request, best: Route, former: &Former) -> Route {
    if former.positions == 0 {
        return best;
    }
    let with = |pipeline: &Pipeline| price(snapshot, request, pipeline, former).ok();
    let cost = |legs: &[Leg]| total(legs).total_ms();
    let known = with(&best.pipeline).unwrap_or_else(|| best.legs.clone());
    let Some(again) = again(snapshot, request, former) else { return best };
    let Some(legs) = with(&again).filter(|legs| cost(legs) < cost(&known)) else { return best };
    let whole: Cost = total(&legs);
    Route { pipeline: again, legs, cost: whole, ..best }
}

/// The former route, with the cheapest other holder of each segment whose node may not run it now, or the cheapest holders.
fn again(snapshot: &Snapshot, request: &Request, former: &Former) -> Option<Pipeline> {
    let mut pipeline = Pipeline::new(former.segments.clone(), snapshot.num_layers()).ok()?;
    for _ in 0..former.segments.len() {
        let layer = match explain(snapshot, request, &pipeline) {
            Ok(_) => return Some(pipeline),
            Err(NoRoute::Broken { layer }) => layer,
            Err(_) => return None,
        };
        let at = pipeline.segments().iter().position(|segment| segment.layers.start() == layer)?;
        let Segment { node: gone, layers } = pipeline.segments()[at];
        let others = snapshot.hosts().iter().filter(|host| host.id != gone);
        let replaced = others.filter_map(|host| {
            let segment = Segment { node: host.id, layers };
            let there = pipeline.replaced(at, &[segment]).ok()?;
            let ms = match price(snapshot, request, &there, former) {
                Ok(legs) => total(&legs).total_ms(),
                // This segment runs, a later one does not yet.
                Err(NoRoute::Broken { layer: later }) if later > layer => host.prefill_ms,
                Err(_) => return None,
            };
            // Who has the state is taken, then who runs nothing else of it.
            Some(((!former.has(&segment), pipeline.visits(host.id)), ms, there))
        });
        let cheapest = replaced.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        pipeline = match cheapest.map(|(_, ms, there)| (ms, there)) {
            Some((_, there)) => there,
            None => pipeline.replaced(at, &standby::tiling(snapshot, request, &pipeline, at)?).ok()?,
        };
    }
    explain(snapshot, request, &pipeline).ok().map(|_| pipeline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Host, Links};
    use crate::{Boomerang, LayerRange, LayerSet, ModelId, NodeId, Shape, route};

    fn range(start: u32, end: u32) -> LayerRange {
        LayerRange::new(start, end).unwrap()
    }

    fn segment(node: u64, start: u32, end: u32) -> Segment {
        Segment { node: NodeId::numbered(node), layers: range(start, end) }
    }

    /// Node 1 asks; 2 to 4 hold the layers between its ends, 2 is the fastest.
    fn snapshot(nodes: &[u64]) -> Snapshot {
        let ends: LayerSet = [range(0, 1), range(5, 6)].into_iter().collect();
        let mut hosts = vec![Host::new(NodeId::numbered(1), ends, 1.0)];
        hosts.extend(nodes.iter().map(|node| {
            let mut host = Host::new(NodeId::numbered(*node), range(1, 5).into(), 0.9 + *node as f64 / 10.0);
            host.prefill_ms = host.decode_ms / 10.0;
            host
        }));
        let links = vec![1.0; hosts.len() * hosts.len()];
        Snapshot::new(ModelId::default(), 6, None, hosts, &Links::Matrix(links)).unwrap()
    }

    fn request(prompt_tokens: u32, output_tokens: u32) -> Request {
        let shape = Shape { prompt_tokens, output_tokens, ..Shape::ONE_TOKEN };
        let mut request = Request::new(NodeId::numbered(1), shape);
        request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        request
    }

    fn former(positions: u32) -> Former {
        let segments = vec![segment(1, 0, 1), segment(3, 1, 3), segment(4, 3, 5), segment(1, 5, 6)];
        Former { segments, positions, ..Former::default() }
    }

    fn chosen(snapshot: &Snapshot, request: &Request, former: &Former) -> Vec<Segment> {
        let best = route::route(snapshot, request).unwrap();
        stick(snapshot, request, best, former).pipeline.segments().to_vec()
    }

    #[test]
    fn the_holder_is_preferred_when_it_pays() {
        let (all, asked) = (snapshot(&[2, 3, 4]), request(1_000, 8));
        assert_eq!(chosen(&all, &asked, &former(990)), former(0).segments);
        assert_eq!(chosen(&all, &asked, &former(0))[1].node, NodeId::numbered(2));
        // Two visits a token cost more than what is kept of a short prompt saves.
        let long = request(20, 500);
        assert_eq!(chosen(&all, &long, &former(16))[1].node, NodeId::numbered(2));
        let legs = price(&all, &asked, &Pipeline::new(former(0).segments, 6).unwrap(), &former(990)).unwrap();
        assert!(legs.iter().all(|leg| leg.cost.prefill_ms <= 10.0 * 4.0), "{legs:?}");
    }

    #[test]
    fn where_a_holder_is_gone_another_takes_its_part_at_the_same_cuts() {
        let asked = request(1_000, 8);
        let without =
            |gone: u64| -> Vec<u64> { [2, 3, 4].into_iter().filter(|node| *node != gone).collect() };
        let cuts =
            |segments: Vec<Segment>| segments.iter().map(|s| (s.node, s.layers.start())).collect::<Vec<_>>();
        let node = NodeId::numbered;
        for (gone, nodes) in [(3, [2, 4]), (4, [3, 2])] {
            let found = cuts(chosen(&snapshot(&without(gone)), &asked, &former(990)));
            assert_eq!(found, [(node(1), 0), (node(nodes[0]), 1), (node(nodes[1]), 3), (node(1), 5)]);
        }
        let found = chosen(&snapshot(&[2]), &asked, &former(990));
        assert_eq!(found.len(), 3, "one node is left: {found:?}");
    }

    /// Nodes 2 and 4 run the layers between the ends; 4 followed 2 and has its state, 5 does not and is faster.
    #[test]
    fn where_a_holder_is_gone_the_node_that_followed_it_takes_its_part() {
        let segments = vec![segment(1, 0, 1), segment(2, 1, 3), segment(4, 3, 5), segment(1, 5, 6)];
        let former =
            Former { segments, followers: vec![segment(4, 1, 3)], positions: 990, ..Former::default() };
        let (left, asked) = (snapshot(&[4, 5]), request(1_000, 8));
        let found = chosen(&left, &asked, &former);
        assert_eq!(found, [segment(1, 0, 1), segment(4, 1, 3), segment(4, 3, 5), segment(1, 5, 6)]);
        let legs = price(&left, &asked, &Pipeline::new(found, 6).unwrap(), &former).unwrap();
        assert!(
            legs[2].cost.hop_ms >= legs[1].cost.hop_ms,
            "rows between them cross the requester: {legs:?}"
        );
        let forgotten = Former { followers: Vec::new(), ..former };
        assert_eq!(chosen(&left, &asked, &forgotten)[1].node, NodeId::numbered(5));
    }

    /// Node 2 is new, and 3 has the state of its layers: it is asked when its line carries that sooner than 2 computes it.
    #[test]
    fn a_state_is_fetched_where_that_is_cheaper_than_computing() {
        let asked = request(1_000, 8);
        let new = Pipeline::new(vec![segment(1, 0, 1), segment(2, 1, 5), segment(1, 5, 6)], 6).unwrap();
        let line = |up_bytes_per_ms: f64| {
            let mut hosts = snapshot(&[2, 3]).hosts().to_vec();
            hosts.iter_mut().for_each(|host| host.access.up_bytes_per_ms = up_bytes_per_ms);
            let links = vec![1.0; hosts.len() * hosts.len()];
            Snapshot::new(ModelId::default(), 6, None, hosts, &Links::Matrix(links)).unwrap()
        };
        let segments = vec![segment(1, 0, 1), segment(3, 1, 5), segment(1, 5, 6)];
        let former = Former { segments, positions: 990, lenders: [NodeId::numbered(3)].into(), ..former(0) };
        let found = |line: &Snapshot, former: &Former| fetch(line, &asked, &new, 1, former);
        let quick = found(&line(1_000.0), &former).unwrap();
        // 6 crossings of 1 ms, and 4 layers of 990 bytes over its line.
        let expected = 6.0 + 4.0 * 990.0 * 6.0 / 7.0 / 1_000.0;
        assert!(quick.holder == NodeId::numbered(3) && (quick.ms - expected).abs() < 1e-9, "{quick:?}");
        assert!(quick.worth_ms > 300.0, "990 rows through 4 layers: {quick:?}");
        assert_eq!(found(&line(1.0), &former), None, "slower than computing is not asked");
        assert_eq!(
            found(&line(1_000.0), &Former { lenders: [].into(), ..former.clone() }),
            None,
            "not known"
        );
        assert_eq!(fetch(&line(1_000.0), &asked, &new, 0, &former), None, "the requester has its own");
        let other = Former { segments: vec![segment(3, 1, 3)], ..former.clone() };
        assert_eq!(found(&line(1_000.0), &other), None, "the state of other layers");
        let cost = |former: &Former| {
            let legs = price(&line(1_000.0), &asked, &new, former).unwrap();
            total(&legs).total_ms()
        };
        let without = Former { lenders: [].into(), ..former.clone() };
        assert!(cost(&former) < cost(&without) - 300.0, "and the route is priced with that");
        let barred = Former { barred: [NodeId::numbered(2)].into(), ..former.clone() };
        assert_eq!(found(&line(1_000.0), &barred), None, "a node that may be given none");
        let packing = Packing { pack_ms_per_mib: 1e6, ..Packing::default() };
        assert_eq!(found(&line(1_000.0), &Former { packing, ..former.clone() }), None, "slow to pack");
        let rests = Former { rests: vec![(segment(3, 1, 5), NodeId::numbered(9))], ..former.clone() };
        assert_eq!(found(&line(1_000.0), &rests), None, "it had it from another node itself");
        assert!(rests.clone().lent_by(|_| false).segments.iter().all(|s| s.node != NodeId::numbered(3)));
        let nine = Former { lenders: [NodeId::numbered(9)].into(), ..rests };
        assert_eq!(nine.clone().lent_by(|_| true), nine, "whose state came from one that lends still has it");
    }

    /// The state of a third of SmolLM2-135M (10 layers of 768 bytes a position), over 50 Mbit/s and over the loopback device, beside what a
    /// machine takes that computes a position of it in 2.4 ms, and one that does in 0.01 ms.
    #[test]
    fn packing_and_the_share_that_is_checked_are_part_of_the_price() {
        let packing = Packing { pack_ms_per_mib: 3.0, unpack_ms_per_mib: 2.0, checked: 0.2 };
        let bytes = 1_024 * 7_680;
        let slow = packing.fetch_ms(bytes, 1.0, 6_250.0);
        assert!((slow - (6.0 + 1_078.5 + 37.5)).abs() < 0.1, "{slow}");
        assert!(packing.pays(slow, 1_024.0 * 2.4), "2,458 ms of computing, four times in five");
        assert!(!packing.pays(slow, 1_200.0) && slow < 1_200.0, "960 ms on average");
        let near = packing.fetch_ms(bytes, 0.05, 2e6);
        assert!((near - (0.3 + 3.4 + 37.5)).abs() < 0.1, "{near}");
        assert!(!packing.pays(near, 1_024.0 * 0.01) && Packing::default().pays(3.7, 1_024.0 * 0.01));
    }

    /// Of the part that is gone no node holds all: two share it, and what is kept behind it counts.
    #[test]
    fn where_no_other_node_holds_all_of_a_part_several_share_it() {
        let ends: LayerSet = [range(0, 1), range(5, 6)].into_iter().collect();
        let host = |node: u64, layers: LayerSet, ms: f64| {
            let mut host = Host::new(NodeId::numbered(node), layers, ms);
            host.prefill_ms = ms / 10.0;
            host
        };
        let parts = [(4, (3, 5), 1.3), (5, (1, 2), 1.1), (6, (2, 3), 1.1), (7, (3, 5), 1.0)];
        let hosts: Vec<Host> = std::iter::once(host(1, ends, 1.0))
            .chain(parts.map(|(node, (start, end), ms)| host(node, range(start, end).into(), ms)))
            .collect();
        let links = vec![1.0; hosts.len() * hosts.len()];
        let snapshot = Snapshot::new(ModelId::default(), 6, None, hosts, &Links::Matrix(links)).unwrap();
        let shared =
            [segment(1, 0, 1), segment(5, 1, 2), segment(6, 2, 3), segment(4, 3, 5), segment(1, 5, 6)];
        assert_eq!(chosen(&snapshot, &request(1_000, 8), &former(990)), shared);
        let short = chosen(&snapshot, &request(20, 500), &former(16));
        assert_eq!(short[3], segment(7, 3, 5), "it does not pay");
    }
}
