//! `POST /v1/messages`.
//!
//! A request becomes the messages of OpenAI's chat, which chat templates read; blocks of tool use and tool results become
//! tool calls and tool messages, blocks of thinking what the template makes of them. Blocks of thinking in answers carry no
//! signature: nothing is hidden in them.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::tools;
use crate::{
    App,
    answer::{self, Answer, Ended, Ending, Piece, Whole},
    body::JsonBody,
    calls::ToolCall,
    error::ApiError,
    fields::{Fields, required},
    inference::{Format, GenerateRequest, Plan, Prompt, Sampling, Usage, ranges},
    left_out::LeftOut,
    names,
    openai::{
        self, MAX_TOKENS,
        messages::{self, MAX_MESSAGES, Source},
    },
    prefill,
    sse::{self, Frame, Wire},
    tools::Offer,
    unread::{self, Route},
};

/// Blocks of one message.
const MAX_BLOCKS: usize = 1024;
/// What tools of Anthropic's servers left in a conversation; clients send it to the next model as it is.
const SERVER_BLOCKS: &[&str] = &[
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
];

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::new(&body)?;
    let most = fields.count("max_tokens", 1, MAX_TOKENS)?;
    let most = required(&fields, "max_tokens", most)?;
    let mut left = LeftOut::default();
    let (request, offer) = read(&app, &headers, &fields, most, &mut left)?;
    let seen = sse::last_event_id(&headers)?;
    if seen.is_some() && request.seed.is_none() {
        return Err(ApiError::field("Last-Event-ID", "needs a `seed`"));
    }
    let streams = fields.bool("stream")?.unwrap_or(false);
    let answer = answer::begin(&app, request, &offer, 1).await?;
    if streams {
        let mut headers = answer::headers(&answer.id, &answer.plan, None);
        left.tell(&mut headers);
        return Ok((headers, stream_blocks(answer, seen)).into_response());
    }
    let id = answer.id.clone();
    let (plan, mut wholes) = answer.collect().await?;
    let whole = wholes.pop().unwrap_or_default();
    let mut headers = answer::headers(&id, &plan, Some(&whole.report));
    left.tell(&mut headers);
    Ok((headers, Json(message(&id, &plan, &whole))).into_response())
}

/// `POST /v1/messages/count_tokens`: how many tokens the same request would read.
pub(crate) async fn count(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::new(&body)?;
    let mut left = LeftOut::default();
    let (request, _) = read(&app, &headers, &fields, 1, &mut left)?;
    // Counting takes a processor as the beginning of an answer does.
    let place = app.queue.enter(1)?;
    let tokens = app.inference.count(request).await?;
    drop(place);
    let mut headers = HeaderMap::new();
    left.tell(&mut headers);
    Ok((headers, Json(json!({"input_tokens": tokens}))).into_response())
}

fn read(
    app: &App,
    headers: &HeaderMap,
    fields: &Fields<'_>,
    max_tokens: usize,
    left: &mut LeftOut,
) -> Result<(GenerateRequest, Offer), ApiError> {
    unread::check(fields, Route::Messages)?;
    let offer = tools::read(fields, left)?;
    let format = format(fields)?;
    offer.tell(&format, left);
    if offer.forced.is_some() && format != Format::Text {
        return Err(fields.refuse("tool_choice", "demands a call, which has no room for a format"));
    }
    let (messages, mut extra) = (conversation(fields, left)?, thinking(fields)?);
    let last = fields.list("messages", MAX_MESSAGES)?.and_then(|list| list.last());
    if last.is_some_and(|last| last["role"] == "assistant") && prefill::is_begun(&messages) {
        prefill::go_on(&mut extra, &format, &offer)?;
    }
    let sampling = Sampling {
        temperature: fields.ranged(&ranges::TEMPERATURE)?,
        top_k: fields.count("top_k", 0, 1 << 20)?,
        top_p: fields.ranged(&ranges::TOP_P)?,
        draft: openai::draft(fields, headers)?,
        ..Sampling::default()
    };
    let request = GenerateRequest {
        id: names::fresh("msg_"),
        model: Some(app.know(fields.text("model")?)?.name),
        prompt: Prompt::Messages { messages, tools: offer.tools.clone(), extra },
        sampling,
        seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
        max_tokens: Some(max_tokens),
        stop: openai::stops(fields, "stop_sequences")?,
        logprobs: None,
        format: offer.forced.clone().unwrap_or(format),
        mode: openai::mode(fields, headers)?,
        guard: openai::guard(fields, headers)?,
        wire: openai::wire(fields, headers)?,
        session: openai::session(fields, headers)?,
        show_special: false,
        echo: false,
    };
    Ok((request, offer))
}

/// The form of the answer, under its newer or its older name.
fn format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    match fields.object("output_config")? {
        Some(config) if config.any("format").is_some() => openai::format(&config, "format"),
        _ => openai::format(fields, "output_format"),
    }
}

/// What `thinking` and `output_config.effort` tell the template; how many tokens it may take is the model's own matter.
fn thinking(fields: &Fields<'_>) -> Result<serde_json::Map<String, Value>, ApiError> {
    let mut extra = serde_json::Map::new();
    if let Some(thinking) = fields.object("thinking")? {
        let thinks = match required(&thinking, "type", thinking.text("type")?)? {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            _ => return Err(thinking.refuse("type", "must be enabled, adaptive or disabled")),
        };
        extra.insert("enable_thinking".into(), thinks.into());
    }
    let config = fields.object("output_config")?;
    if let Some(effort) = config.map(|config| config.text("effort")).transpose()?.flatten() {
        extra.insert("reasoning_effort".into(), effort.into());
    }
    Ok(extra)
}

fn conversation(fields: &Fields<'_>, left: &mut LeftOut) -> Result<Value, ApiError> {
    let mut all = Vec::new();
    if let Some(system) = messages::text(fields, "system", Source::Turn, left)? {
        all.push(json!({"role": "system", "content": system}));
    }
    let list = required(fields, "messages", fields.list("messages", MAX_MESSAGES)?)?;
    if list.is_empty() {
        return Err(fields.refuse("messages", "must have at least one message"));
    }
    for (i, message) in list.iter().enumerate() {
        let message = Fields::at(message, format!("messages[{i}]"))?;
        match required(&message, "role", message.text("role")?)? {
            role @ ("user" | "assistant" | "system") => turn(&message, role, &mut all, left)?,
            _ => return Err(message.refuse("role", "must be user, assistant or system")),
        }
    }
    Ok(all.into())
}

/// One message becomes one or more: results of tools are messages of their own, before the user's text.
fn turn(message: &Fields<'_>, role: &str, all: &mut Vec<Value>, left: &mut LeftOut) -> Result<(), ApiError> {
    if let Some(Value::String(text)) = message.any("content") {
        // As a list without text: there is no turn.
        if text.is_empty() && role == "assistant" {
            return Ok(());
        }
        all.push(json!({"role": role, "content": text}));
        return Ok(());
    }
    let blocks = required(message, "content", message.list("content", MAX_BLOCKS)?)?;
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let block = Fields::at(block, format!("{}[{i}]", message.name("content")))?;
        match required(&block, "type", block.text("type")?)? {
            "text" => text.push_str(required(&block, "text", block.text("text")?)?),
            "tool_use" => calls.push(json!({
                "id": block.text("id")?.unwrap_or(""),
                "type": "function",
                "function": {
                    "name": required(&block, "name", block.text("name")?)?,
                    "arguments": block.any("input").cloned().unwrap_or_else(|| json!({})),
                },
            })),
            "tool_result" => all.push(json!({
                "role": "tool",
                "tool_call_id": required(&block, "tool_use_id", block.text("tool_use_id")?)?,
                "content": messages::text(&block, "content", Source::Result, left)?.unwrap_or_default(),
            })),
            "thinking" => thought.push_str(block.text("thinking")?.unwrap_or_default()),
            "redacted_thinking" => left.add("redacted_thinking"),
            "image" | "document" => text.push_str(&messages::not_text(&block, Source::Turn, left)?),
            kind if SERVER_BLOCKS.contains(&kind) => left.add(&format!("messages.{kind}")),
            _ => {
                let why = "must be text, image, tool_use or tool_result: the models here read nothing else";
                return Err(block.refuse("type", why));
            }
        }
    }
    if !text.is_empty() || !calls.is_empty() {
        let mut one = json!({"role": role, "content": text});
        if let Some(one) = one.as_object_mut().filter(|_| role == "assistant" && !thought.is_empty()) {
            messages::remember(one, &thought);
        }
        if !calls.is_empty() {
            one["tool_calls"] = calls.into();
        }
        all.push(one);
    }
    Ok(())
}

fn stop_reason(ended: Ended, stop: Option<&str>) -> &'static str {
    match ended {
        Ended::Calls => "tool_use",
        Ended::Length => "max_tokens",
        Ended::Stop if stop.is_some() => "stop_sequence",
        Ended::Stop => "end_turn",
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

fn tool_use(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": format!("toolu_{id}"), "name": name, "input": input})
}

fn message(id: &str, plan: &Plan, whole: &Whole) -> Value {
    let mut content = Vec::new();
    if !whole.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": whole.reasoning, "signature": ""}));
    }
    if !whole.text.is_empty() {
        content.push(json!({"type": "text", "text": whole.text}));
    }
    let block = |call: &ToolCall| tool_use(&call.id, &call.name, call.object());
    content.extend(whole.calls.iter().map(block));
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": plan.model,
        "content": content,
        "stop_reason": whole.ended.map(|ended| stop_reason(ended, whole.stop.as_deref())),
        "stop_sequence": whole.stop,
        "usage": usage(&whole.usage),
        "shoal": answer::badge(plan, Some(&whole.report)),
    })
}

fn stream_blocks(answer: Answer, seen: Option<u64>) -> Response {
    let Answer { id, plan, pieces, .. } = answer;
    let empty = Whole::default();
    let mut start = message(&id, &plan, &empty);
    start["usage"] = usage(&Usage { prompt_tokens: plan.prompt_tokens, ..Usage::default() });
    start["shoal"] = answer::badge(&plan, None);
    let first = vec![
        Frame::event("message_start", json!({"type": "message_start", "message": start})),
        Frame::event("ping", json!({"type": "ping"})),
    ];
    let mut writer = Writer { index: 0, open: None, tokens: 0 };
    let frames = stream::iter([first]).chain(pieces.map(move |(_, piece)| writer.write(piece)));
    sse::respond(frames, Wire::Events, seen)
}

/// A block of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// Turns pieces into events.
struct Writer {
    /// The block being written, or to be written next.
    index: usize,
    /// The kind of the block of text that is open.
    open: Option<Block>,
    tokens: u64,
}

impl Writer {
    fn start(&self, block: Value) -> Frame {
        Frame::event(
            "content_block_start",
            json!({"type": "content_block_start", "index": self.index, "content_block": block}),
        )
    }

    fn delta(&self, delta: Value) -> Frame {
        Frame::event(
            "content_block_delta",
            json!({"type": "content_block_delta", "index": self.index, "delta": delta}),
        )
    }

    fn stop(&mut self) -> Frame {
        let frame =
            Frame::event("content_block_stop", json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
        frame
    }

    fn close(&mut self) -> Vec<Frame> {
        match self.open.take() {
            None => Vec::new(),
            Some(Block::Text) => vec![self.stop()],
            Some(Block::Thinking) => {
                vec![self.delta(json!({"type": "signature_delta", "signature": ""})), self.stop()]
            }
        }
    }

    /// More of a block, which is opened if another one is or none.
    fn more(&mut self, block: Block, text: &str, counted: bool) -> Vec<Frame> {
        self.tokens += u64::from(counted);
        if text.is_empty() {
            return Vec::new();
        }
        let (empty, delta) = match block {
            Block::Text => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text})),
            Block::Thinking => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
        };
        let mut frames = Vec::new();
        if self.open != Some(block) {
            frames.extend(self.close());
            frames.push(self.start(empty));
            self.open = Some(block);
        }
        frames.push(self.delta(delta).id(self.tokens));
        frames
    }

    fn write(&mut self, piece: Piece) -> Vec<Frame> {
        match piece {
            Piece::Token { text, counted, .. } => self.more(Block::Text, &text, counted),
            Piece::Reasoning { text, counted, .. } => self.more(Block::Thinking, &text, counted),
            Piece::Call { id, name } => {
                let mut frames = self.close();
                frames.push(self.start(tool_use(&id, &name, json!({}))).id(self.tokens));
                frames
            }
            Piece::Arguments(more) => {
                vec![self.delta(json!({"type": "input_json_delta", "partial_json": more})).id(self.tokens)]
            }
            Piece::CallEnd => vec![self.stop()],
            Piece::Prompt(_) | Piece::Failover { .. } => Vec::new(),
            Piece::Done(ending) => {
                let Ending { done, ended, plan, .. } = *ending;
                let mut frames = self.close();
                let delta = json!({
                    "stop_reason": stop_reason(ended, done.stop.as_deref()), "stop_sequence": done.stop,
                });
                frames.push(Frame::event(
                    "message_delta",
                    json!({
                        "type": "message_delta", "delta": delta, "usage": usage(&done.usage),
                        "shoal": answer::badge(&plan, Some(&done.report)),
                    }),
                ));
                frames.push(Frame::event("message_stop", json!({"type": "message_stop"})));
                frames
            }
            Piece::Failed(failure) => vec![Frame::event("error", ApiError::from(failure).anthropic())],
        }
    }
}
