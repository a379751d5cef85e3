//! What a body may cost: who may send one, how much, how long, and how soon too much of it is refused.

mod fake;
mod http;

use fake::Fake;
use http::{Api, TOKEN};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Routes that take a body and want the token.
const CLOSED: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/messages",
    "/api/generate",
    "/api/chat",
    "/api/embed",
    "/api/show",
    "/api/embeddings",
    "/api/pull",
    "/v1/messages/count_tokens",
    "/swarm/contribution",
    "/swarm/consent",
    "/swarm/names",
];

/// Sends a head that declares `declared` bytes and only `body` of them, keeps the connection open, and reads the answer.
async fn unfinished(api: &Api, path: &str, token: &str, declared: usize, body: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {declared}\r\n\r\n",
        api.host()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses a request need not read it to its end.
    let _ = socket.write_all(body).await;
    let mut answer = vec![0; 1 << 14];
    let n = socket.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

#[tokio::test]
async fn the_token_is_checked_before_a_byte_of_the_body_is_read() {
    let api = http::start(Fake::quick()).await;
    for path in CLOSED {
        let (status, answer) = unfinished(&api, path, "wrong", 32 << 20, b"").await;
        assert_eq!(status, 401, "{path}: {answer}");
    }
    let (status, _) = unfinished(&api, CLOSED[0], TOKEN, (32 << 20) + 1, b"").await;
    assert_eq!(status, 413, "the declared length is enough to refuse");
}

#[tokio::test]
async fn a_ticket_is_small_and_comes_at_once() {
    let api = http::start(Fake::quick()).await;
    let (status, answer) = unfinished(&api, "/session", "", 1025, b"").await;
    assert_eq!(status, 413, "{answer}");
    assert!(answer.contains("1 KiB"), "{answer}");
    // Without a declared length the bytes are counted.
    let chunk = format!("{{\"ticket\": \"{}", "x".repeat(1200));
    let chunked = format!(
        "POST /session HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{chunk}\r\n",
        api.host(),
        chunk.len()
    );
    assert_eq!(api.raw(chunked.as_bytes()).await.status, 413);
    // One that stays unfinished is given up.
    let (status, answer) = unfinished(&api, "/session", "", 100, b"{\"ticket\": ").await;
    assert_eq!(status, 408, "{answer}");
    let ticket = json!({"ticket": api.ticket}).to_string();
    let (status, answer) = unfinished(&api, "/session", "", ticket.len(), ticket.as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
}

/// A million biased tokens: the refusal comes after the first 65,536, while the client still sends.
#[tokio::test]
async fn too_many_members_are_refused_while_they_come() {
    let api = http::start(Fake::quick()).await;
    let mut body = br#"{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"#.to_vec();
    for token in 0..70_000 {
        body.extend_from_slice(format!("\"{token}\":1,").as_bytes());
    }
    let (status, answer) = unfinished(&api, "/v1/chat/completions", TOKEN, 12 << 20, &body).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("members"), "{answer}");
    assert!(api.fake.last.lock().unwrap().is_none(), "nothing was asked");
}

fn tools(count: usize, properties: usize) -> Value {
    let property = |i: usize| (format!("p{i}"), json!({"type": "string"}));
    let schema = json!({"type": "object", "properties": (0..properties).map(property).collect::<Value>()});
    let tool =
        |i: usize| json!({"type": "function", "function": {"name": format!("f{i}"), "parameters": schema}});
    (0..count).map(tool).collect()
}

#[tokio::test]
async fn tools_are_bounded_by_their_number_and_by_what_they_describe() {
    let api = http::start(Fake::quick()).await;
    let ask = |tools: Value| json!({"messages": [{"role": "user", "content": "x"}], "tools": tools});
    for (tools, says) in [
        (tools(129, 1), "`tools` may have at most 128 entries"),
        (tools(128, 100), "`tools` may have at most 16384 values"),
        (tools(128, 500), "more than 65536 members"),
    ] {
        let reply = api.post("/v1/chat/completions", &ask(tools)).await;
        assert_eq!(reply.status, 400, "{says}");
        assert!(reply.text().contains(says), "{}", reply.text());
    }
    assert!(api.fake.last.lock().unwrap().is_none(), "nothing was asked");
    assert_eq!(api.post("/v1/chat/completions", &ask(tools(128, 20))).await.status, 200);
}

/// A token's worth of ids is a value and no member: as many as fit the longest contexts are read.
#[tokio::test]
async fn a_prompt_of_many_token_ids_is_no_attack() {
    let api = http::start(Fake::quick()).await;
    let reply = api.post("/v1/completions", &json!({"prompt": vec![7; 200_000]})).await;
    assert_eq!(reply.json()["choices"][0]["text"], "200000 tokens");
}
