//! A prompt handed to a peer that conducts it: for nodes without weights.
//!
//! One stream per prompt. The delegating node sends one [`Request`]; the conductor answers with [`Event`]s: tokens as
//! they come, then the end or a failure. Closing the stream cancels. Each message is a [`Prefix`] of 8 bytes (kind,
//! three zero bytes, length) and a body of that length, whose cap depends on its kind and is checked before the body
//! is read.
//!
//! The conductor reads the prompt, so this is for modes `trusted` and `open` only. A stream that breaks is not lost:
//! the request is sent to another conductor with the tokens that came so far in `emitted`, and chance depends on the
//! seed and the position alone, so the text goes on as it would have. A text whose vector or score is wanted is a request of its own
//! kind, which a conductor that does not know it refuses.

use scheduler::ModelId;

use super::Malformed;
use super::cursor::{Reader, Writer, cut};
use super::fields;

pub use super::fields::PREFIX_LEN;

/// Longest conversation, bytes of JSON.
pub const MAX_MESSAGES: usize = 4 << 20;
/// Longest sampling parameters, bytes of JSON.
pub const MAX_SAMPLING: usize = 64 << 10;
/// Stop texts of one request.
pub const MAX_STOPS: usize = 16;
/// Longest stop text, bytes.
pub const MAX_STOP: usize = 256;
/// Tokens a request may go on from.
pub const MAX_EMITTED: usize = 1 << 18;
/// Longest text of one token, bytes.
pub const MAX_PIECE: usize = 4 << 10;
/// Longest query that a document may answer, bytes.
pub const MAX_QUERY: usize = 1 << 20;
/// Values that a text may have instead of an answer.
pub const MAX_VALUES: usize = 1 << 16;
/// Longest report at the end, bytes of JSON.
pub const MAX_REPORT: usize = 64 << 10;
/// Longest reason of a failure, bytes; what goes beyond is cut off.
pub const MAX_REASON: usize = 256;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A [`Request`].
    Request = 0,
    /// An [`Event::Token`].
    Token = 1,
    /// An [`Event::Done`].
    Done = 2,
    /// An [`Event::Failed`].
    Failed = 3,
    /// A [`Request`] for a vector or a score.
    Text = 4,
    /// An [`Event::Pooled`].
    Pooled = 5,
}

impl Kind {
    /// All kinds, by their byte.
    pub const ALL: [Self; 6] =
        [Self::Request, Self::Token, Self::Done, Self::Failed, Self::Text, Self::Pooled];

    /// Longest body, bytes. A longer one is refused unread.
    pub fn cap(self) -> usize {
        match self {
            Self::Request => MAX_MESSAGES + MAX_SAMPLING + MAX_STOPS * (MAX_STOP + 2) + 4 * MAX_EMITTED + 64,
            Self::Text => Self::Request.cap() + MAX_QUERY + 8,
            Self::Pooled => 4 * MAX_VALUES,
            Self::Token => MAX_PIECE + 4,
            Self::Done => MAX_REPORT + 1,
            Self::Failed => MAX_REASON,
        }
    }
}

/// What stands before every body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// What the body is.
    pub kind: Kind,
    /// How long it is, bytes.
    pub len: u32,
}

impl Prefix {
    /// The bytes.
    pub fn write(&self) -> [u8; PREFIX_LEN] {
        fields::write_prefix(self.kind as u8, self.len)
    }

    /// Reads what [`Prefix::write`] wrote. `len` is within the cap of its kind.
    ///
    /// # Errors
    /// When the bytes name no kind or a body that is too long.
    pub fn read(bytes: &[u8; PREFIX_LEN]) -> Result<Self, Malformed> {
        let odd = [Malformed("delegate: kind"), Malformed("delegate: length")];
        let (kind, len) = fields::read_prefix(bytes, (&Kind::ALL, Kind::cap), odd)?;
        Ok(Self { kind, len })
    }

    fn of(kind: Kind, body: &[u8]) -> Self {
        Self { kind, len: u32::try_from(body.len()).unwrap_or(u32::MAX) }
    }
}

/// How a prompt becomes tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Form {
    /// A conversation, through the model's chat template.
    Conversation = 0,
    /// A text to go on from, in which names of control tokens are those tokens.
    Marked = 1,
    /// A text to go on from, in which they are letters.
    Plain = 2,
}

impl Form {
    /// All forms, by their byte.
    pub const ALL: [Self; 3] = [Self::Conversation, Self::Marked, Self::Plain];
}

/// A prompt and how to answer it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// By which model; `None`: the conductor's own choice.
    pub model: Option<ModelId>,
    /// The conversation as JSON, or the text itself, as `form` says; at most [`MAX_MESSAGES`] bytes.
    pub messages: String,
    /// What `messages` is.
    pub form: Form,
    /// Sampling parameters as JSON, at most [`MAX_SAMPLING`] bytes.
    pub sampling: Vec<u8>,
    /// Chance.
    pub seed: u64,
    /// Tokens wanted at most, those of `emitted` included.
    pub max_tokens: u32,
    /// Texts that end the answer, at most [`MAX_STOPS`] of [`MAX_STOP`] bytes.
    pub stop: Vec<String>,
    /// Tokens of the answer that are known already, at most [`MAX_EMITTED`].
    pub emitted: Vec<u32>,
    /// What is wanted instead of an answer.
    pub pooling: Option<Pooling>,
}

/// What is wanted of a text instead of an answer: its vector, or with a query its score as a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pooling {
    /// What the text may answer, at most [`MAX_QUERY`] bytes.
    pub query: Option<String>,
    /// Whether of a text that does not fit the context its beginning is taken.
    pub truncate: bool,
}

/// What the conductor says.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The next token of the answer.
    Token {
        /// Which.
        id: u32,
        /// The text it completes, at most [`MAX_PIECE`] bytes; may be empty.
        text: String,
    },
    /// The answer is complete.
    Done {
        /// Why, as the API numbers its finish reasons.
        finish: u8,
        /// Usage, who computed and what is billed for it, as JSON, at most [`MAX_REPORT`] bytes.
        report: String,
    },
    /// What a text has instead of an answer, before its end: finite numbers, at most [`MAX_VALUES`] and at least one.
    Pooled {
        /// Its vector, or its score as a logit.
        values: Vec<f32>,
    },
    /// The answer cannot be completed here.
    Failed {
        /// Why, at most [`MAX_REASON`] bytes.
        reason: String,
    },
}

impl Request {
    /// The prefix and the body.
    pub fn encode(&self) -> ([u8; PREFIX_LEN], Vec<u8>) {
        let mut to = Writer::new();
        to.bool(self.model.is_some());
        if let Some(model) = self.model {
            to.bytes(model.as_bytes());
        }
        to.long_count(self.messages.len()).bytes(self.messages.as_bytes());
        to.u8(self.form as u8);
        to.long_count(self.sampling.len()).bytes(&self.sampling);
        to.u64(self.seed).u32(self.max_tokens);
        to.list(&self.stop, |to, stop| {
            to.text(stop);
        });
        to.long_count(self.emitted.len());
        self.emitted.iter().for_each(|&id| {
            to.u32(id);
        });
        let kind = match &self.pooling {
            None => Kind::Request,
            Some(Pooling { query, truncate }) => {
                to.bool(query.is_some());
                if let Some(query) = query {
                    to.long_count(query.len()).bytes(query.as_bytes());
                }
                to.bool(*truncate);
                Kind::Text
            }
        };
        let body = to.finish();
        (Prefix::of(kind, &body).write(), body)
    }

    /// Reads a body of the kind its prefix says.
    ///
    /// # Errors
    /// When the kind is no request, or the body is not one, or states something beyond its bound.
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Self, Malformed> {
        if !matches!(kind, Kind::Request | Kind::Text) {
            return Err(Malformed("delegate: kind"));
        }
        let mut from = Reader::new(body);
        let model = if from.bool()? { Some(ModelId::new(from.array()?)) } else { None };
        let len = from.long_count(MAX_MESSAGES, 1)?;
        let messages = text(from.bytes(len)?)?;
        let form = Form::ALL.get(usize::from(from.u8()?)).copied().ok_or(Malformed("delegate: form"))?;
        let len = from.long_count(MAX_SAMPLING, 1)?;
        let sampling = from.bytes(len)?.to_vec();
        let (seed, max_tokens) = (from.u64()?, from.u32()?);
        let stop = from.list(MAX_STOPS, 2, |from| from.text(MAX_STOP).map(str::to_owned))?;
        let count = from.long_count(MAX_EMITTED, 4)?;
        let emitted = (0..count).map(|_| from.u32()).collect::<Result<_, _>>()?;
        let pooling = match kind {
            Kind::Text => {
                let query = match from.bool()? {
                    true => {
                        let len = from.long_count(MAX_QUERY, 1)?;
                        Some(text(from.bytes(len)?)?)
                    }
                    false => None,
                };
                Some(Pooling { query, truncate: from.bool()? })
            }
            _ => None,
        };
        from.finish()?;
        Ok(Self { model, messages, form, sampling, seed, max_tokens, stop, emitted, pooling })
    }
}

impl Event {
    /// The prefix and the body.
    pub fn encode(&self) -> ([u8; PREFIX_LEN], Vec<u8>) {
        let mut to = Writer::new();
        let kind = match self {
            Self::Token { id, text } => {
                to.u32(*id).bytes(text.as_bytes());
                Kind::Token
            }
            Self::Done { finish, report } => {
                to.u8(*finish).bytes(report.as_bytes());
                Kind::Done
            }
            Self::Pooled { values } => {
                values.iter().for_each(|value| {
                    to.bytes(&value.to_le_bytes());
                });
                Kind::Pooled
            }
            Self::Failed { reason } => {
                to.bytes(cut(reason, MAX_REASON).as_bytes());
                Kind::Failed
            }
        };
        let body = to.finish();
        (Prefix::of(kind, &body).write(), body)
    }

    /// Reads a body of the kind its prefix says.
    ///
    /// # Errors
    /// When the kind is no event, or the body is too long, or text that is not UTF-8, or values that are none or not finite.
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Self, Malformed> {
        if body.len() > kind.cap() {
            return Err(Malformed("delegate: length"));
        }
        let mut from = Reader::new(body);
        match kind {
            Kind::Request | Kind::Text => Err(Malformed("delegate: kind")),
            Kind::Pooled => {
                let (values, rest) = body.as_chunks::<4>();
                let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let sound = rest.is_empty() && !values.is_empty() && values.iter().all(|v| v.is_finite());
                if sound { Ok(Self::Pooled { values }) } else { Err(Malformed("delegate: values")) }
            }
            Kind::Token => Ok(Self::Token { id: from.u32()?, text: rest(from)? }),
            Kind::Done => Ok(Self::Done { finish: from.u8()?, report: rest(from)? }),
            Kind::Failed => Ok(Self::Failed { reason: rest(from)? }),
        }
    }
}

fn rest(mut from: Reader<'_>) -> Result<String, Malformed> {
    text(from.bytes(from.remaining())?)
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("text"))
}
