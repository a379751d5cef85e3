//! How long everything takes that a node decides of one prompt.
//!
//! `cargo run --release -p shoal-scheduler --example decide [RUNS]`
//!
//! A view as a node has it: windows of a model of 80 layers, coordinates in five regions, seven measured links a node, distances
//! to the nodes that it is connected to. All nodes were met, which is more than a node shows to a route in practice. Asked are the route, its comparison with the ends abroad and with this node alone, covers and shadows: at first,
//! again ("warm"), again for a prompt of another length, and after an announcement. The least of all runs counts: on a busy machine
//! the others tell of the machine.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use scheduler::coordinate::Coordinate;
use scheduler::decide::{Engine, Wanted};
use scheduler::rng::Rng;
use scheduler::view::{Geography, SwarmView};
use scheduler::{
    Boomerang, Capability, Claim, Holding, LayerRange, Millis, ModelId, NodeId, OperatorId, Request, Shape,
    standby,
};

const LAYERS: u32 = 80;
const LINKS: usize = 7;
/// Where regions are, round trips in ms.
const REGIONS: [(f32, f32); 5] = [(0.0, 0.0), (70.0, 20.0), (90.0, -60.0), (-120.0, 100.0), (-90.0, -110.0)];

fn main() -> Result<(), Box<dyn Error>> {
    let runs = std::env::args().nth(1).map_or(Ok(7), |text| text.parse::<u32>())?;
    println!("| nodes x layers | first ms | warm ms | other length ms | after an announcement ms |");
    println!("|---|---|---|---|---|");
    for nodes in [64u64, 1_024, 4_096, 10_240] {
        let mut least = [f64::INFINITY; 4];
        let mut view = swarm(nodes)?;
        for run in 0..runs {
            let mut engine = Engine::default();
            let took = [
                decide(&mut engine, &view, 512)?,
                decide(&mut engine, &view, 512)?,
                decide(&mut engine, &view, 700)?,
                {
                    view.merge(claim(nodes / 2, u64::from(run) + 2)?, Millis(0));
                    decide(&mut engine, &view, 700)?
                },
            ];
            least.iter_mut().zip(took).for_each(|(least, ms)| *least = least.min(ms));
        }
        let [first, warm, other, after] = least;
        println!("| {nodes} x {LAYERS} | {first:.2} | {warm:.2} | {other:.2} | {after:.2} |");
    }
    Ok(())
}

/// Milliseconds of one whole decision.
fn decide(engine: &mut Engine, view: &SwarmView, prompt_tokens: u32) -> Result<f64, Box<dyn Error>> {
    let me = NodeId::numbered(1);
    let shape = Shape { prompt_tokens, output_tokens: 100, prefill_chunk: 64, activation_bytes: 8_192 };
    let mut request = Request::new(me, shape);
    request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
    let wanted = Wanted { model: ModelId::numbered(7), num_layers: LAYERS, costs: None, me };
    let began = Instant::now();
    let snapshot = engine.snapshot(view, &wanted, 1)?;
    let compared = engine.compare(&snapshot, &request);
    let route = compared.asked.clone()?;
    black_box(standby::covers(&snapshot, &request, &route.pipeline));
    black_box(standby::shadows(&snapshot, &request, &route.pipeline));
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn swarm(nodes: u64) -> Result<SwarmView, Box<dyn Error>> {
    let mut rng = Rng::new(nodes);
    let mut view = SwarmView::new(Geography::around(50.0));
    for n in 1..=nodes {
        view.merge(claim(n, 1)?, Millis(0));
        view.meet(NodeId::numbered(n));
    }
    let mut place = || {
        let region = rng.below(REGIONS.len());
        let at = [REGIONS[region].0, REGIONS[region].1, 0.0].map(|ms| ms + rng.between(0.0, 8.0) as f32);
        Coordinate::new(at, rng.exponential(6.0) as f32, 0.1).unwrap_or_default()
    };
    let places: Vec<Coordinate> = (0..=nodes).map(|_| place()).collect();
    let ms = |n: u64, other: u64| places[n as usize].round_trip_ms(&places[other as usize]);
    for n in 1..=nodes {
        view.place(NodeId::numbered(n), places[n as usize]);
        for _ in 0..LINKS {
            let other = 1 + rng.below(nodes as usize) as u64;
            view.set_link(NodeId::numbered(n), NodeId::numbered(other), ms(n, other) * rng.between(0.8, 1.2));
        }
    }
    (2..nodes.min(64)).for_each(|n| {
        view.measure(NodeId::numbered(1), NodeId::numbered(n), ms(1, n) * rng.between(0.9, 1.1));
    });
    Ok(view)
}

/// A window of 4 to 24 layers; the first node has the ends.
fn claim(n: u64, sequence: u64) -> Result<Capability, Box<dyn Error>> {
    let mut rng = Rng::new(n);
    let width = 4 + rng.below(21) as u32;
    let start = rng.below((LAYERS - width) as usize + 1) as u32;
    let ranges = if n == 1 { vec![(0, 1), (LAYERS - 1, LAYERS)] } else { vec![(start, start + width)] };
    let holding = Holding {
        model: ModelId::numbered(7),
        loaded: ranges.iter().filter_map(|(start, end)| LayerRange::new(*start, *end)).collect(),
        on_disk: Vec::new(),
        decode_ms: rng.between(0.3, 4.0),
        prefill_ms: rng.between(0.05, 0.5),
        visit_ms: rng.between(0.1, 3.0),
        queue_ms: sequence as f64 / 100.0,
        load_ms: 0.0,
        active: 0,
        batch_knee: 4,
        kv_bytes: 1 << 30,
    };
    Ok(Capability::try_from(Claim {
        node: NodeId::numbered(n),
        operator: OperatorId::numbered(n),
        sequence,
        region: 0,
        access_ms: 0.0,
        up_bytes_per_ms: 12_500.0,
        down_bytes_per_ms: 12_500.0,
        draining: false,
        holdings: vec![holding],
    })?)
}
