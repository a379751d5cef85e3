//! Every endpoint in one table.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    middleware::{from_fn, from_fn_with_state},
    routing::{delete, get, post},
};
use serde_json::{Value, json};

use crate::{
    App, anthropic, conversation_routes,
    endpoint::{Answer, Endpoint},
    error, guard, library, metrics, ollama, openai, openapi, swarm_routes, web,
};

/// Every endpoint; the page's own files come beside them.
static ENDPOINTS: &[Endpoint] = &[
    Endpoint::post(
        "/v1/chat/completions",
        "openai",
        "Continue a conversation",
        "Chat",
        Answer::Events("ChatAnswer"),
        || post(openai::chat::post),
    ),
    Endpoint::post(
        "/v1/completions",
        "openai",
        "Continue a text",
        "Completion",
        Answer::Events("CompletionAnswer"),
        || post(openai::completions::post),
    ),
    Endpoint::post(
        "/v1/responses",
        "openai",
        "Answer, in items",
        "Responses",
        Answer::Events("ResponsesAnswer"),
        || post(openai::responses::post),
    ),
    Endpoint::get(
        "/v1/responses/{response}",
        "openai",
        "One that is stored",
        Answer::Json("ResponsesAnswer"),
        || get(openai::responses::get),
    ),
    Endpoint::delete(
        "/v1/responses/{response}",
        "openai",
        "Delete one, its bytes included",
        Answer::Json("ResponseDeleted"),
        || delete(openai::responses::delete),
    ),
    Endpoint::get(
        "/v1/responses/{response}/input_items",
        "openai",
        "What its model was given, the turns before it included",
        Answer::Json("ResponseItems"),
        || get(openai::responses::input_items),
    ),
    Endpoint::post(
        "/v1/embeddings",
        "openai",
        "Texts to vectors",
        "Embeddings",
        Answer::Json("EmbeddingsAnswer"),
        || post(openai::embeddings::post),
    ),
    Endpoint::post(
        "/v1/rerank",
        "openai",
        "Documents by how well they answer a query",
        "Rerank",
        Answer::Json("RerankAnswer"),
        || post(openai::rerank::post),
    ),
    Endpoint::get("/v1/models", "openai", "The models that can be asked", Answer::Json("Models"), || {
        get(openai::models::list)
    }),
    Endpoint::get("/v1/models/{model}", "openai", "One model", Answer::Json("Model"), || {
        get(openai::models::get)
    }),
    Endpoint::post(
        "/v1/messages",
        "anthropic",
        "Continue a conversation",
        "Messages",
        Answer::Events("MessagesAnswer"),
        || post(anthropic::messages::post),
    ),
    Endpoint::post(
        "/v1/messages/count_tokens",
        "anthropic",
        "How many tokens a conversation has",
        "CountTokens",
        Answer::Json("TokenCount"),
        || post(anthropic::messages::count),
    ),
    Endpoint::post(
        "/api/generate",
        "ollama",
        "Answer a prompt",
        "OllamaGenerate",
        Answer::Lines("OllamaGenerateAnswer"),
        || post(ollama::generate::post),
    ),
    Endpoint::post(
        "/api/chat",
        "ollama",
        "Continue a conversation",
        "OllamaChat",
        Answer::Lines("OllamaChatAnswer"),
        || post(ollama::chat::post),
    ),
    Endpoint::post(
        "/api/embed",
        "ollama",
        "Texts to vectors",
        "OllamaEmbed",
        Answer::Json("OllamaEmbedAnswer"),
        || post(ollama::embed::post),
    ),
    Endpoint::post(
        "/api/embeddings",
        "ollama",
        "A text to a vector, the older form",
        "OllamaEmbeddings",
        Answer::Json("OllamaEmbeddingsAnswer"),
        || post(ollama::embed::one),
    ),
    Endpoint::post(
        "/api/pull",
        "ollama",
        "Whether a model can be asked; none is fetched",
        "OllamaPull",
        Answer::Progress("OllamaPulled"),
        || post(ollama::pull::post),
    ),
    Endpoint::get("/api/tags", "ollama", "The models that can be asked", Answer::Json("OllamaTags"), || {
        get(ollama::tags::get)
    }),
    Endpoint::get("/api/ps", "ollama", "The models that are loaded", Answer::Json("OllamaTags"), || {
        get(ollama::ps::get)
    }),
    Endpoint::post(
        "/api/show",
        "ollama",
        "One model",
        "OllamaShow",
        Answer::Json("OllamaShowAnswer"),
        || post(ollama::show::post),
    ),
    Endpoint::get(
        "/api/version",
        "ollama",
        "The version of Ollama whose requests are understood",
        Answer::Json("OllamaVersion"),
        || get(ollama::version::get),
    ),
    Endpoint::get("/swarm", "swarm", "What this node believes of the swarm", Answer::Json("Swarm"), || {
        get(swarm_routes::snapshot)
    }),
    Endpoint::get(
        "/swarm/events",
        "swarm",
        "The same, then changes, as server-sent events",
        Answer::Stream,
        || get(swarm_routes::events),
    ),
    Endpoint::post(
        "/swarm/contribution",
        "swarm",
        "Change caps, pause, resume",
        "Contribution",
        Answer::Json("ContributionAnswer"),
        || post(swarm_routes::contribute),
    ),
    Endpoint::post(
        "/swarm/consent",
        "swarm",
        "Agree that strangers compute prompts, or take it back",
        "Consent",
        Answer::Json("ConsentAnswer"),
        || post(swarm_routes::agree),
    ),
    Endpoint::post(
        "/swarm/names",
        "swarm",
        "Call a node something, or forget what it is called",
        "NodeName",
        Answer::Json("NodeName"),
        || post(swarm_routes::name),
    ),
    Endpoint::get(
        "/swarm/history",
        "swarm",
        "How it went in the last days",
        Answer::Json("SwarmHistory"),
        || get(swarm_routes::history),
    ),
    Endpoint::get(
        "/swarm/answers",
        "swarm",
        "The last answers and what happened to each, step by step",
        Answer::Json("SwarmAnswers"),
        || get(swarm_routes::answers),
    ),
    Endpoint::get(
        "/swarm/invite",
        "swarm",
        "A code for a friend, as text and as a QR code",
        Answer::Json("SwarmInvite"),
        || get(swarm_routes::invite),
    ),
    Endpoint::get(
        "/conversations",
        "page",
        "The conversations that are kept here",
        Answer::Json("Conversations"),
        || get(conversation_routes::list),
    ),
    Endpoint::post(
        "/conversations/search",
        "page",
        "Conversations that have all these words",
        "Words",
        Answer::Json("ConversationsFound"),
        || post(conversation_routes::search),
    ),
    Endpoint::get(
        "/conversations/{conversation}",
        "page",
        "One conversation",
        Answer::Json("Conversation"),
        || get(conversation_routes::read),
    ),
    Endpoint::post(
        "/conversations/{conversation}",
        "page",
        "Begin or change one",
        "ConversationChange",
        Answer::Json("ConversationSummary"),
        || post(conversation_routes::change),
    ),
    Endpoint::delete(
        "/conversations/{conversation}",
        "page",
        "Delete one, its bytes included",
        Answer::Json("Deleted"),
        || delete(conversation_routes::remove),
    ),
    Endpoint::get(
        "/presets",
        "page",
        "System prompts and settings with names",
        Answer::Json("Presets"),
        || get(conversation_routes::presets),
    ),
    Endpoint::post(
        "/presets",
        "page",
        "Keep these and no others",
        "Presets",
        Answer::Json("Presets"),
        || post(conversation_routes::keep_presets),
    ),
    Endpoint::get("/library", "page", "The models on this machine", Answer::Json("LibraryModels"), || {
        get(library::list)
    }),
    Endpoint::post(
        "/library/search",
        "page",
        "Models that catalogs name",
        "Words",
        Answer::Json("LibraryModels"),
        || post(library::search),
    ),
    Endpoint::post(
        "/library/pull",
        "page",
        "Fetch a model that a catalog names, telling how it goes",
        "Pull",
        Answer::Stream,
        || post(library::pull),
    ),
    Endpoint::delete(
        "/library/{model}",
        "page",
        "Remove a model from this machine",
        Answer::Json("Deleted"),
        || delete(library::remove),
    ),
    Endpoint::get("/openapi.json", "node", "This document", Answer::Json("Document"), || get(describe)),
    Endpoint::get("/metrics", "node", "Counters in Prometheus' format", Answer::Text, || get(metrics::get)),
    Endpoint::get("/healthz", "node", "That the node lives", Answer::Json("Health"), || get(health)).open(),
    Endpoint::get(
        "/readyz",
        "node",
        "That prompts can be answered; 503 that they cannot",
        Answer::Json("Ready"),
        || get(readiness),
    )
    .open(),
    Endpoint::post(
        "/session",
        "node",
        "A ticket for a token, once",
        "Session",
        Answer::Json("SessionAnswer"),
        || post(guard::session),
    )
    .open(),
];

/// The router over `app`.
pub(crate) fn router(app: Arc<App>) -> Router {
    let of = |open: bool| {
        let rows = ENDPOINTS.iter().filter(move |endpoint| endpoint.is_open == open);
        rows.fold(Router::new(), |router, endpoint| router.route(endpoint.path, (endpoint.handler)()))
    };
    let closed = of(false).route_layer(from_fn_with_state(app.clone(), guard::access));
    web::routes()
        .merge(of(true))
        .merge(closed)
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(from_fn_with_state(app.clone(), guard::places))
        .layer(from_fn_with_state(app.clone(), metrics::count))
        .layer(from_fn(error::dialect))
        .layer(from_fn(web::secure))
        .with_state(app)
}

/// `GET /openapi.json`.
async fn describe() -> Json<Value> {
    Json(openapi::document(ENDPOINTS))
}

/// `GET /readyz`: 200 when prompts can be answered, else 503, for load balancers. The reason may name files of this machine and
/// goes to the log: who asks here has no token.
async fn readiness(State(app): State<Arc<App>>) -> Result<Json<Value>, error::ApiError> {
    if let Err(failure) = app.inference.ready(None) {
        tracing::info!(%failure, "not ready");
        let why = "this node cannot answer now; `shoal status` says why";
        return Err(error::ApiError::new(error::Kind::Unavailable, why));
    }
    Ok(Json(json!({"ready": true})))
}

/// `GET /healthz`: that the program lives, and whether it can answer. Says nothing that needs a token.
async fn health(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"status": "alive", "ready": app.inference.ready(None).is_ok()}))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        fields::Fields,
        unread::{Route, check},
    };

    #[test]
    fn the_document_is_openapi_and_its_references_lead_somewhere() {
        let document = openapi::document(ENDPOINTS);
        for (name, schema) in openapi::schemas() {
            let read = serde_json::from_value::<utoipa::openapi::RefOr<utoipa::openapi::Schema>>(schema);
            assert!(read.is_ok(), "{name}: {:?}", read.err());
        }
        let parsed: utoipa::openapi::OpenApi = serde_json::from_value(document.clone()).unwrap();
        let paths: BTreeSet<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.path).collect();
        assert_eq!(parsed.paths.paths.len(), paths.len());
        let whole = document.to_string();
        for part in whole.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    /// A row for a field that is read would refuse what works.
    #[test]
    fn no_row_is_about_a_field_that_is_read() {
        let document = openapi::document(ENDPOINTS);
        for (route, schema) in [
            (Route::Chat, "Chat"),
            (Route::Completions, "Completion"),
            (Route::Responses, "Responses"),
            (Route::Messages, "Messages"),
            (Route::Ollama, "OllamaChat"),
            (Route::Ollama, "OllamaGenerate"),
        ] {
            let properties = &document["components"]["schemas"][schema]["properties"];
            for name in properties.as_object().unwrap().keys() {
                let body = json!({name: "asked"});
                assert!(check(&Fields::new(&body).unwrap(), route).is_ok(), "{schema}: {name}");
            }
        }
    }
}
