//! What the grammar lets through and the API reads as a call has arguments of its tool's schema: texts of drawn pieces, each
//! of which the grammar allowed, go through the API's own reader.

use std::sync::Arc;

use api::{
    Inference,
    agent::{self, Toolbox},
    inference::{
        Done, EmbedRequest, Embeddings, Event, Failure, Finish, Format, GenerateRequest, Generation, Metric,
        Mode, ModelInfo, Plan, Prompt, Report, Usage,
    },
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
};
use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{self, BoxStream, StreamExt},
};
use serde_json::{Value, json};
use shard::tokenizer::Tokenizer;

use super::{
    super::{Constraint, Constraints},
    tests::{of_bytes, tool},
    *,
};

/// An answer that is known beforehand.
struct Says(String);

fn unused<T: Send + 'static>() -> BoxFuture<'static, Result<T, Failure>> {
    std::future::ready(Err(Failure::invalid("model", "only answers"))).boxed()
}

impl Inference for Says {
    fn models(&self) -> Vec<ModelInfo> {
        Vec::new()
    }

    fn ready(&self, _: Option<&str>) -> Result<(), Failure> {
        Ok(())
    }

    fn generate(&self, _: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        let (usage, report) = (Usage::default(), Report::default());
        let said = Event::Token { id: 0, text: self.0.clone(), logprobs: None };
        let done = Event::Done(Done { finish: Finish::Stop, stop: None, usage, report });
        let events = stream::iter([said, done]).boxed();
        std::future::ready(Ok(Generation { plan: Plan::default(), events })).boxed()
    }

    fn count(&self, _: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        unused()
    }

    fn embed(&self, _: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        unused()
    }

    fn swarm(&self) -> SwarmSnapshot {
        SwarmSnapshot::default()
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        stream::empty().boxed()
    }

    fn agree(&self, _: Mode, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn contribute(&self, _: ContributionChange) -> Result<Contribution, Failure> {
        Err(Failure::invalid("model", "only answers"))
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

fn schemas() -> [(&'static str, Value); 2] {
    let city = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    let steps = json!({"type": "object", "properties": {"n": {"type": "integer"}, "word": {"type": "string"}},
        "required": ["n"], "additionalProperties": false});
    [("weather", city), ("walk", steps)]
}

/// Whether the arguments are of the schema of `name`.
fn fits(name: &str, arguments: &Value) -> bool {
    let Some(members) = arguments.as_object() else { return false };
    match name {
        "weather" => members.len() == 1 && ["Paris", "Rome"].map(Value::from).contains(&members["city"]),
        _ => {
            let known = |(key, value): (&String, &Value)| match key.as_str() {
                // "-0" is one, too.
                "n" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
                "word" => value.is_string(),
                _ => false,
            };
            members.contains_key("n") && members.iter().all(known)
        }
    }
}

/// Pieces of calls, sound ones and others.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ":",
    ",",
    "\"",
    " ",
    "\n",
    ";",
    "=",
    "{\"name\": \"weather\", ",
    "{\"name\": \"walk\", ",
    "\"name\": \"weather\"",
    "\"function\": \"walk\"",
    "\"function\": {",
    "\"type\": \"function\", ",
    "\"id\": \"1\", ",
    "\"parameters\": {",
    "\"arguments\": {",
    "\"city\": ",
    "\"Rome\"",
    "\"Oslo\"",
    "\"n\": ",
    "\"word\": ",
    "12",
    "-3",
    "1.5",
    "\"a\\\"}\"",
    "null",
    "weather(",
    "walk(",
    "[weather(",
    "[walk(",
    "city=",
    "n=",
    "word=",
    "'Rome'",
    "'x'",
    "So: ",
    "weather",
];

/// A text of allowed pieces that ends where anything may follow; `None` where a call did not end.
fn drawn(
    constraint: &mut Constraint,
    tokenizer: &Tokenizer,
    chance: &mut impl FnMut(usize) -> usize,
) -> Option<String> {
    let mut text = String::new();
    let allowed = |constraint: &mut Constraint| {
        let mut logits = vec![0.0; 257];
        constraint.mask(tokenizer, &mut logits).unwrap();
        (0..=255u8).filter(|byte| logits[usize::from(*byte)] != IMPOSSIBLE).collect::<Vec<_>>()
    };
    // A head as often as not, so that calls are begun.
    let mut pieces: Vec<&str> = match chance(4) {
        0 => vec!["{", "\"name\": \"weather\", ", "\"parameters\": {"],
        1 => vec!["[weather("],
        2 => vec!["[walk("],
        _ => Vec::new(),
    };
    pieces.extend((0..chance(14)).map(|_| PIECES[chance(PIECES.len())]));
    for piece in pieces {
        for byte in piece.bytes() {
            if !allowed(constraint).contains(&byte) {
                break;
            }
            constraint.accept(tokenizer, u32::from(byte)).unwrap();
            text.push(char::from(byte));
        }
    }
    for _ in 0..200 {
        let next = allowed(constraint);
        if next.len() == 256 {
            return Some(text);
        }
        // What closes comes first, so that calls end.
        let closes = [b'"', b'\'', b'}', b')', b']'].into_iter().find(|byte| next.contains(byte));
        let drawn = next
            .iter()
            .copied()
            .filter(u8::is_ascii)
            .nth(chance(next.len().min(90)))
            .or(next.first().copied())?;
        let byte = closes.filter(|_| chance(3) > 0).unwrap_or(drawn);
        if !byte.is_ascii() {
            return None;
        }
        constraint.accept(tokenizer, u32::from(byte)).unwrap();
        text.push(char::from(byte));
    }
    None
}

/// Whether a text begins with an object that names something else, or its arguments, before it names its tool and they begin,
/// or never begins them: these stay free ([`super`]).
fn stays_free(text: &str) -> bool {
    let begun = text.trim_start_matches(|c: char| c.is_whitespace() || c == '[');
    let arguments = ["\"parameters\"", "\"arguments\""].iter().filter_map(|key| text.find(key)).min();
    let Some(arguments) = arguments.filter(|_| begun.starts_with('{')) else { return begun.starts_with('{') };
    let before = &text[..arguments];
    let names = ["\"name\"", "\"function\""].iter().any(|key| before.contains(key));
    !names || ["\"city\"", "\"n\"", "\"word\""].iter().any(|key| before.contains(key))
}

#[test]
fn what_the_reader_takes_for_a_call_was_held_to_its_schema() {
    let mut state = 7u64;
    let mut chance = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let listed = schemas().map(|(name, schema)| json!({"name": name, "inputSchema": schema}));
    let toolbox = Toolbox::of_mcp(&listed).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (constraints, tokenizer) = (Constraints::of_bytes(Tags::None).unwrap(), of_bytes());
    let forms: Vec<_> = schemas().map(|(name, schema)| tool(name, schema)).into();
    let (mut texts, mut calls) = (0, 0);
    for _ in 0..250 {
        let mut constraint = constraints.constraint(&Format::Calls(forms.clone())).unwrap().unwrap();
        let Some(text) = drawn(&mut constraint, &tokenizer, &mut chance) else { continue };
        if stays_free(&text) {
            continue;
        }
        texts += 1;
        let said: Arc<dyn Inference> = Arc::new(Says(text.clone()));
        let request = request();
        let turn = runtime.block_on(agent::turn(&*said, request, &toolbox, &mut |_| {})).unwrap();
        for call in turn.calls {
            calls += 1;
            assert!(fits(&call.name, &call.arguments), "{text}: {} of {}", call.arguments, call.name);
        }
    }
    assert!(texts > 90 && calls > 35, "{calls} calls in {texts} texts");
}

fn request() -> GenerateRequest {
    GenerateRequest::new("1", Prompt::conversation(json!([])))
}
