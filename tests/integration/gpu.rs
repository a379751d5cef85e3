//! A swarm of a GPU and a processor: each takes over from the other, and the tokens stay the same.
//!
//! Without a GPU or a software Vulkan device the test says so and passes, unless `SHOAL_GPU=required` is set.

use std::{env, path::Path};

use harness::{Shoal, node::Node, prompt::Prompt};
use tempfile::TempDir;

/// Tokens of an answer: enough that a node can die in the middle.
const TOKENS: &str = "120";
/// Tokens that have come when it dies.
const BEFORE: usize = 6;
const TEXT: &str = "A fox found a lantern in the snow";

/// Answers that are asked for until a node dies in the middle of one.
const TRIES: usize = 10;

/// Whether this machine has a device for the kernels of our own.
fn has_gpu() -> bool {
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

#[test]
fn a_gpu_and_a_processor_take_over_from_each_other() {
    if !has_gpu() {
        return;
    }
    let here = Shoal::new().json(
        [
            "run",
            "--device",
            "cpu",
            "-n",
            TOKENS,
            "--temperature",
            "0",
            "--raw",
            "--draft",
            "off",
            "--json",
            TEXT,
        ],
        "",
    );
    let expected = here["ids"].as_array().unwrap();

    let folder = TempDir::new().unwrap();
    let asks = Node::start(&folder.path().join("asks"), &["--ask-only"]);
    let serve = |name: &str, device: &str| {
        let layers = ["--layers", "1..7", "--peer", asks.tcp(), "--device", device];
        Node::start(&folder.path().join(name), &layers)
    };
    // A node that is paused leaves the prompt to the other. Whether it died in the middle of the answer.
    let hand_over = |mut from: Node, to: &Node| {
        asks.meets(2);
        to.ask(&["pause"]);
        asks.sees(1, |peer| {
            peer["node"] == to.name.as_str() && peer["models"].as_array().is_some_and(Vec::is_empty)
        });
        let mut prompt = ask(&asks.home);
        assert!(prompt.reaches(BEFORE), "the answer ended early");
        assert_eq!(prompt.strangers(&asks.name), [from.name.as_str()], "{}", prompt.route);
        to.ask(&["pause", "--off"]);
        from.child.kill().unwrap();
        let _ = from.child.wait();
        let last = prompt.ends();
        assert_eq!(&prompt.ids(), expected, "without {}", from.home.display());
        last["faults"].as_array().is_some_and(|faults| !faults.is_empty())
    };
    let (gpu, cpu) = (|| serve("gpu", "gpu:0"), || serve("cpu", "cpu"));
    // An answer that was over before the node died is asked for again.
    let lives = cpu();
    assert!((0..TRIES).any(|_| hand_over(gpu(), &lives)), "{TRIES} answers were over");
    let (mut dies, lives) = (Some(lives), gpu());
    let mut struck = (0..TRIES).map(|_| hand_over(dies.take().unwrap_or_else(cpu), &lives));
    assert!(struck.any(|struck| struck), "{TRIES} answers were over");
}
