//! A worker that drafts: what a small model says for sessions of a larger one ([`shard::draft::DraftModel`]).
//!
//! The requester's node holds a [`DraftSeat`] for each prompt that is drafted for, and asks for one token at a time: what each
//! is worth decides whether another one is ([`crate::drafting`]).
//!
//! Bounds: [`MAX_DRAFTS`] texts at a time, each no longer than the context; the daemon takes what a text may grow to from the
//! memory for caches ([`super::Room`]); a text without a question for [`IDLE`] is forgotten.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use scheduler::SessionId;
use shard::{
    draft::{DraftModel, DraftSampler, DraftToken},
    sample::SamplingParams,
};

use super::{Fault, IDLE, Worker, load::Loaded, room::Part};

/// Prompts that one worker drafts for at a time; each has buffers of its own.
pub const MAX_DRAFTS: usize = 8;

/// In the worker: the texts that it drafts for.
pub(super) struct Drafts<'m> {
    model: &'m Loaded,
    open: BTreeMap<SessionId, Draft>,
}

struct Draft {
    model: DraftModel,
    sampler: DraftSampler,
    asked: Instant,
}

impl<'m> Drafts<'m> {
    /// None yet.
    pub(super) fn new(model: &'m Loaded) -> Self {
        Self { model, open: BTreeMap::new() }
    }

    /// Drafts for `session` from now on.
    pub(super) fn open(
        &mut self,
        session: SessionId,
        sampling: &SamplingParams,
        seed: u64,
        now: Instant,
    ) -> Result<(), Fault> {
        if self.open.len() >= MAX_DRAFTS && !self.open.contains_key(&session) {
            return Err(Fault::Busy);
        }
        let refused = |error: shard::Error| Fault::Refused(error.to_string());
        let executor = &*self.model.stages[0];
        let model = DraftModel::new(executor).map_err(refused)?;
        let sampler = DraftSampler::new(executor, sampling, seed).map_err(refused)?;
        self.open.insert(session, Draft { model, sampler, asked: now });
        Ok(())
    }

    /// What follows `text`, and how many tokens of it were new.
    pub(super) fn draft(
        &mut self,
        session: SessionId,
        text: &[u32],
        now: Instant,
    ) -> Result<(Option<DraftToken>, usize), Fault> {
        let draft = self.open.get_mut(&session);
        let draft = draft.ok_or_else(|| Fault::Refused("it drafts for no such session".into()))?;
        draft.asked = now;
        let read = draft.model.pending(text);
        let said = draft.model.next(&*self.model.stages[0], &mut draft.sampler, text);
        said.map(|said| (said, read)).map_err(|error| Fault::Refused(error.to_string()))
    }

    /// The session is over.
    pub(super) fn close(&mut self, session: SessionId) {
        self.open.remove(&session);
    }

    /// Forgets texts that were not asked about for long.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.open.retain(|_, draft| now.duration_since(draft.asked) < IDLE);
    }
}

/// In the daemon: a prompt that a worker drafts for; given back when it is dropped.
pub struct DraftSeat {
    worker: Worker,
    session: SessionId,
    /// What a guess is believed to take, ms.
    guess_ms: f64,
    /// Whether the prompt was read.
    warm: Arc<AtomicBool>,
    /// What the state may grow to, of the memory for caches.
    _part: Part,
}

impl DraftSeat {
    /// One at `worker`, which was opened.
    pub(super) fn new(worker: Worker, session: SessionId, guess_ms: f64, part: Part) -> Self {
        Self { worker, session, guess_ms, warm: Arc::default(), _part: part }
    }

    /// Has the worker read the prompt, while others compute it.
    pub fn read(&self, prompt: Vec<u32>) {
        let (worker, session, warm) = (self.worker.clone(), self.session, self.warm.clone());
        tokio::spawn(async move {
            if worker.draft(session, &prompt).await.is_ok() {
                warm.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Whether the prompt was read.
    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed)
    }

    /// What a guess is believed to take, ms.
    pub fn guess_ms(&self) -> f64 {
        self.guess_ms
    }

    /// What follows `text`, and how many tokens of it were new; `None` for the token where the context is full.
    ///
    /// # Errors
    /// [`Fault::Refused`] for a text that cannot be; [`Fault::Dead`].
    pub async fn next(&self, text: &[u32]) -> Result<(Option<DraftToken>, usize), Fault> {
        self.worker.draft(self.session, text).await
    }
}

impl Drop for DraftSeat {
    fn drop(&mut self) {
        self.worker.close(self.session);
    }
}
