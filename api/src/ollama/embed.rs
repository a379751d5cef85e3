//! `POST /api/embed`: texts to vectors, and `POST /api/embeddings`, its older form for one text.

use std::{sync::Arc, time::Instant};

use axum::{Json, extract::State, http::HeaderMap};
use serde_json::{Value, json};

use crate::{
    App,
    body::JsonBody,
    error::ApiError,
    fields::{Fields, required},
    inference::{EmbedRequest, Prompt},
    keys::{self, Account},
    openai::{self, embeddings::inputs},
};

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let began = Instant::now();
    let fields = Fields::new(&body)?;
    let model = super::model(&app, &fields)?;
    let inputs = inputs(&fields)?;
    // Ollama's clients count on long texts being cut.
    let truncate = fields.bool("truncate")?.unwrap_or(true);
    if let Some(asked) = fields.count("dimensions", 1, 1 << 20)?
        && asked != model.hidden
    {
        let why = format_args!("must be {}, the width of this model, or be left out", model.hidden);
        return Err(fields.refuse("dimensions", why));
    }
    let mode = openai::mode(&fields, &headers)?;
    keys::admit(app.keys.as_ref())?;
    let places = app.queue.enter(1)?;
    let account = Account::begin(app.keys.clone(), &model.name);
    let request = EmbedRequest { model: Some(model.name), inputs, truncate, mode };
    let embeddings = account.embedded(app.inference.embed(request).await)?;
    drop(places);
    Ok(Json(json!({
        "model": embeddings.model,
        "embeddings": embeddings.vectors,
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": embeddings.prompt_tokens,
    })))
}

/// The older form: `prompt` is one text, and the answer has its vector and nothing else.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let model = super::model(&app, &fields)?;
    let text = required(&fields, "prompt", fields.text("prompt")?)?;
    if text.is_empty() {
        return Err(fields.refuse("prompt", "must not be empty: it has no meaning to find"));
    }
    let inputs = vec![Prompt::Text(text.to_owned())];
    let mode = openai::mode(&fields, &headers)?;
    keys::admit(app.keys.as_ref())?;
    let places = app.queue.enter(1)?;
    let account = Account::begin(app.keys.clone(), &model.name);
    let request = EmbedRequest { model: Some(model.name), inputs, truncate: true, mode };
    let embeddings = account.embedded(app.inference.embed(request).await)?;
    drop(places);
    Ok(Json(json!({"embedding": embeddings.vectors.into_iter().next().unwrap_or_default()})))
}
