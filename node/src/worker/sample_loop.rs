//! The end of a conducting session: logits to a token, tokens to text.
//!
//! The state is a function of the history (prompt and emitted ids) and the parameters, so a session that is opened
//! again with its history goes on exactly: the emitted ids are pushed through detokenizer and stop strings without a
//! sound, penalties count the same ids, and the draw depends on seed and position alone.

use std::time::Instant;

use scheduler::session::MAX_DRAFT;
use shard::{
    executor::Executor,
    sample::{Sampler, SamplingParams},
    stop::StopStrings,
    tokenizer::{Detokenizer, Tokenizer},
};

use super::{
    echo::Echo,
    ipc::{Conduct, DraftIds, Foreseen, PromptToken, Sampled, Top},
    load::Loaded,
    pooling::PromptPooling,
};
use crate::{Error, Result, constrain::Constraint, drafting::HeadDraft};

/// Chooses the tokens of one session.
pub(super) struct SampleLoop<'m> {
    model: &'m Loaded,
    tokenizer: &'m Tokenizer,
    sampler: Sampler,
    /// What the model's draft head knows of it.
    head: HeadDraft,
    history: Vec<u32>,
    /// Tokens of the answer that the history follows and that the model does not see any more, and how many tokens of all kinds that is.
    forgotten: (Vec<u32>, u64),
    prompt: usize,
    stops: StopStrings,
    detokenizer: Detokenizer<'m>,
    show_special: bool,
    /// As it traveled; the state it leads to is `constraint`.
    format: Option<String>,
    constraint: Option<Constraint>,
    /// Whether the text's end was told; choosing again starts from the history.
    ended: bool,
    echo: Option<Echo>,
    /// What the prompt's rows are together, where that is wanted instead of an answer.
    pooling: Option<PromptPooling>,
}

impl<'m> SampleLoop<'m> {
    /// A conductor that goes on after `history`.
    pub(super) fn new(
        model: &'m Loaded,
        tokenizer: &'m Tokenizer,
        vocab: usize,
        conduct: Conduct,
        mut history: Vec<u32>,
    ) -> Result<Self> {
        let known = history.split_off((conduct.forgotten as usize).min(history.len()));
        let forgotten = std::mem::replace(&mut history, known);
        let prompt = conduct.prompt_tokens as usize;
        if prompt == 0 || prompt > history.len() {
            return Err(Error::usage(format!("a prompt of {prompt} tokens in {} known", history.len())));
        }
        if let Some(id) = forgotten.iter().chain(&history).find(|&&id| id as usize >= vocab) {
            return Err(Error::usage(format!("token {id} is beyond the vocabulary of {vocab}")));
        }
        let top = conduct.sampling.logprobs.then_some(conduct.sampling.top_logprobs as usize);
        let echo = conduct.echo.map(|text| Echo::new(tokenizer, &history[..prompt], text, top));
        let what = (&model.name[..], model.blueprint().hidden);
        let pooling =
            conduct.pooling.map(|task| PromptPooling::new(&model.pooling, task, what)).transpose()?;
        let params = SamplingParams::from(conduct.sampling);
        let head = HeadDraft::begin(model.draft_head.clone(), &params, conduct.seed);
        let mut conductor = Self {
            model,
            echo,
            pooling,
            tokenizer,
            sampler: Sampler::new(params, conduct.seed, vocab)?,
            head,
            prompt,
            stops: StopStrings::new(conduct.stop)?,
            detokenizer: tokenizer.stream(),
            show_special: conduct.show_special,
            format: conduct.format,
            constraint: None,
            history,
            forgotten: (forgotten, conduct.skipped),
            ended: false,
        };
        conductor.replay()?;
        Ok(conductor)
    }

    /// Brings detokenizer, stop strings and form to the end of the history.
    fn replay(&mut self) -> Result<()> {
        self.detokenizer = self.tokenizer.stream().show_special(self.show_special);
        self.constraint = self.model.constraint(self.format.as_deref())?;
        self.stops.begin_again();
        for &id in self.forgotten.0.iter().chain(&self.history[self.prompt..]) {
            self.stops.push(self.detokenizer.push(id));
            if let Some(constraint) = &mut self.constraint {
                constraint.accept(self.tokenizer, id).map_err(|error| Error::usage(error.to_string()))?;
            }
        }
        self.ended = false;
        Ok(())
    }

    /// Goes on from what the conductor before it knew of the same prompt.
    pub(super) fn adopt(&mut self, mut before: Self) {
        if self.history[..self.prompt] != before.history[..before.prompt] {
            return;
        }
        if let (Some(echo), Some(known)) = (&mut self.echo, before.echo.take()) {
            echo.adopt(known);
        }
        if let (Some(pooling), Some(known)) = (&mut self.pooling, before.pooling.take()) {
            pooling.adopt(known);
        }
    }

    /// How many of the largest logits decide each choice; `None` where all of them do.
    pub(super) fn candidates(&self) -> Option<usize> {
        let free = self.constraint.is_none() && self.echo.is_none();
        self.sampler.params().candidates().filter(|_| free)
    }

    /// Whether the prompt's rows are pooled ([`Self::pool`]), and nothing is drawn.
    pub(super) fn pools(&self) -> bool {
        self.pooling.is_some()
    }

    /// Takes the hidden states of the rows from position `from` on, `[n][hidden]`.
    ///
    /// # Errors
    /// When rows before them are missing.
    pub(super) fn pool(&mut self, from: usize, rows: &[f32]) -> Result<()> {
        let hidden = self.model.blueprint().hidden;
        self.pooling.as_mut().map_or(Ok(()), |pooling| pooling.take(from, rows, hidden))
    }

    /// The end of a turn in which nothing is said, with what all rows of the prompt are together.
    ///
    /// # Errors
    /// When rows are missing, or the head of `executor` does not score them.
    pub(super) fn pooled(&mut self, executor: &dyn Executor) -> Result<Sampled> {
        let pooling =
            self.pooling.as_ref().ok_or_else(|| Error::usage("the prompt's rows are not pooled"))?;
        let pooled = pooling.values(executor, self.prompt)?;
        self.ended = true;
        Ok(Sampled {
            position: self.prompt as u32,
            stop: true,
            ends_turn: true,
            pooled,
            ..Sampled::default()
        })
    }

    /// Whether rows from position `from` on are to be scored ([`Self::score`]).
    pub(super) fn scores(&self, from: u32) -> bool {
        self.echo.as_ref().is_some_and(|echo| echo.wants(from as usize))
    }

    /// Takes the logits of the rows from position `from` on, `[n][vocab]`.
    ///
    /// # Errors
    /// When they are not finite.
    pub(super) fn score(&mut self, from: usize, logits: &[f32], vocab: usize) -> Result<()> {
        let prompt = &self.history[..self.prompt];
        let Some(echo) = &mut self.echo else { return Ok(()) };
        echo.take(self.tokenizer, prompt, from, logits, vocab)
    }

    /// The tokens of the prompt, where `sampled` is the first token behind it and they are to be told.
    pub(super) fn prompt(&self, sampled: &[Sampled]) -> Vec<PromptToken> {
        let first = sampled.first().is_some_and(|first| first.position as usize == self.prompt);
        let echo = self.echo.as_ref().filter(|_| first);
        echo.map(|echo| echo.tokens(self.tokenizer, &self.history[..self.prompt])).unwrap_or_default()
    }

    /// Forgets what was chosen for `position` and beyond.
    pub(super) fn truncate(&mut self, position: usize) -> Result<()> {
        if position >= self.history.len() && !self.ended {
            return Ok(());
        }
        self.history.truncate(position.max(self.prompt));
        self.replay()
    }

    /// Chooses the token at `position` from the logits after the one before; changes `logits`.
    ///
    /// A position that was chosen before is chosen again, with the same result.
    ///
    /// # Errors
    /// When the position lies in the prompt or beyond what is known, or the logits are not finite.
    pub(super) fn choose(&mut self, logits: &mut [f32], position: usize) -> Result<Sampled> {
        if position < self.prompt || position > self.history.len() {
            let (prompt, known) = (self.prompt, self.history.len());
            return Err(Error::usage(format!(
                "no token can be chosen for position {position}: the prompt ends at {prompt}, {known} tokens are known"
            )));
        }
        self.truncate(position)?;
        if self.stops.hit() {
            return Err(Error::usage("the text has ended at a stop string: open a new session to go on"));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(self.tokenizer, logits).map_err(|error| Error::usage(error.to_string()))?;
        }
        let choice = self.sampler.sample(logits, &self.history, self.forgotten.1 + position as u64)?;
        let wanted = choice.logprob.is_some();
        let bytes = |id: u32| self.tokenizer.token_bytes(id);
        let mut sampled = Sampled {
            position: position as u32,
            id: choice.id,
            text: String::new(),
            stop: false,
            met: None,
            ends_turn: self.tokenizer.stop_ids().contains(&choice.id),
            bytes: if wanted { bytes(choice.id) } else { Vec::new() },
            logprob: choice.logprob,
            top: choice
                .top
                .iter()
                .map(|top| Top { id: top.id, bytes: bytes(top.id), logprob: top.logprob })
                .collect(),
            forced: DraftIds::default(),
            foreseen: Foreseen::default(),
            prompt: Vec::new(),
            pooled: Vec::new(),
        };
        if sampled.ends_turn {
            sampled.text = self.finish();
        } else {
            if let Some(constraint) = &mut self.constraint {
                constraint
                    .accept(self.tokenizer, sampled.id)
                    .map_err(|error| Error::usage(error.to_string()))?;
            }
            self.history.push(sampled.id);
            sampled.text.push_str(self.stops.push(self.detokenizer.push(sampled.id)));
        }
        let complete = self.constraint.as_ref().is_some_and(Constraint::is_complete);
        sampled.stop = sampled.ends_turn || self.stops.hit() || complete;
        sampled.met = self.stops.met().map(str::to_owned);
        self.ended = sampled.stop;
        Ok(sampled)
    }

    /// Chooses the tokens from `position` on, from the logits after the row before it and after the rows of `draft`, one row
    /// after the other: as long as a choice is the drafted token the next row follows from it, so the tokens are those that
    /// [`Self::choose`] would give one by one. Ends with the text, and after the first choice that was not drafted.
    ///
    /// # Errors
    /// As [`Self::choose`].
    pub(super) fn choose_all(
        &mut self,
        logits: &mut [f32],
        position: usize,
        draft: &[u32],
    ) -> Result<Vec<Sampled>> {
        let vocab = logits.len() / (draft.len() + 1);
        let mut chosen: Vec<Sampled> = Vec::with_capacity(draft.len() + 1);
        for (at, logits) in logits.chunks_exact_mut(vocab.max(1)).enumerate() {
            let sampled = self.choose(logits, position + at)?;
            let goes_on = !sampled.stop && draft.get(at) == Some(&sampled.id);
            chosen.push(sampled);
            if !goes_on {
                break;
            }
        }
        if let (Some(constraint), Some(last)) = (&mut self.constraint, chosen.last_mut())
            && !last.stop
        {
            last.forced = DraftIds(constraint.forced(self.tokenizer, MAX_DRAFT as usize));
        }
        Ok(chosen)
    }

    /// Whether the model's draft head is to see the rows of the prompt from position `from` on.
    pub(super) fn shows(&self, from: u32) -> bool {
        let looks_back = self.model.draft_head.as_ref().is_some_and(|head| head.looks_back());
        looks_back && (from as usize) < self.prompt
    }

    /// Shows the draft head the hidden states behind the tokens from position `from` on, `[n][hidden]`.
    pub(super) fn show(&mut self, from: usize, states: &[f32]) {
        self.head.see(from, states, &self.history);
    }

    /// What the model's draft head guesses to follow the last token, `most` tokens; the hidden states behind the tokens from position
    /// `from` on, of which the last one led to it, are `states`.
    pub(super) fn foresee(&mut self, (from, states): (usize, &[f32]), most: usize) -> Foreseen {
        if most > 0 || self.head.sees() {
            self.show(from, states);
        }
        let most = if self.ended { 0 } else { most.min(MAX_DRAFT as usize) };
        let began = Instant::now();
        let said = self.head.guess(&self.history, most);
        let guesses: Vec<_> = said.iter().map(|said| (said.token, said.chance)).collect();
        let us = if guesses.is_empty() { 0 } else { began.elapsed().as_micros() as u32 };
        Foreseen { guesses, us }
    }

    /// The text still held back, since no token follows.
    pub(super) fn finish(&mut self) -> String {
        if self.stops.hit() {
            return String::new();
        }
        let mut rest = self.stops.push(self.detokenizer.finish()).to_string();
        rest.push_str(self.stops.finish());
        self.ended = true;
        rest
    }
}
