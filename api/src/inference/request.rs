//! What is asked: a prompt, how tokens are chosen, who may compute.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::choice::{Draft, Guard, Mode, SessionChoice, WireChoice};

/// What to generate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Name of this request in answers and traces.
    pub id: String,
    /// The model's name; `None` takes the first of [`Inference::models`](super::Inference::models).
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
    /// How it is guarded against those who compute.
    pub guard: Guard,
    /// How activations travel.
    pub wire: WireChoice,
    /// What its tokens see, and how keys and values are kept.
    pub session: SessionChoice,
    /// Whether control tokens print their names, so that tool calls marked by them can be found.
    pub show_special: bool,
    /// Whether the prompt's tokens come first ([`Event::Prompt`](super::Event::Prompt)), with log-probabilities where
    /// `logprobs` asks for them. Then `max_tokens` may be 0.
    pub echo: bool,
}

impl GenerateRequest {
    /// Text that answers `prompt`, as model and node choose it.
    pub fn new(id: impl Into<String>, prompt: Prompt) -> Self {
        Self {
            id: id.into(),
            model: None,
            prompt,
            sampling: Sampling::default(),
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            logprobs: None,
            format: Format::Text,
            mode: None,
            guard: Guard::default(),
            wire: WireChoice::default(),
            session: SessionChoice::default(),
            show_special: false,
            echo: false,
        }
    }
}

/// What to answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

impl Prompt {
    /// A conversation without tools.
    pub fn conversation(messages: Value) -> Self {
        Self::Messages { messages, tools: None, extra: serde_json::Map::new() }
    }
}

/// How tokens are chosen, and what drafts them; `None` is the model's own default, or the node's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// What may draft tokens, so that a pass confirms several; they are the same with any.
    pub draft: Option<Draft>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// Anything, but where it calls a tool, the call is one of these and sound.
    Calls(Vec<CallForm>),
    /// One JSON object.
    JsonObject,
    /// JSON that this JSON schema allows.
    JsonSchema(Value),
    /// Text that this Lark grammar derives.
    Grammar(String),
    /// Text that this regular expression matches as a whole.
    Regex(String),
}

/// A tool that an answer may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallForm {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// Documents to rank by how well they answer a query.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RerankRequest {
    /// The model's name; `None` takes the first of [`Inference::models`](super::Inference::models).
    pub model: Option<String>,
    /// What is asked.
    pub query: String,
    /// What may answer it.
    pub documents: Vec<String>,
    /// Whether of a document that does not fit the context with the query its beginning is taken; else it is refused.
    pub truncate: bool,
    /// Who may read them; `None` is the node's own choice.
    pub mode: Option<Mode>,
}

/// Texts to embed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// The model's name; `None` takes the first of [`Inference::models`](super::Inference::models).
    pub model: Option<String>,
    /// Text or token ids.
    pub inputs: Vec<Prompt>,
    /// Whether of a text longer than the context its beginning is taken; else it is refused.
    pub truncate: bool,
    /// Who may read them; `None` is the node's own choice.
    pub mode: Option<Mode>,
}
