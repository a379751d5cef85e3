//! Prints what each layer of a model is said to cost and what it takes on this machine, side by side.
//!
//! `layer_costs [SHAPE] [--layers N] [--context N] [--format NAME] [--threads N]`: a synthetic shape, `gemma3-1b` unless
//! named. Every layer decodes one row behind `context` positions; `predicted` and `measured` are shares of the mean.
#![forbid(unsafe_code)]

use std::{error::Error, sync::Arc, time::Instant};

use scheduler::LayerRange;
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    models::layer_costs,
    quant,
    round::Rounding,
    synthetic,
};

/// Rows of a chunk while the cache is filled.
const CHUNK: usize = 256;
/// Rounds over all layers; the least time of each layer counts, since other programs only add to it.
const ROUNDS: usize = 41;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut name, mut layers, mut context, mut threads) = ("gemma3-1b".to_owned(), None, 0, 1);
    let mut format = "q4_0".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--layers" => layers = Some(value()?.parse()?),
            "--context" => context = value()?.parse()?,
            "--format" => format = value()?,
            "--threads" => threads = value()?.parse()?,
            shape => name = shape.to_owned(),
        }
    }
    let known = synthetic::shape(&name).ok_or_else(|| format!("there is no shape {name}"))?;
    let shape = synthetic::Shape { vocab: 256, layers: layers.unwrap_or(known.layers), ..known.clone() };
    let format = quant::by_name(&format).ok_or("there is no such format")?;
    let gguf = Arc::new(Gguf::from_bytes(shape.to_bytes(format, 1)?)?);
    let all = LayerRange::new(0, shape.layers as u32).ok_or("no layers")?;
    let cpu = Arc::new(Cpu::new(Isa::detect(), Pool::new(threads, false)));
    let ends = Ends { embedding: false, head: false };
    let shard = Shard::load(&gguf, cpu, all, ends, Options { context: Some(context + 1) })?;
    let costs = layer_costs(shard.blueprint(), &gguf)?;
    let measured = measure(&shard, context)?;
    let said = costs.weights(context as u32);
    let (mean_said, mean) = (average(&said), average(&measured));
    println!("{name} {}, {} layers, {context} positions before the row", format.name, shape.layers);
    println!("layer  window  kind     predicted  measured  ratio      ms");
    for (index, layer) in costs.layers().iter().enumerate() {
        let window = layer.window.map_or("all".to_owned(), |window| window.to_string());
        let kind = if layer.weight_bytes > layer.row_work { "experts" } else { "dense" };
        let (p, m) = (said[index] / mean_said, measured[index] / mean);
        println!(
            "{index:5}  {window:>6}  {kind:7}  {p:9.3}  {m:8.3}  {:5.2}  {:6.3}",
            p / m,
            measured[index]
        );
    }
    Ok(())
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Milliseconds of one row through each layer behind `context` positions.
fn measure(shard: &Shard, context: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let hidden = shard.blueprint().hidden;
    let row = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let rows: Vec<f32> = (0..CHUNK * hidden).map(row).collect();
    let mut workspace = Workspace::new(shard, Capacity::one_session(CHUNK))?;
    let mut caches = Vec::new();
    for layer in shard.range().start()..shard.range().end() {
        let range = LayerRange::new(layer, layer + 1).ok_or("no layer")?;
        let mut state = shard.new_state_of(range)?;
        state.reserve(context + 1)?;
        while state.len() < context {
            let count = CHUNK.min(context - state.len());
            let input = Input::Activations(&rows[..count * hidden]);
            shard.run(
                &mut workspace,
                range,
                &Rounding::NONE,
                &mut [Item { state: &mut state, input, output: Output::None }],
            )?;
        }
        caches.push((range, state, Vec::new()));
    }
    // Round after round, so that a slow second of the machine falls on all layers alike.
    for round in 0..ROUNDS {
        for (range, state, times) in &mut caches {
            let input = Input::Activations(&rows[..hidden]);
            let before = Instant::now();
            shard.run(
                &mut workspace,
                *range,
                &Rounding::NONE,
                &mut [Item { state, input, output: Output::All }],
            )?;
            if round > 0 {
                times.push(before.elapsed().as_secs_f64() * 1e3);
            }
            state.rewind(context);
        }
    }
    let least = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    Ok(caches.into_iter().map(|(_, _, times)| least(times)).collect())
}
