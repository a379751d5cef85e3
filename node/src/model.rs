//! A model ready to answer on this machine: file, tokenizer, template, weights.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api::choice::Draft;
use scheduler::AttentionKind;
use shard::{
    draft::{DraftHead, MtpHead, StateDrafter},
    executor::{Capacity, Device, Ends, Executor, Options, Workspace, load, whole_range},
    gguf::Gguf,
    kernels::{Cores, Cpu, Inputs, Isa, panel_file::PanelFile, threads::Pool},
    models::Blueprint,
    tokenizer::{Tokenizer, chat::Template},
};

use crate::{
    Error, Result,
    cli::EngineArgs,
    confine,
    library::{self, Located},
    output::Waiting,
    panel_cache,
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
    /// What computes them.
    pub device: Device,
    /// Most positions a session may hold.
    pub ctx: usize,
    /// The model that drafts for it, if one does.
    pub drafter: Option<ModelDrafter>,
    /// What guesses its next tokens from its hidden states, if something does.
    pub draft_head: Option<Arc<dyn StateDrafter>>,
    /// The processors its threads are bound to, claimed for as long as it is there.
    _cores: Option<Cores>,
}

/// A smaller model of the same vocabulary, which drafts ([`crate::drafting`]).
pub struct ModelDrafter {
    /// What the user called it.
    pub name: String,
    /// All its layers.
    pub executor: Box<dyn Executor>,
    /// What a guess of it is believed to take, in parts of a token of the model that it drafts for: what it reads for one.
    pub share: f64,
}

/// What a command has opened and claimed, before it confined itself and looked into any of it.
pub struct Prepared {
    located: Option<Located>,
    /// The draft model's name and file.
    drafter: Option<(String, Option<Located>)>,
    head: Option<Located>,
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
        without_head(args)?;
        Self::drafted(args, None)
    }

    /// As [`Self::confined`], with the model that drafts for it.
    fn drafted(args: &EngineArgs, drafter: Option<&str>) -> Result<Self> {
        let located = with_panels(library::locate(args.model())?, args)?;
        let drafter =
            drafter.map(|name| Ok::<_, Error>((name.to_owned(), library::locate(name)?))).transpose()?;
        let head = args.draft_head.as_deref().map(Located::open).transpose()?;
        let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
        let cores = (!args.no_pin).then(|| Cores::claim(threads)).flatten();
        confine::command(&args.device.to_string());
        Ok(Self { located, drafter, head, threads, cores })
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
        Device::open(args.device()?, pipelines().as_deref(), || self.cpu(args))
    }

    /// The processors that were claimed.
    fn cpu(&self, args: &EngineArgs) -> Result<Arc<Cpu>> {
        let processors = self.cores.as_ref().map_or_else(Vec::new, |cores| cores.processors().to_vec());
        cpu(args.isa.as_deref(), Pool::on(self.threads, processors))
    }
}

impl Model {
    /// Opens and loads the model named by `args`.
    ///
    /// # Errors
    /// Those of [`library::locate`], and of the engine for a file that is not sound.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        without_head(args)?;
        let _waiting = Waiting::start("loading the model");
        Self::of(with_panels(library::locate(args.model())?, args)?.as_ref(), args, device(args)?)
    }

    /// As [`Self::load`], in a process that gives up everything but computing before it looks into the file; for commands whose
    /// model writes text.
    ///
    /// # Errors
    /// As for [`Self::load`] and [`writes`].
    pub fn load_confined(args: &EngineArgs) -> Result<Self> {
        without_head(args)?;
        Self::load_drafted(args, &Draft::Off)
    }

    /// As [`Self::load_confined`], noting in `inputs` what its matrices are multiplied with.
    ///
    /// # Errors
    /// As for [`Self::load_confined`]; a usage error for a device that keeps its inputs to itself.
    pub fn load_watched(args: &EngineArgs, inputs: &Arc<Inputs>) -> Result<Self> {
        without_head(args)?;
        let prepared = Prepared::drafted(args, None)?;
        let _waiting = Waiting::start("loading the model");
        let device = prepared.device(args)?;
        let cpu = device.cpu();
        let cpu = cpu.ok_or_else(|| Error::usage("only the processor shows its inputs; say --device cpu"))?;
        cpu.watch(inputs.clone());
        let model = Self::of(prepared.located.as_ref(), args, device)?;
        Ok(Self { _cores: prepared.cores, ..model })
    }

    /// As [`Self::load_confined`], with what `draft` names to draft for it.
    ///
    /// # Errors
    /// As for [`Self::load`] of both models, and when their vocabularies differ.
    pub fn load_drafted(args: &EngineArgs, draft: &Draft) -> Result<Self> {
        let prepared = Prepared::drafted(args, draft.model())?;
        let _waiting = Waiting::start("loading the model");
        let device = prepared.device(args)?;
        let mut model = Self::of(prepared.located.as_ref(), args, device.clone())?;
        writes(model.executor.blueprint(), &model.name)?;
        if let Some((name, located)) = &prepared.drafter {
            model.draft_with(name, located.as_ref(), &on_cpu(&device, || prepared.cpu(args))?)?;
        }
        if draft.head() || prepared.head.is_some() {
            model.foresee_with(prepared.head.as_ref())?;
        }
        Ok(Self { _cores: prepared.cores, ..model })
    }

    /// Has the model called `name`, whose file is open already, draft for this one; `None` is the embedded model.
    ///
    /// # Errors
    /// Those of the engine for a file that is not sound, when the vocabularies differ, and for a model whose states do not go
    /// back: it would read the whole text again behind each wrong guess.
    pub fn draft_with(&mut self, name: &str, located: Option<&Located>, device: &Device) -> Result<()> {
        let gguf = Arc::new(library::parse(located)?);
        let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
        same_vocabulary((&self.name, &self.tokenizer), (name, &tokenizer))?;
        let executor = load_whole(&gguf, device, self.ctx.min(context(&gguf, Some(self.ctx))?))?;
        writes(executor.blueprint(), &model_name(name))?;
        if !executor.blueprint().goes_back() {
            return Err(Error::usage(no_way_back(&model_name(name))));
        }
        let bytes = |executor: &dyn Executor| executor.bytes_per_token(0) as f64;
        let share = bytes(&*executor) / bytes(&*self.executor).max(1.0);
        self.drafter = Some(ModelDrafter { name: name.to_owned(), executor, share });
        Ok(())
    }

    /// Has the draft head in a file that is open already guess next tokens, or else the model's own layer for that, if it has one and
    /// the processor computes.
    ///
    /// # Errors
    /// A usage error for a file on a device that keeps no hidden states; those of [`DraftHead::load`] and [`MtpHead::load`].
    pub fn foresee_with(&mut self, located: Option<&Located>) -> Result<()> {
        self.draft_head = match located {
            Some(located) => Some(Arc::new(draft_head(located, &self.gguf, &self.tokenizer, &self.device)?)),
            None => own_head(&*self.executor, &self.gguf, &self.device)?,
        };
        Ok(())
    }

    /// The model that drafts where a request says `draft`, if one does, for a session whose rows see what `attention` says.
    ///
    /// # Errors
    /// When it names a model that does not draft here.
    pub fn drafter_for(&self, draft: &Draft, attention: AttentionKind) -> Result<Option<&ModelDrafter>> {
        let Some(named) = draft.model() else {
            let takes = *draft == Draft::Auto && attention.goes_back();
            return Ok(self.drafter.as_ref().filter(|_| takes));
        };
        let meant = |drafter: &&ModelDrafter| named == drafter.name || named == model_name(&drafter.name);
        let found = self.drafter.as_ref().filter(meant);
        found.map(Some).ok_or_else(|| Error::usage(Draft::no_model(named)))
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
        Ok(Self {
            name: args.model().to_owned(),
            gguf,
            tokenizer,
            template,
            executor,
            device,
            ctx,
            drafter: None,
            draft_head: None,
            _cores: None,
        })
    }

    /// Buffers for one session, passes of at most [`CHUNK_ROWS`] rows with the logits of `logit_rows` of them.
    pub fn workspace(&self, logit_rows: usize) -> Result<Workspace> {
        let rows = CHUNK_ROWS.min(self.ctx).max(logit_rows);
        Ok(Workspace::new(&*self.executor, Capacity { rows, items: 1, logit_rows })?)
    }
}

/// The draft head in a file that is open already, for the model in `gguf`, which computes on `device`.
///
/// # Errors
/// A usage error on a device that keeps no hidden states; those of [`DraftHead::load`].
pub(crate) fn draft_head(
    located: &Located,
    gguf: &Arc<Gguf>,
    tokenizer: &Tokenizer,
    device: &Device,
) -> Result<DraftHead> {
    let cpu = device.cpu().ok_or_else(|| {
        Error::usage("a draft head reads hidden states, which this device keeps to itself; say --device cpu")
    })?;
    Ok(DraftHead::load(&library::parse(Some(located))?, gguf, tokenizer.digest(), cpu)?)
}

/// The layer of the model in `gguf` that predicts one token further, where it has one and the processor computes; `executor` has the
/// last layers.
///
/// # Errors
/// Those of [`MtpHead::load`].
pub(crate) fn own_head(
    executor: &dyn Executor,
    gguf: &Arc<Gguf>,
    device: &Device,
) -> Result<Option<Arc<dyn StateDrafter>>> {
    let head = device.cpu().map_or(Ok(None), |cpu| MtpHead::load(executor, gguf, cpu))?;
    Ok(head.map(|head| Arc::new(head) as Arc<dyn StateDrafter>))
}

/// Refuses a draft head where nothing is drafted.
fn without_head(args: &EngineArgs) -> Result<()> {
    match args.draft_head {
        None => Ok(()),
        Some(_) => Err(Error::usage("--draft-head is for commands that answer: run, chat, serve and join")),
    }
}

/// The format that most bytes are in.
pub fn main_format(gguf: &Gguf) -> &'static str {
    let bytes_in =
        |number: u32| gguf.tensors().iter().filter(|t| t.ggml_type == number).map(|t| t.len).sum::<u64>();
    shard::quant::ALL
        .iter()
        .chain(shard::quant::FOREIGN)
        .max_by_key(|f| bytes_in(f.ggml_type))
        .map_or("none", |f| f.name)
}

/// What clients call a model: its name, or its file's name without the folder, letters that names cannot have replaced.
pub(crate) fn model_name(model: &str) -> String {
    let file = model.rsplit(['/', '\\']).next().unwrap_or(model);
    let file = file.strip_suffix(".gguf").unwrap_or(file);
    let letter =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':') { c } else { '-' };
    file.chars().take(96).map(letter).collect()
}

/// Why a model whose states do not go back does not draft.
pub(crate) fn no_way_back(drafter: &str) -> String {
    format!(
        "\"{drafter}\" cannot draft: its state does not go back behind a wrong guess; choose a model that is no recurrent one, or \
         --draft auto"
    )
}

/// The processor for a draft model of a model on `device`: what a GPU has room for is the larger model's.
///
/// # Errors
/// Those of `cpu`.
pub fn on_cpu(device: &Device, cpu: impl FnOnce() -> Result<Arc<Cpu>>) -> Result<Device> {
    match device {
        Device::Cpu(_) => Ok(device.clone()),
        _ => Ok(Device::Cpu(cpu()?)),
    }
}

/// Refuses a draft model whose tokens are others than those of the model that it is to draft for.
///
/// # Errors
/// [`Error::Usage`] with the first token that differs.
fn same_vocabulary((name, ours): (&str, &Tokenizer), (drafter, theirs): (&str, &Tokenizer)) -> Result<()> {
    if ours.digest() == theirs.digest() {
        return Ok(());
    }
    let same =
        |id: &u32| ours.token_text(*id) == theirs.token_text(*id) && ours.kind(*id) == theirs.kind(*id);
    let (few, many) = (ours.len().min(theirs.len()), ours.len().max(theirs.len()));
    let first = (0..few as u32).find(|id| !same(id)).unwrap_or(few as u32);
    let drafter = model_name(drafter);
    let name = model_name(name);
    Err(Error::usage(format!(
        "\"{drafter}\" cannot draft for \"{name}\": their vocabularies differ (token {first} of up to {many}, \"{}\" and \"{}\"); \
         choose a draft model of the same family",
        theirs.token_text(first),
        ours.token_text(first)
    )))
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
    let executor = load(device, gguf, whole_range(gguf)?, Ends::BOTH, Options { context: Some(ctx) })?;
    gguf.panels().into_iter().for_each(PanelFile::save);
    Ok(executor)
}

/// A model with its packed weights in the data folder.
fn with_panels(located: Option<Located>, args: &EngineArgs) -> Result<Option<Located>> {
    let attach = |located| Ok(panel_cache::attach(located, &library::home()?, &[], args.panel_cache));
    located.map(attach).transpose()
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
    let on = || cpu(args.isa.as_deref(), Pool::new(threads, !args.no_pin));
    Device::open(args.device()?, pipelines().as_deref(), on)
}

/// Where a GPU's compiled kernels are kept; nowhere without a home folder.
pub fn pipelines() -> Option<PathBuf> {
    library::home().ok().map(|home| pipelines_in(&home))
}

/// The same in the data folder `home`.
pub fn pipelines_in(home: &Path) -> PathBuf {
    home.join("pipelines")
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
