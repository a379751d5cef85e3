//! What a caller asks, checked: parameters as the command line and the API write them, and why a prompt is refused.

use std::collections::BTreeSet;

use api::{choice::Wire, inference::Format, prefill::CONTINUE};
use scheduler::{CacheType, NodeId, backlog::Shed};
use serde_json::{Value, json};
use shard::sample::SamplingParams;

use crate::{
    context_shift::Window,
    control::Mode,
    encode::shorten,
    events::{PoolingRequest, PromptInput, PromptRequest, Refusal, RefusalKind, Sampling},
    node_names,
    worker::{Conduct, Fault, PoolingTask, Prompt, Ready, TextKind, Worker},
};

/// Why a prompt is not answered, as the caller is told.
pub(super) struct Trouble(pub(super) Refusal);

impl Trouble {
    /// One of `kind`.
    pub(super) fn kind(kind: RefusalKind, why: impl Into<String>) -> Self {
        Self(Refusal::kind(kind, why))
    }

    /// Whether it is only for now.
    pub(super) fn is_busy(&self) -> bool {
        self.0.kind == Some(RefusalKind::Busy)
    }

    /// A field has a value that cannot be meant.
    pub(super) fn invalid(field: &str, why: impl Into<String>) -> Self {
        Self(Refusal { field: Some(field.to_owned()), ..Refusal::kind(RefusalKind::Invalid, why) })
    }

    /// More tokens than the model can hold.
    pub(super) fn too_long(tokens: usize, context: u32) -> Self {
        let why = format!("the prompt has {tokens} tokens, the context holds {context}; shorten it");
        let refusal = Refusal::kind(RefusalKind::TooLong, why);
        Self(Refusal { tokens: Some(tokens), context: Some(context), ..refusal })
    }

    /// It does not wait for room, or no longer.
    pub(super) fn shed(shed: Shed) -> Self {
        let refusal = Refusal::kind(RefusalKind::Busy, shed.to_string());
        Self(Refusal { retry_after_s: Some(shed.retry_after_s), ..refusal })
    }

    /// The worker would not: the request's fault when it read it, else its own.
    pub(super) fn of(fault: Fault, field: &str) -> Self {
        match fault {
            Fault::Refused(why) => Self::invalid(field, why),
            Fault::Busy | Fault::NoRoom { .. } => Self::kind(RefusalKind::Busy, fault.to_string()),
            Fault::Poison | Fault::Lost(_) | Fault::Dead(_) => {
                Self::kind(RefusalKind::Unavailable, fault.to_string())
            }
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self(Refusal::new(why))
    }
}

/// The parameters that a request leaves open are the engine's.
pub(super) fn sampling(given: &Sampling) -> Result<SamplingParams, String> {
    let default = SamplingParams::default();
    let sampling = SamplingParams {
        temperature: given.temperature.unwrap_or(default.temperature),
        top_k: given.top_k.unwrap_or(0),
        top_p: given.top_p.unwrap_or(1.0),
        min_p: given.min_p.unwrap_or(0.0),
        typical_p: given.typical_p.unwrap_or(1.0),
        repetition_penalty: given.repetition_penalty.unwrap_or(1.0),
        presence_penalty: given.presence_penalty.unwrap_or(0.0),
        frequency_penalty: given.frequency_penalty.unwrap_or(0.0),
        logit_bias: given.logit_bias.clone(),
        logprobs: given.logprobs,
        top_logprobs: given.top_logprobs,
        ..default
    };
    sampling.validate().map_err(|e| e.to_string())?;
    Ok(sampling)
}

/// A prompt of token ids.
pub(super) fn token_ids(ids: &[u32], vocab: u32) -> Result<Vec<u32>, Trouble> {
    match ids.iter().all(|id| *id < vocab) {
        true => Ok(ids.to_vec()),
        false => Err(Trouble::invalid("prompt", format!("token ids must be below {vocab}"))),
    }
}

/// The first field that a peer who conducts for us could not be told of.
pub(super) fn only_here(ask: &PromptRequest) -> Option<&'static str> {
    let asked = [
        ("response_format", !matches!(ask.api.format, Format::Text | Format::Calls(_))),
        ("tools", ask.api.tools.is_some() || ask.api.show_special),
        ("continue_final_message", ask.api.extra.contains_key(CONTINUE)),
        ("chat_template_kwargs", !ask.api.extra.is_empty()),
        ("echo", ask.api.echo),
        ("logprobs", ask.sampling.logprobs),
        ("cuts", !ask.wire.cuts.is_empty()),
        ("wire", !matches!(ask.wire.wire, None | Some(Wire::Auto | Wire::Raw))),
        ("attention", !ask.kind.attention.is_dense()),
        ("kv_cache_type", ask.kind.cache != CacheType::F16),
        ("draft", ask.named_drafter().is_some()),
        ("context_shift", ask.length.context_shift),
        ("prompt", matches!(ask.prompt, PromptInput::Tokens { .. })),
    ];
    asked.into_iter().find(|(_, asked)| *asked).map(|(field, _)| field)
}

/// The peers that the caller named as trusted.
pub(super) fn trusted(ask: &PromptRequest) -> Result<BTreeSet<NodeId>, String> {
    if ask.mode == Mode::Trusted && ask.trusted.is_empty() {
        let why = "trusted mode needs to know whom you trust: name them with --trust; `shoal peers --json` shows full names";
        return Err(why.to_owned());
    }
    ask.trusted.iter().map(|name| node_names::full(name)).collect()
}

/// What is made of the prompt's hidden states, where they are pooled.
pub(super) fn task(ask: &PromptRequest) -> Option<PoolingTask> {
    let task = |pooling: &PoolingRequest| match pooling.query {
        Some(_) => PoolingTask::Score,
        None => PoolingTask::Embed,
    };
    ask.api.pooling.as_ref().map(task)
}

/// How the answer is made, of a prompt of so many tokens.
pub(super) fn conduct(ask: &PromptRequest, sampling: SamplingParams, known: &Window) -> Conduct {
    // What was told of the prompt is not told again.
    let echoes = ask.api.echo && known.skipped == 0;
    Conduct {
        sampling,
        seed: ask.seed,
        stop: ask.stop.clone(),
        history: Vec::new(),
        prompt_tokens: known.prompt as u32,
        forgotten: known.forgotten.clone(),
        skipped: known.skipped as u64,
        format: ask.api.format.clone(),
        show_special: ask.api.show_special,
        echo: echoes.then_some(matches!(ask.prompt, PromptInput::Text(_))),
        pooling: task(ask),
    }
}

/// The prompt as token ids, and whether it ends inside a block of reasoning.
pub(super) async fn encode(
    ask: &PromptRequest,
    worker: &Worker,
    ready: &Ready,
) -> Result<(Vec<u32>, bool), Trouble> {
    if ready.abilities.encodes && task(ask).is_none() {
        return Err(Trouble::invalid("model", reads_only(ready)));
    }
    if let Some(task) = task(ask).filter(|task| !ready.pools(*task)) {
        return Err(Trouble::invalid("model", task.refusal(&ready.name)));
    }
    let (mut ids, reasoning) = encode_whole(ask, worker, ready.vocabulary.tokens).await?;
    if ask.api.pooling.as_ref().is_some_and(|pooling| pooling.truncate) {
        shorten(&mut ids, ready.context as usize, ready.vocabulary.closing);
    }
    Ok((ids, reasoning))
}

/// Why an encoder answers no prompt.
fn reads_only(ready: &Ready) -> String {
    let route = if ready.abilities.scores { "/v1/rerank" } else { "/v1/embeddings" };
    format!("{} is an encoder: it reads texts and writes none; ask {route}", ready.name)
}

async fn encode_whole(ask: &PromptRequest, worker: &Worker, vocab: u32) -> Result<(Vec<u32>, bool), Trouble> {
    let query =
        ask.api.pooling.as_ref().and_then(|pooling| Some((pooling.query.as_ref()?, pooling.truncate)));
    let (prompt, field) = match &ask.prompt {
        PromptInput::Tokens { ids } => {
            return Ok((token_ids(ids, vocab)?, false));
        }
        PromptInput::Text(text) if let Some((query, truncate)) = query => {
            let kind = TextKind::Document { query: query.clone(), truncate };
            (Prompt { text: text.clone(), kind }, "documents")
        }
        PromptInput::Text(text) if ask.api.plain => {
            let kind = TextKind::Raw { bos: true, special: false };
            (Prompt { text: text.clone(), kind }, "prompt")
        }
        PromptInput::Text(text) => (Prompt::raw(text.clone()), "prompt"),
        PromptInput::Messages(messages) => {
            let tools = ask.api.tools.as_ref().map(Value::to_string);
            let extra = (!ask.api.extra.is_empty()).then(|| json!(ask.api.extra).to_string());
            (Prompt { text: messages.to_string(), kind: TextKind::Chat { tools, extra } }, "messages")
        }
    };
    worker.encode(prompt).await.map_err(|fault| Trouble::of(fault, field))
}
