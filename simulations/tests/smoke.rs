//! Every scenario, shortened, on fixed seeds and under every policy: nothing that must not happen happens.

use simulations::planet;
use simulations::policy::{self, Policy};
use simulations::run::{percentile, run};
use simulations::scenario::Scenario;

const SCENARIOS: [&str; 10] = [
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
];

fn short(text: &str) -> Scenario {
    let mut scenario = Scenario::parse(text).unwrap();
    scenario.nodes = scenario.nodes.min(60);
    scenario.requesters = scenario.requesters.min(4);
    scenario.demand.rate = scenario.demand.rate.min(2.0);
    scenario.demand.tokens = (16, 12);
    scenario.demand.seconds = 20.0;
    scenario.demand.flash = scenario.demand.flash.map(|_| (5.0, 5.0, 6.0));
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

#[test]
fn bad_scenarios_are_named() {
    for (spoil, said) in [("nodes = \"x\"", "nodes"), ("speed = 3", "speed is not"), ("rate = -1", "rate")] {
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
