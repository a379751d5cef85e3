//! What every dialect does with a request once it has read it: take places, start each choice, merge their events.
//!
//! ```text
//! GenerateRequest x n -> places -> Inference::generate -> events -> tool calls taken out -> (choice, Piece)
//! ```
//!
//! Choice `i` draws with `seed + i`, so each of them can be had alone. Dropping the [`Answer`] gives everything back.

use std::{sync::Arc, time::SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use serde_json::{Value, json};

use crate::{
    App,
    error::ApiError,
    inference::{Done, Event, Failure, Finish, GenerateRequest, Plan, Report, TokenLogprobs, Usage},
    queue::Place,
    tools::{Offer, Parsed, Parser, ToolCall},
};

/// A step of an answer, calls of tools taken out of the text.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// A token: the text that is certain with it, possibly empty.
    Token { text: String, logprobs: Option<TokenLogprobs> },
    /// A call of a tool.
    Call(ToolCall),
    /// A stage was replaced.
    Failover { lost: String, replacement: String, stall_ms: f64 },
    /// The end of this choice.
    Done(Done, Ended),
    /// It cannot go on.
    Failed(Failure),
}

/// Why a choice ended, calls included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Stop,
    Length,
    Calls,
}

/// An answer that has begun.
pub(crate) struct Answer {
    pub id: String,
    pub created_s: u64,
    pub plans: Vec<Plan>,
    pub pieces: BoxStream<'static, (usize, Piece)>,
}

/// Starts `n` choices of `request`.
pub(crate) async fn begin(
    app: &Arc<App>,
    request: GenerateRequest,
    offer: &Offer,
    n: usize,
) -> Result<Answer, ApiError> {
    app.inference.ready()?;
    let place = app.queue.enter(n)?;
    let id = request.id.clone();
    let mut plans = Vec::with_capacity(n);
    let mut choices: Vec<BoxStream<'static, (usize, Piece)>> = Vec::with_capacity(n);
    let mut seed = request.seed;
    for index in 0..n {
        let request = GenerateRequest {
            seed: seed.map(|seed| seed.wrapping_add(index as u64)),
            show_special: !offer.names.is_empty(),
            ..request.clone()
        };
        let generation = app.inference.generate(request).await?;
        // The first choice draws the seed for all where none was given.
        seed.get_or_insert(generation.plan.seed);
        let parser = Parser::new(offer.names.clone(), generation.plan.seed);
        plans.push(generation.plan);
        let counted = app.counters.clone();
        let pieces = generation.events.inspect(move |event| counted.event(event));
        let pieces = cut(pieces, parser).map(move |piece| (index, piece));
        choices.push(pieces.boxed());
    }
    app.counters.started(n);
    let pieces = hold(stream::select_all(choices), place).boxed();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Answer { id, created_s: now.map_or(0, |now| now.as_secs()), plans, pieces })
}

/// Keeps the places until the stream is dropped.
fn hold<T>(stream: impl Stream<Item = T>, place: Place) -> impl Stream<Item = T> {
    stream.map(move |item| {
        let _held = &place;
        item
    })
}

/// Events to pieces. An event gives several pieces when text that was held back turns out to be a call.
fn cut(events: impl Stream<Item = Event> + Send, mut parser: Parser) -> impl Stream<Item = Piece> + Send {
    let mut called = false;
    let mut ended = false;
    events
        .map(move |event| {
            let mut pieces = Vec::new();
            let mut take = |parsed: Vec<Parsed>, logprobs: Option<TokenLogprobs>, token: bool| {
                let mut text = String::new();
                let mut calls = Vec::new();
                for piece in parsed {
                    match piece {
                        Parsed::Text(more) => text.push_str(&more),
                        Parsed::Call(call) => calls.push(Piece::Call(call)),
                    }
                }
                called |= !calls.is_empty();
                if token || !text.is_empty() {
                    pieces.push(Piece::Token { text, logprobs });
                }
                pieces.append(&mut calls);
            };
            match event {
                _ if ended => {}
                Event::Prefill { .. } => {}
                Event::Token { text, logprobs, .. } => take(parser.push(&text), logprobs, true),
                Event::Text(text) => take(parser.push(&text), None, false),
                Event::Failover { lost, replacement, stall_ms } => {
                    pieces.push(Piece::Failover { lost, replacement, stall_ms });
                }
                Event::Done(done) => {
                    take(parser.finish(), None, false);
                    let end = match done.finish {
                        _ if called => Ended::Calls,
                        Finish::Stop => Ended::Stop,
                        Finish::Length => Ended::Length,
                    };
                    pieces.push(Piece::Done(done, end));
                    ended = true;
                }
                Event::Failed(failure) => {
                    pieces.push(Piece::Failed(failure));
                    ended = true;
                }
            }
            stream::iter(pieces)
        })
        .flatten()
}

/// One choice, complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub calls: Vec<ToolCall>,
    pub stop: Option<String>,
    pub ended: Option<Ended>,
    pub usage: Usage,
    pub report: Report,
}

impl Answer {
    /// Everything, for clients that want it in one piece.
    pub(crate) async fn collect(mut self) -> Result<(Vec<Plan>, Vec<Whole>), ApiError> {
        let mut wholes = vec![Whole::default(); self.plans.len()];
        while let Some((index, piece)) = self.pieces.next().await {
            let whole = &mut wholes[index];
            match piece {
                Piece::Token { text, logprobs } => {
                    whole.text.push_str(&text);
                    whole.logprobs.extend(logprobs);
                }
                Piece::Call(call) => whole.calls.push(call),
                Piece::Failover { .. } => {}
                Piece::Done(done, ended) => {
                    whole.stop = done.stop;
                    whole.ended = Some(ended);
                    whole.usage = done.usage;
                    whole.report = done.report;
                }
                Piece::Failed(failure) => return Err(failure.into()),
            }
        }
        if wholes.iter().any(|whole| whole.ended.is_none()) {
            let why = "the answer broke off before its end".to_owned();
            return Err(Failure::Internal { why }.into());
        }
        Ok((self.plans, wholes))
    }
}

/// Token counts of all choices; the prompt counts once.
pub(crate) fn total(wholes: &[Whole]) -> Usage {
    let mut total = wholes.first().map(|whole| whole.usage).unwrap_or_default();
    total.completion_tokens = wholes.iter().map(|whole| whole.usage.completion_tokens).sum();
    total
}

/// The `x-shoal-*` headers: what was decided, and where the answer is complete, what happened.
pub(crate) fn headers(id: &str, plan: &Plan, report: Option<&Report>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: String| {
        // Names of nodes are hex digits; a value that is no header is left out.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("x-request-id", id.to_owned());
    put("x-shoal-mode", plan.mode.name().to_owned());
    put("x-shoal-verify", plan.verify.name().to_owned());
    put("x-shoal-route", plan.route.join(" "));
    put("x-shoal-seed", plan.seed.to_string());
    if let Some(speed) = plan.predicted_tok_s {
        put("x-shoal-predicted-tok-s", format!("{speed:.2}"));
    }
    if let Some(report) = report {
        put("x-shoal-computed-by", report.computed_by.join(" "));
        put("x-shoal-checked-by", report.checked_by.join(" "));
        if report.checking {
            put("x-shoal-checking", "true".to_owned());
        }
        if !report.convicted.is_empty() {
            put("x-shoal-convicted", report.convicted.join(" "));
        }
        if let Some(token) = report.wrong_from {
            put("x-shoal-wrong-from", token.to_string());
        }
        put("x-shoal-actual-tok-s", format!("{:.2}", report.tok_s));
        put("x-shoal-faults-survived", report.faults_survived.to_string());
    }
    headers
}

/// The same for the body, under the key `shoal`.
pub(crate) fn badge(plan: &Plan, report: Option<&Report>) -> Value {
    let mut badge = json!({
        "mode": plan.mode,
        "verify": plan.verify.name(),
        "route": plan.route,
        "seed": plan.seed,
        "predicted_tok_s": plan.predicted_tok_s,
    });
    if let (Some(Value::Object(report)), Some(badge)) =
        (report.and_then(|report| serde_json::to_value(report).ok()), badge.as_object_mut())
    {
        badge.extend(report);
    }
    badge
}
