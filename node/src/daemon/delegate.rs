//! A prompt handed to a peer that conducts it, and a peer's prompt conducted here.
//!
//! A node without the model's ends cannot conduct, but it can ask: in the modes `trusted` and `open` it sends the
//! messages themselves to a peer that holds the model, and tokens stream back. When that peer dies, the next one
//! continues after the tokens that came: chance depends on seed and position, so the text is the one the first would
//! have written.

use std::time::{Duration, Instant};

use p2p::{
    HopError, Plane, Stream,
    wire::{
        control::Contact,
        delegate::{Event, Kind, PREFIX_LEN, Prefix, Request},
    },
};
use scheduler::{ModelId, NodeId};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use super::prompt::{PromptTask, Said};
use crate::{
    content::hex,
    control::{Ask, ForApi, LINES, Mode, Shadow, Verify},
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
    ids: Vec<u32>,
    text: String,
    ttft_ms: f64,
    /// Who stopped in the middle and how long nothing came, ms.
    faults: Vec<(NodeId, Option<f64>)>,
}

impl PromptTask {
    /// Has `peers`, the best first, answer the prompt; each continues where the one before it stopped.
    pub(super) async fn delegate(
        &self,
        ask: &Ask,
        said: Vec<u32>,
        peers: Vec<(NodeId, ModelId)>,
        lines: &mpsc::Sender<Value>,
    ) -> Result<Value, String> {
        let now = Instant::now();
        let mut answer = Answer {
            began: now,
            heard: now,
            ids: said,
            text: String::new(),
            ttft_ms: 0.0,
            faults: Vec::new(),
        };
        let mut reason =
            "nobody who holds the model can be reached; `shoal peers` shows who holds what".to_owned();
        for (peer, model) in peers {
            let conductor = format!("{peer:?}");
            let route =
                json!({ "event": "route", "mode": ask.mode.name(), "conductor": conductor, "stages": [] });
            lines.send(route).await.map_err(|_| "nobody listens".to_owned())?;
            match self.ask_conductor(ask, peer, model, &mut answer, lines).await {
                Ok(Event::Done { report, .. }) => return Ok(done(&answer, ask, &conductor, &report)),
                // It said why it will not: the next one may be able to.
                Ok(Event::Failed { reason: why }) => reason = why,
                Ok(Event::Token { .. }) => {}
                Err(HopError::Corrupt) => reason = format!("{peer} answered what cannot be read"),
                Err(_) => answer.faults.push((peer, None)),
            }
        }
        Err(reason)
    }

    /// One conductor: returns the event that ended it.
    async fn ask_conductor(
        &self,
        ask: &Ask,
        peer: NodeId,
        model: ModelId,
        answer: &mut Answer,
        lines: &mpsc::Sender<Value>,
    ) -> Result<Event, HopError> {
        // Heard of through others, maybe never met; where it is, the network heard too.
        let _ = self.network.connect(&Contact { node: peer, addresses: Vec::new() }).await;
        let mut stream = self.network.open(peer, Plane::Delegate).await?;
        let (prefix, body) = request(ask, model, answer.ids.clone()).encode();
        stream.send(&prefix, &body).await?;
        loop {
            match timeout(SILENCE, event(&mut stream)).await.unwrap_or(Err(HopError::Timeout))? {
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
                    let line = json!({ "event": "token", "id": id, "text": text });
                    if lines.send(line).await.is_err() {
                        return Ok(Event::Failed { reason: "nobody listens".into() });
                    }
                }
                ended => return Ok(ended),
            }
        }
    }

    /// Conducts a prompt for a peer.
    pub(super) async fn delegated(self, from: NodeId, mut stream: Stream) {
        let asked = timeout(ASKING, read_request(&mut stream)).await.unwrap_or(Err(HopError::Timeout));
        let Ok(request) = asked else { return };
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
        let task = tokio::spawn(async move { self.answer_after(ask, said, lines).await });
        while let Some(line) = answer.recv().await {
            let Some(event) = to_event(&line) else { continue };
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

/// Tells a peer that its prompt is not conducted here.
pub(super) async fn decline(mut stream: Stream) {
    let reason = "this node takes no more prompts of others for now".to_owned();
    let (prefix, body) = Event::Failed { reason }.encode();
    let declined = async {
        // What it asks is read first: a stream that is closed before looks like a node that died.
        let _ = read_request(&mut stream).await?;
        stream.send(&prefix, &body).await?;
        stream.finish().await
    };
    let _ = timeout(ASKING, declined).await;
}

fn request(ask: &Ask, model: ModelId, emitted: Vec<u32>) -> Request {
    let (messages, raw) = match &ask.prompt {
        Value::String(text) => (text.clone(), true),
        messages => (messages.to_string(), false),
    };
    Request {
        model: Some(model),
        messages,
        raw,
        sampling: ask.sampling.to_string().into_bytes(),
        seed: ask.seed,
        max_tokens: ask.max_tokens,
        stop: ask.stop.clone(),
        emitted,
    }
}

/// A peer's request as this node would ask it: with its own ends, alone when that is faster.
fn ask(request: &Request) -> Result<Ask, String> {
    let prompt = match request.raw {
        true => json!(request.messages),
        false => {
            serde_json::from_str(&request.messages).map_err(|e| format!("the messages are not JSON: {e}"))?
        }
    };
    let sampling =
        serde_json::from_slice(&request.sampling).map_err(|e| format!("the sampling is not JSON: {e}"))?;
    Ok(Ask {
        model: request.model.map(hex).unwrap_or_default(),
        prompt,
        mode: Mode::Boomerang,
        may_stay_home: true,
        wire: "raw".into(),
        trusted: Vec::new(),
        head: 1,
        tail: 1,
        sampling,
        seed: request.seed,
        max_tokens: request.max_tokens,
        stop: request.stop.clone(),
        api: ForApi::default(),
        verify: Verify::default(),
        shadow: Shadow::default(),
    })
}

async fn read(stream: &mut Stream) -> Result<(Kind, Vec<u8>), HopError> {
    let mut prefix = [0; PREFIX_LEN];
    stream.recv_exact(&mut prefix).await?;
    let prefix = Prefix::read(&prefix).map_err(|_| HopError::Corrupt)?;
    let mut body = Vec::new();
    stream.recv_payload(prefix.len as usize, prefix.kind.cap(), &mut body).await?;
    Ok((prefix.kind, body))
}

async fn event(stream: &mut Stream) -> Result<Event, HopError> {
    let (kind, body) = read(stream).await?;
    Event::decode(kind, &body).map_err(|_| HopError::Corrupt)
}

async fn read_request(stream: &mut Stream) -> Result<Request, HopError> {
    let (kind, body) = read(stream).await?;
    if kind != Kind::Request {
        return Err(HopError::Corrupt);
    }
    Request::decode(&body).map_err(|_| HopError::Corrupt)
}

/// A line of an answer as the peer that asked hears it.
fn to_event(line: &Value) -> Option<Event> {
    if let Some(reason) = line["error"].as_str() {
        return Some(Event::Failed { reason: reason.to_owned() });
    }
    match line["event"].as_str()? {
        "token" => {
            let id = u32::try_from(line["id"].as_u64()?).ok()?;
            Some(Event::Token { id, text: line["text"].as_str()?.to_owned() })
        }
        "done" if line["finish_reason"] == "failed" => {
            Some(Event::Failed { reason: "the prompt was given up there".into() })
        }
        "done" => {
            let report = json!({ "finish_reason": line["finish_reason"], "rest": line["rest"],
                "stages": line["stages"], "prompt_tokens": line["prompt_tokens"] });
            Some(Event::Done { finish: 0, report: report.to_string() })
        }
        _ => None,
    }
}

fn done(answer: &Answer, ask: &Ask, conductor: &str, report: &str) -> Value {
    let report: Value = serde_json::from_str(report).unwrap_or_default();
    let rest = report["rest"].as_str().unwrap_or_default();
    let decoding = answer.began.elapsed().as_secs_f64() - answer.ttft_ms / 1e3;
    let steps = answer.ids.len().saturating_sub(1);
    let faults: Vec<Value> = answer
        .faults
        .iter()
        .map(|(node, stall_ms)| json!({ "node": format!("{node:?}"), "stall_ms": stall_ms.unwrap_or(0.0) }))
        .collect();
    json!({
        "event": "done",
        "mode": ask.mode.name(),
        "conductor": conductor,
        "finish_reason": report["finish_reason"].as_str().unwrap_or("stop"),
        "text": format!("{}{rest}", answer.text),
        "rest": rest,
        "ids": answer.ids,
        "prompt_tokens": report["prompt_tokens"].as_u64().unwrap_or(0),
        "completion_tokens": answer.ids.len(),
        "ttft_ms": answer.ttft_ms,
        "decode_tok_s": if steps == 0 { 0.0 } else { steps as f64 / decoding.max(1e-9) },
        "stages": report["stages"],
        "faults": faults,
        "end": true,
    })
}
