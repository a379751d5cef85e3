//! Many answers at once on one machine: a compute thread that folds sessions into passes.
//!
//! Every pass carries one row of each session that is decoding and, in the rows that are left, the next chunk of a prompt.
//! A session's bits do not depend on what it shares a pass with, so neither do its tokens. Sessions whose reader does not
//! read are left out of a pass until it does; sessions whose reader is gone are dropped before the next pass, which is
//! what makes a cancel take effect within one step.
//!
//! A session that has the passes for itself drafts tokens where that pays (`session.rs`); beside others it does not, since their
//! rows are never wrong.
//!
//! Texts whose vectors are wanted take turns with the passes of answers (`pooling.rs`).
//!
//! Bounds: [`MAX_WAITING`] jobs wait for the thread, further ones are refused; at most [`MAX_SESSIONS`] sessions and as many
//! as fit the memory for caches run, the others wait in their order; [`MAX_UNREAD`] events wait for each reader.

mod cold;
mod echo;
mod gauges;
mod pooling;
mod session;

use scheduler::{CacheType, SessionKind};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use api::{
    choice::Draft,
    inference::{Event, Failure, Finish, TokenLogprob},
};
use scheduler::session::MAX_DRAFT;
use shard::{
    draft::DraftModel,
    executor::{Capacity, Input, Item, Output, Pass, Workspace},
    round::Rounding,
    sample::{Logprob, SamplingParams},
    state::PrefixCache,
    tokenizer::Tokenizer,
};
use tokio::sync::{mpsc, oneshot};

use self::{
    cold::ColdPrefixes,
    pooling::{Pooling, Texts},
    session::Session,
};
pub use self::{
    echo::Echo,
    gauges::{Gauges, Reading},
};
use crate::{
    Result,
    constrain::Constraint,
    context_shift,
    drafting::FEW_ROWS,
    model::{CHUNK_ROWS, Model, ModelDrafter},
    state_store::StateStore,
};

/// Sessions computed at once; each costs a row of every pass and its cache.
pub const MAX_SESSIONS: usize = 256;
/// Jobs on the way to the compute thread: as many as may run, so that a burst between two passes is not refused.
pub const MAX_WAITING: usize = MAX_SESSIONS;
/// Events on the way to a reader; a full channel pauses the session.
const MAX_UNREAD: usize = 64;
/// Events that one pass may give a session: tokens of its prompt, a token, those that were drafted, held back text, the end.
const EVENTS_PER_PASS: usize = 4 + MAX_DRAFT as usize;
/// Memory for the logits of one pass; sessions beyond it take turns.
const LOGIT_BYTES: usize = 64 << 20;
/// How long to wait when every session waits for its reader.
const IDLE: Duration = Duration::from_millis(2);

/// An answer to compute.
pub struct Ask {
    /// The prompt, at least one token and no more than the context.
    pub prompt: Vec<u32>,
    /// How tokens are chosen; valid.
    pub sampling: SamplingParams,
    /// The seed of every draw.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// Whether control tokens print their names.
    pub show_special: bool,
    /// Which tokens may come, if not all.
    pub constraint: Option<Constraint>,
    /// Which tokens of the prompt are shown, if any.
    pub echo: Option<Echo>,
    /// What may draft its tokens.
    pub draft: Draft,
    /// Which earlier positions its rows see, and how keys and values are kept; the device computes it.
    pub kind: SessionKind,
    /// Whether the answer goes on where the context is full.
    pub context_shift: bool,
}

/// An answer on its way to the compute thread.
pub struct Job {
    ask: Ask,
    /// Where events go.
    events: mpsc::Sender<Event>,
}

/// One vector a text.
pub type Vectors = Result<Vec<Vec<f32>>, Failure>;

/// What the compute thread can be asked for.
enum Work {
    Answer(Box<Job>),
    Embed(Texts),
}

/// The door to the compute thread.
#[derive(Clone)]
pub struct Jobs {
    door: SyncSender<Work>,
    gauges: Arc<Gauges>,
}

/// What is behind the door, for [`run`].
pub struct Inbox {
    work: Receiver<Work>,
    gauges: Arc<Gauges>,
}

impl Jobs {
    /// A door and what is behind it.
    pub fn new() -> (Self, Inbox) {
        let (door, work) = sync_channel(MAX_WAITING);
        let gauges = Arc::<Gauges>::default();
        (Self { door, gauges: gauges.clone() }, Inbox { work, gauges })
    }

    /// Hands a job over; its events come out of what is returned, and dropping that cancels it.
    ///
    /// # Errors
    /// [`Failure::Busy`] when too many wait, [`Failure::Internal`] when the thread is gone.
    pub fn start(&self, ask: Ask) -> Result<mpsc::Receiver<Event>, Failure> {
        let (events, receiver) = mpsc::channel(MAX_UNREAD);
        let job = Job { ask, events };
        self.send(Work::Answer(Box::new(job))).map(|()| receiver)
    }

    /// Hands texts over as token ids, each at least one and no more than the context. Their vectors come in the same
    /// order, each of length 1 and as wide as the model, or where they are to be `ranked` their score alone; dropping what is
    /// returned cancels.
    ///
    /// # Errors
    /// As for [`Jobs::start`].
    pub fn embed(&self, inputs: Vec<Vec<u32>>, ranked: bool) -> Result<oneshot::Receiver<Vectors>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.send(Work::Embed(Texts { inputs, ranked, reply })).map(|()| answer)
    }

    /// How much is under way.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    fn send(&self, work: Work) -> Result<(), Failure> {
        self.door.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => Failure::busy(1),
            TrySendError::Disconnected(_) => {
                Failure::Internal { why: "the engine stopped; start `shoal serve` again".into() }
            }
        })
    }
}

/// Memory for caches, and what of it is promised.
#[derive(Clone, Copy, Debug)]
struct Room {
    used_bytes: usize,
    limit_bytes: usize,
    /// What a position costs.
    position_bytes: usize,
    /// What a row of an encoder's pass costs: it reads a text at once.
    row_bytes: usize,
}

impl Room {
    /// Whether `bytes` more fit. What is larger than all the room runs alone.
    fn has(self, bytes: usize) -> bool {
        self.used_bytes == 0 || self.used_bytes + bytes <= self.limit_bytes
    }
}

/// Computes jobs until no more can come and all are done. Caches hold at most `kv_bytes`, a quarter of them for prompts
/// that begin like earlier ones; what these forget may come back from `store`.
pub fn run(model: &Model, inbox: &Inbox, kv_bytes: usize, store: Option<StateStore>) -> Result<()> {
    let (vocab, encodes) = (model.executor.blueprint().vocab, model.executor.blueprint().encodes());
    let drafter = model.drafter.as_ref().map(|drafter| DraftModel::new(&*drafter.executor)).transpose()?;
    let kv_bytes = kv_bytes.saturating_sub(drafter_bytes(model));
    let items = (LOGIT_BYTES / (4 * vocab)).clamp(8, MAX_SESSIONS);
    let capacity = Capacity { rows: CHUNK_ROWS.max(items), items, logit_rows: items };
    let workspace = Workspace::new(&*model.executor, capacity)?;
    let mut batch = Batch {
        model,
        row_bytes: if encodes { workspace.bytes().div_ceil(capacity.rows).max(1) } else { 0 },
        capacity,
        workspace,
        position_bytes: position_bytes(model),
        waiting: VecDeque::new(),
        sessions: Vec::new(),
        pooling: Pooling::default(),
        drafter,
        kept: PrefixCache::new(kv_bytes / 4),
        cold: store.map(|store| ColdPrefixes::new(store, kv_bytes / 16)),
        kv_bytes: kv_bytes - kv_bytes / 4,
        logits: vec![0.0; vocab],
        spread: Vec::new(),
    };
    loop {
        inbox.gauges.show(batch.reading());
        if !batch.take(&inbox.work) {
            return Ok(());
        }
        batch.admit();
        batch.pass();
        batch.fit()?;
        batch.pooling.pass(model, &mut batch.workspace);
        batch.fit()?;
        if let Some(why) = model.executor.lost() {
            inbox.gauges.lose(why);
        }
    }
}

/// Bytes that the state of the draft model may grow to, of those for caches.
pub fn drafter_bytes(model: &Model) -> usize {
    let bytes = |drafter: &ModelDrafter| {
        drafter.executor.state_bytes(drafter.executor.range(), drafter.executor.context(), CacheType::F16)
    };
    model.drafter.as_ref().map_or(0, bytes)
}

/// Bytes that a position of a session costs, with its share of what a session costs anyway.
fn position_bytes(model: &Model) -> usize {
    let positions = model.ctx.min(256);
    let state = model.executor.state_bytes(model.executor.range(), positions, CacheType::F16);
    state.div_ceil(positions) + model.draft_head.as_ref().map_or(0, |head| head.position_bytes())
}

struct Batch<'m> {
    model: &'m Model,
    /// What `workspace` is made for, but for longer texts of an encoder.
    capacity: Capacity,
    workspace: Workspace,
    position_bytes: usize,
    row_bytes: usize,
    waiting: VecDeque<Job>,
    sessions: Vec<Session<'m>>,
    pooling: Pooling,
    /// What the draft model remembers of the text that it read last.
    drafter: Option<DraftModel>,
    kept: PrefixCache,
    cold: Option<ColdPrefixes>,
    kv_bytes: usize,
    logits: Vec<f32>,
    /// Rows of logits of which a device found the largest.
    spread: Vec<f32>,
}

impl<'m> Batch<'m> {
    /// Takes new work, waiting for some when there is nothing else to do; false at the end of all work.
    fn take(&mut self, work: &Receiver<Work>) -> bool {
        self.waiting.retain(|job| !job.events.is_closed());
        let idle = self.sessions.is_empty() && self.waiting.is_empty() && self.pooling.is_idle();
        let due = self.cold.as_mut().and_then(|cold| cold.write(Instant::now()));
        if idle {
            match due.map_or_else(
                || work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                |due| work.recv_timeout(due),
            ) {
                Ok(work) => self.put(work),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        } else if !self.pooling.is_running() && self.sessions.iter().all(|session| session.is_unread()) {
            match work.recv_timeout(IDLE) {
                Ok(work) => self.put(work),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(IDLE),
            }
        }
        // What waits here is bounded, too: more stay in the channel, and the door refuses.
        while self.waiting.len() + self.pooling.waiting() < MAX_WAITING {
            match work.try_recv() {
                Ok(work) => self.put(work),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        true
    }

    fn put(&mut self, work: Work) {
        match work {
            Work::Answer(job) => self.waiting.push_back(*job),
            Work::Embed(texts) => self.pooling.push(texts),
        }
    }

    /// Makes room for the longest text of the request that an encoder serves, and gives it back behind it.
    fn fit(&mut self) -> Result<()> {
        let longest = if self.row_bytes > 0 { self.pooling.longest() } else { 0 };
        let rows = self.capacity.rows.max(longest);
        if self.workspace.capacity().rows != rows {
            // Never both.
            self.workspace = Workspace::new(&*self.model.executor, self.capacity)?;
            self.workspace = Workspace::new(&*self.model.executor, Capacity { rows, ..self.capacity })?;
        }
        Ok(())
    }

    /// Memory that sessions and texts were promised.
    fn room(&self) -> Room {
        let sessions: usize = self.sessions.iter().map(|session| session.reserved_bytes).sum();
        Room {
            used_bytes: sessions + self.pooling.reserved_bytes(),
            limit_bytes: self.kv_bytes,
            position_bytes: self.position_bytes,
            row_bytes: self.row_bytes,
        }
    }

    fn reading(&self) -> Reading {
        let caches: usize = self.sessions.iter().map(Session::bytes).sum();
        let drafter = self.drafter.as_ref().map_or(0, DraftModel::bytes);
        let (used, kept) = (caches + drafter + self.pooling.used_bytes(), self.kept.bytes());
        Reading {
            sessions: self.sessions.len() as u64,
            waiting: (self.waiting.len() + self.pooling.waiting()) as u64,
            kv_used_bytes: used as u64,
            kv_kept_bytes: kept as u64,
            kv_disk_bytes: self.cold.as_ref().map_or(0, ColdPrefixes::bytes),
            kv_capacity_bytes: (self.kv_bytes + self.kept.limit_bytes()) as u64,
        }
    }

    /// Begins sessions and texts while there is room, in their order.
    fn admit(&mut self) {
        let free = self.room();
        if !self.pooling.admit(free) {
            return;
        }
        while let Some(job) = self.waiting.front() {
            let (ask, ctx) = (&job.ask, self.model.ctx);
            let room = context_shift::room(ask.max_tokens, ask.prompt.len(), ctx, ask.context_shift);
            let (kind, executor) = (ask.kind, &self.model.executor);
            let positions = ask.prompt.len().saturating_add(room).min(ctx);
            let drafted = self.model.draft_head.as_ref().map_or(0, |head| head.position_bytes());
            let bytes = executor.session_bytes(executor.range(), positions, kind) + positions * drafted;
            if !self.room().has(bytes) || self.sessions.len() == MAX_SESSIONS {
                return;
            }
            let Some(job) = self.waiting.pop_front() else { return };
            let events = job.events.clone();
            let kept = (&mut self.kept, self.cold.as_mut());
            match Session::begin(self.model, job, kept, room, bytes) {
                Ok(session) => self.sessions.push(session),
                Err(error) => {
                    let why = error.to_string();
                    // The channel is empty: the job has not begun.
                    let _ = events.try_send(Event::Failed(Failure::Invalid { field: None, why }));
                }
            }
        }
    }

    /// One pass over the model, and what follows from it.
    fn pass(&mut self) {
        // A session that decodes has one row to compute; decoding comes first, so that a long prompt delays no other
        // session.
        self.sessions.sort_by_key(|session| session.pending() > 1);
        let alone = self.sessions.len() == 1;
        let mut rows_left = self.workspace.capacity().rows;
        let mut logits_left = self.workspace.capacity().logit_rows;
        let mut prompt_rows = CHUNK_ROWS;
        let mut taken = Vec::new();
        let mut items = Vec::new();
        // With how many of the largest logits all of them are content.
        let mut top = Some(0);
        // Whether the states of a prompt's rows are wanted.
        let mut shows = false;
        for (index, session) in self.sessions.iter_mut().enumerate() {
            let pending = session.pending();
            let scored = session.job.ask.is_scored();
            let most = if pending > 1 { rows_left.min(prompt_rows) } else { rows_left };
            shows = alone && session.shows_prompt();
            let most = if shows { most.min(pending - 1) } else { most };
            let rows = pending.min(most).min(if scored { logits_left } else { most });
            let last = rows == pending;
            let wanted = if scored { rows } else { usize::from(last) };
            if rows == 0
                || wanted > logits_left
                || items.len() == self.workspace.capacity().items
                || session.is_unread()
                || session.job.events.is_closed()
            {
                continue;
            }
            if wanted > 0 {
                top = top.zip(session.candidates()).map(|(top, own)| top.max(own));
            }
            rows_left -= rows;
            logits_left -= wanted;
            // With a draft every row's logits are made, those of rows that come again among them.
            let logits_room = logits_left.saturating_sub(rows - 1);
            let room = rows_left.min(logits_room).min(self.model.ctx - session.ids.len());
            let drafted = session.draft(&self.model.tokenizer, alone, room, &mut self.drafter);
            prompt_rows -= if pending > 1 { rows } else { 0 };
            let start = session.state.len();
            taken.push((index, start, last));
            items.push(Item {
                state: &mut session.state,
                input: Input::Tokens(&session.ids[start..start + rows + drafted]),
                output: match wanted {
                    0 if shows => Output::All,
                    0 => Output::None,
                    _ if scored || drafted > 0 => Output::All,
                    _ => Output::Last,
                },
            });
        }
        if items.is_empty() {
            self.sweep();
            return;
        }
        // What drafts took is counted by itself.
        let began = Instant::now();
        let (executor, top) = (&self.model.executor, top.unwrap_or(0));
        let pass = Pass { layers: executor.range(), rounding: &Rounding::NONE, states: shows, top };
        let outcome = executor.pass(&mut self.workspace, pass, &mut items);
        let vocab = executor.blueprint().vocab;
        drop(items);
        let turns = taken.len();
        for (item, (index, start, last)) in taken.into_iter().enumerate() {
            let session = &mut self.sessions[index];
            session.undraft();
            if let Err(error) = &outcome {
                session.fail(error);
                continue;
            }
            let logits = match self.workspace.spread_top(item, (top, vocab), &mut self.spread) {
                true => &self.spread[..],
                false => self.workspace.logits(item),
            };
            if let Err(error) = session.tell_prompt(&self.model.tokenizer, start, logits) {
                session.fail(&error);
            } else if last && session.has_no_room() {
                session.finish(Finish::Length);
            } else if last {
                // Computing much again, as behind a shift, is no pass to compare others with.
                let rows = session.state.len() - start;
                let took = (alone && rows <= FEW_ROWS).then_some((rows, began));
                // Beside other sessions nothing is drafted, and a draft head has nothing to see.
                let states = if alone { self.workspace.states(item) } else { &[] };
                session.steps(&self.model.tokenizer, (logits, states), &mut self.logits, took);
            } else {
                if shows {
                    session.see_prompt(start, self.workspace.states(item));
                }
                session.tell_prefill();
            }
        }
        if turns < self.sessions.len() {
            self.sessions.rotate_left(turns);
        }
        self.sweep();
    }

    /// Takes sessions out that are over or have no reader, and keeps what they computed.
    fn sweep(&mut self) {
        let mut index = 0;
        while index < self.sessions.len() {
            let session = &self.sessions[index];
            if session.over || session.job.events.is_closed() {
                let session = self.sessions.remove(index);
                session.report(session.over);
                if let Some(cold) = &mut self.cold {
                    cold.put(&session.ids, &session.state, Instant::now());
                }
                self.kept.put(session.ids, session.state);
            } else {
                index += 1;
            }
        }
    }
}

fn named(tokenizer: &Tokenizer, token: Logprob) -> TokenLogprob {
    TokenLogprob { id: token.id, bytes: tokenizer.token_bytes(token.id), logprob: token.logprob }
}
