//! Ten made-up identities for every machine: what they cost those that ask.
//!
//! They announce all layers at a thousandth of a millisecond and answer nothing. Requesters are connected to
//! a quarter of the machines at first, with and without them.
//! `SHOAL_SEEDS` plays more seeds; figures are printed.

use simulations::policy::Policy;
use simulations::run::{Outcome, percentile, run};
use simulations::scenario::Scenario;

const SYBILS: &str = include_str!("../scenarios/sybils.toml");
/// Of the requests, those that must have their answer.
const ANSWERED: f64 = 0.99;
/// What the median first token and the median further token may take longer.
const SLOWER: f64 = 1.3;

fn seeds() -> u64 {
    std::env::var("SHOAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3)
}

fn short(sybils: f64) -> Scenario {
    let mut scenario = Scenario::parse(SYBILS).unwrap();
    (scenario.nodes, scenario.requesters, scenario.demand.seconds) = (40, 6, 60.0);
    (scenario.demand.rate, scenario.demand.tokens, scenario.faults.sybils) = (3.0, (32, 16), sybils);
    scenario.hardware.room.0 = 10;
    scenario
}

fn share(outcome: &Outcome) -> f64 {
    outcome.requests.1 as f64 / outcome.requests.0 as f64
}

#[test]
fn a_crowd_of_made_up_identities_wins_nothing() {
    let (mut asked, mut whole) = (0, 0);
    for seed in 0..seeds() {
        let quiet = run(&short(0.0), Policy::Ours, seed);
        let crowd = run(&short(10.0), Policy::Ours, seed);
        let p50 = |samples: &[f64]| percentile(samples, 0.5);
        println!(
            "seed {seed}: answered {:.4} without and {:.4} with, first token {:.0} and {:.0} ms, further {:.1} and {:.1} ms",
            share(&quiet),
            share(&crowd),
            p50(&quiet.first_ms),
            p50(&crowd.first_ms),
            p50(&quiet.each_ms),
            p50(&crowd.each_ms),
        );
        assert_eq!(crowd.violations.total(), 0, "seed {seed}: {:?}", crowd.violations);
        asked += crowd.requests.0;
        whole += crowd.requests.1;
        assert!(p50(&crowd.first_ms) <= SLOWER * p50(&quiet.first_ms), "seed {seed}");
        assert!(p50(&crowd.each_ms) <= SLOWER * p50(&quiet.each_ms), "seed {seed}");
    }
    assert!(whole as f64 >= ANSWERED * asked as f64, "{whole} of {asked} were answered");
}

/// The same crowd where its word counts: the test above can fail.
#[test]
fn a_crowd_that_is_believed_wins_a_lot() {
    let quiet = run(&short(0.0), Policy::Ours, 0);
    let believed = run(&Scenario { met: 1.0, ..short(10.0) }, Policy::Ours, 0);
    let p50 = |samples: &[f64]| percentile(samples, 0.5);
    println!("answered {:.4}, first token {:.0} ms", share(&believed), p50(&believed.first_ms));
    assert!(share(&believed) < ANSWERED || p50(&believed.first_ms) > SLOWER * p50(&quiet.first_ms));
}
