//! The official Python clients against a real `shoal serve` and against a swarm of three processes, which must also give the
//! same answers byte for byte: runs `tests/clients/clients.py`. And schemathesis, which reads the served OpenAPI document and
//! sends what it allows, and what it does not.
//!
//! The official clients of OpenAI (Python and JavaScript), Anthropic and Ollama also read answers that stand still for longer
//! than the server stays silent (`tests/clients/pause.py` and `pause.mjs`), from the fake of `api/examples` and from a swarm.
//!
//! `tests/clients/tools.py` asks `shoal mcp` by the official client of the Model Context Protocol.
//!
//! They need the packages of `tests/clients/requirements.txt` for `python3`, or for the interpreter that `SHOAL_PYTHON`
//! names, and the one of `tests/clients/package.json` (`npm ci`). Where they are missing it says so and skips, unless `SHOAL_CLIENTS=required` is set.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::examples::example;
use harness::{Shoal, binary, nemesis::signal, node::Node, root};
use serde_json::Value;
use tempfile::TempDir;

/// A server, killed with the test.
pub(crate) struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `shoal serve` and waits until it answers; where it does.
pub(crate) fn serve(home: &Path, token: &Path, args: &[&str]) -> (Serving, String) {
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0"]).args(args);
    if !args.contains(&"--no-token") {
        command.arg("--token-file").arg(token);
    }
    let mut child = command.env("SHOAL_HOME", home).stdout(Stdio::piped()).spawn().expect("shoal starts");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let serving = Serving(child);
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let listening = next();
    assert_eq!(listening["event"], "listening");
    assert_eq!(next()["event"], "ready");
    (serving, listening["url"].as_str().unwrap().to_owned())
}

/// The interpreter that has the packages.
pub(crate) fn python() -> String {
    std::env::var("SHOAL_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether a missing package is a failure.
pub(crate) fn required() -> bool {
    std::env::var("SHOAL_CLIENTS").is_ok_and(|value| value == "required")
}

/// Runs a script of `tests/clients`; where it cannot, says so.
fn clients(program: &str, script: &str, args: &[&OsStr]) {
    let script = root().join("tests/clients").join(script);
    let ran = harness::output(Command::new(program).arg(script).args(args));
    let Ok(output) = ran else {
        assert!(!required(), "{program} is not installed");
        return say(&format!("skipped: the official clients are not tested, missing: {program}"));
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) {
        assert!(!required(), "{said}");
        return say(&format!("skipped: the official clients are not tested, {}", said.trim()));
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn official_clients_are_content() {
    let shoal = Shoal::new();
    let token = shoal.home().join("token");
    let (_serving, url) = serve(shoal.home(), &token, &[]);
    clients(&python(), "clients.py", &[url.as_ref(), token.as_ref()]);
}

/// A node that asks and answers over HTTP, and two with a half of the middle layers each.
fn swarm_of_three(folder: &Path) -> (Node, [Node; 2]) {
    let first = Node::start(&folder.join("a"), &["--layers", "1..4"]);
    let second = Node::start(&folder.join("b"), &["--layers", "4..7", "--peer", first.tcp()]);
    let asks = Node::start(
        &folder.join("c"),
        &["--ask-only", "--api", "127.0.0.1:0", "--peer", first.tcp(), "--peer", second.tcp()],
    );
    asks.meets(2);
    asks.wait_for("answering");
    (asks, [first, second])
}

#[test]
fn official_clients_are_content_with_a_swarm_and_get_the_same_answers() {
    let folder = TempDir::new().unwrap();
    let (asks, _serves) = swarm_of_three(folder.path());
    let alone = Shoal::new();
    let token = alone.home().join("token");
    let (_serving, other) = serve(alone.home(), &token, &[]);
    let (url, file) = (asks.api["url"].as_str().unwrap(), asks.api["token_file"].as_str().unwrap());
    clients(&python(), "clients.py", &[url.as_ref(), file.as_ref(), other.as_ref(), token.as_ref()]);
}

/// The official client of the Model Context Protocol starts `shoal mcp` itself.
#[test]
fn the_official_client_of_tools_is_content() {
    let shoal = Shoal::new();
    clients(&python(), "tools.py", &[binary().as_os_str(), shoal.home().as_os_str()]);
}

/// Longer than the 10 s after which a silent stream gets a heartbeat.
const PAUSE: Duration = Duration::from_secs(11);

/// A script whose clients read streams that pause.
struct Reading {
    script: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it said that was not waited for.
    said: String,
}

impl Reading {
    /// Starts it; `None` where it cannot be, which is said.
    fn start(program: &str, script: &str, args: &[&str]) -> Option<Self> {
        let path = root().join("tests/clients").join(script);
        let started =
            Command::new(program).arg(path).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut script) = started else {
            assert!(!required(), "{program} is not installed");
            say(&format!("skipped: the official clients are not tested, missing: {program}"));
            return None;
        };
        let lines = BufReader::new(script.stdout.take().expect("its output is piped")).lines();
        let mut reading = Self { script, lines, said: String::new() };
        if reading.says("ready") {
            return Some(reading);
        }
        let code = reading.script.wait().expect("it ends").code();
        assert!(code == Some(77) && !required(), "{}", reading.said);
        say(&format!("skipped: the official clients are not tested, {}", reading.said.trim()));
        None
    }

    /// Lets its streams begin.
    fn go(&mut self) {
        let mut input = self.script.stdin.take().expect("its input is piped");
        writeln!(input, "go").expect("it reads a line");
    }

    /// Waits until it says `word`; false when it ends before.
    fn says(&mut self, word: &str) -> bool {
        for line in self.lines.by_ref().map_while(Result::ok) {
            if line == word {
                return true;
            }
            self.said += &line;
            self.said.push('\n');
        }
        false
    }

    /// Reads to its end, which must be a good one.
    fn ends(mut self) {
        self.says("");
        let ended = self.script.wait().expect("it ends");
        assert!(ended.success(), "{}", self.said);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// The scripts of all official clients that can be started here, ready to begin.
fn all_reading(args: &[&str]) -> Vec<Reading> {
    let python = python();
    let scripts = [(python.as_str(), "pause.py"), ("node", "pause.mjs")];
    scripts.into_iter().filter_map(|(program, script)| Reading::start(program, script, args)).collect()
}

/// An answer that stands still is neither an error nor an event to the official clients.
#[test]
fn official_clients_wait_for_an_answer_that_pauses() {
    let Some(fake) = example("fake") else {
        assert!(!required(), "`cargo test --workspace` builds the example fake");
        return;
    };
    let pause = PAUSE.as_millis().to_string();
    let mut child = Command::new(fake)
        .args(["0", pause.as_str()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the fake starts");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("standard output is piped"));
    let _serving = Serving(child);
    said.read_line(&mut line).expect("it says where it is");
    let url = line.split("/#").next().expect("an address").to_owned();
    let said = ["fake-7b", "You said: Tell me a story", " and then: ?"];
    let mut reading = all_reading(&[&[url.as_str(), "fake"], said.as_slice()].concat());
    // Both at once: the pause is paid for once.
    reading.iter_mut().for_each(Reading::go);
    reading.into_iter().for_each(Reading::ends);
}

/// The same through a swarm of three processes, where the worker of a stage that no other node could replace stands still in the
/// middle of all answers: each goes on and has the text that it has without a pause.
#[test]
fn official_clients_wait_for_a_swarm_that_pauses() {
    let folder = TempDir::new().unwrap();
    let (asks, serves) = swarm_of_three(folder.path());
    let (url, file) = (asks.api["url"].as_str().unwrap(), asks.api["token_file"].as_str().unwrap());
    let token = std::fs::read_to_string(file).unwrap();
    let worker = serves[1].ask(&["status"])["worker_pid"].as_u64().unwrap();
    let mut reading = all_reading(&[url, token.trim(), "minnow"]);
    if reading.is_empty() {
        return;
    }
    reading.iter_mut().for_each(Reading::go);
    for reading in &mut reading {
        assert!(reading.says("begun"), "{}", reading.said);
    }
    signal("-STOP", worker);
    std::thread::sleep(PAUSE);
    signal("-CONT", worker);
    reading.into_iter().for_each(Reading::ends);
}

/// A few thousand requests made from the document: no answer is a server error, and none contradicts the document.
#[test]
fn a_fuzzer_that_reads_the_document_finds_nothing() {
    let python = python();
    let known = harness::output(Command::new(&python).args(["-c", "import schemathesis"]));
    if !known.is_ok_and(|output| output.status.success()) {
        assert!(!required(), "schemathesis is not installed for {python}");
        return say("skipped: the OpenAPI document is not fuzzed, missing: schemathesis");
    }
    let shoal = Shoal::new();
    let token = shoal.home().join("token");
    // A request for as many tokens as there may be gets few.
    let (mut serving, url) = serve(shoal.home(), &token, &["--ctx", "128"]);
    let token = std::fs::read_to_string(token).unwrap();
    let folder = TempDir::new().unwrap();
    let output = harness::output(
        Command::new(&python)
            .args(["-m", "schemathesis.cli", "run", &format!("{url}/openapi.json")])
            .args(["--header", &format!("Authorization: Bearer {}", token.trim())])
            // Its stream has no end.
            .args(["--exclude-path", "/swarm/events"])
            // What a request may not say because of another field or of the model is refused though its fields alone are right.
            .args(["--exclude-checks", "positive_data_acceptance"])
            // Bounded by requests and not by time: a slow machine sends the same ones.
            .args(["--phases", "coverage,fuzzing", "--max-examples", "4", "--seed", "1", "--no-shrink"])
            .args(["--generation-database", "none", "--suppress-health-check", "all"])
            .args(["--request-timeout", "120", "--workers", "1"])
            .env("NO_COLOR", "1")
            .current_dir(folder.path()),
    )
    .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!said.contains(" 0 generated"), "{said}");
    assert!(serving.0.try_wait().unwrap().is_none(), "the server is still there");
    let body = serde_json::json!({ "prompt": "Once", "max_tokens": 2 });
    assert_eq!(harness::http::request(&url, &token, "POST", "/v1/completions", &body).status, 200);
}

#[test]
fn the_api_is_not_opened_to_others_by_accident() {
    let shoal = Shoal::new();
    let (code, why) = shoal.fails(["serve", "--listen", "0.0.0.0:0"], "");
    assert_eq!(code, 2);
    assert!(why.contains("--insecure-lan"), "{why}");
    let (code, _) = shoal.fails(["serve", "--listen", "0.0.0.0:0", "--insecure-lan", "--no-token"], "");
    assert_eq!(code, 2);
    let token = shoal.home().join("open-token");
    std::fs::write(&token, "a-token-that-everybody-can-read\n").unwrap();
    let mut rights = std::fs::metadata(&token).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o644);
    std::fs::set_permissions(&token, rights).unwrap();
    let (code, why) =
        shoal.fails(["serve", "--listen", "127.0.0.1:0", "--token-file", token.to_str().unwrap()], "");
    assert_eq!(code, 2);
    assert!(why.contains("chmod 600"), "{why}");
}

/// Past the test runner, which keeps to itself what passing tests print.
pub(crate) fn say(line: &str) {
    // A closed output is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
