//! OpenAI's routes.

use serde_json::{Value, json};

use super::{
    schema::{
        Named, any_object, any_of, count, flag, integer, list, number, object, or_null, reference, text,
        whole, words,
    },
    terms::{TOKENS, ids, input, mode, model, seed, stops, tool_name, who},
};
use crate::{inference::ranges, openai::tools::LEFT_OUT};

/// What the routes take and answer, and what requests of other dialects are made of, too.
pub(super) fn schemas() -> Vec<Named> {
    [requests(), parts(), responses_parts(), answers()].concat()
}

/// What OpenAI's routes share.
fn sampling() -> Vec<(&'static str, Value)> {
    let bias = json!({
        "type": "object", "propertyNames": {"type": "string", "pattern": "^[0-9]{1,9}$"}, "maxProperties": 1024,
        "additionalProperties": number(&ranges::LOGIT_BIAS),
    });
    let mut members = vec![
        ("model", model()),
        ("temperature", number(&ranges::TEMPERATURE)),
        ("top_p", number(&ranges::TOP_P)),
        ("top_k", integer(-1, 1 << 20)),
        ("min_p", number(&ranges::MIN_P)),
        ("typical_p", number(&ranges::TYPICAL_P)),
        ("repetition_penalty", number(&ranges::REPETITION_PENALTY)),
        ("presence_penalty", number(&ranges::PRESENCE_PENALTY)),
        ("frequency_penalty", number(&ranges::FREQUENCY_PENALTY)),
        ("logit_bias", bias),
        ("seed", seed()),
        ("stop", stops()),
        ("stream", flag()),
    ];
    members.extend(who());
    members
}

fn with(required: &[(&'static str, Value)], more: &[(&'static str, Value)]) -> Value {
    let mut members = required.to_vec();
    members.extend(sampling());
    members.extend(more.iter().cloned());
    object(required.len(), &members)
}

fn requests() -> Vec<Named> {
    let tools = list(reference("Tool"), 0, 128);
    let named = object(1, &[("function", object(1, &[("name", text())])), ("type", words(&["function"]))]);
    let choice = any_of(&[words(&["none", "auto", "required"]), named.clone()]);
    let flat = object(1, &[("name", text()), ("type", words(&["function", "custom"]))]);
    let shell = object(1, &[("type", words(&["local_shell"]))]);
    let responses_choice = any_of(&[words(&["none", "auto", "required"]), named, flat, shell]);
    let messages = list(reference("Message"), 1, 4096);
    let prompt = any_of(&[
        text(),
        list(text(), 1, 64),
        ids(),
        json!({"type": "array", "items": ids(), "minItems": 1, "maxItems": 64}),
    ]);
    let counts = [("stream_options", object(0, &[("include_usage", flag())])), ("n", integer(1, 4))];
    let mut chat = vec![
        ("max_tokens", integer(1, TOKENS)),
        ("max_completion_tokens", integer(1, TOKENS)),
        ("logprobs", flag()),
        ("top_logprobs", integer(0, 20)),
        ("response_format", reference("Format")),
        ("tools", tools),
        ("tool_choice", choice.clone()),
        ("parallel_tool_calls", flag()),
        ("continue_final_message", flag()),
        ("reasoning_effort", text()),
        ("verbosity", verbosity()),
        ("functions", list(function(), 0, 128)),
        ("function_call", any_of(&[words(&["none", "auto"]), object(1, &[("name", text())])])),
    ];
    chat.extend(counts.clone());
    // 0 is for prompts that come back with `echo`.
    let mut completion = vec![
        ("max_tokens", integer(0, TOKENS)),
        ("logprobs", integer(0, 20)),
        ("response_format", reference("Format")),
        ("echo", flag()),
    ];
    completion.extend(counts);
    let items = list(reference("Item"), 0, 4096);
    let said = object(0, &[("format", reference("Format")), ("verbosity", verbosity())]);
    let responses = [
        ("instructions", text()),
        ("previous_response_id", text()),
        ("store", flag()),
        ("max_output_tokens", integer(1, TOKENS)),
        ("top_logprobs", integer(0, 20)),
        ("text", said),
        ("tools", list(reference("ResponsesTool"), 0, 128)),
        ("tool_choice", responses_choice),
    ];
    let width = json!({"type": "integer", "minimum": 1, "maximum": 1 << 20, "description": "Only the width of the model"});
    let embeddings = [
        ("input", input()),
        ("model", model()),
        ("encoding_format", words(&["float", "base64"])),
        ("dimensions", width),
        ("mode", mode()),
    ];
    let some = json!({"type": "string", "minLength": 1});
    let document = any_of(&[some.clone(), object(1, &[("text", some.clone())])]);
    let rerank = [
        ("query", some),
        ("documents", list(document, 1, 256)),
        ("model", model()),
        ("top_n", integer(1, 1 << 20)),
        ("return_documents", flag()),
        ("truncate", flag()),
        ("mode", mode()),
    ];
    vec![
        ("Chat", with(&[("messages", messages)], &chat)),
        ("Completion", with(&[("prompt", prompt)], &completion)),
        ("Responses", with(&[("input", any_of(&[text(), items]))], &responses)),
        ("Embeddings", object(1, &embeddings)),
        ("Rerank", object(2, &rerank)),
    ]
}

fn verbosity() -> Value {
    let about = "low and high add a sentence to the system message; without one it is left out, and x-shoal-left-out says so";
    json!({"type": "string", "enum": ["low", "medium", "high"], "description": about})
}

fn function() -> Value {
    object(1, &[("name", tool_name()), ("description", text()), ("parameters", json!({"type": "object"}))])
}

/// What `tools` and `input` of Responses hold.
fn responses_parts() -> Vec<Named> {
    let flat = object(
        1,
        &[
            ("name", tool_name()),
            ("type", words(&["function"])),
            ("description", text()),
            ("parameters", json!({"type": "object"})),
        ],
    );
    let format = any_of(&[
        object(1, &[("type", words(&["text"]))]),
        object(
            3,
            &[("type", words(&["grammar"])), ("syntax", words(&["lark", "regex"])), ("definition", text())],
        ),
    ]);
    let custom = object(
        2,
        &[("type", words(&["custom"])), ("name", tool_name()), ("description", text()), ("format", format)],
    );
    let mut left = words(LEFT_OUT);
    left["description"] = "Left out: the answer lists it in x-shoal-left-out".into();
    // Together a namespace and a function have as many letters as a name.
    let member = json!({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,31}$"});
    let parameters = json!({"type": "object"});
    let listed = object(1, &[("name", member.clone()), ("description", text()), ("parameters", parameters)]);
    let tool = any_of(&[
        flat,
        custom,
        object(1, &[("type", words(&["local_shell"]))]),
        object(2, &[("type", words(&["namespace"])), ("name", member), ("tools", list(listed, 0, 128))]),
        object(1, &[("type", left)]),
    ]);
    let outputs = ["function_call_output", "custom_tool_call_output", "local_shell_call_output"];
    let called = [("name", text()), ("call_id", text())];
    let call = |kind: &str, own: (&'static str, Value)| {
        object(3, &[("type", words(&[kind])), called[0].clone(), own, called[1].clone()])
    };
    let action = object(1, &[("command", list(text(), 0, 1024)), ("type", words(&["exec"]))]);
    let shell = [("type", words(&["local_shell_call"])), ("action", action), called[1].clone()];
    let item = any_of(&[
        reference("Message"),
        call("function_call", ("arguments", text())),
        call("custom_tool_call", ("input", text())),
        object(2, &shell),
        object(3, &[("type", words(&outputs)), called[1].clone(), ("output", content())]),
        object(1, &[("type", words(&["reasoning"])), ("summary", list(any_object(), 0, 1024))]),
    ]);
    vec![("ResponsesTool", tool), ("Item", item)]
}

/// A message's text, whole or in parts, among which images within the request are left out.
fn content() -> Value {
    let part = object(2, &[("type", words(&["text", "input_text", "output_text"])), ("text", text())]);
    let data = json!({"type": "string", "pattern": "^data:", "description": "Left out: the answer says so in x-shoal-left-out"});
    let image = any_of(&[
        object(2, &[("type", words(&["image_url"])), ("image_url", object(1, &[("url", data.clone())]))]),
        object(2, &[("type", words(&["input_image"])), ("image_url", data)]),
    ]);
    any_of(&[text(), list(any_of(&[part, image]), 0, 1024)])
}

/// What OpenAI's and Ollama's requests are made of.
fn parts() -> Vec<Named> {
    let content = content();
    let call = object(
        1,
        &[
            (
                "function",
                object(1, &[("name", text()), ("arguments", any_of(&[text(), json!({"type": "object"})]))]),
            ),
            ("id", text()),
            ("type", words(&["function"])),
        ],
    );
    let role = words(&["system", "developer", "user", "assistant", "tool", "function"]);
    let said = object(
        2,
        &[
            ("role", role.clone()),
            ("content", content.clone()),
            ("tool_calls", list(call.clone(), 0, 1024)),
            ("tool_call_id", text()),
            ("name", text()),
        ],
    );
    let older = object(1, &[("name", text()), ("arguments", any_of(&[text(), json!({"type": "object"})]))]);
    let older = object(2, &[("role", words(&["assistant"])), ("function_call", older)]);
    let called = object(2, &[("role", role), ("tool_calls", list(call, 1, 1024)), ("content", content)]);
    let schema = object(1, &[("schema", json!({"type": "object"})), ("name", text())]);
    let format = any_of(&[
        object(1, &[("type", words(&["text", "json_object"]))]),
        object(2, &[("type", words(&["json_schema"])), ("json_schema", schema)]),
        object(2, &[("type", words(&["grammar"])), ("grammar", text())]),
        object(2, &[("type", words(&["regex"])), ("regex", text())]),
    ]);
    vec![
        ("Message", any_of(&[said, called, older])),
        ("Tool", object(1, &[("function", function()), ("type", words(&["function"]))])),
        ("Format", format),
    ]
}

fn usage() -> Value {
    object(3, &[("prompt_tokens", count()), ("completion_tokens", count()), ("total_tokens", count())])
}

fn answers() -> Vec<Named> {
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
            ("function_call", any_object()),
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
        ("type", words(&["model"])),
        ("display_name", text()),
        ("created_at", text()),
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
                ("previous_response_id", or_null("string")),
                ("store", flag()),
                ("usage", any_object()),
            ]),
        ),
        ("ResponseDeleted", whole(&[("id", text()), ("object", words(&["response"])), ("deleted", flag())])),
        (
            "ResponseItems",
            whole(&[
                ("object", words(&["list"])),
                ("data", list(any_object(), 0, 100)),
                ("first_id", or_null("string")),
                ("last_id", or_null("string")),
                ("has_more", flag()),
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
                ("has_more", json!({"type": "boolean"})),
                ("first_id", or_null("string")),
                ("last_id", or_null("string")),
            ]),
        ),
        ("Model", model),
    ]
}
