//! Widens schemas of tools by what the compiler of forms does not know.
//!
//! Programs that offer tools write whatever JSON Schema has, mostly made of types of their own: sets, maps with a form of keys,
//! formats of OpenAPI. Where a tool does not ask to be `strict`, what cannot be held is left out of its form and told
//! (`x-shoal-left-out`), rather than the whole request refused; the model still reads the schema as it was written.
//!
//! Pure: a schema in, a wider one out. Bounds: bodies are no deeper than [`crate::body::MAX_DEPTH`].

use serde_json::{Map, Value};

use crate::schema::{NAMED, ONE};

/// Keywords that the compiler refuses.
const UNKNOWN: &[&str] = &[
    "uniqueItems",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$anchor",
];
/// Formats that it holds; others only describe, as JSON Schema has it.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that bound a number. Beyond this many the compiler counts otherwise than JSON.
const BOUNDS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const MOST: f64 = (1u64 << 53) as f64;
/// Keywords that hold a list of schemas, besides `oneOf`, which becomes one of them.
const LISTS: &[&str] = &["prefixItems", "items", "anyOf", "allOf"];

/// Widens `schema`; `left_out` hears of every keyword that was left out.
pub(crate) fn loosen(schema: &mut Value, left_out: &mut dyn FnMut(&str)) {
    let Some(schema) = schema.as_object_mut() else { return };
    for keyword in UNKNOWN {
        if schema.shift_remove(*keyword).is_some() {
            left_out(keyword);
        }
    }
    drop_where(schema, &["format"], left_out, |format| {
        !format.as_str().is_some_and(|f| FORMATS.contains(&f))
    });
    // Looking ahead or back is no regular expression.
    let looks = |pattern: &Value| {
        pattern.as_str().is_some_and(|p| ["(?=", "(?!", "(?<"].iter().any(|l| p.contains(l)))
    };
    drop_where(schema, &["pattern"], left_out, looks);
    drop_where(schema, BOUNDS, left_out, |bound| bound.as_f64().is_some_and(|bound| bound.abs() > MOST));
    // Whether one alone of several fits is not held; that one of them does is.
    if let Some(choices) = schema.shift_remove("oneOf") {
        if schema.contains_key("anyOf") {
            left_out("oneOf");
        } else {
            schema.insert("anyOf".into(), choices);
        }
    }
    for (keyword, value) in schema {
        let keyword = keyword.as_str();
        match value {
            Value::Object(_) if ONE.contains(&keyword) => loosen(value, left_out),
            Value::Array(list) if LISTS.contains(&keyword) => {
                list.iter_mut().for_each(|one| loosen(one, left_out));
            }
            Value::Object(named) if NAMED.contains(&keyword) => {
                named.values_mut().for_each(|one| loosen(one, left_out));
            }
            _ => {}
        }
    }
}

fn drop_where(
    schema: &mut Map<String, Value>,
    keywords: &[&str],
    left_out: &mut dyn FnMut(&str),
    is_bad: impl Fn(&Value) -> bool,
) {
    for keyword in keywords {
        if schema.get(*keyword).is_some_and(&is_bad) {
            schema.shift_remove(*keyword);
            left_out(keyword);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_held_is_left_out_wherever_it_stands_and_names_are_no_keywords() {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "not": {"type": "string", "format": "password", "minLength": 2},
                "tags": {"type": "array", "uniqueItems": true, "items": {"type": "string", "format": "uuid", "pattern": "^(?!x)"}},
                "map": {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer", "maximum": 1e20}},
                "one": {"oneOf": [{"type": "string", "format": "int64"}, {"type": "null"}]},
                "size": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["not"],
            "enum": [{"not": 1}],
        });
        let mut left = Vec::new();
        loosen(&mut schema, &mut |keyword| left.push(keyword.to_owned()));
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "properties": {
                    "not": {"type": "string", "minLength": 2},
                    "tags": {"type": "array", "items": {"type": "string", "format": "uuid"}},
                    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "one": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "size": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["not"],
                "enum": [{"not": 1}],
            })
        );
        left.sort();
        assert_eq!(left, ["format", "format", "maximum", "pattern", "propertyNames", "uniqueItems"]);
    }
}
