//! Closes the objects of a JSON schema, so that a model bound to it invents no members.
//!
//! JSON Schema lets an object have members that it does not list. The parameters of a function are not meant so: a
//! model that adds a member makes `f(**arguments)` fail. So an object that lists `properties` and says nothing of others
//! gets `additionalProperties: false`, as OpenAI's strict mode demands anyway.
//!
//! What stays as written: objects without `properties`, those that speak of other members themselves
//! (`additionalProperties`, `patternProperties`, `unevaluatedProperties`), those whose members depend on conditions, and
//! those that require a member they do not list. `allOf`, and `$ref` beside other keywords, are merged first: closed one by
//! one, their parts would allow nothing together. `anyOf` and `oneOf` beside properties are spread over their branches for
//! the same reason. A schema that cannot be merged so (two parts disagree, a reference leads elsewhere than to `$defs` or
//! into itself, the work exceeds [`MAX_STEPS`] or the [`Room`] it may take) is returned as it is, as a whole.
//!
//! Pure: a schema in, a schema out.
//!
//! Bounds: this runs before a process of its own tries the schema, where many requests live together. A schema of more than
//! [`MAX_BYTES`] is refused, and what is copied on the way (the targets of references, what stands beside alternatives) is
//! counted: all schemas of one request copy at most [`ROOM_BYTES`].

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Largest schema, as [`size`] counts it: what the compiler of forms takes, too.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// What closing the schemas of one request may copy. Schemas that people write copy some kilobytes.
const ROOM_BYTES: usize = 1 << 20;

/// Objects looked at. A schema within the bounds of a body that needs more has references that multiply.
const MAX_STEPS: usize = 1 << 14;
/// Nesting of what is merged; bodies nest no deeper, so more means a reference into itself.
const MAX_DEPTH: usize = 64;

type Object = Map<String, Value>;

/// Keywords that say something of members beside `properties`.
const OPEN: &[&str] = &[
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "if",
    "then",
    "else",
    "not",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
];
/// Keywords that hold a schema.
pub(crate) const ONE: &[&str] = &["items", "additionalItems", "contains", "additionalProperties"];
/// Keywords that hold a list of schemas.
const LISTS: &[&str] = &["prefixItems", "anyOf", "oneOf"];
/// Keywords that hold schemas by name.
pub(crate) const NAMED: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that only describe: of two, the outer one stays.
const NOTES: &[&str] =
    &["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"];

/// Bytes that may still be copied for one request.
#[derive(Debug)]
pub(crate) struct Room(usize);

impl Room {
    /// Of a request that has copied nothing.
    pub(crate) fn full() -> Self {
        Self(ROOM_BYTES)
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }
}

/// Bytes of `value` as text without blanks, escapes not counted, and numbers as eight.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(members) => members_size(members),
    }
}

fn members_size(members: &Object) -> usize {
    2 + members.iter().map(|(key, value)| key.len() + 4 + size(value)).sum::<usize>()
}

/// `schema` with its objects closed, or as it is where that cannot be done without changing what it allows, or within
/// `room`.
///
/// # Errors
/// When it has more than [`MAX_BYTES`].
pub(crate) fn close(schema: &Value, room: &mut Room) -> Result<Value, String> {
    if size(schema) > MAX_BYTES {
        return Err(format!("may have at most {} KiB; shorten it", MAX_BYTES >> 10));
    }
    let mut closer = Closer { root: schema, steps: MAX_STEPS, room };
    Ok(closer.close(schema.clone(), 0).unwrap_or_else(|| schema.clone()))
}

struct Closer<'a> {
    root: &'a Value,
    /// How many more objects may be looked at.
    steps: usize,
    room: &'a mut Room,
}

impl<'a> Closer<'a> {
    /// A schema that stands alone: nothing beside it adds members.
    fn close(&mut self, schema: Value, depth: usize) -> Option<Value> {
        let Value::Object(schema) = schema else { return Some(schema) };
        self.step(depth)?;
        let mut schema = self.merged(schema, depth)?;
        for keyword in ["anyOf", "oneOf"] {
            if schema.contains_key("properties") && schema.contains_key(keyword) {
                schema = self.spread(schema, keyword, depth)?;
            }
        }
        for (keyword, value) in &mut schema {
            let keyword = keyword.as_str();
            match value {
                Value::Object(_) if ONE.contains(&keyword) => *value = self.close(value.take(), depth + 1)?,
                Value::Array(list) if LISTS.contains(&keyword) || keyword == "items" => {
                    for one in list {
                        *one = self.close(one.take(), depth + 1)?;
                    }
                }
                Value::Object(named) if NAMED.contains(&keyword) => {
                    for one in named.values_mut() {
                        *one = self.close(one.take(), depth + 1)?;
                    }
                }
                _ => {}
            }
        }
        if lists_all_members(&schema) {
            schema.insert("additionalProperties".into(), false.into());
        }
        Some(schema.into())
    }

    fn step(&mut self, depth: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        (depth <= MAX_DEPTH).then_some(())
    }

    /// `schema` with its `allOf`, and with what it refers to where it says more than the reference.
    fn merged(&mut self, mut own: Object, depth: usize) -> Option<Object> {
        self.step(depth)?;
        let refers = match own.get("$ref") {
            None => None,
            Some(to) => Some(self.target(to)?),
        };
        let parts = match own.shift_remove("allOf") {
            None => Vec::new(),
            Some(Value::Array(parts)) => parts,
            Some(_) => return None,
        };
        let says_more =
            own.keys().any(|key| key != "$ref" && !NOTES.contains(&key.as_str()) && !is_store(key));
        let target = match refers {
            Some(target) if says_more || !parts.is_empty() => {
                own.shift_remove("$ref");
                Some(self.copy(target)?)
            }
            _ => None,
        };
        for part in target.into_iter().chain(parts) {
            let Value::Object(part) = part else { return None };
            let part = self.flat(part, depth + 1)?;
            own = self.both(own, part)?;
        }
        Some(own)
    }

    /// As [`Closer::merged`], for a part of another schema: its references are followed, and its alternatives go along.
    fn flat(&mut self, part: Object, depth: usize) -> Option<Object> {
        let mut part = self.merged(part, depth)?;
        if let Some(to) = part.shift_remove("$ref") {
            let target = self.target(&to)?;
            let Value::Object(target) = self.copy(target)? else { return None };
            let target = self.flat(target, depth + 1)?;
            part = self.both(part, target)?;
        }
        Some(part)
    }

    /// One schema for each alternative, each with the members beside them.
    fn spread(&mut self, mut schema: Object, keyword: &str, depth: usize) -> Option<Object> {
        let Some(Value::Array(branches)) = schema.shift_remove(keyword) else { return None };
        let mut outer = Object::new();
        let stays: Vec<String> =
            schema.keys().filter(|key| is_store(key) || NOTES.contains(&key.as_str())).cloned().collect();
        for key in stays {
            outer.extend(schema.shift_remove(&key).map(|value| (key, value)));
        }
        let mut spread = Vec::new();
        for branch in branches {
            let Value::Object(branch) = branch else { return None };
            let branch = self.flat(branch, depth + 1)?;
            self.room.take(members_size(&schema))?;
            spread.push(Value::Object(self.both(schema.clone(), branch)?));
        }
        outer.insert(keyword.into(), spread.into());
        Some(outer)
    }

    /// What a reference names: a definition of the root, or the root.
    fn target(&self, to: &Value) -> Option<&'a Value> {
        let pointer = to.as_str()?.strip_prefix('#')?;
        let known = pointer.starts_with("/$defs/") || pointer.starts_with("/definitions/");
        if !known && !pointer.is_empty() {
            return None;
        }
        self.root.pointer(pointer)
    }

    fn copy(&mut self, value: &Value) -> Option<Value> {
        self.room.take(size(value))?;
        Some(value.clone())
    }

    /// What both schemas allow, as one; nothing where that needs more than their keywords side by side.
    fn both(&mut self, mut one: Object, other: Object) -> Option<Object> {
        // A part that forbids members it does not list forbids those of the other part, too: merged it would allow them.
        let limits = |part: &Object| {
            ["additionalProperties", "patternProperties"].iter().any(|key| part.contains_key(*key))
        };
        let lists = |part: &Object| part.contains_key("properties");
        if (limits(&one) && lists(&other)) || (limits(&other) && lists(&one)) {
            return None;
        }
        for (key, value) in other {
            let Some(mine) = one.get_mut(&key) else {
                one.insert(key, value);
                continue;
            };
            if *mine == value || NOTES.contains(&key.as_str()) {
                continue;
            }
            match (key.as_str(), mine, value) {
                ("properties", Value::Object(mine), Value::Object(value)) => {
                    for (name, schema) in value {
                        match mine.get_mut(&name) {
                            None => drop(mine.insert(name, schema)),
                            Some(known) if *known == schema => {}
                            Some(known) => add_part(known, schema),
                        }
                    }
                }
                ("required", Value::Array(mine), Value::Array(value)) => {
                    // Each part looks at all names so far, which counts as if they were copied.
                    self.room.take(mine.len())?;
                    let known: HashSet<&Value> = mine.iter().collect();
                    let new: Vec<Value> = value.into_iter().filter(|name| !known.contains(name)).collect();
                    mine.extend(new);
                }
                _ => return None,
            }
        }
        Some(one)
    }
}

/// Makes `known` what it and `schema` allow. A list of parts stays one list: nested once for each part it would be as
/// deep as there are parts, and a value that deep overflows the stack when it is dropped.
fn add_part(known: &mut Value, schema: Value) {
    match known {
        Value::Object(only) if only.len() == 1 && only.get("allOf").is_some_and(Value::is_array) => {
            if let Some(Value::Array(parts)) = only.get_mut("allOf") {
                parts.push(schema);
            }
        }
        _ => *known = json!({"allOf": [known.take(), schema]}),
    }
}

/// Whether a keyword keeps definitions, which say nothing of the schema they stand in.
fn is_store(key: &str) -> bool {
    matches!(key, "$defs" | "definitions" | "$schema" | "$id")
}

/// Whether an object lists its members, requires no others, and says nothing of others.
fn lists_all_members(schema: &Object) -> bool {
    let is_object = match schema.get("type") {
        None => true,
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(_) => false,
    };
    let Some(Value::Object(properties)) = schema.get("properties") else { return false };
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let listed = |name: &Value| name.as_str().is_some_and(|name| properties.contains_key(name));
    is_object
        && !properties.is_empty()
        && required.iter().all(listed)
        && !OPEN
            .iter()
            .chain(&["anyOf", "oneOf", "allOf", "$ref"])
            .any(|keyword| schema.contains_key(*keyword))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(schema: &Value) -> Value {
        super::close(schema, &mut Room::full()).unwrap()
    }

    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    fn closed(properties: Value) -> Value {
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    }

    #[test]
    fn listed_members_are_all_there_are() {
        let text = json!({"type": "string"});
        assert_eq!(close(&object(json!({"a": text}))), closed(json!({"a": text})));
        // Wherever an object stands.
        let inner = object(json!({"b": text}));
        let deep = json!({
            "type": "object",
            "properties": {"list": {"type": "array", "items": inner}, "one": inner, "either": {"anyOf": [inner, {"type": "null"}]}},
            "$defs": {"d": inner},
        });
        let told = close(&deep);
        for at in ["", "/properties/list/items", "/properties/one", "/properties/either/anyOf/0", "/$defs/d"]
        {
            assert_eq!(
                told.pointer(&format!("{at}/additionalProperties")),
                Some(&json!(false)),
                "{at}: {told}"
            );
        }
        assert_eq!(told["properties"]["either"].get("additionalProperties"), None);
    }

    #[test]
    fn what_speaks_of_other_members_stays_as_written() {
        let a = json!({"a": {"type": "string"}});
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"type": "string", "properties": a}),
            json!({"properties": a, "additionalProperties": true}),
            json!({"properties": a, "additionalProperties": {"type": "integer"}}),
            json!({"properties": a, "patternProperties": {"^x": {}}}),
            json!({"properties": a, "unevaluatedProperties": false}),
            json!({"properties": a, "required": ["b"]}),
            json!({"properties": a, "if": {"required": ["a"]}, "then": {"required": ["b"]}}),
            json!({"allOf": [{"properties": a, "minProperties": 1}, {"minProperties": 2}], "minProperties": 3}),
            json!({"allOf": [{"$ref": "#/properties/x"}], "properties": a}),
            json!({"properties": a, "$ref": "#/$defs/missing"}),
            json!({"properties": a, "allOf": [{"$ref": "#"}]}),
            json!({"properties": a, "allOf": [{"properties": {"b": {}}, "additionalProperties": false}]}),
        ] {
            assert_eq!(close(&schema), schema);
        }
    }

    #[test]
    fn parts_are_merged_before_they_are_closed() {
        let (a, b) = (json!({"type": "string"}), json!({"type": "integer"}));
        let schema = json!({
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": b}, "required": ["b"]}],
            "$defs": {"base": {"type": "object", "properties": {"a": a}, "required": ["a"]}},
        });
        let told = close(&schema);
        assert_eq!(told["properties"], json!({"a": a, "b": b}));
        assert_eq!((&told["required"], &told["additionalProperties"]), (&json!(["a", "b"]), &json!(false)));
        assert_eq!(told.get("allOf"), None);
        // A reference with members beside it; one without stays a reference.
        let schema = json!({
            "type": "object",
            "properties": {
                "more": {"$ref": "#/$defs/base", "properties": {"b": b}},
                "same": {"$ref": "#/$defs/base", "description": "d"},
            },
            "$defs": {"base": {"type": "object", "properties": {"a": a}}},
        });
        let told = close(&schema);
        assert_eq!(told["properties"]["more"]["properties"], json!({"b": b, "a": a}));
        assert_eq!(told["properties"]["more"]["additionalProperties"], json!(false));
        assert_eq!(told["properties"]["same"], json!({"$ref": "#/$defs/base", "description": "d"}));
        assert_eq!(told["$defs"]["base"]["additionalProperties"], json!(false));
        // A member that both parts describe is what both allow.
        let schema = json!({"allOf": [object(json!({"a": a})), object(json!({"a": {"maxLength": 3}}))]});
        assert_eq!(close(&schema), closed(json!({"a": {"type": "string", "maxLength": 3}})));
    }

    #[test]
    fn alternatives_beside_members_have_them_too() {
        let schema = json!({
            "type": "object", "title": "t", "properties": {"kind": {}},
            "oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"$ref": "#/$defs/b"}],
            "$defs": {"b": {"properties": {"b": {}}}},
        });
        let told = close(&schema);
        assert_eq!(told["oneOf"][0]["properties"], json!({"kind": {}, "a": {}}));
        assert_eq!(told["oneOf"][1]["properties"], json!({"kind": {}, "b": {}}));
        assert!((0..2).all(|i| told["oneOf"][i]["additionalProperties"] == json!(false)), "{told}");
        assert_eq!((&told["title"], told.get("properties")), (&json!("t"), None));
    }

    #[test]
    fn references_into_themselves_end() {
        let tree = json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": object(json!({"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}))},
        });
        assert_eq!(close(&tree)["$defs"]["node"]["additionalProperties"], json!(false));
        let circle =
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}});
        assert_eq!(close(&circle), circle);
        // Each merge doubles what the next one has to merge.
        let mut defs = serde_json::Map::new();
        for n in 0..40 {
            let to = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"allOf": [to, to], "properties": {(format!("p{n}")): {}}}));
        }
        defs.insert("d40".into(), object(json!({"end": {}})));
        let wide = json!({"allOf": [{"$ref": "#/$defs/d0"}], "$defs": defs});
        assert_eq!(close(&wide), wide);
    }

    /// Definitions of `bytes` that `n` members refer to, each with a keyword of its own beside the reference.
    fn referred(bytes: usize, n: usize) -> Value {
        let member = |at: usize| (format!("p{at}"), json!({"$ref": "#/$defs/b", "minLength": 0}));
        let members: Object = (0..n).map(member).collect();
        json!({"type": "object", "properties": members, "$defs": {"b": {"const": "x".repeat(bytes)}}})
    }

    #[test]
    fn what_is_copied_is_bounded_by_the_room() {
        // Some copies fit; the referring members then have what they refer to.
        let few = close(&referred(10_000, 20));
        assert_eq!(few["properties"]["p7"]["const"], "x".repeat(10_000));
        assert_eq!(few["additionalProperties"], json!(false));
        // Thousands of copies would be a hundred megabytes: it stays as written.
        let many = referred(20_000, 3_000);
        assert_eq!(close(&many), many);
        // So does what stands beside many alternatives.
        let branch = |at: usize| json!({"properties": {(format!("p{at}")): {}}});
        let beside = json!({"type": "object", "properties": {"a": {"const": "x".repeat(20_000)}},
            "anyOf": (0..2_000).map(branch).collect::<Vec<_>>()});
        assert_eq!(close(&beside), beside);
        // The schemas of one request share it: whatever they are, what comes out is no larger than what went in and it.
        let mut room = Room::full();
        let schema = referred(10_000, 20);
        let made: usize = (0..64).map(|_| size(&super::close(&schema, &mut room).unwrap())).sum();
        assert!(made <= 64 * (size(&schema) + 1_000) + ROOM_BYTES, "{made} bytes");
        assert!(made > 64 * size(&schema) + ROOM_BYTES / 2, "the room was used: {made} bytes");
    }

    #[test]
    fn a_schema_of_too_many_bytes_is_refused_before_it_is_looked_at() {
        let refused = super::close(&referred(MAX_BYTES, 1), &mut Room::full()).unwrap_err();
        assert!(refused.contains("256 KiB"), "{refused}");
        let names: Vec<String> = (0..40_000).map(|at| format!("n{at}")).collect();
        assert!(super::close(&json!({"required": names}), &mut Room::full()).is_err());
    }

    #[test]
    fn a_member_that_thousands_of_parts_describe_nests_no_deeper() {
        let part = |at: usize| json!({"properties": {"a": {"maxLength": at}}});
        let schema = json!({"type": "object", "allOf": (0..4_000).map(part).collect::<Vec<_>>()});
        // As deep as it is written or hardly more; what cannot be merged stays as it is.
        fn depth(value: &Value) -> usize {
            match value {
                Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
                Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
                _ => 0,
            }
        }
        let mut closer = Closer { root: &schema, steps: MAX_STEPS, room: &mut Room::full() };
        let Value::Object(owned) = schema.clone() else { panic!() };
        let merged = closer.merged(owned, 0).unwrap();
        assert_eq!(merged["properties"]["a"]["allOf"].as_array().map(Vec::len), Some(4_000));
        assert!(depth(&merged.into()) <= 6);
        assert!(depth(&close(&schema)) <= 6);
    }
}
