//! Routes where room for caches is scarce, against exact answers. `--example rooms` measures how long they take.

mod scarce;

use scarce::{Rooms, Truth};
use scheduler::cost;
use scheduler::route::{NoRoute, route};

const CASES: u64 = 200;
/// The example looks at more.
const STATES: usize = 8_000;

/// No refusal is wrong, nearly nothing is left open, and hardly a route costs more than 1.02 of the least.
#[test]
fn scarce_room_is_shared_out_nearly_as_well_as_it_can_be() {
    let (mut feasible, mut infeasible, mut open, mut unknown, mut dear) = (0, 0, 0, 0, 0);
    for seed in 0..CASES {
        let rooms = Rooms::draw(seed);
        let (snapshot, request) = rooms.snapshot();
        let found = route(&snapshot, &request);
        let known_ms = found.as_ref().map_or(f64::INFINITY, |found| found.optimum_ms);
        if let Ok(found) = &found {
            let priced = cost::price(&snapshot, &request, &found.pipeline).expect("within everyone's room");
            assert!((priced.total_ms() - known_ms).abs() < 1e-6, "case {seed}: {priced}");
        }
        match (found, rooms.truth(known_ms, STATES)) {
            (_, Truth::Unknown) => unknown += 1,
            (Err(NoRoute::Unproven), _) => open += 1,
            (Ok(found), Truth::Best(ms)) => {
                feasible += 1;
                dear += u64::from(found.optimum_ms > 1.02 * ms);
                assert!(found.optimum_ms <= 1.1 * ms, "case {seed}: {} over {ms}", found.optimum_ms);
                assert!(!found.exact || found.optimum_ms <= ms * (1.0 + 1e-9), "case {seed}: not the best");
            }
            (Err(_), Truth::None) => infeasible += 1,
            (found, truth) => panic!("case {seed}: {found:?}, but {truth:?}"),
        }
    }
    assert!(100 * dear <= 2 * feasible, "{dear} of {feasible} routes cost more than 1.02 of the least");
    assert!(open <= CASES / 100 && unknown <= CASES / 3, "{open} open, {unknown} unknown");
    assert!(
        feasible >= CASES / 4 && infeasible >= CASES / 10,
        "{feasible} with a route, {infeasible} without"
    );
}
