//! Messages as clients write them become messages as chat templates read them.
//!
//! Templates expect what Hugging Face's `apply_chat_template` is given: `content` as text, arguments of tool calls as
//! objects. Clients send lists of parts and arguments in strings. Models here read text: a note stands where an image or a
//! document was, and the answer says so ([`LeftOut`]). No URL is ever fetched, so what only a URL names is refused, except in
//! results of tools, which agents cannot change.

use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
    left_out::LeftOut,
};

/// More messages are refused; a context of a million tokens holds fewer in practice.
pub(crate) const MAX_MESSAGES: usize = 4096;
/// Parts of one message.
const MAX_PARTS: usize = 1024;

/// Whose text it is, which decides what becomes of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A turn of the conversation.
    Turn,
    /// The result of a tool.
    Result,
}

/// Reads `messages` of chat.
pub(crate) fn read(fields: &Fields<'_>, left: &mut LeftOut) -> Result<Value, ApiError> {
    let list = required(fields, "messages", fields.list("messages", MAX_MESSAGES)?)?;
    if list.is_empty() {
        return Err(fields.refuse("messages", "must have at least one message"));
    }
    let mut all = Vec::with_capacity(list.len());
    // The older form of calls has no ids: a result belongs to the call before it. Mistral's templates want nine digits.
    let mut called = None;
    for (i, message) in list.iter().enumerate() {
        let mut read = read_one(message, &format!("messages[{i}]"), left)?;
        if message["function_call"].is_object()
            && let Some(call) = read["tool_calls"].as_array_mut().and_then(|calls| calls.last_mut())
        {
            call["id"] = called.insert(format!("{i:09}")).as_str().into();
        }
        if let (true, Some(id)) = (message["role"] == "function", &called) {
            read["tool_call_id"] = id.as_str().into();
        }
        all.push(read);
    }
    Ok(all.into())
}

pub(crate) fn read_one(message: &Value, path: &str, left: &mut LeftOut) -> Result<Value, ApiError> {
    let fields = Fields::at(message, path)?;
    let role = match required(&fields, "role", fields.text("role")?)? {
        "developer" | "system" => "system",
        "function" | "tool" => "tool",
        role @ ("user" | "assistant") => role,
        _ => return Err(fields.refuse("role", "must be system, developer, user, assistant or tool")),
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let source = if role == "tool" { Source::Result } else { Source::Turn };
    let content = text(&fields, "content", source, left)?;
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
pub(crate) fn text(
    fields: &Fields<'_>,
    field: &str,
    source: Source,
    left: &mut LeftOut,
) -> Result<Option<String>, ApiError> {
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
            _ => all.push_str(&not_text(&part, source, left)?),
        }
    }
    Ok(Some(all))
}

/// What stands for a part that is no text, which is left out or refused.
pub(crate) fn not_text(part: &Fields<'_>, source: Source, left: &mut LeftOut) -> Result<String, ApiError> {
    let is_inline = match part.text("type")?.unwrap_or_default() {
        "image_url" | "input_image" => is_data(part)?,
        "image" => is_inline(part)?,
        "document" => {
            let inner = required(part, "source", part.object("source")?)?;
            if inner.text("type")? == Some("text") {
                return Ok(required(&inner, "data", inner.text("data")?)?.to_owned());
            }
            if source == Source::Turn {
                return Err(part.refuse("source", "must be text: the models here read nothing else"));
            }
            left.add("documents");
            return Ok("[document left out: this model reads text]".into());
        }
        // The tool is offered from the beginning, whatever finds it.
        "tool_reference" if source == Source::Result => {
            return Ok(required(part, "tool_name", part.text("tool_name")?)?.to_owned());
        }
        _ => {
            let why = "must be text: the models here read nothing else, and nothing is fetched from URLs";
            return Err(part.refuse("type", why));
        }
    };
    if !is_inline && source == Source::Turn {
        let why = "must be text or an image within the request: nothing is fetched from URLs";
        return Err(part.refuse("type", why));
    }
    left.add("images");
    Ok("[image left out: this model reads text]".into())
}

/// Whether an image of OpenAI's is in the request itself.
fn is_data(part: &Fields<'_>) -> Result<bool, ApiError> {
    // Chat has the URL in an object, Responses has it bare, or the name of a file.
    let url = match part.any("image_url") {
        Some(Value::Object(_)) => match part.object("image_url")? {
            Some(image) => required(&image, "url", image.text("url")?)?,
            None => "",
        },
        Some(_) => required(part, "image_url", part.text("image_url")?)?,
        None => {
            required(part, "image_url", part.text("file_id")?)?;
            return Ok(false);
        }
    };
    Ok(url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")))
}

/// Whether an image of Anthropic's is in the request itself.
fn is_inline(part: &Fields<'_>) -> Result<bool, ApiError> {
    let source = required(part, "source", part.object("source")?)?;
    match required(&source, "type", source.text("type")?)? {
        "base64" => required(&source, "data", source.text("data")?).map(|_| true),
        "url" => required(&source, "url", source.text("url")?).map(|_| false),
        "file" => required(&source, "file_id", source.text("file_id")?).map(|_| false),
        _ => Err(source.refuse("type", "must be base64, url or file")),
    }
}

/// Adds to the system message what `verbosity` asks for. Where there is none it is left out: not every template takes one.
pub(crate) fn verbosity(
    fields: &Fields<'_>,
    messages: &mut Value,
    left: &mut LeftOut,
) -> Result<(), ApiError> {
    let line = match fields.one_of("verbosity", &["low", "medium", "high"], |word| word)? {
        Some("low") => "Keep your answers short.",
        Some("high") => "Answer at length and in detail.",
        _ => return Ok(()),
    };
    match messages.get_mut(0).filter(|first| first["role"] == "system") {
        Some(system) => {
            let text = system["content"].as_str().unwrap_or_default();
            system["content"] = format!("{text}\n\n{line}").into();
        }
        None => left.add("verbosity"),
    }
    Ok(())
}

fn calls(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut calls = Vec::new();
    for (i, call) in fields.list("tool_calls", MAX_PARTS)?.unwrap_or_default().iter().enumerate() {
        let call = Fields::at(call, format!("{}[{i}]", fields.name("tool_calls")))?;
        let function = required(&call, "function", call.object("function")?)?;
        calls.push(self::call(call.text("id")?.unwrap_or(""), &function)?);
    }
    // The older form, one call in a message.
    if let Some(function) = fields.object("function_call")? {
        calls.push(call("", &function)?);
    }
    Ok(calls)
}

fn call(id: &str, function: &Fields<'_>) -> Result<Value, ApiError> {
    let name = required(function, "name", function.text("name")?)?;
    let arguments = match function.any("arguments") {
        None => json!({}),
        // What is no JSON stays the text it is: the model wrote it so.
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Some(value) => value.clone(),
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
