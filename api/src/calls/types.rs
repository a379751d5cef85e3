//! The types that the schemas of the offered tools give their parameters.

use std::collections::HashMap;

use serde_json::Value;

use super::{json, pythonic};

/// Parts of one parameter's schema that are read. Past it, which takes unions of unions, the type is unknown.
const MAX_PARTS: usize = 64;

/// What a schema lets a value be: a set of JSON's types. The empty set is an unknown type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Type(u8);

impl Type {
    const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::default(),
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether a value is a string whatever it looks like, so that it can be given on as it comes.
    pub(super) fn is_string(self) -> bool {
        self == Self::STRING
    }

    pub(super) fn string() -> Self {
        Self::STRING
    }

    /// What a model wrote as a value, as JSON.
    pub(super) fn json(self, written: &str) -> String {
        let text = written.trim();
        if self.is_string() {
            return json::quoted(written);
        }
        if let Ok(value) = serde_json::from_str::<Value>(text) {
            // Where strings are allowed among others, quotes are a part of one.
            let kind = Self::of(&value);
            if !self.has(Self::STRING) || (kind != Self::STRING && self.has(kind)) {
                return json::compact(text);
            }
        }
        // Models that were trained on Python write `True` and `{'a': 1}`.
        let python = || (self != Self::default() && !self.has(Self::STRING)).then(|| pythonic::literal(text));
        python().flatten().unwrap_or_else(|| json::quoted(written))
    }

    /// The types that `schema`, a part of `root`, lets through.
    fn read(schema: &Value, root: &Value, parts: &mut usize) -> Self {
        let Some(rest) = parts.checked_sub(1) else { return Self::default() };
        *parts = rest;
        match schema.get("type") {
            Some(Value::String(name)) => return Self::named(name),
            Some(Value::Array(names)) => {
                return names
                    .iter()
                    .filter_map(Value::as_str)
                    .map(Self::named)
                    .fold(Self::default(), Self::or);
            }
            _ => {}
        }
        if let Some(value) = schema.get("const") {
            return Self::of(value);
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return values.iter().map(Self::of).fold(Self::default(), Self::or);
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
            return target.map_or_else(Self::default, |target| Self::read(target, root, parts));
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(Value::Array(choices)) = schema.get(union) {
                let mut all = Self::default();
                for choice in choices {
                    match Self::read(choice, root, parts) {
                        unknown if unknown == Self::default() => return unknown,
                        known => all = all.or(known),
                    }
                }
                return all;
            }
        }
        if let Some(Value::Array(all)) = schema.get("allOf") {
            let mut types = all.iter().map(|part| Self::read(part, root, parts));
            return types.find(|types| *types != Self::default()).unwrap_or_default();
        }
        Self::default()
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a value of `schema`, a part of `root`, stands in JSON where a call has its parameters between tags: it can be no
/// string. All others stand there as text.
pub fn is_written_as_json(schema: &Value, root: &Value) -> bool {
    let kind = Type::read(schema, root, &mut MAX_PARTS.clone());
    kind != Type::default() && !kind.has(Type::STRING)
}

/// The types of all parameters of all tools.
#[derive(Debug, Default)]
pub(crate) struct Types(HashMap<String, HashMap<String, Type>>);

impl Types {
    /// Reads them from tools as OpenAI has them.
    pub(crate) fn new(tools: &[Value]) -> Self {
        let of = |tool: &Value| {
            let (name, root) = (tool["function"]["name"].as_str()?, &tool["function"]["parameters"]);
            let typed = |(key, schema): (&String, &Value)| {
                (key.clone(), Type::read(schema, root, &mut MAX_PARTS.clone()))
            };
            let types = root.get("properties").and_then(Value::as_object);
            Some((name.to_owned(), types.into_iter().flatten().map(typed).collect()))
        };
        Self(tools.iter().filter_map(of).collect())
    }

    /// The type of the parameter `key` of `tool`.
    pub(super) fn of(&self, tool: &str, key: &str) -> Type {
        self.0.get(tool).and_then(|types| types.get(key)).copied().unwrap_or_default()
    }
}
