//! How long routes take where room for caches is scarce, and how good they are.
//!
//! `cargo run --release -p shoal-scheduler --example rooms [CASES] [SEED]`
//!
//! Draws swarms of 8 to 24 nodes that together have room for about one session, and compares every answer with an exact
//! one: routes that were missed, refusals that were wrong, answers that were left open, and what routes cost over the least.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

#[path = "../tests/scarce/mod.rs"]
mod scarce;

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use scarce::{Rooms, Truth};
use scheduler::route::{NoRoute, route};

/// Every route is timed so often, and the quickest counts: on a busy machine the others tell of the machine.
const RUNS: usize = 5;
/// States of a layer that the exact answer may take, some 30 bytes each.
const STATES: usize = 200_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let cases = args.next().map_or(Ok(400), |text| text.parse::<u64>())?;
    let seed = args.next().map_or(Ok(1), |text| text.parse::<u64>())?;
    let (mut bound, mut feasible, mut wrong, mut open, mut exact, mut unknown) = (0, 0, 0, 0, 0, 0);
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for case in seed..seed + cases {
        let rooms = Rooms::draw(case);
        let (snapshot, request) = rooms.snapshot();
        let found = route(&snapshot, &request);
        times.push((0..RUNS).map(|_| time_ms(|| route(&snapshot, &request))).fold(f64::INFINITY, f64::min));
        let known = found.as_ref().map_or(f64::INFINITY, |found| found.optimum_ms);
        let truth = rooms.truth(known, STATES);
        feasible += u32::from(matches!(truth, Truth::Best(_)));
        bound += 1;
        match (found, truth) {
            (Ok(found), Truth::Best(ms)) => {
                exact += u32::from(found.exact);
                ratios.push(found.optimum_ms / ms);
                if found.optimum_ms / ms > 1.02 {
                    println!("case {case}: {:.4}", found.optimum_ms / ms);
                }
            }
            (Err(NoRoute::Unproven), truth) => {
                open += 1;
                println!("case {case}: open, {truth:?}");
            }
            (Err(why), Truth::Best(_)) => {
                wrong += 1;
                println!("case {case}: {why}");
            }
            (_, Truth::Unknown) => unknown += 1,
            (Ok(_), Truth::None) => println!("case {case}: a route where there is none"),
            (Err(_), Truth::None) => {}
        }
    }
    times.sort_by(f64::total_cmp);
    ratios.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
    println!(
        "{bound} cases, {feasible} with a route: {} routed, {exact} proven best, {wrong} refused wrongly, {open} open, {unknown} unknown to the oracle",
        ratios.len()
    );
    println!(
        "cost over the least: p90 {:.4}, p99 {:.4}, most {:.4}",
        at(&ratios, 0.9),
        at(&ratios, 0.99),
        at(&ratios, 1.0)
    );
    println!(
        "time, ms: p50 {:.3}, p90 {:.3}, p99 {:.3}, most {:.3}",
        at(&times, 0.5),
        at(&times, 0.9),
        at(&times, 0.99),
        at(&times, 1.0)
    );
    Ok(())
}

fn time_ms<T>(work: impl FnOnce() -> T) -> f64 {
    let began = Instant::now();
    black_box(work());
    began.elapsed().as_secs_f64() * 1e3
}
