//! Drafts: tokens guessed behind those known, so that one pass may confirm several.
//!
//! A [`Drafter`] proposes; the pass computes a row for every guess, and the guesses count that the draws agree with, and one
//! token more. A draw depends on the seed, the position and the logits alone, so the tokens are those of an answer without
//! drafts, whatever is proposed: a drafter changes speed and nothing else. It is pure: what it proposes follows from the text.
//!
//! | kind | proposes | where |
//! |---|---|---|
//! | [`DraftedBy::Lookup`] | what followed the last time that the text ended so | [`Lookup`] |
//! | [`DraftedBy::Grammar`] | what the form of the answer leaves no choice about | the process that knows the form |
//! | [`DraftedBy::Head`] | what a small network makes of the model's own hidden state | [`StateDrafter`]: [`DraftHead`], [`MtpHead`] |
//! | [`DraftedBy::Model`] | what a smaller model of the same vocabulary would say | [`DraftModel`] |
//!
//! How sure a guess is depends on its kind and on how far the text agrees with the place it was found at ([`Guess::trust`]);
//! how often guesses of a trust are right is measured while the answer runs, and how many are worth their rows is
//! `scheduler::depth`'s to say.

use std::sync::Arc;

use crate::{
    Result,
    kernels::math,
    sample::{Sampler, SamplingParams},
};

mod head;
mod lookup;
mod model;
mod mtp;
mod samples;
mod train;

pub use self::{
    head::{ARCHITECTURE as HEAD_ARCHITECTURE, DraftHead, HeadParts},
    lookup::Lookup,
    model::{DraftModel, DraftSampler, DraftToken},
    mtp::MtpHead,
    samples::Samples,
    train::{DEPTH, Judged, Trainer, Training},
};

/// What guessed a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DraftedBy {
    /// [`Lookup`].
    Lookup,
    /// The form of the answer.
    Grammar,
    /// [`StateDrafter`].
    Head,
    /// [`DraftModel`].
    Model,
}

impl DraftedBy {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Lookup, Self::Grammar, Self::Head, Self::Model];

    /// The word users read and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Grammar => "grammar",
            Self::Head => "head",
            Self::Model => "model",
        }
    }
}

/// A guessed token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guess {
    /// Its id.
    pub token: u32,
    /// What guessed it.
    pub kind: DraftedBy,
    /// Guesses of equal trust are right about equally often; below [`TRUSTS`].
    pub trust: usize,
}

/// Kinds of guesses that are told apart by how often they are right.
pub const TRUSTS: usize = 14;

/// How often guesses of each trust are right before any was judged: lookup by how far the text agrees, then the form, as
/// SmolLM2-135M has them over stories, summaries, code edits and JSON; then a model and a head by how likely they find their
/// guess, as if they knew.
pub const PRIORS: [f64; TRUSTS] =
    [0.1, 0.25, 0.6, 0.75, 0.9, 0.97, 0.15, 0.35, 0.65, 0.9, 0.15, 0.35, 0.65, 0.9];

/// The trust of what a form forces.
const FORCED: usize = 5;

impl Guess {
    /// What a model says.
    pub fn of_model(said: DraftToken) -> Self {
        Self { token: said.token, kind: DraftedBy::Model, trust: 6 + sureness(said) }
    }

    /// What a head says.
    pub fn of_head(said: DraftToken) -> Self {
        Self { token: said.token, kind: DraftedBy::Head, trust: 10 + sureness(said) }
    }
}

/// How sure of a guess its drafter is, 0 to 3.
fn sureness(said: DraftToken) -> usize {
    match said.chance {
        p if p < 0.25 => 0,
        p if p < 0.5 => 1,
        p if p < 0.8 => 2,
        _ => 3,
    }
}

/// Proposes tokens.
pub trait Drafter: Send {
    /// At most `k` tokens that may follow `text`, the prompt and what was said so far, in their order. Any beginning of them
    /// may be right.
    fn propose(&mut self, text: &[u32], k: usize) -> Vec<Guess>;
}

/// Guesses from the hidden states of the model that it drafts for: weights alone, so that all sessions of the model share it.
pub trait StateDrafter: Send + Sync {
    /// Bytes that are read for a guess.
    fn bytes(&self) -> usize;

    /// Bytes that it remembers of a position of an answer.
    fn position_bytes(&self) -> usize;

    /// Whether it guesses better where it saw the rows of the prompt ([`StateDraft::see`]), and not the last one alone.
    fn looks_back(&self) -> bool;

    /// What it knows of an answer that is drawn with these parameters and seed: it chooses as the model will.
    ///
    /// # Errors
    /// Those of [`Sampler::new`]; what the device says without memory.
    fn session(self: Arc<Self>, params: &SamplingParams, seed: u64) -> Result<Box<dyn StateDraft>>;
}

/// What a [`StateDrafter`] knows of one answer.
pub trait StateDraft: Send {
    /// Bytes that it remembers.
    fn bytes(&self) -> usize;

    /// The model computed the rows of `text` from position `from` on, whose hidden states in front of the head are `states`,
    /// `[n][hidden]`: those seen before from there on are forgotten. Every row but the last is followed by a token of `text`.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for rows beyond the text or of another width.
    fn see(&mut self, from: usize, states: &[f32], text: &[u32]) -> Result<()>;

    /// At most `most` tokens that may follow `text`; none where the state that its last token was chosen from was not seen.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a token beyond the vocabulary and states that are not finite.
    fn guess(&mut self, text: &[u32], most: usize) -> Result<&[DraftToken]>;
}

/// What follows `text`, and how likely `sampler` finds that.
fn said(sampler: &mut Sampler, logits: &mut [f32], text: &[u32]) -> Result<DraftToken> {
    let choice = sampler.sample(logits, text, text.len() as u64)?;
    Ok(DraftToken { token: choice.id, chance: chance(choice.logprob) })
}

/// A probability, 0 where it was not asked for.
fn chance(logprob: Option<f32>) -> f32 {
    logprob.map_or(0.0, |logprob| math::exp(f64::from(logprob)).min(1.0) as f32)
}

impl Drafter for Lookup {
    fn propose(&mut self, text: &[u32], k: usize) -> Vec<Guess> {
        let (tokens, agree) = self.guess(text, k);
        let trust = match agree {
            0..=2 => 0,
            3 => 1,
            4..=7 => 2,
            8..=15 => 3,
            _ => 4,
        };
        tokens.into_iter().map(|token| Guess { token, kind: DraftedBy::Lookup, trust }).collect()
    }
}

/// Tokens that the form of an answer forces.
pub fn forced(tokens: &[u32]) -> impl Iterator<Item = Guess> + '_ {
    tokens.iter().map(|token| Guess { token: *token, kind: DraftedBy::Grammar, trust: FORCED })
}
