//! The tools a request offers, and what it says about their use. `calls.rs` finds the calls in the answer.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    calls::Types,
    error::ApiError,
    fields::{Fields, required},
    inference::{CallForm, Failure, Format},
    left_out::LeftOut,
    schema, schema_loose, schema_refs,
};

/// OpenAI's own bound, taken for Anthropic's, too.
pub(crate) const MAX_TOOLS: usize = 128;
/// Values in all tools together: a hundred tools with a dozen described parameters each. Templates print them all, and a
/// million-token context is full long before.
const MAX_TOOL_VALUES: usize = 1 << 14;
/// Bytes of all tools together, as much as the compiler of forms takes.
const MAX_TOOL_BYTES: usize = 1 << 20;
/// OpenAI's own bound on names.
const MAX_NAME_BYTES: usize = 64;

/// Keywords of a schema that lists no properties and speaks of none.
const EMPTY: &[&str] = &["type", "properties", "required", "title", "description", "$schema"];

/// Why a choice of a tool that was left out is refused.
pub(crate) const DEMANDS_LEFT_OUT: &str =
    "demands a tool that this node leaves out: its vendor runs or defines it; offer a function instead";

/// The tools a request offers and what it says about their use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    /// As OpenAI has them, for the template; `None` when none may be called.
    pub tools: Option<Value>,
    /// Their names.
    pub names: Vec<String>,
    /// The types of their parameters.
    pub types: Arc<Types>,
    /// What the answer must look like, when a call is demanded.
    pub forced: Option<Format>,
    /// What a call looks like, when there may be one.
    pub free: Option<Format>,
    /// The tool that must be called, where it is one.
    pub demanded: Option<String>,
    /// Whether an answer may hold one call only.
    pub single: bool,
    /// What of the tools' schemas no answer is held to.
    pub left_out: Vec<String>,
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
            let function = tool.object("function")?.unwrap_or(tool);
            tools.push(Self::function(&function, "parameters")?);
        }
        Self::new(tools, Choice::openai(fields)?, "tool_choice")?.limited(fields)
    }

    /// The same, of which an answer may hold one call only where `parallel_tool_calls` is false.
    pub(crate) fn limited(self, fields: &Fields<'_>) -> Result<Self, ApiError> {
        let several = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        Ok(Self { single: !several, ..self })
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
        let is_object = match &parameters["type"] {
            Value::Null => true,
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
            kind => kind == "object",
        };
        if !is_object {
            return Err(
                function.refuse(schema, "must be the schema of an object: a call has named arguments")
            );
        }
        let description = function.text("description")?.unwrap_or("");
        let mut made = json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters}
        });
        if function.bool("strict")?.unwrap_or(false) {
            // Until [`Offer::new`]: no template shows it.
            made["strict"] = true.into();
        }
        Ok(made)
    }

    /// Puts tools and choice together; `field` is what a refusal of the choice names.
    pub(crate) fn new(mut tools: Vec<Value>, choice: Choice, field: &str) -> Result<Self, ApiError> {
        let is_strict = |tool: &mut Value| tool.as_object_mut()?.shift_remove("strict")?.as_bool();
        let strict: Vec<bool> = tools.iter_mut().map(|tool| is_strict(tool).unwrap_or(false)).collect();
        if tools.iter().map(values).sum::<usize>() > MAX_TOOL_VALUES {
            let why = format_args!("may have at most {MAX_TOOL_VALUES} values; offer fewer or simpler tools");
            return Err(ApiError::field("tools", why));
        }
        if tools.iter().map(schema::size).sum::<usize>() > MAX_TOOL_BYTES {
            let most = MAX_TOOL_BYTES >> 10;
            return Err(ApiError::field("tools", format_args!("may have at most {most} KiB; offer fewer")));
        }
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
        let names: Vec<String> = tools.iter().map(name).collect();
        let demanded = |at: &usize| match &choice {
            Choice::Required => true,
            Choice::Named(wanted) => names[*at] == *wanted,
            Choice::Auto | Choice::None => false,
        };
        let demanded: Vec<usize> = (0..tools.len()).filter(demanded).collect();
        let place = |at: usize| if demanded.len() == 1 { String::new() } else { format!("/anyOf/{at}") };
        let (mut room, mut left_out) = (schema::Room::full(), Vec::new());
        let mut closed = |at: usize| {
            let closed = schema::close(&tools[at]["function"]["parameters"], &mut room);
            let mut closed = closed.map_err(|why| {
                ApiError::field("tools", format_args!("has `{}`, whose schema {why}", names[at]))
            })?;
            if !strict[at] {
                let mut left = |keyword: &str| left_out.push(format!("tools.{}.{keyword}", names[at]));
                schema_loose::loosen(&mut closed, &mut left);
            }
            let lists_none = closed["properties"].as_object().is_some_and(serde_json::Map::is_empty);
            if let Some(schema) = closed.as_object_mut() {
                schema.insert("type".into(), "object".into());
                if lists_none && schema.keys().all(|key| EMPTY.contains(&key.as_str())) {
                    schema.insert("additionalProperties".into(), false.into());
                }
            }
            Ok::<_, ApiError>(closed)
        };
        let mut schemas = Vec::new();
        for (number, at) in demanded.iter().enumerate() {
            schemas.push(call_schema(&tools[*at], &closed(*at)?, &place(number)));
        }
        let forces = matches!(choice, Choice::Required | Choice::Named(_));
        if forces && schemas.is_empty() {
            return Err(ApiError::field(field, "demands a tool that is not in `tools`"));
        }
        if tools.is_empty() || matches!(choice, Choice::None) {
            return Ok(Self::default());
        }
        let one = match demanded[..] {
            [at] => Some(names[at].clone()),
            _ => None,
        };
        let forced = match <[Value; 1]>::try_from(schemas) {
            Ok([schema]) => Some(Format::JsonSchema(schema)),
            Err(schemas) => (!schemas.is_empty()).then(|| Format::JsonSchema(json!({"anyOf": schemas}))),
        };
        let mut form = |at: usize| Ok(CallForm { name: names[at].clone(), parameters: closed(at)? });
        let free = match forced {
            Some(_) => None,
            None => Some(Format::Calls((0..tools.len()).map(&mut form).collect::<Result<_, ApiError>>()?)),
        };
        let demanded = one.filter(|_| forced.is_some());
        let types = Arc::new(Types::new(&tools));
        let tools = Some(Value::Array(tools));
        Ok(Self { tools, names, types, forced, free, demanded, single: false, left_out })
    }

    /// Notes what of the tools has no effect on an answer in `format`: a form holds from the first token, so that no call fits it.
    pub(crate) fn tell(&self, format: &Format, left: &mut LeftOut) {
        self.left_out.iter().for_each(|part| left.add(part));
        if self.free.is_some() && *format != Format::Text {
            left.add("tools");
        }
    }

    /// A failure to answer in `format`: where that form was made of the tools, they are to blame.
    pub(crate) fn blame(&self, format: &Format, failure: Failure) -> Failure {
        let made = [&self.forced, &self.free].into_iter().flatten().any(|form| form == format);
        match failure {
            Failure::Invalid { field: Some("response_format"), why } if made => {
                let why = match &self.demanded {
                    Some(name) => format!("the tool `{name}`: {why}"),
                    None => why,
                };
                Failure::Invalid { field: Some("tools"), why }
            }
            other => other,
        }
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

impl Choice {
    /// Reads OpenAI's `tool_choice`.
    pub(crate) fn openai(fields: &Fields<'_>) -> Result<Self, ApiError> {
        Ok(match fields.any("tool_choice") {
            None => Self::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "auto" => Self::Auto,
                "none" => Self::None,
                "required" | "any" => Self::Required,
                _ => return Err(fields.refuse("tool_choice", "must be none, auto, required or a function")),
            },
            Some(value) => {
                let choice = Fields::at(value, "tool_choice")?;
                if choice.text("type")? == Some("allowed_tools") {
                    let why =
                        "`allowed_tools` is not supported: offer those tools only, and say auto or required";
                    return Err(fields.refuse("tool_choice", why));
                }
                let function = choice.object("function")?.unwrap_or(choice);
                Self::Named(required(&function, "name", function.text("name")?)?.to_owned())
            }
        })
    }

    /// Refuses a choice that only one of the tools `left` out could meet; `offered` are those that the model is told of.
    pub(crate) fn check(&self, offered: &[Value], left: &[&str], field: &str) -> Result<(), ApiError> {
        let is_offered = |name: &str| offered.iter().any(|tool| tool["function"]["name"] == name);
        let is_lost = match self {
            Self::Named(name) => left.contains(&name.as_str()) && !is_offered(name),
            Self::Required => offered.is_empty() && !left.is_empty(),
            Self::Auto | Self::None => false,
        };
        if is_lost { Err(ApiError::field(field, DEMANDS_LEFT_OUT)) } else { Ok(()) }
    }
}

/// How many values are in `value`, itself among them. Bodies are no deeper than [`crate::body::MAX_DEPTH`].
fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// What a demanded call looks like: a bare object, which the parser takes for a call whatever the model. Its arguments are
/// those that the tool's `closed` parameters list. It will stand at `place` of a larger schema.
fn call_schema(tool: &Value, closed: &Value, place: &str) -> Value {
    let arguments = schema_refs::moved(closed, &format!("{place}/properties/arguments"));
    json!({
        "type": "object",
        "properties": {"name": {"const": tool["function"]["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false
    })
}
