//! Messages to the ids of a prompt: by the model's template, or without one; texts that a model reads and does not answer.

pub(crate) mod rank_prompt;
pub(crate) mod text_pair;

use api::prefill::CONTINUE;
use serde_json::{Map, Value};
use shard::tokenizer::{
    Encode, Tokenizer,
    chat::{self, DateTime, RenderInput, Template},
};

use crate::{Error, Result, model::Model};

/// Tokens at the end of a prompt in which the mark of an open block of reasoning and what follows it are looked for.
const TAIL_TOKENS: usize = 8;

/// The time that templates may ask for.
pub fn now() -> DateTime {
    DateTime::from_unix(crate::clock::unix_s())
}

/// Messages to the ids of a prompt: the model's template, else the contents joined by blank lines.
pub fn encode_chat(model: &Model, messages: &Value) -> Result<Vec<u32>> {
    encode_messages(&model.tokenizer, &model.template, messages, None, Map::new(), model.ctx)
}

/// As [`encode_chat`], with descriptions of tools, which reach every model ([`Template::render_offering`]), and further
/// variables for templates that take them; [`CONTINUE`] among them goes on with the last message. Of what has more than
/// `context` tokens only so much is tokenized that more than `context` come out.
pub fn encode_messages(
    tokenizer: &Tokenizer,
    template: &Result<Option<Template>, String>,
    messages: &Value,
    tools: Option<Value>,
    mut extra: Map<String, Value>,
    context: usize,
) -> Result<Vec<u32>> {
    let template = template.as_ref().map_err(|why| {
        Error::usage(format!(
            "the model's chat template cannot be used ({why}); `shoal run --raw` does without"
        ))
    })?;
    let Some(template) = template else {
        let described = tools.map(|tools| chat::tools::described(messages, &chat::tools::preamble(&tools)));
        let messages = described.as_ref().unwrap_or(messages);
        let texts: Vec<&str> =
            messages.as_array().into_iter().flatten().filter_map(|m| m["content"].as_str()).collect();
        let text = texts.join("\n\n");
        let text = tokenizer.beginning(&text, context);
        return Ok(tokenizer.encode(text, Encode { bos: true, special: false })?);
    };
    let goes_on = extra.remove(CONTINUE) == Some(Value::Bool(true));
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    let input = RenderInput {
        messages: messages.clone(),
        tools,
        add_generation_prompt: true,
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
        now: Some(now()),
        extra,
    };
    let text = if goes_on { template.render_continuing(&input) } else { template.render_offering(&input) }?;
    Ok(tokenizer.encode_prompt(tokenizer.beginning(&text, context))?)
}

/// Whether a prompt from the chat template ends inside a block of reasoning, so that the answer begins there.
pub fn opens_reasoning(tokenizer: &Tokenizer, ids: &[u32]) -> bool {
    let tail = &ids[ids.len().saturating_sub(TAIL_TOKENS)..];
    api::reasoning::is_open(&tail.iter().map(|id| tokenizer.token_text(*id)).collect::<String>())
}

/// Cuts a text to `context` tokens. The token that closes texts stays at its end: a model that pools there reads it.
pub(crate) fn shorten(ids: &mut Vec<u32>, context: usize, closing: Option<u32>) {
    let closing = closing.filter(|_| ids.len() > context && ids.last().copied() == closing);
    ids.truncate(context);
    if let (Some(closing), Some(last)) = (closing, ids.last_mut()) {
        *last = closing;
    }
}
