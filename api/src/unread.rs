//! Fields that are not read, and what becomes of a request that has them.
//!
//! Clients are newer than servers, so a field that is not known is left alone ([`fields`](crate::fields)). That is right only
//! where the answer does not depend on it: a field that would change the answer and is ignored gives the client something
//! else than it asked for. Such fields stand here by name, each with what to do instead, and a request that has one is
//! refused. Values that ask for nothing (`null`, `false`, 0, empty ones, and those that a row names) are taken.
//!
//! [`IGNORED`] lists fields that clients send and that are ignored on purpose, each with the reason.

use serde_json::Value;

use crate::{error::ApiError, fields::Fields};

/// A field that would change the answer: its name, the value that asks for what is done anyway (JSON, may be empty), and
/// what a refusal says behind the name.
type Row = (&'static str, &'static str, &'static str);

/// Which fields a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Completions,
    Responses,
    Messages,
    Ollama,
    OllamaOptions,
}

const STORED: &str =
    "is not supported: send the whole conversation, or go on with `previous_response_id` of /v1/responses";
const GUIDED: &str =
    "is not read here: use `response_format`, which takes a JSON schema, a grammar or a regex";
const TEXT_ONLY: &str = "is not supported: the models here read and write text";
const NO_SAMPLER: &str = "is not supported: no sampler here knows it";
const NO_TOOLS: &str = "is not supported: this node has no tools of its own";
const OPTION: &str = "belongs into `options`";
const OWN_TEMPLATE: &str = "is not supported: conversations are rendered with the model's own template";

/// Refused everywhere.
const ALWAYS: &[Row] = &[
    ("session_id", "", STORED),
    ("conversation_id", "", STORED),
    ("trust", "", "is not a field of this API: `shoal serve --trust NODE` says who is trusted"),
    ("trusted", "", "is not a field of this API: `shoal serve --trust NODE` says who is trusted"),
    ("documents", "", "is not supported: put their text into the messages"),
    ("lora", "", "is not supported: models are asked as they are"),
    ("mirostat", "", NO_SAMPLER),
    ("mirostat_mode", "", NO_SAMPLER),
    ("tfs_z", "1", NO_SAMPLER),
    ("tfs", "1", NO_SAMPLER),
    ("top_a", "", NO_SAMPLER),
    ("xtc_probability", "", NO_SAMPLER),
    ("dry_multiplier", "", NO_SAMPLER),
    ("dynatemp_range", "", NO_SAMPLER),
    ("eta_cutoff", "", NO_SAMPLER),
    ("epsilon_cutoff", "", NO_SAMPLER),
];

/// Refused in OpenAI's requests, among them what servers beside OpenAI's have added.
const OPENAI: &[Row] = &[
    ("audio", "", TEXT_ONLY),
    ("modalities", "[\"text\"]", TEXT_ONLY),
    ("images", "", TEXT_ONLY),
    ("web_search_options", "", NO_TOOLS),
    ("min_tokens", "", "is not supported: bias the token that ends a turn with `logit_bias`"),
    ("ignore_eos", "", "is not supported: bias the token that ends a turn with `logit_bias`"),
    ("stop_token_ids", "", "is not supported: name texts with `stop`"),
    ("bad_words", "", "is not supported: use `logit_bias`"),
    ("allowed_token_ids", "", "is not supported: use `response_format`"),
    ("use_beam_search", "", NO_SAMPLER),
    ("length_penalty", "1", NO_SAMPLER),
    ("early_stopping", "", NO_SAMPLER),
    ("repeat_penalty", "1", "is `repetition_penalty` here"),
    ("repeat_last_n", "64", "is not supported: penalties look at the last 64 tokens"),
    ("typical", "1", "is `typical_p` here"),
    ("n_predict", "-1", "is `max_tokens` here"),
    ("max_new_tokens", "", "is `max_tokens` here"),
    ("num_ctx", "", "is not a field of this API: `shoal serve --ctx` sets the context"),
    ("include_stop_str_in_output", "", "is not supported: an answer ends before the stop string"),
    ("skip_special_tokens", "true", "is not supported: control tokens print nothing"),
    ("truncate_prompt_tokens", "", "is not supported: shorten the messages"),
    ("prompt_logprobs", "", "is not read here: /v1/completions gives them with `echo` and `logprobs`"),
    ("guided_json", "", GUIDED),
    ("guided_regex", "", GUIDED),
    ("guided_choice", "", GUIDED),
    ("guided_grammar", "", GUIDED),
    ("structured_outputs", "", GUIDED),
    ("grammar", "", GUIDED),
    ("json_schema", "", GUIDED),
    ("chat_template", "", OWN_TEMPLATE),
    ("add_generation_prompt", "true", OWN_TEMPLATE),
];

const CHAT: &[Row] = &[
    ("max_output_tokens", "", "is `max_completion_tokens` here"),
    ("best_of", "1", "is not supported: ask for `n` choices"),
];

const COMPLETIONS: &[Row] = &[
    ("continue_final_message", "", "is not supported: send the text itself as `prompt`"),
    ("functions", "", "is not supported: /v1/chat/completions takes tools"),
    ("function_call", "\"none\"", "is not supported: /v1/chat/completions takes tools"),
    ("verbosity", "\"medium\"", "is not supported: say in the prompt how long the answer shall be"),
];

const RESPONSES: &[Row] = &[
    ("continue_final_message", "", "is not supported: /v1/chat/completions takes it"),
    ("functions", "", "is the older form of `tools`; send `tools` and `tool_choice`"),
    ("function_call", "\"none\"", "is the older form of `tool_choice`; send `tools` and `tool_choice`"),
    ("verbosity", "\"medium\"", "is `text.verbosity` here"),
    ("max_tokens", "", "is `max_output_tokens` here"),
    ("max_completion_tokens", "", "is `max_output_tokens` here"),
    ("response_format", "", "is `text.format` here"),
    ("truncation", "\"disabled\"", "must be `disabled`: nothing is left out of a conversation here"),
    ("max_tool_calls", "", "is not supported: tools are called by the client, which counts its turns"),
    ("n", "1", "must be 1: this route gives one answer"),
];

const ANTHROPIC: &[Row] = &[
    ("container", "", NO_TOOLS),
    ("response_format", "", "is `output_config.format` here"),
    ("max_completion_tokens", "", "is `max_tokens` here"),
    ("stop", "", "is `stop_sequences` here"),
    ("n", "1", "must be 1: this route gives one answer"),
    ("logprobs", "", "is not supported: /v1/chat/completions gives them"),
    ("logit_bias", "", "is not supported: /v1/chat/completions takes it"),
    ("min_p", "", "is not supported: /v1/chat/completions takes it"),
    ("presence_penalty", "", "is not supported: /v1/chat/completions takes it"),
    ("frequency_penalty", "", "is not supported: /v1/chat/completions takes it"),
    ("repetition_penalty", "1", "is not supported: /v1/chat/completions takes it"),
];

const OLLAMA: &[Row] = &[
    ("template", "", OWN_TEMPLATE),
    ("context", "", "is not supported: send the conversation to /api/chat"),
    ("logprobs", "", "is not supported: /v1/chat/completions gives them"),
    ("top_logprobs", "", "is not supported: /v1/chat/completions gives them"),
    ("temperature", "", OPTION),
    ("top_k", "", OPTION),
    ("top_p", "", OPTION),
    ("min_p", "", OPTION),
    ("seed", "", OPTION),
    ("stop", "", OPTION),
    ("num_predict", "", OPTION),
    ("response_format", "", "is `format` here"),
    ("tool_choice", "\"auto\"", "is not supported: /v1/chat/completions takes it"),
];

const OLLAMA_OPTIONS: &[Row] = &[
    ("repeat_last_n", "64", "is not supported: penalties look at the last 64 tokens"),
    ("repetition_penalty", "1", "is `repeat_penalty` here"),
    ("max_tokens", "", "is `num_predict` here"),
    ("logit_bias", "", "is not supported: /v1/chat/completions takes it"),
];

/// Fields that clients send and that change nothing, with the reason. A test sends them all.
#[cfg(test)]
pub(crate) const IGNORED: &[(&str, &str)] = &[
    ("user", "there are no accounts"),
    ("safety_identifier", "there are no accounts"),
    ("metadata", "nothing is stored; Responses repeats it"),
    ("store", "Responses alone reads it"),
    ("service_tier", "there is one"),
    ("prompt_cache_key", "every prompt that begins like an earlier one is found by itself"),
    ("prompt_cache_retention", "the same"),
    ("cache_prompt", "the same"),
    ("cache_control", "the same"),
    ("prediction", "it makes an answer faster, not another one"),
    ("guided_decoding_backend", "there is one"),
    ("priority", "requests are answered in their order"),
    ("request_id", "the answer has a name of its own"),
    ("include", "what is asked for in addition is empty here, or there anyway"),
    ("context_management", "it shortens conversations at the server; here all of it is read"),
    ("betas", "what they change is refused by the fields that use them"),
    ("keep_alive", "`shoal serve --unload-after` says it"),
];

/// Refuses a request with a field that would change the answer and is not read.
pub(crate) fn check(fields: &Fields<'_>, route: Route) -> Result<(), ApiError> {
    let tables: &[&[Row]] = match route {
        Route::Chat => &[ALWAYS, OPENAI, CHAT],
        Route::Completions => &[ALWAYS, OPENAI, COMPLETIONS],
        Route::Responses => &[ALWAYS, OPENAI, RESPONSES],
        Route::Messages => &[ALWAYS, ANTHROPIC],
        Route::Ollama => &[ALWAYS, OLLAMA],
        Route::OllamaOptions => &[ALWAYS, OLLAMA_OPTIONS],
    };
    for (name, neutral, why) in tables.iter().copied().flatten() {
        let asked = fields.any(name).filter(|value| !asks_for_nothing(value, neutral));
        if asked.is_some() {
            return Err(fields.refuse(name, why));
        }
    }
    Ok(())
}

fn asks_for_nothing(value: &Value, neutral: &str) -> bool {
    let empty = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) => false,
    };
    let same = || match (value.as_f64(), neutral.parse::<f64>()) {
        (Some(value), Ok(neutral)) => value == neutral,
        _ => serde_json::from_str::<Value>(neutral).is_ok_and(|neutral| neutral == *value),
    };
    empty || same()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROUTES: [Route; 6] = [
        Route::Chat,
        Route::Completions,
        Route::Responses,
        Route::Messages,
        Route::Ollama,
        Route::OllamaOptions,
    ];

    #[test]
    fn what_would_change_the_answer_is_refused_by_name() {
        for route in ROUTES {
            for name in ["session_id", "trust", "mirostat"] {
                let body = json!({name: "x"});
                let error = check(&Fields::new(&body).unwrap(), route).unwrap_err();
                assert_eq!(error.param.as_deref(), Some(name));
                assert!(error.message.starts_with(&format!("`{name}` is not")), "{}", error.message);
            }
        }
    }

    #[test]
    fn what_asks_for_nothing_and_what_changes_nothing_is_taken() {
        let mut body = json!({
            "mirostat": 0, "tfs_z": 1.0, "trust": [], "session_id": null, "use_beam_search": false, "images": [],
            "modalities": ["text"], "length_penalty": 1, "truncation": "disabled", "skip_special_tokens": true,
        });
        for (name, reason) in IGNORED {
            assert!(!reason.is_empty());
            body[*name] = json!({"x": 1});
        }
        for route in ROUTES {
            check(&Fields::new(&body).unwrap(), route).unwrap();
        }
        let body = json!({"length_penalty": 2, "modalities": ["text", "audio"]});
        assert!(check(&Fields::new(&body).unwrap(), Route::Chat).is_err());
    }
}
