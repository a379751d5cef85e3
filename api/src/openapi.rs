//! `GET /openapi.json`: every route, what it takes and what it answers.
//!
//! Requests are read field by field (`fields.rs`), so there are no request structs to derive this from; the table below is
//! the description, and tests hold it against the router: every route is described, every described route exists, and
//! what the examples send is taken.

use axum::Json;
use serde_json::{Map, Value, json};

/// A route: method, path, tag, summary, name of the request's schema (empty for none), whether it needs the token.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, bool);

pub(crate) const ROUTES: &[Row] = &[
    ("post", "/v1/chat/completions", "openai", "Continue a conversation", "Chat", true),
    ("post", "/v1/completions", "openai", "Continue a text", "Completion", true),
    ("post", "/v1/responses", "openai", "Answer, in items", "Responses", true),
    ("post", "/v1/embeddings", "openai", "Texts to vectors", "Embeddings", true),
    ("get", "/v1/models", "openai", "The models that can be asked", "", true),
    ("get", "/v1/models/{model}", "openai", "One model", "", true),
    ("post", "/v1/messages", "anthropic", "Continue a conversation", "Messages", true),
    ("post", "/api/generate", "ollama", "Answer a prompt", "OllamaGenerate", true),
    ("post", "/api/chat", "ollama", "Continue a conversation", "OllamaChat", true),
    ("get", "/api/tags", "ollama", "The models that can be asked", "", true),
    ("post", "/api/show", "ollama", "One model", "OllamaShow", true),
    ("get", "/api/version", "ollama", "The version of Ollama whose requests are understood", "", true),
    ("get", "/swarm", "swarm", "What this node believes of the swarm", "", true),
    ("get", "/swarm/events", "swarm", "The same, then changes, as server-sent events", "", true),
    ("post", "/swarm/contribution", "swarm", "Change caps, pause, resume", "Contribution", true),
    ("get", "/openapi.json", "node", "This document", "", true),
    ("get", "/metrics", "node", "Counters in Prometheus' format", "", true),
    ("get", "/healthz", "node", "That the node lives", "", false),
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
            "description": "OpenAI-, Anthropic- and Ollama-compatible API of a Shoal node. Unknown fields are ignored. Answers carry `x-shoal-*` headers: mode, verify, route, seed, predicted and actual tok/s, who computed and who checked.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": schemas(),
            "responses": {"Refused": {
                "description": "Refused; the error names the field to blame. Busy and unavailable answers carry Retry-After. Anthropic's and Ollama's routes answer in their own shapes.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }},
        },
    })
}

fn operation((method, path, tag, summary, schema, closed): &Row) -> Value {
    let id: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut operation = json!({
        "operationId": format!("{method}{id}"),
        "tags": [tag],
        "summary": summary,
        "responses": {"200": {"description": "Done"}, "default": {"$ref": "#/components/responses/Refused"}},
    });
    if *closed {
        operation["security"] = json!([{"token": []}, {"key": []}]);
    }
    let mut parameters = Vec::new();
    if path.contains("{model}") {
        parameters
            .push(json!({"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}));
    }
    if !schema.is_empty() {
        let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
        operation["requestBody"] = json!({
            "required": true, "content": {"application/json": {"schema": reference}},
        });
        if *closed {
            let header = |name: &str, text: &str, schema: Value| json!({"name": name, "in": "header", "required": false, "description": text, "schema": schema});
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

/// An object with members given as `(name, schema)`, the first `required` of which must be there.
fn object(required: usize, members: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = members.iter().take(required).map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "required": names, "properties": properties})
}

fn number(low: f64, high: f64) -> Value {
    json!({"type": ["number", "null"], "minimum": low, "maximum": high})
}

fn integer(low: i64, high: i64) -> Value {
    json!({"type": ["integer", "null"], "minimum": low, "maximum": high})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": ["boolean", "null"]})
}

fn list(of: Value, most: usize) -> Value {
    json!({"type": ["array", "null"], "items": of, "maxItems": most})
}

fn words(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

/// What OpenAI's routes share.
fn sampling() -> Vec<(&'static str, Value)> {
    let stop = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 16}, {"type": "null"}]});
    vec![
        (
            "model",
            json!({"type": ["string", "null"], "description": "A name of GET /v1/models; the first one when absent"}),
        ),
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", integer(-1, 1 << 20)),
        ("min_p", number(0.0, 1.0)),
        ("typical_p", number(0.0, 1.0)),
        ("repetition_penalty", number(0.01, 100.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("frequency_penalty", number(-2.0, 2.0)),
        (
            "logit_bias",
            json!({"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}, "maxProperties": 1024}),
        ),
        (
            "seed",
            json!({"type": ["integer", "null"], "format": "int64", "description": "Equal seeds give equal answers, here and through the swarm"}),
        ),
        ("stop", stop),
        ("stream", flag()),
        ("mode", words(&["local", "trusted", "boomerang", "open"])),
        ("verify", words(&["none", "sample", "all"])),
    ]
}

fn with(required: &[(&'static str, Value)], more: &[(&'static str, Value)]) -> Value {
    let mut members = required.to_vec();
    members.extend(sampling());
    members.extend(more.iter().cloned());
    object(required.len(), &members)
}

fn schemas() -> Value {
    const TOKENS: i64 = crate::openai::MAX_TOKENS as i64;
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let messages = json!({"type": "array", "items": reference("Message"), "minItems": 1, "maxItems": 4096});
    let format = reference("Format");
    let tools = list(reference("Tool"), 128);
    let choice = json!({"anyOf": [words(&["none", "auto", "required"]), {"type": "object"}]});
    let prompt = json!({"anyOf": [text(), {"type": "array", "items": text(), "minItems": 1}, {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}, {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}, "minItems": 1}]});
    let options = json!({"type": "object", "description": "temperature, top_k, top_p, min_p, typical_p, repeat_penalty, presence_penalty, frequency_penalty, num_predict, seed, stop"});
    let ollama_format = json!({"anyOf": [words(&["json"]), {"type": "object"}]});
    let counts = [("stream_options", object(0, &[("include_usage", flag())])), ("n", integer(1, 4))];
    let mut chat = vec![
        ("max_tokens", integer(1, TOKENS)),
        ("max_completion_tokens", integer(1, TOKENS)),
        ("logprobs", flag()),
        ("top_logprobs", integer(0, 20)),
        ("response_format", format.clone()),
        ("tools", tools.clone()),
        ("tool_choice", choice.clone()),
    ];
    chat.extend(counts.clone());
    let mut completion = vec![
        ("max_tokens", integer(1, TOKENS)),
        ("logprobs", integer(0, 20)),
        ("response_format", format.clone()),
        ("echo", flag()),
    ];
    completion.extend(counts);
    json!({
        "Error": object(1, &[("error", object(4, &[
            ("message", text()),
            ("type", text()),
            ("param", json!({"type": ["string", "null"]})),
            ("code", json!({"type": ["string", "null"]})),
        ]))]),
        "Message": object(1, &[
            ("role", words(&["system", "developer", "user", "assistant", "tool"])),
            ("content", json!({"anyOf": [text(), {"type": "array", "items": {"type": "object"}}, {"type": "null"}]})),
            ("tool_calls", list(json!({"type": "object"}), 1024)),
            ("tool_call_id", text()),
        ]),
        "Tool": object(2, &[("type", words(&["function"])), ("function", object(1, &[
            ("name", json!({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"})),
            ("description", text()),
            ("parameters", json!({"type": "object"})),
        ]))]),
        "Format": object(1, &[
            ("type", words(&["text", "json_object", "json_schema", "grammar", "regex"])),
            ("json_schema", object(1, &[("schema", json!({"type": "object"})), ("name", text())])),
            ("grammar", text()),
            ("regex", text()),
        ]),
        "Chat": with(&[("messages", messages.clone())], &chat),
        "Completion": with(&[("prompt", prompt.clone())], &completion),
        "Responses": with(
            &[("input", json!({"anyOf": [text(), {"type": "array", "items": {"type": "object"}}]}))],
            &[
                ("instructions", json!({"type": ["string", "null"]})),
                ("max_output_tokens", integer(1, TOKENS)),
                ("top_logprobs", integer(0, 20)),
                ("text", object(0, &[("format", format)])),
                ("tools", list(json!({"type": "object"}), 128)),
                ("tool_choice", choice),
            ],
        ),
        "Embeddings": object(1, &[
            ("input", prompt),
            ("model", json!({"type": ["string", "null"]})),
            ("encoding_format", words(&["float", "base64"])),
            ("dimensions", integer(1, 1 << 20)),
        ]),
        "Messages": object(2, &[
            ("messages", messages.clone()),
            ("max_tokens", json!({"type": "integer", "minimum": 1, "maximum": TOKENS})),
            ("model", json!({"type": ["string", "null"]})),
            ("system", json!({"anyOf": [text(), {"type": "array", "items": {"type": "object"}}, {"type": "null"}]})),
            ("temperature", number(0.0, 2.0)),
            ("top_k", integer(0, 1 << 20)),
            ("top_p", number(0.0, 1.0)),
            ("stop_sequences", list(text(), 16)),
            ("seed", json!({"type": ["integer", "null"]})),
            ("stream", flag()),
            ("tools", list(json!({"type": "object"}), 128)),
            ("tool_choice", json!({"type": "object"})),
        ]),
        "OllamaGenerate": object(1, &[
            ("model", text()),
            ("prompt", text()),
            ("system", text()),
            ("raw", flag()),
            ("stream", flag()),
            ("format", ollama_format.clone()),
            ("options", options.clone()),
        ]),
        "OllamaChat": object(2, &[
            ("model", text()),
            ("messages", messages),
            ("tools", tools),
            ("stream", flag()),
            ("format", ollama_format),
            ("options", options),
        ]),
        "OllamaShow": object(1, &[("model", text())]),
        "Contribution": object(0, &[
            ("paused", flag()),
            ("memory_bytes", integer(0, 1 << 50)),
            ("threads", integer(1, 4096)),
            ("upload_bytes_per_s", integer(0, 1 << 50)),
        ]),
        "Session": object(1, &[("ticket", text())]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_openapi_and_its_references_lead_somewhere() {
        let document = document();
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
}
