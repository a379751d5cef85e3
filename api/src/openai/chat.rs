//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use serde_json::{Value, json};

use super::{MAX_CHOICES, MAX_TOKENS, MAX_TOP_LOGPROBS, common, format, logprobs, messages, tools, usage};
use crate::{
    App,
    answer::{self, Answer, Ended, Ending, Piece, Whole},
    body::JsonBody,
    calls::ToolCall,
    error::ApiError,
    fields::Fields,
    inference::{Format, GenerateRequest, Plan, Prompt, TokenLogprobs, Usage},
    left_out::LeftOut,
    prefill::{self, CONTINUE},
    sse::{self, Frame, Wire},
    tools::Offer,
    unread::{self, Route},
};

/// What was read from a request.
struct Asked {
    request: GenerateRequest,
    offer: Offer,
    form: Form,
    left: LeftOut,
    n: usize,
    /// Whether reasoning stays in the text.
    inline_reasoning: bool,
    stream: bool,
    include_usage: bool,
}

/// In which form calls are given back: that in which the tools came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Tools,
    /// `functions` and `function_call`.
    Functions,
}

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let asked = read(&app, &headers, &body)?;
    let seen = sse::last_event_id(&headers)?;
    if seen.is_some() && (asked.n > 1 || asked.request.seed.is_none()) {
        return Err(ApiError::field(
            "Last-Event-ID",
            "needs a `seed` and `n` = 1: only then are the tokens the same again",
        ));
    }
    let answer = if asked.inline_reasoning {
        answer::begin_all(&app, &[asked.request], &asked.offer, None, asked.n).await?
    } else {
        answer::begin(&app, asked.request, &asked.offer, asked.n).await?
    };
    if asked.stream {
        let mut headers = answer::headers(&answer.id, &answer.plan, None);
        asked.left.tell(&mut headers);
        return Ok((headers, stream(answer, asked.form, asked.include_usage, seen)).into_response());
    }
    let (id, created) = (answer.id.clone(), answer.created_s);
    let (plan, wholes) = answer.collect().await?;
    let body = whole(&id, created, &plan, &wholes, asked.form);
    let mut headers = answer::headers(&id, &plan, wholes.first().map(|whole| &whole.report));
    asked.left.tell(&mut headers);
    Ok((headers, Json(body)).into_response())
}

fn read(app: &App, headers: &HeaderMap, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::new(body)?;
    unread::check(&fields, Route::Chat)?;
    let mut left = LeftOut::default();
    let (offer, is_older) = tools::chat(&fields)?;
    let form = if is_older { Form::Functions } else { Form::Tools };
    let mut extra = serde_json::Map::new();
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        if kwargs.any(CONTINUE).is_some() {
            return Err(kwargs.refuse(CONTINUE, "is a field of the request itself"));
        }
        extra.extend(kwargs.members().map(|(name, value)| (name.clone(), value.clone())));
    }
    // Templates that know how hard to think call it so.
    if let Some(effort) = fields.text("reasoning_effort")? {
        extra.insert("reasoning_effort".into(), effort.into());
    }
    let mut messages = messages::read(&fields, &mut left)?;
    messages::verbosity(&fields, &mut messages, &mut left)?;
    let format = format(&fields, "response_format")?;
    if fields.bool(CONTINUE)?.unwrap_or(false) {
        if !prefill::is_begun(&messages) {
            return Err(
                fields.refuse(CONTINUE, "needs a last message of the assistant, with text and without calls")
            );
        }
        prefill::go_on(&mut extra, &format, &offer)?;
    }
    let prompt = Prompt::Messages { messages, tools: offer.tools.clone(), extra };
    let mut request = common(app, &fields, headers, "chatcmpl-", prompt)?;
    let newer = fields.count("max_completion_tokens", 1, MAX_TOKENS)?;
    request.max_tokens = newer.or(fields.count("max_tokens", 1, MAX_TOKENS)?);
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    request.logprobs = match (fields.bool("logprobs")?.unwrap_or(false), top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(fields.refuse("top_logprobs", "needs `logprobs` to be true")),
    };
    request.format = format;
    offer.tell(&request.format, &mut left);
    if let Some(forced) = offer.forced.clone() {
        if request.format != Format::Text {
            let why = "cannot be combined with a `tool_choice` that demands a call";
            return Err(fields.refuse("response_format", why));
        }
        request.format = forced;
    }
    // llama.cpp's names.
    let inline_reasoning = match fields.text("reasoning_format")? {
        None | Some("auto" | "deepseek") => false,
        Some("none") => true,
        Some(_) => return Err(fields.refuse("reasoning_format", "must be auto, deepseek or none")),
    };
    let n = fields.count("n", 1, MAX_CHOICES)?.unwrap_or(1);
    let stream = fields.bool("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let include_usage = options.map(|options| options.bool("include_usage")).transpose()?.flatten();
    let include_usage = include_usage.unwrap_or(false);
    Ok(Asked { request, offer, form, left, n, inline_reasoning, stream, include_usage })
}

fn finish_reason(ended: Ended, form: Form) -> &'static str {
    match (ended, form) {
        (Ended::Stop, _) => "stop",
        (Ended::Length, _) => "length",
        (Ended::Calls, Form::Tools) => "tool_calls",
        (Ended::Calls, Form::Functions) => "function_call",
    }
}

fn tool_call(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn whole(id: &str, created: u64, plan: &Plan, wholes: &[Whole], form: Form) -> Value {
    let usages: Vec<Usage> = wholes.iter().map(|whole| whole.usage).collect();
    let reasoning_tokens = wholes.iter().map(|whole| whole.reasoning_tokens).sum();
    let choices: Value = wholes.iter().enumerate().map(|(index, whole)| choice(index, whole, form)).collect();
    json!({
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": plan.model,
        "choices": choices,
        "usage": counts(&usages, reasoning_tokens),
        "shoal": answer::badge(plan, wholes.first().map(|whole| &whole.report)),
    })
}

/// Token counts of all choices of a prompt.
fn counts(usages: &[Usage], reasoning_tokens: usize) -> Value {
    let mut counts = usage(&answer::total(usages, usages.len()));
    if reasoning_tokens > 0 {
        counts["completion_tokens_details"] = json!({"reasoning_tokens": reasoning_tokens});
    }
    counts
}

fn choice(index: usize, whole: &Whole, form: Form) -> Value {
    let mut message = json!({"role": "assistant", "content": whole.text, "refusal": null});
    if !whole.reasoning.is_empty() {
        message["reasoning_content"] = whole.reasoning.as_str().into();
    }
    if !whole.calls.is_empty() {
        match form {
            Form::Tools => message["tool_calls"] = whole.calls.iter().map(tool_call).collect(),
            // There is one call at most: the offer says so.
            Form::Functions => {
                let call = whole.calls.first();
                let call = call.map(|call| json!({"name": call.name, "arguments": call.arguments}));
                message["function_call"] = call.unwrap_or_default();
            }
        }
        if whole.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let logprobs: Vec<Value> = whole.logprobs.iter().map(logprobs).collect();
    json!({
        "index": index,
        "message": message,
        "logprobs": if logprobs.is_empty() { Value::Null } else { json!({"content": logprobs}) },
        "finish_reason": whole.ended.map(|ended| finish_reason(ended, form)),
    })
}

fn stream(answer: Answer, form: Form, include_usage: bool, seen: Option<u64>) -> Response {
    let Answer { id, created_s, plan, choices, pieces } = answer;
    let mut writer = Writer::new(&id, created_s, plan, choices, (form, include_usage));
    let first = writer.first();
    let rest = pieces.map(move |(index, piece)| writer.write(index, piece));
    let frames = futures::stream::iter([first]).chain(rest);
    sse::respond(frames, Wire::Events, seen)
}

/// Turns pieces into chunks.
struct Writer {
    base: Value,
    plan: Plan,
    form: Form,
    include_usage: bool,
    /// Of the choices that have ended.
    usages: Vec<Usage>,
    reasoning_tokens: usize,
    tokens: u64,
    /// Calls of each choice that have begun.
    calls: Vec<usize>,
}

impl Writer {
    fn new(
        id: &str,
        created_s: u64,
        plan: Plan,
        choices: usize,
        (form, include_usage): (Form, bool),
    ) -> Self {
        let mut base = json!({
            "id": id, "object": "chat.completion.chunk", "created": created_s, "model": plan.model,
        });
        if include_usage {
            base["usage"] = Value::Null;
        }
        let calls = vec![0; choices];
        Self { base, plan, form, include_usage, usages: Vec::new(), reasoning_tokens: 0, tokens: 0, calls }
    }

    fn chunk(&self, index: usize, delta: Value, end: Option<Ended>) -> Value {
        let mut chunk = self.base.clone();
        let reason = end.map(|ended| finish_reason(ended, self.form));
        chunk["choices"] =
            json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": reason}]);
        chunk
    }

    /// Each choice opens its turn; the first one says what was decided.
    fn first(&self) -> Vec<Frame> {
        let open = |index| {
            let mut chunk = self.chunk(index, json!({"role": "assistant", "content": ""}), None);
            if index == 0 {
                chunk["shoal"] = answer::badge(&self.plan, None);
            }
            Frame::data(chunk)
        };
        (0..self.calls.len()).map(open).collect()
    }

    fn write(&mut self, index: usize, piece: Piece) -> Vec<Frame> {
        match piece {
            Piece::Token { text, logprobs, counted } => self.text(index, "content", text, logprobs, counted),
            Piece::Reasoning { text, logprobs, counted } => {
                self.text(index, "reasoning_content", text, logprobs, counted)
            }
            Piece::Call { id, name } => {
                let call = json!({"id": id, "type": "function"});
                self.calls[index] += 1;
                vec![self.call(index, call, json!({"name": name, "arguments": ""}))]
            }
            Piece::Arguments(more) => vec![self.call(index, json!({}), json!({"arguments": more}))],
            Piece::Prompt(_) | Piece::CallEnd => Vec::new(),
            Piece::Failover { lost, replacement, stall_ms } => {
                let mut chunk = self.chunk(index, json!({}), None);
                chunk["shoal"] = json!({
                    "failover": {"lost": lost, "replacement": replacement, "stall_ms": stall_ms}
                });
                vec![Frame::data(chunk)]
            }
            Piece::Done(ending) => {
                let Ending { done, ended, reasoning_tokens, plan } = *ending;
                self.reasoning_tokens += reasoning_tokens;
                let mut last = self.chunk(index, json!({}), Some(ended));
                last["shoal"] = answer::badge(&plan, Some(&done.report));
                let mut frames = vec![Frame::data(last)];
                self.usages.push(done.usage);
                if self.usages.len() == self.calls.len() {
                    frames.extend(self.last());
                }
                frames
            }
            Piece::Failed(failure) => {
                vec![Frame::data(ApiError::from(failure).openai()), Frame::data("[DONE]")]
            }
        }
    }

    /// A piece of what `field` holds.
    fn text(
        &mut self,
        index: usize,
        field: &str,
        text: String,
        at: Option<TokenLogprobs>,
        counted: bool,
    ) -> Vec<Frame> {
        self.tokens += u64::from(counted);
        if text.is_empty() && at.is_none() {
            return Vec::new();
        }
        let mut chunk = self.chunk(index, json!({field: text}), None);
        if let Some(at) = at {
            chunk["choices"][0]["logprobs"] = json!({"content": [logprobs(&at)]});
        }
        vec![Frame::data(chunk).id(self.tokens)]
    }

    /// A piece of the call that began last.
    fn call(&self, index: usize, mut call: Value, function: Value) -> Frame {
        let delta = match self.form {
            Form::Functions => json!({"function_call": function}),
            Form::Tools => {
                call["index"] = self.calls[index].saturating_sub(1).into();
                call["function"] = function;
                json!({"tool_calls": [call]})
            }
        };
        Frame::data(self.chunk(index, delta, None)).id(self.tokens)
    }

    fn last(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.base.clone();
            chunk["choices"] = json!([]);
            chunk["usage"] = counts(&self.usages, self.reasoning_tokens);
            frames.push(Frame::data(chunk));
        }
        frames.push(Frame::data("[DONE]"));
        frames
    }
}
