use super::{
    Advice, Ground, Keeper, Move, Pace, Room, SETTLE_MS, Site, goodput_tps, place, restitch, scarcest, split,
};
use crate::layer_cost::{LayerCost, LayerCosts};
use crate::rng::Rng;
use crate::{LayerRange, LayerSet, Millis, NodeId};

fn site(id: u64, layer_ms: f64, cap: u32) -> Site {
    Site {
        id: NodeId::numbered(id),
        layer_ms,
        cap_mid: cap,
        cap_first: cap.saturating_sub(1),
        cap_last: cap.saturating_sub(1),
        cap_both: cap.saturating_sub(2),
    }
}

fn ground(num_layers: u32, concurrency: f64, sites: Vec<Site>, hop: f64) -> Ground {
    let n = sites.len();
    Ground::new(num_layers, concurrency, sites, &vec![hop; n * n]).unwrap()
}

#[test]
fn goodput_by_hand() {
    // 2 requests saturate the near one (100 ms / 50 ms), the third runs alone on the far one.
    let near = Pace { latency_ms: 100.0, slowest_ms: 50.0 };
    let far = Pace { latency_ms: 200.0, slowest_ms: 50.0 };
    assert!((goodput_tps(&[far, near], 3.0) - 25.0).abs() < 1e-9);
    assert_eq!(goodput_tps(&[], 3.0), 0.0);
}

#[test]
fn the_balanced_split_equals_brute_force() {
    fn least(left: u32, cap: &[u32], ms: &[f64]) -> f64 {
        match cap {
            [] => {
                if left == 0 {
                    0.0
                } else {
                    f64::INFINITY
                }
            }
            [cap, rest @ ..] => (1..=left.min(*cap))
                .map(|len| (f64::from(len) * ms[0]).max(least(left - len, rest, &ms[1..])))
                .fold(f64::INFINITY, f64::min),
        }
    }
    let mut chance = Rng::new(3);
    for _ in 0..400 {
        let n = 1 + chance.below(4);
        let cap: Vec<u32> = (0..n).map(|_| 1 + chance.below(7) as u32).collect();
        let ms: Vec<f64> = (0..n).map(|_| chance.between(0.1, 3.0)).collect();
        let layers = n as u32 + chance.below((cap.iter().sum::<u32>() as usize + 1 - n).max(1)) as u32;
        let plan = split::balanced(layers, &cap, &ms, 0.0);
        assert_eq!(plan.layers().iter().sum::<u32>(), layers);
        assert!(plan.layers().iter().zip(&cap).all(|(len, cap)| (1..=*cap).contains(len)));
        assert!((plan.pace.slowest_ms - least(layers, &cap, &ms)).abs() < 1e-9, "{layers} {cap:?} {ms:?}");
    }
}

#[test]
fn the_order_of_sites_does_not_matter() {
    let mut chance = Rng::new(9);
    let sites: Vec<Site> =
        (0..14).map(|id| site(id, chance.between(0.2, 2.0), 4 + chance.below(12) as u32)).collect();
    let spots: Vec<f64> = (0..14).map(|_| chance.between(0.0, 60.0)).collect();
    let lay = |order: &[usize]| {
        let hops: Vec<f64> = order
            .iter()
            .flat_map(|&i| order.iter().map(move |&j| (i, j)))
            .map(|(i, j)| (spots[i] - spots[j]).abs())
            .collect();
        Ground::new(24, 7.0, order.iter().map(|&i| sites[i].clone()).collect(), &hops).unwrap()
    };
    let mut order: Vec<usize> = (0..14).collect();
    let first = place(&lay(&order));
    assert!(first.goodput_tps > 0.0 && !first.pipelines.is_empty());
    for _ in 0..5 {
        (1..14).rev().for_each(|i| order.swap(i, chance.below(i + 1)));
        assert_eq!(place(&lay(&order)), first);
    }
    let ground = lay(&order);
    let paces: Vec<Pace> = first.pipelines.iter().map(|p| ground.pace(p).expect("within capacity")).collect();
    assert!((goodput_tps(&paces, 7.0) - first.goodput_tps).abs() < 1e-9);
}

#[test]
fn too_little_memory_is_no_placement_not_a_panic() {
    assert!(place(&ground(40, 2.0, vec![site(1, 1.0, 10), site(2, 1.0, 20)], 1.0)).pipelines.is_empty());
    assert!(place(&ground(40, 2.0, vec![], 1.0)).pipelines.is_empty());
    assert!(place(&ground(4, 2.0, vec![site(1, 1.0, 0), site(2, 1.0, 1)], 1.0)).pipelines.is_empty());
    assert!(
        place(&ground(40, 2.0, vec![site(1, 1.0, 30), site(2, 1.0, 30)], f64::INFINITY)).pipelines.is_empty()
    );
}

#[test]
fn a_leave_is_stitched_from_what_is_left() {
    let sites: Vec<Site> = (0..6).map(|id| site(id, 1.0, 7)).collect();
    let before = place(&ground(12, 6.0, sites.clone(), 1.0));
    assert_eq!(before.pipelines.len(), 3);
    let lost: Vec<NodeId> = before.pipelines[..2].iter().map(|p| p.segments()[0].node).collect();
    let left: Vec<Site> = sites.into_iter().filter(|site| !lost.contains(&site.id)).collect();
    let after = restitch(&ground(12, 6.0, left, 1.0), &before.pipelines);
    assert_eq!(after.pipelines.len(), 2, "two widows make a pipeline");
    assert!(after.pipelines.contains(&before.pipelines[2]), "the whole one is left alone");
}

#[test]
fn moving_takes_gain_agreement_dwell_turn_and_cover() {
    let me = NodeId::numbered(1);
    let held = LayerSet::from(LayerRange::new(0, 4).unwrap());
    let target = LayerRange::new(4, 8).unwrap();
    let choice = Move {
        node: me,
        held: &held,
        advised: Some(target),
        present_tps: 10.0,
        advised_tps: 14.0,
        others: &[1, 1, 1, 1, 0, 0, 0, 0],
        movers: &[me],
        tick: 1,
        state: 0,
    };
    let run = |choice: &Move<'_>, keeper: &mut Keeper, from: u64| {
        let at = |t: u64| Millis(from + t * 60_000);
        (0..3).map(|t| keeper.tick(at(t), &Move { state: at(t).0, ..choice.clone() })).collect::<Vec<_>>()
    };
    let mut keeper = Keeper::default();
    assert_eq!(run(&choice, &mut keeper, 0), [Advice::Stay, Advice::Stay, Advice::Withdraw(target)]);
    assert_eq!(keeper.tick(Millis(120_000 + SETTLE_MS - 1), &choice), Advice::Withdraw(target));
    assert_eq!(keeper.tick(Millis(120_000 + SETTLE_MS), &choice), Advice::Hold(target));
    assert_eq!(run(&choice, &mut keeper, 240_000), [Advice::Stay; 3], "has just moved");
    assert_eq!(keeper.tick(Millis(780_000), &choice), Advice::Withdraw(target));

    let mut keeper = Keeper::default();
    let small = Move { advised_tps: 13.0, ..choice.clone() };
    assert_eq!(run(&small, &mut keeper, 0), [Advice::Stay; 3], "30 % is not worth it");
    let bared = Move { others: &[1, 1, 0, 1, 0, 0, 0, 0], ..choice.clone() };
    assert_eq!(run(&bared, &mut Keeper::default(), 0), [Advice::Stay; 3], "layer 2 would be bare");
    let mut keeper = Keeper::default();
    assert_eq!(run(&choice, &mut keeper, 0)[2], Advice::Withdraw(target));
    assert_eq!(keeper.tick(Millis(180_000), &bared), Advice::Stay, "the other one withdrew too");
    assert_eq!(keeper.tick(Millis(240_000), &choice), Advice::Withdraw(target), "from the beginning");
    let mut keeper = Keeper::default();
    let flicker = [&choice, &choice, &small, &choice, &choice];
    fn seen<'a>(state: u64, choice: &Move<'a>) -> Move<'a> {
        Move { state, ..choice.clone() }
    }
    assert!((0..).zip(flicker).all(|(t, choice)| keeper.tick(Millis(t), &seen(t, choice)) == Advice::Stay));
    let mut keeper = Keeper::default();
    assert!(
        (0..100).all(|t| keeper.tick(Millis(t), &choice) == Advice::Stay),
        "one state confirms nothing twice"
    );
    assert_eq!(keeper.tick(Millis(100), &seen(1, &choice)), Advice::Stay);
    assert_eq!(keeper.tick(Millis(101), &seen(2, &choice)), Advice::Withdraw(target));

    let movers: Vec<NodeId> = (1..=8).map(NodeId::numbered).collect();
    for tick in 0..50 {
        let turns = movers.iter().filter(|node| {
            let choice = Move { node: **node, movers: &movers, tick, ..choice.clone() };
            run(&choice, &mut Keeper::default(), 0).contains(&Advice::Withdraw(target))
        });
        assert_eq!(turns.count(), 1, "one mover a tick");
    }
}

/// Two nodes hold the same layers and are advised elsewhere; none of their words arrives any more, so each believes the
/// other's last announcement for as long as it counts.
#[test]
fn two_deaf_nodes_never_both_leave_while_they_may_believe_in_each_other() {
    let lasts_ms = 90_000;
    let held = LayerSet::from(LayerRange::new(0, 4).unwrap());
    let choice = Move {
        node: NodeId::numbered(1),
        held: &held,
        advised: LayerRange::new(4, 8),
        present_tps: 10.0,
        advised_tps: 14.0,
        others: &[],
        movers: &[],
        tick: 1,
        state: 0,
    };
    // The other was heard last at 0, withdrew at once, and is believed until its word expires.
    let believed = |now: u64| if now <= lasts_ms { [1u32; 8] } else { [0; 8] };
    let leaves = |mut keeper: Keeper| {
        (0..400_000).step_by(2_000).find(|now| {
            let choice = Move { others: &believed(*now), state: *now, ..choice.clone() };
            matches!(keeper.tick(Millis(*now), &choice), Advice::Hold(_))
        })
    };
    assert_eq!(leaves(Keeper::lasting(lasts_ms)), None);
    assert!(leaves(Keeper::default()).is_some(), "the test can fail: it left on the other's old word");
    assert_eq!(Keeper::lasting(1), Keeper::default());
}

#[test]
fn a_newcomer_takes_what_the_fewest_hold() {
    let set = |start, end| LayerSet::new(LayerRange::new(start, end));
    let window = |held: &[LayerSet], cap| {
        let found = scarcest(LayerRange::new(0, 8).unwrap(), held, &Room::of_layers(cap));
        found.map(|range| (range.start(), range.end()))
    };
    assert_eq!(window(&[], 3), Some((0, 3)));
    assert_eq!(window(&[set(0, 5)], 3), Some((5, 8)));
    assert_eq!(window(&[set(0, 5), set(4, 8)], 2), Some((0, 2)));
    assert_eq!(window(&[set(0, 8), set(0, 4), set(6, 8)], 2), Some((4, 6)));
    assert_eq!(window(&[set(0, 8)], 20), Some((0, 8)));
    assert_eq!(window(&[], 0), None);
}

/// Two dense layers of 90 bytes before six of experts, 300 bytes each.
#[test]
fn what_fits_is_measured_by_each_layers_own_bytes() {
    let layer = |weight_bytes| LayerCost {
        row_work: 100,
        weight_bytes,
        seen_work: 1,
        window: None,
        state_bytes: 0,
        position_bytes: 8,
    };
    let costs: Vec<LayerCost> = [90, 90, 300, 300, 300, 300, 300, 300].map(layer).to_vec();
    let room = |bytes| Room { layers: 8, bytes, costs: Some(LayerCosts::new(costs.clone(), 32).unwrap()) };
    let all = LayerRange::new(0, 8).unwrap();
    let window = |held: &[LayerSet], bytes| {
        let found = scarcest(all, held, &room(bytes));
        found.map(|range| (range.start(), range.end(), room(0).costs.unwrap().weight_bytes(range)))
    };
    // By the mean layer, 247 bytes, two would fit and three would not, wherever they are.
    assert_eq!(window(&[], 500), Some((0, 3, 480)), "both dense layers and one of experts");
    let beginning = LayerSet::new(LayerRange::new(0, 3));
    assert_eq!(window(std::slice::from_ref(&beginning), 600), Some((3, 5, 600)));
    assert_eq!(
        window(std::slice::from_ref(&beginning), 500),
        Some((3, 4, 300)),
        "two of these take more than the mean says"
    );
    assert_eq!(window(&[beginning], 200), Some((0, 2, 180)), "no layer of experts fits");
    assert_eq!(window(&[], 89), None);
    assert_eq!(window(&[], u64::MAX), Some((0, 8, 1_980)));
    let caps = |room: &Room| {
        let site = Site::new(NodeId::numbered(1), 1.0, room, 8);
        (site.cap_first, site.cap_mid, site.cap_last, site.cap_both)
    };
    assert_eq!(caps(&room(500)), (3, 1, 1, 3), "anywhere but at the beginning one layer of experts fits");
    assert_eq!(caps(&room(650)), (3, 2, 2, 3));
    assert_eq!(caps(&room(89)), (0, 0, 0, 0));
    assert_eq!(caps(&room(u64::MAX)), (8, 8, 8, 8));
    assert_eq!(caps(&Room::of_layers(5)), (5, 5, 5, 5));
}
