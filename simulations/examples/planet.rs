//! `planet [REQUESTS] [NODES]...`: clusters, what a node hears, and routes in two stages, from 64 nodes to 100,000.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::time::Instant;

use simulations::planet::run;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let requests = numbers.first().copied().unwrap_or(20);
    let sizes = numbers.get(1..).filter(|sizes| !sizes.is_empty());
    println!(
        "| nodes | clusters | heard, kbit/s: states, summaries, claims, pulled | state known, s | summary known, s | cost over the best, p50 / p90 | missed | decision ms, p50 / p90 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &nodes in sizes.unwrap_or(&[64, 256, 1_024, 4_096, 10_240, 32_768, 100_000]) {
        let began = Instant::now();
        let report = run(nodes, requests, 1, || began.elapsed().as_secs_f64() * 1e3);
        let kbit = report.bytes.map(|bytes| format!("{:.1}", bytes * 8.0 / 1_000.0)).join(", ");
        let [state, summary] = report.known_ms.map(|ms| ms / 1_000.0);
        println!(
            "| {nodes} | {} | {kbit} | {state:.1} | {summary:.1} | {:.3} / {:.3} | {} | {:.2} / {:.2} |",
            report.clusters,
            report.over[0],
            report.over[1],
            report.missed,
            report.decision[0],
            report.decision[1]
        );
    }
    Ok(())
}
