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

/// The same, where a call is up to the model.
fn free_tool(parameters: &Value) -> Value {
    let mut body = tool(parameters);
    body["tool_choice"] = "auto".into();
    body
}

/// Sends forms that overflow a stack where nothing is measured, and then what people send.
fn attack(ask: &dyn Fn(&Value) -> Answer) {
    let schema = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let mutual =
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    // More items at least than at most, and a limit that is none.
    let items = |least: i64, most: i64| {
        let list =
            json!({"type": "array", "items": {"type": "integer"}, "minItems": least, "maxItems": most});
        json!({"type": "object", "properties": {"x": list}, "required": ["x"]})
    };
    for (body, what) in [
        (schema(&chain(1000)), "64 deep"),
        (tool(&chain(1000)), "64 deep"),
        (free_tool(&chain(1000)), "64 deep"),
        (schema(&mutual), ""),
        (free_tool(&json!({"type": "object", "$ref": "#/$defs/a", "$defs": mutual["$defs"]})), "`move`"),
        (schema(&items(9, 3)), "unsatisfiable"),
        (tool(&items(9, 3)), "unsatisfiable"),
        (free_tool(&items(9, 3)), "`move`"),
        (schema(&items(0, -1)), "maxItems"),
        (free_tool(&items(0, -1)), "`move`"),
    ] {
        let answer = ask(&chat(body));
        assert_eq!(answer.status, 400, "{what}: {:?}", answer.body);
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

/// An upgrade puts another program in the place of the one that runs: that one goes on as it is.
#[cfg(target_os = "linux")]
#[test]
fn a_node_whose_program_was_replaced_starts_its_worker_again() {
    let folder = TempDir::new().unwrap();
    let [program, other] = ["shoal", "other"].map(|name| folder.path().join(name));
    fs::hard_link(binary(), &program).or_else(|_| fs::copy(binary(), &program).map(drop)).unwrap();
    let node = Node::launch(Command::new(&program), &folder.path().join("a"), &["--loopback"]);
    let pid = || node.ask(&["status"])["model"]["worker_pid"].as_u64();
    let before = pid().unwrap();
    fs::write(&other, "another program").unwrap();
    fs::rename(&other, &program).unwrap();
    assert!(Command::new("kill").args(["-KILL", &before.to_string()]).status().unwrap().success());
    let started = Instant::now();
    while pid().is_none_or(|pid| pid == before) {
        assert!(started.elapsed() < PATIENCE, "no worker came in its place");
        std::thread::sleep(Duration::from_millis(100));
    }
    let answer = node.ask(&["run", "--via", "swarm", "--mode", "local", "-n", "4", "Hello"]);
    assert_eq!(answer["ids"].as_array().unwrap().len(), 4, "{answer}");
}

/// A disposable process that is handed open files: what it says, once it is proven to be confined.
#[cfg(target_os = "linux")]
fn hand_over(args: &[&str], before: &[u8], files: &[&fs::File]) -> String {
    use ::node::platform::{Handed, handed_files};
    use std::{io::Read, os::unix::net::UnixStream, path::Path};
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(binary());
    command.args(args).stdin(std::os::fd::OwnedFd::from(theirs)).stdout(Stdio::null());
    let process = Running(command.spawn().expect("shoal starts"));
    drop(command);
    ours.write_all(before).unwrap();
    let files: Vec<_> = files.iter().map(|file| Handed::read(file, Path::new("handed"))).collect();
    handed_files::send(&ours, &files).unwrap();
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    // It has ended and is not reaped: the system still says what it was.
    is_confined(&process.0);
    said
}

#[cfg(target_os = "linux")]
#[test]
fn headers_are_read_by_a_confined_process() {
    let folder = TempDir::new().unwrap();
    let whole = fs::read(harness::data("families").join("llama.gguf")).unwrap();
    let mut hostile = whole.clone();
    hostile[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    for (bytes, expected) in [(&whole, "\"num_layers\""), (&hostile, "\"Unread\":{\"Malformed\"")] {
        let path = folder.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        let file = fs::File::open(&path).unwrap();
        let said = hand_over(&["worker", "--header"], &(bytes.len() as u64).to_le_bytes(), &[&file]);
        assert!(said.contains(expected), "{said}");
        let (shoal, add) = (harness::Shoal::new(), ["model", "add", path.to_str().unwrap()]);
        if bytes == &whole {
            assert!(shoal.ok(add, "").contains("added model"));
        } else {
            let (code, why) = shoal.fails(add, "");
            assert!(
                code == 1 && why.contains("malformed file") && why.contains("model.gguf"),
                "{code}: {why}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn checkpoints_are_converted_by_a_confined_process() {
    let (folder, source) = (TempDir::new().unwrap(), harness::data("hf").join("llama"));
    let mut files = Vec::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let file = fs::File::open(source.join(name)).unwrap();
        files.push((name, file.metadata().unwrap().len(), file));
    }
    let path = folder.path().join("out.gguf");
    let output = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let task = json!({
        "folder": "published", "name": "llama", "gguf": false, "format": "f16", "rules": [], "importance_bytes": null, "ranks": false,
        "threads": 2,
        "files": files.iter().map(|(name, bytes, _)| (name, bytes)).collect::<Vec<_>>(),
    });
    let handed: Vec<&fs::File> =
        std::iter::once(&output).chain(files.iter().map(|(.., file)| file)).collect();
    let said = hand_over(&["worker", "--convert"], format!("{task}\n").as_bytes(), &handed);
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(last["Done"]["bytes"], path.metadata().unwrap().len(), "{said}");
    assert!(shard::gguf::Gguf::open(&path).is_ok());
}

/// The processes with keys, tokens and sockets share a program with those that parse; this says where the line is.
#[test]
fn model_files_are_parsed_behind_the_filter_only() {
    let behind = [
        "header.rs: a process of its own",
        "library/mod.rs: commands that confine themselves, workers and the embedded model",
        "commands/bench.rs: a file that it has just written itself",
        "commands/convert.rs: a process of its own, for the parts that it joins",
    ];
    let mut open = vec![harness::root().join("node/src")];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            if path.ends_with("tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]").next().unwrap();
            let parses = ["Gguf::open(", "Gguf::of_file(", "Gguf::of_parts(", "library::open("]
                .iter()
                .any(|call| product.contains(call));
            if parses {
                found
                    .push(path.strip_prefix(harness::root().join("node/src")).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    let mut allowed: Vec<&str> = behind.iter().map(|line| line.split(':').next().unwrap()).collect();
    allowed.sort_unstable();
    assert_eq!(found, allowed, "see {behind:?}");
}
