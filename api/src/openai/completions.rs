//! `POST /v1/completions`: text to continue, without a chat template.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{MAX_CHOICES, MAX_TOKENS, MAX_TOP_LOGPROBS, common, format, usage};
use crate::{
    App,
    answer::{self, Answer, Ended, Piece, Whole},
    body::JsonBody,
    error::ApiError,
    fields::{Fields, required},
    inference::{GenerateRequest, Prompt, TokenLogprobs},
    sse::{self, Frame, Wire},
    tools::Offer,
};

/// Tokens when the client says nothing; OpenAI's own default.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Prompts of one request.
const MAX_PROMPTS: usize = 16;

struct Asked {
    /// One request per prompt.
    requests: Vec<GenerateRequest>,
    n: usize,
    stream: bool,
    include_usage: bool,
    /// Put in front of each answer: the prompts, for `echo`.
    echoes: Vec<String>,
}

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let asked = read(&app, &headers, &body)?;
    let seen = sse::last_event_id(&headers)?;
    if asked.stream {
        if asked.requests.len() > 1 {
            return Err(ApiError::field("prompt", "must be a single prompt when `stream` is true"));
        }
        if seen.is_some() && (asked.n > 1 || asked.requests[0].seed.is_none()) {
            return Err(ApiError::field("Last-Event-ID", "needs a `seed` and `n` = 1"));
        }
        return stream_one(&app, asked, seen).await;
    }
    let mut choices = Vec::new();
    let mut all = Vec::new();
    let mut first = None;
    for (request, echo) in asked.requests.into_iter().zip(&asked.echoes) {
        let answer = answer::begin(&app, request, &Offer::default(), asked.n).await?;
        let (id, created) = (answer.id.clone(), answer.created_s);
        let (plans, wholes) = answer.collect().await?;
        for whole in &wholes {
            choices.push(choice(choices.len(), echo, whole));
        }
        all.push(answer::total(&wholes));
        first.get_or_insert((id, created, plans, wholes));
    }
    let (id, created, plans, wholes) = required(&Fields::new(&body)?, "prompt", first)?;
    let mut total = all.iter().copied().reduce(|a, b| crate::inference::Usage {
        prompt_tokens: a.prompt_tokens + b.prompt_tokens,
        cached_tokens: a.cached_tokens + b.cached_tokens,
        completion_tokens: a.completion_tokens + b.completion_tokens,
    });
    let report = wholes.first().map(|whole| &whole.report);
    let body = json!({
        "id": id,
        "object": "text_completion",
        "created": created,
        "model": plans[0].model,
        "choices": choices,
        "usage": usage(&total.take().unwrap_or_default()),
        "shoal": answer::badge(&plans[0], report),
    });
    Ok((answer::headers(&id, &plans[0], report), Json(body)).into_response())
}

fn read(app: &App, headers: &HeaderMap, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::new(body)?;
    let prompts = prompts(&fields, "prompt", MAX_PROMPTS)?;
    let mut request = common(&fields, headers, "cmpl-", Prompt::Text(String::new()))?;
    app.know(request.model.as_deref())?;
    request.max_tokens = Some(fields.count("max_tokens", 1, MAX_TOKENS)?.unwrap_or(DEFAULT_MAX_TOKENS));
    request.logprobs = fields.count("logprobs", 0, MAX_TOP_LOGPROBS)?;
    request.format = format(&fields, "response_format")?;
    if fields.any("suffix").is_some_and(|suffix| suffix != "") {
        return Err(fields.refuse("suffix", "is not supported: the models here only continue text"));
    }
    let echo = fields.bool("echo")?.unwrap_or(false);
    let mut echoes = Vec::new();
    for prompt in &prompts {
        echoes.push(match (echo, prompt) {
            (false, _) => String::new(),
            (true, Prompt::Text(text)) => text.clone(),
            (true, _) => return Err(fields.refuse("echo", "needs a prompt of text")),
        });
    }
    let requests = prompts.into_iter().map(|prompt| GenerateRequest { prompt, ..request.clone() }).collect();
    let n = fields.count("n", 1, MAX_CHOICES)?.unwrap_or(1);
    fields.count("best_of", 1, n)?;
    let options = fields.object("stream_options")?;
    let include_usage = options.map(|options| options.bool("include_usage")).transpose()?.flatten();
    Ok(Asked {
        requests,
        n,
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: include_usage.unwrap_or(false),
        echoes,
    })
}

/// A string, token ids, or a list of either.
pub(crate) fn prompts(fields: &Fields<'_>, field: &str, most: usize) -> Result<Vec<Prompt>, ApiError> {
    let value = required(fields, field, fields.any(field))?;
    let wrong = || fields.refuse(field, "must be a string, a list of token ids, or a list of those");
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let Value::Array(list) = value else {
        return Ok(vec![Prompt::Text(value.as_str().ok_or_else(wrong)?.to_owned())]);
    };
    if list.is_empty() {
        return Err(fields.refuse(field, "must not be empty"));
    }
    if list[0].is_number() {
        return Ok(vec![Prompt::Tokens(ids(list).ok_or_else(wrong)?)]);
    }
    if list.len() > most {
        return Err(fields.refuse(field, format_args!("may have at most {most} entries")));
    }
    let one = |value: &Value| match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => ids(list).map(Prompt::Tokens),
        _ => None,
    };
    list.iter().map(|value| one(value).ok_or_else(wrong)).collect()
}

fn finish_reason(ended: Ended) -> &'static str {
    if ended == Ended::Length { "length" } else { "stop" }
}

/// Log-probabilities as completions have them: parallel lists.
fn logprobs(tokens: &[TokenLogprobs], mut offset: usize) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut offsets = Vec::new();
    for at in tokens {
        offsets.push(offset);
        offset += text(&at.chosen.bytes).chars().count();
    }
    let top = |at: &TokenLogprobs| -> Value {
        at.top.iter().map(|token| (text(&token.bytes), json!(token.logprob))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|at| text(&at.chosen.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|at| at.chosen.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn choice(index: usize, echo: &str, whole: &Whole) -> Value {
    let shown = (!whole.logprobs.is_empty()).then(|| logprobs(&whole.logprobs, echo.chars().count()));
    json!({
        "index": index,
        "text": format!("{echo}{}", whole.text),
        "logprobs": shown,
        "finish_reason": whole.ended.map(finish_reason),
    })
}

async fn stream_one(app: &Arc<App>, mut asked: Asked, seen: Option<u64>) -> Result<Response, ApiError> {
    let request = asked.requests.remove(0);
    let echo = asked.echoes.remove(0);
    let Answer { id, created_s, plans, pieces } =
        answer::begin(app, request, &Offer::default(), asked.n).await?;
    let headers = answer::headers(&id, &plans[0], None);
    let base = json!({
        "id": id, "object": "text_completion", "created": created_s, "model": plans[0].model,
    });
    let chunk = move |base: &Value, index: usize, text: &str, end: Option<Ended>| {
        let mut chunk = base.clone();
        let reason = end.map(finish_reason);
        chunk["choices"] = json!([{"index": index, "text": text, "logprobs": null, "finish_reason": reason}]);
        chunk
    };
    let echoed: Vec<Frame> = (0..plans.len())
        .filter(|_| !echo.is_empty())
        .map(|index| Frame::data(chunk(&base, index, &echo, None)))
        .collect();
    let (mut tokens, mut open) = (0, plans.len());
    let mut offsets = vec![echo.chars().count(); plans.len()];
    let mut total = crate::inference::Usage::default();
    let frames = pieces.map(move |(index, piece)| match piece {
        Piece::Token { text, logprobs: at } => {
            tokens += 1;
            if text.is_empty() && at.is_none() {
                return Vec::new();
            }
            let mut frame = chunk(&base, index, &text, None);
            if let Some(at) = at {
                let printed = String::from_utf8_lossy(&at.chosen.bytes).chars().count();
                frame["choices"][0]["logprobs"] = logprobs(&[at], offsets[index]);
                offsets[index] += printed;
            }
            vec![Frame::data(frame).id(tokens)]
        }
        Piece::Call(_) | Piece::Failover { .. } => Vec::new(),
        Piece::Done(done, ended) => {
            let mut last = chunk(&base, index, "", Some(ended));
            last["shoal"] = answer::badge(&plans[index], Some(&done.report));
            let mut frames = vec![Frame::data(last)];
            total.prompt_tokens = done.usage.prompt_tokens;
            total.cached_tokens = done.usage.cached_tokens;
            total.completion_tokens += done.usage.completion_tokens;
            open -= 1;
            if open == 0 {
                if asked.include_usage {
                    let mut counts = base.clone();
                    counts["choices"] = json!([]);
                    counts["usage"] = usage(&total);
                    frames.push(Frame::data(counts));
                }
                frames.push(Frame::data("[DONE]"));
            }
            frames
        }
        Piece::Failed(failure) => vec![Frame::data(ApiError::from(failure).openai()), Frame::data("[DONE]")],
    });
    let frames = stream::iter([echoed]).chain(frames);
    Ok((headers, sse::respond(frames, Wire::Events, seen)).into_response())
}
