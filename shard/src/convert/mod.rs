//! Turns a folder of safetensors, as model publishers ship them, into one GGUF file.
//!
//! What happens, in order: `config.json` names the family and gives the metadata ([`config`]); every tensor of the
//! checkpoint gets its GGUF name, shape and the reordering its family needs ([`names`]); the tokenizer files become
//! vocabulary metadata ([`vocab`]), and the file on pooling a key ([`pooling`]), or the choice of a reranker ([`choice`]); then threads read slices of tensors, quantize them and hand them to one writer in
//! file order ([`conveyor`]). The output appears under its name only when it is complete and the engine
//! accepts its header. [`requantize()`] writes a GGUF again in another format in the same way.
//!
//! Limits: a tensor that nothing names is an error: nothing is dropped silently.

mod blocks;
mod checkpoint;
mod choice;
mod config;
mod conveyor;
mod encoder;
mod family;
mod folder;
mod formats;
mod gemma3n;
mod gemma4;
mod hybrid;
pub mod importance;
mod kimi;
mod latent;
mod llama4;
mod mamba;
mod metadata;
mod mtp;
mod names;
mod planned;
mod pooling;
mod requantize;
mod rope;
mod synonyms;
mod ternary;
mod vocab;

use std::{
    fs::File,
    io::{BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    gguf::{Gguf, Writer},
    models::Blueprint,
    quant::Format,
};
use checkpoint::Checkpoint;
use config::{Config, has_delta_nets, has_latents, is_encoder};
use conveyor::Slice;
pub use folder::{Folder, MAX_PARTS};
pub use formats::Rule;
use formats::{Wanted, bytes_of, check_importance, check_rules, choose, count, encode, file_type, is_head};
use importance::Importance;
use planned::Planned;
pub use requantize::requantize;

/// How to convert.
pub struct Options {
    /// The format of the matrices; vectors stay f32. Rows that are no whole blocks take another.
    pub format: &'static Format,
    /// Threads that read and quantize, at least one.
    pub threads: usize,
    /// What goes before `format`, the first rule that is about a tensor.
    pub rules: Vec<Rule>,
    /// How much each input of each matrix matters.
    pub importance: Option<Importance>,
    /// The model ranks texts by its choice between yes and no (Qwen 3 Reranker), which nothing in such a checkpoint says.
    pub ranks: bool,
}

impl Options {
    /// Matrices in `format`, made by so many threads.
    pub fn new(format: &'static Format, threads: usize) -> Self {
        Self { format, threads, rules: Vec::new(), importance: None, ranks: false }
    }
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
    let mut config = Config::read(source)?;
    let checkpoint = Checkpoint::open(source)?;
    config.ahead = mtp::layers(&config, &checkpoint);
    ternary::check(&config, &checkpoint)?;
    let encodes = is_encoder(config.arch());
    let mut plan = match encodes {
        true => encoder::plan(&config, &checkpoint)?,
        false => names::plan(&config, &checkpoint)?,
    };
    let tied = config.tied() && !encodes;
    if options.ranks {
        plan.push(choice::plan(&config, &plan, tied, source)?);
    }
    let format_of = |planned: &Planned| {
        let name = &*planned.name;
        let head = is_head(name, tied);
        choose(&Wanted { name, cols: planned.cols, vector: planned.vector, head }, options)
    };
    let formats: Vec<&'static Format> = plan.iter().map(format_of).collect::<Result<_>>()?;
    let matrices = plan.iter().filter(|planned| !planned.vector).map(|planned| &*planned.name);
    check_rules(&options.rules, matrices.clone())?;
    check_importance(options.importance.as_ref(), matrices, &formats)?;

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
    match options.ranks {
        true => choice::write(&mut writer, config.arch()),
        false => pooling::write(&mut writer, source, config.arch())?,
    }
    vocab::write(&mut writer, source, &config)?;
    for (planned, format) in plan.iter().zip(&formats) {
        writer.add_tensor_info(&planned.name, &planned.dims(), format);
    }
    let mut out = writer.start(BufWriter::with_capacity(1 << 20, output))?;

    let slices: Vec<Slice> = plan
        .iter()
        .enumerate()
        .flat_map(|(at, planned)| Slice::of(at, planned.rows(), planned.cols, planned.row_unit()))
        .collect();
    let total: u64 = plan.iter().zip(&formats).map(|(p, f)| bytes_of(f, p.rows() * p.cols) as u64).sum();
    let make = |slice: &Slice| -> Result<Vec<u8>> {
        let planned = &plan[slice.tensor];
        let weights = planned.read(&checkpoint, slice.rows.clone())?;
        let place = (slice.rows.start, planned.rows());
        let name = (&*planned.name, planned.cols);
        encode(formats[slice.tensor], name, &weights, place, options.importance.as_ref())
    };
    conveyor::run(&slices, options.threads, &make, &mut out, &|done| progress(done, total))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_never_gets_its_name() {
        let output = std::env::temp_dir().join(format!("shoal-unchecked-{}.gguf", std::process::id()));
        let unchecked = Unchecked::beside(&output);
        let mut writer = Writer::new();
        writer.add_str("general.architecture", "llama");
        writer.add_tensor_info("token_embd.weight", &[2, 2], &crate::quant::F32);
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
