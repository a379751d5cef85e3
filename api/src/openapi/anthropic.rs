//! Anthropic's routes.

use serde_json::json;

use super::{
    schema::{
        Named, any_object, any_of, array, count, flag, integer, list, number, object, reference, text, whole,
        words,
    },
    terms::{TOKENS, model, seed, stops, tool_name, who},
};
use crate::inference::ranges;

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
    let text_block = object(2, &[("type", words(&["text"])), ("text", text())]);
    let inline = object(2, &[("type", words(&["base64"])), ("data", text())]);
    let image = object(2, &[("type", words(&["image"])), ("source", inline)]);
    let plain = object(2, &[("type", words(&["text"])), ("data", text())]);
    let document = object(2, &[("type", words(&["document"])), ("source", plain)]);
    let result = any_of(&[text_block.clone(), image.clone(), document.clone()]);
    let results = any_of(&[text(), list(result, 0, 1024)]);
    let block = any_of(&[
        text_block.clone(),
        image,
        document,
        object(2, &[("type", words(&["thinking"])), ("thinking", text())]),
        object(1, &[("type", words(&["redacted_thinking", "server_tool_use", "web_search_tool_result"]))]),
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
    let own = object(
        1,
        &[
            ("name", tool_name()),
            ("type", words(&["custom"])),
            ("description", text()),
            ("input_schema", json!({"type": "object"})),
        ],
    );
    let dated = |bases: &str, about: &str| json!({"type": "string", "pattern": format!("^({bases})_[0-9]{{8}}$"), "description": about});
    let told = dated("bash|text_editor|memory", "The model is told of it as a function");
    let left = dated(
        "web_search|web_fetch|code_execution|computer",
        "Left out: the answer lists it in x-shoal-left-out",
    );
    let tool = any_of(&[
        own,
        object(2, &[("type", told), ("name", tool_name())]),
        object(2, &[("type", left), ("name", text())]),
        object(1, &[("type", words(&["mcp_toolset"]))]),
    ]);
    let output = object(0, &[("effort", text()), ("format", reference("Format"))]);
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
        ("thinking", object(1, &[("type", words(&["enabled", "adaptive", "disabled"]))])),
        ("output_config", output),
        ("output_format", reference("Format")),
        ("mcp_servers", list(any_object(), 0, 128)),
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
