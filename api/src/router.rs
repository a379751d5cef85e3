//! Every route on one screen.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    middleware::{from_fn, from_fn_with_state},
    routing::{delete, get, post},
};
use serde_json::{Value, json};

use crate::{
    App, anthropic, conversation_routes, error, guard, library, metrics, ollama, openai, openapi,
    swarm_routes, web,
};

/// The router over `app`.
pub(crate) fn router(app: Arc<App>) -> Router {
    let open = web::routes()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/session", post(guard::session));
    let closed = Router::new()
        .route("/v1/chat/completions", post(openai::chat::post))
        .route("/v1/completions", post(openai::completions::post))
        .route("/v1/responses", post(openai::responses::post))
        .route("/v1/embeddings", post(openai::embeddings::post))
        .route("/v1/rerank", post(openai::rerank::post))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{model}", get(openai::models::get))
        .route("/v1/messages", post(anthropic::messages::post))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count))
        .route("/api/generate", post(ollama::generate::post))
        .route("/api/chat", post(ollama::chat::post))
        .route("/api/embed", post(ollama::embed::post))
        .route("/api/embeddings", post(ollama::embed::one))
        .route("/api/pull", post(ollama::pull::post))
        .route("/api/tags", get(ollama::tags::get))
        .route("/api/ps", get(ollama::ps::get))
        .route("/api/show", post(ollama::show::post))
        .route("/api/version", get(ollama::version::get))
        .route("/swarm", get(swarm_routes::snapshot))
        .route("/swarm/events", get(swarm_routes::events))
        .route("/swarm/contribution", post(swarm_routes::contribute))
        .route("/swarm/consent", post(swarm_routes::agree))
        .route("/swarm/names", post(swarm_routes::name))
        .route("/swarm/history", get(swarm_routes::history))
        .route("/swarm/answers", get(swarm_routes::answers))
        .route("/swarm/invite", get(swarm_routes::invite))
        .route("/conversations", get(conversation_routes::list))
        .route("/conversations/search", post(conversation_routes::search))
        .route(
            "/conversations/{conversation}",
            get(conversation_routes::read)
                .post(conversation_routes::change)
                .delete(conversation_routes::remove),
        )
        .route("/presets", get(conversation_routes::presets).post(conversation_routes::keep_presets))
        .route("/library", get(library::list))
        .route("/library/search", post(library::search))
        .route("/library/pull", post(library::pull))
        .route("/library/{model}", delete(library::remove))
        .route("/openapi.json", get(openapi::get))
        .route("/metrics", get(metrics::get))
        .route_layer(from_fn_with_state(app.clone(), guard::access));
    open.merge(closed)
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(from_fn_with_state(app.clone(), guard::places))
        .layer(from_fn_with_state(app.clone(), metrics::count))
        .layer(from_fn(error::dialect))
        .layer(from_fn(web::secure))
        .with_state(app)
}

/// `GET /readyz`: 200 when prompts can be answered, else 503, for load balancers. The reason may name files of this machine and
/// goes to the log: who asks here has no token.
async fn readiness(State(app): State<Arc<App>>) -> Result<Json<Value>, error::ApiError> {
    if let Err(failure) = app.inference.ready() {
        tracing::info!(%failure, "not ready");
        let why = "this node cannot answer now; `shoal status` says why";
        return Err(error::ApiError::new(error::Kind::Unavailable, why));
    }
    Ok(Json(json!({"ready": true})))
}

/// `GET /healthz`: that the program lives, and whether it can answer. Says nothing that needs a token.
async fn health(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"status": "alive", "ready": app.inference.ready().is_ok()}))
}
