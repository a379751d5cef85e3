//! `instructions` and `input` of Responses, a string or a list of items, as messages.

use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
    left_out::LeftOut,
    openai::{
        messages::{self, Source},
        tools::{LOCAL_SHELL, member_name},
    },
};

/// Items that tools of OpenAI's servers left in a conversation; agents send them to the next model as they are.
const LEFT_OUT: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "tool_search_call",
    "tool_search_output",
];

/// The messages of a request behind those of the items `before` it. Instructions are of one request: those of earlier ones are
/// not among the items.
pub(super) fn read(fields: &Fields<'_>, before: &[Value], left: &mut LeftOut) -> Result<Value, ApiError> {
    let mut all = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        all.push(json!({"role": "system", "content": text}));
    }
    let input = required(fields, "input", fields.any("input"))?;
    let mut thought = String::new();
    let own = match input {
        Value::String(_) => &[],
        _ => fields.list("input", messages::MAX_MESSAGES)?.unwrap_or_default(),
    };
    let earlier = before.iter().enumerate().map(|(i, item)| (format!("previous_response_id[{i}]"), item));
    let own = own.iter().enumerate().map(|(i, item)| (format!("input[{i}]"), item));
    for (path, item) in earlier.chain(own) {
        let fields = Fields::at(item, path.as_str())?;
        let message = match fields.text("type")?.unwrap_or("message") {
            "message" => messages::read_one(item, &path, left)?,
            "function_call" => {
                let name = required(&fields, "name", fields.text("name")?)?;
                let name = match fields.text("namespace")? {
                    Some(namespace) => member_name(namespace, name),
                    None => name.to_owned(),
                };
                let arguments = fields.text("arguments")?.unwrap_or("{}");
                call(&fields, &path, &name, arguments.into(), left)?
            }
            "custom_tool_call" => {
                let name = required(&fields, "name", fields.text("name")?)?;
                let input = required(&fields, "input", fields.text("input")?)?;
                call(&fields, &path, name, json!({"input": input}), left)?
            }
            "local_shell_call" => {
                required(&fields, "action", fields.object("action")?)?;
                let mut action = item["action"].clone();
                if let Some(action) = action.as_object_mut() {
                    action.retain(|name, value| name != "type" && !value.is_null());
                }
                call(&fields, &path, LOCAL_SHELL, action, left)?
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                let id = fields.text("call_id")?.or(fields.text("id")?);
                let output = messages::text(&fields, "output", Source::Result, left)?;
                let output = required(&fields, "output", output)?;
                json!({"role": "tool", "content": output, "tool_call_id": required(&fields, "call_id", id)?})
            }
            // It belongs to the item behind it; the template decides what the model sees of it.
            "reasoning" => {
                thought = reasoning_text(&fields)?;
                if thought.is_empty() && fields.text("encrypted_content")?.is_some() {
                    left.add("reasoning.encrypted_content");
                }
                continue;
            }
            kind if LEFT_OUT.contains(&kind) => {
                left.add(&format!("input.{kind}"));
                continue;
            }
            _ => {
                let why = "must be message, reasoning, or a call of a function, custom tool or local shell, or its output";
                return Err(fields.refuse("type", why));
            }
        };
        add(&mut all, message, &std::mem::take(&mut thought));
    }
    if let Value::String(text) = input {
        all.push(json!({"role": "user", "content": text}));
    }
    if all.is_empty() { Err(fields.refuse("input", "must not be empty")) } else { Ok(all.into()) }
}

/// A call as a message of the assistant.
fn call(
    item: &Fields<'_>,
    path: &str,
    name: &str,
    arguments: Value,
    left: &mut LeftOut,
) -> Result<Value, ApiError> {
    let call = json!({
        "id": item.text("call_id")?.or(item.text("id")?).unwrap_or(""), "type": "function",
        "function": {"name": name, "arguments": arguments},
    });
    messages::read_one(&json!({"role": "assistant", "content": null, "tool_calls": [call]}), path, left)
}

/// Adds a message with the reasoning before it. Calls of one turn are items of their own and become one message with what
/// was said before them: templates want turns to alternate.
fn add(all: &mut Vec<Value>, mut message: Value, thought: &str) {
    let continues = message["role"] == "assistant" && message["content"] == "" && thought.is_empty();
    let last = all.last_mut().filter(|last| continues && last["role"] == "assistant");
    if let (Some(last), Some(calls)) = (last, message["tool_calls"].as_array()) {
        match last["tool_calls"].as_array_mut() {
            Some(before) => before.extend(calls.iter().cloned()),
            None => last["tool_calls"] = calls.clone().into(),
        }
        return;
    }
    if let Value::Object(members) = &mut message
        && members.get("role").is_some_and(|role| role == "assistant")
        && !thought.is_empty()
    {
        messages::remember(members, thought);
    }
    all.push(message);
}

/// What a reasoning item says: its text, or the summary that clients keep of it.
fn reasoning_text(item: &Fields<'_>) -> Result<String, ApiError> {
    for field in ["content", "summary"] {
        let mut text = String::new();
        for (i, part) in item.list(field, messages::MAX_MESSAGES)?.unwrap_or_default().iter().enumerate() {
            text.push_str(
                Fields::at(part, format!("{}[{i}]", item.name(field)))?.text("text")?.unwrap_or(""),
            );
        }
        if !text.is_empty() {
            return Ok(text);
        }
    }
    Ok(String::new())
}
