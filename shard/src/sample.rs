//! Chooses the next token from logits.
//!
//! The draw for the token at position `t` is a pure function of `(seed, t)`: a session that is replayed, moved to
//! another node or cut into other chunks draws the same numbers. Everything here runs in one fixed order on one
//! thread, with the crate's own `exp` and `ln`, so equal logits give equal tokens on every machine.
//!
//! Order of a choice: logit bias, penalties (repetition, presence, frequency), then for `temperature == 0` the
//! largest logit (lowest id on a tie); otherwise top-k, min-p, typical, top-p and one draw among the tokens that are left. A token
//! weighs `e^((logit - largest) / temperature)`, f32; weights are added in f64 in the order of the ranking, the largest logit first and
//! of equals the lowest id, but for the weight of a whole vocabulary, which is [`weigh`]'s. What no filter and no draw looks at is never
//! sorted. Log-probabilities are those of the model before bias, penalties and temperature, as OpenAI's API reports them.
//!
//! Limits: candidates and weights are kept in buffers of the vocabulary's size, made once; a choice allocates nothing.

use std::cmp::Ordering;

use crate::{
    Error, Result,
    executor::argmax,
    kernels::{math, vector::weigh},
    synthetic::Random,
};

/// How tokens are chosen. `Default` is greedy without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Keep only the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keep the tokens whose surprise is nearest the entropy until this much probability is reached; 1 keeps all.
    pub typical_p: f32,
    /// Logits of seen tokens are divided (positive) or multiplied (negative) by this; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every seen token.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once per occurrence.
    pub frequency_penalty: f32,
    /// How many of the latest tokens count as seen, at most [`MAX_PENALTY_WINDOW`].
    pub penalty_window: usize,
    /// Added to the logits of these tokens, at most [`MAX_LOGIT_BIAS`] of them.
    pub logit_bias: Vec<(u32, f32)>,
    /// Log-probabilities of this many most likely tokens come with each choice, at most [`MAX_TOP_LOGPROBS`].
    pub top_logprobs: usize,
    /// Whether the chosen token's log-probability is computed at all.
    pub logprobs: bool,
}

/// More bias entries are refused: each is looked at for every token.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// The upper bound OpenAI's API documents for `top_logprobs`.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// Tokens further back than this never count for penalties.
pub const MAX_PENALTY_WINDOW: usize = 4096;

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            top_logprobs: 0,
            logprobs: false,
        }
    }
}

impl SamplingParams {
    /// Refuses values that have no meaning, naming the field.
    pub fn validate(&self) -> Result<()> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(Error::invalid(format!("{name} must be between {low} and {high}, got {value}")));
            }
        }
        let counts = [
            ("top_logprobs", self.top_logprobs, MAX_TOP_LOGPROBS),
            ("logit_bias entries", self.logit_bias.len(), MAX_LOGIT_BIAS),
            ("penalty_window", self.penalty_window, MAX_PENALTY_WINDOW),
        ];
        for (name, value, most) in counts {
            if value > most {
                return Err(Error::invalid(format!("{name} must be at most {most}, got {value}")));
            }
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return Err(Error::invalid(format!("logit_bias of token {id} must be finite, got {bias}")));
        }
        Ok(())
    }

    /// How many of the largest logits decide the choice, ties to the lowest id; `None` where all of them do.
    pub fn candidates(&self) -> Option<usize> {
        match (self.temperature == 0.0, self.top_k) {
            _ if self.penalizes() || self.logprobs || !self.logit_bias.is_empty() => None,
            (true, _) => Some(1),
            (false, 0) => None,
            (false, top_k) => Some(top_k.max(2)),
        }
    }

    fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// A token and its log-probability under the unmodified model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The outcome of one choice; lives until the next.
#[derive(Debug)]
pub struct Choice<'a> {
    /// The chosen token.
    pub id: u32,
    /// Its log-probability, when asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, best first, as many as asked for.
    pub top: &'a [Logprob],
}

/// Chooses tokens for one session.
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    seen: Vec<(u32, u32)>,
    changed: Vec<(u32, f32)>,
    top: Vec<Logprob>,
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Its probability as a multiple of the likeliest token's.
    weight: f32,
    /// How far its surprise is from the entropy.
    oddness: f32,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens.
    pub fn new(params: SamplingParams, seed: u64, vocab: usize) -> Result<Self> {
        params.validate()?;
        if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
            return Err(Error::invalid(format!("logit_bias names token {id}, the vocabulary has {vocab}")));
        }
        Ok(Self {
            candidates: Vec::with_capacity(vocab),
            weights: Vec::with_capacity(vocab),
            seen: Vec::with_capacity(params.penalty_window),
            changed: Vec::with_capacity(params.penalty_window + params.logit_bias.len()),
            top: Vec::with_capacity(MAX_TOP_LOGPROBS + 1),
            params,
            seed,
        })
    }

    /// The parameters given at the start.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the token that will stand at `position`, `history` being all tokens before it.
    ///
    /// `logits` (one per vocabulary entry) are changed by bias and penalties. Non-finite logits are an error: they
    /// never come from a sound model.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32], position: u64) -> Result<Choice<'_>> {
        if logits.is_empty() || !are_finite(logits) {
            return Err(Error::invalid("the model produced logits that are not finite numbers"));
        }
        self.top.clear();
        let normalizer = self.params.logprobs.then(|| log_sum_exp(logits, &mut self.weights));
        if let Some(normalizer) = normalizer {
            fill_top(&mut self.top, self.params.top_logprobs, logits, normalizer);
        }
        self.change(logits, history);
        let id = self.choose(logits, position);
        let unchanged =
            self.changed.iter().find(|(changed, _)| *changed == id).map_or(logits[id as usize], |c| c.1);
        Ok(Choice { id, logprob: normalizer.map(|n| unchanged - n), top: &self.top })
    }

    /// Applies bias and penalties, remembering what the touched logits were.
    fn change(&mut self, logits: &mut [f32], history: &[u32]) {
        self.changed.clear();
        for &(id, bias) in &self.params.logit_bias {
            let logit = &mut logits[id as usize];
            self.changed.push((id, *logit));
            *logit += bias;
        }
        if !self.params.penalizes() {
            return;
        }
        self.count_seen(history);
        for &(id, count) in &self.seen {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            self.changed.push((id, *logit));
            let factor = self.params.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            *logit -= self.params.presence_penalty + self.params.frequency_penalty * count as f32;
        }
    }

    fn choose(&mut self, logits: &[f32], position: u64) -> u32 {
        let params = &self.params;
        if params.temperature == 0.0 {
            return argmax(logits);
        }
        let top_k = if params.top_k == 0 { logits.len() } else { params.top_k };
        let mut ranking = Ranking::new(&mut self.candidates, logits, params.temperature);
        let (mut kept, mut mass) = (logits.len(), 0.0);
        if top_k < logits.len() || params.min_p > 0.0 {
            kept = 0;
            while let Some(next) =
                ranking.get(kept).filter(|next| kept < top_k && next.weight >= params.min_p)
            {
                kept += 1;
                mass += f64::from(next.weight);
            }
        } else {
            self.weights.clear();
            self.weights.extend_from_slice(logits);
            mass = weigh(&mut self.weights, ranking.largest, params.temperature);
        }
        if params.typical_p < 1.0 {
            (kept, mass) = ranking.keep_typical(kept, mass, params.typical_p);
        }
        if params.top_p < 1.0 {
            (kept, mass) = ranking.front(kept, f64::from(params.top_p) * mass);
        }
        ranking.draw(kept, f64::from(uniform(self.seed, position)) * mass)
    }

    fn count_seen(&mut self, history: &[u32]) {
        let window = &history[history.len().saturating_sub(self.params.penalty_window)..];
        self.seen.clear();
        self.seen.extend(window.iter().map(|&id| (id, 1)));
        self.seen.sort_unstable();
        self.seen.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
    }
}

/// How likely `id` is under `logits`, as [`Sampler::sample`] says it of a token that it chose, and the `most` likeliest
/// tokens, best first.
///
/// Errors: [`Error::Invalid`] for logits that are not finite, and for an id or a count that cannot be.
pub fn logprobs(logits: &[f32], id: u32, most: usize) -> Result<(Logprob, Vec<Logprob>)> {
    let logit = logits.get(id as usize).filter(|_| most <= MAX_TOP_LOGPROBS);
    let logit =
        logit.ok_or_else(|| Error::invalid(format!("log-probabilities of token {id} and {most} others")))?;
    if !are_finite(logits) {
        return Err(Error::invalid("the model produced logits that are not finite numbers"));
    }
    let normalizer = log_sum_exp(logits, &mut Vec::new());
    let mut top = Vec::with_capacity(most + 1);
    fill_top(&mut top, most, logits, normalizer);
    Ok((Logprob { id, logprob: logit - normalizer }, top))
}

/// The likeliest tokens, best first and of equals the lowest id; `top` is empty.
fn fill_top(top: &mut Vec<Logprob>, wanted: usize, logits: &[f32], normalizer: f32) {
    let wanted = wanted.min(logits.len());
    for (id, &logit) in (0u32..).zip(logits) {
        let entry = Logprob { id, logprob: logit - normalizer };
        let full = top.len() == wanted;
        if full && top.last().is_none_or(|last| last.logprob >= entry.logprob) {
            continue;
        }
        let at = top.partition_point(|kept| kept.logprob >= entry.logprob);
        top.insert(at, entry);
        top.truncate(wanted);
    }
}

/// The draw for `position` under `seed`: uniform in [0, 1), 24 bits.
///
/// A counter-based generator: the state is the counter, and the output function is applied to the seed and to the
/// position, so that neither neighboring positions nor neighboring seeds correlate.
pub fn uniform(seed: u64, position: u64) -> f32 {
    let stream = Random(seed).next();
    let bits = Random(stream.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15))).next();
    (bits >> 40) as f32 / (1u64 << 24) as f32
}

/// Without a way out in the middle, so that many are looked at at once.
fn are_finite(logits: &[f32]) -> bool {
    logits.iter().fold(true, |finite, logit| finite & logit.is_finite())
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// `weights` is room for as many values as there are logits.
fn log_sum_exp(logits: &[f32], weights: &mut Vec<f32>) -> f32 {
    let max = largest(logits);
    weights.clear();
    weights.extend_from_slice(logits);
    max + math::ln(weigh(weights, max, 1.0)) as f32
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max })
}

/// How far below the largest logit, in temperatures, the levels end that are sorted one after the other: most choices are made
/// among the first tens of a vocabulary.
const LEVELS: [f32; 4] = [6.0, 12.0, 24.0, f32::INFINITY];

/// All tokens, the largest logit first and of equals the lowest id, sorted as far as they are looked at.
struct Ranking<'a> {
    sorted: &'a mut Vec<Candidate>,
    logits: &'a [f32],
    largest: f32,
    temperature: f32,
    /// Levels that are sorted.
    levels: usize,
}

impl<'a> Ranking<'a> {
    fn new(room: &'a mut Vec<Candidate>, logits: &'a [f32], temperature: f32) -> Self {
        room.clear();
        Self { sorted: room, logits, largest: largest(logits), temperature, levels: 0 }
    }

    fn get(&mut self, at: usize) -> Option<Candidate> {
        while at >= self.sorted.len() && self.levels < LEVELS.len() {
            self.sort_level();
        }
        self.sorted.get(at).copied()
    }

    fn sort_level(&mut self) {
        let end = |level: usize| self.largest - self.temperature * LEVELS[level];
        let (above, end) = (self.levels.checked_sub(1).map_or(f32::INFINITY, end), end(self.levels));
        let start = self.sorted.len();
        let level = (0u32..).zip(self.logits).filter(|(_, logit)| **logit < above && **logit >= end);
        self.sorted.extend(level.map(|(id, &logit)| Candidate { id, logit, weight: 0.0, oddness: 0.0 }));
        self.levels += 1;
        let level = &mut self.sorted[start..];
        level.sort_unstable_by(best_first);
        for it in level {
            it.weight = math::exp_f32((it.logit - self.largest) / self.temperature);
        }
    }

    /// The shortest front of the first `kept` whose weight reaches `wanted`, at least one token, and its weight.
    fn front(&mut self, kept: usize, wanted: f64) -> (usize, f64) {
        let (mut count, mut mass) = (0, 0.0);
        while let Some(next) = self.get(count).filter(|_| count < kept && (count == 0 || mass < wanted)) {
            count += 1;
            mass += f64::from(next.weight);
        }
        (count, mass)
    }

    /// Locally typical sampling (Meister et al. 2022): those of the first `kept`, which weigh `mass`, whose surprise is nearest to the
    /// entropy, until they weigh `share` of it. They become the whole ranking.
    fn keep_typical(&mut self, kept: usize, mass: f64, share: f32) -> (usize, f64) {
        self.get(kept.saturating_sub(1));
        self.levels = LEVELS.len();
        self.sorted.truncate(kept);
        // -ln(weight / mass)
        let (log_mass, largest, temperature) = (math::ln(mass), self.largest, self.temperature);
        let surprise = |it: &Candidate| log_mass + f64::from((largest - it.logit) / temperature);
        let likely = self.sorted.iter().filter(|it| it.weight > 0.0);
        let entropy: f64 = likely.map(|it| f64::from(it.weight) / mass * surprise(it)).sum();
        self.sorted.iter_mut().for_each(|it| it.oddness = (surprise(it) - entropy).abs() as f32);
        self.sorted.sort_unstable_by(|a, b| a.oddness.total_cmp(&b.oddness).then(a.id.cmp(&b.id)));
        let (kept, mass) = self.front(kept, f64::from(share) * mass);
        self.sorted.truncate(kept);
        self.sorted.sort_unstable_by(best_first);
        (kept, mass)
    }

    /// The token of the first `kept` at which their weights, added one after the other, exceed `target`.
    fn draw(&mut self, kept: usize, target: f64) -> u32 {
        let (mut at, mut mass, mut drawn) = (0, 0.0, 0);
        // All weights together may round to less than a sum in another order.
        while let Some(next) = self.get(at).filter(|_| at < kept && mass <= target) {
            (at, drawn) = (at + 1, next.id);
            mass += f64::from(next.weight);
        }
        drawn
    }
}

#[cfg(test)]
mod tests;
