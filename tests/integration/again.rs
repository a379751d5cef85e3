//! A stream over HTTP that broke because the node that conducted it was killed: the client asks the same of the next
//! process, with `Last-Event-ID`, and gets the rest.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary,
    nemesis::{Slowed, signal},
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROMPT: &str = "Tell me a long story about a fox who collects lanterns";
const SEED: u64 = 7;
const TOKENS: u32 = 160;
/// The client has seen so many tokens when the node dies.
const SEEN: u64 = 12;

/// A streaming answer as its client reads it.
struct Client {
    reader: BufReader<TcpStream>,
    /// Text by the number of its token.
    texts: BTreeMap<u64, String>,
    /// Text that was held back and comes with the end.
    rest: String,
    /// Tokens as the last chunk counts them.
    usage: Value,
    /// Who computed and who checked, as the end says.
    report: Value,
    ended: bool,
}

impl Client {
    /// Asks; with `seen` for what comes after that token.
    fn ask(node: &Node, seen: Option<u64>) -> Self {
        let token = fs::read_to_string(node.api["token_file"].as_str().unwrap()).unwrap();
        let address = node.api["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let body = json!({
            "model": "minnow", "messages": [{ "role": "user", "content": PROMPT }], "seed": SEED,
            "temperature": 0.8, "max_tokens": TOKENS, "mode": "boomerang",
            "stream": true, "stream_options": { "include_usage": true },
        })
        .to_string();
        let again = seen.map(|seen| format!("Last-Event-ID: {seen}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // HTTP/1.0: the body is not cut into chunks.
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{again}\r\n{body}",
            token.trim(),
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if !line.contains(" 200 ") {
            reader.read_to_string(&mut line).unwrap();
            panic!("{line}");
        }
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the answer ends in its head");
        }
        Self {
            reader,
            texts: BTreeMap::new(),
            rest: String::new(),
            usage: Value::Null,
            report: Value::Null,
            ended: false,
        }
    }

    /// Reads until token `last` is there, or to the end of the answer.
    fn read(&mut self, last: u64) {
        let mut id = None;
        while self.texts.keys().next_back().is_none_or(|at| *at < last) && !self.ended {
            let mut line = String::new();
            // The end of the connection, in whatever way, is for the caller to judge.
            if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(number) = line.strip_prefix("id: ") {
                id = Some(number.trim().parse().unwrap());
            } else if let Some(data) = line.strip_prefix("data: ") {
                self.take(id.take(), data.trim());
            }
        }
    }

    fn take(&mut self, id: Option<u64>, data: &str) {
        if data == "[DONE]" {
            self.ended = true;
            return;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        assert!(chunk["error"].is_null(), "{chunk}");
        let text = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if let Some(id) = id {
            assert!(self.texts.insert(id, text.to_owned()).is_none(), "token {id} came twice");
        } else {
            self.rest.push_str(text);
        }
        if chunk["choices"][0]["finish_reason"].is_string() {
            self.report = chunk["shoal"].clone();
        }
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
    }

    /// Numbers of the tokens that came.
    fn ids(&self) -> Vec<u64> {
        self.texts.keys().copied().collect()
    }

    fn text(&self) -> String {
        self.texts.values().chain([&self.rest]).map(String::as_str).collect()
    }
}

/// What the node says of its last prompt, once it has come to an end, checks included.
fn why(node: &Node) -> Value {
    let began = Instant::now();
    loop {
        let output =
            harness::output(Command::new(binary()).args(["why", "--json", "--home"]).arg(&node.home))
                .unwrap();
        let said = serde_json::from_slice(&output.stdout);
        if let (true, Ok(said)) = (output.status.success(), said) {
            let said: Value = said;
            if said["checking"] != true {
                return said;
            }
        }
        assert!(began.elapsed() < PATIENCE, "{}", String::from_utf8_lossy(&output.stderr));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stream_goes_on_after_the_node_that_conducted_it_was_killed() {
    let seed = SEED.to_string();
    let tokens = TOKENS.to_string();
    let args = ["run", "--json", "-n", &tokens, "--seed", &seed, "--temperature", "0.8", PROMPT];
    let whole = Shoal::new().json(args, "");
    let count = whole["ids"].as_array().unwrap().len() as u64;
    assert!(count > 4 * SEEN, "the story is too short to be interrupted: {whole}");

    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("serves"), &["--layers", "1..7"]);
    let home = folder.path().join("asks");
    let conduct = || {
        let node = Node::start(&home, &["--ask-only", "--api", "127.0.0.1:0", "--peer", serves.tcp()]);
        node.meets(1);
        node.wait_for("answering");
        node
    };
    let mut asks = conduct();
    // So slow that the answer is far from its end when the client has seen its beginning.
    let slow = Slowed::new(u64::from(serves.child.id()), Duration::from_millis(5), Duration::from_millis(40));
    let mut client = Client::ask(&asks, None);
    client.read(SEEN);
    signal("-KILL", u64::from(asks.child.id()));
    asks.child.wait().unwrap();
    drop(slow);
    // What was on its way was seen, too.
    client.read(u64::MAX);
    let seen = client.ids();
    let last = *seen.last().unwrap();
    assert!(!client.ended && last < count, "the answer had ended after {last} tokens");
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    let journal = home.join("journal");
    let kept: Vec<_> = fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "the answer is kept");
    let kept = String::from_utf8_lossy(&fs::read(&kept[0]).unwrap()).into_owned();
    assert!(!kept.contains(PROMPT) && !kept.contains("\"prompt\""), "what is kept can be read: {kept}");

    let asks = conduct();
    let mut rest = Client::ask(&asks, Some(last));
    rest.read(u64::MAX);
    assert!(rest.ended);
    assert_eq!(rest.ids(), (last + 1..=count).collect::<Vec<_>>(), "nothing twice, nothing lost");
    assert_eq!(client.text() + &rest.text(), whole["text"].as_str().unwrap());
    assert_eq!(rest.usage["prompt_tokens"], whole["prompt_tokens"], "{}", rest.usage);
    // The stage is new here, so all it does is computed again; the answer did not wait for that, and says so.
    assert_eq!(rest.report["checking"], true, "{}", rest.report);
    let why = why(&asks);
    assert_eq!((&why["verified"], &why["checked_by"]), (&json!(1.0), &json!([asks.name])), "{why}");
    // It went on: what had been said was not generated again.
    let generated = why["ids"].as_array().unwrap().len() as u64;
    assert!(generated <= count - last, "{generated} of {count} tokens after {last}: {why}");
    assert_eq!(fs::read_dir(&journal).unwrap().count(), 0, "nothing is kept of a finished answer");
}
