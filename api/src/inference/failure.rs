//! Why a request cannot be answered.

use serde::{Deserialize, Deserializer, Serialize};

use super::Mode;

/// Why a request cannot be answered. Texts never repeat prompts or paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Failure {
    /// The request is wrong; the field is named where one is to blame.
    Invalid {
        /// The field of [`GenerateRequest`](super::GenerateRequest) in OpenAI's words, such as `max_tokens`.
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
        /// For what, in words for the user.
        why: String,
        /// When to try again.
        retry_after_s: u32,
    },
    /// Something broke that the request is not to blame for.
    Internal {
        /// What, without secrets.
        why: String,
    },
}

/// The fields that failures name.
const FIELDS: [&str; 24] = [
    "prompt",
    "messages",
    "model",
    "mode",
    "verify",
    "wire",
    "cuts",
    "attention",
    "kv_cache_type",
    "context_shift",
    "draft",
    "logit_bias",
    "response_format",
    "tools",
    "logprobs",
    "chat_template_kwargs",
    "continue_final_message",
    "input",
    "max_tokens",
    "stop",
    "seed",
    "echo",
    "documents",
    "query",
];

/// A failure as it travels between processes: a field that no request has is none there.
#[derive(Deserialize)]
enum Traveled {
    Invalid { field: Option<String>, why: String },
    TooLong { tokens: usize, context: usize },
    NoModel { name: String },
    NotAgreed { mode: Mode, sentence: String },
    Unavailable { why: String, retry_after_s: u32 },
    Busy { why: String, retry_after_s: u32 },
    Internal { why: String },
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Traveled::deserialize(from).map(Self::from)
    }
}

impl From<Traveled> for Failure {
    fn from(traveled: Traveled) -> Self {
        match traveled {
            Traveled::Invalid { field, why } => {
                Self::Invalid { field: field.and_then(|name| Self::field(&name)), why }
            }
            Traveled::TooLong { tokens, context } => Self::TooLong { tokens, context },
            Traveled::NoModel { name } => Self::NoModel { name },
            Traveled::NotAgreed { mode, sentence } => Self::NotAgreed { mode, sentence },
            Traveled::Unavailable { why, retry_after_s } => Self::Unavailable { why, retry_after_s },
            Traveled::Busy { why, retry_after_s } => Self::Busy { why, retry_after_s },
            Traveled::Internal { why } => Self::Internal { why },
        }
    }
}

impl Failure {
    /// The field of requests that is called so, if failures name it.
    pub fn field(name: &str) -> Option<&'static str> {
        FIELDS.into_iter().find(|known| *known == name)
    }

    /// Too many requests wait; one may be taken in `retry_after_s`.
    pub fn busy(retry_after_s: u32) -> Self {
        let why = format!("too many requests are waiting; try again in {retry_after_s} s");
        Self::Busy { why, retry_after_s }
    }

    /// The request is wrong in `field`.
    pub fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field: Some(field), why: why.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invalid { why, .. }
            | Self::Unavailable { why, .. }
            | Self::Busy { why, .. }
            | Self::Internal { why } => f.write_str(why),
            // Clients know by these words that a model with a longer context may answer.
            Self::TooLong { tokens, context } => write!(
                f,
                "this model's maximum context length is {context} tokens here, and the prompt is too long: {tokens} tokens > \
                 {context} maximum; shorten the messages"
            ),
            Self::NoModel { name } => {
                write!(f, "the model `{name}` is not known here; GET /v1/models lists those that are")
            }
            Self::NotAgreed { mode, sentence } => write!(
                f,
                "nothing was sent, since you have not agreed to it yet. {sentence}. Agree once with `shoal consent {}` on this \
                 machine or on the page, for one request with the header `x-shoal-consent: once`, or ask in mode local",
                mode.name()
            ),
        }
    }
}

impl std::error::Error for Failure {}
