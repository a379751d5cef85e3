//! `GET /v1/models` and `GET /v1/models/{model}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use crate::{App, error::ApiError, inference::ModelInfo};

/// A model under one of its names.
fn model(name: &str, info: &ModelInfo) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "shoal",
        "shoal": info,
    })
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Value = app.listed().iter().map(|(name, info)| model(name, info)).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(model(&name, &app.know(Some(&name))?)))
}
