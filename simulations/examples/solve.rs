//! Answers routing and allocation cases with the scheduler, for scoring.
//!
//! `solve CASES.json [--large FILE] [--repeat N] > answers.json`, or `solve --scale` for a table of times on drawn swarms. `decision_us` is the median over N (default 9) whole decisions (price,
//! sweep, read the route) on a snapshot that is already indexed, with one router whose memory is reused, as a node
//! would; `alloc_ms` is the median over as many placements, at most three.

use std::error::Error;
use std::time::Instant;

use scheduler::route::Router;
use scheduler::{NodeId, Request, Shape, place, standby};
use serde_json::{Map, Value, json};
use simulations::cases::{AllocationCase, RoutingCase};
use simulations::scale;

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    let mut large = None;
    let mut repeat = 9;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--large" => large = args.next(),
            "--repeat" => repeat = args.next().ok_or("--repeat needs a number")?.parse()?,
            "--scale" => return scale(repeat),
            _ => files.push(arg),
        }
    }
    let [cases] = files.as_slice() else {
        return Err("usage: solve CASES.json [--large FILE] [--repeat N]".into());
    };
    let cases: Value = serde_json::from_slice(&std::fs::read(cases)?)?;
    let mut answers = Map::new();
    answers.insert("routing".into(), routing(&cases["routing"], repeat)?);
    answers.insert("allocation".into(), allocation(&cases["allocation"], repeat.min(3))?);
    if let Some(file) = large {
        let cases: Value = serde_json::from_slice(&std::fs::read(file)?)?;
        answers.insert("large".into(), routing(&cases["routing"], repeat)?);
    }
    println!("{}", Value::Object(answers));
    Ok(())
}

/// Times decisions on drawn swarms.
fn scale(repeat: usize) -> Result<(), Box<dyn Error>> {
    println!("| nodes x layers | index ms | cold us | warm us | standby us | place ms |");
    println!("|---|---|---|---|---|---|");
    for (nodes, layers) in [(64, 80), (256, 32), (1_024, 80), (4_096, 64), (10_240, 80)] {
        let (snapshot, index_ms) = timed(1, || scale::volunteers(nodes, layers, 1));
        let snapshot = snapshot?;
        let mut request = Request::new(NodeId::numbered(0), Shape::ONE_TOKEN);
        let mut router = Router::default();
        let (route, cold) = timed(repeat, || {
            router.prepare(&snapshot, &request)?;
            router.route(&snapshot, &request)
        });
        let route = route?;
        let (_, warm) = timed(repeat, || {
            request.seed += 1;
            router.route(&snapshot, &request)
        });
        let mut spare = Router::default();
        let (_, second) =
            timed(repeat.min(5), || standby::disjoint_with(&mut spare, &snapshot, &request, &route.pipeline));
        let placed = if nodes <= 1_024 {
            let ground = scale::sites(nodes, layers, 1)?;
            let (placement, ms) = timed(1, || place::place(&ground));
            format!("{ms:.0} ({} pipelines, {:.0} tok/s)", placement.pipelines.len(), placement.goodput_tps)
        } else {
            "-".into()
        };
        let (cold, warm, second) = (cold * 1000.0, warm * 1000.0, second * 1000.0);
        println!("| {nodes} x {layers} | {index_ms:.1} | {cold:.0} | {warm:.1} | {second:.0} | {placed} |");
    }
    Ok(())
}

fn routing(cases: &Value, repeat: usize) -> Result<Value, Box<dyn Error>> {
    let mut answers = Map::new();
    let mut router = Router::default();
    for case in cases.as_array().into_iter().flatten() {
        let case = RoutingCase::read(case)?;
        let (answer, ms) = timed(repeat, || {
            router.prepare(&case.snapshot, &case.request)?;
            router.route(&case.snapshot, &case.request)
        });
        let mut answer = match answer {
            Ok(route) => {
                let second = standby::disjoint(&case.snapshot, &case.request, &route.pipeline);
                json!({
                    "path": case.path(&route.pipeline),
                    "latency_ms": route.cost.own_ms(),
                    "standby_path": second.map_or(Value::Null, |second| case.path(&second.pipeline)),
                })
            }
            Err(_) => json!({"infeasible": true}),
        };
        answer["decision_us"] = json!(ms * 1000.0);
        answers.insert(case.id, answer);
    }
    Ok(Value::Object(answers))
}

fn allocation(cases: &Value, repeat: usize) -> Result<Value, Box<dyn Error>> {
    let mut answers = Map::new();
    for case in cases.as_array().into_iter().flatten() {
        let case = AllocationCase::read(case)?;
        let (placement, ms) = timed(repeat, || place::place(&case.ground));
        let answer = json!({"pipelines": case.pipelines(&placement), "alloc_ms": ms});
        answers.insert(case.id, answer);
    }
    Ok(Value::Object(answers))
}

/// The answer and the median time of one call, ms.
fn timed<T>(repeat: usize, mut work: impl FnMut() -> T) -> (T, f64) {
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let answer = work();
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        if times.len() >= repeat.max(1) {
            times.sort_by(f64::total_cmp);
            return (answer, times[times.len() / 2]);
        }
    }
}
