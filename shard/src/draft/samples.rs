//! What a model thought while it answered: hidden states and the tokens that it chose after them, to train a [`super::DraftHead`].

use half::f16;

use crate::{Error, Result};

/// Answers of one model, one behind the other.
pub struct Samples {
    hidden: usize,
    /// `[tokens][hidden]`.
    states: Vec<f16>,
    tokens: Vec<u32>,
    /// Where each answer ends.
    ends: Vec<usize>,
}

/// Part of an answer: `[first, first + rows)` of [`Samples`].
pub(super) type Piece = std::ops::Range<usize>;

impl Samples {
    /// None yet, of a model whose rows are `hidden` wide.
    pub fn new(hidden: usize) -> Self {
        Self { hidden, states: Vec::new(), tokens: Vec::new(), ends: Vec::new() }
    }

    /// Adds an answer: `states`, `[tokens][hidden]`, each the state behind the norm in front of the head that `tokens` was chosen
    /// from.
    ///
    /// # Errors
    /// [`Error::Invalid`] for lengths that do not fit together.
    pub fn add(&mut self, states: &[f32], tokens: &[u32]) -> Result<()> {
        if states.len() != tokens.len() * self.hidden {
            return Err(Error::invalid(format!("{} states of {} tokens", states.len(), tokens.len())));
        }
        self.states.extend(states.iter().map(|x| f16::from_f32(*x)));
        self.tokens.extend_from_slice(tokens);
        self.ends.push(self.tokens.len());
        Ok(())
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn hidden(&self) -> usize {
        self.hidden
    }

    pub(super) fn token(&self, at: usize) -> u32 {
        self.tokens[at]
    }

    pub(super) fn state(&self, at: usize) -> &[f16] {
        &self.states[at * self.hidden..(at + 1) * self.hidden]
    }

    /// The answers.
    pub(super) fn answers(&self) -> impl Iterator<Item = Piece> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start..*end)
    }

    /// The `most` tokens that were chosen most often, ascending.
    pub(super) fn frequent(&self, most: usize) -> Vec<u32> {
        let mut counts = std::collections::HashMap::<u32, usize>::new();
        self.tokens.iter().for_each(|token| *counts.entry(*token).or_default() += 1);
        let mut tokens: Vec<(u32, usize)> = counts.into_iter().collect();
        tokens.sort_by_key(|(token, count)| (std::cmp::Reverse(*count), *token));
        let mut tokens: Vec<u32> = tokens.into_iter().take(most).map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }
}
