//! OpenAI's API: what its official clients send and expect, field for field.
//!
//! [`common`] reads the fields that chat, completions and responses share. `x-shoal-mode` and `x-shoal-verify` (header or
//! body field) say who may read the prompt and how strangers are checked, `x-shoal-consent: once` that they may for once.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tools;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::{
    App,
    error::ApiError,
    fields::{Fields, required},
    inference::{
        Draft, Format, GenerateRequest, Guard, Mode, Prompt, Sampling, SessionChoice, Shadow, TokenLogprob,
        TokenLogprobs, Usage, Verify, Wire, WireChoice, ranges,
    },
    keys, names, schema,
};

/// Most stop strings; OpenAI takes 4, other servers more.
pub(crate) const MAX_STOPS: usize = 16;
/// Longest stop string.
const MAX_STOP_BYTES: usize = 1024;
/// Most choices of one request.
pub(crate) const MAX_CHOICES: usize = 4;
/// Most biased tokens.
const MAX_BIAS: usize = 1024;
/// OpenAI's own bound.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;
/// Most layers that an answer may be cut before.
const MAX_CUTS: usize = 256;
/// Bytes of the words that choose attention, and of those that choose the form of the cache.
const MAX_SESSION_BYTES: usize = 96;
/// Counts of tokens beyond this are typing errors.
pub(crate) const MAX_TOKENS: usize = 1 << 24;

/// A request with what all of OpenAI's routes share: `model`, sampling, `seed`, `stop`, mode and verification.
pub(crate) fn common(
    app: &App,
    fields: &Fields<'_>,
    headers: &HeaderMap,
    prefix: &str,
    prompt: Prompt,
) -> Result<GenerateRequest, ApiError> {
    let sampling = Sampling {
        temperature: fields.ranged(&ranges::TEMPERATURE)?,
        top_k: fields.integer("top_k", -1, 1 << 20)?.map(|k| k.max(0) as usize),
        top_p: fields.ranged(&ranges::TOP_P)?,
        min_p: fields.ranged(&ranges::MIN_P)?,
        typical_p: fields.ranged(&ranges::TYPICAL_P)?,
        repetition_penalty: fields.ranged(&ranges::REPETITION_PENALTY)?,
        presence_penalty: fields.ranged(&ranges::PRESENCE_PENALTY)?,
        frequency_penalty: fields.ranged(&ranges::FREQUENCY_PENALTY)?,
        logit_bias: logit_bias(fields)?,
        draft: draft(fields, headers)?,
    };
    Ok(GenerateRequest {
        id: names::fresh(prefix),
        model: Some(app.know(fields.text("model")?)?.name),
        prompt,
        sampling,
        seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
        max_tokens: None,
        stop: stops(fields, "stop")?,
        logprobs: None,
        format: Format::Text,
        mode: mode(fields, headers)?,
        guard: guard(fields, headers)?,
        wire: wire(fields, headers)?,
        session: session(fields, headers)?,
        show_special: false,
        echo: false,
    })
}

/// Who may read the prompt, from the body or from a header.
pub(crate) fn mode(fields: &Fields<'_>, headers: &HeaderMap) -> Result<Option<Mode>, ApiError> {
    choice(fields, headers, "mode", "x-shoal-mode", &Mode::ALL, Mode::name)
}

/// How strangers are checked, in the words of the API or of the command line, who stands by, and whether strangers may compute.
pub(crate) fn guard(fields: &Fields<'_>, headers: &HeaderMap) -> Result<Guard, ApiError> {
    let aliases = [("off", Verify::Off), ("strict", Verify::Strict)];
    let words: Vec<(&'static str, Verify)> =
        Verify::ALL.map(|verify| (verify.name(), verify)).into_iter().chain(aliases).collect();
    let word = choice(fields, headers, "verify", "x-shoal-verify", &words, |word| word.0)?;
    let shadow = choice(fields, headers, "shadow", "x-shoal-shadow", &Shadow::ALL, Shadow::name)?;
    let let_keep = flag(fields, headers, "let_keep", "x-shoal-let-keep")?;
    Ok(Guard { verify: word.map(|word| word.1), shadow, agreed: agreed(headers)?, let_keep })
}

/// What may draft tokens, from the body or from a header.
pub(crate) fn draft(fields: &Fields<'_>, headers: &HeaderMap) -> Result<Option<Draft>, ApiError> {
    if let Some(text) = fields.text("draft")? {
        return text.parse().map(Some).map_err(|why: String| fields.refuse("draft", why));
    }
    let Some(value) = headers.get("x-shoal-draft") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    text.parse().map(Some).map_err(|why: String| ApiError::field("x-shoal-draft", why))
}

/// How activations travel. Where they are rounded is given in the body only, as an answer tells it.
pub(crate) fn wire(fields: &Fields<'_>, headers: &HeaderMap) -> Result<WireChoice, ApiError> {
    let allowed = flag(fields, headers, "allow_rounding", "x-shoal-allow-rounding")?;
    let cut = |cut: &Value| cut.as_u64().and_then(|cut| u32::try_from(cut).ok()).filter(|cut| *cut > 0);
    let cuts: Option<Vec<u32>> = fields.list("cuts", MAX_CUTS)?.unwrap_or_default().iter().map(cut).collect();
    let cuts = cuts.filter(|cuts| cuts.is_sorted_by(|a, b| a < b));
    let cuts = cuts.ok_or_else(|| fields.refuse("cuts", "must be ascending numbers of layers, from 1"))?;
    let wire = choice(fields, headers, "wire", "x-shoal-wire", &Wire::ALL, Wire::name)?;
    let choice = WireChoice { wire, allow_rounding: allowed, cuts };
    // The node may have another default, so only what the request itself says is held against it.
    if !choice.cuts.is_empty() && choice.wire == Some(Wire::Raw) {
        return Err(
            fields.refuse("cuts", "change nothing over wire raw, which is exact; name another `wire`")
        );
    }
    Ok(choice)
}

/// What the tokens of a session see and how keys and values are kept, from the body or from headers; the node knows the words.
pub(crate) fn session(fields: &Fields<'_>, headers: &HeaderMap) -> Result<SessionChoice, ApiError> {
    let words = |field: &'static str, header: &'static str| {
        let long = || format!("must have at most {MAX_SESSION_BYTES} bytes");
        if let Some(text) = fields.text(field)? {
            let short = text.len() <= MAX_SESSION_BYTES;
            return if short { Ok(Some(text.to_owned())) } else { Err(fields.refuse(field, long())) };
        }
        let Some(value) = headers.get(header) else { return Ok(None) };
        match value.to_str().ok().filter(|text| text.len() <= MAX_SESSION_BYTES) {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(ApiError::field(header, long())),
        }
    };
    let context_shift = flag(fields, headers, "context_shift", "x-shoal-context-shift")?;
    Ok(SessionChoice {
        context_shift: context_shift.unwrap_or_default(),
        attention: words("attention", "x-shoal-attention")?,
        kv_cache_type: words("kv_cache_type", "x-shoal-kv-cache-type")?,
    })
}

/// Yes or no, from the body or from a header.
fn flag(
    fields: &Fields<'_>,
    headers: &HeaderMap,
    field: &'static str,
    header: &'static str,
) -> Result<Option<bool>, ApiError> {
    let words = [("true", true), ("false", false)];
    match fields.bool(field)? {
        Some(said) => Ok(Some(said)),
        None => Ok(self::header(headers, header, &words, |word| word.0)?.map(|word| word.1)),
    }
}

/// Whether the owner agrees for this request that strangers compute it: a holder of a key does not speak for the owner.
fn agreed(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get("x-shoal-consent") {
        None => Ok(false),
        Some(word) if word == "once" => Ok(keys::asked_by_owner()),
        Some(_) => Err(ApiError::field("x-shoal-consent", "must be: once")),
    }
}

/// A word from the body or from a header.
pub(crate) fn choice<T: Copy>(
    fields: &Fields<'_>,
    headers: &HeaderMap,
    field: &str,
    header: &str,
    words: &[T],
    name: impl Fn(T) -> &'static str + Copy,
) -> Result<Option<T>, ApiError> {
    if let Some(word) = fields.one_of(field, words, name)? {
        return Ok(Some(word));
    }
    self::header(headers, header, words, name)
}

/// A word from a header.
fn header<T: Copy>(
    headers: &HeaderMap,
    header: &str,
    words: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, ApiError> {
    let Some(value) = headers.get(header) else { return Ok(None) };
    let found = words.iter().copied().find(|word| name(*word).as_bytes() == value.as_bytes());
    found.map(Some).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|word| name(*word)).collect();
        ApiError::field(header, format_args!("must be one of: {}", names.join(", ")))
    })
}

/// A string or a list of strings.
pub(crate) fn stops(fields: &Fields<'_>, field: &str) -> Result<Vec<String>, ApiError> {
    let texts: Vec<&Value> = match fields.any(field) {
        None => return Ok(Vec::new()),
        Some(text @ Value::String(_)) => vec![text],
        Some(_) => fields.list(field, MAX_STOPS)?.unwrap_or_default().iter().collect(),
    };
    let stops = texts.into_iter().map(|text| text.as_str().filter(|text| text.len() <= MAX_STOP_BYTES));
    let stops: Option<Vec<_>> = stops.collect();
    let stops = stops.ok_or_else(|| {
        fields.refuse(field, format_args!("must be strings of at most {MAX_STOP_BYTES} bytes"))
    })?;
    // An empty string stops nothing; OpenAI takes it so.
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).map(str::to_owned).collect())
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let mut pairs = Vec::new();
    for (id, _) in bias.members() {
        if pairs.len() == MAX_BIAS {
            return Err(fields.refuse("logit_bias", format_args!("may have at most {MAX_BIAS} entries")));
        }
        let token =
            id.parse::<u32>().map_err(|_| fields.refuse("logit_bias", "must have token ids as keys"))?;
        pairs.push((
            token,
            required(&bias, id, bias.number(id, ranges::LOGIT_BIAS.low, ranges::LOGIT_BIAS.high)?)?,
        ));
    }
    Ok(pairs)
}

/// Reads `response_format` (chat) or `text.format` (responses), which differ in where the schema is.
pub(crate) fn format(fields: &Fields<'_>, field: &str) -> Result<Format, ApiError> {
    let Some(format) = fields.object(field)? else { return Ok(Format::Text) };
    let kind = required(&format, "type", format.text("type")?)?;
    match kind {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::JsonObject),
        "json_schema" => {
            let inner = format.object("json_schema")?.unwrap_or(format);
            let schema = inner.object("schema")?.and_then(|_| inner.any("schema"));
            let closed = schema::close(required(&inner, "schema", schema)?, &mut schema::Room::full());
            Ok(Format::JsonSchema(closed.map_err(|why| inner.refuse("schema", why))?))
        }
        "grammar" => Ok(Format::Grammar(required(&format, "grammar", format.text("grammar")?)?.to_owned())),
        "regex" => Ok(Format::Regex(required(&format, "regex", format.text("regex")?)?.to_owned())),
        _ => Err(format.refuse("type", "must be text, json_object, json_schema, grammar or regex")),
    }
}

/// Token counts as chat and completions have them.
pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn logprob(token: &TokenLogprob) -> Value {
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        "logprob": token.logprob,
        "bytes": token.bytes,
    })
}

/// A position's log-probabilities as chat and responses have them.
pub(crate) fn logprobs(at: &TokenLogprobs) -> Value {
    let mut entry = logprob(&at.chosen);
    entry["top_logprobs"] = at.top.iter().map(logprob).collect();
    entry
}
