//! How tokens are chosen, and how many.

use ::api::{
    choice::Draft,
    inference::ranges::{self, Range},
};
use clap::Args;

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::TEMPERATURE))]
    pub temperature: f32,
    /// Choose among the k likeliest tokens only (0: all)
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Choose among the likeliest tokens that together reach this probability
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::TOP_P))]
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::MIN_P))]
    pub min_p: f32,
    /// Locally typical sampling: how much probability to keep
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::TYPICAL_P))]
    pub typical: f32,
    /// Divide the logits of tokens already seen
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::REPETITION_PENALTY))]
    pub repetition_penalty: f32,
    /// Subtract once from the logit of every token already seen
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::PRESENCE_PENALTY))]
    pub presence_penalty: f32,
    /// Subtract from a token's logit each time it was seen
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = |text: &str| number(text, &ranges::FREQUENCY_PENALTY))]
    pub frequency_penalty: f32,
    /// Add to a token's logit, as ID=BIAS (repeatable)
    #[arg(long, value_name = "ID=BIAS", allow_hyphen_values = true)]
    pub logit_bias: Vec<String>,
    /// The same seed and prompt give the same answer on every machine
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop before this text appears (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Report this many log-probabilities per token (with --json)
    #[arg(long, value_name = "N")]
    pub logprobs: Option<usize>,
    /// Most tokens to generate
    #[arg(short = 'n', long, default_value_t = 512)]
    pub max_tokens: usize,
    /// Go on where the context is full: the beginning of the prompt stays, the older half of what follows is forgotten
    #[arg(long)]
    pub context_shift: bool,
    /// What may draft tokens of an answer, so that a pass confirms several: auto, off, or a list of lookup (what
    /// followed before), grammar (what the form of the answer forces), head (the model's draft head), and the name or file of a smaller model
    /// with the same vocabulary; the tokens are the same with any
    #[arg(long, default_value = "auto", value_name = "DRAFTERS")]
    pub draft: Draft,
}

/// A number that the API takes, too.
fn number(text: &str, range: &Range) -> Result<f32, String> {
    let number: f64 = text.parse().map_err(|_| range.must())?;
    range.check(number).map(|number| number as f32)
}

impl SamplingArgs {
    /// The likeliest token, always.
    pub fn greedy(max_tokens: usize) -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop: Vec::new(),
            logprobs: None,
            max_tokens,
            context_shift: false,
            draft: Draft::default(),
        }
    }
}
