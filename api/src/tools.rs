//! Finds calls of tools in the text a model writes, as the text comes.
//!
//! Models mark calls in four ways, all of which are understood whatever the model, because conversions of models mix
//! their templates:
//!
//! | family | form |
//! |---|---|
//! | Hermes, Qwen | `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, any number of times |
//! | Llama 3 | the whole answer is `{"name": "f", "parameters": {...}}`, perhaps behind `<|python_tag|>`, several joined by `;` |
//! | Llama 3 (custom) | `<function=f>{...}</function>` |
//! | Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {...}}]` or `[TOOL_CALLS]f[ARGS]{...}` |
//!
//! Text that may be the beginning of a mark is held back until it is known to be one or not. What looks like a call but
//! is none (not JSON, a name that was not offered) is given as the text it is.
//!
//! Bounds: a call has at most [`MAX_CALL_BYTES`]; a longer one is given as text and nothing more is looked for.

use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
    inference::Format,
    schema_refs,
};

/// Longer calls are text. The longest arguments in practice are whole source files.
const MAX_CALL_BYTES: usize = 1 << 20;
/// OpenAI's own bound.
const MAX_TOOLS: usize = 128;
/// Values in all tools together: a hundred tools with a dozen described parameters each. Templates print them all, and a
/// million-token context is full long before.
const MAX_TOOL_VALUES: usize = 1 << 14;
/// OpenAI's own bound on names.
const MAX_NAME_BYTES: usize = 64;

/// Marks and what ends them; those without an end reach to the end of the answer.
const MARKS: &[(&str, Option<&str>)] = &[
    ("<tool_call>", Some("</tool_call>")),
    ("<function=", Some("</function>")),
    ("<|python_tag|>", None),
    ("[TOOL_CALLS]", None),
];

/// The first keys by which a bare JSON object is suspected to be a call.
const FIRST_KEYS: &[&str] = &["\"name\"", "\"function\"", "\"type\"", "\"parameters\"", "\"arguments\""];

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, as the API's clients want it: in a string.
    pub arguments: String,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parsed {
    Text(String),
    Call(ToolCall),
}

/// The tools a request offers and what it says about their use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    /// As OpenAI has them, for the template; `None` when none may be called.
    pub tools: Option<Value>,
    /// Their names.
    pub names: Vec<String>,
    /// What the answer must look like, when a call is demanded.
    pub forced: Option<Format>,
}

impl Offer {
    /// Reads `tools` and `tool_choice` of OpenAI's chat.
    pub(crate) fn openai(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let mut tools = Vec::new();
        for (i, tool) in fields.list("tools", MAX_TOOLS)?.unwrap_or_default().iter().enumerate() {
            let tool = Fields::at(tool, format!("tools[{i}]"))?;
            if tool.text("type")?.is_some_and(|kind| kind != "function") {
                return Err(tool.refuse("type", "must be `function`"));
            }
            // The Responses API has the function's members in the tool itself.
            let function = tool.object("function")?.unwrap_or(tool);
            tools.push(Self::function(&function, "parameters")?);
        }
        let choice = match fields.any("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "required" | "any" => Choice::Required,
                _ => return Err(fields.refuse("tool_choice", "must be none, auto, required or a function")),
            },
            Some(value) => {
                let choice = Fields::at(value, "tool_choice")?;
                let function = choice.object("function")?.unwrap_or(choice);
                Choice::Named(required(&function, "name", function.text("name")?)?.to_owned())
            }
        };
        Self::new(tools, choice, "tool_choice")
    }

    /// Reads a tool's name, description and schema, which is called `schema` there.
    pub(crate) fn function(function: &Fields<'_>, schema: &str) -> Result<Value, ApiError> {
        let name = required(function, "name", function.text("name")?)?;
        let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !letters {
            return Err(function.refuse("name", "must be 1 to 64 letters, digits, `_`, `-` or `.`"));
        }
        let parameters = match function.object(schema)? {
            Some(_) => function.any(schema).cloned().unwrap_or_default(),
            None => json!({"type": "object", "properties": {}}),
        };
        let description = function.text("description")?.unwrap_or("");
        Ok(json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters}
        }))
    }

    /// Puts tools and choice together; `field` is what a refusal of the choice names.
    pub(crate) fn new(tools: Vec<Value>, choice: Choice, field: &str) -> Result<Self, ApiError> {
        if tools.iter().map(values).sum::<usize>() > MAX_TOOL_VALUES {
            let why = format_args!("may have at most {MAX_TOOL_VALUES} values; offer fewer or simpler tools");
            return Err(ApiError::field("tools", why));
        }
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
        let names: Vec<String> = tools.iter().map(name).collect();
        let demanded = |tool: &&Value| match &choice {
            Choice::Required => true,
            Choice::Named(wanted) => name(tool) == *wanted,
            Choice::Auto | Choice::None => false,
        };
        let demanded: Vec<&Value> = tools.iter().filter(demanded).collect();
        let place = |at: usize| if demanded.len() == 1 { String::new() } else { format!("/anyOf/{at}") };
        let schemas: Vec<Value> =
            demanded.iter().enumerate().map(|(at, tool)| call_schema(tool, &place(at))).collect();
        let forces = matches!(choice, Choice::Required | Choice::Named(_));
        if forces && schemas.is_empty() {
            return Err(ApiError::field(field, "demands a tool that is not in `tools`"));
        }
        if tools.is_empty() || matches!(choice, Choice::None) {
            return Ok(Self::default());
        }
        let forced = match <[Value; 1]>::try_from(schemas) {
            Ok([schema]) => Some(Format::JsonSchema(schema)),
            Err(schemas) => (!schemas.is_empty()).then(|| Format::JsonSchema(json!({"anyOf": schemas}))),
        };
        Ok(Self { tools: Some(Value::Array(tools)), names, forced })
    }
}

/// What a request says about the use of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

/// How many values are in `value`, itself among them. Bodies are no deeper than [`crate::body::MAX_DEPTH`].
fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// What a demanded call looks like: a bare object, which the parser takes for a call whatever the model. It will stand at
/// `place` of a larger schema.
fn call_schema(tool: &Value, place: &str) -> Value {
    let function = &tool["function"];
    let arguments = schema_refs::moved(&function["parameters"], &format!("{place}/properties/arguments"));
    json!({
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false
    })
}

/// Separates calls from text.
#[derive(Debug)]
pub(crate) struct Parser {
    state: State,
    held: String,
    names: Vec<String>,
    seed: u64,
    calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came.
    Start,
    /// Text, in which a mark may come.
    Text,
    /// Behind a mark of the table.
    Marked(usize),
    /// In a JSON object that may be a call.
    Bare,
    /// Nothing is looked for any more.
    Plain,
}

impl Parser {
    /// A parser for calls of `names`; call ids follow from `seed`. Without names everything is text.
    pub(crate) fn new(names: Vec<String>, seed: u64) -> Self {
        let state = if names.is_empty() { State::Plain } else { State::Start };
        Self { state, held: String::new(), names, seed, calls: 0 }
    }

    /// Takes more text and gives what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Parsed> {
        let mut out = Vec::new();
        self.held.push_str(text);
        while self.step(&mut out) {}
        if self.held.len() > MAX_CALL_BYTES {
            self.state = State::Plain;
            self.flush(&mut out);
        }
        out
    }

    /// The answer is at its end.
    pub(crate) fn finish(&mut self) -> Vec<Parsed> {
        let mut out = Vec::new();
        let body = match self.state {
            State::Bare => Some(self.held.trim()),
            State::Marked(mark) => Some(self.held.trim().trim_start_matches(MARKS[mark].0).trim()),
            State::Start | State::Text | State::Plain => None,
        };
        let calls = body.and_then(|body| self.calls_of(body));
        match calls {
            Some(calls) => {
                self.held.clear();
                self.emit(calls, &mut out);
            }
            None => self.flush(&mut out),
        }
        self.state = State::Plain;
        out
    }

    fn flush(&mut self, out: &mut Vec<Parsed>) {
        if !self.held.is_empty() {
            out.push(Parsed::Text(std::mem::take(&mut self.held)));
        }
    }

    /// One move; whether another may follow.
    fn step(&mut self, out: &mut Vec<Parsed>) -> bool {
        match self.state {
            State::Plain => {
                self.flush(out);
                false
            }
            State::Start => match suspicion(self.held.trim_start()) {
                Suspicion::Undecided => false,
                Suspicion::Call => {
                    self.state = State::Bare;
                    false
                }
                Suspicion::None => {
                    self.state = State::Text;
                    true
                }
            },
            State::Bare => false,
            State::Text => self.find_mark(out),
            State::Marked(mark) => self.find_end(mark, out),
        }
    }

    fn find_mark(&mut self, out: &mut Vec<Parsed>) -> bool {
        let found = MARKS.iter().enumerate().filter_map(|(i, mark)| Some((self.held.find(mark.0)?, i))).min();
        if let Some((at, mark)) = found {
            let text: String = self.held.drain(..at).collect();
            // White space around calls is layout.
            if !text.trim().is_empty() {
                out.push(Parsed::Text(text));
            }
            self.state = State::Marked(mark);
            return true;
        }
        let keep = (0..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| MARKS.iter().any(|mark| mark.0.starts_with(&self.held[*at..])))
            .unwrap_or(self.held.len());
        // White space behind a call waits, too: another call or the end may follow.
        let keep = if self.calls > 0 && self.held[..keep].trim().is_empty() { 0 } else { keep };
        if keep > 0 {
            out.push(Parsed::Text(self.held.drain(..keep).collect()));
        }
        false
    }

    fn find_end(&mut self, mark: usize, out: &mut Vec<Parsed>) -> bool {
        let (begin, Some(end)) = MARKS[mark] else { return false };
        let Some(at) = self.held.find(end) else { return false };
        let whole: String = self.held.drain(..at + end.len()).collect();
        let body = &whole[begin.len()..at];
        let body = if begin == "<function=" { function_body(body) } else { Some(body.trim().to_owned()) };
        match body.and_then(|body| self.calls_of(&body)) {
            Some(calls) => self.emit(calls, out),
            None => out.push(Parsed::Text(whole)),
        }
        self.state = State::Text;
        true
    }

    fn emit(&mut self, calls: Vec<(String, Value)>, out: &mut Vec<Parsed>) {
        for (name, arguments) in calls {
            let id = call_id(self.seed, self.calls);
            self.calls += 1;
            out.push(Parsed::Call(ToolCall { id, name, arguments: arguments.to_string() }));
        }
    }

    /// The calls in `body`, if it consists of calls of offered tools.
    fn calls_of(&self, body: &str) -> Option<Vec<(String, Value)>> {
        let calls = if body.starts_with(['{', '[']) { json_calls(body)? } else { vec![named_call(body)?] };
        let known = calls.iter().all(|(name, _)| self.names.contains(name));
        (known && !calls.is_empty()).then_some(calls)
    }
}

enum Suspicion {
    None,
    Call,
    Undecided,
}

/// Whether an answer that begins so may be a bare call.
fn suspicion(text: &str) -> Suspicion {
    if text.is_empty() {
        return Suspicion::Undecided;
    }
    let Some(inside) = text.strip_prefix('{').or_else(|| text.strip_prefix('[')) else {
        return Suspicion::None;
    };
    let inside = inside.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
    if inside.is_empty() || FIRST_KEYS.iter().any(|key| key.starts_with(inside)) {
        Suspicion::Undecided
    } else if FIRST_KEYS.iter().any(|key| inside.starts_with(key)) {
        Suspicion::Call
    } else {
        Suspicion::None
    }
}

/// `f>{...}` as the JSON of a call.
fn function_body(body: &str) -> Option<String> {
    let (name, arguments) = body.split_once('>')?;
    let arguments: Value = serde_json::from_str(arguments.trim()).ok()?;
    Some(json!({"name": name.trim(), "arguments": arguments}).to_string())
}

/// `f[ARGS]{...}` or `f{...}`.
fn named_call(body: &str) -> Option<(String, Value)> {
    let (name, arguments) = body.split_at(body.find('{')?);
    let name = name.split('[').next()?.trim();
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    Some((name.to_owned(), arguments))
}

/// One call, a list of calls, or several calls with `;`, `,` or white space between.
fn json_calls(body: &str) -> Option<Vec<(String, Value)>> {
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
        rest = rest[read..].trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
    }
    Some(calls)
}

fn json_call(value: &Value) -> Option<(String, Value)> {
    let object = match value.get("function") {
        Some(function @ Value::Object(_)) => function,
        _ => value,
    };
    let name = object.get("name").or_else(|| object.get("function"))?.as_str()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"));
    let arguments = match arguments {
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(value @ Value::Object(_)) => value.clone(),
        None => json!({}),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// Nine letters and digits, which is what Mistral's templates insist on; the same for the same seed and number.
fn call_id(seed: u64, number: u64) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // SplitMix64: any mixing would do, it only has to look different each time.
    let mut x = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let digit = |i: u32| char::from(ALPHABET[(x / 36u64.pow(i) % 36) as usize]);
    (0..9).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, step: usize) -> (String, Vec<(String, String)>) {
        let mut parser = Parser::new(vec!["get_weather".into(), "add".into()], 7);
        let chars: Vec<char> = text.chars().collect();
        let mut parsed = Vec::new();
        for piece in chars.chunks(step) {
            parsed.extend(parser.push(&piece.iter().collect::<String>()));
        }
        parsed.extend(parser.finish());
        let mut texts = String::new();
        let mut calls = Vec::new();
        for piece in parsed {
            match piece {
                Parsed::Text(text) => texts.push_str(&text),
                Parsed::Call(call) => calls.push((call.name, call.arguments)),
            }
        }
        (texts, calls)
    }

    #[test]
    fn every_family_is_understood_however_it_is_cut() {
        let paris = ("get_weather".to_owned(), r#"{"city":"Paris"}"#.to_owned());
        let sum = ("add".to_owned(), r#"{"a":1,"b":2}"#.to_owned());
        type Case<'a> = (&'a str, &'a str, &'a [&'a (String, String)]);
        let cases: &[Case<'_>] = &[
            (
                "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
                "I look.\n",
                &[&paris],
            ),
            (
                "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":1,\"b\":2}}</tool_call>\n",
                "\n",
                &[&paris, &sum],
            ),
            (r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#, "", &[&paris]),
            (
                r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "add", "parameters": {"a":1,"b":2}}"#,
                "",
                &[&paris, &sum],
            ),
            (r#"<function=get_weather>{"city": "Paris"}</function>"#, "", &[&paris]),
            (
                r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": "{\"a\":1,\"b\":2}"}]"#,
                "",
                &[&paris, &sum],
            ),
            (r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}"#, "", &[&paris]),
            (r#" [{"name": "add", "arguments": {"a":1,"b":2}}]"#, "", &[&sum]),
        ];
        for (text, rest, calls) in cases {
            for step in [1, 2, 3, 7, 1000] {
                let (texts, found) = parse(text, step);
                assert_eq!(found.iter().collect::<Vec<_>>(), *calls, "{text} in steps of {step}");
                assert_eq!(texts, *rest, "{text} in steps of {step}");
            }
        }
    }

    #[test]
    fn what_is_no_call_stays_the_text_it_is() {
        for text in [
            "plain",
            "a < b and [1, 2] and <tool",
            r#"{"name": "unknown", "parameters": {}}"#,
            r#"{"answer": 42}"#,
            r#"{"name": "add", "parameters": {"#,
            "<tool_call>no json</tool_call> and more",
            "[TOOL_CALLS] nothing",
            "  ",
        ] {
            for step in [1, 5, 1000] {
                let (texts, calls) = parse(text, step);
                assert_eq!(texts, text);
                assert_eq!(calls, []);
            }
        }
    }

    #[test]
    fn text_is_not_held_longer_than_it_must_be() {
        let mut parser = Parser::new(vec!["add".into()], 0);
        assert_eq!(parser.push("Hello <b"), [Parsed::Text("Hello <b".into())]);
        assert_eq!(parser.push(" <too"), [Parsed::Text(" ".into())]);
        assert_eq!(parser.push("ls>"), [Parsed::Text("<tools>".into())]);
    }

    #[test]
    fn ids_are_nine_letters_or_digits_and_repeat_with_the_seed() {
        let ids: Vec<String> = (0..100).map(|n| call_id(1, n)).collect();
        assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())));
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 100);
        assert_eq!(call_id(1, 5), ids[5]);
    }
}
