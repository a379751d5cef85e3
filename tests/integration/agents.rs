//! What coding agents send, answered by a swarm: the requests that `api/tests/agents` keeps, and an agent that edits a file by calls
//! of a tool while the node that computes for it dies.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use harness::{
    http,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Lines of each call.
const LINES: usize = 8;

/// The model of the binary for texts as long as those of agents, and its layers; by hand another one (`SHOAL_MODEL`, `SHOAL_LAYERS`).
fn model(folder: &Path) -> (PathBuf, u32) {
    if let (Ok(file), Ok(layers)) = (std::env::var("SHOAL_MODEL"), std::env::var("SHOAL_LAYERS")) {
        return (file.into(), layers.parse().expect("a number of layers"));
    }
    let mut bytes = node::library::embedded_bytes().to_vec();
    let key = b".context_length";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it has a context");
    // Key, u32 type, u32 value.
    let value = at + key.len() + 4;
    bytes[value..value + 4].copy_from_slice(&4_096u32.to_le_bytes());
    let file = folder.join("long.gguf");
    fs::write(&file, bytes).unwrap();
    (file, 8)
}

/// A node that asks, by HTTP, and `count` that each hold all layers between the ends.
fn swarm(folder: &Path, count: usize) -> (Node, Vec<Node>) {
    let (file, layers) = model(folder);
    let between = format!("1..{}", layers - 1);
    let path = file.to_str().unwrap();
    let asks = Node::start(&folder.join("asks"), &["--model", path, "--ask-only", "--api", "127.0.0.1:0"]);
    let holds = (0..count).map(|at| {
        let home = folder.join(format!("holds-{at}"));
        Node::start(&home, &["--model", path, "--layers", &between, "--peer", asks.tcp()])
    });
    let holds = holds.collect();
    asks.meets(count);
    asks.wait_for("answering");
    (asks, holds)
}

#[test]
fn requests_of_agents_are_answered_by_a_swarm() {
    let folder = TempDir::new().unwrap();
    let (asks, _holds) = swarm(folder.path(), 1);
    let model = http::ask(&asks, "GET", "/v1/models", &Value::Null).body["data"][0]["id"].clone();
    let requests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/agents");
    let mut answered = 0;
    for request in fs::read_dir(requests).unwrap() {
        let file = request.unwrap().path();
        let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let (path, mut body) = (kept["path"].as_str().unwrap(), kept["body"].clone());
        body["model"] = model.clone();
        if !path.ends_with("count_tokens") {
            // Few tokens, in one piece.
            let most = if path.ends_with("responses") { "max_output_tokens" } else { "max_tokens" };
            let fields = body.as_object_mut().unwrap();
            for field in ["stream", "stream_options", "max_completion_tokens"] {
                fields.remove(field);
            }
            let thinks = fields.get("thinking").and_then(|thinking| thinking["budget_tokens"].as_u64());
            fields.insert(most.to_owned(), json!(thinks.unwrap_or(0) + 8));
        }
        let answer = http::ask(&asks, "POST", path, &body);
        assert_eq!(answer.status, 200, "{}: {}", file.display(), answer.body);
        answered += 1;
    }
    assert!(answered >= 12, "{answered} requests");
}

/// What an agent does: asks, makes the call that comes, tells what came of it, and asks again.
fn edits(
    asks: &Node,
    text: &mut Vec<String>,
    before: &mut dyn FnMut(usize, &mut dyn FnMut() -> bool),
) -> Vec<Value> {
    let lines = json!({"type": "array", "items": {"type": "string", "minLength": 4, "maxLength": 12}, "minItems": LINES, "maxItems": LINES});
    let parameters = json!({
        "type": "object", "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 9}, "lines": lines},
        "required": ["at", "lines"], "additionalProperties": false,
    });
    let tool = json!({"type": "function", "function": {"name": "insert_lines", "parameters": parameters, "strict": true}});
    let mut messages = vec![
        json!({"role": "system", "content": "You edit the file story.txt."}),
        json!({"role": "user", "content": "Write about an owl who learns to swim."}),
    ];
    let url = asks.api["url"].as_str().unwrap();
    let token = fs::read_to_string(asks.api["token_file"].as_str().unwrap()).unwrap();
    let mut calls = Vec::new();
    for step in 0..3 {
        let body = json!({
            "messages": messages, "tools": [tool], "temperature": 0, "seed": 7, "max_tokens": 1_000,
            "tool_choice": {"type": "function", "function": {"name": "insert_lines"}},
        });
        let answer = thread::scope(|scope| {
            let asked = scope.spawn(|| http::request(url, &token, "POST", "/v1/chat/completions", &body));
            before(step, &mut || asked.is_finished());
            asked.join().unwrap()
        });
        assert_eq!(answer.status, 200, "{}", answer.body);
        let message = answer.body["choices"][0]["message"].clone();
        let call = message["tool_calls"][0].clone();
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("a call")).unwrap();
        let at = (arguments["at"].as_u64().unwrap() as usize).min(text.len());
        let new = arguments["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned());
        text.splice(at..at, new);
        messages.push(message);
        messages.push(
            json!({"role": "tool", "tool_call_id": call["id"], "content": format!("{} lines", text.len())}),
        );
        calls.push(arguments);
    }
    calls
}

#[test]
fn an_agent_edits_a_file_though_a_node_dies() {
    let folder = TempDir::new().unwrap();
    let (asks, mut holds) = swarm(folder.path(), 2);
    let (mut undisturbed, mut text) = (Vec::new(), Vec::new());
    let expected = edits(&asks, &mut undisturbed, &mut |_, _| {});
    let served = |node: &Node| node.ask(&["status"])["served_positions"].as_u64().unwrap();
    let before: Vec<u64> = holds.iter().map(served).collect();
    let calls = edits(&asks, &mut text, &mut |step, over| {
        if step != 1 {
            return;
        }
        // The node that computed the first call has the beginning of the second.
        let started = Instant::now();
        let victim = loop {
            let busy = holds.iter().zip(&before).position(|(node, before)| served(node) > *before);
            if let Some(victim) = busy {
                break victim;
            }
            assert!(started.elapsed() < PATIENCE, "no node computes");
            thread::sleep(Duration::from_millis(10));
        };
        let mut victim = holds.remove(victim);
        victim.child.kill().unwrap();
        victim.child.wait().unwrap();
        assert!(!over(), "the answer was over before the node died");
    });
    assert_eq!(calls, expected);
    assert_eq!(text, undisturbed);
    assert_eq!(text.len(), 3 * LINES);
}
