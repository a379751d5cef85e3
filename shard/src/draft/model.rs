//! A smaller model that drafts for a larger one of the same vocabulary.
//!
//! It keeps the state of one text. A text that begins otherwise takes it back to where both agree ([`SessionState::rewind`]), so
//! tokens that were rejected leave it, and only what is new is computed. It draws as the larger model will: with the same
//! parameters, seed and position, and so the same random number ([`crate::sample`]), so that sampled answers are drafted as well
//! as greedy ones.
//!
//! Limits: one text; as many positions as the executor's context; nothing is allocated for a token of a text that grows within what
//! was reserved.

use super::said;
use crate::{
    Error, Result,
    executor::{Capacity, Executor, Input, Item, Output, Workspace},
    sample::{Sampler, SamplingParams},
    state::SessionState,
};

/// Rows of one pass over a text that is new.
const CHUNK_ROWS: usize = 96;

/// What a draft model says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DraftToken {
    /// Its guess.
    pub token: u32,
    /// How likely it finds that, 0 to 1.
    pub chance: f32,
}

/// How a draft model chooses: as the model that it drafts for.
pub struct DraftSampler {
    sampler: Sampler,
    /// One for each token that both models have.
    logits: Vec<f32>,
}

impl DraftSampler {
    /// One for answers drawn with these parameters and seed, by the draft model `executor` for a model of `vocab` tokens: rows
    /// that fill up one of both vocabularies are never said.
    ///
    /// # Errors
    /// Those of [`Sampler::new`].
    pub fn new(executor: &dyn Executor, params: &SamplingParams, seed: u64, vocab: usize) -> Result<Self> {
        let vocab = executor.blueprint().vocab.min(vocab);
        let mut params = SamplingParams { logprobs: true, top_logprobs: 0, ..params.clone() };
        params.logit_bias.retain(|(id, _)| (*id as usize) < vocab);
        Ok(Self { sampler: Sampler::new(params, seed, vocab)?, logits: vec![0.0; vocab] })
    }
}

/// A model that drafts, and what it remembers of the text.
pub struct DraftModel {
    state: SessionState,
    ids: Vec<u32>,
    workspace: Workspace,
}

impl DraftModel {
    /// One that remembers nothing yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an executor without all layers and both ends.
    pub fn new(executor: &dyn Executor) -> Result<Self> {
        let whole = executor.range().start() == 0
            && executor.range().end() as usize == executor.blueprint().layers.len()
            && executor.ends().embedding
            && executor.ends().head;
        if !whole {
            return Err(Error::invalid("a draft model without all its layers"));
        }
        let rows = CHUNK_ROWS.min(executor.context()).max(1);
        let workspace = Workspace::new(executor, Capacity { rows, items: 1, logit_rows: 1 })?;
        Ok(Self { state: executor.new_state(), ids: Vec::new(), workspace })
    }

    /// Bytes of state in memory.
    pub fn bytes(&self) -> usize {
        self.state.bytes()
    }

    /// Tokens of `text` that must be computed before the one behind it can be said.
    pub fn pending(&self, text: &[u32]) -> usize {
        text.len() - self.common(text)
    }

    /// Tokens that `text` and what is remembered begin with, the last one of `text` not counted: its logits are needed.
    fn common(&self, text: &[u32]) -> usize {
        let common = self.ids.iter().zip(text).take_while(|(a, b)| a == b).count();
        common.min(text.len().saturating_sub(1))
    }

    /// Computes what is new of `text`, so that less is to be computed for the token behind it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty text and ids beyond the vocabulary; those of the executor.
    pub fn read(&mut self, executor: &dyn Executor, text: &[u32]) -> Result<()> {
        if text.is_empty() {
            return Err(Error::invalid("an empty text to draft behind"));
        }
        let kept = self.state.rewind(self.common(text));
        self.ids.truncate(kept);
        for chunk in text[kept..].chunks(self.workspace.capacity().rows) {
            let last = self.ids.len() + chunk.len() == text.len();
            let output = if last { Output::Last } else { Output::None };
            let item = Item { state: &mut self.state, input: Input::Tokens(chunk), output };
            executor.forward(&mut self.workspace, &mut [item])?;
            self.ids.extend_from_slice(chunk);
        }
        Ok(())
    }

    /// The token behind `text`; `None` where the context is full.
    ///
    /// # Errors
    /// Those of [`DraftModel::read`]; [`Error::Invalid`] for logits that are not finite.
    pub fn next(
        &mut self,
        executor: &dyn Executor,
        sampler: &mut DraftSampler,
        text: &[u32],
    ) -> Result<Option<DraftToken>> {
        if text.len() > executor.context() {
            return Ok(None);
        }
        self.read(executor, text)?;
        let DraftSampler { sampler, logits } = sampler;
        let shared = logits.len();
        let computed = self.workspace.logits(0).get(..shared);
        logits.copy_from_slice(computed.ok_or_else(|| Error::invalid("logits of another vocabulary"))?);
        said(sampler, logits, text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        executor::{Device, Ends, Options, load, whole_range},
        gguf::Gguf,
        kernels::{Cpu, Isa, threads::Pool},
        quant, synthetic,
    };

    fn executor() -> Box<dyn Executor> {
        let shape = synthetic::shape("tiny").unwrap();
        let bytes = shape.to_bytes(quant::by_name("q8_0").unwrap(), 3).unwrap();
        let gguf = Arc::new(Gguf::from_bytes(bytes).unwrap());
        let range = whole_range(&gguf).unwrap();
        let device = Device::Cpu(Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false))));
        load(&device, &gguf, range, Ends::BOTH, Options { context: Some(64) }).unwrap()
    }

    /// What is remembered of other texts, rejected tokens included, changes nothing that is said; the same draw as the model
    /// itself would make.
    #[test]
    fn it_says_what_it_would_say_without_a_memory() {
        let executor = executor();
        let params = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
        for params in [SamplingParams::default(), params] {
            let mut sampler = DraftSampler::new(&*executor, &params, 7, usize::MAX).unwrap();
            let mut model = DraftModel::new(&*executor).unwrap();
            let mut text = vec![1, 5, 9, 2];
            for step in 0..20 {
                let said = model.next(&*executor, &mut sampler, &text).unwrap().unwrap();
                let mut fresh = DraftModel::new(&*executor).unwrap();
                assert_eq!(fresh.next(&*executor, &mut sampler, &text).unwrap(), Some(said));
                assert!((0.0..=1.0).contains(&said.chance), "{said:?}");
                assert_eq!(model.pending(&text), 1);
                text.push(if step % 3 == 0 { (said.token + 1) % 200 } else { said.token });
                if step % 5 == 4 {
                    text.truncate(text.len() - 3);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_drafted_behind_is_said() {
        let executor = executor();
        let mut sampler = DraftSampler::new(&*executor, &SamplingParams::default(), 0, usize::MAX).unwrap();
        let mut model = DraftModel::new(&*executor).unwrap();
        assert!(model.next(&*executor, &mut sampler, &[]).is_err());
        assert!(model.next(&*executor, &mut sampler, &[u32::MAX]).is_err());
        assert_eq!(model.next(&*executor, &mut sampler, &[1; 65]).unwrap(), None);
        assert!(model.next(&*executor, &mut sampler, &[1; 64]).unwrap().is_some());
    }

    /// Vocabularies are filled up to different lengths: what only one has is never said, and a bias of it is no error.
    #[test]
    fn what_only_one_vocabulary_has_is_not_said() {
        let executor = executor();
        let whole = executor.blueprint().vocab;
        let favored = whole as u32 - 1;
        let bias = vec![(favored, 100.0), (favored + 7, 100.0)];
        let params = SamplingParams { logit_bias: bias, ..SamplingParams::default() };
        let mut model = DraftModel::new(&*executor).unwrap();
        let mut said = |vocab: usize| {
            let mut sampler = DraftSampler::new(&*executor, &params, 0, vocab).unwrap();
            model.next(&*executor, &mut sampler, &[1, 2, 3]).unwrap().unwrap().token
        };
        assert_eq!(said(whole + 64), favored);
        assert!((said(whole - 1) as usize) < whole - 1);
    }
}
