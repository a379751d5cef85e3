//! `POST /api/generate`: a prompt, put into the chat template unless `raw` says otherwise.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use serde_json::{Value, json};

use super::{common, ending, extend, thinking};
use crate::{
    App,
    answer::{self, Answer, Ending, Piece},
    body::JsonBody,
    error::ApiError,
    fields::Fields,
    inference::Prompt,
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
    if fields.list("images", 64)?.is_some_and(|images| !images.is_empty()) {
        return Err(fields.refuse("images", "are not supported: the models here read text"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.refuse("suffix", "is not supported: the models here only continue text"));
    }
    let text = fields.text("prompt")?.unwrap_or("");
    if text.is_empty() {
        return loaded(&app, &fields);
    }
    let prompt = if fields.bool("raw")?.unwrap_or(false) {
        Prompt::Text(text.to_owned())
    } else {
        let system = fields.text("system")?.map(|text| json!({"role": "system", "content": text}));
        let messages: Value = system.into_iter().chain([json!({"role": "user", "content": text})]).collect();
        Prompt::Messages { messages, tools: None, extra: thinking(&fields)? }
    };
    let request = common(&app, &fields, &headers, prompt)?;
    let streams = fields.bool("stream")?.unwrap_or(true);
    let answer = answer::begin(&app, request, &Offer::default(), 1).await?;
    let created = timestamp(answer.created_s);
    if !streams {
        let id = answer.id.clone();
        let (plan, mut wholes) = answer.collect().await?;
        let whole = wholes.pop().unwrap_or_default();
        let mut line = json!({"model": plan.model, "created_at": created, "response": whole.text});
        if !whole.reasoning.is_empty() {
            line["thinking"] = whole.reasoning.into();
        }
        if let Some(ended) = whole.ended {
            extend(&mut line, ending(ended, &whole.usage, &whole.report, started.elapsed()));
        }
        let headers = answer::headers(&id, &plan, Some(&whole.report));
        return Ok((headers, Json(line)).into_response());
    }
    let Answer { id, plan, pieces, .. } = answer;
    let headers = answer::headers(&id, &plan, None);
    let base = json!({"model": plan.model, "created_at": created});
    let frames = pieces.map(move |(_, piece)| {
        let line = |text: &str| {
            let mut line = base.clone();
            line["response"] = text.into();
            line["done"] = false.into();
            line
        };
        match piece {
            Piece::Token { text, .. } if !text.is_empty() => vec![Frame::data(line(&text))],
            Piece::Reasoning { text, .. } if !text.is_empty() => {
                let mut line = line("");
                line["thinking"] = text.into();
                vec![Frame::data(line)]
            }
            Piece::Done(end) => {
                let Ending { done, ended, .. } = *end;
                let mut last = line("");
                extend(&mut last, ending(ended, &done.usage, &done.report, started.elapsed()));
                vec![Frame::data(last)]
            }
            Piece::Failed(failure) => vec![Frame::data(ApiError::from(failure).ollama())],
            // No tools are offered here.
            _ => Vec::new(),
        }
    });
    Ok((headers, sse::respond(frames, Wire::Lines, None)).into_response())
}

/// Without a prompt, clients ask to load the model: it is.
fn loaded(app: &App, fields: &Fields<'_>) -> Result<Response, ApiError> {
    let model = super::model(app, fields)?;
    let line = json!({
        "model": model.name, "created_at": timestamp(model.created_s), "response": "",
        "done": true, "done_reason": "load",
    });
    Ok(Json(line).into_response())
}
