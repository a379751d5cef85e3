//! What every dialect does with a request once it has read it: take places, start each choice, merge their events.
//!
//! ```text
//! GenerateRequest x n -> places -> Inference::generate -> events -> reasoning and calls told apart -> (choice, Piece)
//! ```
//!
//! Choice `i` draws with `seed + i`, so each of them can be had alone. Dropping the [`Answer`] gives everything back.

use std::{
    sync::Arc,
    task::{Poll, ready},
    time::{Instant, SystemTime},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use futures::{
    FutureExt, Stream, StreamExt,
    stream::{self, BoxStream},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    App, Inference,
    calls::{Parsed, Parser, ToolCall},
    error::ApiError,
    inference::{
        Done, Event, Failure, Finish, Format, GenerateRequest, Generation, ModelInfo, Plan, Prompt,
        PromptToken, Report, TokenLogprobs, Usage,
    },
    keys::{self, Account},
    queue::Place,
    reasoning::{Form, Splitter, Told},
    tools::Offer,
};

/// A step of an answer, reasoning and calls of tools taken out of the text.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Tokens of the prompt, in their order, before anything else.
    Prompt(Vec<PromptToken>),
    /// A token: the text that is certain with it, possibly empty. Text that comes without one is not `counted`.
    Token { text: String, logprobs: Option<TokenLogprobs>, counted: bool },
    /// The same of what the model thinks before it answers.
    Reasoning { text: String, logprobs: Option<TokenLogprobs>, counted: bool },
    /// A call of a tool begins.
    Call { id: String, name: String },
    /// More of its arguments.
    Arguments(String),
    /// It is complete, or was cut.
    CallEnd,
    /// A stage was replaced.
    Failover { lost: String, replacement: String, stall_ms: f64 },
    /// The end of this choice.
    Done(Box<Ending>),
    /// It cannot go on.
    Failed(Failure),
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub done: Done,
    pub ended: Ended,
    /// Of the generated tokens, those of reasoning.
    pub reasoning_tokens: usize,
    /// What was decided about this choice.
    pub plan: Plan,
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
    /// What was decided about the first choice.
    pub plan: Plan,
    /// How many choices there are: those of the first request, then those of the next.
    pub choices: usize,
    pub pieces: BoxStream<'static, (usize, Piece)>,
}

/// Starts `n` choices of one request.
pub(crate) async fn begin(
    app: &Arc<App>,
    request: GenerateRequest,
    offer: &Offer,
    n: usize,
) -> Result<Answer, ApiError> {
    let form = reasoning(app, &request);
    begin_all(app, &[request], offer, form, n).await
}

/// How the model that `request` names marks its reasoning, where the answer may have any: what has a form of its own has
/// none.
fn reasoning(app: &App, request: &GenerateRequest) -> Option<Form> {
    let free = request.format == Format::Text && matches!(request.prompt, Prompt::Messages { .. });
    let info = free.then(|| app.know(request.model.as_deref()).ok()).flatten()?;
    Form::of(&info.template?)
}

/// Starts `n` choices of each request; there is at least one. All of them are computed together. What refuses the first
/// choice is an error here; the others begin while its pieces are read, as many at a time as there is room for. Reasoning
/// is told apart from the answers if `form` says how.
pub(crate) async fn begin_all(
    app: &Arc<App>,
    requests: &[GenerateRequest],
    offer: &Offer,
    form: Option<Form>,
    n: usize,
) -> Result<Answer, ApiError> {
    let model = requests.first().and_then(|request| request.model.as_deref());
    app.inference.ready(model)?;
    keys::admit(app.keys.as_ref())?;
    let choices = requests.len() * n;
    let place = app.queue.enter(choices)?;
    let Some(first) = requests.first() else {
        return Err(ApiError::field("prompt", "must not be empty"));
    };
    let asked = Instant::now();
    let drawn_first = drawn(first, first.seed, offer, form);
    let form_asked = drawn_first.format.clone();
    let generation = tokio::select! {
        generation = app.inference.generate(drawn_first) => generation,
        () = closed(app.closing.subscribe()) => Err(stopping()),
    };
    let generation = generation.map_err(|failure| offer.blame(&form_asked, failure))?;
    app.counters.waited(asked.elapsed());
    let (id, plan) = (first.id.clone(), generation.plan.clone());
    // The first choice draws the seed for all where none was given.
    let seed = plan.seed;
    let mut all: Vec<BoxStream<'static, (usize, Piece)>> = Vec::with_capacity(choices);
    let account = Arc::new(Account::begin(app.keys.clone(), &plan.model));
    account.prompt(plan.prompt_tokens);
    let read = pieces(app, generation, (offer, &form_asked), form, (asked, account.clone()));
    all.push(read.map(|piece| (0, piece)).boxed());
    for choice in 1..choices {
        let seed = seed.wrapping_add((choice % n) as u64);
        let request = drawn(&requests[choice / n], Some(seed), offer, form);
        let (app, offer, account) = (app.clone(), offer.clone(), account.clone());
        let begun = stream::once(async move {
            let (asked, form_asked) = (Instant::now(), request.format.clone());
            match app.inference.generate(request).await {
                Ok(generation) => {
                    // A prompt counts once, however many choices are made of it.
                    if choice % n == 0 {
                        account.prompt(generation.plan.prompt_tokens);
                    }
                    pieces(&app, generation, (&offer, &form_asked), form, (asked, account)).boxed()
                }
                Err(failure) => {
                    account.ended("failed");
                    stream::iter([Piece::Failed(offer.blame(&form_asked, failure))]).boxed()
                }
            }
        });
        all.push(begun.flatten().map(move |piece| (choice, piece)).boxed());
    }
    app.counters.started(choices);
    let pieces = hold(stream::select_all(all), place).boxed();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Answer { id, created_s: now.map_or(0, |now| now.as_secs()), plan, choices, pieces })
}

/// The pieces of one choice, whose answer has a form that was asked for or made of the tools.
fn pieces(
    app: &App,
    generation: Generation,
    (offer, form_asked): (&Offer, &Format),
    form: Option<Form>,
    (asked, account): (Instant, Arc<Account>),
) -> impl Stream<Item = Piece> + Send + use<> {
    let counted = app.counters.clone();
    let mut last = None;
    let blamed = (offer.clone(), form_asked.clone());
    let events = until_closed(generation.events, app.closing.subscribe());
    let events = events.map(move |event| match event {
        Event::Failed(failure) => Event::Failed(blamed.0.blame(&blamed.1, failure)),
        other => other,
    });
    let events = events.inspect(move |event| {
        counted.event(event);
        account.event(event);
        if matches!(event, Event::Token { .. }) {
            let now = Instant::now();
            counted.token(asked, last.replace(now), now);
        }
    });
    cut(events, Reader::new(offer, form, &generation.plan), generation.plan)
}

/// When it is worth asking again a server that stops: one takes so long to start.
const RETRY_AFTER_S: u32 = 5;

fn stopping() -> Failure {
    Failure::Unavailable { why: "this server stops".to_owned(), retry_after_s: RETRY_AFTER_S }
}

/// Completes when answers have no more time, or the server is gone.
async fn closed(mut closing: watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// The events of an answer, of which the last says so where the server stops before its end. What is there goes first.
fn until_closed(
    events: impl Stream<Item = Event> + Send,
    closing: watch::Receiver<bool>,
) -> impl Stream<Item = Event> + Send {
    let (mut events, mut closed) = (Box::pin(events.fuse()), Box::pin(closed(closing)));
    let mut is_over = false;
    stream::poll_fn(move |context| {
        if is_over {
            return Poll::Ready(None);
        }
        let event = match events.poll_next_unpin(context) {
            Poll::Ready(event) => event,
            Poll::Pending => Some(Event::Failed({
                ready!(closed.poll_unpin(context));
                stopping()
            })),
        };
        is_over = matches!(event, None | Some(Event::Done(_) | Event::Failed(_)));
        Poll::Ready(event)
    })
}

/// One answer outside of HTTP: nothing is counted, no place is taken.
pub(crate) async fn read(
    inference: &dyn Inference,
    request: GenerateRequest,
    offer: &Offer,
) -> Result<(Plan, BoxStream<'static, Piece>), Failure> {
    let models = inference.models();
    let named = |model: &&ModelInfo| request.model.as_ref().is_none_or(|name| *name == model.name);
    let template = models.iter().find(named).and_then(|model| model.template.as_deref());
    let form = template.filter(|_| request.format == Format::Text).and_then(Form::of);
    let generation = inference.generate(drawn(&request, request.seed, offer, form)).await?;
    let plan = generation.plan.clone();
    let reader = Reader::new(offer, form, &plan);
    Ok((plan, cut(generation.events, reader, generation.plan).boxed()))
}

/// `request` with a seed, as an answer that is read for calls of the tools of `offer` and reasoning in `form` needs it.
fn drawn(request: &GenerateRequest, seed: Option<u64>, offer: &Offer, form: Option<Form>) -> GenerateRequest {
    GenerateRequest {
        seed,
        show_special: !offer.names.is_empty() || form.is_some(),
        // What is said about the answer as a whole stands above what is said about calls in it.
        format: match (&request.format, &offer.free) {
            (Format::Text, Some(calls)) => calls.clone(),
            (asked, _) => asked.clone(),
        },
        ..request.clone()
    }
}

/// Keeps the places until the stream is dropped.
fn hold<T>(stream: impl Stream<Item = T>, place: Place) -> impl Stream<Item = T> {
    stream.map(move |item| {
        let _held = &place;
        item
    })
}

/// Tells apart what an answer's text says.
struct Reader {
    splitter: Splitter,
    parser: Parser,
    reasoning_tokens: usize,
}

/// What is read from a text.
enum Part {
    Reasoning(String),
    Answer(Parsed),
}

impl Reader {
    fn new(offer: &Offer, form: Option<Form>, plan: &Plan) -> Self {
        let parser = Parser::new(offer.names.clone(), plan.seed).typed(offer.types.clone());
        let parser = parser.expecting(offer.single, offer.forced.is_some());
        let splitter = Splitter::new(form, form.is_some() && plan.reasoning);
        Self { splitter, parser, reasoning_tokens: 0 }
    }

    fn read(&mut self, told: Vec<Told>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in told {
            match piece {
                Told::Reasoning(text) => parts.push(Part::Reasoning(text)),
                Told::Text(text) => parts.extend(self.parser.push(&text).into_iter().map(Part::Answer)),
            }
        }
        parts
    }

    /// Text as pieces in its order. A token, `Some` with its log-probabilities, is counted once: with the first text, or
    /// before everything where there is none.
    fn take(&mut self, text: &str, mut token: Option<Option<TokenLogprobs>>, pieces: &mut Vec<Piece>) {
        let told = self.splitter.push(text);
        self.reasoning_tokens += usize::from(token.is_some() && self.splitter.reasons());
        let parts = self.read(told);
        let says = |part: &Part| matches!(part, Part::Reasoning(_) | Part::Answer(Parsed::Text(_)));
        if let Some(logprobs) = token.take_if(|_| !parts.iter().any(says)) {
            pieces.push(Piece::Token { text: String::new(), logprobs, counted: true });
        }
        put(parts, token, pieces);
    }

    /// The end, `cut` or not.
    fn finish(&mut self, cut: bool, pieces: &mut Vec<Piece>) {
        let told = self.splitter.finish();
        let mut parts = self.read(told);
        parts.extend(self.parser.finish(cut).into_iter().map(Part::Answer));
        put(parts, None, pieces);
    }
}

fn put(parts: Vec<Part>, mut token: Option<Option<TokenLogprobs>>, pieces: &mut Vec<Piece>) {
    let mut counted = || token.take().map_or((false, None), |logprobs| (true, logprobs));
    for part in parts {
        pieces.push(match part {
            Part::Reasoning(text) => {
                let (counted, logprobs) = counted();
                Piece::Reasoning { text, logprobs, counted }
            }
            Part::Answer(Parsed::Text(text)) => {
                let (counted, logprobs) = counted();
                Piece::Token { text, logprobs, counted }
            }
            Part::Answer(Parsed::Begin { id, name }) => Piece::Call { id, name },
            Part::Answer(Parsed::Arguments(more)) => Piece::Arguments(more),
            Part::Answer(Parsed::End) => Piece::CallEnd,
        });
    }
}

/// Events to pieces. An event gives several pieces when text that was held back turns out to be a call.
fn cut(
    events: impl Stream<Item = Event> + Send,
    mut reader: Reader,
    plan: Plan,
) -> impl Stream<Item = Piece> + Send {
    let mut called = false;
    let mut ended = false;
    events
        .map(move |event| {
            let mut pieces = Vec::new();
            match event {
                _ if ended => {}
                Event::Prefill { .. } => {}
                Event::Prompt(tokens) => pieces.push(Piece::Prompt(tokens)),
                Event::Token { text, logprobs, .. } => reader.take(&text, Some(logprobs), &mut pieces),
                Event::Text(text) => reader.take(&text, None, &mut pieces),
                Event::Failover { lost, replacement, stall_ms } => {
                    pieces.push(Piece::Failover { lost, replacement, stall_ms });
                }
                Event::Done(done) => {
                    // A stop within a call leaves it as incomplete as a limit does.
                    reader.finish(done.finish == Finish::Length || done.stop.is_some(), &mut pieces);
                    ended = true;
                    called |= pieces.iter().any(|piece| matches!(piece, Piece::Call { .. }));
                    let end = match done.finish {
                        Finish::Length if reader.parser.was_cut() => Ended::Length,
                        Finish::Stop if reader.parser.was_cut() => Ended::Stop,
                        _ if called => Ended::Calls,
                        Finish::Stop => Ended::Stop,
                        Finish::Length => Ended::Length,
                    };
                    let reasoning_tokens = reader.reasoning_tokens;
                    let ending = Ending { done, ended: end, reasoning_tokens, plan: plan.clone() };
                    pieces.push(Piece::Done(Box::new(ending)));
                }
                Event::Failed(failure) => {
                    pieces.push(Piece::Failed(failure));
                    ended = true;
                }
            }
            called |= pieces.iter().any(|piece| matches!(piece, Piece::Call { .. }));
            stream::iter(pieces)
        })
        .flatten()
}

/// One choice, complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    pub prompt: Vec<PromptToken>,
    /// What the model thought before it answered.
    pub reasoning: String,
    pub reasoning_tokens: usize,
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
    pub(crate) async fn collect(mut self) -> Result<(Plan, Vec<Whole>), ApiError> {
        let mut wholes = vec![Whole::default(); self.choices];
        while let Some((index, piece)) = self.pieces.next().await {
            let whole = &mut wholes[index];
            match piece {
                Piece::Prompt(tokens) => whole.prompt.extend(tokens),
                Piece::Token { text, logprobs, .. } => {
                    whole.text.push_str(&text);
                    whole.logprobs.extend(logprobs);
                }
                Piece::Reasoning { text, logprobs, .. } => {
                    whole.reasoning.push_str(&text);
                    whole.logprobs.extend(logprobs);
                }
                Piece::Call { id, name } => {
                    whole.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Piece::Arguments(more) => {
                    whole
                        .calls
                        .iter_mut()
                        .next_back()
                        .into_iter()
                        .for_each(|call| call.arguments.push_str(&more));
                }
                Piece::CallEnd | Piece::Failover { .. } => {}
                Piece::Done(ending) => {
                    let Ending { done, ended, reasoning_tokens, .. } = *ending;
                    whole.reasoning_tokens = reasoning_tokens;
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
        Ok((self.plan, wholes))
    }
}

/// Token counts of `choices`, `n` of each prompt; a prompt counts once.
pub(crate) fn total(usages: &[Usage], n: usize) -> Usage {
    let mut total = Usage::default();
    for (index, usage) in usages.iter().enumerate() {
        if index % n == 0 {
            total.prompt_tokens += usage.prompt_tokens;
            total.cached_tokens += usage.cached_tokens;
        }
        total.completion_tokens += usage.completion_tokens;
    }
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
    put("x-shoal-wire", plan.wire.name().to_owned());
    if !plan.cuts.is_empty() {
        put("x-shoal-cuts", plan.cuts.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    }
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
        "wire": plan.wire,
        "cuts": plan.cuts,
        "attention": plan.attention,
        "kv_cache_type": plan.kv_cache_type,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32) -> Event {
        Event::Token { id, text: String::new(), logprobs: None }
    }

    #[tokio::test]
    async fn an_answer_that_outlives_its_server_says_so_and_no_other_does() {
        let done =
            Done { finish: Finish::Stop, stop: None, usage: Usage::default(), report: Report::default() };
        let closing = watch::Sender::new(false);
        let whole = stream::iter([token(1), Event::Done(done)]);
        let whole: Vec<Event> = until_closed(whole, closing.subscribe()).collect().await;
        assert!(matches!(whole[..], [Event::Token { .. }, Event::Done(_)]), "{whole:?}");

        let broken: Vec<Event> = until_closed(stream::iter([token(1)]), closing.subscribe()).collect().await;
        assert_eq!(broken.len(), 1, "what breaks off is no matter of the server's: {broken:?}");
        let endless = stream::iter([token(1)]).chain(stream::pending());
        let mut cut = Box::pin(until_closed(endless, closing.subscribe()));
        assert!(matches!(cut.next().await, Some(Event::Token { .. })));
        closing.send_replace(true);
        assert!(matches!(cut.next().await, Some(Event::Failed(Failure::Unavailable { .. }))));
        assert!(cut.next().await.is_none());
    }
}
