//! Ollama's routes.

use serde_json::{Value, json};

use super::{
    schema::{
        Named, any_object, any_of, array, count, flag, integer, list, number, object, reference, text, whole,
        words,
    },
    terms::{TOKENS, input, mode, seed, stops, who},
};
use crate::inference::ranges;

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
    [requests(), answers()].concat()
}

fn requests() -> Vec<Named> {
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
    let embed = [
        ("model", text()),
        ("input", input()),
        ("truncate", flag()),
        ("dimensions", integer(1, 1 << 20)),
        ("mode", mode()),
    ];
    vec![
        ("OllamaGenerate", of(1, &generate)),
        ("OllamaChat", of(2, &chat)),
        ("OllamaEmbed", object(2, &embed)),
        ("OllamaShow", object(1, &[("model", text())])),
        (
            "OllamaEmbeddings",
            object(
                2,
                &[("model", text()), ("prompt", json!({"type": "string", "minLength": 1})), ("mode", mode())],
            ),
        ),
        ("OllamaPull", object(1, &[("model", text()), ("stream", flag())])),
    ]
}

fn answers() -> Vec<Named> {
    let done = [
        ("model", text()),
        ("created_at", text()),
        ("done", flag()),
        ("done_reason", words(&["stop", "length", "load"])),
    ];
    let answer = |own: (&'static str, Value)| whole(&[&done[..], &[own]].concat());
    let numbers = array(json!({"type": "number"}));
    let message = whole(&[("role", words(&["assistant"])), ("content", text())]);
    let embedded =
        [("model", text()), ("embeddings", list(numbers.clone(), 1, 256)), ("prompt_eval_count", count())];
    let shown = [("details", any_object()), ("model_info", any_object()), ("capabilities", array(text()))];
    vec![
        ("OllamaGenerateAnswer", answer(("response", text()))),
        ("OllamaChatAnswer", answer(("message", message))),
        ("OllamaEmbedAnswer", whole(&embedded)),
        ("OllamaEmbeddingsAnswer", whole(&[("embedding", numbers)])),
        ("OllamaPulled", whole(&[("status", words(&["success"]))])),
        ("OllamaTags", whole(&[("models", array(any_object()))])),
        ("OllamaShowAnswer", whole(&shown)),
        ("OllamaVersion", whole(&[("version", text())])),
        ("OllamaError", whole(&[("error", text())])),
    ]
}
