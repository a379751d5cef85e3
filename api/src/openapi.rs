//! `GET /openapi.json`: every route, what it takes and what it answers.
//!
//! Requests are read field by field (`fields.rs`), so there are no request structs to derive this from; the router's table
//! names the schemas, which the modules below write down by dialect, and tests hold that what the examples send is taken. A fuzzer reads it, too:
//!
//! ```text
//! schemathesis run http://127.0.0.1:8080/openapi.json -H "Authorization: Bearer $TOKEN" --exclude-path /swarm/events \
//!     --exclude-checks positive_data_acceptance
//! ```
//!
//! `tests/integration/clients.rs` runs it with a fixed seed against a real server. The stream of the swarm has no end, and what a request may not say because of another field or of the model is refused
//! though its fields alone are right.

mod anthropic;
mod node;
mod ollama;
mod openai;
mod page;
mod schema;
mod swarm;
mod terms;

use serde_json::{Map, Value, json};

use crate::{
    endpoint::{Answer, Endpoint},
    swarm_records::MAX_DAYS,
};
use schema::{object, reference, text};

/// The document over `endpoints`.
pub(crate) fn document(endpoints: &[Endpoint]) -> Value {
    let mut paths = Map::new();
    for endpoint in endpoints {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        entry[endpoint.method] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI-, Anthropic- and Ollama-compatible API of a Shoal node. Unknown fields are ignored, but those that would change the answer are refused by name. Tools that only a vendor's servers run, and images, are left out and listed in the header x-shoal-left-out. Answers carry `x-shoal-*` headers: mode, verify, route, seed, predicted and actual tok/s, who computed and who checked.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": schemas(),
            "responses": {
                "Refused": refused("Error"),
                "RefusedAnthropic": refused("AnthropicError"),
                "RefusedOllama": refused("OllamaError"),
            },
        },
    })
}

/// Every schema by its name.
pub(crate) fn schemas() -> Map<String, Value> {
    let groups = [
        openai::schemas(),
        anthropic::schemas(),
        ollama::schemas(),
        swarm::schemas(),
        page::schemas(),
        node::schemas(),
    ];
    groups.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn refused(schema: &str) -> Value {
    json!({
        "description": "Refused; the error names the field to blame. Busy and unavailable answers carry Retry-After.",
        "content": {"application/json": {"schema": reference(schema)}},
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let Endpoint { method, path, tag, summary, takes, answer, is_open, .. } = endpoint;
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
            "200": {"description": "Done", "content": content(answer)},
            "default": {"$ref": format!("#/components/responses/{refused}")},
        },
    });
    if answer.is_of_a_prompt() {
        operation["responses"]["200"]["headers"] = json!({"x-shoal-left-out": {
            "description": "Parts of the request that were taken and have no effect, such as tools.web_search or images",
            "required": false, "schema": {"type": "string"},
        }});
    }
    if !is_open {
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
    if path.contains("{response}") {
        let name = json!({"type": "string", "pattern": "^resp_[0-9a-f]{24}$"});
        parameters.push(json!({"name": "response", "in": "path", "required": true, "schema": name}));
    }
    if path.ends_with("/input_items") {
        let some = |name: &str, schema: Value| json!({"name": name, "in": "query", "required": false, "schema": schema});
        parameters
            .push(some("limit", json!({"type": "integer", "minimum": 1, "maximum": 100, "default": 20})));
        parameters.push(some("order", json!({"type": "string", "enum": ["asc", "desc"], "default": "desc"})));
        parameters.push(some("after", text()));
    }
    if *path == "/swarm/history" {
        let days = json!({"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": 1});
        parameters.push(json!({"name": "days", "in": "query", "required": false, "schema": days}));
    }
    if !takes.is_empty() {
        operation["requestBody"] = json!({
            "required": true, "content": {"application/json": {"schema": reference(takes)}},
        });
        let header = |name: &str, text: &str, schema: Value| json!({"name": name, "in": "header", "required": false, "description": text, "schema": schema});
        if answer.is_of_a_prompt() {
            parameters.push(header(
                "x-shoal-consent",
                "Agree for this request that strangers compute it, whatever the node's owner said",
                json!({"type": "string", "enum": ["once"]}),
            ));
        }
        if matches!(answer, Answer::Events(_)) {
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

/// The content types of an answer with their schemas.
fn content(answer: &Answer) -> Value {
    let mut content = Map::new();
    if let Some(name) = answer.whole() {
        content.insert("application/json".into(), json!({"schema": reference(name)}));
    }
    // A stream of lines as a whole is text; of events one is described. Lines and what events carry are JSON.
    let plain = || json!({"schema": text()});
    match answer {
        Answer::Events(_) | Answer::Stream => {
            let event = object(1, &[("data", text()), ("event", text()), ("id", text())]);
            content.insert("text/event-stream".into(), json!({"schema": event}));
        }
        Answer::Lines(_) | Answer::Progress(_) => {
            content.insert("application/x-ndjson".into(), plain());
        }
        Answer::Text => {
            content.insert("text/plain".into(), plain());
        }
        Answer::Json(_) => {}
    }
    content.into()
}
