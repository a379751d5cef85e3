//! The API's other side on one machine alone: prompts become jobs of the compute thread ([`batch`]).
//!
//! [`Alone`] computes in its own process. `shoal serve`, which holds a token, has a confined process do that
//! ([`confined`], [`engine`]), and speaks to it in the same requests and events ([`wire`]).
//!
//! The API answers from the first moment: while the model loads every prompt is told to come back in a second.

pub mod batch;
pub mod confined;
pub mod engine;
mod keeper;
pub mod prompt;
mod texts;
mod wire;

use scheduler::{SessionKind, attention::BadAttention};
use std::sync::{Arc, OnceLock};

use api::{
    Inference,
    inference::{
        EmbedRequest, Embeddings, Failure, GenerateRequest, Generation, Metric, Mode, ModelInfo, Plan,
        Prompt, Ranking, RerankRequest, Verify, Wire,
    },
    swarm::{
        Connection, Contribution, ContributionChange, Holding, ModeInfo, Node, NodeState, Reachability,
        SwarmEvent, SwarmModel, SwarmSnapshot,
    },
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use shard::{executor::Pooling, gguf::Gguf, models::Blueprint, sample::SamplingParams, tokenizer::Encode};

pub(in crate::inference) use self::texts::{check_ranked, probability};
use self::{
    batch::{Ask, Echo, Jobs, Reading},
    texts::Asker,
};
pub(crate) use crate::model::model_name;
use crate::{
    Result,
    cli::EngineArgs,
    constrain::{Constraints, Tags},
    encode, memory,
    model::{self, Model},
    state_store::StateStore,
};

/// How a node alone names itself.
const ME: &str = "me";
/// Loading the largest models takes some minutes, most take seconds.
const RETRY_AFTER_S: u32 = 2;

/// A node that computes everything itself.
pub struct Alone {
    state: Arc<OnceLock<Result<Ready, String>>>,
    jobs: Jobs,
    name: String,
}

struct Ready {
    model: Model,
    info: ModelInfo,
    constraints: Result<Constraints, String>,
}

impl Alone {
    /// Begins to load the model of `args` on the thread that will compute. `kv_bytes` bounds the memory of all sessions.
    ///
    /// # Errors
    /// When the thread cannot be started; what goes wrong on it is reported to callers.
    pub fn start(args: EngineArgs, kv_bytes: usize) -> Result<Arc<Self>> {
        let name = model_name(args.model());
        let load = move || {
            let mut model = Model::load(&args)?;
            model.foresee_with(None)?;
            Ok(model)
        };
        Self::of(load, name, kv_bytes, None)
    }

    /// As [`Self::start`], with a model that is loaded by `load` and called `name`, and where states of ended sessions lie on disk.
    pub(super) fn of(
        load: impl FnOnce() -> Result<Model> + Send + 'static,
        name: String,
        kv_bytes: usize,
        store: Option<StateStore>,
    ) -> Result<Arc<Self>> {
        let state = Arc::new(OnceLock::new());
        let (jobs, work) = Jobs::new();
        let (theirs, called) = (state.clone(), name.clone());
        std::thread::Builder::new().name("compute".into()).spawn(move || {
            let ready = theirs.get_or_init(|| {
                load().map(|model| Ready::of(model, called)).map_err(|error| error.to_string())
            });
            match ready {
                Ok(ready) => {
                    if let Err(error) = batch::run(&ready.model, &work, kv_bytes, store) {
                        tracing::error!(%error, "the engine stopped");
                    }
                }
                Err(why) => tracing::error!(%why, "the model could not be loaded"),
            }
        })?;
        Ok(Arc::new(Self { state, jobs, name }))
    }

    /// How much is under way.
    pub(super) fn reading(&self) -> Reading {
        self.jobs.gauges().read()
    }

    /// Why the device computes nothing any more, if that is so.
    pub(super) fn lost(&self) -> Option<String> {
        self.jobs.gauges().lost()
    }

    /// Whether the model is loaded, or why it cannot be; `None` while it loads.
    pub fn loaded(&self) -> Option<Result<(), String>> {
        self.state.get().map(|state| state.as_ref().map(|_| ()).map_err(Clone::clone))
    }

    /// What is made of the hidden states of texts: their vectors, or where they are to be `ranked` their scores. `texts` is told how to
    /// see that the asker is gone.
    fn pooled(
        &self,
        ranked: bool,
        texts: impl FnOnce(&Ready, &Asker) -> Result<Vec<Vec<u32>>, Failure> + Send + 'static,
    ) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        let (state, jobs) = (self.state.clone(), self.jobs.clone());
        let loading = self.ready(None).err();
        let stopped = |why: String| Failure::Internal { why };
        async move {
            let model = match (state.get(), loading) {
                (Some(Ok(ready)), None) => ready.info.name.clone(),
                (_, failure) => return Err(failure.unwrap_or_else(|| stopped("no model".into()))),
            };
            // Encoding takes its time, as in `generate`; dropping this future drops what `asker` sees.
            let waits = Arc::new(());
            let asker = Asker::of(&waits);
            let texts = tokio::task::spawn_blocking(move || match state.get() {
                Some(Ok(ready)) => texts(ready, &asker),
                _ => Ok(Vec::new()),
            });
            let texts = texts.await.map_err(|error| stopped(error.to_string()))??;
            let prompt_tokens = texts.iter().map(Vec::len).sum();
            let vectors = jobs.embed(texts, ranked)?.await;
            let vectors = vectors.map_err(|_| stopped("the engine stopped".into()))??;
            drop(waits);
            Ok(Embeddings { model, vectors, prompt_tokens })
        }
        .boxed()
    }

    fn model(&self) -> Result<&Ready, Failure> {
        let unavailable = |why: String| Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S };
        match self.state.get() {
            None => Err(unavailable(format!("the model {} is being loaded", self.name))),
            Some(Err(why)) => Err(unavailable(format!("the model could not be loaded: {why}"))),
            Some(Ok(ready)) => Ok(ready),
        }
    }
}

/// What clients are told of the model in `gguf`, of which sessions hold `ctx` positions.
pub(crate) fn info(gguf: &Gguf, blueprint: &Blueprint, ctx: usize, name: String) -> ModelInfo {
    let template = gguf.metadata().str("tokenizer.chat_template").map(str::to_owned);
    ModelInfo {
        name,
        hash: None,
        architecture: blueprint.architecture.to_owned(),
        format: model::main_format(gguf).to_owned(),
        parameters: gguf.tensors().iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
        file_bytes: gguf.file_len(),
        context: ctx,
        num_layers: blueprint.layers.len(),
        hidden: blueprint.hidden,
        tools: template.as_ref().is_some_and(|template| template.contains("tools")),
        template,
        created_s: crate::clock::unix_s(),
        modes: vec![Mode::Local],
        embeddings: Pooling::of(gguf.metadata()).is_ok(),
        local: true,
    }
}

/// As [`info`], of a model whose file is not here yet: its name is all that is known.
pub(crate) fn unknown(ctx: usize, name: String) -> ModelInfo {
    ModelInfo {
        name,
        hash: None,
        architecture: "unknown".into(),
        format: String::new(),
        parameters: 0,
        file_bytes: 0,
        context: ctx,
        num_layers: 0,
        hidden: 0,
        template: None,
        created_s: 0,
        modes: Vec::new(),
        tools: false,
        embeddings: false,
        local: false,
    }
}

/// A request's prompt as token ids; `field` is where the request has it. Of what cannot fit the context only so much is
/// looked at that it does not.
fn encode(model: &Model, prompt: &Prompt, field: &'static str) -> Result<Vec<u32>, Failure> {
    let wrong = |error: shard::Error| Failure::invalid(field, error.to_string());
    let ids = match prompt {
        Prompt::Text(text) => {
            let how = Encode { bos: true, special: false };
            let text = model.tokenizer.beginning(text, model.ctx);
            model.tokenizer.encode(text, how).map_err(wrong)?
        }
        Prompt::Tokens(ids) => {
            let vocab = model.executor.blueprint().vocab;
            if ids.iter().any(|id| *id as usize >= vocab) {
                return Err(Failure::invalid(field, format!("token ids must be below {vocab}")));
            }
            ids.clone()
        }
        Prompt::Messages { messages, tools, extra } => match &model.template {
            Err(why) => {
                let why = format!("the model's chat template cannot be used ({why}); use /v1/completions");
                return Err(Failure::invalid("messages", why));
            }
            Ok(_) => {
                let (tokenizer, template) = (&model.tokenizer, &model.template);
                encode::encode_messages(
                    tokenizer,
                    template,
                    messages,
                    tools.clone(),
                    extra.clone(),
                    model.ctx,
                )
                .map_err(|error| Failure::invalid("messages", error.to_string()))?
            }
        },
    };
    if ids.is_empty() {
        return Err(Failure::invalid(field, "the prompt is empty"));
    }
    Ok(ids)
}

/// That an answer which does not end with the context ends all the same.
pub(crate) fn limits_shifts(request: &GenerateRequest) -> Result<(), Failure> {
    if request.session.context_shift && request.max_tokens.is_none() {
        let why = "say how many tokens: with `context_shift` the answer does not end with the context";
        return Err(Failure::invalid("max_tokens", why));
    }
    Ok(())
}

/// What the tokens see and how keys and values are kept, as `request` asks.
pub(crate) fn session_kind(request: &GenerateRequest) -> Result<SessionKind, Failure> {
    let (attention, cache) = (&request.session.attention, &request.session.kv_cache_type);
    let refused = |field, why: BadAttention| Failure::invalid(field, why.to_string());
    Ok(SessionKind {
        attention: attention
            .as_deref()
            .unwrap_or("dense")
            .parse()
            .map_err(|why| refused("attention", why))?,
        cache: cache.as_deref().unwrap_or("f16").parse().map_err(|why| refused("kv_cache_type", why))?,
    })
}

/// How tokens are chosen, as `request` asks. Ids of biased tokens are for the model to judge.
pub(crate) fn sampling(request: &GenerateRequest) -> Result<SamplingParams, Failure> {
    let asked = &request.sampling;
    let default = SamplingParams::default();
    let params = SamplingParams {
        temperature: asked.temperature.unwrap_or(default.temperature),
        top_k: asked.top_k.unwrap_or(default.top_k),
        top_p: asked.top_p.unwrap_or(default.top_p),
        min_p: asked.min_p.unwrap_or(default.min_p),
        typical_p: asked.typical_p.unwrap_or(default.typical_p),
        repetition_penalty: asked.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(default.frequency_penalty),
        penalty_window: default.penalty_window,
        logit_bias: asked.logit_bias.clone(),
        logprobs: request.logprobs.is_some(),
        top_logprobs: request.logprobs.unwrap_or(0),
    };
    let valid = params.validate();
    valid.map_err(|error| Failure::Invalid { field: None, why: error.to_string() })?;
    Ok(params)
}

/// A seed for a request that has none; small enough for readers whose numbers are doubles.
pub(crate) fn draw_seed() -> Result<u64, Failure> {
    let seed = getrandom::u64();
    let seed = seed.map_err(|_| Failure::Internal { why: "the system has no randomness".into() })?;
    Ok(seed & ((1 << 53) - 1))
}

impl Ready {
    fn of(model: Model, name: String) -> Self {
        let blueprint = model.executor.blueprint();
        let constraints = match blueprint.encodes() {
            true => Err("the model writes no text".to_owned()),
            false => {
                let tags = Tags::of(model.template.as_ref().ok().and_then(Option::as_ref));
                Constraints::new(&model.tokenizer, blueprint.vocab, tags).map_err(|error| error.to_string())
            }
        };
        let info = info(&model.gguf, model.executor.blueprint(), model.ctx, name);
        Self { model, info, constraints }
    }

    fn begin(&self, jobs: &Jobs, request: &GenerateRequest) -> Result<Generation, Failure> {
        if let Err(why) = model::writes(self.model.executor.blueprint(), &self.info.name) {
            return Err(Failure::invalid("model", why.to_string()));
        }
        if let Some(mode) = request.mode.filter(|mode| *mode != Mode::Local) {
            let why = format!("this node is alone, it cannot answer in mode `{}`", mode.name());
            return Err(Failure::invalid("mode", why));
        }
        if !request.wire.cuts.is_empty() {
            let why = "cuts repeat an answer of a swarm: ask a node that is in one, or `shoal run --wire c8 --cuts 2,4`";
            return Err(Failure::invalid("cuts", why));
        }
        let kind = session_kind(request)?;
        limits_shifts(request)?;
        if let Err(why) = self.model.executor.attends(kind) {
            let alone = SessionKind::from(kind.attention);
            let field =
                if self.model.executor.attends(alone).is_ok() { "kv_cache_type" } else { "attention" };
            return Err(Failure::invalid(field, why.to_string()));
        }
        let constraint = match &self.constraints {
            Ok(constraints) => constraints.constraint(&request.format)?,
            Err(_) if request.format == api::inference::Format::Text => None,
            Err(why) => return Err(Failure::invalid("response_format", why.as_str())),
        };
        let sampling = sampling(request)?;
        let vocab = self.model.executor.blueprint().vocab;
        if let Some((id, _)) = sampling.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
            let why = format!("token {id} does not exist; ids are below {vocab}");
            return Err(Failure::invalid("logit_bias", why));
        }
        let draft = request.sampling.draft.clone().unwrap_or_default();
        self.model
            .drafter_for(&draft, kind.attention)
            .map_err(|why| Failure::invalid("draft", why.to_string()))?;
        let prompt = encode(&self.model, &request.prompt, "prompt")?;
        if prompt.len() > self.model.ctx {
            return Err(Failure::TooLong { tokens: prompt.len(), context: self.model.ctx });
        }
        let plan = Plan {
            model: self.info.name.clone(),
            mode: Mode::Local,
            verify: Verify::Off,
            wire: Wire::Raw,
            cuts: Vec::new(),
            attention: kind.attention.to_string(),
            kv_cache_type: kind.cache.to_string(),
            route: vec![format!("{ME}:0-{}", self.info.num_layers)],
            predicted_tok_s: None,
            seed: request.seed.map_or_else(draw_seed, Ok)?,
            prompt_tokens: prompt.len(),
            reasoning: matches!(request.prompt, Prompt::Messages { .. })
                && encode::opens_reasoning(&self.model.tokenizer, &prompt),
        };
        // What the model wants in front of a text is none of the client's.
        let tokenizer = &self.model.tokenizer;
        let added = matches!(request.prompt, Prompt::Text(_))
            && tokenizer.adds_bos()
            && prompt.first().copied() == tokenizer.bos();
        let echo = request.echo.then_some(Echo { from: usize::from(added) });
        let ask = Ask {
            prompt,
            sampling,
            seed: plan.seed,
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            stop: request.stop.clone(),
            show_special: request.show_special,
            constraint,
            echo,
            draft,
            kind,
            context_shift: request.session.context_shift,
        };
        let events = jobs.start(ask)?;
        let events = stream::unfold(events, |mut events| async move { Some((events.recv().await?, events)) });
        Ok(Generation { plan, events: events.boxed() })
    }
}

impl Inference for Alone {
    fn models(&self) -> Vec<ModelInfo> {
        self.model().map(|ready| vec![ready.info.clone()]).unwrap_or_default()
    }

    fn ready(&self, _model: Option<&str>) -> Result<(), Failure> {
        self.model().map(drop)
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        let (state, jobs) = (self.state.clone(), self.jobs.clone());
        let loading = self.ready(None).err();
        // Rendering a template and encoding a long prompt take their time: not on the threads that serve connections.
        let work = tokio::task::spawn_blocking(move || match (state.get(), loading) {
            (Some(Ok(ready)), None) => ready.begin(&jobs, &request),
            (_, failure) => Err(failure.unwrap_or_else(|| Failure::Internal { why: "no model".into() })),
        });
        work.map(|done| done.unwrap_or_else(|error| Err(Failure::Internal { why: error.to_string() })))
            .boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        let state = self.state.clone();
        let loading = self.ready(None).err();
        let work = tokio::task::spawn_blocking(move || match (state.get(), loading) {
            (Some(Ok(ready)), None) => encode(&ready.model, &request.prompt, "prompt").map(|ids| ids.len()),
            (_, failure) => Err(failure.unwrap_or_else(|| Failure::Internal { why: "no model".into() })),
        });
        work.map(|done| done.unwrap_or_else(|error| Err(Failure::Internal { why: error.to_string() })))
            .boxed()
    }

    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        self.pooled(false, move |ready, asker| ready.texts(&request, asker))
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        let scored = self.pooled(true, move |ready, asker| ready.pairs(&request, asker));
        let ranking = |Embeddings { model, vectors, prompt_tokens }| {
            let scores = vectors.into_iter().flatten().map(probability).collect();
            Ranking { model, scores, prompt_tokens }
        };
        scored.map(move |scored| scored.map(ranking)).boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        snapshot(&self.model().map(|ready| ready.info.clone()), self.state.get().is_some())
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        // Alone, the one thing that changes is that the model is ready.
        let state = self.state.clone();
        let told = stream::once(async move {
            while state.get().is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
            let (state, reason) = match state.get() {
                Some(Err(why)) => (NodeState::Unable, Some(why.clone())),
                _ => (NodeState::Ready, None),
            };
            SwarmEvent::State { state, reason }
        });
        told.chain(stream::pending()).boxed()
    }

    fn agree(&self, _: Mode, _: bool) -> Result<(), Failure> {
        Err(no_swarm("everything is computed on this machine"))
    }

    fn contribute(&self, _: ContributionChange) -> Result<Contribution, Failure> {
        Err(no_swarm("so there is nothing to give or to pause"))
    }

    fn metrics(&self) -> Vec<Metric> {
        gauges(self.reading(), memory::resident_bytes(std::process::id()))
    }
}

/// Why a node alone cannot do what nodes of a swarm can.
fn no_swarm(so: &str) -> Failure {
    Failure::Invalid { field: None, why: format!("this node is in no swarm: {so}") }
}

/// What a node alone believes of its swarm: itself. `model` is what it runs, or why not; `settled` whether that is final.
fn snapshot(model: &Result<ModelInfo, Failure>, settled: bool) -> SwarmSnapshot {
    let (state, reason) = match model {
        Ok(_) => (NodeState::Ready, None),
        Err(failure) if settled => (NodeState::Unable, Some(failure.to_string())),
        Err(failure) => (NodeState::Starting, Some(failure.to_string())),
    };
    let info = model.as_ref().ok();
    let holding =
        |info: &ModelInfo| Holding { model: info.name.clone(), start: 0, end: info.num_layers as u32 };
    let me = Node {
        id: ME.into(),
        name: "this machine".into(),
        me: true,
        trusted: true,
        state: "up".into(),
        class: "d1".into(),
        connection: Connection { path: "self".into(), ..Connection::default() },
        holdings: info.map(holding).into_iter().collect(),
        ..Node::default()
    };
    let model = |info: &ModelInfo| SwarmModel {
        id: info.name.clone(),
        name: info.name.clone(),
        num_layers: info.num_layers as u32,
        file_bytes: info.file_bytes,
        holders: vec![1; info.num_layers],
        complete: true,
        download: None,
    };
    SwarmSnapshot {
        at_ms: crate::clock::unix_ms(),
        version: env!("CARGO_PKG_VERSION").into(),
        me: ME.into(),
        state,
        reason,
        reachability: Reachability { class: "unknown".into(), why: "this node is in no swarm".into() },
        nodes: vec![me],
        models: info.map(model).into_iter().collect(),
        modes: vec![ModeInfo {
            mode: Mode::Local,
            sentence: "Only this machine: everything is computed here.".into(),
            available: info.is_some(),
            reason: None,
            agreed: true,
        }],
        ..SwarmSnapshot::default()
    }
}

/// The numbers of a node alone for `/metrics`; `resident_bytes` of the process that computes.
fn gauges(reading: Reading, resident_bytes: Option<u64>) -> Vec<Metric> {
    let mut metrics = vec![
        gauge("sessions", "Answers computed now.", reading.sessions),
        gauge("sessions_waiting", "Answers and lists of texts waiting for their turn.", reading.waiting),
        gauge("kv_used_bytes", "Memory of the caches of what is computed now.", reading.kv_used_bytes),
        gauge(
            "kv_kept_bytes",
            "Memory of caches kept for prompts that begin like earlier ones.",
            reading.kv_kept_bytes,
        ),
        gauge("kv_disk_bytes", "The same on disk (--keep-state).", reading.kv_disk_bytes),
        gauge("kv_capacity_bytes", "What all caches together may take.", reading.kv_capacity_bytes),
    ];
    metrics.extend(resident_bytes.map(|bytes| gauge(WORKER_RESIDENT.0, WORKER_RESIDENT.1, bytes)));
    metrics
}

/// Name and help of the gauge that a node alone and a node of a swarm share.
pub(crate) const WORKER_RESIDENT: (&str, &str) =
    ("worker_resident_bytes", "Memory of the process that holds the model.");

/// A number for `/metrics` without labels that goes up and down.
pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, help, counter: false, values: vec![(Vec::new(), value as f64)] }
}

#[cfg(test)]
mod tests;
