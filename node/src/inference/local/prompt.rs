//! The life of a prompt, top to bottom: encode, prefill, decode until something ends it, keep the session.
//!
//! The caller gets text as it becomes certain (whole characters, never part of a stop string) and may stop at any
//! token. The session's state stays as it is at the end, so the next prompt that begins with the same tokens
//! computes only what is new.
//!
//! Where it pays tokens are drafted, so that a pass gives several ([`crate::drafting`]); they are the same tokens.
//!
//! Bounds: a session holds at most `ctx` positions; a prompt that does not fit is refused before anything is
//! computed, and generation ends with [`Finish::Length`] when the context is full.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use api::choice::Draft;
use scheduler::{SessionKind, session::MAX_DRAFT};
use shard::{
    draft::{DraftModel, DraftSampler},
    executor::{Input, Item, Output, Pass, Workspace},
    round::Rounding,
    sample::{Logprob, Sampler, SamplingParams},
    state::SessionState,
    stop::StopStrings,
};

use crate::{
    Error, Result, context_shift,
    drafting::{Asking, Drafting, HeadDraft, READ_FOR, Tally},
    model::Model,
};

/// What to generate.
#[derive(Clone)]
pub struct Request {
    /// The prompt as token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The seed of every draw.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Generation ends before any of these.
    pub stop: Vec<String>,
    /// What may draft its tokens.
    pub draft: Draft,
    /// Whether the answer goes on where the context is full.
    pub context_shift: bool,
}

/// One step of the way, as the caller sees it.
pub enum Event<'a> {
    /// `done` of `total` prompt tokens are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens to compute.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// Its id.
        id: u32,
        /// Text that became certain with it, possibly empty.
        text: &'a str,
        /// Its log-probability, when asked for.
        logprob: Option<f32>,
        /// The likeliest tokens at this position, when asked for.
        top: &'a [Logprob],
    },
    /// The end is reached, and text that was held back turned out to belong to it.
    Text {
        /// The rest of the text.
        text: &'a str,
    },
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn, or a stop string was met.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The caller stopped it.
    Cancelled,
}

impl Finish {
    /// The word OpenAI's API uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What happened, with times.
#[derive(Clone)]
pub struct Summary {
    /// Why generation ended.
    pub finish: Finish,
    /// The generated ids, without the one that ended the turn.
    pub ids: Vec<u32>,
    /// The generated text.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, how many were still computed from an earlier prompt.
    pub reused_tokens: usize,
    /// Time to compute the prompt.
    pub prefill: Duration,
    /// Time of every decode step.
    pub steps: Vec<Duration>,
    /// What came of drafts, and how many tokens came of decode steps.
    pub drafts: Tally,
    /// How many times the context was full and the answer went on.
    pub context_shifts: u32,
}

impl Summary {
    /// Prompt tokens computed per second.
    pub fn prefill_tok_s(&self) -> f64 {
        (self.prompt_tokens - self.reused_tokens) as f64 / self.prefill.as_secs_f64().max(1e-9)
    }

    /// Tokens decoded per second, 0 when there were none.
    pub fn decode_tok_s(&self) -> f64 {
        let total: Duration = self.steps.iter().sum();
        f64::from(self.drafts.tokens) / total.as_secs_f64().max(1e-9)
    }
}

/// One conversation's state on this machine: what was computed, and for which tokens.
pub struct Session {
    state: SessionState,
    ids: Vec<u32>,
    workspace: Workspace,
    rounding: Rounding,
    /// What the draft model remembers of it.
    drafter: Option<DraftModel>,
}

impl Session {
    /// An empty session of `model`.
    pub fn new(model: &Model) -> Result<Self> {
        Self::of(model, Rounding::NONE, SessionKind::DEFAULT)
    }

    /// An empty session of `model` whose activations are rounded as those of a swarm session over the same wire and cuts; it
    /// gets the tokens that such a session gets. Its rows see and keep what `kind` says.
    ///
    /// # Errors
    /// When the device does not compute that kind of session.
    pub fn of(model: &Model, rounding: Rounding, kind: SessionKind) -> Result<Self> {
        Ok(Self {
            state: model.executor.new_state_with(model.executor.range(), kind)?,
            ids: Vec::new(),
            workspace: model.workspace(1 + MAX_DRAFT as usize)?,
            rounding,
            drafter: None,
        })
    }

    /// Bytes of state in memory.
    pub fn kv_bytes(&self) -> usize {
        self.state.bytes() + self.drafter.as_ref().map_or(0, DraftModel::bytes)
    }

    /// Positions computed so far.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether nothing was computed yet.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Keeps the longest common beginning with `prompt`, at least one token short of it: the last token must be
    /// computed to get logits.
    fn keep_common(&mut self, prompt: &[u32]) -> usize {
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.go_back(common.min(prompt.len() - 1));
        self.len()
    }

    /// Computes what of `history` is not, in several passes where a state went far back, and in the last one what is drafted
    /// behind it; returns the rows of that one, whose last logits are those of the last token and of the draft.
    fn catch_up(&mut self, model: &Model, history: &[u32], draft: &[u32]) -> Result<usize> {
        let most = self.workspace.capacity().rows;
        let with_logits = self.workspace.capacity().logit_rows - draft.len();
        while history.len() - self.len() > with_logits {
            let rows = most.min(history.len() - self.len() - 1);
            self.forward(model, &history[self.len()..][..rows], Output::None)?;
        }
        let rows = [&history[self.len()..], draft].concat();
        self.forward(model, &rows, Output::All)?;
        Ok(rows.len())
    }

    /// Forgets what was computed from position `to` on.
    fn go_back(&mut self, to: usize) {
        let kept = self.state.rewind(to);
        self.ids.truncate(kept);
    }

    fn forward(&mut self, model: &Model, ids: &[u32], output: Output) -> Result<()> {
        self.pass(model, ids, output, false)
    }

    /// Computes rows to their logits, or to the `states` in front of the head.
    fn pass(&mut self, model: &Model, ids: &[u32], output: Output, states: bool) -> Result<()> {
        let item = Item { state: &mut self.state, input: Input::Tokens(ids), output };
        let (layers, rounding) = (model.executor.range(), &self.rounding);
        let pass = Pass { layers, rounding, states, top: 0 };
        model.executor.pass(&mut self.workspace, pass, &mut [item])?;
        self.ids.extend_from_slice(ids);
        Ok(())
    }
}

/// Computes the prompt and generates, telling `on_event` about every step; `Break` from it ends the generation.
pub fn generate(
    model: &Model,
    session: &mut Session,
    request: &Request,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Summary> {
    let prompt = &request.prompt;
    if prompt.is_empty() {
        return Err(Error::usage("the prompt is empty"));
    }
    if prompt.len() > model.ctx {
        return Err(Error::usage(format!(
            "the prompt has {} tokens, the context holds {}; shorten it or raise --ctx (this model: at most {})",
            prompt.len(),
            model.ctx,
            model.executor.blueprint().context
        )));
    }
    let vocab = model.executor.blueprint().vocab;
    let mut sampler = Sampler::new(request.sampling.clone(), request.seed, vocab)?;
    let mut stops = StopStrings::new(request.stop.clone())?;
    let stop_ids = model.tokenizer.stop_ids();
    let room = context_shift::room(request.max_tokens, prompt.len(), model.ctx, request.context_shift);

    let reused_tokens = session.keep_common(prompt);
    let mut summary = Summary {
        finish: Finish::Length,
        ids: Vec::with_capacity(room.min(model.ctx)),
        text: String::new(),
        prompt_tokens: prompt.len(),
        reused_tokens,
        prefill: Duration::ZERO,
        steps: Vec::with_capacity(room.min(model.ctx)),
        drafts: Tally::default(),
        context_shifts: 0,
    };
    session.state.reserve(prompt.len().saturating_add(room).min(model.ctx))?;

    let started = Instant::now();
    let attention = session.state.kind().attention;
    let mut drafting = Drafting::alone(&request.draft, attention);
    let drafter = model.draft_head.clone().filter(|_| drafting.takes_head());
    let looks_back = drafter.as_ref().is_some_and(|head| head.looks_back()) && room >= READ_FOR;
    drafter.iter().for_each(|head| drafting.ask_head(head.bytes() as u64));
    let mut head = HeadDraft::begin(drafter, &request.sampling, request.seed);
    while session.len() < prompt.len() {
        let (from, left) = (session.len(), prompt.len() - session.len());
        // The last row has a pass of its own where the states of those before it are wanted.
        let shows = looks_back && left > 1;
        let rows = session.workspace.capacity().rows.min(if shows { left - 1 } else { left });
        let output = match rows == left {
            true => Output::Last,
            false if shows => Output::All,
            false => Output::None,
        };
        session.pass(model, &prompt[from..][..rows], output, shows)?;
        if shows {
            head.see(from, session.workspace.states(0), prompt);
        }
        let (done, total) = (session.len() - reused_tokens, prompt.len() - reused_tokens);
        if on_event(Event::Prefill { done, total }).is_break() {
            summary.finish = Finish::Cancelled;
            summary.prefill = started.elapsed();
            return Ok(summary);
        }
    }
    summary.prefill = started.elapsed();

    let mut detokenizer = model.tokenizer.stream();
    let drafter = model.drafter_for(&request.draft, attention)?;
    let mut draws = None;
    if let Some(drafter) = drafter {
        drafting.ask_model(drafter.share);
        draws = Some(DraftSampler::new(&*drafter.executor, &request.sampling, request.seed, vocab)?);
        if session.drafter.is_none() {
            session.drafter = Some(DraftModel::new(&*drafter.executor)?);
        }
    }
    let hidden = model.executor.blueprint().hidden;
    let mut history = prompt.clone();
    history.reserve(room.min(model.ctx));
    let mut logits = vec![0.0; vocab];
    let mut end = (room == 0).then_some(Finish::Length);
    let mut forgotten = 0;
    while end.is_none() {
        let began = Instant::now();
        // The token that has no place any more was the last one, unless the request goes on.
        if history.len() > model.ctx {
            let gone = context_shift::forgotten(prompt.len(), model.ctx);
            session.go_back(gone.start);
            forgotten += gone.len() as u64;
            history.drain(gone);
            summary.context_shifts += 1;
        }
        let (known, answers) = (history.len(), !summary.ids.is_empty());
        let draft = if answers {
            let left = room - summary.ids.len() - 1;
            let most = left.min(model.ctx - known);
            drafting.foresee_by(&history, &mut head);
            match (drafter, &mut session.drafter, &mut draws) {
                (Some(of), Some(model), Some(sampler)) => {
                    let asking = Asking { executor: &*of.executor, model, sampler };
                    drafting.propose_asking(&history, &[], (most, left), asking).to_vec()
                }
                _ => drafting.propose(&history, &[], most).to_vec(),
            }
        } else {
            Vec::new()
        };
        let drafted = began.elapsed();
        let mut clock = Instant::now();
        let rows = if answers { session.catch_up(model, &history, &draft)? } else { 1 };
        let first = rows - 1 - draft.len();
        let (mut right, mut spent) = (0, Duration::ZERO);
        for row in 0..=draft.len() {
            logits.copy_from_slice(&session.workspace.logits(0)[(first + row) * vocab..][..vocab]);
            let choice = sampler.sample(&mut logits, &history, history.len() as u64 + forgotten)?;
            spent += clock.elapsed();
            if stop_ids.contains(&choice.id) {
                end = Some(Finish::Stop);
                break;
            }
            history.push(choice.id);
            summary.ids.push(choice.id);
            let text = stops.push(detokenizer.push(choice.id));
            summary.text.push_str(text);
            let agrees = draft.get(row) == Some(&choice.id);
            right += usize::from(agrees);
            let token = Event::Token { id: choice.id, text, logprob: choice.logprob, top: choice.top };
            end = match on_event(token).is_break() {
                _ if stops.hit() => Some(Finish::Stop),
                true => Some(Finish::Cancelled),
                false if summary.ids.len() == room => Some(Finish::Length),
                false => None,
            };
            if end.is_some() || !agrees {
                break;
            }
            clock = Instant::now();
        }
        // The rows computed again, the last one known, and those of drafts that were right.
        let seen = (first + history.len() - known) * hidden;
        let states = session.workspace.states(0).get(..seen).unwrap_or_default();
        head.see(known - 1 - first, states, &history);
        session.go_back(known + right);
        if answers {
            let took = (rows as u32, spent.as_secs_f64() * 1e3);
            drafting.judge(draft.len() as u32, right as u32, end.is_some(), Some(took));
            drafting.count((history.len() - known) as u32);
            summary.steps.push(drafted + spent);
        }
    }
    summary.finish = end.unwrap_or(Finish::Length);
    summary.drafts = drafting.tally().clone();
    if !stops.hit() {
        let mut rest = stops.push(detokenizer.finish()).to_string();
        rest.push_str(stops.finish());
        summary.text.push_str(&rest);
        if !rest.is_empty() {
            let _ = on_event(Event::Text { text: &rest });
        }
    }
    Ok(summary)
}
