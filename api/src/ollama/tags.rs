//! `GET /api/tags`: the models that can be asked for.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::{details, timestamp};
use crate::App;

pub(crate) async fn get(State(app): State<Arc<App>>) -> Json<Value> {
    let models = app.inference.models();
    let models: Value = models
        .iter()
        .map(|info| {
            let name =
                if info.name.contains(':') { info.name.clone() } else { format!("{}:latest", info.name) };
            json!({
                "name": name,
                "model": name,
                "modified_at": timestamp(info.created_s),
                "size": info.file_bytes,
                "digest": info.hash.clone().unwrap_or_default(),
                "details": details(info),
            })
        })
        .collect();
    Json(json!({"models": models}))
}
