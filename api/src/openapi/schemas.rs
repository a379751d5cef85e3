//! What requests look like, as JSON schemas. They say what can be said of a field by itself; what depends on the model or on
//! another field (a token id, a tool that is demanded) is refused with the field's name all the same.

use serde_json::{Map, Value, json};

use super::reference;
use crate::{
    conversations::{self, MAX_WORDS},
    inference::{
        Wire,
        ranges::{self, Range},
    },
    swarm_records::{Color, MAX_NAME},
};

/// An object with members given as `(name, schema)`, the first `required` of which must be there. The others may be null,
/// which counts as absent.
pub(super) fn object(required: usize, members: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = members.iter().take(required).map(|(name, _)| *name).collect();
    let may_be_null = |(index, (name, schema)): (usize, &(&str, Value))| {
        let schema = if index < required { schema.clone() } else { nullable(schema) };
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = members.iter().enumerate().map(may_be_null).collect();
    json!({"type": "object", "required": names, "properties": properties})
}

fn nullable(schema: &Value) -> Value {
    let nothing = json!({"type": "null"});
    match (&schema["type"], &schema["anyOf"], schema.get("enum").is_some()) {
        (Value::String(kind), _, false) => {
            let mut schema = schema.clone();
            schema["type"] = json!([kind, "null"]);
            schema
        }
        (_, Value::Array(choices), _) => {
            let mut choices = choices.clone();
            choices.push(nothing);
            json!({"anyOf": choices})
        }
        _ => json!({"anyOf": [schema, nothing]}),
    }
}

fn number(range: &Range) -> Value {
    json!({"type": "number", "minimum": range.low, "maximum": range.high})
}

pub(super) fn integer(low: i64, high: i64) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": high})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn flag() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn list(of: Value, least: usize, most: usize) -> Value {
    json!({"type": "array", "items": of, "minItems": least, "maxItems": most})
}

pub(super) fn words(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

fn any_of(choices: &[Value]) -> Value {
    json!({"anyOf": choices})
}

/// Token ids.
fn ids() -> Value {
    json!({"type": "array", "items": integer(0, i64::from(u32::MAX)), "minItems": 1})
}

/// Whole numbers of 64 bits.
fn seed() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX, "description": "Equal seeds give equal answers, here and through the swarm"})
}

fn stops() -> Value {
    let stop = json!({"type": "string", "maxLength": 256});
    any_of(&[stop.clone(), list(stop, 0, 16)])
}

fn model() -> Value {
    json!({"type": "string", "description": "A name of GET /v1/models; the first one when absent"})
}

/// What may draft tokens.
fn draft() -> Value {
    let about = "What may draft tokens, so that a pass confirms several: auto, off, or a list of lookup, grammar and the name \
                 of the draft model that the node was started with. The tokens are the same with any, and drafts that do not pay \
                 are not sent";
    json!({"type": "string", "minLength": 1, "maxLength": 4096, "description": about})
}

/// Which earlier positions a token sees.
fn attention() -> Value {
    let about = "Which earlier positions a token sees: dense (all), window:POSITIONS, or sparse or h2o, with any of the \
                 settings sparse:window=128,sinks=1,stride=on,block=64 and h2o:budget=2048,sinks=4,window=512. h2o keeps \
                 as many positions as its budget says and forgets those that were looked at least";
    json!({"type": "string", "maxLength": 96, "description": about})
}

/// In which form keys and values are kept.
fn kv_cache_type() -> Value {
    let about = "In which form keys and values of earlier positions are kept: 16, 8 or 4 bits for each. Fewer take less memory and \
                 change the answer";
    json!({"type": "string", "enum": ["f16", "q8", "q4"], "description": about})
}

/// Whether an answer ends with the context.
fn context_shift() -> Value {
    let about = "Whether the answer goes on where the context is full: the beginning of the prompt stays, the older half of what \
                 follows is forgotten. Only where one machine answers alone, and with a limit of tokens";
    json!({"type": "boolean", "default": false, "description": about})
}

/// What every request for an answer takes.
fn who() -> [(&'static str, Value); 10] {
    [
        ("mode", words(&["local", "trusted", "boomerang", "open"])),
        ("verify", words(&["none", "sample", "all", "off", "strict"])),
        ("shadow", words(&["all", "lazy", "none"])),
        ("draft", draft()),
        ("wire", words(&Wire::ALL.map(Wire::name))),
        ("allow_rounding", json!({"type": "boolean", "description": "Whether wire `auto` may round"})),
        ("attention", attention()),
        ("kv_cache_type", kv_cache_type()),
        ("context_shift", context_shift()),
        ("cuts", list(integer(1, i64::from(u32::MAX)), 0, 256)),
    ]
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

/// Every schema by its name.
pub(super) fn requests() -> Map<String, Value> {
    let rows = [openai(), parts(), anthropic(), ollama(), node(), page()];
    rows.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

const TOKENS: i64 = crate::openai::MAX_TOKENS as i64;

fn openai() -> Vec<(&'static str, Value)> {
    let tools = list(reference("Tool"), 0, 128);
    let named = object(1, &[("function", object(1, &[("name", text())])), ("type", words(&["function"]))]);
    let choice = any_of(&[words(&["none", "auto", "required"]), named]);
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
        ("reasoning_effort", text()),
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
    let items = list(reference("Message"), 0, 4096);
    let flat = object(
        1,
        &[
            ("name", tool_name()),
            ("type", words(&["function"])),
            ("description", text()),
            ("parameters", json!({"type": "object"})),
        ],
    );
    let responses = [
        ("instructions", text()),
        ("max_output_tokens", integer(1, TOKENS)),
        ("top_logprobs", integer(0, 20)),
        ("text", object(0, &[("format", reference("Format"))])),
        ("tools", list(flat, 0, 128)),
        ("tool_choice", choice),
    ];
    let width = json!({"type": "integer", "minimum": 1, "maximum": 1 << 20, "description": "Only the width of the model"});
    let embeddings = [
        ("input", input()),
        ("model", model()),
        ("encoding_format", words(&["float", "base64"])),
        ("dimensions", width),
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
    ];
    vec![
        ("Chat", with(&[("messages", messages)], &chat)),
        ("Completion", with(&[("prompt", prompt)], &completion)),
        ("Responses", with(&[("input", any_of(&[text(), items]))], &responses)),
        ("Embeddings", object(1, &embeddings)),
        ("Rerank", object(2, &rerank)),
    ]
}

/// Texts to embed: none of them empty.
fn input() -> Value {
    let some = json!({"type": "string", "minLength": 1});
    any_of(&[
        some.clone(),
        list(some, 1, 256),
        ids(),
        json!({"type": "array", "items": ids(), "minItems": 1, "maxItems": 256}),
    ])
}

fn tool_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"})
}

/// What OpenAI's and Ollama's requests are made of.
fn parts() -> Vec<(&'static str, Value)> {
    let part = object(2, &[("type", words(&["text", "input_text", "output_text"])), ("text", text())]);
    let content = any_of(&[text(), list(part, 0, 1024)]);
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
    let role = words(&["system", "developer", "user", "assistant", "tool"]);
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
    let called = object(2, &[("role", role), ("tool_calls", list(call, 1, 1024)), ("content", content)]);
    let function = object(
        1,
        &[("name", tool_name()), ("description", text()), ("parameters", json!({"type": "object"}))],
    );
    let schema = object(1, &[("schema", json!({"type": "object"})), ("name", text())]);
    let format = any_of(&[
        object(1, &[("type", words(&["text", "json_object"]))]),
        object(2, &[("type", words(&["json_schema"])), ("json_schema", schema)]),
        object(2, &[("type", words(&["grammar"])), ("grammar", text())]),
        object(2, &[("type", words(&["regex"])), ("regex", text())]),
    ]);
    vec![
        ("Message", any_of(&[said, called])),
        ("Tool", object(1, &[("function", function), ("type", words(&["function"]))])),
        ("Format", format),
    ]
}

fn anthropic() -> Vec<(&'static str, Value)> {
    let text_block = object(2, &[("type", words(&["text"])), ("text", text())]);
    let results = any_of(&[text(), list(text_block.clone(), 0, 1024)]);
    let block = any_of(&[
        text_block.clone(),
        object(
            2,
            &[
                ("type", words(&["tool_use"])),
                ("name", text()),
                ("id", text()),
                ("input", json!({"type": "object"})),
            ],
        ),
        object(2, &[("type", words(&["tool_result"])), ("tool_use_id", text()), ("content", results)]),
    ]);
    let message = object(
        2,
        &[
            ("role", words(&["user", "assistant", "system"])),
            ("content", any_of(&[text(), list(block, 0, 1024)])),
        ],
    );
    let tool = object(
        1,
        &[
            ("name", tool_name()),
            ("type", words(&["custom"])),
            ("description", text()),
            ("input_schema", json!({"type": "object"})),
        ],
    );
    let choice = any_of(&[
        object(1, &[("type", words(&["auto", "none", "any"]))]),
        object(2, &[("type", words(&["tool"])), ("name", text())]),
    ]);
    let mut members = vec![
        ("messages", list(message, 1, 4096)),
        ("max_tokens", integer(1, TOKENS)),
        ("model", model()),
        ("system", any_of(&[text(), list(text_block, 0, 1024)])),
        ("temperature", number(&ranges::TEMPERATURE)),
        ("top_k", integer(0, 1 << 20)),
        ("top_p", number(&ranges::TOP_P)),
        ("stop_sequences", stops()),
        ("seed", seed()),
        ("stream", flag()),
        ("tools", list(tool, 0, 128)),
        ("tool_choice", choice),
    ];
    members.extend(who());
    let mut counted = members.clone();
    counted.remove(1);
    vec![("Messages", object(2, &members)), ("CountTokens", object(1, &counted))]
}

fn ollama() -> Vec<(&'static str, Value)> {
    let options = object(
        0,
        &[
            ("temperature", number(&ranges::TEMPERATURE)),
            ("top_k", integer(-1, 1 << 20)),
            ("top_p", number(&ranges::TOP_P)),
            ("min_p", number(&ranges::MIN_P)),
            ("typical_p", number(&ranges::TYPICAL_P)),
            ("repeat_penalty", number(&ranges::REPETITION_PENALTY)),
            ("presence_penalty", number(&ranges::PRESENCE_PENALTY)),
            ("frequency_penalty", number(&ranges::FREQUENCY_PENALTY)),
            ("num_predict", integer(-2, TOKENS)),
            ("seed", seed()),
            ("stop", stops()),
        ],
    );
    let format = any_of(&[words(&["", "json"]), json!({"type": "object"})]);
    let mut shared = vec![("stream", flag()), ("format", format), ("options", options)];
    shared.extend(who());
    let of = |required: usize, own: &[(&'static str, Value)]| {
        let members: Vec<(&'static str, Value)> = own.iter().cloned().chain(shared.iter().cloned()).collect();
        object(required, &members)
    };
    let generate = [("model", text()), ("prompt", text()), ("system", text()), ("raw", flag())];
    let chat = [
        ("model", text()),
        ("messages", list(reference("Message"), 1, 4096)),
        ("tools", list(reference("Tool"), 0, 128)),
    ];
    let embed =
        [("model", text()), ("input", input()), ("truncate", flag()), ("dimensions", integer(1, 1 << 20))];
    vec![
        ("OllamaGenerate", of(1, &generate)),
        ("OllamaChat", of(2, &chat)),
        ("OllamaEmbed", object(2, &embed)),
        ("OllamaShow", object(1, &[("model", text())])),
        (
            "OllamaEmbeddings",
            object(2, &[("model", text()), ("prompt", json!({"type": "string", "minLength": 1}))]),
        ),
        ("OllamaPull", object(1, &[("model", text()), ("stream", flag())])),
    ]
}

fn node() -> Vec<(&'static str, Value)> {
    let contribution = [
        ("paused", flag()),
        ("memory_bytes", integer(0, 1 << 50)),
        ("threads", integer(1, 4096)),
        ("upload_bytes_per_s", integer(0, 1 << 50)),
    ];
    let colors: Vec<&str> = Color::ALL.iter().map(|color| color.name()).collect();
    let name = [
        ("node", json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})),
        ("name", at_most(MAX_NAME)),
        ("color", words(&colors)),
    ];
    vec![
        ("Contribution", object(0, &contribution)),
        ("Consent", object(2, &[("mode", words(&["boomerang", "open"])), ("agreed", flag())])),
        ("NodeName", object(1, &name)),
        ("Session", object(1, &[("ticket", text())])),
    ]
}

/// Text of at most so many characters.
fn at_most(characters: usize) -> Value {
    json!({"type": "string", "maxLength": characters})
}

/// What the page keeps.
fn page() -> Vec<(&'static str, Value)> {
    let id = || json!({"type": "string", "pattern": "^[a-z0-9]{1,32}$"});
    let kept = || json!({"type": "object"});
    let file = [("name", at_most(conversations::MAX_TITLE)), ("text", at_most(conversations::MAX_FILE))];
    let message = [
        ("id", id()),
        ("role", words(&["user", "assistant"])),
        ("content", at_most(conversations::MAX_CONTENT)),
        ("parent", id()),
        ("files", list(object(2, &file), 0, conversations::MAX_FILES)),
        ("about", kept()),
    ];
    let change = [
        ("title", at_most(conversations::MAX_TITLE)),
        ("system", at_most(conversations::MAX_SYSTEM)),
        ("sampling", kept()),
        ("leaf", id()),
        ("messages", list(object(3, &message), 0, conversations::MAX_MESSAGES)),
    ];
    let preset = [
        ("name", at_most(conversations::MAX_TITLE)),
        ("system", at_most(conversations::MAX_SYSTEM)),
        ("sampling", kept()),
    ];
    vec![
        ("Pull", object(1, &[("model", text())])),
        ("Words", object(1, &[("words", at_most(MAX_WORDS))])),
        ("ConversationChange", object(0, &change)),
        ("Presets", object(1, &[("presets", list(object(1, &preset), 0, conversations::MAX_PRESETS))])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_absent_may_be_null() {
        let schema = object(
            1,
            &[
                ("must", text()),
                ("may", integer(0, 9)),
                ("word", words(&["a"])),
                ("either", any_of(&[text(), flag()])),
                ("other", reference("Format")),
            ],
        );
        let of = |name: &str| schema["properties"][name].clone();
        assert_eq!(schema["required"], json!(["must"]));
        assert_eq!(of("must"), text());
        assert_eq!(of("may"), json!({"type": ["integer", "null"], "minimum": 0, "maximum": 9}));
        let nothing = json!({"type": "null"});
        assert_eq!(of("word"), json!({"anyOf": [words(&["a"]), nothing]}));
        assert_eq!(of("either"), json!({"anyOf": [text(), flag(), nothing]}));
        assert_eq!(of("other"), json!({"anyOf": [reference("Format"), nothing]}));
    }
}
