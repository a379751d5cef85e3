//! How well a model predicts a text, and what rounding at the cuts of a `q8` session, another kind of session, or the profile's
//! arithmetic changes about it.
//!
//! The text is read in windows as long as the context, each after the token that begins a sequence if the model has one.
//! Every window goes through the model twice when there is something to compare: exact and dense, and with the change; the exact
//! one may be another executor, the oracle in `f32`. Per predicted token the figures are the usual ones: the negative
//! log-likelihood (its mean, exponentiated, is perplexity), the Kullback-Leibler divergence of the changed distribution from the
//! exact one, and whether both hold the same token for the likeliest: of all tokens, and by how many positions lie behind a token.
//!
//! Limits: two copies of the logits of one pass are in memory; windows do not overlap, so the first tokens of each are
//! predicted with little to look back at.

use scheduler::SessionKind;
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
    /// The comparison, if a change was asked for.
    pub changed: Option<Changed>,
    /// The same by position: behind fewer than 256 positions, fewer than 512, 1024 and so on; none is without tokens.
    pub buckets: Vec<Bucket>,
    /// The divergence of each predicted token in the order of the text, in nats; empty without a comparison.
    pub divergences: Vec<f32>,
}

/// The figures of the tokens with between `from` and twice as many positions behind them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bucket {
    /// The least number of positions; 0 for the first.
    pub from: usize,
    /// Tokens that were predicted.
    pub predicted: usize,
    /// Sum of their negative log-likelihoods in the exact model, in nats.
    pub exact_nats: f64,
    /// The comparison, if a change was asked for.
    pub changed: Option<Changed>,
}

/// Positions of the first bucket.
const FIRST_BUCKET: usize = 256;

impl Score {
    /// The bucket of tokens behind `position` positions.
    fn bucket(&mut self, position: usize) -> &mut Bucket {
        let from = if position < FIRST_BUCKET { 0 } else { 1 << position.ilog2() };
        let at = self.buckets.binary_search_by_key(&from, |bucket| bucket.from).unwrap_or_else(|at| {
            self.buckets.insert(at, Bucket { from, ..Bucket::default() });
            at
        });
        &mut self.buckets[at]
    }
}

/// What is changed about a session, to see what that does.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Where activations are rounded, and how.
    pub rounding: &'a Rounding,
    /// What its rows see, and how keys and values are kept.
    pub kind: SessionKind,
}

impl Change<'_> {
    fn is_none(&self) -> bool {
        self.rounding.is_none() && self.kind.is_default()
    }
}

/// What the change does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changed {
    /// Sum of the negative log-likelihoods with it, in nats.
    pub nats: f64,
    /// Sum of the divergences of the changed distributions from the exact ones, in nats.
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

/// A whole model that reads.
struct Reader<'a> {
    executor: &'a dyn Executor,
    workspace: Workspace,
}

impl<'a> Reader<'a> {
    fn new(executor: &'a dyn Executor, chunk: usize) -> Result<Self> {
        let workspace = Workspace::new(executor, Capacity { rows: chunk, items: 1, logit_rows: chunk })?;
        Ok(Self { executor, workspace })
    }

    /// The logits after each of `ids`.
    fn read(&mut self, state: &mut SessionState, rounding: &Rounding, ids: &[u32]) -> Result<&[f32]> {
        let item = Item { state, input: Input::Tokens(ids), output: Output::All };
        self.executor.run(&mut self.workspace, self.executor.range(), rounding, &mut [item])?;
        Ok(self.workspace.logits(0))
    }
}

/// A model about to read a text.
pub struct Scorer<'a> {
    reader: Reader<'a>,
    /// Whose figures are the exact ones; the reader's without a change where there is none.
    reference: Option<Reader<'a>>,
    chunk: usize,
    change: Change<'a>,
    exact: Vec<f32>,
}

impl<'a> Scorer<'a> {
    /// Reads with a whole model in passes of at most `chunk` rows; `change` may be none.
    pub fn new(executor: &'a dyn Executor, change: Change<'a>, chunk: usize) -> Result<Self> {
        let chunk = chunk.clamp(1, executor.context());
        let reader = Reader::new(executor, chunk)?;
        Ok(Self { reader, reference: None, chunk, change, exact: Vec::new() })
    }

    /// Compares with what `reference`, the same model with the same context, computes.
    pub fn against(self, reference: &'a dyn Executor) -> Result<Self> {
        Ok(Self { reference: Some(Reader::new(reference, self.chunk)?), ..self })
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
        let room = self.reader.executor.context() - usize::from(lead.is_some());
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
        let Self { reader, reference, .. } = self;
        let executor = reader.executor;
        let mut exact_state = reference.as_ref().map_or(executor, |reference| reference.executor).new_state();
        let mut changed_state = executor.new_state_with(executor.range(), self.change.kind)?;
        let vocab = executor.blueprint().vocab;
        let compares = reference.is_some() || !self.change.is_none();
        let given = &ids[..ids.len() - 1];
        let mut wanted = &ids[1..];
        for part in given.chunks(self.chunk) {
            let exact = reference.as_mut().unwrap_or(reader).read(&mut exact_state, &Rounding::NONE, part)?;
            self.exact.clear();
            self.exact.extend_from_slice(exact);
            let position = exact_state.len() - part.len();
            let changed = match compares {
                true => reader.read(&mut changed_state, self.change.rounding, part)?,
                false => &self.exact,
            };
            let (here, rest) = wanted.split_at(part.len());
            wanted = rest;
            let rows = self.exact.chunks_exact(vocab).zip(changed.chunks_exact(vocab));
            for (behind, ((exact, changed), &id)) in (position..).zip(rows.zip(here)) {
                let log_sum = log_sum_exp(exact);
                let nats = log_sum - f64::from(exact[id as usize]);
                score.predicted += 1;
                score.exact_nats += nats;
                let difference = compares.then(|| compare((exact, log_sum), changed, id));
                let bucket = score.bucket(behind);
                bucket.predicted += 1;
                bucket.exact_nats += nats;
                if let Some(difference) = difference {
                    bucket.changed.get_or_insert_default().add(difference);
                    score.changed.get_or_insert_default().add(difference);
                    score.divergences.push(difference.divergence_nats as f32);
                }
            }
        }
        Ok(())
    }
}

impl Changed {
    fn add(&mut self, one: Self) {
        self.nats += one.nats;
        self.divergence_nats += one.divergence_nats;
        self.worst_nats = self.worst_nats.max(one.worst_nats);
        self.agreed += one.agreed;
    }
}

/// The figures of one token.
fn compare((exact, log_sum): (&[f32], f64), rounded: &[f32], id: u32) -> Changed {
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
    Changed {
        nats: rounded_sum - f64::from(rounded[id as usize]),
        divergence_nats: divergence,
        worst_nats: divergence,
        agreed: usize::from(argmax(exact) == argmax(rounded)),
    }
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
        executor::{Device, reference::Arithmetic},
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
        let mut sums = Changed::default();
        sums.add(compare((&exact, log_sum_exp(&exact)), &rounded, 1));
        sums.add(compare((&exact, log_sum_exp(&exact)), &exact, 1));
        // 0.5 ln 2 - 0.25 ln 2, and then nothing.
        assert!((sums.divergence_nats - 0.25 * 2f64.ln()).abs() < 1e-6, "{sums:?}");
        assert_eq!(sums.worst_nats, sums.divergence_nats);
        assert!((sums.nats - (2f64.ln() + 4f64.ln())).abs() < 1e-6);
        assert_eq!(sums.agreed, 1);
        assert!((log_sum_exp(&[1e4, 1e4]) - (1e4 + 2f64.ln())).abs() < 1e-9);
    }

    const SHAPE: Shape = Shape {
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

    fn model() -> Arc<Gguf> {
        let bytes = SHAPE.to_bytes(quant::by_name("q8_0").unwrap(), 1).unwrap();
        Arc::new(Gguf::from_bytes(bytes).unwrap())
    }

    fn processor() -> Device {
        Device::Cpu(Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false))))
    }

    fn text() -> Vec<u32> {
        let mut random = Random(4);
        (0..150).map(|_| random.below(SHAPE.vocab) as u32).collect()
    }

    #[test]
    fn what_the_arithmetic_changes_is_told_against_the_oracle() {
        let (gguf, ids) = (model(), text());
        let on = |device: &Device| crate::model::load_whole(&gguf, device, SHAPE.context).unwrap();
        let executor = on(&processor());
        let change = Change { rounding: &Rounding::NONE, kind: SessionKind::DEFAULT };
        let against = |arithmetic, chunk| {
            let oracle = on(&Device::Reference(arithmetic));
            let scorer = Scorer::new(&*executor, change, chunk).unwrap().against(&*oracle).unwrap();
            { scorer }.score(Some(7), &ids, &mut |_| {}).unwrap()
        };
        let (float, rounded) = (against(Arithmetic::Float, 64), against(Arithmetic::Rounded, 64));
        let own = Scorer::new(&*executor, change, 64).unwrap().score(Some(7), &ids, &mut |_| {}).unwrap();
        let mean = |score: &Score| score.changed.unwrap().divergence_nats / score.predicted as f64;
        assert!((1e-7..1e-2).contains(&mean(&float)), "{float:?}");
        assert!(mean(&rounded) < mean(&float) / 100.0, "it rounds where the oracle does: {rounded:?}");
        assert_eq!(float.changed.unwrap().nats, own.exact_nats, "the changed one is the executor's own");
        assert_ne!(float.exact_nats, own.exact_nats);
        assert_eq!(against(Arithmetic::Float, 5), float, "passes do not show");
        let told: f64 = float.divergences.iter().map(|nats| f64::from(*nats)).sum();
        assert_eq!(float.divergences.len(), float.predicted);
        assert!((told / float.changed.unwrap().divergence_nats - 1.0).abs() < 1e-5, "{told}");
    }

    #[test]
    fn windows_and_passes_do_not_change_a_score_and_cuts_do() {
        let (gguf, ids) = (model(), text());
        let executor = crate::model::load_whole(&gguf, &processor(), SHAPE.context).unwrap();
        let score = |boundaries: &[u32], chunk, lead| {
            let rounding = Rounding { boundaries: boundaries.to_vec(), ..Rounding::NONE };
            let change = Change { rounding: &rounding, kind: SessionKind::DEFAULT };
            Scorer::new(&*executor, change, chunk).unwrap().score(lead, &ids, &mut |_| {}).unwrap()
        };
        let exact = score(&[], 64, None);
        // Windows of 64, 64 and 22 tokens, the first of each given.
        assert_eq!((exact.predicted, exact.changed), (147, None));
        assert_eq!(score(&[], 5, None), exact);
        assert_eq!(score(&[], 64, Some(7)).predicted, 150);
        // Random weights are surprised by random text: about the logarithm of the vocabulary, and more.
        assert!(exact.perplexity() > 60.0, "{}", exact.perplexity());
        let (one, three) = (score(&[2], 64, None), score(&[1, 2, 3], 7, None));
        assert_eq!((one.exact_nats, three.exact_nats), (exact.exact_nats, exact.exact_nats));
        let (one, three) = (one.changed.unwrap(), three.changed.unwrap());
        assert!(
            0.0 < one.divergence_nats && one.divergence_nats < three.divergence_nats,
            "{one:?} {three:?}"
        );
        assert!(one.worst_nats <= one.divergence_nats && one.agreed <= 147);
        let with = |kind: &str, ids: &[u32]| {
            let change = Change { rounding: &Rounding::NONE, kind: kind.parse().unwrap() };
            Scorer::new(&*executor, change, 8).unwrap().score(None, ids, &mut |_| {})
        };
        assert!(with("dense", &[1]).is_err());
        let narrow = with("window:16", &ids).unwrap();
        assert_eq!(narrow.exact_nats, exact.exact_nats);
        assert!(narrow.changed.unwrap().divergence_nats > 0.0);
        // The first 64 positions are the same in q4: these have to be in front of the others.
        let longer = Shape { context: 256, ..SHAPE }.to_bytes(quant::by_name("q8_0").unwrap(), 1).unwrap();
        let longer =
            crate::model::load_whole(&Arc::new(Gguf::from_bytes(longer).unwrap()), &processor(), 256);
        let longer = longer.unwrap();
        let divergences = |kind: &str| {
            let change = Change { rounding: &Rounding::NONE, kind: kind.parse().unwrap() };
            let score = Scorer::new(&*longer, change, 8).unwrap().score(None, &ids, &mut |_| {}).unwrap();
            let (first, later) = score.divergences.split_at(64);
            [first, later].map(|part| part.iter().sum::<f32>())
        };
        let (eight, four) = (divergences("dense/q8"), divergences("dense/q4"));
        assert!(eight[0] > 0.0 && four[0] == 0.0, "{eight:?} {four:?}");
        assert!(0.0 < eight[1] && eight[1] < four[1], "{eight:?} {four:?}");
        // A window as wide as the text hides nothing.
        assert_eq!(with("window:64", &ids).unwrap().changed.unwrap().divergence_nats, 0.0);
        assert_eq!(narrow.buckets.len(), 1);
        assert_eq!((narrow.buckets[0].predicted, narrow.buckets[0].changed), (147, narrow.changed));
    }

    #[test]
    fn buckets_double() {
        let mut score = Score::default();
        for position in [600, 0, 255, 256, 511, 512, 1023, 1024] {
            score.bucket(position).predicted += 1;
        }
        let buckets: Vec<_> = score.buckets.iter().map(|bucket| (bucket.from, bucket.predicted)).collect();
        assert_eq!(buckets, [(0, 2), (256, 2), (512, 3), (1024, 1)]);
    }
}
