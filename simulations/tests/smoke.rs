//! Every scenario, shortened, on fixed seeds and under every policy: nothing that must not happen happens.

use scheduler::LayerRange;
use simulations::engine::Engine;
use simulations::planet;
use simulations::policy::{self, Policy};
use simulations::run::{Outcome, percentile, run};
use simulations::scenario::Scenario;

const SCENARIOS: [&str; 12] = [
    include_str!("../scenarios/home_cluster.toml"),
    include_str!("../scenarios/two_continents.toml"),
    include_str!("../scenarios/thousand_strangers.toml"),
    include_str!("../scenarios/churn_storm.toml"),
    include_str!("../scenarios/liars.toml"),
    include_str!("../scenarios/flash_crowd.toml"),
    include_str!("../scenarios/ten_thousand_nodes.toml"),
    include_str!("../scenarios/growing_swarm.toml"),
    include_str!("../scenarios/equal_replicas.toml"),
    include_str!("../scenarios/arrival_trace.toml"),
    include_str!("../scenarios/partition.toml"),
    include_str!("../scenarios/poisoned_prices.toml"),
];

fn short(text: &str) -> Scenario {
    let mut scenario = Scenario::parse(text).unwrap();
    scenario.nodes = scenario.nodes.min(60);
    scenario.requesters = scenario.requesters.min(4);
    scenario.demand.rate = scenario.demand.rate.min(2.0);
    scenario.demand.tokens = (16, 12);
    scenario.demand.seconds = 20.0;
    scenario.demand.flash = scenario.demand.flash.map(|_| (5.0, 5.0, 6.0));
    scenario.faults.partition = scenario.faults.partition.map(|_| (5.0, 8.0));
    scenario.hardware.room.1 = scenario.hardware.room.1.max(scenario.layers / 2);
    scenario
}

#[test]
fn nothing_forbidden_happens() {
    for text in SCENARIOS {
        let scenario = short(text);
        for seed in 0..3 {
            for policy in policy::ALL.into_iter().filter(|policy| *policy != Policy::Local) {
                let outcome = run(&scenario, policy, seed);
                assert_eq!(
                    outcome.violations.total(),
                    0,
                    "{} {policy:?} {seed}: {:?}",
                    scenario.name,
                    outcome.violations
                );
                let (asked, whole, given_up) = outcome.requests;
                assert_eq!(asked, whole + given_up, "{} {policy:?} {seed}", scenario.name);
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let scenario = short(SCENARIOS[3]);
    assert_eq!(run(&scenario, Policy::Ours, 3), run(&scenario, Policy::Ours, 3));
    assert_ne!(run(&scenario, Policy::Ours, 3), run(&scenario, Policy::Ours, 4));
}

#[test]
fn a_lone_request_takes_as_long_as_computed() {
    let text = "name = \"one\"\nnodes = 1\nrequesters = 1\nlayers = 10\nlayer_ms = [2, 2]\nroom = [10, 10]\naccess_ms = 0\nrate = 0.01\ntokens = [1, 11]\nseconds = 100\njitter = 0";
    let scenario = Scenario::parse(text).unwrap();
    let outcome = run(&scenario, Policy::Ours, 4);
    assert!(outcome.requests.1 > 0);
    // One visit of 1 + 10 x 2 ms and two hops of 1 ms.
    assert!((percentile(&outcome.each_ms, 0.5) - 23.0).abs() < 0.01, "{:?}", outcome.each_ms);
}

/// A prompt of two chunks through two machines: the second computes the first chunk while the first computes the second.
#[test]
fn chunks_follow_each_other_through_the_stages() {
    let text = "name = \"chunks\"\nnodes = 2\nrequesters = 1\nlayers = 10\nlayer_ms = [2, 2]\nroom = [5, 5]\naccess_ms = 0\nrate = 0.01\nuplink_mbit = [1000, 1000]\ntokens = [192, 2]\nseconds = 100\njitter = 0";
    let scenario = Scenario::parse(text).unwrap();
    let outcome = run(&scenario, Policy::Ours, 4);
    assert!(outcome.requests.1 > 0);
    // 96 rows of five layers; their activations over a gigabit; the way in, between and back, and that of a lease and its answer.
    let (pass, line, hop) = (1.0 + 2.0 * 5.0 * (13.0 + 96.0) / 14.0, 96.0 * 4_352.0 / 125_000.0, 1.0);
    let expected = 2.0 * hop + hop + 3.0 * pass + line + 2.0 * hop;
    let first = percentile(&outcome.first_ms, 0.5);
    assert!((first - expected).abs() < 0.1, "{first} for {expected}");
    let alone = Scenario::parse(&format!("{text}\nbatching = false")).unwrap();
    let whole = 1.0 + 2.0 * 5.0 * (13.0 + 192.0) / 14.0;
    let (first, expected) =
        (percentile(&run(&alone, Policy::Ours, 4).first_ms, 0.5), 5.0 + 2.0 * whole + 2.0 * line);
    assert!((first - expected).abs() < 0.1, "{first} for {expected}");
}

/// Rows that share a pass share the reading of weights, layer by layer.
#[test]
fn a_pass_reads_each_layer_once() {
    let engine = Engine { batches: true, gain: 5.0 };
    let part = |start, end, rows| (LayerRange::new(start, end).unwrap(), rows);
    let near = |ms: f64, expected: f64| (ms - expected).abs() < 1e-9;
    assert!(near(engine.pass(&[part(0, 4, 1)]), 4.0));
    assert!(near(engine.pass(&[part(0, 4, 1), part(2, 6, 3)]), 6.0 * 0.8 + (4.0 + 12.0) * 0.2));
}

/// Two continents that need each other lose each other: what can be computed is, the rest ends with a reason, and when they are
/// back all is as before.
#[test]
fn a_partition_heals() {
    let scenario = Scenario::parse(SCENARIOS[10]).unwrap();
    let cut = run(&scenario, Policy::Ours, 400);
    assert_eq!(cut.violations.total(), 0, "{:?}", cut.violations);
    let (asked, whole, given_up) = cut.requests;
    assert!(given_up > 0 && whole * 10 >= asked * 6, "{:?}", cut.requests);
    let after = |outcome: &Outcome| outcome.tokens_by_second[100..145].iter().sum::<u32>();
    let mut calm = scenario.clone();
    calm.faults.partition = None;
    let calm = run(&calm, Policy::Ours, 400);
    assert_eq!(calm.requests.0, calm.requests.1, "{:?}", calm.requests);
    assert!(after(&cut) * 10 >= after(&calm) * 9, "{} {}", after(&cut), after(&calm));
}

/// Claims that shrink a little every few seconds are held to what machines are seen to take.
#[test]
fn poisoned_prices_cost_little() {
    let scenario = Scenario::parse(SCENARIOS[11]).unwrap();
    let mut honest = scenario.clone();
    honest.faults.poisoners = 0.0;
    let each = |scenario: &Scenario| percentile(&run(scenario, Policy::Ours, 400).each_ms, 0.5);
    let (poisoned, honest) = (each(&scenario), each(&honest));
    assert!(poisoned <= 1.25 * honest, "{poisoned} and {honest}");
}

#[test]
fn bad_scenarios_are_named() {
    for (spoil, said) in [
        ("nodes = \"x\"", "nodes"),
        ("speed = 3", "speed is not"),
        ("rate = -1", "rate"),
        ("batching = 0", "batching"),
        ("gain = 0.5", "gain"),
        ("partition = [1, 2]", "partition"),
        ("target = [0, 1]", "target"),
    ] {
        let key = spoil.split(' ').next().unwrap();
        let kept = SCENARIOS[0].lines().filter(|line| !line.starts_with(key)).collect::<Vec<_>>().join("\n");
        let error = Scenario::parse(&format!("{kept}\n{spoil}")).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// Members of one to three clusters make routes that are hardly dearer than the best of all nodes, and every node hears little.
#[test]
fn two_stages_find_what_is_near() {
    let report = planet::run(1_200, 6, 3, || 0.0);
    assert_eq!((report.nodes, report.missed), (1_200, 0));
    assert!((10..=20).contains(&report.clusters), "{report:?}");
    assert!((1.0 - 1e-9..1.3).contains(&report.over[0]), "{report:?}");
    assert!(report.bytes.iter().sum::<f64>() < 20_000.0, "{report:?}");
}

/// A crowd that fills eight equal machines: the fullest is at most half as full again as the mean, as one hears of it late.
#[test]
fn a_crowd_does_not_herd() {
    let scenario = Scenario::parse(SCENARIOS[8]).unwrap();
    for seed in 1..9 {
        let outcome = run(&scenario, Policy::Ours, seed);
        let (half, most) = (percentile(&outcome.spread, 0.5), percentile(&outcome.spread, 0.99));
        assert!(half <= 1.2 && most <= 1.5, "seed {seed}: {half} {most}");
    }
    assert!(percentile(&run(&scenario, Policy::Petals, 1).spread, 0.5) > 4.0, "no node was crowded");
}

/// Machines that came one by one hold what suited the swarm then; keepers put that right, a few at a time, and no
/// machine that is served notices.
#[test]
fn keepers_move_what_grew_badly() {
    let mut scenario = Scenario::parse(SCENARIOS[7]).unwrap();
    (scenario.demand.rate, scenario.requesters) = (1.0, 3);
    // Narrow machines on four continents: who knows only what others hold makes pipelines across the sea.
    (scenario.nodes, scenario.hardware.room, scenario.regions) = (36, (4, 8), 4);
    let outcome = run(&scenario, Policy::Ours, 1);
    assert_eq!(outcome.violations.total(), 0, "{:?}", outcome.violations);
    assert!((1..=60).contains(&outcome.moves), "{} moves", outcome.moves);
    assert!(outcome.requests.1 * 100 >= outcome.requests.0 * 95, "{:?}", outcome.requests);
}
