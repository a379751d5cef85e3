//! The model in the child: what [`Load`] asks for, in memory.

use std::{
    fs::File,
    sync::{Arc, OnceLock},
    time::Instant,
};

use blake3::Hasher;
use scheduler::{CacheType, ExpertRange, LayerRange, LayerSet, ModelId, SessionKind, layer_cost::LayerCosts};
use serde_json::Value;
use shard::{
    draft::StateDrafter,
    executor::{self, Capacity, Class, Device, DeviceName, Ends, Executor, Options, Workspace},
    gguf::Gguf,
    golden,
    kernels::{panel_file::PanelFile, threads::Pool},
    models::{Blueprint, layer_costs},
    tokenizer::{Encode, Tokenizer, chat::Template},
};

use super::{
    Measure,
    experts::Lacking,
    ipc::{self, Load, TextKind},
    pooling::PoolingTasks,
    ready::{ExpertShape, SHARES},
};
use crate::{
    Error, Result,
    constrain::{Constraint, Constraints, Tags},
    encode::{self, rank_prompt::RankPrompt, text_pair::TextPair},
    library::{self, Located},
    model,
    platform::files::path_from_bytes,
};

/// Positions among which what a session costs anyway is shared: a page of those that have pages.
const SHARE: usize = 256;

/// What the daemon has opened.
#[derive(Default)]
pub(super) struct Files {
    /// The model's file.
    pub(super) model: Option<File>,
    /// That of its panels.
    pub(super) panels: Option<Arc<File>>,
    /// That of its draft head.
    pub(super) head: Option<File>,
}

/// One model's layers, and what turns text into ids and back.
pub(super) struct Loaded {
    pub(super) model: ModelId,
    pub(super) name: String,
    /// What computes.
    pub(super) device: Device,
    /// Whether it gives the bits of profile `d1`.
    pub(super) exact: bool,
    /// One per merged range, ascending; at least one.
    pub(super) stages: Vec<Box<dyn Executor>>,
    pub(super) context: usize,
    pub(super) load_ms: f64,
    /// Bytes of one layer's tensors in the file, on average.
    pub(super) layer_bytes: u64,
    /// What each layer of the model costs.
    pub(super) costs: LayerCosts,
    /// What is wrong with the tokenizer matters only to who conducts.
    pub(super) tokenizer: Result<Tokenizer, String>,
    /// Where experts of its layers are that are not here.
    pub(super) experts: Lacking,
    /// What guesses its next tokens, where the end of the model is here.
    pub(super) draft_head: Option<Arc<dyn StateDrafter>>,
    template: Result<Option<Template>, String>,
    /// What is made of texts that are not answered.
    pub(super) pooling: PoolingTasks,
    /// Made when the first answer must have a form: it reads the whole vocabulary.
    constraints: OnceLock<Result<Constraints, String>>,
}

impl Loaded {
    /// Maps the file, `None` for the embedded model, and packs the layers.
    pub(super) fn load(load: &Load, mut files: Files, device: Device) -> Result<Self> {
        let started = Instant::now();
        let head = files.head.take();
        let (gguf, id) = open(load, files)?;
        let gguf = Arc::new(gguf);
        let blueprint = Blueprint::from_gguf(&gguf)?;
        let num_layers = blueprint.layers.len() as u32;
        let layers: Vec<LayerRange> =
            load.layers.iter().map(|&pair| ipc::range(pair)).collect::<Result<_, _>>()?;
        let set = LayerSet::new(layers.into_iter().chain(
            // No layers named means all of them.
            load.layers.is_empty().then(|| LayerRange::new(0, num_layers)).flatten(),
        ));
        let asked = usize::try_from(load.context).unwrap_or(usize::MAX);
        let context = model::context(&gguf, Some(asked))?;
        // Before anything is loaded: the names of states follow from it.
        let exact = is_exact(&device, load.exact)?;
        if !exact {
            device.demote();
        }
        let stages = set
            .ranges()
            .iter()
            .map(|&range| {
                let ends = Ends { embedding: range.start() == 0, head: range.end() == num_layers };
                let options = Options { context: Some(context) };
                match load.experts.map(|((start, end), _)| ExpertRange::new(start, end)) {
                    None => executor::load(&device, &gguf, range, ends, options),
                    Some(experts) => {
                        let none = || shard::Error::invalid("no experts");
                        executor::load_experts(
                            &device,
                            &gguf,
                            range,
                            ends,
                            options,
                            experts.ok_or_else(none)?,
                        )
                    }
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        gguf.panels().into_iter().for_each(PanelFile::save);
        if stages.is_empty() {
            return Err(Error::usage("a worker without layers: name some, or none for all"));
        }
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).map_err(|error| error.to_string());
        let ends = set.ranges().last().is_some_and(|range| range.end() == num_layers);
        let draft_head = match (head, &load.draft_head, &tokenizer) {
            (Some(file), Some((path, bytes)), Ok(tokenizer)) if ends => {
                let located = Located {
                    file,
                    bytes: *bytes,
                    path: path_from_bytes(path),
                    rest: Vec::new(),
                    panels: None,
                };
                let head = model::draft_head(&located, &gguf, tokenizer, &device)?;
                Some(Arc::new(head) as Arc<dyn StateDrafter>)
            }
            (None, None, _) => {
                stages.last().map_or(Ok(None), |last| model::own_head(&**last, &gguf, &device))?
            }
            _ => None,
        };
        Ok(Self {
            model: id,
            name: name(&gguf, load),
            draft_head,
            experts: if load.experts.is_some() { Lacking::Unasked } else { Lacking::Nothing },
            device,
            exact,
            stages,
            context,
            layer_bytes: model::layer_bytes(&gguf) / u64::from(num_layers.max(1)),
            costs: layer_costs(&blueprint, &gguf)?,
            load_ms: started.elapsed().as_secs_f64() * 1e3,
            tokenizer,
            pooling: PoolingTasks::of(gguf.metadata(), &blueprint),
            template: Template::from_gguf(gguf.metadata(), None).map_err(|error| error.to_string()),
            constraints: OnceLock::new(),
        })
    }

    /// Buffers for passes of a stage.
    pub(super) fn workspace(&self, stage: usize, capacity: Capacity) -> Result<Workspace> {
        let mut workspace = Workspace::new(&*self.stages[stage], capacity)?;
        if let Lacking::Asked(line) = &self.experts {
            workspace.ask_of(Box::new(line.clone()));
        }
        Ok(workspace)
    }

    /// What the model is.
    pub(super) fn blueprint(&self) -> &Blueprint {
        self.stages[0].blueprint()
    }

    /// What the experts of its layers are like, if any has some.
    pub(super) fn expert_shape(&self) -> Option<ExpertShape> {
        let blueprint = self.blueprint();
        let layers = blueprint.layers.iter().zip(0..);
        let with = layers.filter_map(|(layer, index)| Some((index, layer.feed_forward.experts()?)));
        let count = with.clone().map(|(_, experts)| experts.count).min()?;
        let held = |layer| self.stages.iter().any(|stage| stage.range().contains(layer));
        let (layer, experts) = with.clone().find(|(layer, _)| held(*layer))?;
        let width = experts.latent.unwrap_or(blueprint.hidden);
        Some(ExpertShape { count: count as u32, width: width as u32, layer })
    }

    /// Whether it reads a text in one pass, whose positions all see each other, and writes none.
    pub(super) fn encodes(&self) -> bool {
        self.blueprint().encodes()
    }

    /// Layers of the whole model.
    pub(super) fn num_layers(&self) -> u32 {
        self.blueprint().layers.len() as u32
    }

    /// Which of the stages holds `layers`.
    pub(super) fn stage_of(&self, layers: LayerRange) -> Option<usize> {
        self.stages.iter().position(|stage| stage.range().covers(layers))
    }

    /// State bytes of one position in one layer, with its share of what a session costs anyway: of the layer that costs most.
    pub(super) fn position_bytes(&self) -> u64 {
        let layers = |stage: &dyn Executor| (stage.range().start()..stage.range().end()).collect::<Vec<_>>();
        let bytes = |stage: &dyn Executor, layer: u32| {
            LayerRange::new(layer, layer + 1)
                .map_or(0, |layer| stage.state_bytes(layer, SHARE, CacheType::F16))
        };
        let all = self.stages.iter().flat_map(|stage| {
            layers(&**stage).into_iter().map(move |layer| bytes(&**stage, layer).div_ceil(SHARE))
        });
        all.max().unwrap_or(0) as u64
    }

    /// What keys and values of the form `cache` take of the bytes of f16, at most, in parts of [`SHARES`].
    pub(super) fn share(&self, cache: CacheType) -> u32 {
        let blueprint = self.blueprint();
        let shares = (0..blueprint.layers.len()).filter_map(|layer| {
            let kind = blueprint.state_kind(layer);
            let (whole, small) = (kind.position_bytes() as u64, kind.stored(cache).position_bytes() as u64);
            (whole > 0).then(|| (small * u64::from(SHARES)).div_ceil(whole))
        });
        shares.max().map_or(SHARES, |share| u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// What caches may take of `kv_bytes`: no more than the memory of a device holds.
    pub(super) fn state_room(&self, kv_bytes: u64) -> u64 {
        self.stages.iter().filter_map(|stage| stage.state_room()).fold(kv_bytes, u64::min)
    }

    /// State bytes of `positions` in `layers`, which `stage` holds, in a session of `kind`.
    pub(super) fn state_bytes(
        &self,
        stage: usize,
        layers: LayerRange,
        positions: u32,
        kind: SessionKind,
    ) -> u64 {
        self.stages[stage].session_bytes(layers, positions as usize, kind) as u64
    }

    /// The tokenizer, or why there is none.
    pub(super) fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer
            .as_ref()
            .map_err(|why| Error::usage(format!("the model's tokenizer cannot be used: {why}")))
    }

    /// Text to ids.
    pub(super) fn encode(&self, kind: &TextKind, text: &[u8]) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        match kind {
            TextKind::Raw { bos, special } => {
                let text = std::str::from_utf8(text).map_err(|_| Error::usage("the text is not UTF-8"))?;
                let text = tokenizer.beginning(text, self.context);
                Ok(tokenizer.encode(text, Encode { bos: *bos, special: *special })?)
            }
            TextKind::Document { query, truncate } => {
                let document =
                    std::str::from_utf8(text).map_err(|_| Error::usage("the text is not UTF-8"))?;
                if self.encodes() {
                    return TextPair::of(tokenizer, query, self.context)?.with(document, *truncate);
                }
                let prompt = RankPrompt::of(self.pooling.question.as_deref(), tokenizer)?;
                let bare = prompt.room(query, self.context)?;
                prompt.pair((query, document), (bare, self.context), *truncate)
            }
            TextKind::Chat { tools, extra } => {
                let messages: Value = serde_json::from_slice(text)?;
                let tools = tools.as_deref().map(serde_json::from_str).transpose()?;
                let extra = extra.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default();
                encode::encode_messages(tokenizer, &self.template, &messages, tools, extra, self.context)
            }
        }
    }

    /// Whether a prompt of this kind ends inside a block of reasoning.
    pub(super) fn opens_reasoning(&self, kind: &TextKind, ids: &[u32]) -> bool {
        let tokenizer = self.tokenizer().ok().filter(|_| matches!(kind, TextKind::Chat { .. }));
        tokenizer.is_some_and(|tokenizer| encode::opens_reasoning(tokenizer, ids))
    }

    /// What keeps an answer to the form that `format`, JSON of [`api::inference::Format`], asks for.
    pub(super) fn constraint(&self, format: Option<&str>) -> Result<Option<Constraint>> {
        let Some(format) = format else { return Ok(None) };
        let format = serde_json::from_str(format)?;
        let made = self.constraints.get_or_init(|| {
            let tokenizer = self.tokenizer().map_err(|error| error.to_string())?;
            let tags = Tags::of(self.template.as_ref().ok().and_then(Option::as_ref));
            Constraints::new(tokenizer, self.blueprint().vocab, tags).map_err(|error| error.to_string())
        });
        let constraints = made.as_ref().map_err(|why| Error::usage(why.clone()))?;
        constraints.constraint(&format).map_err(|failure| Error::usage(failure.to_string()))
    }
}

/// Opens what `load` says shall compute.
pub(super) fn open_device(load: &Load) -> Result<Device> {
    let threads = load.threads.count.map_or_else(Pool::physical_cores, |threads| threads as usize);
    let processors = load.threads.processors.iter().map(|processor| *processor as usize).collect();
    let wanted: DeviceName = load.device.0.parse()?;
    let pipelines = load.device.1.as_deref().map(path_from_bytes);
    let on = || model::cpu(load.isa.as_deref(), Pool::on(threads, processors));
    let device = Device::open(wanted, pipelines.as_deref(), on)?;
    if load.measure == Measure::Trial && device.is_software() && !tries_software() {
        return Err(Error::usage(format!(
            "{wanted} is a software device, which is slower than the processor"
        )));
    }
    Ok(device)
}

/// Whether `--device auto` tries software devices, as a test may want it.
fn tries_software() -> bool {
    #[cfg(debug_assertions)]
    return super::fault::tries_software();
    #[cfg(not(debug_assertions))]
    false
}

/// Whether `device` gives the bits of profile `d1`; `known` is what an earlier worker of this machine found.
fn is_exact(device: &Device, known: Option<bool>) -> Result<bool> {
    match (device.class(), known) {
        (Class::Approx, _) => Ok(false),
        (Class::D1, Some(known)) => Ok(known),
        (Class::D1, None) => Ok(golden::check_device(device)?.iter().all(|check| check.passed())),
    }
}

fn open(load: &Load, Files { model: file, panels, .. }: Files) -> Result<(Gguf, ModelId)> {
    let Some((path, bytes, _)) = &load.file else {
        let id = load.model.unwrap_or_else(library::embedded_hash);
        return Ok((library::parse(None)?, ModelId::new(id)));
    };
    let file = file.ok_or_else(|| Error::usage("the daemon sent no file with its name"))?;
    let located = Located { file, bytes: *bytes, path: path_from_bytes(path), rest: Vec::new(), panels };
    let id = match load.model {
        Some(id) if !load.verify => id,
        known => {
            let found = hash(&located.file)?;
            if known.is_some_and(|known| known != found) {
                return Err(Error::Failed(format!(
                    "{} is not the file it was: its hash is another; add it again with `shoal model add`",
                    located.path.display()
                )));
            }
            found
        }
    };
    Ok((library::parse(Some(&located))?, ModelId::new(id)))
}

fn hash(file: &File) -> Result<[u8; 32]> {
    let mut hasher = Hasher::new();
    hasher.update_reader(file)?;
    Ok(*hasher.finalize().as_bytes())
}

/// What the file calls itself, else the file's own name.
fn name(gguf: &Gguf, load: &Load) -> String {
    let stem = |bytes: &Vec<u8>| Some(path_from_bytes(bytes).file_stem()?.to_string_lossy().into_owned());
    let named = gguf.metadata().str("general.name").map(str::to_string);
    named
        .or_else(|| load.file.as_ref().and_then(|(path, ..)| stem(path)))
        .unwrap_or_else(|| library::DEFAULT_MODEL.to_string())
}
