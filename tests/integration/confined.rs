//! What parses strangers' bytes is confined, and what it dies of takes nothing else down: commands as they run, and forms of
//! answers over HTTP, sent to a server alone and to a node.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use harness::{
    binary,
    http::{self, Answer},
    node::{Node, PATIENCE},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A process, killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(home: &Path, args: &[&str]) -> Running {
    let mut command = Command::new(binary());
    command.args(args).env("SHOAL_HOME", home).stdin(Stdio::piped()).stdout(Stdio::piped());
    Running(command.spawn().expect("shoal starts"))
}

/// Waits until a process is confined; the test fails when it never is.
#[cfg(target_os = "linux")]
fn is_confined(process: &Child) {
    let started = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it runs");
        if status.contains("Seccomp:\t2") {
            assert!(
                status.contains("NoNewPrivs:\t1") && status.contains("CapEff:\t0000000000000000"),
                "{status}"
            );
            return;
        }
        assert!(started.elapsed() < PATIENCE, "it reads without a filter: {status}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Commands that wait for input behind a model can be looked at while they do.
#[cfg(target_os = "linux")]
#[test]
fn commands_confine_themselves_before_they_look_into_a_model() {
    let home = TempDir::new().unwrap();
    for (args, input, expected) in [
        (&["tokenize", "--json"][..], "a fox", "["),
        (&["chat", "--json", "--threads", "1", "--no-pin", "-n", "8"][..], "Tell me a story\n", "\"done\""),
    ] {
        let mut process = start(home.path(), args);
        is_confined(&process.0);
        process.0.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let said: Vec<String> = lines.map_while(Result::ok).collect();
        assert!(said.iter().any(|line| line.contains(expected)), "{args:?}: {said:?}");
        assert!(process.0.wait().unwrap().success(), "{args:?}");
    }
}

/// `n` definitions, each referring to the next.
fn chain(n: usize) -> Value {
    let mut definitions: Map<String, Value> =
        (0..n).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
    definitions.insert(format!("d{n}"), json!({"type": "integer"}));
    json!({"type": "object", "$defs": definitions, "properties": {"x": {"$ref": "#/$defs/d0"}}, "required": ["x"]})
}

fn chat(rest: Value) -> Value {
    let mut body = json!({
        "model": "minnow", "seed": 1, "temperature": 0, "max_tokens": 60,
        "messages": [{"role": "user", "content": "Where is it?"}],
    });
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    body
}

fn tool(parameters: &Value) -> Value {
    json!({
        "tools": [{"type": "function", "function": {"name": "move", "parameters": parameters}}],
        "tool_choice": "required",
    })
}

/// Sends forms that overflow a stack where nothing is measured, and then what people send.
fn attack(ask: &dyn Fn(&Value) -> Answer) {
    let schema = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let mutual =
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    for (body, what) in
        [(schema(&chain(1000)), "64 deep"), (tool(&chain(1000)), "64 deep"), (schema(&mutual), "")]
    {
        let answer = ask(&chat(body));
        assert_eq!(answer.status, 400, "{:?}", answer.body);
        let why = answer.body["error"]["message"].as_str().unwrap();
        assert!(why.contains(what), "{why}");
    }
    // As pydantic writes it.
    let point = json!({
        "type": "object",
        "$defs": {"Axis": {"type": "object", "properties": {"to": {"type": "integer", "minimum": 0, "maximum": 9}},
                           "required": ["to"], "additionalProperties": false}},
        "properties": {"x": {"$ref": "#/$defs/Axis"}, "y": {"$ref": "#/$defs/Axis"}},
        "required": ["x", "y"],
        "additionalProperties": false
    });
    let answer = ask(&chat(tool(&point)));
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let call = &answer.body["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a call")).unwrap();
    assert!(arguments["x"]["to"].is_u64() && arguments["y"]["to"].is_u64(), "{arguments}");
}

#[test]
fn forms_take_no_server_down() {
    let home = TempDir::new().unwrap();
    let mut process =
        start(home.path(), &["serve", "--json", "--listen", "127.0.0.1:0", "--threads", "1", "--no-pin"]);
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let listening: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(lines.next().unwrap().unwrap().contains("\"ready\""));
    let url = listening["url"].as_str().unwrap();
    let token = fs::read_to_string(listening["token_file"].as_str().unwrap()).unwrap();
    attack(&|body| http::request(url, &token, "POST", "/v1/chat/completions", body));
    assert!(process.0.try_wait().unwrap().is_none(), "it is gone");
}

#[test]
fn forms_take_no_worker_down() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(&folder.path().join("a"), &["--api", "127.0.0.1:0"]);
    node.wait_for("answering");
    let pid = || node.ask(&["status"])["model"]["worker_pid"].clone();
    let before = pid();
    attack(&|body| http::ask(&node, "POST", "/v1/chat/completions", body));
    assert_eq!(pid(), before, "the worker was replaced");
}
