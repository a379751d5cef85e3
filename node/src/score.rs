//! How well a model predicts a text, and what rounding at the cuts of a `q8` session changes about it.
//!
//! The text is read in windows as long as the context, each after the token that begins a sequence if the model has one.
//! Every window goes through the model twice when there is something to compare: exact, and rounded before the given
//! layers. Per predicted token the figures are the usual ones: the negative log-likelihood (its mean, exponentiated, is
//! perplexity), the Kullback-Leibler divergence of the rounded distribution from the exact one, and whether both hold
//! the same token for the likeliest.
//!
//! Limits: two copies of the logits of one pass are in memory; windows do not overlap, so the first tokens of each are
//! predicted with little to look back at.

use shard::{
    executor::{Capacity, Executor, Input, Item, Output, Workspace, argmax},
    round::Rounding,
    state::SessionState,
};

use crate::{Error, Result};

/// The figures of one text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Tokens that were predicted.
    pub predicted: usize,
    /// Sum of their negative log-likelihoods in the exact model, in nats.
    pub exact_nats: f64,
    /// The comparison, if rounding was asked for.
    pub rounded: Option<Rounded>,
}

/// What rounding changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounded {
    /// Sum of the negative log-likelihoods with rounding, in nats.
    pub nats: f64,
    /// Sum of the divergences of the rounded distributions from the exact ones, in nats.
    pub divergence_nats: f64,
    /// The largest of them.
    pub worst_nats: f64,
    /// Tokens for which both hold the same token for the likeliest.
    pub agreed: usize,
}

impl Score {
    /// Perplexity of the exact model.
    pub fn perplexity(&self) -> f64 {
        (self.exact_nats / self.predicted as f64).exp()
    }
}

/// A model about to read a text.
pub struct Scorer<'a> {
    executor: &'a dyn Executor,
    workspace: Workspace,
    rounding: &'a Rounding,
    exact: Vec<f32>,
}

impl<'a> Scorer<'a> {
    /// Reads with a whole model in passes of at most `chunk` rows; `rounding` may be none.
    pub fn new(executor: &'a dyn Executor, rounding: &'a Rounding, chunk: usize) -> Result<Self> {
        let chunk = chunk.clamp(1, executor.context());
        let workspace = Workspace::new(executor, Capacity { rows: chunk, items: 1, logit_rows: chunk })?;
        Ok(Self { executor, workspace, rounding, exact: Vec::new() })
    }

    /// Scores `ids`, which begin with `lead` where the model wants such a token; `on_progress` gets the tokens done.
    ///
    /// # Errors
    /// A text that leaves nothing to predict.
    pub fn score(
        &mut self,
        lead: Option<u32>,
        ids: &[u32],
        on_progress: &mut dyn FnMut(usize),
    ) -> Result<Score> {
        let text = &ids[usize::from(lead.is_some() && ids.first() == lead.as_ref())..];
        let room = self.executor.context() - usize::from(lead.is_some());
        let mut score = Score::default();
        for window in text.chunks(room.max(1)) {
            let window: Vec<u32> = lead.into_iter().chain(window.iter().copied()).collect();
            self.window(&window, &mut score)?;
            on_progress(window.len());
        }
        if score.predicted == 0 {
            return Err(Error::usage("the text is too short: there is no token to predict"));
        }
        Ok(score)
    }

    /// Every token of `ids` but the first is predicted.
    fn window(&mut self, ids: &[u32], score: &mut Score) -> Result<()> {
        let (mut exact_state, mut rounded_state) = (self.executor.new_state(), self.executor.new_state());
        let vocab = self.executor.blueprint().vocab;
        let given = &ids[..ids.len() - 1];
        let mut wanted = &ids[1..];
        for part in given.chunks(self.workspace.capacity().rows) {
            self.pass(&mut exact_state, &Rounding::NONE, part)?;
            self.exact.clear();
            self.exact.extend_from_slice(self.workspace.logits(0));
            if !self.rounding.is_none() {
                self.pass(&mut rounded_state, self.rounding, part)?;
            }
            let (here, rest) = wanted.split_at(part.len());
            wanted = rest;
            let rows = self.exact.chunks_exact(vocab).zip(self.workspace.logits(0).chunks_exact(vocab));
            for ((exact, rounded), &id) in rows.zip(here) {
                score.predicted += 1;
                let log_sum = log_sum_exp(exact);
                score.exact_nats += log_sum - f64::from(exact[id as usize]);
                if !self.rounding.is_none() {
                    compare(score.rounded.get_or_insert_default(), (exact, log_sum), rounded, id);
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self, state: &mut SessionState, rounding: &Rounding, ids: &[u32]) -> Result<()> {
        let item = Item { state, input: Input::Tokens(ids), output: Output::All };
        Ok(self.executor.run(&mut self.workspace, self.executor.range(), rounding, &mut [item])?)
    }
}

fn compare(sums: &mut Rounded, (exact, log_sum): (&[f32], f64), rounded: &[f32], id: u32) {
    let rounded_sum = log_sum_exp(rounded);
    let divergence: f64 = exact
        .iter()
        .zip(rounded)
        .map(|(&e, &r)| {
            let log_p = f64::from(e) - log_sum;
            log_p.exp() * (log_p - (f64::from(r) - rounded_sum))
        })
        .sum();
    // Rounding of the sum itself may leave a tiny negative number where the distributions are equal.
    let divergence = divergence.max(0.0);
    sums.nats += rounded_sum - f64::from(rounded[id as usize]);
    sums.divergence_nats += divergence;
    sums.worst_nats = sums.worst_nats.max(divergence);
    sums.agreed += usize::from(argmax(exact) == argmax(rounded));
}

/// `ln(sum(exp(x)))` without overflow.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |top, &x| top.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - top).exp()).sum();
    f64::from(top) + sum.ln()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shard::{
        executor::Device,
        gguf::Gguf,
        kernels::{Cpu, Isa, threads::Pool},
        quant,
        synthetic::{Random, Shape},
    };

    use super::*;

    #[test]
    fn known_distributions() {
        let ln = |x: f64| x.ln() as f32;
        let exact = [ln(0.5), ln(0.25), ln(0.25)];
        let rounded = [ln(0.25), ln(0.5), ln(0.25)];
        let mut sums = Rounded::default();
        compare(&mut sums, (&exact, log_sum_exp(&exact)), &rounded, 1);
        compare(&mut sums, (&exact, log_sum_exp(&exact)), &exact, 1);
        // 0.5 ln 2 - 0.25 ln 2, and then nothing.
        assert!((sums.divergence_nats - 0.25 * 2f64.ln()).abs() < 1e-6, "{sums:?}");
        assert_eq!(sums.worst_nats, sums.divergence_nats);
        assert!((sums.nats - (2f64.ln() + 4f64.ln())).abs() < 1e-6);
        assert_eq!(sums.agreed, 1);
        assert!((log_sum_exp(&[1e4, 1e4]) - (1e4 + 2f64.ln())).abs() < 1e-9);
    }

    #[test]
    fn windows_and_passes_do_not_change_a_score_and_cuts_do() {
        let shape = Shape {
            family: shard::synthetic::Family::Llama,
            layers: 4,
            hidden: 64,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            feed_forward: 96,
            vocab: 101,
            context: 64,
            tied: true,
            experts: None,
        };
        let gguf =
            Arc::new(Gguf::from_bytes(shape.to_bytes(quant::by_name("q8_0").unwrap(), 1).unwrap()).unwrap());
        let device = Device::Cpu(Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false))));
        let executor = crate::model::load_whole(&gguf, &device, shape.context).unwrap();
        let mut random = Random(4);
        let ids: Vec<u32> = (0..150).map(|_| random.below(shape.vocab) as u32).collect();
        let score = |boundaries: &[u32], chunk, lead| {
            let rounding = Rounding { boundaries: boundaries.to_vec(), ..Rounding::NONE };
            Scorer::new(&*executor, &rounding, chunk).unwrap().score(lead, &ids, &mut |_| {}).unwrap()
        };
        let exact = score(&[], 64, None);
        // Windows of 64, 64 and 22 tokens, the first of each given.
        assert_eq!((exact.predicted, exact.rounded), (147, None));
        assert_eq!(score(&[], 5, None), exact);
        assert_eq!(score(&[], 64, Some(7)).predicted, 150);
        // Random weights are surprised by random text: about the logarithm of the vocabulary, and more.
        assert!(exact.perplexity() > 60.0, "{}", exact.perplexity());
        let (one, three) = (score(&[2], 64, None), score(&[1, 2, 3], 7, None));
        assert_eq!((one.exact_nats, three.exact_nats), (exact.exact_nats, exact.exact_nats));
        let (one, three) = (one.rounded.unwrap(), three.rounded.unwrap());
        assert!(
            0.0 < one.divergence_nats && one.divergence_nats < three.divergence_nats,
            "{one:?} {three:?}"
        );
        assert!(one.worst_nats <= one.divergence_nats && one.agreed <= 147);
        assert!(Scorer::new(&*executor, &Rounding::NONE, 8).unwrap().score(None, &[1], &mut |_| {}).is_err());
    }
}
