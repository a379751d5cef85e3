//! A model ready to answer on this machine: file, tokenizer, template, weights.

use std::sync::Arc;

use shard::{
    executor::{Capacity, Device, Ends, Executor, Options, Workspace, load, whole_range},
    gguf::Gguf,
    kernels::{Cores, Cpu, Isa, threads::Pool},
    models::Blueprint,
    tokenizer::{Tokenizer, chat::Template},
};

use crate::{
    Error, Result,
    cli::EngineArgs,
    confine,
    library::{self, Located},
    output::Waiting,
};

/// Rows of one forward pass: enough to amortize unpacking a weight panel, few enough to keep activations in cache.
pub const CHUNK_ROWS: usize = 96;

/// Sessions longer than this must be asked for with `--ctx`: the KV cache of a long context is larger than most models.
pub const DEFAULT_CTX: usize = 4096;

/// Everything one prompt needs.
pub struct Model {
    /// What the user called it.
    pub name: String,
    /// The file, still mapped: embeddings are read from it.
    pub gguf: Arc<Gguf>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How messages become a prompt, if the file says; or what is wrong with it, which matters only when it is used.
    pub template: Result<Option<Template>, String>,
    /// All layers and both ends.
    pub executor: Box<dyn Executor>,
    /// Most positions a session may hold.
    pub ctx: usize,
    /// The processors its threads are bound to, claimed for as long as it is there.
    _cores: Option<Cores>,
}

/// What a command has opened and claimed, before it confined itself and looked into any of it.
pub struct Prepared {
    located: Option<Located>,
    threads: usize,
    cores: Option<Cores>,
}

impl Prepared {
    /// Opens the model of `args` and claims processors; from then on this process can do little but compute
    /// ([`crate::confine`]).
    ///
    /// # Errors
    /// Those of [`library::locate`].
    pub fn confined(args: &EngineArgs) -> Result<Self> {
        let located = library::locate(&args.model)?;
        let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
        let cores = (!args.no_pin).then(|| Cores::claim(threads)).flatten();
        confine::command(&args.device.to_string());
        Ok(Self { located, threads, cores })
    }

    /// Looks into the file.
    ///
    /// # Errors
    /// Those of the engine for a file that is not sound.
    pub fn gguf(&self) -> Result<Gguf> {
        library::parse(self.located.as_ref())
    }

    /// As [`device`], on the processors that were claimed.
    ///
    /// # Errors
    /// A device that this build or this machine does not have.
    pub fn device(&self, args: &EngineArgs) -> Result<Device> {
        let processors = self.cores.as_ref().map_or_else(Vec::new, |cores| cores.processors().to_vec());
        Device::open(args.device()?, || cpu(args.isa.as_deref(), Pool::on(self.threads, processors)))
    }
}

impl Model {
    /// Opens and loads the model named by `args`.
    ///
    /// # Errors
    /// Those of [`library::locate`], and of the engine for a file that is not sound.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let _waiting = Waiting::start("loading the model");
        Self::of(library::locate(&args.model)?.as_ref(), args, device(args)?)
    }

    /// As [`Self::load`], in a process that gives up everything but computing before it looks into the file; for commands whose
    /// model writes text.
    ///
    /// # Errors
    /// As for [`Self::load`] and [`writes`].
    pub fn load_confined(args: &EngineArgs) -> Result<Self> {
        let prepared = Prepared::confined(args)?;
        let _waiting = Waiting::start("loading the model");
        let model = Self::of(prepared.located.as_ref(), args, prepared.device(args)?)?;
        writes(model.executor.blueprint(), &model.name)?;
        Ok(Self { _cores: prepared.cores, ..model })
    }

    /// Loads a file that is open already, for `device`; `None` is the embedded model.
    ///
    /// # Errors
    /// Those of the engine for a file that is not sound.
    pub fn of(located: Option<&Located>, args: &EngineArgs, device: Device) -> Result<Self> {
        let gguf = Arc::new(library::parse(located)?);
        let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
        let template = Template::from_gguf(gguf.metadata(), None).map_err(|error| error.to_string());
        let ctx = context(&gguf, args.ctx)?;
        let executor = load_whole(&gguf, &device, ctx)?;
        Ok(Self { name: args.model.clone(), gguf, tokenizer, template, executor, ctx, _cores: None })
    }

    /// Buffers for one session, passes of at most [`CHUNK_ROWS`] rows with the logits of `logit_rows` of them.
    pub fn workspace(&self, logit_rows: usize) -> Result<Workspace> {
        let rows = CHUNK_ROWS.min(self.ctx).max(logit_rows);
        Ok(Workspace::new(&*self.executor, Capacity { rows, items: 1, logit_rows })?)
    }
}

/// Refuses a model that makes vectors of texts and writes none.
///
/// # Errors
/// [`Error::Usage`] with what to do.
pub fn writes(blueprint: &Blueprint, name: &str) -> Result<()> {
    if !blueprint.encodes() {
        return Ok(());
    }
    let route = if blueprint.head.rank.is_some() { "/v1/rerank" } else { "/v1/embeddings" };
    Err(Error::usage(format!(
        "{name} is an encoder ({}): it reads texts and writes none; `shoal serve --via local --model {name}` answers {route}",
        blueprint.architecture
    )))
}

/// All layers and both ends of `gguf`, for sessions of at most `ctx` positions.
pub fn load_whole(gguf: &Arc<Gguf>, device: &Device, ctx: usize) -> Result<Box<dyn Executor>> {
    Ok(load(device, gguf, whole_range(gguf)?, Ends::BOTH, Options { context: Some(ctx) })?)
}

/// Positions a session may hold: what was asked for, else what the model was made for, within reason. Never more than
/// the model was made for: beyond that it computes, but not sense.
pub fn context(gguf: &Gguf, asked: Option<usize>) -> Result<usize> {
    positions(Blueprint::from_gguf(gguf)?.context, asked)
}

/// As [`context`], of a model that was made for `trained` positions.
pub fn positions(trained: usize, asked: Option<usize>) -> Result<usize> {
    match asked {
        Some(0) => Err(Error::usage("--ctx must be at least 1")),
        Some(n) => Ok(n.min(trained)),
        None => Ok(trained.min(DEFAULT_CTX)),
    }
}

/// Layers of a model.
pub fn num_layers(gguf: &Gguf) -> Result<u32> {
    Ok(whole_range(gguf)?.end())
}

/// Bytes of all tensors that belong to layers, as they stand in the file.
pub fn layer_bytes(gguf: &Gguf) -> u64 {
    gguf.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.")).map(|tensor| tensor.len).sum()
}

/// The device the user asked for, with their instruction set and threads if it is the processor.
///
/// # Errors
/// A device that this build or this machine does not have.
pub fn device(args: &EngineArgs) -> Result<Device> {
    let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
    Device::open(args.device()?, || cpu(args.isa.as_deref(), Pool::new(threads, !args.no_pin)))
}

/// The processor with an instruction set by name and compute threads. The calling thread is one of them.
pub fn cpu(name: Option<&str>, pool: Pool) -> Result<Arc<Cpu>> {
    let isa = name.map_or(Ok(Isa::detect()), isa)?;
    // This thread loads, computes and prints: it is worker 0.
    pool.pin_caller();
    Ok(Arc::new(Cpu::new(isa, pool)))
}

/// An instruction set by name, if this machine has it.
pub fn isa(name: &str) -> Result<Isa> {
    let available = Isa::available();
    available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        Error::usage(format!("this machine cannot compute with \"{name}\"; it has: {}", names.join(", ")))
    })
}
