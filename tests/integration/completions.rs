//! Completions through a swarm say of a prompt what one machine alone says of it.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    http,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// `shoal serve`, which ends with the test.
struct Alone(Child, Value);

impl Alone {
    fn start(home: &std::path::Path) -> Self {
        let mut child = Command::new(harness::binary())
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--threads", "1", "--no-pin"])
            .env("SHOAL_HOME", home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(lines.next().unwrap().unwrap().contains("\"ready\""));
        Self(child, listening)
    }

    fn ask(&self, path: &str, body: &Value) -> http::Answer {
        let token = fs::read_to_string(self.1["token_file"].as_str().unwrap()).unwrap();
        http::request(self.1["url"].as_str().unwrap(), &token, "POST", path, body)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that asks, and two that compute the middle; the owner has agreed to strangers.
fn swarm(folder: &TempDir) -> [Node; 3] {
    let home = |name: &str| folder.path().join(name);
    let asks = Node::start(&home("a"), &["--ask-only", "--api", "127.0.0.1:0"]);
    let serve =
        |name: &str, layers: &str| Node::start(&home(name), &["--layers", layers, "--peer", asks.tcp()]);
    let [b, c] = [serve("b", "1..4"), serve("c", "4..7")];
    asks.meets(2);
    let agreed = http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "boomerang", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
    [asks, b, c]
}

/// What a node answers that has seen the whole swarm: before that it says when to ask again.
fn patiently(node: &Node, path: &str, body: &Value) -> http::Answer {
    let started = Instant::now();
    loop {
        let answer = http::ask(node, "POST", path, body);
        if answer.status != 503 || started.elapsed() > PATIENCE {
            return answer;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The same request to both; answers that are there.
fn both(asks: &Node, alone: &Alone, path: &str, body: &Value) -> [Value; 2] {
    let mut through = body.clone();
    (through["mode"], through["verify"]) = ("boomerang".into(), "none".into());
    let answers = [patiently(asks, path, &through), alone.ask(path, body)];
    answers.map(|answer| {
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    })
}

/// `echo` with `logprobs`, of texts and of token ids, several at once and of one that is only looked at: the same tokens, the
/// same log-probabilities, and the same again when most of it was computed before.
#[test]
fn a_prompt_is_scored_through_a_swarm_as_on_one_machine() {
    let folder = TempDir::new().unwrap();
    let [asks, _b, _c] = swarm(&folder);
    let alone = Alone::start(&folder.path().join("d"));
    let long = "The fox sat by the fire and told the owl of the long winter. ".repeat(3);
    for body in [
        json!({"prompt": "The fox sat by the fire", "echo": true, "logprobs": 3, "max_tokens": 4}),
        json!({"prompt": [long, "The owl"], "echo": true, "logprobs": 1, "max_tokens": 1}),
        json!({"prompt": [[5, 6, 7, 8, 9]], "echo": true, "logprobs": 0, "max_tokens": 0}),
        json!({"prompt": "The bear", "echo": true, "max_tokens": 2, "n": 2}),
    ] {
        let mut body = body;
        (body["seed"], body["temperature"]) = (1.into(), 0.into());
        let [through, here] = both(&asks, &alone, "/v1/completions", &body);
        assert!(through["shoal"]["route"].as_array().unwrap().len() > 2, "{through}");
        assert_eq!(through["choices"], here["choices"], "{body}");
        assert_eq!(through["usage"]["completion_tokens"], here["usage"]["completion_tokens"]);
        if body["logprobs"] == 3 {
            let [again, _] = both(&asks, &alone, "/v1/completions", &body);
            assert_eq!(again["choices"], here["choices"], "{body}");
            let scores = here["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
            assert!(scores.len() > 6 && scores[1..].iter().all(Value::is_number), "{here}");
        }
    }
}
