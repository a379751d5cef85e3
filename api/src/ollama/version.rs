//! `GET /api/version`.

use axum::Json;
use serde_json::{Value, json};

/// Clients compare this with the versions of Ollama that brought a feature: the one whose requests are understood here.
const UNDERSTANDS: &str = "0.12.0";

pub(crate) async fn get() -> Json<Value> {
    Json(json!({"version": UNDERSTANDS, "shoal": env!("CARGO_PKG_VERSION")}))
}
