//! The tokens of a prompt, shown before the answer: what evaluation harnesses read.
//!
//! With log-probabilities every row of the prompt goes through the head, so as many rows as a pass has room for logits are
//! computed at a time, and nothing that was kept of an earlier prompt is of use.

use api::inference::{PromptToken, TokenLogprobs};
use shard::{
    sample::{self, Logprob},
    tokenizer::Tokenizer,
};

use super::{Ask, named};
use crate::Result;

/// Which tokens of a prompt are shown.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// The first one: 1 where a token was put before what the client sent.
    pub from: usize,
}

impl Ask {
    /// Whether every token of the prompt is told with its log-probability.
    pub(super) fn is_scored(&self) -> bool {
        self.echo.is_some() && self.sampling.logprobs
    }

    /// What a pass over positions `start..end` tells about the prompt: of a scored one the first token and those that the
    /// pass predicts, of another everything with its first pass. `logits` are those of every row of the pass, `[n][vocab]`;
    /// they are looked at only for scored prompts.
    pub(super) fn shown(
        &self,
        tokenizer: &Tokenizer,
        start: usize,
        end: usize,
        logits: &[f32],
    ) -> Result<Vec<PromptToken>> {
        let Some(Echo { from }) = self.echo else { return Ok(Vec::new()) };
        let plain = |id: u32| PromptToken { id, bytes: tokenizer.token_bytes(id), logprobs: None };
        let first = |count: usize| self.prompt.iter().take(count).skip(from).map(|id| plain(*id));
        if !self.is_scored() {
            let whole = if start == 0 { self.prompt.len() } else { 0 };
            return Ok(first(whole).collect());
        }
        let mut tokens: Vec<PromptToken> = first(usize::from(start == 0)).collect();
        let vocab = logits.len() / (end - start).max(1);
        let predicted = self.prompt.iter().enumerate().take(end + 1).skip((start + 1).max(from));
        for (position, &id) in predicted {
            let row = &logits[(position - 1 - start) * vocab..][..vocab];
            let (chosen, top) = sample::logprobs(row, id, self.sampling.top_logprobs)?;
            let name = |token: Logprob| named(tokenizer, token);
            let logprobs = TokenLogprobs { chosen: name(chosen), top: top.into_iter().map(name).collect() };
            tokens.push(PromptToken { logprobs: Some(logprobs), ..plain(id) });
        }
        Ok(tokens)
    }
}
