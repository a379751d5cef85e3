//! `POST /api/show`: what a model is.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::details;
use crate::{App, body::JsonBody, error::ApiError, fields::Fields, timestamp::timestamp};

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let info = super::model(&app, &Fields::new(&body)?)?;
    let architecture = &info.architecture;
    let mut facts = serde_json::Map::new();
    facts.insert("general.architecture".into(), json!(architecture));
    facts.insert("general.parameter_count".into(), json!(info.parameters));
    facts.insert(format!("{architecture}.context_length"), json!(info.context));
    facts.insert(format!("{architecture}.embedding_length"), json!(info.hidden));
    facts.insert(format!("{architecture}.block_count"), json!(info.num_layers));
    let able = [("completion", true), ("tools", info.tools), ("embedding", info.embeddings)];
    let capabilities: Vec<&str> = able.iter().filter(|(_, able)| *able).map(|(name, _)| *name).collect();
    Ok(Json(json!({
        "modelfile": "",
        "parameters": "",
        "template": info.template,
        "details": details(&info),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": timestamp(info.created_s),
    })))
}
