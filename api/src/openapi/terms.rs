//! Fields that requests of several dialects share.

use serde_json::{Value, json};

use super::schema::{any_of, integer, list, words};
use crate::inference::{Mode, Wire};

/// The most tokens that may be asked for.
pub(super) const TOKENS: i64 = crate::openai::MAX_TOKENS as i64;

/// Token ids.
pub(super) fn ids() -> Value {
    json!({"type": "array", "items": integer(0, i64::from(u32::MAX)), "minItems": 1})
}

/// Whole numbers of 64 bits.
pub(super) fn seed() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX, "description": "Equal seeds give equal answers, here and through the swarm"})
}

pub(super) fn stops() -> Value {
    let stop = json!({"type": "string", "maxLength": 256});
    any_of(&[stop.clone(), list(stop, 0, 16)])
}

pub(super) fn model() -> Value {
    json!({"type": "string", "description": "A name of GET /v1/models; the first one when absent"})
}

/// What may draft tokens.
pub(super) fn draft() -> Value {
    let about = "What may draft tokens, so that a pass confirms several: auto, off, or a list of lookup, grammar, head (the model's \
                 draft head) and the name of the draft model that the node was started with. The tokens are the same with any, and drafts that do not pay \
                 are not sent";
    json!({"type": "string", "minLength": 1, "maxLength": 4096, "description": about})
}

/// Which earlier positions a token sees.
pub(super) fn attention() -> Value {
    let about = "Which earlier positions a token sees: dense (all), window:POSITIONS, or sparse or h2o, with any of the \
                 settings sparse:window=128,sinks=1,stride=on,block=64 and h2o:budget=2048,sinks=4,window=512. h2o keeps \
                 as many positions as its budget says and forgets those that were looked at least";
    json!({"type": "string", "maxLength": 96, "description": about})
}

/// In which form keys and values are kept.
pub(super) fn kv_cache_type() -> Value {
    let about = "In which form keys and values of earlier positions are kept: 16, 8 or 4 bits for each. Fewer take less memory and \
                 change the answer";
    json!({"type": "string", "enum": ["f16", "q8", "q4"], "description": about})
}

/// Whether an answer ends with the context.
pub(super) fn context_shift() -> Value {
    let about = "Whether the answer goes on where the context is full: the beginning of the prompt stays, the older half of what \
                 follows is forgotten. With a limit of tokens only";
    json!({"type": "boolean", "default": false, "description": about})
}

fn let_keep() -> Value {
    let about = "Whether nodes that compute it may keep on disk what they computed, encrypted and for seven days, for prompts of this \
                 node that begin like it; the node's own choice where it is left out";
    json!({"type": "boolean", "description": about})
}

/// Who may read a prompt.
pub(super) fn mode() -> Value {
    words(&Mode::ALL.map(Mode::name))
}

/// What every request for an answer takes.
pub(super) fn who() -> [(&'static str, Value); 11] {
    [
        ("mode", mode()),
        ("verify", words(&["none", "sample", "all", "off", "strict"])),
        ("shadow", words(&["all", "lazy", "none"])),
        ("let_keep", let_keep()),
        ("draft", draft()),
        ("wire", words(&Wire::ALL.map(Wire::name))),
        ("allow_rounding", json!({"type": "boolean", "description": "Whether wire `auto` may round"})),
        ("attention", attention()),
        ("kv_cache_type", kv_cache_type()),
        ("context_shift", context_shift()),
        ("cuts", list(integer(1, i64::from(u32::MAX)), 0, 256)),
    ]
}

/// Texts to embed: none of them empty.
pub(super) fn input() -> Value {
    let some = json!({"type": "string", "minLength": 1});
    any_of(&[
        some.clone(),
        list(some, 1, 256),
        ids(),
        json!({"type": "array", "items": ids(), "minItems": 1, "maxItems": 256}),
    ])
}

pub(super) fn tool_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"})
}
