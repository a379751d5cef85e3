//! What an answer consists of: the plan before it, the events of it, and how it ended.

use serde::{Deserialize, Serialize};

use super::Failure;
use crate::choice::{Mode, Verify, Wire};

/// What was decided about a request before it was computed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The model that answers, by its name.
    pub model: String,
    /// Who can read the prompt.
    pub mode: Mode,
    /// How the work of strangers is checked.
    pub verify: Verify,
    /// How activations travel; never `auto`.
    pub wire: Wire,
    /// Layers before which they are rounded: none where the form is exact.
    pub cuts: Vec<u32>,
    /// Which earlier positions a token sees, as a request says it.
    pub attention: String,
    /// How keys and values are kept, as a request says it.
    pub kv_cache_type: String,
    /// The stages in order, e.g. `me:0-2`, `3f2a91c0:2-16`: node (8 hex digits or `me`) and its layers.
    pub route: Vec<String>,
    /// Tokens per second the plan promises.
    pub predicted_tok_s: Option<f64>,
    /// The seed in use, given or drawn.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Whether the prompt ends inside a block of reasoning, so that the answer begins there.
    pub reasoning: bool,
}

/// One step of the way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// `done` of `total` prompt tokens are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens to compute.
        total: usize,
    },
    /// The next tokens of the prompt, where the request wants to see them; all of them come before the first token.
    Prompt(Vec<PromptToken>),
    /// A token was chosen.
    Token {
        /// Its id.
        id: u32,
        /// Text that became certain with it, possibly empty.
        text: String,
        /// Log-probabilities, when asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The end is reached and text that was held back belongs to the answer.
    Text(String),
    /// A stage was lost and replaced; the answer goes on with the tokens it would have had.
    Failover {
        /// The node that was lost, 8 hex digits.
        lost: String,
        /// The node that took over.
        replacement: String,
        /// How long the answer stood still, in milliseconds.
        stall_ms: f64,
    },
    /// The end.
    Done(Done),
    /// It cannot go on.
    Failed(Failure),
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// What it prints; need not be whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability before bias, penalties and temperature.
    pub logprob: f32,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The chosen token.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, best first, as many as asked for.
    pub top: Vec<TokenLogprob>,
}

/// A token of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// What it prints; need not be whole characters.
    pub bytes: Vec<u8>,
    /// Its log-probability behind the tokens before it, when asked for; `None` where none is before it.
    pub logprobs: Option<TokenLogprobs>,
}

/// How an answer ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Why.
    pub finish: Finish,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// Who did it and how fast.
    pub report: Report,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finish {
    /// The model ended its turn, or a stop string was met.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, how many were still computed from an earlier prompt.
    pub cached_tokens: usize,
    /// Tokens generated, the one that ended the turn included.
    pub completion_tokens: usize,
}

/// Who computed an answer and how fast. Node names are 8 hex digits or `me`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Nodes that computed a part.
    pub computed_by: Vec<String>,
    /// Nodes that recomputed parts and found the same.
    pub checked_by: Vec<String>,
    /// Tokens whose computation was checked.
    pub checked_tokens: usize,
    /// Whether checking went on after the answer was complete: more may be checked by now, as the
    /// [`Verdict`](crate::swarm::Verdict) of the answer says.
    pub checking: bool,
    /// Nodes that were caught computing something else; none of it was kept.
    pub convicted: Vec<String>,
    /// The first token that was shown and follows from what such a node computed: from there on the text is not to be
    /// relied on.
    pub wrong_from: Option<usize>,
    /// Stages lost and replaced on the way.
    pub faults_survived: usize,
    /// Milliseconds until the first token.
    pub ttft_ms: f64,
    /// Milliseconds to compute the prompt.
    pub prefill_ms: f64,
    /// Tokens per second after the first.
    pub tok_s: f64,
    /// What came of drafted tokens, where any were.
    pub drafts: Option<Drafts>,
}

/// What came of the drafted tokens of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drafts {
    /// What drafted them: `lookup`, `grammar`.
    pub by: Vec<String>,
    /// Tokens of the answer for each pass over all layers, the prompt's pass not counted.
    pub tokens_per_pass: f64,
    /// Tokens drafted.
    pub proposed: u32,
    /// Those of them that are in the answer.
    pub right: u32,
}
