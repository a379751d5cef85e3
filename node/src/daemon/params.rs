//! What a caller asks, checked: parameters as the command line and the API write them, and why a prompt is refused.

use std::collections::BTreeSet;

use api::inference::Format;
use scheduler::NodeId;
use serde_json::{Map, Value, json};
use shard::sample::SamplingParams;

use crate::{
    control::{Ask, Mode},
    worker::Fault,
};

/// Why a prompt is not answered, as the line that says so: `error` is the sentence, and for programs `kind` (`invalid`,
/// `too_long`, `unavailable`, `busy` or `internal`), `field`, `tokens` and `context` where they apply.
pub(super) struct Trouble(pub(super) Value);

impl Trouble {
    /// One of `kind`.
    pub(super) fn kind(kind: &str, why: impl Into<String>) -> Self {
        Self(json!({ "error": why.into(), "kind": kind }))
    }

    /// Whether it is only for now.
    pub(super) fn is_busy(&self) -> bool {
        self.0["kind"] == "busy"
    }

    /// A field has a value that cannot be meant.
    pub(super) fn invalid(field: &str, why: impl Into<String>) -> Self {
        Self(json!({ "error": why.into(), "kind": "invalid", "field": field }))
    }

    /// More tokens than the model can hold.
    pub(super) fn too_long(tokens: usize, context: u32) -> Self {
        let why = format!("the prompt has {tokens} tokens, the context holds {context}; shorten it");
        Self(json!({ "error": why, "kind": "too_long", "tokens": tokens, "context": context }))
    }

    /// The worker would not: the request's fault when it read it, else its own.
    pub(super) fn of(fault: Fault, field: &str) -> Self {
        match fault {
            Fault::Refused(why) => Self::invalid(field, why),
            Fault::Busy | Fault::NoRoom { .. } => Self::kind("busy", fault.to_string()),
            Fault::Poison | Fault::Dead(_) => Self::kind("unavailable", fault.to_string()),
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self(json!({ "error": why }))
    }
}

/// Sampling parameters as the command line and the API write them.
pub(super) fn sampling(value: &Value) -> Result<SamplingParams, String> {
    let number = |name: &str, default: f32| match &value[name] {
        Value::Null => Ok(default),
        given => given.as_f64().map(|x| x as f32).ok_or_else(|| format!("{name} must be a number")),
    };
    let count = |name: &str| match &value[name] {
        Value::Null => Ok(0),
        given => given.as_u64().map(|n| n as usize).ok_or_else(|| format!("{name} must be a whole number")),
    };
    let default = SamplingParams::default();
    let mut bias = Vec::new();
    for pair in value["logit_bias"].as_array().into_iter().flatten() {
        let parsed = pair[0]
            .as_u64()
            .zip(pair[1].as_f64())
            .and_then(|(id, by)| Some((u32::try_from(id).ok()?, by as f32)));
        bias.push(parsed.ok_or("logit_bias must be pairs of a token id and a number")?);
    }
    let sampling = SamplingParams {
        temperature: number("temperature", default.temperature)?,
        top_k: count("top_k")?,
        top_p: number("top_p", 1.0)?,
        min_p: number("min_p", 0.0)?,
        typical_p: number("typical_p", 1.0)?,
        repetition_penalty: number("repetition_penalty", 1.0)?,
        presence_penalty: number("presence_penalty", 0.0)?,
        frequency_penalty: number("frequency_penalty", 0.0)?,
        logit_bias: bias,
        logprobs: value["logprobs"].as_bool().unwrap_or(false),
        top_logprobs: count("top_logprobs")?,
        ..default
    };
    sampling.validate().map_err(|e| e.to_string())?;
    Ok(sampling)
}

/// The prompt `{"ids": [..]}`.
pub(super) fn token_ids(given: &Map<String, Value>, vocab: u32) -> Result<Vec<u32>, Trouble> {
    let ids = given.get("ids").and_then(Value::as_array).into_iter().flatten();
    let ids = ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab));
    let ids: Option<Vec<u32>> = ids.collect();
    ids.ok_or_else(|| Trouble::invalid("prompt", format!("token ids must be below {vocab}")))
}

/// The first field that a peer who conducts for us could not be told of.
pub(super) fn only_here(ask: &Ask) -> Option<&'static str> {
    let asked = [
        ("response_format", ask.api.format != Format::Text),
        ("tools", ask.api.tools.is_some() || ask.api.show_special),
        ("chat_template_kwargs", !ask.api.extra.is_empty()),
        ("logprobs", ask.sampling["logprobs"] == json!(true)),
        ("prompt", ask.prompt.is_object()),
    ];
    asked.into_iter().find(|(_, asked)| *asked).map(|(field, _)| field)
}

/// The peers that the caller named as trusted.
pub(super) fn trusted(ask: &Ask) -> Result<BTreeSet<NodeId>, String> {
    if ask.mode == Mode::Trusted && ask.trusted.is_empty() {
        let why = "trusted mode needs to know whom you trust: name them with --trust; `shoal peers --json` shows full names";
        return Err(why.to_owned());
    }
    ask.trusted.iter().map(|name| node(name)).collect()
}

fn node(name: &str) -> Result<NodeId, String> {
    let bytes = data_encoding::HEXLOWER_PERMISSIVE
        .decode(name.as_bytes())
        .ok()
        .and_then(|b| <[u8; 32]>::try_from(b).ok());
    bytes
        .map(NodeId::new)
        .ok_or_else(|| format!("\"{name}\" is no node's full name; `shoal peers --json` shows it"))
}
