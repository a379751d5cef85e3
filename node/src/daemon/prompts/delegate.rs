//! A prompt handed to a peer that conducts it, and a peer's prompt conducted here.
//!
//! A node without the model's ends cannot conduct, but it can ask: in the modes `trusted` and `open` it sends the
//! messages themselves to a peer that holds the model, and tokens stream back. When that peer dies, the next one
//! continues after the tokens that came: chance depends on seed and position, so the text is the one the first would
//! have written.

use std::time::{Duration, Instant};

use api::choice::{Wire, WireChoice};
use data_encoding::HEXLOWER;
use p2p::{
    Governor, HopError, Permit, Plane, Stream,
    wire::{
        control::{Ask, Contact},
        delegate::{Event, Form, Kind, PREFIX_LEN, Pooling, Prefix, Request},
        receipt::Receipt,
    },
};
use scheduler::{ModelId, NodeId, SessionId, SessionKind, governor::Resource};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    Finished,
    answer::answer_after,
    bill::{Answered, most_prompt_tokens},
    conductors::{Conductor, ConductorQuestion},
    params::{Trouble, only_here, trusted},
    prompt::{PromptTask, Said, random},
};
use crate::{
    clock,
    content::hex,
    control::{LINES, Mode, Shadow, Verify},
    events::{
        AnswerLength, Elsewhere, Ends, FinishReason, ForApi, Leeway, PoolingRequest, PromptEvent,
        PromptInput, PromptReport, PromptRequest, RefusalKind, RouteEvent, Sampling, StageReport, Stall,
        Timing,
    },
    telemetry::Requester,
};

/// A conductor that says nothing for this long is given up: a long prompt on a slow machine takes its time.
const SILENCE: Duration = Duration::from_secs(60);
/// A peer that opened a stream and does not say what it wants.
const ASKING: Duration = Duration::from_secs(10);

/// What came so far.
struct Answer {
    began: Instant,
    heard: Instant,
    /// Bytes of text that the conductor was sent.
    text_bytes: usize,
    ids: Vec<u32>,
    /// Whether a vector or a score came.
    pooled: bool,
    text: String,
    ttft_ms: f64,
    /// Who stopped in the middle and how long nothing came, ms.
    faults: Vec<(NodeId, Option<f64>)>,
}

impl PromptTask {
    /// This node does not hold the model: another node must drive the request.
    pub(super) async fn elsewhere(
        &self,
        mut ask: PromptRequest,
        said: Said,
        lines: &mpsc::Sender<PromptEvent>,
    ) -> Result<(), Trouble> {
        let (own, ready) = (self.is_own(&ask), &self.local.ready);
        if own {
            ask.model.clone_from(&ready.name);
        }
        // Our own model's file may go by another name elsewhere.
        let by_id = own && ready.model != ModelId::default();
        let model = if by_id { hex(ready.model) } else { ask.model.clone() };
        // Its owner joined for this one, and agreed while it is on its way.
        if own && ask.leeway.may_be_read {
            ask.mode = Mode::Open;
        }
        if ask.mode == Mode::Local {
            let why = format!(
                "this node does not have all of \"{}\" in memory, so it can answer nothing in local mode: say --via local to \
                 compute in the command's own process, or another mode",
                if own { &self.local.name } else { &ask.model }
            );
            return Err(Trouble::invalid("mode", why));
        }
        if !matches!(ask.mode, Mode::Open | Mode::Trusted) {
            let open = if ask.api.over_http {
                "ask in the `mode` open (or `x-shoal-mode`)"
            } else {
                "say --mode open"
            };
            let why = match own {
                true => format!(
                    "the first and the last layer of \"{}\" are not on this machine (`shoal status` says whether they are on \
                     their way, `shoal join --ends` fetches them): without them it would have to send the text itself to a \
                     peer; {open} to let it",
                    ask.model
                ),
                false => format!(
                    "this node does not hold \"{}\" and would have to send the text itself to a peer that does: {open} to let \
                     it, or hold the model with `shoal join --also`",
                    ask.model
                ),
            };
            return Err(Trouble::invalid("mode", why));
        }
        if let Some(field) = only_here(&ask) {
            let why =
                format!("`{field}` works only with a model this node holds, as \"{}\"", self.local.name);
            return Err(Trouble::invalid(field, why));
        }
        let trusted = trusted(&ask)?;
        let mut peers = loop {
            let (answer, answered) = oneshot::channel();
            let question = ConductorQuestion { model: model.clone(), trusted: trusted.clone(), answer };
            self.conductors.send(question).await.map_err(|_| "the node is stopping".to_owned())?;
            let peers = answered.await.map_err(|_| "the node is stopping".to_owned())?;
            if !peers.is_empty() {
                break peers;
            }
            if lines.is_closed() || !self.looks_again().await {
                let why = format!("no node here holds \"{}\"; `shoal peers` shows who holds what", ask.model);
                return Err(Trouble::kind(RefusalKind::Unavailable, why));
            }
        };
        // What this node knows itself counts.
        let known = peers.iter_mut().filter(|peer| peer.model == ready.model && ready.num_layers > 0);
        known.for_each(|peer| peer.num_layers = ready.num_layers);
        let (report, receipt) = self.delegate(&ask, said.ids, peers, lines).await?;
        let session = SessionId::new(random()?);
        let receipts = receipt.into_iter().collect();
        let finished =
            Finished { receipts, ..Finished::new(session, ModelId::default(), Some(report.clone())) };
        let _ = self.finished.send(finished).await;
        let _ = lines.send(PromptEvent::Done(Box::new(report))).await;
        Ok(())
    }

    /// Has `peers`, the best first, answer the prompt; each continues where the one before it stopped. With the answer comes what was
    /// signed for it.
    async fn delegate(
        &self,
        ask: &PromptRequest,
        said: Vec<u32>,
        peers: Vec<Conductor>,
        lines: &mpsc::Sender<PromptEvent>,
    ) -> Result<(PromptReport, Option<[u8; Receipt::LEN]>), String> {
        let now = Instant::now();
        let mut answer = Answer {
            began: now,
            heard: now,
            text_bytes: 0,
            ids: said,
            pooled: false,
            text: String::new(),
            ttft_ms: 0.0,
            faults: Vec::new(),
        };
        let mut reason =
            "no node that holds the model can be reached; `shoal peers` shows who holds what".to_owned();
        for peer in peers {
            let (conductor, known) = (format!("{:?}", peer.node), answer.ids.len());
            let elsewhere = Elsewhere { conductor: conductor.clone(), stages: Vec::new() };
            let route = RouteEvent { mode: ask.mode, own: None, elsewhere: Some(elsewhere) };
            lines
                .send(PromptEvent::Route(Box::new(route)))
                .await
                .map_err(|_| "the client is gone".to_owned())?;
            match self.ask_conductor(ask, peer, &mut answer, lines).await {
                Ok(Event::Done { report, .. }) => {
                    let ending: Ending = serde_json::from_str(&report).unwrap_or_default();
                    let receipt = self.sign(peer, (&answer, known), &ending);
                    if let Some(token) = ending.integrity {
                        let _ = lines.send(PromptEvent::integrity(token, conductor.clone())).await;
                    }
                    return Ok((done(answer, ask, conductor, ending), receipt));
                }
                // It said why it will not: the next one may be able to.
                Ok(Event::Failed { reason: why }) => reason = why,
                Ok(Event::Token { .. } | Event::Pooled { .. }) => {}
                Err(HopError::Corrupt) => reason = format!("{} answered what cannot be read", peer.node),
                Err(_) => answer.faults.push((peer.node, None)),
            }
        }
        Err(reason)
    }

    /// Signs what `peer` bills for `answer`, of whose tokens the first `known` were there before, and tells it.
    fn sign(
        &self,
        peer: Conductor,
        (answer, known): (&Answer, usize),
        ending: &Ending,
    ) -> Option<[u8; Receipt::LEN]> {
        let Conductor { node, model, num_layers, .. } = peer;
        let said = answer.ids.get(known..)?;
        if !ending.is_sound() || (said.is_empty() && !answer.pooled) {
            return None;
        }
        let bill = HEXLOWER.decode(ending.bill.as_bytes()).ok()?;
        let answered = Answered { conductor: node, requester: self.node.me, model, num_layers, known, said };
        let prompt = (ending.prompt_tokens, most_prompt_tokens(answer.text_bytes));
        let receipt = answered.receipt(&bill, prompt, &self.node.identity, clock::receipt_s())?;
        let (network, signed) = (self.node.network.clone(), receipt.clone());
        tokio::spawn(async move { network.ask(node, &Ask::Receipt(signed), ASKING).await.map(drop) });
        Some(*receipt)
    }

    /// One conductor: returns the event that ended it.
    async fn ask_conductor(
        &self,
        ask: &PromptRequest,
        peer: Conductor,
        answer: &mut Answer,
        lines: &mpsc::Sender<PromptEvent>,
    ) -> Result<Event, HopError> {
        // Heard of through others, maybe never met; where it is, the network heard too.
        let _ = self.node.network.connect(&Contact { node: peer.node, addresses: Vec::new() }).await;
        let mut stream = self.node.network.open(peer.node, Plane::Delegate).await?;
        let request = request(ask, peer.model, answer.ids.clone());
        let query = request.pooling.as_ref().and_then(|pooling| pooling.query.as_ref());
        answer.text_bytes = request.messages.len() + query.map_or(0, String::len);
        let (prefix, body) = request.encode();
        stream.send(&prefix, &body).await?;
        // One token comes whatever was asked.
        let most = (ask.length.max_tokens.min(peer.context) as usize).max(answer.ids.len()) + 1;
        loop {
            match timeout(SILENCE, event(&mut stream)).await.unwrap_or(Err(HopError::Timeout))? {
                Event::Token { .. } if answer.ids.len() >= most => return Err(HopError::Corrupt),
                Event::Token { id, text } => {
                    if answer.ids.is_empty() {
                        answer.ttft_ms = answer.began.elapsed().as_secs_f64() * 1e3;
                    }
                    if let Some((_, stall @ None)) = answer.faults.last_mut() {
                        *stall = Some(answer.heard.elapsed().as_secs_f64() * 1e3);
                    }
                    answer.heard = Instant::now();
                    answer.ids.push(id);
                    answer.text.push_str(&text);
                    if lines.send(PromptEvent::token(id, text)).await.is_err() {
                        return Ok(Event::Failed { reason: "the client is gone".into() });
                    }
                }
                Event::Pooled { values } => {
                    answer.pooled = true;
                    if lines.send(PromptEvent::Pooled { values }).await.is_err() {
                        return Ok(Event::Failed { reason: "the client is gone".into() });
                    }
                }
                ended => return Ok(ended),
            }
        }
    }

    /// Conducts a prompt for a peer.
    pub(crate) async fn conduct(mut self, guest: Guest) {
        let Guest { from, mut stream, request, .. } = guest;
        // Who waits less would learn what another peer has asked.
        self.memory = None;
        tracing::info!(requester = %Requester(from), max_tokens = request.max_tokens, "conducting for a peer");
        let (lines, mut answer) = mpsc::channel(LINES);
        let (ask, said) = match ask(&request) {
            Ok(ask) => (ask, Said { ids: request.emitted, rounding: None }),
            Err(reason) => {
                let (prefix, body) = Event::Failed { reason }.encode();
                let _ = stream.send(&prefix, &body).await;
                return;
            }
        };
        let pools = ask.api.pooling.is_some();
        let this = self.about(&ask.model);
        let (identity, ready, known) = (this.node.identity.clone(), this.local.ready.clone(), said.ids.len());
        let mut ids = Vec::new();
        let bill = |ids: &[u32], prompt_tokens: u32| {
            let (model, num_layers) = (ready.model, ready.num_layers);
            let (conductor, requester) = (identity.node(), from);
            let answered = Answered { conductor, requester, model, num_layers, known, said: ids };
            answered.bill(prompt_tokens, &identity, (random().ok()?, clock::receipt_s()))
        };
        let task = tokio::spawn(async move { answer_after(this, ask, said, lines).await });
        while let Some(event) = answer.recv().await {
            if let PromptEvent::Token(token) = &event {
                ids.push(token.id);
            }
            let Some(event) = to_event(event, pools, |prompt_tokens| bill(&ids, prompt_tokens)) else {
                continue;
            };
            let (prefix, body) = event.encode();
            if stream.send(&prefix, &body).await.is_err() {
                // Dropping the receiver cancels the prompt.
                break;
            }
        }
        drop(answer);
        let _ = stream.finish().await;
        let _ = task.await;
    }
}

/// A peer's prompt that was read and has no seat here yet.
pub(crate) struct Guest {
    pub(crate) from: NodeId,
    stream: Stream,
    request: Request,
    /// Room for its text.
    _bytes: Permit,
}

impl Guest {
    /// Reads what a peer asks and hands it on. A stream that says nothing, or not all of it, takes no seat.
    pub(crate) async fn receive(
        governor: Governor,
        from: NodeId,
        mut stream: Stream,
        guests: mpsc::Sender<Self>,
    ) {
        let asked = timeout(ASKING, read_request(&governor, from, &mut stream)).await;
        if let Ok(Ok((request, bytes))) = asked {
            // Where the node stops, it is declined by the stream's end.
            let _ = guests.send(Self { from, stream, request, _bytes: bytes }).await;
        }
    }

    /// Tells the peer that its prompt is not conducted here.
    pub(crate) async fn decline(mut self) {
        let reason = "this node takes no more prompts of others for now".to_owned();
        let (prefix, body) = Event::Failed { reason }.encode();
        let declined = async {
            self.stream.send(&prefix, &body).await?;
            self.stream.finish().await
        };
        let _ = timeout(ASKING, declined).await;
    }
}

fn request(ask: &PromptRequest, model: ModelId, emitted: Vec<u32>) -> Request {
    let (messages, form) = match &ask.prompt {
        PromptInput::Text(text) if ask.api.plain => (text.clone(), Form::Plain),
        PromptInput::Text(text) => (text.clone(), Form::Marked),
        PromptInput::Messages(messages) => (messages.to_string(), Form::Conversation),
        // Refused before: a peer could not be told of them.
        PromptInput::Tokens { .. } => (String::new(), Form::Plain),
    };
    Request {
        model: Some(model),
        messages,
        form,
        sampling: serde_json::to_vec(&ask.sampling).unwrap_or_default(),
        seed: ask.seed,
        max_tokens: ask.length.max_tokens,
        stop: ask.stop.clone(),
        emitted,
        pooling: ask
            .api
            .pooling
            .as_ref()
            .map(|PoolingRequest { query, truncate }| Pooling { query: query.clone(), truncate: *truncate }),
    }
}

/// A peer's request as this node would ask it: with its own ends, alone when that is faster.
fn ask(request: &Request) -> Result<PromptRequest, String> {
    let prompt = match request.form {
        Form::Marked | Form::Plain => PromptInput::Text(request.messages.clone()),
        Form::Conversation => {
            let messages = serde_json::from_str(&request.messages);
            PromptInput::Messages(messages.map_err(|e| format!("the messages are not JSON: {e}"))?)
        }
    };
    let sampling: Sampling =
        serde_json::from_slice(&request.sampling).map_err(|e| format!("the sampling cannot be read: {e}"))?;
    let pooling = request
        .pooling
        .as_ref()
        .map(|Pooling { query, truncate }| PoolingRequest { query: query.clone(), truncate: *truncate });
    Ok(PromptRequest {
        model: request.model.map(hex).unwrap_or_default(),
        prompt,
        mode: Mode::Boomerang,
        leeway: Leeway { may_stay_home: true, may_be_read: false },
        // A vector has the bits of one machine.
        wire: match request.pooling {
            Some(_) => WireChoice { wire: Some(Wire::Raw), ..WireChoice::default() },
            None => WireChoice::default(),
        },
        kind: SessionKind::DEFAULT,
        trusted: Vec::new(),
        ends: Ends::default(),
        sampling,
        seed: request.seed,
        length: AnswerLength { max_tokens: request.max_tokens, context_shift: false },
        stop: request.stop.clone(),
        api: ForApi {
            // A text that is pooled is text, too.
            plain: request.form == Form::Plain || pooling.is_some(),
            pooling,
            ..ForApi::default()
        },
        verify: Verify::default(),
        shadow: Shadow::default(),
    })
}

async fn read_prefix(stream: &mut Stream) -> Result<Prefix, HopError> {
    let mut prefix = [0; PREFIX_LEN];
    stream.recv_exact(&mut prefix).await?;
    Prefix::read(&prefix).map_err(|_| HopError::Corrupt)
}

async fn read_body(stream: &mut Stream, prefix: Prefix) -> Result<Vec<u8>, HopError> {
    let mut body = Vec::new();
    stream.recv_payload(prefix.len as usize, prefix.kind.cap(), &mut body).await?;
    Ok(body)
}

async fn event(stream: &mut Stream) -> Result<Event, HopError> {
    let prefix = read_prefix(stream).await?;
    let body = read_body(stream, prefix).await?;
    Event::decode(prefix.kind, &body).map_err(|_| HopError::Corrupt)
}

/// What a peer asks, with room for as many bytes as it announces.
async fn read_request(
    governor: &Governor,
    from: NodeId,
    stream: &mut Stream,
) -> Result<(Request, Permit), HopError> {
    let prefix = read_prefix(stream).await?;
    if !matches!(prefix.kind, Kind::Request | Kind::Text) {
        return Err(HopError::Corrupt);
    }
    let bytes = governor.take_for(from, Resource::Bytes, u64::from(prefix.len));
    let bytes = bytes.map_err(|_| HopError::Corrupt)?;
    let body = read_body(stream, prefix).await?;
    Ok((Request::decode(prefix.kind, &body).map_err(|_| HopError::Corrupt)?, bytes))
}

/// What the conductor says of an answer at its end, JSON in [`Event::Done`].
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Ending {
    finish_reason: FinishReason,
    rest: String,
    stages: Vec<StageReport>,
    prompt_tokens: u32,
    /// The first token that followed from a lie of a node that computed it.
    integrity: Option<u32>,
    /// What the peer is asked to sign, in hex; see [`super::bill`].
    bill: String,
}

impl Ending {
    /// Whether the answer came to its end, and nothing is known against it.
    fn is_sound(&self) -> bool {
        matches!(self.finish_reason, FinishReason::Stop | FinishReason::Length) && self.integrity.is_none()
    }
}

/// An event as the peer that asked hears it; `pools` says that it asked for a vector or a score, which cannot be taken back, `bill` what
/// a prompt of so many tokens is billed with.
fn to_event(event: PromptEvent, pools: bool, bill: impl FnOnce(u32) -> Option<Vec<u8>>) -> Option<Event> {
    match event {
        PromptEvent::Pooled { values } => Some(Event::Pooled { values }),
        PromptEvent::Failed(refusal) => Some(Event::Failed { reason: refusal.error }),
        PromptEvent::Token(token) => Some(Event::Token { id: token.id, text: token.text }),
        PromptEvent::Done(report) => {
            let integrity = report.conducted.and_then(|own| own.checks.integrity);
            if pools && integrity.is_some() {
                return Some(Event::Failed { reason: "a node that computed it was caught lying".into() });
            }
            if report.finish_reason == FinishReason::Failed {
                return Some(Event::Failed { reason: "the prompt was given up there".into() });
            }
            let timing = report.timing.unwrap_or_default();
            let mut ending = Ending {
                finish_reason: report.finish_reason,
                rest: report.rest,
                stages: timing.stages,
                prompt_tokens: timing.prompt_tokens,
                integrity,
                bill: String::new(),
            };
            if ending.is_sound() {
                ending.bill =
                    bill(timing.prompt_tokens).map_or_else(String::new, |bill| HEXLOWER.encode(&bill));
            }
            Some(Event::Done { finish: 0, report: serde_json::to_string(&ending).unwrap_or_default() })
        }
        _ => None,
    }
}

/// The end of an answer that `conductor` gave. What it says of itself is taken as it is, or left out when it cannot be read.
fn done(answer: Answer, ask: &PromptRequest, conductor: String, ending: Ending) -> PromptReport {
    let decoding = answer.began.elapsed().as_secs_f64() - answer.ttft_ms / 1e3;
    let steps = answer.ids.len().saturating_sub(1);
    let faults = answer.faults.iter();
    let faults =
        faults.map(|(node, stall_ms)| Stall { node: format!("{node:?}"), stall_ms: stall_ms.unwrap_or(0.0) });
    let timing = Timing {
        prompt_tokens: ending.prompt_tokens,
        cached_tokens: 0,
        ttft_ms: answer.ttft_ms,
        decode_tok_s: if steps == 0 { 0.0 } else { steps as f64 / decoding.max(1e-9) },
        stages: ending.stages,
        faults: faults.collect(),
    };
    PromptReport {
        mode: Some(ask.mode),
        conductor: Some(conductor),
        finish_reason: ending.finish_reason,
        text: answer.text + &ending.rest,
        rest: ending.rest,
        completion_tokens: answer.ids.len(),
        ids: answer.ids,
        timing: Some(timing),
        end: true,
        ..PromptReport::default()
    }
}
