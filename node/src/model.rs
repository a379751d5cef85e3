//! A model ready to answer on this machine: file, tokenizer, template, weights.

use std::sync::Arc;

use shard::{
    engine::{Shard, Workspace},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    tokenizer::{Tokenizer, chat::Template},
};

use crate::{Error, Result, cli::EngineArgs, library};

/// Rows of one forward pass: enough to amortize unpacking a weight panel, few enough to keep activations in cache.
pub const CHUNK_ROWS: usize = 512;

/// Sessions longer than this must be asked for with `--ctx`: the KV cache of a long context is larger than most models.
const DEFAULT_CTX: usize = 4096;

/// Everything one prompt needs.
pub struct Model {
    /// What the user called it.
    pub name: String,
    /// The file, still mapped: embeddings are read from it.
    pub gguf: Arc<Gguf>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How messages become a prompt, if the file says.
    pub template: Option<Template>,
    /// All layers and both ends.
    pub shard: Shard,
    /// Most positions a session may hold.
    pub ctx: usize,
}

impl Model {
    /// Opens and loads the model named by `args`.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let gguf = Arc::new(library::open(&args.model)?);
        let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
        let template = Template::from_gguf(gguf.metadata())?;
        let ctx = context(&gguf, args.ctx)?;
        let shard = Shard::whole(&gguf, cpu(args)?, ctx)?;
        Ok(Self { name: args.model.clone(), gguf, tokenizer, template, shard, ctx })
    }

    /// Buffers for passes of at most [`CHUNK_ROWS`] rows.
    pub fn workspace(&self) -> Workspace {
        Workspace::new(&self.shard, CHUNK_ROWS.min(self.ctx))
    }
}

/// Positions a session may hold: what was asked for, else what the model was made for, within reason.
pub fn context(gguf: &Gguf, asked: Option<usize>) -> Result<usize> {
    let metadata = gguf.metadata();
    let trained = metadata.u64(&format!("{}.context_length", metadata.architecture()?)).map(|n| n as usize);
    match asked {
        Some(0) => Err(Error::usage("--ctx must be at least 1")),
        Some(n) => Ok(n),
        None => Ok(trained.unwrap_or(DEFAULT_CTX).clamp(1, DEFAULT_CTX)),
    }
}

/// The instruction set and threads the user asked for, else the best of this machine.
pub fn cpu(args: &EngineArgs) -> Result<Arc<Cpu>> {
    let isa = args.isa.as_deref().map_or(Ok(Isa::detect()), isa)?;
    let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
    Ok(Arc::new(Cpu::new(isa, Pool::new(threads, !args.no_pin))))
}

/// An instruction set by name, if this machine has it.
pub fn isa(name: &str) -> Result<Isa> {
    let available = Isa::available();
    available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        Error::usage(format!("this machine cannot compute with \"{name}\"; it has: {}", names.join(", ")))
    })
}
