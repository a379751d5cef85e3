//! How long everything takes that a node decides of one prompt.
//!
//! `cargo run --release -p shoal-scheduler --example decide [RUNS] [NODES]`
//!
//! A view as a node has it: windows of a model of 80 layers, coordinates in five regions, seven measured links a node, distances
//! to the nodes that it is connected to. All nodes were met, which is more than a node shows to a route in practice. Asked is all that the
//! daemon asks: the route, its comparison with the ends abroad and with this node alone, covers, shadows, and what a prompt and a step
//! should take; at first, again ("warm"), again for a prompt of another length, and after things that happen to a view. The least of all
//! runs counts: on a busy machine the others tell of the machine.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use scheduler::coordinate::Coordinate;
use scheduler::decide::{Engine, Wanted};
use scheduler::rng::Rng;
use scheduler::route::acquainted;
use scheduler::view::{Geography, SwarmView};
use scheduler::{
    Boomerang, Capability, Claim, Holding, LayerRange, Millis, ModelId, NodeId, OperatorId, Request, Shape,
    cost,
};

const LAYERS: u32 = 80;
const LINKS: usize = 7;
/// Where regions are, round trips in ms.
const REGIONS: [(f32, f32); 5] = [(0.0, 0.0), (70.0, 20.0), (90.0, -60.0), (-120.0, 100.0), (-90.0, -110.0)];

/// Announcements between two prompts, where many are measured.
const MANY: u64 = 500;

fn main() -> Result<(), Box<dyn Error>> {
    let runs = std::env::args().nth(1).map_or(Ok(7), |text| text.parse::<u32>())?;
    let news: [(&str, News); 6] = [
        ("one announcement", |view, nodes, run| announce(view, nodes / 2, run)),
        ("500 announcements", |view, nodes, run| {
            (2..=nodes.min(MANY)).try_for_each(|n| announce(view, n, run))
        }),
        ("a round trip measured", |view, _, run| {
            let ms = 30.0 + 9.0 * (run % 2) as f64;
            view.measure(NodeId::numbered(1), NodeId::numbered(9), ms);
            Ok(())
        }),
        ("other layers", |view, nodes, run| {
            view.merge(Capability::try_from(claim_as(nodes / 3, nodes + run, run)?)?, Millis(0));
            Ok(())
        }),
        ("a newcomer", |view, nodes, run| {
            announce(view, nodes + run, run)?;
            view.meet(NodeId::numbered(nodes + run));
            Ok(())
        }),
        ("a refused lease", |view, nodes, run| {
            view.correct(
                NodeId::numbered(nodes / 2 + run),
                ModelId::numbered(7),
                Default::default(),
                Millis(0),
            );
            Ok(())
        }),
    ];
    println!("| nodes x layers | first | warm | other length | {} |", news.map(|news| news.0).join(" | "));
    println!("|---|---|---|---|{}", "---|".repeat(news.len()));
    let only = std::env::args().nth(2).map(|text| text.parse::<u64>()).transpose()?;
    for nodes in only.map_or(vec![64, 1_024, 4_096, 10_240], |nodes| vec![nodes]) {
        let mut least = [f64::INFINITY; 9];
        let mut view = swarm(nodes)?;
        for run in 1..=u64::from(runs) {
            let mut engine = Engine::default();
            let mut took = Vec::with_capacity(least.len());
            for prompt_tokens in [512, 512, 700] {
                took.push(decide(&mut engine, &view, prompt_tokens)?);
            }
            for (_, happens) in news {
                happens(&mut view, nodes, run + 1)?;
                took.push(decide(&mut engine, &view, 700)?);
            }
            least.iter_mut().zip(took).for_each(|(least, ms)| *least = least.min(ms));
        }
        println!("| {nodes} x {LAYERS} | {} |", least.map(|ms| format!("{ms:.2}")).join(" | "));
    }
    Ok(())
}

/// What happens to a view of so many nodes in the n-th run.
type News = fn(&mut SwarmView, u64, u64) -> Result<(), Box<dyn Error>>;

fn announce(view: &mut SwarmView, n: u64, sequence: u64) -> Result<(), Box<dyn Error>> {
    view.merge(claim(n, sequence)?, Millis(0));
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
    let request = acquainted(&snapshot, &request);
    let compared = engine.compare(&snapshot, &request);
    let route = compared.asked.clone()?;
    black_box(engine.covers(&snapshot, &request, &route.pipeline));
    black_box(engine.shadows(&snapshot, &request, &route.pipeline));
    // What a prompt and a step should take.
    let mut step = request.clone();
    step.shape = Shape { prompt_tokens: 0, output_tokens: 1, ..shape };
    for _ in 0..5 {
        black_box(cost::price(&snapshot, &step, &route.pipeline)?);
    }
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

fn claim(n: u64, sequence: u64) -> Result<Capability, Box<dyn Error>> {
    Ok(Capability::try_from(claim_as(n, n, sequence)?)?)
}

/// A window of 4 to 24 layers by `draw`; the first node has the ends.
fn claim_as(n: u64, draw: u64, sequence: u64) -> Result<Claim, Box<dyn Error>> {
    let mut rng = Rng::new(draw);
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
    Ok(Claim {
        node: NodeId::numbered(n),
        operator: OperatorId::numbered(n),
        sequence,
        region: 0,
        access_ms: 0.0,
        up_bytes_per_ms: 12_500.0,
        down_bytes_per_ms: 12_500.0,
        draining: false,
        holdings: vec![holding],
    })
}
