//! How well machines know distances that they never measured.

use simulations::near::Near;
use simulations::run::percentile;
use simulations::scenario::Scenario;
use simulations::world::World;

/// Most pairs never measured each other.
#[test]
fn a_place_makes_two_machines_that_never_met_near() {
    let scenario = Scenario::parse(include_str!("../scenarios/two_continents.toml")).unwrap();
    let mut draw = scheduler::rng::Rng::new(1);
    let world = World::draw(&scenario, &mut draw);
    let near = Near::settle(&scenario, &world, 1);
    let pairs = (0..world.nodes).flat_map(|i| (0..i).map(move |j| (i, j)));
    let mut errors: Vec<f64> = pairs
        .map(|(i, j)| (near.expected_ms(i, j) - world.hop_ms(i, j)).abs() / world.hop_ms(i, j))
        .collect();
    errors.sort_by(f64::total_cmp);
    println!("relative error p50 {:.3}, p90 {:.3}", percentile(&errors, 0.5), percentile(&errors, 0.9));
    assert!(percentile(&errors, 0.5) < 0.1 && percentile(&errors, 0.9) < 0.5);
}
