//! What is asked about a prompt, and what happens to it until it is answered.
//!
//! A [`PromptRequest`] goes to the daemon, which answers with [`PromptEvent`]s: first [`PromptEvent::Route`] (or
//! [`PromptEvent::Resumed`] before it), then tokens and what happens between them, and [`PromptEvent::Done`] or
//! [`PromptEvent::Failed`] as the last. An answer over HTTP that is still being checked when it is complete says so in
//! `Done` and is followed by [`PromptEvent::Checked`].
//!
//! The same types serve inside the process (`join --api`), over the control socket, in the journal, and as the lines of
//! `--json`: their serde form is that of those lines, so a field that is renamed here without its attribute changes them,
//! and `tests` below hold them still. Nodes are named by 64 hex digits, layers by `start..end`, times in milliseconds.

mod report;

use api::{
    choice::{Draft, Mode, Shadow, Verify, Wire, WireChoice},
    inference::Format,
};
use scheduler::SessionKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shard::sample::SamplingParams;

pub use self::report::{
    CheckReport, Conducted, CostTerms, DraftReport, Ending, FinishReason, Near, PlanReport, PlannedStage,
    Predicted, PredictedRange, PredictedScore, Prediction, PromptReport, StageReport, Stall, Timing, Way,
};

/// A prompt and how to answer it.
#[derive(Clone, Serialize, Deserialize)]
pub struct PromptRequest {
    /// The model, by name; the default one when empty.
    #[serde(default)]
    pub model: String,
    /// What to answer.
    pub prompt: PromptInput,
    /// Who may compute.
    pub mode: Mode,
    /// What the node may do beside the mode.
    #[serde(flatten)]
    pub leeway: Leeway,
    /// How activations travel.
    #[serde(flatten)]
    pub wire: WireChoice,
    /// Which earlier positions each row sees, and how keys and values are kept.
    #[serde(flatten, with = "session_kind")]
    pub kind: SessionKind,
    /// Peers that may compute in trusted mode, as hex.
    #[serde(default)]
    pub trusted: Vec<String>,
    /// The layers that stay home.
    #[serde(flatten)]
    pub ends: Ends,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The seed of every draw.
    pub seed: u64,
    /// How long it may become.
    #[serde(flatten)]
    pub length: AnswerLength,
    /// Generation ends before any of these.
    #[serde(default)]
    pub stop: Vec<String>,
    /// How strangers are checked.
    #[serde(default)]
    pub verify: Verify,
    /// What the nodes that stand by do.
    #[serde(default)]
    pub shadow: Shadow,
    /// What only the API asks for.
    #[serde(default)]
    pub api: ForApi,
}

/// What a node may do beside a prompt's mode, where none was named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leeway {
    /// Whether this machine may do it alone when that is faster.
    #[serde(default)]
    pub may_stay_home: bool,
    /// Whether a peer may read the prompt while this node's model is on its way to it: its owner agreed to the mode `open`.
    #[serde(default)]
    pub may_be_read: bool,
}

/// How long an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerLength {
    /// Most tokens.
    pub max_tokens: u32,
    /// Whether it goes on where the context is full.
    #[serde(default)]
    pub context_shift: bool,
}

/// First and last layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// How many of the first.
    pub head: u32,
    /// How many of the last.
    pub tail: u32,
}

impl Default for Ends {
    fn default() -> Self {
        Self { head: 1, tail: 1 }
    }
}

/// Kinds of sessions in the two fields in which users write them; what was not chosen is left out.
mod session_kind {
    use std::{fmt::Display, str::FromStr};

    use scheduler::SessionKind;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Default, Serialize, Deserialize)]
    struct Words {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kv_cache_type: Option<String>,
    }

    pub(super) fn serialize<S: Serializer>(kind: &SessionKind, to: S) -> Result<S::Ok, S::Error> {
        fn word<T: Display + PartialEq + Default>(chosen: &T) -> Option<String> {
            (*chosen != T::default()).then(|| chosen.to_string())
        }
        Words { attention: word(&kind.attention), kv_cache_type: word(&kind.cache) }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SessionKind, D::Error> {
        fn chosen<T: FromStr<Err: Display> + Default, E: Error>(word: Option<String>) -> Result<T, E> {
            word.map_or_else(|| Ok(T::default()), |word| word.parse().map_err(E::custom))
        }
        let words = Words::deserialize(from)?;
        Ok(SessionKind { attention: chosen(words.attention)?, cache: chosen(words.kv_cache_type)? })
    }
}

/// What to answer.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptInput {
    /// Text to continue as it is.
    Text(String),
    /// Token ids to continue.
    Tokens {
        /// The ids.
        ids: Vec<u32>,
    },
    /// Messages as `[{role, content}]`.
    Messages(Value),
}

impl PromptInput {
    /// The last message or the text, for a list of prompts.
    pub fn excerpt(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Tokens { ids } => format!("{} token ids", ids.len()),
            Self::Messages(messages) => {
                let last = messages.as_array().and_then(|messages| messages.last()?.get("content")?.as_str());
                last.map_or_else(|| messages.to_string(), str::to_owned)
            }
        }
    }
}

impl PromptRequest {
    /// The model that the request itself says is to draft. What the server chose for requests that do not say is none.
    pub fn named_drafter(&self) -> Option<&str> {
        self.sampling.draft.model().filter(|_| !self.api.draft_by_default)
    }
}

/// The part of a prompt that only HTTP clients use.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ForApi {
    /// What the answer must look like.
    pub format: Format,
    /// Descriptions of tools for the chat template, a JSON array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
    /// Further variables for the chat template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Whether control tokens print their names, so that calls of tools marked by them can be found.
    pub show_special: bool,
    /// Asked over HTTP: what is kept on disk goes when the client does, since it asks again.
    pub over_http: bool,
    /// Names of control tokens in a text are only text.
    pub plain: bool,
    /// The client can ask for the very same answer again, since it chose the seed and wants nothing besides text: the
    /// answer is kept on disk while it runs.
    pub repeatable: bool,
    /// Whether the tokens of the prompt are told first, with log-probabilities where these are wanted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
    /// The prompt is a text to be pooled, and how; `None` for one to be answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<PoolingRequest>,
    /// Whether the request says nothing of drafts, and what it has is the server's choice: where that cannot draft, nothing is
    /// refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draft_by_default: bool,
    /// Whether stages may keep on disk what they compute of it; `None` for the node's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub let_keep: Option<bool>,
}

/// What is wanted of a text instead of an answer: its vector, or with a query its score as a document.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolingRequest {
    /// What the text, a document, may answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Whether of a text that does not fit the context its beginning is taken.
    pub truncate: bool,
}

/// How tokens are chosen, and what drafts them; what is `None` is as in [`SamplingParams`].
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Keep the k likeliest; 0 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Keep the smallest set reaching this probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Drop tokens below this share of the likeliest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Typical sampling's probability mass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f32>,
    /// Divides logits of seen tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from logits of seen tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from logits of seen tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of token ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether the chosen token's log-probability is wanted.
    pub logprobs: bool,
    /// Of how many alternatives, too.
    pub top_logprobs: usize,
    /// What may draft tokens.
    pub draft: Draft,
}

impl From<&SamplingParams> for Sampling {
    fn from(params: &SamplingParams) -> Self {
        Self {
            temperature: Some(params.temperature),
            top_k: Some(params.top_k),
            top_p: Some(params.top_p),
            min_p: Some(params.min_p),
            typical_p: Some(params.typical_p),
            repetition_penalty: Some(params.repetition_penalty),
            presence_penalty: Some(params.presence_penalty),
            frequency_penalty: Some(params.frequency_penalty),
            logit_bias: params.logit_bias.clone(),
            logprobs: params.logprobs,
            top_logprobs: params.top_logprobs,
            draft: Draft::default(),
        }
    }
}

/// What happens to a prompt.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum PromptEvent {
    /// An interrupted answer goes on; a route follows.
    Resumed(Resumed),
    /// Who computes it. A second one replaces the first: its nodes were crowded, and nothing was computed.
    Route(Box<RouteEvent>),
    /// The next tokens of the prompt, before the first of the answer, where they are to be told.
    Prompt {
        /// In their order.
        tokens: Vec<PromptToken>,
    },
    /// What a prompt that is pooled has instead of an answer, before its end: a vector, or a score, as a logit.
    Pooled {
        /// The values.
        values: Vec<f32>,
    },
    /// A token.
    Token(Token),
    /// How fast it goes.
    Pace {
        /// Milliseconds of a decode step until the output of each stage arrived; 0 where none was measured.
        stage_ms: Vec<f64>,
    },
    /// A stage was lost and replaced.
    Moved {
        /// The node that was lost.
        failed: String,
        /// What was noticed: `closed`, `refused`, `wrong` or `timeout`.
        why: String,
        /// Who runs what from now on.
        stages: Vec<StageRange>,
    },
    /// Tokens from `token` on followed from a lie and were shown before it was found.
    Integrity {
        /// The first such token of the answer.
        token: u32,
        /// Who lied.
        node: String,
        /// What to do.
        message: String,
    },
    /// The answer is complete, or was given up.
    Done(Box<PromptReport>),
    /// What came of checking an answer that was complete before.
    Checked(Box<PromptReport>),
    /// It is not answered.
    #[serde(untagged)]
    Failed(Refusal),
}

impl PromptEvent {
    /// A token without log-probabilities.
    pub fn token(id: u32, text: impl Into<String>) -> Self {
        Self::Token(Token { id, text: text.into(), logprobs: None })
    }

    /// Tokens from `token` on followed from a lie that `node` told, or let pass.
    pub fn integrity(token: u32, node: String) -> Self {
        let message = "a peer was caught lying after tokens that followed from it were shown; run it again";
        Self::Integrity { token, node, message: message.to_owned() }
    }

    /// The report of an answer that is over, as the caller has it; `None` before.
    pub fn done(&self) -> Option<&PromptReport> {
        match self {
            Self::Done(report) => Some(report),
            _ => None,
        }
    }
}

/// An interrupted answer goes on.
#[derive(Clone, Serialize, Deserialize)]
pub struct Resumed {
    /// Its name: the session it began as.
    pub session: String,
    /// Its tokens until it was interrupted.
    pub ids: Vec<u32>,
    /// The text of those.
    pub text: String,
}

/// A token of the answer.
#[derive(Clone, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that became certain with it, possibly empty.
    pub text: String,
    /// Log-probabilities, when asked for.
    #[serde(flatten)]
    pub logprobs: Option<Logprobs>,
}

/// A token of the prompt.
#[derive(Clone, Serialize, Deserialize)]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// Its own bytes.
    pub bytes: Vec<u8>,
    /// Log-probabilities, when asked for and where something is before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Logprobs>,
}

/// Log-probabilities at one position.
#[derive(Clone, Serialize, Deserialize)]
pub struct Logprobs {
    /// The chosen token's, a natural logarithm.
    pub logprob: f32,
    /// The chosen token's own bytes.
    pub bytes: Vec<u8>,
    /// The likeliest tokens: id, log-probability, bytes.
    pub top_logprobs: Vec<(u32, f32, Vec<u8>)>,
}

/// Layers and the node that runs them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageRange {
    /// The node.
    pub node: String,
    /// First layer.
    pub start: u32,
    /// Layer after the last.
    pub end: u32,
}

/// Who computes a prompt.
#[derive(Clone, Serialize, Deserialize)]
pub struct RouteEvent {
    /// Who can read it.
    pub mode: Mode,
    /// Where this node conducts.
    #[serde(flatten)]
    pub own: Option<OwnRoute>,
    /// Where another node conducts.
    #[serde(flatten)]
    pub elsewhere: Option<Elsewhere>,
}

/// A prompt that another node conducts, since this one does not hold the model.
#[derive(Clone, Serialize, Deserialize)]
pub struct Elsewhere {
    /// That node.
    pub conductor: String,
    /// None are known: they are that node's affair.
    pub stages: Vec<StageRange>,
}

/// A prompt that this node conducts.
#[derive(Clone, Serialize, Deserialize)]
pub struct OwnRoute {
    /// Its session, 32 hex digits.
    pub session: String,
    /// The model that answers, by its name.
    pub model: String,
    /// This node.
    pub me: String,
    /// How strangers are checked.
    pub verify: Verify,
    /// How activations travel.
    pub wire: Wire,
    /// Layers before which they are rounded: none where the form is exact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<u32>,
    /// Which earlier positions each row sees, and how keys and values are kept.
    #[serde(flatten, with = "session_kind")]
    pub kind: SessionKind,
    /// Whether the prompt ends inside a block of reasoning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasoning: bool,
    /// What it is expected to take.
    #[serde(flatten)]
    pub plan: Prediction,
}

impl RouteEvent {
    /// The stages, none where another node conducts.
    pub fn stages(&self) -> impl Iterator<Item = StageRange> + '_ {
        self.own.iter().flat_map(|own| &own.plan.stages).map(PlannedStage::range)
    }

    /// The session, where this node conducts.
    pub fn session(&self) -> Option<&str> {
        self.own.as_ref().map(|own| own.session.as_str())
    }

    /// The node that conducts, where it is another one.
    pub fn conductor(&self) -> Option<&str> {
        self.elsewhere.as_ref().map(|elsewhere| elsewhere.conductor.as_str())
    }
}

/// Why a prompt is not answered.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The sentence.
    pub error: String,
    /// The same for programs, where it has a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RefusalKind>,
    /// The field of the request to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Tokens of a prompt that is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Positions that a session may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// When it is worth trying again, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request is wrong.
    Invalid,
    /// The prompt does not fit the context.
    TooLong,
    /// No node can answer it now.
    Unavailable,
    /// All nodes that could are full.
    Busy,
    /// Something broke that the request is not to blame for.
    Internal,
}

impl Refusal {
    /// One without a kind.
    pub fn new(why: impl Into<String>) -> Self {
        Self { error: why.into(), ..Self::default() }
    }

    /// One of `kind`.
    pub fn kind(kind: RefusalKind, why: impl Into<String>) -> Self {
        Self { kind: Some(kind), ..Self::new(why) }
    }
}

#[cfg(test)]
mod tests;
