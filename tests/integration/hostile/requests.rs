//! Requests that no client sends, to a node that answers over HTTP: schemas that a reader of them dies of or copies without
//! end, bodies without a token, and more members, tools and text than any prompt has. Each is refused with a status below
//! 500, the process that computes stays the same one, memory stays bounded, and honest requests are answered meanwhile.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use harness::{
    http,
    node::{Node, PATIENCE},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{full, resident_kib};

/// What all of it together may leave in the daemon, KiB: the largest body here is 8 MiB, and takes some five times that while it
/// is looked at.
const MAX_LEFT_KIB: u64 = 160 << 10;

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "minnow", "seed": 1, "temperature": 0, "max_tokens": 4,
        "messages": [{"role": "user", "content": "Where is it?"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A schema as the API's `response_format` has it.
fn format(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

fn tools(schema: &Value, choice: &str) -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": choice})
}

/// Definitions that each refer to the next one.
fn chain(n: usize) -> Value {
    let mut definitions: Map<String, Value> =
        (0..n).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
    definitions.insert(format!("d{n}"), json!({"type": "integer"}));
    json!({"type": "object", "$defs": definitions, "properties": {"x": {"$ref": "#/$defs/d0"}}})
}

/// A large definition that many members refer to, each with a keyword of its own beside the reference.
fn referred(bytes: usize, members: usize) -> Value {
    let member = |at: usize| (format!("p{at}"), json!({"$ref": "#/$defs/b", "minLength": 0}));
    let properties: Map<String, Value> = (0..members).map(member).collect();
    json!({"type": "object", "properties": properties, "$defs": {"b": {"const": "x".repeat(bytes)}}})
}

/// Status and text of what is answered; `None` where the connection is closed on a body that was not read to its end, which
/// takes the answer along.
fn sent(host: &str, token: &str, body: &Value) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        token.trim(),
        body.len()
    );
    // A server that refuses a request need not read it to its end.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12)?.parse().ok()?;
    Some((status, answer))
}

#[test]
fn requests_that_no_client_sends_are_refused_and_cost_little() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(&folder.path().join("a"), &["--api", "127.0.0.1:0"]);
    node.wait_for("answering");
    let ask = |path: &str, body: &Value| http::ask(&node, "POST", path, body);
    let told = |answer: &http::Answer| {
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["choices"][0]["message"]["content"].clone()
    };
    let first = told(&ask("/v1/chat/completions", &chat(json!({}))));
    let honest = || assert_eq!(told(&ask("/v1/chat/completions", &chat(json!({})))), first);
    let worker = || node.ask(&["status"])["model"]["worker_pid"].clone();
    let (before, daemon) = (worker(), u64::from(node.child.id()));
    let held = resident_kib(daemon);

    // Bodies for a ticket, without the token, that are declared large and never end.
    let host = node.api["url"].as_str().unwrap().trim_start_matches("http://");
    let token = fs::read_to_string(node.api["token_file"].as_str().unwrap()).unwrap();
    let silent: Vec<TcpStream> = (0..40)
        .filter_map(|_| {
            let mut socket = TcpStream::connect(host).ok()?;
            let head = format!(
                "POST /session HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                32 << 20
            );
            // It may refuse at any moment, that is its right.
            let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&[b' '; 64 << 10]));
            Some(socket)
        })
        .collect();
    assert!(silent.len() > 20, "{} sockets", silent.len());
    honest();

    let many = |n: usize| -> Map<String, Value> { (0..n).map(|id| (id.to_string(), json!(1))).collect() };
    let properties: Map<String, Value> =
        (0..500).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
    let tool = |at: usize| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": parameters}})
    };
    let mutual =
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    let attacks = [
        ("a chain of references", chat(format(&chain(1_000)))),
        ("a chain in a tool that must be called", chat(tools(&chain(1_000), "required"))),
        ("a chain in a tool that may be called", chat(tools(&chain(1_000), "auto"))),
        ("references into themselves", chat(format(&mutual))),
        ("a definition of megabytes that many refer to", chat(format(&referred(8 << 20, 2_000)))),
        ("the same in a tool", chat(tools(&referred(8 << 20, 2_000), "auto"))),
        (
            "a bias of every token",
            chat(json!({"logit_bias": many(if full() { 1_000_000 } else { 100_000 })})),
        ),
        ("tools that describe too much", chat(json!({"tools": (0..128).map(tool).collect::<Vec<_>>()}))),
        (
            "a prompt of four megabytes",
            chat(json!({"messages": [{"role": "user", "content": "word ".repeat(800_000)}]})),
        ),
    ];
    let mut told_why = 0;
    for (what, body) in &attacks {
        match sent(host, &token, body) {
            Some((status, answer)) => {
                assert!(
                    (400..500).contains(&status) && answer.contains("message"),
                    "{what}: {status} {answer}"
                );
                told_why += 1;
            }
            None => println!("{what}: refused before it was read to its end"),
        }
        honest();
    }
    assert!(told_why > attacks.len() / 2, "{told_why} of {} were told why", attacks.len());
    assert_eq!(worker(), before, "the process that computes was replaced");
    let left = resident_kib(daemon);
    println!("{} attacks: the daemon held {held} KiB before and {left} KiB after", attacks.len());
    assert!(left.saturating_sub(held) < MAX_LEFT_KIB, "{held} -> {left} KiB");
    drop(silent);
}
