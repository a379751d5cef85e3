//! `POST /api/chat`.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use serde_json::{Value, json};

use super::{common, ending, extend, format, thinking};
use crate::{
    App,
    answer::{self, Answer, Ending, Piece},
    body::JsonBody,
    calls::ToolCall,
    error::ApiError,
    fields::Fields,
    inference::Prompt,
    left_out::LeftOut,
    openai::messages,
    prefill,
    sse::{self, Frame, Wire},
    timestamp::timestamp,
    tools::Offer,
};

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let started = Instant::now();
    let fields = Fields::new(&body)?;
    let offer = Offer::openai(&fields)?;
    for (i, message) in
        fields.list("messages", messages::MAX_MESSAGES)?.unwrap_or_default().iter().enumerate()
    {
        let message = Fields::at(message, format!("messages[{i}]"))?;
        if message.list("images", 64)?.is_some_and(|images| !images.is_empty()) {
            return Err(message.refuse("images", "are not supported: the models here read text"));
        }
    }
    let mut extra = thinking(&fields)?;
    let mut left = LeftOut::default();
    let mut messages = messages::read(&fields, &mut left)?;
    prefill::without_empty_end(&mut messages);
    if prefill::is_begun(&messages) {
        prefill::go_on(&mut extra, &format(&fields)?, &offer)?;
    }
    let prompt = Prompt::Messages { messages, tools: offer.tools.clone(), extra };
    let request = common(&app, &fields, &headers, prompt)?;
    offer.tell(&request.format, &mut left);
    let streams = fields.bool("stream")?.unwrap_or(true);
    let answer = answer::begin(&app, request, &offer, 1).await?;
    let base = json!({"model": answer.plan.model, "created_at": timestamp(answer.created_s)});
    if !streams {
        let id = answer.id.clone();
        let (plan, mut wholes) = answer.collect().await?;
        let whole = wholes.pop().unwrap_or_default();
        let mut line = base;
        line["message"] = message(&whole.text, &whole.calls);
        if !whole.reasoning.is_empty() {
            line["message"]["thinking"] = whole.reasoning.into();
        }
        if let Some(ended) = whole.ended {
            extend(&mut line, ending(ended, &whole.usage, &whole.report, started.elapsed()));
        }
        let mut headers = answer::headers(&id, &plan, Some(&whole.report));
        left.tell(&mut headers);
        return Ok((headers, Json(line)).into_response());
    }
    let Answer { id, plan, pieces, .. } = answer;
    let mut headers = answer::headers(&id, &plan, None);
    left.tell(&mut headers);
    // Ollama's clients take calls as a whole.
    let mut open: Option<ToolCall> = None;
    let frames = pieces.map(move |(_, piece)| {
        let line = |message: Value| {
            let mut line = base.clone();
            line["message"] = message;
            line["done"] = false.into();
            line
        };
        match piece {
            Piece::Token { text, .. } if !text.is_empty() => vec![Frame::data(line(message(&text, &[])))],
            Piece::Reasoning { text, .. } if !text.is_empty() => {
                let mut message = message("", &[]);
                message["thinking"] = text.into();
                vec![Frame::data(line(message))]
            }
            Piece::Call { id, name } => {
                open = Some(ToolCall { id, name, arguments: String::new() });
                Vec::new()
            }
            Piece::Arguments(more) => {
                open.iter_mut().for_each(|call| call.arguments.push_str(&more));
                Vec::new()
            }
            Piece::CallEnd => {
                open.take().map(|call| Frame::data(line(message("", &[call])))).into_iter().collect()
            }
            Piece::Token { .. } | Piece::Reasoning { .. } | Piece::Prompt(_) | Piece::Failover { .. } => {
                Vec::new()
            }
            Piece::Done(end) => {
                let Ending { done, ended, .. } = *end;
                let mut last = line(message("", &[]));
                extend(&mut last, ending(ended, &done.usage, &done.report, started.elapsed()));
                vec![Frame::data(last)]
            }
            Piece::Failed(failure) => vec![Frame::data(ApiError::from(failure).ollama())],
        }
    });
    Ok((headers, sse::respond(frames, Wire::Lines, None)).into_response())
}

/// Arguments are objects here, not strings.
fn message(text: &str, calls: &[ToolCall]) -> Value {
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        let call = |call: &ToolCall| json!({"function": {"name": call.name, "arguments": call.object()}});
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    message
}
