//! Turns a folder of safetensors, as model publishers ship them, into one GGUF file.
//!
//! What happens, in order: `config.json` names the family and gives the metadata ([`config`]); every tensor of the
//! checkpoint gets its GGUF name, shape and the reordering its family needs ([`names`]); the tokenizer files become
//! vocabulary metadata ([`vocab`]); then threads read slices of tensors, quantize them and hand them to one writer in
//! file order. The output appears under its name only when it is complete.
//!
//! Limits: at most [`WINDOW`] slices of about [`SLICE_WEIGHTS`] weights are in memory at once; a thread that is ahead
//! waits. A tensor that no rule names is an error: nothing is dropped silently.

mod checkpoint;
mod config;
mod names;
mod vocab;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    sync::{Condvar, Mutex, PoisonError},
};

use crate::{
    Error, Result,
    gguf::Writer,
    quant::{self, Format},
};
use checkpoint::Checkpoint;
use config::Config;
use names::Planned;

/// Slices between the reading threads and the writer.
const WINDOW: usize = 16;
/// Weights per slice: large enough that a thread's turn costs nothing, small enough to keep memory low.
const SLICE_WEIGHTS: usize = 4 << 20;

/// How to convert.
pub struct Options {
    /// The format of the matrices; vectors stay f32. Rows that do not fit its blocks take [`fallback`].
    pub format: &'static Format,
    /// Threads that read and quantize, at least one.
    pub threads: usize,
}

/// What was written.
#[derive(Debug)]
pub struct Converted {
    /// The GGUF architecture.
    pub architecture: String,
    /// Tensors in the file.
    pub tensors: usize,
    /// Length of the file.
    pub bytes: u64,
}

/// Converts the checkpoint in `source` to `output`; `progress(done, total)` counts bytes of tensor data written.
pub fn convert(
    source: &Path,
    output: &Path,
    options: &Options,
    progress: &dyn Fn(u64, u64),
) -> Result<Converted> {
    let config = Config::read(source)?;
    let checkpoint = Checkpoint::open(source)?;
    let plan = names::plan(&config, &checkpoint)?;
    let formats: Vec<&'static Format> =
        plan.iter().map(|p| choose(p, options.format, config.tied())).collect::<Result<_>>()?;

    let mut writer = Writer::new();
    config.write(&mut writer, source, options.format);
    vocab::write(&mut writer, source, &config)?;
    for (planned, format) in plan.iter().zip(&formats) {
        writer.add_tensor_info(&planned.name, &planned.dims(), format);
    }
    let mut out = writer.create(output)?;

    let slices = slices(&plan);
    let total: u64 = plan.iter().zip(&formats).map(|(p, f)| bytes_of(f, p.rows() * p.cols) as u64).sum();
    let conveyor = Conveyor::default();
    let make = |slice: &Slice| -> Result<Vec<u8>> {
        let weights = plan[slice.tensor].read(&checkpoint, slice.rows.clone())?;
        encode(formats[slice.tensor], &weights, &plan[slice.tensor].name)
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| conveyor.work(&slices, &make));
        }
        let mut done = 0;
        for _ in &slices {
            let written = conveyor.take().and_then(|bytes| {
                done += bytes.len() as u64;
                out.write(&bytes)
            });
            if let Err(error) = written {
                conveyor.stop();
                return Err(error);
            }
            progress(done, total);
        }
        Ok(())
    })?;
    out.finish()?;
    let bytes = std::fs::metadata(output).map_err(|e| Error::io(output, e))?.len();
    Ok(Converted { architecture: config.arch().into(), tensors: plan.len(), bytes })
}

/// The format a tensor is stored in: vectors and routers f32; the head (and a tied embedding) at least q6_k, since
/// every token's logits pass through it; rows that are not whole blocks in the nearest format of 32-blocks.
fn choose(planned: &Planned, wanted: &'static Format, tied: bool) -> Result<&'static Format> {
    if planned.vector || planned.name.contains("ffn_gate_inp") {
        return named("f32");
    }
    let head = planned.name == "output.weight" || (tied && planned.name == "token_embd.weight");
    let bits = wanted.block_bytes as f64 * 8.0 / wanted.block_len as f64;
    let mut format = if head && bits < 6.5 { named("q6_k")? } else { wanted };
    while !planned.cols.is_multiple_of(format.block_len) {
        format = fallback(format)?;
    }
    Ok(format)
}

/// What takes the place of a format whose blocks do not divide the rows.
fn fallback(format: &Format) -> Result<&'static Format> {
    match format.name {
        "q2_k" | "q3_k" => named("q4_0"),
        "q4_k" => named("q5_0"),
        "q5_k" => named("q5_1"),
        "q6_k" => named("q8_0"),
        _ => named("f16"),
    }
}

fn named(name: &str) -> Result<&'static Format> {
    quant::by_name(name).ok_or_else(|| Error::unsupported(format!("weight format {name}")))
}

fn bytes_of(format: &Format, weights: usize) -> usize {
    weights / format.block_len * format.block_bytes
}

fn encode(format: &Format, weights: &[f32], name: &str) -> Result<Vec<u8>> {
    if let Some(bad) = weights.iter().find(|w| !w.is_finite()) {
        return Err(Error::malformed(name, format!("it holds {bad}")));
    }
    let quantize = format.quantize.ok_or_else(|| Error::unsupported(format!("writing {}", format.name)))?;
    let mut bytes = vec![0; bytes_of(format, weights.len())];
    quantize(weights, &mut bytes);
    Ok(bytes)
}

/// Some rows of one tensor.
struct Slice {
    tensor: usize,
    rows: Range<usize>,
}

fn slices(plan: &[Planned]) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (tensor, planned) in plan.iter().enumerate() {
        let unit = planned.row_unit();
        let step = (SLICE_WEIGHTS / planned.cols.max(1)).next_multiple_of(unit).max(unit);
        let mut start = 0;
        while start < planned.rows() {
            let end = (start + step).min(planned.rows());
            slices.push(Slice { tensor, rows: start..end });
            start = end;
        }
    }
    slices
}

/// Hands out slices in order and gives their bytes back in order.
#[derive(Default)]
struct Conveyor {
    state: Mutex<Belt>,
    changed: Condvar,
}

#[derive(Default)]
struct Belt {
    next: usize,
    taken: usize,
    ready: BTreeMap<usize, Result<Vec<u8>>>,
    stopped: bool,
}

impl Conveyor {
    fn work(&self, slices: &[Slice], make: &(dyn Fn(&Slice) -> Result<Vec<u8>> + Sync)) {
        loop {
            let mut belt = self.lock();
            while !belt.stopped && belt.next < slices.len() && belt.next >= belt.taken + WINDOW {
                belt = self.changed.wait(belt).unwrap_or_else(PoisonError::into_inner);
            }
            if belt.stopped || belt.next >= slices.len() {
                return;
            }
            let mine = belt.next;
            belt.next += 1;
            drop(belt);
            let made = make(&slices[mine]);
            self.lock().ready.insert(mine, made);
            self.changed.notify_all();
        }
    }

    fn take(&self) -> Result<Vec<u8>> {
        let mut belt = self.lock();
        loop {
            let next = belt.taken;
            if let Some(made) = belt.ready.remove(&next) {
                belt.taken += 1;
                self.changed.notify_all();
                return made;
            }
            belt = self.changed.wait(belt).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Belt> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
