use super::{
    CORRECTED_MS, EXPIRY_MS, Geography, MAX_LINKS, MAX_NODES, MAX_STRANGERS, Merged, PRIOR_LAYER_MS,
    SNUBBED_MS, SwarmView,
};
use crate::capability::tests::claim;
use std::sync::Arc;

use crate::coordinate::Coordinate;
use crate::rng::Rng;
use crate::snapshot::{Host, Snapshot};
use crate::{Capability, LayerRange, LayerSet, Millis, ModelId, NodeId, Request, Shape};

fn said(node: u64, sequence: u64) -> Capability {
    Capability::try_from(claim(node, sequence)).unwrap()
}

#[test]
fn without_a_map_hops_lie_around_the_viewer() {
    let (me, near, far) = (NodeId::numbered(1), NodeId::numbered(2), NodeId::numbered(3));
    let mut view = SwarmView::new(Geography::around(50.0));
    (1..=3).for_each(|node| {
        let _ = view.merge(said(node, 1), Millis(0));
    });
    view.set_link(me, near, 80.0);
    view.set_link(me, near, 4.0);
    let hop = |view: &SwarmView, from, to| {
        let snapshot = view.snapshot(ModelId::default(), 8, me).unwrap();
        snapshot.link_ms(snapshot.index_of(from).unwrap(), snapshot.index_of(to).unwrap())
    };
    assert_eq!((hop(&view, me, near), hop(&view, near, me)), (2.0, 2.0));
    assert_eq!((hop(&view, me, far), hop(&view, near, far)), (50.0, 52.0));
    view.set_link(far, near, 3.0);
    assert_eq!(hop(&view, near, far), 1.5, "what was measured counts, whichever node says so");
}

#[test]
fn claims_count_down_to_half_of_the_own_speed_until_visits_are_measured() {
    let (me, other) = (NodeId::numbered(1), NodeId::numbered(2));
    let mut view = SwarmView::new(Geography::around(50.0));
    let mut own = claim(1, 1);
    own.holdings[0].decode_ms = 0.5;
    let mut boasts = claim(2, 1);
    (boasts.holdings[0].decode_ms, boasts.holdings[0].visit_ms) = (0.01, 0.1);
    view.merge(Capability::try_from(own).unwrap(), Millis(0));
    view.merge(Capability::try_from(boasts).unwrap(), Millis(0));
    let speed = |view: &SwarmView| {
        let host = view.snapshot(ModelId::default(), 8, me).unwrap().host(other).unwrap().clone();
        (host.visit_ms, host.decode_ms)
    };
    assert_eq!(speed(&view), (1.0, 0.25), "entering it counts as half of what it costs here, too");
    // Four layers took 6 ms: the next four are predicted to take as long.
    view.observe_visit(other, ModelId::default(), Millis(0), 4.0, 6.0);
    let (visit, layer) = speed(&view);
    assert!((visit + 4.0 * layer - 6.0).abs() < 1e-9, "{visit} {layer}");
    // Far less than claimed, again and again: so are others.
    let mut view = view.clone();
    (0..5).for_each(|_| view.observe_visit(me, ModelId::default(), Millis(0), 2.0, 1.5));
    let host = view.snapshot(ModelId::default(), 8, me).unwrap().host(me).unwrap().clone();
    assert!((host.visit_ms + 2.0 * host.decode_ms - 1.5).abs() < 1e-9, "{host:?}");
    view.observe_visit(me, ModelId::default(), Millis(0), 2.0, f64::NAN);
}

#[test]
fn an_announcement_counts_for_as_long_as_it_says() {
    let mut view = SwarmView::new(Geography::around(50.0));
    view.merge_for(said(1, 1), Millis(0), 90_000);
    view.merge(said(2, 1), Millis(0));
    assert_eq!(view.expire(Millis(EXPIRY_MS + 1)), [NodeId::numbered(2)]);
    assert_eq!(view.expire(Millis(90_001)), [NodeId::numbered(1)]);
}

#[test]
fn the_newest_wins_in_any_order() {
    let orders = [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2]];
    for order in orders {
        let mut view = SwarmView::new(Geography::flat(10.0));
        for sequence in order {
            view.merge(said(7, sequence), Millis(sequence));
            view.merge(said(7, sequence), Millis(100 + sequence));
        }
        assert_eq!(view.get(NodeId::numbered(7)), Some(&said(7, 3)));
    }
    let mut view = SwarmView::new(Geography::flat(10.0));
    assert_eq!(view.merge(said(7, 1), Millis(0)), Merged::Fresh);
    assert_eq!(view.merge(said(7, 1), Millis(1)), Merged::Stale);
    let mut other = claim(7, 1);
    other.access_ms = 1.0;
    assert_eq!(view.merge(Capability::try_from(other).unwrap(), Millis(1)), Merged::Equivocation);
    assert_eq!(view.epoch(), 1);
}

#[test]
fn silence_expires_whatever_the_sequence_says() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    view.merge(said(1, u64::MAX), Millis(0));
    view.merge(said(2, 1), Millis(10_000));
    assert_eq!(view.expire(Millis(EXPIRY_MS)), []);
    assert_eq!(view.expire(Millis(EXPIRY_MS + 1)), [NodeId::numbered(1)]);
    assert_eq!(view.len(), 1);
}

#[test]
fn a_snapshot_bounds_claims_and_keeps_myself() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    let mut boaster = claim(1, 1);
    boaster.holdings[0].decode_ms = 1e-9;
    view.merge(Capability::try_from(boaster).unwrap(), Millis(0));
    let mut nothing = claim(2, 1);
    nothing.holdings.clear();
    view.merge(Capability::try_from(nothing.clone()).unwrap(), Millis(0));
    nothing.node = NodeId::numbered(3);
    view.merge(Capability::try_from(nothing).unwrap(), Millis(0));
    let mut leaving = claim(4, 1);
    leaving.draining = true;
    view.merge(Capability::try_from(leaving).unwrap(), Millis(0));

    let me = NodeId::numbered(2);
    let snapshot = view.snapshot(ModelId::default(), 6, me).unwrap();
    assert_eq!(snapshot.hosts().len(), 2);
    let one = snapshot.host(NodeId::numbered(1)).unwrap();
    assert_eq!((one.decode_ms, one.loaded.end()), (PRIOR_LAYER_MS, 6));
    assert!(snapshot.host(me).unwrap().loaded.is_empty());

    (0..5).for_each(|t| view.observe_speed(NodeId::numbered(1), Millis(t), 40.0));
    view.observe_link(me, NodeId::numbered(1), 50.0);
    let snapshot = view.snapshot(ModelId::default(), 6, me).unwrap();
    assert_eq!(snapshot.host(NodeId::numbered(1)).unwrap().decode_ms, 20.0);
    let (i, j) = (snapshot.index_of(me).unwrap(), snapshot.index_of(NodeId::numbered(1)).unwrap());
    assert_eq!((snapshot.link_ms(i, j), snapshot.link_ms(j, i)), (25.0, 25.0));
}

#[test]
fn a_refused_lease_corrects_what_was_announced_until_it_changes() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    let (node, model) = (NodeId::numbered(1), ModelId::default());
    view.merge(said(1, 1), Millis(0));
    let all: LayerSet = LayerRange::new(0, 8).unwrap().into();
    let some: LayerSet = LayerRange::new(0, 3).unwrap().into();
    assert!(!view.correct(node, model, all.clone(), Millis(0)), "it repeats its claim");
    assert!(view.correct(node, model, some.clone(), Millis(0)));
    let shown = |view: &SwarmView| view.snapshot(model, 8, node).unwrap().host(node).unwrap().loaded.clone();
    view.merge(said(1, 2), Millis(1));
    assert_eq!(shown(&view), some, "saying it again does not make it true");
    let mut other = claim(1, 3);
    other.holdings[0].loaded = vec![LayerRange::new(2, 8).unwrap()];
    view.merge(Capability::try_from(other).unwrap(), Millis(2));
    assert_eq!(shown(&view), LayerRange::new(2, 8).unwrap().into());
    view.merge(said(1, 4), Millis(CORRECTED_MS));
    view.expire(Millis(CORRECTED_MS));
    assert_eq!(shown(&view), all);
}

#[test]
fn routes_avoid_a_pair_that_cannot_talk() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    let holds = |node, start, end| {
        let mut claim = claim(node, 1);
        claim.holdings[0].loaded = vec![LayerRange::new(start, end).unwrap()];
        Capability::try_from(claim).unwrap()
    };
    let nodes = [holds(1, 0, 1), holds(2, 0, 5), holds(3, 5, 8), holds(4, 5, 8)];
    nodes.into_iter().for_each(|node| assert_eq!(view.merge(node, Millis(0)), Merged::Fresh));
    let via = |view: &SwarmView| {
        let me = NodeId::numbered(1);
        let snapshot = view.snapshot(ModelId::default(), 8, me).unwrap();
        let mut request = Request::new(me, Shape::ONE_TOKEN);
        request.policy.near_equal = 0.0;
        crate::route::route(&snapshot, &request).map(|found| found.pipeline.segments()[1].node).ok()
    };
    assert_eq!(via(&view), Some(NodeId::numbered(3)));
    view.unreachable(NodeId::numbered(3), NodeId::numbered(2), Millis(0));
    assert_eq!(via(&view), Some(NodeId::numbered(4)));
    view.unreachable(NodeId::numbered(2), NodeId::numbered(4), Millis(0));
    assert_eq!(via(&view), None);
    view.reachable(NodeId::numbered(4), NodeId::numbered(2));
    assert_eq!(via(&view), Some(NodeId::numbered(4)), "they have met");
    view.unreachable(NodeId::numbered(2), NodeId::numbered(4), Millis(0));
    view.forget(NodeId::numbered(4));
    assert_eq!(view.merge(holds(4, 5, 8), Millis(1)), Merged::Fresh);
    assert_eq!(via(&view), Some(NodeId::numbered(4)), "it came back");
    view.expire(Millis(super::UNREACHABLE_MS));
    view.unreachable(NodeId::numbered(1), NodeId::numbered(3), Millis(0));
    assert_eq!(via(&view), Some(NodeId::numbered(4)), "every stage must be leased from");
}

#[test]
fn experience_outlives_absence() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    let node = NodeId::numbered(1);
    view.merge(said(1, 1), Millis(0));
    view.set_trust(node, 0.25);
    view.expire(Millis(EXPIRY_MS + 1));
    assert!(view.is_empty());
    view.merge(said(1, 2), Millis(EXPIRY_MS + 2));
    let snapshot = view.snapshot(ModelId::default(), 8, node).unwrap();
    assert_eq!(snapshot.host(node).unwrap().trust, 0.25);
}

#[test]
fn a_node_is_a_stranger_until_it_was_met_and_again_when_it_does_not_answer() {
    let (me, other) = (NodeId::numbered(1), NodeId::numbered(2));
    let mut view = SwarmView::new(Geography::flat(10.0));
    view.merge(said(1, 1), Millis(0));
    view.merge(said(2, 1), Millis(0));
    let met = |view: &SwarmView| {
        view.snapshot(ModelId::default(), 8, me)
            .unwrap()
            .hosts()
            .iter()
            .map(|host| host.met)
            .collect::<Vec<_>>()
    };
    assert_eq!(met(&view), [true, false]);
    assert_eq!(view.introduce(me, 5), Some(other));
    view.meet(other);
    assert_eq!((met(&view), view.introduce(me, 5)), (vec![true, true], None));
    view.snub(Millis(0), other);
    assert_eq!((view.is_met(other), view.introduce(me, 5)), (false, None), "it is left alone for a while");
    view.merge(said(2, 2), Millis(SNUBBED_MS));
    view.expire(Millis(SNUBBED_MS));
    assert!(view.is_met(other));
    view.snub(Millis(SNUBBED_MS), other);
    view.expire(Millis(2 * SNUBBED_MS));
    assert!(!view.is_met(other), "twice as long the second time");
    // One that has served stays met, whatever it does not answer.
    view.merge(said(2, 3), Millis(2 * SNUBBED_MS));
    view.observe_speed(other, Millis(2 * SNUBBED_MS), 1.0);
    view.snub(Millis(2 * SNUBBED_MS), other);
    assert!(view.is_met(other));
}

#[test]
fn strangers_are_shown_in_small_numbers_and_those_that_were_measured_are_met_first() {
    let me = NodeId::numbered(1);
    let mut view = SwarmView::new(Geography::flat(10.0));
    for node in 1..=10 * MAX_STRANGERS as u64 {
        view.merge(said(node, 1), Millis(0));
    }
    (2..12).for_each(|node| view.meet(NodeId::numbered(node)));
    let shown = |draw| {
        let snapshot = view.snapshot_to_route(ModelId::default(), 8, None, me, draw).unwrap();
        let strangers = snapshot.hosts().iter().filter(|host| !host.met).map(|host| host.id);
        (snapshot.hosts().len(), strangers.collect::<Vec<_>>())
    };
    let (hosts, strangers) = shown(1);
    assert_eq!((hosts, strangers.len()), (11 + MAX_STRANGERS, MAX_STRANGERS));
    assert_ne!(strangers, shown(2).1, "others another time");
    let mut view = view.clone();
    view.observe_link(NodeId::numbered(90), NodeId::numbered(91), 1.0);
    view.observe_link(NodeId::numbered(5), NodeId::numbered(77), 1.0);
    let first: Vec<_> = (0..20).filter_map(|draw| view.introduce(me, draw)).collect();
    assert_eq!(first, [NodeId::numbered(77); 20], "a node that was met has measured it");
}

/// Twenty nodes on one side and ten on the other; this one has measured nodes of the first only.
#[test]
fn a_node_looks_up_some_of_each_region() {
    let id = NodeId::numbered;
    let mut view = SwarmView::new(Geography::around(50.0));
    for node in 1..=30 {
        view.merge(said(node, 1), Millis(0));
        let x = if node <= 20 { 0.0 } else { 200.0 };
        view.place(id(node), Coordinate::new([x + node as f32 / 10.0, 0.0, 0.0], 2.0, 0.1).unwrap());
        view.meet(id(node));
    }
    let me = id(1);
    (2..=5).for_each(|node| view.measure(me, id(node), 6.0));
    assert_eq!(view.introduce(me, 1), None, "they may all be made up");
    (21..=30).for_each(|node| view.observe_link(id(2), id(node), 200.0));
    let across = |view: &SwarmView| {
        let found: Vec<_> = (0..20).filter_map(|draw| view.introduce(me, draw)).collect();
        assert!(found.iter().all(|node| (21..=30).any(|far| *node == id(far))), "{found:?}");
        found
    };
    assert!(across(&view).iter().any(|node| *node != across(&view)[0]), "not always the same");
    // One that does not answer is not asked again at once.
    view.snub(Millis(0), id(21));
    assert!(!across(&view).contains(&id(21)));
    view.measure(me, id(22), 200.0);
    assert_eq!(across(&view).len(), 20);
    view.measure(me, id(23), 200.0);
    assert_eq!(view.introduce(me, 1), None, "all are met, and both regions are known");
}

#[test]
fn a_full_view_takes_in_a_node_that_was_met() {
    let mut view = SwarmView::new(Geography::flat(10.0));
    for node in 0..MAX_NODES as u64 {
        view.merge(said(node, 1), Millis(0));
    }
    let late = NodeId::numbered(1 << 40);
    assert_eq!(view.merge(said(1 << 40, 1), Millis(0)), Merged::Full);
    view.meet(late);
    assert_eq!((view.merge(said(1 << 40, 1), Millis(0)), view.len()), (Merged::Fresh, MAX_NODES));
}

fn placed(x: f32, height: f32) -> Coordinate {
    Coordinate::new([x, 0.0, 0.0], height, 0.1).unwrap()
}

/// The viewer is node 1; nodes 2 to 9 are near it and nodes 10 to 19 far off, all where they say.
fn mapped() -> SwarmView {
    let mut view = SwarmView::new(Geography::around(50.0));
    for node in 1..20 {
        view.merge(said(node, 1), Millis(0));
        view.meet(NodeId::numbered(node));
    }
    let x = |node| if node < 10 { 0.0 } else { 200.0 };
    (1..20).for_each(|node| view.place(NodeId::numbered(node), placed(x(node), 4.0)));
    view
}

fn hop(view: &SwarmView, from: u64, to: u64) -> f64 {
    let snapshot = view.snapshot(ModelId::default(), 8, NodeId::numbered(1)).unwrap();
    let at = |node| snapshot.index_of(NodeId::numbered(node)).unwrap();
    snapshot.link_ms(at(from), at(to))
}

#[test]
fn coordinates_price_pairs_that_were_never_measured() {
    let view = mapped();
    assert!(
        (hop(&view, 2, 3) - 8.0).abs() < 1.0,
        "two heights, a little more for strangers: {}",
        hop(&view, 2, 3)
    );
    assert!(
        (hop(&view, 10, 11) - 8.0).abs() < 1.0,
        "far from the viewer, near each other: {}",
        hop(&view, 10, 11)
    );
    assert!((hop(&view, 2, 10) - 108.0).abs() < 2.0, "{}", hop(&view, 2, 10));
    assert_eq!(hop(&view, 1, 10), hop(&view, 10, 1));
}

#[test]
fn own_measurements_come_before_coordinates() {
    let mut view = mapped();
    let (me, node) = (NodeId::numbered(1), NodeId::numbered);
    view.measure(me, node(10), 230.0);
    assert_eq!(hop(&view, 1, 10), 115.0);
    // Says that it is near, and is not: around the viewer at the distance measured, so near no other node.
    view.place(node(11), placed(1.0, 0.0));
    assert!(hop(&view, 1, 11) < 8.0, "not measured yet");
    view.measure(me, node(11), 220.0);
    assert_eq!(hop(&view, 1, 11), 110.0);
    assert!(hop(&view, 2, 11) > 100.0, "{}", hop(&view, 2, 11));
    // A link that another node says is held within half of what coordinates say.
    view.observe_link(node(12), node(2), 1.0);
    assert!((hop(&view, 12, 2) - 47.0).abs() < 2.0, "{}", hop(&view, 12, 2));
    view.observe_link(node(13), node(2), 190.0);
    assert_eq!(hop(&view, 13, 2), 95.0, "and counts above");
    view.observe_link(node(14), node(2), 900.0);
    assert_eq!(hop(&view, 14, 2), 450.0);
}

#[test]
fn places_that_other_nodes_measured_otherwise_are_not_believed() {
    let mut view = mapped();
    let node = NodeId::numbered;
    view.place(node(19), placed(2.0, 0.0));
    for by in 2..8 {
        view.observe_link(node(by), node(19), 208.0);
    }
    // Regions are found again when enough has changed.
    (2..18).for_each(|at| view.place(node(at), placed(if at < 10 { 0.5 } else { 200.5 }, 4.0)));
    assert!(hop(&view, 1, 19) >= 190.0, "as far as can be: {}", hop(&view, 1, 19));
    assert!(hop(&view, 10, 19) >= 100.0, "{}", hop(&view, 10, 19));
}

#[test]
fn a_viewer_without_a_place_knows_no_map() {
    let mut view = SwarmView::new(Geography::around(50.0));
    (1..5).for_each(|node| {
        view.merge(said(node, 1), Millis(0));
    });
    (2..5).for_each(|node| view.place(NodeId::numbered(node), placed(1.0, 4.0)));
    view.place(NodeId::numbered(9), placed(1.0, 4.0));
    assert_eq!(view.coordinate(NodeId::numbered(9)), None, "it is not known");
    assert_eq!(hop(&view, 2, 3), 100.0, "the way past the viewer");
}

/// So many nodes that links are not priced one by one, in two places, and what happens to them: figures, layers, places, links, news of strangers.
#[test]
fn a_thawed_snapshot_is_the_one_that_would_be_frozen() {
    const NODES: u64 = 2_100;
    let mut rng = Rng::new(3);
    let me = NodeId::numbered(1);
    let mut view = SwarmView::new(Geography::around(50.0));
    for node in 1..=NODES {
        view.merge(said(node, 1), Millis(0));
        view.meet(NodeId::numbered(node));
        view.place(NodeId::numbered(node), placed(if node % 2 == 0 { 0.0 } else { 90.0 }, 4.0));
    }
    (2..40).for_each(|node| view.measure(me, NodeId::numbered(node), 60.0));
    let basis = view.basis(ModelId::default(), me);
    let freeze =
        |view: &SwarmView| Arc::new(view.snapshot_to_route(ModelId::default(), 8, None, me, 1).unwrap());
    let mut kept = (freeze(&view), view.epoch());
    let (mut thawed, mut same, mut moved) = (0, 0, 0);
    for step in 2..600 {
        let node = NodeId::numbered(2 + rng.below(NODES as usize - 1) as u64);
        let now = Millis(step);
        let at = view.get(node).map_or(1, |known| known.claim().sequence);
        let number = u64::from_be_bytes(node.as_bytes()[..8].try_into().unwrap());
        match rng.below(10) {
            0..3 => {
                let mut claim = claim(number, at + 1);
                claim.holdings[0].queue_ms = rng.unit();
                view.merge(Capability::try_from(claim).unwrap(), now);
            }
            3 => view.observe_speed(node, now, rng.between(1.0, 9.0)),
            4 => view.set_trust(node, rng.unit()),
            5 => view.place(node, placed(rng.between(0.0, 5.0) as f32, 4.0)),
            6 => view.observe_link(node, NodeId::numbered(2 + rng.below(NODES as usize - 1) as u64), 20.0),
            7 => {
                view.merge(said(10_000 + step, 1), now);
            }
            8 => {
                let other = 2 + rng.below(if step % 7 == 0 { 60 } else { 38 }) as u64;
                view.measure(me, NodeId::numbered(other), rng.between(40.0, 90.0));
            }
            _ if step % 5 == 0 => view.forget(node),
            _ => {
                let mut claim = claim(number, at + 1);
                claim.holdings[0].loaded = LayerRange::new(0, 1 + rng.below(7) as u32).into_iter().collect();
                view.merge(Capability::try_from(claim).unwrap(), now);
            }
        }
        if rng.below(3) > 0 {
            continue;
        }
        let fresh = freeze(&view);
        assert_eq!(view.basis(ModelId::default(), me), basis);
        if let Some(patch) = view.thaw(&kept.0, kept.1, me) {
            thawed += 1;
            same += u32::from(patch.is_empty());
            moved += patch.ways.len();
            let mut snapshot = Arc::clone(&kept.0);
            Arc::make_mut(&mut snapshot).update(patch, me);
            // Strangers are those of the last draw.
            let met = |snapshot: &Snapshot| -> Vec<Host> {
                snapshot.hosts().iter().filter(|host| host.met).cloned().collect()
            };
            assert_eq!(met(&snapshot), met(&fresh), "step {step}");
            for nth in 0..100 {
                let mut pair = [0, 1].map(|_| NodeId::numbered(1 + rng.below(NODES as usize) as u64));
                if nth < 50 {
                    pair = [me, NodeId::numbered(nth)];
                }
                let hop = |snapshot: &Snapshot| {
                    let [i, j] = pair.map(|node| snapshot.index_of(node));
                    Some(snapshot.link_ms(i?, j?))
                };
                assert_eq!(hop(&snapshot), hop(&fresh), "step {step}: {pair:?}");
            }
            kept = (snapshot, view.epoch());
        } else {
            kept = (fresh, view.epoch());
        }
    }
    assert!(thawed > 50 && same > 0 && moved > 10, "{thawed} thawed, {same} unchanged, {moved} ways");
    // A way that another node said goes: pushed out by shorter ones, or with the node, which comes back without it.
    let far = NodeId::numbered(NODES - 1);
    let says = |view: &mut SwarmView| {
        view.merge(said(NODES - 1, 1_000), Millis(600));
        view.meet(far);
        view.observe_link(far, me, 500.0);
        (freeze(view), view.epoch())
    };
    let before = says(&mut view);
    (2..2 + MAX_LINKS as u64).for_each(|other| view.observe_link(far, NodeId::numbered(40 + other), 20.0));
    assert!(view.thaw(&before.0, before.1, me).is_none());
    view.forget(far);
    let before = says(&mut view);
    view.forget(far);
    view.merge(said(NODES - 1, 1_000), Millis(600));
    assert!(view.thaw(&before.0, before.1, me).is_none());
    let kept = (freeze(&view), view.epoch());
    (0..5_000).for_each(|step| view.set_trust(NodeId::numbered(2), step as f64 / 5_000.0));
    assert!(view.thaw(&kept.0, kept.1, me).is_none(), "the journal does not reach back");
}
