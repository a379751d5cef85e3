//! Ollama's API, as far as its clients use it to ask. Models are looked after with `shoal model`, not from here.
//!
//! Names of models may carry the tag `:latest`, which Ollama's clients add. Streams are lines of JSON.

pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod show;
pub(crate) mod tags;
pub(crate) mod version;

use std::time::Duration;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::{
    App,
    answer::Ended,
    error::ApiError,
    fields::{Fields, required},
    inference::{
        Format, GenerateRequest, ModelInfo, Prompt, Report, Sampling, Usage,
        ranges::{self, Range},
    },
    names,
    openai::{self, MAX_TOKENS},
    schema,
    unread::{self, Route},
};

/// The model a request names.
fn model(app: &App, fields: &Fields<'_>) -> Result<ModelInfo, ApiError> {
    let field = if fields.any("model").is_some() { "model" } else { "name" };
    let name = required(fields, "model", fields.text(field)?)?;
    app.know(Some(name.strip_suffix(":latest").unwrap_or(name)))
}

/// A request with `options`, `format` and what both routes share. Stop strings and counts come from `options`.
fn common(
    app: &App,
    fields: &Fields<'_>,
    headers: &HeaderMap,
    prompt: Prompt,
) -> Result<GenerateRequest, ApiError> {
    unread::check(fields, Route::Ollama)?;
    let empty = json!({});
    let options = fields.object("options")?;
    let options = match options {
        Some(options) => options,
        None => Fields::at(&empty, "options")?,
    };
    unread::check(&options, Route::OllamaOptions)?;
    let sampling = Sampling {
        temperature: options.ranged(&ranges::TEMPERATURE)?,
        top_k: options.integer("top_k", -1, 1 << 20)?.map(|k| k.max(0) as usize),
        top_p: options.ranged(&ranges::TOP_P)?,
        min_p: options.ranged(&ranges::MIN_P)?,
        typical_p: options.ranged(&ranges::TYPICAL_P)?,
        repetition_penalty: options
            .ranged(&Range { name: "repeat_penalty", ..ranges::REPETITION_PENALTY })?,
        presence_penalty: options.ranged(&ranges::PRESENCE_PENALTY)?,
        frequency_penalty: options.ranged(&ranges::FREQUENCY_PENALTY)?,
        logit_bias: Vec::new(),
        draft: openai::draft(fields, headers)?,
    };
    // -1 and -2 mean "until it ends" and "until the context is full". Clients that speak several dialects say it their way.
    let most = options.integer("num_predict", -2, MAX_TOKENS as i64)?;
    let most = most.or(fields.integer("max_tokens", 1, MAX_TOKENS as i64)?);
    Ok(GenerateRequest {
        id: names::fresh("ollama-"),
        model: Some(model(app, fields)?.name),
        prompt,
        sampling,
        seed: options.integer("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
        max_tokens: most.filter(|most| *most > 0).map(|most| most as usize),
        stop: openai::stops(&options, "stop")?,
        logprobs: None,
        format: format(fields)?,
        mode: openai::mode(fields, headers)?,
        guard: openai::guard(fields, headers)?,
        wire: openai::wire(fields, headers)?,
        session: openai::session(fields, headers)?,
        show_special: false,
        echo: false,
    })
}

/// The form of the answer.
fn format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    Ok(match fields.any("format") {
        None => Format::Text,
        Some(Value::String(word)) if word.is_empty() => Format::Text,
        Some(Value::String(word)) if word == "json" => Format::JsonObject,
        Some(format @ Value::Object(_)) => {
            let closed = schema::close(format, &mut schema::Room::full());
            Format::JsonSchema(closed.map_err(|why| fields.refuse("format", why))?)
        }
        Some(_) => return Err(fields.refuse("format", "must be `json` or a JSON schema")),
    })
}

/// What `think` tells the template: whether, or how hard.
fn thinking(fields: &Fields<'_>) -> Result<serde_json::Map<String, Value>, ApiError> {
    let mut extra = serde_json::Map::new();
    match fields.any("think") {
        None => {}
        Some(Value::Bool(think)) => drop(extra.insert("enable_thinking".into(), (*think).into())),
        Some(Value::String(effort)) => {
            extra.insert("enable_thinking".into(), true.into());
            extra.insert("reasoning_effort".into(), effort.as_str().into());
        }
        Some(_) => return Err(fields.refuse("think", "must be true, false or a word such as low or high")),
    }
    Ok(extra)
}

/// The members that end an answer.
fn ending(ended: Ended, usage: &Usage, report: &Report, took: Duration) -> Value {
    let ns = |ms: f64| (ms.max(0.0) * 1e6) as u64;
    let after_first = usage.completion_tokens.saturating_sub(1) as f64;
    let decode_ms = if report.tok_s > 0.0 { after_first / report.tok_s * 1e3 } else { 0.0 };
    json!({
        "done": true,
        "done_reason": if ended == Ended::Length { "length" } else { "stop" },
        "total_duration": took.as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": ns(report.prefill_ms),
        "eval_count": usage.completion_tokens,
        "eval_duration": ns(decode_ms),
    })
}

/// Adds the members of `more` to `line`.
fn extend(line: &mut Value, more: Value) {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
}

/// What `tags` and `show` say about a model.
fn details(info: &ModelInfo) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": parameters(info.parameters),
        "quantization_level": info.format.to_uppercase(),
    })
}

fn parameters(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.1}B", n as f64 / 1e9),
        1_000_000.. => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}K", n as f64 / 1e3),
    }
}
