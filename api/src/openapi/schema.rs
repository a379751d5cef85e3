//! What schemas are made of: objects, numbers within bounds, texts, lists.

use serde_json::{Map, Value, json};

use crate::inference::ranges::Range;

/// A schema's name with the schema.
pub(super) type Named = (&'static str, Value);

/// A schema by its name.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An object with members given as `(name, schema)`, the first `required` of which must be there. The others may be null,
/// which counts as absent.
pub(super) fn object(required: usize, members: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = members.iter().take(required).map(|(name, _)| *name).collect();
    let may_be_null = |(index, (name, schema)): (usize, &(&str, Value))| {
        let schema = if index < required { schema.clone() } else { nullable(schema) };
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = members.iter().enumerate().map(may_be_null).collect();
    json!({"type": "object", "required": names, "properties": properties})
}

fn nullable(schema: &Value) -> Value {
    let nothing = json!({"type": "null"});
    match (&schema["type"], &schema["anyOf"], schema.get("enum").is_some()) {
        (Value::String(kind), _, false) => {
            let mut schema = schema.clone();
            schema["type"] = json!([kind, "null"]);
            schema
        }
        (_, Value::Array(choices), _) => {
            let mut choices = choices.clone();
            choices.push(nothing);
            json!({"anyOf": choices})
        }
        _ => json!({"anyOf": [schema, nothing]}),
    }
}

pub(super) fn number(range: &Range) -> Value {
    json!({"type": "number", "minimum": range.low, "maximum": range.high})
}

pub(super) fn integer(low: i64, high: i64) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": high})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn flag() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn list(of: Value, least: usize, most: usize) -> Value {
    json!({"type": "array", "items": of, "minItems": least, "maxItems": most})
}

pub(super) fn words(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

pub(super) fn any_of(choices: &[Value]) -> Value {
    json!({"anyOf": choices})
}

/// Any number of them.
pub(super) fn array(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

/// Text of at most so many characters.
pub(super) fn at_most(characters: usize) -> Value {
    json!({"type": "string", "maxLength": characters})
}

pub(super) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// An object all of whose members are always there.
pub(super) fn whole(members: &[(&str, Value)]) -> Value {
    object(members.len(), members)
}

pub(super) fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

pub(super) fn any_object() -> Value {
    json!({"type": "object"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_absent_may_be_null() {
        let schema = object(
            1,
            &[
                ("must", text()),
                ("may", integer(0, 9)),
                ("word", words(&["a"])),
                ("either", any_of(&[text(), flag()])),
                ("other", reference("Format")),
            ],
        );
        let of = |name: &str| schema["properties"][name].clone();
        assert_eq!(schema["required"], json!(["must"]));
        assert_eq!(of("must"), text());
        assert_eq!(of("may"), json!({"type": ["integer", "null"], "minimum": 0, "maximum": 9}));
        let nothing = json!({"type": "null"});
        assert_eq!(of("word"), json!({"anyOf": [words(&["a"]), nothing]}));
        assert_eq!(of("either"), json!({"anyOf": [text(), flag(), nothing]}));
        assert_eq!(of("other"), json!({"anyOf": [reference("Format"), nothing]}));
    }
}
