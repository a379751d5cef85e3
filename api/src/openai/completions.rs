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
    answer::{self, Answer, Ended, Ending, Piece, Whole},
    body::JsonBody,
    error::ApiError,
    fields::{Fields, required},
    inference::{GenerateRequest, Prompt, PromptToken, TokenLogprobs, Usage},
    sse::{self, Frame, Wire},
    tools::Offer,
    unread::{self, Route},
};

/// Tokens when the client says nothing; OpenAI's own default.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Prompts of one request: what an evaluation harness sends at once. With [`MAX_CHOICES`] of each they are as many as run.
const MAX_PROMPTS: usize = 64;

struct Asked {
    /// One request per prompt.
    requests: Vec<GenerateRequest>,
    n: usize,
    stream: bool,
    include_usage: bool,
    echo: Echo,
}

/// What stands in front of each answer.
#[derive(Clone, Debug, PartialEq)]
enum Echo {
    Nothing,
    /// The prompts, which are text, and nothing about them.
    Texts(Vec<String>),
    /// The tokens of the prompts, as the model tells them.
    Tokens,
}

impl Echo {
    /// The text in front of choice `index`, as far as it is known before the answer begins.
    fn text(&self, index: usize, n: usize) -> &str {
        match self {
            Self::Texts(texts) => texts.get(index / n).map_or("", String::as_str),
            Self::Nothing | Self::Tokens => "",
        }
    }
}

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let asked = read(&app, &headers, &body)?;
    let seen = sse::last_event_id(&headers)?;
    if seen.is_some() && (asked.requests.len() * asked.n > 1 || asked.requests[0].seed.is_none()) {
        return Err(ApiError::field("Last-Event-ID", "needs a `seed`, one prompt and `n` = 1"));
    }
    let n = asked.n;
    let answer = answer::begin_all(&app, &asked.requests, &Offer::default(), None, n).await?;
    if asked.stream {
        return Ok(stream_all(answer, asked, seen));
    }
    let (id, created) = (answer.id.clone(), answer.created_s);
    let (plan, wholes) = answer.collect().await?;
    let choices: Value = wholes
        .iter()
        .enumerate()
        .map(|(index, whole)| choice(index, asked.echo.text(index, n), whole))
        .collect();
    let usages: Vec<Usage> = wholes.iter().map(|whole| whole.usage).collect();
    let report = wholes.first().map(|whole| &whole.report);
    let body = json!({
        "id": id,
        "object": "text_completion",
        "created": created,
        "model": plan.model,
        "choices": choices,
        "usage": usage(&answer::total(&usages, n)),
        "shoal": answer::badge(&plan, report),
    });
    Ok((answer::headers(&id, &plan, report), Json(body)).into_response())
}

fn read(app: &App, headers: &HeaderMap, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::new(body)?;
    unread::check(&fields, Route::Completions)?;
    let prompts = prompts(&fields, "prompt", MAX_PROMPTS)?;
    let mut request = common(app, &fields, headers, "cmpl-", Prompt::Text(String::new()))?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    // Nothing to generate is something to ask only where the prompt is the answer.
    let least = usize::from(!echo);
    let most = fields.count("max_tokens", least, MAX_TOKENS)?.unwrap_or(DEFAULT_MAX_TOKENS);
    request.max_tokens = Some(most);
    request.logprobs = fields.count("logprobs", 0, MAX_TOP_LOGPROBS)?;
    request.format = format(&fields, "response_format")?;
    if fields.any("suffix").is_some_and(|suffix| suffix != "") {
        return Err(fields.refuse("suffix", "is not supported: the models here only continue text"));
    }
    let texts: Option<Vec<String>> = prompts
        .iter()
        .map(|prompt| match prompt {
            Prompt::Text(text) => Some(text.clone()),
            _ => None,
        })
        .collect();
    let echo = match (echo, texts) {
        (false, _) => Echo::Nothing,
        (true, Some(texts)) if request.logprobs.is_none() && most > 0 => Echo::Texts(texts),
        (true, _) => Echo::Tokens,
    };
    request.echo = echo == Echo::Tokens;
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
        echo,
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

/// Log-probabilities as completions have them: parallel lists, in which a token without any has `null`.
#[derive(Default)]
struct Lists {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Value>>,
    text_offset: Vec<usize>,
    /// Characters so far.
    offset: usize,
}

impl Lists {
    fn push(&mut self, bytes: &[u8], at: Option<&TokenLogprobs>) {
        let top = |at: &TokenLogprobs| -> Value {
            at.top.iter().map(|token| (printed(&token.bytes), json!(token.logprob))).collect()
        };
        let text = printed(bytes);
        self.text_offset.push(self.offset);
        self.offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(at.map(|at| at.chosen.logprob));
        self.top_logprobs.push(at.map(top));
    }

    fn prompt(&mut self, tokens: &[PromptToken]) {
        tokens.iter().for_each(|token| self.push(&token.bytes, token.logprobs.as_ref()));
    }

    fn answer(&mut self, tokens: &[TokenLogprobs]) {
        tokens.iter().for_each(|at| self.push(&at.chosen.bytes, Some(at)));
    }

    /// What was pushed, which is gone then; the next tokens follow behind it.
    fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
            "text_offset": std::mem::take(&mut self.text_offset),
        })
    }
}

fn printed(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The text of a prompt's tokens, whose characters may be spread over several.
fn prompt_text(tokens: &[PromptToken]) -> String {
    printed(&tokens.iter().flat_map(|token| token.bytes.iter().copied()).collect::<Vec<u8>>())
}

/// Whether tokens of a prompt were computed with log-probabilities.
fn are_scored(tokens: &[PromptToken]) -> bool {
    tokens.iter().any(|token| token.logprobs.is_some())
}

fn choice(index: usize, echo: &str, whole: &Whole) -> Value {
    let mut lists = Lists { offset: echo.chars().count(), ..Lists::default() };
    lists.prompt(&whole.prompt);
    lists.answer(&whole.logprobs);
    let shown = !whole.logprobs.is_empty() || are_scored(&whole.prompt);
    json!({
        "index": index,
        "text": format!("{echo}{}{}", prompt_text(&whole.prompt), whole.text),
        "logprobs": if shown { lists.take() } else { Value::Null },
        "finish_reason": whole.ended.map(finish_reason),
    })
}

fn stream_all(answer: Answer, asked: Asked, seen: Option<u64>) -> Response {
    let Answer { id, created_s, plan, choices, pieces } = answer;
    let headers = answer::headers(&id, &plan, None);
    let base = json!({
        "id": id, "object": "text_completion", "created": created_s, "model": plan.model,
    });
    let chunk = move |base: &Value, index: usize, text: &str, end: Option<Ended>| {
        let mut chunk = base.clone();
        let reason = end.map(finish_reason);
        chunk["choices"] = json!([{"index": index, "text": text, "logprobs": null, "finish_reason": reason}]);
        chunk
    };
    let echoed: Vec<Frame> = (0..choices)
        .map(|index| (index, asked.echo.text(index, asked.n)))
        .filter(|(_, echo)| !echo.is_empty())
        .map(|(index, echo)| Frame::data(chunk(&base, index, echo, None)))
        .collect();
    let behind = |index| asked.echo.text(index, asked.n).chars().count();
    let mut lists: Vec<Lists> =
        (0..choices).map(|index| Lists { offset: behind(index), ..Lists::default() }).collect();
    let mut tokens = 0;
    let mut usages = vec![None; choices];
    let frames = pieces.map(move |(index, piece)| match piece {
        Piece::Prompt(prompt) => {
            let mut frame = chunk(&base, index, &prompt_text(&prompt), None);
            if asked.requests[0].logprobs.is_some() {
                lists[index].prompt(&prompt);
                frame["choices"][0]["logprobs"] = lists[index].take();
            }
            vec![Frame::data(frame)]
        }
        Piece::Token { text, logprobs: at, counted } => {
            tokens += u64::from(counted);
            if text.is_empty() && at.is_none() {
                return Vec::new();
            }
            let mut frame = chunk(&base, index, &text, None);
            if let Some(at) = at {
                lists[index].answer(&[at]);
                frame["choices"][0]["logprobs"] = lists[index].take();
            }
            vec![Frame::data(frame).id(tokens)]
        }
        // Nothing is told apart from a text that is continued.
        Piece::Reasoning { .. }
        | Piece::Call { .. }
        | Piece::Arguments(_)
        | Piece::CallEnd
        | Piece::Failover { .. } => Vec::new(),
        Piece::Done(ending) => {
            let Ending { done, ended, plan, .. } = *ending;
            let mut last = chunk(&base, index, "", Some(ended));
            last["shoal"] = answer::badge(&plan, Some(&done.report));
            let mut frames = vec![Frame::data(last)];
            usages[index] = Some(done.usage);
            let all: Option<Vec<Usage>> = usages.iter().copied().collect();
            if let Some(all) = all {
                if asked.include_usage {
                    let mut counts = base.clone();
                    counts["choices"] = json!([]);
                    counts["usage"] = usage(&answer::total(&all, asked.n));
                    frames.push(Frame::data(counts));
                }
                frames.push(Frame::data("[DONE]"));
            }
            frames
        }
        Piece::Failed(failure) => vec![Frame::data(ApiError::from(failure).openai()), Frame::data("[DONE]")],
    });
    let frames = stream::iter([echoed]).chain(frames);
    (headers, sse::respond(frames, Wire::Events, seen)).into_response()
}
