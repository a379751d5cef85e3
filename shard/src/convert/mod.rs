//! Turns a folder of safetensors, as model publishers ship them, into one GGUF file.
//!
//! What happens, in order: `config.json` names the family and gives the metadata ([`config`]); every tensor of the
//! checkpoint gets its GGUF name, shape and the reordering its family needs ([`names`]); the tokenizer files become
//! vocabulary metadata ([`vocab`]), and the file on pooling a key ([`pooling`]); then threads read slices of tensors, quantize them and hand them to one writer in
//! file order. The output appears under its name only when it is complete and the engine
//! accepts its header.
//!
//! Limits: at most [`WINDOW`] slices of about [`SLICE_WEIGHTS`] weights are in memory at once; a thread that is ahead
//! waits. A tensor that no rule names is an error: nothing is dropped silently.

mod checkpoint;
mod config;
mod encoder;
mod folder;
mod hybrid;
mod latent;
mod names;
mod pooling;
mod vocab;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Seek, Write},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
};

use crate::{
    Error, Result,
    gguf::{Gguf, Writer},
    models::Blueprint,
    quant::{self, Format},
};
use checkpoint::Checkpoint;
use config::{Config, has_delta_nets, has_latents, is_encoder};
pub use folder::{Folder, MAX_PARTS};
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
#[derive(Clone, Debug)]
pub struct Converted {
    /// The GGUF architecture.
    pub architecture: String,
    /// Tensors in the file.
    pub tensors: usize,
    /// Length of the file.
    pub bytes: u64,
    /// The formats used and how many tensors are in each, in the order of their first tensor. More than the wanted
    /// format, f32 and q6_k means that rows did not fit.
    pub formats: Vec<(&'static str, usize)>,
}

/// Converts the checkpoint in `source` to `output`; `progress(done, total)` counts bytes of tensor data written.
pub fn convert(
    source: &Path,
    output: &Path,
    options: &Options,
    progress: &dyn Fn(u64, u64),
) -> Result<Converted> {
    let unchecked = Unchecked::beside(output);
    let file = unchecked.create()?;
    let name = source.canonicalize().ok().and_then(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
    let converted = write(&Folder::open(source)?, name.as_deref(), &file, options, progress)?;
    unchecked.accept(&file, converted.bytes, output)?;
    Ok(converted)
}

/// As [`convert`], of a folder and to a file that are open: the file must be empty and readable. What is in it is a model
/// only when this has returned; `name` is what the model calls itself.
///
/// # Errors
/// Those of the system, and [`Error`] for a checkpoint that is not sound or makes no model that can be run.
pub fn convert_open(
    source: &Folder,
    name: Option<&str>,
    output: &File,
    options: &Options,
    progress: &dyn Fn(u64, u64),
) -> Result<Converted> {
    let converted = write(source, name, output, options, progress)?;
    runnable(output, converted.bytes)?;
    Ok(converted)
}

fn write(
    source: &Folder,
    name: Option<&str>,
    output: &File,
    options: &Options,
    progress: &dyn Fn(u64, u64),
) -> Result<Converted> {
    let config = Config::read(source)?;
    let checkpoint = Checkpoint::open(source)?;
    let encodes = is_encoder(config.arch());
    let plan = match encodes {
        true => encoder::plan(&config, &checkpoint)?,
        false => names::plan(&config, &checkpoint)?,
    };
    let formats: Vec<&'static Format> =
        plan.iter().map(|p| choose(p, options.format, config.tied() && !encodes)).collect::<Result<_>>()?;

    let mut writer = Writer::new();
    config.write(&mut writer, name.unwrap_or("converted"), file_type(options.format))?;
    if encodes {
        encoder::write(&config, &mut writer)?;
    }
    if has_delta_nets(config.arch()) {
        hybrid::Heads::read(&config)?.write(&config, &mut writer)?;
    }
    if has_latents(config.arch()) {
        latent::Sizes::read(&config)?.write(&config, &mut writer)?;
    }
    pooling::write(&mut writer, source, config.arch())?;
    vocab::write(&mut writer, source, &config)?;
    for (planned, format) in plan.iter().zip(&formats) {
        writer.add_tensor_info(&planned.name, &planned.dims(), format);
    }
    let mut out = writer.start(BufWriter::with_capacity(1 << 20, output))?;

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
        // Stops the workers on every way out, a panic of `progress` included.
        let _stop = Stop(&conveyor);
        let mut done = 0;
        for _ in &slices {
            let bytes = conveyor.take()?;
            done += bytes.len() as u64;
            out.write(&bytes)?;
            progress(done, total);
        }
        Ok::<(), Error>(())
    })?;
    let mut out = out.finish()?;
    out.flush().map_err(|e| Error::io("", e))?;
    let bytes = out.get_mut().stream_position().map_err(|e| Error::io("", e))?;
    Ok(Converted { architecture: config.arch().into(), tensors: plan.len(), bytes, formats: count(&formats) })
}

/// Whether the engine can run what was written.
fn runnable(file: &File, bytes: u64) -> Result<()> {
    let checked = Gguf::of_file(file, bytes, "").and_then(|gguf| Blueprint::from_gguf(&gguf).map(drop));
    checked.map_err(|error| {
        let why = format!("with the checkpoint's tensors it makes no model that can be run: {error}");
        Error::malformed("config.json", why)
    })
}

/// How often each format occurs, in order of first occurrence.
fn count(formats: &[&'static Format]) -> Vec<(&'static str, usize)> {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for format in formats {
        match counts.iter_mut().find(|(name, _)| *name == format.name) {
            Some((_, n)) => *n += 1,
            None => counts.push((format.name, 1)),
        }
    }
    counts
}

/// A complete file under a passing name, removed unless it is accepted.
struct Unchecked(PathBuf);

impl Unchecked {
    fn beside(output: &Path) -> Self {
        let mut path = output.as_os_str().to_owned();
        path.push(".unchecked");
        Self(path.into())
    }

    fn create(&self) -> Result<File> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&self.0);
        file.map_err(|e| Error::io(&self.0, e))
    }

    /// Gives the file of so many bytes its name, if the engine can run it.
    fn accept(&self, file: &File, bytes: u64, output: &Path) -> Result<()> {
        runnable(file, bytes)?;
        file.sync_all().and_then(|()| std::fs::rename(&self.0, output)).map_err(|e| Error::io(output, e))
    }
}

impl Drop for Unchecked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The format a tensor is stored in: vectors, routers and what encoders have outside layers f32; the head (and a tied embedding) at least q6_k, since
/// every token's logits pass through it; rows that are not whole blocks in the nearest format of 32-blocks.
fn choose(planned: &Planned, wanted: &'static Format, tied: bool) -> Result<&'static Format> {
    const FLOAT: [&str; 5] = ["ffn_gate_inp", "ssm_conv1d", "position_embd", "token_types", "cls."];
    if planned.vector || FLOAT.iter().any(|part| planned.name.contains(part)) {
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

/// The number other tools show for a file's main format.
fn file_type(format: &Format) -> u32 {
    match format.name {
        "f32" => 0,
        "f16" => 1,
        "q4_0" => 2,
        "q4_1" => 3,
        "q8_0" => 7,
        "q5_0" => 8,
        "q5_1" => 9,
        "q2_k" => 10,
        "q3_k" => 12,
        "q4_k" => 15,
        "q5_k" => 17,
        "q6_k" => 18,
        "iq4_nl" => 25,
        "bf16" => 32,
        "tq1_0" => 36,
        "tq2_0" => 37,
        "mxfp4" => 38,
        _ => 1024,
    }
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

/// Stops a conveyor when it is dropped.
struct Stop<'a>(&'a Conveyor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
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
            // A panic must arrive at `take`, which would wait for this slice forever.
            let made = catch_unwind(AssertUnwindSafe(|| make(&slices[mine]))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(Error::invalid(format!("converting a tensor failed inside the program: {text}")))
            });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_converting_is_an_error() {
        let slices: Vec<Slice> = (0..40).map(|row| Slice { tensor: 0, rows: row..row + 1 }).collect();
        let conveyor = Conveyor::default();
        let make = |slice: &Slice| -> Result<Vec<u8>> {
            assert!(slice.rows.start != 30, "row 30 is bad");
            Ok(vec![slice.rows.start as u8])
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| conveyor.work(&slices, &make));
            }
            let _stop = Stop(&conveyor);
            for row in 0..30 {
                assert_eq!(conveyor.take().unwrap(), [row]);
            }
            let why = conveyor.take().unwrap_err().to_string();
            assert!(why.contains("row 30 is bad"), "{why}");
        });
    }

    #[test]
    fn formats_are_counted() {
        let list: Vec<_> = ["q4_k", "f32", "q4_k"].iter().map(|name| named(name).unwrap()).collect();
        assert_eq!(count(&list), [("q4_k", 2), ("f32", 1)]);
    }

    #[test]
    fn what_cannot_be_run_never_gets_its_name() {
        let output = std::env::temp_dir().join(format!("shoal-unchecked-{}.gguf", std::process::id()));
        let unchecked = Unchecked::beside(&output);
        let mut writer = Writer::new();
        writer.add_str("general.architecture", "llama");
        writer.add_tensor_info("token_embd.weight", &[2, 2], named("f32").unwrap());
        let file = unchecked.create().unwrap();
        let mut out = writer.start(&file).unwrap();
        out.tensor(&[0; 16]).unwrap();
        out.finish().unwrap();
        let bytes = file.metadata().unwrap().len();
        let why = unchecked.accept(&file, bytes, &output).unwrap_err().to_string();
        assert!(why.contains("config.json"), "{why}");
        let passing = unchecked.0.clone();
        drop(unchecked);
        assert!(!output.exists() && !passing.exists());
    }
}
