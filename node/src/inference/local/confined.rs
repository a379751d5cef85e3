//! The API's other side where a process of its own computes: what `shoal serve` answers with.
//!
//! The process that speaks HTTP holds the token and parses neither models nor forms. It opens the model's file, hands the
//! descriptor to a confined process ([`super::engine`]), and passes requests and events between that process and clients
//! ([`super::wire`]). When the engine dies, what it was computing fails, new requests are told to come back, and another
//! engine is started ([`super::keeper`]).
//!
//! Bounds: [`WINDOW`] events unread in each answer.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::{
    Inference,
    choice::Draft,
    inference::{
        EmbedRequest, Embeddings, Failure, GenerateRequest, Generation, Metric, Mode, ModelInfo, Ranking,
        RerankRequest,
    },
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use p2p::Governor;
use scheduler::governor::Holder;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::sleep,
};

use super::{
    gauges,
    keeper::{Running, Shared, Ticket, identity, keep, lost},
    model_name, no_swarm, snapshot,
    wire::{EngineSpec, ToEngine, WINDOW},
};
use crate::{
    Error, Result, cli::EngineArgs, confine::child::lock, constrain::trial, library, memory, model, platform,
    state_store::Place,
};

/// Events an answer may have here: those on the way, the plan's place and the end's.
const CHANNEL: usize = WINDOW + 2;
/// How often readers of the page hear whether the state changed.
const LOOK: Duration = Duration::from_millis(200);

/// `shoal serve` alone: the engine is another process.
pub struct Confined {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

/// What stays of a model and of what it computed.
#[derive(Clone, Copy, Default)]
pub struct Retention<'a> {
    /// In which folder states of ended answers are kept on disk, and how many bytes of them.
    pub states: Option<(&'a Path, u64)>,
    /// How long nothing is asked of a model before it is unloaded; it stays for `None`.
    pub unload_after: Option<Duration>,
}

impl Confined {
    /// Starts an engine for the model of `args`, and another one whenever one dies. `kv_bytes` bounds the memory of all
    /// sessions, `draft` says what may draft tokens of requests that do not, forms of answers are tried under `governor`, and model and
    /// states stay as `retention` says. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// When this program cannot be found again.
    pub fn start(
        args: &EngineArgs,
        kv_bytes: usize,
        draft: Draft,
        governor: Governor,
        retention: Retention<'_>,
    ) -> Result<Arc<Self>> {
        Self::of(platform::program()?, args, kv_bytes, draft, governor, retention)
    }

    /// As [`Self::start`], with the program that engines are started from.
    ///
    /// # Errors
    /// Those of [`EngineArgs::device`].
    pub fn of(
        program: PathBuf,
        args: &EngineArgs,
        kv_bytes: usize,
        draft: Draft,
        governor: Governor,
        retention: Retention<'_>,
    ) -> Result<Arc<Self>> {
        let spec = EngineSpec {
            model: args.model().to_owned(),
            name: model_name(args.model()),
            file: None,
            panel_cache: args.panel_cache,
            panels: false,
            drafter: draft.model().map(|name| (name.to_owned(), None)),
            draft_head: args.draft_head.clone().map(|path| (path, Vec::new())),
            processors: Vec::new(),
            threads: args.threads,
            ctx: args.ctx,
            device: (args.device()?.to_string(), model::pipelines()),
            isa: args.isa.clone(),
            no_pin: args.no_pin,
            kv_bytes,
            state_secret: None,
        };
        let Retention { states, unload_after } = retention;
        let place = states.map(|(home, bytes)| {
            let files = identity(library::locate(args.model())?.as_ref())?;
            Ok::<_, Error>((Place::open(home, &files, bytes)?, files))
        });
        let place = place.transpose()?;
        let shared = Arc::new(Shared::new(spec, program, (governor, draft), place, unload_after));
        let keeper = tokio::spawn(keep(shared.clone()));
        Ok(Arc::new(Self { shared, keeper }))
    }

    /// Whether the model is loaded, or why it cannot be; `None` while it loads.
    pub fn loaded(&self) -> Option<Result<(), String>> {
        lock(&self.shared.state).loaded.as_ref().map(|state| state.as_ref().map(|_| ()).map_err(Clone::clone))
    }

    /// What the engine makes of texts.
    fn pooled(
        &self,
        message: impl FnOnce(u64) -> ToEngine + Send + 'static,
    ) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            let id = shared.id();
            let (done, embedded) = oneshot::channel();
            let _ticket = Ticket { shared: shared.clone(), id, read: 0 };
            let running = Running::Texts { vectors: Vec::new(), done };
            shared.begin(id, &message(id), running).await?;
            embedded.await.map_err(|_| lost())?
        }
        .boxed()
    }

    /// The engine's process number; 0 while there is none.
    pub fn pid(&self) -> u32 {
        lock(&self.shared.state).pid
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        self.keeper.abort();
        // Without a sender the writer ends, and with it the stream and the engine.
        lock(&self.shared.state).engine = None;
    }
}

/// What the engine says of so many documents, whose file is a stranger's.
fn ranking(said: Embeddings, documents: usize) -> Result<Ranking, Failure> {
    let Embeddings { model, vectors, prompt_tokens } = said;
    let scores: Vec<f32> = vectors.into_iter().flatten().collect();
    if scores.len() != documents || scores.iter().any(|score| !(0.0..=1.0).contains(score)) {
        return Err(Failure::Internal { why: "the engine's scores are not those of the documents".into() });
    }
    Ok(Ranking { model, scores, prompt_tokens })
}

impl Inference for Confined {
    fn models(&self) -> Vec<ModelInfo> {
        self.shared.info().into_iter().collect()
    }

    fn ready(&self, _model: Option<&str>) -> Result<(), Failure> {
        self.shared.info().map(drop)
    }

    fn generate(&self, mut request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            trial::attempt(&shared.program, &request.format, (&shared.governor, Holder::default())).await?;
            let id = shared.id();
            let (begun, plan) = oneshot::channel();
            let (sender, events) = mpsc::channel(CHANNEL);
            let ticket = Ticket { shared: shared.clone(), id, read: 0 };
            request.sampling.draft.get_or_insert_with(|| shared.draft.clone());
            let message = ToEngine::Generate { id, request: Box::new(request) };
            shared.begin(id, &message, Running::Answer { begun: Some(begun), events: sender }).await?;
            let plan = plan.await.map_err(|_| lost())??;
            let events = stream::unfold((events, ticket), |(mut events, mut ticket)| async move {
                let event = events.recv().await?;
                ticket.read();
                Some((event, (events, ticket)))
            });
            Ok(Generation { plan, events: events.boxed() })
        }
        .boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        let shared = self.shared.clone();
        async move {
            shared.info()?;
            let id = shared.id();
            let (done, counted) = oneshot::channel();
            let _ticket = Ticket { shared: shared.clone(), id, read: 0 };
            let message = ToEngine::Count { id, request: Box::new(request) };
            shared.begin(id, &message, Running::Count(done)).await?;
            counted.await.map_err(|_| lost())?
        }
        .boxed()
    }

    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        self.pooled(|id| ToEngine::Embed { id, request })
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        let documents = request.documents.len();
        let ranking = move |embeddings| ranking(embeddings, documents);
        self.pooled(|id| ToEngine::Rerank { id, request }).map(move |made| made.and_then(ranking)).boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        snapshot(&self.shared.info(), self.loaded().is_some())
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        // Alone, what changes is whether the model is loaded.
        let told = lock(&self.shared.state).loaded.as_ref().map(Result::is_ok);
        stream::unfold((self.shared.clone(), told), |(shared, mut told)| async move {
            loop {
                sleep(LOOK).await;
                let now = lock(&shared.state).loaded.as_ref().map(Result::is_ok);
                if now != told {
                    told = now;
                    let snapshot = snapshot(&shared.info(), now.is_some());
                    let (state, reason) = (snapshot.state, snapshot.reason);
                    return Some((SwarmEvent::State { state, reason }, (shared, told)));
                }
            }
        })
        .boxed()
    }

    fn agree(&self, _: Mode, _: bool) -> Result<(), Failure> {
        Err(no_swarm("everything is computed on this machine"))
    }

    fn contribute(&self, _: ContributionChange) -> Result<Contribution, Failure> {
        Err(no_swarm("so there is nothing to give or to pause"))
    }

    fn metrics(&self) -> Vec<Metric> {
        let (reading, pid) = {
            let state = lock(&self.shared.state);
            (state.reading, state.pid)
        };
        gauges(reading, memory::resident_bytes(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_documents_or_refused() {
        let said = |scores: &[f32]| {
            let vectors = scores.iter().map(|score| vec![*score]).collect();
            ranking(Embeddings { model: "m".into(), vectors, prompt_tokens: 4 }, 2)
        };
        assert_eq!(said(&[0.25, 1.0]).unwrap().scores, [0.25, 1.0]);
        for wrong in [&[0.5][..], &[0.5; 3], &[0.5, f32::NAN], &[0.5, 1.5]] {
            assert!(said(wrong).is_err(), "{wrong:?}");
        }
    }
}
