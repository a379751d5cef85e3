//! A worker that drafts: what a small model says for sessions of a larger one ([`shard::draft::DraftModel`]).
//!
//! The requester's node holds a [`DraftSeat`] for each prompt that is drafted for, and asks for one token at a time: what each
//! is worth decides whether another one is ([`crate::drafting`]). A text that is new is read beside the prompt, in pieces of
//! [`READ_ROWS`], between which others are answered.
//!
//! Bounds: [`MAX_DRAFTS`] texts at a time, each no longer than the context; the daemon takes what a text may grow to from the
//! draft model's memory ([`super::Room`]) until the prompt is over or the worker has none of it; a piece that takes longer than
//! [`PATIENCE`] ends the drafting of that prompt; a text without a question for [`REST`] is forgotten.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use scheduler::SessionId;
use shard::{
    draft::{DraftModel, DraftSampler, DraftToken},
    sample::SamplingParams,
};

use tokio::time::{sleep, timeout};

use super::{Fault, Worker, load::Loaded, room::Part};
use crate::confine::child::lock;

/// Prompts that one worker drafts for at a time; each has buffers of its own.
pub const MAX_DRAFTS: usize = 8;
/// Tokens of a text that is new which are read at a time: what another prompt may wait for is one piece.
const READ_ROWS: usize = 96;
/// A worker that has not answered by then is stopped or has far too much to do.
const PATIENCE: Duration = Duration::from_secs(20);
/// Ends of prompts are told; one that was lost is noticed by then. Longer than any prompt waits for its turn.
const REST: Duration = Duration::from_secs(3_600);

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
        (seed, vocab): (u64, u32),
        now: Instant,
    ) -> Result<(), Fault> {
        if self.open.len() >= MAX_DRAFTS && !self.open.contains_key(&session) {
            return Err(Fault::Busy);
        }
        let refused = |error: shard::Error| Fault::Refused(error.to_string());
        let executor = &*self.model.stages[0];
        let model = DraftModel::new(executor).map_err(refused)?;
        let sampler = DraftSampler::new(executor, sampling, seed, vocab as usize).map_err(refused)?;
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
        self.open.retain(|_, draft| now.duration_since(draft.asked) < REST);
    }
}

/// A prompt to draft for.
#[derive(Clone, Debug)]
pub struct DraftTo {
    /// Its session.
    pub session: SessionId,
    /// How its tokens are chosen.
    pub sampling: SamplingParams,
    /// The seed of every draw.
    pub seed: u64,
    /// Tokens of the model that answers.
    pub vocab: u32,
}

/// In the daemon: a prompt that a worker drafts for; given back when it is dropped.
#[derive(Clone)]
pub struct DraftSeat {
    inner: Arc<Inner>,
}

struct Inner {
    worker: Worker,
    to: DraftTo,
    /// What a guess is believed to take, ms.
    guess_ms: f64,
    known: Mutex<Known>,
}

/// What is known of the worker.
struct Known {
    /// Whether it was asked to draft.
    opened: bool,
    /// Whether it reads a text now.
    reads: bool,
    /// What it has read.
    text: Vec<u32>,
    /// What the state may grow to, of the draft model's memory; `None` once the worker does not draft any more.
    part: Option<Part>,
}

/// Tokens with which both begin.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl DraftSeat {
    /// One at `worker` for a text that grows to `positions` at most; a guess is believed to take `guess_ms`. The worker hears
    /// of it with the first text ([`Self::read`]).
    ///
    /// # Errors
    /// [`Fault::NoRoom`].
    pub fn take(worker: &Worker, to: DraftTo, positions: u32, guess_ms: f64) -> Result<Self, Fault> {
        let part = worker.room_for(positions)?;
        let known = Known { opened: false, reads: false, text: Vec::new(), part: Some(part) };
        Ok(Self { inner: Arc::new(Inner { worker: worker.clone(), to, guess_ms, known: Mutex::new(known) }) })
    }

    /// Has the worker read `text` beside what else happens, unless it reads now or drafts no more.
    pub fn read(&self, text: Vec<u32>) {
        {
            let mut known = lock(&self.inner.known);
            if known.reads || known.part.is_none() || text.is_empty() {
                return;
            }
            known.reads = true;
        }
        let inner = self.inner.clone();
        tokio::spawn(async move {
            let outcome = inner.read(&text).await;
            let mut known = lock(&inner.known);
            known.reads = false;
            if let Err(fault) = outcome {
                tracing::info!(%fault, "the draft model does not draft for this prompt any more");
                known.part = None;
            }
        });
    }

    /// Waits until it does not read any more; for tests.
    pub async fn settled(&self) {
        while lock(&self.inner.known).reads {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Tokens of `text` that the worker has not read; `None` while it reads, and where it drafts no more.
    pub fn pending(&self, text: &[u32]) -> Option<usize> {
        let known = lock(&self.inner.known);
        let answers = known.opened && !known.reads && known.part.is_some();
        answers.then(|| text.len() - common(&known.text, text))
    }

    /// Whether it can still draft.
    pub fn is_open(&self) -> bool {
        lock(&self.inner.known).part.is_some()
    }

    /// What a guess is believed to take, ms.
    pub fn guess_ms(&self) -> f64 {
        self.inner.guess_ms
    }

    /// What follows `text`, and how many tokens of it were new; `None` for the token where the context is full.
    ///
    /// # Errors
    /// [`Fault::Refused`] for a text that cannot be; [`Fault::Dead`].
    pub async fn next(&self, text: &[u32]) -> Result<(Option<DraftToken>, usize), Fault> {
        // Whether or not the answer is waited for, the worker reads it.
        text.clone_into(&mut lock(&self.inner.known).text);
        let said = self.inner.worker.draft(self.inner.to.session, text).await;
        if said.is_err() {
            lock(&self.inner.known).part = None;
        }
        said
    }
}

impl Inner {
    /// Reads `text` in pieces.
    async fn read(&self, text: &[u32]) -> Result<(), Fault> {
        let late = |_| Fault::Dead("it does not answer".into());
        if !lock(&self.known).opened {
            // From here on it is told of the end, whether it answers or not.
            lock(&self.known).opened = true;
            let to = &self.to;
            let opened = self.worker.open_draft(to.session, &to.sampling, to.seed, to.vocab);
            timeout(PATIENCE, opened).await.map_err(late)??;
        }
        let mut read = common(&lock(&self.known).text, text);
        while read < text.len() {
            read = text.len().min(read + READ_ROWS);
            let asked = self.worker.draft(self.to.session, &text[..read]);
            timeout(PATIENCE, asked).await.map_err(late)??;
            text[..read].clone_into(&mut lock(&self.known).text);
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if lock(&self.known).opened {
            self.worker.close(self.to.session);
        }
    }
}
