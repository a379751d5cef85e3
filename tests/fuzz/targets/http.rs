//! Requests of every dialect over a model that says what the input says: bodies of the fields that clients send with values
//! of any type, some of them with bytes changed on the way. Nothing fails inside (500), JSON is JSON, streams are events,
//! and a streamed answer says what the whole one says.
//!
//! The input is read from its front: route, fields, edits; what is left is the model's answer.
#![no_main]

#[path = "../../../api/tests/fake/mod.rs"]
mod fake;

use std::sync::{Arc, LazyLock};

use api::{Config, Server};
use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpListener,
    runtime::{Builder, Runtime},
};

/// What a request and its answer may hold on the way.
const PIPE: usize = 1 << 16;

struct Api {
    runtime: Runtime,
    fake: Arc<fake::Fake>,
    server: Server,
}

static API: LazyLock<Api> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let fake = Arc::new(fake::Fake::new());
    let server = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Server::new(fake.clone(), listener, Config { token: None, ..Config::default() }).expect("a server")
    });
    Api { runtime, fake, server }
});

/// Routes and the fields their clients send.
const ROUTES: &[(&str, &[&str])] = &[
    (
        "/v1/chat/completions",
        &[
            "messages",
            "model",
            "stream",
            "tools",
            "tool_choice",
            "max_tokens",
            "n",
            "stop",
            "logprobs",
            "top_logprobs",
            "response_format",
            "seed",
            "temperature",
            "logit_bias",
            "parallel_tool_calls",
            "stream_options",
            "max_completion_tokens",
            "reasoning_effort",
            "chat_template_kwargs",
            "mode",
        ],
    ),
    (
        "/v1/completions",
        &[
            "prompt",
            "model",
            "stream",
            "echo",
            "logprobs",
            "n",
            "stop",
            "max_tokens",
            "suffix",
            "best_of",
            "seed",
        ],
    ),
    ("/v1/responses", &["input", "model", "stream", "tools", "instructions", "max_output_tokens", "text"]),
    ("/v1/embeddings", &["input", "model", "encoding_format", "dimensions"]),
    ("/v1/rerank", &["query", "documents", "model", "top_n", "return_documents", "truncate"]),
    (
        "/v1/messages",
        &[
            "messages",
            "model",
            "max_tokens",
            "stream",
            "tools",
            "tool_choice",
            "system",
            "stop_sequences",
            "thinking",
        ],
    ),
    ("/v1/messages/count_tokens", &["messages", "model", "tools", "system"]),
    (
        "/api/generate",
        &["prompt", "model", "stream", "options", "format", "raw", "system", "template", "context"],
    ),
    ("/api/chat", &["messages", "model", "stream", "options", "tools", "format", "keep_alive"]),
    ("/api/embed", &["input", "model", "truncate"]),
    ("/api/embeddings", &["prompt", "model"]),
    ("/api/pull", &["model", "stream"]),
    ("/api/show", &["model"]),
    ("/swarm/contribution", &["paused", "slots", "upload"]),
    ("/swarm/consent", &["mode", "agreed"]),
    ("/session", &["ticket"]),
];
const READ: &[&str] = &[
    "/v1/models",
    "/v1/models/fake-small",
    "/api/tags",
    "/api/ps",
    "/api/version",
    "/swarm",
    "/openapi.json",
    "/metrics",
    "/",
    "/healthz",
    "/nothing",
];

fn tool(name: &str) -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "name": name, "input_schema": parameters,
        "function": {"name": name, "description": "d", "parameters": parameters}})
}

/// A value that the field may have, or one that it may not.
fn value(field: &str, u: &mut Unstructured<'_>) -> arbitrary::Result<Value> {
    let which = u.int_in_range(0..=11_u8)?;
    let text = [
        "",
        "x",
        "auto",
        "none",
        "required",
        "json_object",
        "fake-small",
        "fake-7b",
        "\u{1f600}\0",
        "length",
    ];
    let sound = match field {
        "messages" => {
            let mut list = Vec::new();
            for _ in 0..u.int_in_range(0..=3)? {
                let role = *u.choose(&["user", "assistant", "system", "tool", "developer", "?"])?;
                let content = match u.int_in_range(0..=4_u8)? {
                    0 => Value::Null,
                    1 => json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]),
                    2 => json!([{"type": "tool_result", "tool_use_id": "t", "content": "r"}]),
                    _ => "hello".into(),
                };
                let mut message = json!({"role": role, "content": content});
                if u.ratio(1, 4)? {
                    message["tool_calls"] = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
                    message["tool_call_id"] = "c".into();
                }
                list.push(message);
            }
            list.into()
        }
        "prompt" | "input" => u.choose(&[json!("say"), json!(["a", "b"]), json!([1, 2]), json!([[1], [2, 3]]), json!([])])?.clone(),
        "tools" => u.choose(&[json!([tool("f")]), json!([tool("f"), tool("g")]), json!([]), json!([{"type": "function"}])])?.clone(),
        "tool_choice" => u
            .choose(&[json!("auto"), json!("none"), json!("required"), json!({"type": "function", "function": {"name": "f"}}), json!({"type": "any"}), json!({"type": "tool", "name": "g"})])?
            .clone(),
        "response_format" | "format" | "text" => u
            .choose(&[
                json!({"type": "text"}),
                json!({"type": "json_object"}),
                json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {}}}}}),
                json!({"type": "grammar", "grammar": "start: \"a\""}),
                json!("json"),
                json!({"format": {"type": "json_object"}}),
            ])?
            .clone(),
        "options" => json!({"num_predict": u.int_in_range(-2..=9)?, "temperature": 0.5, "stop": ["x"], "seed": 1}),
        "model" => "fake-small".into(),
        "mode" => (*u.choose(&["local", "boomerang", "open", "?"])?).into(),
        "stream" | "echo" | "logprobs" | "raw" | "truncate" | "agreed" if which < 8 => u.arbitrary::<bool>()?.into(),
        "stream_options" => json!({"include_usage": true}),
        "logit_bias" => json!({"5": 1.5, "x": 3}),
        "stop" | "stop_sequences" => u.choose(&[json!("x"), json!(["a", "b"]), json!([""]), json!(["e", 1])])?.clone(),
        _ => u.int_in_range(-1..=9_i64)?.into(),
    };
    Ok(match which {
        0 => Value::Null,
        1 => (*u.choose(&text)?).into(),
        2 => u.arbitrary::<i64>()?.into(),
        3 => json!(u.arbitrary::<i8>()? as f64 / 7.0),
        4 => json!([[[]], {}, "a"]),
        _ => sound,
    })
}

fuzz_target!(|bytes: &[u8]| {
    let _ = run(bytes);
});

fn run(bytes: &[u8]) -> arbitrary::Result<()> {
    let mut u = Unstructured::new(bytes);
    let host = API.server.address().to_string();
    let host = host.as_str();
    if u.ratio(1, 16)? {
        let path = u.choose(READ)?;
        let reply =
            ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(), true);
        check(path, &reply.expect("a sound request is answered"));
        return Ok(());
    }
    let (path, fields) = *u.choose(ROUTES)?;
    let mut body = Map::new();
    for field in fields {
        if u.ratio(1, 2)? {
            body.insert((*field).into(), value(field, &mut u)?);
        }
    }
    let edits: Vec<(u16, u8)> = if u.ratio(1, 8)? { u.arbitrary()? } else { Vec::new() };
    let script = String::from_utf8_lossy(u.take_rest()).into_owned();
    *API.fake.script.lock().expect("no panic") = (!script.is_empty()).then_some(script);
    let text = Value::Object(body.clone()).to_string();
    let mut request = post(path, host, &text);
    for (at, byte) in &edits {
        let at = usize::from(*at) % request.len();
        request[at] = *byte;
    }
    let reply = ask(&request, edits.is_empty());
    if !edits.is_empty() {
        return Ok(());
    }
    let reply = reply.expect("a sound request is answered");
    check(path, &reply);
    if path == "/v1/chat/completions" && reply.status == 200 && body.get("stream") != Some(&Value::Bool(true))
    {
        body.insert("stream".into(), true.into());
        let streamed = ask(&post(path, host, &Value::Object(body).to_string()), true).expect("as above");
        check(path, &streamed);
        let whole: Value = serde_json::from_slice(&reply.body).expect("it was checked");
        assert_eq!(streamed.choices(), choices_of(&whole), "{text}");
    }
    Ok(())
}

fn post(path: &str, host: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// What an answer says by choice: text, calls and why it ended.
type Choice = (String, Vec<(String, String)>, Value);

fn choices_of(whole: &Value) -> Vec<Choice> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = |message: &Value| {
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
        calls.iter().map(call).collect()
    };
    let all = whole["choices"].as_array().cloned().unwrap_or_default();
    let choice = |choice: &Value| {
        let message = &choice["message"];
        (text(&message["content"]), calls(message), choice["finish_reason"].clone())
    };
    all.iter().map(choice).collect()
}

impl Reply {
    fn is(&self, kind: &str) -> bool {
        self.head.to_ascii_lowercase().contains(&format!("content-type: {kind}"))
    }

    fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).expect("events are text");
        let data =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).expect("an event is JSON")).collect()
    }

    /// What the pieces of a chat come to.
    fn choices(&self) -> Vec<Choice> {
        let mut all: Vec<Choice> = Vec::new();
        for event in self.events() {
            for choice in event["choices"].as_array().into_iter().flatten() {
                let index = choice["index"].as_u64().expect("a piece is of a choice") as usize;
                while all.len() <= index {
                    all.push(Choice::default());
                }
                let (text, calls, ended) = &mut all[index];
                text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
                for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                    let at = call["index"].as_u64().expect("a piece is of a call") as usize;
                    assert!(at <= calls.len(), "calls come in their order");
                    if at == calls.len() {
                        calls.push((String::new(), String::new()));
                    }
                    calls[at].0.push_str(call["function"]["name"].as_str().unwrap_or_default());
                    calls[at].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
                }
                if !choice["finish_reason"].is_null() {
                    *ended = choice["finish_reason"].clone();
                }
            }
        }
        all
    }
}

fn check(path: &str, reply: &Reply) {
    assert!(reply.status != 500, "{path}: {}", String::from_utf8_lossy(&reply.body));
    if reply.is("application/json") {
        let body: Value = serde_json::from_slice(&reply.body).expect("JSON is JSON");
        assert!(reply.status < 400 || body.get("error").is_some(), "{path}: a refusal says why: {body}");
    }
    if reply.is("text/event-stream") {
        reply.events();
    }
}

/// Sends the bytes of one connection, and waits for an answer or hangs up; `None` where none came.
fn ask(request: &[u8], waits: bool) -> Option<Reply> {
    API.runtime.block_on(async {
        let (mut client, server) = duplex(PIPE);
        let talk = async {
            let _ = client.write_all(request).await;
            if !waits {
                let _ = client.shutdown().await;
            }
            let mut bytes = Vec::new();
            let _ = client.read_to_end(&mut bytes).await;
            bytes
        };
        let ((), bytes) = tokio::join!(API.server.connection(server), talk);
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1)?.parse().expect("a status");
        let mut body = bytes[end + 4..].to_vec();
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Some(Reply { status, head, body })
    })
}

/// The bytes of a body in chunks.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").expect("a chunk has a length");
        let digits = std::str::from_utf8(&rest[..end]).expect("digits");
        let len = usize::from_str_radix(digits, 16).expect("hex");
        rest = &rest[end + 2..];
        if len == 0 {
            return body;
        }
        body.extend(&rest[..len]);
        rest = &rest[len + 2..];
    }
}
