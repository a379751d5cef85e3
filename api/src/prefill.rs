//! Conversations whose last message is the assistant's: the answer goes on with it.
//!
//! Anthropic's and Ollama's APIs mean it so; in OpenAI's chat a request says `continue_final_message`, as vLLM's does.

use serde_json::{Map, Value};

use crate::{error::ApiError, inference::Format, tools::Offer};

/// The variable beside a conversation that says so to what renders it.
pub const CONTINUE: &str = "continue_final_message";

/// Whether the last of `messages` is the assistant's own words, behind which no call waits for its result.
pub(crate) fn is_begun(messages: &Value) -> bool {
    messages.as_array().and_then(|messages| messages.last()).is_some_and(|last| {
        let said = last["content"].as_str().is_some_and(|text| !text.is_empty());
        last["role"] == "assistant" && said && last.get("tool_calls").is_none()
    })
}

/// Takes an assistant's message without a word from the end of `messages`: there is nothing to go on with.
pub(crate) fn without_empty_end(messages: &mut Value) {
    let Some(list) = messages.as_array_mut().filter(|list| list.len() > 1) else { return };
    let is_empty = |last: &Value| {
        last["role"] == "assistant" && last["content"] == "" && last.get("tool_calls").is_none()
    };
    if list.last().is_some_and(is_empty) {
        list.pop();
    }
}

/// Has the answer go on with the last of `messages`.
///
/// # Errors
/// Where it must have a form: a form begins with the answer, not in its middle.
pub(crate) fn go_on(extra: &mut Map<String, Value>, format: &Format, offer: &Offer) -> Result<(), ApiError> {
    if *format != Format::Text || offer.forced.is_some() {
        let why = "end with the assistant's words, which an answer in a form or with a demanded call cannot go on with";
        return Err(ApiError::field("messages", why));
    }
    extra.insert(CONTINUE.into(), true.into());
    Ok(())
}
