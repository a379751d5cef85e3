//! What answers look like: their content types, and the members that clients rely on. Further members may be there.

use serde_json::{Map, Value, json};

use super::{
    reference,
    schemas::{flag, integer, list, object, text, words},
};

/// Answers in one piece as JSON, by route, with the method where it matters, and the name of their schema.
const JSON: &[(&str, &str)] = &[
    ("/v1/chat/completions", "ChatAnswer"),
    ("/v1/completions", "CompletionAnswer"),
    ("/v1/responses", "ResponsesAnswer"),
    ("/v1/embeddings", "EmbeddingsAnswer"),
    ("/v1/rerank", "RerankAnswer"),
    ("/v1/models", "Models"),
    ("/v1/models/{model}", "Model"),
    ("/v1/messages", "MessagesAnswer"),
    ("/v1/messages/count_tokens", "TokenCount"),
    ("/api/generate", "OllamaGenerateAnswer"),
    ("/api/chat", "OllamaChatAnswer"),
    ("/api/embed", "OllamaEmbedAnswer"),
    ("/api/embeddings", "OllamaEmbeddingsAnswer"),
    ("/api/pull", "OllamaPulled"),
    ("/api/tags", "OllamaTags"),
    ("/api/ps", "OllamaTags"),
    ("/api/show", "OllamaShowAnswer"),
    ("/api/version", "OllamaVersion"),
    ("/swarm", "Swarm"),
    ("/swarm/contribution", "ContributionAnswer"),
    ("/swarm/consent", "ConsentAnswer"),
    ("/swarm/names", "NodeName"),
    ("/swarm/history", "SwarmHistory"),
    ("/swarm/answers", "SwarmAnswers"),
    ("/swarm/invite", "SwarmInvite"),
    ("/conversations", "Conversations"),
    ("/conversations/search", "ConversationsFound"),
    ("get /conversations/{conversation}", "Conversation"),
    ("post /conversations/{conversation}", "ConversationSummary"),
    ("delete /conversations/{conversation}", "Deleted"),
    ("/presets", "Presets"),
    ("/library", "LibraryModels"),
    ("/library/search", "LibraryModels"),
    ("/library/{model}", "Deleted"),
    ("/openapi.json", "Document"),
    ("/healthz", "Health"),
    ("/readyz", "Ready"),
    ("/session", "SessionAnswer"),
];
/// Routes that stream server-sent events, always or when asked to.
const EVENTS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/swarm/events",
    "/library/pull",
];
/// Routes that stream lines of JSON unless asked not to.
const LINES: &[&str] = &["/api/generate", "/api/chat", "/api/pull"];

/// The content types of a route's answer with their schemas.
pub(super) fn content(method: &str, path: &str) -> Value {
    let mut content = Map::new();
    let both = format!("{method} {path}");
    if let Some((_, name)) = JSON.iter().find(|row| row.0 == path || row.0 == both) {
        content.insert("application/json".into(), json!({"schema": reference(name)}));
    }
    // A stream of lines as a whole is text; of events one is described. Lines and what events carry are JSON.
    let plain = || json!({"schema": text()});
    if EVENTS.contains(&path) {
        let event = object(1, &[("data", text()), ("event", text()), ("id", text())]);
        content.insert("text/event-stream".into(), json!({"schema": event}));
    }
    if LINES.contains(&path) {
        content.insert("application/x-ndjson".into(), plain());
    }
    if path == "/metrics" {
        content.insert("text/plain".into(), plain());
    }
    content.into()
}

/// Whether a route answers prompts.
pub(super) fn is_of_a_prompt(path: &str) -> bool {
    (LINES.contains(&path) || EVENTS.contains(&path))
        && !["/swarm/events", "/api/pull", "/library/pull"].contains(&path)
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn usage() -> Value {
    object(3, &[("prompt_tokens", count()), ("completion_tokens", count()), ("total_tokens", count())])
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// An object all of whose members are always there.
fn whole(members: &[(&str, Value)]) -> Value {
    object(members.len(), members)
}

fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn openai() -> Vec<(&'static str, Value)> {
    let choice = |own: (&'static str, Value)| {
        let choice = whole(&[
            ("index", count()),
            own,
            ("finish_reason", or_null("string")),
            ("logprobs", or_null("object")),
        ]);
        list(choice, 1, 64)
    };
    let message = object(
        2,
        &[
            ("role", words(&["assistant"])),
            ("content", or_null("string")),
            ("tool_calls", list(any_object(), 1, 1024)),
        ],
    );
    let answer = |kind: &str, choices: Value| {
        whole(&[
            ("id", text()),
            ("object", words(&[kind])),
            ("created", count()),
            ("model", text()),
            ("choices", choices),
            ("usage", usage()),
            ("shoal", any_object()),
        ])
    };
    let numbers = json!({"type": "array", "items": {"type": "number"}, "minItems": 1});
    let embedding = whole(&[
        ("object", words(&["embedding"])),
        ("index", count()),
        ("embedding", json!({"anyOf": [numbers, text()]})),
    ]);
    let result = object(
        2,
        &[
            ("index", count()),
            ("relevance_score", json!({"type": "number", "minimum": 0, "maximum": 1})),
            ("document", object(1, &[("text", text())])),
        ],
    );
    let tokens = whole(&[("prompt_tokens", count()), ("total_tokens", count())]);
    let model = whole(&[
        ("id", text()),
        ("object", words(&["model"])),
        ("created", count()),
        ("owned_by", text()),
        ("shoal", any_object()),
    ]);
    vec![
        ("ChatAnswer", answer("chat.completion", choice(("message", message)))),
        ("CompletionAnswer", answer("text_completion", choice(("text", text())))),
        (
            "ResponsesAnswer",
            whole(&[
                ("id", text()),
                ("object", words(&["response"])),
                ("status", words(&["completed", "incomplete"])),
                ("model", text()),
                ("output", list(any_object(), 0, 1024)),
                ("usage", any_object()),
            ]),
        ),
        (
            "EmbeddingsAnswer",
            whole(&[
                ("object", words(&["list"])),
                ("data", list(embedding, 1, 256)),
                ("model", text()),
                ("usage", tokens.clone()),
            ]),
        ),
        (
            "RerankAnswer",
            whole(&[
                ("object", words(&["list"])),
                ("model", text()),
                ("results", list(result, 1, 256)),
                ("usage", tokens),
            ]),
        ),
        (
            "Models",
            whole(&[
                ("object", words(&["list"])),
                ("data", json!({"type": "array", "items": reference("Model")})),
            ]),
        ),
        ("Model", model),
    ]
}

fn others() -> Vec<(&'static str, Value)> {
    let done = [
        ("model", text()),
        ("created_at", text()),
        ("done", flag()),
        ("done_reason", words(&["stop", "length", "load"])),
    ];
    let ollama = |own: (&'static str, Value)| whole(&[&done[..], &[own]].concat());
    let numbers = json!({"type": "array", "items": {"type": "number"}});
    let message = whole(&[("role", words(&["assistant"])), ("content", text())]);
    vec![
        (
            "MessagesAnswer",
            whole(&[
                ("id", text()),
                ("type", words(&["message"])),
                ("role", words(&["assistant"])),
                ("content", json!({"type": "array", "items": any_object()})),
                ("model", text()),
                ("stop_reason", words(&["end_turn", "max_tokens", "stop_sequence", "tool_use"])),
                ("usage", any_object()),
            ]),
        ),
        ("OllamaGenerateAnswer", ollama(("response", text()))),
        ("OllamaChatAnswer", ollama(("message", message))),
        (
            "OllamaEmbedAnswer",
            whole(&[
                ("model", text()),
                ("embeddings", list(numbers.clone(), 1, 256)),
                ("prompt_eval_count", count()),
            ]),
        ),
        ("OllamaEmbeddingsAnswer", whole(&[("embedding", numbers)])),
        ("OllamaPulled", whole(&[("status", words(&["success"]))])),
        ("TokenCount", whole(&[("input_tokens", count())])),
        ("OllamaTags", whole(&[("models", json!({"type": "array", "items": any_object()}))])),
        (
            "OllamaShowAnswer",
            whole(&[
                ("details", any_object()),
                ("model_info", any_object()),
                ("capabilities", json!({"type": "array", "items": text()})),
            ]),
        ),
        ("OllamaVersion", whole(&[("version", text())])),
        (
            "Swarm",
            whole(&[
                ("version", text()),
                ("me", text()),
                ("state", words(&["starting", "ready", "unable"])),
                ("nodes", json!({"type": "array", "items": any_object()})),
                ("models", json!({"type": "array", "items": any_object()})),
                ("pipelines", json!({"type": "array", "items": any_object()})),
                ("verdicts", json!({"type": "array", "items": reference("Verdict")})),
                ("names", json!({"type": "array", "items": reference("NodeName")})),
            ]),
        ),
        (
            "Verdict",
            whole(&[
                ("session", text()),
                ("request", text()),
                ("checking", flag()),
                ("checked_by", json!({"type": "array", "items": text()})),
                ("checked_tokens", count()),
                ("convicted", json!({"type": "array", "items": text()})),
                ("wrong_from", or_null("integer")),
            ]),
        ),
        ("ContributionAnswer", object(1, &[("paused", flag()), ("threads", integer(0, 1 << 32))])),
        ("ConsentAnswer", whole(&[("mode", words(&["boomerang", "open"])), ("agreed", flag())])),
        ("Document", whole(&[("openapi", text()), ("paths", any_object())])),
        ("Ready", whole(&[("ready", flag())])),
        ("Health", whole(&[("status", words(&["alive"])), ("ready", flag())])),
        ("SessionAnswer", whole(&[("token", text())])),
        (
            "Error",
            whole(&[(
                "error",
                whole(&[
                    ("message", text()),
                    ("type", text()),
                    ("param", or_null("string")),
                    ("code", or_null("string")),
                ]),
            )]),
        ),
        (
            "AnthropicError",
            whole(&[("type", words(&["error"])), ("error", whole(&[("type", text()), ("message", text())]))]),
        ),
        ("OllamaError", whole(&[("error", text())])),
    ]
}

fn records() -> Vec<(&'static str, Value)> {
    let array = |of: Value| json!({"type": "array", "items": of});
    let number = |may_lack: bool| if may_lack { or_null("number") } else { json!({"type": "number"}) };
    let sample = whole(&[
        ("at_s", count()),
        ("seconds", count()),
        ("answers", count()),
        ("tokens", count()),
        ("tok_s", number(true)),
        ("faults", count()),
        ("peers", count()),
        ("rtt_ms", number(true)),
        ("given", count()),
        ("balance", json!({"type": "integer"})),
    ]);
    let step = object(3, &[("at_ms", number(false)), ("token", count()), ("step", text())]);
    let timeline = whole(&[("began_ms", count()), ("steps", array(step)), ("left_out", count())]);
    let answer = whole(&[
        ("session", text()),
        ("model", text()),
        ("mode", text()),
        ("finish", words(&["stop", "length", "cancelled", "failed"])),
        ("tokens", count()),
        ("tok_s", number(false)),
        ("faults", count()),
        ("timeline", timeline),
    ]);
    let history = [("now_s", count()), ("days", count()), ("span_s", count()), ("samples", array(sample))];
    vec![
        ("SwarmHistory", whole(&history)),
        ("SwarmAnswers", whole(&[("answers", array(answer))])),
        ("SwarmInvite", whole(&[("code", text()), ("swarm", or_null("string")), ("qr", array(text()))])),
    ]
}

fn page() -> Vec<(&'static str, Value)> {
    let summary = [
        ("id", text()),
        ("title", text()),
        ("created_ms", count()),
        ("changed_ms", count()),
        ("messages", count()),
    ];
    let array = |of: Value| json!({"type": "array", "items": of});
    let room = whole(&[("bytes", count()), ("most_bytes", count()), ("most", count())]);
    let found = whole(&[&summary[..], &[("excerpt", text())]].concat());
    let conversation = [
        ("id", text()),
        ("title", text()),
        ("named", flag()),
        ("created_ms", count()),
        ("changed_ms", count()),
        ("system", text()),
        ("sampling", any_object()),
        ("leaf", or_null("string")),
        ("messages", array(any_object())),
    ];
    let model = whole(&[
        ("name", text()),
        ("title", text()),
        ("bytes", count()),
        ("here_bytes", count()),
        ("license", text()),
        ("fit", text()),
        ("removable", flag()),
    ]);
    vec![
        ("LibraryModels", whole(&[("models", array(model))])),
        ("ConversationSummary", whole(&summary)),
        (
            "Conversations",
            whole(&[("conversations", array(reference("ConversationSummary"))), ("room", room)]),
        ),
        ("ConversationsFound", whole(&[("conversations", array(found))])),
        ("Conversation", whole(&conversation)),
        ("Deleted", whole(&[("deleted", flag())])),
    ]
}

/// Every schema by its name.
pub(super) fn schemas() -> Map<String, Value> {
    openai()
        .into_iter()
        .chain(others())
        .chain(records())
        .chain(page())
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}
