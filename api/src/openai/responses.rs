//! `POST /v1/responses`, for text and tools that the client runs. A conversation goes on by `previous_response_id`, where the
//! node stores responses, or by sending its items again.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    MAX_TOKENS, MAX_TOP_LOGPROBS, common, format, logprobs, messages,
    tools::{self, Kind, Kinds},
};
use crate::{
    App,
    answer::{self, Answer, Ended, Ending, Piece},
    body::JsonBody,
    calls::ToolCall,
    error::ApiError,
    fields::Fields,
    inference::{Format, GenerateRequest, Plan, Prompt, Report, Usage},
    keys,
    left_out::LeftOut,
    names,
    sse::{self, Frame, Wire},
    stored_responses::{StoredResponse, StoredResponses},
    tools::Offer,
    unread::{self, Route},
};

mod input;
mod items;
mod turns;

use items::{call_id, call_item, custom_input, message_item, part, reasoning_item};
use turns::Turn;
pub(crate) use turns::{delete, get, input_items};

struct Asked {
    request: GenerateRequest,
    offer: Offer,
    kinds: Kinds,
    left: LeftOut,
    stream: bool,
    /// Fields of the request that the answer repeats.
    echo: Value,
    to_store: Option<ToStore>,
}

/// What of a request is stored with its response, and who stores it.
struct ToStore {
    keeper: Arc<dyn StoredResponses>,
    holder: Option<String>,
    previous: Option<String>,
    input: Vec<Value>,
}

impl ToStore {
    /// Stores a whole response, and says of it whether it is.
    async fn store(self, response: Value) -> Value {
        let Self { keeper, holder, previous, input } = self;
        turns::store(&keeper, StoredResponse { holder, previous, input, response }).await
    }
}

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::new(&body)?;
    unread::check(&fields, Route::Responses)?;
    let turn = turns::read(&app, &fields).await?;
    let asked = read(&app, &headers, &fields, turn)?;
    let seen = sse::last_event_id(&headers)?;
    if seen.is_some() && asked.request.seed.is_none() {
        return Err(ApiError::field("Last-Event-ID", "needs a `seed`"));
    }
    let answer = answer::begin(&app, asked.request, &asked.offer, 1).await?;
    if asked.stream {
        let mut headers = answer::headers(&answer.id, &answer.plan, None);
        asked.left.tell(&mut headers);
        return Ok(
            (headers, stream_items(answer, asked.echo, asked.kinds, asked.to_store, seen)).into_response()
        );
    }
    let (id, created) = (answer.id.clone(), answer.created_s);
    let (plan, mut wholes) = answer.collect().await?;
    let whole = wholes.pop().unwrap_or_default();
    let items = items::all(&whole, &asked.kinds);
    let store = asked.to_store.is_some();
    let base = Base { id: id.clone(), created, plan: plan.clone(), echo: asked.echo, store };
    let status = if whole.ended == Some(Ended::Length) { "incomplete" } else { "completed" };
    let end = (&whole.usage, whole.reasoning_tokens, &whole.report);
    let mut body = base.response(status, items, Some(end));
    if let Some(to_store) = asked.to_store {
        body = to_store.store(body).await;
    }
    let mut headers = answer::headers(&id, &plan, Some(&whole.report));
    asked.left.tell(&mut headers);
    Ok((headers, Json(body)).into_response())
}

fn read(app: &App, headers: &HeaderMap, fields: &Fields<'_>, turn: Turn) -> Result<Asked, ApiError> {
    let mut left = LeftOut::default();
    let (offer, kinds) = tools::responses(fields, &mut left)?;
    let mut extra = serde_json::Map::new();
    let reasoning = fields.object("reasoning")?;
    if let Some(effort) = reasoning.map(|reasoning| reasoning.text("effort")).transpose()?.flatten() {
        extra.insert("reasoning_effort".into(), effort.into());
    }
    let mut messages = input::read(fields, &turn.before, &mut left)?;
    let text = fields.object("text")?;
    if let Some(text) = &text {
        messages::verbosity(text, &mut messages, &mut left)?;
    }
    let prompt = Prompt::Messages { messages, tools: offer.tools.clone(), extra };
    let mut request = common(app, fields, headers, "resp_", prompt)?;
    request.max_tokens = fields.count("max_output_tokens", 1, MAX_TOKENS)?;
    let include = fields.list("include", 16)?.unwrap_or_default();
    let wants = include.iter().any(|word| word == "message.output_text.logprobs");
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    request.logprobs = (wants || top.is_some()).then(|| top.unwrap_or(0));
    request.format = match &text {
        Some(text) => format(text, "format")?,
        None => Format::Text,
    };
    offer.tell(&request.format, &mut left);
    if let Some(forced) = offer.forced.clone() {
        if request.format != Format::Text {
            return Err(fields.refuse("text", "has a format that cannot be combined with this `tool_choice`"));
        }
        request.format = forced;
    }
    let kept = |field: &str, default: Value| fields.any(field).cloned().unwrap_or(default);
    let echo = json!({
        "instructions": kept("instructions", Value::Null),
        "max_output_tokens": kept("max_output_tokens", Value::Null),
        "metadata": kept("metadata", json!({})),
        "parallel_tool_calls": kept("parallel_tool_calls", json!(true)),
        "previous_response_id": turn.previous,
        "temperature": kept("temperature", Value::Null),
        "text": kept("text", json!({"format": {"type": "text"}})),
        "tool_choice": kept("tool_choice", json!("auto")),
        "tools": kept("tools", json!([])),
        "top_p": kept("top_p", Value::Null),
    });
    let to_store = match app.responses.clone().filter(|_| turn.store) {
        Some(keeper) => {
            let (holder, previous) = (keys::holder(), turn.previous);
            Some(ToStore { keeper, holder, previous, input: turns::input(fields)? })
        }
        None => None,
    };
    let stream = fields.bool("stream")?.unwrap_or(false);
    Ok(Asked { request, offer, kinds, left, stream, echo, to_store })
}

/// What every form of the response object shares.
struct Base {
    id: String,
    created: u64,
    plan: Plan,
    echo: Value,
    /// Whether it is to be stored.
    store: bool,
}

impl Base {
    fn response(&self, status: &str, output: Vec<Value>, end: Option<(&Usage, usize, &Report)>) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": (status == "incomplete").then(|| json!({"reason": "max_output_tokens"})),
            "model": self.plan.model,
            "output": output,
            "store": self.store,
            "truncation": "disabled",
            "usage": null,
            "shoal": answer::badge(&self.plan, end.map(|end| end.2)),
        });
        if let Some((usage, reasoning_tokens, _)) = end {
            response["usage"] = json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            });
        }
        if let (Some(response), Value::Object(echo)) = (response.as_object_mut(), &self.echo) {
            response.extend(echo.clone());
        }
        response
    }
}

fn stream_items(
    answer: Answer,
    echo: Value,
    kinds: Kinds,
    to_store: Option<ToStore>,
    seen: Option<u64>,
) -> Response {
    let Answer { id, created_s, plan, pieces, .. } = answer;
    let base = Base { id, created: created_s, plan, echo, store: to_store.is_some() };
    let mut writer = Writer {
        base,
        kinds,
        to_store,
        sequence: 0,
        tokens: 0,
        output: Vec::new(),
        thought: None,
        open: None,
        call: None,
    };
    let first = writer.first();
    let written = stream::unfold((writer, pieces), |(mut writer, mut pieces)| async move {
        let (_, piece) = pieces.next().await?;
        Some((writer.write(piece).await, (writer, pieces)))
    });
    sse::respond(stream::iter([first]).chain(written), Wire::Events, seen)
}

/// Turns pieces into events.
struct Writer {
    base: Base,
    kinds: Kinds,
    to_store: Option<ToStore>,
    sequence: u64,
    tokens: u64,
    /// Finished items.
    output: Vec<Value>,
    /// The reasoning being written: id and text.
    thought: Option<(String, String)>,
    /// The message being written: id, text, log-probabilities.
    open: Option<(String, String, Vec<Value>)>,
    /// The call being written, and the id of its item.
    call: Option<(String, ToolCall, Kind)>,
}

impl Writer {
    fn frame(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["type"] = event.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Frame::event(event, data)
    }

    fn first(&mut self) -> Vec<Frame> {
        let response = self.base.response("in_progress", Vec::new(), None);
        vec![
            self.frame("response.created", json!({"response": response})),
            self.frame("response.in_progress", json!({"response": response})),
        ]
    }

    async fn write(&mut self, piece: Piece) -> Vec<Frame> {
        match piece {
            Piece::Token { text, logprobs: at, counted } => {
                self.tokens += u64::from(counted);
                if text.is_empty() && at.is_none() {
                    return Vec::new();
                }
                let mut frames = self.close_call("completed");
                frames.extend(self.close_thought("completed"));
                frames.extend(self.open_message());
                let at: Vec<Value> = at.iter().map(logprobs).collect();
                let index = self.output.len();
                let Some((id, all, logprobs)) = &mut self.open else { return frames };
                all.push_str(&text);
                logprobs.extend(at.iter().cloned());
                let data = json!({
                    "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": at,
                });
                let tokens = self.tokens;
                frames.push(self.frame("response.output_text.delta", data).id(tokens));
                frames
            }
            Piece::Reasoning { text, counted, .. } => {
                self.tokens += u64::from(counted);
                self.think(&text)
            }
            Piece::Call { id, name } => {
                let mut frames = self.close_call("completed");
                frames.extend(self.close_thought("completed"));
                frames.extend(self.close_message("completed"));
                let kind = self.kinds.of(&name);
                let (item_id, index) = (call_id(&kind), self.output.len());
                let call = ToolCall { id, name, arguments: String::new() };
                let item = call_item(&item_id, &call, &kind, "in_progress");
                self.call = Some((item_id, call, kind));
                frames.push(
                    self.frame("response.output_item.added", json!({"output_index": index, "item": item})),
                );
                frames
            }
            Piece::Arguments(more) => {
                let index = self.output.len();
                let Some((id, call, kind)) = &mut self.call else { return Vec::new() };
                call.arguments.push_str(&more);
                // What the others hold is known at their end.
                if matches!(kind, Kind::Custom | Kind::LocalShell) {
                    return Vec::new();
                }
                let data = json!({"item_id": id, "output_index": index, "delta": more});
                let tokens = self.tokens;
                vec![self.frame("response.function_call_arguments.delta", data).id(tokens)]
            }
            Piece::CallEnd => {
                // One that was cut is closed by the end, which says so.
                let whole = |call: &ToolCall| serde_json::from_str::<Value>(&call.arguments).is_ok();
                let complete = self.call.as_ref().is_some_and(|(_, call, _)| whole(call));
                if complete { self.close_call("completed") } else { Vec::new() }
            }
            Piece::Prompt(_) | Piece::Failover { .. } => Vec::new(),
            Piece::Done(ending) => {
                let Ending { done, ended, reasoning_tokens, .. } = *ending;
                let (status, event) = match ended {
                    Ended::Length => ("incomplete", "response.incomplete"),
                    Ended::Stop | Ended::Calls => ("completed", "response.completed"),
                };
                let mut frames = self.close_call(status);
                frames.extend(self.close_thought(status));
                if self.output.is_empty() {
                    frames.extend(self.open_message());
                }
                frames.extend(self.close_message(status));
                let output = self.output.clone();
                let mut response =
                    self.base.response(status, output, Some((&done.usage, reasoning_tokens, &done.report)));
                // Before it is sent: a client may go on from it at once.
                if let Some(to_store) = self.to_store.take() {
                    response = to_store.store(response).await;
                }
                frames.push(self.frame(event, json!({"response": response})));
                frames
            }
            Piece::Failed(failure) => {
                let error = ApiError::from(failure);
                let data = json!({"code": error.openai()["error"]["code"], "message": error.message, "param": error.param});
                vec![self.frame("error", data)]
            }
        }
    }

    fn open_message(&mut self) -> Vec<Frame> {
        if self.open.is_some() {
            return Vec::new();
        }
        let (id, index) = (names::fresh("msg_"), self.output.len());
        let mut item = message_item(&id, "", &[], "in_progress");
        item["content"] = json!([]);
        self.open = Some((id.clone(), String::new(), Vec::new()));
        vec![
            self.frame("response.output_item.added", json!({"output_index": index, "item": item})),
            self.frame(
                "response.content_part.added",
                json!({"item_id": id, "output_index": index, "content_index": 0, "part": part("", &[])}),
            ),
        ]
    }

    fn close_call(&mut self, status: &str) -> Vec<Frame> {
        let Some((id, call, kind)) = self.call.take() else { return Vec::new() };
        let index = self.output.len();
        let item = call_item(&id, &call, &kind, status);
        self.output.push(item.clone());
        let mut frames = Vec::new();
        match kind {
            Kind::Function | Kind::Member { .. } => {
                let done = json!({
                    "item_id": id, "output_index": index, "name": item["name"], "arguments": call.arguments,
                });
                frames.push(self.frame("response.function_call_arguments.done", done));
            }
            Kind::Custom => {
                let input = custom_input(&call.arguments);
                let data = json!({"item_id": id, "output_index": index, "delta": input});
                let tokens = self.tokens;
                frames.push(self.frame("response.custom_tool_call_input.delta", data).id(tokens));
                let done = json!({"item_id": id, "output_index": index, "input": input});
                frames.push(self.frame("response.custom_tool_call_input.done", done));
            }
            Kind::LocalShell => {}
        }
        frames.push(self.frame("response.output_item.done", json!({"output_index": index, "item": item})));
        frames
    }

    /// More of what the model thinks.
    fn think(&mut self, text: &str) -> Vec<Frame> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut frames = self.close_message("completed");
        let index = self.output.len();
        if self.thought.is_none() {
            let id = names::fresh("rs_");
            let item = reasoning_item(&id, "", "in_progress");
            frames
                .push(self.frame("response.output_item.added", json!({"output_index": index, "item": item})));
            self.thought = Some((id, String::new()));
        }
        let Some((id, all)) = &mut self.thought else { return frames };
        all.push_str(text);
        let data = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        let tokens = self.tokens;
        frames.push(self.frame("response.reasoning_text.delta", data).id(tokens));
        frames
    }

    fn close_thought(&mut self, status: &str) -> Vec<Frame> {
        let Some((id, text)) = self.thought.take() else { return Vec::new() };
        let index = self.output.len();
        let item = reasoning_item(&id, &text, status);
        self.output.push(item.clone());
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
        vec![
            self.frame("response.reasoning_text.done", done),
            self.frame("response.output_item.done", json!({"output_index": index, "item": item})),
        ]
    }

    fn close_message(&mut self, status: &str) -> Vec<Frame> {
        let Some((id, text, logprobs)) = self.open.take() else { return Vec::new() };
        let index = self.output.len();
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |key: &str, value: Value| {
            let mut data = at.clone();
            data[key] = value;
            data
        };
        let mut done = with("text", json!(text));
        done["logprobs"] = json!(logprobs);
        let item = message_item(&id, &text, &logprobs, status);
        self.output.push(item.clone());
        vec![
            self.frame("response.output_text.done", done),
            self.frame("response.content_part.done", with("part", part(&text, &logprobs))),
            self.frame("response.output_item.done", json!({"output_index": index, "item": item})),
        ]
    }
}
