use super::{NoRoute, compare, route};
use crate::snapshot::{Host, Links, Snapshot};
use crate::{Boomerang, LayerRange, LayerSet, ModelId, NodeId, Request, Shape};

fn host(id: u64, start: u32, end: u32, decode_ms: f64, visit_ms: f64) -> Host {
    let layers: LayerSet = LayerRange::new(start, end).unwrap().into();
    Host { visit_ms, ..Host::new(NodeId::numbered(id), layers, decode_ms) }
}

/// The example of the module's page; R, A, B, C are 1, 2, 3, 4.
fn example() -> Snapshot {
    example_with(host(1, 0, 2, 5.0, 0.0))
}

/// The same with another R.
fn example_with(home: Host) -> Snapshot {
    let hosts = vec![home, host(2, 0, 5, 2.0, 3.0), host(3, 4, 8, 1.0, 4.0), host(4, 0, 8, 3.0, 1.0)];
    let ms = [[0, 10, 20, 40], [10, 0, 8, 30], [20, 8, 0, 30], [40, 30, 30, 0]];
    let links = Links::Matrix(ms.iter().flatten().map(|&ms| f64::from(ms)).collect());
    Snapshot::new(ModelId::default(), 8, None, hosts, &links).unwrap()
}

fn request() -> Request {
    let mut request = Request::new(NodeId::numbered(1), Shape::ONE_TOKEN);
    request.policy.near_equal = 0.0;
    request
}

#[test]
fn the_example_of_the_page() {
    let best = route(&example(), &request()).unwrap();
    assert_eq!(best.pipeline.to_string(), "00000000[0..4] -> 00000000[4..8]");
    assert_eq!(best.pipeline.segments()[0].node, NodeId::numbered(2));
    assert!((best.cost.total_ms() - 57.0).abs() < 1e-9, "{}", best.cost);
    assert!((best.optimum_ms - 57.0).abs() < 1e-9);
    let parts = (best.cost.decode_ms, best.cost.visit_ms, best.cost.hop_ms, best.cost.closing_ms);
    assert_eq!(parts, (12.0, 7.0, 8.0, 30.0));

    let mut no_a = request();
    no_a.policy.deny.insert(NodeId::numbered(2));
    no_a.policy.deny.insert(NodeId::numbered(3));
    no_a.policy.deny.insert(NodeId::numbered(1));
    assert!((route(&example(), &no_a).unwrap().cost.total_ms() - 105.0).abs() < 1e-9);
}

#[test]
fn what_is_missing_is_named() {
    let mut boomerang = request();
    boomerang.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
    assert_eq!(route(&example(), &boomerang), Err(NoRoute::EndsNotHeld));

    let mut hole = request();
    hole.policy.deny.extend([NodeId::numbered(3), NodeId::numbered(4)]);
    assert_eq!(route(&example(), &hole), Err(NoRoute::Hole { layer: 5 }));

    let mut late = request();
    late.policy.deadline_ms = Some(50.0);
    assert!(
        matches!(route(&example(), &late), Err(NoRoute::TooSlow { predicted_ms }) if predicted_ms > 56.0)
    );

    let mut stranger = request();
    stranger.requester = Some(NodeId::numbered(9));
    assert_eq!(route(&example(), &stranger), Err(NoRoute::UnknownRequester));
}

#[test]
fn home_and_privacy_are_compared() {
    let snapshot = example_with(host(1, 0, 8, 20.0, 0.0));
    let mut asked = request();
    asked.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
    let compared = compare(&snapshot, &asked);
    assert!(!compared.local_wins());
    assert!((compared.local.as_ref().unwrap().cost.total_ms() - 160.0).abs() < 1e-9);
    let asked = compared.asked.as_ref().unwrap();
    let ends =
        (asked.pipeline.segments().first().unwrap().node, asked.pipeline.segments().last().unwrap().node);
    assert_eq!(ends, (NodeId::numbered(1), NodeId::numbered(1)));
    // R[0..1] A[1..4] B[4..7] R[7..8] = 20 + 10 + 9 + 8 + 7 + 20 + 20
    assert!((asked.cost.total_ms() - 94.0).abs() < 1e-9, "{}", asked.cost);
    assert!((compared.privacy_ms().unwrap() - 37.0).abs() < 1e-9);
}

#[test]
fn near_equal_nodes_share_the_requests() {
    let hosts = (1..=5).map(|id| host(id, 0, 8, if id == 5 { 1.5 } else { 1.0 }, 0.0)).collect();
    let links = Links::Matrix(vec![1.0; 25]);
    let snapshot = Snapshot::new(ModelId::default(), 8, None, hosts, &links).unwrap();
    let mut counts = [0; 6];
    for seed in 0..4_000 {
        let mut request = request();
        request.requester = None;
        request.policy.near_equal = 0.05;
        request.seed = seed;
        let chosen = route(&snapshot, &request).unwrap();
        let node = chosen.pipeline.segments()[0].node;
        counts[(1..=5).find(|&i| node == NodeId::numbered(i)).unwrap() as usize] += 1;
    }
    assert_eq!(counts[5], 0, "50 % dearer is not near-equal");
    assert!(counts[1..5].iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn own_running_requests_make_a_node_dearer() {
    let hosts = vec![host(1, 0, 8, 1.0, 0.0), host(2, 0, 8, 1.1, 0.0)];
    let snapshot = Snapshot::new(ModelId::default(), 8, None, hosts, &Links::Matrix(vec![1.0; 4])).unwrap();
    let mut request = request();
    request.requester = None;
    assert!(route(&snapshot, &request).unwrap().pipeline.visits(NodeId::numbered(1)));
    request.in_flight = vec![(NodeId::numbered(1), 1)];
    let other = route(&snapshot, &request).unwrap();
    assert!(other.pipeline.visits(NodeId::numbered(2)));
    assert_eq!(other.cost.crowding_ms, 0.0);
}
