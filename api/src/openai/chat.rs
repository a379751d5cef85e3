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

use super::{MAX_CHOICES, MAX_TOKENS, MAX_TOP_LOGPROBS, common, format, logprobs, messages, usage};
use crate::{
    App,
    answer::{self, Answer, Ended, Piece, Whole},
    body::JsonBody,
    error::ApiError,
    fields::Fields,
    inference::{Format, GenerateRequest, Plan, Prompt, Usage},
    sse::{self, Frame, Wire},
    tools::{Offer, ToolCall},
};

/// What was read from a request.
struct Asked {
    request: GenerateRequest,
    offer: Offer,
    n: usize,
    stream: bool,
    include_usage: bool,
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
    let answer = answer::begin(&app, asked.request, &asked.offer, asked.n).await?;
    if asked.stream {
        return Ok(stream(answer, asked.include_usage, seen));
    }
    let (id, created) = (answer.id.clone(), answer.created_s);
    let (plans, wholes) = answer.collect().await?;
    let body = whole(&id, created, &plans, &wholes);
    let headers = answer::headers(&id, &plans[0], wholes.first().map(|whole| &whole.report));
    Ok((headers, Json(body)).into_response())
}

fn read(app: &App, headers: &HeaderMap, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::new(body)?;
    let offer = Offer::openai(&fields)?;
    let mut extra = serde_json::Map::new();
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        extra.extend(kwargs.members().map(|(name, value)| (name.clone(), value.clone())));
    }
    let prompt = Prompt::Messages { messages: messages::read(&fields)?, tools: offer.tools.clone(), extra };
    let mut request = common(&fields, headers, "chatcmpl-", prompt)?;
    app.know(request.model.as_deref())?;
    let newer = fields.count("max_completion_tokens", 1, MAX_TOKENS)?;
    request.max_tokens = newer.or(fields.count("max_tokens", 1, MAX_TOKENS)?);
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    request.logprobs = match (fields.bool("logprobs")?.unwrap_or(false), top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(fields.refuse("top_logprobs", "needs `logprobs` to be true")),
    };
    request.format = format(&fields, "response_format")?;
    if let Some(forced) = offer.forced.clone() {
        if request.format != Format::Text {
            let why = "cannot be combined with a `tool_choice` that demands a call";
            return Err(fields.refuse("response_format", why));
        }
        request.format = forced;
    }
    let n = fields.count("n", 1, MAX_CHOICES)?.unwrap_or(1);
    let stream = fields.bool("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let include_usage = options.map(|options| options.bool("include_usage")).transpose()?.flatten();
    Ok(Asked { request, offer, n, stream, include_usage: include_usage.unwrap_or(false) })
}

fn finish_reason(ended: Ended) -> &'static str {
    match ended {
        Ended::Stop => "stop",
        Ended::Length => "length",
        Ended::Calls => "tool_calls",
    }
}

fn tool_call(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn whole(id: &str, created: u64, plans: &[Plan], wholes: &[Whole]) -> Value {
    let choices: Value = wholes.iter().enumerate().map(|(index, whole)| choice(index, whole)).collect();
    json!({
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": plans[0].model,
        "choices": choices,
        "usage": usage(&answer::total(wholes)),
        "shoal": answer::badge(&plans[0], wholes.first().map(|whole| &whole.report)),
    })
}

fn choice(index: usize, whole: &Whole) -> Value {
    let mut message = json!({"role": "assistant", "content": whole.text, "refusal": null});
    if !whole.calls.is_empty() {
        message["tool_calls"] = whole.calls.iter().map(tool_call).collect();
        if whole.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let logprobs: Vec<Value> = whole.logprobs.iter().map(logprobs).collect();
    json!({
        "index": index,
        "message": message,
        "logprobs": if logprobs.is_empty() { Value::Null } else { json!({"content": logprobs}) },
        "finish_reason": whole.ended.map(finish_reason),
    })
}

fn stream(answer: Answer, include_usage: bool, seen: Option<u64>) -> Response {
    let Answer { id, created_s, plans, pieces } = answer;
    let headers = answer::headers(&id, &plans[0], None);
    let mut writer = Writer::new(id, created_s, plans, include_usage);
    let first = writer.first();
    let rest = pieces.map(move |(index, piece)| writer.write(index, piece));
    let frames = futures::stream::iter([first]).chain(rest);
    (headers, sse::respond(frames, Wire::Events, seen)).into_response()
}

/// Turns pieces into chunks.
struct Writer {
    base: Value,
    plans: Vec<Plan>,
    include_usage: bool,
    usage: Usage,
    tokens: u64,
    open: usize,
    calls: Vec<usize>,
}

impl Writer {
    fn new(id: String, created_s: u64, plans: Vec<Plan>, include_usage: bool) -> Self {
        let mut base = json!({
            "id": id, "object": "chat.completion.chunk", "created": created_s, "model": plans[0].model,
        });
        if include_usage {
            base["usage"] = Value::Null;
        }
        let n = plans.len();
        Self { base, plans, include_usage, usage: Usage::default(), tokens: 0, open: n, calls: vec![0; n] }
    }

    fn chunk(&self, index: usize, delta: Value, end: Option<Ended>) -> Value {
        let mut chunk = self.base.clone();
        let reason = end.map(finish_reason);
        chunk["choices"] =
            json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": reason}]);
        chunk
    }

    /// Each choice opens its turn; the first one says what was decided.
    fn first(&self) -> Vec<Frame> {
        let open = |index| {
            let mut chunk = self.chunk(index, json!({"role": "assistant", "content": ""}), None);
            if index == 0 {
                chunk["shoal"] = answer::badge(&self.plans[0], None);
            }
            Frame::data(chunk)
        };
        (0..self.plans.len()).map(open).collect()
    }

    fn write(&mut self, index: usize, piece: Piece) -> Vec<Frame> {
        match piece {
            Piece::Token { text, logprobs: at } => {
                self.tokens += 1;
                if text.is_empty() && at.is_none() {
                    return Vec::new();
                }
                let mut chunk = self.chunk(index, json!({"content": text}), None);
                if let Some(at) = at {
                    chunk["choices"][0]["logprobs"] = json!({"content": [logprobs(&at)]});
                }
                vec![Frame::data(chunk).id(self.tokens)]
            }
            Piece::Call(call) => {
                let mut call = tool_call(&call);
                call["index"] = self.calls[index].into();
                self.calls[index] += 1;
                vec![Frame::data(self.chunk(index, json!({"tool_calls": [call]}), None)).id(self.tokens)]
            }
            Piece::Failover { lost, replacement, stall_ms } => {
                let mut chunk = self.chunk(index, json!({}), None);
                chunk["shoal"] = json!({
                    "failover": {"lost": lost, "replacement": replacement, "stall_ms": stall_ms}
                });
                vec![Frame::data(chunk)]
            }
            Piece::Done(done, ended) => {
                let mut last = self.chunk(index, json!({}), Some(ended));
                last["shoal"] = answer::badge(&self.plans[index], Some(&done.report));
                let mut frames = vec![Frame::data(last)];
                self.usage.prompt_tokens = done.usage.prompt_tokens;
                self.usage.cached_tokens = done.usage.cached_tokens;
                self.usage.completion_tokens += done.usage.completion_tokens;
                self.open -= 1;
                if self.open == 0 {
                    frames.extend(self.last());
                }
                frames
            }
            Piece::Failed(failure) => {
                vec![Frame::data(ApiError::from(failure).openai()), Frame::data("[DONE]")]
            }
        }
    }

    fn last(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.base.clone();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(&self.usage);
            frames.push(Frame::data(chunk));
        }
        frames.push(Frame::data("[DONE]"));
        frames
    }
}
