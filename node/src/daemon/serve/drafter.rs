//! The node's draft model: a worker of its own, which drafts for this node's prompts and serves no one else.
//!
//! It is started with the node, and again at the next prompt when it died. It is not announced, and no route passes it.
//!
//! Limits: one model; [`worker::MAX_DRAFTS`] prompts at a time, others go without; one start in [`REST`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use scheduler::SessionId;
use shard::sample::SamplingParams;
use tokio::sync::Mutex;

use crate::{
    inference::local::model_name,
    worker::{self, DraftSeat, Fault, Ready, Spec, Worker},
};

/// Between two starts of its worker: one that dies of its model must not take the machine.
const REST: Duration = Duration::from_secs(10);

/// See the module's page; clones share it.
#[derive(Clone)]
pub(crate) struct Drafter {
    name: Arc<str>,
    spec: Arc<Spec>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    running: Option<(Worker, Ready)>,
    started: Option<Instant>,
    why: String,
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

impl Drafter {
    /// The model that the user called `name`, as `spec` says.
    pub(crate) fn new(name: &str, spec: Spec) -> Self {
        Self { name: name.into(), spec: Arc::new(spec), state: Arc::default() }
    }

    /// Its worker, started where none runs.
    async fn running(&self) -> Result<(Worker, Ready), String> {
        let mut state = self.state.lock().await;
        if let Some((worker, ready)) = state.running.as_ref().filter(|(worker, _)| worker.is_alive()) {
            return Ok((worker.clone(), ready.clone()));
        }
        if state.started.is_some_and(|started| started.elapsed() < REST) {
            return Err(state.why.clone());
        }
        state.started = Some(Instant::now());
        "it has just stopped".clone_into(&mut state.why);
        match worker::spawn((*self.spec).clone()).await {
            Ok((worker, ready, mut outputs)) => {
                // It runs no jobs; what it may say otherwise has no reader.
                tokio::spawn(async move { while outputs.recv().await.is_some() {} });
                state.running = Some((worker.clone(), ready.clone()));
                Ok((worker, ready))
            }
            Err(fault) => {
                state.running = None;
                state.why = fault.to_string();
                Err(state.why.clone())
            }
        }
    }

    /// Whether it can draft for the model that `ready` is of.
    ///
    /// # Errors
    /// A sentence that says why it cannot.
    pub(crate) async fn fits(&self, ready: &Ready) -> Result<(), String> {
        let (_, own) =
            self.running().await.map_err(|why| format!("the draft model \"{}\": {why}", self.name))?;
        if own.vocabulary == ready.vocabulary {
            return Ok(());
        }
        Err(format!(
            "\"{}\" cannot draft for \"{}\": their vocabularies differ ({} tokens and {}); choose a draft model of the same \
             family, or --draft auto",
            self.name, ready.name, own.vocab, ready.vocab
        ))
    }

    /// Whether `asked` means this model.
    pub(crate) async fn is_meant(&self, asked: &str) -> bool {
        let called = asked == &*self.name || asked == model_name(&self.name);
        called || self.running().await.is_ok_and(|(_, ready)| asked == ready.name)
    }

    /// Drafts for a prompt.
    ///
    /// # Errors
    /// A sentence that says why it does not.
    pub(crate) async fn draft_for(&self, prompt: Drafted<'_>) -> Result<DraftSeat, String> {
        self.fits(prompt.ready).await?;
        let (worker, ready) = self.running().await?;
        let guess_ms = ready.decode_ms * f64::from(ready.num_layers) + ready.head_ms;
        let positions = prompt.positions.min(ready.context);
        let how = (prompt.sampling, prompt.seed);
        let seat = worker.draft_for(prompt.session, positions, how, guess_ms).await;
        seat.map_err(|fault| match fault {
            Fault::Busy => "it drafts for as many prompts as it takes".to_owned(),
            fault => fault.to_string(),
        })
    }
}
