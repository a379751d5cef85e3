//! `GET /api/ps`: the models that are loaded here, which stay so.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::tags;
use crate::{App, inference::ModelInfo};

pub(crate) async fn get(State(app): State<Arc<App>>) -> Json<Value> {
    let models = app.inference.models();
    // Of one that only others hold nothing is known but its name.
    let models: Value = models.iter().filter(|info| info.hidden > 0).map(entry).collect();
    Json(json!({"models": models}))
}

fn entry(info: &ModelInfo) -> Value {
    let mut entry = tags::entry(&info.name, info);
    // What Ollama says of a model that is kept until the server ends.
    entry["expires_at"] = json!("2318-01-01T00:00:00Z");
    entry["size_vram"] = json!(0);
    entry["context_length"] = json!(info.context);
    entry
}
