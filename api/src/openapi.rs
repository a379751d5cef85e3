//! `GET /openapi.json`: every route, what it takes and what it answers.
//!
//! Requests are read field by field (`fields.rs`), so there are no request structs to derive this from; the table below is
//! the description, and tests hold it against the router: every route is described, every described route exists, and
//! what the examples send is taken. A fuzzer reads it, too:
//!
//! ```text
//! schemathesis run http://127.0.0.1:8080/openapi.json -H "Authorization: Bearer $TOKEN" --exclude-path /swarm/events \
//!     --exclude-checks positive_data_acceptance
//! ```
//!
//! `tests/integration/clients.rs` runs it with a fixed seed against a real server. The stream of the swarm has no end, and what a request may not say because of another field or of the model is refused
//! though its fields alone are right.

mod answers;
mod schemas;

use axum::Json;
use serde_json::{Map, Value, json};

use crate::swarm_records::MAX_DAYS;

/// A route: method, path, tag, summary, name of the request's schema (empty for none), whether it needs the token.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, bool);

pub(crate) const ROUTES: &[Row] = &[
    ("post", "/v1/chat/completions", "openai", "Continue a conversation", "Chat", true),
    ("post", "/v1/completions", "openai", "Continue a text", "Completion", true),
    ("post", "/v1/responses", "openai", "Answer, in items", "Responses", true),
    ("post", "/v1/embeddings", "openai", "Texts to vectors", "Embeddings", true),
    ("post", "/v1/rerank", "openai", "Documents by how well they answer a query", "Rerank", true),
    ("get", "/v1/models", "openai", "The models that can be asked", "", true),
    ("get", "/v1/models/{model}", "openai", "One model", "", true),
    ("post", "/v1/messages", "anthropic", "Continue a conversation", "Messages", true),
    (
        "post",
        "/v1/messages/count_tokens",
        "anthropic",
        "How many tokens a conversation has",
        "CountTokens",
        true,
    ),
    ("post", "/api/generate", "ollama", "Answer a prompt", "OllamaGenerate", true),
    ("post", "/api/chat", "ollama", "Continue a conversation", "OllamaChat", true),
    ("post", "/api/embed", "ollama", "Texts to vectors", "OllamaEmbed", true),
    ("post", "/api/embeddings", "ollama", "A text to a vector, the older form", "OllamaEmbeddings", true),
    ("post", "/api/pull", "ollama", "Whether a model can be asked; none is fetched", "OllamaPull", true),
    ("get", "/api/tags", "ollama", "The models that can be asked", "", true),
    ("get", "/api/ps", "ollama", "The models that are loaded", "", true),
    ("post", "/api/show", "ollama", "One model", "OllamaShow", true),
    ("get", "/api/version", "ollama", "The version of Ollama whose requests are understood", "", true),
    ("get", "/swarm", "swarm", "What this node believes of the swarm", "", true),
    ("get", "/swarm/events", "swarm", "The same, then changes, as server-sent events", "", true),
    ("post", "/swarm/contribution", "swarm", "Change caps, pause, resume", "Contribution", true),
    (
        "post",
        "/swarm/consent",
        "swarm",
        "Agree that strangers compute prompts, or take it back",
        "Consent",
        true,
    ),
    ("post", "/swarm/names", "swarm", "Call a node something, or forget what it is called", "NodeName", true),
    ("get", "/swarm/history", "swarm", "How it went in the last days", "", true),
    ("get", "/swarm/answers", "swarm", "The last answers and what happened to each, step by step", "", true),
    ("get", "/swarm/invite", "swarm", "A code for a friend, as text and as a QR code", "", true),
    ("get", "/conversations", "page", "The conversations that are kept here", "", true),
    ("post", "/conversations/search", "page", "Conversations that have all these words", "Words", true),
    ("get", "/conversations/{conversation}", "page", "One conversation", "", true),
    ("post", "/conversations/{conversation}", "page", "Begin or change one", "ConversationChange", true),
    ("delete", "/conversations/{conversation}", "page", "Delete one, its bytes included", "", true),
    ("get", "/presets", "page", "System prompts and settings with names", "", true),
    ("post", "/presets", "page", "Keep these and no others", "Presets", true),
    ("get", "/library", "page", "The models on this machine", "", true),
    ("post", "/library/search", "page", "Models that catalogs name", "Words", true),
    (
        "post",
        "/library/pull",
        "page",
        "Fetch a model that a catalog names, telling how it goes",
        "Pull",
        true,
    ),
    ("delete", "/library/{model}", "page", "Remove a model from this machine", "", true),
    ("get", "/openapi.json", "node", "This document", "", true),
    ("get", "/metrics", "node", "Counters in Prometheus' format", "", true),
    ("get", "/healthz", "node", "That the node lives", "", false),
    ("get", "/readyz", "node", "That prompts can be answered; 503 that they cannot", "", false),
    ("post", "/session", "node", "A ticket for a token, once", "Session", false),
];

pub(crate) async fn get() -> Json<Value> {
    Json(document())
}

pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for row in ROUTES {
        let entry = paths.entry(row.1).or_insert_with(|| json!({}));
        entry[row.0] = operation(row);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI-, Anthropic- and Ollama-compatible API of a Shoal node. Unknown fields are ignored, but those that would change the answer are refused by name. Answers carry `x-shoal-*` headers: mode, verify, route, seed, predicted and actual tok/s, who computed and who checked.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": all_schemas(),
            "responses": {
                "Refused": refused("Error"),
                "RefusedAnthropic": refused("AnthropicError"),
                "RefusedOllama": refused("OllamaError"),
            },
        },
    })
}

/// Of requests and of answers.
fn all_schemas() -> Map<String, Value> {
    let mut all = schemas::requests();
    all.extend(answers::schemas());
    all
}

fn refused(schema: &str) -> Value {
    json!({
        "description": "Refused; the error names the field to blame. Busy and unavailable answers carry Retry-After.",
        "content": {"application/json": {"schema": reference(schema)}},
    })
}

/// A schema by its name.
fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn operation((method, path, tag, summary, schema, closed): &Row) -> Value {
    let id: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let refused = match *tag {
        "anthropic" => "RefusedAnthropic",
        "ollama" => "RefusedOllama",
        _ => "Refused",
    };
    let mut operation = json!({
        "operationId": format!("{method}{id}"),
        "tags": [tag],
        "summary": summary,
        "responses": {
            "200": {"description": "Done", "content": answers::content(method, path)},
            "default": {"$ref": format!("#/components/responses/{refused}")},
        },
    });
    if *closed {
        operation["security"] = json!([{"token": []}, {"key": []}]);
    }
    let mut parameters = Vec::new();
    if path.contains("{model}") {
        parameters
            .push(json!({"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}));
    }
    if path.contains("{conversation}") {
        let hex = json!({"type": "string", "pattern": "^[0-9a-f]{32}$"});
        parameters.push(json!({"name": "conversation", "in": "path", "required": true, "schema": hex}));
    }
    if *path == "/swarm/history" {
        let days = json!({"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": 1});
        parameters.push(json!({"name": "days", "in": "query", "required": false, "schema": days}));
    }
    if !schema.is_empty() {
        operation["requestBody"] = json!({
            "required": true, "content": {"application/json": {"schema": reference(schema)}},
        });
        let header = |name: &str, text: &str, schema: Value| json!({"name": name, "in": "header", "required": false, "description": text, "schema": schema});
        if answers::is_of_a_prompt(path) {
            parameters.push(header(
                "x-shoal-consent",
                "Agree for this request that strangers compute it, whatever the node's owner said",
                json!({"type": "string", "enum": ["once"]}),
            ));
        }
        if takes_last_event_id(path) {
            parameters.push(header(
                "Last-Event-ID",
                "Leave out the tokens up to this number; needs a seed",
                json!({"type": "integer", "minimum": 0}),
            ));
        }
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// Whether an answer's stream can be taken up again where it broke off.
fn takes_last_event_id(path: &str) -> bool {
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"].contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fields::Fields,
        unread::{Route, check},
    };

    #[test]
    fn the_document_is_openapi_and_its_references_lead_somewhere() {
        let document = document();
        for (name, schema) in all_schemas() {
            let read = serde_json::from_value::<utoipa::openapi::RefOr<utoipa::openapi::Schema>>(schema);
            assert!(read.is_ok(), "{name}: {:?}", read.err());
        }
        let parsed: utoipa::openapi::OpenApi = serde_json::from_value(document.clone()).unwrap();
        let described: usize =
            ROUTES.iter().map(|row| row.1).collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(parsed.paths.paths.len(), described);
        let whole = document.to_string();
        for part in whole.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    /// A row for a field that is read would refuse what works.
    #[test]
    fn no_row_is_about_a_field_that_is_read() {
        let document = document();
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
