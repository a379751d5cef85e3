//! What a server computed is there after a restart (`shoal serve --keep-state`): sealed, checked, and the same bits.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use harness::{Shoal, binary, http, node::PATIENCE};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server, killed with the test.
struct Server {
    child: Child,
    url: String,
    token: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(home: &Path) -> Self {
        let mut child = Command::new(binary())
            .args([
                "serve",
                "--via",
                "local",
                "--json",
                "--listen",
                "127.0.0.1:0",
                "--threads",
                "1",
                "--no-pin",
            ])
            .args(["--keep-state", "32MiB"])
            .env("SHOAL_HOME", home)
            .stdout(Stdio::piped())
            .spawn()
            .expect("shoal starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(lines.next().unwrap().unwrap().contains("\"ready\""));
        let url = listening["url"].as_str().unwrap().to_owned();
        let token = fs::read_to_string(listening["token_file"].as_str().unwrap()).unwrap();
        Self { child, url, token }
    }

    /// What is answered to a question behind the long system prompt, and how many tokens came from what was kept.
    fn ask(&self, question: &str) -> (Value, u64) {
        let body = json!({"model": "minnow", "seed": 1, "temperature": 0.8, "max_tokens": 12, "messages": [
            {"role": "system", "content": system()}, {"role": "user", "content": question}]});
        let said = http::request(&self.url, &self.token, "POST", "/v1/chat/completions", &body).body;
        let cached = said["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (said["choices"].clone(), cached.unwrap_or_else(|| panic!("{said}")))
    }
}

fn system() -> String {
    "The owl counts the stars, the fox carries a lantern, and the bear sleeps by the river. ".repeat(12)
}

/// Waits until the file of states is another one than `before`.
fn written(file: &Path, before: &[u8]) -> Vec<u8> {
    let started = Instant::now();
    loop {
        let bytes = fs::read(file).unwrap();
        if bytes[..128 << 10] != before[..128 << 10] {
            return bytes;
        }
        assert!(started.elapsed() < PATIENCE, "nothing was stored");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_long_prompt_is_there_after_a_restart() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("kept-state");
    let first = Server::start(home.path());
    let empty = fs::read(&file).unwrap();
    assert_eq!(empty.len(), 32 << 20);
    let (fox, cached) = first.ask("Where is the fox?");
    assert_eq!(cached, 0);
    let kept = written(&file, &empty);
    // A second server would overwrite what this one keeps.
    let args = ["serve", "--via", "local", "--listen", "127.0.0.1:0", "--keep-state", "32MiB", "--home"];
    let (_, why) = Shoal::new().fails(args.into_iter().chain([home.path().to_str().unwrap()]), "");
    assert!(why.contains("another server keeps its state"), "{why}");
    drop(first);

    // No token of the prompt lies there in the clear.
    let ids = Shoal::new().ok(["tokenize", "--json"], &system());
    let ids: Vec<u32> = serde_json::from_str(ids.lines().last().unwrap()).unwrap();
    let plain: Vec<u8> = ids[20..24].iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(!kept[..4 << 20].windows(plain.len()).any(|window| window == plain));

    let again = Server::start(home.path());
    let (same, cached) = again.ask("Where is the fox?");
    assert_eq!(same, fox, "the same bits");
    assert!(cached > 200, "{cached} tokens came back");
    drop(again);
    let other = Server::start(home.path());
    let (_, cached) = other.ask("Who sleeps?");
    assert!(cached > 200, "{cached} tokens of the system prompt came back");
    drop(other);

    // Bytes that changed are noticed, and computed again.
    let mut bytes = fs::read(&file).unwrap();
    bytes.iter_mut().skip(128 << 10).step_by(4096).for_each(|byte| *byte ^= 1);
    fs::write(&file, bytes).unwrap();
    let (same, cached) = Server::start(home.path()).ask("Where is the fox?");
    assert_eq!((same, cached), (fox, 0));
}
