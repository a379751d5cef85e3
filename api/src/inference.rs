//! What the HTTP side asks of whatever answers: one trait, requests in, events out.
//!
//! Nothing here knows of a swarm's protocols or of an engine; nothing here knows of HTTP. The dialects (OpenAI, Anthropic,
//! Ollama) all become a [`GenerateRequest`], and every answer is a stream of [`Event`]s.
//!
//! Cancelling: dropping the [`EventStream`] ends the generation within one step. Backpressure: an implementation must
//! bound what it buffers for a reader that does not read, and pause that session when the bound is reached.

use futures::{future::BoxFuture, stream::BoxStream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot};

/// The events of one answer. Ends after [`Event::Done`] or [`Event::Failed`]; dropping it cancels.
pub type EventStream = BoxStream<'static, Event>;

/// Whatever can answer prompts.
pub trait Inference: Send + Sync + 'static {
    /// The models that can be asked for now, the default one first.
    fn models(&self) -> Vec<ModelInfo>;

    /// Whether prompts can be answered at all; the failure says why not and when to try again.
    fn ready(&self) -> Result<(), Failure>;

    /// Starts an answer. Resolves once the request is understood, admitted and routed, before anything is computed.
    ///
    /// # Errors
    /// Whatever is wrong with the request, or that nobody can answer it now.
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>>;

    /// Mean-pooled hidden states of each text, for models that have a meaning for them.
    ///
    /// # Errors
    /// As for [`Inference::generate`].
    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>>;

    /// What this node believes of the swarm now.
    fn swarm(&self) -> SwarmSnapshot;

    /// Changes from now on; a reader that falls behind misses some and gets [`SwarmEvent::Snapshot`] instead.
    fn watch(&self) -> BoxStream<'static, SwarmEvent>;

    /// Keeps the owner's word on whether prompts in `mode` may go to machines of people he did not name, or takes it back.
    ///
    /// # Errors
    /// When there is nothing to agree to here, or it cannot be kept.
    fn agree(&self, mode: Mode, agreed: bool) -> Result<(), Failure>;

    /// Changes what this node gives to others.
    ///
    /// # Errors
    /// When the change is impossible here.
    fn contribute(&self, change: ContributionChange) -> Result<Contribution, Failure>;

    /// Counters for `/metrics`. Names and label values come from fixed sets, never from users or peers.
    fn metrics(&self) -> Vec<Metric>;
}

/// An answer that has begun.
pub struct Generation {
    /// What was decided before the first token.
    pub plan: Plan,
    /// What happens from here on.
    pub events: EventStream,
}

/// What was decided about a request before it was computed.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The model that answers, by its name.
    pub model: String,
    /// Who can read the prompt.
    pub mode: Mode,
    /// How the work of strangers is checked.
    pub verify: Verify,
    /// The stages in order, e.g. `me:0-2`, `3f2a91c0:2-16`: node (8 hex digits or `me`) and its layers.
    pub route: Vec<String>,
    /// Tokens per second the plan promises.
    pub predicted_tok_s: Option<f64>,
    /// The seed in use, given or drawn.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Name of this request in answers and traces.
    pub id: String,
    /// The model's name; `None` takes the first of [`Inference::models`].
    pub model: Option<String>,
    /// What to answer.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The seed of every draw; `None` draws one.
    pub seed: Option<u64>,
    /// Most tokens to generate; `None` is as many as fit the context.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// Log-probabilities of the chosen token and of this many alternatives.
    pub logprobs: Option<usize>,
    /// What the answer must look like.
    pub format: Format,
    /// Who may read the prompt; `None` is the node's default.
    pub mode: Option<Mode>,
    /// How strangers' work is to be checked; `None` is the node's default.
    pub verify: Option<Verify>,
    /// Whether the client agrees for this request that strangers compute it, whatever the node's owner said.
    pub agreed: bool,
    /// What those do who stand by; `None` is the node's default.
    pub shadow: Option<Shadow>,
    /// Whether control tokens print their names, so that tool calls marked by them can be found.
    pub show_special: bool,
}

/// What to answer.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A conversation, put into words by the model's chat template.
    Messages {
        /// OpenAI's messages: a list of objects with `role` and `content` (text).
        messages: Value,
        /// OpenAI's tools: a list of `{"type": "function", "function": {...}}`.
        tools: Option<Value>,
        /// More variables for the template, such as `enable_thinking`.
        extra: serde_json::Map<String, Value>,
    },
    /// Text to continue as it is.
    Text(String),
    /// Token ids to continue as they are.
    Tokens(Vec<u32>),
}

/// How tokens are chosen; `None` is the model's own default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    pub temperature: Option<f32>,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set reaching this probability.
    pub top_p: Option<f32>,
    /// Drop tokens below this share of the likeliest.
    pub min_p: Option<f32>,
    /// Typical sampling's probability mass.
    pub typical_p: Option<f32>,
    /// Divides logits of seen tokens.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from logits of seen tokens.
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from logits of seen tokens.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of token ids.
    pub logit_bias: Vec<(u32, f32)>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// One JSON object.
    JsonObject,
    /// JSON that this JSON schema allows.
    JsonSchema(Value),
    /// Text that this Lark grammar derives.
    Grammar(String),
    /// Text that this regular expression matches as a whole.
    Regex(String),
}

/// Who can read the prompt, from fewest to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nobody: everything is computed on this machine.
    #[default]
    Local,
    /// Only nodes the user named.
    Trusted,
    /// Strangers compute middle layers: they get neither text nor token ids, but can reconstruct much from activations.
    Boomerang,
    /// Any node may read it.
    Open,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Local, Self::Trusted, Self::Boomerang, Self::Open];

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Trusted => "trusted",
            Self::Boomerang => "boomerang",
            Self::Open => "open",
        }
    }
}

/// How the work of strangers is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Not at all, or nothing to check.
    #[default]
    None,
    /// A second holder recomputes samples.
    Sample,
    /// A second holder recomputes everything.
    All,
}

impl Verify {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::None, Self::Sample, Self::All];

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sample => "sample",
            Self::All => "all",
        }
    }
}

/// What another holder of each range of layers does, so that an answer outlives whoever computes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shadow {
    /// It computes along and takes over at once.
    #[default]
    All,
    /// It keeps what it would need and computes that when it takes over.
    Lazy,
    /// Nobody stands by.
    None,
}

impl Shadow {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::All, Self::Lazy, Self::None];

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Lazy => "lazy",
            Self::None => "none",
        }
    }
}

/// One step of the way.
#[derive(Clone, Debug)]
pub enum Event {
    /// `done` of `total` prompt tokens are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens to compute.
        total: usize,
    },
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
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// What it prints; need not be whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability before bias, penalties and temperature.
    pub logprob: f32,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, best first, as many as asked for.
    pub top: Vec<TokenLogprob>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn, or a stop string was met.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, how many were still computed from an earlier prompt.
    pub cached_tokens: usize,
    /// Tokens generated, the one that ended the turn included.
    pub completion_tokens: usize,
}

/// Who computed an answer and how fast. Node names are 8 hex digits or `me`.
#[derive(Clone, Debug, Default, Serialize)]
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
}

/// A model that can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name, `[A-Za-z0-9._:-]`, at most 96 characters.
    pub name: String,
    /// BLAKE3 of its file, hex, where known.
    pub hash: Option<String>,
    /// Architecture, such as `llama`.
    pub architecture: String,
    /// Weight format, such as `q4_0`.
    pub format: String,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Positions a session may hold.
    pub context: usize,
    /// Layers.
    pub num_layers: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Its chat template, where it has one.
    pub template: Option<String>,
    /// Seconds since 1970 at which it came to this node.
    pub created_s: u64,
    /// Modes in which it can be asked now.
    pub modes: Vec<Mode>,
    /// Whether its template takes tools.
    pub tools: bool,
    /// Whether its hidden states make embeddings.
    pub embeddings: bool,
    /// Whether all its layers are on this node.
    pub local: bool,
}

/// Texts to embed.
#[derive(Clone, Debug)]
pub struct EmbedRequest {
    /// The model's name; `None` takes the first of [`Inference::models`].
    pub model: Option<String>,
    /// Text or token ids.
    pub inputs: Vec<Prompt>,
    /// Whether of a text longer than the context its beginning is taken; else it is refused.
    pub truncate: bool,
}

/// One vector per text.
#[derive(Clone, Debug)]
pub struct Embeddings {
    /// The model that answered.
    pub model: String,
    /// `[inputs][hidden]`, of Euclidean length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
}

/// A number for `/metrics`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name after the prefix `shoal_`, with the unit last.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Whether it only grows.
    pub counter: bool,
    /// Label pairs of fixed sets and the value.
    pub values: Vec<(Vec<(&'static str, &'static str)>, f64)>,
}

/// Why a request cannot be answered. Texts never repeat prompts or paths.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The request is wrong; the field is named where one is to blame.
    Invalid {
        /// The field of [`GenerateRequest`] in OpenAI's words, such as `max_tokens`.
        field: Option<&'static str>,
        /// What to change.
        why: String,
    },
    /// The prompt does not fit the context.
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions a session may hold.
        context: usize,
    },
    /// No such model here.
    NoModel {
        /// The name asked for.
        name: String,
    },
    /// It would go to machines of strangers, and the node's owner has not agreed to that.
    NotAgreed {
        /// The mode it was asked in.
        mode: Mode,
        /// What agreeing means, in one sentence without its full stop.
        sentence: String,
    },
    /// Nothing can answer now.
    Unavailable {
        /// Why, in words for the user.
        why: String,
        /// When to try again.
        retry_after_s: u32,
    },
    /// Too many requests wait.
    Busy {
        /// When to try again.
        retry_after_s: u32,
    },
    /// Something broke that the request is not to blame for.
    Internal {
        /// What, without secrets.
        why: String,
    },
}

impl Failure {
    /// The request is wrong in `field`.
    pub fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field: Some(field), why: why.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invalid { why, .. } | Self::Unavailable { why, .. } | Self::Internal { why } => {
                f.write_str(why)
            }
            Self::TooLong { tokens, context } => write!(
                f,
                "the prompt has {tokens} tokens, this model's maximum context length here is {context}; shorten the messages"
            ),
            Self::NoModel { name } => {
                write!(f, "the model `{name}` is not known here; GET /v1/models lists those that are")
            }
            Self::NotAgreed { mode, sentence } => write!(
                f,
                "nothing was sent, since nobody agreed to it yet. {sentence}. Agree once with `shoal consent {}` on this \
                 machine or on the page, for one request with the header `x-shoal-consent: once`, or ask in mode local",
                mode.name()
            ),
            Self::Busy { retry_after_s } => {
                write!(f, "too many requests are waiting; try again in {retry_after_s} s")
            }
        }
    }
}

impl std::error::Error for Failure {}
