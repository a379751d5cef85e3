//! One answer under way: what of it is computed, chosen and told.
//!
//! A pass over the model gives it one token, and further ones where drafts were right ([`crate::drafting`]). Rows of drafts that
//! were wrong leave the state again, so that what is kept at the end is what the text says.

use std::time::Instant;

use api::inference::{Done, Event, Failure, Finish, Report, TokenLogprobs, Usage};
use shard::{
    draft::{DraftModel, DraftSampler},
    sample::{Logprob, Sampler},
    state::{PrefixCache, SessionState},
    stop::StopStrings,
    tokenizer::{Detokenizer, Tokenizer},
};
use tracing::{Span, field::Empty};

use super::{EVENTS_PER_PASS, Job, cold::ColdPrefixes, named};
use crate::{
    Result,
    constrain::Constraint,
    context_shift,
    drafting::{Asking, Drafting, FEW_ROWS, HeadDraft, READ_FOR},
    model::{Model, ModelDrafter},
};

/// One answer under way.
pub(super) struct Session<'m> {
    pub(super) job: Job,
    pub(super) state: SessionState,
    /// Prompt and generated tokens; while a pass runs the drafted ones, too.
    pub(super) ids: Vec<u32>,
    sampler: Sampler,
    stops: StopStrings,
    text: Detokenizer<'m>,
    drafting: Drafting,
    /// The model that drafts for it, and how that chooses.
    drafter: Option<(&'m ModelDrafter, DraftSampler)>,
    /// What the model's draft head knows of it, and whether the rows of the prompt are to be among that.
    head: (HeadDraft, bool),
    extent: Extent,
    /// Bytes its cache may grow to.
    pub(super) reserved_bytes: usize,
    reused: usize,
    times: Times,
    pub(super) over: bool,
    /// For the log and traces, from here to the end; it has no parent.
    span: Span,
}

/// How long the answer is and may be.
struct Extent {
    generated: usize,
    /// Most tokens to generate, the context considered.
    room: usize,
    /// Positions of the context, where the answer goes on beyond them.
    shifts_at: Option<usize>,
    /// Tokens that were forgotten.
    forgotten: usize,
}

/// When it began, and when its first token was chosen.
struct Times {
    began: Instant,
    first: Option<Instant>,
}

/// What came of choosing a token.
enum Step {
    Goes,
    Ends(Finish),
    Failed,
}

impl<'m> Session<'m> {
    /// One that begins with what is `kept` of its prompt, in memory or on disk, and has `room` for so many tokens.
    pub(super) fn begin(
        model: &'m Model,
        mut job: Job,
        (kept, cold): (&mut PrefixCache, Option<&mut ColdPrefixes>),
        room: usize,
        reserved_bytes: usize,
    ) -> Result<Self> {
        let blueprint = model.executor.blueprint();
        let ask = &mut job.ask;
        let sampler = Sampler::new(ask.sampling.clone(), ask.seed, blueprint.vocab)?;
        let stops = StopStrings::new(ask.stop.clone())?;
        // What is shown is told while it is computed, whatever was kept.
        let kept = if ask.echo.is_some() { None } else { kept.take(ask.kind, &ask.prompt) };
        let have = kept.as_ref().map_or(0, SessionState::len);
        let read = cold.filter(|_| ask.echo.is_none());
        let read = read.and_then(|cold| cold.take(model, ask.kind, &ask.prompt, have));
        let kept = read.or(kept);
        let range = model.executor.range();
        let state = kept.map_or_else(|| model.executor.new_state_with(range, ask.kind), Ok)?;
        let mut ids = std::mem::take(&mut ask.prompt);
        ids.reserve(room.min(model.ctx));
        let text = model.tokenizer.stream().show_special(ask.show_special);
        ask.prompt = ids.clone();
        let shifts = ask.context_shift;
        let span = tracing::info_span!(
            parent: None, "prompt", mode = "local", prompt_tokens = ids.len(), reused = state.len(),
            tokens = Empty, ttft_ms = Empty
        );
        let mut drafting = Drafting::alone(&ask.draft, ask.kind.attention);
        let drafter = model.drafter_for(&ask.draft, ask.kind.attention)?;
        let drafter = drafter.and_then(|drafter| {
            let draws = DraftSampler::new(&*drafter.executor, &ask.sampling, ask.seed, blueprint.vocab);
            let draws =
                draws.inspect_err(|error| tracing::warn!(%error, "the draft model cannot draw")).ok()?;
            drafting.ask_model(drafter.share);
            Some((drafter, draws))
        });
        let head = model.draft_head.clone().filter(|_| drafting.takes_head());
        head.iter().for_each(|head| drafting.ask_head(head.bytes() as u64));
        let looks_back = head.as_ref().is_some_and(|head| head.looks_back());
        let looks_back = looks_back && room >= READ_FOR && ask.echo.is_none();
        let head = (HeadDraft::begin(head, &ask.sampling, ask.seed), looks_back);
        Ok(Self {
            drafting,
            drafter,
            head,
            reused: state.len(),
            job,
            state,
            ids,
            sampler,
            stops,
            text,
            extent: Extent { generated: 0, room, shifts_at: shifts.then_some(model.ctx), forgotten: 0 },
            reserved_bytes,
            times: Times { began: Instant::now(), first: None },
            over: false,
            span,
        })
    }

    /// Rows that have to be computed before the next token can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.ids.len() - self.state.len()
    }

    /// Whether the reader has so much to read that the session must wait.
    pub(super) fn is_unread(&self) -> bool {
        self.job.events.capacity() < EVENTS_PER_PASS
    }

    /// Puts drafted tokens behind those known, `most` at most, if this session has the pass for itself (`alone`); how many.
    pub(super) fn draft(
        &mut self,
        tokenizer: &Tokenizer,
        alone: bool,
        most: usize,
        model: &mut Option<DraftModel>,
    ) -> usize {
        self.drafting.clear();
        // Few rows come again behind a wrong draft, many behind a shift.
        let few = self.pending() <= FEW_ROWS;
        if !alone || self.extent.generated == 0 || !few || !self.drafting.is_on() {
            return 0;
        }
        let left = self.extent.room.saturating_sub(self.extent.generated + 1);
        let most = most.min(left);
        let certain = match &mut self.job.ask.constraint {
            Some(constraint) if self.drafting.takes_forced() => constraint.forced(tokenizer, most),
            _ => Vec::new(),
        };
        self.drafting.foresee_by(&self.ids, &mut self.head.0);
        let draft = match (&mut self.drafter, model) {
            (Some((of, sampler)), Some(model)) => {
                let asking = Asking { executor: &*of.executor, model, sampler };
                self.drafting.propose_asking(&self.ids, &certain, (most, left), asking)
            }
            _ => self.drafting.propose(&self.ids, &certain, most),
        };
        self.ids.extend_from_slice(draft);
        draft.len()
    }

    /// Takes the drafted tokens away again.
    pub(super) fn undraft(&mut self) {
        self.ids.truncate(self.ids.len() - self.drafting.tokens().len());
    }

    /// Sends an event. There was room for it before the pass; what fails is that the reader has gone.
    fn tell(&self, event: Event) {
        let _ = self.job.events.try_send(event);
    }

    /// Tells how far the prompt is. What is computed again behind a wrong draft is none of the reader's.
    pub(super) fn tell_prefill(&self) {
        if self.extent.generated == 0 {
            let total = self.job.ask.prompt.len() - self.reused;
            self.tell(Event::Prefill { done: self.state.len() - self.reused, total });
        }
    }

    /// Tells about tokens of the prompt after a pass that began at `start`, where they are to be shown.
    pub(super) fn tell_prompt(&self, tokenizer: &Tokenizer, start: usize, logits: &[f32]) -> Result<()> {
        if self.extent.generated > 0 {
            return Ok(());
        }
        let tokens = self.job.ask.shown(tokenizer, start, self.state.len(), logits)?;
        if !tokens.is_empty() {
            self.tell(Event::Prompt(tokens));
        }
        Ok(())
    }

    /// Ends its span; one whose reader has gone was not answered.
    pub(super) fn report(&self, answered: bool) {
        self.span.record("tokens", self.extent.generated);
        if let Some(first) = self.times.first {
            self.span.record("ttft_ms", (first - self.times.began).as_secs_f64() * 1e3);
        }
        self.span
            .in_scope(|| if answered { tracing::info!("answered") } else { tracing::info!("cancelled") });
    }

    /// Bytes of state in memory.
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes() + self.head.0.bytes()
    }

    pub(super) fn fail(&mut self, error: &dyn std::error::Error) {
        self.over = true;
        self.tell(Event::Failed(Failure::Internal { why: error.to_string() }));
    }

    /// How many of the largest logits decide its next tokens; `None` where all of them do.
    pub(super) fn candidates(&self) -> Option<usize> {
        let is_free = self.job.ask.constraint.is_none() && !self.job.ask.is_scored();
        self.sampler.params().candidates().filter(|_| is_free)
    }

    /// Chooses tokens from the last of `logits`, those of the last row known and of each drafted one (`[1 + drafted][vocab]`), as
    /// long as the drafts agree with what is chosen. `row` is room for one of them. `took` is how many rows the pass had and when it
    /// began, if this session had it for itself.
    pub(super) fn steps(
        &mut self,
        tokenizer: &Tokenizer,
        (logits, states): (&[f32], &[f32]),
        row: &mut [f32],
        took: Option<(usize, Instant)>,
    ) {
        let answers = self.extent.generated > 0;
        let draft = self.drafting.tokens().to_vec();
        let known = self.ids.len();
        let (mut right, mut ends) = (0, None);
        let last = logits.len() - row.len() * (1 + draft.len());
        for logits in logits[last..].chunks_exact(row.len()) {
            row.copy_from_slice(logits);
            match self.step(tokenizer, row) {
                Step::Goes => {}
                Step::Ends(finish) => ends = Some(finish),
                Step::Failed => break,
            }
            let agrees = right < draft.len() && self.ids.get(known + right) == Some(&draft[right]);
            right += usize::from(agrees);
            if ends.is_some() || !agrees {
                break;
            }
        }
        if !draft.is_empty() {
            self.state.rewind(known + right);
        }
        // The rows computed again, the last one known, and those of drafts that were right.
        let rows = logits.len() / row.len();
        let first = known + draft.len() - rows;
        self.see(first, states, (rows, (self.ids.len() - first).saturating_sub(1)));
        if answers {
            let took = took.map(|(rows, began)| (rows as u32, began.elapsed().as_secs_f64() * 1e3));
            self.drafting.judge(draft.len() as u32, right as u32, ends.is_some(), took);
            self.drafting.count((self.ids.len() - known) as u32);
        }
        match (ends, self.extent.shifts_at) {
            (Some(finish), _) => self.finish(finish),
            (None, Some(ctx)) if self.ids.len() > ctx && !self.over => self.shift(ctx),
            _ => {}
        }
    }

    /// Tells the draft head of the states of `rows` rows from position `from` on, of which the first `count` are those of the text.
    fn see(&mut self, from: usize, states: &[f32], (rows, count): (usize, usize)) {
        let hidden = states.len() / rows.max(1);
        let states = states.get(..count * hidden).unwrap_or_default();
        self.head.0.see(from, states, &self.ids);
    }

    /// Whether the states of all rows of the prompt are wanted, in passes before that of the last one.
    pub(super) fn shows_prompt(&self) -> bool {
        self.head.1 && self.extent.generated == 0 && self.pending() > 1
    }

    /// Takes the states of the rows of the prompt from position `start` on.
    pub(super) fn see_prompt(&mut self, start: usize, states: &[f32]) {
        let rows = self.state.len() - start;
        self.see(start, states, (rows, rows));
    }

    /// Forgets tokens, so that the last one has a place among `ctx` positions; those behind them are computed again.
    fn shift(&mut self, ctx: usize) {
        let forgotten = context_shift::forgotten(self.job.ask.prompt.len(), ctx);
        self.state.rewind(forgotten.start);
        self.extent.forgotten += forgotten.len();
        self.ids.drain(forgotten);
    }

    /// Chooses a token from `logits` and tells about it.
    fn step(&mut self, tokenizer: &Tokenizer, logits: &mut [f32]) -> Step {
        self.times.first.get_or_insert_with(Instant::now);
        if let Some(constraint) = &mut self.job.ask.constraint
            && let Err(error) = constraint.mask(tokenizer, logits)
        {
            // The request is to blame: its form leads where the engine's limits are.
            self.over = true;
            self.tell(Event::Failed(Failure::invalid("response_format", error.to_string())));
            return Step::Failed;
        }
        let position = (self.ids.len() + self.extent.forgotten) as u64;
        let choice = match self.sampler.sample(logits, &self.ids, position) {
            Ok(choice) => choice,
            Err(error) => {
                self.fail(&error);
                return Step::Failed;
            }
        };
        let id = choice.id;
        self.extent.generated += 1;
        if tokenizer.stop_ids().contains(&id) {
            return Step::Ends(Finish::Stop);
        }
        let logprobs = choice.logprob.map(|logprob| TokenLogprobs {
            chosen: named(tokenizer, Logprob { id, logprob }),
            top: choice.top.iter().map(|top| named(tokenizer, *top)).collect(),
        });
        if let Some(constraint) = &mut self.job.ask.constraint
            && let Err(error) = constraint.accept(tokenizer, id)
        {
            self.fail(&error);
            return Step::Failed;
        }
        self.ids.push(id);
        let text = self.stops.push(self.text.push(id)).to_owned();
        let done = self.job.ask.constraint.as_ref().is_some_and(Constraint::is_complete);
        self.tell(Event::Token { id, text, logprobs });
        match self.extent.generated >= self.extent.room {
            _ if self.stops.hit() || done => Step::Ends(Finish::Stop),
            true => Step::Ends(Finish::Length),
            false => Step::Goes,
        }
    }

    pub(super) fn finish(&mut self, finish: Finish) {
        self.over = true;
        if !self.stops.hit() {
            let mut rest = self.stops.push(self.text.finish()).to_owned();
            rest.push_str(self.stops.finish());
            if !rest.is_empty() {
                self.tell(Event::Text(rest));
            }
        }
        let prefill_ms = self.times.first.map_or(0.0, |first| (first - self.times.began).as_secs_f64() * 1e3);
        let decode = self.times.first.map(|first| first.elapsed()).unwrap_or_default();
        let after_first = self.extent.generated.saturating_sub(1) as f64;
        let usage = Usage {
            prompt_tokens: self.job.ask.prompt.len(),
            cached_tokens: self.reused,
            completion_tokens: self.extent.generated,
        };
        let report = Report {
            computed_by: vec!["me".into()],
            ttft_ms: prefill_ms,
            prefill_ms,
            tok_s: after_first / decode.as_secs_f64().max(1e-9),
            drafts: self.drafting.tally().report(),
            ..Report::default()
        };
        let stop = self.stops.met().map(str::to_owned);
        self.tell(Event::Done(Done { finish, stop, usage, report }));
    }

    /// Whether no more than the prompt was asked for.
    pub(super) fn has_no_room(&self) -> bool {
        self.extent.room == 0
    }
}
