//! The executor of profile `d1`: kernels of our own, the same bits on every machine.
//!
//! A [`Shard`] holds packed weights. Why the same bits always come out: all rows of a batch go through every matrix together,
//! yet each row's result depends on that row alone (see [`crate::kernels`]); attention runs per item; experts add their
//! outputs to a row in ascending expert order, whatever else is in the batch. So chunk sizes, batches, thread counts and cuts
//! do not matter.
//!
//! All buffers live in a workspace made once. After a first pass has sized the kernels' scratch memory, a pass allocates
//! only the pages that a growing state needs (none after [`crate::state::SessionState::reserve`]).
//!
//! Limits: whole model families only as [`crate::models`] describes them.

mod buffers;
mod elsewhere;
mod ends;
mod experts;
mod forward;
mod load;
mod mixers;
mod network;
mod per_layer;
mod recurrent;
mod streams;
mod weights;

use std::sync::Arc;

use scheduler::{AttentionKind, CacheType, ExpertRange, LayerRange, SessionKind};

use super::{
    Buffers, Capacity, Class, Ends, Executor, ExpertWork, Item, Options, Pass, Workspace,
    batch::{self, refuse_non_finite},
    not_ranked, read_bytes,
    tags::Tags,
    whole_range,
};
use crate::{
    Error, Result,
    gguf::Gguf,
    kernels::Cpu,
    models::{Attention, Blueprint, Frequencies, Layer, layer_name},
    state::{Beside, Evicting, Kind, LayerState, Paged, Recurrent},
};
use buffers::CpuBuffers;
use ends::{Embedding, HeadWeights};
use weights::{LayerWeights, TokenWeights};

/// The packed weights of consecutive layers, ready to compute.
pub struct Shard {
    blueprint: Blueprint,
    cpu: Arc<Cpu>,
    range: LayerRange,
    context: usize,
    frequencies: Vec<Frequencies>,
    layers: Vec<LayerWeights>,
    embedding: Option<Embedding>,
    head: Option<HeadWeights>,
    tags: Tags,
    /// The tag of all layers held.
    tag: u64,
}

impl Shard {
    /// Loads and packs `layers` and `ends` of the model in `gguf`; tensors of other layers are not touched.
    ///
    /// The file stays open while the shard lives if it holds the embedding, whose rows are read when used.
    ///
    /// # Errors
    /// Those of [`Blueprint::from_gguf`]; [`Error::Invalid`] for layers the model does not have, ends that do not belong
    /// to the layers, or a context of zero or beyond what the model was trained for.
    pub fn load(
        gguf: &Arc<Gguf>,
        cpu: Arc<Cpu>,
        layers: LayerRange,
        ends: Ends,
        options: Options,
    ) -> Result<Self> {
        Self::load_experts(gguf, cpu, layers, ends, options, None)
    }

    /// As [`Shard::load`], with only these `experts` of those layers that have any.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for experts that a layer does not have.
    pub fn load_experts(
        gguf: &Arc<Gguf>,
        cpu: Arc<Cpu>,
        layers: LayerRange,
        ends: Ends,
        options: Options,
        experts: Option<ExpertRange>,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_gguf(gguf)?;
        let context = batch::check_load(&blueprint, layers, ends, options)?;
        experts.map_or(Ok(()), |experts| batch::check_experts(&blueprint, experts))?;
        let frequencies: Vec<_> = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        let loader = load::Loader { gguf, cpu: &cpu, blueprint: &blueprint, experts };
        // The head first: it is the largest tensor, and while one is packed its pages in the file are in memory too.
        let head = ends.head.then(|| HeadWeights::load(&loader)).transpose()?;
        let weights = (layers.start()..layers.end())
            .map(|index| loader.layer(index as usize))
            .collect::<Result<Vec<_>>>()?;
        let embedding = ends.embedding.then(|| Embedding::load(&loader, gguf)).transpose()?;
        let tags = Tags::new(gguf, "", &blueprint, layers, &frequencies);
        // Reading maps a neighborhood around every touched page; what is needed again is mapped again.
        gguf.forget_range(0..gguf.file_len());
        Ok(Self {
            cpu,
            range: layers,
            context,
            frequencies,
            layers: weights,
            embedding,
            head,
            tag: tags.of(layers, layers),
            tags,
            blueprint,
        })
    }

    /// Loads the whole model with default options.
    pub fn whole(gguf: &Arc<Gguf>, cpu: Arc<Cpu>) -> Result<Self> {
        let range = whole_range(gguf)?;
        Self::load(gguf, cpu, range, Ends::BOTH, Options::default())
    }

    /// Bytes of the matrices outside layers: the head's, and what makes the rows of a token that layers read.
    fn ends_bytes(&self) -> usize {
        let token = self.embedding.as_ref().and_then(|embedding| embedding.token.as_ref());
        self.head.as_ref().map_or(0, HeadWeights::resident_bytes)
            + token.map_or(0, TokenWeights::resident_bytes)
    }
}

/// Refuses sessions of a kind that is not computed here of this model; see [`Executor::attends`].
pub(super) fn attends(blueprint: &Blueprint, kind: SessionKind) -> Result<()> {
    let SessionKind { attention, cache } = kind;
    let sparse = matches!(attention, AttentionKind::Sparse(_));
    if blueprint.encodes() && (attention, cache) != (AttentionKind::Dense, CacheType::F16) {
        let why = format!("attention {attention} and a cache of {cache} of an encoder: choose dense and f16");
        return Err(Error::unsupported(why));
    }
    let latent = blueprint.layers.iter().any(|layer| matches!(layer.attention, Attention::Latent(_)));
    let h2o = matches!(attention, AttentionKind::H2o(_));
    let beside = blueprint.layers.iter().any(|layer| matches!(layer.attention, Attention::Beside(..)));
    let lends = blueprint.layers.iter().any(|layer| layer.attention.source().is_some());
    let blocks = blueprint.layers.iter().any(|layer| match layer.attention {
        Attention::Softmax(softmax) => softmax.chunk.is_some(),
        _ => false,
    });
    let why = match cache {
        _ if h2o && latent => {
            format!("attention {attention} of a model with latent attention: choose dense or window:N")
        }
        _ if h2o && beside => {
            format!("attention {attention} of a model with attention beside Mamba2: choose dense or window:N")
        }
        _ if h2o && lends => {
            format!("attention {attention} of a model whose layers share keys: choose dense or window:N")
        }
        _ if h2o && cache != CacheType::F16 => {
            format!("a cache of {cache} with attention {attention}: choose f16, or dense or window:N")
        }
        _ if sparse && latent => {
            format!("attention {attention} of a model with latent attention: choose dense or window:N")
        }
        CacheType::F16 => return Ok(()),
        _ if latent => format!("a cache of {cache} of a model with latent attention: choose f16"),
        // A block is looked at from its first quarter on, and only that of a session is f16.
        CacheType::Q4 if blocks => {
            format!("a cache of {cache} of a model with attention in blocks: choose q8 or f16")
        }
        _ if sparse => {
            format!("a cache of {cache} with attention {attention}: choose f16, or dense or window:N")
        }
        _ => return Ok(()),
    };
    Err(Error::unsupported(why))
}

impl Executor for Shard {
    fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    fn range(&self) -> LayerRange {
        self.range
    }

    fn ends(&self) -> Ends {
        Ends { embedding: self.embedding.is_some(), head: self.head.is_some() }
    }

    fn context(&self) -> usize {
        self.context
    }

    fn class(&self) -> Class {
        Class::D1
    }

    fn device(&self) -> String {
        format!("cpu ({}, {} threads)", self.cpu.isa().name(), self.cpu.pool().threads())
    }

    fn resident_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(LayerWeights::resident_bytes).sum();
        layers + self.ends_bytes()
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        let held = &self.blueprint.layers[self.range.start() as usize..self.range.end() as usize];
        let used = |layer: &Layer| layer.feed_forward.experts().map_or(0, |experts| experts.used);
        let layers: usize = self.layers.iter().zip(held).map(|(w, layer)| w.touched_bytes(used(layer))).sum();
        layers + self.ends_bytes() + read_bytes(&self.blueprint, self.range, position)
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        if layers == self.range { self.tag } else { self.tags.of(self.range, layers) }
    }

    fn attends(&self, kind: SessionKind) -> Result<()> {
        attends(&self.blueprint, kind)
    }

    fn rank(&self, state: &[f32]) -> Result<f32> {
        let weights = self.head.as_ref().and_then(|head| head.rank.as_ref());
        let weights = weights.filter(|_| state.len() == self.blueprint.hidden).ok_or_else(not_ranked)?;
        let score = weights.score(&self.cpu, self.blueprint.norm, state);
        refuse_non_finite(&[score], "the scores of texts")?;
        Ok(score)
    }

    fn next_token_layer(&self, gguf: &Arc<Gguf>) -> Result<Option<Box<dyn Executor>>> {
        let whole = self.range.end() as usize == self.blueprint.layers.len();
        let ahead = self.blueprint.ahead.first.as_deref().zip(self.head.as_ref()).filter(|_| whole);
        let Some((layer, head)) = ahead else { return Ok(None) };
        let index = self.range.end();
        let mut blueprint = self.blueprint.clone();
        blueprint.layers.push(layer.clone());
        let loader = load::Loader { gguf, cpu: &self.cpu, blueprint: &blueprint, experts: None };
        let norm = Some(loader.norm(&layer_name(index as usize, "nextn.shared_head_norm"))?);
        let head = HeadWeights { norm, ..head.shared() };
        let layers = vec![loader.layer(index as usize)?];
        let range = LayerRange::new(index, index + 1).ok_or_else(|| Error::invalid("too many layers"))?;
        let tags = Tags::new(gguf, "", &blueprint, range, &self.frequencies);
        Ok(Some(Box::new(Self {
            cpu: self.cpu.clone(),
            range,
            context: self.context,
            frequencies: self.frequencies.clone(),
            layers,
            embedding: None,
            head: Some(head),
            tag: tags.of(range, range),
            tags,
            blueprint,
        })))
    }

    fn new_layer_state(&self, layer: u32, kind: SessionKind) -> Box<dyn LayerState> {
        let layer = layer as usize;
        let paged = |shape| {
            let (_, rule) = self.blueprint.sight(layer, kind.attention);
            let back = self.blueprint.back(layer, kind.attention);
            Paged::new(shape, self.context).looking(back).attending(kind.attention, rule, &self.cpu)
        };
        match self.blueprint.state_kind(layer).stored(kind.cache) {
            Kind::Paged(shape) => match self.blueprint.evicts(layer, kind.attention) {
                Some(rule) => Box::new(Evicting::new(paged(shape), rule)),
                None => Box::new(paged(shape)),
            },
            Kind::Beside { kv, width } => Box::new(Beside::new(paged(kv), Recurrent::new(width))),
            kind => kind.empty(self.context),
        }
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        Ok(Box::new(CpuBuffers::new(self, capacity)))
    }

    fn experts(&self, ws: &mut Workspace, work: ExpertWork<'_>, out: &mut Vec<f32>) -> Result<()> {
        ws.clear();
        let ws: &mut CpuBuffers = ws.buffers()?;
        let layer = LayerRange::new(work.layer, work.layer.saturating_add(1));
        let layer = layer.ok_or_else(|| Error::invalid("a layer beyond all models"))?;
        batch::check_held(self.range, layer)?;
        let weights = self.layers[(work.layer - self.range.start()) as usize].feed_forward.experts();
        let spec = self.blueprint.layers[work.layer as usize].feed_forward.experts();
        let known = weights.zip(spec).ok_or_else(|| Error::invalid("experts of a layer that has none"))?;
        experts::visit(&self.cpu, known, ws, work, out)
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let ws: &mut CpuBuffers = ws.buffers()?;
        batch::check_held(self.range, pass.layers)?;
        if ws.sizes.hidden != self.blueprint.hidden || ws.sizes.has_head != self.head.is_some() {
            return Err(Error::invalid("the workspace belongs to another shard"));
        }
        let outcome = batch::admit(self, ws.capacity, pass, items, &mut ws.spans)
            .and_then(|rows| self.compute(ws, pass, items, rows));
        match outcome {
            Ok(()) => items.iter_mut().zip(&ws.spans).for_each(|(item, span)| item.state.advance(span.rows)),
            Err(_) => {
                ws.clear();
                items.iter_mut().for_each(|item| item.state.mend());
            }
        }
        outcome
    }
}
