//! A JSON schema built of what schemas are built of: closed as the API closes the parameters of tools, measured, compiled
//! within the stack that the worker gives it, and followed. What comes out is JSON, and its objects have no member that a
//! closed object does not list.
//!
//! The input is read from its front: a schema of bounded depth, then the bytes that choose among what may come next.
#![no_main]

#[path = "../../../node/src/constrain/bounds.rs"]
#[allow(dead_code)]
mod bounds;
#[path = "../../../api/src/schema.rs"]
#[allow(dead_code)]
mod schema;

use std::{sync::LazyLock, thread};

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, InferenceCapabilities},
};
use serde_json::{Map, Value, json};

/// What the worker compiles on (`node/src/constrain.rs`).
const STACK_BYTES: usize = 256 << 20;
/// Parts of one schema: what a page of text can say.
const MAX_PARTS: usize = 48;
/// Bytes of an answer.
const MAX_ANSWER: usize = 256;

static FACTORY: LazyLock<ParserFactory> = LazyLock::new(|| {
    let environment = ApproximateTokEnv::single_byte_env();
    let mut factory =
        ParserFactory::new(&environment, InferenceCapabilities::default(), &[]).expect("its own settings");
    factory.quiet();
    factory
});

struct Maker<'a, 'b> {
    u: &'a mut Unstructured<'b>,
    left: usize,
}

impl Maker<'_, '_> {
    fn pick(&mut self, below: usize) -> usize {
        self.u.choose_index(below).unwrap_or(0)
    }

    fn name(&mut self) -> String {
        let names = ["a", "b", "city", "", "\u{e9}\"\\", "$ref", "a/b", "name", "arguments", "n~0"];
        names[self.pick(names.len())].to_owned()
    }

    fn small(&mut self) -> i64 {
        [0, 1, 2, 3, 7, -1, 100, i64::MAX][self.pick(8)]
    }

    fn data(&mut self) -> Value {
        match self.pick(7) {
            0 => Value::Null,
            1 => true.into(),
            2 => self.small().into(),
            3 => json!(0.5),
            4 => json!([1, "x"]),
            5 => json!({"k": []}),
            _ => self.name().into(),
        }
    }

    fn list(&mut self, depth: usize) -> Value {
        (0..=self.pick(3)).map(|_| self.schema(depth)).collect()
    }

    fn named(&mut self, depth: usize) -> Value {
        let mut map = Map::new();
        for _ in 0..self.pick(4) {
            map.insert(self.name(), self.schema(depth));
        }
        map.into()
    }

    /// A schema of at most `depth` levels.
    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 || self.left == 0 || self.u.is_empty() {
            return [json!({"type": "string"}), json!({"type": "integer"}), json!({}), true.into()]
                [self.pick(4)]
            .clone();
        }
        self.left -= 1;
        let mut map = Map::new();
        for _ in 0..=self.pick(4) {
            let (key, value) = self.keyword(depth - 1);
            map.insert(key.into(), value);
        }
        map.into()
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, Value) {
        const TYPES: [&str; 8] =
            ["object", "array", "string", "integer", "number", "boolean", "null", "thing"];
        const REFS: [&str; 8] = [
            "#",
            "#/$defs/a",
            "#/$defs/b",
            "#/definitions/a",
            "#/properties/a",
            "#/$defs/",
            "x.json",
            "#/$defs/city",
        ];
        const PATTERNS: [&str; 6] = ["^a+$", "[a-z]{1,3}", "(a|b)*c", "^\\d+$", "(", "."];
        const FORMATS: [&str; 5] = ["date", "date-time", "uuid", "email", "no such"];
        match self.pick(30) {
            0..=2 => ("type", TYPES[self.pick(8)].into()),
            3 => ("type", json!([TYPES[self.pick(8)], TYPES[self.pick(8)]])),
            4..=7 => ("properties", self.named(depth)),
            8 => ("required", (0..self.pick(3)).map(|_| Value::from(self.name())).collect()),
            9 => (
                "additionalProperties",
                if self.pick(2) == 0 { self.schema(depth) } else { (self.pick(2) == 0).into() },
            ),
            10 => ("patternProperties", json!({(PATTERNS[self.pick(6)]): self.schema(depth)})),
            11 | 12 => ("items", self.schema(depth)),
            13 => ("prefixItems", self.list(depth)),
            14 => ("minItems", self.small().into()),
            15 => ("maxItems", self.small().into()),
            16 => ("anyOf", self.list(depth)),
            17 => ("oneOf", self.list(depth)),
            18 | 19 => ("allOf", self.list(depth)),
            20 | 21 => ("$ref", REFS[self.pick(8)].into()),
            22 => ("$defs", self.named(depth)),
            23 => ("definitions", self.named(depth)),
            24 => ("const", self.data()),
            25 => ("enum", (0..self.pick(4)).map(|_| self.data()).collect()),
            26 => ("pattern", PATTERNS[self.pick(6)].into()),
            27 => (
                ["minLength", "maxLength", "minimum", "maximum", "multipleOf"][self.pick(5)],
                self.small().into(),
            ),
            28 => ("format", FORMATS[self.pick(5)].into()),
            _ => (
                ["title", "if", "not", "propertyNames", "unevaluatedProperties", "$id"][self.pick(6)],
                self.schema(depth),
            ),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let mut maker = Maker { u: &mut u, left: MAX_PARTS };
    // A chain of references as deep as is taken, or more.
    let written = match maker.pick(16) {
        0 => chain(maker.pick(80)),
        _ => maker.schema(6),
    };
    let close = |schema: &Value| {
        let mut room = schema::Room::full();
        let closed = schema::close(schema, &mut room).expect("a page of text is small");
        assert!(schema::size(&closed) <= 4 * schema::size(schema) + (1 << 20), "{schema}");
        closed
    };
    let closed = close(&written);
    assert_eq!(close(&closed), closed, "closed twice: {written}");
    if bounds::schema(&closed).is_err() {
        return;
    }
    let choices = u.take_rest();
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, || follow(&closed, choices)).expect("a thread");
        running.join().expect("no panic");
    });
});

/// Definitions of which each names the next one.
fn chain(len: usize) -> Value {
    let mut defs = Map::new();
    for n in 0..len {
        defs.insert(
            format!("d{n}"),
            json!({"anyOf": [{"$ref": format!("#/$defs/d{}", n + 1)}, {"type": "null"}]}),
        );
    }
    defs.insert(format!("d{len}"), json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Writes an answer of the form, byte by byte.
fn follow(schema: &Value, choices: &[u8]) {
    let Ok(parser) = FACTORY.create_parser(TopLevelGrammar::from_json_schema(schema.clone())) else { return };
    let mut matcher = Matcher::new(Ok(parser));
    let mut text = Vec::new();
    while text.len() < MAX_ANSWER && !matcher.is_stopped() {
        let Ok(mask) = matcher.compute_mask_or_eos() else { return };
        let allowed: Vec<u32> = (0..256).filter(|byte| mask.is_allowed(*byte)).collect();
        if allowed.is_empty() {
            break;
        }
        let choice = choices.get(text.len()).map_or(0, |choice| usize::from(*choice));
        let byte = allowed[choice % allowed.len()];
        matcher.consume_token(byte).expect("it was allowed");
        text.push(byte as u8);
    }
    if text.len() < MAX_ANSWER && matcher.is_accepting().unwrap_or(false) {
        match serde_json::from_slice::<Value>(&text) {
            Ok(value) => only_listed(schema, &value),
            // JSON has no greatest number, and the reader of values has one.
            Err(error) if error.to_string().starts_with("number out of range") => {}
            Err(error) => panic!("{error}: {} of {schema}", String::from_utf8_lossy(&text)),
        }
    }
}

/// An object of a closed root has the members that it lists.
fn only_listed(schema: &Value, value: &Value) {
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && !["patternProperties", "anyOf", "oneOf", "allOf", "$ref"]
            .iter()
            .any(|key| schema.get(key).is_some());
    let (true, Some(members)) = (closed, value.as_object()) else { return };
    let listed = schema.get("properties").and_then(Value::as_object);
    for name in members.keys() {
        assert!(listed.is_some_and(|listed| listed.contains_key(name)), "{name:?} is not listed in {schema}");
    }
}
