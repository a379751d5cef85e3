//! Messages as clients write them become messages as chat templates read them.
//!
//! Templates expect what Hugging Face's `apply_chat_template` is given: `content` as text, arguments of tool calls as
//! objects. Clients send lists of parts and arguments in strings. Nothing but text is taken: no URL is ever fetched.

use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
};

/// More messages are refused; a context of a million tokens holds fewer in practice.
pub(crate) const MAX_MESSAGES: usize = 4096;
/// Parts of one message.
const MAX_PARTS: usize = 1024;

/// Reads `messages` of chat.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Value, ApiError> {
    let list = required(fields, "messages", fields.list("messages", MAX_MESSAGES)?)?;
    if list.is_empty() {
        return Err(fields.refuse("messages", "must have at least one message"));
    }
    list.iter().enumerate().map(|(i, message)| read_one(message, &format!("messages[{i}]"))).collect()
}

pub(crate) fn read_one(message: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::at(message, path)?;
    let role = match required(&fields, "role", fields.text("role")?)? {
        "developer" | "system" => "system",
        "function" | "tool" => "tool",
        role @ ("user" | "assistant") => role,
        _ => return Err(fields.refuse("role", "must be system, developer, user, assistant or tool")),
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let content = text(&fields, "content")?;
    // What the model thought: DeepSeek's, OpenRouter's and Ollama's name for it. Templates decide what of it they show.
    let mut reasoning = None;
    for field in ["reasoning_content", "reasoning", "thinking"] {
        reasoning = reasoning.or(fields.text(field)?);
    }
    let calls = calls(&fields)?;
    if content.is_none() && calls.is_empty() && reasoning.is_none() {
        return Err(fields.refuse("content", "is required"));
    }
    out.insert("content".into(), content.unwrap_or_default().into());
    if let Some(text) = reasoning.filter(|text| role == "assistant" && !text.is_empty()) {
        remember(&mut out, text);
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), calls.into());
    }
    for field in ["name", "tool_call_id"] {
        if let Some(text) = fields.text(field)? {
            out.insert(field.into(), text.into());
        }
    }
    Ok(Value::Object(out))
}

/// Puts what the model thought into its message, under the names that templates read. That of gpt-oss takes it beside a
/// call only.
pub(crate) fn remember(message: &mut Map<String, Value>, text: &str) {
    message.insert("reasoning_content".into(), text.into());
    if message.get("content").and_then(Value::as_str).is_none_or(str::is_empty) {
        message.insert("thinking".into(), text.into());
    }
}

/// Text given as a string or as a list of parts of text.
pub(crate) fn text(fields: &Fields<'_>, field: &str) -> Result<Option<String>, ApiError> {
    match fields.any(field) {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(_) => {}
    }
    let mut all = String::new();
    for (i, part) in fields.list(field, MAX_PARTS)?.unwrap_or_default().iter().enumerate() {
        let part = Fields::at(part, format!("{}[{i}]", fields.name(field)))?;
        match required(&part, "type", part.text("type")?)? {
            "text" | "input_text" | "output_text" => {
                all.push_str(required(&part, "text", part.text("text")?)?);
            }
            "refusal" => all.push_str(part.text("refusal")?.unwrap_or_default()),
            _ => {
                let why = "must be text: the models here read nothing else, and nothing is fetched from URLs";
                return Err(part.refuse("type", why));
            }
        }
    }
    Ok(Some(all))
}

fn calls(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut calls = Vec::new();
    for (i, call) in fields.list("tool_calls", MAX_PARTS)?.unwrap_or_default().iter().enumerate() {
        let call = Fields::at(call, format!("{}[{i}]", fields.name("tool_calls")))?;
        let function = required(&call, "function", call.object("function")?)?;
        let name = required(&function, "name", function.text("name")?)?;
        let arguments = match function.any("arguments") {
            None => json!({}),
            // What is no JSON stays the text it is: the model wrote it so.
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
            Some(value) => value.clone(),
        };
        let id = call.text("id")?.unwrap_or("");
        calls.push(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments}
        }));
    }
    Ok(calls)
}
