//! The node's draft model: a worker of its own, which drafts for this node's prompts and serves no one else.
//!
//! It is started with the node, and again in the background when a prompt finds that it died. It computes on the processor, is
//! not announced, and no route passes it. No prompt waits for it: one that it is not ready for goes without.
//!
//! Limits: one model; [`worker::MAX_DRAFTS`] prompts at a time, others go without; their states within a [`SHARE`] of the
//! memory for caches, which the sessions of others are not promised; one start in [`REST`], each no longer than [`LOADING`].

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use scheduler::{LayerRange, SessionId, SessionKind};
use shard::{executor::DeviceName, sample::SamplingParams};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    confine::child::lock,
    inference::local::model_name,
    model,
    worker::{self, DraftSeat, DraftTo, Measure, Output, Ready, Room, Source, Spec, Worker},
};

/// Between two starts of its worker: one that dies of its model must not take the machine.
const REST: Duration = Duration::from_secs(10);
/// A small model is loaded in seconds; a start that takes longer has failed.
const LOADING: Duration = Duration::from_secs(120);
/// Of the memory for caches, its part: one in so many.
const SHARE: u64 = 4;

/// What of `kv_bytes` for caches a draft model has.
pub(crate) fn share_bytes(kv_bytes: u64) -> u64 {
    kv_bytes / SHARE
}

/// See the module's page; clones share it.
#[derive(Clone)]
pub(crate) struct Drafter {
    name: Arc<str>,
    spec: Arc<Spec>,
    /// What its first worker said of it.
    ready: Arc<Ready>,
    state: Arc<Mutex<State>>,
}

struct State {
    worker: Worker,
    starting: bool,
    started: Instant,
}

/// A prompt to draft for.
pub(crate) struct Drafted<'a> {
    pub(crate) session: SessionId,
    /// Positions that it may have.
    pub(crate) positions: u32,
    /// How its tokens are chosen.
    pub(crate) sampling: &'a SamplingParams,
    pub(crate) seed: u64,
    /// The model that answers.
    pub(crate) ready: &'a Ready,
}

/// It runs no jobs; what it may say otherwise has no reader.
fn ignore(mut outputs: mpsc::Receiver<Output>) {
    tokio::spawn(async move { while outputs.recv().await.is_some() {} });
}

impl Drafter {
    /// Starts the model in `source`, which the user called `name`, as `like` says of other workers; its states take no more
    /// than `kv_bytes`.
    ///
    /// # Errors
    /// A sentence that says why it cannot draft.
    pub(crate) async fn start(
        name: &str,
        source: Source,
        like: &Spec,
        kv_bytes: u64,
    ) -> Result<Self, String> {
        let spec = Spec {
            source,
            model: None,
            class: None,
            layers: Vec::new(),
            device: DeviceName::Cpu,
            kv_bytes,
            room: Room::new(kv_bytes),
            measure: Measure::Speed,
            draft_head: None,
            ..like.clone()
        };
        let called = model_name(name);
        let started = Instant::now();
        let (worker, ready, outputs) = worker::spawn(spec.clone())
            .await
            .map_err(|fault| format!("the draft model \"{called}\": {fault}"))?;
        ignore(outputs);
        if !ready.abilities.goes_back {
            return Err(model::no_way_back(&called));
        }
        let all = LayerRange::new(0, ready.num_layers);
        let needed =
            all.map_or(0, |all| ready.state_bytes(all, u64::from(ready.context), SessionKind::DEFAULT));
        if needed > kv_bytes {
            return Err(format!(
                "\"{called}\" drafts with {} MiB of state, more than its part of the memory for caches, {} MiB: raise --memory \
                 or lower --ctx",
                needed.div_ceil(1 << 20),
                kv_bytes >> 20
            ));
        }
        let state = State { worker, starting: false, started };
        let (spec, ready) = (Arc::new(spec), Arc::new(ready));
        Ok(Self { name: name.into(), spec, ready, state: Arc::new(Mutex::new(state)) })
    }

    /// Its worker; where that died another one is started, for later prompts.
    fn running(&self) -> Option<Worker> {
        let mut state = lock(&self.state);
        if state.worker.is_alive() {
            return Some(state.worker.clone());
        }
        if !state.starting && state.started.elapsed() >= REST {
            (state.starting, state.started) = (true, Instant::now());
            let this = self.clone();
            tokio::spawn(async move {
                let started = timeout(LOADING, worker::spawn((*this.spec).clone())).await;
                let mut state = lock(&this.state);
                state.starting = false;
                match started {
                    Ok(Ok((worker, _, outputs))) => {
                        ignore(outputs);
                        state.worker = worker;
                    }
                    Ok(Err(fault)) => tracing::warn!(%fault, "the draft model does not start"),
                    Err(_) => tracing::warn!("the draft model does not start in time"),
                }
            });
        }
        None
    }

    /// Whether it can draft for the model that `ready` is of.
    ///
    /// # Errors
    /// A sentence that says why it cannot.
    pub(crate) fn fits(&self, ready: &Ready) -> Result<(), String> {
        let own = &self.ready;
        if own.vocabulary.digest == ready.vocabulary.digest && own.vocabulary.digest != [0; 32] {
            return Ok(());
        }
        Err(format!(
            "\"{}\" cannot draft for \"{}\": their vocabularies differ ({} tokens and {}); choose a draft model of the same \
             family, or --draft auto",
            model_name(&self.name),
            ready.name,
            own.vocabulary.tokens,
            ready.vocabulary.tokens
        ))
    }

    /// Whether `asked` means this model.
    pub(crate) fn is_meant(&self, asked: &str) -> bool {
        asked == &*self.name || asked == model_name(&self.name) || asked == self.ready.name
    }

    /// A place for a prompt, if there is one now.
    pub(crate) fn seat(&self, prompt: Drafted<'_>) -> Option<DraftSeat> {
        let worker = self.running()?;
        let Drafted { session, positions, sampling, seed, ready } = prompt;
        let own = &self.ready;
        let guess_ms = own.times.decode_ms * f64::from(own.num_layers) + own.times.head_ms;
        let to = DraftTo { session, sampling: sampling.clone(), seed, vocab: ready.vocabulary.tokens };
        let seat = DraftSeat::take(&worker, to, positions.min(own.context), guess_ms);
        seat.inspect_err(|fault| tracing::info!(%fault, "no draft model for this prompt")).ok()
    }
}
