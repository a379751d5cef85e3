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

use api::{
    choice::{Mode, Shadow, Verify},
    inference::Format,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shard::sample::SamplingParams;

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
    /// Whether this machine may do it alone when that is faster.
    #[serde(default)]
    pub may_stay_home: bool,
    /// `raw` or `q8`.
    pub wire: String,
    /// Peers that may compute in trusted mode, as hex.
    #[serde(default)]
    pub trusted: Vec<String>,
    /// First and last layers that stay home.
    pub head: u32,
    /// Last layers that stay home.
    pub tail: u32,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The seed of every draw.
    pub seed: u64,
    /// Most tokens.
    pub max_tokens: u32,
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
    /// Asked over HTTP: names of control tokens in a text to continue are only text, and what is kept on disk goes when
    /// the client does, since it asks again.
    pub over_http: bool,
    /// The client can ask for the very same answer again, since it chose the seed and wants nothing besides text: the
    /// answer is kept on disk while it runs.
    pub repeatable: bool,
}

/// How tokens are chosen; what is `None` is as in [`SamplingParams`].
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
    /// `raw` or `q8`.
    pub wire: String,
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

/// What answering a prompt is expected to take, part by part.
#[derive(Clone, Serialize, Deserialize)]
pub struct Prediction {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens the answer is expected to have.
    pub expected_tokens: u32,
    /// The stages in order.
    pub stages: Vec<PlannedStage>,
    /// Head, sampling and text here, a token.
    pub home_ms: f64,
    /// Who stands by for each stage.
    pub shadows: Vec<Option<String>>,
    /// The sums.
    pub predicted: Predicted,
    /// The route as it was asked for.
    pub as_asked: Way,
    /// The route if the ends need not stay home.
    pub ends_abroad: Way,
    /// This machine alone.
    pub local: Way,
    /// Whether this machine alone is faster.
    pub local_wins: bool,
}

/// The answer to `plan`.
#[derive(Clone, Serialize, Deserialize)]
pub struct PlanReport {
    /// What it would take.
    #[serde(flatten)]
    pub plan: Prediction,
    /// This node.
    pub me: String,
    /// No line follows: always `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// A stage of a plan.
#[derive(Clone, Serialize, Deserialize)]
pub struct PlannedStage {
    /// The node.
    pub node: String,
    /// First layer.
    pub start: u32,
    /// Layer after the last.
    pub end: u32,
    /// All of an answer.
    pub ms: f64,
    /// A token; the measured form of it is [`StageReport::ms`].
    pub step_ms: Option<f64>,
    /// What `ms` is the sum of, by name, in the scheduler's order.
    pub terms: Map<String, Value>,
}

impl PlannedStage {
    /// Who and what.
    pub fn range(&self) -> StageRange {
        StageRange { node: self.node.clone(), start: self.start, end: self.end }
    }
}

/// The sums of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// All of the answer.
    pub total_ms: f64,
    /// Until the first token.
    pub ttft_ms: f64,
    /// Until every stage has promised to serve.
    pub opened_ms: f64,
    /// Computing the prompt.
    pub prefill_ms: f64,
    /// A token.
    pub step_ms: f64,
    /// Tokens per second.
    pub tok_s: f64,
}

/// One way of answering, beside others.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Way {
    /// It can be gone.
    Possible {
        /// All of the answer.
        total_ms: f64,
        /// Tokens per second.
        tok_s: Option<f64>,
    },
    /// It cannot.
    Impossible {
        /// Why not.
        impossible: String,
    },
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string was met.
    #[default]
    Stop,
    /// The limit of tokens, or the context, is used up.
    Length,
    /// The caller did not want it any more.
    Cancelled,
    /// It was given up.
    Failed,
}

impl FinishReason {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// An answer that is over: the last line of it, and what `why` remembers.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct PromptReport {
    /// Its session, where this node conducted it or continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who could read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The node that conducted it, where it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conductor: Option<String>,
    /// How it ended.
    pub finish_reason: FinishReason,
    /// All of the text.
    pub text: String,
    /// The part of it that no token carried: held back until the end.
    pub rest: String,
    /// The answer's tokens.
    pub ids: Vec<u32>,
    /// How many those are.
    pub completion_tokens: usize,
    /// How long it took; unknown where only its end was missing.
    #[serde(flatten)]
    pub timing: Option<Timing>,
    /// What only the node knows that conducted it.
    #[serde(flatten)]
    pub conducted: Option<Box<Conducted>>,
    /// The answer is complete, and still being checked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checking: bool,
    /// It was given up; under this name it can be continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Tokens that an earlier process had computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_tokens: Option<usize>,
    /// No line of the answer follows for the command line: always `true`.
    pub end: bool,
}

/// How long an answer took.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Until the first token.
    pub ttft_ms: f64,
    /// Tokens per second after the first.
    pub decode_tok_s: f64,
    /// The stages at the end.
    #[serde(default)]
    pub stages: Vec<StageReport>,
    /// Nodes lost and replaced on the way.
    pub faults: Vec<Stall>,
}

/// What the node that conducts knows of an answer.
#[derive(Clone, Serialize, Deserialize)]
pub struct Conducted {
    /// The model that answered, by its name.
    pub model: String,
    /// This node.
    pub me: String,
    /// `raw` or `q8`.
    pub wire: String,
    /// Why it was given up, where it was.
    pub gave_up: Option<String>,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
    /// Whether the model ended its turn, by a token that is not among the ids.
    pub ended_turn: bool,
    /// Until every stage had promised to serve.
    pub opened_ms: Option<f64>,
    /// What was expected.
    pub predicted: Predicted,
    /// Share of what others computed that was checked bit for bit; 1 when no other node computed.
    pub verified: f64,
    /// Disputes that a third holder settled.
    pub settled_by_thirds: u32,
    /// Nodes that computed the same.
    pub checked_by: Vec<String>,
    /// Nodes proven wrong.
    pub convicted: Vec<String>,
    /// The first token that was shown and followed from a lie.
    pub integrity: Option<u32>,
    /// Work that was signed for.
    pub receipts: usize,
    /// Nodes so late that their shadow answered first.
    pub hedged: Vec<Stall>,
    /// Two answers for one position differed this often.
    pub differing_answers: u32,
    /// Bytes of activations sent.
    pub bytes_out: u64,
    /// And received.
    pub bytes_in: u64,
}

/// A stage of an answer that is over.
#[derive(Clone, Serialize, Deserialize)]
pub struct StageReport {
    /// Who and what.
    #[serde(flatten)]
    pub range: StageRange,
    /// A token, its hop included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// The same as it was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// Nodes that computed the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_by: Option<Vec<String>>,
    /// Up to which position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_positions: Option<u32>,
    /// It computes other bits that are near enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<Near>,
}

/// How near the work of a node of class `approx` is.
#[derive(Clone, Serialize, Deserialize)]
pub struct Near {
    /// Rows compared.
    pub positions: u32,
    /// The median of their distances ([`shard::tolerance`]).
    pub distance: f64,
}

/// A node for which an answer stood still.
#[derive(Clone, Serialize, Deserialize)]
pub struct Stall {
    /// The node.
    pub node: String,
    /// From the last token before it to the first after it.
    pub stall_ms: f64,
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
