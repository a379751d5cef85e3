//! The draft head of a model beside one answer ([`shard::draft::StateDrafter`]).
//!
//! Drafts change no token, so whatever fails in one ends its drafts and never the answer.

use std::sync::Arc;

use shard::{
    Result,
    draft::{DraftToken, StateDraft, StateDrafter},
    sample::SamplingParams,
};

/// What the draft head knows of an answer; one that failed, and that of a model without a head, drafts nothing.
#[derive(Default)]
pub struct HeadDraft {
    draft: Option<Box<dyn StateDraft>>,
    sees: bool,
}

impl HeadDraft {
    /// That of `head` for an answer that is drawn with these parameters and seed.
    pub fn begin(head: Option<Arc<dyn StateDrafter>>, params: &SamplingParams, seed: u64) -> Self {
        let mut new = Self::default();
        new.draft = new.checked(head.map(|head| head.session(params, seed)).transpose()).flatten();
        new
    }

    /// Whether it was shown anything: then it is shown all that follows, also where no guess is wanted.
    pub fn sees(&self) -> bool {
        self.sees
    }

    /// Bytes that it remembers.
    pub fn bytes(&self) -> usize {
        self.draft.as_ref().map_or(0, |draft| draft.bytes())
    }

    /// Shows it the hidden states of the rows of `text` from position `from` on, `[n][hidden]`.
    pub fn see(&mut self, from: usize, states: &[f32], text: &[u32]) {
        let Some(draft) = self.draft.as_mut().filter(|_| !states.is_empty()) else { return };
        self.sees = true;
        let seen = draft.see(from, states, text);
        self.checked(seen);
    }

    /// At most `most` tokens that may follow `text`.
    pub fn guess(&mut self, text: &[u32], most: usize) -> Vec<DraftToken> {
        let Some(draft) = self.draft.as_mut().filter(|_| most > 0) else { return Vec::new() };
        let said = draft.guess(text, most).map(<[_]>::to_vec);
        self.checked(said).unwrap_or_default()
    }

    fn checked<T>(&mut self, done: Result<T>) -> Option<T> {
        done.inspect_err(|error| {
            tracing::warn!(%error, "the draft head failed");
            self.draft = None;
        })
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use shard::Error;

    use super::*;

    struct Failing {
        guesses: bool,
    }

    impl StateDraft for Failing {
        fn bytes(&self) -> usize {
            7
        }

        fn see(&mut self, _: usize, _: &[f32], _: &[u32]) -> Result<()> {
            if self.guesses { Ok(()) } else { Err(Error::invalid("blind")) }
        }

        fn guess(&mut self, _: &[u32], _: usize) -> Result<&[DraftToken]> {
            Err(Error::invalid("at a loss"))
        }
    }

    #[test]
    fn one_that_fails_drafts_no_more() {
        for guesses in [false, true] {
            let mut head = HeadDraft { draft: Some(Box::new(Failing { guesses })), sees: false };
            assert_eq!(head.bytes(), 7);
            head.see(0, &[], &[1, 2]);
            assert!(!head.sees(), "shown nothing");
            head.see(0, &[1.0], &[1, 2]);
            assert_eq!(head.bytes(), if guesses { 7 } else { 0 });
            assert_eq!(head.guess(&[1, 2], 4), []);
            assert_eq!(head.bytes(), 0);
        }
    }
}
