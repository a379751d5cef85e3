//! The tokens of a prompt, told before its answer, with log-probabilities where they are wanted.
//!
//! Each row of the prompt that comes to the last layers predicts the token behind it, so with log-probabilities all of them go
//! through the head, and what they say is kept until the answer's first token is chosen. A session that is opened again
//! keeps what is known; rows that come again say the same again.

use shard::{sample, tokenizer::Tokenizer};

use super::ipc::{PromptToken, Top};
use crate::Result;

/// What is known of the tokens of one prompt.
pub(super) struct Echo {
    /// The first token told: 1 where one was put before what the client sent.
    from: usize,
    /// Of how many alternatives the log-probability is wanted; `None` where none is wanted at all.
    top: Option<usize>,
    /// By position, the prompt's length of them.
    known: Vec<Option<(f32, Vec<Top>)>>,
}

impl Echo {
    /// Of a prompt of which nothing is known yet; `text` says that the client sent text and not ids.
    pub(super) fn new(tokenizer: &Tokenizer, prompt: &[u32], text: bool, top: Option<usize>) -> Self {
        // What the model wants in front of a text is none of the client's.
        let added = text && tokenizer.adds_bos() && prompt.first().copied() == tokenizer.bos();
        Self { from: usize::from(added), top, known: vec![None; prompt.len()] }
    }

    /// What another one knows of the same prompt is known here.
    pub(super) fn adopt(&mut self, known: Self) {
        if (known.top, known.known.len()) == (self.top, self.known.len()) {
            self.known = known.known;
        }
    }

    /// Whether rows from this position on must go through the head.
    pub(super) fn wants(&self, from: usize) -> bool {
        self.top.is_some() && from + 1 < self.known.len()
    }

    /// Takes what the rows from position `from` on say of the tokens behind them; `logits` are `[n][vocab]`.
    ///
    /// # Errors
    /// When logits are not finite.
    pub(super) fn take(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        from: usize,
        logits: &[f32],
        vocab: usize,
    ) -> Result<()> {
        let Some(top) = self.top else { return Ok(()) };
        for (position, row) in (from + 1..).zip(logits.chunks_exact(vocab)) {
            let (Some(known), Some(&id)) = (self.known.get_mut(position), prompt.get(position)) else {
                break;
            };
            let (chosen, best) = sample::logprobs(row, id, top)?;
            let best = best.into_iter().map(|best| Top {
                id: best.id,
                bytes: tokenizer.token_bytes(best.id),
                logprob: best.logprob,
            });
            *known = Some((chosen.logprob, best.collect()));
        }
        Ok(())
    }

    /// The tokens as the client sees them.
    pub(super) fn tokens(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> Vec<PromptToken> {
        let tokens = prompt.iter().zip(&self.known).skip(self.from).map(|(&id, known)| {
            let (logprob, top) = known.clone().map_or((None, Vec::new()), |(own, top)| (Some(own), top));
            PromptToken { id, bytes: tokenizer.token_bytes(id), logprob, top }
        });
        tokens.collect()
    }
}
