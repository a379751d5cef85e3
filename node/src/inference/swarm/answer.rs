//! One answer: a request becomes a question to the node (`question`), its lines become events.
//!
//! An answer that is complete before it is checked ends for its client; its lines are read on until the node's last word,
//! which the page and `GET /swarm` show ([`Verdict`]). The node bounds how many are checked behind their answers and for
//! how long; should it never say a last word, [`VERDICT`] is when waiting ends.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::{
    inference::{
        Done, Drafts, Event, Failure, Finish, GenerateRequest, Generation, Guard, Mode, Plan, Prompt, Report,
        TokenLogprob, TokenLogprobs, Usage, Verify, Wire,
    },
    swarm::{Pipeline, Stage, SwarmEvent, Verdict},
};
use futures::{StreamExt, stream};
use shard::kernels::PAGE;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    SwarmState, UNIT_BYTES,
    door::{Events, RETRY_AFTER_S, unavailable},
    question::question,
};
use crate::{
    control::Question,
    events::{
        FinishReason, Logprobs, PlanReport, PromptEvent, PromptReport, PromptToken, Refusal, RefusalKind,
        RouteEvent, StageRange, Token,
    },
    reports::View,
};

/// The page hears of progress this often.
const PROGRESS: Duration = Duration::from_millis(250);
/// A check that has not ended by then has been given up: the node takes half a minute for each of a few segments, and a
/// few answers are checked at once.
const VERDICT: Duration = Duration::from_secs(15 * 60);
/// A character of a prompt is rarely more than a token.
const EXTRA_TOKENS: usize = 64;

/// What a session holds until it is over.
pub(super) struct Seat {
    _session: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

/// Starts the answer; returns when the node has said who computes it.
pub(super) async fn begin(shared: Arc<SwarmState>, request: GenerateRequest) -> Result<Generation, Failure> {
    let view = shared.board.view()?;
    let ask = question(&shared, &view, &request)?;
    let model = request.model.clone().unwrap_or_else(|| view.own.about.name.clone());
    let seat = shared.seat(&view, &request).await?;
    let (seed, mode) = (ask.seed, ask.mode);
    let mut heard = shared.door.ask(Question::Generate(Box::new(ask))).await?;
    let route = loop {
        match heard.next().await.ok_or_else(|| unavailable("the node stopped before it answered"))? {
            PromptEvent::Failed(refusal) => return Err(failure(refusal)),
            PromptEvent::Route(route) => break route,
            _ => {}
        }
    };
    let me = view.snapshot.me.clone();
    let stages: Vec<Stage> = route.stages().map(stage).collect();
    let at_home = !stages.is_empty() && stages.iter().all(|stage| stage.node == me);
    let mode = if at_home { Mode::Local } else { mode };
    let mut story = Story {
        shared,
        events: Some(heard),
        me,
        session: route.session().unwrap_or_default().to_owned(),
        began: Instant::now(),
        heard: Instant::now(),
        told: Instant::now(),
        first: None,
        tokens: 0,
        prompt_tokens: route.own.as_ref().map_or(0, |own| own.plan.prompt_tokens as usize),
        computed_by: BTreeSet::new(),
        moves: Vec::new(),
        pipeline: Pipeline {
            request: request.id,
            model: model.clone(),
            mode,
            stages: stages.clone(),
            standbys: standbys(&route, &stages),
            ..Pipeline::default()
        },
        only_prompt: request.max_tokens == Some(0),
        _seat: seat,
    };
    if let Some(conductor) = route.conductor() {
        story.computed_by.insert(conductor.to_owned());
    }
    story.pipeline.session = story.session.clone();
    story.pipeline.position = story.prompt_tokens as u32;
    story.note_stages();
    let named = |stage: &Stage| format!("{}:{}-{}", story.name(&stage.node), stage.start, stage.end);
    let mut plan_route: Vec<String> = stages.iter().map(named).collect();
    if plan_route.is_empty() {
        plan_route.extend(route.conductor().map(|conductor| story.name(conductor)));
    }
    let kind = route.own.as_ref().map(|own| own.kind).unwrap_or_default();
    let plan = Plan {
        model,
        mode,
        verify: route.own.as_ref().map_or(Verify::Off, |own| own.verify),
        wire: route.own.as_ref().map_or(Wire::Raw, |own| own.wire),
        cuts: route.own.as_ref().map(|own| own.cuts.clone()).unwrap_or_default(),
        attention: kind.attention.to_string(),
        kv_cache_type: kind.cache.to_string(),
        route: plan_route,
        predicted_tok_s: route.own.as_ref().map(|own| own.plan.predicted.tok_s),
        seed,
        prompt_tokens: story.prompt_tokens,
        reasoning: route.own.as_ref().is_some_and(|own| own.reasoning),
    };
    if !stages.is_empty() {
        story.shared.board.pipeline(story.pipeline.clone());
    }
    let events = stream::unfold(Some(story), |story| async move {
        let mut story = story?;
        let events = story.next().await;
        let over = events.iter().any(|event| matches!(event, Event::Done(_) | Event::Failed(_)));
        Some((stream::iter(events), (!over).then_some(story)))
    });
    Ok(Generation { plan, events: events.flatten().boxed() })
}

/// How many tokens the prompt has, as the node plans it; nothing is sent to others.
pub(super) async fn count(shared: Arc<SwarmState>, request: GenerateRequest) -> Result<usize, Failure> {
    let view = shared.board.view()?;
    // Planning tells no other node of the prompt, so there is nothing to agree to.
    let guard = Guard { agreed: true, ..request.guard };
    let ask = question(&shared, &view, &GenerateRequest { guard, ..request })?;
    let report: PlanReport = shared.door.one(Question::Plan(Box::new(ask))).await?;
    Ok(report.plan.prompt_tokens as usize)
}

/// Why not, as the API says it.
pub(super) fn failure(refusal: Refusal) -> Failure {
    let Refusal { error: why, kind, field, tokens, context, retry_after_s } = refusal;
    let retry_after_s = retry_after_s.unwrap_or(RETRY_AFTER_S);
    match kind {
        Some(RefusalKind::Invalid) => {
            Failure::Invalid { field: field.as_deref().and_then(Failure::field), why }
        }
        Some(RefusalKind::TooLong) => Failure::TooLong {
            tokens: tokens.unwrap_or_default(),
            context: context.unwrap_or_default() as usize,
        },
        Some(RefusalKind::Unavailable) => Failure::Unavailable { why, retry_after_s },
        Some(RefusalKind::Busy) => Failure::Busy { why, retry_after_s },
        Some(RefusalKind::Internal) => Failure::Internal { why },
        None => Failure::Invalid { field: None, why },
    }
}

fn stage(range: StageRange) -> Stage {
    Stage { node: range.node, start: range.start, end: range.end, compute_ms: None, hop_ms: None }
}

/// A node's name in answers: 8 digits of it, or `me`.
fn name(me: &str, node: &str) -> String {
    if node == me { "me".into() } else { node.get(..8).unwrap_or(node).to_owned() }
}

/// Log-probabilities at the place of token `id`.
fn named(id: u32, known: Logprobs) -> TokenLogprobs {
    TokenLogprobs {
        chosen: TokenLogprob { id, bytes: known.bytes, logprob: known.logprob },
        top: known
            .top_logprobs
            .into_iter()
            .map(|(id, logprob, bytes)| TokenLogprob { id, bytes, logprob })
            .collect(),
    }
}

fn names(me: &str, nodes: &[String]) -> Vec<String> {
    nodes.iter().map(|node| name(me, node)).collect()
}

/// Tokens of an answer all of whose rows were checked, in every stage that others ran.
fn checked_tokens(me: &str, report: &PromptReport) -> usize {
    let Some(timing) = &report.timing else { return 0 };
    let abroad = timing.stages.iter().filter(|stage| stage.range.node != me);
    let rows = abroad.map(|stage| stage.checked_positions.unwrap_or(0)).min().unwrap_or(0) as usize;
    // A token follows from the row before it.
    let tokens = (rows + 1).saturating_sub(timing.prompt_tokens as usize);
    if rows == 0 { 0 } else { tokens.min(report.completion_tokens) }
}

/// The nodes that recomputed parts of an answer, those caught lying, and the first token that followed from a lie.
fn verdict(me: &str, report: &PromptReport) -> (Vec<String>, Vec<String>, Option<usize>) {
    let Some(conducted) = &report.conducted else { return Default::default() };
    let wrong_from = conducted.checks.integrity.map(|token| token as usize);
    (names(me, &conducted.checks.checked_by), names(me, &conducted.checks.convicted), wrong_from)
}

/// Who shadows which stage.
fn standbys(route: &RouteEvent, stages: &[Stage]) -> Vec<Stage> {
    let shadows = route.own.iter().flat_map(|own| &own.plan.shadows);
    let named = shadows.zip(stages).filter_map(|(shadow, stage)| Some((shadow.as_ref()?, stage)));
    named.map(|(shadow, stage)| Stage { node: shadow.clone(), ..stage.clone() }).collect()
}

impl SwarmState {
    /// Waits until there is room for the request's session.
    pub(super) async fn seat(&self, view: &View, request: &GenerateRequest) -> Result<Seat, Failure> {
        let (room, units) = self.room.get_or_init(|| {
            let units = (view.kv_bytes / UNIT_BYTES).clamp(1, u64::from(u32::MAX >> 3)) as u32;
            (Arc::new(Semaphore::new(units as usize)), units)
        });
        let prompt = match &request.prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(ids) => ids.len(),
            Prompt::Messages { messages, tools, .. } => {
                messages.to_string().len() + tools.as_ref().map_or(0, |tools| tools.to_string().len())
            }
        };
        let positions = prompt.saturating_add(EXTRA_TOKENS);
        // A model that only others hold takes no memory here.
        let own = view.asked(request.model.as_deref());
        let (context, position_bytes) = own.map_or((PAGE, 0), |own| (own.about.context, own.position_bytes));
        let positions = positions.saturating_add(request.max_tokens.unwrap_or(context));
        // The worker promises whole pages.
        let positions = positions.min(context).next_multiple_of(PAGE);
        let bytes = positions as u64 * position_bytes;
        // A session that is larger than all the room runs alone.
        let needed = bytes.div_ceil(UNIT_BYTES).clamp(1, u64::from(*units)) as u32;
        let _waiting = Waits::new(&self.waiting);
        let closed = |_| unavailable("this node is stopping");
        let session = self.sessions.clone().acquire_owned().await.map_err(closed)?;
        let room = room.clone().acquire_many_owned(needed).await.map_err(closed)?;
        Ok(Seat { _session: session, _room: room })
    }
}

/// Counts a prompt as waiting until it is dropped.
struct Waits<'a>(&'a AtomicU64);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer under way; dropping it cancels.
struct Story {
    shared: Arc<SwarmState>,
    /// Until they end, or are read on behind the answer.
    events: Option<Events>,
    me: String,
    session: String,
    began: Instant,
    heard: Instant,
    told: Instant,
    first: Option<Instant>,
    tokens: usize,
    prompt_tokens: usize,
    computed_by: BTreeSet<String>,
    /// Stages lost since the last token: who, and who took over.
    moves: Vec<Moved>,
    pipeline: Pipeline,
    /// Nothing but the prompt is wanted.
    only_prompt: bool,
    _seat: Seat,
}

struct Moved {
    lost: String,
    replacement: String,
    layers: (u32, u32),
    why: String,
}

impl Drop for Story {
    fn drop(&mut self) {
        self.shared.board.ended(&self.session, "cancelled");
    }
}

impl Story {
    fn name(&self, node: &str) -> String {
        name(&self.me, node)
    }

    fn note_stages(&mut self) {
        self.computed_by.extend(self.pipeline.stages.iter().map(|stage| stage.node.clone()));
    }

    /// What the next event of the node means; nothing for those that only the page sees.
    async fn next(&mut self) -> Vec<Event> {
        let event = match &mut self.events {
            Some(events) => events.next().await,
            None => None,
        };
        match event {
            None => vec![Event::Failed(unavailable("the node stopped in the middle of the answer"))],
            Some(PromptEvent::Failed(refusal)) => vec![Event::Failed(failure(refusal))],
            Some(PromptEvent::Prompt { tokens }) => self.prompt(tokens),
            // A token is drawn at least; no one asked for this one.
            Some(PromptEvent::Token(_)) if self.only_prompt => Vec::new(),
            Some(PromptEvent::Token(token)) => self.token(token),
            Some(PromptEvent::Done(report)) => self.done(&report),
            Some(other) => {
                match other {
                    // The nodes of the first route were crowded: this is another one, before anything was computed.
                    PromptEvent::Route(route) => self.rerouted(&route),
                    PromptEvent::Moved { failed, why, stages } => self.moved(failed, why, stages),
                    PromptEvent::Pace { stage_ms } => self.pace(&stage_ms),
                    _ => {}
                }
                Vec::new()
            }
        }
    }

    fn rerouted(&mut self, route: &RouteEvent) {
        self.shared.board.ended(&self.session, "cancelled");
        self.session = route.session().unwrap_or_default().to_owned();
        let now: Vec<Stage> = route.stages().map(stage).collect();
        self.pipeline.standbys = standbys(route, &now);
        (self.pipeline.session, self.pipeline.stages) = (self.session.clone(), now);
        self.computed_by.clear();
        self.note_stages();
        if !self.pipeline.stages.is_empty() {
            self.shared.board.pipeline(self.pipeline.clone());
        }
    }

    fn tok_s(&self) -> f64 {
        let Some(first) = self.first else { return 0.0 };
        self.tokens.saturating_sub(1) as f64 / first.elapsed().as_secs_f64().max(1e-3)
    }

    /// The tokens of the prompt.
    fn prompt(&mut self, tokens: Vec<PromptToken>) -> Vec<Event> {
        let mut events = self.failovers();
        self.heard = Instant::now();
        let token = |PromptToken { id, bytes, logprobs }| api::inference::PromptToken {
            id,
            bytes,
            logprobs: logprobs.map(|known| named(id, known)),
        };
        events.push(Event::Prompt(tokens.into_iter().map(token).collect()));
        events
    }

    fn token(&mut self, token: Token) -> Vec<Event> {
        let mut events = self.failovers();
        self.heard = Instant::now();
        self.first.get_or_insert(self.heard);
        self.tokens += 1;
        if self.told.elapsed() >= PROGRESS {
            self.progress(Vec::new());
        }
        let Token { id, text, logprobs } = token;
        let logprobs = logprobs.map(|known| named(id, known));
        events.push(Event::Token { id, text, logprobs });
        events
    }

    fn progress(&mut self, stages_ms: Vec<(Option<f64>, Option<f64>)>) {
        self.told = Instant::now();
        let (position, tok_s) = ((self.prompt_tokens + self.tokens) as u32, self.tok_s());
        (self.pipeline.position, self.pipeline.tok_s) = (position, tok_s);
        self.shared.board.progress(&self.session, position, tok_s);
        let session = self.session.clone();
        self.shared.board.tell(SwarmEvent::Progress { session, position, tok_s, stages_ms });
    }

    /// Where a step's time goes. What arrives is the time until each stage's output was here; computing is what the
    /// stage's node says it takes, and the rest is the way.
    fn pace(&mut self, stage_ms: &[f64]) {
        let view = self.shared.board.view().ok();
        let layer_ms =
            |node: &str| view.as_ref()?.snapshot.nodes.iter().find(|known| known.id == node)?.layer_ms;
        let mut before = 0.0;
        let mut pairs = Vec::new();
        for (stage, at) in self.pipeline.stages.iter_mut().zip(stage_ms.iter().copied()) {
            let took = (at > before).then_some(at - before);
            before = at.max(before);
            let said = layer_ms(&stage.node).map(|ms| ms * f64::from(stage.end - stage.start));
            let compute = took.map(|took| said.map_or(took, |said| said.min(took)));
            let hop =
                took.zip(compute).filter(|_| stage.node != self.me).map(|(took, compute)| took - compute);
            (stage.compute_ms, stage.hop_ms) = (compute, hop);
            pairs.push((hop, compute));
        }
        self.progress(pairs);
    }

    fn moved(&mut self, lost: String, why: String, stages: Vec<StageRange>) {
        let now: Vec<Stage> = stages.into_iter().map(stage).collect();
        let was = self.pipeline.stages.iter().find(|stage| stage.node == lost);
        let layers = was.map_or((0, 0), |stage| (stage.start, stage.end));
        let takes = now.iter().find(|stage| stage.start <= layers.0 && layers.0 < stage.end);
        let replacement = takes.map(|stage| stage.node.clone()).unwrap_or_default();
        self.pipeline.stages = now;
        self.pipeline.standbys.retain(|standby| standby.node != replacement && standby.node != lost);
        self.pipeline.epoch += 1;
        self.pipeline.faults_survived += 1;
        self.note_stages();
        self.shared.board.pipeline(self.pipeline.clone());
        self.moves.push(Moved { lost, replacement, layers, why });
    }

    /// The answer goes on: how long it stood still is known now.
    fn failovers(&mut self) -> Vec<Event> {
        let stall_ms = self.heard.elapsed().as_secs_f64() * 1e3;
        let position = (self.prompt_tokens + self.tokens) as u32;
        let at_ms = crate::clock::unix_ms();
        let moves = std::mem::take(&mut self.moves);
        let told = moves.into_iter().map(|Moved { lost, replacement, layers, why }| {
            let event =
                Event::Failover { lost: self.name(&lost), replacement: self.name(&replacement), stall_ms };
            self.shared.board.tell(SwarmEvent::Failover {
                at_ms,
                session: self.session.clone(),
                epoch: self.pipeline.epoch,
                lost,
                replacement,
                layers,
                position,
                stall_ms,
                why,
            });
            event
        });
        told.collect()
    }

    /// Reads on, behind the answer, until it is checked or cannot be any more; tells that before and after.
    fn await_verdict(&self, mut events: Events) {
        let verdict = Verdict {
            session: self.session.clone(),
            request: self.pipeline.request.clone(),
            checking: true,
            ..Verdict::default()
        };
        self.shared.board.judged(verdict.clone());
        let (shared, me) = (self.shared.clone(), self.me.clone());
        tokio::spawn(async move {
            let last = async {
                loop {
                    match events.next().await {
                        Some(PromptEvent::Checked(report)) => break report,
                        Some(_) => {}
                        // The node stopped: it was not checked to its end.
                        None => break Box::default(),
                    }
                }
            };
            let report = tokio::time::timeout(VERDICT, last).await.unwrap_or_default();
            let (checked_by, convicted, wrong_from) = self::verdict(&me, &report);
            shared.board.judged(Verdict {
                checking: false,
                checked_by,
                checked_tokens: checked_tokens(&me, &report),
                convicted,
                wrong_from,
                ..verdict
            });
        });
    }

    fn done(&mut self, said: &PromptReport) -> Vec<Event> {
        let mut events = self.failovers();
        let conducted = said.conducted.as_deref();
        let finish = match said.finish_reason {
            FinishReason::Stop if self.only_prompt => Finish::Length,
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
            other => {
                let why = conducted.and_then(|own| own.ending.gave_up.as_deref()).unwrap_or(other.name());
                self.shared.board.ended(&self.session, "failed");
                let why = format!(
                    "the answer was given up ({why}); `shoal why` says more, and it can be asked again"
                );
                events.push(Event::Failed(Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S }));
                return events;
            }
        };
        if !said.rest.is_empty() && !self.only_prompt {
            events.push(Event::Text(said.rest.clone()));
        }
        self.shared.board.ended(&self.session, said.finish_reason.name());
        let timing = said.timing.as_ref();
        let ttft_ms = timing.map_or(0.0, |timing| timing.ttft_ms);
        let waited_ms = self.first.map_or(0.0, |first| (first - self.began).as_secs_f64() * 1e3);
        let (checked_by, convicted, wrong_from) = verdict(&self.me, said);
        let report = Report {
            computed_by: self.computed_by.iter().map(|node| self.name(node)).collect(),
            checked_by,
            checked_tokens: checked_tokens(&self.me, said),
            checking: said.checking,
            convicted,
            wrong_from,
            faults_survived: timing.map_or(0, |timing| timing.faults.len()),
            ttft_ms: ttft_ms.max(waited_ms),
            prefill_ms: ttft_ms,
            tok_s: timing.map_or(0.0, |timing| timing.decode_tok_s),
            drafts: conducted.and_then(|own| own.drafts.as_ref()).map(|drafts| Drafts {
                by: drafts.by.iter().map(|(name, ..)| name.clone()).collect(),
                tokens_per_pass: drafts.tokens_per_pass(),
                proposed: drafts.proposed,
                right: drafts.right,
            }),
        };
        if report.checking
            && let Some(events) = self.events.take()
        {
            self.await_verdict(events);
        }
        let ended_turn = usize::from(conducted.is_some_and(|own| own.ending.ended_turn));
        let usage = Usage {
            prompt_tokens: timing.map_or(0, |timing| timing.prompt_tokens as usize),
            cached_tokens: timing.map_or(0, |timing| timing.cached_tokens as usize),
            completion_tokens: if self.only_prompt { 0 } else { said.completion_tokens + ended_turn },
        };
        let stop = conducted.and_then(|own| own.ending.stop.clone());
        events.push(Event::Done(Done { finish, stop, usage, report }));
        events
    }
}
