//! The official Python clients against a real `shoal serve` and against a swarm of three processes, which must also give the
//! same answers byte for byte: runs `tests/clients/clients.py`. And schemathesis, which reads the served OpenAPI document and
//! sends what it allows, and what it does not.
//!
//! Both need the packages of `tests/clients/requirements.txt` for `python3`, or for the interpreter that `SHOAL_PYTHON`
//! names. Where they are missing it says so and skips, unless `SHOAL_CLIENTS=required` is set.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use harness::{Shoal, binary, node::Node, root};
use serde_json::Value;
use tempfile::TempDir;

/// A server, killed with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `shoal serve` and waits until it answers; where it does.
fn serve(home: &Path, token: &Path, args: &[&str]) -> (Serving, String) {
    let mut child = Command::new(binary())
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--token-file"])
        .arg(token)
        .args(args)
        .env("SHOAL_HOME", home)
        .stdout(Stdio::piped())
        .spawn()
        .expect("shoal starts");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let serving = Serving(child);
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let listening = next();
    assert_eq!(listening["event"], "listening");
    assert_eq!(next()["event"], "ready");
    (serving, listening["url"].as_str().unwrap().to_owned())
}

/// The interpreter that has the packages.
fn python() -> String {
    std::env::var("SHOAL_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether a missing package is a failure.
fn required() -> bool {
    std::env::var("SHOAL_CLIENTS").is_ok_and(|value| value == "required")
}

/// Runs the script; where it cannot, says so.
fn clients(args: &[&OsStr]) {
    let python = python();
    let script = root().join("tests/clients/clients.py");
    let ran = harness::output(Command::new(&python).arg(script).args(args));
    let Ok(output) = ran else {
        assert!(!required(), "{python} is not installed");
        return say("skipped: the official clients are not tested, missing: python3");
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
    clients(&[url.as_ref(), token.as_ref()]);
}

#[test]
fn official_clients_are_content_with_a_swarm_and_get_the_same_answers() {
    let folder = TempDir::new().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", "1..4"]);
    let second = Node::start(&folder.path().join("b"), &["--layers", "4..7", "--peer", first.tcp()]);
    let asks = Node::start(
        &folder.path().join("c"),
        &["--ask-only", "--api", "127.0.0.1:0", "--peer", first.tcp(), "--peer", second.tcp()],
    );
    asks.meets(2);
    asks.wait_for("answering");
    let alone = Shoal::new();
    let token = alone.home().join("token");
    let (_serving, other) = serve(alone.home(), &token, &[]);
    let (url, file) = (asks.api["url"].as_str().unwrap(), asks.api["token_file"].as_str().unwrap());
    clients(&[url.as_ref(), file.as_ref(), other.as_ref(), token.as_ref()]);
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
fn say(line: &str) {
    // A closed output is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
