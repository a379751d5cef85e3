//! Anthropic's routes.

use serde_json::json;

use super::{
    schema::{
        Named, any_object, any_of, array, count, flag, integer, list, number, object, text, whole, words,
    },
    terms::{TOKENS, model, seed, stops, tool_name, who},
};
use crate::inference::ranges;

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
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
    let answer = [
        ("id", text()),
        ("type", words(&["message"])),
        ("role", words(&["assistant"])),
        ("content", array(any_object())),
        ("model", text()),
        ("stop_reason", words(&["end_turn", "max_tokens", "stop_sequence", "tool_use"])),
        ("usage", any_object()),
    ];
    let error = whole(&[("type", text()), ("message", text())]);
    vec![
        ("Messages", object(2, &members)),
        ("CountTokens", object(1, &counted)),
        ("MessagesAnswer", whole(&answer)),
        ("TokenCount", whole(&[("input_tokens", count())])),
        ("AnthropicError", whole(&[("type", words(&["error"])), ("error", error)])),
    ]
}
