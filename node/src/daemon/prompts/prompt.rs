//! One prompt of this node: from what was asked to a plan, and from what happens to lines for who asked.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use p2p::codec::{Rounding, Wire};
use scheduler::{Boomerang, NodeId, SessionId, Shape, governor::Holder, lease::LOOKS, session::End};
use shard::sample::SamplingParams;
use tokio::sync::{broadcast, mpsc, oneshot};
use tracing::{Instrument, field::Empty};

use super::{
    Finished,
    conductors::ConductorQuestion,
    dials, drafts,
    estimate::stage,
    params::{Trouble, conduct, encode, sampling, trusted},
    report::{done, logprobs, prediction, tell_prompt, tell_rest},
    route::{NoWay, RouteQuestion, Routed},
    shifts,
};
use crate::{
    context_shift::Window,
    control::{Line, Mode, Verify},
    daemon::{serve::Local, setup::Node},
    events::{
        OwnRoute, PlanReport, PromptEvent, PromptReport, PromptRequest, RefusalKind, RouteEvent, Token,
    },
    feedback::{FeedbackQueue, Waiting},
    request::{
        self, CHUNK_ROWS, Checking, Findings, Means, Plan, PlannedRoute, Progress, Recalled, Recollections,
        Report, Reroute, RowForm, noticed,
    },
    rounding,
    sessions::{Order, SessionTable},
};

/// Tokens an answer is expected to have when a plan is priced; the limit it came with says little.
const EXPECTED_TOKENS: u32 = 128;
/// An unloaded model has so long to come back.
const LOADING: Duration = Duration::from_secs(120);
/// How often a prompt looks whether the node's first peers have come.
const LOOK: Duration = Duration::from_millis(200);
/// Pieces of news on their way to the caller; generation waits for a caller that does not read.
pub(super) const NEWS: usize = 64;

/// What a prompt needs of the node.
#[derive(Clone)]
pub struct PromptTask {
    /// Where it runs.
    pub(super) node: Node,
    /// The model it is about; the node's first one where nothing else is said.
    pub(super) local: Local,
    /// The node's others.
    pub(super) beside: Vec<Local>,
    pub(super) approx: BTreeSet<NodeId>,
    pub(super) table: SessionTable,
    pub(super) routes: mpsc::Sender<RouteQuestion>,
    pub(super) conductors: mpsc::Sender<ConductorQuestion>,
    pub(super) reroutes: mpsc::Sender<Reroute>,
    pub(super) lost: broadcast::Sender<NodeId>,
    pub(super) finished: mpsc::Sender<Finished>,
    pub(super) feedback: FeedbackQueue,
    /// What ended prompts of this node leave behind; none for the prompts of other nodes.
    pub(super) memory: Option<Recollections>,
    /// Who is challenged by it: the pipeline must pass this node, and no client hears of the prompt.
    pub(super) prove: Option<NodeId>,
}

/// What was said before, elsewhere or before a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Tokens emitted.
    pub(super) ids: Vec<u32>,
    /// The session's rounding boundaries, when they were fixed then.
    pub(super) rounding: Option<Vec<u32>>,
}

/// What became of a prompt that was routed.
pub(super) enum Looked {
    /// It has its answer, or an end that was told.
    Answered,
    /// Its context is full, and the request goes on; this was said so far.
    Shifted(Box<PromptReport>),
    /// Its nodes turned out to be crowded; nothing was computed, another route may be better.
    Crowded,
    /// Everybody refused it for want of room; nothing was computed.
    Full,
}

pub(super) struct Planned {
    session: SessionId,
    /// The prompt, and what was emitted elsewhere.
    known: Window,
    /// Whether the prompt ends inside a block of reasoning.
    reasoning: bool,
    wire: Wire,
    /// Where the request wants them rounded, if it says.
    cuts: Option<Vec<u32>>,
    sampling: SamplingParams,
    max_tokens: u32,
    /// Whether more than those are wanted, behind a full context.
    goes_on: bool,
    routed: Routed,
    recalled: Recalled,
}

impl PromptTask {
    /// The task, about the model of this node that `asked` means; the first one where it means none.
    pub(super) fn about(mut self, asked: &str) -> Self {
        if !self.local.is_meant(asked)
            && let Some(meant) = self.beside.iter_mut().find(|local| local.is_meant(asked))
        {
            std::mem::swap(&mut self.local, meant);
        }
        self
    }

    /// Whether the prompt is for the model that this is about.
    pub(super) fn is_own(&self, ask: &PromptRequest) -> bool {
        ask.model.is_empty() || self.local.is_meant(&ask.model)
    }

    /// The model that answers, as an interrupted answer remembers it.
    pub(super) fn model_of(&self, ask: &PromptRequest) -> String {
        if ask.model.is_empty() {
            return format!("{:?}", self.local.ready.model);
        }
        let meant = std::iter::once(&self.local).chain(&self.beside).find(|local| local.is_meant(&ask.model));
        meant.map_or_else(|| ask.model.clone(), |local| format!("{:?}", local.ready.model))
    }

    /// Whether it is worth to look for nodes once more, after a moment: the first peers of this node may still be on their way.
    pub(super) async fn looks_again(&self) -> bool {
        let looks = self.prove.is_none() && self.node.peers_by.is_some_and(|by| Instant::now() < by);
        if looks {
            tokio::time::sleep(LOOK).await;
        }
        looks
    }

    /// Says what answering it would take.
    pub async fn plan(self, ask: PromptRequest, lines: mpsc::Sender<Line>) {
        let me = format!("{:?}", self.node.me);
        let line = match self.about(&ask.model).prepare(&ask, &Said::default(), false).await {
            Ok(planned) => {
                let plan = prediction(&planned.routed, planned.known.prompt as u32, planned.wire);
                PlanReport { plan, me, end: true }.into()
            }
            Err(trouble) => trouble.0.into(),
        };
        let _ = lines.send(line).await;
    }

    /// Encode, then ask who shall run it.
    pub(super) async fn prepare(
        &self,
        ask: &PromptRequest,
        said: &Said,
        commit: bool,
    ) -> Result<Planned, Trouble> {
        let Local { name, ready, .. } = &self.local;
        if !self.is_own(ask) {
            return Err(Trouble::from(format!(
                "this node does not hold \"{}\": start it with `shoal join --also {}`",
                ask.model, ask.model
            )));
        }
        if !ready.has_ends() {
            return Err(Trouble::from(format!(
                "both ends of \"{name}\" are not here, so prompts begin elsewhere and cannot be planned here; `shoal join --ends` fetches them"
            )));
        }
        if ask.mode == Mode::Local && !ready.has_all() {
            let held: Vec<String> = ready.layers.iter().map(ToString::to_string).collect();
            let why = format!(
                "this node computes only layers {} of {} itself, so nothing can be answered in local mode: ask in another, \
                 or start a node without --ask-only and --layers",
                held.join(" and "),
                ready.num_layers
            );
            return Err(Trouble::invalid("mode", why));
        }
        if let Some(field) = ready.lacks(ask.kind) {
            let why = format!(
                "this model on this device does not compute sessions of {}: choose dense, and f16",
                ask.kind
            );
            return Err(Trouble::invalid(field, why));
        }
        let formed = rounding::session(&ask.wire, ready.num_layers, ready.hidden as usize);
        let (wire, cuts) = formed.map_err(|(field, why)| Trouble::invalid(field, why))?;
        let sampling = sampling(&ask.sampling)?;
        if let Some((id, _)) = sampling.logit_bias.iter().find(|(id, _)| *id >= ready.vocabulary.tokens) {
            let why = format!("token {id} does not exist; ids are below {}", ready.vocabulary.tokens);
            return Err(Trouble::invalid("logit_bias", why));
        }
        let assigned = self.local.worker.assign();
        let worker = tokio::time::timeout(LOADING, assigned.running()).await.ok().flatten();
        let worker = worker.ok_or_else(|| format!("\"{name}\" could not be loaded: see the node's log"))?;
        let formed = worker.check(&ask.api.format, (self.node.network.governor(), Holder::default())).await;
        formed.map_err(|fault| Trouble::of(fault, "response_format"))?;
        let (prompt, reasoning) = encode(ask, &worker, ready).await?;
        if prompt.is_empty() {
            return Err(Trouble::invalid("prompt", "the prompt is empty"));
        }
        let fits = prompt.len() as u32 <= ready.context;
        let shifts = (ask.length.context_shift && fits).then_some(ready.context as usize);
        let known = Window::of(&prompt, &said.ids, shifts);
        let ids = &known.ids;
        let room = (ready.context + 1).saturating_sub(ids.len() as u32);
        if room == 0 {
            return Err(Trouble::too_long(ids.len(), ready.context));
        }
        let left = ask.length.max_tokens.saturating_sub(said.ids.len() as u32);
        let (max_tokens, goes_on) = (left.clamp(1, room), ask.length.context_shift && left > room);
        let session = SessionId::new(random()?);
        let trusted = trusted(ask)?;
        let row = p2p::codec::encoded_len(wire, 1, ready.hidden as usize)
            .ok_or_else(|| format!("a row of {} values cannot travel", ready.hidden))?;
        let shape = Shape {
            prompt_tokens: ids.len() as u32,
            output_tokens: EXPECTED_TOKENS.min(max_tokens),
            prefill_chunk: CHUNK_ROWS,
            activation_bytes: row as u32,
        };
        // A strict answer rests on nothing that was computed before it was asked, and of what was computed before the last layers do not
        // have each row once more.
        let all_rows = (ask.api.echo && sampling.logprobs) || ask.api.pooling.is_some();
        let memory = self.memory.as_ref().filter(|_| ask.verify != Verify::Strict && !all_rows);
        let fixed = said.rounding.as_deref().or(cuts.as_deref());
        let recall = |memory: &Recollections| memory.recall(ready.model, ids, ask.kind, (wire, fixed));
        let recalled = memory.map(recall).unwrap_or_default();
        let routed = loop {
            let (answer, answered) = oneshot::channel();
            let lacking = self.feedback.lacking(ready.model, ask.kind);
            let lacking_count = lacking.len();
            let question = RouteQuestion {
                session,
                model: ready.model,
                shape,
                mode: ask.mode,
                ends: Boomerang { head: ask.ends.head.max(1), tail: ask.ends.tail.max(1) },
                trusted: trusted.clone(),
                may_stay_home: ask.leeway.may_stay_home,
                exact: ask.verify == Verify::Strict,
                lacking,
                shadow: ask.shadow,
                prove: self.prove,
                former: recalled.former(&self.local.shares),
                commit,
                answer,
            };
            let stopped = || "the node is stopping".to_owned();
            self.routes.send(question).await.map_err(|_| stopped())?;
            match answered.await.map_err(|_| stopped())? {
                Ok(routed) => break routed,
                Err(NoWay::Full(why)) => return Err(Trouble::kind(RefusalKind::Busy, why)),
                Err(NoWay::None(_)) if ask.mode != Mode::Local && self.looks_again().await => {}
                Err(NoWay::None(mut why)) => {
                    if lacking_count > 0 {
                        let kind = ask.kind;
                        why.push_str(&format!(
                            "; {lacking_count} nodes do not compute sessions of {kind}: choose dense, and f16"
                        ));
                    }
                    return Err(Trouble::kind(RefusalKind::Unavailable, why));
                }
            }
        };
        Ok(Planned { session, known, reasoning, wire, cuts, sampling, max_tokens, goes_on, routed, recalled })
    }

    /// Runs a prompt as it was routed.
    pub(super) async fn look(
        &self,
        planned: Planned,
        ask: &PromptRequest,
        (said, before): (&Said, Option<&PromptReport>),
        looks: u32,
        waiting: &mut Waiting,
        lines: &mpsc::Sender<PromptEvent>,
    ) -> Result<Looked, Trouble> {
        let Planned {
            session,
            known,
            reasoning,
            wire,
            cuts,
            sampling,
            max_tokens,
            goes_on,
            routed,
            recalled,
        } = planned;
        let (prompt_tokens, told_before) = (known.prompt as u32, known.forgotten.len() as u32);
        let model = self.local.ready.model;
        let finished = |line| Finished::new(session, model, line);
        if let Some(dials) = &routed.dials
            && looks + 1 < LOOKS
            && !dials::reaches(&self.node.network, &self.feedback, self.node.me, dials).await
        {
            let _ = self.finished.send(finished(None)).await;
            return Ok(Looked::Crowded);
        }
        let Some((inlets, doors)) = self.table.enter(self.node.me, session) else {
            let _ = self.finished.send(finished(None)).await;
            let why = "this node runs as many prompts as it takes; try again in a moment";
            return Err(Trouble::kind(RefusalKind::Busy, why));
        };
        inlets.reading.expect(self.local.ready.hidden);
        let positions = (known.ids.len() as u32).saturating_add(max_tokens);
        let resumed = !said.ids.is_empty();
        let drafter = match drafts::seat(&self.local, ask, resumed, (session, positions, &sampling)) {
            Ok(drafter) => drafter,
            Err(trouble) => {
                self.table.leave(self.node.me, session);
                let _ = self.finished.send(finished(None)).await;
                return Err(trouble);
            }
        };
        let starts = routed.route.pipeline.segments().iter().skip(1).map(|segment| segment.layers.start());
        let cuts = said
            .rounding
            .clone()
            .or(cuts)
            .or_else(|| recalled.boundaries())
            .unwrap_or_else(|| starts.collect());
        let rounding = Rounding::new(wire, cuts);
        let route = OwnRoute {
            session: format!("{session:?}"),
            model: self.local.name.clone(),
            me: format!("{:?}", self.node.me),
            verify: ask.verify,
            wire: rounding::word(rounding.wire()),
            cuts: rounding.boundaries().to_vec(),
            kind: ask.kind,
            reasoning,
            plan: prediction(&routed, prompt_tokens, wire),
        };
        if before.is_none() {
            let event = RouteEvent { mode: ask.mode, own: Some(route.clone()), elsewhere: None };
            let _ = lines.send(PromptEvent::Route(Box::new(event))).await;
        }

        let expected = routed.expected.clone();
        let (progress, mut news) = mpsc::channel(NEWS);
        let means = Means {
            me: self.node.me,
            network: self.node.network.clone(),
            identity: self.node.identity.clone(),
            auditor: self.local.auditor.clone(),
            worker: Arc::new(self.local.worker.assign()),
            reroute: self.reroutes.clone(),
            feedback: self.feedback.clone(),
            drafter,
            lost: self.lost.subscribe(),
            memory: self.memory.clone().map(|memory| memory.kept_by_stages(ask.api.let_keep)),
            progress,
        };
        let plan = Plan {
            session,
            model,
            conduct: conduct(ask, sampling, &known),
            prompt: known.ids,
            max_tokens,
            form: RowForm {
                rounding,
                kind: ask.kind,
                hidden: self.local.ready.hidden as usize,
                whole: self.local.ready.abilities.encodes,
            },
            route: PlannedRoute {
                pipeline: routed.route.pipeline,
                standbys: routed.standbys,
                contacts: routed.contacts,
                rtt_p99_ms: routed.rtt_p99_ms,
                policy: routed.policy,
                shape: routed.shape,
                looks,
                believed: routed.believed,
                sources: routed.sources,
            },
            checking: Checking {
                verify: ask.verify,
                shares: self.local.shares.clone(),
                approx: self.approx.clone(),
                witnesses: routed.witnesses,
            },
            shadow: ask.shadow,
            draft: drafts::terms(&self.local, ask, expected.step_ms()),
            costs: self.local.ready.costs.clone(),
            recalled,
        };
        let orders = inlets.orders.clone();
        let span = tracing::info_span!(
            "prompt", %session, mode = ask.mode.name(), wire = wire.name(), prompt_tokens,
            tokens = Empty, faults = Empty, ttft_ms = Empty
        );
        tokio::spawn(request::generate(means, plan, inlets, doors).instrument(span.clone()));
        let mut text = String::new();
        let (mut ended, mut told) = (None, false);
        let is_shifted = |report: &Report| {
            goes_on && report.end == End::Length && report.said.ids.len() == max_tokens as usize
        };
        loop {
            let piece = tokio::select! {
                piece = news.recv() => piece,
                // The client has gone, maybe while nothing came.
                () = lines.closed() => break,
            };
            let Some(piece) = piece else { break };
            let event = match piece {
                Progress::Token { id, text: piece, bytes, logprob, top, prompt, .. } => {
                    waiting.let_in();
                    if !tell_prompt(prompt, lines).await {
                        break;
                    }
                    self.feedback.advanced();
                    text.push_str(&piece);
                    let logprobs = logprobs(logprob, bytes, top);
                    PromptEvent::Token(Token { id, text: piece, logprobs })
                }
                Progress::Pace { stage_ms } => PromptEvent::Pace { stage_ms },
                Progress::Moved { failed, why, segments } => PromptEvent::Moved {
                    failed: format!("{failed:?}"),
                    why: noticed(why).to_owned(),
                    stages: segments.iter().map(stage).collect(),
                },
                Progress::Crowded => {
                    self.table.leave(self.node.me, session);
                    let _ = self.finished.send(finished(None)).await;
                    return Ok(Looked::Crowded);
                }
                Progress::Integrity { position, node } => PromptEvent::integrity(
                    (position + told_before).saturating_sub(prompt_tokens),
                    format!("{node:?}"),
                ),
                // The command line waits for the word of all checks, and so does what cannot be said to be wrong later; a client over HTTP
                // has its answer.
                Progress::Answered(_) if !ask.api.over_http || ask.api.pooling.is_some() => continue,
                Progress::Answered(report) if is_shifted(&report) => continue,
                Progress::Answered(mut report) => {
                    told = true;
                    tell_rest(&mut report.said, lines).await;
                    let whole = format!("{text}{}", report.said.rest);
                    let report = shifts::joined(before, done(&report, ask.mode, &route, &whole));
                    let report = PromptReport { checking: true, ..report };
                    // No node serves it any more: what goes on behind it burdens this node only.
                    let known = self.prove.is_none().then(|| report.clone());
                    let _ = self.finished.send(finished(known)).await;
                    PromptEvent::Done(Box::new(report))
                }
                Progress::Done(mut report) => {
                    // What is held back of a text that goes on comes with what follows.
                    if is_shifted(&report) {
                        report.said.rest.clear();
                    } else if !told {
                        tell_rest(&mut report.said, lines).await;
                    }
                    text.push_str(&report.said.rest);
                    ended = Some(report);
                    break;
                }
            };
            if lines.send(event).await.is_err() {
                break;
            }
        }
        if ended.is_none() {
            let _ = orders.send(Order::Cancel).await;
            while let Some(piece) = news.recv().await {
                if let Progress::Done(report) = piece {
                    text.push_str(&report.said.rest);
                    ended = Some(report);
                    break;
                }
            }
        }
        self.table.leave(self.node.me, session);
        let Some(report) = ended else {
            let _ = self.finished.send(finished(None)).await;
            return Err(Trouble::kind(
                RefusalKind::Internal,
                "the prompt was dropped; `shoal why` may say more",
            ));
        };
        if report.is_crowded_out() && !lines.is_closed() {
            let _ = self.finished.send(finished(None)).await;
            return Ok(Looked::Full);
        }
        span.record("tokens", report.said.ids.len()).record("faults", report.disturbances.faults.len());
        span.record("ttft_ms", report.times.ttft_ms);
        span.in_scope(|| tracing::info!("answered"));
        let shifted = is_shifted(&report) && !lines.is_closed();
        let said = shifts::joined(before, done(&report, ask.mode, &route, &text));
        let (measured, came_true) = (expected.measured(&report), expected.came_true(&report));
        let Findings { outcomes, receipts, proofs, .. } = report.findings;
        let over = Finished {
            session,
            model,
            report: (self.prove.is_none() && !shifted).then(|| said.clone()),
            measured,
            came_true,
            outcomes,
            receipts,
            proofs,
        };
        let _ = self.finished.send(over).await;
        let said = Box::new(said);
        if shifted {
            return Ok(Looked::Shifted(said));
        }
        let _ = lines.send(if told { PromptEvent::Checked(said) } else { PromptEvent::Done(said) }).await;
        Ok(Looked::Answered)
    }
}

pub(super) fn random() -> Result<[u8; 16], String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| format!("no randomness from the system: {e}"))?;
    Ok(bytes)
}
