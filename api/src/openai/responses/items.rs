//! Items of an answer of Responses.

use serde_json::{Value, json};

use crate::{
    answer::{Ended, Whole},
    calls::ToolCall,
    names,
    openai::{
        logprobs,
        tools::{Kind, Kinds},
    },
};

pub(super) fn reasoning_item(id: &str, text: &str, status: &str) -> Value {
    let content = if text.is_empty() { json!([]) } else { json!([{"type": "reasoning_text", "text": text}]) };
    json!({"type": "reasoning", "id": id, "status": status, "summary": [], "content": content})
}

pub(super) fn message_item(id: &str, text: &str, logprobs: &[Value], status: &str) -> Value {
    json!({
        "type": "message", "id": id, "status": status, "role": "assistant",
        "content": [part(text, logprobs)],
    })
}

pub(super) fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// A fresh name for the item of a call.
pub(super) fn call_id(kind: &Kind) -> String {
    names::fresh(match kind {
        Kind::Function | Kind::Member { .. } => "fc_",
        Kind::Custom => "ctc_",
        Kind::LocalShell => "lsh_",
    })
}

pub(super) fn call_item(id: &str, call: &ToolCall, kind: &Kind, status: &str) -> Value {
    let mut item = json!({"id": id, "call_id": call.id, "status": status});
    match kind {
        Kind::Function => {
            item["type"] = "function_call".into();
            item["name"] = call.name.as_str().into();
            item["arguments"] = call.arguments.as_str().into();
        }
        Kind::Member { namespace, name } => {
            item["type"] = "function_call".into();
            item["namespace"] = namespace.as_str().into();
            item["name"] = name.as_str().into();
            item["arguments"] = call.arguments.as_str().into();
        }
        Kind::Custom => {
            item["type"] = "custom_tool_call".into();
            item["name"] = call.name.as_str().into();
            item["input"] = custom_input(&call.arguments).into();
        }
        Kind::LocalShell => {
            item["type"] = "local_shell_call".into();
            item["action"] = shell_action(&call.object());
        }
    }
    item
}

/// The text that a custom tool is given: of a call that was cut, the text so far. Arguments of another form stay as they are.
pub(super) fn custom_input(arguments: &str) -> String {
    /// The longest escape of JSON, a pair of surrogates, may be cut anywhere.
    const MOST_CUT: usize = 12;
    let text = |json: &str| match serde_json::from_str::<Value>(json) {
        Ok(value) => value["input"].as_str().map(str::to_owned),
        Err(_) => None,
    };
    let ends = arguments.char_indices().map(|(at, _)| at).rev().take(MOST_CUT);
    let mut cut =
        std::iter::once(arguments.len()).chain(ends).map(|end| format!("{}\"}}", &arguments[..end]));
    let whole = serde_json::from_str::<Value>(arguments);
    match whole {
        Ok(_) => text(arguments).unwrap_or_else(|| arguments.to_owned()),
        Err(_) => cut.find_map(|json| text(&json)).unwrap_or_default(),
    }
}

fn shell_action(arguments: &Value) -> Value {
    let command = match &arguments["command"] {
        Value::Array(words) => json!(words),
        Value::String(program) => json!([program]),
        _ => json!([]),
    };
    json!({
        "type": "exec", "command": command, "env": {}, "user": null,
        "timeout_ms": arguments["timeout_ms"], "working_directory": arguments["working_directory"],
    })
}

/// The items of an answer.
pub(super) fn all(whole: &Whole, kinds: &Kinds) -> Vec<Value> {
    let status = if whole.ended == Some(Ended::Length) { "incomplete" } else { "completed" };
    let mut items = Vec::new();
    if !whole.reasoning.is_empty() {
        let ended = whole.text.is_empty() && whole.calls.is_empty();
        let status = if ended { status } else { "completed" };
        items.push(reasoning_item(&names::fresh("rs_"), &whole.reasoning, status));
    }
    if !whole.text.is_empty() || items.is_empty() && whole.calls.is_empty() {
        let logprobs: Vec<Value> = whole.logprobs.iter().map(logprobs).collect();
        items.push(message_item(&names::fresh("msg_"), &whole.text, &logprobs, status));
    }
    let last = whole.calls.len().saturating_sub(1);
    items.extend(whole.calls.iter().enumerate().map(|(at, call)| {
        let status = if at == last { status } else { "completed" };
        let kind = kinds.of(&call.name);
        call_item(&call_id(&kind), call, &kind, status)
    }));
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_call_that_was_cut_is_the_text_so_far() {
        let whole = json!({"input": "a \"b\" \u{1F980} é\nc"}).to_string().replace('é', "\\u00e9");
        let crab = whole.replace('\u{1F980}', "\\ud83e\\udd80");
        for whole in [whole, crab] {
            let text = custom_input(&whole);
            assert_eq!(text, "a \"b\" \u{1F980} é\nc");
            let mut before = String::new();
            for (end, _) in whole.char_indices().skip(10) {
                let cut = custom_input(&whole[..end]);
                assert!(text.starts_with(&cut) && cut.starts_with(&before), "{}: {cut}", &whole[..end]);
                before = cut;
            }
            assert_eq!(before, text);
        }
        assert_eq!(custom_input(""), "");
        assert_eq!(custom_input("{\"inp"), "");
        assert_eq!(custom_input("{\"other\":1}"), "{\"other\":1}");
    }
}
