//! What people and programs around a node use: keys of other people, and its tools for another program's model.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use harness::{Shoal, binary};
use serde_json::{Value, json};

/// Says `messages` to `shoal mcp`, one after the other's answer, and gives the answers.
fn mcp(shoal: &Shoal, messages: &[Value]) -> Vec<Value> {
    let mut child = Command::new(binary())
        .arg("mcp")
        .env("SHOAL_HOME", shoal.home())
        .env("SHOAL_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("shoal starts");
    let mut to = child.stdin.take().expect("standard input is piped");
    let mut from = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let answers = messages
        .iter()
        .map(|message| {
            writeln!(to, "{message}").unwrap();
            serde_json::from_str(&from.next().expect("an answer").unwrap()).unwrap()
        })
        .collect();
    drop(to);
    assert!(child.wait().unwrap().success(), "it ends with its input");
    assert!(from.next().is_none(), "standard output has nothing but answers");
    answers
}

#[test]
fn tools_of_the_model_context_protocol_answer_as_the_command_does() {
    let shoal = Shoal::new();
    let ask = json!({"name": "ask", "arguments": {"prompt": "Tell me a story", "max_tokens": 8, "seed": 0}});
    let request = |id: u64, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let answers = mcp(
        &shoal,
        &[
            request(1, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}})),
            request(2, "tools/call", ask),
            request(3, "tools/call", json!({"name": "models"})),
        ],
    );
    assert_eq!(answers[0]["result"]["serverInfo"]["name"], "shoal");
    let said = answers[1]["result"]["content"][0]["text"].as_str().unwrap();
    let own = shoal.json(["run", "--json", "--max-tokens", "8", "Tell me a story"], "");
    assert_eq!(said.strip_suffix("\n[cut by max_tokens]").unwrap(), own["text"].as_str().unwrap());
    assert!(answers[2]["result"]["content"][0]["text"].as_str().unwrap().contains("minnow"));
}

/// Keys as commands; what a server makes of them is tested where it is.
#[test]
fn a_key_is_shown_once_and_taken_back() {
    let shoal = Shoal::new();
    let key = shoal.json(["key", "add", "ann", "--tokens-per-day", "5", "--json"], "");
    let secret = key["key"].as_str().unwrap();
    assert!(secret.len() > 64, "{secret}");
    for file in fs::read_dir(shoal.home()).unwrap().flatten() {
        let text = fs::read(file.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&text).contains(secret), "{} has the key", file.path().display());
    }
    let list = shoal.json(["key", "list", "--json"], "");
    assert_eq!((&list[0]["name"], &list[0]["tokens_per_day"]), (&json!("ann"), &json!(5)));
    let (_, taken) = shoal.fails(["key", "add", "ann"], "");
    assert!(taken.contains("already"), "{taken}");
    shoal.ok(["key", "revoke", "ann"], "");
    assert_eq!(shoal.json(["key", "list", "--json"], "")[0]["revoked"], true);
    // Of another node on this machine, such as the service.
    let other = shoal.home().join("service");
    let home = other.to_str().unwrap();
    let key = shoal.json(["key", "add", "ben", "--home", home, "--json"], "");
    assert!(key["key"].is_string() && other.join("api-keys.json").exists());
    assert_eq!(shoal.json(["key", "list", "--home", home, "--json"], "")[0]["name"], "ben");
    assert_eq!(shoal.json(["key", "list", "--json"], "").as_array().unwrap().len(), 1);
}
