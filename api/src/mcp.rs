//! The Model Context Protocol over a pair of pipes: what [`Inference`] can do, as tools of another program's model.
//!
//! Protocol 2025-06-18: JSON-RPC 2.0, one message per line. Three tools: `ask` answers a prompt, `models` lists what can be asked,
//! `swarm` says what this node believes of its swarm. Requests are answered side by side; `notifications/cancelled` ends one.
//!
//! Limits: a message has at most [`MAX_LINE`] bytes and a longer one is refused; at most [`MAX_CALLS`] calls are under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::AbortHandle,
};

use crate::{
    Inference,
    inference::{Event, Finish, GenerateRequest, Prompt, Sampling},
    names,
};

/// Longest message, in bytes.
pub const MAX_LINE: usize = 1 << 20;
/// Most calls under way.
pub const MAX_CALLS: usize = 16;
/// The version that is spoken here.
pub const VERSION: &str = "2025-06-18";
/// Most tokens of an answer for which the caller names no number.
const USUAL_TOKENS: usize = 512;

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const NO_METHOD: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Calls under way when the input ends have this long to be answered.
const LINGER: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

type Calls = Arc<Mutex<HashMap<String, AbortHandle>>>;

/// Answers what comes from `reader` until it ends.
///
/// # Errors
/// Those of reading and writing.
pub async fn serve(
    inference: Arc<dyn Inference>,
    reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<()> {
    let (send, mut answers) = mpsc::channel::<Value>(MAX_CALLS);
    let written = tokio::spawn(async move {
        while let Some(answer) = answers.recv().await {
            let mut line = answer.to_string();
            line.push('\n');
            writer.write_all(line.as_bytes()).await?;
            writer.flush().await?;
        }
        Ok(())
    });
    let calls: Calls = Arc::default();
    let mut reader = BufReader::new(reader);
    loop {
        let answer = match line(&mut reader).await? {
            None => break,
            Some(Err(())) => Some(failed(Value::Null, INVALID_REQUEST, "a message is too long")),
            Some(Ok(bytes)) if bytes.trim_ascii().is_empty() => None,
            Some(Ok(bytes)) => match serde_json::from_slice::<Value>(&bytes) {
                Err(error) => Some(failed(Value::Null, PARSE_ERROR, &error.to_string())),
                Ok(message) => handle(&inference, &message, &send, &calls),
            },
        };
        if let Some(answer) = answer
            && send.send(answer).await.is_err()
        {
            break;
        }
    }
    // A script that writes its calls and closes its end still reads; a program that has gone does not.
    let begun = Instant::now();
    let under_way = || !calls.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    while under_way() && !send.is_closed() && begun.elapsed() < LINGER {
        tokio::time::sleep(LOOK).await;
    }
    for (_, call) in calls.lock().unwrap_or_else(PoisonError::into_inner).drain() {
        call.abort();
    }
    drop(send);
    written.await.unwrap_or(Ok(()))
}

/// The next line; `Err` for one that is too long, which is read to its end and thrown away.
async fn line(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<Option<Result<Vec<u8>, ()>>> {
    let (mut bytes, mut long) = (Vec::new(), false);
    loop {
        let part = reader.fill_buf().await?;
        if part.is_empty() {
            return Ok((!bytes.is_empty() && !long).then_some(Ok(bytes)));
        }
        let end = part.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(part.len(), |end| end + 1);
        long |= bytes.len() + taken > MAX_LINE;
        match long {
            true => bytes.clear(),
            false => bytes.extend_from_slice(&part[..taken]),
        }
        reader.consume(taken);
        if end.is_some() {
            return Ok(Some(if long { Err(()) } else { Ok(bytes) }));
        }
    }
}

fn failed(id: Value, code: i64, why: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": why}})
}

/// The answer to a message that needs no waiting; calls of tools answer on `send` by themselves.
fn handle(
    inference: &Arc<dyn Inference>,
    message: &Value,
    send: &mpsc::Sender<Value>,
    calls: &Calls,
) -> Option<Value> {
    let id = message.get("id").filter(|id| id.is_string() || id.is_i64() || id.is_u64()).cloned();
    let Some(method) = message["method"].as_str().filter(|_| message["jsonrpc"] == "2.0") else {
        // What is neither a request nor a notification answers something that was never asked.
        let answers = message.get("result").or(message.get("error")).is_some();
        return (!answers)
            .then(|| failed(id.unwrap_or_default(), INVALID_REQUEST, "this is no JSON-RPC 2.0 request"));
    };
    let Some(id) = id else {
        if method == "notifications/cancelled" {
            let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(call) = calls.remove(&message["params"]["requestId"].to_string()) {
                call.abort();
            }
        }
        return None;
    };
    let result = match method {
        "initialize" => json!({
            "protocolVersion": VERSION,
            "capabilities": {"tools": {"listChanged": false}},
            "serverInfo": {"name": "shoal", "version": env!("CARGO_PKG_VERSION")},
            "instructions": "Asks language models on this machine, or through the swarm of its node.",
        }),
        "ping" => json!({}),
        "tools/list" => json!({"tools": tools()}),
        "tools/call" => return call(inference, &id, &message["params"], send, calls),
        _ => return Some(failed(id, NO_METHOD, &format!("there is no method {method}"))),
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn tools() -> Value {
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {
            "name": "ask",
            "title": "Ask a model",
            "description": "Answers a prompt with a model of this node. The same prompt and seed give the same answer.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "prompt": {"type": "string", "minLength": 1},
                    "system": {"type": "string", "description": "A system message before the prompt"},
                    "model": {"type": "string", "description": "A name that `models` lists; the first one if left out"},
                    "max_tokens": {"type": "integer", "minimum": 1, "description": "512 if left out"},
                    "temperature": {"type": "number", "minimum": 0, "description": "0 takes the likeliest token"},
                    "seed": {"type": "integer", "minimum": 0},
                },
                "required": ["prompt"],
                "additionalProperties": false,
            },
        },
        {"name": "models", "title": "List models", "description": "The models that `ask` can use now.", "inputSchema": nothing},
        {"name": "swarm", "title": "Show the swarm", "description": "What this node believes of its swarm now: nodes, their layers and how far away they are.", "inputSchema": nothing},
    ])
}

/// Starts a call of a tool; an answer only where it cannot be started.
fn call(
    inference: &Arc<dyn Inference>,
    id: &Value,
    params: &Value,
    send: &mpsc::Sender<Value>,
    calls: &Calls,
) -> Option<Value> {
    let empty = json!({});
    let given = params.get("arguments").unwrap_or(&empty);
    let request = match params["name"].as_str() {
        Some("ask") => match question(given) {
            Ok(request) => Some(request),
            Err(why) => return Some(failed(id.clone(), INVALID_PARAMS, &why)),
        },
        Some("models" | "swarm") => None,
        _ => return Some(failed(id.clone(), INVALID_PARAMS, "there is no such tool; tools/list names them")),
    };
    let key = id.to_string();
    let mut open = calls.lock().unwrap_or_else(PoisonError::into_inner);
    if open.len() >= MAX_CALLS || open.contains_key(&key) {
        return Some(failed(id.clone(), INVALID_REQUEST, "too many calls are under way, or one has this id"));
    }
    let (inference, send, all) = (inference.clone(), send.clone(), calls.clone());
    let (id, name) = (id.clone(), params["name"].as_str().unwrap_or_default().to_owned());
    let done = key.clone();
    let task = tokio::spawn(async move {
        let said = match (request, name.as_str()) {
            (Some(request), _) => answer(&inference, *request).await,
            (None, "models") => Ok(listed(&inference)),
            _ => Ok(json!(inference.swarm()).to_string()),
        };
        let is_error = said.is_err();
        let text = said.unwrap_or_else(|why| why);
        let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
        // It counts as under way until there is a place for its answer: a client that reads none begins no more calls.
        let place = send.reserve().await;
        all.lock().unwrap_or_else(PoisonError::into_inner).remove(&done);
        if let Ok(place) = place {
            place.send(json!({"jsonrpc": "2.0", "id": id, "result": result}));
        }
    });
    open.insert(key, task.abort_handle());
    None
}

fn listed(inference: &Arc<dyn Inference>) -> String {
    let models = inference.models();
    let row = |model: &crate::inference::ModelInfo| {
        json!({
            "name": model.name, "family": model.architecture, "format": model.format, "parameters": model.parameters,
            "context": model.context, "id": model.hash, "local": model.local,
        })
    };
    json!(models.iter().map(row).collect::<Vec<_>>()).to_string()
}

fn question(given: &Value) -> Result<Box<GenerateRequest>, String> {
    let known = ["prompt", "system", "model", "max_tokens", "temperature", "seed"];
    let given = given.as_object().ok_or("`arguments` must be an object")?;
    if let Some(other) = given.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("`ask` has no argument `{other}`; it has {}", known.join(", ")));
    }
    let text = |name: &str| match given.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` must be a string")),
    };
    let number = |name: &str| match given.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            value.as_u64().map(Some).ok_or(format!("`{name}` must be a whole number, not below 0"))
        }
    };
    let prompt = text("prompt")?.filter(|prompt| !prompt.is_empty()).ok_or("`prompt` is missing or empty")?;
    let temperature = match given.get("temperature") {
        None | Some(Value::Null) => 0.0,
        Some(value) => value
            .as_f64()
            .filter(|t| (0.0..=100.0).contains(t))
            .ok_or("`temperature` must be a number from 0 to 100")?,
    };
    let system = text("system")?.map(|text| json!({"role": "system", "content": text}));
    let messages: Value = system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect();
    let max_tokens = number("max_tokens")?.unwrap_or(USUAL_TOKENS as u64);
    if max_tokens == 0 {
        return Err("`max_tokens` must be at least 1".into());
    }
    Ok(Box::new(GenerateRequest {
        model: text("model")?,
        sampling: Sampling { temperature: Some(temperature as f32), ..Sampling::default() },
        seed: number("seed")?,
        max_tokens: Some(usize::try_from(max_tokens).unwrap_or(usize::MAX)),
        ..GenerateRequest::new(format!("mcp-{}", names::random_hex(12)), Prompt::conversation(messages))
    }))
}

/// The whole answer; why there is none as the model that asks may read it.
async fn answer(inference: &Arc<dyn Inference>, request: GenerateRequest) -> Result<String, String> {
    inference.ready(request.model.as_deref()).map_err(|failure| failure.to_string())?;
    if let Some(name) = &request.model
        && inference.models().iter().all(|model| model.name != *name)
    {
        return Err(format!("no model is called `{name}`; `models` lists those that can be asked"));
    }
    let mut generation = inference.generate(request).await.map_err(|failure| failure.to_string())?;
    let mut said = String::new();
    while let Some(event) = generation.events.next().await {
        match event {
            Event::Token { text, .. } | Event::Text(text) => said += &text,
            Event::Done(done) => {
                if done.finish == Finish::Length {
                    said += "\n[cut by max_tokens]";
                }
                return Ok(said);
            }
            Event::Failed(failure) => return Err(failure.to_string()),
            Event::Prefill { .. } | Event::Prompt(_) | Event::Failover { .. } => {}
        }
    }
    Err("the answer ended before its end".into())
}
