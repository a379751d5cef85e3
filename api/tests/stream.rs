//! Streams: chunks, ids, resuming, usage, cancelling, the swarm's events.

mod fake;
mod http;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fake::Fake;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn hi() -> Value {
    json!([{"role": "user", "content": "one two"}])
}

fn text(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[tokio::test]
async fn openai_chunks_add_up_to_the_answer() {
    let api = http::start(Fake::quick()).await;
    let body = json!({"messages": hi(), "stream": true, "stream_options": {"include_usage": true}});
    let reply = api.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(text(&events, "/choices/0/delta/content"), "You said: one two");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 4);
    assert_eq!(events.last().unwrap()["choices"], json!([]));
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    let reasons: Vec<_> = events.iter().filter(|e| e["choices"][0]["finish_reason"].is_string()).collect();
    assert_eq!(reasons.len(), 1);
    assert_eq!(reasons[0]["shoal"]["tok_s"], 15.5);
}

#[tokio::test]
async fn a_stream_is_resumed_after_any_token() {
    let api = http::start(Fake::quick()).await;
    let body = json!({"messages": hi(), "stream": true, "seed": 1});
    let whole = api.post("/v1/chat/completions", &body).await.text();
    let ids: Vec<&str> = whole.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["1", "2", "3", "4"]);
    for seen in 0..=4 {
        let seen = seen.to_string();
        let rest = api.post_with("/v1/chat/completions", &body, &[("Last-Event-ID", &seen)]).await;
        let ids: Vec<String> =
            rest.text().lines().filter_map(|line| line.strip_prefix("id: ").map(str::to_owned)).collect();
        let expected: Vec<String> = (seen.parse::<u32>().unwrap() + 1..=4).map(|id| id.to_string()).collect();
        assert_eq!(ids, expected);
    }
    let unseeded = json!({"messages": hi(), "stream": true});
    let refused = api.post_with("/v1/chat/completions", &unseeded, &[("Last-Event-ID", "1")]).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("Last-Event-ID")));
}

#[tokio::test]
async fn the_other_families_stream_in_their_frames() {
    let api = http::start(Fake::quick()).await;
    let reply = api.post("/v1/messages", &json!({"max_tokens": 50, "messages": hi(), "stream": true})).await;
    let kinds: Vec<String> =
        reply.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    let mut expected = vec!["message_start", "ping", "content_block_start"];
    expected.extend(["content_block_delta"; 4]);
    expected.extend(["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(kinds, expected);
    assert_eq!(text(&reply.events(), "/delta/text"), "You said: one two");

    let reply = api.post("/v1/responses", &json!({"input": "one two", "stream": true})).await;
    let events = reply.events();
    let deltas: Vec<Value> =
        events.iter().filter(|e| e["type"] == "response.output_text.delta").cloned().collect();
    assert_eq!(text(&deltas, "/delta"), "You said: one two");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "You said: one two");
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());

    let reply = api.post("/api/chat", &json!({"model": "fake-7b", "messages": hi()})).await;
    let lines: Vec<Value> = reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(text(&lines, "/message/content"), "You said: one two");
    assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");

    let reply = api.post("/v1/completions", &json!({"prompt": "x", "stream": true, "max_tokens": 2})).await;
    assert_eq!(text(&reply.events(), "/choices/0/text"), " and then:");
    assert_eq!(reply.events().last().unwrap()["choices"][0]["finish_reason"], "length");
}

/// Waits for something that must come; the harness ends a test that waits in vain.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_cancels_its_answer() {
    for stream in [true, false] {
        let api = http::start(Fake::paced(50)).await;
        let words = "word ".repeat(100_000);
        let body =
            json!({"messages": [{"role": "user", "content": words}], "stream": stream, "mode": "local"})
                .to_string();
        let mut socket = tokio::net::TcpStream::connect(api.address).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            api.host(),
            http::TOKEN,
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body.as_bytes()).await.unwrap();
        until(|| api.fake.alive.load(Ordering::SeqCst) == 1).await;
        if stream {
            let mut some = [0; 16];
            socket.read_exact(&mut some).await.unwrap();
        }
        drop(socket);
        until(|| api.fake.alive.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn one_answer_too_many_is_told_when_to_come_back() {
    let config = api::Config {
        token: Some(http::TOKEN.into()),
        doors: Arc::new(api::doors::Alone::new([8, 1 << 20, 1])),
        ..api::Config::default()
    };
    let api = http::start_with(Fake::paced(50), config).await;
    let long = json!({"messages": [{"role": "user", "content": "w ".repeat(100_000)}], "mode": "local"});
    let address = api.address;
    let first = async {
        api.post("/v1/chat/completions", &long).await;
    };
    let second = async {
        until(|| api.fake.alive.load(Ordering::SeqCst) == 1).await;
        let body = json!({"messages": hi(), "mode": "local"});
        api.post("/v1/chat/completions", &body).await
    };
    let refused = tokio::select! {
        () = first => panic!("{address}: the long answer ended"),
        refused = second => refused,
    };
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some_and(|s| s.parse::<u32>().unwrap() >= 1));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
}

#[tokio::test]
async fn the_swarm_tells_of_a_failover() {
    let api = http::start(Fake::paced(1)).await;
    let mut socket = tokio::net::TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "GET /swarm/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        api.host(),
        http::TOKEN
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut seen = String::new();
    let mut buffer = vec![0; 1 << 16];
    let mut asked = false;
    while !seen.contains("\"type\":\"pipeline_ended\"") {
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the stream ended");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
        if !asked && seen.contains("\"type\":\"snapshot\"") {
            asked = true;
            api.post("/v1/chat/completions", &json!({"messages": hi(), "stream": true})).await;
        }
    }
    let at = |kind: &str| seen.find(&format!("\"type\":\"{kind}\"")).unwrap_or_else(|| panic!("no {kind}"));
    assert!(at("snapshot") < at("pipeline") && at("pipeline") < at("progress"));
    assert!(at("progress") < at("failover") && at("failover") < at("pipeline_ended"));
}
