//! One prompt of this node: from what was asked to a plan, and from what happens to lines for who asked.

use std::collections::{BTreeMap, BTreeSet};

use api::inference::Format;
use p2p::{Identity, Network, codec::Wire};
use scheduler::{
    Boomerang, ModelId, NodeId, Segment, SessionId, Shape,
    cost::Cost,
    lease::LOOKS,
    recover::Failure,
    route::{NoRoute, Route},
    session::End,
};
use serde_json::{Map, Value, json};
use shard::sample::SamplingParams;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::{Instrument, field::Empty};

use super::{
    estimate,
    route::{ConductorQuestion, RouteQuestion, Routed},
};
use crate::{
    audit::Auditor,
    content::hex,
    control::{Ask, Mode, Verify},
    generate::{self, CHUNK_ROWS, Means, Plan, Progress, Report, Reroute},
    lessons::Lessons,
    table::{Order, Table},
    worker::{Conduct, Fault, Prompt, Ready, TextKind, Worker},
};

/// Tokens an answer is expected to have when a plan is priced; the limit it came with says little.
const EXPECTED_TOKENS: u32 = 128;
/// Pieces of news on their way to the caller; generation waits for a caller that does not read.
const NEWS: usize = 64;

/// What a prompt needs of the node.
#[derive(Clone)]
pub struct PromptTask {
    pub(super) me: NodeId,
    pub(super) network: Network,
    pub(super) identity: Identity,
    pub(super) auditor: Option<Auditor>,
    pub(super) shares: BTreeMap<NodeId, f64>,
    pub(super) approx: BTreeSet<NodeId>,
    pub(super) layer_bytes: u64,
    pub(super) table: Table,
    pub(super) worker: watch::Receiver<Worker>,
    pub(super) ready: Ready,
    pub(super) routes: mpsc::Sender<RouteQuestion>,
    pub(super) conductors: mpsc::Sender<ConductorQuestion>,
    pub(super) reroutes: mpsc::Sender<Reroute>,
    pub(super) lost: broadcast::Sender<NodeId>,
    pub(super) finished: mpsc::Sender<super::Finished>,
    pub(super) lessons: Lessons,
}

/// What was said before, elsewhere or before a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Tokens emitted.
    pub(super) ids: Vec<u32>,
    /// The session's rounding boundaries, when they were fixed then.
    pub(super) rounding: Option<Vec<u32>>,
}

struct Planned {
    session: SessionId,
    /// The prompt's, and those emitted elsewhere.
    ids: Vec<u32>,
    prompt_tokens: u32,
    wire: Wire,
    sampling: SamplingParams,
    max_tokens: u32,
    routed: Routed,
}

/// Why a prompt is not answered, as the line that says so: `error` is the sentence, and for programs `kind` (`invalid`,
/// `too_long`, `unavailable`, `busy` or `internal`), `field`, `tokens` and `context` where they apply.
pub(super) struct Trouble(pub(super) Value);

impl Trouble {
    fn kind(kind: &str, why: impl Into<String>) -> Self {
        Self(json!({ "error": why.into(), "kind": kind }))
    }

    fn invalid(field: &str, why: impl Into<String>) -> Self {
        Self(json!({ "error": why.into(), "kind": "invalid", "field": field }))
    }

    fn too_long(tokens: usize, context: u32) -> Self {
        let why = format!("the prompt has {tokens} tokens, the context holds {context}; shorten it");
        Self(json!({ "error": why, "kind": "too_long", "tokens": tokens, "context": context }))
    }

    /// The worker would not: the request's fault when it read it, else its own.
    fn of(fault: Fault, field: &str) -> Self {
        match fault {
            Fault::Refused(why) => Self::invalid(field, why),
            Fault::Busy | Fault::NoRoom { .. } => Self::kind("busy", fault.to_string()),
            Fault::Poison | Fault::Dead(_) => Self::kind("unavailable", fault.to_string()),
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self(json!({ "error": why }))
    }
}

impl PromptTask {
    /// Answers a prompt, line by line, going on after what was said before.
    pub(super) async fn answer_after(self, ask: Ask, said: Said, lines: mpsc::Sender<Value>) {
        let conducts = (ask.model.is_empty() || ask.model == self.ready.name) && self.ready.has_ends();
        let ended = if conducts {
            self.run(ask, said, &lines).await
        } else {
            self.elsewhere(ask, said, &lines).await
        };
        if let Err(trouble) = ended {
            let _ = lines.send(trouble.0).await;
        }
    }

    /// This node does not hold the model: somebody else must conduct.
    async fn elsewhere(&self, mut ask: Ask, said: Said, lines: &mpsc::Sender<Value>) -> Result<(), Trouble> {
        let own = ask.model.is_empty() || ask.model == self.ready.name;
        if own {
            ask.model.clone_from(&self.ready.name);
        }
        // Our own model's file may go by another name elsewhere.
        let by_id = own && self.ready.model != ModelId::default();
        let model = if by_id { hex(self.ready.model) } else { ask.model.clone() };
        if !matches!(ask.mode, Mode::Open | Mode::Trusted) {
            let why = format!(
                "this node does not hold \"{}\" and would have to send the text itself to a peer that does: say --mode \
                 open to let it, or hold the model with `shoal join --model`",
                ask.model
            );
            return Err(Trouble::invalid("mode", why));
        }
        if let Some(field) = only_here(&ask) {
            let why = format!("`{field}` works only with the model this node holds, \"{}\"", self.ready.name);
            return Err(Trouble::invalid(field, why));
        }
        let (answer, answered) = oneshot::channel();
        let trusted = trusted(&ask)?;
        let question = ConductorQuestion { model, trusted, answer };
        self.conductors.send(question).await.map_err(|_| "the node is stopping".to_owned())?;
        let peers = answered.await.map_err(|_| "the node is stopping".to_owned())?;
        if peers.is_empty() {
            let why = format!("nobody here holds \"{}\"; `shoal peers` shows who holds what", ask.model);
            return Err(Trouble::kind("unavailable", why));
        }
        let line = self.delegate(&ask, said.ids, peers, lines).await?;
        let finished = super::Finished::new(SessionId::new(random()?), Some(line.clone()));
        let _ = self.finished.send(finished).await;
        let _ = lines.send(line).await;
        Ok(())
    }

    /// The model that answers, as an interrupted answer remembers it.
    pub(super) fn model_of(&self, ask: &Ask) -> String {
        if ask.model.is_empty() || ask.model == self.ready.name {
            format!("{:?}", self.ready.model)
        } else {
            ask.model.clone()
        }
    }

    /// Says what answering it would take.
    pub async fn plan(self, ask: Ask, lines: mpsc::Sender<Value>) {
        let line = match self.prepare(&ask, &[], false).await {
            Ok(planned) => {
                let mut line = plan_json(&planned.routed, planned.prompt_tokens);
                line["end"] = json!(true);
                line
            }
            Err(trouble) => trouble.0,
        };
        let _ = lines.send(line).await;
    }

    /// Encode, then ask who shall run it.
    async fn prepare(&self, ask: &Ask, emitted: &[u32], commit: bool) -> Result<Planned, Trouble> {
        if !self.ready.has_ends() {
            return Err(Trouble::from(format!(
                "both ends of \"{}\" are not here, so prompts begin elsewhere and cannot be planned here; `shoal join --ends` fetches them",
                self.ready.name
            )));
        }
        if !ask.model.is_empty() && ask.model != self.ready.name {
            return Err(Trouble::from(format!(
                "this node conducts \"{}\", not \"{}\"; start one with `shoal join --model {}`",
                self.ready.name, ask.model, ask.model
            )));
        }
        let wire: Wire =
            ask.wire.parse().map_err(|_| format!("\"{}\" is no wire format; say raw or q8", ask.wire))?;
        let sampling = sampling(&ask.sampling)?;
        if let Some((id, _)) = sampling.logit_bias.iter().find(|(id, _)| *id >= self.ready.vocab) {
            let why = format!("token {id} does not exist; ids are below {}", self.ready.vocab);
            return Err(Trouble::invalid("logit_bias", why));
        }
        let worker = self.worker.borrow().clone();
        let formed = worker.check(&ask.api.format).await;
        formed.map_err(|fault| Trouble::of(fault, "response_format"))?;
        let mut ids = self.encode(ask, &worker).await?;
        let prompt_tokens = ids.len() as u32;
        ids.extend_from_slice(emitted);
        if ids.is_empty() {
            return Err(Trouble::invalid("prompt", "the prompt is empty"));
        }
        let room = (self.ready.context + 1).saturating_sub(ids.len() as u32);
        if room == 0 {
            return Err(Trouble::too_long(ids.len(), self.ready.context));
        }
        let max_tokens = ask.max_tokens.saturating_sub(emitted.len() as u32).clamp(1, room);
        let session = SessionId::new(random()?);
        let trusted = trusted(ask)?;
        let row = p2p::codec::encoded_len(wire, 1, self.ready.hidden as usize)
            .ok_or_else(|| format!("{} needs a width that is a multiple of 32", wire.name()))?;
        let shape = Shape {
            prompt_tokens: ids.len() as u32,
            output_tokens: EXPECTED_TOKENS.min(max_tokens),
            prefill_chunk: CHUNK_ROWS,
            activation_bytes: row as u32,
        };
        let (answer, answered) = oneshot::channel();
        let question = RouteQuestion {
            session,
            shape,
            mode: ask.mode,
            ends: Boomerang { head: ask.head.max(1), tail: ask.tail.max(1) },
            trusted,
            may_stay_home: ask.may_stay_home,
            exact: ask.verify == Verify::Strict,
            commit,
            answer,
        };
        let stopped = || "the node is stopping".to_owned();
        self.routes.send(question).await.map_err(|_| stopped())?;
        let routed = answered.await.map_err(|_| stopped())?;
        let routed = routed.map_err(|why| Trouble::kind("unavailable", why))?;
        Ok(Planned { session, ids, prompt_tokens, wire, sampling, max_tokens, routed })
    }

    async fn encode(&self, ask: &Ask, worker: &Worker) -> Result<Vec<u32>, Trouble> {
        let (prompt, field) = match &ask.prompt {
            Value::Object(given) => return token_ids(given, self.ready.vocab),
            // Over HTTP a text is text: names of control tokens in it are not those tokens.
            Value::String(text) if ask.api.over_http => {
                let kind = TextKind::Raw { bos: true, special: false };
                (Prompt { text: text.clone(), kind }, "prompt")
            }
            Value::String(text) => (Prompt::raw(text.clone()), "prompt"),
            messages => {
                let tools = ask.api.tools.as_ref().map(Value::to_string);
                let extra = (!ask.api.extra.is_empty()).then(|| json!(ask.api.extra).to_string());
                (Prompt { text: messages.to_string(), kind: TextKind::Chat { tools, extra } }, "messages")
            }
        };
        worker.encode(prompt).await.map_err(|fault| Trouble::of(fault, field))
    }

    async fn run(&self, ask: Ask, said: Said, lines: &mpsc::Sender<Value>) -> Result<(), Trouble> {
        // Every look but the last may find its nodes crowded; the scheduler takes the last one as it is.
        for looks in 0..LOOKS {
            if self.look(&ask, &said, looks, lines).await? {
                break;
            }
        }
        Ok(())
    }

    /// Routes the prompt and runs it. False when its nodes turned out to be crowded and nothing was computed.
    async fn look(
        &self,
        ask: &Ask,
        said: &Said,
        looks: u32,
        lines: &mpsc::Sender<Value>,
    ) -> Result<bool, Trouble> {
        let Planned { session, ids, prompt_tokens, wire, sampling, max_tokens, routed } =
            self.prepare(ask, &said.ids, true).await?;
        let finished = |line| super::Finished::new(session, line);
        let Some((inlets, doors)) = self.table.enter(session, self.me) else {
            let _ = self.finished.send(finished(None)).await;
            let why = "this node runs as many prompts as it takes; try again in a moment";
            return Err(Trouble::kind("busy", why));
        };
        let mut plan_line = plan_json(&routed, prompt_tokens);
        plan_line["event"] = json!("route");
        plan_line["verify"] = json!(ask.verify);
        plan_line["session"] = json!(format!("{session:?}"));
        plan_line["mode"] = json!(ask.mode.name());
        plan_line["wire"] = json!(wire.name());
        let _ = lines.send(plan_line.clone()).await;

        let expected = routed.expected.clone();
        let (progress, mut news) = mpsc::channel(NEWS);
        let means = Means {
            me: self.me,
            network: self.network.clone(),
            identity: self.identity.clone(),
            auditor: self.auditor.clone(),
            worker: self.worker.clone(),
            reroute: self.reroutes.clone(),
            lessons: self.lessons.clone(),
            lost: self.lost.subscribe(),
            progress,
        };
        let plan = Plan {
            session,
            prompt: ids,
            max_tokens,
            rounding: said.rounding.clone(),
            conduct: Conduct {
                sampling,
                seed: ask.seed,
                stop: ask.stop.clone(),
                history: Vec::new(),
                prompt_tokens,
                format: ask.api.format.clone(),
                show_special: ask.api.show_special,
            },
            wire,
            hidden: self.ready.hidden as usize,
            model: self.ready.model,
            pipeline: routed.route.pipeline,
            standbys: routed.standbys,
            contacts: routed.contacts,
            rtt_p99_ms: routed.rtt_p99_ms,
            policy: routed.policy,
            shape: routed.shape,
            looks,
            announced: routed.announced,
            verify: ask.verify,
            shares: self.shares.clone(),
            approx: self.approx.clone(),
            layer_bytes: self.layer_bytes,
            witnesses: routed.witnesses,
        };
        let orders = inlets.orders.clone();
        let span = tracing::info_span!(
            "prompt", %session, mode = ask.mode.name(), wire = wire.name(), prompt_tokens,
            tokens = Empty, faults = Empty, ttft_ms = Empty
        );
        tokio::spawn(generate::generate(means, plan, inlets, doors).instrument(span.clone()));
        let mut text = String::new();
        let mut ended = None;
        loop {
            let piece = tokio::select! {
                piece = news.recv() => piece,
                // Whoever asked has gone, maybe while nothing came.
                () = lines.closed() => break,
            };
            let Some(piece) = piece else { break };
            let line = match piece {
                Progress::Token { id, text: piece, bytes, logprob, top, .. } => {
                    text.push_str(&piece);
                    let mut line = json!({ "event": "token", "id": id, "text": piece });
                    if let Some(logprob) = logprob {
                        line["logprob"] = json!(logprob);
                        line["bytes"] = json!(bytes);
                        line["top_logprobs"] =
                            top.iter().map(|top| json!([top.id, top.logprob, top.bytes])).collect();
                    }
                    line
                }
                Progress::Pace { stage_ms } => json!({ "event": "pace", "stage_ms": stage_ms }),
                Progress::Moved { failed, why, segments } => json!({ "event": "moved",
                    "failed": format!("{failed:?}"), "why": noticed(why), "stages": stages(&segments) }),
                Progress::Crowded => {
                    self.table.leave(session);
                    let _ = self.finished.send(finished(None)).await;
                    return Ok(false);
                }
                Progress::Integrity { position, node } => json!({ "event": "integrity",
                    "token": position.saturating_sub(prompt_tokens), "node": format!("{node:?}"),
                    "message": "a peer was caught lying after tokens that followed from it were shown; run it again" }),
                Progress::Done(report) => {
                    text.push_str(&report.rest);
                    ended = Some(report);
                    break;
                }
            };
            if lines.send(line).await.is_err() {
                break;
            }
        }
        if ended.is_none() {
            let _ = orders.send(Order::Cancel).await;
            while let Some(piece) = news.recv().await {
                if let Progress::Done(report) = piece {
                    ended = Some(report);
                    break;
                }
            }
        }
        self.table.leave(session);
        let Some(report) = ended else {
            let _ = self.finished.send(finished(None)).await;
            return Err(Trouble::kind("internal", "the prompt was dropped; `shoal why` may say more"));
        };
        span.record("tokens", report.ids.len()).record("faults", report.faults.len());
        span.record("ttft_ms", report.ttft_ms);
        span.in_scope(|| tracing::info!("answered"));
        let line = done_json(&report, &plan_line, &text, prompt_tokens);
        let measured = expected.measured(&report);
        let Report { outcomes, receipts, proofs, .. } = *report;
        let over =
            super::Finished { session, line: Some(line.clone()), measured, outcomes, receipts, proofs };
        let _ = self.finished.send(over).await;
        let _ = lines.send(line).await;
        Ok(true)
    }
}

/// A failure in one word.
fn noticed(why: Option<Failure>) -> &'static str {
    match why {
        Some(Failure::Closed | Failure::Crashed) => "closed",
        Some(Failure::Refused) => "refused",
        Some(Failure::Corrupt) => "wrong",
        _ => "timeout",
    }
}

/// The prediction, part by part.
fn plan_json(routed: &Routed, prompt_tokens: u32) -> Value {
    let way = |found: &Result<Route, NoRoute>, step_ms: Option<f64>| match found {
        Ok(route) => {
            json!({ "total_ms": whole_ms(routed, &route.cost), "tok_s": step_ms.map(|ms| 1e3 / ms.max(1e-6)) })
        }
        Err(why) => json!({ "impossible": why.to_string() }),
    };
    let expected = &routed.expected;
    let legs = routed.route.legs.iter().enumerate().map(|(at, leg)| {
        let terms: serde_json::Map<String, Value> = leg
            .cost
            .terms()
            .into_iter()
            .filter(|term| term.1 > 0.0)
            .map(|(name, ms)| (name.into(), json!(ms)))
            .collect();
        let step_ms = expected.parts.get(at).map(|part| part.ms);
        json!({ "node": format!("{:?}", leg.segment.node), "start": leg.segment.layers.start(),
            "end": leg.segment.layers.end(), "ms": leg.cost.total_ms(), "step_ms": step_ms, "terms": terms })
    });
    let shadows: Vec<Option<String>> =
        routed.standbys.shadows.iter().map(|shadow| shadow.map(|node| format!("{node:?}"))).collect();
    let comparison = &routed.comparison;
    json!({
        "prompt_tokens": prompt_tokens,
        "expected_tokens": routed.shape.output_tokens,
        "stages": legs.collect::<Vec<_>>(),
        "home_ms": expected.home_ms,
        "shadows": shadows,
        "predicted": { "total_ms": whole_ms(routed, &routed.route.cost), "ttft_ms": expected.ttft_ms,
            "step_ms": expected.step_ms(), "tok_s": expected.tok_s() },
        "as_asked": way(&comparison.asked, routed.steps_ms[0]),
        "ends_abroad": way(&comparison.plain, routed.steps_ms[1]),
        "local": way(&comparison.local, routed.steps_ms[2]),
        "local_wins": comparison.local_wins(),
    })
}

/// All of an answer, with what every token takes at home besides layers, ms.
fn whole_ms(routed: &Routed, cost: &Cost) -> f64 {
    cost.total_ms() + routed.expected.home_ms * f64::from(routed.shape.output_tokens)
}

fn stages(segments: &[Segment]) -> Vec<Value> {
    let stage = |segment: &Segment| {
        json!({ "node": format!("{:?}", segment.node),
            "start": segment.layers.start(), "end": segment.layers.end() })
    };
    segments.iter().map(stage).collect()
}

/// The stages, and of those that others ran who checked them up to where.
fn checked_stages(report: &Report, plan: &Value) -> Vec<Value> {
    let mut stages = estimate::stages(report, plan);
    for (layers, by, upto) in &report.checks {
        if let Some(stage) = stages.iter_mut().find(|stage| stage["start"] == layers.start()) {
            stage["checked_by"] = by.iter().map(|node| json!(format!("{node:?}"))).collect();
            stage["checked_positions"] = json!(upto);
        }
    }
    stages
}

fn done_json(report: &Report, plan: &Value, text: &str, prompt_tokens: u32) -> Value {
    let mean = report.gaps_ms.iter().sum::<f64>() / report.gaps_ms.len().max(1) as f64;
    let faults: Vec<Value> = report
        .faults
        .iter()
        .map(|(node, ms)| json!({ "node": format!("{node:?}"), "stall_ms": ms }))
        .collect();
    let checkers: BTreeSet<String> =
        report.checks.iter().flat_map(|check| &check.1).map(|node| format!("{node:?}")).collect();
    let (finish, error) = match report.end {
        End::Stop => ("stop", None),
        End::Length => ("length", None),
        End::Cancelled => ("cancelled", None),
        End::GaveUp(why) => ("failed", Some(format!("{why:?}").to_lowercase())),
    };
    json!({
        "event": "done",
        "session": plan["session"],
        "mode": plan["mode"],
        "wire": plan["wire"],
        "finish_reason": finish,
        "gave_up": error,
        "text": text,
        "rest": report.rest,
        "stop": report.met,
        "ended_turn": report.ended_turn,
        "ids": report.ids,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": report.ids.len(),
        "ttft_ms": report.ttft_ms,
        "decode_tok_s": if report.gaps_ms.is_empty() { 0.0 } else { 1e3 / mean.max(1e-9) },
        "predicted": plan["predicted"],
        "stages": checked_stages(report, plan),
        "verified": report.verified,
        "settled_by_thirds": report.thirds,
        "checked_by": checkers,
        "convicted": report.convicted.iter().map(|node| format!("{node:?}")).collect::<Vec<_>>(),
        "integrity": report.integrity.map(|position| position.saturating_sub(prompt_tokens)),
        "receipts": report.receipts.len(),
        "faults": faults,
        "differing_answers": report.evidence,
        "bytes_out": report.wire_bytes.0,
        "bytes_in": report.wire_bytes.1,
        "end": true,
    })
}

/// Sampling parameters as the command line and the API write them.
fn sampling(value: &Value) -> Result<SamplingParams, String> {
    let number = |name: &str, default: f32| match &value[name] {
        Value::Null => Ok(default),
        given => given.as_f64().map(|x| x as f32).ok_or_else(|| format!("{name} must be a number")),
    };
    let count = |name: &str| match &value[name] {
        Value::Null => Ok(0),
        given => given.as_u64().map(|n| n as usize).ok_or_else(|| format!("{name} must be a whole number")),
    };
    let default = SamplingParams::default();
    let mut bias = Vec::new();
    for pair in value["logit_bias"].as_array().into_iter().flatten() {
        let parsed = pair[0]
            .as_u64()
            .zip(pair[1].as_f64())
            .and_then(|(id, by)| Some((u32::try_from(id).ok()?, by as f32)));
        bias.push(parsed.ok_or("logit_bias must be pairs of a token id and a number")?);
    }
    let sampling = SamplingParams {
        temperature: number("temperature", default.temperature)?,
        top_k: count("top_k")?,
        top_p: number("top_p", 1.0)?,
        min_p: number("min_p", 0.0)?,
        typical_p: number("typical_p", 1.0)?,
        repetition_penalty: number("repetition_penalty", 1.0)?,
        presence_penalty: number("presence_penalty", 0.0)?,
        frequency_penalty: number("frequency_penalty", 0.0)?,
        logit_bias: bias,
        logprobs: value["logprobs"].as_bool().unwrap_or(false),
        top_logprobs: count("top_logprobs")?,
        ..default
    };
    sampling.validate().map_err(|e| e.to_string())?;
    Ok(sampling)
}

/// The prompt `{"ids": [..]}`.
fn token_ids(given: &Map<String, Value>, vocab: u32) -> Result<Vec<u32>, Trouble> {
    let ids = given.get("ids").and_then(Value::as_array).into_iter().flatten();
    let ids = ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab));
    let ids: Option<Vec<u32>> = ids.collect();
    ids.ok_or_else(|| Trouble::invalid("prompt", format!("token ids must be below {vocab}")))
}

/// The first field that a peer who conducts for us could not be told of.
fn only_here(ask: &Ask) -> Option<&'static str> {
    let asked = [
        ("response_format", ask.api.format != Format::Text),
        ("tools", ask.api.tools.is_some() || ask.api.show_special),
        ("chat_template_kwargs", !ask.api.extra.is_empty()),
        ("logprobs", ask.sampling["logprobs"] == json!(true)),
        ("prompt", ask.prompt.is_object()),
    ];
    asked.into_iter().find(|(_, asked)| *asked).map(|(field, _)| field)
}

fn trusted(ask: &Ask) -> Result<BTreeSet<NodeId>, String> {
    ask.trusted.iter().map(|name| node(name)).collect()
}

fn node(name: &str) -> Result<NodeId, String> {
    let bytes = data_encoding::HEXLOWER_PERMISSIVE
        .decode(name.as_bytes())
        .ok()
        .and_then(|b| <[u8; 32]>::try_from(b).ok());
    bytes
        .map(NodeId::new)
        .ok_or_else(|| format!("\"{name}\" is no node's name; `shoal peers` shows them in full"))
}

fn random() -> Result<[u8; 16], String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| format!("no randomness from the system: {e}"))?;
    Ok(bytes)
}
