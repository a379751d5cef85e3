//! A swarm of a GPU and a processor: each takes over from the other, and the tokens stay the same. A device that fails costs its
//! node the device, not an answer.
//!
//! Without a GPU or a software Vulkan device the test says so and passes, unless `SHOAL_GPU=required` is set.

use std::{
    env,
    fs::{self, File},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal,
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

/// Tokens of an answer: enough that a node can die in the middle.
const TOKENS: &str = "120";
/// Tokens that have come when it dies.
const BEFORE: usize = 6;
/// Memory that holds some layers of minnow, not all.
const GPU_MEMORY: &str = "12MiB";
const TEXT: &str = "A fox found a lantern in the snow";

/// Answers that are asked for until a node dies in the middle of one.
const TRIES: usize = 10;

/// Whether this machine has a device for the kernels of our own.
pub fn has_gpu() -> bool {
    let alone = Shoal::new();
    let tried = alone.run_with(["run", "--device", "gpu:0", "-n", "1", "--raw", TEXT], "");
    if tried.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&tried.stderr);
    let required = env::var("SHOAL_GPU").is_ok_and(|value| value == "required");
    assert!(!required, "SHOAL_GPU=required: {why}");
    eprintln!("skipped: {why}a software device is in the package mesa-vulkan-drivers");
    false
}

fn ask(home: &Path) -> Prompt {
    Prompt::run(home, ["-n", TOKENS, "--temperature", "0", "--raw", "--draft", "off", TEXT])
}

/// The answer as `device` computes it alone.
fn alone(device: &[&str]) -> Value {
    let how = ["-n", TOKENS, "--temperature", "0", "--raw", "--draft", "off", "--json", TEXT];
    Shoal::new().json([&["run"], device, &how[..]].concat(), "")
}

/// A node that asks and those that serve it, each on a device of this machine.
struct Swarm {
    /// The answer as the processor computes it alone.
    here: Value,
    asks: Node,
    folder: TempDir,
}

impl Swarm {
    /// `None` where there is no device.
    fn new() -> Option<Self> {
        if !has_gpu() {
            return None;
        }
        let here = alone(&["--device", "cpu"]);
        let folder = TempDir::new().unwrap();
        let asks = Node::start(&folder.path().join("asks"), &["--ask-only"]);
        Some(Self { here, asks, folder })
    }

    /// The tokens that every answer has.
    fn expected(&self) -> &Vec<Value> {
        self.here["ids"].as_array().unwrap()
    }

    /// Serves the middle layers on `device`, which fails as `fault` says.
    fn serve(&self, name: &str, device: &str, fault: &str) -> Node {
        let how = ["--layers", "1..7", "--peer", self.asks.tcp(), "--device", device];
        Node::start_with(&self.folder.path().join(name), &how, &[("SHOAL_GPU_FAULT", fault)])
    }

    /// Waits until the node that asks knows that `paused` takes no prompt.
    fn leaves_out(&self, paused: &Node) {
        self.asks.sees(1, |peer| {
            peer["node"] == paused.name.as_str() && peer["models"].as_array().is_some_and(Vec::is_empty)
        });
    }

    /// An answer in the middle, computed by `server`.
    fn begun_at(&self, server: &Node) -> Prompt {
        let mut prompt = ask(&self.asks.home);
        assert!(prompt.reaches(BEFORE), "the answer ended early");
        assert_eq!(prompt.strangers(&self.asks.name), [server.name.as_str()], "{}", prompt.route);
        prompt
    }
}

/// Waits until `status` of `node` says `wanted` of its model, and gives that.
fn becomes(node: &Node, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let model = node.ask(&["status"])["model"].take();
        if wanted(&model) {
            return model;
        }
        assert!(started.elapsed() < PATIENCE, "{model}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// The device is taken from a node in the middle of an answer: another holder goes on with the same tokens, and the node with its
/// processor. One whose device gives another hash than it should is announced as approx from then on.
#[test]
fn a_node_whose_device_fails_goes_on_with_the_processor_and_says_so() {
    let Some(swarm) = Swarm::new() else { return };
    let (asks, expected) = (&swarm.asks, swarm.expected());
    let is_on = |model: &Value, device: &str| {
        model["device"].as_str().is_some_and(|named| named.starts_with(&format!("{device} (")))
    };
    let cpu = swarm.serve("cpu", "cpu", "");
    for (fault, said) in [("lost:30", "the device is lost"), ("hang:30", "its driver did not come back")] {
        cpu.ask(&["pause"]);
        let gpu = swarm.serve(fault, "gpu:0", fault);
        let model = becomes(&gpu, |model| is_on(model, "gpu"));
        assert_eq!(model["device_trouble"], Value::Null, "{model}");
        asks.sees(1, |peer| {
            let holds = peer["models"].as_array().is_some_and(|models| !models.is_empty());
            peer["node"] == gpu.name.as_str() && peer["connected"] == true && holds && is_on(peer, "gpu")
        });
        swarm.leaves_out(&cpu);
        let mut prompt = swarm.begun_at(&gpu);
        cpu.ask(&["pause", "--off"]);
        let last = prompt.ends();
        assert_eq!(&prompt.ids(), expected, "{fault} {last}");
        assert!(last["faults"].as_array().is_some_and(|faults| !faults.is_empty()), "{fault} {last}");
        let model = becomes(&gpu, |model| is_on(model, "cpu"));
        let trouble = model["device_trouble"].as_str().unwrap_or_default();
        assert!(trouble.contains(&format!("gpu:0 failed ({said}")), "{model}");
        // It serves again.
        cpu.ask(&["pause"]);
        asks.sees(1, |peer| peer["node"] == gpu.name.as_str() && peer["device"] == "");
        let mut prompt = ask(&asks.home);
        prompt.ends();
        assert_eq!(&prompt.ids(), expected);
    }
    drop(cpu);

    let wrong = swarm.serve("wrong", "gpu:0", "wrong:1");
    let model = becomes(&wrong, |model| model["class"] == "approx");
    let trouble = model["device_trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("gpu:0 is of class approx"), "{model}");
    assert!(is_on(&model, "gpu"), "{model}");

    // A driver that hangs or crashes while the model is loaded does not keep the node from starting.
    for fault in ["hang:load", "crash:load"] {
        let node = swarm.serve(fault, "gpu:0", fault);
        let model = node.ask(&["status"])["model"].take();
        let trouble = model["device_trouble"].as_str().unwrap_or_default();
        assert!(is_on(&model, "cpu") && trouble.contains("gpu:0 failed ("), "{model}");
    }
}

/// `--device auto` measures both devices and takes one of them.
#[test]
fn a_device_left_open_is_measured_against_the_processor() {
    if !has_gpu() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let node = Node::start_as(&folder.path().join("auto"), &["--layers", "1..7"], |command| {
        command
            .env("SHOAL_GPU_FAULT", "measure")
            .env("SHOAL_LOG", "info")
            .stderr(File::create(&log).unwrap());
    });
    let model = node.ask(&["status"])["model"].take();
    assert_eq!(model["class"], "d1", "{model}");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("a request was measured on both") && log.contains("chosen"), "{log}");
}

/// A node whose own worker is on a GPU chooses among the candidates that come back from there: the same tokens as among all logits.
#[test]
fn tokens_chosen_of_candidates_are_those_of_all_logits() {
    if !has_gpu() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let node = Node::start(&folder.path().join("node"), &["--device", "gpu:0"]);
    for sampling in [&["--temperature", "0"][..], &["--temperature", "1", "--top-k", "5", "--seed", "7"]] {
        let how = [&["-n", "24", "--raw", "--draft", "off"], sampling].concat();
        let whole = Shoal::new().json([&["run", "--device", "cpu", "--json", TEXT], &how[..]].concat(), "");
        let near = Shoal::new().json([&["run", "--device", "gpu:0", "--json", TEXT], &how[..]].concat(), "");
        assert_eq!(near["ids"], whole["ids"], "{sampling:?}");
        let mut prompt = Prompt::run(&node.home, [&how[..], &[TEXT]].concat());
        let last = prompt.ends();
        assert_eq!(&prompt.ids(), whole["ids"].as_array().unwrap(), "{sampling:?} {last}");
    }
}

/// Layers that the device's memory does not hold are the processor's, and the tokens stay the same.
#[test]
fn a_model_is_split_between_a_device_and_the_processor() {
    if !has_gpu() {
        return;
    }
    let whole = alone(&["--device", "cpu"]);
    let split = alone(&["--device", "gpu:0,cpu", "--gpu-memory", GPU_MEMORY, "--ctx", "300"]);
    assert_eq!(split["ids"], whole["ids"]);
    let refused = Shoal::new()
        .run_with(["run", "--device", "cpu", "--gpu-memory", "1GB", "-n", "1", "--raw", TEXT], "");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("--gpu-memory is for --device gpu:0"), "{why}");
}

#[test]
fn a_gpu_and_a_processor_take_over_from_each_other() {
    let Some(swarm) = Swarm::new() else { return };
    // A node that is paused leaves the prompt to the other. Whether it died in the middle of the answer.
    let hand_over = |mut from: Node, to: &Node| {
        swarm.asks.meets(2);
        to.ask(&["pause"]);
        swarm.leaves_out(to);
        let mut prompt = swarm.begun_at(&from);
        to.ask(&["pause", "--off"]);
        from.child.kill().unwrap();
        let _ = from.child.wait();
        let last = prompt.ends();
        assert_eq!(&prompt.ids(), swarm.expected(), "without {}", from.home.display());
        last["faults"].as_array().is_some_and(|faults| !faults.is_empty())
    };
    let (gpu, cpu) = (|| swarm.serve("gpu", "gpu:0", ""), || swarm.serve("cpu", "cpu", ""));
    // An answer that was over before the node died is asked for again.
    let lives = cpu();
    assert!((0..TRIES).any(|_| hand_over(gpu(), &lives)), "{TRIES} answers were over");
    let (mut dies, lives) = (Some(lives), gpu());
    let mut struck = (0..TRIES).map(|_| hand_over(dies.take().unwrap_or_else(cpu), &lives));
    assert!(struck.any(|struck| struck), "{TRIES} answers were over");
}
