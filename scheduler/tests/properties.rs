//! What must hold of every route, on drawn swarms against slow twins that share no code with the router.
//!
//! A case that fails is written to `properties.regressions`, to be committed, and runs first from then on.

mod oracle;

use std::cell::Cell;
use std::collections::BTreeSet;

use oracle::{Case, case, id};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use scheduler::route::{Router, compare, route};
use scheduler::{LayerRange, LayerSet, NodeId, Pipeline, Segment, cost, standby};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

fn optimum(case: &Case) -> Option<f64> {
    route(&case.snapshot(), &case.request()).ok().map(|found| found.optimum_ms)
}

/// No worse than before: a route that existed still does, and costs no more.
fn no_worse(after: Option<f64>, before: Option<f64>) -> bool {
    match (after, before) {
        (Some(after), Some(before)) => after <= before * (1.0 + 1e-9) + 1e-9,
        (None, Some(_)) => false,
        _ => true,
    }
}

fn config(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

/// Cases on which brute force and router must agree.
const CASES: u32 = 10_000;

fn equals_brute_force(case: &Case) -> Result<bool, TestCaseError> {
    let expected = case.brute_force(&[]);
    let found = route(&case.snapshot(), &case.request()).ok();
    prop_assert_eq!(found.is_some(), expected.is_some(), "{:?} but {:?}", found, expected);
    if let (Some(found), Some(expected)) = (&found, expected) {
        prop_assert!(found.exact);
        prop_assert!(close(found.optimum_ms, expected), "{} but {}", found.optimum_ms, expected);
        prop_assert!(close(found.cost.total_ms(), expected), "{} but {}", found.cost, expected);
    }
    Ok(found.is_some())
}

/// The optimum is the optimum, under all rules at once, and its parts add up to it.
#[test]
fn the_router_equals_brute_force() {
    let (ran, routed) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig { source_file: Some(file!()), ..config(CASES) });
    let result = runner.run(&case(5, 7), |case| {
        let found = equals_brute_force(&case)?;
        ran.set(ran.get() + 1);
        routed.set(routed.get() + u32::from(found));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}\n{runner}"));
    let (ran, routed) = (ran.get(), routed.get());
    assert!(ran >= CASES && routed >= CASES / 4, "{routed} of {ran} cases had a route");
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn the_router_equals_dijkstra_on_larger_swarms(mut case in case(64, 40)) {
        case.peers.iter_mut().for_each(|peer| peer.room = None);
        let (found, expected) = (optimum(&case), case.dijkstra());
        prop_assert_eq!(found.is_some(), expected.is_some());
        prop_assert!(found.zip(expected).is_none_or(|(a, b)| close(a, b)), "{:?} but {:?}", found, expected);
    }

    /// A router used before, on whatever, answers like a new one.
    #[test]
    fn warm_equals_cold(first in case(6, 8), second in case(6, 8)) {
        let mut router = Router::default();
        let _ = router.prepare(&first.snapshot(), &first.request());
        let (snapshot, request) = (second.snapshot(), second.request());
        let warm = router.prepare(&snapshot, &request).and_then(|()| router.route(&snapshot, &request));
        prop_assert_eq!(&warm, &route(&snapshot, &request));
        if warm.is_ok() {
            prop_assert_eq!(warm, router.route(&snapshot, &request));
        }
    }

    #[test]
    fn the_order_of_hosts_is_irrelevant(case in case(6, 8), shift in 0usize..6) {
        let mut order: Vec<usize> = (0..case.peers.len()).rev().collect();
        let n = order.len();
        order.rotate_left(shift % n);
        prop_assert_eq!(route(&case.snapshot(), &case.request()), route(&case.snapshot_in(&order), &case.request()));
    }

    /// More nodes, more layers held, more room, lower prices: never a dearer route.
    #[test]
    fn more_never_hurts(case in case(5, 7), which in 0usize..5, how in 0u8..14) {
        let before = optimum(&case);
        let mut better = case.clone();
        let i = which % better.peers.len();
        let peer = &mut better.peers[i];
        match how {
            0 => peer.loaded = (1 << case.layers) - 1,
            1 => peer.room = None,
            2 => peer.decode /= 2.0,
            3 => (peer.visit, peer.queue) = (0.0, 0.0),
            4 => better.matrix.iter_mut().for_each(|ms| *ms = ms.map(|ms| ms / 2.0)),
            5 => peer.active = 0,
            6 => peer.prefill /= 2.0,
            7 => peer.load = 0.0,
            8 => peer.up *= 2.0,
            9 => peer.trust = 1.0,
            10 => peer.access /= 2.0,
            11 => better.base.iter_mut().for_each(|ms| *ms /= 2.0),
            12 => better.measured.iter_mut().for_each(|pair| pair.2 /= 2.0),
            _ => (better.floor, better.in_flight) = (0.0, Vec::new()),
        }
        prop_assert!(no_worse(optimum(&better), before), "{:?} then {:?}", before, optimum(&better));
    }

    /// One more node, whatever it is, never makes the route dearer.
    #[test]
    fn a_newcomer_never_hurts(case in case(6, 7)) {
        let mut before = case.clone();
        let last = before.peers.len() - 1;
        (before.peers[last].loaded, before.peers[last].on_disk) = (0, 0);
        let without = optimum(&before);
        prop_assert!(no_worse(optimum(&case), without), "{:?} then {:?}", without, optimum(&case));
    }

    /// A range declared in pieces, in any order, is the same range.
    #[test]
    fn splitting_a_range_changes_nothing(mask in 1u32..1 << 12, cuts in 0u32..1 << 12, turn in 0usize..12) {
        let ranges = |joined: bool| {
            let mut found: Vec<LayerRange> = Vec::new();
            for layer in (0..12).filter(|layer| mask >> layer & 1 == 1) {
                match found.last_mut() {
                    Some(last) if last.end() == layer && (joined || cuts >> layer & 1 == 0) => {
                        *last = LayerRange::new(last.start(), layer + 1).unwrap();
                    }
                    _ => found.push(LayerRange::new(layer, layer + 1).unwrap()),
                }
            }
            found
        };
        let mut pieces = ranges(false);
        let n = pieces.len();
        pieces.rotate_left(turn % n);
        let (whole, cut) = (LayerSet::new(ranges(true)), LayerSet::new(pieces));
        prop_assert_eq!(&whole, &cut);
        prop_assert_eq!(whole.ranges(), &ranges(true)[..]);
    }

    /// No other pipeline is cheaper: any holder taken at every layer, and the greedy ones of widest and nearest.
    #[test]
    fn no_chain_beats_the_optimum(case in case(8, 10), picks in prop::collection::vec(any::<usize>(), 10)) {
        let (snapshot, request) = (case.snapshot(), case.request());
        let best = route(&snapshot, &request).ok();
        let held = |i: usize| oracle::set(case.peers[i].loaded | case.peers[i].on_disk);
        let run = |i: usize, layer: u32| (layer..case.layers).take_while(|l| held(i).contains(*l)).count() as u32;
        for how in 0..3 {
            let mut segments: Vec<Segment> = Vec::new();
            let mut layer = 0;
            while layer < case.layers {
                let able: Vec<usize> = (0..case.peers.len()).filter(|&i| run(i, layer) > 0).collect();
                let at = match how {
                    0 => able.get(picks[layer as usize] % able.len().max(1)),
                    1 => able.iter().max_by_key(|&&i| run(i, layer)),
                    _ => able.iter().min_by(|&&i, &&j| case.peers[i].decode.total_cmp(&case.peers[j].decode)),
                };
                let Some(&i) = at else { break };
                let end = layer + if how == 0 { 1 } else { run(i, layer) };
                match segments.last_mut() {
                    Some(last) if last.node == id(i) => {
                        last.layers = LayerRange::new(last.layers.start(), end).unwrap();
                    }
                    _ => segments.push(Segment { node: id(i), layers: LayerRange::new(layer, end).unwrap() }),
                }
                layer = end;
            }
            let Ok(pipeline) = Pipeline::new(segments, case.layers) else { continue };
            let ends = [pipeline.segments().first(), pipeline.segments().last()];
            let home = ends.iter().flatten().all(|segment| Some(segment.node) == request.requester);
            if case.boomerang.is_some_and(|ends| !home || ends.head > 1 || ends.tail > 1) {
                continue;
            }
            if let Ok(cost) = cost::price(&snapshot, &request, &pipeline)
                && cost.total_ms().is_finite()
            {
                let best = best.as_ref().map(|best| best.optimum_ms);
                prop_assert!(no_worse(best, Some(cost.total_ms())), "{:?} but {}", best, cost);
            }
        }
    }

    /// Whichever node dies, the route without it is the best one without it. Denying a node that the best route does not
    /// use changes nothing; denying one that it uses never helps.
    #[test]
    fn only_used_nodes_matter(case in case(5, 7)) {
        let snapshot = case.snapshot();
        let Ok(found) = route(&snapshot, &case.request()) else { return Ok(()) };
        for dead in 0..case.peers.len() {
            let node = id(dead);
            let mut without = case.request();
            without.policy.deny.insert(node);
            let after = route(&snapshot, &without).ok();
            let gone = case.brute_force(&[dead]);
            prop_assert_eq!(after.is_some(), gone.is_some());
            if let (Some(after), Some(gone)) = (&after, gone) {
                prop_assert!(close(after.optimum_ms, gone) && !after.pipeline.visits(node));
            }
            let after = after.map(|route| route.optimum_ms);
            if found.pipeline.visits(node) {
                prop_assert!(no_worse(Some(found.optimum_ms), after));
            } else {
                prop_assert!(after.is_some_and(|after| close(after, found.optimum_ms)));
            }
        }
    }

    #[test]
    fn scaling_all_prices_scales_the_answer(mut case in case(5, 7)) {
        let before = optimum(&case);
        for peer in &mut case.peers {
            for ms in [&mut peer.decode, &mut peer.prefill, &mut peer.visit, &mut peer.queue, &mut peer.load, &mut peer.access] {
                *ms *= 4.0;
            }
            peer.up /= 4.0;
        }
        case.matrix.iter_mut().for_each(|ms| *ms = ms.map(|ms| ms * 4.0));
        case.base.iter_mut().for_each(|ms| *ms *= 4.0);
        case.measured.iter_mut().for_each(|pair| pair.2 *= 4.0);
        let after = optimum(&case);
        prop_assert!(before.zip(after).is_none_or(|(a, b)| close(4.0 * a, b)));
        prop_assert_eq!(before.is_some(), after.is_some());
    }

    /// Only the requester runs an end; room is never oversold; explain agrees with the router.
    #[test]
    fn rules_are_kept(case in case(6, 8), seed in any::<u64>()) {
        let snapshot = case.snapshot();
        let mut request = case.request();
        request.policy.near_equal = 0.05;
        request.seed = seed;
        if let Ok(found) = route(&snapshot, &request) {
            prop_assert!(found.cost.total_ms() <= 1.05 * found.optimum_ms * (1.0 + 1e-9) + 1e-9);
            let segments = found.pipeline.segments();
            if case.boomerang.is_some() {
                prop_assert_eq!(Some(segments[0].node), request.requester);
                prop_assert_eq!(Some(segments[segments.len() - 1].node), request.requester);
            }
            let positions = u64::from(case.shape.positions().max(1));
            for (i, peer) in case.peers.iter().enumerate() {
                let layers = found.pipeline.layers_on(id(i));
                prop_assert!(peer.room.is_none_or(|room| u64::from(layers) * positions <= room));
            }
            let legs = cost::explain(&snapshot, &request, &found.pipeline).unwrap();
            prop_assert_eq!(legs, found.legs);
        }
    }

    #[test]
    fn privacy_costs_and_home_is_an_option(case in case(5, 7)) {
        let compared = compare(&case.snapshot(), &case.request());
        if let Ok(plain) = &compared.plain {
            if let Ok(asked) = &compared.asked {
                prop_assert!(no_worse(Some(plain.optimum_ms), Some(asked.optimum_ms)));
            }
            if let Ok(local) = &compared.local {
                prop_assert!(no_worse(Some(plain.optimum_ms), Some(local.optimum_ms)));
            }
        }
    }

    /// A disjoint standby is found if and only if the other nodes can serve, and other operators come first.
    #[test]
    fn standbys_are_disjoint_and_found(case in case(6, 6)) {
        let (snapshot, request) = (case.snapshot(), case.request());
        let Ok(primary) = route(&snapshot, &request) else { return Ok(()) };
        let home = request.requester.filter(|_| case.closing || case.boomerang.is_some());
        let used: BTreeSet<NodeId> =
            primary.pipeline.segments().iter().map(|s| s.node).filter(|node| Some(*node) != home).collect();
        let gone: Vec<usize> = (0..case.peers.len()).filter(|&i| used.contains(&id(i))).collect();
        let expected = case.brute_force(&gone);
        let second = standby::disjoint(&snapshot, &request, &primary.pipeline).ok();
        prop_assert_eq!(second.is_some(), expected.is_some());
        if let (Some(second), Some(expected)) = (second, expected) {
            prop_assert!(used.iter().all(|node| !second.pipeline.visits(*node)));
            prop_assert!(no_worse(Some(expected), Some(second.optimum_ms)));
            let operators = |i: &usize| case.peers[*i].operator;
            let kin: Vec<usize> = (0..case.peers.len())
                .filter(|i| gone.iter().any(|g| operators(g) == operators(i)) && Some(id(*i)) != home)
                .collect();
            let apart = case.brute_force(&kin).unwrap_or(expected);
            prop_assert!(close(second.optimum_ms, apart), "{} but {}", second.optimum_ms, apart);
        }
    }

    /// Covers run exactly the layers of their segment, on other nodes, within the room that is left.
    #[test]
    fn covers_fit(case in case(6, 6)) {
        let (snapshot, request) = (case.snapshot(), case.request());
        let Ok(primary) = route(&snapshot, &request) else { return Ok(()) };
        let covers = standby::covers(&snapshot, &request, &primary.pipeline);
        let positions = u64::from(case.shape.positions().max(1));
        let mut taken = vec![0u64; case.peers.len()];
        for cover in &covers {
            if cover.segments.is_empty() {
                prop_assert!(cover.total_ms.is_infinite());
                continue;
            }
            prop_assert!(primary.pipeline.replaced(cover.index, &cover.segments).is_ok());
            for segment in &cover.segments {
                prop_assert!(!primary.pipeline.visits(segment.node) && Some(segment.node) != request.requester);
                let i = (0..case.peers.len()).find(|&i| id(i) == segment.node).unwrap();
                taken[i] += u64::from(segment.layers.len()) * positions;
                prop_assert!(oracle::set(case.peers[i].loaded | case.peers[i].on_disk).covers(segment.layers));
            }
        }
        for (peer, taken) in case.peers.iter().zip(taken) {
            prop_assert!(peer.room.is_none_or(|room| taken <= room));
        }
        let shadows = standby::shadows(&snapshot, &request, &primary.pipeline);
        prop_assert_eq!(shadows.len(), primary.pipeline.segments().len());
        for (shadow, segment) in shadows.into_iter().zip(primary.pipeline.segments()) {
            if let Some(shadow) = shadow {
                prop_assert!(!primary.pipeline.visits(shadow));
                let host = snapshot.host(shadow).unwrap();
                prop_assert!(host.loaded.covers(segment.layers));
                prop_assert!(host.operator != snapshot.host(segment.node).unwrap().operator);
            }
        }
    }
}
