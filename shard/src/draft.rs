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
//! | [`DraftedBy::Model`] | what a smaller model of the same vocabulary would say | [`DraftModel`] |
//!
//! How sure a guess is depends on its kind and on how far the text agrees with the place it was found at ([`Guess::trust`]);
//! how often guesses of a trust are right is measured while the answer runs, and how many are worth their rows is
//! `scheduler::depth`'s to say.

mod lookup;
mod model;

pub use self::{
    lookup::Lookup,
    model::{DraftModel, DraftSampler, DraftToken},
};

/// What guessed a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DraftedBy {
    /// [`Lookup`].
    Lookup,
    /// The form of the answer.
    Grammar,
    /// [`DraftModel`].
    Model,
}

impl DraftedBy {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Lookup, Self::Grammar, Self::Model];

    /// The word users read and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Grammar => "grammar",
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
pub const TRUSTS: usize = 10;

/// How often guesses of each trust are right before any was judged: lookup by how far the text agrees, then the form, as
/// SmolLM2-135M has them over stories, summaries, code edits and JSON; then a model by how likely it finds its guess, as if it
/// knew.
pub const PRIORS: [f64; TRUSTS] = [0.1, 0.25, 0.6, 0.75, 0.9, 0.97, 0.15, 0.35, 0.65, 0.9];

/// The trust of what a form forces.
const FORCED: usize = 5;

impl Guess {
    /// What a model says.
    pub fn of_model(said: DraftToken) -> Self {
        let trust = match said.chance {
            p if p < 0.25 => 6,
            p if p < 0.5 => 7,
            p if p < 0.8 => 8,
            _ => 9,
        };
        Self { token: said.token, kind: DraftedBy::Model, trust }
    }
}

/// Proposes tokens.
pub trait Drafter: Send {
    /// At most `k` tokens that may follow `text`, the prompt and what was said so far, in their order. Any beginning of them
    /// may be right.
    fn propose(&mut self, text: &[u32], k: usize) -> Vec<Guess>;
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
