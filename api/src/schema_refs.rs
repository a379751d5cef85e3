//! References inside a schema that becomes a part of a larger one.
//!
//! What a client writes refers to its own root (`#/$defs/Point`, as pydantic does). Put into another schema, that root is
//! somewhere inside, and the references are made to say so.

use serde_json::Value;

/// Keys whose value is data, in which `$ref` means nothing.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keys whose value has names of the client's choosing, each with a schema.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// `schema` with its references moved below `place`, a path such as `/properties/arguments`.
pub fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                let value = match value {
                    Value::String(target) if key == "$ref" => Value::String(moved_target(target, place)),
                    Value::Object(map) if NAMED.contains(&key.as_str()) => Value::Object(
                        map.iter().map(|(name, part)| (name.clone(), moved(part, place))).collect(),
                    ),
                    value if DATA.contains(&key.as_str()) => value.clone(),
                    value => moved(value, place),
                };
                (key.clone(), value)
            };
            Value::Object(members.iter().map(member).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|part| moved(part, place)).collect()),
        other => other.clone(),
    }
}

fn moved_target(target: &str, place: &str) -> String {
    match target.strip_prefix('#') {
        Some("" | "/") => format!("#{place}"),
        Some(path) if path.starts_with('/') => format!("#{place}{path}"),
        // An anchor or another document: the compiler refuses it by name.
        _ => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_follow_the_schema_and_data_stays() {
        let schema = json!({
            "$defs": {"P": {"type": "object", "properties": {"next": {"$ref": "#/$defs/P"}}}},
            "properties": {
                "p": {"$ref": "#/$defs/P"},
                "all": {"$ref": "#"},
                "list": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]},
                "$ref": {"type": "string"},
                "const": {"$ref": "#/$defs/P"},
                "word": {"enum": [{"$ref": "#/x"}], "default": {"$ref": "#/y"}},
            }
        });
        let expected = json!({
            "$defs": {"P": {"type": "object", "properties": {"next": {"$ref": "#/a/b/$defs/P"}}}},
            "properties": {
                "p": {"$ref": "#/a/b/$defs/P"},
                "all": {"$ref": "#/a/b"},
                "list": {"anyOf": [{"$ref": "#/a/b/$defs/P"}, {"type": "null"}]},
                "$ref": {"type": "string"},
                "const": {"$ref": "#/a/b/$defs/P"},
                "word": {"enum": [{"$ref": "#/x"}], "default": {"$ref": "#/y"}},
            }
        });
        assert_eq!(moved(&schema, "/a/b"), expected);
        assert_eq!(moved(&json!({"$ref": "other.json#/a"}), "/x"), json!({"$ref": "other.json#/a"}));
    }
}
