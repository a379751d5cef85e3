//! Routes a prompt over a made-up swarm, then without the node that matters most.
//!
//! `cargo run -p shoal-scheduler --example route [NODES] [SEED]`
//!
//! Each node holds a random window of a model of 32 layers. The first node asks, in boomerang mode: it keeps the first and
//! the last layer. Printed are the route with the cost of each segment, the nodes that would take over a segment if its
//! node failed, and the route after the first stranger has gone.
#![forbid(unsafe_code)]

use std::error::Error;

use scheduler::{
    Boomerang, LayerRange, LayerSet, ModelId, NodeId, Request, Shape, Snapshot,
    rng::Rng,
    route::{Route, route},
    snapshot::{Host, Links},
    standby,
};

const LAYERS: u32 = 32;
/// A short prompt and a hundred tokens of a model with 2,048 values a row, as f32.
const SHAPE: Shape =
    Shape { prompt_tokens: 64, output_tokens: 100, prefill_chunk: 64, activation_bytes: 4 * 2_048 };

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().map_or(Ok(40), |text| text.parse::<usize>())?.max(1);
    let mut rng = Rng::new(args.next().map_or(Ok(1), |text| text.parse())?);

    let snapshot = swarm(nodes, &mut rng)?;
    let me = node(0);
    let mut request = Request::new(me, SHAPE);
    request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });

    let found = route(&snapshot, &request)?;
    println!("{nodes} nodes, {LAYERS} layers, {} turns:", SHAPE.turns());
    show(&found);
    for cover in standby::covers(&snapshot, &request, &found.pipeline) {
        let segment = found.pipeline.segments()[cover.index];
        let others: Vec<String> = cover.segments.iter().map(|s| s.node.to_string()).collect();
        let others = if others.is_empty() { "no other node".to_owned() } else { others.join(", ") };
        println!("  if {} fails: {others}", segment.node);
    }

    // A failed node is denied, and the same search runs again.
    if let Some(gone) = found.pipeline.segments().iter().find(|segment| segment.node != me) {
        request.policy.deny.insert(gone.node);
        println!("without {}:", gone.node);
        match route(&snapshot, &request) {
            Ok(found) => show(&found),
            Err(why) => println!("  {why}"),
        }
    }
    Ok(())
}

/// Nodes on a plane: the distance between two is the time of a hop, up to 28 ms.
fn swarm(nodes: usize, rng: &mut Rng) -> Result<Snapshot, Box<dyn Error>> {
    let places: Vec<(f64, f64)> =
        (0..nodes).map(|_| (rng.between(0.0, 20.0), rng.between(0.0, 20.0))).collect();
    let hop = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).hypot(a.1 - b.1);
    let ms = places.iter().flat_map(|a| places.iter().map(|b| hop(*a, *b))).collect();
    let hosts = (0..nodes as u64).map(|n| {
        let window = 4 + rng.below(13) as u32;
        let start = rng.below((LAYERS - window) as usize + 1) as u32;
        let range = |start, end| LayerRange::new(start, end).expect("not empty");
        let loaded = match n {
            0 => LayerSet::new([range(0, 1), range(LAYERS - 1, LAYERS)]),
            _ => range(start, start + window).into(),
        };
        Host::new(node(n), loaded, rng.between(0.5, 3.0))
    });
    Ok(Snapshot::new(ModelId::default(), LAYERS, None, hosts.collect(), &Links::Matrix(ms))?)
}

fn show(found: &Route) {
    for leg in &found.legs {
        let layers = leg.segment.layers;
        println!(
            "  {}  layers {:2}..{:2}  {:8.1} ms",
            leg.segment.node,
            layers.start(),
            layers.end(),
            leg.cost.total_ms()
        );
    }
    println!("  together {:.1} ms", found.cost.total_ms());
}

/// The n-th node; its number is what its short name shows.
fn node(n: u64) -> NodeId {
    NodeId::numbered(n << 32)
}
