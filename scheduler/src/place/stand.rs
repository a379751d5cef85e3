//! What a group of nodes holds now, what that gives, and who should hold something else, from one node's view of it.
//!
//! ```text
//!  snapshot, who may choose ──▶ Stand ──▶ chains of what is held ──▶ goodput now
//!                                 ├──▶ idle members that choose, one after another, where each adds most ──▶ repaired
//!                                 └──▶ all members that choose, placed from nothing and widened ──▶ placed
//! ```
//!
//! **Now.** The fastest chain over the layers to be placed is found with the router's own search, its members are set aside, and so on
//! while there are requests for another one: disjoint chains, of which [`goodput_tps`] makes a number. Whatever is advised is
//! measured in the same way, over what all members would hold then. So nodes whose owner said what they hold count, with
//! those that choose beside them, and no advice relies on their moving.
//!
//! **Better.** *Repaired* moves only members that are in no chain. *Placed* moves any that choose; it is advised where it is worth
//! [`MIN_GAIN`] times the other. Where nothing serves either way, more layers that have a holder are better, and where the speed
//! is the same, fewer layers that one node alone holds ([`holders`]): its loss would stop every prompt.
//!
//! **Steadiness.** A placement from nothing comes out otherwise whenever a figure changes, and what changes is never confirmed. So the
//! last one is advised again as long as it is worth [`AS_GOOD`] of a new one.
//!
//! **Sameness.** Members stand by name, measured figures are rounded to steps of a half doubling before anything is searched, and a
//! group is cut by coordinates: nodes that know about the same mostly advise the same, and each looks at its own row.
//!
//! Limits: [`MEMBERS`] of a group, [`IDLE`] of them repaired at a time; what holds for a chain without load is taken for all.

mod ways;

use std::collections::{BTreeMap, BTreeSet};

use super::{Ground, MIN_GAIN, Pace, Room, Site, goodput_tps, place, widen, worth::Worth};
use crate::cluster::{MEMBERS, partition};
use crate::coordinate::Coordinate;
use crate::holders;
use crate::route::Router;
use crate::snapshot::{Host, Links};
use crate::{LayerRange, LayerSet, NodeId, Pipeline, Request, Segment, Shape, Snapshot};

/// Members in no chain that are repaired at a time.
const IDLE: usize = 16;
/// Places tried for each of them: those whose layers are held by the slowest nodes or none.
const TRIED: usize = 4;
/// Requests that a swarm is made ready for although none are asked.
const FEWEST: f64 = 2.0;
/// Of what a new placement is worth the last one may lack the rest.
const AS_GOOD: f64 = 0.85;
/// Steps of a doubling to which figures are rounded before anything is searched.
const STEPS: f64 = 2.0;

/// The members of the group around `me`: all of `places`, or the near ones where they are more than [`MEMBERS`].
pub fn group(me: NodeId, places: Vec<(NodeId, Coordinate)>) -> BTreeSet<NodeId> {
    let groups = partition(places, MEMBERS).into_iter();
    let mine = groups.map(BTreeSet::from_iter).find(|group: &BTreeSet<NodeId>| group.contains(&me));
    mine.unwrap_or_default()
}

/// One node of a group.
#[derive(Clone, Debug)]
struct Member {
    id: NodeId,
    region: u16,
    held: LayerSet,
    layer_ms: f64,
    visit_ms: f64,
    /// `None` where it holds what its owner said.
    room: Option<Room>,
}

/// A group as it stands. See the module's page.
#[derive(Clone, Debug)]
pub struct Stand {
    within: LayerRange,
    num_layers: u32,
    weight: Vec<f64>,
    /// By name.
    members: Vec<Member>,
    /// `hop_ms[i * n + j]`.
    hop_ms: Vec<f64>,
    concurrency: f64,
}

/// Who should hold what.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Advised {
    /// Tokens per second as things are.
    pub present_tps: f64,
    /// Tokens per second once all follow; next to nothing where only layers without a holder become fewer.
    pub advised_tps: f64,
    /// Whether fewer layers are held by one node alone then, and none by none.
    pub secures: bool,
    /// Those that should hold something else, by name.
    pub moves: Vec<Segment>,
    /// By name, where each of them is.
    regions: Vec<u16>,
    /// The placement from nothing: what each should hold at least, and all that it has room for.
    placed: Vec<(Segment, LayerRange)>,
}

impl Advised {
    /// What `node` should hold instead of what it does.
    pub fn of(&self, node: NodeId) -> Option<LayerRange> {
        self.moves.iter().find(|segment| segment.node == node).map(|segment| segment.layers)
    }

    /// Those that should move and are where `node` is, which is one of them.
    pub fn movers(&self, node: NodeId) -> Vec<NodeId> {
        let all = || self.moves.iter().map(|segment| segment.node).zip(&self.regions);
        let region = all().find(|(id, _)| *id == node).map(|(_, region)| region);
        all().filter(|(_, other)| Some(*other) == region).map(|(id, _)| id).collect()
    }
}

impl Stand {
    /// The members of `group` that `snapshot` shows, of which those in `rooms` may hold other layers `within` the model. `None`
    /// where there is nothing to place.
    pub fn of(
        snapshot: &Snapshot,
        group: &BTreeSet<NodeId>,
        rooms: &BTreeMap<NodeId, Room>,
        within: LayerRange,
    ) -> Option<Self> {
        let known: Vec<(u32, &Host)> = (0..).zip(snapshot.hosts()).collect();
        let mut known: Vec<(u32, &Host)> =
            known.into_iter().filter(|(_, host)| group.contains(&host.id) && host.decode_ms > 0.0).collect();
        known.sort_unstable_by_key(|(_, host)| host.id);
        known.truncate(MEMBERS);
        let inside = |set: &LayerSet| -> LayerSet {
            set.ranges().iter().filter_map(|r| r.intersect(within)).collect()
        };
        let member = |(_, host): &(u32, &Host)| Member {
            id: host.id,
            region: host.access.region,
            held: inside(&host.held()),
            layer_ms: host.decode_ms,
            visit_ms: host.visit_ms,
            room: rooms.get(&host.id).filter(|room| room.layers > 0).cloned(),
        };
        let members: Vec<Member> = known.iter().map(member).collect();
        if within.end() > snapshot.num_layers() || members.iter().all(|member| member.room.is_none()) {
            return None;
        }
        let pairs = known.iter().flat_map(|(i, _)| known.iter().map(|(j, _)| (*i, *j)));
        let hop_ms = pairs.map(|(i, j)| snapshot.link_ms(i, j)).collect();
        // Each session takes all layers once.
        let taken = |(_, host): &(u32, &Host)| f64::from(host.active) * f64::from(inside(&host.held()).len());
        let sessions = known.iter().map(taken).sum::<f64>() / f64::from(within.len());
        let concurrency = stepped(sessions.max(FEWEST), 1.0);
        let (weight, num_layers) = (snapshot.weight.clone(), snapshot.num_layers());
        Some(Self { within, num_layers, weight, members, hop_ms, concurrency })
    }

    /// What serves best, and who should move for it; `last` is what came of it the last time.
    pub fn advise(&self, last: &Advised) -> Advised {
        let held: Vec<LayerSet> = self.members.iter().map(|member| member.held.clone()).collect();
        let (present, used) = self.worth(&held);
        let (mut best, mut moves) = self.repaired(held.clone(), present, &used);
        let mut plan = self.placed();
        let (mut then, mut afresh) = self.follow(&held, &plan);
        let (kept, still) = self.follow(&held, &last.placed);
        if kept.tps >= AS_GOOD * then.tps && kept.tps > 0.0 {
            (plan, then, afresh) = (last.placed.clone(), kept, still);
        }
        if then.tps > 0.0 && then.tps >= MIN_GAIN * best.tps {
            (best, moves) = (then, afresh);
        }
        let regions =
            moves.iter().filter_map(|segment| Some(self.members[self.index_of(segment.node)?].region));
        let advised_tps = if best.tps == 0.0 && best.covered > present.covered {
            f64::MIN_POSITIVE * best.covered as f64
        } else {
            best.tps
        };
        let regions = regions.collect();
        let secures = best.secures(&present);
        Advised { present_tps: present.tps, advised_tps, secures, moves, regions, placed: plan }
    }

    fn index_of(&self, id: NodeId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// What `held`, by member, is worth, and which members the chains are made of.
    fn worth(&self, held: &[LayerSet]) -> (Worth, Vec<bool>) {
        let covered = (self.within.start()..self.within.end())
            .filter(|layer| held.iter().any(|set| set.contains(*layer)))
            .count();
        let mut used = vec![false; self.members.len()];
        let (mut paces, mut served) = (Vec::new(), 0.0);
        if covered == self.within.len() as usize
            && let Some((snapshot, mut router)) = self.search(held)
        {
            let mut barred = Vec::new();
            while served < self.concurrency
                && let Some((chain, latency_ms)) = router.between(&snapshot, self.within, &barred, None, None)
                && latency_ms > 0.0
            {
                let mut slowest_ms = 0.0f64;
                for segment in chain {
                    let Some(at) = self.index_of(segment.node) else { continue };
                    let member = &self.members[at];
                    let stage_ms = snapshot.weight_of(segment.layers) * member.layer_ms + member.visit_ms;
                    slowest_ms = slowest_ms.max(stage_ms);
                    used[at] = true;
                    barred.extend(snapshot.index_of(segment.node));
                }
                served += latency_ms / slowest_ms;
                paces.push(Pace { latency_ms, slowest_ms });
            }
        }
        let alone = holders::bares(&self.named(held)).iter().map(|bares| bares.layers.len() as usize).sum();
        (Worth { tps: goodput_tps(&paces, self.concurrency), covered, alone }, used)
    }

    /// `held` with the members' names.
    fn named(&self, held: &[LayerSet]) -> Vec<(NodeId, LayerSet)> {
        self.members.iter().map(|member| member.id).zip(held.iter().cloned()).collect()
    }

    /// The members as they would be with `held`, idle.
    fn search(&self, held: &[LayerSet]) -> Option<(Snapshot, Router)> {
        let host = |(member, held): (&Member, &LayerSet)| Host {
            visit_ms: member.visit_ms,
            ..Host::new(member.id, held.clone(), member.layer_ms)
        };
        let hosts = self.members.iter().zip(held).map(host).collect();
        let (weight, links) = (Some(self.weight.clone()), Links::Matrix(self.hop_ms.clone()));
        let snapshot =
            Snapshot::new(crate::ModelId::default(), self.num_layers, weight, hosts, &links).ok()?;
        let mut ask = Request::new(NodeId::default(), Shape::ONE_TOKEN);
        (ask.requester, ask.policy.closing_hop, ask.policy.near_equal) = (None, false, 0.0);
        let mut router = Router::default();
        router.prepare_parts(&snapshot, &ask).ok()?;
        Some((snapshot, router))
    }

    /// Members that choose and are not `used`, the fastest first, each where it adds most to those before it.
    fn repaired(&self, mut held: Vec<LayerSet>, present: Worth, used: &[bool]) -> (Worth, Vec<Segment>) {
        let mut idle: Vec<usize> =
            (0..self.members.len()).filter(|&at| !used[at] && self.members[at].room.is_some()).collect();
        idle.sort_by(|&a, &b| {
            let ms = |at: usize| stepped(self.members[at].layer_ms, STEPS);
            ms(a).total_cmp(&ms(b)).then(a.cmp(&b))
        });
        let (mut best, mut moves) = (present, Vec::new());
        for at in idle.into_iter().take(IDLE) {
            let before = held[at].clone();
            let alone = holders::alone(&self.named(&held), self.members[at].id);
            let mut found = None;
            let Some(room) = &self.members[at].room else { continue };
            for window in self.scarce(&held, at, room) {
                // What it alone holds it does not leave.
                if !alone.without(window).is_empty() {
                    continue;
                }
                held[at] = window.into();
                let worth = self.worth(&held).0;
                if worth.is_above(&best) {
                    (best, found) = (worth, Some(window));
                }
            }
            match found {
                Some(layers) => {
                    held[at] = layers.into();
                    moves.push(Segment { node: self.members[at].id, layers });
                }
                None => held[at] = before,
            }
        }
        moves.sort_unstable_by_key(|segment| segment.node);
        (best, moves)
    }

    /// Where a member with `room` has place: the few whose layers the others compute slowest, the first ones of equal ones.
    fn scarce(&self, held: &[LayerSet], at: usize, room: &Room) -> Vec<LayerRange> {
        let need = |layer: u32| {
            let holds = |(other, set): &(usize, &LayerSet)| *other != at && set.contains(layer);
            let speed = held.iter().enumerate().filter(holds);
            let speed: f64 = speed.map(|(other, _)| 1.0 / stepped(self.members[other].layer_ms, STEPS)).sum();
            1.0 / (speed + 1e-6)
        };
        let needs: Vec<f64> = (0..self.within.end()).map(need).collect();
        let windows = (self.within.start()..self.within.end())
            .filter_map(|start| room.longest(start, self.within.end()))
            .map(|window| {
                (needs[window.start() as usize..window.end() as usize].iter().sum::<f64>(), window)
            });
        let mut windows: Vec<(f64, LayerRange)> = windows.collect();
        windows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.start().cmp(&b.1.start())));
        windows.into_iter().take(TRIED).map(|(_, window)| window).collect()
    }

    /// All that choose, placed from nothing.
    fn placed(&self) -> Vec<(Segment, LayerRange)> {
        let first = self.within.start();
        let choosing: Vec<usize> =
            (0..self.members.len()).filter(|&at| self.members[at].room.is_some()).collect();
        let sites = choosing.iter().filter_map(|&at| {
            let member = &self.members[at];
            let room = member.room.as_ref()?;
            Some(Site::within(member.id, stepped(member.layer_ms, STEPS), room, self.within))
        });
        let n = self.members.len();
        let pairs = choosing.iter().flat_map(|&i| choosing.iter().map(move |&j| (i, j)));
        let hops: Vec<f64> =
            pairs.map(|(i, j)| stepped(self.hop_ms[i * n + j] + self.members[j].visit_ms, STEPS)).collect();
        let ground = Ground::new(self.within.len(), self.concurrency, sites.collect(), &hops);
        let Ok(ground) = ground else { return Vec::new() };
        let placement = place(&ground);
        let segments: Vec<Segment> =
            placement.pipelines.iter().flat_map(Pipeline::segments).copied().collect();
        let shifted = |range: LayerRange| LayerRange::new(range.start() + first, range.end() + first);
        let both = |wide: Segment| {
            let own = segments.iter().find(|own| own.node == wide.node)?;
            Some((Segment { node: own.node, layers: shifted(own.layers)? }, shifted(wide.layers)?))
        };
        widen(&ground, &segments).into_iter().filter_map(both).collect()
    }

    /// What it is worth that all follow `plan` who are there and choose, beside what the others hold, and who would move.
    fn follow(&self, held: &[LayerSet], plan: &[(Segment, LayerRange)]) -> (Worth, Vec<Segment>) {
        let (mut then, mut moves) = (held.to_vec(), Vec::new());
        for (own, wide) in plan {
            let Some(at) = self.index_of(own.node) else { continue };
            let fits = |room: &Room| room.longest(wide.start(), wide.end()) == Some(*wide);
            // What holds its part already has no reason to move.
            if self.members[at].room.as_ref().is_some_and(fits) && !held[at].covers(own.layers) {
                then[at] = (*wide).into();
                moves.push(Segment { node: own.node, layers: *wide });
            }
        }
        moves.sort_unstable_by_key(|segment| segment.node);
        let worth =
            if moves.is_empty() { Worth { tps: 0.0, covered: 0, alone: 0 } } else { self.worth(&then).0 };
        (worth, moves)
    }
}

/// A figure rounded to `steps` of each doubling.
fn stepped(ms: f64, steps: f64) -> f64 {
    if ms > 0.0 && ms.is_finite() { ((ms.log2() * steps).round() / steps).exp2() } else { ms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer_cost::{LayerCost, LayerCosts};
    use crate::place::{Advice, Keeper, Move, SETTLE_MS};
    use crate::{Millis, ModelId};

    pub(super) fn node(n: u64) -> NodeId {
        NodeId::numbered(n)
    }

    pub(super) fn set(start: u32, end: u32) -> LayerSet {
        LayerRange::new(start, end).unwrap().into()
    }

    /// Members in order from 1 on: what each holds, its ms a layer, and its room if it chooses. `hop_ms` apart.
    pub(super) fn stand(
        costs: Option<&LayerCosts>,
        num_layers: u32,
        members: &[(LayerSet, f64, Option<Room>)],
        hop_ms: impl Fn(usize, usize) -> f64,
    ) -> Stand {
        let n = members.len();
        let hosts = members.iter().zip(1..).map(|((held, ms, _), n)| Host::new(node(n), held.clone(), *ms));
        let links = Links::Matrix((0..n * n).map(|at| hop_ms(at / n, at % n)).collect());
        let weights = costs.map(|costs| costs.weights(0));
        let snapshot =
            Snapshot::new(ModelId::default(), num_layers, weights, hosts.collect(), &links).unwrap();
        let group = (1..=n as u64).map(node).collect();
        let rooms = members.iter().zip(1..).filter_map(|((.., room), n)| Some((node(n), room.clone()?)));
        let within = LayerRange::new(1, num_layers - 1).unwrap();
        Stand::of(&snapshot, &group, &rooms.collect(), within).unwrap()
    }

    /// Where the first of several should go, which alone chooses and of which all need 1 ms a layer; what that gives now and then.
    fn advise(
        num_layers: u32,
        room: &Room,
        own: LayerSet,
        others: &[LayerSet],
    ) -> (Option<LayerRange>, f64, f64) {
        let mine = (own, 1.0, Some(room.clone()));
        let others = others.iter().map(|held| (held.clone(), 1.0, None));
        let members: Vec<_> = std::iter::once(mine).chain(others).collect();
        let advised =
            stand(room.costs.as_ref(), num_layers, &members, |_, _| 0.1).advise(&Advised::default());
        (advised.of(node(1)), advised.present_tps, advised.advised_tps)
    }

    #[test]
    fn a_bare_layer_is_worth_moving_for_and_the_ends_are_not_placed() {
        let others = [set(1, 4), set(4, 6)];
        // Layer 6 of 0..8 has no holder; this node doubles 1..4.
        let (to, present, advised) = advise(8, &Room::of_layers(3), set(1, 4), &others);
        assert_eq!((to, present), (LayerRange::new(4, 7), 0.0));
        assert!(advised > 0.0);
        // Where one move is not enough, what has a holder then is a beginning.
        let (to, present, advised) = advise(8, &Room::of_layers(2), set(1, 3), &[set(1, 3)]);
        assert_eq!((to, present), (LayerRange::new(3, 5), 0.0));
        assert!(advised > 0.0);
    }

    #[test]
    fn where_all_are_held_alike_nothing_is_gained() {
        let others = [set(1, 4), set(4, 7), set(4, 7)];
        let (to, present, advised) = advise(8, &Room::of_layers(3), set(1, 4), &others);
        assert!(advised <= present, "{present} {advised}");
        assert_eq!(to, None);
    }

    #[test]
    fn what_layers_give_is_priced_by_their_own_weight() {
        let layer = |row_work| LayerCost {
            row_work,
            weight_bytes: row_work,
            seen_work: 0,
            window: None,
            state_bytes: 0,
            position_bytes: 0,
        };
        // Two layers of 1, then experts of 4: the mean is 3.
        let layers = [1, 1, 4, 4, 4, 4].map(|work| layer(work * 300)).to_vec();
        let costs = LayerCosts::new(layers, 8).unwrap();
        let members = [(set(1, 2), 1.0, Some(Room::of_layers(1))), (set(2, 5), 1.0, None)];
        let gives = |costs| stand(costs, 6, &members, |_, _| 0.0).advise(&Advised::default()).present_tps;
        // The heavy three take 1 ms x 3 x 4/3.
        assert!((gives(Some(&costs)) - 250.0).abs() < 1e-9);
        assert!((gives(None) - 1e3 / 3.0).abs() < 1e-9);
        // Where the room is for one layer of experts, two of them are not advised.
        let room = Room { layers: 4, bytes: 1_500, costs: Some(costs) };
        let (to, ..) = advise(6, &room, LayerSet::default(), &[]);
        assert_eq!(to, LayerRange::new(1, 3), "one light and one heavy: 300 + 1,200 bytes");
    }

    #[test]
    fn of_many_chains_the_requests_that_there_are_decide() {
        // Three chains of two, each 6 ms and 3 ms the slowest: two requests take one of them.
        let held = [set(1, 4), set(4, 7), set(1, 4), set(4, 7), set(1, 4), set(4, 7)];
        let members = held.map(|held| (held, 1.0, Some(Room::of_layers(3))));
        let mut stand = stand(None, 8, &members, |_, _| 0.0);
        let held: Vec<LayerSet> = stand.members.iter().map(|member| member.held.clone()).collect();
        let (worth, used) = stand.worth(&held);
        assert!((worth.tps - 1e3 / 3.0).abs() < 1e-9, "{worth:?}");
        assert_eq!(used.iter().filter(|used| **used).count(), 2);
        stand.concurrency = 8.0;
        let (worth, used) = stand.worth(&held);
        assert!((worth.tps - 1e3).abs() < 1e-9, "{worth:?}");
        assert!(used.iter().all(|used| *used));
        assert_eq!(stand.advise(&Advised::default()).moves, []);
    }

    /// Three hold the same, one of them is in the chain, and a fourth alone holds the rest: a spare one goes there, although
    /// nothing is answered faster, and the other two outlive the loss of either.
    #[test]
    fn a_layer_of_one_holder_gets_a_spare_one_where_that_costs_nothing() {
        let member = |start, end| (set(start, end), 1.0, Some(Room::of_layers(3)));
        let fixed = |start, end| (set(start, end), 1.0, None);
        let members = [fixed(1, 4), fixed(1, 4), member(1, 4), fixed(4, 7)];
        // All that pass 4..7 need the fourth, so a second chain would end there too.
        let one_at_a_time = |members: &[(LayerSet, f64, Option<Room>)]| {
            let mut stand = stand(None, 8, members, |_, _| 0.0);
            stand.concurrency = 1.0;
            stand.advise(&Advised::default())
        };
        let advised = one_at_a_time(&members);
        assert_eq!(advised.moves, [Segment { node: node(3), layers: LayerRange::new(4, 7).unwrap() }]);
        assert!(advised.secures && advised.advised_tps == advised.present_tps, "{advised:?}");
        // With two holders everywhere no node moves; and what a node alone holds it does not leave.
        let twice = [fixed(1, 4), member(1, 4), fixed(4, 7), fixed(4, 7)];
        let advised = one_at_a_time(&twice);
        assert!(advised.moves.is_empty() && !advised.secures, "{advised:?}");
        let alone = [fixed(1, 3), member(1, 4), fixed(4, 7)];
        assert_eq!(one_at_a_time(&alone).moves, []);
    }

    /// Two hold the same, one of them is enough, and layers beyond have no holder: both hear the same and each looks at its own row.
    #[test]
    fn of_two_spares_one_leaves() {
        let spare = || (set(1, 4), 1.0, Some(Room::of_layers(3)));
        let members = [spare(), spare()];
        let advised = stand(None, 8, &members, |_, _| 1.0).advise(&Advised::default());
        assert_eq!(advised.moves, [Segment { node: node(1), layers: LayerRange::new(4, 7).unwrap() }]);
        assert_eq!(advised.movers(node(1)), [node(1)]);
        assert_eq!((advised.of(node(2)), advised.movers(node(2))), (None, vec![]));
        // Each sees the other hold less once it withdraws; who sees that last stays too.
        let held = set(1, 4);
        let mut keepers = [Keeper::default(), Keeper::default()];
        let mut withdrawn = [false; 2];
        let mut left = 0;
        for step in 0..400u64 {
            let shown = withdrawn.map(|gone| if gone { LayerSet::default() } else { held.clone() });
            for at in 0..2 {
                // One's own layers it has until it leaves.
                let mut seen = [spare(), spare()];
                seen[1 - at].0 = shown[1 - at].clone();
                let advised = stand(None, 8, &seen, |_, _| 1.0).advise(&Advised::default());
                let both =
                    [(node(1 + at as u64), held.clone()), (node(2 - at as u64), shown[1 - at].clone())];
                let choice = Move {
                    node: node(at as u64 + 1),
                    held: &held,
                    advised: advised.of(node(at as u64 + 1)),
                    present_tps: advised.present_tps,
                    advised_tps: advised.advised_tps,
                    secures: advised.secures,
                    alone: &holders::alone(&both, node(1 + at as u64)),
                    movers: &advised.movers(node(at as u64 + 1)),
                    tick: step / 60,
                    state: step,
                };
                match keepers[at].tick(Millis(step * 1_000), &choice) {
                    Advice::Stay => withdrawn[at] = false,
                    Advice::Withdraw(_) => withdrawn[at] = true,
                    Advice::Hold(_) => left += 1,
                }
            }
            if left > 0 {
                assert!(step * 1_000 >= SETTLE_MS);
                break;
            }
        }
        assert_eq!(left, 1, "one of them leaves, and not both");
    }

    /// Two cities, 80 ms apart, in each of which the same half of the model is held twice: the pipelines cross.
    #[test]
    fn a_swarm_that_grew_badly_is_placed_from_nothing() {
        let member = |held: LayerSet| (held, 1.0, Some(Room::of_layers(3)));
        let members = [set(1, 4), set(1, 4), set(4, 7), set(4, 7)].map(member);
        let city = |at: usize| at / 2;
        let hop = |i: usize, j: usize| if city(i) == city(j) { 1.0 } else { 80.0 };
        let few = stand(None, 8, &members, hop).advise(&Advised::default());
        assert!(few.advised_tps > 5.0 * few.present_tps, "{few:?}");
        // One city is enough for the speed; the other follows, so that no layer is left with one holder.
        assert_eq!(few.moves.len(), 2, "{few:?}");
        // So many that both chains are in use, each of them limited by the way.
        let many = Stand { concurrency: 30.0, ..stand(None, 8, &members, hop) }.advise(&Advised::default());
        assert!(many.advised_tps > MIN_GAIN * many.present_tps, "{many:?}");
        // While it is as good as a new one the last placement is advised, were it another one.
        let crowd = || Stand { concurrency: 30.0, ..stand(None, 8, &members, hop) };
        let (mut other, mut held) = (many.clone(), [set(4, 7), set(1, 4), set(4, 7), set(1, 4)].into_iter());
        other.placed = (1..5)
            .map(|n| (n, held.next().and_then(|held| held.ranges().first().copied()).unwrap()))
            .map(|(n, layers)| (Segment { node: node(n), layers }, layers))
            .collect();
        let again = crowd().advise(&other);
        assert_eq!(again.placed, other.placed);
        assert_eq!(again.moves.len(), 2, "{again:?}");
        other.placed.truncate(1);
        assert_eq!(crowd().advise(&other), many, "one that gives less is forgotten");
        let cities: BTreeSet<u8> = many.moves.iter().map(|to| (to.node.as_bytes()[7] - 1) / 2).collect();
        assert_eq!((many.moves.len(), cities.len()), (2, 2), "one of each city moves: {many:?}");
        // Those whose owner named their layers stay, and nothing is advised that needs them elsewhere.
        let mut fixed = members.clone();
        (1..4).for_each(|at| fixed[at].2 = None);
        let alone = stand(None, 8, &fixed, hop).advise(&Advised::default());
        assert!(alone.moves.iter().all(|to| to.node == node(1)), "{alone:?}");
    }

    #[test]
    fn figures_that_flicker_advise_the_same() {
        let mut rng = crate::rng::Rng::new(5);
        let mut members: Vec<(LayerSet, f64, Option<Room>)> = (0..24)
            .map(|at| {
                let start = 1 + 3 * (at % 3);
                (set(start, start + 3), 1.0 + f64::from(at % 4), Some(Room::of_layers(5)))
            })
            .collect();
        members.truncate(20);
        let far: Vec<f64> = (0..20).map(|_| rng.between(1.0, 60.0)).collect();
        let first = stand(None, 11, &members, |i, j| far[i] + far[j]).advise(&Advised::default());
        let again = stand(None, 11, &members, |i, j| (far[i] + far[j]) * 1.001).advise(&Advised::default());
        assert_eq!(first.moves, again.moves);
        assert!(first.advised_tps >= first.present_tps);
    }

    #[test]
    fn a_group_is_who_is_near() {
        let place = |n: u64| {
            let city = if n.is_multiple_of(2) { 0.0 } else { 150.0 };
            (node(n), Coordinate::new([city + (n % 7) as f32, 0.0, 0.0], 3.0, 0.1).unwrap())
        };
        let few: BTreeSet<NodeId> = (1..=100).map(node).collect();
        assert_eq!(group(node(4), (1..=100).map(place).collect()), few);
        let near = group(node(4), (1..=200).map(place).collect());
        assert!(near.contains(&node(4)) && near.len() == 100);
        assert!(near.iter().all(|id| id.as_bytes()[7].is_multiple_of(2)));
        assert!(group(node(999), (1..=9).map(place).collect()).is_empty());
    }
}
