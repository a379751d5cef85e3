//! Calls that are JSON as a whole.

use serde_json::{Value, json};

use super::Call;

/// Where brackets and strings of JSON begin and end, character by character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Json {
    pub depth: usize,
    pub text: bool,
    pub escaped: bool,
}

impl Json {
    pub(super) fn take(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.text => self.escaped = true,
            '"' => self.text = !self.text,
            _ if self.text => {}
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// `json` without white space between its tokens.
pub(super) fn compact(json: &str) -> String {
    let mut scan = Json::default();
    let kept = |c: &char| {
        scan.take(*c);
        scan.text || !c.is_whitespace()
    };
    json.chars().filter(kept).collect()
}

/// `text` as a string of JSON.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `f>{...}`.
pub(super) fn function_call(body: &str) -> Option<Call> {
    let (name, arguments) = body.split_once('>')?;
    let call =
        json!({"name": name.trim(), "arguments": serde_json::from_str::<Value>(arguments.trim()).ok()?});
    json_call(&call)
}

/// `f[ARGS]{...}` or `f{...}`.
pub(super) fn named_call(body: &str) -> Option<Call> {
    let (name, arguments) = body.split_at(body.find('{')?);
    let name = name.split('[').next()?.trim();
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    Some((name.to_owned(), arguments.to_string()))
}

/// One call, a list of calls, or several calls with `;`, `,` or white space between; the end of a list whose first calls
/// are known already may follow.
pub(super) fn json_calls(body: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(list) => {
                for value in &list {
                    calls.push(json_call(value)?);
                }
            }
            value => calls.push(json_call(&value)?),
        }
        let read = values.byte_offset();
        rest = rest[read..].trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | ']'));
    }
    Some(calls)
}

fn json_call(value: &Value) -> Option<Call> {
    let object = match value.get("function") {
        Some(function @ Value::Object(_)) => function,
        _ => value,
    };
    let name = object.get("name").or_else(|| object.get("function"))?.as_str()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"));
    let arguments = match arguments {
        Some(Value::String(text)) => serde_json::from_str::<Value>(text).ok()?.to_string(),
        Some(value @ Value::Object(_)) => value.to_string(),
        None => "{}".to_owned(),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}
