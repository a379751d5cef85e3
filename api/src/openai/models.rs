//! `GET /v1/models` and `GET /v1/models/{model}`: what OpenAI's clients read and what Anthropic's read, in one object.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use crate::{App, error::ApiError, inference::ModelInfo, timestamp::timestamp};

/// A model under one of its names.
fn model(name: &str, info: &ModelInfo) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "shoal",
        "type": "model",
        "display_name": name,
        "created_at": timestamp(info.created_s),
        "shoal": info,
    })
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.listed().iter().map(|(name, info)| model(name, info)).collect();
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    let (first, last) = (id(models.first()), id(models.last()));
    Json(json!({"object": "list", "data": models, "has_more": false, "first_id": first, "last_id": last}))
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(model(&name, &app.know(Some(&name))?)))
}
