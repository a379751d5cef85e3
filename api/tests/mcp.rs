//! The Model Context Protocol over pipes, against an inference that echoes.

mod fake;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api::mcp::MAX_CALLS;
use fake::Fake;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

/// A client's ends of the pipes.
struct Client {
    to: WriteHalf<DuplexStream>,
    from: Lines<BufReader<ReadHalf<DuplexStream>>>,
}

impl Client {
    fn start(fake: Fake) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(theirs);
        tokio::spawn(api::mcp::serve(Arc::new(fake), read, write));
        let (from, to) = tokio::io::split(ours);
        Self { to, from: BufReader::new(from).lines() }
    }

    async fn says(&mut self, line: &str) {
        self.to.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn hears(&mut self) -> Value {
        serde_json::from_str(&self.from.next_line().await.unwrap().expect("an answer")).unwrap()
    }

    async fn asks(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.says(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        let answer = self.hears().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }
}

#[tokio::test]
async fn a_client_greets_lists_and_calls() {
    let mut client = Client::start(Fake::quick());
    let hello =
        client.asks(1, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}})).await;
    assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
    client.says(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#).await;
    let tools = client.asks(2, "tools/list", json!({})).await;
    let names: Vec<&str> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ask", "models", "swarm"]);
    let asked = json!({"name": "ask", "arguments": {"prompt": "a red fox", "max_tokens": 64}});
    let answer = client.asks(3, "tools/call", asked).await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("fox") && answer["result"]["isError"] == false, "{answer}");
    let models = client.asks(4, "tools/call", json!({"name": "models"})).await;
    let models: Value =
        serde_json::from_str(models["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(models[0]["name"].is_string() && models[0]["context"].is_u64(), "{models}");
    let swarm = client.asks(5, "tools/call", json!({"name": "swarm"})).await;
    let swarm: Value = serde_json::from_str(swarm["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(swarm["nodes"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn what_is_wrong_is_said_and_nothing_ends() {
    let mut client = Client::start(Fake::quick());
    for (id, params, code) in [
        (1, json!({"name": "ask", "arguments": {}}), -32602),
        (2, json!({"name": "ask", "arguments": {"prompt": "x", "tokens": 5}}), -32602),
        (3, json!({"name": "erase"}), -32602),
    ] {
        assert_eq!(client.asks(id, "tools/call", params).await["error"]["code"], code);
    }
    assert_eq!(client.asks(4, "resources/list", json!({})).await["error"]["code"], -32601);
    client.says("{").await;
    assert_eq!(client.hears().await["error"]["code"], -32700);
    client.says(&"x".repeat(api::mcp::MAX_LINE + 1)).await;
    assert_eq!(client.hears().await["error"]["code"], -32600);
    let unknown = json!({"name": "ask", "arguments": {"prompt": "x", "model": "nothing"}});
    let _ = client.asks(5, "tools/call", unknown).await;
    assert_eq!(client.asks(6, "ping", json!({})).await["result"], json!({}));
}

/// A call of `ask`.
fn ask(id: usize) -> String {
    let params = json!({"name": "ask", "arguments": {"prompt": "a red fox", "max_tokens": 8}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

#[tokio::test]
async fn calls_under_way_are_bounded_cancelled_and_end_with_the_input() {
    // Answers that never come to their end by themselves.
    let fake = Fake::pausing(1, 600_000);
    let alive = fake.alive.clone();
    let become_so = async |n: usize| {
        let begun = async {
            while alive.load(Ordering::SeqCst) != n {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), begun).await.expect("so many answers are under way");
    };
    let mut client = Client::start(fake);
    for id in 0..MAX_CALLS {
        client.says(&ask(id)).await;
    }
    become_so(MAX_CALLS).await;
    client.says(&ask(MAX_CALLS)).await;
    let refused = client.hears().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(MAX_CALLS), &json!(-32600)));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": MAX_CALLS - 1}});
    client.says(&cancel.to_string()).await;
    become_so(MAX_CALLS - 1).await;
    client.says(&ask(MAX_CALLS + 1)).await;
    become_so(MAX_CALLS).await;
    drop(client);
    become_so(0).await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_begins_no_more_calls() {
    const CALLS: usize = 200;
    let mut client = Client::start(Fake::quick());
    for id in 0..CALLS {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "swarm"}});
        client.says(&call.to_string()).await;
        // The tasks of the server take their turns on this thread.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    let mut refused = 0;
    for _ in 0..CALLS {
        refused += usize::from(client.hears().await["error"]["code"] == -32600);
    }
    assert!(refused > 0, "answers that nothing reads are calls under way");
}
