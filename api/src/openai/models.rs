//! `GET /v1/models` and `GET /v1/models/{model}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use crate::{App, error::ApiError, inference::ModelInfo};

fn model(info: &ModelInfo) -> Value {
    json!({
        "id": info.name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "shoal",
        "shoal": info,
    })
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Value = app.inference.models().iter().map(model).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(model(&app.know(Some(&name))?)))
}
