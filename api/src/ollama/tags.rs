//! `GET /api/tags`: the models that can be asked for.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::details;
use crate::{App, inference::ModelInfo, timestamp::timestamp};

pub(crate) async fn get(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Value = app.listed().iter().map(|(name, info)| entry(name, info)).collect();
    Json(json!({"models": models}))
}

/// What lists say of a model.
pub(super) fn entry(name: &str, info: &ModelInfo) -> Value {
    let name = if name.contains(':') { name.to_owned() } else { format!("{name}:latest") };
    json!({
        "name": name,
        "model": name,
        "modified_at": timestamp(info.created_s),
        "size": info.file_bytes,
        // Its own command cuts twelve digits off without a look: of what was not hashed they are zeros.
        "digest": info.hash.clone().unwrap_or_else(|| "0".repeat(64)),
        "details": details(info),
    })
}
