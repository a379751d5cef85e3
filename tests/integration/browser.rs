//! The page in a real browser: runs the scripts of `tests/browser`, which drive Debian's Chromium, against a fake node and
//! against a swarm of three processes.
//!
//! It needs `node`, `chromium` and the two packages of `tests/browser/package.json` (`npm ci`). Where one is missing it says
//! so and skips, unless `SHOAL_BROWSER=required` is set.

use std::{fs, io::Write, path::Path, process::Command, sync::Arc};

use harness::{node::Node, root};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use shard::{
    executor::{
        Capacity, Ends, Executor, Options, Workspace, argmax,
        cpu::Shard,
        gpu::{Access, Action, Gpu, GpuShard, Program},
        whole_range,
    },
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
};
use tempfile::TempDir;

/// The middle layers of the model inside the binary.
const MIDDLE: &str = "1..7";

#[test]
fn the_page_works_in_a_real_browser() {
    run("run.mjs", &[]);
}

#[test]
fn the_page_keeps_conversations() {
    run("conversations.mjs", &[]);
}

#[test]
fn the_page_shows_records_of_the_swarm() {
    run("records.mjs", &[]);
}

#[test]
fn the_page_speaks_languages() {
    run("languages.mjs", &[]);
}

#[test]
fn the_page_shows_a_swarm_that_loses_a_node() {
    let folder = TempDir::new().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", MIDDLE]);
    let second = Node::start(&folder.path().join("b"), &["--layers", MIDDLE, "--peer", first.tcp()]);
    let asks = Node::start(
        &folder.path().join("c"),
        &["--ask-only", "--api", "127.0.0.1:0", "--peer", first.tcp(), "--peer", second.tcp()],
    );
    asks.meets(2);
    let token = std::fs::read_to_string(asks.api["token_file"].as_str().unwrap()).unwrap();
    let url = format!("{}/#token={}", asks.api["url"].as_str().unwrap(), token.trim());
    let pids = [&first, &second].map(|node| (node.name.clone(), json!(node.child.id())));
    let pids = serde_json::Value::Object(pids.into_iter().collect()).to_string();
    run("swarm.mjs", &[("SHOAL_URL", url.as_str()), ("SHOAL_PIDS", pids.as_str())]);
}

/// A node may be a tab of a browser: what a GPU does for a token is data that WebGPU runs, with the same bits.
#[test]
fn a_page_decodes_a_token() {
    let gpu = match Gpu::open(Access::default()) {
        Ok(gpu) => gpu,
        Err(error) => {
            let required = std::env::var("SHOAL_GPU").is_ok_and(|value| value == "required");
            assert!(!required, "SHOAL_GPU=required: {error}");
            return say(&format!("skipped: no page decodes a token: {error}"));
        }
    };
    let gguf = Arc::new(Gguf::open(root().join("shard/minnow/minnow.gguf")).unwrap());
    let (range, options) = (whole_range(&gguf).unwrap(), Options { context: Some(64) });
    let prompt = [1, 70, 300, 12, 5];
    let cpu = Arc::new(Cpu::new(Isa::detect(), Pool::new(2, false)));
    let here = Shard::load(&gguf, cpu, range, Ends::BOTH, options).unwrap();
    let mut ws = Workspace::new(&here, Capacity::one_session(8)).unwrap();
    let mut state = here.new_state();
    here.prefill(&mut ws, &mut state, &prompt).unwrap();
    let token = argmax(ws.logits(0));
    here.step(&mut ws, &mut state, token).unwrap();
    let logits = bytes(ws.logits(0));
    let there = GpuShard::load(&gguf, gpu, range, Ends::BOTH, options).unwrap();
    let mut ws = Workspace::new(&there, Capacity::one_session(8)).unwrap();
    let mut state = there.new_state();
    there.prefill(&mut ws, &mut state, &prompt).unwrap();
    let program = there.program(&mut ws, &mut state, token).unwrap();
    let folder = TempDir::new().unwrap();
    write(&program, &logits, folder.path());
    let path = folder.path().to_str().unwrap();
    let arguments = "--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader";
    run("webgpu.mjs", &[("SHOAL_PROGRAM", path), ("SHOAL_BROWSER_ARGS", arguments)]);
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// `program` as the page reads it, with the hash of the `logits` that it must give.
fn write(program: &Program, logits: &[u8], folder: &Path) {
    let mut at = 0;
    let buffers: Vec<Value> = program
        .buffers
        .iter()
        .map(|buffer| {
            at += buffer.len();
            json!({"at": at - buffer.len(), "bytes": buffer.len()})
        })
        .collect();
    let action = |action: &Action| match action {
        Action::Dispatch { shader, buffers, groups } => {
            json!({"dispatch": {"shader": shader, "bound": buffers, "groups": groups}})
        }
        Action::Copy { from, to, bytes } => json!({"copy": {"from": from, "to": to, "bytes": bytes}}),
    };
    let shader = |(source, bindings): &(String, &str)| json!({"source": source, "bindings": bindings});
    let text = json!({
        "shaders": program.shaders.iter().map(shader).collect::<Vec<_>>(),
        "buffers": buffers,
        "actions": program.actions.iter().map(action).collect::<Vec<_>>(),
        "logits": {"buffer": program.logits, "bytes": logits.len()},
        "expected": data_encoding::HEXLOWER.encode(&Sha256::digest(logits)),
    });
    fs::write(folder.join("program.json"), text.to_string()).unwrap();
    fs::write(folder.join("buffers.bin"), program.buffers.concat()).unwrap();
}

fn run(script: &str, environment: &[(&str, &str)]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/browser");
    let required = std::env::var("SHOAL_BROWSER").is_ok_and(|value| value == "required");
    let mut node = Command::new("node");
    node.arg(script).current_dir(folder).envs(environment.iter().copied());
    let Ok(output) = harness::output(&mut node) else {
        assert!(!required, "node is not installed");
        return say("skipped: the page is not tested in a browser, missing: node");
    };
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for line in said.lines().filter(|line| ["skipped:", "decoded"].iter().any(|word| line.starts_with(word)))
    {
        say(line);
    }
}

/// Past the test runner, which keeps to itself what passing tests print.
fn say(line: &str) {
    // A closed output is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
